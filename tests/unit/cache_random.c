/*
 * cache_random.c - random programs against the page cache, and an oracle.
 *
 * A program is a list of operations: processes that read, write and store to mappings, a kernel that writes back
 * and reclaims when it likes, device clients that acquire, store, release and die, and whose children go on storing,
 * truncates, holes, evictions, fsyncs, and advice, because of which pages are brought to devices in the background. One thread runs it, but a release is stopped wherever it is about to have the kernel's
 * copies invalidated, and so is the thread that invalidates again: what happens between a release and the
 * end of its invalidation is in the program's hands.
 *
 * The oracle knows nothing of the code under test. For each byte it keeps the writes that may be the last one: a
 * write removes those that happened before it and leaves those that are concurrent with it. What
 * is read must be one of them, and once no release is under way, is the one from then on. Writes of
 * devices are private until their release begins. Values are not used again for long. An acquire for overwriting counts as a store
 * of what the memory has then: of zeros, or what is current if nobody held the page. It may count for nothing, unless the program stores something.
 *
 * Each program runs in a process of its own. One that fails is shortened, and run again with
 * a trace. CACHE_SEEDS=FIRST-LAST chooses the programs, CACHE_OPS their length.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/fault.h"
#include "base/util.h"
#include "cache_rig.h"
#include "consistency/track.h"
#include "pagecache/cache.h"
#include "pagecache/file.h"
#include "pagecache/root.h"

/* ---- what programs work on ---- */

/* Groups of neighbouring pages, two of them across a border of chunks. */
#define GROUPS 3u
#define GROUP_PAGES 4u
#define HOT (GROUPS * GROUP_PAGES)
static const uint64_t group_page[GROUPS] = { 0, 510, 1022 };
#define MAX_SIZE (1026ull * GAIA_PAGE)

#define DEVICES 5u /* up to three, and the host: what can write there, and what only reads, which has another memory (pagecache/view.h) */
#define CLIENTS 4u
#define CHUNKS 3u
#define STRAYS 8u /* the last ones */
#define CPU DEVICES
#define NEVER UINT32_MAX

static bool is_view(unsigned device);

static uint64_t hot_offset(unsigned hot)
{
	return (group_page[hot / GROUP_PAGES] + hot % GROUP_PAGES) * GAIA_PAGE;
}

/* -1: none. */
static int hot_at(uint64_t off)
{
	for (unsigned g = 0; g < GROUPS; g++)
		if (off / GAIA_PAGE - group_page[g] < GROUP_PAGES)
			return (int)(g * GROUP_PAGES + off / GAIA_PAGE - group_page[g]);
	return -1;
}

/* ---- the oracle's state ---- */

/* A write that may be the last one of its byte. */
struct last {
	uint8_t value, owner;
	bool maybe;	/* it may count for nothing: a truncate got in between */
	bool beyond;	/* stored beyond the end, and the file had not grown when the release began: it may when that gets there */
	bool during;	/* stored, and not released, while another client's release of the page was under way */
	uint32_t done;	/* when it was public; NEVER: its release is under way */
	uint32_t knew;	/* up to when its owner knew what others did */
	uint32_t task;	/* the release */
};

struct device_byte {
	bool has;	/* written since the last release */
	uint8_t value;
	bool maybe;
	bool view_known;
	uint8_t view;	/* what else clients read */
	bool voided;	/* by a truncate since the page was acquired; or it lay beyond the end then */
	uint32_t knew, acquired;
};

struct byte {
	unsigned n;
	struct last last[16];
	uint8_t used;	/* the value given last */
	struct device_byte dev[DEVICES];
};

#define LISTED 4u

struct task {
	pthread_t thread;
	struct client *client;
	struct gaia_list_range range[LISTED];
	unsigned n_ranges;
	bool holds[HOT], writes[HOT]; /* the client held it, for writing, when the release began */
	uint32_t id;
	enum { TASK_RUNS, TASK_PARKED, TASK_DONE } state;
	bool go;
	int err;
};

struct held {
	struct client *client; /* NULL: none */
	struct task *task;     /* a release is under way */
	bool dead;
	unsigned holds[HOT];
	bool write[HOT];
	bool over[HOT]; /* for overwriting, and not released since; or beside a client of the device that has died of that */
	/* Acquired when its chunk was not there: it is when that comes. */
	unsigned wanted[HOT];
	bool wanted_write[HOT];
	unsigned char *keeps[CHUNKS]; /* dead: what a child of its process maps */
};

/* Memory of a client that has ended, which somebody stores to. */
struct stray {
	unsigned char *at; /* NULL: none */
	unsigned device, chunk;
};

static struct {
	struct rig *rig;
	struct kfile *kf;
	uint64_t size;
	uint32_t now;
	unsigned leave_at; /* the step at which a passthrough file becomes a cached one */
	unsigned focus, focus_pages; /* where most of it happens */
	bool narrow;
	bool no_twins; /* as if they had their share of home: devices are brought up to date instead */
	struct byte byte[HOT][GAIA_PAGE];
	struct held held[CLIENTS];
	struct stray stray[STRAYS];
	unsigned strays; /* ever */
	uint32_t tasks;

	/* The parking of threads. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool free_run;
	bool notifier_parked, notifier_go;

	bool trace;
	unsigned step;
} w;

static _Thread_local struct task *this_task;

__attribute__((format(printf, 1, 2))) static void trace(const char *fmt, ...)
{
	va_list ap;

	if (!w.trace)
		return;
	fprintf(stderr, "%5u  ", w.step);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

static void print_byte(const struct byte *b)
{
	fprintf(stderr, "  allowed:");
	for (unsigned k = 0; k < b->n; k++)
		fprintf(stderr, " %u by %s%u%s%s", b->last[k].value,
			b->last[k].owner == CPU ? "cpu" : "device ", b->last[k].owner,
			b->last[k].done == NEVER ? " (being released)" : "",
			b->last[k].maybe ? " (maybe)" : "");
	for (unsigned d = 0; d < DEVICES; d++)
		fprintf(stderr, "; device %u: %s%u, view %s%u", d, b->dev[d].has ? "wrote " : "-",
			b->dev[d].value, b->dev[d].view_known ? "" : "?", b->dev[d].view);
	fputc('\n', stderr);
}

#define fail(...)                                                     \
	do {                                                          \
		fprintf(stderr, "step %u: ", w.step);                 \
		fprintf(stderr, __VA_ARGS__);                         \
		fputc('\n', stderr);                                  \
		abort();                                              \
	} while (0)

/* ---- what writes do to the oracle ---- */

static void last_remove(struct byte *b, unsigned k)
{
	b->last[k] = b->last[--b->n];
}

static bool under_way(const struct byte *b)
{
	for (unsigned k = 0; k < b->n; k++)
		if (b->last[k].done == NEVER)
			return true;
	return false;
}

/* A value that nobody could take for another one. */
static uint8_t fresh_value(struct byte *b)
{
	bool taken;

	do {
		b->used = b->used == 255 ? 1 : b->used + 1;
		taken = false;
		for (unsigned k = 0; k < b->n; k++)
			taken |= b->last[k].value == b->used;
		for (unsigned d = 0; d < DEVICES; d++)
			taken |= b->dev[d].value == b->used || b->dev[d].view == b->used;
	} while (taken);
	return b->used;
}

static void cpu_wrote(struct byte *b, uint8_t value)
{
	for (unsigned k = b->n; k-- > 0;)
		if (b->last[k].done != NEVER)
			last_remove(b, k);
	b->last[b->n++] = (struct last){ .value = value, .owner = CPU, .done = w.now };
}

/* Somebody saw @value; so it is the last one, if nothing is under way. */
static void saw(struct byte *b, uint8_t value)
{
	uint32_t done = 0;
	unsigned k, at = 0;

	if (under_way(b))
		return;
	for (k = 0; k < b->n; k++)
		if (b->last[k].value == value && b->last[k].done >= done) {
			at = k;
			done = b->last[k].done;
		}
	b->last[0] = b->last[at];
	b->last[0].maybe = false;
	b->n = 1;
}

static bool allowed(const struct byte *b, uint8_t value)
{
	for (unsigned k = 0; k < b->n; k++)
		if (b->last[k].value == value)
			return true;
	return false;
}

static void check_public(uint64_t off, uint8_t value, const char *who)
{
	int hot = hot_at(off);
	struct byte *b;

	if (hot < 0) {
		if (value)
			fail("%s: byte %#llx is %u, nobody wrote it", who,
			     (unsigned long long)off, value);
		return;
	}
	b = &w.byte[hot][off % GAIA_PAGE];
	if (!allowed(b, value)) {
		print_byte(b);
		fail("%s: byte %#llx (page %llu + %llu) is %u", who, (unsigned long long)off,
		     (unsigned long long)(off / GAIA_PAGE), (unsigned long long)(off % GAIA_PAGE),
		     value);
	}
	saw(b, value);
}

static void release_began(struct byte *b, unsigned d, bool below_end, uint32_t task)
{
	struct device_byte *db = &b->dev[d];

	if (!db->has)
		return;
	db->has = false;
	db->view = db->value;
	db->view_known = below_end && !db->maybe;
	if (b->n == ARRAY_LEN(b->last))
		fail("the oracle has no room");
	b->last[b->n++] = (struct last){ .value = db->value, .owner = (uint8_t)d, .maybe = db->maybe || !below_end,
					 .beyond = !below_end, .done = NEVER, .knew = db->knew, .task = task };
}

static void release_ended(struct byte *b, bool below_end, uint32_t task)
{
	for (unsigned k = b->n; k-- > 0 && !below_end;)
		if (b->last[k].beyond && b->last[k].task == task)
			last_remove(b, k);
	/* What was stored while it was under way. */
	for (unsigned k = 0; k < b->n; k++)
		if (b->last[k].done == NEVER && b->last[k].task == task && b->last[k].during)
			b->last[k].done = w.now;
	for (unsigned k = 0; k < b->n; k++) {
		struct last me = b->last[k];

		if (me.done != NEVER || me.task != task)
			continue;
		b->last[k].done = w.now;
		/* What it knew of, and what its own device wrote before. */
		for (unsigned j = b->n; j-- > 0 && !me.maybe;)
			if (b->last[j].done <= me.knew ||
			    (b->last[j].owner == me.owner && b->last[j].task < task))
				last_remove(b, j);
		return;
	}
}

static void cut_byte(struct byte *b, bool held[DEVICES])
{
	b->n = 1;
	b->last[0] = (struct last){ .value = 0, .owner = CPU, .done = w.now };
	for (unsigned d = 0; d < DEVICES; d++) {
		b->dev[d].has = false;
		b->dev[d].view_known = false;
		b->dev[d].voided = held[d];
	}
}

/* ---- parking ---- */

static void before_invalidate(void *arg, struct kfile *kf, off_t off, off_t len)
{
	pthread_mutex_lock(&w.lock);
	if (!w.free_run && this_task) {
		this_task->state = TASK_PARKED;
		pthread_cond_broadcast(&w.changed);
		while (!this_task->go && !w.free_run)
			pthread_cond_wait(&w.changed, &w.lock);
		this_task->go = false;
		this_task->state = TASK_RUNS;
	} else if (!w.free_run) {
		w.notifier_parked = true;
		pthread_cond_broadcast(&w.changed);
		while (!w.notifier_go && !w.free_run)
			pthread_cond_wait(&w.changed, &w.lock);
		w.notifier_go = false;
		w.notifier_parked = false;
		pthread_cond_broadcast(&w.changed);
	}
	pthread_mutex_unlock(&w.lock);
}

static uint64_t agains(void)
{
	struct cache *c = w.rig->cache;
	uint64_t n;

	pthread_mutex_lock(&c->lock);
	n = w.kf->cfile->again_asked - w.kf->cfile->again_done;
	pthread_mutex_unlock(&c->lock);
	return n;
}

/* Until it has done @n of them, or there are no more. */
static void wait_agains(uint64_t n)
{
	struct cache *c = w.rig->cache;
	struct cfile *f = w.kf->cfile;

	pthread_mutex_lock(&c->lock);
	while (f->again_done < MIN(n, f->again_asked))
		pthread_cond_wait(&c->again_done, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

static void notifier_step(void)
{
	uint64_t done;

	if (agains() == 0)
		return;
	trace("the kernel's copy of a page is invalidated again");
	pthread_mutex_lock(&w.lock);
	while (!w.notifier_parked)
		pthread_cond_wait(&w.changed, &w.lock);
	done = w.kf->cfile->again_done; /* it cannot change now */
	w.notifier_go = true;
	pthread_cond_broadcast(&w.changed);
	while (w.notifier_go)
		pthread_cond_wait(&w.changed, &w.lock);
	pthread_mutex_unlock(&w.lock);
	wait_agains(done + 1);
}

static void task_finished(struct held *h)
{
	struct task *t = h->task;

	pthread_join(t->thread, NULL);
	if (t->err)
		fail("release: %s", strerror(-t->err));
	w.now++;
	trace("release %u has returned", t->id);
	for (unsigned hot = 0; hot < HOT; hot++)
		for (unsigned k = 0; k < GAIA_PAGE; k++)
			release_ended(&w.byte[hot][k], hot_offset(hot) + k < w.size, t->id);
	h->task = NULL;
	free(t);
}

static void finish_all(void)
{
	pthread_mutex_lock(&w.lock);
	w.free_run = true;
	pthread_cond_broadcast(&w.changed);
	for (unsigned k = 0; k < CLIENTS; k++)
		while (w.held[k].task && w.held[k].task->state != TASK_DONE)
			pthread_cond_wait(&w.changed, &w.lock);
	pthread_mutex_unlock(&w.lock);
	for (unsigned k = 0; k < CLIENTS; k++)
		if (w.held[k].task)
			task_finished(&w.held[k]);
	wait_agains(UINT64_MAX);
	pthread_mutex_lock(&w.lock);
	w.free_run = false;
	pthread_mutex_unlock(&w.lock);
}

static bool any_task(void)
{
	for (unsigned k = 0; k < CLIENTS; k++)
		if (w.held[k].task)
			return true;
	return false;
}

static void task_wait(struct task *t)
{
	pthread_mutex_lock(&w.lock);
	while (t->state == TASK_RUNS && !w.notifier_parked)
		pthread_cond_wait(&w.changed, &w.lock);
	pthread_mutex_unlock(&w.lock);
}

/* Let one release do one invalidation. If that brings another one, all go on to their ends. */
static void task_step(struct held *h)
{
	struct task *t = h->task;

	if (agains()) {
		finish_all();
		return;
	}
	trace("release %u invalidates", t->id);
	pthread_mutex_lock(&w.lock);
	t->go = true;
	t->state = TASK_RUNS;
	pthread_cond_broadcast(&w.changed);
	pthread_mutex_unlock(&w.lock);
	task_wait(t);
	if (agains())
		finish_all();
	else if (t->state == TASK_DONE)
		task_finished(h);
}

static void *task_main(void *arg)
{
	struct task *t = arg;

	this_task = t;
	if (t->n_ranges == 1)
		t->err = cache_release(t->client->mapping, t->range[0].offset, t->range[0].length, NULL);
	else
		t->err = cache_releasev(t->client->mapping, t->range, t->n_ranges, &(bool){ false });
	pthread_mutex_lock(&w.lock);
	t->state = TASK_DONE;
	pthread_cond_broadcast(&w.changed);
	pthread_mutex_unlock(&w.lock);
	return NULL;
}

/* ---- operations ---- */

enum kind {
	CPU_READ, CPU_WRITE, CPU_STORE, KERNEL_WRITEBACK, KERNEL_RECLAIM, CPU_READ_DIRECT,
	CPU_WRITE_DIRECT, DEV_ACQUIRE, DEV_ACQUIRE_RW, DEV_OVERWRITE, DEV_STORE, DEV_LOAD, DEV_RELEASE,
	RELEASE_STEP, RELEASE_FINISH, NOTIFIER_STEP, CLIENT_MAP, CLIENT_DIE, EVICT_HOME,
	EVICT_DEVICE, FSYNC, FLUSH, TRUNCATE, PUNCH, ZERO, COPY, CHECK_ALL, STRAY_STORE, KINDS
};

static const unsigned weight[KINDS] = {
	[CPU_READ] = 12, [CPU_WRITE] = 12, [CPU_STORE] = 12, [KERNEL_WRITEBACK] = 10,
	[KERNEL_RECLAIM] = 3, [CPU_READ_DIRECT] = 3, [CPU_WRITE_DIRECT] = 3, [DEV_ACQUIRE] = 7,
	[DEV_ACQUIRE_RW] = 12, [DEV_OVERWRITE] = 8, [DEV_STORE] = 30, [DEV_LOAD] = 8, [DEV_RELEASE] = 12,
	[RELEASE_STEP] = 8, [RELEASE_FINISH] = 3, [NOTIFIER_STEP] = 6, [CLIENT_MAP] = 4,
	[CLIENT_DIE] = 2, [EVICT_HOME] = 5, [EVICT_DEVICE] = 4, [FSYNC] = 3, [FLUSH] = 2,
	[TRUNCATE] = 3, [PUNCH] = 1, [ZERO] = 1, [COPY] = 2, [CHECK_ALL] = 1, [STRAY_STORE] = 4,
};

struct op {
	uint8_t kind;
	uint32_t a, b, c, d;
};

static uint32_t in_page(uint32_t r)
{
	static const uint16_t edge[] = { 0, 1, 63, 64, 65, 2048, 4032, 4094, 4095 };

	return r % 2 ? r / 2 % GAIA_PAGE : edge[r / 2 % ARRAY_LEN(edge)];
}

static unsigned choose_page(const struct op *op)
{
	return w.focus + op->a % w.focus_pages;
}

/* A range within a group. */
static void choose_range(const struct op *op, uint64_t *off, uint64_t *len)
{
	unsigned hot = choose_page(op);
	uint64_t end = hot_offset(hot - hot % GROUP_PAGES) + GROUP_PAGES * GAIA_PAGE;

	*off = hot_offset(hot) + in_page(w.narrow ? op->b % 18 & ~1u : op->b);
	switch (w.narrow ? 5 + op->c % 5 : op->c % 10) {
	case 0:
		*off = ROUND_DOWN(*off, (uint64_t)GAIA_PAGE);
		*len = GAIA_PAGE * (1 + op->d % 2);
		break;
	case 1:
		*len = 1 + op->d % (2 * GAIA_PAGE);
		break;
	case 2:
	case 3:
	case 4:
		*len = 1 + op->d % 600;
		break;
	default:
		*len = 1 + op->d % 8;
	}
	*len = MIN(*len, MIN(end, MAX_SIZE) - *off);
}

/* For devices: also large ones. */
static void choose_wide(const struct op *op, uint64_t *off, uint64_t *len)
{
	if (op->c % 16 == 15) {
		*off = 0;
		*len = MAX_SIZE;
	} else if (op->c % 16 == 14) {
		*off = GAIA_CHUNK * (op->a % 3);
		*len = GAIA_CHUNK;
	} else {
		choose_range(op, off, len);
		return;
	}
	*len = MIN(*len, MAX_SIZE - *off);
}

static void check_bytes(const unsigned char *buf, uint64_t off, size_t len, const char *who)
{
	for (size_t k = 0; k < len; k++)
		check_public(off + k, buf[k], who);
}

static void op_read(const struct op *op, bool direct)
{
	static unsigned char buf[GROUP_PAGES * GAIA_PAGE];
	uint64_t off, len;
	ssize_t n;

	choose_range(op, &off, &len);
	trace("cpu reads%s %#llx + %llu", direct ? " directly" : "", (unsigned long long)off,
	      (unsigned long long)len);
	n = direct ? cpu_read_direct(w.kf, buf, len, off) : cpu_read(w.kf, buf, len, off);
	/* Past the kernel, the daemon's word for the size counts, which may lag. */
	if (n < 0 || (n != (ssize_t)(off < w.size ? MIN(len, w.size - off) : 0) && !direct))
		fail("read: %zd", n);
	check_bytes(buf, off, (size_t)n, "cpu");
}

static void op_write(const struct op *op, enum kind kind)
{
	static unsigned char buf[GROUP_PAGES * GAIA_PAGE];
	uint64_t off, len;
	int err;

	choose_range(op, &off, &len);
	if (kind == CPU_STORE) {
		if (off >= w.size)
			return;
		len = MIN(len, w.size - off);
	}
	w.now++;
	for (uint64_t k = 0; k < len; k++) {
		struct byte *b = &w.byte[hot_at(off + k)][(off + k) % GAIA_PAGE];

		buf[k] = fresh_value(b);
		cpu_wrote(b, buf[k]);
	}
	trace("cpu %s %#llx + %llu: %u...",
	      kind == CPU_STORE ? "stores" : kind == CPU_WRITE ? "writes" : "writes directly",
	      (unsigned long long)off, (unsigned long long)len, buf[0]);
	err = kind == CPU_STORE ? cpu_store(w.kf, buf, len, off) :
	      kind == CPU_WRITE ? cpu_write(w.kf, buf, len, off) :
				  cpu_write_direct(w.kf, buf, len, off);
	if (err)
		fail("write: %s", strerror(-err));
	w.size = MAX(w.size, off + len);
}

static struct held *choose_client(const struct op *op)
{
	for (unsigned k = 0; k < CLIENTS; k++) {
		struct held *h = &w.held[(op->a / 16 + k) % CLIENTS];

		if (h->client && !h->task && !h->dead)
			return h;
	}
	return NULL;
}

/* A release of the page, which a client of the device held for writing, that is under way. */
static const struct task *release_of(unsigned device, int hot)
{
	for (unsigned k = 0; k < CLIENTS; k++) {
		const struct task *t = w.held[k].task;

		if (t && t->client->device == device && t->writes[hot])
			return t;
	}
	return NULL;
}

/* What a device reads of a page that a client has just acquired. */
static void check_acquired(struct client *cl, unsigned hot, bool fresh)
{
	unsigned char *p = client_at(cl, hot_offset(hot));
	unsigned d = cl->device;

	if (!p)
		fail("device %u: acquired, but not mapped", d);
	for (unsigned k = 0; k < GAIA_PAGE; k++) {
		struct byte *b = &w.byte[hot][k];
		struct device_byte *db = &b->dev[d];
		uint64_t off = hot_offset(hot) + k;

		if (db->has && p[k] == db->value) {
			/* Its own. */
		} else if (db->has && !db->maybe && off < w.size) {
			print_byte(b);
			fail("device %u: byte %#llx is %u: its own write is lost", d,
			     (unsigned long long)off, p[k]);
		} else if (off >= w.size) {
			/* A long release may not have got there yet. */
			if (fresh && p[k] && !db->has && !release_of(d, (int)hot))
				fail("device %u: byte %#llx beyond the end is %u", d,
				     (unsigned long long)off, p[k]);
		} else {
			check_public(off, p[k], "device");
			db->has = false;
			db->view = p[k];
			db->view_known = !is_view(d);
		}
		if (fresh) {
			db->acquired = w.now;
			db->voided = hot_offset(hot) >= w.size;
		}
	}
}

/* For devices: one range; or, now and then, a list, whose ranges may overlap. */
static unsigned choose_list(const struct op *op, struct gaia_list_range range[LISTED])
{
	unsigned n = op->b / 4096 % 4 ? 1 : 2 + op->b / 16384 % (LISTED - 1);

	for (unsigned k = 0; k < n; k++) {
		struct op its = { .a = op->a + k * (op->d / 64 % 7), .b = op->b + k, .c = op->c + k * (op->d / 512 % 5), .d = op->d + k };

		choose_wide(&its, &range[k].offset, &range[k].length);
	}
	return n;
}

/* How many of the ranges touch the page. */
static unsigned asked_for(const struct gaia_list_range *range, unsigned n, unsigned hot)
{
	uint64_t at = hot_offset(hot);
	unsigned asked = 0;

	for (unsigned k = 0; k < n; k++)
		asked += at + GAIA_PAGE > range[k].offset && at < range[k].offset + range[k].length;
	return asked;
}

static int acquire_list(struct client *cl, const struct gaia_list_range *range, unsigned n, unsigned prot)
{
	struct gaia_list_range copy[LISTED];
	uint64_t seq;

	if (n == 1)
		return client_acquire(cl, range[0].offset, range[0].length, prot);
	for (unsigned k = 0; k < n; k++)
		client_push(cl, range[k].offset, range[k].length);
	memcpy(copy, range, n * sizeof(*copy));
	return cache_acquirev(cl->mapping, copy, n, prot, &seq, NULL);
}

static bool somebody_holds(unsigned device, unsigned hot)
{
	for (unsigned k = 0; k < CLIENTS; k++)
		if (w.held[k].client && w.held[k].client->device == device && w.held[k].holds[hot])
			return true;
	return false;
}

static bool has_stray(unsigned device, uint64_t chunk)
{
	for (unsigned k = 0; k < STRAYS; k++)
		if (w.stray[k].at && w.stray[k].device == device && w.stray[k].chunk == chunk)
			return true;
	return false;
}

/*
 * A page of a chunk that the client has just been handed, and has not acquired: zeros or, always where somebody holds it, current,
 * that is: as the cache has it.
 */
static void check_shown(struct client *cl, unsigned hot)
{
	unsigned char *p = client_at(cl, hot_offset(hot));
	bool held = somebody_holds(cl->device, hot);

	for (unsigned k = 0; k < GAIA_PAGE; k++) {
		struct device_byte *db = &w.byte[hot][k].dev[cl->device];
		uint64_t off = hot_offset(hot) + k;

		if (kernel_is_dirty(w.kf, off)) {
			db->view_known = false;
			continue;
		}
		if (db->has && (p[k] == db->value || db->maybe))
			continue;
		/* A stray stores there when it likes; but where somebody holds the page it is what the holder sees. */
		if (!held && has_stray(cl->device, off / GAIA_CHUNK))
			continue;
		/* Held since before the file reached there: who saw what was stored there has not seen that it counts. */
		if (held && db->voided && (!p[k] || p[k] == db->view))
			continue;
		if (off < w.size && (held || p[k]))
			check_public(off, p[k], "shown");
		else if (p[k] && !db->voided)
			fail("device %u: byte %#llx beyond the end is shown as %u", cl->device,
			     (unsigned long long)off, p[k]);
		/* A holder has been brought up to date by the way. */
		db->view = p[k];
	}
}

static bool is_held(unsigned hot, unsigned device);

static void store_byte(struct held *h, int hot, unsigned k)
{
	uint64_t off = hot_offset((unsigned)hot) + k;
	struct byte *b = &w.byte[hot][k];
	unsigned d = h->client->device;
	struct device_byte *db = &b->dev[d];
	const struct task *t = release_of(d, hot);
	uint8_t value;

	if (t && b->n > ARRAY_LEN(b->last) / 2)
		return;
	value = fresh_value(b);
	client_store(h->client, &value, 1, off);
	/* A long release publishes one part after another: what a device has by then. */
	if (t && off < w.size)
		b->last[b->n++] = (struct last){ .value = value, .owner = (uint8_t)d, .maybe = true, .during = true,
						 .done = NEVER, .task = t->id };
	db->has = true;
	db->value = value;
	/* If it is public by then the CPU may write after it, and a later acquire brings that. */
	db->maybe = db->voided || off >= w.size || t;
	db->knew = db->acquired;
}

/* Whether one of the ranges has all of the page, and the file, too. */
static bool is_whole(const struct gaia_list_range *range, unsigned n, unsigned hot)
{
	uint64_t at = hot_offset(hot);
	bool whole = false;

	for (unsigned k = 0; k < n; k++)
		whole |= at >= range[k].offset && at + GAIA_PAGE <= range[k].offset + range[k].length;
	return whole && at + GAIA_PAGE <= w.size;
}

/* What memory has of a page that was not stored there, and will be published all the same. */
static void take_for_stored(struct held *h, unsigned hot)
{
	unsigned char *p = client_at(h->client, hot_offset(hot));

	for (unsigned k = 0; k < GAIA_PAGE; k++) {
		struct device_byte *db = &w.byte[hot][k].dev[h->client->device];

		if (db->has && !db->maybe)
			continue;
		db->has = db->maybe = true;
		db->value = p[k];
		db->knew = db->acquired;
	}
}

/* A client has just acquired the page, to overwrite it, and stores to all of it, or not. */
static void overwrite(struct held *h, unsigned hot, bool held, bool store)
{
	unsigned char *p = client_at(h->client, hot_offset(hot));
	unsigned d = h->client->device;

	if (!p)
		fail("device %u: acquired, but not mapped", d);
	for (unsigned k = 0; k < GAIA_PAGE; k++) {
		uint64_t off = hot_offset(hot) + k;
		struct byte *b = &w.byte[hot][k];
		struct device_byte *db = &b->dev[d];

		if (held && db->has && !db->maybe && p[k] != db->value) {
			print_byte(b);
			fail("device %u: byte %#llx is %u: what its holder wrote is lost", d, (unsigned long long)off, p[k]);
		}
		if (!held && p[k] && !allowed(b, p[k]) && !has_stray(d, off / GAIA_CHUNK)) {
			print_byte(b);
			fail("device %u: byte %#llx is %u, neither current nor zero", d, (unsigned long long)off, p[k]);
		}
		db->acquired = w.now;
		db->voided = false;
		db->view_known = false;
	}
	h->over[hot] = true;
	take_for_stored(h, hot);
	for (unsigned k = 0; k < GAIA_PAGE && store; k++)
		store_byte(h, (int)hot, k);
}

static bool is_overwritten(unsigned device, unsigned hot)
{
	for (unsigned k = 0; k < CLIENTS; k++)
		if (w.held[k].client && w.held[k].client->device == device && w.held[k].over[hot])
			return true;
	return false;
}

static void op_acquire(const struct op *op, unsigned prot)
{
	bool write = prot & GAIA_PROT_WRITE;
	struct held *h = choose_client(op);
	struct gaia_list_range range[LISTED];
	bool had[HOT] = { false }, held[HOT] = { false };
	unsigned n;
	int err;

	if (!h)
		return;
	/* Releases that are parked have pages locked, and home is made equal to the store. */
	if (op->d % 4 == 1 && !any_task()) {
		trace("no process has the file open for writing");
		if (kfile_writers_leave(w.kf))
			fail("taking over what was written");
	}
	if (!(h->client->prot & GAIA_PROT_WRITE)) {
		write = false;
		prot = GAIA_PROT_READ;
	}
	n = choose_list(op, range);
	for (unsigned k = 0; k < n; k++)
		trace("client %d (device %u) acquires %#llx + %llu%s%s", (int)(h - w.held), h->client->device,
		      (unsigned long long)range[k].offset, (unsigned long long)range[k].length, prot == GAIA_PROT_WRITE ? " to overwrite" : write ? " to write" : "",
		      k + 1 < n ? ", and" : "");
	for (unsigned hot = 0; hot < HOT; hot++)
		had[hot] = client_at(h->client, hot_offset(hot)) != NULL;
	for (unsigned hot = 0; hot < HOT; hot++)
		held[hot] = is_held(hot, h->client->device);
	w.now++;
	err = acquire_list(h->client, range, n, prot);
	/* Pages that nobody holds may show anything while they are copied. */
	rig_readahead(w.rig);
	if (err == -ENOMEM) {
		trace("... there is no room");
		return;
	}
	if (err)
		fail("acquire: %s", strerror(-err));
	for (unsigned hot = 0; hot < HOT; hot++) {
		uint64_t at = hot_offset(hot);
		unsigned asked = asked_for(range, n, hot);
		bool wanted = h->wanted[hot] > 0;

		/* Nothing is there of a chunk that lies beyond the end, but what was mapped before. */
		if (at >= ROUND_UP(w.size, GAIA_CHUNK) && !client_at(h->client, at)) {
			h->wanted[hot] += asked;
			h->wanted_write[hot] |= asked > 0 && write;
			continue;
		}
		wanted &= client_at(h->client, at) != NULL;
		if (!asked && !had[hot] && client_at(h->client, at))
			check_shown(h->client, hot);
		if (!asked && !wanted)
			continue;
		if (wanted) {
			h->holds[hot] += h->wanted[hot];
			h->write[hot] |= h->wanted_write[hot];
			h->wanted[hot] = h->wanted_write[hot] = 0;
		}
		h->holds[hot] += asked;
		h->write[hot] |= asked > 0 && write;
		if (asked && prot == GAIA_PROT_WRITE && is_whole(range, n, hot))
			overwrite(h, hot, held[hot], op->d / 4096 % 8);
		else if (asked)
			check_acquired(h->client, hot, true);
		/* What it had asked for before is held, but says nothing of what came since. */
		for (unsigned k = 0; k < GAIA_PAGE && !asked; k++) {
			w.byte[hot][k].dev[h->client->device].voided = true;
			w.byte[hot][k].dev[h->client->device].view_known = false;
		}
	}
}

static void op_device_store(const struct op *op)
{
	struct held *h = choose_client(op);
	uint64_t off, len;
	unsigned d, tries;
	struct op at = *op;

	if (!h)
		return;
	d = h->client->device;
	for (tries = 0; tries < HOT; tries++, at.a++) {
		choose_range(&at, &off, &len);
		if (h->write[hot_at(off)])
			break;
	}
	if (tries == HOT)
		return;
	trace("client %d (device %u) stores %#llx + %llu", (int)(h - w.held), d,
	      (unsigned long long)off, (unsigned long long)len);
	for (uint64_t k = 0; k < len; k++) {
		int hot = hot_at(off + k);

		/* Now and then beyond the end, which is wrong and harmless. */
		if (!h->write[hot] || (off + k >= w.size && op->d % 8))
			continue;
		store_byte(h, hot, (unsigned)((off + k) % GAIA_PAGE));
	}
}

/* Devices may have been brought up to date because too much was kept for merges: what overwrites changes many pages at once. */
static bool twins_pulled(void)
{
	return w.no_twins || counter_value(CTR_twins_pulled) > 0;
}

/* What clients hold stays as they wrote it, and otherwise as they saw it unless it is brought up to date. */
static void op_device_load(const struct op *op)
{
	struct held *h = choose_client(op);
	unsigned d;

	if (!h)
		return;
	d = h->client->device;
	for (unsigned hot = 0; hot < HOT; hot++) {
		unsigned char *p = client_at(h->client, hot_offset(hot));

		if (!h->holds[hot])
			continue;
		if (!p)
			fail("client %d holds page %u, which is not mapped", (int)(h - w.held), hot);
		for (unsigned k = 0; k < GAIA_PAGE; k++) {
			struct device_byte *db = &w.byte[hot][k].dev[d];

			if (db->has ? !db->maybe && p[k] != db->value :
				      db->view_known && !twins_pulled() && p[k] != db->view) {
				print_byte(&w.byte[hot][k]);
				fail("device %u: byte %#llx has become %u", d,
				     (unsigned long long)hot_offset(hot) + k, p[k]);
			}
		}
	}
}

static void op_release(const struct op *op)
{
	struct held *h = choose_client(op);
	struct gaia_list_range range[LISTED];
	struct task *t;
	unsigned n;

	if (!h)
		return;
	n = choose_list(op, range);
	if (op->c % 3 == 0)
		range[0] = (struct gaia_list_range){ 0, MAX_SIZE };
	for (unsigned k = 0; k < n; k++)
		client_push(h->client, range[k].offset, range[k].length);
	if (agains()) {
		if (op->d % 2) {
			while (agains())
				notifier_step();
		} else {
			pthread_mutex_lock(&w.lock);
			w.free_run = true;
			pthread_cond_broadcast(&w.changed);
			pthread_mutex_unlock(&w.lock);
		}
	}
	h->task = t = xcalloc(1, sizeof(*t));
	t->client = h->client;
	memcpy(t->range, range, sizeof(range));
	t->n_ranges = n;
	t->id = ++w.tasks;
	for (unsigned k = 0; k < n; k++)
		trace("client %d (device %u) releases %#llx + %llu: release %u", (int)(h - w.held), h->client->device,
		      (unsigned long long)range[k].offset, (unsigned long long)range[k].length, t->id);
	for (unsigned hot = 0; hot < HOT; hot++) {
		unsigned asked = asked_for(range, n, hot);
		uint64_t at = hot_offset(hot);

		if (asked == 0)
			continue;
		t->holds[hot] = h->holds[hot] > 0;
		t->writes[hot] = h->write[hot];
		if (h->write[hot] && is_overwritten(h->client->device, hot))
			take_for_stored(h, hot);
		h->over[hot] = false;
		for (unsigned k = 0; k < GAIA_PAGE && h->write[hot]; k++)
			release_began(&w.byte[hot][k], h->client->device, at + k < w.size, t->id);
		h->holds[hot] -= MIN(asked, h->holds[hot]);
		h->write[hot] &= h->holds[hot] > 0;
		h->wanted[hot] -= MIN(asked, h->wanted[hot]);
		h->wanted_write[hot] &= h->wanted[hot] > 0;
	}
	if (pthread_create(&t->thread, NULL, task_main, t))
		fail("no thread");
	pthread_mutex_lock(&w.lock);
	while (t->state == TASK_RUNS)
		pthread_cond_wait(&w.changed, &w.lock);
	pthread_mutex_unlock(&w.lock);
	if (w.free_run)
		finish_all();
	else if (t->state == TASK_DONE)
		task_finished(h);
}

static void op_release_step(const struct op *op)
{
	for (unsigned k = 0; k < CLIENTS; k++) {
		struct held *h = &w.held[(op->a + k) % CLIENTS];

		if (h->task) {
			task_step(h);
			return;
		}
	}
}

/* The client is about to die, and a child of its process keeps what it can write. */
static void keep_memory(struct held *h)
{
	for (unsigned c = 0; c < CHUNKS; c++) {
		unsigned char *at = client_at(h->client, c * GAIA_CHUNK);

		if (!at || !(h->client->prot & GAIA_PROT_WRITE))
			continue;
		at = mremap(at, 0, GAIA_CHUNK, MREMAP_MAYMOVE);
		h->keeps[c] = at == MAP_FAILED ? NULL : at;
	}
}

static void stray_end(struct stray *s)
{
	if (s->at)
		munmap(s->at, GAIA_CHUNK);
	s->at = NULL;
}

/* From here on nothing that is stored there may be seen. */
static void end_dead(struct held *h)
{
	struct cache_device_use use;
	unsigned d = h->client->device;

	cache_device(w.rig->cache, rig_number(w.rig, d), &use);
	h->client->kept = !use.dev->inherited;
	client_end(h->client);
	for (unsigned c = 0; c < CHUNKS; c++) {
		struct stray *s = &w.stray[w.strays % STRAYS];

		if (!h->keeps[c])
			continue;
		stray_end(s);
		*s = (struct stray){ .at = h->keeps[c], .device = d, .chunk = c };
		w.strays++;
	}
	memset(h, 0, sizeof(*h));
}

/* Also if it is being released: until that returns it may be held. */
static bool is_held(unsigned hot, unsigned device)
{
	for (unsigned k = 0; k < CLIENTS; k++) {
		const struct held *h = &w.held[k];

		if (h->client && h->client->device == device && (h->holds[hot] || (h->task && h->task->holds[hot])))
			return true;
	}
	return false;
}

/* All over it, but where a client of the device holds the page: its stores and the stray's cannot be told apart. */
static void op_stray_store(const struct op *op)
{
	struct stray *s = NULL;

	for (unsigned k = 0; k < STRAYS && !s; k++)
		if (w.stray[(op->a + k) % STRAYS].at)
			s = &w.stray[(op->a + k) % STRAYS];
	if (!s)
		return;
	trace("somebody stores to chunk %u in memory of device %u", s->chunk, s->device);
	for (unsigned hot = 0; hot < HOT; hot++) {
		if (hot_offset(hot) / GAIA_CHUNK != s->chunk || is_held(hot, s->device))
			continue;
		for (unsigned k = 0; k < GAIA_PAGE; k++)
			s->at[hot_offset(hot) % GAIA_CHUNK + k] ^= 0x5a;
		for (unsigned k = 0; k < GAIA_PAGE; k++)
			w.byte[hot][k].dev[s->device].view_known = false;
	}
}

/* What clients of a device share is one of the oracle's devices. */
static unsigned n_memories(void)
{
	return w.rig->options.devices + (w.rig->options.host ? 2 : 0);
}

/* What there is of home changes whenever others write. */
static bool is_view(unsigned device)
{
	return w.rig->options.host && device > w.rig->options.devices;
}

static void op_map(const struct op *op)
{
	struct held *h = &w.held[op->a % CLIENTS];
	unsigned d = op->b % n_memories();

	if (h->client && h->dead) {
		trace("client %d is unmapped", (int)(h - w.held));
		end_dead(h);
	} else if (!h->client) {
		h->client = client_create(w.kf, d, is_view(d) || (d < w.rig->options.devices && op->c % 4 == 0) ? GAIA_PROT_READ : GAIA_PROT_RW,
					  MAX_SIZE);
		trace("client %d maps the file on device %u", (int)(h - w.held), d);
	}
}

static void op_die(const struct op *op)
{
	struct held *h = choose_client(op);
	unsigned d;

	if (!h)
		return;
	d = h->client->device;
	trace("client %d (device %u) dies", (int)(h - w.held), d);
	keep_memory(h);
	client_die(h->client);
	h->dead = true;
	for (unsigned hot = 0; hot < HOT; hot++) {
		bool shared = false;

		for (unsigned k = 0; k < CLIENTS; k++)
			shared |= &w.held[k] != h && w.held[k].client && !w.held[k].dead &&
				  w.held[k].client->device == d && w.held[k].write[hot];
		for (unsigned k = 0; k < CLIENTS && shared; k++)
			w.held[k].over[hot] |= h->over[hot] && w.held[k].client && w.held[k].client->device == d && w.held[k].write[hot];
		for (unsigned k = 0; k < GAIA_PAGE && h->write[hot] && !shared; k++) {
			w.byte[hot][k].dev[d].has = false;
			w.byte[hot][k].dev[d].view_known = false;
		}
	}
	memset(h->holds, 0, sizeof(h->holds));
	memset(h->write, 0, sizeof(h->write));
	memset(h->over, 0, sizeof(h->over));
	memset(h->wanted, 0, sizeof(h->wanted));
	memset(h->wanted_write, 0, sizeof(h->wanted_write));
	if (op->b % 2)
		end_dead(h);
}

/* Changes nothing that the oracle knows of. Some programs wait for what is read ahead, in others it comes when it comes. */
static void op_advise(const struct op *op)
{
	static const unsigned advices[] = {
		GAIA_ADVISE_WILLNEED, GAIA_ADVISE_WILLNEED, GAIA_ADVISE_WILLNEED, GAIA_ADVISE_SEQUENTIAL, GAIA_ADVISE_NORMAL,
		GAIA_ADVISE_RANDOM, GAIA_ADVISE_DONTNEED,
	};
	unsigned advice = advices[op->d % ARRAY_LEN(advices)];
	struct held *h = choose_client(op);
	uint64_t off, len;
	int err;

	if (!h)
		return;
	choose_wide(op, &off, &len);
	trace("client %d (device %u) gives advice %u for %#llx + %llu", (int)(h - w.held), h->client->device, advice, (unsigned long long)off,
	      (unsigned long long)len);
	err = cache_advise(h->client->mapping, off, len, advice);
	if (err && err != -EAGAIN)
		fail("advice: %s", strerror(-err));
	if (op->d % 4 > 0)
		rig_readahead(w.rig);
}

static void op_evict(const struct op *op, bool home)
{
	unsigned from = home ? op->c % 16 ? GAIA_FROM_HOME : GAIA_FROM_DEVICE_CACHE : rig_number(w.rig, op->b % n_memories());
	uint64_t off, len;
	bool busy = false;
	int err;

	choose_wide(op, &off, &len);
	trace("%#llx + %llu is evicted from %d", (unsigned long long)off, (unsigned long long)len,
	      (int)from);
	for (unsigned k = 0; k < CLIENTS && !home; k++)
		for (unsigned hot = 0; hot < HOT && w.held[k].client; hot++)
			busy |= w.held[k].holds[hot] && rig_number(w.rig, w.held[k].client->device) == from &&
				hot_offset(hot) / GAIA_CHUNK >= off / GAIA_CHUNK &&
				hot_offset(hot) / GAIA_CHUNK <= (off + len - 1) / GAIA_CHUNK;
	err = cache_evict(w.kf->cfile, from, off, len);
	if (busy ? err != -EBUSY : err && err != -EBUSY)
		fail("evict: %d, %s", err, busy ? "but something is held" : "");
}

static void op_fsync(void)
{
	static unsigned char buf[GAIA_PAGE];
	int err;

	trace("fsync");
	err = cpu_fsync(w.kf);
	if (err)
		fail("fsync: %s", strerror(-err));
	for (unsigned hot = 0; hot < HOT; hot++) {
		uint64_t at = hot_offset(hot);

		if (at >= w.size)
			continue;
		store_peek(w.kf, buf, GAIA_PAGE, at);
		check_bytes(buf, at, MIN(w.size - at, (uint64_t)GAIA_PAGE), "store");
	}
}

static void op_truncate(const struct op *op)
{
	bool held[DEVICES];
	uint64_t size, len;
	int err;

	if (op->c % 8 == 0)
		size = 0;
	else if (op->c % 8 == 1)
		size = MAX_SIZE;
	else
		choose_range(op, &size, &len);
	trace("truncate to %#llx", (unsigned long long)size);
	w.now++;
	err = cpu_truncate(w.kf, size);
	if (err)
		fail("truncate: %s", strerror(-err));
	for (unsigned hot = 0; hot < HOT; hot++) {
		memset(held, 0, sizeof(held));
		for (unsigned k = 0; k < CLIENTS; k++)
			if (w.held[k].client)
				held[w.held[k].client->device] |= w.held[k].holds[hot] > 0;
		for (unsigned k = 0; k < GAIA_PAGE; k++)
			if (size < w.size && hot_offset(hot) + k >= size)
				cut_byte(&w.byte[hot][k], held);
	}
	w.size = size;
}

static void op_zero(const struct op *op, int mode)
{
	uint64_t off, len;
	int err;

	choose_wide(op, &off, &len);
	if (op->d % 2)
		mode |= FALLOC_FL_KEEP_SIZE;
	if (mode & FALLOC_FL_PUNCH_HOLE)
		mode |= FALLOC_FL_KEEP_SIZE;
	trace("%#llx + %llu: %s%s", (unsigned long long)off, (unsigned long long)len,
	      mode & FALLOC_FL_PUNCH_HOLE ? "hole" : "zeros",
	      mode & FALLOC_FL_KEEP_SIZE ? "" : ", may grow");
	w.now++;
	err = cpu_allocate(w.kf, mode, off, len);
	if (err)
		fail("fallocate: %s", strerror(-err));
	for (unsigned hot = 0; hot < HOT; hot++)
		for (unsigned k = 0; k < GAIA_PAGE; k++) {
			uint64_t at = hot_offset(hot) + k;

			if (at >= off && at < off + len && at < w.size)
				cpu_wrote(&w.byte[hot][k], 0);
		}
	if (!(mode & FALLOC_FL_KEEP_SIZE))
		w.size = MAX(w.size, off + len);
}

static void op_copy(const struct op *op)
{
	static unsigned char buf[GROUP_PAGES * GAIA_PAGE];
	struct op other = { .a = op->a / 16, .b = op->b / 16, .c = op->c, .d = op->d };
	uint64_t from, to, len, len2;
	ssize_t n;

	choose_range(op, &from, &len);
	choose_range(&other, &to, &len2);
	len = MIN(len, len2);
	if (any_task() || from >= w.size || (from < to + len && to < from + len))
		return;
	len = MIN(len, w.size - from);
	trace("copy %#llx + %llu to %#llx", (unsigned long long)from, (unsigned long long)len,
	      (unsigned long long)to);
	/* What the daemon takes for the end may lag behind what the kernel knows: then less is copied. */
	while (agains())
		notifier_step();
	w.now++;
	n = cpu_copy(w.kf, from, w.kf, to, len);
	if (n < 0)
		fail("copy: %zd", n);
	if (cpu_read(w.kf, buf, (size_t)n, from) != n)
		fail("copy: its source ends early");
	check_bytes(buf, from, (size_t)n, "copied");
	for (uint64_t k = 0; k < (uint64_t)n; k++) {
		struct byte *b = &w.byte[hot_at(to + k)][(to + k) % GAIA_PAGE];

		cpu_wrote(b, buf[k]);
		/* A value may meet itself, and a write of the value that is there already is none. */
		for (unsigned d = 0; d < DEVICES; d++)
			b->dev[d].maybe |= b->dev[d].value == buf[k];
		if ((uint8_t)(buf[k] - b->used) < 128)
			b->used = buf[k];
	}
	if (n > 0)
		w.size = MAX(w.size, to + (uint64_t)n);
}

static void op_check_all(void)
{
	static unsigned char buf[GAIA_PAGE];

	trace("check everything");
	finish_all();
	cache_check(w.rig->cache);
	for (unsigned hot = 0; hot < HOT; hot++) {
		ssize_t n = cpu_read(w.kf, buf, GAIA_PAGE, hot_offset(hot));

		if (n < 0)
			fail("read: %zd", n);
		check_bytes(buf, hot_offset(hot), (size_t)n, "cpu, in the end");
	}
	cache_check(w.rig->cache);
}

static void run_op(const struct op *op)
{
	switch ((enum kind)op->kind) {
	case CPU_READ:
	case CPU_READ_DIRECT:
		op_read(op, op->kind == CPU_READ_DIRECT);
		break;
	case CPU_WRITE:
	case CPU_STORE:
	case CPU_WRITE_DIRECT:
		op_write(op, op->kind);
		break;
	case KERNEL_WRITEBACK:
		trace("the kernel writes back from page %u of the hot ones on", choose_page(op));
		if (kernel_writeback(w.kf, hot_offset(choose_page(op)), op->b % 2 ? GAIA_PAGE : 0,
				     op->c % 2 ? 1 : 256))
			fail("writeback failed");
		break;
	case KERNEL_RECLAIM:
		trace("the kernel reclaims from page %u of the hot ones on", choose_page(op));
		kernel_reclaim(w.kf, hot_offset(choose_page(op)), op->b % 2 ? GAIA_PAGE : 0);
		break;
	case DEV_ACQUIRE:
	case DEV_ACQUIRE_RW:
	case DEV_OVERWRITE:
		if (op->d / 8 % 4 == 0)
			op_advise(&(struct op){ .a = op->b, .b = op->c, .c = op->a, .d = op->d / 32 });
		op_acquire(op, op->kind == DEV_ACQUIRE ? GAIA_PROT_READ : op->kind == DEV_ACQUIRE_RW ? GAIA_PROT_RW : GAIA_PROT_WRITE);
		break;
	case DEV_STORE:
		op_device_store(op);
		break;
	case DEV_LOAD:
		op_device_load(op);
		break;
	case DEV_RELEASE:
		op_release(op);
		break;
	case RELEASE_STEP:
		op_release_step(op);
		break;
	case RELEASE_FINISH:
		finish_all();
		break;
	case NOTIFIER_STEP:
		notifier_step();
		break;
	case CLIENT_MAP:
		op_map(op);
		break;
	case CLIENT_DIE:
		op_die(op);
		break;
	case EVICT_HOME:
	case EVICT_DEVICE:
		op_evict(op, op->kind == EVICT_HOME);
		break;
	case FSYNC:
		op_fsync();
		break;
	case FLUSH:
		trace("flush");
		if (cache_flush(w.kf->cfile))
			fail("flush failed");
		break;
	case TRUNCATE:
		op_truncate(op);
		break;
	case PUNCH:
		op_zero(op, FALLOC_FL_PUNCH_HOLE);
		break;
	case ZERO:
		op_zero(op, FALLOC_FL_ZERO_RANGE);
		break;
	case COPY:
		op_copy(op);
		break;
	case CHECK_ALL:
		op_check_all();
		break;
	case STRAY_STORE:
		op_stray_store(op);
		break;
	case KINDS:
		break;
	}
}

/* ---- programs ---- */

/* Whether the file begins as one that processes have open past the cache; and whether the host is a device, too. */
static bool passthrough, with_host;
static bool parks, shares;

static uint32_t next_random(uint64_t *seed)
{
	*seed += 0x9e3779b97f4a7c15;

	uint64_t z = *seed;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return (uint32_t)((z ^ (z >> 31)) >> 16);
}

static struct op *make_program(uint64_t seed, unsigned n)
{
	struct op *ops = xcalloc(n, sizeof(*ops));
	unsigned total = 0;

	for (unsigned k = 0; k < KINDS; k++)
		total += weight[k];
	for (unsigned i = 0; i < n; i++) {
		unsigned at = next_random(&seed) % total, kind = 0;

		while (at >= weight[kind])
			at -= weight[kind++];
		ops[i] = (struct op){ (uint8_t)kind, next_random(&seed), next_random(&seed),
				      next_random(&seed), next_random(&seed) };
	}
	return ops;
}

static void world_begin(uint64_t seed)
{
	struct rig_options options = {
		.devices = 1 + (unsigned)(seed % 3),
		.device_chunks = 1 + (unsigned)(seed / 3 % 6),
		.home_bytes = seed % 2 ? CACHE_HOME_MIN : 0,
		.writethrough = seed / 2 % 3 == 0,
		.no_peers = seed / 9 % 3 == 0,
		.passthrough = passthrough,
		.host = with_host,
		.host_chunks = 2 + (unsigned)(seed / 5 % 5),
		.reads_ahead = true,
		/* Two slabs, for which replicas do not always leave room. */
		.device_cache = parks ? 2 * GAIA_CHUNK : 0,
		.dedup = shares ? CACHE_DEDUP_HOME : CACHE_DEDUP_OFF,
		/* So that they share the device's memory, whatever the device. */
		.readers_may_write = true,
	};
	uint64_t size = seed / 4 % 3 ? MAX_SIZE : MAX_SIZE - 700;
	struct store_file *sf;

	w.rig = rig_create(&options);
	if (shares)
		fault_arm("dedup.all", -EEXIST, 0, 0);
	if (shares && seed % 2)
		fault_arm("dedup.collide", -EEXIST, 0, 0);
	if (parks) {
		fault_arm("park.all", -ENOSPC, 0, 0);
		fault_arm("source.store_is_dear", -ENOSPC, 0, 0);
	}
	w.no_twins = seed / 5 % 2;
	if (w.no_twins)
		fault_arm("home.kept_full", -ENOSPC, 0, 0);
	pthread_mutex_init(&w.lock, NULL);
	pthread_cond_init(&w.changed, NULL);
	w.now = 1;
	store_open(w.rig->mem, 1, true, &sf);
	for (unsigned hot = 0; hot < HOT; hot++) {
		unsigned char page[GAIA_PAGE] = { 0 };
		struct iovec iov = { page, GAIA_PAGE };

		/* When equal pages share frames, pages begin with few contents, so that they do. */
		unsigned content = shares ? hot % 4 : hot;

		for (unsigned k = 0; k < GAIA_PAGE; k++) {
			struct byte *b = &w.byte[hot][k];

			b->n = 1;
			/* Some pages are holes. */
			if (hot % 4 != 3 && hot_offset(hot) + k < size)
				page[k] = b->used = (uint8_t)(1 + (content * 7 + k) % 255);
			b->last[0] = (struct last){ .value = page[k], .owner = CPU };
		}
		if (hot % 4 != 3)
			sf->ops->write(sf, &iov, 1, (off_t)hot_offset(hot));
	}
	sf->ops->close(sf);
	w.kf = kfile_create(w.rig, 1, size);
	w.kf->readahead = seed / 5 % 2 ? 3 : 0;
	w.size = size;
	w.leave_at = passthrough && seed / 2 % 2 ? 1 + (unsigned)(seed * 37 % 300) : 0;
	/* All over the file, or on one or two pages, or on few bytes of one. */
	w.focus = seed / 3 % 2 ? 1 + (unsigned)(seed % (HOT - 2)) : 0;
	w.focus_pages = seed / 3 % 2 ? 1 + (unsigned)(seed / 6 % 2) : HOT;
	w.narrow = seed / 3 % 4 == 1;
	w.rig->before_invalidate = before_invalidate;
	for (unsigned k = 0; k < CLIENTS; k++)
		op_map(&(struct op){ .a = k, .b = k, .c = 1 });
}

static void world_end(void)
{
	op_check_all();
	for (unsigned k = 0; k < CLIENTS; k++)
		if (w.held[k].client)
			op_die(&(struct op){ .a = k * 16 });
	op_check_all();
	op_fsync();
	for (unsigned k = 0; k < STRAYS; k++)
		stray_end(&w.stray[k]);
	cache_check(w.rig->cache);
	w.free_run = true;
	rig_destroy(w.rig);
}

/* How many pages have shared slots, in all programs: these are processes. */
static atomic_uint_least64_t *joined;

static void run_program(uint64_t seed, const struct op *ops, const bool *skip, unsigned n, bool verbose)
{
	memset(&w, 0, sizeof(w));
	w.trace = verbose;
	world_begin(seed);
	for (w.step = 0; w.step < n; w.step++) {
		if (w.leave_at && w.step == w.leave_at) {
			trace("the file is cached from now on");
			if (kfile_leave_passthrough(w.kf))
				fail("leaving passthrough");
		}
		if (!skip[w.step])
			run_op(&ops[w.step]);
	}
	world_end();
	atomic_fetch_add(joined, counter_value(CTR_dedup_parked));
}

/* In a process of its own: whether it ends well. */
static bool survives(uint64_t seed, const struct op *ops, const bool *skip, unsigned n, int verbose)
{
	int status, null;
	pid_t pid;

#ifdef __SANITIZE_THREAD__
	/* It does not follow forks of threaded processes. */
	run_program(seed, ops, skip, n, false);
	return true;
#endif
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		if (verbose == 0) {
			null = open("/dev/null", O_WRONLY);
			dup2(null, STDERR_FILENO);
		}
		alarm(verbose == 1 ? 60 : 5);
		run_program(seed, ops, skip, n, verbose > 1);
		_exit(0);
	}
	cr_assert_gt(pid, 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Leave out what is not needed for the failure. */
static void shorten(uint64_t seed, const struct op *ops, bool *skip, unsigned n)
{
	bool *old = xcalloc(n, sizeof(*old));

	for (unsigned part = n / 2; part > 0; part /= 2)
		for (unsigned at = 0; at < n; at += part) {
			bool any = false;

			for (unsigned k = 0; k < part; k++) {
				old[k] = at + k >= n || skip[at + k];
				any |= !old[k];
				if (at + k < n)
					skip[at + k] = true;
			}
			if (any && survives(seed, ops, skip, n, 0))
				for (unsigned k = 0; k < part && at + k < n; k++)
					skip[at + k] = old[k];
		}
	free(old);
}

static void number_from(const char *name, const char *format, unsigned *a, unsigned *b)
{
	const char *text = getenv(name);

	if (text)
		cr_assert_eq(sscanf(text, format, a, b), b ? 2 : 1, "%s=%s", name, text);
}

static void run_all(unsigned last)
{
	unsigned first = 1, n = 400;

	if (!joined)
		joined = mmap(NULL, sizeof(*joined), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq((void *)joined, MAP_FAILED);
	number_from("CACHE_SEEDS", "%u-%u", &first, &last);
	number_from("CACHE_OPS", "%u", &n, NULL);
	for (unsigned seed = first; seed <= last; seed++) {
		struct op *ops = make_program(seed, n);
		bool *skip = xcalloc(n, sizeof(*skip));

		if (!survives(seed, ops, skip, n, 1)) {
			fprintf(stderr, "program %u of %u operations fails; shortened:\n", seed, n);
			shorten(seed, ops, skip, n);
			survives(seed, ops, skip, n, 2);
			cr_assert_fail("program %u", seed);
		}
		free(ops);
		free(skip);
	}
}

/* With sanitizers, which take two and ten times as long, the first ones. */
#ifdef __SANITIZE_THREAD__
#define PROGRAMS(n) ((n) / 3)
#elif defined(__SANITIZE_ADDRESS__)
#define PROGRAMS(n) ((n) / 2)
#else
#define PROGRAMS(n) (n)
#endif

Test(random, every_read_is_allowed, .timeout = 600)
{
	run_all(PROGRAMS(60));
}

/* What leaves home is parked on devices as often as it can be, and read from there. */
Test(random, every_read_is_allowed_with_parked_pages, .timeout = 600)
{
	parks = true;
	run_all(PROGRAMS(40));
}

/* Equal pages share frames, in some programs with hashes that are all the same; in some of them parked pages, too. */
Test(random, every_read_is_allowed_with_shared_frames, .timeout = 600)
{
	shares = true;
	run_all(PROGRAMS(40));
	parks = true;
	run_all(PROGRAMS(20));
	if (!getenv("CACHE_SEEDS"))
		cr_assert_gt(atomic_load(joined), 0u);
}

Test(random, every_read_is_allowed_with_the_host, .timeout = 600)
{
	with_host = true;
	run_all(PROGRAMS(24));
	shares = true;
	run_all(PROGRAMS(12));
}

Test(random, every_read_is_allowed_with_the_host_of_a_passthrough_file, .timeout = 600)
{
	with_host = passthrough = true;
	run_all(PROGRAMS(15));
}

Test(random, every_read_is_allowed_of_a_passthrough_file, .timeout = 600)
{
	passthrough = true;
	run_all(PROGRAMS(40));
}
