/* wanted.c - what an acquire wants of chunks that the client does not map. */
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "pagecache/acquire.h"
#include "pagecache/acquiring.h"
#include "pagecache/bring.h"
#include "pagecache/chunk.h"
#include "pagecache/file.h"
#include "pagecache/grant.h"
#include "pagecache/holds.h"
#include "pagecache/mapping.h"
#include "pagecache/ready.h"
#include "pagecache/replica.h"
#include "pagecache/scrub.h"
#include "pagecache/segments.h"

/* ---- what is wanted of chunks that the client does not map ---- */

/* The first mapped chunk that ends behind @page. */
static unsigned mapped_behind(const struct acquiring *ac, uint64_t page)
{
	unsigned low = 0, high = ac->n_mapped;

	while (low < high) {
		unsigned mid = low + (high - low) / 2;

		if ((ac->mapped[mid]->index + 1) * GAIA_CHUNK_PAGES <= page)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Where next_unmapped() goes on: at page @at, in the segment @nth. All zeros at first. */
struct place {
	size_t nth;
	uint64_t at;
};

/* The next pages behind the border that were asked for and do not lie in mapped chunks: false if there are none. */
static bool next_unmapped(const struct acquiring *ac, struct place *pl, struct segment *out)
{
	pl->at = MAX(pl->at, ac->border * GAIA_CHUNK_PAGES);
	while (pl->nth < ac->asked.n) {
		const struct segment *s = &ac->asked.at[pl->nth];
		uint64_t from = MAX(s->a, pl->at), start;
		unsigned k;

		if (from >= s->b) {
			pl->nth++;
			continue;
		}
		k = mapped_behind(ac, from);
		start = k < ac->n_mapped ? ac->mapped[k]->index * GAIA_CHUNK_PAGES : UINT64_MAX;
		if (start <= from) {
			pl->at = start + GAIA_CHUNK_PAGES;
			continue;
		}
		pl->at = MIN(s->b, start);
		*out = (struct segment){ from, pl->at, s->n };
		return true;
	}
	return false;
}

void mapping_unhold(struct mapping *m, uint64_t a, uint64_t b, unsigned n, bool write, bool untold)
{
	struct segment span = { a, b, n };
	struct grant **list;
	unsigned n_grants = grants_pin(m, (struct segments){ &span, 1 }, &list);

	for (unsigned k = 0; k < n_grants; k++) {
		struct chunk *ch = list[k]->replica->chunk;
		unsigned from, to;

		segment_in_chunk(&span, ch->index, &from, &to);
		pthread_mutex_lock(&ch->lock);
		if (!untold || !ready_unhold(list[k], from, to, write)) {
			pages_lock(ch, from, to);
			grant_unhold(list[k], from, to, n, write ? n : 0, untold);
			replica_scrub(list[k]->replica, from, to, false);
			pages_unlock(ch, from, to);
		}
		pthread_mutex_unlock(&ch->lock);
		replica_unpin(list[k]->replica);
	}
	free(list);
}

void unwant_unmapped(const struct acquiring *ac, uint64_t until)
{
	struct place pl = { .nth = 0 };
	struct segment s;
	unsigned left;
	uint64_t end;

	while (next_unmapped(ac, &pl, &s) && s.a < until)
		for (; s.a < s.b; s.a = end) {
			end = wanted_undo(ac->m, s.a, s.b, s.n, ac->write, &left);
			if (left > 0)
				mapping_unhold(ac->m, s.a, end, left, ac->write, false);
		}
}

/* The other way round. */
static int want_all_unmapped(const struct acquiring *ac)
{
	struct place pl = { .nth = 0 };
	struct segment s;
	int err = 0;

	while (!err && next_unmapped(ac, &pl, &s))
		err = wanted_add(ac->m, s.a, s.b, s.n, ac->write);
	if (err)
		unwant_unmapped(ac, s.a);
	return err;
}

void settle_unmapped(const struct acquiring *ac)
{
	struct place pl = { .nth = 0 };
	struct segment s;

	while (next_unmapped(ac, &pl, &s))
		wanted_settle(ac->m, s.a, s.b, s.n);
}

int acquire_wanted(struct acquiring *ac, struct replica *rep)
{
	struct part pt;
	struct hold h;
	int err = 0;

	pthread_rwlock_rdlock(&ac->m->file->range);
	while (!err && wanted_first(ac->m, rep->chunk->index, &h)) {
		uint64_t start = rep->chunk->index * GAIA_CHUNK_PAGES;

		pt = (struct part){ .m = ac->m, .rep = rep, .ch = rep->chunk, .grant = grant_get(ac->m, rep), .wanted = true,
				    .write = h.writes > 0 };
		part_span(&pt, (unsigned)(h.a - start), (unsigned)(h.b - start));
		/* It goes on when this acquire is given up: what is wanted is an earlier one's. */
		err = parts_acquire(ac, &pt, 1, NULL);
	}
	pthread_rwlock_unlock(&ac->m->file->range);
	return err;
}

int want_unmapped(struct acquiring *ac)
{
	int err;

	if (ac->purpose != BRING_AND_GRANT || !reaches_beyond(ac))
		return 0;
	err = want_all_unmapped(ac);
	if (err)
		return err;
	ac->wants = true;
	ac->n_since = grants_pin_mapped(ac->m, ac->asked, ac->border, !ac->pin, &ac->since);
	for (unsigned k = 0; k < ac->n_since && !err; k++)
		err = acquire_wanted(ac, ac->since[k]->replica);
	return err;
}
