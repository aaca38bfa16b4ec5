/*
 * streams.c - faults in order, and what they ask for next.
 *
 * A fault of the page behind, or before, that of an earlier one begins a stream. Each time a stream goes on it asks for a window of pages: twice as
 * many as the last time, as far as most_ahead allows. They are read in the background, in parts by as many threads as there are for that, into
 * frames that are free, while the program works on what it has; nothing is evicted for them.
 */
#include <sys/param.h>

#include "internal.h"

/* Where the page lies by which this one was found missing: it may have been read together with those behind it. */
static uint64_t behind(const struct umap_region *r, uint64_t page)
{
	return r->next_fault > page && r->next_fault - page <= 1 + (uint64_t)r->ahead ? r->next_fault : page + 1;
}

/* In the place of the one that has not gone on for longest. */
static void begin(struct umap_region *r, uint64_t page)
{
	struct umap_stream *oldest = r->streams;

	for (unsigned k = 0; k < STREAMS; k++) {
		struct umap_stream *s = &r->streams[k];

		/* The same page once more, by another thread for instance. */
		if (s->used && s->forward == behind(r, page))
			return;
		if (s->used < oldest->used)
			oldest = s;
	}
	*oldest = (struct umap_stream){ .forward = behind(r, page), .backward = page > 0 ? page - 1 : NO_PAGE, .used = ++r->stream_clock };
}

static void go_on(struct umap_region *r, struct umap_stream *s, uint64_t page, bool forward)
{
	uint64_t next = forward ? behind(r, page) : page, front = !s->window ? next : forward ? MAX(s->front, next) : MIN(s->front, next);
	uint64_t begin = front, more;

	/* What nobody has begun to read of the last window stays asked for, as far as it is still to come. */
	if (s->n && front == s->front)
		begin = forward ? MAX(s->from, next) : MIN(s->from + s->n, next);
	s->used = ++r->stream_clock;
	r->in_streams = CALM;
	s->window = MIN(s->window ? 2 * s->window : MAX(r->ahead, 1), r->most_ahead);
	more = MIN(forward ? r->pages - MIN(front, r->pages) : front, s->window);
	s->front = forward ? front + more : front - more;
	s->from = forward ? begin : s->front;
	s->n = forward ? s->front - begin : begin - s->front;
	s->begun = false;
	s->forward = forward && more ? front : NO_PAGE;
	s->backward = !forward && more ? front - 1 : NO_PAGE;
}

/* Whoever touches is faster than what was asked for, which is not even begun. The next fault of the stream is one behind that. */
static void skip(struct umap_stream *s)
{
	if (s->forward != NO_PAGE)
		s->forward = s->front;
	else
		s->backward = s->front > 0 ? s->front - 1 : NO_PAGE;
}

/* Also a fault behind all that was asked for: in what comes before it another part of the page has been touched first. */
static bool is_next(const struct umap_stream *s, uint64_t page, bool forward)
{
	if (!s->used || (forward ? s->forward : s->backward) == NO_PAGE)
		return false;
	return page == (forward ? s->forward : s->backward) || (s->window && page == (forward ? s->front : s->front - 1));
}

bool umap_goes_on(const struct umap_region *r, uint64_t page)
{
	bool any = page == r->next_fault;

	for (unsigned k = 0; k < STREAMS; k++)
		any |= is_next(&r->streams[k], page, true);
	return any;
}

bool umap_follow_stream(struct umap_region *r, uint64_t page)
{
	bool follows = r->most_ahead && r->advice != GAIA_UMAP_RANDOM;

	for (unsigned k = 0; follows && k < STREAMS; k++) {
		struct umap_stream *s = &r->streams[k];
		bool forward = is_next(s, page, true);

		if (!forward && !is_next(s, page, false))
			continue;
		if (s->n && !s->begun)
			skip(s);
		else
			go_on(r, s, page, forward);
		return s->n;
	}
	r->in_streams -= r->in_streams > 0;
	if (follows)
		begin(r, page);
	return false;
}

bool umap_take_ahead(struct umap_region *r, struct umap_stream *out)
{
	uint64_t most = MAX(MAX_RUN >> r->shift, 1);

	for (unsigned k = 0; k < STREAMS; k++) {
		struct umap_stream *s = &r->streams[k];

		if (!s->n)
			continue;
		*out = *s;
		out->n = MIN(s->n, most);
		/* First what is touched first. */
		if (s->backward != NO_PAGE)
			out->from = s->from + s->n - out->n;
		else
			s->from += out->n;
		s->n -= out->n;
		s->begun = true;
		return true;
	}
	return false;
}

static bool has_ahead(const struct umap_region *r)
{
	bool any = false;

	for (unsigned k = 0; k < STREAMS; k++)
		any |= r->streams[k].n;
	return any;
}

/* Of the page at which the stream goes on. */
static uint64_t touched_first(const struct umap_region *r, const struct umap_stream *s)
{
	if (s->forward != NO_PAGE)
		return page_start(r, s->forward);
	return s->backward != NO_PAGE ? MIN(page_end(r, s->backward), r->view_length) - SMALL_PAGE : NO_PAGE;
}

void umap_read_streams(struct umap_region *r)
{
	struct umap_stream s;
	bool any, more;

	do {
		pthread_mutex_lock(&r->lock);
		any = umap_take_ahead(r, &s);
		more = has_ahead(r);
		pthread_mutex_unlock(&r->lock);
		if (more)
			umap_kick_reader(r);
		if (any)
			umap_read_ahead(r, s.from, s.n, touched_first(r, &s));
		/* What is left is queued: others may do it when nobody waits. */
	} while (any && !umap_ending(r) && !(more && umap_faults_wait()));
}
