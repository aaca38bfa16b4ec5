/*
 * own_mounts.h - a mount namespace of a test's own.
 */
#ifndef GAIA_TESTS_OWN_MOUNTS_H
#define GAIA_TESTS_OWN_MOUNTS_H

#include <stdbool.h>

/*
 * What this process and its children mount from now on is seen by nobody else, and ends with them. A
 * new namespace has a copy of every mount, which keeps the mount alive: so copies of gaiafs mounts, whose end other tests
 * wait for, are detached, except the one at @keep (NULL: none). False: not permitted.
 */
bool own_mounts(const char *keep);

#endif
