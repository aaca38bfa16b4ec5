/*
 * work.c - programs that store, and say what they were promised: for power cuts.
 *
 *	powercut-work DIR MARKS SEED STEPS
 *
 * Works in DIR, on a gaiafs mount, and notes in MARKS, in one write(2) each,
 *
 *	I FILE VERSION FIRST N	before N sectors of 512 bytes, from FIRST on, are given this version
 *	T FILE VERSION FIRST	before all sectors from FIRST on are cut off
 *	D FILE VERSION		when all that FILE was given up to this version must survive
 *
 * A sector of version v is 32 times the pair (v, file << 40 | number of the sector), in the machine's byte order. Files of which `r` is
 * the first letter are only ever replaced: written beside, synced, renamed over, the directory synced. All
 * others are changed in place: by write(2), with O_DIRECT, through a mapping, and by a device. Each thread has files of its own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gaia/client.h"

#define SECTOR 512u
#define PER_PAGE (4096u / SECTOR)
#define SECTORS 2048u /* of a file, at most */
#define MOST 96u      /* sectors changed at once */
#define THREADS 4u
#define FILES 3u /* of each thread: two changed in place, one replaced */

static const char *dir;
static int marks, dir_fd;
static uint64_t seed, steps;

#define CHECK(x)                                                                                     \
	do {                                                                                         \
		if (!(x)) {                                                                          \
			fprintf(stderr, "powercut-work: %s: %s\n", #x, strerror(errno));             \
			exit(1);                                                                     \
		}                                                                                    \
	} while (0)

struct file {
	unsigned number;
	char name[16];
	int fd, direct;
	uint64_t version, size; /* size in sectors */
	char *map;
	char *device; /* on a device; it acquires what it changes */
};

static uint64_t draw(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void sector_fill(void *at, const struct file *f, uint64_t sector)
{
	uint64_t pair[2] = { f->version, (uint64_t)f->number << 40 | sector };

	for (unsigned i = 0; i < SECTOR / sizeof(pair); i++)
		memcpy((char *)at + i * sizeof(pair), pair, sizeof(pair));
}

static void sectors_fill(char *at, const struct file *f, uint64_t first, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		sector_fill(at + (size_t)i * SECTOR, f, first + i);
}

static void mark(const char *format, const char *name, uint64_t a, uint64_t b, uint64_t c)
{
	char line[128];
	int n = snprintf(line, sizeof(line), format, name, a, b, c);

	CHECK(write(marks, line, (size_t)n) == n);
}

static void store(struct file *f, uint64_t *rng, char *buf)
{
	unsigned how = (unsigned)(draw(rng) % 4), n = 1 + (unsigned)(draw(rng) % MOST);
	uint64_t first = draw(rng) % SECTORS;

	/* By write(2) a file may grow; by O_DIRECT only whole pages can be written. */
	if (how == 1) {
		first = first / PER_PAGE * PER_PAGE;
		n = (n + PER_PAGE - 1) / PER_PAGE * PER_PAGE;
	}
	if (how >= 2 && f->size == 0)
		how = 0;
	if (how >= 2)
		first %= f->size;
	if (first + n > (how >= 2 ? f->size : SECTORS))
		n = (unsigned)((how >= 2 ? f->size : SECTORS) - first);
	f->version++;
	mark("I %s %lu %lu %lu\n", f->name, f->version, first, n);
	if (how < 2) {
		sectors_fill(buf, f, first, n);
		CHECK(pwrite(how == 1 ? f->direct : f->fd, buf, n * SECTOR, (off_t)(first * SECTOR)) == (ssize_t)n * SECTOR);
		f->size = first + n > f->size ? first + n : f->size;
	} else if (how == 2) {
		sectors_fill(f->map + first * SECTOR, f, first, n);
	} else {
		CHECK(gaia_acquire(f->device + first * SECTOR, n * SECTOR, PROT_READ | PROT_WRITE) == 0);
		sectors_fill(f->device + first * SECTOR, f, first, n);
		CHECK(gaia_release(f->device + first * SECTOR, n * SECTOR) == 0);
	}
}

static void cut_off(struct file *f, uint64_t *rng)
{
	uint64_t to = draw(rng) % SECTORS;

	if (to > f->size)
		return;
	f->version++;
	mark("T %s %lu %lu\n", f->name, f->version, to, 0);
	CHECK(ftruncate(f->fd, (off_t)(to * SECTOR)) == 0);
	f->size = to;
}

static void secure(struct file *f, uint64_t *rng)
{
	switch (draw(rng) % 4) {
	case 0:
		CHECK(fsync(f->fd) == 0);
		break;
	case 1:
		CHECK(fdatasync(f->direct) == 0);
		break;
	case 2:
		CHECK(msync(f->map, SECTORS * SECTOR, MS_SYNC) == 0);
		break;
	default:
		CHECK(gaia_sync(f->device, SECTORS * SECTOR) == 0);
	}
	mark("D %s %lu\n", f->name, f->version, 0, 0);
}

static void replace(struct file *f, char *buf)
{
	char beside[32];
	int fd;

	snprintf(beside, sizeof(beside), "%s.new", f->name);
	f->version++;
	mark("I %s %lu %lu %lu\n", f->name, f->version, 0, MOST);
	sectors_fill(buf, f, 0, MOST);
	fd = openat(dir_fd, beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	CHECK(write(fd, buf, MOST * SECTOR) == (ssize_t)MOST * SECTOR);
	CHECK(fsync(fd) == 0);
	CHECK(close(fd) == 0);
	CHECK(renameat(dir_fd, beside, dir_fd, f->name) == 0);
	CHECK(fsync(dir_fd) == 0);
	mark("D %s %lu\n", f->name, f->version, 0, 0);
}

static void file_open(struct file *f, unsigned number, bool in_place)
{
	*f = (struct file){ .number = number };
	snprintf(f->name, sizeof(f->name), "%c%u", in_place ? 'p' : 'r', number);
	if (!in_place)
		return;
	f->fd = openat(dir_fd, f->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(f->fd >= 0);
	f->direct = openat(dir_fd, f->name, O_RDWR | O_DIRECT | O_CLOEXEC);
	CHECK(f->direct >= 0);
	f->map = mmap(NULL, SECTORS * SECTOR, PROT_READ | PROT_WRITE, MAP_SHARED, f->fd, 0);
	CHECK(f->map != MAP_FAILED);
	f->device = gaia_mmap(SECTORS * SECTOR, PROT_READ | PROT_WRITE, f->fd, 0, 0);
	CHECK(f->device != MAP_FAILED);
}

static void *worker(void *arg)
{
	unsigned me = (unsigned)(uintptr_t)arg;
	uint64_t rng = seed * 0x9e3779b97f4a7c15ull + me + 1;
	struct file file[FILES];
	char *buf;

	CHECK((buf = aligned_alloc(4096, (MOST + PER_PAGE) * SECTOR)) != NULL);
	for (unsigned i = 0; i < FILES; i++)
		file_open(&file[i], me * FILES + i, i + 1 < FILES);
	for (uint64_t step = 0; step < steps; step++) {
		struct file *f = &file[draw(&rng) % FILES];
		unsigned what = (unsigned)(draw(&rng) % 16);

		if (!f->map)
			replace(f, buf);
		else if (what < 11)
			store(f, &rng, buf);
		else if (what < 12)
			cut_off(f, &rng);
		else
			secure(f, &rng);
	}
	free(buf);
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t thread[THREADS];

	if (argc != 5) {
		fprintf(stderr, "usage: powercut-work DIR MARKS SEED STEPS\n");
		return 2;
	}
	dir = argv[1];
	seed = strtoull(argv[3], NULL, 10);
	steps = strtoull(argv[4], NULL, 10);
	CHECK((dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0);
	CHECK((marks = open(argv[2], O_WRONLY | O_CLOEXEC)) >= 0);
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, worker, (void *)i) == 0);
	for (unsigned i = 0; i < THREADS; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	return 0;
}
