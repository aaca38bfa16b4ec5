/*
 * parked_pages.h - pages of a file that leave home, are parked, and come back.
 *
 * A file that includes it must first define PAGES, AT(page), and as arrays of so many pages bytes, what the file has, and seen.
 */
#ifndef GAIA_TESTS_PARKED_PAGES_H
#define GAIA_TESTS_PARKED_PAGES_H

#include <errno.h>

#include "base/fault.h"
#include "base/util.h"
#include "cache_scene.h"
#include "pagecache/cache.h"

static void read_all(void)
{
	cr_assert_eq(cpu_read_direct(kf, seen, sizeof(seen), 0), (ssize_t)sizeof(seen));
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(memcmp(seen + AT(i), bytes + AT(i), GAIA_PAGE), 0, "page %u", i);
}

static void forget_home(void)
{
	cr_assert_eq(cpu_fsync(kf), 0);
	cr_assert_eq(cache_evict(kf->cfile, GAIA_FROM_HOME, 0, 0), 0);
}

/* Until what is under way to devices has got there; also checks everything. */
static void settle(void)
{
	cache_check(rig->cache);
}

/* The operations of the device fail one after the other. @begin_it: a scene, parked. @round_of: what else happens in round 0, 1, 2. */
static void fail_each_operation(void (*begin_it)(void), void (*round_of)(unsigned round))
{
	static const struct {
		const char *point;
		int err;
	} faults[] = {
		{ "device.alloc", -ENOMEM }, { "device.submit", -EIO }, { "device.copy_in", -EIO }, { "device.copy_out", -EIO },
		{ "device.copy_out", -ENODEV },
	};
	struct client *cl;

	for (unsigned k = 0; k < ARRAY_LEN(faults); k++)
		for (unsigned after = 0; after < 6; after++) {
			begin_it();
			cl = client_create(kf, 0, GAIA_PROT_RW, sizeof(bytes));
			fault_arm(faults[k].point, faults[k].err, after, 2);
			/* What fails may fail; what is read is right. */
			for (unsigned round = 0; round < 3; round++) {
				read_all();
				if (!client_acquire(cl, AT(64 * round), AT(10), GAIA_PROT_READ))
					(void)client_release(cl, AT(64 * round), AT(10));
				(void)cache_evict(kf->cfile, 0, 0, 0);
				round_of(round);
				forget_home();
				settle();
			}
			fault_disarm_all();
			read_all();
			end();
		}
}

#endif
