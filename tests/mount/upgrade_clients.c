/*
 * upgrade_clients.c - a mount goes to another daemon (gaiafs --upgrade), and clients with mappings of devices go along.
 *
 * Under load each worker has words of a file of its own. It finds in them, each time that it acquires them, exactly what it released last; others
 * find that or something newer. GAIAFS_UPGRADES says how many upgrades there are (5).
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "raw_client.h"
#include "shell.h"
#include "ways.h"

#define RW (PROT_READ | PROT_WRITE)
#define PAGE 4096
#define MIB (1024 * 1024)

static const char *const sims[] = { "--device", "sim:16M,count=2", NULL };

static int upgrade(const char *option)
{
	char said[512];
	int status = mnt_upgrade(&mnt, option, said);

	if (status)
		fprintf(stderr, "%s", said);
	return status;
}

/* The upgrade fails, and says @why. */
static void refused(const char *option, const char *why)
{
	pid_t daemon = mnt.daemon;
	char said[512];

	cr_assert_eq(mnt_upgrade(&mnt, option, said), 1, "%s: %s", why, said);
	cr_assert(strstr(said, why), "%s: %s", why, said);
	cr_assert_eq(mnt.daemon, daemon);
	cr_assert_eq(kill(daemon, 0), 0);
}

/* ... and names the process. */
static void refused_for(const char *option, const char *why, pid_t pid)
{
	char who[64];

	refused(option, why);
	snprintf(who, sizeof(who), "process %d of user %u", (int)pid, (unsigned)getuid());
	refused(option, who);
}

static int open_file(const char *name, int flags)
{
	int fd = openat(both_root[ON_MOUNT], name, flags | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	return fd;
}

static int open_in_child(const char *name, int flags)
{
	int fd = openat(both_root[ON_MOUNT], name, flags | O_CLOEXEC, 0644);

	CHILD_CHECK(fd >= 0);
	return fd;
}

static unsigned char *map(int fd, size_t length, int device)
{
	void *p = gaia_mmap(length, RW, fd, 0, device);

	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	return p;
}

/* ---- load ---- */

enum { WRITES, NESTS, LISTS, STARTS, MAPS, READS, OVERWRITES, CPU, WORKERS };
/* The first process has one device, the second another. */
enum { FIRST, SECOND, PROCESSES };

/* Neighbours share pages. */
#define WORDS 5000
#define REGION (WORDS * sizeof(uint32_t))
#define LENGTH (2 * MIB + PROCESSES * WORKERS * REGION)
/* Some are in another chunk. */
#define REGION_AT(w) ((w) % 2 * 2 * MIB + (w) / 2 * REGION)

static struct shared {
	atomic_bool over;
	atomic_ulong rounds[PROCESSES * WORKERS];
	_Atomic uint32_t published[PROCESSES * WORKERS]; /* released */
} *shared;

struct worker {
	unsigned w; /* of all */
	int device, fd;
	unsigned char *p;
	uint64_t random;
};

static uint64_t next(struct worker *w)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return w->random;
}

static uint32_t word_of(unsigned w, uint32_t round)
{
	return round * (PROCESSES * WORKERS) + w;
}

/* What is there is the region's, and at least as new as @round; @exactly: not newer, either. */
static void check_words(const void *at, unsigned w, uint32_t round, bool exactly)
{
	const volatile uint32_t *p = at;

	for (unsigned i = 0; i < WORDS; i++) {
		uint32_t word = p[i], is = word / (PROCESSES * WORKERS);

		if (word % (PROCESSES * WORKERS) != w || is < round || (exactly && is != round)) {
			fprintf(stderr, "worker %u: word %u of %u is %u of %u, not %u\n", w, i, WORDS, is, word % (PROCESSES * WORKERS), round);
			CHILD_CHECK(!"right words");
		}
	}
}

static void fill_words(void *at, unsigned w, uint32_t round)
{
	volatile uint32_t *p = at;

	for (unsigned i = 0; i < WORDS; i++)
		p[i] = word_of(w, round);
}

#define WORKS(call)                                                                              \
	do {                                                                                     \
		if (call) {                                                                      \
			fprintf(stderr, "%s: %s\n", #call, gaia_last_error_text());              \
			CHILD_CHECK(!#call);                                                     \
		}                                                                                \
	} while (0)

/* Look at somebody's words. */
static void read_another(struct worker *w)
{
	unsigned other = (unsigned)(next(w) % (PROCESSES * WORKERS));
	uint32_t least = shared->published[other];
	unsigned char *at = w->p + REGION_AT(other);

	WORKS(gaia_acquire(at, REGION, PROT_READ));
	check_words(at, other, least, false);
	WORKS(gaia_release(at, REGION));
}

static void update(struct worker *w, unsigned char *at, uint32_t round)
{
	check_words(at, w->w, round - 1, true);
	fill_words(at, w->w, round);
}

static void write_words(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w);

	WORKS(gaia_acquire(at, REGION, RW));
	update(w, at, round);
	WORKS(gaia_release(at, REGION));
}

/* While it holds its own words it needs others. */
static void nest(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w);

	WORKS(gaia_acquire(at, REGION, RW));
	usleep(next(w) % 500);
	read_another(w);
	update(w, at, round);
	WORKS(gaia_release(at, REGION));
}

static void list(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w);
	struct gaia_range halves[2] = { { at, REGION / 2 }, { at + REGION / 2, REGION - REGION / 2 } };

	WORKS(gaia_acquirev(halves, 2, RW));
	update(w, at, round);
	WORKS(gaia_releasev(halves, 2));
}

/* It starts the next while it holds the last. */
static void start(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w), *other = w->p + REGION_AT(next(w) % (PROCESSES * WORKERS));
	int fd, ahead;

	fd = gaia_acquire_start(at, REGION, RW);
	CHILD_CHECK(fd >= 0);
	WORKS(gaia_wait(fd));
	ahead = gaia_acquire_start(other, REGION, PROT_READ);
	CHILD_CHECK(ahead >= 0);
	update(w, at, round);
	WORKS(gaia_release(at, REGION));
	if (round % 4) {
		WORKS(gaia_wait(ahead));
		WORKS(gaia_release(other, REGION));
	} else {
		close(ahead);
	}
}

static void map_anew(struct worker *w, uint32_t round)
{
	unsigned char *p = gaia_mmap(LENGTH, RW, w->fd, 0, w->device), *at = p + REGION_AT(w->w);

	if (p == MAP_FAILED)
		fprintf(stderr, "%s\n", gaia_last_error_text());
	CHILD_CHECK(p != MAP_FAILED);
	WORKS(gaia_acquire(at, REGION, RW));
	update(w, at, round);
	WORKS(gaia_release(at, REGION));
	WORKS(gaia_munmap(p, LENGTH));
}

static void overwrite(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w);

	WORKS(gaia_acquire(at, REGION, PROT_WRITE));
	fill_words(at, w->w, round);
	WORKS(gaia_release(at, REGION));
	if (round % 16 == 0)
		WORKS(gaia_sync(at, REGION));
}

/* Without a device. */
static void write_by_calls(struct worker *w, uint32_t round)
{
	unsigned other = (unsigned)(next(w) % (PROCESSES * WORKERS));
	static _Thread_local unsigned char words[REGION];
	uint32_t least = shared->published[other];

	CHILD_CHECK(pread(w->fd, words, REGION, (off_t)REGION_AT(other)) == (ssize_t)REGION);
	check_words(words, other, least, false);
	CHILD_CHECK(pread(w->fd, words, REGION, (off_t)REGION_AT(w->w)) == (ssize_t)REGION);
	update(w, words, round);
	CHILD_CHECK(pwrite(w->fd, words, REGION, (off_t)REGION_AT(w->w)) == (ssize_t)REGION);
}

static void read_only(struct worker *w, uint32_t round)
{
	read_another(w);
}

static void *work(void *arg)
{
	static void (*const kinds[WORKERS])(struct worker *w, uint32_t round) = {
		[WRITES] = write_words, [NESTS] = nest, [LISTS] = list, [STARTS] = start,
		[MAPS] = map_anew, [READS] = read_only, [OVERWRITES] = overwrite, [CPU] = write_by_calls,
	};
	struct worker *w = arg;
	unsigned kind = w->w % WORKERS;

	for (uint32_t round = 1; !shared->over; round++) {
		kinds[kind](w, round);
		if (kind != READS)
			shared->published[w->w] = round;
		shared->rounds[w->w]++;
		/* Without pauses the daemon would seldom find an acquire that is not under way. */
		usleep(next(w) % 300);
	}
	return NULL;
}

static int be_process(void *arg)
{
	unsigned process = (unsigned)(uintptr_t)arg;
	int fd = open_in_child("data", O_RDWR), device = process == FIRST ? 0 : GAIA_DEVICE_HOST;
	unsigned char *p = gaia_mmap(LENGTH, RW, fd, 0, device);
	static struct worker worker[WORKERS];
	pthread_t thread[WORKERS];

	CHILD_CHECK(p != MAP_FAILED);
	for (unsigned i = 0; i < WORKERS; i++) {
		worker[i] = (struct worker){ .w = process * WORKERS + i, .device = device, .fd = fd, .p = p, .random = 88172645463325252u + i };
		CHILD_CHECK(!pthread_create(&thread[i], NULL, work, &worker[i]));
	}
	for (unsigned i = 0; i < WORKERS; i++)
		pthread_join(thread[i], NULL);
	WORKS(gaia_munmap(p, LENGTH));
	return 0;
}

static void begin_load(pid_t pid[PROCESSES])
{
	int fd = open_file("data", O_CREAT | O_RDWR);
	static unsigned char words[REGION];

	shared = mmap(NULL, sizeof(*shared), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(shared, MAP_FAILED);
	for (unsigned w = 0; w < PROCESSES * WORKERS; w++) {
		fill_words(words, w, 0);
		cr_assert_eq(pwrite(fd, words, REGION, (off_t)REGION_AT(w)), (ssize_t)REGION);
	}
	cr_assert_eq(ftruncate(fd, LENGTH), 0);
	close(fd);
	for (uintptr_t i = 0; i < PROCESSES; i++)
		pid[i] = child_start(be_process, (void *)i);
}

/* Until each worker has got on; false: one of them has ended, or hangs. */
static bool all_get_on(const pid_t pid[PROCESSES])
{
	for (unsigned i = 0; i < PROCESSES * WORKERS; i++) {
		unsigned long rounds = shared->rounds[i], want = rounds + 10;

		for (int ms = 0; shared->rounds[i] < want; ms++) {
			if (waitpid(pid[i / WORKERS], NULL, WNOHANG) || ms > HANG_SECONDS * 1000) {
				fprintf(stderr, "worker %u: %lu rounds\n", i, shared->rounds[i]);
				return false;
			}
			usleep(1000);
		}
	}
	return true;
}

/* All that was released is in the file. */
static void end_load(const pid_t pid[PROCESSES])
{
	static uint32_t words[WORDS];

	shared->over = true;
	for (unsigned i = 0; i < PROCESSES; i++)
		cr_assert_eq(child_wait(pid[i]), 0, "process %u", i);
	way_unmount();
	for (unsigned w = 0; w < PROCESSES * WORKERS; w++) {
		int fd = openat(mnt.backing_fd, "data", O_RDONLY | O_CLOEXEC);

		cr_assert_eq(pread(fd, words, REGION, (off_t)REGION_AT(w)), (ssize_t)REGION);
		for (unsigned i = 0; i < WORDS; i++)
			cr_assert_eq(words[i], word_of(w, shared->published[w]), "word %u of worker %u", i, w);
		close(fd);
	}
	way_remount();
	munmap(shared, sizeof(*shared));
}

EACH_WAY_BARE(upgrade_clients, no_program_notices)
{
	const char *upgrades = getenv("GAIAFS_UPGRADES");
	pid_t pid[PROCESSES];
	bool good;

	way_start(sims);
	begin_load(pid);
	good = all_get_on(pid);
	for (int n = upgrades ? atoi(upgrades) : 5; n > 0 && good; n--)
		good = !upgrade(NULL) && all_get_on(pid);
	cr_assert(good);
	end_load(pid);
}
