/*
 * facts.c - from logs to facts: which operations touched a cell, when device stores were released or lost,
 * and where files ended.
 */
#include <stdlib.h>
#include <string.h>

#include "gaia/protocol.h"
#include "oracle.h"

static struct {
	uint32_t *start;	/* all_cells() + 1 places into ops */
	ref *ops;
	ref *truncations, *syncs;
	unsigned ntruncations, nsyncs;
} files[MAX_FILES];

static struct dev_op *dev_ops[MAX_PROCS];
static struct spans acquires[MAX_FILES][MAX_MEMORIES][MAX_HOT];
static struct spans releases[MAX_FILES][MAX_MEMORIES][MAX_HOT];
static struct spans holds[MAX_FILES][MAX_MEMORIES][MAX_HOT];
static struct spans cancelled[MAX_FILES][MAX_MEMORIES][MAX_HOT]; /* the holds of cancelled acquires: they are given back, and at the end dropped */
uint64_t crash_time;

static void *more(void *at, unsigned n, unsigned *room, size_t size)
{
	if (n < *room)
		return at;
	*room = *room ? *room * 2 : 16;
	at = realloc(at, *room * size);
	if (!at)
		abort();
	return at;
}

static void span_add(struct spans *list, uint64_t s, uint64_t e, unsigned proc)
{
	list->at = more(list->at, list->n, &list->room, sizeof(*list->at));
	list->at[list->n++] = (struct span){ s, e, proc };
}

bool is_read(const struct op *op)
{
	return op->kind == OP_READ || op->kind == OP_MLOAD || op->kind == OP_DREAD || op->kind == OP_LOAD;
}

bool is_write(const struct op *op)
{
	switch (op->kind) {
	case OP_WRITE:
	case OP_MSTORE:
	case OP_APPEND:
	case OP_DWRITE:
	case OP_STORE:
	case OP_PUNCH:
	case OP_COPY:
		return true;
	default:
		return false;
	}
}

/* Or not while the daemon lived. */
bool never_ended(const struct op *op)
{
	return op->e == 0 || op->e > crash_time;
}

static unsigned nprocs(void)
{
	return atomic_load(&world->nprocs);
}

static unsigned nops(unsigned proc)
{
	return atomic_load(&world->logs[proc].nops);
}

uint64_t value_at(ref r, uint32_t cell)
{
	const struct op *op = REF_OP(r);
	const unsigned char *data = &world->logs[REF_PROC(r)].data[op->data];
	uint64_t word;

	if (op->kind == OP_PUNCH || op->kind == OP_TRUNCATE)
		return 0;
	if (world->config.bytes)
		return data[cell - op->cell];
	if (is_write(op))
		return stamp(world->round, REF_PROC(r), r & 0xffff, cell);
	memcpy(&word, data + (size_t)(cell - op->cell) * 8, 8);
	return word;
}

/* ---- clients ---- */

/* One client's hold of a page, while its log is read. */
struct hold {
	uint64_t since, acquired;	/* 0: none */
	unsigned count;		/* acquires not yet released */
	bool cancelled;		/* an acquire was, so that a release may find a hold that was not given back yet */
	uint32_t *stores;		/* not released yet */
	unsigned n, room;
};

static void hold_end(struct hold *h, unsigned file, unsigned page, unsigned proc, uint64_t at)
{
	if (h->since)
		span_add(&holds[file][world->procs[proc].device][page], h->since, at, proc);
	h->since = 0;
	h->acquired = 0;
	h->count = 0;
	h->n = 0;
}

static void on_release(struct hold *h, const struct op *op, unsigned page, unsigned proc)
{
	bool done = !op->err && !never_ended(op);

	if (!h->since && !h->cancelled)
		return;
	span_add(&releases[op->file][world->procs[proc].device][page], op->s, done ? op->e : NEVER, proc);
	for (unsigned i = 0; i < h->n; i++) {
		dev_ops[proc][h->stores[i]].released = op->s;
		dev_ops[proc][h->stores[i]].done = done ? op->e : NEVER;
	}
	/* Of a release that failed the stores may still be dropped. */
	if (!done || !h->since)
		return;
	h->n = 0;
	if (!--h->count)
		hold_end(h, op->file, page, proc, op->e);
}

static void on_drop(struct hold *h, unsigned file, unsigned page, unsigned proc, uint64_t at)
{
	for (unsigned i = 0; i < h->n; i++)
		dev_ops[proc][h->stores[i]].dropped = at;
	hold_end(h, file, page, proc, at);
}

/* Of a hot page. */
static unsigned chunk_of(unsigned page)
{
	return world->hot_page[page] / GAIA_CHUNK_PAGES;
}

static void read_client(unsigned proc)
{
	static struct hold hold[MAX_FILES][MAX_HOT];
	unsigned n = nops(proc), device = world->procs[proc].device, cells = page_cells();

	dev_ops[proc] = calloc(n + 1, sizeof(**dev_ops));
	for (unsigned i = 0; i < n; i++) {
		const struct op *op = &world->logs[proc].ops[i];
		unsigned first = op->cell / cells, last = op->n ? (op->cell + op->n - 1) / cells : first;
		struct dev_op *d = &dev_ops[proc][i];
		struct hold *h = &hold[op->file][first];

		*d = (struct dev_op){ .released = NEVER, .done = NEVER, .dropped = NEVER, .vis = NEVER };
		switch (op->kind) {
		case OP_ACQUIRE:
			/* It may hand over a chunk: then what others hold of that is brought up to date as well. */
			for (unsigned p = 0; p < world->config.hot; p++)
				if (chunk_of(p) >= chunk_of(first) && chunk_of(p) <= chunk_of(last))
					span_add(&acquires[op->file][device][p], op->s, op->e ? op->e : NEVER, proc);
			for (unsigned p = first; p <= last; p++, h++) {
				if (op->err || never_ended(op))
					continue;
				h->acquired = op->s;
				h->count++;
				if (!h->since)
					h->since = op->s;
			}
			break;
		case OP_CANCEL:
			for (unsigned p = 0; p < world->config.hot; p++)
				if (chunk_of(p) >= chunk_of(first) && chunk_of(p) <= chunk_of(last))
					span_add(&acquires[op->file][device][p], op->s, world->procs[proc].confirmed, proc);
			for (unsigned p = first; p <= last; p++, h++) {
				span_add(&cancelled[op->file][device][p], op->s, world->procs[proc].confirmed, proc);
				h->cancelled = true;
			}
			break;
		case OP_ADVISE:
			/* It may bring the pages up to date, too. */
			for (unsigned p = first; p <= last; p++)
				span_add(&acquires[op->file][device][p], op->s, op->e ? op->e : NEVER, proc);
			break;
		case OP_RELEASE:
			for (unsigned p = first; p <= last; p++, h++)
				on_release(h, op, p, proc);
			break;
		case OP_DROP:
			for (unsigned p = first; p <= last; p++, h++)
				on_drop(h, op->file, p, proc, never_ended(op) ? NEVER : op->e);
			break;
		case OP_STORE:
			h->stores = more(h->stores, h->n, &h->room, sizeof(*h->stores));
			h->stores[h->n++] = i;
			/* fallthrough */
		case OP_LOAD:
			d->acquired = h->acquired;
			break;
		default:
			break;
		}
	}
	for (unsigned f = 0; f < MAX_FILES; f++)
		for (unsigned p = 0; p < MAX_HOT; p++) {
			on_drop(&hold[f][p], f, p, proc, world->procs[proc].confirmed);
			hold[f][p].cancelled = false;
		}
}

/* Whether somebody else on the device had the page when a store of it was lost. Then its bytes cannot be
 * told from theirs. */
static bool others_had(ref r, const struct dev_op *d, struct spans had[MAX_FILES][MAX_MEMORIES][MAX_HOT])
{
	const struct op *op = REF_OP(r);
	const struct spans *list = &had[op->file][world->procs[REF_PROC(r)].device][op->cell / page_cells()];

	for (unsigned i = 0; i < list->n; i++)
		if (list->at[i].proc != REF_PROC(r) && list->at[i].s < d->dropped && list->at[i].e > op->s)
			return true;
	return false;
}

static bool shared(ref r, const struct dev_op *d)
{
	return others_had(r, d, holds) || others_had(r, d, cancelled);
}

/* When others may first see a store: any release of the page by its device publishes it. */
static void find_vis(unsigned proc)
{
	for (unsigned i = 0; i < nops(proc); i++) {
		const struct op *op = &world->logs[proc].ops[i];
		struct dev_op *d = &dev_ops[proc][i];
		const struct spans *list;

		if (op->kind != OP_STORE)
			continue;
		list = releases_of(op->file, world->procs[proc].device, op->cell / page_cells());
		d->vis = d->released;
		d->shared = d->dropped != NEVER && shared(REF(proc, i), d);
		if (d->dropped != NEVER && d->released == NEVER && !d->shared)
			continue;
		/* What a client leaves that has ended is published by who gives back the last hold. */
		if (d->shared && others_had(REF(proc, i), d, cancelled))
			d->vis = op->s;
		for (unsigned k = 0; k < list->n; k++)
			if (list->at[k].e > op->s && list->at[k].s < d->vis)
				d->vis = list->at[k].s;
	}
}

const struct dev_op *dev_op(ref r)
{
	return &dev_ops[REF_PROC(r)][r & 0xffff];
}

const struct spans *acquires_of(unsigned file, unsigned device, uint32_t page)
{
	return &acquires[file][device][page];
}

const struct spans *releases_of(unsigned file, unsigned device, uint32_t page)
{
	return &releases[file][device][page];
}

/* ---- cells ---- */

/* Whether an operation says something about cells, and up to which one. */
static bool counts(const struct op *op, unsigned proc, uint32_t *end)
{
	*end = op->cell + op->n < all_cells() ? op->cell + op->n : all_cells();
	if (is_write(op))
		return true;
	return is_read(op) && !op->err && op->e &&
	       (op->e < crash_time || world->procs[proc].kind == PROC_LAST);
}

static void index_cells(void)
{
	unsigned cells = all_cells();
	uint32_t end;

	for (unsigned f = 0; f < MAX_FILES; f++) {
		files[f].start = calloc(cells + 2, sizeof(uint32_t));
		files[f].ntruncations = 0;
		files[f].nsyncs = 0;
	}
	for (unsigned p = 0; p < nprocs(); p++)
		for (unsigned i = 0; i < nops(p); i++) {
			const struct op *op = &world->logs[p].ops[i];
			uint32_t *start = files[op->file].start;

			files[op->file].ntruncations += op->kind == OP_TRUNCATE || op->kind == OP_APPEND;
			files[op->file].nsyncs += op->kind == OP_SYNC;
			if (counts(op, p, &end))
				for (uint32_t c = op->cell; c < end; c++)
					start[c + 2]++;
		}
	for (unsigned f = 0; f < MAX_FILES; f++) {
		for (unsigned c = 0; c < cells; c++)
			files[f].start[c + 2] += files[f].start[c + 1];
		files[f].ops = malloc((files[f].start[cells + 1] + 1) * sizeof(ref));
		files[f].truncations = malloc((files[f].ntruncations + 1) * sizeof(ref));
		files[f].syncs = malloc((files[f].nsyncs + 1) * sizeof(ref));
		files[f].ntruncations = 0;
		files[f].nsyncs = 0;
	}
	/* start[c + 1] is where the next of cell c goes; in the end, where cell c + 1 begins. */
	for (unsigned p = 0; p < nprocs(); p++)
		for (unsigned i = 0; i < nops(p); i++) {
			const struct op *op = &world->logs[p].ops[i];
			uint32_t *start = files[op->file].start;

			if (op->kind == OP_TRUNCATE || op->kind == OP_APPEND)
				files[op->file].truncations[files[op->file].ntruncations++] = REF(p, i);
			if (op->kind == OP_SYNC)
				files[op->file].syncs[files[op->file].nsyncs++] = REF(p, i);
			if (counts(op, p, &end))
				for (uint32_t c = op->cell; c < end; c++)
					files[op->file].ops[start[c + 1]++] = REF(p, i);
		}
}

const ref *cell_ops(unsigned file, uint32_t cell, unsigned *n)
{
	*n = files[file].start[cell + 1] - files[file].start[cell];
	return &files[file].ops[files[file].start[cell]];
}

const ref *truncations(unsigned file, unsigned *n)
{
	*n = files[file].ntruncations;
	return files[file].truncations;
}

const ref *syncs(unsigned file, unsigned *n)
{
	*n = files[file].nsyncs;
	return files[file].syncs;
}

bool in_file(unsigned file, uint32_t cell, uint64_t from, uint64_t to)
{
	uint64_t down = 0;
	unsigned n;
	const ref *at = truncations(file, &n);

	for (unsigned i = 0; i < n; i++) {
		const struct op *op = REF_OP(at[i]);
		uint64_t e = never_ended(op) ? NEVER : op->e;

		if (op->kind == OP_TRUNCATE && op->cell <= cell && op->s < to && e > down)
			down = e;
	}
	if (down > from)
		return false;
	for (unsigned i = 0; i < n; i++) {
		const struct op *op = REF_OP(at[i]);

		if (op->cell + op->n > cell && !op->err && !never_ended(op) && op->s > down &&
		    op->e < from)
			return true;
	}
	return false;
}

void facts_gather(uint64_t crashed)
{
	crash_time = crashed;
	for (unsigned p = 0; p < nprocs(); p++)
		if (world->procs[p].kind == PROC_CLIENT)
			read_client(p);
	for (unsigned p = 0; p < nprocs(); p++)
		if (world->procs[p].kind == PROC_CLIENT)
			find_vis(p);
	index_cells();
}

void facts_drop(void)
{
	for (unsigned f = 0; f < MAX_FILES; f++) {
		free(files[f].start);
		free(files[f].ops);
		free(files[f].truncations);
		free(files[f].syncs);
		for (unsigned d = 0; d < MAX_MEMORIES; d++)
			for (unsigned p = 0; p < MAX_HOT; p++) {
				acquires[f][d][p].n = 0;
				releases[f][d][p].n = 0;
				holds[f][d][p].n = 0;
				cancelled[f][d][p].n = 0;
			}
	}
	for (unsigned p = 0; p < MAX_PROCS; p++) {
		free(dev_ops[p]);
		dev_ops[p] = NULL;
	}
}
