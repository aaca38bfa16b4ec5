/*
 * oracle.h - what the contract allows to be seen, decided from the logs alone.
 *
 * Every cell is a register of its own. A write takes effect at some moment of an interval [lo, hi]:
 *
 *	CPU write	from its call to its return
 *	device store	from the call of the acquire that it was made under (what was written before
 *			that, it overwrites) to the return of the release. Others may see it from the call
 *			of the release (vis) on.
 *	optional write	one that failed, was under way when its process was killed, or may have met the
 *			end of the file: it may take effect any time, or never
 *
 * and a read sees what the register held at some moment of an interval [s, e]:
 *
 *	CPU read	from its call to its return
 *	device load	from the call of the acquire that it was made under to the load
 *	after a crash	from the call of the last fsync or gaia_sync of the cell that returned
 *
 * What is true of one register with values of their own (Gibbons and Korach, "Testing shared
 * memories", 1997): let a value's zone be from the first end of its write and reads, f, to the last start, l. Where
 * f < l, the register held the value all the time between. An order exists if and only if no two
 * such times overlap, and no other write lies whole within one. This finds stale reads, lost writes,
 * and values that come back.
 *
 * Three such orders are asked for: among all, with a write's zone beginning at its hi (races are
 * undecided until then); among CPU processes, with all their reads; and for each device, of its loads. Besides,
 * a device sees its own stores at once, and what was never released nobody else sees at all.
 */
#ifndef HISTORY_ORACLE_H
#define HISTORY_ORACLE_H

#include "history.h"

/* An operation: a process's number and its place in the log. */
typedef uint32_t ref;
#define NO_REF UINT32_MAX
#define REF(proc, i) ((ref)(proc) << 16 | (ref)(i))
#define REF_PROC(r) ((r) >> 16)
#define REF_OP(r) (&world->logs[REF_PROC(r)].ops[(r) & 0xffff])

/* A stretch of a device page's time, of one client's. */
struct span {
	uint64_t s, e;
	unsigned proc;
};

struct spans {
	struct span *at;
	unsigned n, room;
};

/* Of a client's loads and stores. */
struct dev_op {
	uint64_t acquired;	/* call of the acquire */
	uint64_t released, done;/* call and return of the release; NEVER */
	uint64_t dropped;	/* when it was known to be lost; NEVER: it was not */
	uint64_t vis;		/* when others may see it */
	bool shared;		/* lost, but mixed with what others on the device had */
};

#define MOST_VALUES 64	/* that a copy may have read; with more it may have read any */

struct values {
	uint64_t *at;
	unsigned n, room;
};

struct write {
	uint64_t s, e;		/* of the operation */
	uint64_t lo, vis, hi;
	uint64_t value;
	const struct values *copied;	/* instead of value: what a copy may have read */
	uint64_t dropped;
	uint64_t f, l;		/* zone; while an order is checked */
	ref by, first, last;	/* the operation; those that make f and l */
	uint8_t owner;		/* 0: CPU; 1 + device */
	bool optional;
	bool private;		/* nobody but its device can see it */
	bool raced;		/* see find_raced() */
	bool gradual;		/* a truncate: the size shrinks before pages and mappings go, on any file system */
	bool shared;		/* see dev_op */
};

struct read {
	uint64_t s, e;		/* the register's interval */
	uint64_t loaded;	/* call of the read itself */
	uint64_t value;
	ref by;
	uint8_t owner;
	bool either;		/* on the host, of what is not held to write: it saw what its owner has, or what is there for all */
	bool last;		/* after a crash */
	int saw;		/* index of the write; -1: not known */
};

/* All of one cell. */
struct cell {
	unsigned file;
	uint32_t cell;
	struct write *w;
	struct read *r;
	unsigned nw, nr, room_w, room_r;
	/* Of definite writes, by hi rising: hi, and the greatest lo so far. */
	struct { uint64_t hi, lo; } *over;
	unsigned nover;
};

/* From the logs, once a round (facts.c). */
void facts_gather(uint64_t crashed);
void facts_drop(void);
extern uint64_t crash_time;
/* The operations on a cell's contents, without truncations. */
const ref *cell_ops(unsigned file, uint32_t cell, unsigned *n);
/* The truncations of a file. */
const ref *truncations(unsigned file, unsigned *n);
const ref *syncs(unsigned file, unsigned *n);
const struct dev_op *dev_op(ref r);
/* Of a page of a device. */
const struct spans *acquires_of(unsigned file, unsigned device, uint32_t page);
const struct spans *releases_of(unsigned file, unsigned device, uint32_t page);
/* Whether the cell was certainly within the file, all that time. */
bool in_file(unsigned file, uint32_t cell, uint64_t from, uint64_t to);
/* What a read saw there, or a write put there. */
uint64_t value_at(ref r, uint32_t cell);
bool is_read(const struct op *op);
bool is_write(const struct op *op);
bool never_ended(const struct op *op);

/* Fill in @c (reusing its memory). */
void cell_gather(struct cell *c, unsigned file, uint32_t cell);
bool may_be(const struct write *w, uint64_t value);
/* As far as what is private goes. */
bool could_see(const struct read *r, const struct write *w);
/* Forget what copies may have read. */
void copies_drop(void);
/* Whether all trace of @w is overwritten before @t. */
bool overwritten(const struct cell *c, const struct write *w, uint64_t t);

struct violation {
	unsigned file;
	uint32_t cell;
	char what[256];
	uint64_t from, to;
	ref blame[4];
	unsigned nblame;
};

/* Print its history. */
void explain(const struct violation *v, const struct cell *c);

#endif
