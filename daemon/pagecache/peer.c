/*
 * peer.c - pages that come from another device.
 *
 * Where another device has just the bytes that home has, or would have, and can be copied from, an acquire
 * takes them from there: past the host's memory and its bus, which all devices share, and without
 * bringing home what was dropped there. In all else such a page is as if home had sent it. What does not
 * work is left to home.
 *
 * What lies between two GPUs may not be made for it: where an IOMMU translates, such copies are not supported,
 * which is no promise that they fail. So what first comes from a device is compared with what it has, byte by
 * byte, before it is used.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pagecache/state.h"

void peers_find(struct cache *c)
{
	for (unsigned i = 0; i < c->n_devices; i++)
		for (unsigned k = 0; k < c->n_devices; k++)
			c->dev[i].peer[k] = device_reaches(c->dev[i].dev, c->dev[k].dev) ? PEER_NEW :
											   PEER_NONE;
}

static _Atomic uint8_t *peer_state(const struct replica *rep, const struct replica *from)
{
	return &rep->dev->peer[from->dev->index];
}

/* chunk->lock held. The chunk's replicas from which @rep may be filled. */
static unsigned list_sources(const struct replica *rep, struct replica **out)
{
	const struct chunk *ch = rep->chunk;
	unsigned n = 0;

	for (unsigned k = 0; k < ch->n_replicas; k++) {
		struct replica *from = ch->replica[k];

		if (!from->only && !replica_is_spoiled(from) && *peer_state(rep, from) != PEER_NONE && !atomic_load(&from->dev->gone))
			out[n++] = from;
	}
	return n;
}

/* What @rep has of the pages that @like is about. */
static int read_pages(const struct replica *rep, const struct dev_op *like, char *out)
{
	struct dev_run *runs = xmalloc(like->n * sizeof(*runs));
	struct dev_op op = { .kind = DEV_COPY_OUT, .runs = runs, .n = like->n };
	int err;

	for (unsigned k = 0; k < op.n; k++) {
		const struct dev_run *run = &like->runs[k];

		runs[k] = (struct dev_run){ .mem = rep->mem, .page = run->page, .npages = run->npages,
					    .host = out };
		out += (size_t)run->npages * GAIA_PAGE;
	}
	err = cache_device_run(rep->dev, &op);
	free(runs);
	return err;
}

/* Compare what came by @op, @n pages, with what was sent. */
static int prove(const struct replica *rep, const struct replica *from, const struct dev_op *op,
		 unsigned n)
{
	size_t bytes = (size_t)n * GAIA_PAGE;
	char *sent = aligned_alloc(GAIA_PAGE, 2 * bytes), *came = sent + bytes;
	int err = sent ? 0 : -ENOMEM;

	if (!err)
		err = read_pages(from, op, sent);
	if (!err)
		err = read_pages(rep, op, came);
	if (!err && memcmp(sent, came, bytes)) {
		log_warn("device %s: what it copied from %s arrived wrong, so pages go through home; is it an IOMMU? (boot with iommu=pt)",
			 rep->dev->dev->name, from->dev->dev->name);
		err = -EBADMSG;
	}
	/* All alike they could have been there before, or come from anywhere. */
	if (!err && memcmp(sent, sent + 1, bytes - 1))
		atomic_compare_exchange_strong(peer_state(rep, from), &(uint8_t){ PEER_NEW }, PEER_PROVEN);
	free(sent);
	return err;
}

/* @n: pages in all of the runs. */
static int send_from(struct replica *rep, struct replica *from, struct dev_op *op, unsigned n)
{
	int err = cache_device_run(rep->dev, op);

	if (!err && *peer_state(rep, from) == PEER_NEW)
		err = prove(rep, from, op, n);
	if (err)
		count(CTR_peer_failures, 1);
	if (err == -EHOSTUNREACH || err == -EBADMSG)
		atomic_store(peer_state(rep, from), PEER_NONE);
	return err;
}

void peer_send(struct replica *rep, unsigned a, unsigned b, uint8_t *step, struct dev_run *runs)
{
	struct replica *source[CACHE_MAX_DEVICES];
	struct chunk *ch = rep->chunk;
	unsigned n_sources;

	/* While we hold locks of its pages no replica of the chunk goes (3). */
	pthread_mutex_lock(&ch->lock);
	n_sources = list_sources(rep, source);
	for (unsigned k = 0; k < n_sources; k++) {
		struct replica *from = source[k];
		struct dev_op op = { .kind = DEV_COPY_PEER, .runs = runs, .from = from->dev->dev };
		uint64_t taken[GAIA_CHUNK_PAGES / 64] = { 0 };
		unsigned n = 0;
		int err;

		for (unsigned i = a; i < b; i++)
			if (step[i] == TRACK_SEND && replica_is_home(from, i)) {
				dev_run_add(&op, runs, rep->mem, i, NULL, from->mem);
				bit_set(taken, i);
				n++;
			}
		if (n == 0)
			continue;
		pthread_mutex_unlock(&ch->lock);
		err = send_from(rep, from, &op, n);
		pthread_mutex_lock(&ch->lock);
		for (unsigned i = a; i < b; i++) {
			if (!bit_test(taken, i))
				continue;
			if (err) {
				replica_garbled(rep, i);
				continue;
			}
			replica_sent(rep, i);
			step[i] = TRACK_NOTHING;
		}
		if (!err)
			count(CTR_device_to_device, n);
	}
	pthread_mutex_unlock(&ch->lock);
}
