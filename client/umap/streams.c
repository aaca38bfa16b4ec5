/*
 * streams.c - faults in order, and what they ask for next.
 *
 * A fault of the page behind, or before, that of an earlier one begins a stream. Each time a stream goes on it asks for a window of pages: twice as
 * many as the last time, as far as most_ahead allows. They are read in the background, into frames that are free, while the program works on
 * what it has; nothing is evicted for them.
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

	s->used = ++r->stream_clock;
	s->window = MIN(s->window ? 2 * s->window : MAX(r->ahead, 1), r->most_ahead);
	s->n = MIN(forward ? r->pages - MIN(front, r->pages) : front, s->window);
	s->from = forward ? front : front - s->n;
	s->front = forward ? front + s->n : s->from;
	s->forward = forward && s->n ? front : NO_PAGE;
	s->backward = !forward && s->n ? front - 1 : NO_PAGE;
}

/* Whoever touches is faster than what was asked for, which is not even begun. The next fault of the stream is one behind that. */
static void skip(struct umap_stream *s)
{
	if (s->forward != NO_PAGE)
		s->forward = s->front;
	else
		s->backward = s->front > 0 ? s->front - 1 : NO_PAGE;
}

bool umap_goes_on(const struct umap_region *r, uint64_t page)
{
	bool any = page == r->next_fault;

	for (unsigned k = 0; k < STREAMS; k++)
		any |= r->streams[k].used && page == r->streams[k].forward;
	return any;
}

bool umap_follow_stream(struct umap_region *r, uint64_t page)
{
	if (!r->most_ahead || r->advice == GAIA_UMAP_RANDOM)
		return false;
	for (unsigned k = 0; k < STREAMS; k++) {
		struct umap_stream *s = &r->streams[k];

		if (!s->used || (page != s->forward && page != s->backward))
			continue;
		if (s->n)
			skip(s);
		else
			go_on(r, s, page, page == s->forward);
		return s->n;
	}
	begin(r, page);
	return false;
}

/* Of a stream that has asked for pages: which, and take them. */
static bool take(struct umap_region *r, struct umap_stream *out)
{
	for (unsigned k = 0; k < STREAMS; k++) {
		if (!r->streams[k].n)
			continue;
		*out = r->streams[k];
		r->streams[k].n = 0;
		return true;
	}
	return false;
}

void umap_read_streams(struct umap_region *r)
{
	struct umap_stream s;
	bool any;

	do {
		pthread_mutex_lock(&r->lock);
		any = take(r, &s);
		pthread_mutex_unlock(&r->lock);
		if (any)
			umap_read_ahead(r, s.from, s.n, s.forward != NO_PAGE ? s.from : s.from + s.n - 1);
	} while (any && !umap_ending(r));
}
