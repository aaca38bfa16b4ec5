/*
 * main.c - the differential tester's command line; see differ.h.
 *
 *	differ [--cpu-cache auto|writeback|writethrough] [--seed S]
 *	       [--programs N | --minutes N] [--steps N] [--only STEP,...] [--tries N]
 *
 * Runs the programs of seed S, S + 1, ... (S: by the clock unless given, and printed). When one
 * differs, prints the fewest of its steps that it can find which still do, and the command
 * that repeats them; status 1. What differs only sometimes is found with more --tries of the same
 * steps. Not root: without other users.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "differ.h"
#include "gaia/client.h"
#include "mountpoint.h"

#define MAX_STEPS 100000u
#define SHRINK_SECONDS 60
#define HANG_SECONDS 60

static const char *way = "auto";
static struct mnt mnt;
static struct trees trees;
static char plain[PATH_MAX];
static pid_t noise;

static struct {
	uint64_t seed;
	unsigned long programs, steps, minutes, tries;
	char *only;
} option = { .programs = 100, .steps = 150, .tries = 1 };

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* ---- a device that acquires and releases whatever there is, and changes nothing ---- */

static void disturb(const char *name)
{
	struct stat st;
	char path[64], run[32];
	unsigned char *p;
	int fd, found;

	/* A FIFO is not even opened: that shows. */
	run_name(*run_now, run);
	snprintf(path, sizeof(path), "%s/%s", run, name);
	found = openat(trees.mount, path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (found < 0)
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", found);
	fd = !fstat(found, &st) && S_ISREG(st.st_mode) ? open(path, O_RDWR | O_CLOEXEC) : -1;
	close(found);
	if (fd < 0)
		return;
	if (st.st_size) {
		size_t n = (size_t)st.st_size;

		p = gaia_mmap(n, PROT_READ | PROT_WRITE, fd, 0, 0);
		if (p != MAP_FAILED) {
			if (!gaia_acquire(p, n, PROT_READ | PROT_WRITE))
				gaia_release(p, n);
			gaia_munmap(p, n);
		}
	}
	close(fd);
}

static pid_t start_noise(void)
{
	pid_t parent = getpid(), pid = fork();
	char name[NAME_MAX_TEXT];

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGALRM, SIG_DFL);
	if (getppid() != parent)
		_exit(1);
	for (unsigned i = 0;; i++)
		disturb(name_text(i % 3 ? i % 7 : 100 + i % 28, name));
}

/* ---- mounts ---- */

/* What the daemon runs with comes from the seed, too. */
struct setting {
	bool noisy, late;
};

static struct setting setting_of(uint64_t seed)
{
	return (struct setting){ .noisy = theme_of(seed).noisy, .late = seed & 16 };
}

static int open_dir(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0) {
		fprintf(stderr, "differ: %s: %s\n", path, strerror(errno));
		exit(2);
	}
	return fd;
}

static void begin(struct setting setting)
{
	static const char *args[] = { "--home", "8M", "--device", "sim:8M", "--writeback-age", NULL,
				      "--cpu-cache", NULL, NULL, "dev,suid", NULL };
	const struct mnt_options options = { .args = args };

	args[5] = setting.late ? "5" : "0.02";
	args[7] = way;
	/* Root can make device files, and open them. */
	args[8] = geteuid() ? NULL : "-o";
	if (mnt_start(&mnt, &options))
		exit(2);
	snprintf(plain, sizeof(plain), "%s/plain", mnt.dir);
	if (mkdir(plain, 0755)) {
		perror(plain);
		exit(2);
	}
	trees = (struct trees){ open_dir(mnt.path), open_dir(plain), mnt.backing_fd };
	if (setting.noisy)
		noise = start_noise();
}

static void end(void)
{
	if (!mnt.dir[0])
		return;
	if (noise) {
		kill(noise, SIGKILL);
		waitpid(noise, NULL, 0);
		noise = 0;
	}
	close(trees.mount);
	close(trees.plain);
	if (mnt_stop(&mnt)) {
		fprintf(stderr, "differ: the mount did not end cleanly\n");
		exit(1);
	}
}

/* ---- finding the fewest steps ---- */

static void print_steps(const struct step *step, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		step_print(stdout, &step[i]);
		putchar('\n');
	}
}

static bool still_differs(const struct step *step, unsigned n, struct theme theme, unsigned *at)
{
	for (unsigned long i = 0; i < option.tries; i++) {
		alarm(HANG_SECONDS);
		if (program_run(&trees, step, n, theme, at))
			return true;
	}
	return false;
}

/* Leave out ever smaller pieces while it still differs. Returns how many are left. */
static unsigned shrink(struct step *step, unsigned n, struct theme theme)
{
	struct step *less = calloc(n, sizeof(*less));
	double until = now() + SHRINK_SECONDS;
	unsigned at;

	for (unsigned piece = n / 2; piece && now() < until; piece /= 2) {
		for (unsigned i = 0; i + piece <= n && now() < until;) {
			memcpy(less, step, i * sizeof(*step));
			memcpy(less + i, step + i + piece, (n - i - piece) * sizeof(*step));
			if (!still_differs(less, n - piece, theme, &at)) {
				i += piece;
				continue;
			}
			n = at < n - piece ? at + 1 : n - piece;
			memcpy(step, less, n * sizeof(*step));
		}
	}
	free(less);
	return n;
}

static void report(uint64_t seed, struct step *step, unsigned n, const char *what, unsigned at,
		   struct theme theme)
{
	unsigned all = n;

	printf("differ: seed %lu, %s, step %u of %u: %s\n", (unsigned long)seed, way, at, n, what);
	n = at < n ? at + 1 : n;
	n = shrink(step, n, theme);
	what = still_differs(step, n, theme, &at) ? program_told() : NULL;
	printf("%u steps of %u are left:\n", n, all);
	print_steps(step, n);
	printf("%s\n", what ? what : "(which differ sometimes, but not this time)");
	printf("again: differ --cpu-cache %s --seed %lu --programs 1 --steps %lu --only ", way,
	       (unsigned long)seed, option.steps);
	for (unsigned i = 0; i < n; i++)
		printf("%s%u", i ? "," : "", step[i].number);
	printf("\n");
}

/* ---- the command ---- */

static unsigned keep_only(struct step *step, unsigned n)
{
	unsigned kept = 0;

	for (char *p = strtok(option.only, ","); p; p = strtok(NULL, ",")) {
		unsigned long i = strtoul(p, NULL, 10);

		if (i < n)
			step[kept++] = step[i];
	}
	return kept;
}

/* True if it agreed. */
static bool run_seed(uint64_t seed)
{
	static struct step step[MAX_STEPS];
	struct theme theme = theme_of(seed);
	unsigned n = (unsigned)option.steps, at;
	const char *what;

	program_make(seed, !geteuid(), step, n);
	if (option.only)
		n = keep_only(step, n);
	alarm(HANG_SECONDS);
	what = program_run(&trees, step, n, theme, &at);
	alarm(0);
	if (what)
		report(seed, step, n, what, at, theme);
	return !what;
}

static void on_alarm(int signal)
{
	static const char text[] = "differ: hangs in: ";

	(void)signal;
	/* A step is printed without locks that it could hold. */
	if (write(STDERR_FILENO, text, sizeof(text) - 1) > 0 && step_now)
		dprintf(STDERR_FILENO, "step %u, %s\n", step_now->number, step_now->call->name);
	_exit(3);
}

static unsigned long number(const char *text)
{
	char *rest;
	unsigned long n = strtoul(text, &rest, 10);

	if (!*text || *rest) {
		fprintf(stderr, "differ: '%s' is no number\n", text);
		exit(2);
	}
	return n;
}

static void parse(int argc, char **argv)
{
	static const struct option options[] = {
		{ "cpu-cache", required_argument, NULL, 'c' },
		{ "seed", required_argument, NULL, 's' },
		{ "programs", required_argument, NULL, 'p' },
		{ "steps", required_argument, NULL, 'n' },
		{ "minutes", required_argument, NULL, 'm' },
		{ "tries", required_argument, NULL, 't' },
		{ "only", required_argument, NULL, 'o' },
		{ NULL, 0, NULL, 0 },
	};
	struct timespec ts;
	int c;

	clock_gettime(CLOCK_REALTIME, &ts);
	option.seed = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
	while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0) {
		switch (c) {
		case 'c':
			way = optarg;
			break;
		case 's':
			option.seed = number(optarg);
			break;
		case 'p':
			option.programs = number(optarg);
			break;
		case 'n':
			option.steps = number(optarg);
			break;
		case 'm':
			option.minutes = number(optarg);
			break;
		case 't':
			option.tries = number(optarg);
			break;
		case 'o':
			option.only = optarg;
			break;
		default:
			exit(2);
		}
	}
	if (optind < argc || !option.steps || option.steps > MAX_STEPS) {
		fprintf(stderr, "differ: usage is at the top of tests/mount/differ/main.c\n");
		exit(2);
	}
}

static bool same_setting(struct setting a, struct setting b)
{
	return a.late == b.late && a.noisy == b.noisy;
}

int main(int argc, char **argv)
{
	struct setting setting = { 0 };
	unsigned long done = 0;
	double stop_at;
	bool good = true;

	setvbuf(stdout, NULL, _IOLBF, 0);
	parse(argc, argv);
	run_now = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGALRM, on_alarm);
	calls_prepare();
	printf("differ: %s, seed %lu\n", way, (unsigned long)option.seed);
	stop_at = now() + 60.0 * (double)option.minutes;
	while (good && (option.minutes ? now() < stop_at : done < option.programs)) {
		uint64_t seed = option.seed + done++;

		if (!mnt.dir[0] || !same_setting(setting, setting_of(seed))) {
			end();
			setting = setting_of(seed);
			begin(setting);
		}
		good = run_seed(seed);
	}
	end();
	printf("differ: %lu programs of %lu steps%s\n", done, option.steps,
	       good ? ": no difference" : "");
	return !good;
}
