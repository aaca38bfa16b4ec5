/*
 * cache_age.c - what devices have released is stored by age, though nobody asks for it, and counted until then.
 */
#include <unistd.h>

#include "cache_scene.h"

#define SOON_MS 5

/* By age, only what devices have released is stored. */
static void begin_soon(void)
{
	begin(&(struct rig_options){ .devices = 1, .device_age_ms = SOON_MS }, 4 * GAIA_CHUNK);
}

static uint64_t on_devices(void)
{
	uint64_t home, devices;

	cache_unstored(rig->cache, &home, &devices);
	return devices;
}

static uint64_t dirty_at_home(void)
{
	uint64_t home, devices;

	cache_unstored(rig->cache, &home, &devices);
	return home;
}

static void wait_for_store(uint64_t off, const char *text)
{
	char seen[16] = "";

	for (unsigned ms = 0; strcmp(seen, text); ms++) {
		cr_assert_lt(ms, 60000, "at %lu the store has \"%s\"", (unsigned long)off, seen);
		usleep(1000);
		store_peek(kf, seen, strlen(text), off);
	}
}

/* The cache's threads store, and may hold pages until then. */
static void wait_until_all_is_stored(void)
{
	for (unsigned ms = 0; on_devices() + dirty_at_home() > 0; ms++) {
		cr_assert_lt(ms, 60000, "%lu bytes on devices, %lu dirty", (unsigned long)on_devices(),
			     (unsigned long)dirty_at_home());
		usleep(1000);
	}
}

Test(age, what_a_device_released_is_stored)
{
	struct client *cl;

	begin_soon();
	cl = new_client(0);
	write_device(cl, 5000, "one");
	write_device(cl, GAIA_CHUNK, "two");
	release_all(cl);
	wait_for_store(5000, "one");
	wait_for_store(GAIA_CHUNK, "two");
	wait_until_all_is_stored();
	/* And once more: the chunks are looked at again. */
	write_device(cl, 5000, "six");
	release_all(cl);
	wait_for_store(5000, "six");
	wait_until_all_is_stored();
	expect_cpu(5000, "six");
	end();
}

Test(age, what_is_not_released_is_not_stored)
{
	struct client *cl;

	begin_soon();
	cl = new_client(0);
	write_device(cl, 0, "held");
	write_device(cl, GAIA_CHUNK, "released");
	cr_assert_eq(client_release(cl, GAIA_CHUNK, GAIA_CHUNK), 0);
	wait_for_store(GAIA_CHUNK, "released");
	expect_store(0, "");
	client_store(cl, "on  ", 4, 0);
	release_all(cl);
	wait_for_store(0, "on  ");
	wait_until_all_is_stored();
	end();
}

/* Held for writing again meanwhile: what was released is stored, not what is written over it. */
Test(age, what_was_released_is_stored_while_it_is_held_again)
{
	struct client *cl;

	begin_soon();
	cl = new_client(0);
	write_device(cl, 0, "released");
	cr_assert_eq(client_acquire(cl, 0, 8, GAIA_PROT_RW), 0);
	cr_assert_eq(client_release(cl, 0, 8), 0);
	client_store(cl, "not  yet", 8, 0);
	wait_for_store(0, "released");
	cr_assert_eq(client_release(cl, 0, 8), 0);
	wait_for_store(0, "not  yet");
	wait_until_all_is_stored();
	end();
}

/* While its file cannot be stored, no more of it comes home, where there might be no room for it. */
Test(age, what_cannot_be_stored_stays_on_the_device)
{
	struct client *cl;

	begin_soon();
	cl = new_client(0);
	fault_arm("store.write", -ENOSPC, 0, 1000000);
	for (unsigned k = 0; k < 4; k++)
		write_device(cl, k * GAIA_CHUNK, "full");
	release_all(cl);
	while (counter_value(CTR_storage_errors) < 1)
		usleep(1000);
	/* Time to do what is wrong. */
	usleep(20 * SOON_MS * 1000);
	cr_assert_eq(on_devices(), 3 * GAIA_PAGE);
	cr_assert_eq(dirty_at_home(), GAIA_PAGE);
	fault_disarm_all();
	(void)cpu_fsync(kf); /* may tell what failed before */
	cr_assert_eq(cpu_fsync(kf), 0);
	for (unsigned k = 0; k < 4; k++)
		expect_store(k * GAIA_CHUNK, "full");
	write_device(cl, 0, "room");
	release_all(cl);
	wait_for_store(0, "room");
	wait_until_all_is_stored();
	end();
}

Test(age, a_device_that_fails_is_asked_again)
{
	struct client *cl;

	begin_soon();
	cl = new_client(0);
	fault_arm("device.copy_out", -EIO, 0, 3);
	write_device(cl, 0, "late");
	release_all(cl);
	wait_for_store(0, "late");
	wait_until_all_is_stored();
	end();
}

Test(age, what_is_only_on_devices_is_counted)
{
	struct client *cl;
	json_t *json;

	begin_devices(1);
	cl = new_client(0);
	write_cpu(3 * GAIA_PAGE, "dirty");
	cr_assert_eq(kernel_writeback(kf, 0, 0, 1), 0);
	write_device(cl, 0, "one");
	write_device(cl, GAIA_CHUNK, "two");
	release_all(cl);
	cr_assert_eq(on_devices(), 2 * GAIA_PAGE);
	cr_assert_eq(dirty_at_home(), GAIA_PAGE);
	json = cache_status_json(rig->cache);
	cr_assert_eq(json_integer_value(json_object_get(json, "dirty_bytes")), 3 * GAIA_PAGE);
	cr_assert_eq(json_integer_value(json_object_get(json, "only_on_devices_bytes")), 2 * GAIA_PAGE);
	json_decref(json);
	json = cfile_residency_json(kf->cfile);
	cr_assert_eq(json_integer_value(json_object_get(json, "dirty")), 3);
	cr_assert_eq(json_integer_value(json_object_get(json, "released")), 2);
	json_decref(json);
	/* As `gaia flush` does it. */
	cr_assert_eq(cache_flush_released(kf->cfile), 0);
	cr_assert_eq(on_devices() + dirty_at_home(), 0);
	expect_store(0, "one");
	expect_store(GAIA_CHUNK, "two");
	expect_store(3 * GAIA_PAGE, "dirty");
	end();
}

/* What a sync of everything says of the files that it failed for. */
Test(age, what_cannot_be_synced_is_named)
{
	json_t *list = json_array(), *file;
	struct client *cl;

	begin_devices(1);
	cl = new_client(0);
	write_device(cl, 0, "one");
	release_all(cl);
	fault_arm("store.write", -ENOSPC, 0, 1);
	cr_assert_eq(cache_sync_all(rig->cache, list), -ENOSPC);
	cr_assert_eq(json_array_size(list), 1u);
	file = json_array_get(list, 0);
	cr_assert_eq(json_integer_value(json_object_get(file, "bytes")), GAIA_PAGE);
	cr_assert_str_eq(json_string_value(json_object_get(file, "error")), strerror(ENOSPC));
	json_array_clear(list);
	cr_assert_eq(cache_sync_all(rig->cache, list), 0);
	cr_assert_eq(json_array_size(list), 0u);
	json_decref(list);
	end();
}
