/*
 * history.h - what the parts of the history checker share.
 *
 * A configuration (config.c) says what to mount and who takes part. It is played in rounds (round.c):
 * processes (cpu.c, device.c, adversary.c) work on a few files at full speed, each writing down in
 * a log of its own what it did, when, and what it saw. Then the oracle (oracle.c) reads all logs and
 * decides for every cell of every file whether the contract allows what was seen.
 *
 * A cell is the unit of reads and writes: 8 bytes, or 1 byte (config.bytes). Cells are always written
 * whole. Each write of a cell has a value of its own, from which the oracle knows it again.
 *
 * Only some pages of a file are used, the hot ones: cells are counted through these.
 */
#ifndef HISTORY_H
#define HISTORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "mountpoint.h"
#include "random.h"

#define PAGE 4096u
#define MAX_PROCS 64		/* of a round; ids need 6 bits */
#define MAX_OPS (1u << 16)	/* of a process; ids need 18 bits */
#define MAX_DATA (12u << 20)	/* bytes that a process can remember as read or written */
#define MAX_SLOTS 3
#define MAX_FILES 12		/* of a round */
#define MAX_HOT 64		/* pages of a file */
#define MAX_DEVICES 3
#define MAX_MEMORIES (MAX_DEVICES + 2) /* and those of the host: what can write there, and what only reads, which sees the daemon's own */
#define MAX_CLIENTS 4
#define NEVER UINT64_MAX

/* ---- what happened ---- */

enum op_kind {
	OP_NONE,
	/* of CPU processes, on contents */
	OP_READ, OP_MLOAD, OP_DREAD,
	OP_WRITE, OP_MSTORE, OP_APPEND, OP_DWRITE,
	OP_TRUNCATE,		/* cell: the size */
	OP_PUNCH, OP_COPY,
	OP_SYNC,		/* fsync, fdatasync, msync, gaia_sync: of n cells from cell */
	/* of device clients */
	OP_ACQUIRE, OP_RELEASE,
	OP_DROP,		/* gaia_munmap: what is not released is lost */
	OP_LOAD, OP_STORE,
	OP_CANCEL,		/* an acquire that was started and closed: what it holds goes some time after */
	/* told in histories only */
	OP_RENAME, OP_UNLINK, OP_EVICT, OP_FLUSH, OP_FORGET, OP_ADVISE,
	OP_KINDS
};

struct op {
	uint64_t s, e;		/* CLOCK_MONOTONIC, ns; e 0: it never returned */
	uint32_t data;		/* what was read, or in byte mode written: offset into log.data */
	uint32_t cell, n;
	uint32_t from;		/* COPY: first cell of the source */
	uint8_t kind, file;
	uint8_t from_file;	/* COPY */
	uint8_t arg;		/* ACQUIRE: 1 to write; LOAD: 2 of what is held to write; EVICT: 0 home, 1 + device; TRUNCATE: 1 of a new file */
	int16_t err;		/* errno, or 0 */
};

struct log {
	_Atomic uint32_t nops;
	uint32_t ndata;
	struct op ops[MAX_OPS];
	_Alignas(64) unsigned char data[MAX_DATA];
};

/* ---- what is played ---- */

enum feature {
	F_MMAP, F_APPEND, F_DIRECT, F_TRUNCATE, F_PUNCH, F_COPY, F_RENAME, F_UNLINK, F_SYNC,
	F_DEATH, F_UNMAP, F_ADVISE, F_EVICT_HOME, F_EVICT_DEVICE, F_FLUSH, F_FORGET,
	F_TINY, F_LARGE, F_SLOW, F_FAIL, F_CRASH, F_START, F_OVERWRITE, F_PARK,
	F_HOST, F_EQUAL,
	FEATURES
};
#define HAS(c, f) ((c)->features >> (f) & 1)

struct config {
	uint64_t seed;		/* of all that is drawn below and of all programs */
	bool writeback;		/* the kernel's way of caching; */
	bool automatic;		/* ... and if not writeback: auto, not writethrough */
	bool bytes;		/* cells of one byte */
	unsigned cpus, devices, clients, slots, hot;
	unsigned client_device[MAX_CLIENTS]; /* with F_HOST also @devices, the host; and one more: to read only */
	uint32_t features;
	unsigned run_ms;	/* of a round */
	const char *more_faults; /* for GAIAFS_FAULTS, beside the configuration's; may be NULL */
};

enum way { WRITEBACK, WRITETHROUGH, AUTO, WAYS };
extern const char *const way_names[WAYS];

/* Whose loads and stores are one: devices, with F_HOST the host's two memories, too. */
static inline unsigned config_memories(const struct config *c)
{
	return c->devices + (HAS(c, F_HOST) ? 2 : 0);
}

void config_draw(struct config *c, uint64_t seed, enum way way);
const char *config_way(const struct config *c);
/* On one line. */
void config_print(const struct config *c);
const char *feature_name(enum feature f);
/* The daemon's options, NULL-terminated, and the fault points; valid until the next call. */
const char *const *config_args(const struct config *c);
const char *config_faults(const struct config *c);
/* Whether errors of the store or of devices are armed, so that operations may fail with EIO. */
bool config_fails(const struct config *c);

/* ---- a round ---- */

enum proc_kind { PROC_NONE, PROC_SETUP, PROC_CPU, PROC_ADVERSARY, PROC_KEEPER, PROC_CLIENT, PROC_LAST };

struct proc {
	enum proc_kind kind;
	unsigned number;	/* among its kind; of a client: the keeper's */
	unsigned device;
	pid_t pid;		/* 0 when gone */
	/* Set when a client's end is known to the daemon. */
	uint64_t confirmed;
	/* When the operation that is under way began; 0: none. */
	_Atomic uint64_t busy;
};

/* A file is one inode: renaming over, or unlinking, brings a new one into the slot. */
struct file {
	unsigned slot;
	uint64_t ino;
};

/* Shared by all processes of a round. */
struct world {
	struct config config;
	unsigned round;
	char mount[PATH_MAX / 2];
	pid_t daemon;

	/* PHASE_*; a futex. Set by the supervisor. */
	_Atomic uint32_t phase;
	/* How many have reached the end of the phase. */
	_Atomic uint32_t arrived;

	_Atomic uint32_t nprocs, nfiles;
	struct proc procs[MAX_PROCS];
	struct file files[MAX_FILES];
	_Atomic int slot_file[MAX_SLOTS];
	uint32_t hot_page[MAX_HOT];	/* page in the file of each hot page, rising */

	/* To give a slot another file, or to open one, a process holds names. CPU operations on
	 * contents hold quiet for reading; those that FUSE does not order with stores through
	 * mappings (O_DIRECT, copy_file_range, holes), and appends, whose place must be known, for writing. */
	pthread_mutex_t names;
	pthread_rwlock_t quiet;

	/* Byte mode: the last value given out. */
	_Atomic uint8_t last_value[MAX_FILES][MAX_HOT * PAGE];

	struct log logs[MAX_PROCS];
};

enum { PHASE_RUN, PHASE_SETTLE, PHASE_LOOK, PHASE_STORE, PHASE_LOOK_AGAIN, PHASE_END };

/* In a process of the round: its world, itself, and its log. */
extern struct world *world;
extern unsigned me;
static inline unsigned cell_size(void) { return world->config.bytes ? 1 : 8; }
static inline unsigned page_cells(void) { return PAGE / cell_size(); }
static inline uint32_t all_cells(void) { return world->config.hot * page_cells(); }
/* Where a cell is in its file, and how many cells from there lie side by side, up to n. */
off_t cell_offset(uint32_t cell);
uint32_t cell_run(uint32_t cell, uint32_t n);
/* A size of a file in cells of it: the first cell that is at or beyond. */
uint32_t size_cells(off_t size);

/* Take part in the round: become the process @id. False: the round is full. */
bool proc_new(enum proc_kind kind, unsigned number, unsigned device, unsigned *id);

/*
 * Write down an operation: op_begin() gives NULL when the log is full (with room for @data bytes).
 * Its start is the time of op_start(), its end that of op_end(), which takes errno's value or 0.
 */
struct op *op_begin(enum op_kind kind, unsigned file, uint32_t cell, uint32_t n, size_t data);
void op_start(struct op *op);
void op_end(struct op *op, int err);
void *op_data(const struct op *op);
/* Enough for a program to go on; the rest is for the looks at the end. */
bool log_has_room(void);
/* For those that only tell. */
void op_note(enum op_kind kind, unsigned file, uint32_t cell, uint32_t n, unsigned arg, uint64_t s, int err);

/* Values. op_values() writes those of a write's n cells to @out, and in byte mode keeps them; false: this
 * cell has had all values that there are. */
bool op_values(struct op *op, void *out);
uint64_t stamp(unsigned round, unsigned proc, unsigned seq, uint32_t cell);
/* What @value would be a stamp of; false: of nothing. */
bool unstamp(uint64_t value, unsigned *round, unsigned *proc, unsigned *seq, uint32_t *cell);

/* Loads and stores that may hit no memory: the number of cells done before that. */
uint32_t load_cells(void *to, const volatile void *from, uint32_t n);
uint32_t store_cells(volatile void *to, const void *from, uint32_t n);
void catch_faults(void);

/* Wait until the phase is over; say that its work is done. */
bool phase_is(uint32_t phase);
void phase_done(uint32_t phase);

/* A random run of cells, as programs like them. */
void pick_run(uint32_t *cell, uint32_t *n, uint32_t most);

_Noreturn void setup_main(void);
_Noreturn void cpu_main(void);
_Noreturn void adversary_main(void);
_Noreturn void keeper_main(void);
/* Open the file that is now in @slot: a descriptor, and which file it is; -errno. */
int open_slot(unsigned slot, int flags, unsigned *file);
/* A new file with first contents, as @name; its number, or -1. */
int make_file(unsigned slot, const char *name);
/* After a crash, or at the end: check what is in @dirfd. */
_Noreturn void last_look_main(int dirfd);

enum verdict { ALL_WELL, VIOLATION, STUCK, BROKEN };

struct stats {
	unsigned long rounds, ops, reads, writes, cells, mixed, deaths, crashes;
	unsigned long shared; /* pages that were parked in slots of equal ones, of mounts that did not crash last */
};
extern struct stats stats;

/* Play one round on a mount that is live. @last: of this mount, which is taken down to look beneath. On any
 * verdict but ALL_WELL it may be down as well. */
enum verdict round_play(struct mnt *m, const struct config *c, unsigned round, bool last);
void round_init(void);

/* Judge the logs of a round. @crashed: when the daemon was killed; NEVER: it was not. */
enum verdict oracle(uint64_t crashed);

const char *op_text(const struct op *op, unsigned proc);

/* Stacks of everybody and of the daemon, on stderr. */
void show_stacks(void);
/* The same from a process of its own, after the time that only a hang takes, unless it is stopped. */
pid_t stacks_soon(void);
void stacks_not(pid_t pid);

#endif
