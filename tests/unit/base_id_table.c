/*
 * base_id_table.c - tests of base/id_table.h.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "base/id_table.h"
#include "base/util.h"

#define FULL 5000u /* more than two segments */

static struct id_table t;
static int object[FULL];
static uint64_t id[FULL];

static void begin(void)
{
	id_table_init(&t, FULL);
}

static void end(void)
{
	id_table_destroy(&t);
}

static void add(unsigned i)
{
	cr_assert_eq(id_table_add(&t, &object[i], &id[i]), 0);
}

static void fill(void)
{
	for (unsigned i = 0; i < FULL; i++)
		add(i);
}

Test(id_table, an_id_finds_its_object_until_it_is_removed, .init = begin, .fini = end)
{
	fill();
	for (unsigned i = 0; i < FULL; i++)
		cr_assert_eq(id_table_find(&t, id[i]), &object[i]);
	for (unsigned i = 0; i < FULL; i += 2)
		id_table_remove(&t, id[i]);
	for (unsigned i = 0; i < FULL; i++)
		cr_assert_eq(id_table_find(&t, id[i]), i % 2 ? &object[i] : NULL);
}

/* FUSE has uses for some small numbers. */
Test(id_table, ids_are_above_32_bits, .init = begin, .fini = end)
{
	fill();
	for (unsigned i = 0; i < FULL; i++)
		cr_assert_gt(id[i], UINT32_MAX);
}

Test(id_table, a_stale_id_is_refused_when_its_slot_is_in_use_again, .init = begin, .fini = end)
{
	uint64_t stale[100];

	for (unsigned i = 0; i < ARRAY_LEN(stale); i++) {
		add(0);
		stale[i] = id[0];
		cr_assert_eq((uint32_t)id[0], 0, "the slot is used again");
		for (unsigned before = 0; before < i; before++)
			cr_assert_null(id_table_find(&t, stale[before]));
		id_table_remove(&t, id[0]);
		cr_assert_null(id_table_find(&t, stale[i]));
	}
}

/* Every number that differs from a good one in a bit or two, and the limits. */
Test(id_table, a_number_that_was_never_given_is_refused, .init = begin, .fini = end)
{
	uint64_t some[] = { 0, 1, UINT32_MAX, (1ull << 32) - ID_TABLE_FIRST, 1ull << 32, 1ull << 63, UINT64_MAX };

	for (unsigned i = 0; i < ARRAY_LEN(some); i++)
		cr_assert_null(id_table_find(&t, some[i]));
	for (unsigned i = 0; i < 2000; i++)
		add(i);
	id_table_remove(&t, id[1]);
	id_table_remove(&t, id[1999]);
	id_table_remove(&t, id[0]);
	for (unsigned i = 0; i < ARRAY_LEN(some); i++)
		cr_assert_null(id_table_find(&t, some[i]));
	for (uint64_t generation = 0; generation < 4; generation++)
		for (uint64_t slot = 1990; slot < 6000; slot++)
			if (generation != 1 || slot >= 1999)
				cr_assert_null(id_table_find(&t, generation << 32 | slot));
	for (unsigned a = 0; a < 64; a++)
		for (unsigned b = 32; b < 64; b++)
			cr_assert_null(id_table_find(&t, a == b ? id[3] ^ 1ull << a : id[3] ^ 1ull << a ^ 1ull << b));
}

Test(id_table, what_is_in_a_free_slot_is_no_id, .init = begin, .fini = end)
{
	for (unsigned i = 0; i < 10; i++)
		add(i);
	for (unsigned i = 0; i < 10; i++)
		id_table_remove(&t, id[i]);
	for (uint32_t slot = 0; slot < 10; slot++)
		cr_assert_null(id_table_find(&t, id_table_slot(&t, slot)->id));
}

Test(id_table, a_full_table_takes_no_more, .init = begin, .fini = end)
{
	uint64_t none = 42;

	fill();
	cr_assert_eq(id_table_add(&t, &object[0], &none), -ENFILE);
	cr_assert_eq(none, 42);
	id_table_remove(&t, id[7]);
	add(7);
	cr_assert_eq(id_table_add(&t, &object[0], &none), -ENFILE);
}

/* Sanitizers need address space of their own. */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

Test(id_table, without_memory_it_takes_no_more_and_keeps_what_it_has, .init = begin, .fini = end)
{
	struct rlimit before, none;
	void **all = NULL, **p;
	uint64_t other = 42;
	unsigned i;
	int err;

	for (i = 0; i < ID_TABLE_FIRST; i++)
		add(i);
	getrlimit(RLIMIT_AS, &before);
	none = (struct rlimit){ 1, before.rlim_max };
	cr_assert_eq(setrlimit(RLIMIT_AS, &none), 0);
	/* Use up the heap, too, down to holes that are smaller than a segment. */
	while ((p = malloc(ID_TABLE_FIRST * sizeof(struct id_slot)))) {
		*p = all;
		all = p;
	}
	err = id_table_add(&t, &object[i], &other);
	setrlimit(RLIMIT_AS, &before);
	for (; all; all = p) {
		p = *all;
		free(all);
	}
	cr_assert_eq(err, -ENOMEM);
	cr_assert_eq(other, 42);
	for (i = 0; i < ID_TABLE_FIRST; i++)
		cr_assert_eq(id_table_find(&t, id[i]), &object[i]);
	add(i);
	cr_assert_eq(id_table_find(&t, id[i]), &object[i]);
}

#endif

/* Nobody waits for four thousand million opens: the last generation is put there. */
Test(id_table, a_slot_is_retired_after_its_last_generation, .init = begin, .fini = end)
{
	uint64_t last, next;

	add(0);
	id_table_remove(&t, id[0]);
	id_table_slot(&t, 0)->id = (uint64_t)(UINT32_MAX - 1) << 32 | UINT32_MAX;
	cr_assert_eq(id_table_add(&t, &object[0], &last), 0);
	cr_assert_eq(last, (uint64_t)UINT32_MAX << 32);
	cr_assert_eq(id_table_find(&t, last), &object[0]);
	id_table_remove(&t, last);
	cr_assert_null(id_table_find(&t, last));
	for (unsigned i = 1; i < FULL; i++) {
		cr_assert_eq(id_table_add(&t, &object[i], &next), 0);
		cr_assert_neq((uint32_t)next, 0);
	}
	cr_assert_eq(id_table_add(&t, &object[0], &next), -ENFILE);
	cr_assert_null(id_table_find(&t, last));
}

Test(id_table, next_comes_to_every_object_once, .init = begin, .fini = end)
{
	bool met[FULL] = { false };
	unsigned n = 0;
	uint32_t slot = 0;
	int *o;

	cr_assert_null(id_table_next(&t, &slot));
	fill();
	for (unsigned i = 0; i < FULL; i += 3)
		id_table_remove(&t, id[i]);
	slot = 0;
	while ((o = id_table_next(&t, &slot))) {
		cr_assert(!met[o - object]);
		met[o - object] = true;
		n++;
		/* It may be removed meanwhile. */
		id_table_remove(&t, id[o - object]);
	}
	for (unsigned i = 0; i < FULL; i++)
		cr_assert_eq(met[i], i % 3 != 0);
	cr_assert_eq(n, FULL - (FULL + 2) / 3);
}

/* ---- look-ups beside changes ---- */

#define CHANGES 200000u
#define PLACES 64u

/* Each has an object that knows its id; a place is published as the kernel publishes a number. */
static struct named {
	uint64_t id;
	unsigned place;
} named[PLACES];
static atomic_uint_least64_t published[PLACES];
static pthread_mutex_t change = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t in_use[PLACES];
static atomic_bool over;
static atomic_uint found, wrong;

/* As a request: while it names an object the object is not removed. And it may name what was there before. */
static void *look(void *arg)
{
	uint64_t stale = 0;

	for (unsigned i = 0; !over; i++) {
		unsigned place = i % PLACES;
		struct named *n;

		pthread_rwlock_rdlock(&in_use[place]);
		if (published[place]) {
			n = id_table_find(&t, published[place]);
			wrong += !n || n->id != published[place] || n->place != place;
			wrong += stale && (uint32_t)stale == (uint32_t)published[place] && stale != published[place] &&
				 id_table_find(&t, stale);
			stale = published[place];
			found++;
		}
		pthread_rwlock_unlock(&in_use[place]);
		(void)id_table_find(&t, stale + i);
	}
	return NULL;
}

static void *alter(void *arg)
{
	unsigned first = (unsigned)(uintptr_t)arg;

	/* Those who look may begin late. */
	for (unsigned i = 0; i < CHANGES || !found; i++) {
		unsigned place = first + i % (PLACES / 2);

		pthread_rwlock_wrlock(&in_use[place]);
		pthread_mutex_lock(&change);
		if (published[place]) {
			id_table_remove(&t, published[place]);
			published[place] = 0;
		} else {
			named[place].place = place;
			bug_on(id_table_add(&t, &named[place], &named[place].id));
			published[place] = named[place].id;
		}
		pthread_mutex_unlock(&change);
		pthread_rwlock_unlock(&in_use[place]);
	}
	return NULL;
}

Test(id_table, is_looked_up_without_a_lock_while_others_change_it, .init = begin, .fini = end)
{
	pthread_t reader[2], writer[2];

	for (unsigned i = 0; i < PLACES; i++)
		pthread_rwlock_init(&in_use[i], NULL);
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(pthread_create(&reader[i], NULL, look, NULL), 0);
	for (uintptr_t i = 0; i < 2; i++)
		cr_assert_eq(pthread_create(&writer[i], NULL, alter, (void *)(i * PLACES / 2)), 0);
	for (unsigned i = 0; i < 2; i++)
		pthread_join(writer[i], NULL);
	over = true;
	for (unsigned i = 0; i < 2; i++)
		pthread_join(reader[i], NULL);
	cr_assert_gt(found, 0);
	cr_assert_eq(wrong, 0);
}

/* Of a table with holes: another process's goes on where it stops. */
Test(id_table, a_table_that_goes_on_keeps_its_numbers_and_gives_none_away_again, .init = begin, .fini = end)
{
	struct id_table_mark mark;
	struct id_table next;
	uint64_t new, last = 0; /* the highest generation */

	fill();
	for (unsigned i = 0; i < FULL; i += 3)
		id_table_remove(&t, id[i]);
	/* The first slots are used more often than others. */
	for (unsigned i = 0; i < 100; i++) {
		cr_assert_eq(id_table_add(&t, &object[0], &new), 0);
		id_table_remove(&t, new);
		last = new >> 32;
	}
	id_table_mark(&t, &mark);

	id_table_init(&next, FULL);
	cr_assert_eq(id_table_resume(&next, &mark), 0);
	for (unsigned i = 0; i < FULL; i++)
		if (i % 3)
			cr_assert_eq(id_table_restore(&next, &object[i], id[i]), 0);
	cr_assert_eq(id_table_restore(&next, &object[1], id[1]), -EINVAL, "it is in use");
	cr_assert_eq(id_table_restore(&next, &object[1], 7), -EINVAL, "no generation");
	cr_assert_eq(id_table_restore(&next, &object[1], (1ull << 32) + FULL), -EINVAL, "no slot");
	id_table_restored(&next, &mark);
	for (unsigned i = 0; i < FULL; i++)
		cr_assert_eq(id_table_find(&next, id[i]), i % 3 ? &object[i] : NULL);
	for (unsigned i = 0; i < FULL; i += 3) {
		cr_assert_eq(id_table_add(&next, &object[i], &new), 0);
		cr_assert_gt(new >> 32, last);
		cr_assert_eq(id_table_find(&next, new), &object[i]);
	}
	cr_assert_eq(id_table_add(&next, &object[0], &new), -ENFILE);
	id_table_destroy(&next);
}

Test(id_table, a_table_does_not_go_on_that_had_more_than_its_limit, .init = begin, .fini = end)
{
	struct id_table_mark mark = { .made = FULL + 1, .generation = 1 };

	cr_assert_eq(id_table_resume(&t, &mark), -EINVAL);
	add(0);
}
