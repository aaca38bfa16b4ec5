/*
 * memfd.h - chunks of host memory that other processes can map.
 */
#ifndef GAIA_DEVICE_MEMFD_H
#define GAIA_DEVICE_MEMFD_H

#include <stdbool.h>

#include <sys/types.h>

#include "device/huge.h"
#include "gaia/protocol.h"

/* GAIA_CHUNK bytes of a memfd that neither end can shrink or grow, mapped here, aligned to their size. */
struct memfd {
	unsigned char *at;
	int fd;
	off_t from; /* where in the memfd; it has others' chunks, too, if it is an extent's */
	bool joined;
	struct huge_wish huge;
};

/*
 * @name: of the memfd, to be seen in /proc; @bytes: what it contains at first, GAIA_CHUNK of them; NULL: zeros. -ENOMEM, -EMFILE...; others
 * are logged. @out stays where it is until memfd_end().
 */
int memfd_make(const char *name, const void *bytes, struct memfd *out);
/* The same for the chunks of an extent, of one memfd. Each ends by itself. */
int memfd_make_extent(const char *name, const void *bytes, struct memfd *out[GAIA_EXTENT_CHUNKS]);
/* Processes that have kept a descriptor or a mapping see zeros from now on, and do not keep the memory in use. */
void memfd_end(struct memfd *m);
/* A new descriptor of all of the memfd, for another process. @write false: by that one it cannot be changed. A negative errno. */
int memfd_open(const struct memfd *m, bool write);

#endif
