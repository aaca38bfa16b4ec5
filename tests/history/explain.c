/*
 * explain.c - prints the history of a cell.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

#define MOST_LINES 80

static const char *const kinds[OP_KINDS] = {
	[OP_READ] = "read", [OP_MLOAD] = "load (mmap)", [OP_DREAD] = "read (O_DIRECT)",
	[OP_WRITE] = "write", [OP_MSTORE] = "store (mmap)", [OP_APPEND] = "append",
	[OP_DWRITE] = "write (O_DIRECT)", [OP_TRUNCATE] = "truncate", [OP_PUNCH] = "punch",
	[OP_COPY] = "copy_file_range", [OP_SYNC] = "sync", [OP_ACQUIRE] = "acquire",
	[OP_RELEASE] = "release", [OP_DROP] = "unmap", [OP_LOAD] = "load", [OP_STORE] = "store",
	[OP_RENAME] = "rename over", [OP_UNLINK] = "unlink", [OP_EVICT] = "evict",
	[OP_CANCEL] = "acquire, cancelled",
	[OP_FLUSH] = "flush", [OP_FORGET] = "forget", [OP_ADVISE] = "advise",
};

static const char *proc_text(unsigned proc)
{
	static char text[4][32];
	static unsigned turn;
	char *out = text[turn++ % 4];
	const struct proc *p = &world->procs[proc];

	switch (p->kind) {
	case PROC_CPU:
		snprintf(out, 32, "cpu%u", p->number);
		break;
	case PROC_CLIENT:
		snprintf(out, 32, "dev%u.%u", p->device, proc);
		break;
	default:
		snprintf(out, 32, "%s", p->kind == PROC_SETUP ? "setup" :
			 p->kind == PROC_ADVERSARY ? "adversary" : p->kind == PROC_LAST ? "afterwards" :
			 "keeper");
	}
	return out;
}

const char *op_text(const struct op *op, unsigned proc)
{
	static char text[256];
	const unsigned cells = page_cells();
	int n;

	n = snprintf(text, sizeof(text), "%-10s %s", proc_text(proc), kinds[op->kind]);
	if (op->kind == OP_ACQUIRE)
		n += snprintf(text + n, sizeof(text) - (size_t)n, op->arg == 2 ? " w" : op->arg ? " rw" : " r");
	if (op->kind == OP_EVICT)
		n += op->arg ? snprintf(text + n, sizeof(text) - (size_t)n, " dev%u", op->arg - 1) :
			       snprintf(text + n, sizeof(text) - (size_t)n, " home");
	if (op->kind == OP_TRUNCATE)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " to page %u + %u", op->cell / cells,
			      op->cell % cells);
	else
		n += snprintf(text + n, sizeof(text) - (size_t)n, " page %u + %u, %u cell%s",
			      op->cell / cells, op->cell % cells, op->n, op->n == 1 ? "" : "s");
	if (op->kind == OP_COPY)
		n += snprintf(text + n, sizeof(text) - (size_t)n, " from file %u page %u + %u",
			      op->from_file, op->from / cells, op->from % cells);
	if (!op->e)
		snprintf(text + n, sizeof(text) - (size_t)n, " (never returned)");
	else if (op->err)
		snprintf(text + n, sizeof(text) - (size_t)n, ": %s", strerror(op->err));
	return text;
}

/* Byte by byte. */
static void mixture_text(const struct cell *c, uint64_t value, char *text, size_t room)
{
	size_t n = (size_t)snprintf(text, room, "a mixture:");

	for (unsigned b = 0; b < 8; b++) {
		n += (size_t)snprintf(text + n, room - n, " ");
		for (unsigned i = 0, any = 0; i < c->nw && n < room - 32; i++)
			if (!c->w[i].copied && (c->w[i].value >> 8 * b & 0xff) == (value >> 8 * b & 0xff))
				n += (size_t)snprintf(text + n, room - n, "%s%s#%u", any++ ? "|" : "",
						      c->w[i].by == NO_REF ? "0" : proc_text(REF_PROC(c->w[i].by)),
						      c->w[i].by == NO_REF ? 0 : c->w[i].by & 0xffff);
	}
}

/* Whose value that is. */
static const char *value_text(const struct cell *c, uint64_t value)
{
	static char text[640];
	unsigned round, proc, seq;
	uint32_t cell;

	if (value == 0)
		return "0";
	if (world->config.bytes) {
		snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
		for (unsigned i = 0; i < c->nw; i++)
			if (c->w[i].value == value && !c->w[i].copied)
				snprintf(text, sizeof(text), "%llu, of %s#%u", (unsigned long long)value,
					 proc_text(REF_PROC(c->w[i].by)), c->w[i].by & 0xffff);
		return text;
	}
	if (!unstamp(value, &round, &proc, &seq, &cell))
		mixture_text(c, value, text, sizeof(text));
	else if (round != (world->round & 0xfff))
		snprintf(text, sizeof(text), "a value of round %u, cell %u", round, cell);
	else
		snprintf(text, sizeof(text), "%s#%u%s", proc_text(proc), seq,
			 cell == c->cell ? "" : " of another cell");
	return text;
}

/* Whether an operation has to do with the cell's page. */
static bool concerns(const struct op *op, const struct cell *c)
{
	uint32_t page = c->cell / page_cells(), first = op->cell / page_cells();
	uint32_t last = op->n ? (op->cell + op->n - 1) / page_cells() : first;

	if (op->file != c->file)
		return false;
	switch (op->kind) {
	case OP_TRUNCATE:
	case OP_RENAME:
	case OP_UNLINK:
		return true;
	case OP_SYNC:
	case OP_ACQUIRE:
	case OP_RELEASE:
	case OP_DROP:
	case OP_CANCEL:
	case OP_EVICT:
	case OP_FLUSH:
	case OP_FORGET:
	case OP_ADVISE:
		return first <= page && page <= last;
	default:
		return op->cell <= c->cell && c->cell < op->cell + op->n;
	}
}

struct line {
	uint64_t s;
	ref r;
	bool death, blamed;
};

static int by_time(const void *a, const void *b)
{
	const struct line *x = a, *y = b;

	return x->s < y->s ? -1 : x->s > y->s;
}

static void print_line(const struct cell *c, const struct line *l, uint64_t zero)
{
	const struct op *op;

	if (l->death) {
		printf("  %12.3f               %s is gone, and the daemon knows\n",
		       ((double)l->s - (double)zero) / 1000, proc_text(REF_PROC(l->r)));
		return;
	}
	op = REF_OP(l->r);
	printf("%c %12.3f ..%10.3f %s #%u", l->blamed ? '>' : ' ', ((double)op->s - (double)zero) / 1000,
	       op->e ? ((double)op->e - (double)zero) / 1000 : 0.0, op_text(op, REF_PROC(l->r)),
	       l->r & 0xffff);
	if (is_read(op) && op->e)
		printf(" = %s", value_text(c, value_at(l->r, c->cell)));
	printf("\n");
}

static bool is_blamed(const struct violation *v, ref r)
{
	for (unsigned i = 0; i < v->nblame; i++)
		if (v->blame[i] == r)
			return true;
	return false;
}

void explain(const struct violation *v, const struct cell *c)
{
	struct line *lines = NULL;
	unsigned n = 0, room = 0, skipped = 0;
	uint64_t from = v->from, zero;

	for (unsigned i = 0; i < v->nblame; i++)
		if (REF_OP(v->blame[i])->s < from)
			from = REF_OP(v->blame[i])->s;
	printf("file %u, page %u, cell %u of it (byte %lld of the file): %s.\n", v->file,
	       v->cell / page_cells(), v->cell % page_cells(), (long long)cell_offset(v->cell), v->what);
	printf("Times in us; > marks what contradicts itself.\n");
	for (unsigned p = 0; p < atomic_load(&world->nprocs); p++) {
		uint64_t gone = world->procs[p].confirmed;

		for (unsigned i = 0; i <= atomic_load(&world->logs[p].nops); i++) {
			const struct op *op = &world->logs[p].ops[i];
			bool death = i == atomic_load(&world->logs[p].nops);
			struct line l = { .s = death ? gone : op->s, .r = REF(p, i), .death = death };

			l.blamed = !death && is_blamed(v, l.r);
			if (death ? gone == NEVER || gone < from || gone > v->to :
			    !l.blamed && (!concerns(op, c) || op->s > v->to || (op->e && op->e < from)))
				continue;
			if (n == room) {
				room = room ? 2 * room : 64;
				lines = realloc(lines, room * sizeof(*lines));
			}
			lines[n++] = l;
		}
	}
	qsort(lines, n, sizeof(*lines), by_time);
	zero = n ? lines[0].s : 0;
	for (unsigned i = 0; i < n; i++) {
		/* The ends are what matters most. */
		if (n > MOST_LINES && i >= MOST_LINES / 2 && i < n - MOST_LINES / 2 && !lines[i].blamed) {
			skipped++;
			continue;
		}
		if (skipped)
			printf("  ... %u more\n", skipped);
		skipped = 0;
		print_line(c, &lines[i], zero);
	}
	free(lines);
}
