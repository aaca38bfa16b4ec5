/*
 * compat_c.c - a program as it would be written for LLNL's UMap, in C: all functions of umap/umap.h, and that the data is right
 * with a buffer that is smaller than the file.
 *
 *	compat_c DIRECTORY		makes a file in it
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <umap/umap.h>

#define CHECK(condition)                                                                                                                   \
	do {                                                                                                                               \
		if (!(condition)) {                                                                                                        \
			fprintf(stderr, "compat_c.c:%d: %s (errno: %s)\n", __LINE__, #condition, strerror(errno));                         \
			exit(1);                                                                                                           \
		}                                                                                                                          \
	} while (0)

#define PAGES 50

static uint64_t page_size;
static size_t words; /* of the region */
static int fd;

static void settings_are_as_in_the_environment(void)
{
	CHECK(umapcfg_get_system_page_size() == sysconf(_SC_PAGESIZE));
	CHECK(page_size == strtoull(getenv("UMAP_PAGESIZE"), NULL, 10));
	CHECK(umapcfg_get_max_pages_in_buffer() == strtoull(getenv("UMAP_BUFSIZE"), NULL, 10));
	CHECK(umapcfg_get_num_fillers() > 0 && umapcfg_get_num_evictors() > 0 && umapcfg_get_max_fault_events() > 0);
	CHECK(umapcfg_get_evict_low_water_threshold() == 70 && umapcfg_get_evict_high_water_threshold() == 90);
	CHECK(umapcfg_get_read_ahead() == 0);
	CHECK(umap_has_write_support());
}

static void settings_can_be_changed_and_nonsense_is_ignored(void)
{
	umapcfg_set_read_ahead(2);
	umapcfg_set_evict_low_water_threshold(50);
	umapcfg_set_evict_high_water_threshold(40);
	umapcfg_set_umap_page_size(1000);
	CHECK(umapcfg_get_read_ahead() == 2);
	CHECK(umapcfg_get_evict_low_water_threshold() == 50 && umapcfg_get_evict_high_water_threshold() == 90);
	CHECK(umapcfg_get_umap_page_size() == page_size);
	umapcfg_set_num_fillers(3);
	CHECK(umapcfg_get_num_fillers() == 3);
}

static uint64_t word_in_file(size_t i)
{
	uint64_t word;

	CHECK(pread(fd, &word, sizeof(word), (off_t)(i * sizeof(word))) == sizeof(word));
	return word;
}

/* Three rounds over more pages than the buffer has. */
static void stored_words_are_kept(uint64_t *array)
{
	for (uint64_t round = 1; round <= 3; round++) {
		for (size_t i = 0; i < words; i++)
			array[i] = array[i] + i * round;
	}
	for (size_t i = 0; i < words; i++)
		CHECK(array[i] == i * 6);
}

static void flush_writes_all_regions(uint64_t *array)
{
	uint64_t *second = umap(NULL, page_size, PROT_READ | PROT_WRITE, UMAP_PRIVATE, fd, (off_t)(PAGES * page_size));

	CHECK(second != UMAP_FAILED);
	array[5] = 12345;
	second[7] = 54321;
	CHECK(!umap_flush());
	CHECK(word_in_file(5) == 12345 && word_in_file(words + 7) == 54321);
	for (size_t i = 100; i < words; i += 1000)
		CHECK(word_in_file(i) == i * 6);
	CHECK(!uunmap(second, page_size));
	array[5] = 5 * 6;
}

static void prefetched_pages_are_right(uint64_t *array)
{
	struct umap_prefetch_item items[PAGES + 1];
	int outside;

	for (int i = 0; i < PAGES; i++)
		items[i].page_base_addr = (char *)array + (uint64_t)(PAGES - 1 - i) * page_size;
	items[PAGES].page_base_addr = &outside; /* is passed over */
	umap_prefetch(PAGES + 1, items);
	umap_prefetch(0, NULL);
	umap_fetch_and_pin((char *)array, 1);
	for (size_t i = 0; i < words; i += 7)
		CHECK(array[i] == i * 6);
}

static void errors_are_told(uint64_t *array)
{
	errno = 0;
	CHECK(uunmap(array + 1, page_size) == -1 && errno == EINVAL);
	errno = 0;
	CHECK(umap(NULL, page_size, PROT_READ, UMAP_PRIVATE, -1, 0) == UMAP_FAILED && errno == EBADF);
	errno = 0;
	CHECK(umap(NULL, 0, PROT_READ, UMAP_PRIVATE, fd, 0) == UMAP_FAILED && errno == EINVAL);
	errno = 0;
	CHECK(umap(NULL, page_size, PROT_READ, UMAP_PRIVATE | MAP_ANONYMOUS, fd, 0) == UMAP_FAILED && errno == EINVAL);
}

/* What the parent has is unknown to a child; it can have regions of its own. */
static void children_have_none(uint64_t *array)
{
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		uint64_t *own;

		CHECK(!umap_flush());
		CHECK(uunmap(array, page_size) == -1 && errno == EINVAL);
		own = umap(NULL, page_size, PROT_READ, UMAP_PRIVATE, fd, 0);
		CHECK(own != UMAP_FAILED && own[10] == 60);
		CHECK(!uunmap(own, page_size));
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(array[10] == 60);
}

/* At an address that is the program's choice; and an offset counts. */
static void regions_can_be_placed(void)
{
	char *place = mmap(NULL, 8 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t *at = (uint64_t *)(((uintptr_t)place + (4 << 20) - 1) & ~(uintptr_t)((4 << 20) - 1));
	uint64_t *region;

	CHECK(place != MAP_FAILED);
	region = umap(at, page_size, PROT_READ, UMAP_PRIVATE | UMAP_FIXED, fd, (off_t)page_size);
	CHECK(region == at);
	CHECK(region[1] == (page_size / 8 + 1) * 6);
	CHECK(!uunmap(region, page_size));
	munmap(place, 8 << 20);
}

int main(int argc, char **argv)
{
	char path[4096];
	uint64_t *array;

	CHECK(argc == 2 && snprintf(path, sizeof(path), "%s/file", argv[1]) < (int)sizeof(path));
	page_size = umapcfg_get_umap_page_size();
	words = PAGES * page_size / sizeof(uint64_t);
	settings_are_as_in_the_environment();

	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0 && !ftruncate(fd, (off_t)((PAGES + 1) * page_size)));
	array = umap(NULL, PAGES * page_size, PROT_READ | PROT_WRITE, UMAP_PRIVATE, fd, 0);
	CHECK(array != UMAP_FAILED);
	stored_words_are_kept(array);
	flush_writes_all_regions(array);
	prefetched_pages_are_right(array);
	errors_are_told(array);
#ifndef __SANITIZE_ADDRESS__ /* its allocator is not locked for a fork() beside threads that start: the child may wait for ever (GCC 12, seen) */
	children_have_none(array);
#else
	(void)children_have_none;
#endif
	array[words - 1] = 99;
	CHECK(!uunmap(array, PAGES * page_size));
	CHECK(word_in_file(words - 1) == 99);
	CHECK(uunmap(array, PAGES * page_size) == -1 && errno == EINVAL);
	regions_can_be_placed();
	settings_can_be_changed_and_nonsense_is_ignored();
	close(fd);
	printf("all is well\n");
	return 0;
}
