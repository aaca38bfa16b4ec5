/*
 * base_uses.c - tests of base/uses.h.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/clock.h"
#include "base/uses.h"
#include "base/util.h"

Test(uses, what_is_moved_counts_for_the_file_and_for_whom_the_thread_works)
{
	struct moved_bytes file = { 0 };
	struct working_for before;
	struct uses a, b;

	uses_init(&a);
	uses_init(&b);
	moved(&file, MOVED_to_device_bytes, 1);
	before = uses_enter(&a);
	moved(&file, MOVED_to_device_bytes, 2);
	/* Within a call of one client's, another's work may be done. */
	before = uses_enter(&b);
	moved(&file, MOVED_to_device_bytes, 4);
	uses_leave(before);
	before = uses_enter_ahead(&a);
	moved(&file, MOVED_to_device_bytes, 8);
	uses_leave(before);
	moved(&file, MOVED_released_bytes, 16);
	uses_leave((struct working_for){ NULL, NULL });
	moved(&file, MOVED_to_device_bytes, 32);
	cr_assert_eq(moved_get(&file, MOVED_to_device_bytes), 47);
	cr_assert_eq(moved_get(&a.moved, MOVED_to_device_bytes), 10);
	cr_assert_eq(moved_get(&a.moved, MOVED_released_bytes), 16);
	cr_assert_eq(moved_get(&b.moved, MOVED_to_device_bytes), 4);
	uses_destroy(&a);
	uses_destroy(&b);
}

static void expect_waits_to_count(void)
{
	struct uses a, *one, *two;
	unsigned now;
	uint64_t ns, then, began, both, most;

	uses_init(&a);
	cr_assert_null(wait_begin(WAIT_room), "nobody waits");
	cr_assert_eq(uses_waited_ns(&a, WAIT_room, &now), 0);
	cr_assert_eq(now, 0);

	uses_enter_ahead(&a);
	cr_assert_null(wait_begin(WAIT_room), "it is not the client that waits");
	uses_enter(&a);
	began = now_ns();
	one = wait_begin(WAIT_room);
	two = wait_begin(WAIT_room);
	both = now_ns();
	while (now_ns() - both < 2000000)
		;
	ns = uses_waited_ns(&a, WAIT_room, &now);
	cr_assert_eq(now, 2);
	cr_assert_gt(ns, 3000000, "%lu: both wait", (unsigned long)ns);
	most = 2 * (now_ns() - began);
	cr_assert_leq(ns, most + most / 1000);
	cr_assert_eq(uses_waited_ns(&a, WAIT_pages, &now), 0);
	wait_end(one, WAIT_room);
	wait_end(two, WAIT_room);
	then = uses_waited_ns(&a, WAIT_room, &now);
	cr_assert_eq(now, 0);
	cr_assert_geq(then, ns);
	cr_assert_eq(uses_waited_ns(&a, WAIT_room, &now), then, "it goes on counting");
	uses_leave((struct working_for){ NULL, NULL });
	uses_destroy(&a);
}

Test(uses, waits_count_while_they_last_and_afterwards)
{
	expect_waits_to_count();
	quick_clock_start();
	expect_waits_to_count();
}

Test(uses, names_differ)
{
	for (unsigned k = 0; k < MOVED_COUNT; k++) {
		for (unsigned i = 0; i < k; i++)
			cr_assert_str_neq(moved_names[k], moved_names[i]);
		for (unsigned i = 0; i < CLIENT_AMOUNT_COUNT; i++)
			cr_assert_str_neq(moved_names[k], client_amount_names[i]);
		for (unsigned i = 0; i < FILE_AMOUNT_COUNT; i++)
			cr_assert_str_neq(moved_names[k], file_amount_names[i]);
	}
}
