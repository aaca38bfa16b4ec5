/*
 * cache_mute.h - a client that does not answer when it is asked for memory: rig->late = is_mute.
 */
#ifndef GAIA_TESTS_CACHE_MUTE_H
#define GAIA_TESTS_CACHE_MUTE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "cache_rig.h"

static struct client *mute;
static atomic_bool mute_answers;

static inline bool is_mute(void *arg, const struct client *cl)
{
	(void)arg;
	return cl == mute && !atomic_load(&mute_answers);
}

#endif
