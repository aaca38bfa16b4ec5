/* Regions of gaia/umap.h over stores of the application, and what happens when these fail. */
#include <criterion/criterion.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "thread_sleeps.h"
#include "umap_rig.h"

TestSuite(umap_stores, .timeout = 100);

#define PAGES 32

/* A store in memory that can be told to fail. */
struct memory {
	unsigned char bytes[PAGES * 4096];
	uint64_t length;
	atomic_int read_error, write_error, sync_error;
	atomic_uint_least64_t bad_from;	/* what reaches beyond it cannot be read; 0: all can */
	atomic_uint reads, writes, syncs;
	unsigned char *_Atomic view;	/* read() touches this, if it is not NULL */
	atomic_bool hold;	/* read() waits until it is not set, for what lies behind this: */
	uint64_t hold_from;
	atomic_int call;	/* the errno of a call that read() has made */
};

static int memory_read(void *arg, void *buf, size_t n, uint64_t offset)
{
	struct memory *m = arg;

	atomic_fetch_add(&m->reads, 1);
	cr_assert_leq(offset + n, m->length);
	while (atomic_load(&m->hold) && offset >= m->hold_from)
		usleep(1000);
	if (m->view) {
		m->call = gaia_umap_flush(m->view, 1, 0) ? errno : 0;
		(void)*(volatile unsigned char *)(m->view + 5 * 4096);
	}
	if (m->read_error)
		return -m->read_error;
	if (m->bad_from && offset + n > m->bad_from)
		return -EIO;
	memcpy(buf, m->bytes + offset, n);
	return 0;
}

static int memory_write(void *arg, const void *buf, size_t n, uint64_t offset)
{
	struct memory *m = arg;

	atomic_fetch_add(&m->writes, 1);
	cr_assert_leq(offset + n, m->length);
	if (m->write_error)
		return -m->write_error;
	memcpy(m->bytes + offset, buf, n);
	return 0;
}

static int memory_sync(void *arg)
{
	struct memory *m = arg;

	atomic_fetch_add(&m->syncs, 1);
	return -m->sync_error;
}

static int memory_length(void *arg, uint64_t *length)
{
	*length = ((struct memory *)arg)->length;
	return 0;
}

static struct memory memory;
static struct gaia_umap_store store = {
	.size = sizeof(store), .arg = &memory, .read = memory_read, .write = memory_write, .sync = memory_sync, .length = memory_length,
};
static struct rig rig;
static uint64_t page_size = 4096;
static uint32_t read_ahead;

static void map_memory(uint64_t length, uint64_t budget)
{
	memory.length = length;
	for (unsigned i = 0; i < sizeof(memory.bytes); i++)
		memory.bytes[i] = i / 4096 + 1;
	rig.segment = (struct gaia_umap_segment){ .store = &store };
	rig.config = (struct gaia_umap_config){
		.size = sizeof(rig.config), .prot = PROT_READ | PROT_WRITE, .flags = GAIA_UMAP_NEED_PAGING, .segments = &rig.segment,
		.n_segments = 1, .budget = budget, .page_size = page_size, .read_ahead = read_ahead,
	};
	rig.length = length;
	rig_map(&rig);
	cr_assert_eq(gaia_umap_advise(rig.view, length, GAIA_UMAP_RANDOM), 0);
}

Test(umap_stores, is_read_and_written)
{
	map_memory(PAGES * 4096 - 100, 4 * 4096);
	for (unsigned i = 0; i < PAGES; i++) {
		cr_assert_eq(rig.view[i * 4096], i + 1);
		rig.view[i * 4096] = 200 + i;
	}
	cr_assert_eq(rig.view[PAGES * 4096 - 100], 0);
	rig.view[PAGES * 4096 - 1] = 'x';
	cr_assert_eq(gaia_umap_flush(rig.view, rig.length, GAIA_UMAP_SYNC), 0);
	cr_assert_eq(memory.syncs, 1);
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(memory.bytes[i * 4096], 200 + i);
	cr_assert_eq(memory.bytes[PAGES * 4096 - 1], PAGES);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, a_page_that_cannot_be_read_is_sigbus_for_who_touches_it_only)
{
	void *page;

	map_memory(PAGES * 4096, 8 * 4096);
	cr_assert_eq(rig.view[0], 1);
	memory.read_error = EIO;
	cr_assert(rig_bus(rig.view + 3 * 4096));
	cr_assert(rig_bus(rig.view + 3 * 4096));
	cr_assert_eq(rig.view[1], 1);
	/* A handler has no mark to leave: each touch tries again. */
	cr_assert_eq(rig_stats(&rig).read_errors, rig_by_signal() ? 2 : 1);
	page = rig.view + 3 * 4096;
	cr_assert_eq(gaia_umap_prefetch(&page, 1, GAIA_UMAP_WAIT), -1);
	cr_assert_eq(errno, EIO);
	memory.read_error = 0;
	cr_assert(!rig_bus(rig.view + 4 * 4096));
	cr_assert_eq(gaia_umap_prefetch(&page, 1, GAIA_UMAP_WAIT), 0);
	cr_assert_eq(rig.view[3 * 4096], 4, "it could be tried again");
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

/* Those that mean something else within the library. */
static const int foreign[] = { EAGAIN, EBUSY, ENOENT, ESRCH };

Test(umap_stores, whatever_errno_a_read_fails_with_is_sigbus)
{
	map_memory(PAGES * 4096, 8 * 4096);
	for (unsigned i = 0; i < 4; i++) {
		memory.read_error = foreign[i];
		cr_assert(rig_bus(rig.view + i * 4096), "%s", strerror(foreign[i]));
		memory.read_error = 0;
		cr_assert(!rig_bus(rig.view + (i + 8) * 4096));
	}
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, whatever_errno_a_write_fails_with_nothing_can_leave)
{
	map_memory(PAGES * 4096, 4 * 4096);
	memory.write_error = foreign[0];	/* the evictor begins by itself */
	for (unsigned i = 0; i < 4; i++)
		rig.view[i * 4096] = 'w';
	for (unsigned i = 0; i < 4; i++) {
		memory.write_error = foreign[i];
		cr_assert(rig_bus(rig.view + (10 + i) * 4096), "%s", strerror(foreign[i]));
		cr_assert_eq(gaia_umap_flush(rig.view, rig.length, 0), -1);
		cr_assert(errno == foreign[i] || (i && errno == foreign[i - 1]), "the true one, or the evictor's, late: %s", strerror(errno));
	}
	memory.write_error = 0;
	gaia_umap_flush(rig.view, rig.length, 0);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(memory.bytes[i * 4096], 'w');
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, what_cannot_be_read_ahead_is_no_error_of_the_page_before_it)
{
	map_memory(PAGES * 4096, 8 * 4096);
	cr_assert_eq(gaia_umap_advise(rig.view, PAGES * 4096, GAIA_UMAP_SEQUENTIAL), 0);
	memory.bad_from = 3 * 4096;
	for (unsigned i = 0; i < 3; i++)
		cr_assert(!rig_bus(rig.view + i * 4096), "page %u", i);
	cr_assert(rig_bus(rig.view + 3 * 4096));
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, a_failed_read_of_a_page_that_was_written_and_left_before_is_sigbus_too)
{
	map_memory(PAGES * 4096, 8 * 4096);
	(void)*(volatile unsigned char *)(rig.view + 2 * 4096);
	cr_assert_eq(gaia_umap_advise(rig.view, rig.length, GAIA_UMAP_DONTNEED), 0);
	memory.read_error = EIO;
	cr_assert(rig_bus(rig.view + 2 * 4096));
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, what_cannot_be_written_stays_and_is_reported_once)
{
	map_memory(PAGES * 4096, 16 * 4096);
	rig.view[7 * 4096] = 'w';
	memory.write_error = ENOSPC;
	cr_assert_eq(gaia_umap_flush(rig.view, rig.length, 0), -1);
	cr_assert_eq(errno, ENOSPC);
	cr_assert_eq(rig_stats(&rig).dirty, 1);
	cr_assert_eq(gaia_umap_advise(rig.view, rig.length, GAIA_UMAP_DONTNEED), 0);
	cr_assert_eq(rig.view[7 * 4096], 'w');
	memory.write_error = 0;
	cr_assert_eq(gaia_umap_flush(rig.view, rig.length, 0), -1, "of the failure by advice");
	cr_assert_eq(memory.bytes[7 * 4096], 'w');
	cr_assert_eq(gaia_umap_flush(rig.view, rig.length, 0), 0);
	memory.sync_error = EDQUOT;
	cr_assert_eq(gaia_umap_flush(rig.view, rig.length, GAIA_UMAP_SYNC), -1);
	cr_assert_eq(errno, EDQUOT);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, the_end_of_a_region_tells_what_could_not_be_written)
{
	map_memory(PAGES * 4096, 16 * 4096);
	rig.view[0] = 'w';
	memory.write_error = EIO;
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), -1);
	cr_assert_eq(errno, EIO);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), -1);
	cr_assert_eq(errno, EINVAL, "it has ended all the same");
}

Test(umap_stores, pages_that_cannot_be_written_do_not_keep_clean_ones)
{
	map_memory(PAGES * 4096, 8 * 4096);
	memory.write_error = EIO;
	for (unsigned i = 0; i < 3; i++)
		rig.view[i * 4096] = 'w';
	for (unsigned i = 3; i < PAGES; i++)
		cr_assert_eq(rig.view[i * 4096], i + 1);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(rig.view[i * 4096], 'w');
	memory.write_error = 0;
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), -1);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(memory.bytes[i * 4096], 'w');
}

Test(umap_stores, where_nothing_can_leave_touching_is_sigbus_and_nothing_is_lost)
{
	map_memory(PAGES * 4096, 4 * 4096);
	memory.write_error = ENOSPC;
	for (unsigned i = 0; i < 4; i++)
		rig.view[i * 4096] = 'w';
	cr_assert(rig_bus(rig.view + 10 * 4096));
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(rig.view[i * 4096], 'w');
	memory.write_error = 0;
	cr_assert(!rig_bus(rig.view + 11 * 4096));
	cr_assert_eq(gaia_umap_flush(rig.view, rig.length, 0), -1);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(memory.bytes[i * 4096], 'w');
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, a_read_only_store_is_not_for_writing)
{
	map_memory(4096, 0);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
	store.write = NULL;
	cr_assert_eq(rig_errno(&rig.config), EACCES);
	rig.config.prot = PROT_READ;
	rig_map(&rig);
	cr_assert_eq(rig.view[9], 1);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

/* Its function touches page 5 while it reads this one. (A test that expects a signal could not skip.) */
static void check_refused(unsigned page)
{
	pid_t pid;
	int status;

	map_memory(PAGES * 4096, 0);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
	pid = fork();
	if (!pid) {
		signal(SIGBUS, SIG_DFL);	/* sanitizers have handlers */
		alarm(60);
		map_memory(PAGES * 4096, 0);
		memory.view = rig.view;
		(void)*(volatile unsigned char *)(rig.view + page * 4096);
		_exit(1);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

Test(umap_stores, one_that_touches_its_own_region_is_refused)
{
	NOT_FOR_TSAN;
	check_refused(2);
}

Test(umap_stores, one_that_touches_the_page_that_it_reads_is_refused)
{
	NOT_FOR_TSAN;
	check_refused(5);
}

Test(umap_stores, one_that_calls_the_library_is_told)
{
	map_memory(PAGES * 4096, 0);
	(void)*(volatile unsigned char *)(rig.view + 5 * 4096);
	memory.view = rig.view;
	cr_assert_eq(rig.view[2 * 4096], 3, "what is in memory it may touch");
	cr_assert_eq(memory.call, EDEADLK);
	memory.view = NULL;
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, one_filler_is_not_so_few_that_a_store_cannot_touch_a_page_in_memory)
{
	setenv("GAIA_UMAP_PAGE_FILLERS", "1", 1);
	map_memory(PAGES * 4096, 0);
	(void)*(volatile unsigned char *)(rig.view + 5 * 4096);
	cr_assert_eq(gaia_umap_advise(rig.view + 5 * 4096, 4096, GAIA_UMAP_COLD), 0);
	memory.view = rig.view;
	cr_assert_eq(rig.view[2 * 4096], 3);
	memory.view = NULL;
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

struct toucher {
	pthread_t thread;
	unsigned char *at;
	bool (*how)(volatile unsigned char *at); /* NULL: read it */
	atomic_int tid;
};

static void *touch(void *arg)
{
	struct toucher *t = arg;

	t->tid = gettid();
	return (void *)(uintptr_t)(t->how ? t->how(t->at) : *(volatile unsigned char *)t->at);
}

/* On return it waits for the page. */
static void touch_begin(struct toucher *t)
{
	cr_assert_eq(pthread_create(&t->thread, NULL, touch, t), 0);
	while (!t->tid || !thread_sleeps(t->tid))
		usleep(1000);
}

static uintptr_t touch_end(struct toucher *t)
{
	void *value;

	pthread_join(t->thread, &value);
	return (uintptr_t)value;
}

Test(umap_stores, a_store_that_waits_holds_up_only_who_needs_it)
{
	struct toucher t[2];

	map_memory(PAGES * 4096, 0);
	cr_assert_eq(rig.view[0], 1);
	cr_assert_eq(gaia_umap_advise(rig.view, 1, GAIA_UMAP_COLD), 0);
	memory.hold = true;
	for (unsigned i = 0; i < 2; i++) {
		t[i] = (struct toucher){ .at = rig.view + 9 * 4096 };
		touch_begin(&t[i]);
	}
	cr_assert_eq(rig.view[0], 1, "a fault of a page that is in memory");
	rig.view[1] = 'x';
	cr_assert_eq(gaia_umap_flush(rig.view, rig.length, 0), 0);
	memory.hold = false;
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(touch_end(&t[i]), 10);
	cr_assert_eq(memory.reads, 2, "two faults of a page are one read");
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

/* It is the page by which the stream goes on, and not mapped otherwise. */
Test(umap_stores, who_touches_what_is_being_read_ahead_faults_once)
{
	struct toucher t = { .at = NULL };

	page_size = 8192;
	read_ahead = 1;
	map_memory(PAGES * 4096, 0);
	cr_assert_eq(gaia_umap_advise(rig.view, rig.length, GAIA_UMAP_NORMAL), 0);
	memory.hold_from = 4 * 8192;
	memory.hold = true;
	/* Both read the page behind, too. */
	cr_assert_eq(rig.view[0], 1);
	cr_assert_eq(rig.view[2 * 8192], 5);
	while (memory.reads < 3)
		usleep(1000);
	t.at = rig.view + memory.hold_from;
	touch_begin(&t);
	memory.hold = false;
	cr_assert_eq(touch_end(&t), 9);
	cr_assert_eq(rig_stats(&rig).faults, 3);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

/* The halves are two mappings of the kernel's then. */
Test(umap_stores, both_halves_of_a_page_come_where_the_program_has_protected_one)
{
	struct toucher t[2];

	page_size = 65536;
	map_memory(PAGES * 4096, 0);
	cr_assert_eq(mprotect(rig.view + 32768, 32768, PROT_READ), 0);
	memory.hold = true;
	for (unsigned i = 0; i < 2; i++) {
		t[i] = (struct toucher){ .at = rig.view + i * 32768 };
		touch_begin(&t[i]);
	}
	memory.hold = false;
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(touch_end(&t[i]), i * 8 + 1);
	rig.view[5] = 'w';
	cr_assert_eq(gaia_umap_flush(rig.view, rig.length, 0), 0);
	cr_assert_eq(memory.bytes[5], 'w');
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, prefetches_in_the_background_are_not_queued_without_end)
{
	void *page[PAGES];
	size_t before;

	map_memory(PAGES * 4096, 0);
	for (unsigned i = 0; i < PAGES; i++)
		page[i] = rig.view + (i * 2 % PAGES) * 4096;
	memory.hold = true;
	before = mallinfo2().uordblks;
	for (unsigned i = 0; i < 2000; i++)
		cr_assert_eq(gaia_umap_prefetch(page, PAGES, 0), 0);
	/* Sanitizers have heaps of their own, and say 0. */
	cr_assert_lt(mallinfo2().uordblks - before, 1u << 20, "%zu bytes", mallinfo2().uordblks - before);
	memory.hold = false;
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(rig.view[i * 4096], i + 1);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

Test(umap_stores, both_waiters_of_a_page_that_cannot_be_read_get_sigbus)
{
	struct toucher t[2];

	page_size = 8192;
	map_memory(PAGES * 4096, 0);
	memory.hold = true;
	memory.read_error = EIO;
	for (unsigned i = 0; i < 2; i++) {
		t[i] = (struct toucher){ .at = rig.view + (8 + i) * 4096, .how = rig_bus };
		touch_begin(&t[i]);
	}
	memory.hold = false;
	for (unsigned i = 0; i < 2; i++)
		cr_assert(touch_end(&t[i]));
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}

/* ---- a policy of the application ---- */

static struct last_in {
	uint32_t stack[64];
	bool in[64];
	unsigned n, destroyed;
} last_in;

static void *last_in_create(void *arg, uint32_t slots)
{
	cr_assert_leq(slots, 64);
	return arg;
}

static void last_in_destroy(void *state)
{
	((struct last_in *)state)->destroyed++;
}

static void last_in_inserted(void *state, uint32_t slot, uint64_t page)
{
	struct last_in *p = state;

	p->stack[p->n++] = slot;
	p->in[slot] = true;
}

static void last_in_hit(void *state, uint32_t slot)
{
	last_in_inserted(state, slot, 0);
}

/* Never the first one, however many threads evict. */
static uint32_t last_in_victim(void *state)
{
	struct last_in *p = state;

	while (p->n > 1)
		if (p->in[p->stack[--p->n]]) {
			p->in[p->stack[p->n]] = false;
			return p->stack[p->n];
		}
	return UINT32_MAX;
}

static void last_in_removed(void *state, uint32_t slot, int evicted)
{
	((struct last_in *)state)->in[slot] = false;
}

Test(umap_stores, a_policy_of_the_application_decides)
{
	struct gaia_umap_policy policy = {
		.size = sizeof(policy), .arg = &last_in, .create = last_in_create, .destroy = last_in_destroy, .inserted = last_in_inserted,
		.hit = last_in_hit, .victim = last_in_victim, .removed = last_in_removed,
	};
	unsigned reads;

	map_memory(PAGES * 4096, 4 * 4096);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
	rig.config.policy = &policy;
	rig.config.evict_high = 100;
	rig_map(&rig);
	for (unsigned i = 0; i < PAGES; i++)
		cr_assert_eq(rig.view[i * 4096], i + 1);
	reads = memory.reads;
	cr_assert_eq(rig.view[0], 1);
	cr_assert_eq(memory.reads, reads, "the first page in never leaves");
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
	cr_assert_eq(last_in.destroyed, 1);
}

/* ---- how much is made free ---- */

#define FREE_PAGE 65536ul
#define FREE_PAGES 1024u	/* of the budget */

static int zeros_read(void *arg, void *buf, size_t n, uint64_t offset)
{
	return 0;
}

Test(umap_stores, what_is_made_free_by_default_has_a_limit)
{
	struct gaia_umap_store zeros = { .size = sizeof(zeros), .read = zeros_read };

	rig.segment = (struct gaia_umap_segment){ .store = &zeros, .length = 2 * FREE_PAGES * FREE_PAGE };
	rig.config = (struct gaia_umap_config){
		.size = sizeof(rig.config), .flags = GAIA_UMAP_NEED_PAGING, .segments = &rig.segment, .n_segments = 1,
		.budget = FREE_PAGES * FREE_PAGE, .page_size = FREE_PAGE,
	};
	rig.length = rig.segment.length;
	rig_map(&rig);
	cr_assert_eq(gaia_umap_advise(rig.view, rig.length, GAIA_UMAP_RANDOM), 0);
	/* All but half a MiB: then they begin to leave. */
	for (unsigned i = 0; i < FREE_PAGES - 8; i++)
		cr_assert_eq(rig.view[i * FREE_PAGE], 0);
	while (rig_stats(&rig).resident > FREE_PAGES - 16)
		usleep(1000);
	/* No more do: a fault has so long to show itself. */
	for (unsigned i = 0; i < 100; i++, usleep(1000))
		cr_assert_eq(rig_stats(&rig).resident, FREE_PAGES - 16);
	/* What is read in order has 4 MiB at least. */
	cr_assert_eq(gaia_umap_advise(rig.view, rig.length, GAIA_UMAP_NORMAL), 0);
	for (unsigned i = FREE_PAGES; i < 2 * FREE_PAGES; i++)
		cr_assert_eq(rig.view[i * FREE_PAGE], 0);
	while (rig_stats(&rig).resident > FREE_PAGES - 64)
		usleep(1000);
	cr_assert_eq(gaia_uunmap(rig.view, rig.length), 0);
}
