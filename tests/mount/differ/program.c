/*
 * program.c - random programs, and steps as text.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "differ.h"

const char *const user_names[] = { "root", "alice", "bob" };

/* ---- chance ---- */

static uint64_t state;

static void start(uint64_t seed)
{
	/* Seeds that are alike must not begin alike. */
	state = (seed + 1) * 0x9e3779b97f4a7c15ull;
	state ^= state >> 31;
}

static unsigned rnd(unsigned below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (unsigned)(state >> 20) % below;
}

/* Often at the borders of pages and chunks. */
static off_t offset(void)
{
	static const off_t near[] = { 4096, 8192, 12288, 65536, 1 << 20, 2 << 20 };

	switch (rnd(5)) {
	case 0:
		return rnd(100);
	case 4:
		return 4096 * rnd(20);
	case 1:
		return rnd(20000);
	case 2:
		return near[rnd(6)] + rnd(9) - 4;
	default:
		return rnd(OFF_BELOW);
	}
}

static size_t length(void)
{
	static const unsigned most[] = { 10, 5000, 5000, 20000, LONGEST };

	return rnd(6) ? 1 + rnd(most[rnd(5)]) : 4096 * rnd(10);
}

/*
 * Set-gid without execution for the group is left out: a write by others clears it below, and
 * FUSE's kernel side does not. So is whatever would take that execution away. Without root, what is made
 * can be read: by the daemon, which is no more than its owner, and by us.
 */
static unsigned mode(bool root)
{
	unsigned m = rnd(4) ? 0600 | rnd(0200) : rnd(010000);

	if (!root)
		m |= 0500;
	return m & 02000 ? m | 0010 : m;
}

/* ---- names ---- */

#define DIRS 4u
#define NAMES 7u
#define ODD 600u	/* names from here on are odd */

static unsigned name(void)
{
	switch (rnd(16)) {
	case 0:
		return ODD + rnd(10);
	case 1 ... 7:
		return rnd(NAMES);
	case 8 ... 13:
		return 100 + rnd(DIRS) * NAMES + rnd(NAMES);
	default:
		return 200 + (rnd(DIRS) * DIRS + rnd(DIRS)) * NAMES + rnd(NAMES);
	}
}

static const char *odd_name(unsigned which, char *buf)
{
	static const char *const fixed[] = { ".", "n0/..", "n1/.", "n2/", "n0//n1", "" };

	if (which < 6)
		return fixed[which];
	memset(buf, 'L', 4999);
	switch (which) {
	case 6: /* as long as a name may be */
		buf[255] = '\0';
		break;
	case 7:
		buf[256] = '\0';
		break;
	case 8: /* as long as a path may be, and by a byte too long */
	case 9:
		for (unsigned i = 0; i < 4086; i += 6)
			memcpy(buf + i, "n0/../", 6);
		strcpy(buf + 4086, which == 8 ? "///////n3" : "////////n3");
	}
	return buf;
}

const char *name_text(unsigned name, char buf[NAME_MAX_TEXT])
{
	if (name >= ODD)
		return odd_name(name - ODD, buf);
	if (name < 100)
		snprintf(buf, NAME_MAX_TEXT, "n%u", name);
	else if (name < 200)
		snprintf(buf, NAME_MAX_TEXT, "n%u/n%u", (name - 100) / NAMES, (name - 100) % NAMES);
	else
		snprintf(buf, NAME_MAX_TEXT, "n%u/n%u/n%u", (name - 200) / NAMES / DIRS,
			 (name - 200) / NAMES % DIRS, (name - 200) % NAMES);
	return buf;
}

/* ---- programs ---- */

struct theme theme_of(uint64_t seed)
{
	return (struct theme){ .maps = seed & 1, .preallocates = seed & 2, .users = seed & 4,
			       .noisy = seed & 8 };
}

static bool allowed(const struct call *call, struct theme theme)
{
	return !(call->uses & ONLY_MAPS && !theme.maps) && !(call->uses & NOT_MAPS && theme.maps) &&
	       !(call->uses & ONLY_PREALLOCATES && !theme.preallocates) &&
	       !(call->uses & TELLS_HOLES && (theme.preallocates || theme.noisy));
}

static const struct call *pick_call(struct theme theme)
{
	unsigned sum = 0, at;

	for (unsigned i = 0; i < n_calls; i++)
		sum += allowed(&calls[i], theme) ? calls[i].weight : 0;
	at = rnd(sum);
	for (unsigned i = 0;; i++) {
		unsigned weight = allowed(&calls[i], theme) ? calls[i].weight : 0;

		if (at < weight)
			return &calls[i];
		at -= weight;
	}
}

void program_make(uint64_t seed, bool root, struct step *out, unsigned n)
{
	struct theme theme = theme_of(seed);

	start(seed);
	for (unsigned i = 0; i < n; i++) {
		struct step *t = &out[i];
		unsigned who = rnd(8);

		*t = (struct step){
			.number = i,
			.call = pick_call(theme),
			.who = theme.users && root && who < USERS ? who : 0,
			.fd = rnd(SLOTS),
			.fd2 = rnd(SLOTS),
			.map = rnd(MAPS),
			.base = rnd(8) ? SLOTS : rnd(SLOTS),
			.a = name(),
			.b = name(),
			.mode = mode(root),
			.text = rnd(1 << 16),
			.off = offset(),
			.off2 = offset(),
			.len = length(),
		};
		if (t->call->n_flags)
			t->flags = t->call->flags[rnd(t->call->n_flags)];
		/* Nobody else's device files can be opened on a mount. */
		if (!root && t->flags == S_IFCHR && t->call->uses & USES_MODE)
			t->flags = S_IFREG;
	}
}

static void print_name(FILE *to, const char *label, unsigned name)
{
	char buf[NAME_MAX_TEXT];
	const char *text = name_text(name, buf);

	if (strlen(text) > 40)
		fprintf(to, " %s=(%zu bytes)", label, strlen(text));
	else
		fprintf(to, " %s=\"%s\"", label, text);
}

void step_print(FILE *to, const struct step *t)
{
	unsigned uses = t->call->uses;

	fprintf(to, "%4u  ", t->number);
	if (t->who)
		fprintf(to, "%s: ", user_names[t->who]);
	fputs(t->call->name, to);
	if (uses & USES_FD)
		fprintf(to, " fd=%u", t->fd);
	if (uses & USES_FD2)
		fprintf(to, " fd2=%u", t->fd2);
	if (uses & USES_MAP)
		fprintf(to, " map=%u", t->map);
	if (uses & (USES_A | USES_B) && t->base < SLOTS)
		fprintf(to, " at=%u", t->base);
	if (uses & USES_A)
		print_name(to, "a", t->a);
	if (uses & USES_B)
		print_name(to, "b", t->b);
	if (uses & USES_FLAGS)
		fprintf(to, " flags=%#x", t->flags);
	if (uses & USES_MODE)
		fprintf(to, " mode=%#o", t->mode);
	if (uses & USES_TEXT)
		fprintf(to, " text=%u", t->text);
	if (uses & USES_OFF)
		fprintf(to, " off=%ld", (long)t->off);
	if (uses & USES_OFF2)
		fprintf(to, " off2=%ld", (long)t->off2);
	if (uses & USES_LEN)
		fprintf(to, " len=%zu", t->len);
}
