/*
 * cache_leases.c - how long a client may have memory of a device, and how much: what a user may pin; and memory that
 * somebody stores to who is no client any more, from the moment on at which the daemon has seen that.
 */
#include "cache_scene.h"
#include "held.h"

#include <sys/mman.h>

/* ---- what each user may pin ---- */

static struct client *client_of(uid_t uid, bool owner)
{
	rig->user = (struct cache_user){ .uid = uid, .owner = owner };
	return client_create(kf, 0, GAIA_PROT_RW, 32 * GAIA_CHUNK);
}

static int acquire_chunks(struct client *cl, unsigned first, unsigned n)
{
	return client_acquire(cl, first * GAIA_CHUNK, n * GAIA_CHUNK, GAIA_PROT_READ);
}

/* Of 16 chunks a user may have 12: also of those that he knows from before, and an owner of the mount holds now. */
Test(users, chunks_that_an_owner_holds_count_when_they_are_acquired_again)
{
	struct client *greedy, *owner;

	begin(&(struct rig_options){ .devices = 1, .device_chunks = 16, .readers_may_write = true }, 32 * GAIA_CHUNK);
	greedy = client_of(1, false);
	owner = client_of(0, true);
	for (unsigned k = 0; k < 16; k++) {
		cr_assert_eq(acquire_chunks(greedy, k, 1), 0);
		cr_assert_eq(client_release(greedy, k * GAIA_CHUNK, GAIA_CHUNK), 0);
	}
	cr_assert_eq(acquire_chunks(owner, 0, 16), 0);
	cr_assert_eq(acquire_chunks(greedy, 0, 16), -ENOMEM);
	cr_assert_eq(acquire_chunks(greedy, 0, 12), 0);
	cr_assert_eq(acquire_chunks(greedy, 12, 1), -ENOMEM);
	cr_assert_eq(acquire_chunks(greedy, 3, 4), 0, "what he holds he may acquire again");
	cr_assert_eq(client_release(owner, 0, 16 * GAIA_CHUNK), 0);
	cr_assert_eq(acquire_chunks(owner, 20, 1), 0);
	end();
}
