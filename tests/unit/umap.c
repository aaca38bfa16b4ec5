/* Regions of gaia/umap.h over files: what is read and stored, whatever leaves memory meanwhile. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "umap_rig.h"

TestSuite(umap, .timeout = 100);

/* ---- the byte oracle ---- */

#define PAGES 24
#define THREADS 4

struct writer {
	pthread_t thread;
	unsigned number;
	struct rig *rig;
	unsigned char *oracle;
	atomic_bool *stop;
	unsigned rounds;
	bool wrong;
};

/* Each thread has the bytes whose number is its own modulo THREADS: they share pages, and no bytes. */
static void *write_and_check(void *arg)
{
	struct writer *w = arg;
	unsigned seed = w->number + 1;

	for (unsigned i = 0; i < w->rounds && !w->wrong; i++) {
		size_t at = rand_r(&seed) % (w->rig->length / THREADS) * THREADS + w->number;

		if (w->rig->view[at] != w->oracle[at])
			w->wrong = true;
		if (rand_r(&seed) % 2)
			w->rig->view[at] = w->oracle[at] = rand_r(&seed);
	}
	return NULL;
}

static void *flush_again_and_again(void *arg)
{
	struct writer *w = arg;

	while (!atomic_load(w->stop))
		if (gaia_umap_flush(w->rig->view, w->rig->length, 0))
			w->wrong = true;
	return NULL;
}

static void run_oracle(struct rig *rig, unsigned rounds, bool flush, bool advise)
{
	struct writer w[THREADS + 1];
	unsigned char *oracle = malloc(rig->length);
	atomic_bool stop = false;
	unsigned seed = 5;

	rig_map(rig);
	memcpy(oracle, rig->content, rig->length);
	for (unsigned i = 0; i <= THREADS; i++)
		w[i] = (struct writer){ .number = i, .rig = rig, .oracle = oracle, .stop = &stop, .rounds = rounds };
	for (unsigned i = 0; i < THREADS; i++)
		cr_assert_eq(pthread_create(&w[i].thread, NULL, write_and_check, &w[i]), 0);
	if (flush)
		cr_assert_eq(pthread_create(&w[THREADS].thread, NULL, flush_again_and_again, &w[THREADS]), 0);
	for (unsigned i = 0; advise && i < rounds / 8; i++) {
		size_t at = rand_r(&seed) % rig->length;

		cr_assert_eq(gaia_umap_advise(rig->view + at, 1, rand_r(&seed) % 2 ? GAIA_UMAP_DONTNEED : GAIA_UMAP_COLD), 0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(w[i].thread, NULL);
	atomic_store(&stop, true);
	if (flush)
		pthread_join(w[THREADS].thread, NULL);
	for (unsigned i = 0; i <= THREADS; i++)
		cr_assert(!w[i].wrong, "thread %u read another byte than it had stored", i);
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	rig_check_file(rig, oracle);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	rig_check_file(rig, oracle);
	rig_end(rig);
	free(oracle);
}

Test(umap, four_threads_with_three_pages_of_memory_lose_no_byte)
{
	struct rig *rig = rig_create(PAGES * 4096);

	rig->config.budget = 3 * 4096;
	run_oracle(rig, 3000, false, false);
}

Test(umap, flushes_that_race_stores_and_evictions_lose_no_byte)
{
	struct rig *rig = rig_create(PAGES * 4096);

	rig->config.budget = 5 * 4096;
	run_oracle(rig, 3000, true, false);
}

Test(umap, advice_that_races_stores_loses_no_byte)
{
	struct rig *rig = rig_create(PAGES * 4096);

	rig->config.budget = 16 * 4096;
	run_oracle(rig, 3000, true, true);
}

Test(umap, large_pages_lose_no_byte)
{
	struct rig *rig = rig_create(PAGES * 65536 + 5000);

	rig->config.page_size = 65536;
	rig->config.budget = 3 * 65536;
	run_oracle(rig, 1500, true, false);
}

Test(umap, every_policy_loses_no_byte)
{
	const struct gaia_umap_policy *policies[] = { GAIA_UMAP_FIFO, GAIA_UMAP_LRU, GAIA_UMAP_S3FIFO };

	for (unsigned i = 0; i < 3; i++) {
		struct rig *rig = rig_create(PAGES * 4096);

		rig->config.policy = policies[i];
		rig->config.budget = 16 * 4096;
		run_oracle(rig, 2000, true, false);
	}
}

Test(umap, two_threads_that_fault_one_page_both_go_on)
{
	for (unsigned i = 0; i < 20; i++) {
		struct rig *rig = rig_create(4 * 4096);

		run_oracle(rig, 50, false, false);
	}
}

/* ---- what a region is ---- */

Test(umap, shows_what_the_file_has)
{
	struct rig *rig = rig_create(100 * 4096);

	rig->config.prot = PROT_READ;
	rig_map(rig);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	cr_assert_eq(rig_stats(rig).resident, 100);
	cr_assert_eq(rig_stats(rig).dirty, 0);
	rig_unmap(rig);
}

Test(umap, stores_are_known_and_written_once)
{
	struct rig *rig = rig_create(16 * 4096);
	volatile char sum = 0;

	rig_map(rig);
	for (unsigned i = 0; i < 16; i++)
		sum += rig->view[i * 4096];
	rig->view[3 * 4096] = 'x';
	rig->view[4 * 4096 + 7] = 'y';
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, GAIA_UMAP_SYNC), 0);
	cr_assert_eq(rig_stats(rig).written_bytes, 2 * 4096);
	cr_assert_eq(rig_stats(rig).writes, 1, "neighbours are one write");
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	cr_assert_eq(rig_stats(rig).writes, 1);
	rig->view[3 * 4096] = 'z';
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	cr_assert_eq(rig_stats(rig).writes, 2);
	rig_unmap(rig);
}

Test(umap, a_page_that_was_only_read_is_never_written)
{
	struct rig *rig = rig_create(64 * 4096);

	rig->config.budget = 4 * 4096;
	rig_map(rig);
	for (unsigned i = 0; i < 64 * 4; i++)
		cr_assert_eq(rig->view[i % 64 * 4096], rig->content[i % 64 * 4096]);
	cr_assert_eq(rig_stats(rig).writes, 0);
	cr_assert_gt(rig_stats(rig).evictions, 64);
	rig_unmap(rig);
}

Test(umap, memory_stays_within_the_budget)
{
	struct rig *rig = rig_create(256 * 4096);

	rig->config.budget = 32 * 4096;
	rig_map(rig);
	for (unsigned i = 0; i < 256; i++) {
		rig->view[i * 4096] = 1;
		cr_assert_leq(rig_stats(rig).resident, 32);
	}
	rig_unmap(rig);
}

Test(umap, bytes_past_the_end_of_the_file_read_zero_and_are_never_written)
{
	struct rig *rig = rig_create(65536 + 100);
	struct stat st;

	rig->config.page_size = 65536;
	rig->config.budget = 3 * 65536;
	rig_map(rig);
	for (unsigned i = 100; i < 4096; i++)
		cr_assert_eq(rig->view[65536 + i], 0);
	memset(rig->view + 65536, 'e', 4096);
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	fstat(rig->fd, &st);
	cr_assert_eq(st.st_size, 65536 + 100);
	memset(rig->content + 65536, 'e', 100);
	rig_check_file(rig, rig->content);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	fstat(rig->fd, &st);
	cr_assert_eq(st.st_size, 65536 + 100);
	rig_end(rig);
}

/* A test that expects a signal could not skip. */
Test(umap, nothing_exists_past_the_last_page)
{
	struct rig *rig = rig_create(100);
	pid_t pid;
	int status;

	NOT_FOR_TSAN;
	/* Where nothing else will be. */
	rig->config.addr = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	rig->config.addr = (void *)(((uintptr_t)rig->config.addr + 65535) & ~65535ul);
	rig->config.flags |= GAIA_UMAP_FIXED;
	signal(SIGSEGV, SIG_DFL);	/* sanitizers have handlers */
	rig->config.page_size = 65536;
	rig_map(rig);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	pid = fork();
	if (!pid) {
		alarm(60);
		rig_map(rig);
		(void)*(volatile char *)(rig->view + 4095);
		if (rig_stats(rig).faults == 1)
			(void)*(volatile char *)(rig->view + 4096);
		_exit(1);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	rig_end(rig);
}

Test(umap, a_truncated_file_does_not_grow)
{
	struct rig *rig = rig_create(16 * 4096);
	struct stat st;

	rig_map(rig);
	rig->view[2 * 4096] = 'a';
	rig->view[9 * 4096] = 'b';
	cr_assert_eq(ftruncate(rig->fd, 4 * 4096 + 10), 0);
	cr_assert_eq(rig->view[12 * 4096], 0);
	rig->view[12 * 4096] = 'c';
	rig->view[4 * 4096] = 'd';
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	fstat(rig->fd, &st);
	cr_assert_eq(st.st_size, 4 * 4096 + 10);
	rig->content[2 * 4096] = 'a';
	rig->content[4 * 4096] = 'd';
	rig->length = 4 * 4096 + 10;
	rig_check_file(rig, rig->content);
	cr_assert_eq(gaia_uunmap(rig->view, 16 * 4096), 0);
	rig_end(rig);
}

Test(umap, several_files_are_one_region_at_any_offset)
{
	struct rig *a = rig_create(10000), *b = rig_create(20000);
	struct gaia_umap_segment s[] = {
		{ .fd = a->fd, .offset = 11, .length = 5001 }, { .fd = b->fd, .offset = 4097 }, { .fd = a->fd, .length = 3 },
	};
	struct gaia_umap_config c = { .size = sizeof(c), .prot = PROT_READ | PROT_WRITE, .segments = s, .n_segments = 3, .page_size = 8192 };
	size_t second = 20000 - 4097, length = 5001 + second + 3;
	char *view;

	rig_map(a);	/* skips */
	cr_assert_eq(gaia_uunmap(a->view, a->length), 0);
	view = gaia_umap(&c);
	cr_assert_neq(view, MAP_FAILED);
	cr_assert_arr_eq(view, a->content + 11, 5001);
	cr_assert_arr_eq(view + 5001, b->content + 4097, second);
	cr_assert_arr_eq(view + 5001 + second, a->content, 3);
	memset(view + 4990, 'q', 30);
	memset(a->content + 11 + 4990, 'q', 11);
	memset(b->content + 4097, 'q', 19);
	cr_assert_eq(gaia_uunmap(view, length), 0);
	rig_check_file(a, a->content);
	rig_check_file(b, b->content);
	rig_end(a);
	rig_end(b);
}

Test(umap, a_descriptor_may_be_closed)
{
	struct rig *rig = rig_create(4096);
	int fd = dup(rig->fd);

	rig->segment.fd = fd;
	rig_map(rig);
	close(fd);
	cr_assert_eq(rig->view[5], rig->content[5]);
	rig_unmap(rig);
}

Test(umap, a_descriptor_that_appends_does_not)
{
	struct rig *rig = rig_create(3 * 4096);
	int fd = open(rig->path, O_RDWR | O_APPEND);

	rig->segment.fd = fd;
	rig_map(rig);
	close(fd);
	rig->view[4096] = 'a';
	rig->content[4096] = 'a';
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	cr_assert_eq(lseek(rig->fd, 0, SEEK_END), (off_t)rig->length);
	rig_check_file(rig, rig->content);
	rig_unmap(rig);
}

Test(umap, refuses_what_makes_no_sense)
{
	struct rig *rig = rig_create(8192);
	struct gaia_umap_config c = rig->config;
	int ro = open(rig->path, O_RDONLY), wo = open(rig->path, O_WRONLY), p[2];

	/* Where there is no paging that is what is refused. */
	rig_map(rig);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	cr_assert_eq(pipe(p), 0);
	c.page_size = 12288;
	cr_assert_eq(rig_errno(&c), EINVAL);
	c = rig->config, c.length = 8193;
	cr_assert_eq(rig_errno(&c), EINVAL);
	c = rig->config, c.budget = 8192;
	cr_assert_eq(rig_errno(&c), EINVAL);
	c = rig->config, c.n_segments = 0;
	cr_assert_eq(rig_errno(&c), EINVAL);
	c = rig->config, c.size--;
	cr_assert_eq(rig_errno(&c), EINVAL);
	rig->segment.fd = ro;
	cr_assert_eq(rig_errno(&rig->config), EACCES);
	rig->segment.fd = wo;
	cr_assert_eq(rig_errno(&rig->config), EACCES);
	rig->segment.fd = p[0];
	cr_assert_eq(rig_errno(&rig->config), ENODEV);
	rig->segment.fd = 999;
	cr_assert_eq(rig_errno(&rig->config), EBADF);
	cr_assert_eq(gaia_uunmap(rig, 4096), -1);
	cr_assert_eq(errno, EINVAL);
	rig->segment.fd = rig->fd;
	rig_map(rig);
	cr_assert_eq(gaia_umap_flush(rig->view, 8193, 0), -1);
	cr_assert_eq(gaia_uunmap(rig->view, 4096), -1);
	rig_unmap(rig);
}

/* ---- prefetch and advice ---- */

Test(umap, prefetched_pages_are_there)
{
	struct rig *rig = rig_create(64 * 4096);
	void *pages[] = { NULL, NULL, NULL, NULL, NULL };
	const unsigned numbers[] = { 40, 7, 8, 9, 40 };
	uint64_t faults;

	rig_map(rig);
	for (unsigned i = 0; i < 5; i++)
		pages[i] = rig->view + numbers[i] * 4096 + 100;
	cr_assert_eq(gaia_umap_prefetch(pages, 5, GAIA_UMAP_WAIT), 0);
	faults = rig_stats(rig).faults;
	for (unsigned i = 0; i < 5; i++)
		cr_assert_eq(*(unsigned char *)pages[i], rig->content[numbers[i] * 4096 + 100]);
	cr_assert_eq(rig_stats(rig).faults, faults);
	cr_assert_eq(rig_stats(rig).resident, 4);
	pages[1] = rig;
	cr_assert_eq(gaia_umap_prefetch(pages, 5, 0), -1);
	rig_unmap(rig);
}

Test(umap, willneed_brings_the_range)
{
	struct rig *rig = rig_create(64 * 4096);

	rig_map(rig);
	cr_assert_eq(gaia_umap_advise(rig->view + 4096, 20 * 4096, GAIA_UMAP_WILLNEED), 0);
	while (rig_stats(rig).resident < 20)
		usleep(1000);
	cr_assert_eq(rig_stats(rig).resident, 20);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	rig_unmap(rig);
}

Test(umap, dontneed_writes_and_drops)
{
	struct rig *rig = rig_create(8 * 4096);

	rig_map(rig);
	rig->view[4096] = rig->content[4096] = 's';
	(void)*(volatile char *)(rig->view + 3 * 4096);
	cr_assert_eq(gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_DONTNEED), 0);
	cr_assert_eq(rig_stats(rig).resident, 0);
	rig_check_file(rig, rig->content);
	cr_assert_eq(rig->view[4096], 's');
	rig_unmap(rig);
}

Test(umap, pinned_pages_stay)
{
	struct rig *rig = rig_create(64 * 4096);
	uint64_t reads;

	rig->config.budget = 8 * 4096;
	rig_map(rig);
	cr_assert_eq(gaia_umap_advise(rig->view, 5 * 4096, GAIA_UMAP_PIN), 0);
	cr_assert_eq(gaia_umap_advise(rig->view + 8 * 4096, 1, GAIA_UMAP_PIN), -1);
	cr_assert_eq(errno, ENOMEM);
	for (unsigned i = 0; i < 64; i++)
		cr_assert_eq(rig->view[i * 4096], rig->content[i * 4096]);
	cr_assert_eq(gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_DONTNEED), 0);
	/* The evictor may have chosen some of them before. */
	while (rig_stats(rig).resident > 5)
		usleep(1000);
	cr_assert_eq(rig_stats(rig).resident, 5);
	reads = rig_stats(rig).reads;
	cr_assert_arr_eq(rig->view, rig->content, 5 * 4096);
	cr_assert_eq(rig_stats(rig).reads, reads);
	cr_assert_eq(gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_UNPIN), 0);
	cr_assert_eq(gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_DONTNEED), 0);
	while (rig_stats(rig).resident > 0)
		usleep(1000);
	rig_unmap(rig);
}

Test(umap, sequential_faults_read_ahead_and_random_ones_do_not)
{
	struct rig *rig = rig_create(256 * 4096);

	rig->config.read_ahead = 7;
	rig_map(rig);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	/* Eight or more at a time, at once or in the background; what is touched while that is coming is a fault as well. */
	cr_assert_leq(rig_stats(rig).reads, 256 / 3);
	rig_unmap(rig);
	rig = rig_create(256 * 4096);
	rig->config.read_ahead = 7;
	rig_map(rig);
	cr_assert_eq(gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_RANDOM), 0);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	cr_assert_eq(rig_stats(rig).faults, 256);
	cr_assert_eq(rig_stats(rig).ahead, 0);
	rig_unmap(rig);
}

/* ---- past the page cache ---- */

/* How many pages of the file the page cache has. */
static size_t cached_pages(struct rig *rig)
{
	unsigned char *memory = mmap(NULL, rig->length, PROT_READ, MAP_SHARED, rig->fd, 0), there[1024];
	size_t n = 0, pages = (rig->length + 4095) / 4096;

	cr_assert_leq(pages, sizeof(there));
	cr_assert_neq(memory, MAP_FAILED);
	cr_assert_eq(mincore(memory, rig->length, there), 0);
	for (size_t i = 0; i < pages; i++)
		n += there[i] & 1;
	munmap(memory, rig->length);
	return n;
}

/* A file of which the page cache has nothing, and a descriptor with O_DIRECT for its region; or the test is skipped. */
static struct rig *create_direct(size_t length)
{
	struct rig *rig = rig_create(length);

	rig->segment.fd = open(rig->path, O_RDWR | O_DIRECT);
	if (rig->segment.fd < 0)
		cr_skip_test("%s: this file system has no O_DIRECT", rig->path);
	cr_assert_eq(fsync(rig->fd), 0);
	cr_assert_eq(posix_fadvise(rig->fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	if (cached_pages(rig))
		cr_skip_test("%s: this file system is in memory", rig->path);
	return rig;
}

static void end_direct(struct rig *rig)
{
	close(rig->segment.fd);
	rig_unmap(rig);
}

Test(umap, what_is_opened_with_o_direct_is_read_and_written_past_the_page_cache)
{
	struct rig *rig = create_direct(64 * 4096);

	rig->config.budget = 16 * 4096;
	rig_map(rig);
	for (size_t i = 0; i < rig->length; i += 4096) {
		cr_assert_eq(rig->view[i], rig->content[i]);
		rig->view[i + 7] = rig->content[i + 7] = 'x';
	}
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, GAIA_UMAP_SYNC), 0);
	cr_assert_eq(cached_pages(rig), 0);
	rig_check_file(rig, rig->content);
	end_direct(rig);
}

/* Of what ends within a page the last page is cached, or all of it. */
Test(umap, o_direct_is_for_whole_pages)
{
	struct rig *rig = create_direct(64 * 4096 + 100);
	struct gaia_umap_segment segments[2] = {
		{ .fd = rig->segment.fd, .offset = 8192, .length = 4096 + 1 }, { .fd = rig->segment.fd, .offset = 20493 },
	};
	unsigned char *two;

	rig->config.page_size = 65536;
	rig_map(rig);
	cr_assert_arr_eq(rig->view, rig->content, rig->length);
	cr_assert_eq(rig->view[rig->length], 0, "behind the end of the file");
	cr_assert_eq(cached_pages(rig), 0);
	rig->view[rig->length - 1] = rig->content[rig->length - 1] = 'x';
	rig->view[5] = rig->content[5] = 'y';
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	rig_check_file(rig, rig->content);
	cr_assert_eq(lseek(rig->fd, 0, SEEK_END), (off_t)rig->length, "it has grown");

	rig->config.segments = segments;
	rig->config.n_segments = 2;
	two = gaia_umap(&rig->config);
	cr_assert_neq(two, MAP_FAILED);
	cr_assert_arr_eq(two, rig->content + 8192, 4097);
	cr_assert_arr_eq(two + 4097, rig->content + 20493, rig->length - 20493);
	two[4096] = rig->content[3 * 4096] = 'a';
	two[4097] = rig->content[20493] = 'b';
	cr_assert_eq(gaia_uunmap(two, 4097 + rig->length - 20493), 0);
	rig_check_file(rig, rig->content);
	end_direct(rig);
}

/* ---- streams ---- */

#define STREAM_PAGES 256u
#define PAGE_OF_STREAM (64u << 10)
#define WINDOW (STREAM_PAGES / 16) /* the largest: MiB, or as many as all streams may have */

static struct rig *begin_stream(void)
{
	struct rig *rig = rig_create((size_t)STREAM_PAGES * PAGE_OF_STREAM);

	rig->config.page_size = PAGE_OF_STREAM;
	rig_map(rig);
	return rig;
}

static void touch(struct rig *rig, unsigned page)
{
	cr_assert_eq(rig->view[(size_t)page * PAGE_OF_STREAM], rig->content[(size_t)page * PAGE_OF_STREAM]);
}

/* Its last byte: as whoever goes backward does. */
static void touch_end(struct rig *rig, unsigned page)
{
	size_t at = (size_t)(page + 1) * PAGE_OF_STREAM - 1;

	cr_assert_eq(rig->view[at], rig->content[at]);
}

/* So many pages have come that nobody has touched; no more will, until somebody does. */
static void wait_for_ahead(struct rig *rig, uint64_t n)
{
	for (unsigned i = 0; i < 3000 && rig_stats(rig).ahead < n; i++)
		usleep(10000);
	cr_assert_eq(rig_stats(rig).ahead, n);
}

/* Pages [@first, @first + n * @step) come by themselves, and only the touch of the first is a fault, by which the next window comes. */
static void expect_window(struct rig *rig, unsigned first, unsigned n, int step)
{
	uint64_t faults = rig_stats(rig).faults, reads = rig_stats(rig).reads;

	for (unsigned k = 1; k < n; k++)
		touch(rig, first + (unsigned)step * k);
	cr_assert_eq(rig_stats(rig).faults, faults);
	cr_assert_eq(rig_stats(rig).reads, reads);
	(step > 0 ? touch : touch_end)(rig, first);
	cr_assert_eq(rig_stats(rig).faults, faults + 1);
}

/* Also of what is not mapped yet. */
static void expect_nothing_to_write(struct rig *rig)
{
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	cr_assert_eq(rig_stats(rig).written_bytes, 0);
}

Test(umap, a_stream_is_read_ahead_in_the_background)
{
	struct rig *rig = begin_stream();
	uint64_t ahead = 2;
	unsigned at = 4;

	/* Both read one page more, at once. */
	touch(rig, 0);
	touch(rig, 2);
	for (unsigned window = 1; window <= WINDOW; at += window, window *= 2) {
		ahead += window;
		wait_for_ahead(rig, ahead);
		expect_window(rig, at, window, 1);
	}
	wait_for_ahead(rig, ahead + WINDOW);
	expect_nothing_to_write(rig);
	rig_unmap(rig);
}

Test(umap, a_stream_that_goes_backward_is_read_ahead)
{
	struct rig *rig = begin_stream();
	unsigned at = STREAM_PAGES - 3;
	uint64_t ahead = 0;

	touch_end(rig, STREAM_PAGES - 1);
	touch_end(rig, STREAM_PAGES - 2);
	for (unsigned window = 1; window <= WINDOW; at -= window, window *= 2) {
		ahead += window;
		wait_for_ahead(rig, ahead);
		expect_window(rig, at, window, -1);
	}
	/* To its beginning, and no farther. */
	for (unsigned page = at + 1; page-- > 0;)
		touch_end(rig, page);
	expect_nothing_to_write(rig);
	rig_unmap(rig);
}

/* Two that go on by turns; and what is not in order is none. */
Test(umap, streams_are_told_apart)
{
	struct rig *rig = begin_stream();

	/* Forward both read one more, at once. */
	for (unsigned k = 0; k < 2; k++) {
		touch(rig, 2 * k);
		touch_end(rig, STREAM_PAGES - 1 - k);
	}
	wait_for_ahead(rig, 2 + 2);
	/* Together more than there are streams; but these two go on between. */
	for (unsigned k = 0; k < 5; k++)
		touch(rig, 100 + 7 * k);
	touch(rig, 4);
	touch_end(rig, STREAM_PAGES - 3);
	wait_for_ahead(rig, 4 + 2 + 2);
	for (unsigned k = 5; k < 10; k++)
		touch(rig, 100 + 7 * k);
	touch(rig, 5);
	touch_end(rig, STREAM_PAGES - 4);
	wait_for_ahead(rig, 8 + 4 + 4);
	rig_unmap(rig);
}

Test(umap, a_page_that_is_touched_before_it_leaves_is_a_hit)
{
	struct rig *rig = rig_create(64 * 4096);

	rig->config.budget = 32 * 4096;
	rig->config.policy = GAIA_UMAP_LRU;
	rig_map(rig);
	cr_assert_eq(gaia_umap_advise(rig->view, rig->length, GAIA_UMAP_RANDOM), 0);
	for (unsigned round = 0; !rig_stats(rig).hits; round++) {
		cr_assert_eq(rig->view[0], rig->content[0]);
		cr_assert_eq(rig->view[round % 64 * 4096], rig->content[round % 64 * 4096]);
	}
	rig_unmap(rig);
}
