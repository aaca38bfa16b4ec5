/*
 * starve.c - a user who may read a file reads it without a pause, past the kernel's cache and by many threads, so that at
 * each moment some of them have each page. Root writes the file, and a device acquires it: they get their turn all the same.
 *
 * The daemon takes some time for each read while it has the pages, so that there is never a moment at which nobody has them. What
 * counts is how many reads overtake the others: those that began later, and were answered earlier.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "ways.h"

#define PAGE 4096
#define SIZE (16 * PAGE)
#define READERS 16
#define TURNS 10
/* Of each request, on average: the reads that come to the page before the request does. */
#define MAY_OVERTAKE (2 * READERS)
#define HOPELESS (100 * READERS) /* in one turn: the attacker need not go on */
#define NOBODY 65534
#define RW (PROT_READ | PROT_WRITE)

/* Shared by the processes. */
static struct score {
	atomic_ulong began, answered; /* reads */
	atomic_ulong turn; /* how many had begun when the turn under way did; 0: none is */
	atomic_ulong overtook;
	atomic_bool stop;
} *score;

static void *read_on(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_DIRECT);
	void *buf = aligned_alloc(PAGE, SIZE);

	(void)arg;
	CHILD_CHECK(fd >= 0 && buf);
	while (!atomic_load(&score->stop)) {
		unsigned long mine = atomic_fetch_add(&score->began, 1) + 1, turn;

		CHILD_CHECK(pread(fd, buf, SIZE, 0) == SIZE);
		atomic_fetch_add(&score->answered, 1);
		turn = atomic_load(&score->turn);
		if (turn && mine > turn)
			atomic_fetch_add(&score->overtook, 1);
		if (turn && mine > turn + HOPELESS)
			atomic_store(&score->stop, true);
	}
	free(buf);
	close(fd);
	return NULL;
}

static int attack(void *arg)
{
	pthread_t thread[READERS];

	(void)arg;
	child_become(NOBODY, NOBODY);
	for (unsigned k = 0; k < READERS; k++)
		CHILD_CHECK(!pthread_create(&thread[k], NULL, read_on, NULL));
	for (unsigned k = 0; k < READERS; k++)
		pthread_join(thread[k], NULL);
	return 0;
}

/* Root's file, and nobody at it. */
static pid_t attack_begin(int *fd)
{
	static const char *const args[] = { "--device", "sim:8M", NULL };
	char *bytes = calloc(1, SIZE);
	pid_t attacker;

	if (geteuid())
		cr_skip_test("needs root, to be another user as well");
	setenv("GAIAFS_FAULTS", "read.before_reply=delay:20000us,seed=1", 1);
	way_start(args);
	way_make_cached("f");
	score = mmap(NULL, sizeof(*score), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(score, MAP_FAILED);
	*fd = openat(both_root[ON_MOUNT], "f", O_RDWR | O_DIRECT | O_CLOEXEC);
	cr_assert(bytes && *fd >= 0, "%s", strerror(errno));
	cr_assert_eq(pwrite(*fd, bytes, SIZE, 0), SIZE);
	free(bytes);
	attacker = child_start(attack, NULL);
	while (atomic_load(&score->answered) < READERS)
		sched_yield();
	return attacker;
}

static void turn_begins(void)
{
	atomic_store(&score->turn, atomic_load(&score->began));
}

static void turn_ends(void)
{
	atomic_store(&score->turn, 0);
}

/* @requests: in each turn, for which a thread of the daemon or a page is waited for. */
static void attack_end(pid_t attacker, int fd, const char *what, unsigned requests)
{
	unsigned long overtook = atomic_load(&score->overtook);

	cr_expect_not(atomic_exchange(&score->stop, true), "%s: would never have got its turn", what);
	cr_assert_eq(child_wait(attacker), 0);
	close(fd);
	cr_log_info("%s: overtaken by %.1f reads on average", what, (double)overtook / TURNS);
	cr_assert_leq(overtook, (unsigned long)TURNS * requests * MAY_OVERTAKE,
		      "%s: overtaken by %lu reads", what, overtook);
}

EACH_WAY_BARE(starve, readers_do_not_keep_a_write_out)
{
	int fd;
	pid_t attacker = attack_begin(&fd);
	void *page = aligned_alloc(PAGE, PAGE);

	memset(page, 'w', PAGE);
	for (unsigned k = 0; k < TURNS; k++) {
		turn_begins();
		cr_assert_eq(pwrite(fd, page, PAGE, (off_t)k * PAGE), PAGE);
		turn_ends();
	}
	free(page);
	attack_end(attacker, fd, "a write", 1);
}

EACH_WAY_BARE(starve, readers_do_not_keep_an_acquire_out)
{
	int fd;
	pid_t attacker = attack_begin(&fd);
	char *p = gaia_mmap(PAGE, RW, fd, 0, 0);

	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	for (unsigned k = 0; k < TURNS; k++) {
		turn_begins();
		cr_assert_eq(gaia_acquire(p, PAGE, RW), 0, "%s", strerror(errno));
		p[k]++;
		cr_assert_eq(gaia_release(p, PAGE), 0, "%s", strerror(errno));
		turn_ends();
	}
	cr_assert_eq(gaia_munmap(p, PAGE), 0);
	attack_end(attacker, fd, "an acquire and a release", 4);
}
