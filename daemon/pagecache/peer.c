/*
 * peer.c - pages that come from another device; or, to readers that have memory of their own, from what the others share on the same one.
 *
 * If another device has exactly the bytes that home has, or would have, and can be copied from, an acquire
 * takes them from there: without using the host's memory and its bus, which all devices share, and without
 * bringing home what was dropped there. In every other respect it is as if home had sent the page. Pages for
 * which that fails are left to home.
 *
 * The connection between two GPUs may not be made for such copies: if an IOMMU translates they are not supported,
 * which does not mean that they fail. So the first copies from a device are compared with what the device has, byte by
 * byte, before they are used.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/peer.h"

#include "base/bits.h"
#include "base/counters.h"
#include "base/log.h"
#include "base/uses.h"
#include "base/util.h"
#include "consistency/track.h"
#include "pagecache/bring.h"
#include "pagecache/cache.h"
#include "pagecache/chunk.h"
#include "pagecache/devices.h"
#include "pagecache/file.h"
#include "pagecache/replica.h"
#include "pagecache/root.h"
#include "pagecache/run.h"
#include "pagecache/state.h"
#include "pagecache/view.h"

void peers_find(struct cache *c, struct cache_device *dev)
{
	for (unsigned k = 0; k <= dev->index; k++) {
		struct cache_device *other = &c->dev[k];

		dev->peer[k] = device_reaches(dev->dev, other->dev) ? PEER_NEW : PEER_NONE;
		other->peer[dev->index] = device_reaches(other->dev, dev->dev) ? PEER_NEW : PEER_NONE;
	}
}

/* The chunk's replica on device @from that all clients share, if @rep may be filled from there. chunk->lock is held. */
static struct replica *find_source(const struct replica *rep, const struct cache_device *from)
{
	const struct chunk *ch = rep->chunk;

	for (unsigned k = 0; k < ch->n_replicas; k++) {
		struct replica *other = ch->replica[k];

		if (other->dev == from && !other->only)
			return replica_is_spoiled(other) ? NULL : other;
	}
	return NULL;
}

bool peer_gives(const struct replica *rep, const struct replica *from)
{
	/* What is in view is home's. */
	if (replica_is_view(rep) || from->only || replica_is_spoiled(from) || atomic_load(&from->dev->gone))
		return false;
	if (from->dev == rep->dev)
		return rep->only != NULL;
	return atomic_load(&rep->dev->peer[from->dev->index]) != PEER_NONE;
}

/* Read the pages that @like is about, where they came from (@sent) or where they are now. */
static int read_pages(struct cache_device *dev, const struct dev_op *like, bool sent, char *out)
{
	struct dev_run *runs = xmalloc(like->n * sizeof(*runs));
	struct dev_op op = { .kind = DEV_COPY_OUT, .runs = runs, .n = like->n };
	int err;

	for (unsigned k = 0; k < op.n; k++) {
		const struct dev_run *run = &like->runs[k];

		runs[k] = (struct dev_run){ .mem = sent ? run->other : run->mem, .page = run->page, .npages = run->npages, .host = out };
		out += (size_t)run->npages * GAIA_PAGE;
	}
	err = cache_device_run(dev, &op);
	free(runs);
	return err;
}

/* So much of what came is compared at a time. */
#define PROOF_PAGES 256u

/* -EBADMSG: a piece did not arrive as it was sent. *@telling: its bytes were not all alike. */
static int prove_piece(struct cache_device *dev, struct cache_device *from, const struct dev_op *piece, size_t bytes, char *sent, bool *telling)
{
	char *came = sent + (size_t)PROOF_PAGES * GAIA_PAGE;
	int err = read_pages(from, piece, true, sent);

	if (!err)
		err = read_pages(dev, piece, false, came);
	if (!err && memcmp(sent, came, bytes))
		err = -EBADMSG;
	if (!err)
		*telling |= memcmp(sent, sent + 1, bytes - 1) != 0;
	return err;
}

/* Compare what @op brought with what was sent. */
static int prove(struct cache_device *dev, struct cache_device *from, const struct dev_op *op)
{
	struct dev_run runs[PROOF_PAGES];
	struct dev_op piece = { .kind = op->kind, .runs = runs };
	char *sent = aligned_alloc(GAIA_PAGE, 2 * (size_t)PROOF_PAGES * GAIA_PAGE);
	unsigned n = 0, take;
	bool telling = false;
	int err = sent ? 0 : -ENOMEM;

	for (unsigned k = 0; k < op->n; k++)
		for (unsigned at = 0; at < op->runs[k].npages && !err; at += take) {
			take = MIN(op->runs[k].npages - at, PROOF_PAGES - n);
			runs[piece.n] = op->runs[k];
			runs[piece.n].page += at;
			runs[piece.n++].npages = take;
			n += take;
			if (n < PROOF_PAGES && (k + 1 < op->n || at + take < op->runs[k].npages))
				continue;
			err = prove_piece(dev, from, &piece, (size_t)n * GAIA_PAGE, sent, &telling);
			piece.n = n = 0;
		}
	if (err == -EBADMSG)
		log_warn("device %s: what it copied from %s arrived wrong, so pages go through home; an IOMMU may be the cause (boot with iommu=pt)",
			 dev->dev->name, from->dev->name);
	/* If all bytes were alike they could have been there before, or come from anywhere: that proves nothing. */
	if (!err && telling)
		atomic_compare_exchange_strong(&dev->peer[from->index], &(uint8_t){ PEER_NEW }, PEER_PROVEN);
	free(sent);
	return err;
}

static int send_from(struct cache_device *dev, struct cache_device *from, struct dev_op *op)
{
	int err = cache_device_run(dev, op);

	if (!err && op->kind == DEV_COPY_PEER && dev->peer[from->index] == PEER_NEW)
		err = prove(dev, from, op);
	if (err)
		count(CTR_peer_failures, 1);
	if (op->kind == DEV_COPY_PEER && (err == -EHOSTUNREACH || err == -EBADMSG))
		atomic_store(&dev->peer[from->index], PEER_NONE);
	return err;
}

/* Add to @op the part's pages that @from has; their step is PEER_COMES from now on. How many. */
#define PEER_COMES 31 /* no step of the plan; see part_run() */
static unsigned add_pages(struct part *pt, const struct cache_device *from, struct dev_op *op, struct dev_run *runs)
{
	struct replica *source;
	unsigned n = 0;

	if (!part_has(pt, STEP(SEND)))
		return 0;
	/* While we hold locks of its pages no replica of the chunk is freed (3). */
	pthread_mutex_lock(&pt->ch->lock);
	source = find_source(pt->rep, from);
	for (unsigned i = pt->a; source && (i = bits_first(pt->todo, i, pt->b)) < pt->b; i++)
		if (pt->step[i] == TRACK_SEND && replica_is_home(source, i)) {
			dev_run_add(op, runs, pt->rep->mem, i, NULL, source->mem);
			pt->step[i] = PEER_COMES;
			n++;
		}
	pthread_mutex_unlock(&pt->ch->lock);
	return n;
}

/* They have come, or not. */
static void pages_came(struct part *pt, bool armed, int err)
{
	pthread_mutex_lock(&pt->ch->lock);
	for (unsigned i = pt->a; (i = bits_first(pt->todo, i, pt->b)) < pt->b; i++) {
		if (pt->step[i] != PEER_COMES)
			continue;
		pt->step[i] = err ? TRACK_SEND : TRACK_NOTHING;
		if (err)
			replica_garbled(pt->rep, i);
		else
			replica_sent(pt->rep, i);
		if (!err && armed)
			replica_armed(pt->rep, i);
	}
	pthread_mutex_unlock(&pt->ch->lock);
}

static void send_window(struct part **part, unsigned n, struct cache_device *from, struct dev_run *runs)
{
	struct cache_device *dev = part[0]->rep->dev;
	struct dev_op op = { .kind = DEV_COPY_PEER, .runs = runs, .from = from->dev, .arm = parts_arm(part, n) };
	unsigned n_pages = 0;
	int err;

	for (unsigned k = 0; k < n; k++)
		n_pages += add_pages(part[k], from, &op, runs);
	if (n_pages == 0)
		return;
	if (from == dev)
		op = (struct dev_op){ .kind = DEV_COPY_WITHIN, .runs = runs, .n = op.n };
	err = send_from(dev, from, &op);
	for (unsigned k = 0; k < n; k++)
		pages_came(part[k], op.arm, err);
	if (err)
		return;
	count(from == dev ? CTR_device_within : CTR_device_to_device, n_pages);
	if (from != dev)
		moved(&part[0]->ch->file->moved, MOVED_to_device_bytes, (uint64_t)n_pages * GAIA_PAGE);
}

void peers_send(struct part **part, unsigned n, struct dev_run *runs)
{
	struct cache_device *dev = part[0]->rep->dev;
	struct cache *c = part[0]->ch->file->cache;

	for (unsigned k = 0; k < c->n_devices && !replica_is_view(part[0]->rep); k++)
		if ((&c->dev[k] == dev ? part[0]->rep->only != NULL : atomic_load(&dev->peer[k]) != PEER_NONE) &&
		    !atomic_load(&c->dev[k].gone))
			send_window(part, n, &c->dev[k], runs);
}
