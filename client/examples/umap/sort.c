/*
 * sort.c - sort a file of 64-bit numbers in place that need not fit in memory: quicksort over the file as memory. Then read the
 * file and check that it is sorted and has the same numbers as before.
 *
 *	cc -O2 -pthread sort.c -o sort $(pkg-config --cflags --libs gaiaclient)
 *	./sort --make 1G --budget 256M --page-size 1M numbers
 */
#include "memory.h"

#include <pthread.h>

#define FEW 24 /* so many are sorted by insertion */

struct part {
	uint64_t *keys;
	size_t n;
	unsigned threads;
};

static void sort_few(uint64_t *keys, size_t n)
{
	for (size_t i = 1; i < n; i++) {
		uint64_t key = keys[i];
		size_t at = i;

		for (; at && keys[at - 1] > key; at--)
			keys[at] = keys[at - 1];
		keys[at] = key;
	}
}

static uint64_t median(uint64_t a, uint64_t b, uint64_t c)
{
	if (a > b)
		return a < c ? a : b > c ? b : c;
	return b < c ? b : a > c ? a : c;
}

/* How many go left: none of them is larger than any of the others. At least one on each side. */
static size_t split(uint64_t *keys, size_t n)
{
	uint64_t pivot = median(keys[0], keys[n / 2], keys[n - 1]);
	size_t left = 0, right = n - 1;

	for (;;) {
		uint64_t swapped;

		while (keys[left] < pivot)
			left++;
		while (keys[right] > pivot)
			right--;
		if (left >= right)
			return left ? left : 1;
		swapped = keys[left];
		keys[left++] = keys[right];
		keys[right--] = swapped;
	}
}

static void *sort_part(void *arg);

static void sort_keys(uint64_t *keys, size_t n, unsigned threads)
{
	while (n > FEW) {
		size_t left = split(keys, n);

		if (threads > 1) {
			struct part part = {keys, left, threads / 2};
			pthread_t thread;

			if ((errno = pthread_create(&thread, NULL, sort_part, &part)))
				err(1, "pthread_create");
			sort_keys(keys + left, n - left, threads - threads / 2);
			pthread_join(thread, NULL);
			return;
		}
		/* The smaller part by a call, so that the stack stays short. */
		if (left <= n - left) {
			sort_keys(keys, left, 1);
			keys += left;
			n -= left;
		} else {
			sort_keys(keys + left, n - left, 1);
			n = left;
		}
	}
	sort_few(keys, n);
}

static void *sort_part(void *arg)
{
	struct part *part = arg;

	sort_keys(part->keys, part->n, part->threads);
	return NULL;
}

/* ---- the file ---- */

#define BLOCK ((size_t)128 << 10)

static void make_file(const char *path, uint64_t bytes)
{
	static uint64_t block[BLOCK];
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666);
	uint64_t number = 0;

	if (fd < 0)
		err(1, "%s", path);
	for (uint64_t left = bytes / 8; left;) {
		size_t n = left < BLOCK ? left : BLOCK;

		for (size_t i = 0; i < n; i++)
			block[i] = mix(number++);
		if (write(fd, block, n * 8) != (ssize_t)(n * 8))
			err(1, "%s: write", path);
		left -= n;
	}
	if (close(fd))
		err(1, "%s", path);
}

/* A sum that does not depend on their order; and whether they are in order. */
static uint64_t sum_of(int fd, const char *path, uint64_t n, bool *sorted)
{
	static uint64_t block[BLOCK];
	uint64_t sum = 0, last = 0;

	*sorted = true;
	for (uint64_t done = 0; done < n;) {
		size_t want = n - done < BLOCK ? n - done : BLOCK;

		if (pread(fd, block, want * 8, (off_t)(done * 8)) != (ssize_t)(want * 8))
			errx(1, "%s: cannot be read", path);
		for (size_t i = 0; i < want; i++) {
			*sorted &= block[i] >= last;
			last = block[i];
			sum += mix(last);
		}
		done += want;
	}
	return sum;
}

int main(int argc, char **argv)
{
	struct options options = parse_options(argc, argv,
					       "usage: sort [OPTIONS] FILE\n"
					       "Sorts the 64-bit numbers in FILE, as the machine stores them.\n" OPTIONS_TEXT
					       "  --make BYTES       make FILE first, of random numbers\n");
	uint64_t *keys, n, sum;
	struct stat stat;
	double start;
	bool sorted;
	int fd;

	if (options.make)
		make_file(options.path, options.make);
	fd = open(options.path, O_RDWR);
	if (fd < 0 || fstat(fd, &stat))
		err(1, "%s", options.path);
	n = (uint64_t)stat.st_size / 8;
	if (!n)
		errx(1, "%s: has no numbers", options.path);
	sum = sum_of(fd, options.path, n, &sorted);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* whose reading that was should not matter */

	start = seconds_now();
	keys = map_memory(&options, fd, n * 8, PROT_READ | PROT_WRITE);
	sort_keys(keys, n, options.threads);
	unmap_memory(&options, keys, n * 8);
	printf("sort: %" PRIu64 " numbers, %s\nseconds %.3f\n", n, how(&options), seconds_now() - start);

	if (sum_of(fd, options.path, n, &sorted) != sum)
		errx(1, "%s: numbers were lost", options.path);
	if (!sorted)
		errx(1, "%s: is not sorted", options.path);
	printf("verified\n");
	close(fd);
	return 0;
}
