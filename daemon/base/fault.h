/*
 * fault.h - named points at which tests make things go wrong or slow.
 *
 * Compiled in when GAIA_FAULTS is defined (meson -Dfaults=true, the default of
 * developer builds); otherwise fault_point() is the constant 0 and costs nothing.
 *
 * A point is a name such as "store.read" or "release.before_invalidate". The
 * environment variable GAIAFS_FAULTS arms points at start (main() hands it to
 * fault_parse(); nothing here looks at the environment):
 *	name=errno:EIO,after=3,count=1;name2=delay:200us,seed=7
 * One name may have both an error and a delay, in two entries.
 */
#ifndef GAIA_BASE_FAULT_H
#define GAIA_BASE_FAULT_H

#include <stdint.h>

#ifdef GAIA_FAULTS
/* 0, or the negative errno that is armed for @name. Sleeps if a delay is armed. */
int fault_point(const char *name);
/* Arm @name: skip @after hits, then return @err (negative) for @count hits (0: for ever). */
void fault_arm(const char *name, int err, unsigned after, unsigned count);
/* Sleep a random time of at most @max_us, drawn from @seed, at each hit. */
void fault_arm_delay(const char *name, unsigned max_us, uint64_t seed);
/* The next hit of @name stays there until fault_let_go() or fault_disarm_all(); fault_await_held() waits for it. */
void fault_hold(const char *name);
void fault_await_held(const char *name);
void fault_let_go(const char *name);
void fault_disarm_all(void);
/* Parse the form above; on -EINVAL nothing is armed and nothing is logged. */
int fault_parse(const char *text);
#else
#define fault_point(name) (0)
#endif

#endif
