/*
 * upgrade.h - a new gaiafs takes a mount over from the one that has it, without an error in any program.
 *
 * `gaiafs --upgrade MOUNT` asks the daemon of the mount. The daemon itself starts the program that asks, with its own options,
 * environment, namespaces and limits, so the new daemon is where the old one was: in the same control group, with the same log.
 * fuse/takeover.c says what the two tell each other.
 *
 * In the old daemon: upgrade_begin() on the main thread; upgrade_prepare() and upgrade_commit() on another, which may wait. As long as one of
 * them fails the mount stays the old daemon's, as it was, and upgrade_give_up() follows. In any case upgrade_answer() ends it.
 */
#ifndef GAIA_UPGRADE_H
#define GAIA_UPGRADE_H

#include <stdbool.h>
#include <sys/types.h>

#include "control/control.h"
#include "live.h"
#include "fuse/fs.h"
#include "pagecache/cache.h"

/* The descriptor by which the new daemon finds the old one. */
#define UPGRADE_FD 3

struct upgrade {
	/* The caller's, constant. */
	char **argv; /* of this daemon */
	unsigned n_option_pins; /* of --pin, which the new daemon pins by itself */
	unsigned n_option_devices; /* that the options gave this one, not gaia set */
	struct live *live;
	const char *cwd; /* where this daemon was started; NULL: not known */
	struct fs *fs;
	struct cache *cache;
	struct control *control;
	bool force; /* also if programs lose something by it */
	bool leave; /* the service manager is not to hear of the new daemon */
	uint64_t wait_ns; /* for clients to let go what they hold */

	int answer;    /* to the process that asked */
	pid_t heir;    /* the new daemon; 0: none */
	int sock;      /* to it */
	char why[400]; /* why it failed; an answer has room for it */
};

/* Start the program of process @pid. A negative errno. */
int upgrade_begin(struct upgrade *u, pid_t pid, int answer);
/* [W] Everything that can be done while the old daemon can go on. */
int upgrade_prepare(struct upgrade *u);
/* [W] 0: the mount is the new daemon's. */
int upgrade_commit(struct upgrade *u);
/* Have it fail, if the new daemon has not said yet that it has the mount. Any thread, until upgrade_answer(). */
void upgrade_cancel(struct upgrade *u);
/* The new daemon is ended, and this one goes on. */
void upgrade_give_up(struct upgrade *u);
void upgrade_answer(struct upgrade *u, int err);

/* Ask for it, and wait; @how: GAIA_UPGRADE_*. 0, or a negative errno after a line in the log. */
int upgrade_ask(const char *mountpoint, unsigned how, uint64_t wait_ms);

/* So long a daemon that was left waits to be adopted, in milliseconds; as the unit's start may take (TimeoutStartSec=). */
#define UPGRADE_ADOPT_MS 180000u

/*
 * The other half of GAIA_UPGRADE_LEAVE: if the mount's daemon was left, and is one of our unit's processes (of our control group), tell the service
 * manager that it is the main one now. @argv: of this process. False: it is not, or nothing of gaiafs is mounted there.
 */
bool upgrade_adopt(const char *mountpoint, char **argv);

#endif
