/*
 * paths.c - a device's program that does what it is told, and says how long each step took.
 *
 *	paths < COMMANDS
 *
 * A command is a line, and so is its answer: numbers, times in ns. What fails ends the program, with one line on stderr. Mappings
 * are whole files on device 0, numbered from 0 as they are made. Peers, which do the same work without gaiafs, work on memory
 * of their own, which they have touched before.
 *
 *	map FILE r|rw		its bytes. Without rw it cannot be written, nor by CPU programs here
 *	unmap I
 *	acquire I r|rw		all of it
 *	release I
 *	rounds N r|rw I...	N times, and for each mapping in turn: an ioctl that the daemon answers, an acquire, a release
 *	write I K		a CPU program changes K pages, equally far apart, and stores them
 *	store I			the device changes each page of what it has acquired
 *	windows I BYTES NS	acquire window by window in order, and compute for so long (as a device does: not here) before the release
 *	read I BYTES N order|random	a CPU program reads so many blocks of the file
 *	halves I N		the device and a CPU program each store N words, to their halves of the same 16 pages; then it is one
 *	compare I		a peer: what CPU programs see of the file, read and compared with memory that equals it
 *	hash BYTES T, copy BYTES T	peers: XXH3 of each page, memcpy; by T threads
 *	private N		peer of halves
 */
#include <err.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define PAGE 4096u
#define MAPPINGS 16
#define THREADS 256
#define SHARED_PAGES 16u

static struct mapping {
	const char *file;
	int fd;
	unsigned char *p;
	size_t bytes;
} mappings[MAPPINGS];
static int n_mappings;

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* ---- the words of a command ---- */

static char *next_word(void)
{
	char *word = strtok(NULL, " \n");

	if (!word)
		errx(2, "a command lacks a word");
	return word;
}

static uint64_t next_number(void)
{
	char *word = next_word(), *end;
	uint64_t n = strtoull(word, &end, 10);

	if (*end || *word < '0' || *word > '9')
		errx(2, "%s is no number", word);
	return n;
}

static struct mapping *mapping_of(const char *word)
{
	int i = atoi(word);

	if (i < 0 || i >= n_mappings || !mappings[i].p)
		errx(2, "there is no mapping %s", word);
	return &mappings[i];
}

static struct mapping *next_mapping(void)
{
	return mapping_of(next_word());
}

static int prot_of(const char *word)
{
	return strcmp(word, "rw") ? PROT_READ : PROT_READ | PROT_WRITE;
}

static void say(uint64_t ns)
{
	printf(" %llu", (unsigned long long)ns);
}

/* ---- mappings ---- */

static void map(void)
{
	struct mapping *m = &mappings[n_mappings];
	struct stat st;
	int prot;

	if (n_mappings == MAPPINGS)
		errx(2, "too many mappings");
	m->file = strdup(next_word());
	prot = prot_of(next_word());
	m->fd = open(m->file, prot & PROT_WRITE ? O_RDWR : O_RDONLY);
	if (m->fd < 0 || fstat(m->fd, &st))
		err(1, "%s", m->file);
	m->bytes = (size_t)st.st_size;
	m->p = gaia_mmap(m->bytes, prot, m->fd, 0, 0);
	if (m->p == MAP_FAILED)
		err(1, "gaia_mmap %s", m->file);
	n_mappings++;
	say(m->bytes);
}

static void unmap(void)
{
	struct mapping *m = next_mapping();

	if (gaia_munmap(m->p, m->bytes))
		err(1, "gaia_munmap %s", m->file);
	close(m->fd);
	m->p = NULL;
}

static uint64_t acquire(const struct mapping *m, size_t off, size_t bytes, int prot)
{
	uint64_t start = now();

	if (gaia_acquire(m->p + off, bytes, prot))
		err(1, "gaia_acquire %s", m->file);
	return now() - start;
}

static uint64_t release(const struct mapping *m, size_t off, size_t bytes)
{
	uint64_t start = now();

	if (gaia_release(m->p + off, bytes))
		err(1, "gaia_release %s", m->file);
	return now() - start;
}

static uint64_t ask(const struct mapping *m)
{
	uint64_t start = now();

	if (gaia_devices(m->fd, NULL, 0) < 1)
		err(1, "gaia_devices %s", m->file);
	return now() - start;
}

static void rounds(void)
{
	uint64_t n = next_number();
	int prot = prot_of(next_word()), count = 0;
	struct mapping *list[MAPPINGS];
	char *word;

	while ((word = strtok(NULL, " \n")) && count < MAPPINGS)
		list[count++] = mapping_of(word);
	while (n--)
		for (int i = 0; i < count; i++) {
			say(ask(list[i]));
			say(acquire(list[i], 0, list[i]->bytes, prot));
			say(release(list[i], 0, list[i]->bytes));
		}
}

static void write_pages(void)
{
	struct mapping *m = next_mapping();
	uint64_t k = next_number(), pages = m->bytes / PAGE, start = now();
	static unsigned char page[PAGE], last;

	if (!k || k > pages)
		errx(2, "%s has not so many pages", m->file);
	memset(page, ++last, sizeof(page));
	for (uint64_t i = 0; i < k; i++)
		if (pwrite(m->fd, page, PAGE, (off_t)(i * (pages / k) * PAGE)) != PAGE)
			err(1, "write %s", m->file);
	if (fdatasync(m->fd))
		err(1, "fdatasync %s", m->file);
	say(now() - start);
}

static void store(void)
{
	struct mapping *m = next_mapping();
	uint64_t start = now();

	for (size_t at = 0; at < m->bytes; at += PAGE)
		m->p[at]++;
	say(now() - start);
}

static void windows(void)
{
	struct mapping *m = next_mapping();
	size_t bytes = next_number();
	uint64_t ns = next_number(), start = now();
	const struct timespec compute = { (time_t)(ns / 1000000000), (long)(ns % 1000000000) };

	if (!bytes)
		errx(2, "windows of nothing");
	for (size_t at = 0; at + bytes <= m->bytes; at += bytes) {
		acquire(m, at, bytes, PROT_READ);
		if (ns)
			nanosleep(&compute, NULL);
		release(m, at, bytes);
	}
	say(now() - start);
}

static uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static void read_blocks(void)
{
	struct mapping *m = next_mapping();
	size_t bytes = next_number();
	uint64_t n = next_number(), blocks = bytes ? m->bytes / bytes : 0, seed = 88172645463325252u, start;
	bool random = !strcmp(next_word(), "random");
	char *room = malloc(bytes);

	if (!blocks || !room)
		errx(2, "%s has no such blocks", m->file);
	if (posix_fadvise(m->fd, 0, 0, random ? POSIX_FADV_RANDOM : POSIX_FADV_SEQUENTIAL))
		errx(1, "posix_fadvise %s", m->file);
	start = now();
	for (uint64_t i = 0; i < n; i++) {
		uint64_t block = (random ? next_random(&seed) : i) % blocks;

		if (pread(m->fd, room, bytes, (off_t)(block * bytes)) != (ssize_t)bytes)
			err(1, "read %s", m->file);
	}
	say(now() - start);
	free(room);
}

/* ---- by several threads ---- */

struct job {
	unsigned char *to;
	const unsigned char *from;
	size_t bytes;
	volatile uint64_t sum;
};

static void *hash_pages(void *arg)
{
	struct job *job = arg;
	uint64_t sum = 0;

	for (size_t at = 0; at < job->bytes; at += PAGE)
		sum += XXH3_128bits(job->from + at, PAGE).low64;
	job->sum = sum;
	return NULL;
}

static void *copy_bytes(void *arg)
{
	struct job *job = arg;

	memcpy(job->to, job->from, job->bytes);
	return NULL;
}

/* Each has its part; this one the first. */
static uint64_t by_threads(void *(*work)(void *job), unsigned char *to, const unsigned char *from, size_t bytes,
			   uint64_t n)
{
	struct job job[THREADS];
	pthread_t thread[THREADS];
	size_t part;
	uint64_t start = now();

	if (!n || n > THREADS || bytes < n * PAGE)
		errx(2, "1 to %d threads, with a page each", THREADS);
	part = bytes / n / PAGE * PAGE;
	for (uint64_t i = 0; i < n; i++) {
		job[i] = (struct job){ to ? to + i * part : NULL, from + i * part,
				       i + 1 < n ? part : bytes - i * part, 0 };
		if (i && pthread_create(&thread[i], NULL, work, &job[i]))
			errx(1, "no thread");
	}
	work(&job[0]);
	for (uint64_t i = 1; i < n; i++)
		pthread_join(thread[i], NULL);
	return now() - start;
}

/* Shared, as a simulated device's is: both are read and written as fast. Stays. */
static unsigned char *touched(unsigned nth, size_t bytes)
{
	static struct {
		unsigned char *p;
		size_t bytes;
	} memory[3];

	if (memory[nth].bytes < bytes) {
		if (memory[nth].bytes)
			munmap(memory[nth].p, memory[nth].bytes);
		memory[nth].p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (memory[nth].p == MAP_FAILED)
			err(1, "%zu bytes", bytes);
		memory[nth].bytes = bytes;
		memset(memory[nth].p, 1, bytes);
	}
	return memory[nth].p;
}

static void hash(void)
{
	size_t bytes = next_number();

	say(by_threads(hash_pages, NULL, touched(0, bytes), bytes, next_number()));
}

static void copy(void)
{
	size_t bytes = next_number();

	say(by_threads(copy_bytes, touched(1, bytes), touched(0, bytes), bytes, next_number()));
}

static void compare(void)
{
	struct mapping *m = next_mapping();
	const size_t step = 1u << 20;
	unsigned char *all = touched(0, m->bytes), *room = touched(1, step);
	uint64_t start = 0;

	for (int turn = 0; turn < 2; turn++) {
		start = now();
		for (size_t at = 0; at < m->bytes; at += step) {
			size_t n = at + step < m->bytes ? step : m->bytes - at;

			if (pread(m->fd, turn ? room : all + at, n, (off_t)at) != (ssize_t)n)
				err(1, "read %s", m->file);
			if (turn && memcmp(all + at, room, n))
				errx(1, "%s changes", m->file);
		}
	}
	say(now() - start);
}

/* ---- two who store to halves of the same pages ---- */

struct half {
	uint64_t *p;
	unsigned first; /* word of each page */
	uint64_t n;
};

static void *store_words(void *arg)
{
	struct half *h = arg;
	uint64_t seed = 88172645463325252u + h->first;
	const unsigned words = PAGE / sizeof(uint64_t);

	for (uint64_t i = 0; i < h->n; i++) {
		uint64_t r = next_random(&seed);

		h->p[r % SHARED_PAGES * words + h->first + r / SHARED_PAGES % (words / 2)] = r;
	}
	return NULL;
}

static void store_both(void *device, void *cpu, uint64_t n)
{
	struct half mine = { device, PAGE / sizeof(uint64_t) / 2, n }, other = { cpu, 0, n };
	pthread_t thread;

	if (pthread_create(&thread, NULL, store_words, &other))
		errx(1, "no thread");
	store_words(&mine);
	pthread_join(thread, NULL);
}

static uint64_t look(const volatile unsigned char *p)
{
	uint64_t sum = 0;

	for (size_t at = 0; at < SHARED_PAGES * PAGE; at += PAGE)
		sum += p[at] + p[at + PAGE / 2];
	return sum;
}

static void halves(void)
{
	struct mapping *m = next_mapping();
	uint64_t n = next_number(), start;
	void *cpu = mmap(NULL, SHARED_PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);

	if (cpu == MAP_FAILED)
		err(1, "mmap %s", m->file);
	look(cpu);
	start = now();
	acquire(m, 0, SHARED_PAGES * PAGE, PROT_READ | PROT_WRITE);
	store_both(m->p, cpu, n);
	release(m, 0, SHARED_PAGES * PAGE);
	look(cpu);
	say(now() - start);
	munmap(cpu, SHARED_PAGES * PAGE);
}

static void private_halves(void)
{
	unsigned char *file = touched(0, SHARED_PAGES * PAGE), *device = touched(1, SHARED_PAGES * PAGE);
	unsigned char *cpu = touched(2, SHARED_PAGES * PAGE);
	uint64_t n = next_number(), start = now();

	memcpy(device, file, SHARED_PAGES * PAGE);
	memcpy(cpu, file, SHARED_PAGES * PAGE);
	store_both(device, cpu, n);
	for (size_t at = 0; at < SHARED_PAGES * PAGE; at += PAGE) {
		memcpy(file + at, cpu + at, PAGE / 2);
		memcpy(file + at + PAGE / 2, device + at + PAGE / 2, PAGE / 2);
	}
	look(file);
	say(now() - start);
}

/* ---- */

static void acquire_all(void)
{
	struct mapping *m = next_mapping();

	say(acquire(m, 0, m->bytes, prot_of(next_word())));
}

static void release_all(void)
{
	struct mapping *m = next_mapping();

	say(release(m, 0, m->bytes));
}

static const struct command {
	const char *name;
	void (*run)(void);
} commands[] = {
	{ "map", map },		  { "unmap", unmap },	{ "acquire", acquire_all }, { "release", release_all },
	{ "rounds", rounds },	  { "write", write_pages }, { "store", store },	    { "windows", windows },
	{ "read", read_blocks },  { "halves", halves }, { "hash", hash },	    { "copy", copy },
	{ "private", private_halves }, { "compare", compare },
};

int main(void)
{
	char line[4096];

	while (fgets(line, sizeof(line), stdin)) {
		const char *name = strtok(line, " \n");
		size_t i = 0;

		while (i < sizeof(commands) / sizeof(*commands) && (!name || strcmp(name, commands[i].name)))
			i++;
		if (i == sizeof(commands) / sizeof(*commands))
			errx(2, "there is no command %s", name ? name : "without a name");
		commands[i].run();
		putchar('\n');
		fflush(stdout);
	}
	return 0;
}
