/* device_huge.c - chunks become huge pages (device/huge.c) beside whatever is done with them. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "child.h"
#include "device/memfd.h"
#include "gaia/protocol.h"
#include "huge_pages.h"

#define CHUNKS 4

static unsigned char *pattern(unsigned seed)
{
	unsigned char *bytes = malloc(GAIA_CHUNK);

	cr_assert(bytes);
	for (size_t i = 0; i < GAIA_CHUNK; i++)
		bytes[i] = (unsigned char)(i / GAIA_PAGE * 31 + i * 7 + seed);
	return bytes;
}

static void make(struct memfd *m, unsigned seed)
{
	unsigned char *bytes = pattern(seed);

	cr_assert_eq(memfd_make("test", bytes, m), 0);
	free(bytes);
}

static void holds(const struct memfd *m, unsigned seed)
{
	unsigned char *bytes = pattern(seed);

	cr_assert_eq(memcmp(m->at, bytes, GAIA_CHUNK), 0);
	free(bytes);
}

static void begin_at_once(void)
{
	if (!huge_pages_can_be_had())
		cr_skip_test("this kernel makes no huge pages of shared memory");
	cr_assert_eq(huge_start(), 0);
}

/* There is none when memory is made. */
static void begin(void)
{
	fault_arm("huge.at_once", -ENOMEM, 0, 0);
	begin_at_once();
}

static void await_made(uint64_t n)
{
	time_t end = time(NULL) + HANG_SECONDS;

	while (counter_value(CTR_huge_chunks) < n) {
		cr_assert(time(NULL) < end, "%llu of %llu", (unsigned long long)counter_value(CTR_huge_chunks), (unsigned long long)n);
		sched_yield();
	}
}

static void await_huge(const struct memfd *m)
{
	time_t end = time(NULL) + HANG_SECONDS;

	while (!huge_pages_are_at(m->at)) {
		cr_assert(time(NULL) < end);
		sched_yield();
	}
}

Test(device_huge, chunks_become_one_page_each_and_hold_what_they_held)
{
	struct memfd m[CHUNKS];

	begin();
	for (unsigned k = 0; k < CHUNKS; k++)
		make(&m[k], k);
	await_made(CHUNKS);
	for (unsigned k = 0; k < CHUNKS; k++) {
		holds(&m[k], k);
		cr_assert(huge_pages_are_at(m[k].at));
		memfd_end(&m[k]);
	}
	huge_end();
}

Test(device_huge, memory_is_one_page_from_the_start)
{
	struct memfd m, zeros;
	struct stat st;

	begin_at_once();
	/* Other programs may have all that are free. */
	for (time_t end = time(NULL) + HANG_SECONDS;; memfd_end(&m)) {
		make(&m, 1);
		if (m.huge.where == HUGE_NOWHERE)
			break;
		cr_assert(time(NULL) < end);
		usleep(1000);
	}
	cr_assert(huge_pages_are_at(m.at));
	holds(&m, 1);
	/* All of its memory is there. */
	cr_assert_eq(fstat(m.fd, &st), 0);
	cr_assert_eq(st.st_size, GAIA_CHUNK);
	cr_assert_eq(st.st_blocks, GAIA_CHUNK / 512);
	cr_assert_eq(fcntl(m.fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	cr_assert_eq(memfd_make("test", NULL, &zeros), 0);
	for (size_t i = 0; i < GAIA_CHUNK; i++)
		cr_assert_eq(zeros.at[i], 0);
	memfd_end(&zeros);
	memfd_end(&m);
	huge_end();
}

/* Who needs memory does not wait for huge pages again and again. */
Test(device_huge, where_there_is_none_at_once_the_next_is_not_asked_for)
{
	struct memfd m[2];
	uint64_t begun;
	bool asked;

	begin_at_once();
	do {
		fault_arm("huge.at_once", -ENOMEM, 0, 1);
		begun = now_ns();
		for (unsigned k = 0; k < ARRAY_LEN(m); k++)
			cr_assert_eq(memfd_make("test", NULL, &m[k]), 0);
		asked = m[1].huge.where == HUGE_NOWHERE;
		for (unsigned k = 0; k < ARRAY_LEN(m); k++)
			memfd_end(&m[k]);
		/* Else it was asked for later than a rest takes. */
	} while (asked && now_ns() - begun > 100000000);
	cr_assert_not(asked);
	huge_end();
}

/* Neither waits for the other: the kernel may take long (an idle processor must be found). */
Test(device_huge, memory_goes_while_it_is_in_hand)
{
	struct memfd m, other;

	begin();
	make(&other, 1);
	await_made(1);
	fault_hold("huge.collapse");
	make(&m, 2);
	fault_await_held("huge.collapse");
	memfd_end(&m);
	/* Its place may be another's at once, and what is asked for that one is done. */
	make(&m, 3);
	fault_let_go("huge.collapse");
	await_made(2);
	holds(&m, 3);
	memfd_end(&m);
	holds(&other, 1);
	memfd_end(&other);
	huge_end();
}

Test(device_huge, failures_are_tried_again)
{
	struct memfd m;

	begin();
	make(&m, 1);
	await_made(1);
	memfd_end(&m);
	fault_arm("huge.collapse", -ENOMEM, 0, 2);
	make(&m, 2);
	await_made(2);
	holds(&m, 2);
	memfd_end(&m);
	huge_end();
}

/* A program may do so to memory that it can write. It harms itself. */
Test(device_huge, holes_in_one_chunk_are_of_no_concern_to_others)
{
	struct memfd torn, m;

	begin();
	make(&torn, 1);
	cr_assert_eq(fallocate(torn.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_CHUNK), 0);
	make(&m, 2);
	await_huge(&m);
	holds(&m, 2);
	memfd_end(&torn);
	memfd_end(&m);
	huge_end();
}

static atomic_bool enough;

static void *count_up(void *arg)
{
	struct memfd *m = arg;

	for (unsigned round = 0; !enough; round++)
		for (size_t page = 0; page < GAIA_CHUNK_PAGES; page++)
			((_Atomic uint32_t *)(void *)(m->at + page * GAIA_PAGE))[7]++;
	return NULL;
}

Test(device_huge, no_store_is_lost_meanwhile)
{
	uint32_t first = 0;
	pthread_t thread[2];
	struct memfd m;

	begin();
	cr_assert_eq(memfd_make("test", NULL, &m), 0);
	enough = false;
	for (unsigned k = 0; k < ARRAY_LEN(thread); k++)
		cr_assert_eq(pthread_create(&thread[k], NULL, count_up, &m), 0);
	await_made(1);
	enough = true;
	for (unsigned k = 0; k < ARRAY_LEN(thread); k++)
		pthread_join(thread[k], NULL);
	/* Each thread has passed all pages equally often. */
	for (size_t page = 0; page < GAIA_CHUNK_PAGES; page++) {
		uint32_t n = ((uint32_t *)(void *)(m.at + page * GAIA_PAGE))[7];

		first = page ? first : n;
		cr_assert(n > 0 && n == first, "page %zu: %u, not %u", page, n, first);
	}
	memfd_end(&m);
	huge_end();
}

Test(device_huge, without_it_nothing_is_asked)
{
	struct memfd m;

	make(&m, 1);
	cr_assert_eq(m.huge.where, HUGE_NOWHERE);
	cr_assert_eq(counter_value(CTR_huge_chunks), 0);
	memfd_end(&m);
	huge_end();
}
