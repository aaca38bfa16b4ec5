/*
 * streams.h - what of a mapping is worth bringing to its device before it is acquired: what the program asks for (GAIA_WILLNEED), and
 * what follows from how its acquires follow each other.
 *
 * Decides, and does nothing: no locks, threads, files or devices. Pages are those of the file.
 */
#ifndef GAIA_PAGECACHE_STREAMS_H
#define GAIA_PAGECACHE_STREAMS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pagecache/range.h"

#define REQUESTS 32u /* that wait; more are not taken */

/* Of a stream, in pages. */
#define WINDOW_LEAST 256u
#define WINDOW_MOST 4096u
#define STREAMS 4u
#define HISTORY 8u
#define STEPS_MOST 64u		  /* of a stride, that are requested */
#define STRIDE_MOST (1ll << 28) /* pages */

#define ADVICES 16u /* ranges with advice of their own */

struct request {
	uint64_t id;
	struct page_span rest; /* of the present range: what was not brought yet */
	int64_t stride;	       /* from this range to the next */
	uint64_t length, more; /* of each range; how many come after this one */
	struct page_span all;  /* from the first page of all ranges to the last */
	bool guess;	       /* it is not advice */
};

struct stream {
	struct page_span last; /* acquired; empty: there is no such stream */
	int64_t stride;	       /* from there to the next; 0: that begins where this one ends */
	uint64_t window;       /* pages to request beyond */
	uint64_t ahead;	       /* the end of what was requested; of strides: how many beyond the last */
	uint64_t used;	       /* streams.n_acquires then */
};

struct advice {
	struct page_span span;
	unsigned how; /* GAIA_ADVISE_* */
};

/* Begins as zeros, but for `all`. The caller's lock protects it. */
struct streams {
	struct page_span all; /* constant: the mapping */
	atomic_uint n_lost; /* times that something was evicted unused, or found no room, since a stream last went on; no lock */
	struct request request[REQUESTS]; /* in the order of their turns */
	unsigned n_requests;
	uint64_t last_id;
	struct stream stream[STREAMS];
	struct page_span history[HISTORY]; /* acquires that belong to no stream */
	uint64_t n_acquires, n_history;
	struct advice advice[ADVICES]; /* in order */
	unsigned n_advice;
};

static inline bool spans_meet(struct page_span x, struct page_span y)
{
	return x.a < y.b && y.a < x.b;
}

/* @span was acquired. Whether @rq should be asked for now. */
bool streams_acquired(struct streams *st, struct page_span span, struct request *rq);
/* From now on advice for the pages is @how, GAIA_ADVISE_*. -EAGAIN: too many ranges have advice of their own. */
int streams_advise(struct streams *st, struct page_span span, unsigned how);
/* Have @rq wait for its turn. False: it lengthens the last one; or there are too many, and it is dropped. */
bool streams_ask(struct streams *st, struct request rq);
/* Ask for no pages of @span any more; @guesses: but for those that the program asked for. */
void streams_cut(struct streams *st, struct page_span span, bool guesses);
/* Whether requests name some of the pages, or a stream will come to them. */
bool streams_want(const struct streams *st, struct page_span pages);

/* The next piece of the request whose turn it is (there is one): pages of one chunk, @most at the most. Returns the request's id. */
uint64_t streams_next(const struct streams *st, uint64_t most, struct page_span *piece);
/* It was brought: the request, if it is still there, has its next turn after the others. */
void streams_done(struct streams *st, uint64_t id, struct page_span piece);
/* It could not be brought: nor will the rest of the request. */
void streams_drop(struct streams *st, uint64_t id);

#endif
