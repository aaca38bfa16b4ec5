/*
 * wire.h - single exchanges with the daemon: an ioctl, the handshake, one message.
 *
 * The lowest layer of the library, and the only one that the gaia tool needs. It keeps no
 * state and starts no threads. Results are 0 or a negative errno.
 */
#ifndef GAIA_CLIENT_WIRE_H
#define GAIA_CLIENT_WIRE_H

#include <stdbool.h>
#include <sys/types.h>

#include "gaia/protocol.h"

/* The two system calls by which the daemon is reached through the mount, and the clock; tests replace them. */
struct wire_sys {
	int (*ioctl)(int fd, unsigned long request, void *arg);	/* -1 and errno */
	/* Push what CPUs wrote to the range to the daemon, and wait until it has it. */
	int (*push)(int fd, off_t off, off_t len);		/* -1 and errno */
	uint64_t (*now_ns)(void);				/* CLOCK_MONOTONIC */
};
extern struct wire_sys wire_sys;

/* The error of a call on a file of the mount, from errno. -ENOTCONN: the daemon is gone, whatever the kernel called it. */
int wire_error(void);

/* These and the following functions return wire_error()'s errors. */
int wire_ioctl(int fd, unsigned long request, void *arg);
/* Does not repeat the call when a signal interrupts it: -EINTR. */
int wire_ioctl_once(int fd, unsigned long request, void *arg);

/* wire_ioctl() for the first request on a descriptor. -ENOTTY: it is not on gaiafs. */
int wire_first_ioctl(int fd, unsigned long request, void *arg);

/* Whether a release that failed with @err has left everything as it was (see client.h). */
bool wire_changed_nothing(int err);

/* Release @io, in the way that the daemon wants (@by: GAIA_RELEASE_BY_*). */
int wire_release(int fd, unsigned by, struct gaia_ioc_range *io);

/* The same of a list. */
int wire_releasev(int fd, unsigned by, struct gaia_ioc_list *io);

/*
 * wire_push() for all of @n ranges, which are not empty, and sorted. What lies between near ones may be pushed, too: there are few calls.
 */
int wire_push_list(int fd, const struct gaia_list_range *range, size_t n);

/*
 * Call wire_sys.push for all bytes [off, off + len) of a file, however many; and if only the kernel knows the
 * file's present size, for that.
 */
int wire_push(int fd, uint64_t off, uint64_t len);

/* A socket for wire_handshake(), or a negative errno. */
int wire_socket(void);

/*
 * Become a client of the mount that @fd is on. *@seq: of the daemon's last message. *@features: in, the
 * GAIA_FEATURE_* that are wanted; out, those of them that the daemon has, too. NULL: none. -ESTALE: it took longer than a ticket
 * lasts (this process or the daemon was stopped, or the machine is very busy), or the daemon has gone meanwhile: try once more, with a new socket.
 */
int wire_handshake(int sock, int fd, struct gaia_client_key *key, uint64_t *seq, uint64_t *features);

/* The same with a socket of its own, and as many tries as that takes: *@sock, or -1. */
int wire_join(int *sock, int fd, struct gaia_client_key *key, uint64_t *seq, uint64_t *features);

/*
 * Take one message and the descriptors that belong to its kind, which the caller closes. -EAGAIN: none is there and @wait is
 * false. A positive errno: the message is valid, but its descriptors cannot be used, and *@n is 0. EMFILE: the process may
 * not have as many; EPROTO: they are to be mapped in a way that this version does not know.
 */
int wire_receive(int sock, bool wait, struct gaia_msg *msg, int fd[GAIA_MSG_CHUNKS], unsigned *n);
/* The same for a client that takes extents (GAIA_FEATURE_EXTENTS): bit i of *@extents: the ith descriptor of a GRANT is one. NULL: it does not. */
int wire_receive_extents(int sock, bool wait, struct gaia_msg *msg, int fd[GAIA_MSG_CHUNKS], unsigned *n, uint64_t *extents);

/* For callers that do not distinguish these errors: 0 or a negative errno. */
static inline int wire_failed(int received)
{
	return received > 0 ? -received : received;
}

/* Does not wait. */
int wire_send(int sock, const struct gaia_msg *msg);

/* Whether the daemon has ended the connection. */
bool wire_hung_up(int sock);

#endif
