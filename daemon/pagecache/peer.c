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

#include "pagecache/internal.h"

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

		if (!from->only && *peer_state(rep, from) != PEER_NONE && !atomic_load(&from->dev->gone))
			out[n++] = from;
	}
	return n;
}

static int read_page(const struct replica *rep, unsigned i, void *out)
{
	struct dev_run run = { .mem = rep->mem, .page = i, .npages = 1, .host = out };
	struct dev_op op = { .kind = DEV_COPY_OUT, .runs = &run, .n = 1 };

	return cache_device_run(rep->dev, &op);
}

/* Compare what came. *@telling: it was such that nothing else could have been taken for it. */
static int check_pages(const struct replica *rep, const struct replica *from, const struct dev_op *op,
		       bool *telling)
{
	char *sent = aligned_alloc(GAIA_PAGE, 2 * GAIA_PAGE), *came = sent + GAIA_PAGE;
	int err = sent ? 0 : -ENOMEM;

	for (unsigned k = 0; k < op->n && !err; k++) {
		unsigned first = op->runs[k].page, end = first + op->runs[k].npages;

		for (unsigned i = first; i < end && !err; i++) {
			err = read_page(from, i, sent);
			if (!err)
				err = read_page(rep, i, came);
			if (!err && memcmp(sent, came, GAIA_PAGE))
				err = -EBADMSG;
			*telling |= !err && memcmp(sent, sent + 1, GAIA_PAGE - 1);
		}
	}
	free(sent);
	return err;
}

/* The first copies from a device. */
static int prove(const struct replica *rep, const struct replica *from, const struct dev_op *op)
{
	bool telling = false;
	int err = check_pages(rep, from, op, &telling);

	if (err == -EBADMSG)
		log_warn("device %s: what it copied from %s arrived wrong, so pages go through home; is it an IOMMU? (boot with iommu=pt)",
			 rep->dev->dev->name, from->dev->dev->name);
	if (!err && telling)
		atomic_store(peer_state(rep, from), PEER_PROVEN);
	return err;
}

static int send_from(struct replica *rep, struct replica *from, struct dev_op *op)
{
	int err = cache_device_run(rep->dev, op);

	if (!err && *peer_state(rep, from) == PEER_NEW)
		err = prove(rep, from, op);
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
		int err;

		for (unsigned i = a; i < b; i++)
			if (step[i] == TRACK_SEND && track_is_home(&ch->track->page[i], &from->page[i])) {
				dev_run_add(&op, runs, rep->mem, i, NULL, from->mem);
				bit_set(taken, i);
			}
		if (op.n == 0)
			continue;
		pthread_mutex_unlock(&ch->lock);
		err = send_from(rep, from, &op);
		pthread_mutex_lock(&ch->lock);
		for (unsigned i = a; i < b; i++) {
			if (!bit_test(taken, i))
				continue;
			if (err) {
				rep->page[i].flags = 0; /* part of old, part of new */
				continue;
			}
			track_sent(&ch->track->page[i], &rep->page[i]);
			step[i] = TRACK_NOTHING;
		}
		if (!err)
			count(CTR_device_to_device, bits_count(taken, GAIA_CHUNK_PAGES / 64));
	}
	pthread_mutex_unlock(&ch->lock);
}
