/*
 * judge.c - whether what programs on nodes saw is what gaiafs-nodes(7) allows.
 *
 * Each cell is judged by itself. Of two of its writes one is surely before the other if it was stored (closed, synced, unlocked) before the
 * other began (a device: before it acquired the page), or ended before it in the same program or on the same node, or under the lock in an earlier turn. A read surely knows of
 * a write that was stored before the reader last asked what others have stored (by open(2), a lock or an acquire); that came from another
 * node and was read by somebody before that; that others of its own node can see; that is its own; or that was made under the lock in an earlier
 * turn. So a read may have the bytes of a write if that had begun, and no write that is surely after it is one that the read surely knows of.
 *
 * What races may be mixed byte by byte, so each byte of a read is judged by itself. (A byte shows which write it is of.)
 *
 * That is sound: nothing is reported that is allowed. It is not complete: of writes that race nothing is concluded, but for the
 * second rule.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nodes.h"

#define MOST_LINES 60u

static const char *const lock_name[] = { "flock", "record lock", "lock of an open file" };

/* Of one cell. */
static struct {
	struct event **write, **read;
	uint32_t n_writes, n_reads, room;
} cell;

/* What the file has at first. */
static struct event at_first = { .is_write = true, .actor = UINT8_MAX, .node = UINT8_MAX };

static bool surely_before(const struct event *a, const struct event *b)
{
	if (a == &at_first || b == &at_first)
		return a == &at_first && b != &at_first;
	if (a->stored < b->asked || (a->actor == b->actor && a->end <= b->begin) || (a->node == b->node && a->local < b->asked))
		return true;
	return a->turn && b->turn && a->turn < b->turn;
}

/* @seen[i]: when somebody of another node had read write i. */
static bool surely_knows(const struct event *r, const struct event *w, uint64_t seen)
{
	if (w->stored < r->asked || seen < r->asked || (w->actor == r->actor && w->end <= r->begin))
		return true;
	if (w->node == r->node && w->local < (w->of_device || r->of_device ? r->asked : r->begin))
		return true;
	return w->turn && r->turn && w->turn < r->turn;
}

static void add(struct event *e)
{
	struct event ***list = e->is_write ? &cell.write : &cell.read;
	uint32_t *n = e->is_write ? &cell.n_writes : &cell.n_reads;

	(*list)[(*n)++] = e;
}

static void collect(unsigned file, unsigned number)
{
	cell.n_writes = cell.n_reads = 0;
	add(&at_first);
	for (unsigned a = 0; a < world->n_actors; a++)
		for (uint32_t i = 0; i < world->actor[a].n; i++) {
			struct event *e = &world->actor[a].event[i];

			if (e->file == file && e->cell == number)
				add(e);
		}
}

/* When each write had been read on the other node. */
static void find_seen(uint64_t *seen)
{
	for (uint32_t w = 0; w < cell.n_writes; w++) {
		seen[w] = NEVER;
		for (uint32_t r = 0; r < cell.n_reads; r++) {
			const struct event *e = cell.read[r];

			if (e->value == cell.write[w]->value && e->node != cell.write[w]->node && e->end < seen[w])
				seen[w] = e->end;
		}
	}
}

/* A write of which the read surely knows, and which is surely after @w; or NULL. */
static const struct event *hides(const struct event *r, const struct event *w, const uint64_t *seen)
{
	for (uint32_t i = 0; i < cell.n_writes; i++)
		if (surely_before(w, cell.write[i]) && surely_knows(r, cell.write[i], seen[i]))
			return cell.write[i];
	return NULL;
}

/* Bytes of the read that a write may explain, as a mask. */
static unsigned explained(uint32_t a, uint32_t b)
{
	unsigned mask = 0;

	for (unsigned i = 0; i < CELL; i++)
		if ((a >> 8 * i & 0xff) == (b >> 8 * i & 0xff))
			mask |= 1u << i;
	return mask;
}

static bool allowed(const struct event *r, const uint64_t *seen)
{
	unsigned mask = 0, all = (1u << CELL) - 1;

	for (uint32_t i = 0; i < cell.n_writes && mask != all; i++) {
		const struct event *w = cell.write[i];
		unsigned more = explained(w->value, r->value) & ~mask;

		if (more && w->begin < r->end && !hides(r, w, seen))
			mask |= more;
	}
	return mask == all;
}

/* ---- telling ---- */

static int by_begin(const void *a, const void *b)
{
	const struct event *x = *(struct event *const *)a, *y = *(struct event *const *)b;

	return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static double us(uint64_t t, uint64_t zero)
{
	return t == NEVER ? -1 : t < zero ? 0 : (double)(t - zero) / 1000;
}

static void tell_event(const struct event *e, uint64_t zero, bool blamed)
{
	printf("%c %10.1f ..%10.1f node %u, %s %u", blamed ? '>' : ' ', us(e->begin, zero), us(e->end, zero), e->node,
	       e->of_device ? "device of" : "program", e->actor);
	if (e->turn)
		printf(", turn %u", e->turn);
	if (e->is_write)
		printf(": writes %08x (for its node from %.1f, stored at %.1f)\n", e->value, us(e->local, zero), us(e->stored, zero));
	else
		printf(": reads %08x (asked at %.1f)\n", e->value, us(e->asked, zero));
}

static const struct event *write_of(uint32_t value)
{
	for (uint32_t i = 0; i < cell.n_writes; i++)
		if (cell.write[i]->value == value)
			return cell.write[i];
	return NULL;
}

/* What everything has come to. */
static void tell_beneath(unsigned file, unsigned number)
{
	char path[PATH_MAX + 64], name[32];
	uint32_t value = 0;
	int fd;

	file_name(file, name);
	snprintf(path, sizeof(path), "%s/%s", world->beneath, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || pread(fd, &value, CELL, cell_offset(number)) != CELL)
		printf("(%s cannot be read.)\n", path);
	else
		printf("Beneath, in the end: %08x.\n", value);
	if (fd >= 0)
		close(fd);
}

static void tell(unsigned file, unsigned number, const struct event *r, const uint64_t *seen)
{
	const struct event *w = write_of(r->value), *after = w ? hides(r, w, seen) : NULL;
	uint32_t n = 0;
	struct event **all = calloc(cell.n_writes + cell.n_reads, sizeof(*all));
	uint64_t from = w && w != &at_first ? w->begin : 0, zero;
	unsigned lines = 0;

	printf("file %u, cell %u (byte %lld): a read has %s.\n", file, number, (long long)cell_offset(number),
	       !w ? "a mixture that nothing explains" :
	       w->begin >= r->end ? "what was written later" :
	       after ? "what was surely overwritten by a write that it surely knows of" : "bytes that nothing explains");
	printf("Times in us; -1: never; > marks what contradicts itself.\n");
	for (uint32_t i = 0; i < cell.n_writes; i++)
		if (cell.write[i] != &at_first && (cell.write[i] == after || (cell.write[i]->begin >= from && cell.write[i]->begin <= r->end)))
			all[n++] = cell.write[i];
	for (uint32_t i = 0; i < cell.n_reads; i++)
		if (cell.read[i]->begin >= from && cell.read[i]->begin <= r->end)
			all[n++] = cell.read[i];
	qsort(all, n, sizeof(*all), by_begin);
	zero = n ? all[0]->begin : 0;
	for (uint32_t i = 0; i < n; i++) {
		bool blamed = all[i] == r || all[i] == w || all[i] == after;

		if (blamed || i < MOST_LINES / 2 || i + MOST_LINES / 2 >= n)
			tell_event(all[i], zero, blamed);
		else if (!lines++)
			printf("  ...\n");
	}
	tell_beneath(file, number);
	free(all);
}

/* ---- the lock ---- */

/* What was read and written as the counter about then. */
static void tell_turn(unsigned file, uint32_t turn)
{
	uint64_t zero = NEVER;
	struct event **all;
	uint32_t n = 0;

	collect(file, TURN);
	all = calloc(cell.n_writes + cell.n_reads, sizeof(*all));
	for (uint32_t i = 1; i < cell.n_writes; i++)
		if (cell.write[i]->value + 2 >= turn && cell.write[i]->value <= turn + 1)
			all[n++] = cell.write[i];
	for (uint32_t i = 0; i < cell.n_reads; i++)
		if (cell.read[i]->value + 2 >= turn && cell.read[i]->value <= turn + 1)
			all[n++] = cell.read[i];
	qsort(all, n, sizeof(*all), by_begin);
	for (uint32_t i = 0; i < n; i++) {
		zero = i ? zero : all[0]->begin;
		tell_event(all[i], zero, all[i]->value == (all[i]->is_write ? turn : turn - 1));
	}
	free(all);
}

/* Turns are counted in the file: each number must have been had once. */
static bool judge_turns(unsigned file)
{
	uint32_t most = 0;
	unsigned char *had;
	bool right = true;

	for (unsigned a = 0; a < world->n_actors; a++)
		for (uint32_t i = 0; i < world->actor[a].n_turns[file]; i++)
			if (world->actor[a].turn[file][i] > most)
				most = world->actor[a].turn[file][i];
	had = calloc(most + 1, 1);
	for (unsigned a = 0; a < world->n_actors && right; a++)
		for (uint32_t i = 0; i < world->actor[a].n_turns[file] && right; i++) {
			uint32_t turn = world->actor[a].turn[file][i];

			right = turn <= (1u << 20) && !had[turn]++;
			if (!right)
				printf("file %u: two had the lock (%s) and read the same counter: turn %u, the second time by program %u on node %u.\n",
				       file, lock_name[world->config.lock], turn, a, world->actor[a].node);
			if (!right)
				tell_turn(file, turn);
		}
	for (uint32_t t = 1; t <= most && right; t++) {
		right = had[t];
		if (!right)
			printf("file %u: nobody had turn %u of %u (%s).\n", file, t, most, lock_name[world->config.lock]);
	}
	free(had);
	return right;
}

bool judge(void)
{
	uint32_t room = 1 + world->n_actors * MOST_EVENTS;
	uint64_t *seen = calloc(room, sizeof(*seen));
	bool right = true;

	cell.write = calloc(room, sizeof(*cell.write));
	cell.read = calloc(room, sizeof(*cell.read));
	for (unsigned f = 0; f < world->config.files && right; f++) {
		for (unsigned c = 0; c < all_cells(&world->config) && right; c++) {
			collect(f, c);
			find_seen(seen);
			for (uint32_t i = 0; i < cell.n_reads && right; i++) {
				right = allowed(cell.read[i], seen);
				if (!right)
					tell(f, c, cell.read[i], seen);
			}
		}
		right = right && judge_turns(f);
	}
	free(cell.write);
	free(cell.read);
	free(seen);
	return right;
}
