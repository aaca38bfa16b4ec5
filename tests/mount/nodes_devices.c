/*
 * nodes_devices.c - --source shared: what devices of two nodes see of each other's files, and of what CPU programs do there.
 */
#include <gaia/client.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <time.h>

#include "child.h"
#include "nodes_rig.h"
#include "shell.h"

#define RW (PROT_READ | PROT_WRITE)
#define PAGE 4096
#define MIB (1024 * 1024)

#define WORKS(call) cr_assert_eq(call, 0, "%s: %s", #call, gaia_last_error_text())

/* A file of a node, mapped for its device. */
struct mapped {
	int fd;
	unsigned char *p;
	size_t length;
};

static struct mapped map_at(int n, const char *name, size_t length, int prot, int device)
{
	struct mapped m = { .fd = open_at(n, name, prot & PROT_WRITE ? O_RDWR : O_RDONLY), .length = length };

	m.p = gaia_mmap(length, prot, m.fd, 0, device);
	cr_assert_neq(m.p, MAP_FAILED, "node %d: %s", n, gaia_last_error_text());
	return m;
}

static void unmap(struct mapped *m)
{
	WORKS(gaia_munmap(m->p, m->length));
	close(m->fd);
}

static void fill(int n, const char *name, size_t size, unsigned char byte)
{
	unsigned char *bytes = malloc(size);
	int fd = open_at(n, name, O_CREAT | O_WRONLY);

	memset(bytes, byte, size);
	cr_assert_eq(pwrite(fd, bytes, size, 0), (ssize_t)size);
	cr_assert_eq(close(fd), 0);
	free(bytes);
}

static bool all_are(const unsigned char *p, size_t n, unsigned char byte)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != byte)
			return false;
	return true;
}

static bool file_is(int n, const char *name, size_t size, unsigned char byte)
{
	int fd = open_at(n, name, O_RDONLY);
	unsigned char *bytes = malloc(size + 1);
	bool is = read(fd, bytes, size + 1) == (ssize_t)size && all_are(bytes, size, byte);

	free(bytes);
	close(fd);
	return is;
}

/* What the device sees of it. Beyond its last page there may be no memory. */
static bool device_sees(const struct mapped *m, size_t size, unsigned char byte)
{
	bool sees;

	WORKS(gaia_acquire(m->p, m->length, PROT_READ));
	sees = all_are(m->p, size, byte) && all_are(m->p + size, MIN(m->length - size, -size % PAGE), 0);
	WORKS(gaia_release(m->p, m->length));
	return sees;
}

static void device_writes(const struct mapped *m, size_t size, unsigned char byte)
{
	WORKS(gaia_acquire(m->p, size, RW));
	memset(m->p, byte, size);
	WORKS(gaia_release(m->p, size));
	WORKS((byte % 2 ? gaia_sync : gaia_publish)(m->p, size));
}

ALL(nodes_devices, acquires_see_what_other_nodes_have_stored)
{
	const size_t size = 3 * MIB - 100;
	struct mapped m[3];

	fill(0, "f", size, 1);
	m[0] = map_at(0, "f", 3 * MIB, PROT_READ, 0);
	m[1] = map_at(1, "f", 3 * MIB, PROT_READ, 0);
	m[2] = map_at(1, "f", 3 * MIB, PROT_READ, GAIA_DEVICE_HOST);
	for (unsigned char round = 1; round < 12; round++) {
		fill(round % 2, "f", size, round);
		for (int i = 0; i < 3; i++)
			cr_assert(device_sees(&m[i], size, round), "mapping %d, round %u", i, round);
	}
	for (int i = 0; i < 3; i++)
		unmap(&m[i]);
}

ALL(nodes_devices, other_nodes_see_what_was_released_and_synced)
{
	const size_t size = 2 * MIB + 3 * PAGE;
	struct mapped m[2];

	fill(0, "f", size, 1);
	for (int i = 0; i < 2; i++)
		m[i] = map_at(i, "f", size, RW, 0);
	for (unsigned char round = 2; round < 10; round++) {
		device_writes(&m[round % 2], size, round);
		cr_assert(file_is(!(round % 2), "f", size, round), "CPU, round %u", round);
		cr_assert(file_is(round % 2, "f", size, round), "own CPU, round %u", round);
		cr_assert(device_sees(&m[!(round % 2)], size, round), "device, round %u", round);
	}
	for (int i = 0; i < 2; i++)
		unmap(&m[i]);
}

/* Both devices hold the page at the same time, and a CPU program writes to it, too. */
ALL(nodes_devices, different_bytes_of_a_page_are_all_kept)
{
	struct mapped m[2];
	int fd;

	fill(0, "f", PAGE, 0);
	for (int i = 0; i < 2; i++)
		m[i] = map_at(i, "f", PAGE, RW, 0);
	fd = open_at(1, "f", O_RDWR);
	for (unsigned char round = 1; round < 20; round++) {
		unsigned char is[PAGE];

		for (int i = 0; i < 2; i++)
			WORKS(gaia_acquire(m[i].p, PAGE, RW));
		for (int b = 0; b < PAGE; b++)
			if (b % 3 < 2)
				m[b % 3].p[b] = round;
		WORKS(gaia_release(m[round % 2].p, PAGE));
		for (int b = 2; b < PAGE; b += 3)
			cr_assert_eq(pwrite(fd, &round, 1, b), 1);
		cr_assert_eq(fsync(fd), 0);
		WORKS(gaia_release(m[!(round % 2)].p, PAGE));
		for (int i = 0; i < 2; i++)
			WORKS(gaia_sync(m[i].p, PAGE));
		for (int i = 0; i < 2; i++) {
			cr_assert(file_is(i, "f", PAGE, round), "node %d, round %u", i, round);
			cr_assert(device_sees(&m[i], PAGE, round), "device of node %d, round %u", i, round);
		}
		cr_assert_eq(pread(fd, is, PAGE, 0), PAGE);
	}
	close(fd);
	for (int i = 0; i < 2; i++)
		unmap(&m[i]);
}

/* Also while it is held, and what is stored beyond the new end is dropped. */
ALL(nodes_devices, a_file_that_another_node_makes_shorter_is_shorter)
{
	const size_t size = 3 * MIB;
	struct mapped m;
	struct stat st;

	fill(0, "f", size, 1);
	m = map_at(0, "f", size, RW, 0);
	for (unsigned round = 0; round < 6; round++) {
		const size_t cut = round * 500000 + 1;

		fill(round % 2, "f", size, 2);
		cr_assert(device_sees(&m, size, 2), "round %u", round);
		WORKS(gaia_acquire(m.p, size, RW));
		int fd = open_at(1, "f", O_WRONLY);
		cr_assert_eq(ftruncate(fd, (off_t)cut), 0);
		close(fd);
		memset(m.p, 3, size);
		WORKS(gaia_release(m.p, size));
		WORKS(gaia_sync(m.p, size));
		cr_assert_eq(fstatat(at[1], "f", &st, 0), 0);
		cr_assert_eq(st.st_size, (off_t)cut, "%lld, round %u", (long long)st.st_size, round);
		cr_assert(file_is(1, "f", cut, 3), "round %u", round);
		cr_assert(device_sees(&m, cut, 3), "round %u", round);
	}
	/* On this node. */
	cr_assert_eq(ftruncate(m.fd, 7), 0);
	cr_assert(device_sees(&m, 7, 3));
	unmap(&m);
}

ALL(nodes_devices, a_file_that_another_node_makes_longer_is_longer)
{
	struct mapped m;

	fill(0, "f", 10, 1);
	m = map_at(0, "f", 4 * MIB, RW, 0);
	for (size_t size = 1000; size < 4 * MIB; size *= 3) {
		cr_assert(device_sees(&m, size == 1000 ? 10 : size / 3, 1));
		fill(1, "f", size, 1);
		cr_assert(device_sees(&m, size, 1), "%zu", size);
	}
	unmap(&m);
}

static int read_it(void *arg)
{
	struct mapped m = map_at((int)(intptr_t)arg, "model", 8 * MIB, PROT_READ, 0);

	for (int i = 0; i < 3; i++)
		CHILD_CHECK(device_sees(&m, 8 * MIB, 7));
	unmap(&m);
	return 0;
}

/* When it has not been changed for some seconds: before, another change might not show in its times. */
ALL(nodes_devices, a_file_that_nobody_changes_is_read_once_on_each_node)
{
	const long pages = 8 * MIB / PAGE;
	struct stat st;

	fill(0, "model", 8 * MIB, 7);
	cr_assert_eq(fstatat(at[0], "model", &st, 0), 0);
	while (time(NULL) - st.st_ctime <= 3)
		usleep(100000);
	for (int n = 0; n < NODES; n++) {
		/* What nobody has open may be forgotten by the kernel, and is dropped then. */
		int known = openat(at[n], "model", O_PATH | O_CLOEXEC);
		pid_t pid[8];

		cr_assert_geq(known, 0);
		for (int i = 0; i < 8; i++)
			pid[i] = child_start(read_it, (void *)(intptr_t)n);
		for (int i = 0; i < 8; i++)
			cr_assert_eq(child_wait(pid[i]), 0);
		cr_assert_eq(counter_of(n, "storage_reads"), pages, "node %d has read %ld pages", n, counter_of(n, "storage_reads"));
		close(known);
	}
	/* It is the other node's tensor that is replaced then. */
	int fd = open_at(1, "model", O_WRONLY);
	unsigned char tensor[5 * PAGE];

	memset(tensor, 8, sizeof(tensor));
	struct mapped m = map_at(0, "model", 8 * MIB, PROT_READ, 0);
	cr_assert(device_sees(&m, 8 * MIB, 7));
	cr_assert_eq(pwrite(fd, tensor, sizeof(tensor), MIB), (ssize_t)sizeof(tensor));
	cr_assert_eq(close(fd), 0);
	WORKS(gaia_acquire(m.p, 8 * MIB, PROT_READ));
	cr_assert(all_are(m.p, MIB, 7) && all_are(m.p + MIB, sizeof(tensor), 8) &&
		  all_are(m.p + MIB + sizeof(tensor), 7 * MIB - sizeof(tensor), 7));
	WORKS(gaia_release(m.p, 8 * MIB));
	unmap(&m);
}

/* Acquires that begin at the same time do so while the first one is still asking. */
ON(nodes_devices, a_file_that_nobody_changes_is_read_once_on_each_node, passed_far, true, true, "0", "far=10000")
ON(nodes_devices, a_file_that_nobody_changes_is_read_once_on_each_node, direct_far, true, false, "0", "far=10000")

/* Some program has set it, or some machine whose clock is wrong has unpacked it. */
ALL(nodes_devices, a_file_whose_modification_time_is_to_come_is_read_once)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = time(NULL) + 3600 } };
	struct mapped m;
	struct stat st;
	long before;

	fill(0, "f", 4 * PAGE, 1);
	cr_assert_eq(utimensat(at[0], "f", times, 0), 0);
	cr_assert_eq(fstatat(at[0], "f", &st, 0), 0);
	cr_assert_eq(st.st_mtime, times[1].tv_sec);
	while (time(NULL) - st.st_ctime <= 3)
		usleep(100000);
	m = map_at(1, "f", 4 * PAGE, PROT_READ, 0);
	before = counter_of(1, "storage_reads");
	for (int i = 0; i < 3; i++)
		cr_assert(device_sees(&m, 4 * PAGE, 1));
	cr_assert_eq(counter_of(1, "storage_reads") - before, 4);
	/* What is written then is seen all the same, though the time stays. */
	fill(0, "f", 4 * PAGE, 2);
	cr_assert_eq(utimensat(at[0], "f", times, 0), 0);
	cr_assert(device_sees(&m, 4 * PAGE, 2));
	unmap(&m);
}

/* An acquire asks for attributes once. */
ALL(nodes_devices, an_acquire_asks_the_source_once)
{
	struct mapped m;
	long asked;

	fill(0, "f", PAGE, 1);
	m = map_at(1, "f", PAGE, PROT_READ, 0);
	asked = counter_of(1, "shared_revalidations");
	for (int i = 0; i < 10; i++)
		WORKS(gaia_acquire(m.p, PAGE, PROT_READ));
	cr_assert_eq(counter_of(1, "shared_revalidations") - asked, 10);
	for (int i = 0; i < 10; i++)
		WORKS(gaia_release(m.p, PAGE));
	unmap(&m);
}

/* Removed by another node, or replaced: the next acquire says so, or goes on with the file that it has; never with another one. */
ALL(nodes_devices, a_file_that_another_node_replaces_is_not_mixed_with_the_new_one)
{
	struct mapped m;

	fill(0, "f", PAGE, 1);
	m = map_at(1, "f", PAGE, PROT_READ, 0);
	cr_assert(device_sees(&m, PAGE, 1));
	fill(0, "new", PAGE, 2);
	cr_assert_eq(renameat(at[0], "new", at[0], "f"), 0);
	if (gaia_acquire(m.p, PAGE, PROT_READ) == 0) {
		cr_assert(all_are(m.p, PAGE, 1));
		WORKS(gaia_release(m.p, PAGE));
	} else {
		cr_assert(errno == ESTALE || errno == EIO, "%s", strerror(errno));
	}
	unmap(&m);
	m = map_at(1, "f", PAGE, PROT_READ, 0);
	cr_assert(device_sees(&m, PAGE, 2));
	unmap(&m);
}

/* ---- all at once ---- */

/*
 * Each actor has blocks of its own in each page, and stores a number there, which grows. What it has published is seen by all who acquire,
 * or open, after that; nothing is seen that was not stored.
 */
enum { DEVICE_0, CPU_0, DEVICE_1, CPU_1, ACTORS };
#define PAGES 4
#define BLOCK 16 /* bytes */
#define BLOCKS (PAGE / BLOCK)
#define WORDS (BLOCK / sizeof(uint32_t))

static struct story {
	_Atomic uint32_t stored[ACTORS][PAGES], published[ACTORS][PAGES]; /* about to be, and surely */
} *story;

struct actor {
	int who, fd;
	unsigned char *p; /* of a device */
	uint32_t random, number[PAGES];
};

static unsigned below_of(struct actor *a, unsigned n)
{
	a->random = a->random * 1664525 + 1013904223;
	return (a->random >> 8) % n;
}

static void check_page(const struct actor *a, const void *page, unsigned k, const uint32_t least[ACTORS])
{
	const volatile uint32_t *word = page;

	for (unsigned b = 0; b < BLOCKS; b++)
		for (unsigned i = 0; i < WORDS; i++) {
			uint32_t is = word[b * WORDS + i], whose = b % ACTORS;
			bool good = whose == (uint32_t)a->who ? is == a->number[k] : is >= least[whose] && is <= story->stored[whose][k];

			if (!good)
				fprintf(stderr, "actor %d, page %u: actor %u's block %u is %u, and %u was published\n", a->who, k, whose, b, is, least[whose]);
			CHILD_CHECK(good);
		}
}

static void store_blocks(struct actor *a, unsigned char *page, unsigned k)
{
	uint32_t number = ++a->number[k];

	story->stored[a->who][k] = number;
	for (unsigned b = (unsigned)a->who; b < BLOCKS; b += ACTORS)
		for (unsigned i = 0; i < WORDS; i++)
			((uint32_t *)page)[b * WORDS + i] = number;
}

static void act_on_device(struct actor *a, unsigned k, bool writes)
{
	unsigned char *page = a->p + k * PAGE;
	uint32_t least[ACTORS];

	for (unsigned i = 0; i < ACTORS; i++)
		least[i] = story->published[i][k];
	CHILD_CHECK(!gaia_acquire(page, PAGE, writes ? RW : PROT_READ));
	check_page(a, page, k, least);
	if (writes)
		store_blocks(a, page, k);
	CHILD_CHECK(!gaia_release(page, PAGE));
	if (writes)
		CHILD_CHECK(!gaia_sync(page, PAGE));
}

static void act_by_calls(struct actor *a, unsigned k, bool writes)
{
	unsigned char page[PAGE] __attribute__((aligned(8)));
	int n = a->who / 2, fd;
	uint32_t least[ACTORS];

	for (unsigned i = 0; i < ACTORS; i++)
		least[i] = story->published[i][k];
	fd = openat(at[n], "f", O_RDWR | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && pread(fd, page, PAGE, k * PAGE) == PAGE);
	check_page(a, page, k, least);
	if (writes) {
		store_blocks(a, page, k);
		for (unsigned b = (unsigned)a->who; b < BLOCKS; b += ACTORS)
			CHILD_CHECK(pwrite(fd, page + b * BLOCK, BLOCK, k * PAGE + b * BLOCK) == BLOCK);
	}
	CHILD_CHECK(!close(fd));
}

static int act(void *arg)
{
	struct actor a = { .who = (int)(intptr_t)arg, .random = (uint32_t)(intptr_t)arg + 1 };
	const char *rounds = getenv("GAIAFS_ROUNDS");
	bool device = a.who % 2 == DEVICE_0;

	if (device) {
		a.fd = openat(at[a.who / 2], "f", O_RDWR | O_CLOEXEC);
		a.p = gaia_mmap(PAGES * PAGE, RW, a.fd, 0, 0);
		CHILD_CHECK(a.fd >= 0 && a.p != MAP_FAILED);
	}
	for (int i = rounds ? atoi(rounds) : 150; i > 0; i--) {
		unsigned k = below_of(&a, PAGES);
		bool writes = below_of(&a, 2);

		(device ? act_on_device : act_by_calls)(&a, k, writes);
		if (writes)
			story->published[a.who][k] = a.number[k];
	}
	return device ? gaia_munmap(a.p, PAGES * PAGE) : 0;
}

/* Whether they could be unmounted cleanly is asserted by nodes_stop(). */
static void files_that_were_only_read_are_not_lost_with_the_engine(void)
{
	char client[PATH_MAX + 16];
	struct mapped m;

	if (getenv("GAIA_ENGINE_CLIENTS"))
		cr_skip_test("the engine is needed again");
	fill(1, "f", MIB, 1);
	m = map_at(0, "f", MIB, PROT_READ, 0);
	cr_assert(device_sees(&m, MIB, 1));
	unmap(&m);
	snprintf(client, sizeof(client), "%s/client0", top);
	/* Its connection ends; the mount stays, since it is in use. */
	cr_assert_eq(umount2(client, MNT_FORCE), -1);
	cr_assert_eq(errno, EBUSY, "%s", strerror(errno));
	cr_assert_lt(openat(at[0], "f", O_RDONLY | O_CLOEXEC), 0);
	cr_assert_eq(mnt_log_lines(&node[0], "lost"), 0);
}

ON(nodes_devices, files_that_were_only_read_are_not_lost_with_the_engine, passed_engine, true, true, "0", "")
ON(nodes_devices, files_that_were_only_read_are_not_lost_with_the_engine, direct_engine, true, false, "0", "")

ALL(nodes_devices, nobody_loses_what_anybody_has_stored)
{
	pid_t pid[ACTORS];
	int status = 0;

	story = mmap(NULL, sizeof(*story), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(story, MAP_FAILED);
	fill(0, "f", PAGES * PAGE, 0);
	for (int i = 0; i < ACTORS; i++)
		pid[i] = child_start(act, (void *)(intptr_t)i);
	for (int i = 0; i < ACTORS; i++)
		status |= child_wait(pid[i]);
	cr_assert_eq(status, 0);
	munmap(story, sizeof(*story));
}
