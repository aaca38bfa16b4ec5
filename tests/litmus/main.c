/*
 * litmus-runner - play litmus files on real mounts; README.md has their form.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "mountpoint.h"
#include "run.h"
#include "scenario.h"

#define USUAL_SECONDS 10	/* a repetition that takes longer has deadlocked, if the daemon has no work */

static const char usage[] =
	"usage: litmus-runner [OPTION]... FILE...\n"
	"  --cpu-cache auto|writeback|writethrough  how the mount lets the kernel cache (auto)\n"
	"  --files cached|held|mapped  begin with files that devices have mapped before, or that another\n"
	"                 process has open, or only mapped\n"
	"  --repeat N     repetitions, instead of what each file asks for\n"
	"  --seed N       of the first repetition's timing, as a failure names it (by chance)\n"
	"  --seconds N    a repetition may take (10, times $LITMUS_SLOW), and twelve times that while the daemon has work\n"
	"  --host         with the host (GAIA_DEVICE_HOST) as the last of the devices; skips files that cannot be played so\n"
	"  --delays       let the daemon linger where others could come between (needs -Dfaults=true)\n"
	"  --park         what leaves home is parked on the devices, two slabs each, and read from there (needs -Dfaults=true)\n"
	"  --dedup        equal pages of home are kept once, and all are looked for (needs -Dfaults=true)\n"
	"  --gaiafs PATH  the daemon ($GAIAFS, or this build's)\n"
	"  --gaia PATH    the control tool ($GAIA, or this build's)\n"
	"  --check        only read the files\n"
	"$LITMUS_SLOW is for sanitizers, valgrind. Exit status: 0 all passed, 1 not all, 2 usage, or a file\n"
	"that cannot be read, 77 all were skipped.\n";

static unsigned long long value(const char *option, const char *text)
{
	unsigned long long n;
	char *end;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-') {
		fprintf(stderr, "litmus-runner: %s takes a number, not '%s'\n", option, text);
		exit(2);
	}
	return n;
}

static const char *from_env(const char *name, const char *otherwise)
{
	const char *is = getenv(name);

	return is && *is ? is : otherwise;
}

static enum start start_named(const char *name)
{
	static const char *const names[] = { "", "cached", "held", "mapped" };

	for (int k = START_CACHED; k <= START_MAPPED; k++)
		if (strcmp(names[k], name) == 0)
			return (enum start)k;
	fprintf(stderr, "litmus-runner: --files takes cached, held or mapped, not '%s'\n", name);
	exit(2);
}

static void parse_options(int argc, char **argv, struct run_options *o, bool *check)
{
	enum { CPU_CACHE = 256, FILES, REPEAT, SEED, SECONDS, HOST, DELAYS, PARK, DEDUP, GAIAFS, GAIA, CHECK, HELP };
	static const struct option options[] = {
		{ "cpu-cache", required_argument, NULL, CPU_CACHE },
		{ "files", required_argument, NULL, FILES },
		{ "repeat", required_argument, NULL, REPEAT },
		{ "seed", required_argument, NULL, SEED },
		{ "seconds", required_argument, NULL, SECONDS },
		{ "host", no_argument, NULL, HOST },
		{ "delays", no_argument, NULL, DELAYS },
		{ "park", no_argument, NULL, PARK },
		{ "dedup", no_argument, NULL, DEDUP },
		{ "gaiafs", required_argument, NULL, GAIAFS },
		{ "gaia", required_argument, NULL, GAIA },
		{ "check", no_argument, NULL, CHECK },
		{ "help", no_argument, NULL, HELP },
		{ NULL, 0, NULL, 0 },
	};
	int c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case CPU_CACHE:
			if (strcmp(optarg, "auto") != 0 && strcmp(optarg, "writeback") != 0 &&
			    strcmp(optarg, "writethrough") != 0) {
				fprintf(stderr, "litmus-runner: --cpu-cache takes auto, writeback "
						"or writethrough, not '%s'\n", optarg);
				exit(2);
			}
			o->cpu_cache = optarg;
			break;
		case FILES:
			o->start = start_named(optarg);
			break;
		case REPEAT:
			o->repeat = (unsigned)value("--repeat", optarg);
			break;
		case SEED:
			o->seed = value("--seed", optarg);
			break;
		case SECONDS:
			o->seconds = (unsigned)value("--seconds", optarg);
			break;
		case HOST:
			o->host = true;
			break;
		case DELAYS:
			o->delays = true;
			break;
		case PARK:
			o->park = true;
			break;
		case DEDUP:
			o->dedup = true;
			break;
		case GAIAFS:
			o->gaiafs = optarg;
			break;
		case GAIA:
			o->gaia = optarg;
			break;
		case CHECK:
			*check = true;
			break;
		case HELP:
			fputs(usage, stdout);
			exit(0);
		default:
			fputs(usage, stderr);
			exit(2);
		}
	}
	if (optind == argc) {
		fputs(usage, stderr);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	struct run_options o = {
		.gaia = from_env("GAIA", GAIA_BUILT),
		.cpu_cache = "auto",
		.seconds = USUAL_SECONDS * (unsigned)value("LITMUS_SLOW", from_env("LITMUS_SLOW", "1")),
	};
	unsigned passed = 0, failed = 0, skipped = 0, unread = 0;
	bool check = false;

	/* The death of the daemon or of an actor must not end us. */
	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (getrandom(&o.seed, sizeof(o.seed), 0) != sizeof(o.seed))
		o.seed = 1;
	o.seed %= 1000000000;
	parse_options(argc, argv, &o, &check);

	for (int i = optind; i < argc; i++) {
		struct scenario *s = scenario_read(argv[i]);
		struct run_report report = { 0 };

		if (!s) {
			unread++;
		} else if (check) {
			printf("form %s\n", s->path);
			passed++;
		} else if (s->users && geteuid()) {
			printf("skip %s: needs root, to be other users as well\n", s->path);
			skipped++;
		} else if (o.host && !scenario_on_host(s)) {
			printf("skip %s: not for the host: it is about devices that are strict, or cannot share read-only, or none\n", s->path);
			skipped++;
		} else if (run_scenario(s, &o, &report)) {
			printf("pass %s (%s): %u times, the slowest %llu ms\n", s->path,
			       run_way(&o), report.repetitions,
			       (unsigned long long)report.slowest_ms);
			passed++;
		} else {
			failed++;
		}
		if (s)
			scenario_free(s);
	}
	printf("%u passed, %u failed", passed, failed);
	if (skipped)
		printf(", %u skipped", skipped);
	if (unread)
		printf(", %u cannot be read", unread);
	printf("\n");
	return unread ? 2 : failed ? 1 : skipped && !passed ? 77 : 0;
}
