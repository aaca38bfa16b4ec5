/*
 * cell.c - all that happened to one cell, as intervals.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

static bool may_be_lost(const struct op *op)
{
	/* The kernel gives up what it could not write back, having told an fsync. */
	return config_fails(&world->config) && (world->config.writeback || op->kind == OP_MSTORE);
}

static struct write *new_write(struct cell *c)
{
	if (c->nw == c->room_w) {
		c->room_w = c->room_w ? 2 * c->room_w : 64;
		c->w = realloc(c->w, c->room_w * sizeof(*c->w));
		if (!c->w)
			abort();
	}
	return memset(&c->w[c->nw++], 0, sizeof(*c->w));
}

/* ---- copies ---- */

/* By process, operation, and cell of it: found once. */
static struct values **copies[MAX_PROCS];
/* While that is found: those that are too late to matter. */
static uint64_t copies_until = NEVER;

bool may_be(const struct write *w, uint64_t value)
{
	if (!w->copied)
		return w->value == value;
	if (w->copied->n > MOST_VALUES)
		return true;
	for (unsigned i = 0; i < w->copied->n; i++)
		if (w->copied->at[i] == value)
			return true;
	return false;
}

bool could_see(const struct read *r, const struct write *w)
{
	if (r->owner && r->owner == w->owner)
		return w->s < r->e && (r->s < w->dropped || w->shared || !w->private);
	return w->vis < r->e;
}

static void add_value(struct values *v, uint64_t value)
{
	for (unsigned i = 0; i < v->n; i++)
		if (v->at[i] == value)
			return;
	if (v->n == v->room) {
		v->room = v->room ? 2 * v->room : 4;
		v->at = realloc(v->at, v->room * sizeof(*v->at));
		if (!v->at)
			abort();
	}
	v->at[v->n++] = value;
}

/* What a copy may have read. Copies are made one after the other: what one reads, earlier ones wrote. */
static const struct values *copied(ref r, uint32_t cell)
{
	const struct op *op = REF_OP(r);
	struct values **of, *v;
	uint32_t from = op->from + (cell - op->cell);
	struct cell source = { .nw = 0 };
	struct read read = { .s = op->s, .e = op->e ? op->e : NEVER };
	uint64_t until = copies_until;

	if (!copies[REF_PROC(r)])
		copies[REF_PROC(r)] = calloc(MAX_OPS, sizeof(**copies));
	of = &copies[REF_PROC(r)][r & 0xffff];
	if (!*of)
		*of = calloc(op->n, sizeof(**of));
	v = &(*of)[cell - op->cell];
	if (v->n)
		return v;
	if (from >= all_cells()) {
		add_value(v, 0);
		return v;
	}
	copies_until = op->s;
	cell_gather(&source, op->from_file, from);
	copies_until = until;
	for (unsigned i = 0; i < source.nw && v->n <= MOST_VALUES; i++) {
		const struct write *w = &source.w[i];

		if (!could_see(&read, w) || overwritten(&source, w, read.s))
			continue;
		if (!w->copied)
			add_value(v, w->value);
		for (unsigned k = 0; w->copied && k < w->copied->n && v->n <= MOST_VALUES; k++)
			add_value(v, w->copied->at[k]);
	}
	free(source.w);
	free(source.r);
	free(source.over);
	return v;
}

void copies_drop(void)
{
	for (unsigned p = 0; p < MAX_PROCS; p++) {
		for (unsigned i = 0; copies[p] && i < atomic_load(&world->logs[p].nops); i++)
			if (copies[p][i]) {
				for (unsigned k = 0; k < world->logs[p].ops[i].n; k++)
					free(copies[p][i][k].at);
				free(copies[p][i]);
			}
		free(copies[p]);
		copies[p] = NULL;
	}
}

static void add_cpu_write(struct cell *c, ref r)
{
	const struct op *op = REF_OP(r);
	struct write *w = new_write(c);

	w->by = r;
	w->s = w->lo = w->vis = op->s;
	w->e = w->hi = op->e;
	w->dropped = NEVER;
	if (op->kind == OP_COPY)
		w->copied = copied(r, c->cell);
	else
		w->value = value_at(r, c->cell);
	w->optional = op->err || never_ended(op) || may_be_lost(op) ||
		      (op->kind == OP_MSTORE && !in_file(c->file, c->cell, op->s, op->e));
	w->gradual = op->kind == OP_TRUNCATE;
	if (w->optional)
		w->hi = NEVER;
	if (!op->e)
		w->e = NEVER;
}

static void add_store(struct cell *c, ref r)
{
	const struct op *op = REF_OP(r);
	const struct dev_op *d = dev_op(r);
	struct write *w = new_write(c);
	unsigned n;
	const ref *cut = truncations(c->file, &n);

	w->by = r;
	w->owner = (uint8_t)(1 + world->procs[REF_PROC(r)].device);
	w->s = op->s;
	w->e = op->e ? op->e : NEVER;
	w->lo = d->acquired;
	w->vis = d->vis;
	w->hi = d->done;
	w->dropped = d->dropped;
	w->shared = d->shared;
	w->value = value_at(r, c->cell);
	w->optional = op->err || !op->e || d->done == NEVER;
	for (unsigned i = 0; i < n; i++) {
		const struct op *t = REF_OP(cut[i]);

		if (t->kind != OP_TRUNCATE || t->cell > c->cell || t->arg == 1 || t->s >= w->hi ||
		    (!never_ended(t) && t->e <= w->lo))
			continue;
		/* Stored, cut off, and only then released: gone. Else it is a race. */
		if (w->e < t->s && !never_ended(t) && !t->err && t->e < w->vis) {
			w->hi = t->s - 1;
			w->vis = NEVER;
			w->optional = false;
		} else {
			w->optional = true;
		}
	}
	if (!w->optional && w->vis != NEVER && !in_file(c->file, c->cell, w->lo, w->hi))
		w->optional = true;
	if (w->optional)
		w->hi = NEVER;
	w->private = w->vis == NEVER;
}

static void add_read(struct cell *c, ref r)
{
	const struct op *op = REF_OP(r);
	const struct proc *p = &world->procs[REF_PROC(r)];
	struct read read = { .s = op->s, .e = op->e, .loaded = op->s, .by = r, .saw = -1 };

	if (op->kind == OP_LOAD) {
		read.owner = (uint8_t)(1 + p->device);
		read.either = HAS(&world->config, F_HOST) && p->device == world->config.devices && op->arg != 2;
		read.s = dev_op(r)->acquired;
		/* Nothing is said of what lies beyond the end. */
		if (!in_file(c->file, c->cell, read.s, read.e))
			return;
	} else if (p->kind == PROC_LAST && crash_time != NEVER) {
		unsigned n;
		const ref *at = syncs(c->file, &n);

		read.last = true;
		read.s = 0;
		for (unsigned i = 0; i < n; i++) {
			const struct op *s = REF_OP(at[i]);

			if (!s->err && !never_ended(s) && s->cell <= c->cell && c->cell < s->cell + s->n &&
			    s->s > read.s)
				read.s = s->s;
		}
	}
	read.value = value_at(r, c->cell);
	if (c->nr == c->room_r) {
		c->room_r = c->room_r ? 2 * c->room_r : 64;
		c->r = realloc(c->r, c->room_r * sizeof(*c->r));
		if (!c->r)
			abort();
	}
	c->r[c->nr++] = read;
}

/* A store that the same device overwrote before anything was released is seen by nobody else. */
static void find_superseded(struct cell *c)
{
	for (unsigned i = 0; i < c->nw; i++) {
		struct write *w = &c->w[i];
		const struct spans *list;

		if (!w->owner || w->private)
			continue;
		list = releases_of(c->file, w->owner - 1u, c->cell / page_cells());
		for (unsigned k = 0; k < c->nw && !w->private; k++) {
			const struct write *x = &c->w[k];
			bool between = false;

			if (x->owner != w->owner || x->optional || x->dropped != NEVER || w->e >= x->s)
				continue;
			for (unsigned j = 0; j < list->n && !between; j++)
				between = list->at[j].e > w->s && list->at[j].s < x->e;
			w->private = !between;
		}
	}
}

static int by_hi(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void index_over(struct cell *c)
{
	uint64_t lo = 0;

	c->over = realloc(c->over, (c->nw + 1) * sizeof(*c->over));
	c->nover = 0;
	for (unsigned i = 0; i < c->nw; i++)
		if (!c->w[i].optional && !c->w[i].private) {
			c->over[c->nover].hi = c->w[i].hi;
			c->over[c->nover++].lo = c->w[i].lo;
		}
	qsort(c->over, c->nover, sizeof(*c->over), by_hi);
	for (unsigned i = 0; i < c->nover; i++) {
		if (c->over[i].lo > lo)
			lo = c->over[i].lo;
		c->over[i].lo = lo;
	}
}

static int by_start(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return x->s < y->s ? -1 : x->s > y->s;
}

/* Those writes of one kind that are under way while one of the other kind is. See find_raced(). */
static void mark_raced(struct cell *c, uint8_t kind, uint8_t other)
{
	struct span *at = malloc((c->nw + 1) * sizeof(*at));
	unsigned n = 0;

	for (unsigned i = 0; i < c->nw; i++)
		if (c->w[i].by != NO_REF && REF_OP(c->w[i].by)->kind == other)
			at[n++] = (struct span){ .s = c->w[i].s, .e = c->w[i].e };
	qsort(at, n, sizeof(*at), by_start);
	for (unsigned i = 1; i < n; i++)
		if (at[i].e < at[i - 1].e)
			at[i].e = at[i - 1].e;
	for (unsigned i = 0; i < c->nw; i++) {
		struct write *w = &c->w[i];
		unsigned a = 0, b = n;

		if (w->by == NO_REF || REF_OP(w->by)->kind != kind)
			continue;
		/* The last that began before it ended. */
		while (a < b) {
			unsigned m = (a + b) / 2;

			if (at[m].s < w->e)
				a = m + 1;
			else
				b = m;
		}
		if (a == 0 || at[a - 1].e <= w->s)
			continue;
		w->raced = true;
		if (kind == OP_MSTORE && at[a - 1].e > w->hi)
			w->hi = at[a - 1].e;
	}
	free(at);
}

/*
 * A kernel that writes through takes a write's bytes into its page before it sends them. A store to the page in
 * between may be written back before the write is sent, and then comes before it for us, and after it in the kernel's
 * copy: as long as that stays, one of the two values is there for some, and one for others. And what is sent for a
 * write(2) is what the page holds by then: a store from in between may take effect as late as that write. (gaiafs-limits(7))
 */
static void find_raced(struct cell *c)
{
	mark_raced(c, OP_WRITE, OP_MSTORE);
	mark_raced(c, OP_MSTORE, OP_WRITE);
}

bool overwritten(const struct cell *c, const struct write *w, uint64_t t)
{
	unsigned a = 0, b = c->nover;

	/* The last definite write that was over before t. */
	while (a < b) {
		unsigned m = (a + b) / 2;

		if (c->over[m].hi < t)
			a = m + 1;
		else
			b = m;
	}
	return a > 0 && w->hi < c->over[a - 1].lo;
}

void cell_gather(struct cell *c, unsigned file, uint32_t cell)
{
	struct write *zero;
	const ref *at;
	bool stores = false;
	unsigned n;

	c->file = file;
	c->cell = cell;
	c->nw = 0;
	c->nr = 0;
	/* What a new file holds. */
	zero = new_write(c);
	zero->by = NO_REF;
	zero->dropped = NEVER;
	at = cell_ops(file, cell, &n);
	for (unsigned i = 0; i < n; i++) {
		const struct op *op = REF_OP(at[i]);

		if (op->kind == OP_STORE) {
			stores = true;
			add_store(c, at[i]);
		} else if (is_write(op)) {
			if (op->kind == OP_COPY && op->s >= copies_until)
				continue;
			add_cpu_write(c, at[i]);
		} else {
			add_read(c, at[i]);
		}
	}
	at = truncations(file, &n);
	for (unsigned i = 0; i < n; i++)
		if (REF_OP(at[i])->kind == OP_TRUNCATE && REF_OP(at[i])->cell <= cell &&
		    REF_OP(at[i])->arg != 1)
			add_cpu_write(c, at[i]);
	if (stores)
		find_superseded(c);
	if (!world->config.writeback)
		find_raced(c);
	index_over(c);
}
