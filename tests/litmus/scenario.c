#include "scenario.h"

#include <ctype.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/counters.h"
#include "base/util.h"
#include "gaia/protocol.h"

#define MAX_WORDS 16
#ifndef MAX_DATA
#define MAX_DATA (64u << 20) /* bytes of one step; as many the parser has in memory */
#endif

struct parser {
	struct scenario *s;
	const char *path;
	int line;
	struct step *par;	/* between par and end */
	char *buf;		/* getline()'s */
	bool acted[MAX_ACTORS], killed[MAX_ACTORS];
	jmp_buf refused;
};

/* What a step's words are, after its name: see take_arg(). */
struct op_def {
	const char *word;
	enum op op;
	const char *who;	/* kinds of actors */
	const char *args;
	bool sees;		/* yields bytes, which an expectation may name */
};

static const struct op_def op_defs[] = {
	{ "open", OP_OPEN, "PD", "fm", false },
	{ "close", OP_CLOSE, "PD", "", false },
	{ "kill", OP_KILL, "PD", "", false },
	{ "read", OP_READ, "PD", "ol", true },
	{ "write", OP_WRITE, "PD", "od", false },
	{ "fsync", OP_FSYNC, "PD", "", false },
	{ "fdatasync", OP_FDATASYNC, "PD", "", false },
	{ "truncate", OP_TRUNCATE, "PD", "n", false },
	{ "fallocate", OP_FALLOCATE, "PD", "ol", false },
	{ "punch", OP_PUNCH, "PD", "ol", false },
	{ "copyrange", OP_COPYRANGE, "PD", "oln", false },
	{ "sendfile", OP_SENDFILE, "PD", "ol", true },
	{ "splice", OP_SPLICE, "PD", "ol", true },
	{ "splicein", OP_SPLICEIN, "PD", "od", false },
	{ "unlink", OP_UNLINK, "PD", "f", false },
	{ "rename", OP_RENAME, "PD", "ft", false },
	{ "link", OP_LINK, "PD", "ft", false },
	{ "stat", OP_STAT, "PD", "fscn", false },
	{ "user", OP_USER, "PD", "n", false },
	{ "chmod", OP_CHMOD, "PD", "fx", false },
	{ "load", OP_LOAD, "PD", "ol", true },
	{ "store", OP_STORE, "PD", "od", false },
	{ "scatter", OP_SCATTER, "PD", "oinD", false },
	{ "mmap", OP_MMAP, "P", "", false },
	{ "munmap", OP_MUNMAP, "P", "", false },
	{ "msync", OP_MSYNC, "P", "ol", false },
	{ "acquire", OP_ACQUIRE, "D", "pol", false },
	{ "release", OP_RELEASE, "D", "ol", false },
	{ "acquirev", OP_ACQUIREV, "D", "pv", false },
	{ "releasev", OP_RELEASEV, "D", "v", false },
	{ "start", OP_START, "D", "pol", false },
	{ "startv", OP_STARTV, "D", "pv", false },
	{ "ended", OP_ENDED, "D", "", false },
	{ "wait", OP_WAIT, "D", "", false },
	{ "cancel", OP_CANCEL, "D", "", false },
	{ "sync", OP_SYNC, "D", "ol", false },
	{ "willneed", OP_WILLNEED, "D", "ol", false },
	{ "dontneed", OP_DONTNEED, "D", "ol", false },
	{ "drop", OP_DROP, "R", "", false },
	{ "flush", OP_FLUSH, "R", "f", false },
	{ "evict", OP_EVICT, "R", "efol", false },
	{ "crash", OP_CRASH, "R", "", false },
	{ "below", OP_BELOW, "R", "fol", true },
	{ "count", OP_COUNT, "R", "kcn", false },
};

static _Noreturn __attribute__((format(printf, 2, 3))) void refuse(struct parser *p,
								     const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "%s:%d: ", p->path, p->line);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	longjmp(p->refused, 1);
}

/* What belongs to a scenario, and is freed with it. */
struct memory {
	struct memory *next;
	max_align_t bytes[];
};

static void *alloc(struct parser *p, size_t size)
{
	struct memory *m = xcalloc(1, sizeof(*m) + size);

	m->next = p->s->memory;
	p->s->memory = m;
	return m->bytes;
}

/* A larger array with the old one's contents. */
static void *grow(struct parser *p, const void *old, size_t old_size, size_t size)
{
	void *bigger = alloc(p, size);

	return old_size ? memcpy(bigger, old, old_size) : bigger;
}

static char *copy(struct parser *p, const char *text)
{
	return strcpy(alloc(p, strlen(text) + 1), text);
}

/* The text without blanks on both ends, in place. */
static char *trim(char *text)
{
	size_t n;

	while (isspace((unsigned char)*text))
		text++;
	for (n = strlen(text); n > 0 && isspace((unsigned char)text[n - 1]); n--)
		text[n - 1] = '\0';
	return text;
}

/* ---- words ---- */

static uint64_t number(struct parser *p, const char *word)
{
	uint64_t n;

	if (parse_size(word, &n))
		refuse(p, "'%s' is not a number (digits, with K or M)", word);
	return n;
}

/* OFF+LEN,OFF+LEN,... */
static void ranges(struct parser *p, struct step *st, const char *word)
{
	char *list = copy(p, word), *plus, *next;

	for (char *at = list; at; at = next) {
		next = strchr(at, ',');
		if (next)
			*next++ = '\0';
		plus = strchr(at, '+');
		if (!plus)
			refuse(p, "'%s' is not OFF+LEN", at);
		*plus = '\0';
		st->ranges = grow(p, st->ranges, st->n_ranges * sizeof(*st->ranges), (st->n_ranges + 1) * sizeof(*st->ranges));
		st->ranges[st->n_ranges++] = (struct range_def){ number(p, at), number(p, plus + 1) };
	}
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = (char)tolower((unsigned char)c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Data that is being read; everything is appended. */
struct data {
	const char *word;	/* whole, for messages */
	const char *at;
	uint8_t *bytes;
	size_t len, room;
};

static uint8_t *data_room(struct parser *p, struct data *d, uint64_t more)
{
	if (more == 0 || more > MAX_DATA - d->len)
		refuse(p, "'%s' is no bytes at all, or more than 64M", d->word);
	if (d->len + more > d->room) {
		d->room = MAX(2 * d->room, d->len + more);
		d->bytes = grow(p, d->bytes, d->len, d->room);
	}
	return d->bytes + d->len;
}

static void data_list(struct parser *p, struct data *d);

/* "aa", "a0b1" or "(...)", and maybe "*N": as often. */
static void data_item(struct parser *p, struct data *d)
{
	size_t start = d->len, unit;
	uint64_t times = 1;

	if (*d->at == '(') {
		d->at++;
		data_list(p, d);
		if (*d->at++ != ')')
			refuse(p, "'%s' lacks a )", d->word);
	} else {
		for (; hex_digit(d->at[0]) >= 0 && hex_digit(d->at[1]) >= 0; d->at += 2) {
			*data_room(p, d, 1) =
				(uint8_t)(hex_digit(d->at[0]) << 4 | hex_digit(d->at[1]));
			d->len++;
		}
		if (d->len == start)
			refuse(p, "'%s' is not data (pairs of hex digits; aa*16 and (aa,bb)*16 "
			       "repeat; a comma joins)", d->word);
	}
	if (*d->at == '*') {
		size_t n = strspn(d->at + 1, "0123456789KM");

		times = number(p, memcpy(alloc(p, n + 1), d->at + 1, n));
		d->at += n + 1;
	}
	unit = d->len - start;
	if (times == 0 || times > MAX_DATA)
		refuse(p, "'%s' is no bytes at all, or more than 64M", d->word);
	if (times == 1)
		return;
	data_room(p, d, unit * (times - 1));
	for (uint64_t i = 1; i < times; i++)
		memcpy(d->bytes + start + i * unit, d->bytes + start, unit);
	d->len += unit * (times - 1);
}

static void data_list(struct parser *p, struct data *d)
{
	data_item(p, d);
	while (*d->at == ',') {
		d->at++;
		data_item(p, d);
	}
}

static uint8_t *bytes(struct parser *p, const char *word, size_t *len)
{
	struct data d = { .word = word, .at = word };

	data_list(p, &d);
	if (*d.at)
		refuse(p, "'%s': '%s' is too much", word, d.at);
	*len = d.len;
	return d.bytes;
}

static int find_name(const struct scenario *s, const char *name)
{
	for (unsigned i = 0; i < s->n_names; i++)
		if (strcmp(s->names[i].name, name) == 0)
			return (int)i;
	return -1;
}

static unsigned add_name(struct parser *p, const char *name)
{
	struct scenario *s = p->s;

	for (const char *c = name; *c; c++)
		if (!isalnum((unsigned char)*c) && *c != '_')
			refuse(p, "'%s' is not a file name (letters, digits, _)", name);
	if (s->n_names == MAX_FILES)
		refuse(p, "more than %d files", MAX_FILES);
	s->names[s->n_names].name = copy(p, name);
	return s->n_names++;
}

static unsigned known_file(struct parser *p, const char *name)
{
	int i = find_name(p->s, name);

	if (i < 0)
		refuse(p, "no file '%s': declare it with 'file' before the ---", name);
	return (unsigned)i;
}

/* "D1", "D1b": which device; -1 if the word is no such name. */
static int device_of(const char *word, bool with_letter)
{
	char *end;
	long n;

	if (word[0] != 'D' || !isdigit((unsigned char)word[1]))
		return -1;
	n = strtol(word + 1, &end, 10);
	if (with_letter && islower((unsigned char)*end))
		end++;
	return *end || n > 255 ? -1 : (int)n;
}

static bool is_actor(const char *word)
{
	const char *c = word + 1;

	if (word[0] == 'D')
		return device_of(word, true) >= 0;
	if (word[0] != 'P' || !isdigit((unsigned char)*c))
		return false;
	while (isdigit((unsigned char)*c))
		c++;
	return !*c || (islower((unsigned char)*c) && !c[1]);
}

static unsigned actor(struct parser *p, const char *name)
{
	struct scenario *s = p->s;
	struct actor_def *a;

	for (unsigned i = 1; i < s->n_actors; i++)
		if (strcmp(s->actors[i].name, name) == 0)
			return i;
	if (s->n_actors == MAX_ACTORS)
		refuse(p, "more than %d actors", MAX_ACTORS - 1);
	if (strlen(name) >= sizeof(a->name))
		refuse(p, "'%s' is too long for an actor's name", name);
	a = &s->actors[s->n_actors];
	strcpy(a->name, name);
	a->kind = name[0];
	if (a->kind == 'D') {
		a->device = (unsigned)device_of(name, true);
		if (a->device >= s->devices)
			refuse(p, "%s is on device %u, but the mount has %u ('devices:')", name,
			       a->device, s->devices);
	}
	return s->n_actors++;
}

static unsigned choice(struct parser *p, const char *word, const char *const *of, const char *what)
{
	for (unsigned i = 0; of[i]; i++)
		if (strcmp(word, of[i]) == 0)
			return i;
	refuse(p, "'%s' is not %s", word, what);
}

/* ---- steps ---- */

static const char *const modes[] = { "rw", "ro", "append", "direct", "trunc", NULL };
static const char *const comparisons[] = { "==", "<=", ">=", NULL };
static const char *const fields[] = { "size", "blocks", NULL };

/* Take what @kind says from the words at *@w; more than one word never. */
static void take_arg(struct parser *p, struct step *st, char kind, char **words, unsigned n,
		     unsigned *w)
{
	const char *word;
	char *end;
	int dev;

	/* A comparison may be left out. */
	if (kind == 'c' && (*w == n || !strchr("<>=", words[*w][0]))) {
		st->cmp = CMP_EQ;
		return;
	}
	if (*w == n)
		refuse(p, "'%s' lacks something: %s", st->text,
		       kind == 'f' || kind == 't' ? "a file" :
		       kind == 'd' || kind == 'D'  ? "data" :
		       kind == 'm'		  ? "how to open" :
		       kind == 'p'		  ? "r or rw" :
		       kind == 'v'		  ? "ranges, OFF+LEN,OFF+LEN" :
		       kind == 'x'		  ? "a mode" :
						    "a number");
	word = words[(*w)++];
	switch (kind) {
	case 'o':
		st->off = number(p, word);
		break;
	case 'l':
		st->len = number(p, word);
		if (st->len == 0 || st->len > MAX_DATA)
			refuse(p, "a length of %s: at least 1, at most 64M", word);
		break;
	case 'n':
		st->number = number(p, word);
		break;
	case 'v':
		ranges(p, st, word);
		break;
	case 'x':
		st->mode = (unsigned)strtoul(word, &end, 8);
		if (*end || st->mode > 0777)
			refuse(p, "'%s' is not a mode: octal, at most 777", word);
		break;
	case 'i':
		st->stride = number(p, word);
		break;
	case 'd':
		st->data = bytes(p, word, &st->len);
		break;
	case 'D':
		st->data = bytes(p, word, &st->unit);
		if (st->number == 0 || st->unit > st->stride ||
		    st->number > MAX_DATA / st->stride)
			refuse(p, "'%s': COUNT times HEX must fit, STEP bytes apart", st->text);
		st->len = (st->number - 1) * st->stride + st->unit;
		break;
	case 'f':
		st->file = known_file(p, word);
		break;
	case 't':
		st->to_file = find_name(p->s, word) < 0 ? add_name(p, word) : known_file(p, word);
		break;
	case 'm':
		st->mode = choice(p, word, modes, "rw, ro, append, direct or trunc");
		break;
	case 'p':
		if (strcmp(word, "r") != 0 && strcmp(word, "w") != 0 && strcmp(word, "rw") != 0)
			refuse(p, "'%s' is not r, w or rw", word);
		st->mode = (word[0] == 'r' ? PROT_READ : 0) | (strchr(word, 'w') ? PROT_WRITE : 0);
		break;
	case 's':
		st->mode = choice(p, word, fields, "size or blocks");
		break;
	case 'c':
		st->cmp = (enum comparison)choice(p, word, comparisons, "==, <= or >=");
		break;
	case 'e':
		dev = device_of(word, false);
		if (strcmp(word, "home") != 0 && (dev < 0 || (unsigned)dev >= p->s->devices))
			refuse(p, "'%s' is not home or a device of the mount", word);
		st->from = dev < 0 ? GAIA_FROM_HOME : (unsigned)dev;
		break;
	case 'k':
		st->counter = copy(p, word);
		for (unsigned i = 0; i < CTR_COUNT; i++)
			if (strcmp(counter_name((enum counter)i), word) == 0)
				return;
		refuse(p, "no counter '%s'", word);
	}
}

static int error_number(struct parser *p, const char *name)
{
	for (int e = 1; e < 200; e++) {
		const char *is = strerrorname_np(e);

		if (is && strcmp(is, name) == 0)
			return e;
	}
	refuse(p, "no error '%s'", name);
}

static int find_note(const struct scenario *s, const char *name)
{
	for (unsigned i = 0; i < s->n_notes; i++)
		if (strcmp(s->notes[i], name) == 0)
			return (int)i;
	return -1;
}

/* "... as NAME", cut off from the expectation. */
static void take_note(struct parser *p, struct step *st, const struct op_def *def, char *text)
{
	struct scenario *s = p->s;
	char *as = strstr(text, " as "), *name;

	if (!as)
		return;
	*as = '\0';
	name = trim(as + 4);
	if (!def->sees || st->len > NOTE_BYTES)
		refuse(p, "only data can be remembered, of at most %d bytes", NOTE_BYTES);
	if (!islower((unsigned char)*name) ||
	    name[strspn(name, "abcdefghijklmnopqrstuvwxyz")] ||
	    !name[strspn(name, "abcdef")] || find_note(s, name) >= 0 || s->n_notes == MAX_NOTES)
		refuse(p, "'%s' cannot be the name of what was seen: a new word of small letters, "
		       "that is no hex number; at most %d", name, MAX_NOTES);
	st->note = (int)s->n_notes;
	s->notes[s->n_notes++] = copy(p, name);
}

/* "aa|bb", "any", "ok|error EBUSY" */
static void take_expectation(struct parser *p, struct step *st, const struct op_def *def,
			     const char *text)
{
	char *next = copy(p, text), *one;

	take_note(p, st, def, next);
	while ((one = strsep(&next, "|"))) {
		struct outcome *o;

		one = trim(one);
		st->allowed = grow(p, st->allowed, st->n_allowed * sizeof(*st->allowed),
				   (st->n_allowed + 1) * sizeof(*st->allowed));
		o = &st->allowed[st->n_allowed++];
		*o = (struct outcome){ .kind = OUT_OK };
		if (strncmp(one, "error ", 6) == 0) {
			o->kind = OUT_ERROR;
			o->error = error_number(p, trim(one + 6));
		} else if (strcmp(one, "ok") == 0 || (def->sees && strcmp(one, "any") == 0)) {
			;
		} else if (!def->sees) {
			refuse(p, "'%s' yields no data: only 'ok' and 'error ENAME' can be expected",
			       def->word);
		} else if (strcmp(one, "eof") == 0) {
			if (def->op == OP_LOAD)
				refuse(p, "a load knows no end of the file");
			o->kind = OUT_BYTES;
		} else if (find_note(p->s, one) >= 0) {
			o->kind = OUT_NOTED;
			o->note = (unsigned)find_note(p->s, one);
		} else {
			o->kind = OUT_BYTES;
			o->bytes = bytes(p, one, &o->len);
			if (o->len > st->len || (o->len < st->len && def->op == OP_LOAD))
				refuse(p, "'%s' is %zu bytes, but %llu are asked for", one, o->len,
				       (unsigned long long)st->len);
		}
	}
}

/* One step, without its actor: "read 0 2 -> aa00". */
static void parse_step(struct parser *p, unsigned who, char *text, struct step *st)
{
	const struct actor_def *a = &p->s->actors[who];
	const struct op_def *def = NULL;
	char *words[MAX_WORDS], *next, *word, *expect;
	unsigned n = 0, w = 1;

	*st = (struct step){ .line = p->line, .actor = who, .note = -1, .text = copy(p, text) };
	expect = strstr(text, "->");
	if (expect) {
		*expect = '\0';
		expect = trim(expect + 2);
	}
	for (next = text; (word = strsep(&next, " \t"));)
		if (*word) {
			if (n == MAX_WORDS)
				refuse(p, "too many words");
			words[n++] = word;
		}
	if (n && strcmp(words[0], "loop") == 0) {
		if (!p->par)
			refuse(p, "'loop' makes sense between par and end only");
		st->loop = true;
		n--;
		memmove(words, words + 1, n * sizeof(*words));
	}
	if (n == 0)
		refuse(p, "a step is missing");
	for (unsigned i = 0; i < ARRAY_LEN(op_defs); i++)
		if (strcmp(op_defs[i].word, words[0]) == 0)
			def = &op_defs[i];
	if (!def)
		refuse(p, "no step '%s'", words[0]);
	if (!strchr(def->who, a->kind))
		refuse(p, "'%s' is not a step of %s", def->word,
		       a->kind == 'R' ? "the runner: an actor is missing" :
		       a->kind == 'P' ? "CPU processes" : "clients of devices");
	st->op = def->op;
	for (const char *arg = def->args; *arg; arg++)
		take_arg(p, st, *arg, words, n, &w);
	if (w != n)
		refuse(p, "'%s' is too much", words[w]);
	if (expect)
		take_expectation(p, st, def, expect);
	else if (def->sees)
		refuse(p, "'%s' needs an expectation: -> HEX, -> any, -> error ENAME", def->word);

	if (p->par && (st->op == OP_CRASH || st->op == OP_COUNT))
		refuse(p, "'%s' cannot be done between par and end", def->word);
	if (st->loop && (st->op == OP_KILL || st->op == OP_OPEN || st->op == OP_CLOSE))
		refuse(p, "'%s' cannot loop", def->word);
	if (p->killed[who])
		refuse(p, "%s was killed above", a->name);
	if (st->op == OP_KILL)
		p->killed[who] = true;
	if (st->op == OP_USER && (p->acted[who] || st->number == 0 || st->number > MAX_USER))
		refuse(p, "'user' is an actor's first step, with a number from 1 to %d", MAX_USER);
	p->acted[who] = true;
	p->s->users |= st->op == OP_USER;
	if (st->op == OP_RENAME || st->op == OP_LINK || st->op == OP_UNLINK)
		p->s->renames = true;
	if (st->op == OP_COUNT)
		p->s->counts = true;
	if (a->kind == 'D' && st->op != OP_TRUNCATE)
		p->s->reach = MAX(p->s->reach, st->off + st->len);
}

static struct step *add_step(struct parser *p, struct step **steps, unsigned *n)
{
	*steps = grow(p, *steps, *n * sizeof(**steps), (*n + 1) * sizeof(**steps));
	return &(*steps)[(*n)++];
}

/* Splits off the actor, if the line names one; else it is the runner's. */
static unsigned take_actor(struct parser *p, char **text)
{
	size_t n = strcspn(*text, " \t");
	char name[16];

	if (n >= sizeof(name))
		return ACTOR_RUNNER;
	memcpy(name, *text, n);
	name[n] = '\0';
	if (!is_actor(name))
		return ACTOR_RUNNER;
	*text = trim(*text + n);
	return actor(p, name);
}

static void parse_lane(struct parser *p, char *text)
{
	struct lane *lane;
	unsigned who = take_actor(p, &text);
	char *next = text, *one;

	for (unsigned i = 0; i < p->par->n_lanes; i++)
		if (p->par->lanes[i].actor == who)
			refuse(p, "%s has a line in this par already",
			       who == ACTOR_RUNNER ? "the runner" : p->s->actors[who].name);
	p->par->lanes = grow(p, p->par->lanes, p->par->n_lanes * sizeof(*lane),
			     (p->par->n_lanes + 1) * sizeof(*lane));
	lane = &p->par->lanes[p->par->n_lanes++];
	*lane = (struct lane){ .actor = who };
	while ((one = strsep(&next, ";"))) {
		struct step *st = add_step(p, &lane->steps, &lane->n_steps);

		parse_step(p, who, trim(one), st);
		lane->loops |= st->loop;
	}
}

static void end_par(struct parser *p)
{
	bool ends = false;

	for (unsigned i = 0; i < p->par->n_lanes; i++)
		ends |= !p->par->lanes[i].loops;
	if (!ends)
		refuse(p, "a par needs a line that does not loop");
	p->par = NULL;
}

static void parse_body(struct parser *p, char *text)
{
	struct scenario *s = p->s;

	if (p->par && strcmp(text, "end") == 0) {
		end_par(p);
	} else if (p->par) {
		parse_lane(p, text);
	} else if (strcmp(text, "end") == 0) {
		refuse(p, "'end' without 'par'");
	} else if (strcmp(text, "par") == 0) {
		/* The array must not move while p->par points into it: only lanes grow until end. */
		p->par = add_step(p, &s->steps, &s->n_steps);
		*p->par = (struct step){ .line = p->line, .note = -1, .op = OP_PAR, .text = copy(p, "par") };
		s->has_par = true;
	} else {
		unsigned who = take_actor(p, &text);
		struct step st;

		parse_step(p, who, text, &st);
		*add_step(p, &s->steps, &s->n_steps) = st;
	}
}

/* ---- the setup ---- */

static void parse_file(struct parser *p, char *text)
{
	char *name = strsep(&text, " \t");
	char *size = text ? strsep(&text, " \t") : NULL;
	struct file_def *f;

	if (!size || !text)
		refuse(p, "a file is: file NAME SIZE fill HH, or: file NAME SIZE hole");
	if (find_name(p->s, name) >= 0)
		refuse(p, "a second file '%s'", name);
	f = &p->s->names[add_name(p, name)];
	f->declared = true;
	f->size = number(p, size);
	text = trim(text);
	if (strcmp(text, "hole") == 0) {
		f->hole = true;
	} else if (strncmp(text, "fill ", 5) == 0) {
		size_t len;
		uint8_t *fill = bytes(p, trim(text + 5), &len);

		if (len != 1)
			refuse(p, "'fill' takes one byte");
		f->fill = fill[0];
	} else {
		refuse(p, "'%s' is not 'fill HH' or 'hole'", text);
	}
}

static void parse_setup(struct parser *p, char *text)
{
	struct scenario *s = p->s;
	char *colon = strchr(text, ':');
	char *value = colon ? trim(colon + 1) : NULL;

	if (strncmp(text, "file ", 5) == 0) {
		parse_file(p, trim(text + 5));
		return;
	}
	if (!colon || !*value)
		refuse(p, "'%s' is not a setting (NAME: VALUE), nor a file", text);
	*colon = '\0';
	if (strcmp(text, "title") == 0) {
		s->title = copy(p, value);
	} else if (strcmp(text, "repeat") == 0) {
		s->repeat = (unsigned)number(p, value);
		if (s->repeat == 0 || s->repeat > 1000000)
			refuse(p, "repeat: from 1 to 1000000");
	} else if (strcmp(text, "devices") == 0) {
		s->devices = (unsigned)number(p, value);
		if (s->devices > MAX_DEVICES)
			refuse(p, "devices: at most 16");
	} else if (strcmp(text, "files") == 0) {
		if (strcmp(value, "cached") != 0)
			refuse(p, "files: cached, or nothing");
		s->cached = true;
	} else if (strcmp(text, "readonly") == 0) {
		if (strcmp(value, "off") != 0)
			refuse(p, "readonly: off, or nothing");
		s->no_readonly = true;
	} else if (strcmp(text, "strict") == 0) {
		if (strcmp(value, "off") != 0)
			refuse(p, "strict: off, or nothing");
		s->lax = true;
	} else if (strcmp(text, "host") == 0) {
		if (strcmp(value, "on") != 0)
			refuse(p, "host: on, or nothing");
		s->host = true;
	} else if (strcmp(text, "home") == 0) {
		s->home_bytes = number(p, value);
		s->home = copy(p, value);
	} else if (strcmp(text, "device") == 0) {
		s->device_bytes = number(p, value);
		s->device = copy(p, value);
	} else {
		refuse(p, "no setting '%s'", text);
	}
}

/* A # starts a comment at the beginning of the line and after a blank. */
static void cut_comment(char *text)
{
	for (char *c = text; *c; c++)
		if (*c == '#' && (c == text || isspace((unsigned char)c[-1]))) {
			*c = '\0';
			return;
		}
}

/* ---- the host as a device ---- */

static void each_step(struct scenario *s, void (*call)(struct scenario *s, struct step *st))
{
	for (unsigned i = 0; i < s->n_steps; i++) {
		struct step *st = &s->steps[i];

		call(s, st);
		for (unsigned l = 0; l < st->n_lanes; l++)
			for (unsigned k = 0; k < st->lanes[l].n_steps; k++)
				call(s, &st->lanes[l].steps[k]);
	}
}

static void note_writer(struct scenario *s, struct step *st)
{
	bool acquires = st->op == OP_ACQUIRE || st->op == OP_ACQUIREV || st->op == OP_START || st->op == OP_STARTV;

	if (st->op == OP_STORE || st->op == OP_SCATTER || (acquires && st->mode & PROT_WRITE))
		s->actors[st->actor].only_reads = false;
}

static void name_host(struct scenario *s, struct step *st)
{
	if (st->op == OP_EVICT && st->from == s->devices - 1)
		st->from = GAIA_HOST;
}

/* Its clients find out nothing of what they touch wrongly. */
static void refuse_strict(struct scenario *s, struct step *st)
{
	for (unsigned i = 0; i < st->n_allowed && s->actors[st->actor].on_host; i++)
		if (st->allowed[i].kind == OUT_ERROR && st->allowed[i].error == EFAULT)
			s->host = false;
}

static void ignore_count(struct scenario *s, struct step *st)
{
	if (st->op == OP_COUNT) {
		st->cmp = CMP_GE;
		st->number = 0;
	}
}

/* The last device is the host. */
static void use_host(struct scenario *s)
{
	for (unsigned i = 1; i < s->n_actors; i++)
		s->actors[i].on_host = s->actors[i].kind == 'D' && s->actors[i].device == s->devices - 1;
	each_step(s, name_host);
}

bool scenario_on_host(struct scenario *s)
{
	if (s->host)
		return true;
	/* The host has half of home. */
	if (s->devices == 0 || s->no_readonly || (s->home_bytes && s->device_bytes > s->home_bytes / 2))
		return false;
	s->host = true;
	use_host(s);
	for (unsigned i = 1; i < s->n_actors; i++)
		s->actors[i].only_reads = s->actors[i].on_host;
	each_step(s, note_writer);
	each_step(s, ignore_count);
	each_step(s, refuse_strict);
	return s->host;
}

static void parse(struct parser *p, FILE *f)
{
	struct scenario *s = p->s;
	bool body = false;
	size_t cap = 0;

	while (getline(&p->buf, &cap, f) >= 0) {
		char *text;

		p->line++;
		cut_comment(p->buf);
		text = trim(p->buf);
		if (!*text)
			continue;
		if (strcmp(text, "---") == 0) {
			if (body)
				refuse(p, "a second ---");
			body = true;
		} else if (body) {
			parse_body(p, text);
		} else {
			parse_setup(p, text);
		}
	}
	if (!s->title)
		refuse(p, "no 'title:' in it");
	if (p->par)
		refuse(p, "a 'par' without 'end'");
	if (s->n_steps == 0)
		refuse(p, "no steps in it: they follow a line ---");
	if (s->host && s->devices == 0)
		refuse(p, "host: it is the last of the devices, and there are none");
	if (s->host)
		use_host(s);
}

struct scenario *scenario_read(const char *path)
{
	struct scenario *s = xcalloc(1, sizeof(*s));
	struct parser p = { .s = s, .path = path };
	FILE *f = fopen(path, "re");
	volatile bool refused = true;

	if (!f) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		free(s);
		return NULL;
	}
	s->path = copy(&p, path);
	s->devices = 1;
	s->n_actors = 1;
	s->actors[ACTOR_RUNNER] = (struct actor_def){ .name = "runner", .kind = 'R' };
	if (setjmp(p.refused) == 0) {
		parse(&p, f);
		refused = false;
	}
	free(p.buf);
	fclose(f);
	if (!refused)
		return s;
	scenario_free(s);
	return NULL;
}

void scenario_free(struct scenario *s)
{
	struct memory *m, *next;

	for (m = s->memory; m; m = next) {
		next = m->next;
		free(m);
	}
	free(s);
}
