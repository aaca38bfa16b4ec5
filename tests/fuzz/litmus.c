/*
 * litmus.c - the parser of litmus files: it refuses, or makes what needs no further checking.
 */
#include "fuzz.h"

#include <sys/mman.h>

#include "../litmus/scenario.h"
#include "gaia/protocol.h"

static int file = -1;
static char path[64];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	file = memfd_create("litmus", MFD_CLOEXEC);
	FUZZ_CHECK(file >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
	return 0;
}

static void check_step(const struct scenario *s, const struct step *st)
{
	FUZZ_CHECK(st->actor < s->n_actors && st->file < MAX_FILES && st->to_file < MAX_FILES);
	FUZZ_CHECK(st->note >= -1 && st->note < (int)s->n_notes);
	if (st->op == OP_EVICT)
		FUZZ_CHECK(st->from == GAIA_FROM_HOME || st->from < s->devices);
	/* Exactly as many as are read later. */
	if (st->op == OP_WRITE || st->op == OP_STORE || st->op == OP_SPLICEIN)
		for (size_t i = 0; i < st->len; i++)
			((volatile uint8_t *)st->data)[i] ^= 1;
	if (st->op == OP_SCATTER)
		FUZZ_CHECK(st->unit <= st->stride && st->len == (st->number - 1) * st->stride + st->unit);
	for (unsigned i = 0; i < st->n_allowed; i++) {
		const struct outcome *o = &st->allowed[i];

		FUZZ_CHECK(o->kind != OUT_NOTED || o->note < s->n_notes);
		FUZZ_CHECK(o->kind != OUT_ERROR || o->error > 0);
		FUZZ_CHECK(o->kind != OUT_BYTES || o->len <= st->len);
	}
	FUZZ_CHECK((st->op == OP_PAR) == (st->n_lanes > 0), "step '%s'", st->text);
	for (unsigned k = 0; k < st->n_lanes; k++) {
		const struct lane *lane = &st->lanes[k];

		FUZZ_CHECK(lane->n_steps);
		for (unsigned i = 0; i < lane->n_steps; i++) {
			FUZZ_CHECK(lane->steps[i].op != OP_PAR && lane->steps[i].actor == lane->actor);
			check_step(s, &lane->steps[i]);
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct scenario *s;

	FUZZ_CHECK(!ftruncate(file, 0) && pwrite(file, data, size, 0) == (ssize_t)size);
	s = scenario_read(path);
	if (!s)
		return 0;
	FUZZ_CHECK(s->title && s->n_steps && s->devices <= MAX_DEVICES && s->n_names <= MAX_FILES);
	FUZZ_CHECK(s->n_actors >= 1 && s->n_actors <= MAX_ACTORS && s->n_notes <= MAX_NOTES);
	for (unsigned i = 0; i < s->n_actors; i++)
		FUZZ_CHECK(s->actors[i].kind != 'D' || s->actors[i].device < s->devices);
	for (unsigned i = 0; i < s->n_names; i++)
		FUZZ_CHECK(s->names[i].name && *s->names[i].name);
	for (unsigned i = 0; i < s->n_steps; i++)
		check_step(s, &s->steps[i]);
	scenario_free(s);
	return 0;
}
