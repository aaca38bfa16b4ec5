/*
 * fault_kill.c - kill -9 of the daemon at random moments, under load, again and again.
 *
 * Writers of all kinds share one file: write(2) and fsync(2), stores to a mapping and msync(2),
 * devices with gaia_release() and gaia_sync(). Every word of the file belongs to one writer,
 * which writes rising numbers to it and notes in shared memory which number it wrote last and,
 * after a sync has returned, which number is stored for certain. After each death the words in the
 * source must lie between the two. One writer also appends to a file of its own.
 *
 * GAIAFS_KILLS says how often (10). GAIAFS_SEED repeats a run.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "shell.h"
#include "ways.h"

#define PAGES 640 /* more than a chunk */
#define PAGE 4096
#define SIZE (PAGES * PAGE)
#define WORDS (SIZE / sizeof(uint64_t))
#define PAGE_WORDS (PAGE / sizeof(uint64_t))
#define BATCH 12 /* words between syncs */
#define RW (PROT_READ | PROT_WRITE)

enum { WRITE_A, WRITE_B, MAPPED, DEVICE_A, DEVICE_B, WRITERS };

/* Shared by all. A word is owned by writer number (word % WRITERS). */
static struct notes {
	atomic_bool dying;	/* errors are to be expected */
	atomic_bool dead;	/* all is over */
	atomic_uint syncs;	/* that have returned */
	uint32_t tried[WORDS];
	uint32_t stored[WORDS];
	uint64_t appended, append_stored; /* bytes */
} *notes;

static uint64_t random_state;

static uint64_t random64(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

/* What word number @w holds when number @n was written to it; 0 of all is 0. */
static uint64_t stamp(size_t w, uint32_t n)
{
	return n ? (uint64_t)w << 32 | n : 0;
}

static uint64_t appended_word(uint64_t off)
{
	return (off + 1) * 0x9e3779b97f4a7c15;
}

/* ---- writers ---- */

struct writer {
	int number;
	int fd, log;
	uint64_t *map;		/* MAPPED: of the file; devices: the device's */
	size_t word[BATCH];
};

static sigjmp_buf out;

/* A page of a mapping cannot be read any more. */
static void on_sigbus(int sig)
{
	siglongjmp(out, 1);
}

/* A call failed. */
_Noreturn static void stop(const char *what)
{
	if (!notes->dying)
		child_fail(__FILE__, __LINE__, what);
	_exit(0);
}

/* Words of this writer in a few pages near to each other. */
static void choose(struct writer *w, size_t *first_page, size_t *n_pages)
{
	*first_page = random64() % PAGES;
	*n_pages = 1 + random64() % 4;
	if (*first_page + *n_pages > PAGES)
		*n_pages = PAGES - *first_page;
	for (int i = 0; i < BATCH; i++) {
		size_t word = (*first_page * PAGE_WORDS) + random64() % (*n_pages * PAGE_WORDS);

		word -= word % WRITERS;
		word += (size_t)w->number;
		if (word < *first_page * PAGE_WORDS)
			word += WRITERS;
		if (word >= (*first_page + *n_pages) * PAGE_WORDS)
			word -= WRITERS;
		w->word[i] = word;
	}
}

static uint64_t next_stamp(size_t word)
{
	return stamp(word, ++notes->tried[word]);
}

static void note_stored(struct writer *w)
{
	for (int i = 0; i < BATCH; i++)
		notes->stored[w->word[i]] = notes->tried[w->word[i]];
	notes->syncs++;
}

static void append(struct writer *w)
{
	uint64_t record[32];
	size_t n = 1 + random64() % 32;

	for (size_t i = 0; i < n; i++)
		record[i] = appended_word(notes->appended + i * sizeof(*record));
	notes->appended += n * sizeof(*record);
	if (write(w->log, record, n * sizeof(*record)) != (ssize_t)(n * sizeof(*record)))
		stop("append");
	if (random64() % 2)
		return;
	if (fdatasync(w->log))
		stop("fdatasync");
	notes->append_stored = notes->appended;
}

static void write_some(struct writer *w)
{
	size_t page, n;

	choose(w, &page, &n);
	for (int i = 0; i < BATCH; i++) {
		uint64_t value = next_stamp(w->word[i]);

		if (pwrite(w->fd, &value, sizeof(value), (off_t)(w->word[i] * sizeof(value))) !=
		    sizeof(value))
			stop("pwrite");
	}
	if (random64() % 2 ? fsync(w->fd) : fdatasync(w->fd))
		stop("fsync");
	note_stored(w);
	if (w->number == WRITE_A)
		append(w);
}

static void store_some(struct writer *w)
{
	size_t page, n;

	choose(w, &page, &n);
	for (int i = 0; i < BATCH; i++) {
		uint64_t value = next_stamp(w->word[i]);

		__atomic_store_n(&w->map[w->word[i]], value, __ATOMIC_RELAXED);
	}
	if (msync((char *)w->map + page * PAGE, n * PAGE, MS_SYNC))
		stop("msync");
	note_stored(w);
}

static void compute_some(struct writer *w)
{
	size_t page, n, len;
	char *at;

	choose(w, &page, &n);
	at = (char *)w->map + page * PAGE;
	len = n * PAGE;
	if (gaia_acquire(at, len, RW))
		stop("gaia_acquire");
	for (int i = 0; i < BATCH; i++)
		w->map[w->word[i]] = next_stamp(w->word[i]);
	if (gaia_release(at, len))
		stop("gaia_release");
	if (random64() % 4 == 0) /* a CPU's sync stores what devices released, too */
		len = fsync(w->fd) ? 0 : len;
	else
		len = gaia_sync(at, len) ? 0 : len;
	if (!len)
		stop("gaia_sync");
	note_stored(w);
}

static int writer_main(void *arg)
{
	struct writer w = { .number = *(int *)arg };
	struct sigaction sa = { .sa_handler = on_sigbus };

	random_state += (uint64_t)w.number * 1000003;
	w.fd = open(mnt_file(&mnt, "f"), O_RDWR);
	w.log = open(mnt_file(&mnt, "log"), O_WRONLY | O_APPEND);
	if (w.fd < 0 || w.log < 0)
		stop("open");
	if (w.number == MAPPED)
		w.map = mmap(NULL, SIZE, RW, MAP_SHARED, w.fd, 0);
	else if (w.number >= DEVICE_A)
		w.map = gaia_mmap(SIZE, RW, w.fd, 0, w.number - DEVICE_A);
	if (w.map == MAP_FAILED)
		stop("mmap");
	sigaction(SIGBUS, &sa, NULL);
	if (sigsetjmp(out, 1))
		stop("SIGBUS");
	/* A mapping that is passed through needs no daemon. */
	while (!(notes->dead && w.number == MAPPED && way_is("auto")))
		if (w.number >= DEVICE_A)
			compute_some(&w);
		else if (w.number == MAPPED)
			store_some(&w);
		else
			write_some(&w);
	return 0;
}

/* ---- after a death ---- */

static void read_all(int dir, const char *name, void *buf, size_t n)
{
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	cr_assert_eq(pread(fd, buf, n, 0), (ssize_t)n, "%s is shorter than %zu", name, n);
	close(fd);
}

/* What was stored is there, and nothing that nobody wrote; and that is what counts from now on. */
static void check_words(int dir, unsigned round)
{
	static uint64_t is[WORDS];

	read_all(dir, "f", is, SIZE);
	for (size_t w = 0; w < WORDS; w++) {
		uint32_t n = (uint32_t)is[w];

		cr_assert_eq(is[w], stamp(w, n), "round %u: word %zu holds %llx, which nobody wrote",
			     round, w, (unsigned long long)is[w]);
		cr_assert(n >= notes->stored[w] && n <= notes->tried[w],
			  "round %u: word %zu, of writer %zu, holds %u; %u was stored, %u written last",
			  round, w, w % WRITERS, n, notes->stored[w], notes->tried[w]);
		notes->stored[w] = notes->tried[w] = n;
	}
}

static void check_log(int dir, unsigned round)
{
	uint64_t *is, size;
	struct stat st;
	int fd;

	cr_assert_eq(fstatat(dir, "log", &st, 0), 0);
	size = (uint64_t)st.st_size;
	cr_assert(size >= notes->append_stored && size <= notes->appended,
		  "round %u: %llu bytes are appended; %llu were stored, %llu written", round,
		  (unsigned long long)size, (unsigned long long)notes->append_stored,
		  (unsigned long long)notes->appended);
	is = malloc(size + 1);
	read_all(dir, "log", is, size);
	/* Beyond what was stored pages may be missing, as after any crash. */
	for (uint64_t off = 0; off + sizeof(*is) <= notes->append_stored; off += sizeof(*is))
		cr_assert_eq(is[off / sizeof(*is)], appended_word(off),
			     "round %u: byte %llu of the log", round, (unsigned long long)off);
	free(is);
	/* The next round appends to what was stored, word by word. */
	fd = openat(mnt.backing_fd, "log", O_RDWR | O_CLOEXEC);
	cr_assert_eq(ftruncate(fd, (off_t)notes->append_stored), 0);
	close(fd);
	notes->appended = notes->append_stored;
}

static void wait_until_dead(unsigned round)
{
	time_t end = time(NULL) + HANG_SECONDS;

	while (!mnt_is_dead(mnt.path)) {
		cr_assert_lt(time(NULL), end, "round %u: nobody ends the connection", round);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
}

/* ---- rounds ---- */

/* With options by chance: much or little room, early or late to store. */
static void start_round(void)
{
	static const char *const devices[] = { "sim:4M,count=2", "sim:64M,count=2",
					       "sim:8M,count=2,latency=200" };
	static const char *const homes[] = { "8M", "64M" };
	static const char *const ages[] = { "0.005", "0.1", "3600" };
	static const char *args[12];
	int n = 0;

	args[n++] = "--cpu-cache";
	args[n++] = way;
	args[n++] = "--device";
	args[n++] = devices[random64() % 3];
	args[n++] = "--home";
	args[n++] = homes[random64() % 2];
	args[n++] = "--writeback-age";
	args[n++] = ages[random64() % 3];
	args[n] = NULL;
	mnt.options.args = args;
	cr_assert_eq(mnt_restart(&mnt), 0, "cannot mount again");
}

static void one_round(unsigned round)
{
	int number[WRITERS], status, dir;
	pid_t pid[WRITERS];
	time_t end = time(NULL) + HANG_SECONDS;
	bool politely = random64() % 8 == 0;

	start_round();
	if (random64() % 4 == 0) {
		/* What the mount shows is what the source holds. */
		dir = open(mnt.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		check_words(dir, round);
		close(dir);
	}
	notes->dying = notes->dead = false;
	notes->syncs = 0;
	for (int i = 0; i < WRITERS; i++) {
		number[i] = i;
		pid[i] = child_start(writer_main, &number[i]);
	}
	/* Once something is stored for certain, the daemon may die at any time. */
	while (notes->syncs < WRITERS && time(NULL) < end)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	cr_assert_geq(notes->syncs, WRITERS, "round %u: nothing goes on", round);
	nanosleep(&(struct timespec){ .tv_nsec = (long)(random64() % 150000000) }, NULL);
	notes->dying = true;
	if (politely) {
		/* Told to end, and killed in the middle of that. */
		kill(mnt.daemon, SIGTERM);
		nanosleep(&(struct timespec){ .tv_nsec = (long)(random64() % 30000000) }, NULL);
	}
	kill(mnt.daemon, SIGKILL);
	wait_until_dead(round);
	notes->dead = true;
	for (int i = 0; i < WRITERS; i++)
		cr_assert_eq(child_wait(pid[i]), 0, "round %u: writer %d hangs, or went wrong",
			     round, i);
	status = mnt_wait(&mnt);
	cr_assert(politely || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL),
		  "wait status %x", status);
	check_words(mnt.backing_fd, round);
	check_log(mnt.backing_fd, round);
}

static unsigned long from_environment(const char *name, unsigned long usual)
{
	const char *text = getenv(name);

	return text ? strtoul(text, NULL, 0) : usual;
}

static void kill_again_and_again(void)
{
	unsigned rounds = (unsigned)from_environment("GAIAFS_KILLS", 10);
	unsigned long seed = from_environment("GAIAFS_SEED", (unsigned long)time(NULL));
	int fd;

	if (!mnt_can_abort())
		cr_skip_test("killing: without root it needs fusectl on /sys/fs/fuse/connections");
	fprintf(stderr, "fault_kill: %s, GAIAFS_SEED=%lu\n", way, seed);
	random_state = seed * 0x9e3779b97f4a7c15 + 1;
	notes = mmap(NULL, sizeof(*notes), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(notes, MAP_FAILED);
	way_start(NULL);
	way_unmount();
	fd = openat(mnt.backing_fd, "f", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	cr_assert_eq(ftruncate(fd, SIZE), 0);
	close(fd);
	close(openat(mnt.backing_fd, "log", O_CREAT | O_RDWR | O_CLOEXEC, 0644));
	for (unsigned round = 0; round < rounds; round++)
		one_round(round);
}

/* Each takes a few seconds in CI. A long run may take hours. */
Test(fault_kill, what_was_synced_is_there_auto, .init = way_bare_auto, .fini = way_clean_up,
     .timeout = 36000)
{
	kill_again_and_again();
}

Test(fault_kill, what_was_synced_is_there_writeback, .init = way_bare_writeback,
     .fini = way_clean_up, .timeout = 36000)
{
	kill_again_and_again();
}

Test(fault_kill, what_was_synced_is_there_writethrough, .init = way_bare_writethrough,
     .fini = way_clean_up, .timeout = 36000)
{
	kill_again_and_again();
}
