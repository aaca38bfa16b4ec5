/*
 * detect.c - which pages have changed while they were held for writing, found where the data is (GAIA_DETECT=client).
 *
 * The library remembers a hash of each page that is acquired for writing, and compares it when the page is released: on a GPU by a kernel in the
 * program's own context, in the order of its stream, so that the daemon needs no kernel of its own. The release tells the daemon what has
 * changed (GAIA_PROT_TOLD).
 *
 * A page is *sure* if its hash tells what this release has to publish: when it was acquired nobody held it for writing by this mapping, nor has
 * anybody acquired it since, and no release of it was under way, except one before it in the same stream. All other pages that are held for
 * writing are said to have changed. That costs work, and publishes no wrong byte. A release ends the sureness of what stays held.
 *
 * A queued release gives its holds back when it is queued, not when it is carried out: so a stream that acquires, works and releases in turn, all
 * queued ahead, is sure of its pages. If anything that was queued fails, the daemon is told nothing any more, and finds out itself (detect.lost).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>

#include "internal.h"

/* Tables are in proportion to the mapping, wherever in it the program works. A longer one is left to the daemon. */
#define LENGTH_MOST (64ull << 30)

struct detect_page {
	uint64_t stream;  /* of the last release that was queued and not carried out; 0: several */
	uint32_t coming;  /* acquires under way: no release takes their holds */
	uint32_t holds;	  /* at least those that the daemon counts */
	uint16_t queued;  /* so many releases are queued, and not carried out */
	bool writes;	  /* since there were none of both an acquire was for writing */
	bool sure;
	bool hashed;	  /* sure, and its hash was taken, or will have been when a stream comes to what is queued next */
};

static enum { BY_DAEMON, BY_CLIENT, WHERE_IT_PAYS } asked;

static void read_environment(void)
{
	const char *value = secure_getenv("GAIA_DETECT");

	asked = !value ? BY_DAEMON : !strcmp(value, "client") ? BY_CLIENT : !strcmp(value, "auto") ? WHERE_IT_PAYS : BY_DAEMON;
}

static bool is_wanted(const struct mapping *m)
{
	return asked == BY_CLIENT || (asked == WHERE_IT_PAYS && m->ops->detects_stores);
}

static size_t table_bytes(const struct mapping *m)
{
	return m->span / GAIA_PAGE * sizeof(struct detect_page);
}

void detect_init(struct mapping *m)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct detect *d;
	void *table;

	pthread_once(&once, read_environment);
	if (!is_wanted(m) || !(m->prot & PROT_WRITE) || !m->ops->detect_make || m->length > LENGTH_MOST)
		return;
	d = calloc(1, sizeof(*d) + m->span / GAIA_CHUNK * sizeof(d->placed[0]));
	table = mmap(NULL, table_bytes(m), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (d)
		d->asked_for = asked == BY_CLIENT;
	if (d && table != MAP_FAILED && !m->ops->detect_make(m, d)) {
		d->page = table;
		m->detect = d;
		return;
	}
	if (table != MAP_FAILED)
		munmap(table, table_bytes(m));
	free(d);
}

void detect_end(struct mapping *m)
{
	if (!m->detect)
		return;
	munmap(m->detect->page, table_bytes(m));
	free(m->detect);
	m->detect = NULL;
}

void detect_placed(struct mapping *m, uint64_t first, unsigned n, bool placed)
{
	memset(m->detect->placed + first, placed, n * sizeof(m->detect->placed[0]));
}

void detect_moved(struct mapping *m)
{
	if (!m->detect)
		return;
	pthread_mutex_lock(&gaia_lock);
	memset(m->detect->placed, 0, m->span / GAIA_CHUNK * sizeof(m->detect->placed[0]));
	pthread_mutex_unlock(&gaia_lock);
}

/* ---- the memory stays while it is looked at ---- */

static bool look_begin(struct mapping *m)
{
	bool there;

	pthread_mutex_lock(&gaia_lock);
	there = !m->gone;
	m->looking += there;
	pthread_mutex_unlock(&gaia_lock);
	return there;
}

static void look_end(struct mapping *m)
{
	pthread_mutex_lock(&gaia_lock);
	m->looking--;
	pthread_cond_broadcast(&m->conn->changed);
	pthread_mutex_unlock(&gaia_lock);
}

/* ---- pages ---- */

static uint64_t first_page(const struct mapping *m)
{
	return m->start / GAIA_PAGE;
}

/* Pages of the range, from m->base, from @from on; *@b: behind the last. Returns the first. */
static uint64_t pages_from(const struct mapping *m, const struct gaia_list_range *range, uint64_t from, uint64_t *b)
{
	uint64_t a = range->offset / GAIA_PAGE - first_page(m);

	*b = (range->offset + range->length - 1) / GAIA_PAGE + 1 - first_page(m);
	return MAX(a, from);
}

/* For each page of the ranges, which are sorted, as often as ranges touch it. */
#define FOR_PAGES(m, range, n, page)                                                                     \
	for (size_t k_ = 0; k_ < (n); k_++)                                                              \
		for (uint64_t end_, page = pages_from(m, &(range)[k_], 0, &end_); page < end_; page++)

static void drop_hold(struct detect_page *p)
{
	p->holds -= p->holds > 0;
	p->writes = p->writes && p->holds + p->coming > 0;
	p->sure = false;
}

static bool runs_add(struct detect_runs *rs, uint64_t page, bool compare)
{
	struct detect_run *last = rs->n > 0 ? &rs->at[rs->n - 1] : NULL, *more;

	if (last && last->page + last->n == page && last->compare == compare && last->n < UINT32_MAX) {
		last->n++;
		return true;
	}
	if (rs->n == rs->room) {
		more = realloc(rs->at, (2 * rs->room + 8) * sizeof(*more));
		if (!more)
			return false;
		rs->at = more;
		rs->room = 2 * rs->room + 8;
	}
	rs->at[rs->n++] = (struct detect_run){ page, 1, compare };
	return true;
}

void detect_runs_free(struct detect_runs *rs)
{
	free(rs->at);
	*rs = (struct detect_runs){ .n = 0 };
}

/* ---- acquires ---- */

/*
 * As @stream sees it: nobody writes the page, or will have written it when the stream comes to what is queued now. The caller is counted as
 * coming. Where stores are looked for nobody may hold it at all, since what holds keep in place can be pinned for devices.
 */
static bool is_free(const struct mapping *m, const struct detect_page *p, uint64_t stream)
{
	if (m->ops->detects_stores && p->holds + p->coming > 1)
		return false;
	return !p->writes && (p->queued == 0 || (stream && p->stream == stream));
}

void detect_acquire(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot, uint64_t stream)
{
	if (!m->detect)
		return;
	pthread_mutex_lock(&gaia_lock);
	FOR_PAGES(m, range, n, i) {
		struct detect_page *p = &m->detect->page[i];

		p->coming++;
		/* A reader, too, may have it pinned for a device before it is looked at. */
		if (m->ops->detects_stores && !p->hashed)
			p->sure = false;
		if (!(prot & PROT_WRITE))
			continue;
		p->sure = is_free(m, p, stream) && prot & PROT_READ;
		p->hashed = false;
		p->writes = true;
	}
	pthread_mutex_unlock(&gaia_lock);
}

/* The pages of which a hash is to be remembered. The lock is held. */
static void to_arm(struct mapping *m, const struct gaia_list_range *range, size_t n, struct detect_runs *rs)
{
	FOR_PAGES(m, range, n, i) {
		struct detect_page *p = &m->detect->page[i];

		if (p->sure)
			p->sure = m->detect->placed[i / GAIA_CHUNK_PAGES] && runs_add(rs, i, true);
	}
}

/* Their hashes were taken, or could not be. */
static void hashed(struct mapping *m, const struct detect_runs *rs, bool good)
{
	pthread_mutex_lock(&gaia_lock);
	for (size_t k = 0; k < rs->n; k++)
		for (uint64_t i = rs->at[k].page; i < rs->at[k].page + rs->at[k].n; i++) {
			struct detect_page *p = &m->detect->page[i];

			p->sure = p->sure && good;
			p->hashed = p->sure;
		}
	pthread_mutex_unlock(&gaia_lock);
}

void detect_acquired(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot)
{
	struct detect_runs rs = { .n = 0 };

	if (!m->detect || !(prot & PROT_WRITE) || atomic_load(&m->detect->lost) || !look_begin(m))
		return;
	pthread_mutex_lock(&gaia_lock);
	to_arm(m, range, n, &rs);
	pthread_mutex_unlock(&gaia_lock);
	if (rs.n > 0)
		hashed(m, &rs, m->ops->detect(m, &rs, false) == 0);
	detect_runs_free(&rs);
	look_end(m);
}

void detect_settled(struct mapping *m, const struct gaia_list_range *range, size_t n, bool good)
{
	if (!m->detect)
		return;
	pthread_mutex_lock(&gaia_lock);
	FOR_PAGES(m, range, n, i) {
		struct detect_page *p = &m->detect->page[i];

		p->coming--;
		p->holds++;
		if (!good)
			drop_hold(p);
	}
	pthread_mutex_unlock(&gaia_lock);
}

void detect_dropped(struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	if (!m->detect)
		return;
	pthread_mutex_lock(&gaia_lock);
	FOR_PAGES(m, range, n, i)
		drop_hold(&m->detect->page[i]);
	pthread_mutex_unlock(&gaia_lock);
}

/* ---- releases ---- */

/*
 * All of it, each page once. What is sure is to be compared, and is sure no more. What was acquired and is not hashed yet, as nobody
 * has waited for it (gaia_wait()), the program may not even touch. False: no memory. The lock is held.
 */
static bool to_compare(struct mapping *m, const struct gaia_list_range *range, size_t n, struct detect_runs *rs)
{
	uint64_t next = 0, b;
	bool complete = true;

	for (size_t k = 0; k < n; k++) {
		for (uint64_t i = pages_from(m, &range[k], next, &b); i < b; i++) {
			struct detect_page *p = &m->detect->page[i];

			/* What is not known to be held counts as changed, too: others may be acquiring it, or have taken its hold. */
			complete = complete && runs_add(rs, i, p->sure && p->hashed && m->detect->placed[i / GAIA_CHUNK_PAGES]);
			p->sure = false;
			next = i + 1;
		}
	}
	return complete;
}

/* The ranges of pages that have changed, or may have, by runs that have been compared. They lie in [from, end), bytes of the file. */
static void tell(struct mapping *m, const struct detect_runs *rs, uint64_t from, uint64_t end, struct detect_told *out)
{
	const uint8_t *changed = m->detect->changed;
	struct gaia_list_range *more;
	size_t room = 0;
	uint64_t last = 0; /* behind the last page that was told */

	if (atomic_load(&m->detect->lost))
		return;
	out->known = true;
	for (size_t k = 0; k < rs->n; k++) {
		const struct detect_run *run = &rs->at[k];

		for (uint64_t i = run->page; i < run->page + run->n; i++) {
			uint64_t at = (first_page(m) + i) * GAIA_PAGE;

			if (run->compare && !changed[i])
				continue;
			if (out->n == 0 || last != i) {
				if (out->n == room || out->n == GAIA_LIST_MOST) {
					more = out->n < GAIA_LIST_MOST ? realloc(out->range, (room = 2 * room + 8) * sizeof(*more)) : NULL;
					if (!more) {
						out->known = false;
						return;
					}
					out->range = more;
				}
				out->range[out->n++] = (struct gaia_list_range){ .offset = MAX(at, from) };
			}
			last = i + 1;
			out->range[out->n - 1].length = MIN(at + GAIA_PAGE, end) - out->range[out->n - 1].offset;
		}
	}
}

static uint64_t end_of(const struct gaia_list_range *range, size_t n)
{
	uint64_t end = 0;

	for (size_t k = 0; k < n; k++)
		end = MAX(end, range[k].offset + range[k].length);
	return end;
}

/* Whether there is anything to tell that the daemon would not find as well, at the same cost. */
static bool worth_telling(const struct mapping *m, const struct detect_runs *rs)
{
	for (size_t k = 0; k < rs->n && m->ops->detects_stores; k++)
		if (rs->at[k].compare && memchr(m->detect->changed + rs->at[k].page, 0, rs->at[k].n))
			return true;
	return !m->ops->detects_stores;
}

void detect_release(struct mapping *m, const struct gaia_list_range *range, size_t n, struct detect_told *out)
{
	struct detect_runs rs = { .n = 0 };
	bool complete, any = false;

	*out = (struct detect_told){ .n = 0 };
	if (!m->detect || !look_begin(m))
		return;
	pthread_mutex_lock(&gaia_lock);
	complete = to_compare(m, range, n, &rs);
	pthread_mutex_unlock(&gaia_lock);
	for (size_t k = 0; k < rs.n; k++)
		any |= rs.at[k].compare;
	complete = complete && !atomic_load(&m->detect->lost);
	if (complete && any)
		complete = m->ops->detect(m, &rs, true) == 0;
	if (complete && worth_telling(m, &rs))
		tell(m, &rs, range[0].offset, end_of(range, n), out);
	detect_runs_free(&rs);
	look_end(m);
}

/*
 * What is still as an acquire began with it, and nobody has waited for, has not changed. Other pages count as changed: a release may have taken the
 * hold that is to be given back, and this takes that of another acquire instead, whose stores must not be lost.
 */
void detect_give_back(struct mapping *m, const struct gaia_list_range *range, size_t n, struct detect_told *out)
{
	struct detect_runs rs = { .n = 0 };
	uint64_t next = 0, b;
	bool complete = true;

	*out = (struct detect_told){ .n = 0 };
	if (!m->detect)
		return;
	pthread_mutex_lock(&gaia_lock);
	for (size_t k = 0; k < n; k++) {
		for (uint64_t i = pages_from(m, &range[k], next, &b); i < b; i++) {
			struct detect_page *p = &m->detect->page[i];

			if (!p->sure || p->hashed)
				complete = complete && runs_add(&rs, i, false);
			p->sure = false;
			next = i + 1;
		}
	}
	pthread_mutex_unlock(&gaia_lock);
	if (complete)
		tell(m, &rs, range[0].offset, end_of(range, n), out);
	detect_runs_free(&rs);
}

void detect_told_free(struct detect_told *told)
{
	free(told->range);
}

/* ---- in the order of a stream ---- */

void detect_queue_acquired(struct mapping *m, const struct gaia_list_range *range, struct detect_runs *rs)
{
	pthread_mutex_lock(&gaia_lock);
	to_arm(m, range, 1, rs);
	pthread_mutex_unlock(&gaia_lock);
}

void detect_queue_hashed(struct mapping *m, const struct detect_runs *rs, bool good)
{
	hashed(m, rs, good);
}

void detect_queue_release(struct mapping *m, const struct gaia_list_range *range, uint64_t stream, struct detect_runs *rs)
{
	pthread_mutex_lock(&gaia_lock);
	if (!to_compare(m, range, 1, rs))
		atomic_store(&m->detect->lost, true);
	FOR_PAGES(m, range, 1, i) {
		struct detect_page *p = &m->detect->page[i];

		drop_hold(p);
		p->stream = p->queued > 0 && p->stream != stream ? 0 : stream;
		p->queued++;
	}
	pthread_mutex_unlock(&gaia_lock);
}

void detect_queue_tell(struct mapping *m, const struct gaia_list_range *range, const struct detect_runs *rs, struct detect_told *out)
{
	*out = (struct detect_told){ .n = 0 };
	tell(m, rs, range->offset, range->offset + range->length, out);
}

void detect_queue_released(struct mapping *m, const struct gaia_list_range *range)
{
	pthread_mutex_lock(&gaia_lock);
	FOR_PAGES(m, range, 1, i)
		m->detect->page[i].queued--;
	pthread_mutex_unlock(&gaia_lock);
}

void detect_lost(struct mapping *m)
{
	if (m->detect)
		atomic_store(&m->detect->lost, true);
}
