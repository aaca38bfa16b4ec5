/*
 * nodes.c - the history checker for nodes: random programs on two nodes over one directory, and an oracle that judges what they saw.
 * README.md in the directory above says more.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gaia/client.h"
#include "mountpoint.h"
#include "nodes.h"
#include "own_mounts.h"
#include "threads.h"
#include "tree.h"

#define ROUNDS 4u
/* Pauses: times of files show that they have not changed when they are older than two seconds; and how long devices look at that. */
#define SURE_MS 3100u
#define LOOK_MS 100u
#define HANG_S 60u /* only a hang takes that long */

enum verdict { ALL_WELL, VIOLATION, BROKEN, HUNG, SKIPPED = 77 };

static const char usage[] =
	"usage: history-nodes [--seconds N | --minutes N] [--seed S] [--kind KIND] [--faults POINTS]\n"
	"\n"
	"Random programs and devices on two nodes (--source shared) over one directory, judged by what gaiafs-nodes(7) promises.\n"
	"\n"
	"  --kind    passed, passed-engine, direct or direct-engine: files passed through or each call passed on; over the\n"
	"            directory itself, or over two clients of an engine, each with a page cache of its own (default: all in turn)\n"
	"  --faults  for GAIAFS_FAULTS, in builds for tests\n"
	"\n"
	"With GAIA_ENGINE_CLIENTS=DIR:DIR these are used as the engine's two clients, and only what needs an engine is played.\n"
	"Exits with 0; 1: something was seen that is not allowed; 2: it could not be played; 3: somebody hung; 77: not to be had here.\n";

static const char *const kind_name[KINDS] = { "passed", "passed-engine", "direct", "direct-engine" };
static const char *const lock_names[LOCK_KINDS] = { "flock", "record locks", "locks of open files" };

struct world *world;
static struct mnt node[NODES];
static char top[PATH_MAX], files[PATH_MAX + 16];
static char given[NODES][PATH_MAX]; /* the engine's clients, if the environment names them */
static const char *faults;
static struct {
	unsigned rounds, skipped;
	unsigned long reads, writes, turns;
} stats;

off_t hot_page_offset(unsigned page)
{
	static const off_t at[HOT] = { 0, PAGE, 2 * MIB - PAGE, 2 * MIB };

	return at[page];
}

off_t cell_offset(unsigned cell)
{
	unsigned in_page = cell % world->config.cells, at_end = world->config.cells / 3;

	return hot_page_offset(cell / world->config.cells) +
	       (off_t)(in_page < world->config.cells - at_end ? in_page * CELL : PAGE - (world->config.cells - in_page) * CELL);
}

void file_name(unsigned file, char name[32])
{
	snprintf(name, 32, "f%u-%u", world->round, file);
}

/* ---- what is played ---- */

static void config_draw(struct config *c, uint64_t seed, int kind)
{
	static const unsigned cells[] = { 2, 4, 6, MOST_CELLS };

	reseed(seed);
	*c = (struct config){ .seed = seed, .kind = kind < 0 ? (enum kind)(seed % KINDS) : (enum kind)kind };
	c->lock = (enum lock_kind)below(LOCK_KINDS);
	c->files = 1 + below(MOST_FILES);
	c->cells = cells[below(4)];
	for (unsigned n = 0; n < NODES; n++) {
		c->cpus[n] = below(3);
		c->devices[n] = below(3);
		c->cpus[n] += !c->cpus[n] && !c->devices[n];
		c->host[n] = c->devices[n] && chance(30);
	}
	if (chance(40)) {
		unsigned reader = below(NODES);

		c->only_reads[reader] = true;
		c->cpus[reader] = 0;
		c->devices[reader] += !c->devices[reader];
	}
	c->pauses = chance(c->only_reads[0] || c->only_reads[1] ? 70 : 20);
	c->late = chance(50);
	c->run_ms = 150 + below(400);
}

static void config_print(const struct config *c)
{
	printf("seed %llu: %s, %u file%s, %u cells a page, %u + %u programs, %u + %u with devices%s%s, %s%s%s\n", (unsigned long long)c->seed,
	       kind_name[c->kind], c->files, c->files > 1 ? "s" : "", c->cells, c->cpus[0], c->cpus[1], c->devices[0], c->devices[1],
	       c->host[0] || c->host[1] ? " (and the host)" : "", c->only_reads[0] || c->only_reads[1] ? ", a node only reads" : "",
	       lock_names[c->lock], has_engine(c) && c->late ? ", late answers" : "", c->pauses ? ", with a pause" : "");
}

static int run_program(const char *const argv[])
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		execv(argv[0], (char *const *)argv);
		_exit(127);
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static enum verdict mount_node(unsigned n, const struct config *c)
{
	static const char *args[NODES][12];
	static char backing[NODES][PATH_MAX + 32];
	struct mnt_options o = { .args = args[n], .backing = backing[n] };
	unsigned k = 0;

	args[n][k++] = "--source";
	args[n][k++] = "shared";
	args[n][k++] = "--cpu-cache";
	args[n][k++] = is_passed(c) ? "auto" : "writethrough";
	args[n][k++] = "--device";
	args[n][k++] = "sim:16M";
	args[n][k++] = "--names-age";
	args[n][k++] = "0";
	args[n][k] = NULL;
	snprintf(backing[n], sizeof(backing[n]), "%s", files);
	if (has_engine(c) && **given) {
		if (snprintf(backing[n], sizeof(backing[n]), "%s%s", given[n], files + strlen(given[0])) >= (int)sizeof(backing[n]))
			return BROKEN;
	} else if (has_engine(c)) {
		const char *argv[] = { ENGINE_FS, files, backing[n], c->late ? "late=300" : NULL, NULL };

		if (snprintf(backing[n], sizeof(backing[n]), "%s/client%u", top, n) >= (int)sizeof(backing[n]))
			return BROKEN;
		if (mkdir(backing[n], 0755) || run_program(argv))
			return BROKEN;
	}
	if (mnt_start(&node[n], &o))
		return BROKEN;
	snprintf(world->node[n], sizeof(world->node[n]), "%s", node[n].path);
	return is_passed(c) && mnt_log_lines(&node[n], "--cpu-cache writethrough") ? SKIPPED : ALL_WELL;
}

static enum verdict set_up(const struct config *c)
{
	enum verdict v = ALL_WELL;

	setenv("GAIAFS_FAULTS", faults ? faults : "", 1);
	tree_make_temp(NULL, top);
	if (has_engine(c) && **given)
		snprintf(files, sizeof(files), "%s/%s", given[0], strrchr(top, '/') + 1);
	else
		snprintf(files, sizeof(files), "%s/files", top);
	if (mkdir(files, 0777))
		return BROKEN;
	strcpy(world->beneath, files);
	for (unsigned n = 0; n < NODES && v == ALL_WELL; n++)
		v = mount_node(n, c);
	return v;
}

static bool take_down(const struct config *c)
{
	char path[PATH_MAX + 64];
	bool clean = true;

	for (unsigned n = 0; n < NODES; n++) {
		if (*node[n].dir)
			clean &= !mnt_stop(&node[n]);
		*node[n].dir = '\0';
		snprintf(path, sizeof(path), "%s/client%u", top, n);
		umount2(path, MNT_DETACH);
		rmdir(path);
	}
	for (unsigned r = 0; r < ROUNDS; r++)
		for (unsigned f = 0; f < MOST_FILES; f++) {
			snprintf(path, sizeof(path), "%s/f%u-%u", files, r, f);
			unlink(path);
		}
	rmdir(files);
	rmdir(top);
	return clean;
}

/* ---- a round ---- */

static bool make_files(void)
{
	for (unsigned f = 0; f < world->config.files; f++) {
		char name[32], path[PATH_MAX + 64];
		int fd;

		file_name(f, name);
		snprintf(path, sizeof(path), "%s/%s", world->node[f % NODES], name);
		fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (fd < 0 || ftruncate(fd, SIZE) || close(fd)) {
			fprintf(stderr, "nodes: %s: %s\n", path, strerror(errno));
			return false;
		}
	}
	return true;
}

static struct actor *new_actor(unsigned n, bool of_device, int device)
{
	struct actor *a = &world->actor[world->n_actors++];

	a->node = (uint8_t)n;
	a->of_device = of_device;
	a->device = device;
	a->n = 0;
	memset(a->n_turns, 0, sizeof(a->n_turns));
	return a;
}

static void start(struct actor *a, int (*fn)(struct actor *a))
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		_exit(fn(a));
	}
	a->pid = pid; /* memory of both */
}

static void hung(const struct actor *a)
{
	printf("program %ld on node %u hangs.\n", (long)(a - world->actor), a->node);
	fflush(stdout);
	threads_show(a->pid, "program");
	for (unsigned n = 0; n < NODES; n++)
		threads_show(node[n].daemon, "daemon");
}

/* Wait for the actors from @first on. */
static enum verdict join(unsigned first)
{
	enum verdict v = ALL_WELL;

	for (unsigned i = first; i < world->n_actors; i++) {
		struct actor *a = &world->actor[i];
		uint64_t end = now() + HANG_S * 1000000000ull;
		int status = 0;
		pid_t got;

		while (!(got = waitpid(a->pid, &status, WNOHANG)) && now() < end)
			usleep(1000);
		if (!got) {
			if (v != HUNG)
				hung(a);
			v = HUNG;
			kill(a->pid, SIGKILL);
			waitpid(a->pid, &status, 0);
		} else if (!WIFEXITED(status) || WEXITSTATUS(status)) {
			fprintf(stderr, "nodes: program %u on node %u ended with status %#x\n", i, a->node, (unsigned)status);
			v = v == ALL_WELL ? BROKEN : v;
		}
	}
	return v;
}

static void count_all(void)
{
	for (unsigned a = 0; a < world->n_actors; a++) {
		for (uint32_t i = 0; i < world->actor[a].n; i++)
			*(world->actor[a].event[i].is_write ? &stats.writes : &stats.reads) += 1;
		for (unsigned f = 0; f < MOST_FILES; f++)
			stats.turns += world->actor[a].n_turns[f];
	}
	stats.rounds++;
}

static enum verdict play_round(unsigned round)
{
	const struct config *c = &world->config;
	enum verdict v;
	unsigned first;

	world->round = round;
	world->n_actors = 0;
	memset(world->given, 0, sizeof(world->given));
	atomic_store(&world->enough, false);
	if (!make_files())
		return BROKEN;
	for (unsigned n = 0; n < NODES; n++) {
		for (unsigned i = 0; i < c->cpus[n]; i++)
			new_actor(n, false, 0);
		for (unsigned i = 0; i < c->devices[n]; i++)
			new_actor(n, true, c->host[n] && i + 1 == c->devices[n] ? GAIA_DEVICE_HOST : 0);
	}
	for (unsigned i = 0; i < world->n_actors; i++)
		start(&world->actor[i], actor_play);
	usleep(500 * c->run_ms);
	if (c->pauses && world->round == 0) {
		atomic_store(&world->pace, PAUSE);
		usleep(SURE_MS * 1000);
		atomic_store(&world->pace, LOOK_ONLY);
		usleep(LOOK_MS * 1000);
		atomic_store(&world->pace, GO_ON);
	}
	usleep(500 * c->run_ms);
	atomic_store(&world->enough, true);
	v = join(0);
	if (v != ALL_WELL)
		return v;
	first = world->n_actors;
	for (unsigned n = 0; n < NODES; n++) {
		start(new_actor(n, false, 0), actor_look);
		start(new_actor(n, true, 0), actor_look);
	}
	v = join(first);
	if (v != ALL_WELL)
		return v;
	count_all();
	return judge() ? ALL_WELL : VIOLATION;
}

static enum verdict play(const struct config *c)
{
	enum verdict v;

	world->config = *c;
	v = set_up(c);
	for (unsigned round = 0; round < ROUNDS && v == ALL_WELL; round++)
		v = play_round(round);
	if (!take_down(c) && v == ALL_WELL) {
		printf("A node did not end cleanly.\n");
		v = VIOLATION;
	}
	return v;
}

/* ---- the command line ---- */

_Noreturn static void bad_usage(const char *option, const char *value)
{
	if (option)
		fprintf(stderr, "history-nodes: %s: '%s' cannot be that\n", option, value);
	fputs(usage, stderr);
	exit(2);
}

static uint64_t number(const char *option, const char *text)
{
	char *end;
	uint64_t n = strtoull(text, &end, 10);

	if (*text < '0' || *text > '9' || *end)
		bad_usage(option, text);
	return n;
}

static int kind_named(const char *text)
{
	for (int k = 0; k < (int)KINDS; k++)
		if (!strcmp(text, kind_name[k]))
			return k;
	bad_usage("--kind", text);
}

int main(int argc, char **argv)
{
	enum { SECONDS = 256, MINUTES, SEED, KIND, FAULTS, HELP };
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, SECONDS }, { "minutes", required_argument, NULL, MINUTES },
		{ "seed", required_argument, NULL, SEED },	 { "kind", required_argument, NULL, KIND },
		{ "faults", required_argument, NULL, FAULTS },	 { "help", no_argument, NULL, HELP },
		{ NULL, 0, NULL, 0 },
	};
	const char *clients = getenv("GAIA_ENGINE_CLIENTS");
	uint64_t seed = 0, seconds = 60, deadline, began = now();
	bool seeded = false, any = false;
	pthread_rwlockattr_t shared;
	enum verdict v = ALL_WELL;
	int kind = -1, c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (c == SECONDS)
			seconds = number("--seconds", optarg);
		else if (c == MINUTES)
			seconds = 60 * number("--minutes", optarg);
		else if (c == SEED)
			seed = number("--seed", optarg), seeded = true;
		else if (c == KIND)
			kind = kind_named(optarg);
		else if (c == FAULTS)
			faults = optarg;
		else if (c == HELP)
			return fputs(usage, stdout) == EOF;
		else
			bad_usage(NULL, NULL);
	}
	if (optind < argc)
		bad_usage("argument", argv[optind]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (geteuid() || !own_mounts(NULL)) {
		printf("history-nodes: needs root\n");
		return SKIPPED;
	}
	if (clients && sscanf(clients, "%4095[^:]:%4095s", given[0], given[1]) != (int)NODES)
		bad_usage("GAIA_ENGINE_CLIENTS", clients);
	if (clients && (kind == (int)PASSED || kind == (int)DIRECT))
		bad_usage("--kind", kind_name[kind]);
	if (!seeded && getrandom(&seed, sizeof(seed), 0) == sizeof(seed))
		seed %= 1000000000;
	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (world == MAP_FAILED)
		return BROKEN;
	pthread_rwlockattr_init(&shared);
	pthread_rwlockattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	for (unsigned n = 0; n < NODES; n++)
		pthread_rwlock_init(&world->quiet[n], &shared);
	deadline = began + seconds * 1000000000ull;
	for (; (v == ALL_WELL || v == SKIPPED) && now() < deadline; seed++) {
		struct config config;

		config_draw(&config, seed, kind);
		if (clients && !has_engine(&config))
			continue;
		config_print(&config);
		v = play(&config);
		any |= v == ALL_WELL;
		if (v == SKIPPED)
			printf("  (files cannot be passed through here)\n");
	}
	if (v != ALL_WELL && v != SKIPPED)
		printf("Once more: --kind %s --seed %llu\n", kind_name[world->config.kind], (unsigned long long)seed - 1);
	printf("%u rounds in %llu s: %lu writes and %lu reads of cells, %lu turns with a lock\n", stats.rounds,
	       (unsigned long long)((now() - began) / 1000000000), stats.writes, stats.reads, stats.turns);
	return v == SKIPPED && any ? ALL_WELL : (int)v;
}
