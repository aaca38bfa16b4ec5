/*
 * streams.c - what of a mapping is worth bringing to its device before it is acquired: requests, by advice, and by how acquires follow
 * each other. Decides; readahead.c brings it.
 *
 * Streams. A mapping remembers its last few acquires. An acquire that begins in, or at the end of, an earlier one and goes further makes a
 * stream; so does the third of equal length at equal distances. An acquire that continues a stream requests the next ranges: as many pages
 * as the stream's window. The window is at first as long as an acquire (WINDOW_LEAST at least), doubles each time that the stream goes on, up
 * to WINDOW_MOST, and is halved when a replica of the mapping's was evicted unused, or found no room. Advice changes that for each range:
 * nothing is requested (GAIA_RANDOM; windows end where such a range begins), or the largest window from the first acquire on (GAIA_SEQUENTIAL).
 */
#include <errno.h>
#include <string.h>

#include "base/util.h"
#include "gaia/protocol.h"
#include "pagecache/streams.h"

/* ---- requests ---- */

static void request_remove(struct streams *st, unsigned k)
{
	st->n_requests--;
	memmove(&st->request[k], &st->request[k + 1], (st->n_requests - k) * sizeof(st->request[0]));
}

void streams_drop(struct streams *st, uint64_t id)
{
	for (unsigned k = 0; k < st->n_requests; k++)
		if (st->request[k].id == id) {
			request_remove(st, k);
			return;
		}
}

/* Pages of one range of a request, from the present one on. */
static struct page_span nth_range(const struct request *rq, uint64_t n)
{
	uint64_t b = rq->rest.b + n * (uint64_t)rq->stride;

	return n == 0 ? rq->rest : (struct page_span){ b - rq->length, b };
}

/* Make range n the present one, with @more to come. */
static void request_from(struct request *rq, uint64_t n, uint64_t more)
{
	struct page_span last;

	rq->rest = nth_range(rq, n);
	rq->more = more;
	last = nth_range(rq, more);
	rq->all = (struct page_span){ MIN(rq->rest.a, last.a), MAX(rq->rest.b, last.b) };
}

uint64_t streams_next(const struct streams *st, uint64_t most, struct page_span *piece)
{
	const struct request *rq = &st->request[0];
	uint64_t end = ROUND_DOWN(rq->rest.a, GAIA_CHUNK_PAGES) + GAIA_CHUNK_PAGES;

	*piece = (struct page_span){ rq->rest.a, MIN(MIN(rq->rest.b, end), rq->rest.a + most) };
	return rq->id;
}

void streams_done(struct streams *st, uint64_t id, struct page_span piece)
{
	struct request rq;
	unsigned k = 0;

	while (k < st->n_requests && !(st->request[k].id == id && st->request[k].rest.a == piece.a))
		k++;
	if (k == st->n_requests)
		return;
	rq = st->request[k];
	request_remove(st, k);
	rq.rest.a = MIN(piece.b, rq.rest.b);
	if (rq.rest.a == rq.rest.b && rq.more > 0) {
		rq.rest = nth_range(&rq, 1);
		rq.more--;
	}
	if (rq.rest.a < rq.rest.b)
		st->request[st->n_requests++] = rq;
}

bool streams_ask(struct streams *st, struct request rq)
{
	struct request *last = st->n_requests > 0 ? &st->request[st->n_requests - 1] : NULL;

	if (last && rq.more == 0 && last->more == 0 && last->rest.b == rq.rest.a && last->guess == rq.guess) {
		last->rest.b = last->all.b = rq.rest.b;
		return false;
	}
	if (st->n_requests == REQUESTS)
		return false;
	rq.id = ++st->last_id;
	st->request[st->n_requests++] = rq;
	return true;
}

/* ---- streams ---- */

static unsigned advice_at(const struct streams *st, uint64_t page)
{
	for (unsigned k = 0; k < st->n_advice; k++)
		if (page >= st->advice[k].span.a && page < st->advice[k].span.b)
			return st->advice[k].how;
	return GAIA_ADVISE_NORMAL;
}

static bool is_stream(const struct stream *s)
{
	return s->last.a < s->last.b;
}

/* Whether @next goes on where @last ended, or overlaps it, and ends later. */
static bool follows(struct page_span last, struct page_span next)
{
	return next.a > last.a && next.a <= last.b && next.b > last.b;
}

static bool continues(const struct stream *s, struct page_span span)
{
	if (!is_stream(s))
		return false;
	return s->stride == 0 ? follows(s->last, span) : span.a == s->last.a + (uint64_t)s->stride;
}

/* The stream that has not gone on for longest becomes a new one. */
static struct stream *stream_begin(struct streams *st, struct page_span span, int64_t stride)
{
	struct stream *s = &st->stream[0];

	for (unsigned k = 1; k < STREAMS; k++)
		if (st->stream[k].used < s->used)
			s = &st->stream[k];
	*s = (struct stream){ .last = span, .stride = stride, .window = MIN(MAX(span.b - span.a, (uint64_t)WINDOW_LEAST), (uint64_t)WINDOW_MOST) };
	return s;
}

/* Whether @span is the third of equal length at equal distances: the distance, or 0. */
static int64_t find_stride(const struct streams *st, struct page_span span)
{
	uint64_t length = span.b - span.a;

	for (unsigned k = 0; k < HISTORY; k++)
		for (unsigned j = 0; j < HISTORY; j++) {
			struct page_span one = st->history[j], two = st->history[k];
			int64_t stride = (int64_t)(span.a - two.a);

			if (two.b - two.a == length && one.b - one.a == length && stride != 0 && two.a - one.a == (uint64_t)stride &&
			    stride <= STRIDE_MOST && stride >= -STRIDE_MOST)
				return stride;
		}
	return 0;
}

/* A stream that begins with @span, after what is remembered; NULL: there is none. */
static struct stream *find_stream(struct streams *st, struct page_span span, unsigned advice)
{
	struct stream *s = NULL;
	bool known = false;
	int64_t stride;

	for (unsigned k = 0; k < HISTORY && !s; k++) {
		known |= st->history[k].a == span.a && st->history[k].b == span.b;
		if (follows(st->history[k], span))
			s = stream_begin(st, span, 0);
	}
	stride = s || known ? 0 : find_stride(st, span);
	if (stride != 0)
		s = stream_begin(st, span, stride);
	if (!s && advice == GAIA_ADVISE_SEQUENTIAL)
		s = stream_begin(st, span, 0);
	if (s && advice == GAIA_ADVISE_SEQUENTIAL)
		s->window = WINDOW_MOST;
	if (!s && !known)
		st->history[st->n_history++ % HISTORY] = span;
	return s;
}

static void stream_goes_on(struct streams *st, struct stream *s, struct page_span span)
{
	bool lost = atomic_exchange(&st->n_lost, 0) > 0;

	s->window = lost ? MAX(s->window / 2, (uint64_t)WINDOW_LEAST) : MIN(2 * s->window, (uint64_t)WINDOW_MOST);
	s->last = span;
	if (s->stride != 0 && s->ahead > 0)
		s->ahead--;
	/* What was lost is asked for again; what is there costs a look. */
	if (lost)
		s->ahead = 0;
}

/* End @rq where it comes to pages that are used at random. False: nothing of it is left. */
static bool request_avoid(const struct streams *st, struct request *rq)
{
	for (unsigned k = 0; k < st->n_advice; k++) {
		struct page_span span = st->advice[k].span;
		uint64_t n = 0;

		if (st->advice[k].how != GAIA_ADVISE_RANDOM)
			continue;
		while (n <= rq->more && !spans_meet(nth_range(rq, n), span))
			n++;
		if (n > rq->more)
			continue;
		if (n == 0 && (rq->more > 0 || rq->rest.a >= span.a))
			return false;
		if (n == 0)
			rq->rest.b = span.a;
		else
			rq->more = n - 1;
	}
	return true;
}

/* Cut @rq to the mapping, and as advice says. False: nothing of it is left. */
static bool request_clip(const struct streams *st, struct request *rq)
{
	uint64_t first = st->all.a, end = st->all.b;

	if (rq->rest.a < first || rq->rest.a >= end)
		return false;
	if (rq->stride > 0)
		rq->more = MIN(rq->more, (end - 1 - rq->rest.a) / (uint64_t)rq->stride);
	else if (rq->stride < 0)
		rq->more = MIN(rq->more, (rq->rest.a - first) / (uint64_t)-rq->stride);
	if (rq->more == 0)
		rq->rest.b = MIN(rq->rest.b, end);
	else if (rq->stride > 0 && rq->rest.b + rq->more * (uint64_t)rq->stride > end)
		rq->more--;
	if (!request_avoid(st, rq))
		return false;
	request_from(rq, 0, rq->more);
	return true;
}

/* What the stream needs now. False: nothing; it asks for no less than half a window. */
static bool stream_asks(const struct streams *st, struct stream *s, struct request *rq)
{
	uint64_t length = MIN(s->last.b - s->last.a, (uint64_t)WINDOW_MOST), steps;

	*rq = (struct request){ .stride = s->stride, .length = length, .guess = true };
	if (s->stride == 0) {
		s->ahead = MAX(s->ahead, s->last.b);
		rq->rest = (struct page_span){ s->ahead, s->last.b + s->window };
		if (rq->rest.a >= rq->rest.b || rq->rest.b - rq->rest.a < s->window / 2)
			return false;
		s->ahead = rq->rest.b;
		return request_clip(st, rq);
	}
	steps = MIN(MAX(s->window / length, 1u), (uint64_t)STEPS_MOST);
	if (s->ahead >= steps || steps - s->ahead < steps / 2)
		return false;
	rq->rest.a = s->last.a + (s->ahead + 1) * (uint64_t)s->stride;
	rq->rest.b = rq->rest.a + length;
	rq->more = steps - s->ahead - 1;
	s->ahead = steps;
	return request_clip(st, rq);
}

bool streams_acquired(struct streams *st, struct page_span span, struct request *rq)
{
	unsigned advice = advice_at(st, span.a);
	struct stream *s = NULL;
	bool again = false;

	for (unsigned k = 0; k < STREAMS; k++)
		again |= st->stream[k].last.a == span.a && st->stream[k].last.b == span.b;
	for (unsigned k = 0; k < STREAMS && !s && advice != GAIA_ADVISE_RANDOM; k++)
		if (continues(&st->stream[k], span)) {
			s = &st->stream[k];
			stream_goes_on(st, s, span);
		}
	if (!s && !again && advice != GAIA_ADVISE_RANDOM)
		s = find_stream(st, span, advice);
	if (!s)
		return false;
	s->used = ++st->n_acquires;
	return stream_asks(st, s, rq);
}

/* From what the stream acquired last to the end of what was requested for it. */
static struct page_span stream_reach(const struct stream *s)
{
	int64_t far = s->stride * (int64_t)s->ahead;

	if (s->stride == 0)
		return (struct page_span){ s->last.a, MAX(s->ahead, s->last.b) };
	if (far < 0)
		return (struct page_span){ (uint64_t)-far < s->last.a ? s->last.a - (uint64_t)-far : 0, s->last.b };
	return (struct page_span){ s->last.a, s->last.b + (uint64_t)far };
}

bool streams_want(const struct streams *st, struct page_span pages)
{
	bool want = false;

	for (unsigned k = 0; k < st->n_requests && !want; k++)
		want = spans_meet(st->request[k].all, pages);
	for (unsigned k = 0; k < STREAMS && !want; k++)
		want = spans_meet(stream_reach(&st->stream[k]), pages);
	return want;
}

/* ---- advice ---- */

/* Take the ranges of @rq that meet @span out of it, or, if it is one range, the pages: what is left before, and after; whether there is any. */
static bool request_split(struct request *rq, struct page_span span, struct request *after, bool *has_after)
{
	uint64_t a = 0, b;
	bool before;

	*after = *rq;
	if (rq->more == 0) {
		rq->all = rq->rest = (struct page_span){ rq->rest.a, MIN(rq->rest.b, span.a) };
		after->all = after->rest = (struct page_span){ MAX(after->rest.a, span.b), after->rest.b };
		*has_after = after->rest.a < after->rest.b;
		return rq->rest.a < rq->rest.b;
	}
	while (a <= rq->more && !spans_meet(nth_range(rq, a), span))
		a++;
	for (b = a; b <= rq->more && spans_meet(nth_range(rq, b), span); b++)
		;
	before = a > 0;
	*has_after = b <= rq->more;
	if (*has_after)
		request_from(after, b, rq->more - b);
	if (before)
		request_from(rq, 0, a - 1);
	return before;
}

void streams_cut(struct streams *st, struct page_span span, bool guesses)
{
	for (unsigned k = st->n_requests; k-- > 0;) {
		struct request rq = st->request[k], after;
		bool before, has_after;

		if ((guesses && !rq.guess) || !spans_meet(rq.all, span))
			continue;
		before = request_split(&rq, span, &after, &has_after);
		if (before || has_after)
			st->request[k] = before ? rq : after;
		else
			request_remove(st, k);
		if (before && has_after && st->n_requests < REQUESTS) {
			after.id = ++st->last_id;
			st->request[st->n_requests++] = after;
		}
	}
}

/* Add [a, b), if it is not empty, behind what is there already. */
static void advice_add(struct advice *out, unsigned *n, uint64_t a, uint64_t b, unsigned how)
{
	if (a >= b)
		return;
	if (*n > 0 && out[*n - 1].span.b == a && out[*n - 1].how == how)
		out[*n - 1].span.b = b;
	else
		out[(*n)++] = (struct advice){ { a, b }, how };
}

/* The advice for all pages but those of @span, and, unless it is the usual, @how for these, into @out: how many. */
static unsigned advice_with(const struct streams *st, struct page_span span, unsigned how, struct advice *out)
{
	unsigned n = 0;

	for (unsigned k = 0; k < st->n_advice; k++)
		advice_add(out, &n, st->advice[k].span.a, MIN(st->advice[k].span.b, span.a), st->advice[k].how);
	if (how != GAIA_ADVISE_NORMAL)
		advice_add(out, &n, span.a, span.b, how);
	for (unsigned k = 0; k < st->n_advice; k++)
		advice_add(out, &n, MAX(st->advice[k].span.a, span.b), st->advice[k].span.b, st->advice[k].how);
	return n;
}

int streams_advise(struct streams *st, struct page_span span, unsigned how)
{
	struct advice now[2 * ADVICES + 1];
	unsigned n = advice_with(st, span, how, now);

	if (n > ADVICES)
		return -EAGAIN;
	memcpy(st->advice, now, n * sizeof(now[0]));
	st->n_advice = n;
	if (how == GAIA_ADVISE_RANDOM)
		streams_cut(st, span, true);
	for (unsigned k = 0; k < STREAMS && how == GAIA_ADVISE_RANDOM; k++)
		if (spans_meet(st->stream[k].last, span))
			st->stream[k] = (struct stream){ .window = 0 };
	return 0;
}
