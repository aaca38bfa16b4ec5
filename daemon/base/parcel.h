/*
 * parcel.h - packets of numbers, bytes and descriptors between two processes of this program.
 *
 * The one who packs and the one who unpacks name the same things in the same order. What was received is not trusted to be
 * well formed: unpacking beyond the end, or a descriptor that did not come, spoils the parcel; then everything else that is unpacked
 * is 0, "" or -1, and parcel_good() says so. Nobody has to ask after each part.
 *
 * Not thread-safe. A parcel has 64 KiB: make it static, or allocate it.
 */
#ifndef GAIA_BASE_PARCEL_H
#define GAIA_BASE_PARCEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PARCEL_BYTES 65536u
#define PARCEL_FDS 250u /* the kernel's limit is 253 */

struct parcel {
	size_t size, at;
	unsigned n_fds, next_fd;
	bool bad;
	int fd[PARCEL_FDS]; /* of a received parcel: its own until they are unpacked */
	char bytes[PARCEL_BYTES];
};

/* Empty, to be packed. */
void parcel_init(struct parcel *p, uint32_t kind);
/* Whether there is room for so much more. */
bool parcel_has_room(const struct parcel *p, size_t bytes, unsigned fds);
void parcel_put(struct parcel *p, uint64_t number);
void parcel_put_bytes(struct parcel *p, const void *bytes, size_t n);
void parcel_put_text(struct parcel *p, const char *text);
/* The descriptor stays the caller's; it has to be open until the parcel has been sent. -1: there is none, and -1 will be unpacked. */
void parcel_put_fd(struct parcel *p, int fd);

/* By a SOCK_SEQPACKET. -EPIPE: nobody is there; -ETIMEDOUT, by the socket's SO_SNDTIMEO; -E2BIG: more was packed than there is room for. */
int parcel_send(int sock, struct parcel *p);
/* The next one, whose @kind it has to be. -EPIPE; -ETIMEDOUT, by SO_RCVTIMEO; -EPROTO: another kind, or no parcel. Then @p has nothing. */
int parcel_receive(int sock, struct parcel *p, uint32_t kind);
uint64_t parcel_get(struct parcel *p);
/* The bytes stay the parcel's; *@n: how many. */
const void *parcel_get_bytes(struct parcel *p, size_t *n);
const char *parcel_get_text(struct parcel *p);
/* The caller's from now on. */
int parcel_get_fd(struct parcel *p);
/* Whether everything that was unpacked was there. */
bool parcel_good(const struct parcel *p);
bool parcel_is_empty(const struct parcel *p);
/* Close the descriptors that were not unpacked. */
void parcel_drop(struct parcel *p);

#endif
