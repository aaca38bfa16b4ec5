/*
 * mapping.c - the process's mappings, by address and by number.
 */
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdlib.h>
#include <sys/param.h>
#include <unistd.h>

#include "sides.h"

/* gaia_lock. Trees of tsearch(3). */
static void *by_addr;	/* the mappings' ranges [base, base + span), which do not overlap */
static void *by_id;

static int compare_addr(const void *a, const void *b)
{
	const struct mapping *x = a, *y = b;

	if (x->base + x->span <= y->base)
		return -1;
	return x->base >= y->base + y->span;
}

static int compare_id(const void *a, const void *b)
{
	const struct mapping *x = a, *y = b;

	if (x->conn != y->conn)
		return x->conn < y->conn ? -1 : 1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static struct mapping *node(void *found)
{
	return found ? *(struct mapping **)found : NULL;
}

/* A mapping whose reserved addresses overlap this range, or NULL; the lock is held. */
static struct mapping *find_overlap(const char *addr, size_t length)
{
	struct mapping key = { .base = (char *)addr, .span = length };

	return node(tfind(&key, &by_addr, compare_addr));
}

static void call(const void *found, VISIT which, void *fn)
{
	if (which == preorder || which == leaf)
		(*(void (**)(struct mapping *m))fn)(*(struct mapping **)found);
}

void mappings_each(void (*fn)(struct mapping *m))
{
	twalk_r(by_addr, call, &fn);
}

/* By both numbers, or by none. The lock is held. */
static int number(struct mapping *m)
{
	if (tsearch(m, &by_id, compare_id)) {
		if (!m->sides || tsearch(m->sides->reader, &by_id, compare_id))
			return 0;
		tdelete(m, &by_id, compare_id);
	}
	return -ENOMEM;
}

int mapping_number(struct mapping *m)
{
	int err;

	pthread_mutex_lock(&gaia_lock);
	err = number(m);
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

static void unnumber(struct mapping *m)
{
	tdelete(m, &by_id, compare_id);
	/* Known by its number only. */
	if (m->sides)
		tdelete(m->sides->reader, &by_id, compare_id);
}

static void forget(struct mapping *m)
{
	tdelete(m, &by_addr, compare_addr);
	unnumber(m);
}

/* For twalk_r(): mappings of a connection. */
struct listing {
	const struct conn *conn;
	struct mapping **at; /* NULL: they are only counted */
	size_t n;
};

static void list_one(const void *found, VISIT which, void *arg)
{
	struct mapping *m = *(struct mapping **)found;
	struct listing *l = arg;

	if ((which != preorder && which != leaf) || m->conn != l->conn)
		return;
	if (l->at)
		l->at[l->n] = m;
	l->n++;
}

int mappings_unnumber(struct conn *c, struct mapping ***out, size_t *n)
{
	struct listing l = { .conn = c };

	twalk_r(by_addr, list_one, &l);
	l.at = malloc((l.n + 1) * sizeof(*l.at));
	if (!l.at)
		return -ENOMEM;
	l.n = 0;
	twalk_r(by_addr, list_one, &l);
	for (size_t k = 0; k < l.n; k++) {
		unnumber(l.at[k]);
		l.at[k]->id = 0;
		if (l.at[k]->sides)
			l.at[k]->sides->reader->id = 0;
	}
	*out = l.at;
	*n = l.n;
	return 0;
}

int mapping_reserve(struct mapping *m, const struct gaia_ioc_device *device)
{
	uint64_t unit = m->ops->extents ? GAIA_EXTENT : GAIA_CHUNK, lead = m->offset % unit;
	int err;

	if (m->length > SIZE_MAX - 2 * GAIA_EXTENT)
		return -ENOMEM;
	m->start = m->offset - lead;
	m->span = (lead + m->length + unit - 1) / unit * unit;
	err = m->ops->reserve(m, device);
	if (err)
		return err;
	m->addr = m->base + lead;
	if (!m->ops->extents)
		return 0;
	m->extents = calloc(m->span / GAIA_EXTENT / 64 + 1, sizeof(m->extents[0]));
	if (m->extents)
		return 0;
	m->ops->unreserve(m, true);
	free(m->own);
	return -ENOMEM;
}

/* Drop the tables' references to an ancestor's mappings whose addresses now belong to @new. The lock is held. */
static void forget_ancestors(const struct mapping *new, struct mapping **put, size_t *n, size_t max)
{
	struct mapping *old;

	while (*n < max && (old = find_overlap(new->base, new->span))) {
		forget(old);
		put[(*n)++] = old;
	}
}

int mapping_add(struct mapping *m)
{
	struct mapping *old[16];
	size_t n;
	int err = 0;

	do {
		n = 0;
		pthread_mutex_lock(&gaia_lock);
		forget_ancestors(m, old, &n, sizeof(old) / sizeof(old[0]));
		pthread_mutex_unlock(&gaia_lock);
		for (size_t i = 0; i < n; i++)
			mapping_put(old[i]);
	} while (n);

	pthread_mutex_lock(&gaia_lock);
	m->refs = 1;
	if (!tsearch(m, &by_addr, compare_addr))
		err = -ENOMEM;
	if (!err && number(m)) {
		tdelete(m, &by_addr, compare_addr);
		err = -ENOMEM;
	}
	pthread_mutex_unlock(&gaia_lock);
	return err;
}

struct mapping *mapping_find(const char *addr, size_t length)
{
	struct mapping *m;

	pthread_mutex_lock(&gaia_lock);
	m = find_overlap(addr, 1);
	if (m && (addr < m->addr || addr >= m->addr + m->length ||
		  length > (size_t)(m->addr + m->length - addr)))
		m = NULL;
	if (m)
		m->refs++;
	pthread_mutex_unlock(&gaia_lock);
	return m;
}

struct mapping *mapping_exact(const char *addr, size_t length, int *err)
{
	struct mapping *m;

	pthread_mutex_lock(&gaia_lock);
	m = find_overlap(addr, 1);
	*err = 0;
	if (!m || m->addr != addr || m->length != length)
		*err = -EINVAL;
	else if (m->conn->forked)
		*err = -ENOTCONN;
	else
		m->refs++;
	pthread_mutex_unlock(&gaia_lock);
	return *err ? NULL : m;
}

bool mapping_remove(struct mapping *m)
{
	bool known;

	pthread_mutex_lock(&gaia_lock);
	known = find_overlap(m->base, 1) == m;
	if (known)
		forget(m);
	m->gone |= known;
	while (known && (m->busy || m->looking || (m->sides && m->sides->reader->busy)))
		pthread_cond_wait(&m->conn->changed, &gaia_lock);
	pthread_mutex_unlock(&gaia_lock);
	return known;
}

static void free_reader(struct mapping *reader)
{
	mapping_disconnect(reader);
	free(reader);
}

void mapping_put(struct mapping *m)
{
	unsigned refs;

	pthread_mutex_lock(&gaia_lock);
	refs = --m->refs;
	pthread_mutex_unlock(&gaia_lock);
	if (refs)
		return;
	if (m->sides)
		free_reader(sides_free(m));
	mapping_disconnect(m);
	detect_end(m);
	held_end(m);
	free(m->own);
	free(m->extents);
	free(m);
}

/* Chunks of a mapping, from its base. */
struct chunks {
	uint64_t first;
	unsigned n;
};

/* What the message's ith entry names, and with it all of a placed extent of which that is a part. */
static struct chunks entry(const struct mapping *m, const struct gaia_msg *msg, uint64_t extents, unsigned i)
{
	uint64_t first = msg->chunk[i] - m->start / GAIA_CHUNK;

	if (extents >> i & 1 || extent_is_placed(m, first))
		return (struct chunks){ first / GAIA_EXTENT_CHUNKS * GAIA_EXTENT_CHUNKS, GAIA_EXTENT_CHUNKS };
	return (struct chunks){ first, 1 };
}

/* As many entries from the @i-th on as name neighbouring chunks: *@out are these. */
static unsigned revoke_run(const struct mapping *m, const struct gaia_msg *msg, unsigned i, struct chunks *out)
{
	unsigned n = 1;

	*out = entry(m, msg, 0, i);
	for (; i + n < msg->count; n++) {
		struct chunks next = entry(m, msg, 0, i + n);

		if (next.first < out->first || next.first > out->first + out->n)
			break;
		out->n = (unsigned)MAX(out->n, next.first + next.n - out->first);
	}
	return n;
}

/* Called without the lock, while the mapping is busy. */
static int carry_out_revoke(struct mapping *m, const struct gaia_msg *msg)
{
	struct chunks run;
	int err = 0;

	for (unsigned i = 0; i < msg->count && !err;) {
		i += revoke_run(m, msg, i, &run);
		err = m->ops->clear(m, run.first, run.n);
	}
	return err;
}

/* Extents that the entry's chunks touch give way as a whole: a part of one cannot stay. */
static int give_way(struct mapping *m, const struct gaia_msg *msg, uint64_t extents, unsigned i)
{
	struct chunks c = entry(m, msg, extents, i);

	return extent_is_placed(m, c.first) ? m->ops->clear(m, c.first, c.n) : 0;
}

/* As above. All of it is placed, or nothing. */
static int carry_out_grant(struct mapping *m, const struct gaia_msg *msg, const int *fd, uint64_t extents)
{
	unsigned run, i, placed = 0;
	int err = 0;

	for (i = 0; i < msg->count && !err; i++)
		err = give_way(m, msg, extents, i);
	for (i = 0; i < msg->count && !err; i += run) {
		placed = i;
		for (run = 1; i + run < msg->count && msg->chunk[i + run] == msg->chunk[i] + chunks_behind(run, extents >> i);)
			run++;
		err = m->ops->place(m, msg->chunk[i] - m->start / GAIA_CHUNK, run, fd + i, extents >> i, msg->prot);
	}
	/* A chunk that cannot be cleared stays: the daemon asks for it again, as if it had been placed. */
	for (i = 0; i < placed && err; i++) {
		struct chunks c = entry(m, msg, extents, i);

		m->ops->clear(m, c.first, c.n);
	}
	return err;
}

static struct mapping *find_id(struct conn *c, uint64_t id)
{
	struct mapping key = { .conn = c, .id = id };

	return node(tfind(&key, &by_id, compare_id));
}

bool mapping_takes(struct conn *c, const struct gaia_msg *msg)
{
	struct mapping *m = find_id(c, msg->map);

	if (msg->kind != GAIA_MSG_GRANT && msg->kind != GAIA_MSG_REVOKE)
		return false;
	if (m && msg->prot & ~(unsigned)m->prot)
		return false;
	for (unsigned i = 0; m && i < msg->count; i++)
		if (msg->chunk[i] - m->start / GAIA_CHUNK >= m->span / GAIA_CHUNK)
			return false;
	return true;
}

/* The lock is held. */
static void note(struct mapping *m, const struct gaia_msg *msg, uint64_t extents, bool placed)
{
	for (unsigned i = 0; m->detect && i < msg->count; i++) {
		struct chunks c = entry(m, msg, extents, i);

		detect_placed(m, c.first, c.n, placed);
	}
}

int mapping_message(struct conn *c, const struct gaia_msg *msg, const int *fd, uint64_t extents)
{
	struct mapping *m = find_id(c, msg->map);
	int err;

	/* It may just have been unmapped: then there is nothing to do. */
	if (!m)
		return 0;
	/* It has no addresses for them. */
	if (extents && !m->extents)
		return -EPROTO;
	m->busy = true;
	note(m, msg, extents, false);
	pthread_mutex_unlock(&gaia_lock);
	err = msg->kind == GAIA_MSG_GRANT ? carry_out_grant(m, msg, fd, extents) : carry_out_revoke(m, msg);
	pthread_mutex_lock(&gaia_lock);
	if (!err && msg->kind == GAIA_MSG_GRANT)
		note(m, msg, extents, true);
	m->busy = false;
	pthread_cond_broadcast(&c->changed);
	return err;
}

/* ---- files ---- */

int file_get(struct conn *c, int fd, ino_t ino, struct map_file **out)
{
	int access = fcntl(fd, F_GETFL) & O_ACCMODE, err = 0;
	struct map_file *f;

	pthread_mutex_lock(&gaia_lock);
	LIST_FOREACH(f, &c->files, link)
		if (f->ino == ino && f->access == access)
			break;
	if (f) {
		f->refs++;
	} else {
		/* Under the lock, so that a child finds and closes it. */
		f = calloc(1, sizeof(*f));
		err = f ? 0 : -ENOMEM;
	}
	if (!err && !f->refs) {
		f->ino = ino;
		f->access = access;
		f->refs = 1;
		f->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		err = f->fd < 0 ? -errno : 0;
		if (err)
			free(f);
		else
			LIST_INSERT_HEAD(&c->files, f, link);
	}
	pthread_mutex_unlock(&gaia_lock);
	if (!err)
		*out = f;
	return err;
}

void file_put(struct map_file *f)
{
	pthread_mutex_lock(&gaia_lock);
	if (--f->refs) {
		pthread_mutex_unlock(&gaia_lock);
		return;
	}
	LIST_REMOVE(f, link);
	pthread_mutex_unlock(&gaia_lock);
	/* Without the lock, since closing sends the daemon a request (FLUSH). */
	if (f->fd >= 0)
		close(f->fd);
	free(f);
}

void files_forked(struct conn *c)
{
	struct map_file *f;

	/* Children would keep the files open otherwise. */
	LIST_FOREACH(f, &c->files, link) {
		close(f->fd);
		f->fd = -1;
	}
}
