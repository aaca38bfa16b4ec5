/*
 * world.c - what each process of a round needs: its log, and its values.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "history.h"

struct world *world;
unsigned me;

/* ---- cells ---- */

off_t cell_offset(uint32_t cell)
{
	return (off_t)world->hot_page[cell / page_cells()] * PAGE +
	       (off_t)(cell % page_cells()) * cell_size();
}

uint32_t cell_run(uint32_t cell, uint32_t n)
{
	uint32_t page = cell / page_cells(), last = page;

	while (last + 1 < world->config.hot && world->hot_page[last + 1] == world->hot_page[last] + 1)
		last++;
	if (n > (last + 1) * page_cells() - cell)
		n = (last + 1) * page_cells() - cell;
	return n;
}

uint32_t size_cells(off_t size)
{
	for (uint32_t p = 0; p < world->config.hot; p++) {
		off_t start = (off_t)world->hot_page[p] * PAGE;

		if (size <= start)
			return p * page_cells();
		if (size < start + PAGE)
			return p * page_cells() + (uint32_t)((size - start) / cell_size());
	}
	return all_cells();
}

void pick_run(uint32_t *cell, uint32_t *n, uint32_t most)
{
	uint32_t in_page = page_cells(), page = below(world->config.hot), length;
	unsigned how = below(10);

	/* Neighbours and edges of pages are where it goes wrong: meet there often. */
	*cell = page * in_page;
	if (how < 4)
		*cell += below(8);
	else if (how < 6)
		*cell += in_page - 1 - below(8);
	else
		*cell += below(in_page);
	how = below(10);
	if (how < 4)
		length = 1;
	else if (how < 8)
		length = 1 + below(8);
	else if (how < 9)
		length = 1 + below(in_page);
	else
		length = 1 + below(3 * in_page);
	if (length > most)
		length = most;
	*n = cell_run(*cell, length);
}

/* ---- processes ---- */

bool proc_new(enum proc_kind kind, unsigned number, unsigned device, unsigned *id)
{
	unsigned n = atomic_fetch_add(&world->nprocs, 1);
	struct proc *p;

	if (n >= MAX_PROCS) {
		atomic_store(&world->nprocs, MAX_PROCS);
		return false;
	}
	p = &world->procs[n];
	memset(p, 0, sizeof(*p));
	p->number = number;
	p->device = device;
	p->confirmed = NEVER;
	atomic_store(&world->logs[n].nops, 0);
	world->logs[n].ndata = 0;
	p->kind = kind;
	*id = n;
	return true;
}

bool phase_is(uint32_t phase)
{
	return atomic_load(&world->phase) == phase;
}

void phase_done(uint32_t phase)
{
	atomic_store(&world->procs[me].busy, 0);
	/* The running phase does not wait for anybody. */
	if (phase != PHASE_RUN)
		atomic_fetch_add(&world->arrived, 1);
	while (phase_is(phase))
		syscall(SYS_futex, &world->phase, FUTEX_WAIT, phase, NULL, NULL, 0);
	if (phase_is(PHASE_END))
		_exit(ALL_WELL);
}

/* ---- the log ---- */

struct op *op_begin(enum op_kind kind, unsigned file, uint32_t cell, uint32_t n, size_t data)
{
	struct log *log = &world->logs[me];
	uint32_t i = atomic_load(&log->nops);
	struct op *op = &log->ops[i];

	if (i == MAX_OPS || log->ndata + data > MAX_DATA)
		return NULL;
	*op = (struct op){ .kind = (uint8_t)kind, .file = (uint8_t)file, .cell = cell, .n = n,
			   .data = log->ndata };
	log->ndata += (uint32_t)((data + 7) & ~(size_t)7);
	if (log->ndata > MAX_DATA)
		log->ndata = MAX_DATA;
	return op;
}

void op_start(struct op *op)
{
	struct log *log = &world->logs[me];

	op->s = now();
	atomic_store(&world->procs[me].busy, op->s);
	/* From here on it counts, should this process be killed. */
	atomic_store(&log->nops, (uint32_t)(op - log->ops) + 1);
}

void op_end(struct op *op, int err)
{
	op->err = (int16_t)err;
	/* A store is seen by others when it has left the store buffer. */
	atomic_thread_fence(memory_order_seq_cst);
	op->e = now();
	atomic_store(&world->procs[me].busy, 0);
}

bool log_has_room(void)
{
	const struct log *log = &world->logs[me];

	return atomic_load(&log->nops) < MAX_OPS * 3 / 4 && log->ndata < MAX_DATA / 2;
}

void *op_data(const struct op *op)
{
	return &world->logs[me].data[op->data];
}

void op_note(enum op_kind kind, unsigned file, uint32_t cell, uint32_t n, unsigned arg, uint64_t s,
	     int err)
{
	struct op *op = op_begin(kind, file, cell, n, 0);

	if (!op)
		return;
	op_start(op);
	op->s = s;
	op->arg = (uint8_t)arg;
	op_end(op, err);
}

/* ---- values ---- */

/* A bijection of 64 bits, so that all bytes of a stamp differ from its neighbours'. */
static uint64_t scramble(uint64_t x)
{
	x *= 0x9e3779b97f4a7c15u;
	x ^= x >> 32;
	x *= 0xd6e8feb86659fd93u;
	x ^= x >> 32;
	return x;
}

/* The inverse of an odd number modulo 2^64, by Newton's method. */
static uint64_t inverse(uint64_t a)
{
	uint64_t x = a;

	for (int i = 0; i < 6; i++)
		x *= 2 - a * x;
	return x;
}

static uint64_t unscramble(uint64_t x)
{
	x ^= x >> 32;
	x *= inverse(0xd6e8feb86659fd93u);
	x ^= x >> 32;
	x *= inverse(0x9e3779b97f4a7c15u);
	return x;
}

uint64_t stamp(unsigned round, unsigned proc, unsigned seq, uint32_t cell)
{
	return scramble(5ull << 60 | (uint64_t)(round & 0xfff) << 48 | (uint64_t)proc << 42 |
			(uint64_t)seq << 24 | cell);
}

bool unstamp(uint64_t value, unsigned *round, unsigned *proc, unsigned *seq, uint32_t *cell)
{
	uint64_t x = unscramble(value);

	*round = x >> 48 & 0xfff;
	*proc = x >> 42 & 0x3f;
	*seq = x >> 24 & 0x3ffff;
	*cell = x & 0xffffff;
	return x >> 60 == 5;
}

bool op_values(struct op *op, void *out)
{
	unsigned seq = (unsigned)(op - world->logs[me].ops);
	uint64_t *words = out;
	uint8_t *bytes = out;

	if (!world->config.bytes) {
		for (uint32_t i = 0; i < op->n; i++)
			words[i] = stamp(world->round, me, seq, op->cell + i);
		return true;
	}
	for (uint32_t i = 0; i < op->n; i++) {
		_Atomic uint8_t *last = &world->last_value[op->file][op->cell + i];
		uint8_t was = atomic_load(last);

		do {
			if (was == UINT8_MAX)
				return false;
		} while (!atomic_compare_exchange_weak(last, &was, (uint8_t)(was + 1)));
		bytes[i] = (uint8_t)(was + 1);
	}
	memcpy(op_data(op), bytes, op->n);
	return true;
}

/* ---- loads and stores ---- */

static sigjmp_buf fault_return;
static volatile sig_atomic_t fault_expected;

static void on_fault(int sig)
{
	if (!fault_expected) {
		signal(sig, SIG_DFL);
		return;
	}
	siglongjmp(fault_return, 1);
}

void catch_faults(void)
{
	struct sigaction act = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };

	sigaction(SIGBUS, &act, NULL);
	sigaction(SIGSEGV, &act, NULL);
}

uint32_t load_cells(void *to, const volatile void *from, uint32_t n)
{
	volatile uint32_t i = 0;

	if (sigsetjmp(fault_return, 0) == 0) {
		fault_expected = 1;
		if (world->config.bytes)
			for (; i < n; i++)
				((uint8_t *)to)[i] = ((const volatile uint8_t *)from)[i];
		else
			for (; i < n; i++)
				((uint64_t *)to)[i] = ((const volatile uint64_t *)from)[i];
	}
	fault_expected = 0;
	return i;
}

uint32_t store_cells(volatile void *to, const void *from, uint32_t n)
{
	volatile uint32_t i = 0;

	if (sigsetjmp(fault_return, 0) == 0) {
		fault_expected = 1;
		if (world->config.bytes)
			for (; i < n; i++)
				((volatile uint8_t *)to)[i] = ((const uint8_t *)from)[i];
		else
			for (; i < n; i++)
				((volatile uint64_t *)to)[i] = ((const uint64_t *)from)[i];
	}
	fault_expected = 0;
	return i;
}
