/*
 * acquiring.h - an acquire under way: what acquire.c and wanted.c share.
 */
#ifndef GAIA_PAGECACHE_ACQUIRING_H
#define GAIA_PAGECACHE_ACQUIRING_H

#include "pagecache/ahead.h"
#include "pagecache/bring.h"
#include "pagecache/ready.h"
#include "pagecache/segments.h"

/* What an acquire is to do. */
enum purpose {
	PIN,		/* hand over the chunks; no page is granted */
	BRING_AND_GRANT,
};

/* ---- an acquire ---- */

/* The parts: one for each chunk that is brought, then one for each that the client maps beyond these. */
struct parts {
	struct part *at;
	uint64_t n;
};

struct acquiring {
	/* What was asked for. */
	struct mapping *m;
	struct segments asked;
	struct segments over; /* of these, pages that ranges have as a whole, and that are to be overwritten */
	bool write;
	enum purpose purpose;
	const struct pin *pin;	  /* see choose_chunks() */
	struct ready_runs *ready; /* hold what is ready at once; NULL: decide about everything together */
	bool piecewise;		  /* memory may come as the acquire goes on (promises.h) */
	uint64_t *seq;
	atomic_uint *verdict;

	/* What comes of it. */
	uint64_t border;	/* chunks before this one are brought; of those behind it pages are held */
	uint64_t *index;	/* of the chunks to bring, in order */
	struct replica **reps;	/* theirs, pinned once n_pinned says so */
	uint64_t n, n_pinned;
	uint64_t kept;		/* so many of the first ones have memory: the others are no parts yet */
	atomic_bool lacks;	/* there is less memory for these than it seemed */
	struct grant **mapped;	/* chunks behind the border that the client maps, pinned; */
	struct replica **counted; /* and counted as pinned by the user */
	unsigned n_mapped, n_counted;
	struct grant **since;	/* those that it maps by now, see want_unmapped() */
	unsigned n_since;
	bool wants;
	struct parts parts;
	struct ahead ahead;
};

/* Whether anything was asked for that lies behind the border. */
static inline bool reaches_beyond(const struct acquiring *ac)
{
	return ac->asked.at[ac->asked.n - 1].b > ac->border * GAIA_CHUNK_PAGES;
}

/* ---- acquire.c ---- */

/* Pages [a, b) of its chunk belong to it. */
void part_span(struct part *pt, unsigned a, unsigned b);
/* Acquire parts at[0..n). file->range is held. */
int parts_acquire(struct acquiring *ac, struct part *at, uint64_t n, atomic_uint *verdict);

/* ---- wanted.c ---- */

/* Pages before @until of what next_unmapped() says are not wanted any more. */
void unwant_unmapped(const struct acquiring *ac, uint64_t until);
/* The acquire has succeeded. */
void settle_unmapped(const struct acquiring *ac);
/* What the client wanted of this chunk, which it maps, or is about to. */
int acquire_wanted(struct acquiring *ac, struct replica *rep);
/*
 * In chunks that the file does not reach, pages are held if the client maps the chunk already. In others it
 * can store nothing until it gets them by another acquire: what was asked for is remembered until then. If the file has grown,
 * that other acquire may run beside this one. The other one first notes that the client has the chunk and
 * then looks for what is wanted; this one first notes what is wanted and then looks for chunks: so one of them sees the other.
 */
int want_unmapped(struct acquiring *ac);

#endif
