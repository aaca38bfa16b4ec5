/*
 * memfd.h - chunks of host memory that other processes can map.
 */
#ifndef GAIA_DEVICE_MEMFD_H
#define GAIA_DEVICE_MEMFD_H

#include <stdbool.h>

#include "device/huge.h"

/* GAIA_CHUNK bytes: a memfd that neither end can shrink or grow, mapped here, aligned to its size. */
struct memfd {
	unsigned char *at;
	int fd;
	struct huge_wish huge;
};

/* @name: of the memfd, to be seen in /proc; @bytes: what it contains at first, GAIA_CHUNK of them; NULL: zeros. -ENOMEM, -EMFILE...; others are logged. @out stays where it is until memfd_end(). */
int memfd_make(const char *name, const void *bytes, struct memfd *out);
/* Processes that have kept a descriptor or a mapping see zeros from now on, and do not keep the memory in use. */
void memfd_end(struct memfd *m);
/* A new descriptor of it, for another process. @write false: by that one it cannot be changed. A negative errno. */
int memfd_open(const struct memfd *m, bool write);

#endif
