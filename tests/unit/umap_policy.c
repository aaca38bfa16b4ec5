/* The policies of gaia/umap.h beside plain models of them; and streams of faults, of which nothing is read. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "../../client/umap/internal.h"
#include "../../client/umap/policy.h"

#define SLOTS 16
#define PAGES 32

/* Lists of slots, the next victim first. */
struct list {
	uint32_t slot[SLOTS];
	unsigned n;
};

static void append(struct list *l, uint32_t slot)
{
	l->slot[l->n++] = slot;
}

static void prepend(struct list *l, uint32_t slot)
{
	memmove(l->slot + 1, l->slot, l->n++ * sizeof(slot));
	l->slot[0] = slot;
}

static bool delete(struct list *l, uint32_t slot)
{
	for (unsigned i = 0; i < l->n; i++)
		if (l->slot[i] == slot) {
			memmove(l->slot + i, l->slot + i + 1, (--l->n - i) * sizeof(slot));
			return true;
		}
	return false;
}

static uint32_t shift(struct list *l)
{
	uint32_t slot = l->n ? l->slot[0] : UINT32_MAX;

	if (l->n)
		delete(l, slot);
	return slot;
}

enum kind { FIFO, LRU, S3 };

struct model {
	enum kind kind;
	struct list small, main;	/* FIFO and LRU: main */
	bool from_small[SLOTS];
	uint64_t page[SLOTS];
	uint64_t ghosts[1000000];	/* all that ever were, the last one last; 0: it came again. Page + 1 */
	unsigned n_ghosts;
};

static void model_insert(struct model *m, uint32_t slot, uint64_t page)
{
	bool ghost = false;

	m->page[slot] = page;
	for (unsigned i = 0; i < m->n_ghosts; i++)
		if (m->ghosts[i] == page + 1) {
			ghost |= m->n_ghosts - (i + 1) < SLOTS;
			m->ghosts[i] = 0;
		}
	m->from_small[slot] = m->kind == S3 && !ghost;
	append(m->from_small[slot] ? &m->small : &m->main, slot);
}

static uint32_t model_victim(struct model *m)
{
	if (m->small.n > (m->kind == S3 ? SLOTS / 10 : 0) || !m->main.n)
		return shift(&m->small);
	return shift(&m->main);
}

static void model_hit(struct model *m, uint32_t slot)
{
	m->from_small[slot] = false;
	if (m->kind == FIFO)
		prepend(&m->main, slot);
	else
		append(&m->main, slot);
}

static void model_remove(struct model *m, uint32_t slot, bool evicted)
{
	delete(&m->small, slot);
	delete(&m->main, slot);
	if (evicted && m->from_small[slot])
		m->ghosts[m->n_ghosts++] = m->page[slot] + 1;
}

/* Random operations, as a region does them. */
static void compare(enum kind kind, const struct gaia_umap_policy *policy)
{
	struct model *m = calloc(1, sizeof(*m));
	void *p = policy->create(policy->arg, SLOTS);
	int page_of[SLOTS], slot_of[PAGES];
	bool chosen[SLOTS] = { false };
	unsigned seed = 3;

	m->kind = kind;
	memset(page_of, -1, sizeof(page_of));
	memset(slot_of, -1, sizeof(slot_of));
	for (unsigned i = 0; i < 200000 && m->n_ghosts < 20000; i++) {
		unsigned page = rand_r(&seed) % (rand_r(&seed) % 2 ? PAGES : SLOTS), slot;

		if (slot_of[page] >= 0) {
			slot = slot_of[page];
			if (chosen[slot] && rand_r(&seed) % 4) {
				policy->hit(p, slot);
				model_hit(m, slot);
				chosen[slot] = false;
			} else if (chosen[slot] || rand_r(&seed) % 16 == 0) {
				bool evicted = chosen[slot];

				policy->removed(p, slot, evicted);
				model_remove(m, slot, evicted);
				chosen[slot] = false;
				page_of[slot] = slot_of[page] = -1;
			}
			continue;
		}
		for (slot = 0; slot < SLOTS && page_of[slot] >= 0; slot++)
			;
		if (slot < SLOTS) {
			policy->inserted(p, slot, page);
			model_insert(m, slot, page);
			page_of[slot] = page;
			slot_of[page] = slot;
			continue;
		}
		slot = policy->victim(p);
		cr_assert_eq(slot, model_victim(m), "step %u", i);
		if (slot != UINT32_MAX)
			chosen[slot] = true;
	}
	policy->destroy(p);
	free(m);
}

Test(umap_policy, fifo_is_as_its_model)
{
	compare(FIFO, &umap_fifo);
}

Test(umap_policy, lru_is_as_its_model)
{
	compare(LRU, &umap_lru);
}

Test(umap_policy, s3fifo_is_as_its_model)
{
	compare(S3, &umap_s3fifo);
}

/* Read some pages again and again while others are read once: how many reads of the former find them. */
static unsigned hits_beside_a_scan(const struct gaia_umap_policy *policy)
{
	enum { N = 100, HOT = 40, CHOSEN = 12 };
	static int slot_of[1000000], page_of[N];
	void *p = policy->create(policy->arg, N);
	uint32_t queue[N];
	bool chosen[N] = { false };
	unsigned used = 0, n_queue = 0, hits = 0, scan = HOT;

	memset(slot_of, -1, sizeof(slot_of));
	for (unsigned i = 0; i < 100000; i++) {
		unsigned page = i % 4 == 0 ? i / 4 % HOT : scan++;
		uint32_t slot;

		if (slot_of[page] >= 0) {
			slot = slot_of[page];
			hits++;
			if (chosen[slot]) {
				unsigned k = 0;

				while (queue[k] != slot)
					k++;
				memmove(queue + k, queue + k + 1, (--n_queue - k) * sizeof(slot));
				chosen[slot] = false;
				policy->hit(p, slot);
			}
			continue;
		}
		if (used < N) {
			slot = used++;
		} else {
			while (n_queue <= CHOSEN) {
				queue[n_queue] = policy->victim(p);
				chosen[queue[n_queue++]] = true;
			}
			slot = queue[0];
			memmove(queue, queue + 1, --n_queue * sizeof(slot));
			chosen[slot] = false;
			slot_of[page_of[slot]] = -1;
			policy->removed(p, slot, 1);
		}
		policy->inserted(p, slot, page);
		slot_of[page] = slot;
		page_of[slot] = page;
	}
	policy->destroy(p);
	return hits;
}

Test(umap_policy, s3fifo_keeps_what_is_read_again_beside_a_scan)
{
	unsigned fifo = hits_beside_a_scan(&umap_fifo), s3 = hits_beside_a_scan(&umap_s3fifo);

	cr_assert_gt(s3, 20000, "of 25,000 reads %u found their page", s3);
	cr_assert_gt(s3, 4 * fifo);
}

/* ---- streams ---- */

/* What the region's only stream asks for, and takes: how many pages from *@from on. */
static uint64_t asked(struct umap_region *r, uint64_t *from)
{
	uint64_t n = r->streams[0].n;

	*from = r->streams[0].from;
	r->streams[0].n = 0;
	return n;
}

/* Faults come before anything that was asked for is begun: the stream goes on behind that, and asks for nothing twice. */
Test(umap_policy, a_stream_goes_on_where_faults_are_faster)
{
	struct umap_region r = { .pages = 100, .most_ahead = 4 };
	uint64_t from;

	cr_assert_not(umap_follow_stream(&r, 10));
	cr_assert(umap_follow_stream(&r, 11));
	cr_assert_eq(r.streams[0].n, 1);
	cr_assert(umap_follow_stream(&r, 12), "it is asked for still");
	cr_assert_eq(asked(&r, &from), 1);
	cr_assert_eq(from, 12);
	cr_assert(umap_follow_stream(&r, 13));
	cr_assert_eq(asked(&r, &from), 2);
	cr_assert_eq(from, 14);
	/* And backward, to the beginning. */
	r = (struct umap_region){ .pages = 100, .most_ahead = 4 };
	cr_assert_not(umap_follow_stream(&r, 5));
	cr_assert(umap_follow_stream(&r, 4));
	cr_assert(umap_follow_stream(&r, 3), "it is asked for still");
	cr_assert_eq(asked(&r, &from), 1);
	cr_assert_eq(from, 3);
	cr_assert(umap_follow_stream(&r, 2));
	cr_assert_eq(asked(&r, &from), 2);
	cr_assert_eq(from, 0);
	cr_assert_not(umap_follow_stream(&r, 1));
}

/* A part of what the region's only stream asks for: its pages, and the one whose fault says that the stream goes on. */
static void take_part(struct umap_region *r, uint64_t from, uint64_t n, uint64_t marker)
{
	struct umap_stream part;

	cr_assert(umap_take_ahead(r, &part));
	cr_assert_eq(part.from, from);
	cr_assert_eq(part.n, n);
	cr_assert_eq(part.forward != NO_PAGE ? part.forward : part.backward, marker);
}

/* Pages of 512 KiB: parts of two pages. */
Test(umap_policy, a_stream_that_is_being_read_in_parts_goes_on)
{
	struct umap_region r = { .pages = 100, .most_ahead = 8, .shift = 19 };
	struct umap_stream none;

	for (uint64_t page = 10; page < 13; page++) {
		umap_follow_stream(&r, page);
		if (page > 10)
			take_part(&r, page + (page > 10), page - 10, page + 1);
	}
	cr_assert_not(umap_take_ahead(&r, &none));
	/* Four pages, of which two are asked for still when their first is touched. */
	cr_assert(umap_follow_stream(&r, 13));
	take_part(&r, 15, 2, 15);
	cr_assert(umap_follow_stream(&r, 15));
	take_part(&r, 17, 2, 19);
	/* The page itself is not asked for any more. */
	cr_assert(umap_follow_stream(&r, 19));
	cr_assert(umap_follow_stream(&r, 27), "the next window is not begun");
	take_part(&r, 20, 2, 35);
	cr_assert_eq(r.streams[0].n, 13);
}

Test(umap_policy, backward_too)
{
	struct umap_region r = { .pages = 100, .most_ahead = 8, .shift = 19 };

	umap_follow_stream(&r, 50);
	umap_follow_stream(&r, 49);
	take_part(&r, 48, 1, 48);
	umap_follow_stream(&r, 48);
	take_part(&r, 46, 2, 47);
	cr_assert(umap_follow_stream(&r, 47));
	take_part(&r, 44, 2, 45);
	cr_assert(umap_follow_stream(&r, 45));
	take_part(&r, 42, 2, 41);
	cr_assert(umap_follow_stream(&r, 41));
	cr_assert_eq(r.streams[0].from, 26);
	cr_assert_eq(r.streams[0].n, 15);
}
