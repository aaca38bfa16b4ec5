/*
 * actor.c - what programs on nodes do: see nodes.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gaia/client.h"
#include "nodes.h"

#define RW (PROT_READ | PROT_WRITE)
#define MOST_RUN 3u /* cells that are read or written at once */

/* An actor has a process of its own. */
static struct actor *me;
static int held[MOST_FILES]; /* descriptors that stay open, by which files are locked */
static unsigned char *memory[MOST_FILES]; /* of a device's actor */
static int prot; /* as they are mapped */
static bool may_write; /* by a device: just now */
static uint32_t turn; /* while it has the lock, else 0 */

_Noreturn static void fails(const char *what, unsigned file, const char *why)
{
	fprintf(stderr, "nodes: actor %ld (node %u): %s, file %u: %s\n", (long)(me - world->actor), me->node, what, file, why);
	exit(2);
}

#define WORKS(file, call)                                    \
	do {                                                 \
		if ((call) < 0)                              \
			fails(#call, file, strerror(errno)); \
	} while (0)
#define LIB_WORKS(file, call)                                     \
	do {                                                      \
		if (call)                                         \
			fails(#call, file, gaia_last_error_text()); \
	} while (0)

/* What reads holds it shared, what writes for itself: see nodes.h. */
static void quiet_begin(bool writes)
{
	pthread_rwlock_t *quiet = &world->quiet[me->node];

	if (has_engine(&world->config))
		writes ? pthread_rwlock_wrlock(quiet) : pthread_rwlock_rdlock(quiet);
}

static void quiet_end(void)
{
	if (has_engine(&world->config))
		pthread_rwlock_unlock(&world->quiet[me->node]);
}

static bool has_room(void)
{
	for (unsigned f = 0; f < MOST_FILES; f++)
		if (me->n_turns[f] + 1 >= MOST_TURNS)
			return false;
	return me->n + 4 * all_cells(&world->config) * MOST_FILES < MOST_EVENTS;
}

static struct event *note(unsigned file, unsigned cell)
{
	struct event *e = &me->event[me->n++];

	*e = (struct event){ .file = (uint8_t)file, .cell = (uint8_t)cell, .turn = turn, .node = me->node, .of_device = me->of_device,
			     .actor = (uint8_t)(me - world->actor), .local = NEVER, .stored = NEVER };
	return e;
}

static void note_reads(unsigned file, unsigned cell, unsigned n, uint64_t asked, uint64_t begin, const uint32_t *value)
{
	uint64_t end = now();

	for (unsigned i = 0; i < n; i++) {
		struct event *e = note(file, cell + i);

		e->asked = asked;
		e->begin = begin;
		e->end = end;
		e->value = value[i];
	}
}

/* Of writes that end now. */
static void note_writes(unsigned file, unsigned cell, unsigned n, uint64_t asked, uint64_t begin, const uint32_t *value)
{
	uint64_t end = now();

	for (unsigned i = 0; i < n; i++) {
		struct event *e = note(file, cell + i);

		e->is_write = true;
		e->asked = me->of_device ? asked : begin;
		e->begin = begin;
		e->end = end;
		e->value = value[i];
		if (!me->of_device)
			e->local = end;
	}
}

/* New values for cells; returns for how many of them: each has VALUES. They differ in each byte from all others of their cell, and from 0. */
static unsigned new_values(unsigned file, unsigned cell, unsigned n, uint32_t *value)
{
	for (unsigned i = 0; i < n; i++) {
		_Atomic uint32_t *given = &world->given[file][cell + i];
		uint32_t k = atomic_load(given);

		while (k < VALUES && !atomic_compare_exchange_weak(given, &k, k + 1))
			;
		if (k == VALUES)
			return i;
		k++;
		value[i] = (k & 0xff) | (3 * k & 0xff) << 8 | (7 * k & 0xff) << 16 | (149 * k & 0xff) << 24;
	}
	return n;
}

/* What was written to the file from event @first on is stored. */
static void all_stored(unsigned file, uint32_t first)
{
	uint64_t t = now();

	for (uint32_t i = first; i < me->n; i++) {
		struct event *e = &me->event[i];

		if (e->is_write && e->file == file && e->stored == NEVER && e->local != NEVER)
			e->stored = t;
	}
}

static void all_local(unsigned file, uint32_t first)
{
	uint64_t t = now();

	for (uint32_t i = first; i < me->n; i++)
		if (me->event[i].is_write && me->event[i].file == file && me->event[i].local == NEVER)
			me->event[i].local = t;
}

/* Some cells that lie side by side, without the one that counts turns. */
static unsigned pick(unsigned *cell)
{
	const struct config *c = &world->config;
	unsigned n = 1 + below(MOST_RUN), left;

	*cell = 1 + below(all_cells(c) - 1);
	left = c->cells - *cell % c->cells;
	/* Those at the beginning and those at the end of a page are apart. */
	for (unsigned i = 1; i < n && i < left; i++)
		if (cell_offset(*cell + i) != cell_offset(*cell) + (off_t)(i * CELL))
			return i;
	return n < left ? n : left;
}

static int open_file(unsigned file, int flags)
{
	char path[PATH_MAX + 64], name[32];
	int fd;

	file_name(file, name);
	snprintf(path, sizeof(path), "%s/%s", world->node[me->node], name);
	WORKS(file, fd = open(path, flags | O_CLOEXEC));
	return fd;
}

/* ---- the lock ---- */

static void lock_call(unsigned file, bool on)
{
	struct flock l = { .l_type = on ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET };

	switch (world->config.lock) {
	case LOCK_FLOCK:
		WORKS(file, flock(held[file], on ? LOCK_EX : LOCK_UN));
		break;
	case LOCK_RECORD:
		WORKS(file, fcntl(held[file], F_SETLKW, &l));
		break;
	default:
		WORKS(file, fcntl(held[file], F_OFD_SETLKW, &l));
	}
}

static void read_run(int fd, unsigned file, unsigned cell, unsigned n, uint64_t asked, uint32_t *value)
{
	uint64_t begin = now();
	ssize_t got;

	quiet_begin(false);
	WORKS(file, got = pread(fd, value, n * CELL, cell_offset(cell)));
	quiet_end();
	if (got != (ssize_t)(n * CELL))
		fails("pread", file, "short");
	note_reads(file, cell, n, asked, begin, value);
}

static void write_run(int fd, unsigned file, unsigned cell, unsigned n, uint64_t asked)
{
	uint32_t value[MOST_RUN];
	uint64_t begin = now();
	ssize_t put;

	n = new_values(file, cell, n, value);
	quiet_begin(true);
	WORKS(file, put = pwrite(fd, value, n * CELL, cell_offset(cell)));
	quiet_end();
	if (put != (ssize_t)(n * CELL))
		fails("pwrite", file, "short");
	note_writes(file, cell, n, asked, begin, value);
}

/* Load or store cells that are mapped at @at. */
static void touch(unsigned file, unsigned cell, unsigned n, volatile uint32_t *at, uint64_t asked)
{
	uint32_t value[MOST_RUN];
	uint64_t begin = now();

	if ((may_write || !me->of_device) && chance(50)) {
		n = new_values(file, cell, n, value);
		for (unsigned i = 0; i < n; i++)
			at[i] = value[i];
		note_writes(file, cell, n, asked, begin, value);
		return;
	}
	for (unsigned i = 0; i < n; i++)
		value[i] = at[i];
	note_reads(file, cell, n, asked, begin, value);
}

static void cpu_steps(int fd, unsigned file, uint64_t asked, uint32_t *first)
{
	for (unsigned steps = 1 + below(6); steps > 0; steps--) {
		uint32_t value[MOST_RUN];
		unsigned cell, n = pick(&cell);

		if (chance(50))
			read_run(fd, file, cell, n, asked, value);
		else
			write_run(fd, file, cell, n, asked);
		if (chance(10)) {
			WORKS(file, chance(50) ? fsync(fd) : fdatasync(fd));
			all_stored(file, *first);
			*first = me->n;
		}
	}
}

static void take_turn(unsigned file, uint32_t number)
{
	turn = number;
	me->turn[file][me->n_turns[file]++] = number;
}

/* The turn is counted in the file itself: whoever has the lock sees what the one before has counted. */
static void cpu_locks(unsigned file)
{
	uint64_t asked = now(), begin;
	uint32_t first = me->n, value;

	lock_call(file, true);
	read_run(held[file], file, TURN, 1, asked, &value);
	take_turn(file, value + 1);
	cpu_steps(held[file], file, asked, &first);
	begin = now();
	quiet_begin(true);
	if (pwrite(held[file], &turn, CELL, cell_offset(TURN)) != CELL)
		fails("pwrite", file, strerror(errno));
	quiet_end();
	note_writes(file, TURN, 1, asked, begin, &turn);
	lock_call(file, false);
	all_stored(file, first);
	turn = 0;
}

/* ---- a program without a device ---- */

static void cpu_opens(unsigned file)
{
	uint64_t asked = now();
	uint32_t first = me->n;
	int fd = open_file(file, O_RDWR);

	cpu_steps(fd, file, asked, &first);
	WORKS(file, close(fd));
	all_stored(file, first);
}

/* Through a mapping: where all share the kernel's pages of the directory. */
static void cpu_maps(unsigned file)
{
	uint64_t asked = now();
	uint32_t first = me->n;
	int fd = open_file(file, O_RDWR);
	unsigned char *p = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		fails("mmap", file, strerror(errno));
	for (unsigned steps = 1 + below(6); steps > 0; steps--) {
		unsigned cell, n = pick(&cell);
		volatile uint32_t *at = (volatile uint32_t *)(p + cell_offset(cell));

		touch(file, cell, n, at, asked);
	}
	WORKS(file, msync(p, SIZE, MS_SYNC));
	all_stored(file, first);
	munmap(p, SIZE);
	WORKS(file, close(fd));
}

/* A descriptor that stays open: reads see what others of the node have written, and need not see more. */
static void cpu_goes_on(unsigned file, const uint64_t opened[MOST_FILES])
{
	uint32_t first = me->n;

	cpu_steps(held[file], file, opened[file], &first);
	WORKS(file, fsync(held[file]));
	all_stored(file, first);
}

/* Whether to go on; not before a pause is over. */
static bool goes_on(void)
{
	while (atomic_load(&world->pace) == PAUSE || (atomic_load(&world->pace) == LOOK_ONLY && !me->of_device))
		usleep(1000);
	return !atomic_load(&world->enough) && has_room();
}

static void play_cpu(void)
{
	const struct config *c = &world->config;
	uint64_t opened[MOST_FILES];

	for (unsigned f = 0; f < c->files; f++) {
		opened[f] = now();
		held[f] = open_file(f, O_RDWR);
	}
	while (goes_on()) {
		unsigned file = below(c->files), what = below(10);

		if (what < 4)
			cpu_opens(file);
		else if (what < 7)
			cpu_locks(file);
		else if (what < 9 || c->kind != PASSED)
			cpu_goes_on(file, opened);
		else
			cpu_maps(file);
	}
}

/* ---- a program with a device ---- */

static void device_steps(unsigned file, unsigned from, unsigned to, uint64_t asked)
{
	const unsigned cells = world->config.cells;

	for (unsigned steps = 1 + below(8); steps > 0; steps--) {
		unsigned cell, n = pick(&cell);

		if (cell / cells >= from && cell / cells <= to)
			touch(file, cell, n, (volatile uint32_t *)(memory[file] + cell_offset(cell)), asked);
	}
}

static void device_syncs(unsigned file)
{
	quiet_begin(true);
	LIB_WORKS(file, (chance(50) ? gaia_sync : gaia_publish)(memory[file], SIZE));
	quiet_end();
	all_stored(file, 0);
}

/* From an acquire to its release, of hot pages [from, to]. */
static void device_acquires(unsigned file, unsigned from, unsigned to, bool locked)
{
	const size_t begin = (size_t)hot_page_offset(from), end = (size_t)hot_page_offset(to) + PAGE;
	uint64_t asked = now(), start;
	uint32_t first = me->n, count;
	volatile uint32_t *counts = (volatile uint32_t *)(memory[file] + cell_offset(TURN));

	quiet_begin(false);
	LIB_WORKS(file, gaia_acquire(memory[file] + begin, end - begin, may_write ? RW : PROT_READ));
	quiet_end();
	if (locked) {
		count = *counts;
		note_reads(file, TURN, 1, asked, asked, &count);
		take_turn(file, count + 1);
	}
	device_steps(file, from, to, asked);
	if (locked) {
		start = now();
		*counts = turn;
		note_writes(file, TURN, 1, asked, start, &turn);
	}
	quiet_begin(true);
	LIB_WORKS(file, gaia_release(memory[file] + begin, end - begin));
	quiet_end();
	all_local(file, first);
}

static void device_locks(unsigned file)
{
	lock_call(file, true);
	device_acquires(file, 0, below(HOT), true);
	device_syncs(file);
	lock_call(file, false);
	turn = 0;
}

static void map_file(unsigned file)
{
	memory[file] = gaia_mmap(SIZE, prot, held[file], 0, me->device);
	if (memory[file] == MAP_FAILED)
		fails("gaia_mmap", file, gaia_last_error_text());
}

static void map_files(void)
{
	for (unsigned f = 0; f < world->config.files; f++) {
		held[f] = open_file(f, prot == RW ? O_RDWR : O_RDONLY);
		map_file(f);
	}
}

static void play_device(void)
{
	const struct config *c = &world->config;

	map_files();
	while (goes_on()) {
		unsigned file = below(c->files), from = below(HOT);

		may_write = prot == RW && atomic_load(&world->pace) == GO_ON;
		if (may_write && chance(30))
			device_locks(file);
		else
			device_acquires(file, from, from + below(HOT - from), false);
		if (may_write && chance(40))
			device_syncs(file);
		if (chance(3)) {
			if (prot == RW)
				device_syncs(file);
			LIB_WORKS(file, gaia_munmap(memory[file], SIZE));
			map_file(file);
		}
	}
	for (unsigned f = 0; f < c->files; f++) {
		if (prot == RW)
			device_syncs(f);
		LIB_WORKS(f, gaia_munmap(memory[f], SIZE));
	}
}

int actor_play(struct actor *a)
{
	me = a;
	prot = world->config.only_reads[a->node] ? PROT_READ : RW;
	reseed(world->config.seed * 977 + world->round * 31 + (uint64_t)(a - world->actor));
	if (a->of_device)
		play_device();
	else
		play_cpu();
	for (unsigned f = 0; f < world->config.files; f++)
		WORKS(f, close(held[f]));
	return 0;
}

/* ---- the last look ---- */

int actor_look(struct actor *a)
{
	uint32_t value[MOST_RUN];
	uint64_t asked, begin;

	me = a;
	prot = PROT_READ;
	asked = now();
	if (a->of_device)
		map_files();
	for (unsigned f = 0; f < world->config.files; f++) {
		int fd = a->of_device ? -1 : open_file(f, O_RDONLY);

		if (a->of_device)
			LIB_WORKS(f, gaia_acquire(memory[f], SIZE, PROT_READ));
		for (unsigned cell = 1; cell < all_cells(&world->config); cell++) {
			if (!a->of_device) {
				read_run(fd, f, cell, 1, asked, value);
				continue;
			}
			begin = now();
			value[0] = *(volatile uint32_t *)(memory[f] + cell_offset(cell));
			note_reads(f, cell, 1, asked, begin, value);
		}
		if (a->of_device) {
			LIB_WORKS(f, gaia_release(memory[f], SIZE));
			LIB_WORKS(f, gaia_munmap(memory[f], SIZE));
			fd = held[f];
		}
		WORKS(f, close(fd));
	}
	return 0;
}
