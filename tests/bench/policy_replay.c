/*
 * policy_replay.c - replay accesses through the policies of daemon/policy: how many of them miss. For scripts/policy-sim.
 *
 *	policy_replay PLACES... < ACCESSES
 *
 * An access is a line: FILE PAGE PAGES. Prints "accesses N distinct N", in pages, and for each policy and number of places, in pages or
 * in percent of the distinct ones (PLACES ends with %), a line: POLICY PLACES MISSES. "belady" is what could be reached by knowing the future.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/keys.h"
#include "policy/policy.h"

#define FILE_SHIFT 40 /* pages of a file: 4 PiB */

struct trace {
	uint64_t *key;
	size_t n, room;
	size_t distinct;
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "policy_replay: %s\n", what);
	exit(1);
}

static void *allocate(size_t n, size_t size)
{
	void *p = calloc(n ? n : 1, size);

	if (!p)
		fail("no memory");
	return p;
}

static void add(struct trace *t, uint64_t key)
{
	if (t->n == t->room) {
		t->room = t->room ? 2 * t->room : 1 << 16;
		t->key = realloc(t->key, t->room * sizeof(t->key[0]));
		if (!t->key)
			fail("no memory");
	}
	t->key[t->n++] = key;
}

/* Files become 0, 1, 2, ..., so that a key is one number. */
static uint64_t number_of(struct keys *files, uint64_t file)
{
	uint32_t slot = keys_find(files, file);

	if (slot == NO_SLOT && files->n == files->places)
		fail("more than a million files");
	return slot == NO_SLOT ? keys_add(files, file) : slot;
}

static struct trace read_trace(void)
{
	struct trace t = { .n = 0 };
	uint64_t file, page, pages;
	struct keys files;
	int got;

	if (!keys_init(&files, 1 << 20))
		fail("no memory");
	while ((got = scanf("%" SCNu64 " %" SCNu64 " %" SCNu64, &file, &page, &pages)) == 3) {
		uint64_t first = (number_of(&files, file) << FILE_SHIFT) + page;

		if (page >> FILE_SHIFT || pages > 1u << 30)
			fail("a page that no file has");
		for (uint64_t k = 0; k < pages; k++)
			add(&t, first + k);
	}
	if (got != EOF)
		fail("not FILE PAGE PAGES");
	keys_free(&files);
	return t;
}

/* ---- what could be reached ---- */

/* When each access's key is accessed next; n: never. Also counts the distinct ones. */
static uint32_t *next_uses(struct trace *t)
{
	uint32_t *next = allocate(t->n, sizeof(*next)), *last = allocate(t->n, sizeof(*last));
	struct keys all;

	if (t->n >= POLICY_PLACES)
		fail("more than 2^30 pages are accessed");
	if (!keys_init(&all, t->n ? (uint32_t)t->n : 1))
		fail("no memory");
	for (size_t i = t->n; i-- > 0;) {
		uint32_t slot = keys_find(&all, t->key[i]);

		next[i] = slot == NO_SLOT ? (uint32_t)t->n : last[slot];
		if (slot == NO_SLOT)
			slot = keys_add(&all, t->key[i]);
		last[slot] = (uint32_t)i;
	}
	t->distinct = all.n;
	keys_free(&all);
	free(last);
	return next;
}

/* A heap of accesses, the key that is used last again on top. */
struct heap {
	uint32_t *at;
	size_t n;
	const uint32_t *next;
};

static void heap_swap(struct heap *h, size_t a, size_t b)
{
	uint32_t was = h->at[a];

	h->at[a] = h->at[b];
	h->at[b] = was;
}

static void heap_push(struct heap *h, uint32_t access)
{
	size_t i = h->n++;

	h->at[i] = access;
	for (; i > 0 && h->next[h->at[(i - 1) / 2]] < h->next[h->at[i]]; i = (i - 1) / 2)
		heap_swap(h, i, (i - 1) / 2);
}

static uint32_t heap_pop(struct heap *h)
{
	uint32_t top = h->at[0];
	size_t i = 0, most;

	h->at[0] = h->at[--h->n];
	for (;; i = most) {
		most = i;
		for (size_t child = 2 * i + 1; child <= 2 * i + 2 && child < h->n; child++)
			if (h->next[h->at[child]] > h->next[h->at[most]])
				most = child;
		if (most == i)
			return top;
		heap_swap(h, i, most);
	}
}

static size_t belady(const struct trace *t, const uint32_t *next, uint32_t places)
{
	struct heap h = { allocate(t->n, sizeof(uint32_t)), 0, next };
	size_t missed = 0;
	struct keys in;

	if (!keys_init(&in, places))
		fail("no memory");
	for (size_t i = 0; i < t->n; i++) {
		uint32_t slot = keys_find(&in, t->key[i]);

		if (slot == NO_SLOT) {
			missed++;
			while (in.n == places) {
				/* An entry of an access that was followed by another of the same key is out of date: its key was used again. */
				uint32_t access = heap_pop(&h);

				if (next[access] > i)
					keys_drop(&in, keys_find(&in, t->key[access]));
			}
			keys_add(&in, t->key[i]);
		}
		heap_push(&h, (uint32_t)i);
	}
	keys_free(&in);
	free(h.at);
	return missed;
}

static size_t replay(const struct policy_kind *kind, const struct trace *t, uint32_t places)
{
	struct policy *p = kind->create(places);
	size_t missed = 0;

	if (!p)
		fail("no memory");
	for (size_t i = 0; i < t->n; i++)
		missed += !policy_access(kind, p, places, t->key[i], NULL);
	kind->destroy(p);
	return missed;
}

/* "4096" or "12.5%". */
static uint32_t places_of(const char *text, size_t distinct)
{
	char *end;
	double n = strtod(text, &end);

	if (*end == '%')
		n = n / 100 * (double)distinct;
	if (end == text || (*end && strcmp(end, "%")) || n > POLICY_PLACES)
		fail("not a number of places");
	return n < 1 ? 1 : (uint32_t)(n + 0.5);
}

int main(int argc, char **argv)
{
	struct trace t = read_trace();
	uint32_t *next = next_uses(&t);

	printf("accesses %zu distinct %zu\n", t.n, t.distinct);
	for (int k = 1; k < argc; k++) {
		uint32_t places = places_of(argv[k], t.distinct);

		for (unsigned i = 0; policies[i]; i++)
			printf("%s %u %zu\n", policies[i]->name, places, replay(policies[i], &t, places));
		printf("belady %u %zu\n", places, belady(&t, next, places));
	}
	free(next);
	free(t.key);
	return 0;
}
