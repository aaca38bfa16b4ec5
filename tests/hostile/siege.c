/*
 * siege.c - all attackers at the same time, for a while, while root goes on working: acquires, releases, asks for the state, stats and
 * reads files that are not the attackers'. Asserted is that all of this succeeds, and that every attacker gets to attack.
 *
 * How long root's operations take is measured and printed, without attackers first, then with them. Nothing is asserted of
 * that here, since a shared machine holds up everybody at times: scripts/bench siege is for looking at it. The goal is 100 ms,
 * and what the operation takes when all is quiet.
 *
 * Each kind of attacker is a user of its own: if all were one, that one's limits would keep them from most of it. Their
 * niceness is 10, since to use up a processor nobody needs gaiafs; what the daemon does for them it does with its own.
 *
 * GAIAFS_SIEGE_SECONDS says how long it lasts (4), after a quarter of that without attackers.
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>

#include "attackers.h"
#include "gaia/client.h"
#include "hostile.h"
#include "mutant.h"
#include "report.h"

#define RW (PROT_READ | PROT_WRITE)
#define READ_SIZE (8ul << 20)
#define GOAL_NS 100000000ull
#define PAUSE_NS 5000000 /* between root's operations, so that root does not besiege itself */
#define START_SECONDS 60 /* in which each attacker has begun */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void pause_ns(long ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = ns }, NULL);
}

/* ---- the attackers ---- */

static int mutate_for_ever(void *arg);

static const struct attacker {
	const char *name;
	int (*fn)(void *arg);
	unsigned life_ms; /* then it is killed, and there is another; it may end by itself as well */
} attacker[] = {
	{ "clients that give no memory up", be_mute, 20000 },
	{ "and acquires behind them", be_mute_and_flood, 20000 },
	{ "floods of acquires", flood_with_acquires, 10000 },
	{ "floods of CONNECT", flood_with_tickets, 10000 },
	{ "connections that say nothing", connect_and_say_nothing, 5000 },
	{ "hoarded clients", take_clients, 3000 },
	{ "hoarded mappings", take_mappings, 3000 },
	{ "hoarded pins", take_pins, 3000 },
	{ "hoarded directories", take_directories, 3000 },
	{ "hoarded files without a name", take_nameless_files_by_four, 8000 },
	{ "readers without a pause", starve_writers, 20000 },
	{ "mutants", mutate_for_ever, 20000 },
	{ "pages that fill home", fill_home, 20000 },
	{ "pages that are merged", fill_with_twins, 20000 },
	{ "fsyncs", flood_with_fsyncs, 20000 },
	{ "orders of a reader", give_orders, 20000 },
	{ "readers who store", store_as_a_reader, 10000 },
	{ "memory kept without being a client", keep_memory, 10000 },
};
#define ATTACKERS (sizeof(attacker) / sizeof(attacker[0]))

/* Used by the process that runs the attackers. */
static struct life {
	pid_t pid;
	uint64_t born;
} life[ATTACKERS];

static uid_t uid_of(size_t i)
{
	return NOBODY - (uid_t)i;
}

/* What all processes see. */
static struct scene {
	struct shared of[ATTACKERS]; /* those that are alive */
	long done[ATTACKERS];	     /* by all together, when they have ended */
	unsigned lives[ATTACKERS];
	unsigned nth_mutant;
	bool end;
} *scene;

static int mutate_for_ever(void *arg)
{
	(void)arg;
	return mutant(&scene->nth_mutant);
}

/* How much there was, by what is asked of a kind so that it counts as an attack. */
static long deeds(size_t i)
{
	const struct shared *s = &scene->of[i];

	if (attacker[i].fn == starve_writers)
		return (long)atomic_load(&score->answered);
	if (attacker[i].fn == be_mute || attacker[i].fn == be_mute_and_flood)
		return scene->done[i] + s->done;
	return scene->done[i] + s->count;
}

static void give_life(size_t i)
{
	const struct attacker *a = &attacker[i];

	if (a->fn != starve_writers)
		scene->done[i] = deeds(i);
	memset(&scene->of[i], 0, sizeof(scene->of[i]));
	shared = &scene->of[i];
	hostile_uid = uid_of(i);
	scene->nth_mutant += a->fn == mutate_for_ever;
	scene->lives[i]++;
	life[i] = (struct life){ child_start(a->fn, NULL), now_ns() };
}

static void take_life(struct life *l)
{
	if (l->pid)
		child_kill(l->pid);
	l->pid = 0;
}

/* A process, which has all attackers as children. */
static int besiege(void *arg)
{
	(void)arg;
	hostile_raise_limit();
	CHILD_CHECK(!setpriority(PRIO_PROCESS, 0, 10));
	for (size_t i = 0; i < ATTACKERS; i++)
		give_life(i);
	while (!__atomic_load_n(&scene->end, __ATOMIC_SEQ_CST)) {
		for (size_t i = 0; i < ATTACKERS; i++) {
			struct life *l = &life[i];

			if (waitpid(l->pid, NULL, WNOHANG) == l->pid)
				l->pid = 0;
			else if (now_ns() - l->born < attacker[i].life_ms * 1000000ull)
				continue;
			take_life(l);
			give_life(i);
		}
		pause_ns(10000000);
	}
	for (size_t i = 0; i < ATTACKERS; i++)
		take_life(&life[i]);
	return 0;
}

/* ---- root ---- */

struct times {
	uint64_t *ns;
	size_t n, room;
};

enum { QUIET, SIEGE, PHASES };
static atomic_int phase;
static atomic_bool over;

static struct deed {
	const char *name;
	struct times times[PHASES];
} acquire = { .name = "acquire" },
  release = { .name = "release" },
  acquire_more = { .name = "acquire that needs room" },
  status = { .name = "status" },
  stat_cached = { .name = "stat" },
  read_cached = { .name = "read" },
  stat_beneath = { .name = "stat, without gaiafs" };

static struct deed *const deed[] = { &acquire, &release, &acquire_more, &status, &stat_cached, &read_cached, &stat_beneath };
#define DEEDS (sizeof(deed) / sizeof(deed[0]))

static uint64_t siege_began;

/* Each deed is noted by one thread only, and counted in the phase in which it ended. */
static void note(struct deed *d, uint64_t began, int at)
{
	struct times *t = &d->times[at];
	uint64_t took = now_ns() - began;

	if (t->n == t->room) {
		t->room = t->room ? 2 * t->room : 1024;
		t->ns = realloc(t->ns, t->room * sizeof(*t->ns));
	}
	t->ns[t->n++] = took;
	if (at == SIEGE && took > GOAL_NS)
		fprintf(stderr, "siege: %s: %llu ms, from %.1f s on\n", d->name, (unsigned long long)took / 1000000,
			(double)((int64_t)(began - siege_began)) / 1e9);
}

/* What fails is told, once, and fails the test when all have ended. */
static _Atomic(const char *) failed;
static atomic_int failed_errno;

static bool succeeds(bool ok, const char *call)
{
	if (!ok && !atomic_load(&failed)) {
		atomic_store(&failed_errno, errno);
		atomic_store(&failed, call);
	}
	return ok;
}

#define ROOT(call) succeeds(call, #call)

/* What began when all was quiet, and ended in the siege, counts as of the siege: it may have lasted for all of it. */
#define TIMED(d, call)                                \
	({                                            \
		uint64_t began_ = now_ns();           \
		bool ok_ = ROOT(call);                \
		note(d, began_, atomic_load(&phase)); \
		ok_;                                  \
	})

#define FAR 128 /* chunks; no device has as many */

/* One chunk that stays on the device while nobody needs its room more, since it is always in use. */
static void *use_one_chunk(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], "one", O_RDWR | O_CLOEXEC);
	unsigned char *p = gaia_mmap(GAIA_CHUNK, RW, fd, 0, 0);

	if (!ROOT(p != MAP_FAILED))
		return NULL;
	for (unsigned n = 0; !atomic_load(&over); n++) {
		if (!TIMED(&acquire, !gaia_acquire(p, GAIA_CHUNK, RW)))
			break;
		p[n % GAIA_CHUNK]++;
		if (!TIMED(&release, !gaia_release(p, GAIA_CHUNK)))
			break;
		pause_ns(PAUSE_NS);
	}
	gaia_munmap(p, GAIA_CHUNK);
	close(fd);
	return NULL;
}

/* One chunk after the other, each of which has to be brought, and another to leave for it. */
static void *use_many_chunks(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], "many", O_RDONLY | O_CLOEXEC);
	unsigned char *p = gaia_mmap(FAR * (size_t)GAIA_CHUNK, PROT_READ, fd, 0, 0), *chunk;

	if (!ROOT(p != MAP_FAILED))
		return NULL;
	for (unsigned n = 0; !atomic_load(&over); n++) {
		chunk = p + n % FAR * (size_t)GAIA_CHUNK;
		if (!TIMED(&acquire_more, !gaia_acquire(chunk, GAIA_CHUNK, PROT_READ)))
			break;
		if (!ROOT(!gaia_release(chunk, GAIA_CHUNK)))
			break;
		pause_ns(PAUSE_NS);
	}
	gaia_munmap(p, FAR * (size_t)GAIA_CHUNK);
	close(fd);
	return NULL;
}

/* As `gaia status` does, without its process. */
static bool ask_for_status(int fd)
{
	struct gaia_ioc_report io = { .what = GAIA_REPORT_STATUS };
	struct gaia_msg msg;
	struct raw r;
	int text = -1;
	bool ok = raw_connect(fd, &r);

	if (!ok)
		return false;
	io.key = r.key;
	while ((ok = !ioctl(fd, GAIA_IOC_REPORT, &io)) == false && errno == EAGAIN)
		pause_ns(10000000);
	ok = ok && raw_receive(r.sock, &msg, &text) && msg.kind == GAIA_MSG_REPORT;
	if (text >= 0)
		close(text);
	close(r.sock);
	return ok;
}

static void *ask_on(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	while (!atomic_load(&over) && TIMED(&status, ask_for_status(fd)))
		pause_ns(4 * PAUSE_NS);
	close(fd);
	return NULL;
}

/* Of the daemon, not of what the kernel remembers. */
static bool stat_one(int dir)
{
	struct statx st;

	return !statx(dir, "read", AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &st) && st.stx_size == READ_SIZE;
}

static void *stat_on(void *arg)
{
	while (!atomic_load(&over) && TIMED(&stat_cached, stat_one(both_root[ON_MOUNT])))
		pause_ns(PAUSE_NS);
	return NULL;
}

/* What the machine alone makes of such a thing. */
static void *stat_beneath_on(void *arg)
{
	while (!atomic_load(&over) && TIMED(&stat_beneath, stat_one(mnt.backing_fd)))
		pause_ns(PAUSE_NS);
	return NULL;
}

static void *read_on(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], "read", O_RDONLY | O_CLOEXEC);
	char page[GAIA_PAGE];
	off_t at;

	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (unsigned n = 1; !atomic_load(&over); n++) {
		at = (off_t)(n * 797 % (READ_SIZE / GAIA_PAGE)) * GAIA_PAGE;
		/* Of the daemon, too. */
		posix_fadvise(fd, at, GAIA_PAGE, POSIX_FADV_DONTNEED);
		if (!TIMED(&read_cached, pread(fd, page, sizeof(page), at) == sizeof(page)))
			break;
		if (!ROOT(page[0] == 'r' && page[GAIA_PAGE - 1] == 'r'))
			break;
		pause_ns(PAUSE_NS);
	}
	close(fd);
	return NULL;
}

static void *(*const roots[])(void *) = { use_one_chunk, use_many_chunks, ask_on, stat_on, stat_beneath_on, read_on };
#define ROOTS (sizeof(roots) / sizeof(roots[0]))

/* ---- the numbers ---- */

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double part_ms(const struct times *t, double part)
{
	size_t i = (size_t)((double)t->n * part);

	return t->n ? (double)t->ns[i < t->n ? i : t->n - 1] / 1e6 : 0;
}

static void print_times(unsigned seconds)
{
	fprintf(stderr, "%s, %u s, on %ld processors, which may be shared: what that costs shows in the last row. Milliseconds.\n\n",
		way, seconds, sysconf(_SC_NPROCESSORS_ONLN));
	fprintf(stderr, "| %-23s | %6s | %8s | %8s | %8s | %6s | %8s | %8s | %8s | %-21s |\n", "root's", "quiet", "median", "99 %",
		"worst", "siege", "median", "99 %", "worst", "100 ms + quiet worst");
	fprintf(stderr, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
	for (size_t i = 0; i < DEEDS; i++) {
		struct times *q = &deed[i]->times[QUIET], *s = &deed[i]->times[SIEGE];

		qsort(q->ns, q->n, sizeof(*q->ns), by_size);
		qsort(s->ns, s->n, sizeof(*s->ns), by_size);
		fprintf(stderr, "| %-23s | %6zu | %8.2f | %8.2f | %8.2f | %6zu | %8.2f | %8.2f | %8.2f | %-21s |\n", deed[i]->name,
			q->n, part_ms(q, 0.5), part_ms(q, 0.99), part_ms(q, 1), s->n, part_ms(s, 0.5), part_ms(s, 0.99),
			part_ms(s, 1), part_ms(s, 1) <= part_ms(q, 1) + GOAL_NS / 1e6 ? "within" : "over");
	}
}

static void print_attackers(void)
{
	fprintf(stderr, "\nThe attackers, at niceness 10, and what they did:\n\n");
	for (size_t i = 0; i < ATTACKERS; i++)
		fprintf(stderr, "- %s: %ld, by %u processes\n", attacker[i].name, deeds(i), scene->lives[i]);
	fprintf(stderr, "\n%ld revokes, %ld times clients were disconnected for not answering, %ld clients lost\n\n", STATUS("counters", "revokes"),
		STATUS("counters", "revoke_timeouts"), STATUS("counters", "clients_lost"));
}

/* ---- all of it ---- */

static void make_file(const char *name, size_t size, uid_t uid)
{
	int fd = hostile_file(name, size);

	cr_assert_eq(fchown(fd, uid, uid), 0);
	close(fd);
}

static uid_t uid_who(int (*fn)(void *))
{
	size_t i = 0;

	while (attacker[i].fn != fn)
		i++;
	return uid_of(i);
}

/* Cached ones in auto as well, where the kernel would serve them without the daemon. */
static void make_files(void)
{
	static const char *const cached[] = { "read", "f", "filled", "twins", "synced" };
	char name[8], *bytes = malloc(READ_SIZE);
	int fd;

	for (size_t i = 0; i < sizeof(cached) / sizeof(cached[0]); i++)
		way_make_cached(cached[i]);
	memset(bytes, 'r', READ_SIZE);
	fd = hostile_file("read", READ_SIZE);
	cr_assert_eq(pwrite(fd, bytes, READ_SIZE, 0), (ssize_t)READ_SIZE);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	free(bytes);
	make_file("one", GAIA_CHUNK, 0);
	make_file("many", FAR * (size_t)GAIA_CHUNK, 0);
	make_file("f", STARVE_SIZE, 0);
	make_file("wanted", FLOOD_BYTES, 0);
	make_file("roots", MUTANT_FILE_SIZE, 0);
	make_file("mine", MUTANT_FILE_SIZE, uid_who(mutate_for_ever));
	make_file("mine-too", MUTANT_FILE_SIZE, uid_who(mutate_for_ever));
	make_file("filled", 0, uid_who(fill_home));
	make_file("twins", FLOOD_BYTES, uid_who(fill_with_twins));
	make_file("synced", 0, uid_who(flood_with_fsyncs));
	make_file("kept", GAIA_CHUNK, uid_who(keep_memory));
	for (int i = 0; i < MUTE; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		make_file(name, GAIA_CHUNK, 0);
	}
	cr_assert_eq(mkdir(mnt_file(&mnt, "open"), 0755), 0);
	cr_assert_eq(chmod(mnt_file(&mnt, "open"), 01777), 0);
}

/* Until each attacker has done something, or so many seconds. */
static void wait_for_attackers(void)
{
	size_t begun = 0;

	for (int n = 0; begun < ATTACKERS && n < START_SECONDS * 100; n++) {
		pause_ns(10000000);
		begun = 0;
		for (size_t i = 0; i < ATTACKERS; i++)
			begun += deeds(i) > 0;
	}
}

static void sleep_ms(unsigned ms)
{
	for (; ms && !atomic_load(&failed); ms -= ms < 100 ? ms : 100)
		pause_ns((ms < 100 ? ms : 100) * 1000000);
}

static struct gate go;

static int besiege_later(void *arg)
{
	CHILD_CHECK(gate_pass(go));
	return besiege(arg);
}

static void siege(void)
{
	static const char *const args[] = { "--device", "sim:64M,count=2", "--device", "sim:16M,readonly=off", "--home", "64M", NULL };
	const char *text = getenv("GAIAFS_SIEGE_SECONDS");
	unsigned seconds = text ? (unsigned)strtoul(text, NULL, 10) : 4;
	pthread_t thread[ROOTS];
	pid_t besieger;

	hostile_start(args);
	scene = mmap(NULL, sizeof(*scene), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	score = mmap(NULL, sizeof(*score), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert(scene != MAP_FAILED && score != MAP_FAILED);
	seed = 1;
	make_files();
	/* Before there are threads: its children go on with what it has. */
	go = gate_make();
	besieger = child_start(besiege_later, NULL);

	for (size_t i = 0; i < ROOTS; i++)
		cr_assert_eq(pthread_create(&thread[i], NULL, roots[i], NULL), 0);
	sleep_ms(seconds * 250);
	gate_open(go);
	wait_for_attackers();
	siege_began = now_ns();
	atomic_store(&phase, SIEGE);
	sleep_ms(seconds * 1000);
	atomic_store(&over, true);
	for (size_t i = 0; i < ROOTS; i++)
		pthread_join(thread[i], NULL);
	__atomic_store_n(&scene->end, true, __ATOMIC_SEQ_CST);
	cr_assert_eq(child_wait(besieger), 0);

	print_times(seconds);
	print_attackers();
	cr_assert_null(atomic_load(&failed), "root: %s: %s", atomic_load(&failed), strerror(atomic_load(&failed_errno)));
	for (size_t i = 0; i < DEEDS; i++)
		cr_assert(deed[i]->times[QUIET].n && deed[i]->times[SIEGE].n, "%s: never done", deed[i]->name);
	for (size_t i = 0; i < ATTACKERS; i++)
		cr_assert_gt(deeds(i), 0, "%s: there were none", attacker[i].name);
	cr_assert_eq(kill(mnt.daemon, 0), 0, "the daemon is gone");
	way_end();
}

Test(siege, root_is_served_auto, .init = way_bare_auto, .fini = way_clean_up, .timeout = 36000)
{
	siege();
}

Test(siege, root_is_served_writeback, .init = way_bare_writeback, .fini = way_clean_up, .timeout = 36000)
{
	siege();
}

Test(siege, root_is_served_writethrough, .init = way_bare_writethrough, .fini = way_clean_up, .timeout = 36000)
{
	siege();
}
