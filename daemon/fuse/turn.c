/*
 * turn.c - READs and WRITEs of the same pages take effect in the order in which the kernel made them.
 *
 * A kernel that writes through does not hold on to a page between sending a WRITE of it and the answer.
 * Meanwhile an invalidation may drop the page, and a READ bring it back; or a store through a mapping dirty it, and
 * its write-back overtake the WRITE. Carried out in another order the READ would leave the kernel with a page
 * without the written bytes, and the WRITE would undo the store. (Seen by tests/history, when a device kept
 * the page locked for long.) A kernel that caches writes back waits by itself: pages under write-back stay.
 *
 * So the threads receive one after the other, and note what they received before the next one may; then each
 * waits until those before it that touch its pages are done, if it or they write. Whoever is waited for never waits
 * for a later one, so this adds no deadlock to rule 6 of daemon/README.md.
 */
#include "fuse/internal.h"

#include <linux/fuse.h>

void turns_init(struct turns *turns, bool needed)
{
	turns->needed = needed;
	TAILQ_INIT(&turns->order);
	pthread_mutex_init(&turns->receive, NULL);
	pthread_mutex_init(&turns->lock, NULL);
	pthread_cond_init(&turns->done, NULL);
}

void turns_destroy(struct turns *turns)
{
	pthread_cond_destroy(&turns->done);
	pthread_mutex_destroy(&turns->lock);
	pthread_mutex_destroy(&turns->receive);
}

void turn_receive_begin(struct turns *turns)
{
	if (turns->needed)
		pthread_mutex_lock(&turns->receive);
}

/* Whether the request reads or writes pages, and which. */
static bool parse(const struct fuse_buf *buf, size_t size, struct turn *turn)
{
	const struct fuse_in_header *in = buf->mem;
	const void *arg = in + 1;
	uint64_t off, len;

	if (in->opcode == FUSE_READ && size >= sizeof(*in) + sizeof(struct fuse_read_in)) {
		const struct fuse_read_in *rd = arg;

		off = rd->offset;
		len = rd->size;
	} else if (in->opcode == FUSE_WRITE && size >= sizeof(*in) + sizeof(struct fuse_write_in)) {
		const struct fuse_write_in *wr = arg;

		off = wr->offset;
		len = wr->size;
	} else {
		return false;
	}
	turn->node = in->nodeid;
	turn->write = in->opcode == FUSE_WRITE;
	turn->first = off / GAIA_PAGE;
	turn->last = (off + MAX(len, 1u) - 1) / GAIA_PAGE;
	return true;
}

void turn_receive_end(struct turns *turns, const struct fuse_buf *buf, int size, struct turn *turn)
{
	turn->listed = false;
	if (!turns->needed)
		return;
	if (size > 0 && parse(buf, (size_t)size, turn)) {
		turn->listed = true;
		pthread_mutex_lock(&turns->lock);
		TAILQ_INSERT_TAIL(&turns->order, turn, link);
		pthread_mutex_unlock(&turns->lock);
	}
	pthread_mutex_unlock(&turns->receive);
}

/* lock held. Whether one before it must be done first. */
static bool must_wait(struct turns *turns, const struct turn *turn)
{
	struct turn *t;

	TAILQ_FOREACH(t, &turns->order, link) {
		if (t == turn)
			return false;
		if (t->node == turn->node && (t->write || turn->write) && t->first <= turn->last &&
		    turn->first <= t->last)
			return true;
	}
	return false;
}

void turn_wait(struct turns *turns, const struct turn *turn)
{
	if (!turn->listed)
		return;
	pthread_mutex_lock(&turns->lock);
	while (must_wait(turns, turn))
		pthread_cond_wait(&turns->done, &turns->lock);
	pthread_mutex_unlock(&turns->lock);
}

void turn_end(struct turns *turns, struct turn *turn)
{
	if (!turn->listed)
		return;
	pthread_mutex_lock(&turns->lock);
	TAILQ_REMOVE(&turns->order, turn, link);
	pthread_cond_broadcast(&turns->done);
	pthread_mutex_unlock(&turns->lock);
}
