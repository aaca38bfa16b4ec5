/*
 * policy.c - see policy.h.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "policy.h"

#define NONE UINT32_MAX

/* ---- queues of slots ---- */

struct queue {
	uint32_t head, tail;
	uint32_t length;
};

struct link {
	uint32_t prev, next;
	uint8_t in;		/* the number of its queue; 0: in none */
	uint8_t from;		/* the queue that it was chosen from */
};

static void push_tail(struct queue *q, struct link *links, uint32_t slot, uint8_t in)
{
	links[slot] = (struct link){ .prev = q->tail, .next = NONE, .in = in, .from = in };
	if (q->tail == NONE)
		q->head = slot;
	else
		links[q->tail].next = slot;
	q->tail = slot;
	q->length++;
}

static void push_head(struct queue *q, struct link *links, uint32_t slot, uint8_t in)
{
	links[slot] = (struct link){ .prev = NONE, .next = q->head, .in = in, .from = in };
	if (q->head == NONE)
		q->tail = slot;
	else
		links[q->head].prev = slot;
	q->head = slot;
	q->length++;
}

static void take_out(struct queue *q, struct link *links, uint32_t slot)
{
	struct link *l = &links[slot];

	if (l->prev == NONE)
		q->head = l->next;
	else
		links[l->prev].next = l->next;
	if (l->next == NONE)
		q->tail = l->prev;
	else
		links[l->next].prev = l->prev;
	l->in = 0;
	q->length--;
}

/* ---- FIFO and LRU: one queue ---- */

struct one_queue {
	struct queue queue;
	struct link links[];
};

static void *one_queue_create(void *arg, uint32_t slots)
{
	struct one_queue *p = calloc(1, sizeof(*p) + slots * sizeof(p->links[0]));

	if (p)
		p->queue = (struct queue){ NONE, NONE, 0 };
	return p;
}

static void one_queue_inserted(void *state, uint32_t slot, uint64_t page)
{
	struct one_queue *p = state;

	push_tail(&p->queue, p->links, slot, 1);
}

static void fifo_hit(void *state, uint32_t slot)
{
	struct one_queue *p = state;

	push_head(&p->queue, p->links, slot, 1);
}

static void lru_hit(void *state, uint32_t slot)
{
	one_queue_inserted(state, slot, 0);
}

static uint32_t one_queue_victim(void *state)
{
	struct one_queue *p = state;
	uint32_t slot = p->queue.head;

	if (slot != NONE)
		take_out(&p->queue, p->links, slot);
	return slot;
}

static void one_queue_removed(void *state, uint32_t slot, int evicted)
{
	struct one_queue *p = state;

	if (p->links[slot].in)
		take_out(&p->queue, p->links, slot);
}

const struct gaia_umap_policy umap_fifo = {
	.size = sizeof(umap_fifo),
	.create = one_queue_create,
	.destroy = free,
	.inserted = one_queue_inserted,
	.hit = fifo_hit,
	.victim = one_queue_victim,
	.removed = one_queue_removed,
};

const struct gaia_umap_policy umap_lru = {
	.size = sizeof(umap_lru),
	.create = one_queue_create,
	.destroy = free,
	.inserted = one_queue_inserted,
	.hit = lru_hit,
	.victim = one_queue_victim,
	.removed = one_queue_removed,
};

/* ---- S3-FIFO ---- */

enum { SMALL = 1, MAIN = 2 };

/*
 * Ghosts: sets of four in a table with two places for each slot. A page is a ghost until as many others have become
 * ghosts after it as there are slots, or four later ones of its set.
 */
#define SET 4

struct ghost {
	uint64_t page;
	uint64_t since;		/* the number of its becoming one; 0: none */
};

struct s3 {
	struct queue queues[3];	/* by SMALL, MAIN */
	uint32_t slots, small_target;
	struct link *links;
	uint64_t *pages;	/* by slot */
	struct ghost *ghosts;
	uint64_t sets;		/* a power of two */
	uint64_t ghosts_made;
};

static struct ghost *ghost_set(struct s3 *p, uint64_t page)
{
	return &p->ghosts[SET * ((page * 0x9e3779b97f4a7c15 >> 20) & (p->sets - 1))];
}

static bool take_ghost(struct s3 *p, uint64_t page)
{
	struct ghost *set = ghost_set(p, page);

	for (unsigned i = 0; i < SET; i++)
		if (set[i].since && set[i].page == page) {
			bool young = p->ghosts_made - set[i].since < p->slots;

			set[i].since = 0;
			return young;
		}
	return false;
}

static void make_ghost(struct s3 *p, uint64_t page)
{
	struct ghost *set = ghost_set(p, page), *oldest = set;

	for (unsigned i = 1; i < SET; i++)
		if (set[i].since < oldest->since)
			oldest = &set[i];
	*oldest = (struct ghost){ page, ++p->ghosts_made };
}

static void s3_destroy(void *state)
{
	struct s3 *p = state;

	free(p->links);
	free(p->pages);
	free(p->ghosts);
	free(p);
}

static void *s3_create(void *arg, uint32_t slots)
{
	struct s3 *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->queues[SMALL] = p->queues[MAIN] = (struct queue){ NONE, NONE, 0 };
	p->slots = slots;
	p->small_target = slots / 10 ? slots / 10 : 1;
	for (p->sets = 1; p->sets * SET < 2 * (uint64_t)slots;)
		p->sets *= 2;
	p->links = calloc(slots, sizeof(p->links[0]));
	p->pages = calloc(slots, sizeof(p->pages[0]));
	p->ghosts = calloc(p->sets * SET, sizeof(p->ghosts[0]));
	if (!p->links || !p->pages || !p->ghosts) {
		s3_destroy(p);
		return NULL;
	}
	return p;
}

static void s3_inserted(void *state, uint32_t slot, uint64_t page)
{
	struct s3 *p = state;
	uint8_t in = take_ghost(p, page) ? MAIN : SMALL;

	p->pages[slot] = page;
	push_tail(&p->queues[in], p->links, slot, in);
}

static void s3_hit(void *state, uint32_t slot)
{
	struct s3 *p = state;

	push_tail(&p->queues[MAIN], p->links, slot, MAIN);
}

static uint32_t s3_victim(void *state)
{
	struct s3 *p = state;
	uint8_t in = p->queues[SMALL].length > p->small_target || !p->queues[MAIN].length ? SMALL : MAIN;
	uint32_t slot = p->queues[in].head;

	if (slot != NONE)
		take_out(&p->queues[in], p->links, slot);
	return slot;
}

static void s3_removed(void *state, uint32_t slot, int evicted)
{
	struct s3 *p = state;
	struct link *l = &p->links[slot];

	if (l->in)
		take_out(&p->queues[l->in], p->links, slot);
	if (evicted && l->from == SMALL)
		make_ghost(p, p->pages[slot]);
}

const struct gaia_umap_policy umap_s3fifo = {
	.size = sizeof(umap_s3fifo),
	.create = s3_create,
	.destroy = s3_destroy,
	.inserted = s3_inserted,
	.hit = s3_hit,
	.victim = s3_victim,
	.removed = s3_removed,
};
