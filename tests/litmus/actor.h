/*
 * actor.h - a process that takes part in a scenario.
 *
 * The runner forks one for each actor of a repetition, before anything of that
 * repetition is open, and tells it by commands on a socket pair what to do; each command
 * is answered by one reply. The process ends when the socket does, closing in good order what it has, and
 * dies with the runner. The runner's own steps (flush, evict, below, count, ...) are done by such a process too, so
 * that the runner itself never touches the mount and cannot hang on it.
 */
#ifndef GAIA_LITMUS_ACTOR_H
#define GAIA_LITMUS_ACTOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "scenario.h"

/* Shared by all processes of a repetition. */
struct stage {
	/* The barrier of a par. */
	atomic_uint ready;
	atomic_bool go;
	/* Lines of the par that do not loop and have not ended. */
	atomic_int running;
	/* What steps saw and noted. A note is made before anybody reads it, or within one process. */
	struct note {
		size_t len;
		uint8_t bytes[NOTE_BYTES];
	} notes[MAX_NOTES];
	/* The step that each actor is doing; NULL: none. Tells what hangs. The
	 * scenario is at the same address in all processes. */
	_Atomic(const struct step *) at[MAX_ACTORS];
};

struct actor_env {
	const struct scenario *scenario;
	const char *mount;	/* the mount point */
	int backing_fd;		/* the directory beneath it */
	const char *gaia;	/* the control tool */
	bool parks;		/* counters are not judged */
	unsigned repetition;
	struct stage *stage;
};

enum command_kind {
	CMD_STEP,	/* one step of the scenario */
	CMD_LANE,	/* one line of a par, behind the barrier */
	CMD_FORGET,	/* the daemon died: close and unmap everything */
	CMD_DROP,	/* as OP_DROP; the runner's process is told whose files to leave out */
	CMD_HOLD,	/* open the declared files, and keep them open; ... */
	CMD_HOLD_MAPPED,/* ... or only mapped */
	CMD_BASE,	/* remember the counters */
	CMD_RESIDENCY,	/* print where the declared files live to stderr */
	CMD_TIDY,	/* unlink the repetition's files */
};

struct command {
	enum command_kind kind;
	unsigned step, lane;
	uint64_t seed;		/* LANE */
	uint32_t open_files;	/* DROP: bits */
};

struct reply {
	bool ok;
	const struct step *step;/* which failed; NULL: it was no step */
	int open_file;		/* what the actor has open now, or -1 */
	char text[1500];	/* what was seen and what is allowed */
};

/* "F" in repetition 7 is the file "F.7": fresh files without a fresh mount. */
void actor_file_name(const struct actor_env *env, unsigned file, char out[64]);

_Noreturn void actor_main(const struct actor_env *env, unsigned self, int sock);

#endif
