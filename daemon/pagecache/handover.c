/*
 * handover.c - handing chunks to clients.
 *
 * A chunk is handed to a client once, though several of its threads may acquire pages of it at the same time: otherwise the
 * client would map it anew, and a kernel that uses the earlier mapping would access unmapped memory. The other threads wait, and
 * say, too, which message their caller must have handled.
 *
 * A client can read all of a chunk that it is handed. So the chunk is made ready first, see show() and scrub.c.
 */
#include <string.h>
#include <unistd.h>

#include "pagecache/handover.h"

#include "base/bits.h"
#include "base/fault.h"
#include "base/log.h"
#include "pagecache/bring.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/evict.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/home.h"
#include "pagecache/passthrough.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/scrub.h"
#include "pagecache/state.h"

/* Whether the caller has to hand it over. Of an extent the first one's grant decides, and the caller hands over all. */
static bool delivery_begin(struct grant *g, bool first)
{
	struct chunk *ch = g->replica->chunk;
	bool mine;

	pthread_mutex_lock(&ch->lock);
	if (g->mapping->kept == 1 + g->index)
		g->delivered = 1;
	mine = !g->delivered && !g->in_delivery;
	bug_on(!mine && !first);
	if (mine)
		g->in_delivery = true;
	pthread_mutex_unlock(&ch->lock);
	return mine;
}

/* @seq: the message that brought it, or 0: it has failed. @sent: the client may have got it all the same. */
static void delivery_end(struct grant *g, uint64_t seq, bool sent)
{
	struct chunk *ch = g->replica->chunk;

	pthread_mutex_lock(&ch->lock);
	g->in_delivery = false;
	g->delivered = seq;
	/* The client may also have got it by an earlier attempt. */
	g->offered = (g->offered || sent) && !seq;
	pthread_cond_broadcast(&ch->unlocked);
	pthread_mutex_unlock(&ch->lock);
}

bool delivery_wait(struct grant *g, uint64_t *seq)
{
	struct chunk *ch = g->replica->chunk;
	bool done;

	pthread_mutex_lock(&ch->lock);
	if (g->in_delivery) {
		pthread_mutex_unlock(&ch->lock);
		(void)fault_point("acquire.awaits_grant");
		pthread_mutex_lock(&ch->lock);
	}
	while (g->in_delivery)
		page_wait(ch);
	*seq = MAX(*seq, g->delivered);
	done = g->delivered;
	pthread_mutex_unlock(&ch->lock);
	return done;
}

/* How many pages of the chunk are in the file, if only in part. It may grow meanwhile. */
static unsigned pages_in_file(const struct chunk *ch)
{
	unsigned end = GAIA_CHUNK_PAGES;

	while (end > 0 && page_limit(ch, end - 1) == 0)
		end--;
	return end;
}

/* The next page before @end that has to be brought, from @i on; or @end. Of what the index says is current nothing has. chunk->lock is held. */
static unsigned next_to_bring(struct replica *rep, unsigned i, unsigned end, const uint64_t *held)
{
	while ((i = bits_first(rep->stale, i, end)) < end && !replica_to_bring(rep, i, bit_test(held, i), true))
		i++;
	return i;
}

/*
 * Bring all pages of the chunk that somebody holds or released up to date, and see which others must become zeros. Its pages are locked. What CPU
 * programs make the file longer by from now on is still zeros there.
 */
static int show_first(struct to_show *show)
{
	struct replica *rep = show->rep;
	struct chunk *ch = rep->chunk;
	uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 };
	int err = passthrough_catch_up(ch, 0, GAIA_CHUNK_PAGES);

	pthread_mutex_lock(&ch->lock);
	show->end = pages_in_file(ch);
	replica_held(rep, 0, GAIA_CHUNK_PAGES, held);
	for (unsigned i = 0, j; !err && (i = next_to_bring(rep, i, show->end, held)) < show->end; i = j) {
		for (j = i + 1; j < show->end && next_to_bring(rep, j, j + 1, held) == j; j++)
			;
		pthread_mutex_unlock(&ch->lock);
		err = replica_bring(rep, i, j);
		pthread_mutex_lock(&ch->lock);
	}
	if (!err)
		replica_find_old(rep, show->end, show->old);
	pthread_mutex_unlock(&ch->lock);
	return err;
}

/*
 * The same of one more chunk, if its pages can be locked without waiting, and nothing has to be brought: see rule 22. What CPU programs write from
 * then on the client may see or not.
 */
static bool show_joins(struct to_show *show)
{
	struct replica *rep = show->rep;
	struct chunk *ch = rep->chunk;
	uint64_t held[GAIA_CHUNK_PAGES / 64] = { 0 };
	bool joins;

	pthread_mutex_lock(&ch->lock);
	joins = passthrough_has_caught_up(ch) && pages_trylock(ch, 0, GAIA_CHUNK_PAGES);
	if (joins) {
		show->end = pages_in_file(ch);
		replica_held(rep, 0, GAIA_CHUNK_PAGES, held);
		joins = next_to_bring(rep, 0, show->end, held) == show->end;
		if (joins)
			replica_find_old(rep, show->end, show->old);
		else
			pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
	}
	pthread_mutex_unlock(&ch->lock);
	return joins;
}

/*
 * Called when the client is about to map all of these chunks, in ascending order, though it has acquired only parts. Pages of several
 * are locked together, so that one operation makes zeros of all that must be. Sets *@n to how many were made ready: one at least, or it has failed.
 */
#define SHOWN_AT_ONCE 32u
static int show(struct cfile *f, struct grant **g, unsigned *n)
{
	struct to_show show[SHOWN_AT_ONCE] = { 0 };
	unsigned locked = 1;
	int err;

	pthread_rwlock_rdlock(&f->range);
	for (unsigned k = 0; k < *n; k++)
		show[k].rep = g[k]->replica;
	pthread_mutex_lock(&show[0].rep->chunk->lock);
	pages_lock(show[0].rep->chunk, 0, GAIA_CHUNK_PAGES);
	pthread_mutex_unlock(&show[0].rep->chunk->lock);
	err = show_first(&show[0]);
	for (; locked < *n && !err && show_joins(&show[locked]); locked++)
		bug_on(g[locked]->index <= g[locked - 1]->index);
	if (!err)
		err = replicas_zero(show, locked);
	for (unsigned k = 0; k < locked; k++) {
		struct chunk *ch = show[k].rep->chunk;

		pthread_mutex_lock(&ch->lock);
		pages_unlock(ch, 0, GAIA_CHUNK_PAGES);
		pthread_mutex_unlock(&ch->lock);
		chunk_account(ch);
	}
	pthread_rwlock_unlock(&f->range);
	*n = locked;
	return err;
}

/* Chunks, and extents, that are handed to the client by one message. */
struct delivery {
	struct grant **g;   /* in order, all of an extent's */
	uint64_t n;	    /* of these; */
	unsigned entries;   /* chunks and extents */
	uint64_t seq;
	struct handover *answer; /* what the client says; NULL: nothing */
	bool sent;
};

/* The descriptors that the message brings, and of what. */
struct brought_memory {
	uint64_t idx[GAIA_MSG_CHUNKS];
	unsigned chunks[GAIA_MSG_CHUNKS];
	int fd[GAIA_MSG_CHUNKS];
};

/* How many chunks are handed over with this one by one descriptor, if it is the first of them. */
static unsigned chunks_together(const struct grant *g)
{
	return g->replica->mem->joined ? GAIA_EXTENT_CHUNKS : 1;
}

static int export_all(const struct mapping *m, const struct delivery *d, struct brought_memory *b)
{
	struct device *dev = m->dev->dev;
	uint64_t at = 0;

	for (unsigned k = 0; k < d->entries; k++) {
		b->idx[k] = d->g[at]->index;
		b->chunks[k] = chunks_together(d->g[at]);
		b->fd[k] = dev->ops->export_fd(dev, d->g[at]->replica->mem, m->export_write);
		if (b->fd[k] < 0) {
			int err = b->fd[k];

			log_error("device %s: exporting a chunk: %s", dev->name, strerror(-err));
			while (k > 0)
				close(b->fd[--k]);
			return err;
		}
		at += b->chunks[k];
	}
	bug_on(at != d->n);
	return 0;
}

static int deliver(struct mapping *m, struct delivery *d)
{
	struct brought_memory b;
	unsigned shown;
	int err = 0;

	for (uint64_t k = 0; k < d->n && !err; k += shown) {
		shown = (unsigned)MIN(d->n - k, (uint64_t)SHOWN_AT_ONCE);
		err = show(m->file, d->g + k, &shown);
	}
	if (!err)
		err = export_all(m, d, &b);
	if (err)
		return err;
	(void)fault_point("acquire.before_grant");
	d->sent = true;
	return m->file->cache->host.grant(m->client, m->id, m->prot, b.idx, b.fd, b.chunks, d->entries, &d->seq, &d->answer);
}

/* The delivery ends: with @err, or with what the client answers. It may begin again then. */
static int deliver_end(const struct mapping *m, struct delivery *d, int err)
{
	if (!err && d->answer)
		err = m->file->cache->host.granted(d->answer);
	/* The first of an extent at last: another thread may begin with it. */
	for (uint64_t k = d->n; k-- > 0;)
		delivery_end(d->g[k], err ? 0 : d->seq, d->sent);
	*d = (struct delivery){ .g = NULL };
	return err;
}

/* Whether the grant's chunk is to be handed over by the caller: then, with all that go with it, it joins the delivery. */
static void deliver_too(struct delivery *d, struct grant **list, uint64_t *n, struct grant **g, unsigned chunks)
{
	if (!delivery_begin(g[0], true))
		return;
	for (unsigned k = 1; k < chunks; k++)
		(void)delivery_begin(g[k], false);
	if (d->n == 0)
		d->g = list + *n;
	memcpy(list + *n, g, chunks * sizeof(*g));
	*n += chunks;
	d->n += chunks;
	d->entries++;
}

/*
 * Hand over those chunks that nobody is handing over. While the client maps what one message has brought, the next one is made ready: to map
 * a chunk of a GPU, and to export it, takes tens of microseconds each.
 */
static int deliver_mine(struct mapping *m, struct grant **grant, uint64_t n)
{
	struct grant **list = xcalloc(n, sizeof(struct grant *));
	struct delivery two[2] = { { .g = NULL } }, *d, *before;
	unsigned at = 0, chunks;
	uint64_t n_list = 0;
	int err = 0, ended;

	for (uint64_t i = 0; i < n && !err; i += chunks) {
		d = &two[at];
		before = &two[!at];
		chunks = chunks_together(grant[i]);
		deliver_too(d, list, &n_list, grant + i, chunks);
		if (d->n == 0 || (d->entries < GAIA_MSG_CHUNKS && i + chunks < n))
			continue;
		err = deliver(m, d);
		ended = deliver_end(m, before, 0);
		if (err)
			(void)deliver_end(m, d, err);
		err = ended ? ended : err;
		at = !at;
	}
	ended = deliver_end(m, &two[!at], 0);
	free(list);
	return err ? err : ended;
}

/* Whether the next one belongs to the same extent, whose memory is one. */
static bool is_same_extent(const struct grant *g, const struct grant *next)
{
	return g->replica->mem->joined && g->replica->extent == next->replica->extent;
}

static bool is_delivered(const struct grant *g)
{
	bool delivered;

	pthread_mutex_lock(&g->replica->chunk->lock);
	delivered = g->delivered;
	pthread_mutex_unlock(&g->replica->chunk->lock);
	return delivered;
}

/*
 * All that have to be handed over for these: an extent goes as a whole, also what of it was not acquired, of which nobody has seen yet whether
 * clients hold it that are gone. To be freed.
 */
static struct grant **with_their_extents(struct mapping *m, struct grant **grant, uint64_t n, uint64_t *n_all)
{
	struct grant **all = xcalloc(n * GAIA_EXTENT_CHUNKS + 1, sizeof(struct grant *));
	struct living known = { .n = 0 };

	*n_all = 0;
	for (uint64_t k = 0; k < n; k++) {
		/* It is pinned, and so the client keeps it. */
		unsigned chunks = is_delivered(grant[k]) ? 0 : chunks_together(grant[k]);

		if (chunks == 1)
			all[(*n_all)++] = grant[k];
		for (unsigned i = 0; i < chunks && chunks > 1; i++) {
			struct replica *member = grant[k]->replica->extent->member[i];

			replica_drop_dead(member, &known);
			all[(*n_all)++] = grant_get(m, member);
		}
		while (k + 1 < n && is_same_extent(grant[k], grant[k + 1]))
			k++;
	}
	return all;
}

int grants_deliver(struct mapping *m, struct grant **grant, uint64_t n)
{
	struct grant **all = with_their_extents(m, grant, n, &n);
	uint64_t seq = 0;
	bool missing = n > 0;
	int err = 0;

	while (missing && !err) {
		err = deliver_mine(m, all, n);
		/* Only now: a thread that hands over what we wait for may be waiting for what we hand over. */
		missing = false;
		for (uint64_t i = 0; i < n && !err; i++)
			missing |= !delivery_wait(all[i], &seq);
	}
	free(all);
	return err;
}
