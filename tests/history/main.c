/*
 * history - random programs against a gaiafs mount, and a judge of what they saw; README.md.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "history.h"

static const char usage[] =
	"usage: history [OPTION]...\n"
	"  --seconds N, --minutes N  how long (60 seconds)\n"
	"  --seed N       of the first configuration and all that follow (by chance)\n"
	"  --cpu-cache auto|writeback|writethrough  how the mount lets the kernel cache (by turns)\n"
	"  --gaiafs PATH  the daemon ($GAIAFS, or this build's)\n"
	"  --faults TEXT  more fault points, in the form of $GAIAFS_FAULTS\n"
	"  --only A,B...  no features but these; --without A,B...  not these; --with A,B...  these (--list names them)\n"
	"  --shrink N     seconds to spend on a smaller configuration that fails, too (60)\n"
	"  --list         print the features\n"
	"An operation may take 20 s, times $HISTORY_SLOW. Exit status: 0 nothing found, 1 a violation, 2 usage or\n"
	"no mount, 3 somebody hung.\n";

struct options {
	unsigned seconds, shrink;
	uint64_t seed;
	bool seeded;
	enum way way;		/* WAYS: each in its turn */
	const char *gaiafs, *faults;
	uint32_t only, without, with;
};

static uint64_t deadline;

static _Noreturn void bad_usage(const char *option, const char *text)
{
	if (option)
		fprintf(stderr, "history: %s: cannot take '%s'\n", option, text);
	fputs(usage, stderr);
	exit(2);
}

static unsigned long long number(const char *option, const char *text)
{
	unsigned long long n;
	char *end;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-')
		bad_usage(option, text);
	return n;
}

static uint32_t feature_set(const char *option, char *text)
{
	uint32_t set = 0;

	for (char *name = strtok(text, ","); name; name = strtok(NULL, ",")) {
		unsigned f = 0;

		while (f < FEATURES && strcmp(name, feature_name(f)) != 0)
			f++;
		if (f == FEATURES)
			bad_usage(option, name);
		set |= 1u << f;
	}
	return set;
}

/* Which of the names it is. */
static unsigned named(const char *option, const char *text, const char *const *names, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (strcmp(text, names[i]) == 0)
			return i;
	bad_usage(option, text);
}

static void list_features(void)
{
	for (unsigned f = 0; f < FEATURES; f++)
		puts(feature_name(f));
	exit(0);
}

static void parse_options(int argc, char **argv, struct options *o)
{
	enum { SECONDS = 256, MINUTES, SEED, CPU_CACHE, GAIAFS, FAULTS, ONLY, WITHOUT, WITH, SHRINK, LIST, HELP };
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, SECONDS },
		{ "minutes", required_argument, NULL, MINUTES },
		{ "seed", required_argument, NULL, SEED },
		{ "cpu-cache", required_argument, NULL, CPU_CACHE },
		{ "gaiafs", required_argument, NULL, GAIAFS },
		{ "faults", required_argument, NULL, FAULTS },
		{ "only", required_argument, NULL, ONLY },
		{ "without", required_argument, NULL, WITHOUT },
		{ "with", required_argument, NULL, WITH },
		{ "shrink", required_argument, NULL, SHRINK },
		{ "list", no_argument, NULL, LIST },
		{ "help", no_argument, NULL, HELP },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case SECONDS:
			o->seconds = (unsigned)number("--seconds", optarg);
			break;
		case MINUTES:
			o->seconds = 60 * (unsigned)number("--minutes", optarg);
			break;
		case SEED:
			o->seed = number("--seed", optarg);
			o->seeded = true;
			break;
		case CPU_CACHE:
			o->way = (enum way)named("--cpu-cache", optarg, way_names, WAYS);
			break;
		case GAIAFS:
			o->gaiafs = optarg;
			break;
		case FAULTS:
			o->faults = optarg;
			break;
		case ONLY:
			o->only = feature_set("--only", optarg);
			break;
		case WITHOUT:
			o->without = feature_set("--without", optarg);
			break;
		case WITH:
			o->with = feature_set("--with", optarg);
			break;
		case SHRINK:
			o->shrink = (unsigned)number("--shrink", optarg);
			break;
		case LIST:
			list_features();
			break;
		case HELP:
			fputs(usage, stdout);
			exit(0);
		default:
			bad_usage(NULL, NULL);
		}
	}
	if (optind < argc)
		bad_usage("argument", argv[optind]);
}

/* @must: nothing else will do. */
static bool ask(const struct mnt *m, const char *what, const char *wanted, bool must, char is[16])
{
	if (mnt_says(m, what, is)) {
		fprintf(stderr, "history: gaia status does not say \"%s\"\n", what);
		return false;
	}
	if (strcmp(is, wanted) == 0)
		return true;
	if (must)
		fprintf(stderr, "history: %s is not to be had here, but %s\n", wanted, is);
	else
		printf("  (%s is not to be had here, but %s)\n", wanted, is);
	return !must;
}

/* The mount may work in another way than it was told to, where that cannot be had: judge it as what it is. */
static enum verdict ask_ways(const struct mnt *m, struct config *c, const struct options *o)
{
	char is[16];

	if (c->automatic) {
		if (!ask(m, "cpu_cache", config_way(c), false, is))
			return BROKEN;
		c->automatic = strcmp(is, way_names[AUTO]) == 0;
		c->writeback = strcmp(is, way_names[WRITEBACK]) == 0;
	}
	return ALL_WELL;
}

/* Mount, play some rounds, unmount. */
static enum verdict play(const struct config *drawn, const struct options *o, unsigned rounds)
{
	struct config c = *drawn;
	struct mnt_options mo = { .gaiafs = o->gaiafs, .args = config_args(&c) };
	enum verdict v;
	bool last = false;
	struct mnt m;

	setenv("GAIAFS_FAULTS", config_faults(&c), 1);
	if (mnt_start(&m, &mo))
		return BROKEN;
	v = ask_ways(&m, &c, o);
	for (unsigned round = 0; !last && v == ALL_WELL; round++) {
		last = round + 1 == rounds || now() > deadline;
		v = round_play(&m, &c, round, last);
	}
	if (v == VIOLATION && m.daemon)
		mnt_crash(&m);
	if (mnt_stop(&m) && v == ALL_WELL)
		v = VIOLATION;
	return v;
}

/* Does what is left of it still fail? */
static bool still_fails(const struct config *c, const struct options *o, unsigned rounds)
{
	enum verdict v;

	deadline = NEVER;
	v = play(c, o, rounds);
	return v == VIOLATION || v == STUCK;
}

/* Take away what is not needed, as long as there is time. */
static void shrink(struct config *c, const struct options *o)
{
	uint64_t end = now() + o->shrink * 1000000000ull;
	struct config best = *c, try;
	unsigned rounds = 12;

	if (!o->shrink)
		return;
	printf("Trying to do it with less...\n");
	for (unsigned f = 0; f < FEATURES && now() < end; f++) {
		try = best;
		try.features &= ~(1u << f);
		if (HAS(&best, f) && still_fails(&try, o, rounds))
			best = try;
	}
	for (unsigned what = 0; what < 4 && now() < end; what++) {
		try = best;
		if (what == 0)
			try.slots = 1;
		else if (what == 1)
			try.hot = 1;
		else if (what == 2)
			try.clients = 1;
		else
			try.cpus = 1;
		if (memcmp(&try, &best, sizeof(try)) != 0 && still_fails(&try, o, rounds))
			best = try;
	}
	printf("This fails, too: ");
	config_print(&best);
	printf("\n");
}

/* A configuration after the other, until the time is over. */
static enum verdict run(const struct options *o)
{
	unsigned done = 0;

	for (uint64_t seed = o->seed; now() < deadline; seed++, done++) {
		struct config c;
		enum verdict v;

		config_draw(&c, seed, o->way < WAYS ? o->way : (enum way)(seed % WAYS));
		c.features |= o->with;
		c.features &= ~o->without;
		if (o->only)
			c.features &= o->only;
		c.more_faults = o->faults;
		printf("seed %llu: ", (unsigned long long)seed);
		config_print(&c);
		if (*config_faults(&c))
			printf("\n  GAIAFS_FAULTS=%s", config_faults(&c));
		printf("\n");
		v = play(&c, o, 5);
		if (v == ALL_WELL)
			continue;
		printf("Found after %u configuration%s; once more: --cpu-cache %s --seed %llu\n", done + 1, done ? "s" : "",
		       config_way(&c), (unsigned long long)seed);
		if (v == VIOLATION)
			shrink(&c, o);
		return v;
	}
	return ALL_WELL;
}

int main(int argc, char **argv)
{
	struct options o = { .seconds = 60, .shrink = 60, .way = WAYS };
	uint64_t began = now();
	enum verdict v;

	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	parse_options(argc, argv, &o);
	if (!o.seeded && getrandom(&o.seed, sizeof(o.seed), 0) == sizeof(o.seed))
		o.seed %= 1000000000;
	round_init();
	deadline = began + o.seconds * 1000000000ull;
	v = run(&o);
	printf("%lu rounds in %llu s: %lu operations (%lu writes and %lu reads of %lu cells; %lu mixed), "
	       "%lu clients, %lu crashes, %lu pages parked in slots of equal ones\n",
	       stats.rounds, (unsigned long long)((now() - began) / 1000000000), stats.ops, stats.writes,
	       stats.reads, stats.cells, stats.mixed, stats.deaths, stats.crashes, stats.shared);
	return v == ALL_WELL ? 0 : v == VIOLATION ? 1 : v == STUCK ? 3 : 2;
}
