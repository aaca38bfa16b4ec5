/* segments.c - see segments.h. */
#include "pagecache/segments.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/param.h>

#include "pagecache/holds.h"

/* ---- making them ---- */

static uint64_t first_page(const struct gaia_list_range *r)
{
	return r->offset / GAIA_PAGE;
}

static uint64_t end_page(const struct gaia_list_range *r)
{
	return (r->offset + r->length - 1) / GAIA_PAGE + 1;
}

static int by_offset(const void *a, const void *b)
{
	const struct gaia_list_range *x = a, *y = b;

	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int by_number(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Without those of no bytes, and in order. Most lists are so already. How many are left. */
static size_t sort_ranges(struct gaia_list_range *range, size_t n)
{
	bool sorted = true;
	size_t left = 0;

	for (size_t k = 0; k < n; k++) {
		if (range[k].length == 0)
			continue;
		sorted &= left == 0 || range[left - 1].offset <= range[k].offset;
		range[left++] = range[k];
	}
	if (!sorted)
		qsort(range, left, sizeof(*range), by_offset);
	return left;
}

static uint64_t *sorted_ends(const struct gaia_list_range *range, size_t n)
{
	uint64_t *end = malloc((n + 1) * sizeof(*end));
	bool sorted = true;

	for (size_t k = 0; k < n && end; k++) {
		end[k] = end_page(&range[k]);
		sorted &= k == 0 || end[k - 1] <= end[k];
	}
	if (end && !sorted)
		qsort(end, n, sizeof(*end), by_number);
	return end;
}

/*
 * Go through the first pages of the ranges and their ends, both sorted, as through one row: between two places in it as many ranges lie as
 * have begun and not ended. Into @out, unless it is NULL; how many segments.
 */
static size_t sweep(const struct gaia_list_range *range, const uint64_t *end, size_t n, struct segment *out)
{
	size_t begun = 0, ended = 0, made = 0;
	uint64_t at = 0;

	while (ended < n) {
		uint64_t next = begun < n ? MIN(first_page(&range[begun]), end[ended]) : end[ended];

		if (begun > ended && at < next) {
			if (out)
				out[made] = (struct segment){ at, next, (uint32_t)MIN(begun - ended, HOLDS_OF_A_PAGE + 1u) };
			made++;
		}
		at = next;
		while (begun < n && first_page(&range[begun]) == at)
			begun++;
		while (ended < n && end[ended] == at)
			ended++;
	}
	return made;
}

/* Join neighbours that are alike: where one range ends and the next begins. How many are left. */
static size_t join(struct segment *s, size_t n)
{
	size_t left = 0;

	for (size_t k = 0; k < n; k++) {
		if (left > 0 && s[left - 1].b == s[k].a && s[left - 1].n == s[k].n)
			s[left - 1].b = s[k].b;
		else
			s[left++] = s[k];
	}
	return left;
}

int segments_make(struct gaia_list_range *range, size_t n, struct segments *out)
{
	struct segment *s = NULL;
	uint64_t *end;

	n = sort_ranges(range, n);
	end = sorted_ends(range, n);
	if (end)
		s = malloc((sweep(range, end, n, NULL) + 1) * sizeof(*s));
	if (s) {
		out->at = s;
		out->n = join(s, sweep(range, end, n, s));
	}
	free(end);
	return s ? 0 : -ENOMEM;
}

/* ---- looking at them ---- */

/* The first that has pages beyond @page. */
static size_t first_beyond(struct segments segs, uint64_t page)
{
	size_t low = 0, high = segs.n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (segs.at[mid].b <= page)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

struct segments segments_of_chunk(struct segments segs, uint64_t chunk)
{
	uint64_t start = chunk * GAIA_CHUNK_PAGES;
	size_t k = first_beyond(segs, start), n = 0;

	while (k + n < segs.n && segs.at[k + n].a < start + GAIA_CHUNK_PAGES)
		n++;
	return (struct segments){ segs.at + k, n };
}

bool segments_cover(struct segments segs, struct segments others)
{
	size_t k = 0;

	SEGMENTS_FOREACH(s, others) {
		uint64_t at = s->a;

		while (at < s->b) {
			while (k < segs.n && segs.at[k].b <= at)
				k++;
			if (k == segs.n || segs.at[k].a > at)
				return false;
			at = segs.at[k].b;
		}
	}
	return true;
}

bool segments_next_chunk(struct segments segs, size_t *k, uint64_t *chunk)
{
	if (*k == 0)
		*k = first_beyond(segs, *chunk * GAIA_CHUNK_PAGES);
	while (*k < segs.n && segs.at[*k].b <= *chunk * GAIA_CHUNK_PAGES)
		++*k;
	if (*k == segs.n)
		return false;
	*chunk = MAX(*chunk, segs.at[*k].a / GAIA_CHUNK_PAGES);
	return true;
}

uint64_t segments_chunks(struct segments segs, uint64_t from, uint64_t to, uint64_t *out)
{
	uint64_t n = 0, last;
	size_t k = 0;

	while (segments_next_chunk(segs, &k, &from) && from < to) {
		/* All of those that this segment has. */
		last = MIN((segs.at[k].b - 1) / GAIA_CHUNK_PAGES + 1, to);
		for (uint64_t c = from; c < last && out; c++)
			out[n + c - from] = c;
		n += last - from;
		from = last;
	}
	return n;
}
