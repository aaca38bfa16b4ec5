/*
 * threads.c - the threads that serve faults (fillers) and those that evict in the background. All regions share them.
 *
 * One filler polls userfaultfd. What it can serve without waiting it serves itself; otherwise it wakes another one, or
 * starts it, which polls from then on.
 */
#include <errno.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <unistd.h>

#include "internal.h"

#define MAX_FILLERS 64
#define MAX_EVICTORS 16
#define MAX_EVENTS 64
#define WAITING 1024		/* faults that have been read and not served */
#define MAX_JOBS 4096		/* prefetches in the background; what is more is left out */

struct fault {
	uintptr_t addr;
	bool write;
	uint32_t tid;
};

struct umap_job {
	struct umap_region *r;	/* referenced */
	uint64_t page, n;
	TAILQ_ENTRY(umap_job) link;
};

/* process.lock */
static struct {
	pthread_t fillers[MAX_FILLERS], evictors[MAX_EVICTORS];
	unsigned n_fillers, n_evictors, max_fillers, max_evictors, max_events;
	unsigned idle_fillers, idle_evictors;
	unsigned in_background;	/* fillers that read what nobody has touched: never all of them */
	bool polling;		/* a filler polls, or serves what it can without waiting */
	bool wants_evictor;	/* one is to be started, by a filler */
	int wake;		/* an eventfd: for the one that polls */
	struct fault faults[WAITING];
	unsigned first_fault, n_faults;
	TAILQ_HEAD(, umap_job) jobs;
	unsigned n_jobs;
} pool = { .wake = -1, .jobs = TAILQ_HEAD_INITIALIZER(pool.jobs) };

static void *filler(void *arg);
static void *evictor(void *arg);

static int start_thread(pthread_t *thread, void *(*run)(void *))
{
	sigset_t others, old;
	int err;

	umap_signals_of_others(&others);
	pthread_sigmask(SIG_SETMASK, &others, &old);
	err = pthread_create(thread, NULL, run, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -err;
}

/*
 * process.lock is held, in both. Somebody shall look for work: faults, jobs, polling. In a handler of a signal no thread can be made; but whoever
 * polls makes one when it takes work.
 */
static void poke_filler(void)
{
	uint64_t one = 1;

	if (pool.idle_fillers)
		pthread_cond_signal(&umap.work);
	else if (pool.polling && write(pool.wake, &one, sizeof(one)) < 0)
		return;		/* it is awake: the counter is full */
}

static void wake_filler(void)
{
	if (umap.stopping)
		return;
	if (!pool.idle_fillers && pool.n_fillers < pool.max_fillers && !start_thread(&pool.fillers[pool.n_fillers], filler))
		pool.n_fillers++;
	else
		poke_filler();
}

/* ---- events ---- */

/* events_lock is held, in both. */
static void apply_unmap(const char *from, const char *to)
{
	struct umap_region *r;
	uint64_t start, end;

	while ((r = umap_region_find(from, to))) {
		start = from > r->view ? from - r->view : 0;
		end = MIN((uint64_t)(to - r->view), r->view_length);
		umap_cut(r, start, end);
		umap_region_put(r);
	}
}

static void apply_remap(char *from, char *to, uint64_t n)
{
	struct umap_region *r = umap_region_find(from, from + n);

	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	if (r->n_there == 1 && from == r->view + r->there[0].start && n >= r->there[0].end - r->there[0].start) {
		umap_region_moved(r, to - r->there[0].start);
		pthread_mutex_unlock(&r->lock);
	} else {
		pthread_mutex_unlock(&r->lock);
		/* A part alone: loud, rather than memory that nobody writes. */
		umap_kernel_unregister(r->uffd, to, n);
		mmap(to, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		apply_unmap(from, from + n);
	}
	umap_region_put(r);
}

static void queue_fault(const struct uffd_msg *m)
{
	pthread_mutex_lock(&umap.lock);
	if (pool.n_faults < WAITING) {
		pool.faults[(pool.first_fault + pool.n_faults++) % WAITING] = (struct fault){
			.addr = m->arg.pagefault.address,
			.write = m->arg.pagefault.flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP),
			.tid = m->arg.pagefault.feat.ptid,
		};
		pthread_mutex_unlock(&umap.lock);
	} else {
		pthread_mutex_unlock(&umap.lock);
		/* It comes again. */
		umap_kernel_wake(umap.kernel.uffd, (void *)(uintptr_t)(m->arg.pagefault.address & ~(SMALL_PAGE - 1)), SMALL_PAGE);
	}
}

/* Returns whether anything was read. events_lock is held. */
static bool read_some(int uffd)
{
	struct uffd_msg messages[MAX_EVENTS];
	ssize_t n = read(uffd, messages, pool.max_events * sizeof(messages[0]));

	n = n < 0 ? 0 : n / (ssize_t)sizeof(messages[0]);
	for (int i = 0; i < n; i++) {
		struct uffd_msg *m = &messages[i];

		if (m->event == UFFD_EVENT_PAGEFAULT)
			queue_fault(m);
		else if (m->event == UFFD_EVENT_UNMAP)
			apply_unmap((char *)(uintptr_t)m->arg.remove.start, (char *)(uintptr_t)m->arg.remove.end);
		else if (m->event == UFFD_EVENT_REMAP)
			apply_remap((char *)(uintptr_t)m->arg.remap.from, (char *)(uintptr_t)m->arg.remap.to, m->arg.remap.len);
	}
	return n;
}

/* Whether anything was read. Where there is nothing, copies that are under way are not waited for, nor others held up. */
static bool read_messages(void)
{
	int by_signal = __atomic_load_n(&umap.kernel.by_signal, __ATOMIC_ACQUIRE);
	struct pollfd fds[] = { { umap.kernel.uffd, POLLIN, 0 }, { by_signal, POLLIN, 0 } };
	bool any;

	if (poll(fds, 2, 0) <= 0)
		return false;
	/* U5, U2: the kernel lets munmap(2) return as soon as its event is read. */
	pthread_mutex_lock(&umap.events_lock);
	pthread_rwlock_wrlock(&umap.views_lock);
	any = read_some(umap.kernel.uffd);
	if (by_signal >= 0)
		any |= read_some(by_signal);
	pthread_rwlock_unlock(&umap.views_lock);
	pthread_mutex_unlock(&umap.events_lock);
	return any;
}

void umap_read_events(void)
{
	read_messages();
	pthread_mutex_lock(&umap.lock);
	/* Perhaps in a handler. */
	if (pool.n_faults)
		poke_filler();
	pthread_mutex_unlock(&umap.lock);
}

/* ---- fillers ---- */

static bool take_fault(struct fault *f)
{
	if (!pool.n_faults)
		return false;
	*f = pool.faults[pool.first_fault];
	pool.first_fault = (pool.first_fault + 1) % WAITING;
	pool.n_faults--;
	return true;
}

/* mremap(2) has left it without a region; unless one has come to be there since. */
static void poison_left(uintptr_t addr)
{
	const char *page = (const char *)(addr & ~(SMALL_PAGE - 1));

	pthread_rwlock_rdlock(&umap.views_lock);
	if (umap_region_at(page, page + SMALL_PAGE))
		umap_kernel_wake(umap.kernel.uffd, (void *)page, SMALL_PAGE);
	else
		umap_kernel_poison(umap.kernel.uffd, (void *)page);
	umap_let_views();
}

static int serve(const struct fault *f, enum umap_how how)
{
	uint64_t at;
	struct umap_region *r = umap_region_get((void *)f->addr, &at);
	int err;

	if (!r) {
		poison_left(f->addr);
		return 0;
	}
	err = umap_fault(r, at, f->write, umap_thread_in_store(f->tid) ? UMAP_RESIDENT : how);
	umap_region_put(r);
	return err;
}

bool umap_ending(struct umap_region *r)
{
	bool ending;

	pthread_mutex_lock(&umap.lock);
	ending = r->ending;
	pthread_mutex_unlock(&umap.lock);
	return ending;
}

static void run_job(struct umap_job *j)
{
	struct umap_region *r = j->r;

	for (uint64_t i = 0; i < j->n; i++)
		if (umap_ending(r) || umap_bring(r, j->page + i, j->n - i) < 0)
			break;
	umap_region_put(r);
	free(j);
}

static struct umap_job *take_job(void)
{
	struct umap_job *j = TAILQ_FIRST(&pool.jobs);

	if (j) {
		TAILQ_REMOVE(&pool.jobs, j, link);
		pool.n_jobs--;
	}
	return j;
}

/* Whether there is something to read in the background, and a filler may do so: half of them are left for faults, and one for munmap(2). */
static bool has_background(void)
{
	return (!TAILQ_EMPTY(&pool.jobs) || !TAILQ_EMPTY(&umap.to_read)) && pool.in_background + 1 < pool.max_fillers &&
	       pool.in_background < MAX(pool.max_fillers / 2, 1u);
}

bool umap_faults_wait(void)
{
	bool waits;

	pthread_mutex_lock(&umap.lock);
	waits = pool.n_faults > 0;
	pthread_mutex_unlock(&umap.lock);
	return waits;
}

/* A region whose streams have asked for pages, referenced. */
static struct umap_region *take_reading(void)
{
	struct umap_region *r = TAILQ_FIRST(&umap.to_read);

	if (r) {
		TAILQ_REMOVE(&umap.to_read, r, ahead_link);
		r->ahead_queued = false;
	}
	return r;
}

/* Wait for messages of the kernel's, and read them. The lock is held, but not meanwhile. */
static void poll_messages(void)
{
	struct pollfd fds[] = { { umap.kernel.uffd, POLLIN, 0 }, { pool.wake, POLLIN, 0 }, { umap.kernel.by_signal, POLLIN, 0 } };
	bool busy = pool.n_faults || has_background() || pool.wants_evictor;
	uint64_t n;

	pthread_mutex_unlock(&umap.lock);
	if (!read_messages() && !busy) {
		poll(fds, 3, -1);
		if (fds[1].revents && read(pool.wake, &n, sizeof(n)) < 0)
			n = 0;
		read_messages();
	}
	pthread_mutex_lock(&umap.lock);
}

static void start_evictor(void)
{
	if (pool.wants_evictor && pool.n_evictors < pool.max_evictors && !start_thread(&pool.evictors[pool.n_evictors], evictor))
		pool.n_evictors++;
	pool.wants_evictor = false;
}

static void *filler(void *arg)
{
	struct umap_region *reading;
	struct umap_job *j;
	struct fault f;

	pthread_mutex_lock(&umap.lock);
	while (!umap.stopping) {
		bool poller = !pool.polling, fault, background;
		int err = -EBUSY;

		if (poller) {
			pool.polling = true;
			poll_messages();
		}
		start_evictor();
		fault = take_fault(&f);
		background = !fault && has_background();
		reading = background ? take_reading() : NULL;
		j = background && !reading ? take_job() : NULL;
		if (fault && poller) {
			pthread_mutex_unlock(&umap.lock);
			err = serve(&f, UMAP_QUICK);
			pthread_mutex_lock(&umap.lock);
		}
		if (poller)
			pool.polling = false;
		if (fault ? err == -EBUSY : background) {
			pool.in_background += background;
			if (!pool.polling || pool.n_faults || has_background())
				wake_filler();
			pthread_mutex_unlock(&umap.lock);
			if (fault) {
				serve(&f, UMAP_WAIT);
			} else if (reading) {
				umap_read_streams(reading);
				umap_region_put(reading);
			} else {
				run_job(j);
			}
			pthread_mutex_lock(&umap.lock);
			pool.in_background -= background;
		} else if (!poller && !fault) {
			pool.idle_fillers++;
			pthread_cond_wait(&umap.work, &umap.lock);
			pool.idle_fillers--;
		}
	}
	pthread_mutex_unlock(&umap.lock);
	return NULL;
}

int umap_prefetch(struct umap_region *r, uint64_t page, uint64_t n)
{
	struct umap_job *j = malloc(sizeof(*j));

	if (!j)
		return -ENOMEM;
	*j = (struct umap_job){ .r = r, .page = page, .n = n };
	pthread_mutex_lock(&umap.lock);
	if (pool.n_jobs < MAX_JOBS) {
		r->refs++;
		TAILQ_INSERT_TAIL(&pool.jobs, j, link);
		pool.n_jobs++;
		j = NULL;
		wake_filler();
	}
	pthread_mutex_unlock(&umap.lock);
	free(j);
	return 0;
}

void umap_kick_reader(struct umap_region *r)
{
	pthread_mutex_lock(&umap.lock);
	if (!r->ahead_queued && !r->ending && !umap.stopping) {
		r->ahead_queued = true;
		r->refs++;
		TAILQ_INSERT_TAIL(&umap.to_read, r, ahead_link);
		poke_filler();
	}
	pthread_mutex_unlock(&umap.lock);
}

/* ---- evictors ---- */

static void evict_down(struct umap_region *r)
{
	struct umap_marks marks;
	uint32_t used;
	bool write_all;
	int n;

	do {
		pthread_mutex_lock(&r->lock);
		used = r->n_frames - r->n_free;
		marks = umap_marks(r);
		write_all = r->write_all;
		r->write_all = false;
		pthread_mutex_unlock(&r->lock);
		if (write_all)
			umap_write_range(r, 0, r->view_length);
		n = used > marks.low && marks.high <= r->n_frames ? umap_evict(r, MIN(used - marks.low, EVICT_BATCH)) : 0;
	} while (n > 0);
}

static void *evictor(void *arg)
{
	struct umap_region *r;

	pthread_mutex_lock(&umap.lock);
	while (!umap.stopping) {
		r = TAILQ_FIRST(&umap.to_evict);
		if (!r) {
			pool.idle_evictors++;
			pthread_cond_wait(&umap.evict, &umap.lock);
			pool.idle_evictors--;
			continue;
		}
		TAILQ_REMOVE(&umap.to_evict, r, evict_link);
		r->evict_queued = false;
		pthread_mutex_unlock(&umap.lock);
		evict_down(r);
		umap_region_put(r);
		pthread_mutex_lock(&umap.lock);
	}
	pthread_mutex_unlock(&umap.lock);
	return NULL;
}

void umap_kick_evictor(struct umap_region *r)
{
	pthread_mutex_lock(&umap.lock);
	if (!r->evict_queued && !r->ending && !umap.stopping) {
		r->evict_queued = true;
		r->refs++;
		TAILQ_INSERT_TAIL(&umap.to_evict, r, evict_link);
		pthread_cond_signal(&umap.evict);
	}
	/* Also if the region waits for one that could not be started. */
	if (r->evict_queued && !pool.idle_evictors && pool.n_evictors < pool.max_evictors && !umap.stopping) {
		pool.wants_evictor = true;
		poke_filler();
	}
	pthread_mutex_unlock(&umap.lock);
}

/* ---- start and end ---- */

void umap_threads_look(void)
{
	uint64_t one = 1;

	if (write(pool.wake, &one, sizeof(one)) < 0)
		return; /* it is awake: the counter is full */
}

int umap_threads_start(void)
{
	unsigned cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int err;

	/* One alone could not serve its store, where that touches a region. */
	pool.max_fillers = MAX(umap_setting("GAIA_UMAP_PAGE_FILLERS", 1, MAX_FILLERS, MIN(MAX(cpus, 4), 16)), 2);
	pool.max_evictors = umap_setting("GAIA_UMAP_PAGE_EVICTORS", 1, MAX_EVICTORS, 1);
	pool.max_events = umap_setting("GAIA_UMAP_MAX_FAULT_EVENTS", 1, MAX_EVENTS, 16);
	pool.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (pool.wake < 0)
		return -errno;
	err = start_thread(&pool.fillers[0], filler);
	if (err)
		close(pool.wake);
	else
		pool.n_fillers = 1;
	return err;
}

void umap_threads_stop(void)
{
	uint64_t one = 1;

	pthread_cond_broadcast(&umap.work);
	pthread_cond_broadcast(&umap.evict);
	if (write(pool.wake, &one, sizeof(one)) < 0)
		one = 0;	/* it is awake */
	pthread_mutex_unlock(&umap.lock);
	for (unsigned i = 0; i < pool.n_fillers; i++)
		pthread_join(pool.fillers[i], NULL);
	for (unsigned i = 0; i < pool.n_evictors; i++)
		pthread_join(pool.evictors[i], NULL);
	pthread_mutex_lock(&umap.lock);
	close(pool.wake);
	umap_threads_forget();
}

void umap_threads_forget(void)
{
	if (pool.n_fillers && pool.wake >= 0 && !umap.stopping)
		close(pool.wake);
	pool.wake = -1;
	pool.n_fillers = pool.n_evictors = pool.idle_fillers = pool.idle_evictors = pool.in_background = 0;
	pool.first_fault = pool.n_faults = 0;
	pool.polling = pool.wants_evictor = false;
	TAILQ_INIT(&pool.jobs);
	pool.n_jobs = 0;
}
