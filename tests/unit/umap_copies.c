/* Regions of gaia/umap.h: what happens while a page is copied to their memory (UFFDIO_COPY), and where that fails. */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../../client/umap/internal.h"
#include "thread_sleeps.h"
#include "umap_rig.h"

TestSuite(umap_copies, .timeout = 100);

/* In the place of a copy; NULL: it is made. */
static int (*_Atomic on_copy)(int fd, struct uffdio_copy *copy);

static int make_copy(int fd, struct uffdio_copy *copy)
{
	return (int)syscall(SYS_ioctl, fd, UFFDIO_COPY, copy);
}

/* The library's, too. */
int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (request == UFFDIO_COPY && on_copy)
		return on_copy(fd, arg);
	return (int)syscall(SYS_ioctl, fd, request, arg);
}

/* ---- no memory ---- */

#define POPULATE_WRITE 23 /* MADV_ */
#define COPIED 8192	  /* where a copy stops */
#define STORED 4097	  /* what the program stores to before that */

static int fail(int fd, struct uffdio_copy *copy)
{
	errno = ENOMEM;
	return -1;
}

static int stop(int fd, struct uffdio_copy *copy)
{
	on_copy = fail;
	copy->len = COPIED;
	if (!make_copy(fd, copy))
		((volatile char *)(uintptr_t)copy->dst)[STORED] = 'x';
	errno = EAGAIN;
	return -1;
}

/* For good. */
static bool filter_calls(struct sock_filter *filter, unsigned short n)
{
	struct sock_fprog program = { n, filter };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* The other way to make memory. */
static bool forbid_memory(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, POPULATE_WRITE, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	return filter_calls(filter, sizeof(filter) / sizeof(filter[0]));
}

/* Since memory cannot be allowed again. Where there is no paging the test is skipped before. */
static void expect_in_child(bool (*run)(struct rig *rig))
{
	struct rig *rig = rig_create(4 * 65536);

	rig->config.page_size = 65536;
	rig_map(rig);
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	cr_assert(rig_in_child(run, rig));
	rig_end(rig);
}

static bool lacks_memory(struct rig *rig)
{
	void *page;

	if (!forbid_memory())
		return false;
	rig_map(rig);
	on_copy = fail;
	page = rig->view + 65536;
	return rig_bus(rig->view) && gaia_umap_prefetch(&page, 1, GAIA_UMAP_WAIT) == -1 && errno == ENOMEM &&
	       !gaia_uunmap(rig->view, rig->length);
}

Test(umap_copies, a_page_that_there_is_no_memory_for_is_sigbus_for_who_touches_it)
{
	NOT_FOR_TSAN;
	expect_in_child(lacks_memory);
}

static bool lacks_the_rest(struct rig *rig)
{
	char stored = 0;

	if (!forbid_memory())
		return false;
	rig_map(rig);
	on_copy = stop;
	if (!rig_bus(rig->view + 65536 + 32768) || pread(rig->fd, &stored, 1, 65536 + STORED) != 1 || stored != 'x')
		return false;
	/* Nothing else was written, and with memory it all comes. */
	rig->content[65536 + STORED] = 'x';
	on_copy = NULL;
	return rig_stats(rig).written_bytes == 4096 && !memcmp(rig->view, rig->content, 65536 + 32768) && !gaia_uunmap(rig->view, rig->length);
}

Test(umap_copies, what_is_stored_to_a_page_whose_rest_there_is_no_memory_for_is_written)
{
	NOT_FOR_TSAN;
	expect_in_child(lacks_the_rest);
}

/* ---- no block to read to ---- */

#define BLOCKS 80

static char *_Atomic to_give;
static atomic_bool was_waited;

/* The library's, too: where it tries again. */
int sched_yield(void)
{
	char *block = atomic_exchange(&to_give, NULL);

	if (block) {
		was_waited = true;
		umap_give_block(block);
	}
	return (int)syscall(SYS_sched_yield);
}

/* More of them than there are from the beginning. */
static bool forbid_blocks(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MAX_BLOCK, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PROT_NONE, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	return filter_calls(filter, sizeof(filter) / sizeof(filter[0]));
}

static bool has_no_block(struct rig *rig)
{
	char *blocks[BLOCKS + 1];
	unsigned n = 0;

	rig_map(rig);
	/* Threads have the filters of who makes them. */
	if (rig_bus(rig->view) || gaia_uunmap(rig->view, rig->length) || !forbid_blocks())
		return false;
	rig_map(rig);
	while (n <= BLOCKS && (blocks[n] = umap_take_block(4096)))
		n++;
	if (n != BLOCKS)
		return false;
	to_give = blocks[--n];
	if (rig_bus(rig->view + 65536) || !was_waited || rig->view[65536] != rig->content[65536])
		return false;
	while (n > 0)
		umap_give_block(blocks[--n]);
	return !memcmp(rig->view, rig->content, rig->length) && !gaia_uunmap(rig->view, rig->length);
}

Test(umap_copies, a_fault_waits_for_a_block_where_there_can_be_no_more)
{
	NOT_FOR_TSAN;
	expect_in_child(has_no_block);
}

static struct {
	char *page;
	pthread_t thread;
	atomic_int tid;
} unmapper;

static void *unmap(void *arg)
{
	unmapper.tid = gettid();
	munmap(unmapper.page, 4096);
	return NULL;
}

/* The program has unmapped it, but nobody knows yet. */
static int stop_and_unmap(int fd, struct uffdio_copy *copy)
{
	int result = stop(fd, copy), err = errno;

	unmapper.page = (char *)(uintptr_t)copy->dst + 4096;
	pthread_create(&unmapper.thread, NULL, unmap, NULL);
	while (!unmapper.tid || thread_state(unmapper.tid) == 'R')
		usleep(1000);
	errno = err;
	return result;
}

/* With the page that was stored to. */
static bool lacks_what_is_unmapped(struct rig *rig)
{
	char stored = 0;

	if (!forbid_memory())
		return false;
	rig_map(rig);
	on_copy = stop_and_unmap;
	return rig_bus(rig->view + 65536 + 32768) && !pthread_join(unmapper.thread, NULL) &&
	       pread(rig->fd, &stored, 1, 65536 + STORED) == 1 && stored == 'x' && !gaia_uunmap(rig->view, rig->length);
}

Test(umap_copies, what_is_stored_to_a_page_that_is_unmapped_before_memory_ends_is_written)
{
	NOT_FOR_TSAN;
	expect_in_child(lacks_what_is_unmapped);
}

/* ---- at the same time ---- */

static struct {
	pid_t main;
	atomic_bool begun; /* a copy, or to read events */
	atomic_bool going; /* the main thread does what is to happen meanwhile */
	atomic_bool done;  /* and has done it */
} meanwhile;

/* Until the main thread has done it, or waits: for a lock, or for its event to be read. */
static void wait_for_main(void)
{
	meanwhile.begun = true;
	while (!meanwhile.going || (!meanwhile.done && thread_state(meanwhile.main) == 'R'))
		usleep(1000);
}

static void *bring(void *page)
{
	return (void *)(intptr_t)gaia_umap_prefetch(&page, 1, GAIA_UMAP_WAIT);
}

/* The other thread is where it waits for the main one. */
static void go_on_when_begun(void)
{
	while (!meanwhile.begun)
		usleep(1000);
	meanwhile.going = true;
}

/* On return a copy of the page has begun. */
static void begin_to_bring(pthread_t *thread, unsigned char *page, int (*how)(int fd, struct uffdio_copy *copy))
{
	meanwhile.main = gettid();
	on_copy = how;
	cr_assert_eq(pthread_create(thread, NULL, bring, page), 0);
	go_on_when_begun();
}

static int copy_and_store(int fd, struct uffdio_copy *copy)
{
	int result = make_copy(fd, copy);

	((volatile char *)(uintptr_t)copy->dst)[STORED % 4096] = 'x';
	wait_for_main();
	return result;
}

Test(umap_copies, a_flush_writes_what_is_stored_to_a_page_that_is_being_copied)
{
	struct rig *rig = rig_create(4 * 4096);
	pthread_t thread;

	rig_map(rig);
	begin_to_bring(&thread, rig->view + 4096, copy_and_store);
	cr_assert_eq(gaia_umap_flush(rig->view, rig->length, 0), 0);
	meanwhile.done = true;
	rig->content[STORED] = 'x';
	rig_check_file(rig, rig->content);
	pthread_join(thread, NULL);
	rig_unmap(rig);
}

static int copy_late(int fd, struct uffdio_copy *copy)
{
	on_copy = NULL;
	wait_for_main();
	return make_copy(fd, copy);
}

/* It is no region's any more, as after munmap(2); but no other thread's memory can come to be there. */
static void give_up(void *page)
{
	cr_assert_eq(mmap(page, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), page);
}

/* Another userfaultfd's, too: the kernel does not tell them apart. */
Test(umap_copies, a_copy_does_not_go_to_a_region_that_is_moved_to_where_its_own_was)
{
	struct rig *rig = rig_create(4 * 4096), *other = rig_create(4096);
	pthread_t thread;
	void *moved;

	rig_map(rig);
	other->config.flags |= GAIA_UMAP_BY_SIGNAL;
	rig_map(other);
	begin_to_bring(&thread, rig->view + 4096, copy_late);
	give_up(rig->view + 4096);
	moved = mremap(other->view, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, rig->view + 4096);
	cr_assert_eq(moved, rig->view + 4096);
	meanwhile.done = true;
	pthread_join(thread, NULL);
	other->view = moved;
	other->view[1] = other->content[1] = (unsigned char)~other->content[1];
	cr_assert_arr_eq(other->view, other->content, 4096);
	cr_assert_eq(gaia_umap_flush(other->view, 4096, 0), 0);
	rig_check_file(other, other->content);
	rig_unmap(other);
	rig_unmap(rig);
}

Test(umap_copies, a_copy_does_not_go_to_a_region_that_comes_in_the_place_of_its_own)
{
	struct rig *rig = rig_create(4 * 4096), *other = rig_create(4096);
	pthread_t thread;

	rig_map(rig);
	begin_to_bring(&thread, rig->view + 4096, copy_late);
	give_up(rig->view + 4096);
	other->content[0] = (unsigned char)~rig->content[4096];
	cr_assert_eq(pwrite(other->fd, other->content, 1, 0), 1);
	other->config.flags |= GAIA_UMAP_FIXED;
	other->config.addr = rig->view + 4096;
	rig_map(other);
	meanwhile.done = true;
	pthread_join(thread, NULL);
	cr_assert_arr_eq(other->view, other->content, 4096);
	rig_unmap(other);
	rig_unmap(rig);
}

/* ---- who waits for whom ---- */

static unsigned char *volatile to_touch;
static volatile unsigned char touched;

static void touch(int sig)
{
	(void)sig;
	touched = *to_touch;
}

static int copy_and_signal(int fd, struct uffdio_copy *copy)
{
	on_copy = NULL;
	raise(SIGUSR1);
	return make_copy(fd, copy);
}

/* It comes during the call, which has locks that a fault needs. */
Test(umap_copies, a_signal_whose_handler_touches_a_region_comes_after_the_call)
{
	struct rig *rig = rig_create(4 * 4096), *other = rig_create(4096);
	void *page;

	rig_map(rig);
	rig_map(other);
	other->content[0] |= 1;
	cr_assert_eq(pwrite(other->fd, other->content, 1, 0), 1);
	to_touch = other->view;
	signal(SIGUSR1, touch);
	on_copy = copy_and_signal;
	page = rig->view + 4096;
	cr_assert_eq(gaia_umap_prefetch(&page, 1, GAIA_UMAP_WAIT), 0);
	cr_assert_eq(touched, other->content[0]);
	rig_unmap(other);
	rig_unmap(rig);
}

/* Reads events until the main thread waits for that. */
static void *read_events(void *arg)
{
	(void)arg;
	pthread_rwlock_wrlock(&umap.views_lock);
	meanwhile.begun = true;
	wait_for_main();
	pthread_rwlock_unlock(&umap.views_lock);
	return NULL;
}

/* Else it would be written again, over what others have written to the file since. */
Test(umap_copies, what_is_written_while_events_are_read_is_clean_afterwards)
{
	struct rig *rig = rig_create(4 * 4096);
	struct umap_region *r;
	pthread_t thread;

	rig_map(rig);
	rig->view[0] = rig->content[0] = (unsigned char)~rig->content[0];
	r = umap_region_get(rig->view, NULL);
	cr_assert(r);
	pthread_mutex_lock(&r->lock);
	while (umap_rescan(r, 0, 4096, true))
		;
	cr_assert(r->frames[frame_of(r, 0)].flags & FRAME_DIRTY);
	meanwhile.main = gettid();
	cr_assert_eq(pthread_create(&thread, NULL, read_events, NULL), 0);
	go_on_when_begun();
	cr_assert_eq(umap_write_run(r, 0), 1);
	cr_assert_not(r->frames[frame_of(r, 0)].flags & FRAME_DIRTY);
	pthread_mutex_unlock(&r->lock);
	meanwhile.done = true;
	pthread_join(thread, NULL);
	umap_region_put(r);
	rig_check_file(rig, rig->content);
	rig_unmap(rig);
}
