/*
 * process.c - which regions there are, and what they share.
 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <unistd.h>

#include "internal.h"

struct umap_process umap = {
	.events_lock = PTHREAD_MUTEX_INITIALIZER,
	.views_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP,
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
	.evict = PTHREAD_COND_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.kernel = { -1, -1, -1, false },
	.all = LIST_HEAD_INITIALIZER(umap.all),
	.to_evict = TAILQ_HEAD_INITIALIZER(umap.to_evict),
	.to_read = TAILQ_HEAD_INITIALIZER(umap.to_read),
};

unsigned umap_setting(const char *name, unsigned min, unsigned max, unsigned otherwise)
{
	const char *value = secure_getenv(name);
	char *end;
	unsigned long n;

	if (!value || *value < '0' || *value > '9')
		return otherwise;
	errno = 0;
	n = strtoul(value, &end, 0);
	return errno || *end || n < min ? otherwise : n > max ? max : n;
}

/* ---- regions by address ---- */

/* A part of a region that the program has not unmapped. Lives in the tree. process.lock. */
struct umap_place {
	const char *from, *to;
	struct umap_region *r;
	struct umap_place *next; /* of the region */
};

static void *places;		/* a tree of tsearch(3); no two overlap */

/* Overlapping ones are equal. */
static int compare_places(const void *a, const void *b)
{
	const struct umap_place *x = a, *y = b;

	return x->to <= y->from ? -1 : x->from >= y->to;
}

static struct umap_place *find_place(const char *from, const char *to)
{
	struct umap_place key = { .from = from, .to = to }, **found = tfind(&key, &places, compare_places);

	return found ? *found : NULL;
}

static void remove_places(struct umap_region *r)
{
	struct umap_place *p;

	while ((p = r->places)) {
		r->places = p->next;
		tdelete(p, &places, compare_places);
		free(p);
	}
}

static int add_places(struct umap_region *r)
{
	for (unsigned i = 0; i < r->n_there; i++) {
		struct umap_place *p = malloc(sizeof(*p)), **at;

		if (!p)
			return -ENOMEM;
		*p = (struct umap_place){ r->view + r->there[i].start, r->view + r->there[i].end, r, r->places };
		at = tsearch(p, &places, compare_places);
		if (!at || *at != p) {
			free(p);
			return at ? -EEXIST : -ENOMEM;
		}
		r->places = p;
	}
	return 0;
}

void umap_region_moved(struct umap_region *r, char *view)
{
	pthread_mutex_lock(&umap.lock);
	if (r->places) {
		remove_places(r);
		r->view = view;
		add_places(r);	/* where it fails that part cannot be found any more */
		umap.dead += !r->places;
	}
	pthread_mutex_unlock(&umap.lock);
}

int umap_region_add(struct umap_region *r)
{
	int err;

	pthread_mutex_lock(&umap.lock);
	err = add_places(r);
	if (err)
		remove_places(r);
	else
		LIST_INSERT_HEAD(&umap.all, r, link);
	pthread_mutex_unlock(&umap.lock);
	return err;
}

void umap_region_settle(void)
{
	pthread_mutex_lock(&umap.events_lock);
	pthread_mutex_unlock(&umap.events_lock);
}

bool umap_region_at(const char *from, const char *to)
{
	bool found;

	pthread_mutex_lock(&umap.lock);
	found = find_place(from, to);
	pthread_mutex_unlock(&umap.lock);
	return found;
}

struct umap_region *umap_region_get(const void *addr, uint64_t *at)
{
	struct umap_place *p;
	struct umap_region *r = NULL;

	pthread_mutex_lock(&umap.lock);
	p = find_place(addr, (const char *)addr + 1);
	if (p) {
		r = p->r;
		r->refs++;
		if (at)
			*at = (const char *)addr - r->view;
	}
	pthread_mutex_unlock(&umap.lock);
	return r;
}

struct umap_region *umap_region_find(const char *from, const char *to)
{
	struct umap_place *p;
	struct umap_region *r = NULL;

	pthread_mutex_lock(&umap.lock);
	p = find_place(from, to);
	if (p) {
		r = p->r;
		r->refs++;
	}
	pthread_mutex_unlock(&umap.lock);
	return r;
}

void umap_region_put(struct umap_region *r)
{
	pthread_mutex_lock(&umap.lock);
	if (!--r->refs && r->ending)
		pthread_cond_broadcast(&umap.changed);
	pthread_mutex_unlock(&umap.lock);
}

/* The lock is held. */
static void take_region(struct umap_region *r)
{
	r->ending = true;
	umap.dead -= !r->places;
	remove_places(r);
	LIST_REMOVE(r, link);
	if (r->evict_queued) {
		TAILQ_REMOVE(&umap.to_evict, r, evict_link);
		r->evict_queued = false;
		r->refs--;
	}
	if (r->ahead_queued) {
		TAILQ_REMOVE(&umap.to_read, r, ahead_link);
		r->ahead_queued = false;
		r->refs--;
	}
	while (r->refs)
		pthread_cond_wait(&umap.changed, &umap.lock);
}

struct umap_region *umap_region_remove(const void *addr, uint64_t length)
{
	struct umap_region *r = NULL;
	struct umap_place *p;

	pthread_mutex_lock(&umap.lock);
	p = find_place(addr, (const char *)addr + 1);
	if (p)
		r = p->r;
	else	/* its beginning has been unmapped */
		LIST_FOREACH(r, &umap.all, link)
			if (r->view == addr)
				break;
	if (r && (r->view != addr || length > r->view_length || length <= r->view_length - SMALL_PAGE))
		r = NULL;
	if (r)
		take_region(r);
	pthread_mutex_unlock(&umap.lock);
	return r;
}

struct umap_region *umap_region_remove_dead(void)
{
	struct umap_region *r = NULL;

	pthread_mutex_lock(&umap.lock);
	if (umap.dead)
		LIST_FOREACH(r, &umap.all, link)
			if (!r->places)
				break;
	if (r)
		take_region(r);
	pthread_mutex_unlock(&umap.lock);
	return r;
}

/* ---- the first and the last region ---- */

/* Nothing of the parent's is there: not the views, not the desks, not the threads. */
static void forget_all(void)
{
	struct umap_region *r;

	pthread_mutex_init(&umap.events_lock, NULL);
	umap.views_lock = (pthread_rwlock_t)PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
	pthread_mutex_init(&umap.lock, NULL);
	pthread_cond_init(&umap.work, NULL);
	pthread_cond_init(&umap.evict, NULL);
	pthread_cond_init(&umap.changed, NULL);
	while ((r = LIST_FIRST(&umap.all))) {
		remove_places(r);
		LIST_REMOVE(r, link);	/* its memory is left alone: a thread may have been at it */
	}
	TAILQ_INIT(&umap.to_evict);
	TAILQ_INIT(&umap.to_read);
	umap_files_forget();
	umap_blocks_forget();
	umap_threads_forget();
	if (umap.kernel.uffd >= 0)
		umap_kernel_close(&umap.kernel);
	umap.regions = umap.dead = 0;
	umap.stopping = false;
}

static void before_fork(void)
{
	pthread_mutex_lock(&umap.lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&umap.lock);
}

/* Before there are threads: a fork(2) beside the first region would find it half done, and the child do it again. */
__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, forget_all);
}

static int start(bool by_signal)
{
	int err = umap_kernel_open(&umap.kernel);

	if (err)
		return err;
	if (by_signal)
		err = umap_kernel_open_by_signal(&umap.kernel);
	if (err)
		goto close_kernel;
	err = umap_blocks_start();
	if (err)
		goto close_kernel;
	err = umap_threads_start();
	if (!err)
		return 0;
	umap_blocks_end();
close_kernel:
	umap_kernel_close(&umap.kernel);
	return err;
}

int umap_process_join(bool by_signal)
{
	int err = 0;

	pthread_mutex_lock(&umap.lock);
	while (umap.stopping)
		pthread_cond_wait(&umap.changed, &umap.lock);
	if (!umap.regions) {
		err = start(by_signal);
	} else if (by_signal && umap.kernel.by_signal < 0) {
		err = umap_kernel_open_by_signal(&umap.kernel);
		/* It waits for events of the other one. */
		if (!err)
			umap_threads_look();
	}
	if (!err && by_signal)
		umap_signal_start();
	if (!err)
		umap.regions++;
	pthread_mutex_unlock(&umap.lock);
	return err;
}

void umap_process_leave(void)
{
	pthread_mutex_lock(&umap.lock);
	if (!--umap.regions) {
		umap.stopping = true;
		umap_threads_stop();
		umap_blocks_end();
		umap_kernel_close(&umap.kernel);
		umap.stopping = false;
		pthread_cond_broadcast(&umap.changed);
	}
	pthread_mutex_unlock(&umap.lock);
}
