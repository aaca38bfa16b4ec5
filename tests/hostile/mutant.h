/*
 * mutant.h - the attacker of mutate.c: ioctls, attributes, packets and descriptors that chance has changed, mixed with right ones.
 */
#ifndef GAIA_TESTS_MUTANT_H
#define GAIA_TESTS_MUTANT_H

#include <stdbool.h>
#include <stdint.h>

#include "gaia/protocol.h"

#define MUTANT_REQUESTS 500 /* of a process */
/* Of its files: "mine" and "mine-too", which are nobody's, and "roots". */
#define MUTANT_FILE_SIZE (3 * GAIA_CHUNK + 12345)

/* A thread sets its own `chance` before it calls what is random. */
extern __thread uint64_t chance;
unsigned below(unsigned n);
bool one_in(unsigned n); /* one in @n */

/* Set before processes start; it and the process's number, an unsigned at @nth, say what they do. */
extern unsigned long seed;
/* Counts ioctls in shared->count, those of them that were carried out in ->done, and other requests in ->more. */
int mutant(void *nth);

#endif
