/*
 * page_requests.c - requests of 4 KiB with O_DIRECT, at random or in order, for scripts/bench tiers and watch.
 *
 *	page_requests FILE PAGES COUNT zipf|uniform|scan SEED [UPDATES]
 *
 * Reads COUNT times one of the first PAGES pages; of these requests UPDATES percent are writes, of bytes that no other page has. Zipf's law has the exponent 0.9, and ranks are scattered over the file, the same
 * way for each seed. Prints the nanoseconds that the reads took.
 */
#include <err.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u

static uint64_t state;

static uint64_t next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void *allocate(size_t n, size_t size)
{
	void *p = calloc(n, size);

	if (!p)
		err(1, "no memory");
	return p;
}

static uint32_t *scattered(uint32_t pages)
{
	uint32_t *page = allocate(pages, sizeof(*page));

	state = 88172645463325252u;
	for (uint32_t i = 0; i < pages; i++)
		page[i] = i;
	for (uint32_t i = pages - 1; i > 0; i--) {
		uint32_t j = (uint32_t)(next_random() % (i + 1)), was = page[i];

		page[i] = page[j];
		page[j] = was;
	}
	return page;
}

/* The rank at which the sums reach @at. */
static uint32_t rank_of(const double *sum, uint32_t pages, double at)
{
	uint32_t low = 0, high = pages;

	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;

		if (sum[mid] <= at)
			low = mid;
		else
			high = mid;
	}
	return low;
}

/* Which pages are read, one after the other. */
static uint32_t *order(uint32_t pages, uint64_t count, const char *how, uint64_t seed)
{
	uint32_t *at = allocate(count, sizeof(*at)), *page = scattered(pages);
	double *sum = allocate((size_t)pages + 1, sizeof(*sum));

	for (uint32_t i = 0; i < pages; i++)
		sum[i + 1] = sum[i] + pow(i + 1, -0.9);
	state = seed * 0x9e3779b97f4a7c15 + 1;
	for (uint64_t k = 0; k < count; k++) {
		uint64_t r = next_random();

		if (!strcmp(how, "zipf"))
			at[k] = page[rank_of(sum, pages, (double)(r >> 11) / 9007199254740992.0 * sum[pages])];
		else
			at[k] = (uint32_t)(!strcmp(how, "scan") ? k % pages : r % pages);
	}
	free(sum);
	free(page);
	return at;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static ssize_t update(int fd, uint64_t *buf, uint32_t page)
{
	for (unsigned k = 0; k < PAGE / sizeof(*buf); k++)
		buf[k] = next_random();
	return pwrite(fd, buf, PAGE, (off_t)page * PAGE);
}

int main(int argc, char **argv)
{
	uint32_t pages, *at;
	uint64_t count, start;
	unsigned updates;
	void *buf;
	int fd;

	if (argc != 6 && argc != 7)
		errx(2, "usage: page_requests FILE PAGES COUNT zipf|uniform|scan SEED [UPDATES]");
	pages = (uint32_t)strtoul(argv[2], NULL, 10);
	count = strtoull(argv[3], NULL, 10);
	if (!pages || !count)
		errx(2, "no pages, or no reads");
	at = order(pages, count, argv[4], strtoull(argv[5], NULL, 10));
	updates = argc == 7 ? (unsigned)strtoul(argv[6], NULL, 10) : 0;
	fd = open(argv[1], (updates ? O_RDWR : O_RDONLY) | O_DIRECT);
	buf = aligned_alloc(PAGE, PAGE);
	if (fd < 0 || !buf)
		err(1, "%s", argv[1]);
	start = now_ns();
	for (uint64_t k = 0; k < count; k++)
		if ((next_random() % 100 < updates ? update(fd, buf, at[k]) : pread(fd, buf, PAGE, (off_t)at[k] * PAGE)) != PAGE)
			err(1, "%s: page %u", argv[1], at[k]);
	printf("%" PRIu64 "\n", now_ns() - start);
	close(fd);
	free(buf);
	free(at);
	return 0;
}
