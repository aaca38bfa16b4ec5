/*
 * options.h - the options that the applications have in common, and what becomes of those that say how a CPU program updates.
 */
#ifndef EXAMPLE_OPTIONS_H
#define EXAMPLE_OPTIONS_H

#include "epoch.h"

enum check { CHECK_ALL, CHECK_LAST, CHECK_NONE };

struct common {
	enum mode mode;
	const char *png; /* NULL: draw nothing */
	uint64_t seed, rounds, window, updates;
	double changed; /* percent; negative: there is no CPU program of ours */
	bool uniform, live, update, json;
	unsigned pause_ms;
	int device; /* negative: the first */
	enum check check;
};

static const struct common common_defaults = { MODE_GAIA, NULL, 1, 10, 0, 0, 1, false, false, false, false, 5, -1, CHECK_ALL };

enum { O_SEED = 256, O_ROUNDS, O_WINDOW, O_UPDATES, O_CHANGED, O_UNIFORM, O_LIVE, O_UPDATE, O_JSON, O_PAUSE, O_NO_UPDATES, O_MODE,
       O_DEVICE, O_CHECK, O_PNG, O_HELP, O_OWN };

#ifdef HAVE_PNG
#define COMMON_PNG { "png", 1, NULL, O_PNG },
#else
#define COMMON_PNG
#endif
#define COMMON_OPTIONS                                                                                                       \
	COMMON_PNG { "seed", 1, NULL, O_SEED }, { "rounds", 1, NULL, O_ROUNDS }, { "window", 1, NULL, O_WINDOW },            \
	{ "updates", 1, NULL, O_UPDATES }, { "changed", 1, NULL, O_CHANGED }, { "uniform", 0, NULL, O_UNIFORM },             \
	{ "live", 0, NULL, O_LIVE }, { "update", 0, NULL, O_UPDATE }, { "json", 0, NULL, O_JSON },                           \
	{ "pause", 1, NULL, O_PAUSE }, { "no-updates", 0, NULL, O_NO_UPDATES }, { "mode", 1, NULL, O_MODE },                 \
	{ "device", 1, NULL, O_DEVICE }, { "check", 1, NULL, O_CHECK }, { "help", 0, NULL, O_HELP }, { NULL, 0, NULL, 0 }

#define COMMON_UPDATES(what)                                                                                        \
	"  --changed PERCENT  of the " what " in each update (1)\n"                                                 \
	"  --uniform          an update changes " what " anywhere; without, neighbours\n"                           \
	"  --live             the CPU program does not wait for rounds; it pauses between updates for\n"            \
	"  --pause MS         milliseconds (5)\n"                                                                   \
	"  --no-updates       start no CPU program: another one updates, or nobody\n"                               \
	"  --update           be only the CPU program, which changes what --make or the last round was told\n"       \
	"  --updates N        so often (0: until it is ended)\n"
#define COMMON_MODE                                                                                                 \
	"  --mode MODE        gaia; or, to compare: copy (whole files), mmap (the CPU alone), strict (coherence by\n" \
	"                     whole pages; without a GPU an emulation). These need no mount (gaia)\n"               \
	"  --device N         the mount's device (0; of a GPU: the first that works)\n"
#define COMMON_REST                                                                                                 \
	"  --check WHEN       compare with the reference: all, last or none (all)\n"                                \
	"  --json             print what moved for programs\n"

/* Whether the option, as getopt_long() returned it, is one of these. */
static inline bool common_option(struct common *o, int c)
{
	switch (c) {
	case O_SEED: o->seed = parse_size(optarg); break;
	case O_ROUNDS: o->rounds = parse_size(optarg); break;
	case O_WINDOW: o->window = round_up(parse_size(optarg), PAGE); break;
	case O_UPDATES: o->updates = parse_size(optarg); break;
	case O_CHANGED: o->changed = parse_percent(optarg); break;
	case O_UNIFORM: o->uniform = true; break;
	case O_LIVE: o->live = true; break;
	case O_UPDATE: o->update = true; break;
	case O_JSON: o->json = true; break;
	case O_PAUSE: o->pause_ms = (unsigned)parse_size(optarg); break;
	case O_NO_UPDATES: o->changed = -1; break;
	case O_MODE: o->mode = parse_mode(optarg); break;
	case O_DEVICE: o->device = (int)parse_size(optarg); break;
	case O_PNG: o->png = optarg; break;
	case O_CHECK:
		o->check = !strcmp(optarg, "last") ? CHECK_LAST : !strcmp(optarg, "none") ? CHECK_NONE : CHECK_ALL;
		if (o->check == CHECK_ALL && strcmp(optarg, "all"))
			errx(2, "--check takes all, last or none");
		break;
	default: return false;
	}
	return true;
}

static inline bool to_be_checked(const struct common *o, uint64_t round)
{
	return o->check == CHECK_ALL || (o->check == CHECK_LAST && round == o->rounds);
}

/* Say in the file what each update will change; nobody may be using it yet. */
static inline void set_changes(const struct common *o, const char *path)
{
	int fd = open_file(path, O_RDWR);
	struct epoch_head head;

	read_all(fd, &head, sizeof(head), 0);
	head.changed_ppm = o->changed > 0 ? (uint64_t)(o->changed * 1e4 + 0.5) : 0;
	head.clustered = !o->uniform;
	write_all(fd, &head.changed_ppm, 2 * sizeof(uint64_t), offsetof(struct epoch_head, changed_ppm));
	close(fd);
}

/* --update: be the CPU program. What it changes the file says; others may be reading that already. */
static inline int only_update(const struct common *o, const char *path, uint64_t magic, apply_fn *apply)
{
	struct epoch_head *head = (struct epoch_head *)map_file(path, RW);

	if (head->magic != magic)
		errx(1, "%s: not a file of this program's", path);
	for (uint64_t n = 0; !o->updates || n < o->updates; n++) {
		update_once(apply, head);
		sleep_ms(o->pause_ms);
	}
	return 0;
}

/* The CPU program that is asked for, if any. It is a process, started before anything is mapped for a device; but in unified memory
 * a thread, started by updater_in_memory(). */
static inline bool start_updates(const struct common *o, const char *path, apply_fn *apply, struct updater *u)
{
	memset(u, 0, sizeof(*u));
	u->apply = apply;
	u->path = path;
	u->live = o->live;
	u->pause_ms = o->pause_ms;
	if (o->changed < 0 || !o->rounds)
		return false;
	set_changes(o, path);
	if (o->mode != MODE_STRICT)
		updater_start_process(u);
	return true;
}

static inline void updater_in_memory(struct updater *u, void *memory)
{
	u->file = memory;
	updater_start_thread(u);
}

#endif
