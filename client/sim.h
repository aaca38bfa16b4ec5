/* sim.h - memory that is memfds, one for each chunk or extent: the simulated device's, and the host's. */
#ifndef GAIA_CLIENT_SIM_H
#define GAIA_CLIENT_SIM_H

#include <stddef.h>

#include "internal.h"

/* Reserve addresses, aligned to GAIA_CHUNK; undone by munmap(2). -ENOMEM. */
int addresses_reserve(size_t span, char **out);
/* A child must not inherit what is there. For each new mapping, which does not inherit this from the one that it replaces. */
int keep_from_children(char *at, size_t len);
/* Map what is behind @n descriptors, each a chunk or an extent (kind_ops.place), or nothing; or reserve the addresses of @n chunks again. The lock
 * is held (rule 5). */
int chunks_place(char *at, unsigned n, const int *fd, uint64_t extents, int prot);
int chunks_clear(char *at, unsigned n);

#endif
