/*
 * scenario.h - a litmus file, read and checked.
 *
 * scenario_read() turns a file of the form described in README.md into steps that
 * need no further checking: names, actors, devices, sizes and expectations
 * are resolved, and whatever makes no sense has been refused with its line.
 *
 * A scenario never changes after it was read. Actors are forked with it in their memory, so a
 * step is told to them by its number.
 */
#ifndef GAIA_LITMUS_SCENARIO_H
#define GAIA_LITMUS_SCENARIO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum op {
	/* processes, P and D */
	OP_OPEN, OP_CLOSE, OP_KILL, OP_READ, OP_WRITE, OP_FSYNC, OP_FDATASYNC, OP_TRUNCATE,
	OP_FALLOCATE, OP_PUNCH, OP_COPYRANGE, OP_SENDFILE, OP_SPLICE, OP_SPLICEIN, OP_UNLINK,
	OP_RENAME, OP_LINK, OP_STAT, OP_USER, OP_CHMOD, OP_LOAD, OP_STORE, OP_SCATTER,
	/* P */
	OP_MMAP, OP_MUNMAP, OP_MSYNC,
	/* D */
	OP_ACQUIRE, OP_ACQUIREV, OP_RELEASEV, OP_RELEASE, OP_START, OP_STARTV, OP_ENDED, OP_WAIT, OP_CANCEL, OP_SYNC, OP_WILLNEED,
	OP_DONTNEED,
	/* the runner */
	OP_DROP, OP_FLUSH, OP_EVICT, OP_CRASH, OP_BELOW, OP_COUNT, OP_PAR,
};

enum open_mode { OPEN_RW, OPEN_RO, OPEN_APPEND, OPEN_DIRECT, OPEN_TRUNC };
enum comparison { CMP_EQ, CMP_LE, CMP_GE };
enum stat_field { STAT_SIZE, STAT_BLOCKS };

/* One thing that may be seen. */
struct outcome {
	enum { OUT_OK, OUT_BYTES, OUT_ERROR, OUT_NOTED } kind;
	int error;
	unsigned note;		/* the bytes that another step saw */
	uint8_t *bytes;
	size_t len;
};

struct lane;

struct step {
	int line;
	char *text;		/* as written, for messages */
	enum op op;
	bool loop;		/* until the par's other lines have ended */
	unsigned actor;
	unsigned file, to_file;	/* indices into names */
	uint64_t off, len, number;
	unsigned mode;		/* open: enum open_mode; acquire: PROT_*; stat: enum stat_field; chmod */
	enum comparison cmp;
	unsigned from;		/* evict: GAIA_FROM_HOME or a device */
	struct range_def {
		uint64_t off, len;
	} *ranges;		/* acquirev, releasev: n_ranges */
	size_t n_ranges;
	char *counter;
	uint8_t *data;		/* len bytes; scatter: unit bytes */
	uint64_t stride;	/* scatter: number times, so far apart */
	size_t unit;
	struct outcome *allowed;/* none: must succeed */
	unsigned n_allowed;
	int note;		/* remember what was seen as this; -1: need not */
	struct lane *lanes;	/* par */
	unsigned n_lanes;
};

/* A line of a par: what one actor does. */
struct lane {
	unsigned actor;
	bool loops;
	struct step *steps;
	unsigned n_steps;
};

#define ACTOR_RUNNER 0u		/* actors[0], which does the runner's steps */
struct actor_def {
	char name[8];
	char kind;		/* 'P', 'D', 'R' */
	unsigned device;
	bool on_host;		/* its device is GAIA_DEVICE_HOST */
	bool only_reads;	/* as far as it is said: it acquires nothing to write, and stores nothing */
};

struct file_def {
	char *name;
	bool declared;		/* false: exists only by a rename or a link */
	bool hole;
	uint8_t fill;
	uint64_t size;
};

#define MAX_FILES 32
#define MAX_ACTORS 32
#define MAX_DEVICES 16
#define MAX_NOTES 8
#define MAX_USER 9	/* user N is uid and gid 65520 + N */
#define USERS 65520u
#define NOTE_BYTES 64

struct scenario {
	char *path;
	char *title;
	unsigned repeat;	/* 0: not said */
	unsigned devices;
	char *home, *device;	/* sizes as written, or NULL */
	uint64_t home_bytes, device_bytes; /* the same; 0 */
	struct file_def names[MAX_FILES];
	unsigned n_names;
	struct actor_def actors[MAX_ACTORS];
	unsigned n_actors;
	char *notes[MAX_NOTES];
	unsigned n_notes;
	struct step *steps;
	unsigned n_steps;
	uint64_t reach;		/* end of the furthest range that a device uses */
	bool cached;		/* in auto: files that devices had mapped before */
	bool no_readonly;	/* devices that cannot share memory for reading only */
	bool lax;		/* device memory can be touched without an acquire */
	bool host;		/* the last device is the host */
	bool counts, renames, users, has_par;	/* renames: links and unlinks, too */
	struct memory *memory;	/* all of the above */
};

/* NULL: it was refused; why was said on stderr as "FILE:LINE: what". */
struct scenario *scenario_read(const char *path);
void scenario_free(struct scenario *s);

/*
 * Play it with the host as its last device, though the file does not ask for that; counts are not looked at then, and actors that only read map
 * to read. False: it cannot be played so.
 */
bool scenario_on_host(struct scenario *s);

#endif
