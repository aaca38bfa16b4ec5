/*
 * differ.h - the differential tester: random system calls, the same on a mount and on a
 * plain directory.
 *
 * A program is a list of steps, made from a seed (program.c). A step is a system call
 * (calls.c) with everything it may need, on names and descriptors out of a few. run.c does
 * each step on both sides and compares the result, errno and what was read; and in the
 * end both trees, then what lies beneath the mount, extents included. main.c runs program after
 * program, and looks for the fewest steps of one that still differ.
 *
 * Left alone, since the mount differs there and may (gaiafs-limits(7)), or Linux leaves it open: access
 * and change times, the number of blocks, direct I/O that is not aligned, positions in directories,
 * offsets that the file system beneath cannot have.
 */
#ifndef GAIA_TESTS_DIFFER_H
#define GAIA_TESTS_DIFFER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define SLOTS 6			/* of descriptors */
#define MAPS 2			/* of mappings */
#define MAP_BYTES (1u << 20)	/* of each */
#define LONGEST 100000u		/* bytes of one call, at most */
#define OFF_BELOW (3l << 20)	/* where they begin */

struct step {
	unsigned number; /* in the program as it was made */
	const struct call *call;
	unsigned who;	 /* index of user_names[] */
	unsigned fd, fd2, map;
	unsigned base;	 /* the slot that names are relative to; SLOTS: the root */
	unsigned a, b;	 /* names: name_text() */
	unsigned flags, mode, text;
	off_t off, off2;
	size_t len;
};

/* One of the two trees, and what a program has open there. */
struct side {
	int root;
	struct open_file {
		int fd; /* -1: none */
		bool direct;
	} file[SLOTS];
	struct mapping {
		char *p; /* NULL: none */
		int fd;	 /* of its own */
		off_t off;
	} map[MAPS];
	/* What a call gave back beside its result, to be compared. */
	char *out;
	size_t n_out;
};

/* ---- program.c ---- */

/* What a program may do; where Linux leaves things open, not everything at once. */
struct theme {
	/* Shared mappings; then nobody says what modification times are, or how much a store allocates. */
	bool maps;
	/* By fallocate(2); then what SEEK_DATA says depends on what happens to be cached, and what is zeroed
	 * may be a hole or not. */
	bool preallocates;
	bool users;
	/*
	 * A device acquires for writing, and releases, all the time. What is cut or punched while it has
	 * the page may then be stored again: modification times and holes are not compared.
	 */
	bool noisy;
};

struct theme theme_of(uint64_t seed);
/* @n steps into @out. */
void program_make(uint64_t seed, bool root, struct step *out, unsigned n);
void step_print(FILE *to, const struct step *step);

#define NAME_MAX_TEXT 6000
/* A path out of a few hundred, of at most three names; or an odd one. */
const char *name_text(unsigned name, char buf[NAME_MAX_TEXT]);

extern const char *const user_names[];
#define USERS 3

/* ---- calls.c ---- */

enum uses {
	USES_FD = 1 << 0,
	USES_FD2 = 1 << 1,
	USES_MAP = 1 << 2,
	USES_A = 1 << 3,
	USES_B = 1 << 4,
	USES_FLAGS = 1 << 5,
	USES_MODE = 1 << 6,
	USES_TEXT = 1 << 7,
	USES_OFF = 1 << 8,
	USES_OFF2 = 1 << 9,
	USES_LEN = 1 << 10,
	ONLY_MAPS = 1 << 11,	     /* struct theme */
	ONLY_PREALLOCATES = 1 << 12,
	NOT_MAPS = 1 << 13,
	TELLS_HOLES = 1 << 14,	     /* not where what is a hole depends on timing */
};

struct call {
	const char *name;
	unsigned weight;
	unsigned uses;
	/* Returns as the system call does; what opens returns 0. */
	long (*run)(struct side *s, const struct step *t);
	const unsigned *flags; /* one of these */
	unsigned n_flags;
};
extern const struct call calls[];
extern const unsigned n_calls;

/* And the signal: in errno's place where touching a mapping faults. */
#define GOT_SIGNAL 1000

/* Once, before any step. */
void calls_prepare(void);
void side_open(struct side *s, int root);
void side_close(struct side *s);
/* Become users[who], as far as an existing process can. */
void become(unsigned who);

/* Whether modification times are compared. */
extern bool compare_mtimes;
/* Set by a utimensat(2) of a step: everything younger was given by the clock. */
#define CLOCK_TIMES_FROM 1500000000

/* ---- run.c ---- */

/* The roots under which programs run, and that beneath the mount. */
struct trees {
	int mount, plain, backing;
};

/*
 * Run the steps in new directories, which are removed again. NULL: no difference; else what
 * differs, until the next call, and *@at: the index of the step that showed it, or @n for the end.
 */
const char *program_run(const struct trees *trees, const struct step *step, unsigned n,
			struct theme theme, unsigned *at);

/* What differed last, as program_run() returned it. */
const char *program_told(void);

/* The name of the directory of that run in all trees. */
void run_name(unsigned run, char buf[32]);
extern volatile unsigned *run_now; /* shared with children of main.c's */

/* What is being done, for the message when it hangs. */
extern const struct step *volatile step_now;

#endif
