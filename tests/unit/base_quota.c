/*
 * base_quota.c - tests of base/quota.h.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/quota.h"

#define OWNER 500
#define ALICE 1000
#define BOB 1001

static struct quota *q;

/* Clients: eight, seven of them for users, two for each. */
static void begin(void)
{
	log_set_level(LOG_LEVEL_ERROR);
	q = quota_create(OWNER);
	quota_cap(q, QUOTA_clients, 8);
}

static void give(uid_t uid, unsigned n)
{
	while (n--)
		quota_give(q, QUOTA_clients, uid);
}

Test(quota, keeps_its_proportions_when_there_is_less, .init = begin)
{
	struct quota_use use = quota_use(q, QUOTA_clients);

	cr_assert_eq(use.all, 8);
	cr_assert_eq(use.users, 7);
	cr_assert_eq(use.each, 2);
	quota_cap(q, QUOTA_clients, 100);
	cr_assert_eq(quota_use(q, QUOTA_clients).all, 8);
	quota_set_each(q, QUOTA_clients, 100);
	cr_assert_eq(quota_use(q, QUOTA_clients).each, 7);
	quota_destroy(q);
}

Test(quota, of_each_user_is_his_own, .init = begin)
{
	cr_assert_eq(quota_take(q, QUOTA_clients, ALICE), 0);
	cr_assert_eq(quota_take(q, QUOTA_clients, ALICE), 0);
	cr_assert_eq(quota_look(q, QUOTA_clients, ALICE), -EMFILE);
	cr_assert_eq(quota_take(q, QUOTA_clients, ALICE), -EMFILE);
	cr_assert_eq(quota_take(q, QUOTA_mappings, ALICE), 0);
	cr_assert_eq(quota_take(q, QUOTA_clients, BOB), 0);
	give(ALICE, 1);
	cr_assert_eq(quota_take(q, QUOTA_clients, ALICE), 0);
	give(ALICE, 2);
	give(BOB, 1);
	quota_give(q, QUOTA_mappings, ALICE);
	quota_destroy(q);
}

Test(quota, leaves_the_owners_a_reserve, .init = begin)
{
	static const uid_t owner[] = { 0, OWNER };
	uid_t uid = ALICE;

	while (!quota_take(q, QUOTA_clients, uid))
		uid++;
	cr_assert_eq(uid - ALICE, 7);
	cr_assert_eq(quota_take(q, QUOTA_clients, uid), -ENFILE);
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(quota_take(q, QUOTA_clients, owner[i]), 0);
		cr_assert_eq(quota_take(q, QUOTA_clients, owner[i]), -ENFILE);
		give(owner[i], 1);
	}
	while (uid > ALICE)
		give(--uid, 1);
	/* What users have given back is theirs to take. */
	cr_assert_eq(quota_take(q, QUOTA_clients, ALICE), 0);
	give(ALICE, 1);
	/* Owners are not bound to what a user may have. */
	for (int i = 0; i < 8; i++)
		cr_assert_eq(quota_take(q, QUOTA_clients, 0), 0);
	cr_assert_eq(quota_take(q, QUOTA_clients, ALICE), -ENFILE);
	give(0, 8);
	quota_destroy(q);
}

Test(quota, lists_who_has_something, .init = begin)
{
	struct quota_user *user;
	size_t n;

	cr_assert_null(quota_users(q, &n));
	cr_assert_eq(n, 0);
	cr_assert_eq(quota_take(q, QUOTA_clients, BOB), 0);
	cr_assert_eq(quota_take(q, QUOTA_directories, ALICE), 0);
	user = quota_users(q, &n);
	cr_assert_eq(n, 2);
	cr_assert_eq(user[0].uid, ALICE);
	cr_assert_eq(user[0].used[QUOTA_directories], 1);
	cr_assert_eq(user[1].uid, BOB);
	cr_assert_eq(user[1].used[QUOTA_clients], 1);
	cr_assert_eq(user[1].used[QUOTA_directories], 0);
	free(user);
	give(BOB, 1);
	quota_give(q, QUOTA_directories, ALICE);
	cr_assert_null(quota_users(q, &n));
	quota_destroy(q);
}

static void *take_and_give(void *arg)
{
	uid_t uid = *(uid_t *)arg;

	for (int i = 0; i < 20000; i++)
		if (!quota_take(q, QUOTA_clients, uid))
			give(uid, 1);
	return NULL;
}

Test(quota, is_exact_among_threads, .init = begin)
{
	uid_t uid[] = { ALICE, ALICE, BOB, 0 };
	pthread_t thread[4];

	for (int i = 0; i < 4; i++)
		cr_assert_eq(pthread_create(&thread[i], NULL, take_and_give, &uid[i]), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], NULL);
	cr_assert_eq(quota_use(q, QUOTA_clients).used, 0);
	quota_destroy(q);
}

Test(quota, has_names)
{
	cr_assert_eq(quota_named("clients", 7), QUOTA_clients);
	cr_assert_eq(quota_named("clients", 6), QUOTA_COUNT);
	cr_assert_eq(quota_named("directories=3", 11), QUOTA_directories);
	cr_assert_eq(quota_named("", 0), QUOTA_COUNT);
	/* These are not for --user-limit. */
	cr_assert_eq(quota_named("tickets", 7), QUOTA_COUNT);
	cr_assert_eq(quota_named("pins", 4), QUOTA_COUNT);
}
