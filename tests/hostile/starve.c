/*
 * starve.c - a user who may read a file reads it without a pause, past the kernel's cache and by many threads, so that at
 * each moment some of them have each page. Root writes the file, and a device acquires it: they get their turn all the same.
 *
 * The daemon takes some time for each read while it has the pages, so that there is never a moment at which nobody has them. What
 * counts is how many reads overtake the others: those that began later, and were answered earlier.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attackers.h"
#include "child.h"
#include "gaia/client.h"
#include "hostile.h"

#define TURNS 10
/* Of each request: the reads that get to the page before it does. Some, when the machine is busy. */
#define MAY_OVERTAKE (8 * READERS)
#define RW (PROT_READ | PROT_WRITE)

/* Root's file, and nobody's readers. */
static pid_t attack_begin(int *fd)
{
	static const char *const args[] = { "--device", "sim:8M", NULL };
	char *bytes = calloc(1, STARVE_SIZE);
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
	cr_assert_eq(pwrite(*fd, bytes, STARVE_SIZE, 0), STARVE_SIZE);
	free(bytes);
	attacker = child_start(starve_writers, NULL);
	HOSTILE_WAIT(attacker, atomic_load(&score->answered) >= READERS);
	return attacker;
}

static unsigned n_turns;
static unsigned long overtook[TURNS]; /* reads that have overtaken it, until this turn's end */

static void turn_begins(void)
{
	atomic_store(&score->turn, atomic_load(&score->began));
}

static void turn_ends(void)
{
	atomic_store(&score->turn, 0);
	overtook[n_turns++] = atomic_load(&score->overtook);
}

/*
 * @requests: in each turn, each of which waits for a thread of the daemon or for a page. In most turns: readers also get ahead while this
 * program waits for a processor, which happens in few.
 */
static void attack_end(pid_t attacker, int fd, const char *what, unsigned requests)
{
	unsigned long last = 0;
	unsigned starved = 0;

	for (unsigned k = 0; k < n_turns; k++) {
		starved += overtook[k] - last > (unsigned long)requests * MAY_OVERTAKE;
		last = overtook[k];
	}
	cr_expect_not(atomic_exchange(&score->stop, true), "%s: would never have got its turn", what);
	cr_assert_eq(child_wait(attacker), 0);
	close(fd);
	cr_log_info("%s: overtaken by %.1f reads on average", what, (double)last / TURNS);
	cr_assert_eq(n_turns, TURNS);
	cr_assert_leq(starved, TURNS / 4, "%s: overtaken by too many in %u turns, by %lu reads in all", what, starved, last);
}

EACH_WAY_BARE(starve, readers_do_not_keep_a_write_out)
{
	int fd;
	pid_t attacker = attack_begin(&fd);
	void *page = aligned_alloc(GAIA_PAGE, GAIA_PAGE);

	memset(page, 'w', GAIA_PAGE);
	for (unsigned k = 0; k < TURNS; k++) {
		turn_begins();
		cr_assert_eq(pwrite(fd, page, GAIA_PAGE, (off_t)k * GAIA_PAGE), GAIA_PAGE);
		turn_ends();
	}
	free(page);
	attack_end(attacker, fd, "a write", 1);
}

EACH_WAY_BARE(starve, readers_do_not_keep_an_acquire_out)
{
	int fd;
	pid_t attacker = attack_begin(&fd);
	char *p = gaia_mmap(GAIA_PAGE, RW, fd, 0, 0);

	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	for (unsigned k = 0; k < TURNS; k++) {
		turn_begins();
		cr_assert_eq(gaia_acquire(p, GAIA_PAGE, RW), 0, "%s", strerror(errno));
		p[k]++;
		cr_assert_eq(gaia_release(p, GAIA_PAGE), 0, "%s", strerror(errno));
		turn_ends();
	}
	cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
	attack_end(attacker, fd, "an acquire and a release", 4);
}
