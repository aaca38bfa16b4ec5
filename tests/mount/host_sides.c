/*
 * host_sides.c - a mapping of the host (GAIA_DEVICE_HOST) that can write: what it holds to read is home itself, and a chunk that it acquires to
 * write is a copy until the next acquire to read. See client/sides.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "gaia/protocol.h"
#include "report.h"
#include "seen.h"
#include "ways.h"

#define MIB (1 << 20)
#define PAGE 4096
#define CHUNK (2 * MIB)
#define SIZE (4 * CHUNK)
#define RW (PROT_READ | PROT_WRITE)

#define OK(call) cr_assert_eq((call), 0, "%s: %s", #call, gaia_last_error_text())

static int fd = -1;
static unsigned char *p;

/* A file of 'x', and a mapping of it that can write. */
static void start(const char *home)
{
	const char *args[] = { "--device", "none", "--home", home, NULL };
	static unsigned char piece[CHUNK];

	way_start(args);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	cr_assert_geq(fd, 0);
	memset(piece, 'x', sizeof(piece));
	for (int i = 0; i < SIZE / CHUNK; i++)
		cr_assert_eq(pwrite(fd, piece, CHUNK, (off_t)i * CHUNK), CHUNK);
	cr_assert_eq(fsync(fd), 0);
	p = gaia_mmap(SIZE, RW, fd, 0, GAIA_DEVICE_HOST);
	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
}

static void end(void)
{
	OK(gaia_munmap(p, SIZE));
	close(fd);
}

static int evict(off_t at, size_t len)
{
	struct gaia_ioc_file io = { .from = GAIA_HOST, .offset = (uint64_t)at, .length = len };

	return ioctl(fd, GAIA_IOC_EVICT, &io) ? -errno : 0;
}

static char on_file(off_t at)
{
	char seen = 0;

	cr_assert_eq(pread(fd, &seen, 1, at), 1);
	return seen;
}

/* Write a byte of the file, and have it come home, as it does when another mapping acquires it. */
static void write_file(off_t at, char byte)
{
	off_t page = at / PAGE * PAGE;
	char *other = gaia_mmap(PAGE, PROT_READ, fd, page, GAIA_DEVICE_HOST);

	cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
	cr_assert_neq(other, MAP_FAILED);
	OK(gaia_acquire(other, PAGE, PROT_READ));
	cr_assert_eq(other[at - page], byte);
	OK(gaia_munmap(other, PAGE));
}

static long host_pinned(void)
{
	return STATUS("host", "pinned");
}

EACH_WAY_BARE(host_sides, what_is_only_read_is_homes_own_memory)
{
	start("64M");
	OK(gaia_acquire(p, SIZE, PROT_READ));
	cr_assert(all_are(p, SIZE, 'x'));
	cr_assert_eq(STATUS("counters", "home_to_device"), 0);
	cr_assert_eq(STATUS("counters", "home_viewed"), SIZE / PAGE);
	cr_assert_eq(STATUS("host", "used"), SIZE);
	cr_assert_leq(STATUS("home", "used"), SIZE + MIB);
	write_file(100, 'y');
	cr_assert_eq(p[100], 'y', "home shows it at once");
	OK(gaia_release(p, SIZE));
	cr_assert_eq(host_pinned(), 0);
	end();
}

/* In the background, into home; what is acquired then, to read or to write, needs no disk. */
EACH_WAY_BARE(host_sides, what_will_be_needed_is_read)
{
	long reads;

	start("64M");
	cr_assert_eq(evict(0, SIZE), 0);
	cr_assert_eq(ioctl(fd, GAIA_IOC_EVICT, &(struct gaia_ioc_file){ .from = GAIA_FROM_HOME, .length = SIZE }), 0);
	OK(gaia_advise(p, SIZE, GAIA_WILLNEED));
	/* In auto the file is open for writing past the cache: then nothing is read ahead. */
	while (!way_is("auto") && STATUS("counters", "readahead_home") < SIZE / PAGE)
		usleep(1000);
	reads = STATUS("counters", "storage_reads");
	OK(gaia_acquire(p, CHUNK, PROT_READ));
	OK(gaia_acquire(p + CHUNK, SIZE - CHUNK, RW));
	cr_assert(all_are(p, SIZE, 'x'));
	if (!way_is("auto"))
		cr_assert_eq(STATUS("counters", "storage_reads"), reads);
	end();
}

EACH_WAY_BARE(host_sides, a_chunk_that_is_written_is_private_until_its_release)
{
	start("64M");
	OK(gaia_acquire(p, SIZE, PROT_READ));
	OK(gaia_release(p, SIZE));
	OK(gaia_acquire(p, PAGE, RW));
	p[1] = 'w';
	cr_assert_eq(on_file(1), 'x');
	OK(gaia_release(p, PAGE));
	cr_assert_eq(on_file(1), 'w');
	OK(gaia_acquire(p, PAGE, PROT_READ));
	cr_assert_eq(p[1], 'w');
	/* It is home again. */
	write_file(2, 'y');
	cr_assert_eq(p[2], 'y');
	cr_assert_leq(STATUS("counters", "home_to_device"), CHUNK / PAGE, "one chunk had a copy");
	OK(gaia_release(p, PAGE));
	cr_assert_eq(host_pinned(), 0);
	end();
}

/* As hardware can. */
static int store_where_only_readers_hold(void *arg)
{
	int own = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
	unsigned char *at = gaia_mmap(SIZE, RW, own, 0, GAIA_DEVICE_HOST);

	CHILD_CHECK(at != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(at, PAGE, RW) == 0);
	at[0] = 'w';
	CHILD_CHECK(gaia_release(at, PAGE) == 0);
	CHILD_CHECK(gaia_acquire(at, PAGE, PROT_READ) == 0);
	CHILD_CHECK(at[0] == 'w');
	signal(SIGSEGV, SIG_DFL); /* of sanitizers */
	gate_open(*(struct gate *)arg);
	at[0] = 'v';
	return 1;
}

EACH_WAY_BARE(host_sides, a_store_faults_where_all_is_held_to_read)
{
	struct gate ready = gate_make();
	pid_t child;
	int status;

	start("64M");
	child = child_start(store_where_only_readers_hold, &ready);
	cr_assert(gate_pass(ready));
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	cr_assert_eq(on_file(0), 'w');
	end();
}

/* ---- what others of the program hold of the chunk ---- */

static atomic_bool stop, bad;
static atomic_ulong looks;

static void *look(void *arg)
{
	const unsigned char *at = p + PAGE;

	(void)arg;
	while (!stop) {
		if (!all_are(at, PAGE, 'x'))
			bad = true;
		looks++;
	}
	return NULL;
}

EACH_WAY_BARE(host_sides, a_thread_that_reads_always_finds_what_it_holds)
{
	pthread_t reader;

	start("64M");
	OK(gaia_acquire(p + PAGE, PAGE, PROT_READ));
	stop = bad = false;
	looks = 0;
	pthread_create(&reader, NULL, look, NULL);
	for (int i = 0; i < 200 || (looks < 1000 && !bad); i++) {
		OK(gaia_acquire(p, PAGE, RW));
		p[0] = (unsigned char)i;
		OK(gaia_release(p, PAGE));
		cr_assert_eq(evict(0, CHUNK), -EBUSY);
		OK(gaia_acquire(p, PAGE, PROT_READ));
		cr_assert_eq(p[0], (unsigned char)i);
		OK(gaia_release(p, PAGE));
	}
	stop = true;
	pthread_join(reader, NULL);
	cr_assert(!bad);
	OK(gaia_release(p + PAGE, PAGE));
	cr_assert_eq(host_pinned(), 0);
	OK(evict(0, SIZE));
	end();
}

EACH_WAY_BARE(host_sides, what_is_given_up_is_not_shown_any_more)
{
	start("64M");
	OK(gaia_acquire(p, PAGE, RW));
	OK(gaia_acquire(p + CHUNK, PAGE, PROT_READ));
	/* The first has both sides, and shows the view. */
	OK(gaia_release(p, SIZE));
	OK(gaia_acquire(p, PAGE, PROT_READ));
	OK(gaia_release(p, PAGE));
	cr_assert(is_mapped(p) && is_mapped(p + CHUNK));
	OK(evict(0, SIZE));
	cr_assert(!is_mapped(p) && !is_mapped(p + CHUNK));
	cr_assert_eq(STATUS("host", "used"), 0);
	OK(gaia_acquire(p, 2 * CHUNK, PROT_READ));
	cr_assert(all_are(p, 2 * CHUNK, 'x'));
	end();
}

EACH_WAY_BARE(host_sides, holds_move_as_often_as_they_are)
{
	start("64M");
	OK(gaia_acquire(p + PAGE, 3 * PAGE, PROT_READ));
	OK(gaia_acquire(p + PAGE, PAGE, PROT_READ));
	OK(gaia_acquire(p, CHUNK, PROT_READ));
	OK(gaia_acquire(p + 9 * PAGE, PAGE, PROT_WRITE));
	memset(p + 9 * PAGE, 'w', PAGE);
	OK(gaia_release(p, CHUNK));
	cr_assert_eq(evict(0, CHUNK), -EBUSY);
	OK(gaia_release(p + 9 * PAGE, PAGE));
	cr_assert_eq(on_file(9 * PAGE), 'w');
	OK(gaia_release(p + 2 * PAGE, 2 * PAGE));
	/* Of the page behind the first two holds are left, there and back. */
	OK(gaia_acquire(p, PAGE, PROT_READ));
	OK(gaia_release(p, 2 * PAGE));
	cr_assert_eq(evict(0, CHUNK), -EBUSY);
	OK(gaia_acquire(p, PAGE, RW));
	OK(gaia_release(p, 2 * PAGE));
	cr_assert_eq(host_pinned(), 0);
	OK(evict(0, SIZE));
	end();
}

EACH_WAY_BARE(host_sides, a_part_of_a_chunk_is_released_alone)
{
	start("64M");
	OK(gaia_acquire(p, CHUNK, PROT_READ));
	OK(gaia_release(p, PAGE));
	OK(gaia_acquire(p + 9 * PAGE, PAGE, RW));
	OK(gaia_release(p + 9 * PAGE, PAGE));
	cr_assert_eq(evict(0, CHUNK), -EBUSY);
	cr_assert(all_are(p + PAGE, CHUNK - PAGE, 'x'));
	OK(gaia_release(p + PAGE, CHUNK - PAGE));
	cr_assert_eq(host_pinned(), 0);
	end();
}

EACH_WAY_BARE(host_sides, lists_and_ranges_lie_on_both_sides)
{
	struct gaia_range list[] = { { p, 0 }, { p, 0 }, { p, 0 } };

	start("64M");
	OK(gaia_acquire(p + CHUNK, PAGE, RW));
	p[CHUNK] = 'w';
	/* The second chunk is being written, the others are home's. */
	OK(gaia_acquire(p + 100, SIZE - 100, PROT_READ));
	cr_assert(all_are(p + CHUNK + 1, SIZE - CHUNK - 1, 'x'));
	write_file(2 * CHUNK, 'y');
	cr_assert_eq(p[2 * CHUNK], 'y');
	list[0] = (struct gaia_range){ p + 3 * CHUNK, PAGE };
	list[1] = (struct gaia_range){ p + CHUNK - 1, 2 };
	list[2] = (struct gaia_range){ p + CHUNK - 1, 2 };
	OK(gaia_acquirev(list, 3, PROT_READ));
	OK(gaia_release(p, SIZE));
	cr_assert_eq(on_file(CHUNK), 'w');
	OK(gaia_releasev(list, 3));
	cr_assert_eq(evict(CHUNK, CHUNK), -EBUSY, "it was acquired four times");
	OK(gaia_release(p + CHUNK, PAGE));
	cr_assert_eq(host_pinned(), 0);
	/* All of it is home again. */
	OK(gaia_acquire(p, SIZE, PROT_READ));
	write_file(CHUNK + 1, 'z');
	cr_assert_eq(p[CHUNK + 1], 'z');
	end();
}

/* ---- room, ends ---- */

/* The host has two chunks. */
EACH_WAY_BARE(host_sides, without_room_for_a_copy_what_is_held_to_read_stays)
{
	start("8M");
	OK(gaia_acquire(p, 2 * CHUNK, PROT_READ));
	for (int i = 0; i < 3; i++) {
		errno = 0;
		cr_assert_eq(gaia_acquire(p, PAGE, RW), -1);
		cr_assert_eq(errno, ENOMEM);
		cr_assert_eq(gaia_acquire(p + 2 * CHUNK, PAGE, RW), -1);
		cr_assert_eq(errno, ENOMEM);
		/* One that would lie on both sides gets nothing, either. */
		cr_assert_eq(gaia_acquire(p, 3 * CHUNK, PROT_READ), -1);
		cr_assert_eq(errno, ENOMEM);
	}
	cr_assert(all_are(p, 2 * CHUNK, 'x'));
	OK(gaia_release(p, 2 * CHUNK));
	cr_assert_eq(host_pinned(), 0);
	OK(gaia_acquire(p, 2 * CHUNK, RW));
	p[0] = 'w';
	OK(gaia_release(p, 2 * CHUNK));
	/* One chunk is being written, and for those beside it there is no room. */
	OK(gaia_acquire(p, PAGE, RW));
	cr_assert_eq(gaia_acquire(p, 3 * CHUNK, PROT_READ), -1);
	cr_assert_eq(errno, ENOMEM);
	OK(gaia_release(p, PAGE));
	cr_assert_eq(host_pinned(), 0);
	/* Now both are on the other side, and the next two come. */
	OK(gaia_acquire(p, 2 * CHUNK, PROT_READ));
	cr_assert_eq(p[0], 'w');
	OK(gaia_release(p, 2 * CHUNK));
	OK(gaia_acquire(p + 2 * CHUNK, 2 * CHUNK, PROT_READ));
	cr_assert(all_are(p + 2 * CHUNK, 2 * CHUNK, 'x'));
	end();
}

EACH_WAY_BARE(host_sides, its_end_ends_what_is_held_on_each_side)
{
	void *other;

	start("64M");
	/* It keeps the connection. */
	other = gaia_mmap(PAGE, PROT_READ, fd, 0, GAIA_DEVICE_HOST);
	cr_assert_neq(other, MAP_FAILED);
	OK(gaia_acquire(p, SIZE, PROT_READ));
	OK(gaia_acquire(p + CHUNK, PAGE, RW));
	OK(gaia_munmap(p, SIZE));
	cr_assert_eq(host_pinned(), 0);
	OK(gaia_munmap(other, PAGE));
	close(fd);
}

EACH_WAY_BARE(host_sides, what_is_cut_off_is_zeros_on_either_side)
{
	start("64M");
	OK(gaia_acquire(p, CHUNK, RW));
	OK(gaia_acquire(p + CHUNK, CHUNK, PROT_READ));
	p[0] = 'w';
	cr_assert_eq(ftruncate(fd, 0), 0);
	cr_assert(all_are(p + CHUNK, CHUNK, 0), "home is cut at once");
	OK(gaia_release(p, 2 * CHUNK));
	cr_assert(all_are(p, CHUNK, 0), "the copy when it is not held any more");
	cr_assert_eq(ftruncate(fd, SIZE), 0);
	OK(gaia_acquire(p, SIZE, PROT_READ));
	cr_assert(all_are(p, SIZE, 0));
	OK(gaia_acquire(p + CHUNK, CHUNK, RW));
	cr_assert(all_are(p, SIZE, 0));
	end();
}

static int write_and_wait(void *arg)
{
	int own = openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
	unsigned char *at = gaia_mmap(SIZE, RW, own, 0, GAIA_DEVICE_HOST);

	CHILD_CHECK(at != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(at + PAGE, SIZE - PAGE, PROT_READ) == 0);
	CHILD_CHECK(gaia_acquire(at, PAGE, RW) == 0);
	memset(at, 'w', PAGE);
	CHILD_CHECK(gaia_acquire(at, SIZE, PROT_READ) == 0);
	gate_open(*(struct gate *)arg);
	pause();
	return 1;
}

EACH_WAY_BARE(host_sides, a_client_that_is_killed_holds_nothing_on_either_side)
{
	struct gate ready = gate_make();
	pid_t child;

	start("64M");
	child = child_start(write_and_wait, &ready);
	cr_assert(gate_pass(ready));
	cr_assert_eq(evict(0, CHUNK), -EBUSY);
	cr_assert_eq(evict(CHUNK, CHUNK), -EBUSY);
	child_kill(child);
	OK(evict(0, SIZE));
	cr_assert_eq(on_file(0), 'x');
	cr_assert_eq(STATUS("host", "used"), 0);
	end();
}

EACH_WAY_BARE(host_sides, a_child_inherits_nothing_of_either_side)
{
	pid_t child;
	int status;

	start("64M");
	OK(gaia_acquire(p, PAGE, RW));
	OK(gaia_acquire(p + CHUNK, PAGE, PROT_READ));
	for (int i = 0; i < 2; i++) {
		child = fork();
		if (child == 0) {
			signal(SIGSEGV, SIG_DFL);
			_exit(((volatile unsigned char *)p)[i * CHUNK] ? 1 : 2);
		}
		cr_assert_eq(waitpid(child, &status, 0), child);
		cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "status %x", (unsigned)status);
	}
	end();
}

/* ---- threads ---- */

#define THREADS 4
#define ROUNDS 300

static atomic_uint failed;

/* Each counts in a page of its own, and reads others'. */
static void *count_and_read(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg, seed = me;
	unsigned char *mine = p + me * PAGE;

	for (unsigned i = 0; i < ROUNDS; i++) {
		unsigned char *other = p + CHUNK / 2 + rand_r(&seed) % 4 * CHUNK;

		if (gaia_acquire(other, 8 * PAGE, PROT_READ))
			failed++;
		else if (!all_are(other, 8 * PAGE, 'x') || gaia_release(other, 8 * PAGE))
			failed++;
		if (gaia_acquire(mine, 8, RW)) {
			failed++;
			continue;
		}
		++*(uint64_t *)mine;
		if (gaia_release(mine, 8))
			failed++;
	}
	return NULL;
}

EACH_WAY_BARE(host_sides, threads_that_read_and_write_a_chunk_lose_nothing)
{
	static const uint64_t zero;
	pthread_t thread[THREADS];
	uint64_t seen;

	start("64M");
	for (unsigned i = 0; i < THREADS; i++)
		cr_assert_eq(pwrite(fd, &zero, sizeof(zero), (off_t)i * PAGE), (ssize_t)sizeof(zero));
	failed = 0;
	for (unsigned i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, count_and_read, (void *)(uintptr_t)i);
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	cr_assert_eq(failed, 0);
	for (unsigned i = 0; i < THREADS; i++) {
		cr_assert_eq(pread(fd, &seen, sizeof(seen), (off_t)i * PAGE), (ssize_t)sizeof(seen));
		cr_assert_eq(seen, ROUNDS, "thread %u: %lu", i, (unsigned long)seen);
	}
	cr_assert_eq(host_pinned(), 0);
	end();
}
