/*
 * nodes.h - what the parts of the history checker for nodes share.
 *
 * Two gaiafs with --source shared over one directory are two nodes (nodes.c). Programs on both (actor.c) read and write a few cells of a
 * few files at full speed, and log what they wrote, what they saw and when. Then the oracle (judge.c) decides for each cell whether
 * gaiafs-nodes(7) allows what was seen.
 *
 * A cell has four bytes. Each write of a cell has a value of its own, and so has each of its bytes.
 */
#ifndef GAIA_TESTS_HISTORY_NODES_H
#define GAIA_TESTS_HISTORY_NODES_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "../random.h"

#define PAGE 4096u
#define MIB (1u << 20)
#define SIZE (2 * MIB + 2 * PAGE) /* of a file: two chunks */
#define CELL 4u
#define NODES 2u
#define MOST_FILES 2u
#define HOT 4u /* pages that are used: the first two, and those on both sides of the end of the first chunk */
#define MOST_CELLS 12u /* of a page: neighbours, some at its beginning and some at its end; and before them the turn */
#define TURN 0u /* the first cell of all: counts who has had the lock */
#define MOST_ACTORS 12u
#define MOST_EVENTS (1u << 15) /* of an actor, in a round */
#define VALUES 255u /* of a cell, in a round */
#define MOST_TURNS 4096u
#define NEVER UINT64_MAX

enum kind { PASSED, PASSED_ENGINE, DIRECT, DIRECT_ENGINE, KINDS };
enum lock_kind { LOCK_FLOCK, LOCK_RECORD, LOCK_OFD, LOCK_KINDS };

/* What is played; all of it follows from the seed. */
struct config {
	uint64_t seed;
	enum kind kind;
	enum lock_kind lock;
	unsigned files, cells; /* cells: of a page */
	unsigned cpus[NODES], devices[NODES];
	bool host[NODES]; /* the last of the devices is the host */
	bool only_reads[NODES]; /* the node has devices only, none of which writes: so it may trust what it has */
	bool pauses; /* in the middle of the first round, for so long that times of files show that they have not changed */
	bool late; /* the engine's answers to reads come late */
	unsigned run_ms;
};

static inline bool has_engine(const struct config *c)
{
	return c->kind == PASSED_ENGINE || c->kind == DIRECT_ENGINE;
}

static inline bool is_passed(const struct config *c)
{
	return c->kind == PASSED || c->kind == PASSED_ENGINE;
}

/* Times are CLOCK_MONOTONIC's, in ns. */
struct event {
	uint64_t begin, end;
	/*
	 * Of a read: when its actor last asked what others have stored, by open(2), a lock or an acquire. Of a write: what was stored before that is
	 * surely overwritten. For a device that is the acquire: what it stores afterwards races with all that others store meanwhile.
	 */
	uint64_t asked;
	/* Of a write: from when on others of its node have to see it, and those of other nodes; NEVER: they need not. */
	uint64_t local, stored;
	uint32_t value;
	uint32_t turn; /* 0: without the lock */
	uint8_t file, cell; /* cells are counted through the hot pages */
	uint8_t actor, node;
	bool is_write, of_device;
};

struct actor {
	uint8_t node;
	bool of_device;
	int device; /* gaia_mmap()'s */
	pid_t pid;
	uint32_t n; /* events */
	struct event event[MOST_EVENTS];
	uint32_t n_turns[MOST_FILES]; /* with the lock of each file */
	uint32_t turn[MOST_FILES][MOST_TURNS];
};

/* Memory that all share, for a round. */
struct world {
	struct config config;
	unsigned round;
	char node[NODES][PATH_MAX]; /* where they are mounted */
	/*
	 * The kernel's client of an engine behind FUSE may keep a page as it was if it is dropped and read while a write of it is under way (seen
	 * without gaiafs). So over such an engine what reads and what writes take turns on a node.
	 */
	pthread_rwlock_t quiet[NODES];
	char beneath[PATH_MAX + 16]; /* the directory that both are over */
	_Atomic uint32_t given[MOST_FILES][HOT * MOST_CELLS]; /* values of each cell that are used up */
	atomic_bool enough; /* time to end */
	_Atomic enum { GO_ON, PAUSE, LOOK_ONLY } pace; /* LOOK_ONLY: devices acquire, and nobody writes */
	unsigned n_actors;
	struct actor actor[MOST_ACTORS];
};

extern struct world *world;

static inline unsigned all_cells(const struct config *c)
{
	return HOT * c->cells;
}

/* Where the cell is in its file; hot_page_offset(): the page. */
off_t hot_page_offset(unsigned page);
off_t cell_offset(unsigned cell);
void file_name(unsigned file, char name[32]);

/* What an actor's process does. Its exit status: 0, or 2, and stderr says why. */
int actor_play(struct actor *a);
/* The same for the last look, after all others have ended: at all cells of all files. */
int actor_look(struct actor *a);

/* Whether all that was seen is allowed. If not, the history that shows it is on stdout. */
bool judge(void);

#endif
