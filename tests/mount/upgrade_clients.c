/*
 * upgrade_clients.c - a mount goes to another daemon (gaiafs --upgrade), and clients with mappings of devices go along.
 *
 * Under load each worker has words of a file of its own. It finds in them, each time that it acquires them, exactly what it released last; others
 * find that or something newer. GAIAFS_UPGRADES says how many upgrades there are (5). With GAIAFS_ON_GPUS the devices are GPUs: those of a played driver,
 * which the daemon and this process have (tests/gpu/played_library.c), and whose memory the CPU can look at.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "gaia/cuda.h"
#include "raw_client.h"
#include "shell.h"
#include "upgrading.h"
#include "ways.h"

#define RW (PROT_READ | PROT_WRITE)
#define PAGE 4096
#define MIB (1024 * 1024)

static bool on_gpus(void)
{
	return getenv("GAIAFS_ON_GPUS");
}

static const char *const *devices(void)
{
	static const char *const sims[] = { "--device", "sim:16M,count=2", NULL };
	static const char *const gpus[] = { "--device", "cuda:0,16M", "--device", "cuda:1,16M", NULL };

	return on_gpus() ? gpus : sims;
}

/* The upgrade fails, says @why, and names the process. */
static void refused_for(const char *option, const char *why, pid_t pid)
{
	char who[64];

	refused(option, why);
	snprintf(who, sizeof(who), "process %d of user %u", (int)pid, (unsigned)getuid());
	refused(option, who);
}

static int open_in_child(const char *name, int flags)
{
	int fd = openat(both_root[ON_MOUNT], name, flags | O_CLOEXEC, 0644);

	CHILD_CHECK(fd >= 0);
	return fd;
}

static unsigned char *map(int fd, size_t length, int device)
{
	void *p = gaia_mmap(length, RW, fd, 0, device);

	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	return p;
}

/* ---- load ---- */

enum { WRITES, NESTS, LISTS, STARTS, STREAMS, MAPS, READS, OVERWRITES, ASKS, CPU, WORKERS };
/* The first process has one device, the second another. */
enum { FIRST, SECOND, PROCESSES };

/* Neighbours share pages. */
#define WORDS 5000
#define REGION (WORDS * sizeof(uint32_t))
#define LENGTH (2 * MIB + PROCESSES * WORKERS * REGION)
/* Some are in another chunk. */
#define REGION_AT(w) ((w) % 2 * 2 * MIB + (w) / 2 * REGION)

static struct shared {
	atomic_bool over;
	atomic_ulong rounds[PROCESSES * WORKERS];
	_Atomic uint32_t published[PROCESSES * WORKERS]; /* released */
} *shared;

struct worker {
	unsigned w; /* of all */
	int device, fd;
	unsigned char *p;
	unsigned char *own; /* a mapping of its own, if it has one */
	uint64_t random;
	struct CUstream_st *stream; /* NULL: the device has none */
};

static uint64_t next(struct worker *w)
{
	w->random ^= w->random << 13;
	w->random ^= w->random >> 7;
	w->random ^= w->random << 17;
	return w->random;
}

static uint32_t word_of(unsigned w, uint32_t round)
{
	return round * (PROCESSES * WORKERS) + w;
}

/* What is there is the region's, and at least as new as @round; @exactly: not newer, either. */
static void check_words(const void *at, unsigned w, uint32_t round, bool exactly)
{
	const volatile uint32_t *p = at;

	for (unsigned i = 0; i < WORDS; i++) {
		uint32_t word = p[i], is = word / (PROCESSES * WORKERS);

		if (word % (PROCESSES * WORKERS) != w || is < round || (exactly && is != round)) {
			fprintf(stderr, "worker %u: word %u of %u is %u of %u, not %u\n", w, i, WORDS, is, word % (PROCESSES * WORKERS), round);
			CHILD_CHECK(!"right words");
		}
	}
}

static void fill_words(void *at, unsigned w, uint32_t round)
{
	volatile uint32_t *p = at;

	for (unsigned i = 0; i < WORDS; i++)
		p[i] = word_of(w, round);
}

#define WORKS(call)                                                                              \
	do {                                                                                     \
		if (call) {                                                                      \
			fprintf(stderr, "%s: %s\n", #call, gaia_last_error_text());              \
			CHILD_CHECK(!#call);                                                     \
		}                                                                                \
	} while (0)

/* Somebody whose words can be read. On the same device one who overwrites his, shows what is not stored yet. */
static unsigned another(struct worker *w)
{
	unsigned other;

	do
		other = (unsigned)(next(w) % (PROCESSES * WORKERS));
	while (other % WORKERS == OVERWRITES && other / WORKERS == w->w / WORKERS);
	return other;
}

static void read_another(struct worker *w)
{
	unsigned other = another(w);
	uint32_t least = shared->published[other];
	unsigned char *at = w->p + REGION_AT(other);

	WORKS(gaia_acquire(at, REGION, PROT_READ));
	check_words(at, other, least, false);
	WORKS(gaia_release(at, REGION));
}

static void update(struct worker *w, unsigned char *at, uint32_t round)
{
	check_words(at, w->w, round - 1, true);
	fill_words(at, w->w, round);
}

static void write_words(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w);

	WORKS(gaia_acquire(at, REGION, RW));
	update(w, at, round);
	WORKS(gaia_release(at, REGION));
}

/* While it holds its own words it needs others. */
static void nest(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w);

	WORKS(gaia_acquire(at, REGION, RW));
	usleep(next(w) % 500);
	read_another(w);
	update(w, at, round);
	WORKS(gaia_release(at, REGION));
}

static void list(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w);
	struct gaia_range halves[2] = { { at, REGION / 2 }, { at + REGION / 2, REGION - REGION / 2 } };

	WORKS(gaia_acquirev(halves, 2, RW));
	update(w, at, round);
	WORKS(gaia_releasev(halves, 2));
}

/* It starts the next while it holds the last. */
static void start(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w), *other = w->p + REGION_AT(next(w) % (PROCESSES * WORKERS));
	int fd, ahead;

	fd = gaia_acquire_start(at, REGION, RW);
	CHILD_CHECK(fd >= 0);
	WORKS(gaia_wait(fd));
	ahead = gaia_acquire_start(other, REGION, PROT_READ);
	CHILD_CHECK(ahead >= 0);
	update(w, at, round);
	WORKS(gaia_release(at, REGION));
	if (round % 4) {
		WORKS(gaia_wait(ahead));
		WORKS(gaia_release(other, REGION));
	} else {
		close(ahead);
	}
}

/* A function of the driver's that all of this process know. */
#define DRIVER(name, ...) ((int (*)(__VA_ARGS__))driver(#name))

static void *driver(const char *name)
{
	int (*find)(const char *name, void **out, int version, uint64_t flags, void *status);
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *out = NULL;

	CHILD_CHECK(library);
	*(void **)&find = dlsym(library, "cuGetProcAddress_v2");
	CHILD_CHECK(find && !find(name, &out, 12000, 0, NULL) && out);
	return out;
}

static struct CUstream_st *stream_of_gpu(int gpu)
{
	struct CUstream_st *stream;
	void *ctx;

	CHILD_CHECK(!DRIVER(cuInit, unsigned)(0) && !DRIVER(cuDevicePrimaryCtxRetain, void **, int)(&ctx, gpu));
	CHILD_CHECK(!DRIVER(cuCtxSetCurrent, void *)(ctx) && !DRIVER(cuStreamCreate, struct CUstream_st **, unsigned)(&stream, 1));
	return stream;
}

/* What a stream comes to: an update of a worker's words. */
struct work {
	struct worker *w;
	uint32_t round;
};

static void carry_out(void *arg)
{
	struct work *work = arg;

	update(work->w, work->w->p + REGION_AT(work->w->w), work->round);
}

#define AHEAD 4

/* It queues work ahead, and waits for it at the end. */
static void queue(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w);
	struct work work[AHEAD];

	for (unsigned k = 0; k < AHEAD; k++) {
		work[k] = (struct work){ w, (round - 1) * AHEAD + k + 1 };
		WORKS(gaia_acquire_on(at, REGION, RW, w->stream));
		if (!w->stream)
			carry_out(&work[k]);
		else
			CHILD_CHECK(!DRIVER(cuLaunchHostFunc, struct CUstream_st *, void (*)(void *), void *)(w->stream, carry_out, &work[k]));
		WORKS(gaia_release_on(at, REGION, w->stream));
	}
	if (w->stream)
		CHILD_CHECK(!DRIVER(cuStreamSynchronize, struct CUstream_st *)(w->stream));
	WORKS(gaia_stream_error(w->p));
}

static void map_anew(struct worker *w, uint32_t round)
{
	unsigned char *p = gaia_mmap(LENGTH, RW, w->fd, 0, w->device), *at = p + REGION_AT(w->w);

	if (p == MAP_FAILED)
		fprintf(stderr, "%s\n", gaia_last_error_text());
	CHILD_CHECK(p != MAP_FAILED);
	WORKS(gaia_acquire(at, REGION, RW));
	update(w, at, round);
	WORKS(gaia_release(at, REGION));
	WORKS(gaia_munmap(p, LENGTH));
}

static void overwrite(struct worker *w, uint32_t round)
{
	unsigned char *at = w->p + REGION_AT(w->w);

	WORKS(gaia_acquire(at, REGION, PROT_WRITE));
	fill_words(at, w->w, round);
	WORKS(gaia_release(at, REGION));
	if (round % 16 == 0)
		WORKS(gaia_sync(at, REGION));
}

/* Calls that wait for nothing, and so come to the next daemon sooner than the library knows of it. */
static void ask_all_the_time(struct worker *w, uint32_t round)
{
	if (!w->own)
		w->own = gaia_mmap(LENGTH, RW, w->fd, 0, w->device);
	CHILD_CHECK(w->own != MAP_FAILED);
	for (unsigned i = 0; i < 50 && !shared->over; i++)
		WORKS(gaia_advise(w->own, PAGE, GAIA_RANDOM));
	WORKS(gaia_release(w->own, PAGE)); /* nothing */
	if (round % 64 == 0)
		WORKS(gaia_sync(w->own, PAGE));
}

/* Without a device. */
static void write_by_calls(struct worker *w, uint32_t round)
{
	unsigned other = (unsigned)(next(w) % (PROCESSES * WORKERS));
	static _Thread_local unsigned char words[REGION];
	uint32_t least = shared->published[other];

	CHILD_CHECK(pread(w->fd, words, REGION, (off_t)REGION_AT(other)) == (ssize_t)REGION);
	check_words(words, other, least, false);
	CHILD_CHECK(pread(w->fd, words, REGION, (off_t)REGION_AT(w->w)) == (ssize_t)REGION);
	update(w, words, round);
	CHILD_CHECK(pwrite(w->fd, words, REGION, (off_t)REGION_AT(w->w)) == (ssize_t)REGION);
}

static void read_only(struct worker *w, uint32_t round)
{
	read_another(w);
}

static void *work(void *arg)
{
	static void (*const kinds[WORKERS])(struct worker *w, uint32_t round) = {
		[WRITES] = write_words, [NESTS] = nest, [LISTS] = list, [STARTS] = start, [STREAMS] = queue,
		[MAPS] = map_anew, [READS] = read_only, [OVERWRITES] = overwrite, [ASKS] = ask_all_the_time, [CPU] = write_by_calls,
	};
	struct worker *w = arg;
	unsigned kind = w->w % WORKERS;

	if (kind == STREAMS && w->device >= 0 && on_gpus())
		w->stream = stream_of_gpu(w->device);
	for (uint32_t round = 1; !shared->over; round++) {
		kinds[kind](w, round);
		if (kind != READS && kind != ASKS)
			shared->published[w->w] = kind == STREAMS ? round * AHEAD : round;
		shared->rounds[w->w]++;
		/* Without pauses the daemon would seldom find an acquire that is not under way. */
		usleep(next(w) % 300);
	}
	return NULL;
}

static int be_process(void *arg)
{
	unsigned process = (unsigned)(uintptr_t)arg;
	int fd = open_in_child("data", O_RDWR), device = process == FIRST ? 0 : GAIA_DEVICE_HOST;
	unsigned char *p = gaia_mmap(LENGTH, RW, fd, 0, device);
	static struct worker worker[WORKERS];
	pthread_t thread[WORKERS];

	CHILD_CHECK(p != MAP_FAILED);
	for (unsigned i = 0; i < WORKERS; i++) {
		worker[i] = (struct worker){ .w = process * WORKERS + i, .device = device, .fd = fd, .p = p, .random = 88172645463325252u + i };
		CHILD_CHECK(!pthread_create(&thread[i], NULL, work, &worker[i]));
	}
	for (unsigned i = 0; i < WORKERS; i++)
		pthread_join(thread[i], NULL);
	WORKS(gaia_munmap(p, LENGTH));
	return 0;
}

static void begin_load(pid_t pid[PROCESSES])
{
	int fd = open_file("data", O_CREAT | O_RDWR);
	static unsigned char words[REGION];

	shared = mmap(NULL, sizeof(*shared), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(shared, MAP_FAILED);
	for (unsigned w = 0; w < PROCESSES * WORKERS; w++) {
		fill_words(words, w, 0);
		cr_assert_eq(pwrite(fd, words, REGION, (off_t)REGION_AT(w)), (ssize_t)REGION);
	}
	cr_assert_eq(ftruncate(fd, LENGTH), 0);
	close(fd);
	for (uintptr_t i = 0; i < PROCESSES; i++)
		pid[i] = child_start(be_process, (void *)i);
}

/* Until each worker has got on; false: one of them has ended, or hangs. */
static bool all_get_on(const pid_t pid[PROCESSES])
{
	for (unsigned i = 0; i < PROCESSES * WORKERS; i++) {
		unsigned long rounds = shared->rounds[i], want = rounds + 10;

		for (int ms = 0; shared->rounds[i] < want; ms++) {
			if (waitpid(pid[i / WORKERS], NULL, WNOHANG) || ms > HANG_SECONDS * 1000) {
				fprintf(stderr, "worker %u: %lu rounds\n", i, shared->rounds[i]);
				return false;
			}
			usleep(1000);
		}
	}
	return true;
}

/* All that was released is in the file. */
static void end_load(const pid_t pid[PROCESSES])
{
	static uint32_t words[WORDS];

	shared->over = true;
	for (unsigned i = 0; i < PROCESSES; i++)
		cr_assert_eq(child_wait(pid[i]), 0, "process %u", i);
	way_unmount();
	for (unsigned w = 0; w < PROCESSES * WORKERS; w++) {
		int fd = openat(mnt.backing_fd, "data", O_RDONLY | O_CLOEXEC);

		cr_assert_eq(pread(fd, words, REGION, (off_t)REGION_AT(w)), (ssize_t)REGION);
		for (unsigned i = 0; i < WORDS; i++)
			cr_assert_eq(words[i], word_of(w, shared->published[w]), "word %u of worker %u", i, w);
		close(fd);
	}
	way_remount();
	munmap(shared, sizeof(*shared));
}

static struct rounds {
	atomic_ulong n;
	atomic_bool over;
} *rounds;

static void rounds_make(void)
{
	rounds = mmap(NULL, sizeof(*rounds), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(rounds, MAP_FAILED);
}

static bool rounds_go_on(void)
{
	unsigned long want = rounds->n + 10;

	for (int ms = 0; rounds->n < want; ms++) {
		if (ms > HANG_SECONDS * 1000)
			return false;
		usleep(1000);
	}
	return true;
}

static int be_new(void *arg)
{
	int fd = open_in_child("data", O_RDONLY);
	unsigned char *p = gaia_mmap(LENGTH, PROT_READ, fd, 0, 0);
	uint32_t least = shared->published[WRITES];

	if (p == MAP_FAILED)
		fprintf(stderr, "%s\n", gaia_last_error_text());
	CHILD_CHECK(p != MAP_FAILED);
	WORKS(gaia_acquire(p + REGION_AT(WRITES), REGION, PROT_READ));
	check_words(p + REGION_AT(WRITES), WRITES, least, false);
	WORKS(gaia_release(p + REGION_AT(WRITES), REGION));
	return 0;
}

/* Processes that come and go. */
static int have_new_ones(void *arg)
{
	for (; !rounds->over; rounds->n++)
		CHILD_CHECK(!child_run(be_new, NULL));
	return 0;
}

EACH_WAY_BARE(upgrade_clients, no_program_notices)
{
	const char *upgrades = getenv("GAIAFS_UPGRADES");
	pid_t pid[PROCESSES], other;
	bool good;

	rounds_make();
	way_start(devices());
	begin_load(pid);
	other = child_start(have_new_ones, NULL);
	good = all_get_on(pid);
	for (int n = upgrades ? atoi(upgrades) : 5; n > 0 && good; n--)
		good = !upgrade(NULL) && all_get_on(pid) && rounds_go_on();
	cr_assert(good);
	rounds->over = true;
	cr_assert_eq(child_wait(other), 0);
	end_load(pid);
}

/* ---- upgrades that fail ---- */

EACH_WAY_BARE(upgrade_clients, if_the_new_daemon_dies_they_stay)
{
	const char *const dies[] = { "upgrade.offered=errno:EIO,count=1", "upgrade.paused=errno:EIO,count=1", "upgrade.bequeathed=errno:EIO,count=1" };

	for (size_t i = 0; i < sizeof(dies) / sizeof(dies[0]); i++) {
		pid_t pid[PROCESSES];
		bool good;

		setenv("GAIAFS_FAULTS", dies[i], 1);
		if (i > 0)
			way_remount();
		else
			way_start(devices());
		unsetenv("GAIAFS_FAULTS");
		begin_load(pid);
		cr_assert(all_get_on(pid));
		refused(NULL, "has ended");
		good = all_get_on(pid) && !upgrade(NULL) && all_get_on(pid);
		cr_assert(good);
		end_load(pid);
		way_unmount();
	}
	way_remount();
}

/* Until it fails, or is over: 0, or the errno. */
static int acquire_and_release(void *arg)
{
	int fd = open_in_child("f", O_RDWR);
	unsigned char *p = gaia_mmap(MIB, RW, fd, 0, 0);

	CHILD_CHECK(p != MAP_FAILED);
	for (; !rounds->over; rounds->n++) {
		if (gaia_acquire(p, MIB, RW))
			return errno;
		p[rounds->n % MIB] = 'x';
		if (gaia_release(p, MIB))
			return errno;
	}
	return 0;
}

static int ask(void *arg)
{
	struct shell_result r = shell_run("/", HANG_SECONDS, "\"$GAIAFS\" --upgrade '%s'", mnt.path);

	return r.status;
}

/* Mount so that storage does not answer once clients have made ready for an upgrade; with a client that waits then, for some seconds. */
static void begin_to_hang(pid_t *client, pid_t *asker)
{
	time_t end = time(NULL) + HANG_SECONDS;
	int fd;

	rounds_make();
	setenv("GAIAFS_FAULTS", "upgrade.rest=delay:4000000000us", 1);
	way_start(devices());
	unsetenv("GAIAFS_FAULTS");
	fd = open_file("f", O_CREAT | O_RDWR);
	cr_assert_eq(ftruncate(fd, MIB), 0);
	close(fd);
	*client = child_start(acquire_and_release, NULL);
	cr_assert(rounds_go_on());
	*asker = child_start(ask, NULL);
	while (!mnt_has_thread(&mnt, "gaia-rest")) {
		cr_assert(time(NULL) < end);
		usleep(1000);
	}
}

EACH_WAY_BARE(upgrade_clients, if_storage_does_not_answer_they_stay)
{
	pid_t client, asker;

	begin_to_hang(&client, &asker);
	/* Before the upgrade has failed, which takes as long as storage. */
	cr_assert(rounds_go_on());
	cr_assert_eq(waitpid(asker, NULL, WNOHANG), 0);
	rounds->over = true;
	cr_assert_eq(child_wait(client), 0);
	both_close();
	mnt_crash(&mnt);
	cr_assert_eq(child_wait(asker), 1);
	way_remount();
}

EACH_WAY_BARE(upgrade_clients, if_the_old_daemon_dies_they_hear_of_it)
{
	pid_t client, asker;

	begin_to_hang(&client, &asker);
	both_close();
	mnt_crash(&mnt);
	cr_assert_eq(child_wait(client), ENOTCONN);
	cr_assert_eq(child_wait(asker), 1);
	way_remount();
}

/* ---- who holds something ---- */

static struct gate told, go;

static int hold(void *arg)
{
	int fd = open_in_child("f", O_RDWR);
	unsigned char *p = gaia_mmap(MIB, RW, fd, 0, 0);

	CHILD_CHECK(p != MAP_FAILED);
	WORKS(gaia_acquire(p, MIB, RW));
	p[0] = 'h';
	gate_open(told);
	CHILD_CHECK(gate_pass(go));
	WORKS(gaia_release(p, MIB));
	gate_open(told);
	CHILD_CHECK(gate_pass(go));
	WORKS(gaia_acquire(p, MIB, RW));
	CHILD_CHECK(p[0] == 'h' && p[1] == 0);
	p[1] = 'i';
	gate_open(told);
	CHILD_CHECK(gate_pass(go));
	CHILD_CHECK(gaia_release(p, MIB) && errno == ENOTCONN);
	CHILD_CHECK(gaia_acquire(p, MIB, RW) && errno == ENOTCONN);
	CHILD_CHECK(!gaia_munmap(p, MIB));
	return 0;
}

EACH_WAY(upgrade_clients, who_holds_something_keeps_it_from_being_upgraded)
{
	int fd = open_file("f", O_CREAT | O_RDWR);
	unsigned char *p;
	pid_t pid;

	cr_assert_eq(ftruncate(fd, 2 * MIB), 0);
	told = gate_make();
	go = gate_make();
	pid = child_start(hold, NULL);
	cr_assert(gate_pass(told));
	refused_for("--wait 0.3", "1 program has not let go what is acquired for a device: process ", pid);
	/* Others have only waited. */
	p = map(fd, MIB, 0);
	cr_assert_eq(gaia_acquire(p, MIB, PROT_READ), 0);
	cr_assert_eq(gaia_release(p, MIB), 0);
	gate_open(go);
	cr_assert(gate_pass(told));
	cr_assert_eq(upgrade(NULL), 0);
	gate_open(go);
	cr_assert(gate_pass(told));
	refused_for("--wait 0", "1 program has not let go", pid);
	/* What was released is stored, and what was not is lost. */
	cr_assert_eq(mnt_upgrade(&mnt, "--force --wait 0.2", NULL), 0);
	gate_open(go);
	cr_assert_eq(child_wait(pid), 0);
	cr_assert_eq(gaia_acquire(p, MIB, PROT_READ), 0);
	cr_assert(p[0] == 'h' && p[1] == 0);
	cr_assert_eq(gaia_release(p, MIB), 0);
	cr_assert_eq(gaia_munmap(p, MIB), 0);
	close(fd);
	backing_holds("f", (unsigned char[2 * MIB]){ 'h' }, 2 * MIB);
}

/* Pages beyond the end of the file, which have no memory yet; and what nobody has waited for. */
EACH_WAY(upgrade_clients, whatever_is_held_counts)
{
	int fd = open_file("f", O_CREAT | O_RDWR), start;
	unsigned char *p = map(fd, MIB, 0);

	cr_assert_eq(gaia_acquire(p, PAGE, RW), 0);
	refused_for("--wait 0", "1 program has not let go", getpid());
	cr_assert_eq(gaia_release(p, PAGE), 0);
	cr_assert_eq(ftruncate(fd, MIB), 0);
	start = gaia_acquire_start(p, PAGE, RW);
	cr_assert_geq(start, 0);
	cr_assert_eq(gaia_wait(start), 0);
	start = gaia_acquire_start(p + PAGE, PAGE, PROT_READ);
	cr_assert_geq(start, 0);
	cr_assert_eq(gaia_release(p, PAGE), 0);
	for (int ms = 0; mnt_upgrade(&mnt, "--wait 0", NULL) == 0; ms++)
		cr_assert_lt(ms, 3, "what was started and not waited for does not count");
	cr_assert_eq(gaia_wait(start), 0);
	refused_for("--wait 0", "1 program has not let go", getpid());
	cr_assert_eq(gaia_release(p + PAGE, PAGE), 0);
	cr_assert_eq(upgrade(NULL), 0);
	cr_assert_eq(gaia_acquire(p, MIB, RW), 0);
	cr_assert_eq(gaia_release(p, MIB), 0);
	cr_assert_eq(gaia_munmap(p, MIB), 0);
	close(fd);
}

/* One thread acquires, another releases: something is always held, until none may acquire. A pipe has room for 32 of what is to be released. */
static unsigned char *handed;

struct to_release {
	size_t at[PAGE / 32 / sizeof(size_t)]; /* the first counts */
};

static void *release_what_comes(void *arg)
{
	struct to_release next;
	int *pipes = arg;

	while (read(pipes[0], &next, sizeof(next)) == sizeof(next)) {
		usleep(1000);
		WORKS(gaia_release(handed + next.at[0], PAGE));
	}
	return NULL;
}

static int acquire_and_hand_over(void *arg)
{
	int fd = open_in_child("f", O_RDWR), pipes[2];
	struct to_release next = { 0 };
	pthread_t thread;

	handed = gaia_mmap(MIB, RW, fd, 0, 0);
	CHILD_CHECK(handed != MAP_FAILED && !pipe(pipes) && fcntl(pipes[1], F_SETPIPE_SZ, PAGE) > 0);
	CHILD_CHECK(!pthread_create(&thread, NULL, release_what_comes, pipes));
	for (; !rounds->over; rounds->n++) {
		next.at[0] = rounds->n % (MIB / PAGE) * PAGE;
		WORKS(gaia_acquire(handed + next.at[0], PAGE, PROT_READ));
		CHILD_CHECK(write(pipes[1], &next, sizeof(next)) == sizeof(next));
	}
	close(pipes[1]);
	pthread_join(thread, NULL);
	return 0;
}

EACH_WAY(upgrade_clients, what_is_always_held_is_given_back_when_asked_again)
{
	int fd = open_file("f", O_CREAT | O_RDWR);
	pid_t pid;

	cr_assert_eq(ftruncate(fd, MIB), 0);
	close(fd);
	rounds_make();
	pid = child_start(acquire_and_hand_over, NULL);
	/* The pipe is full by then. */
	while (rounds->n < 1000)
		cr_assert(rounds_go_on());
	cr_assert_eq(upgrade(NULL), 0);
	cr_assert(rounds_go_on());
	rounds->over = true;
	cr_assert_eq(child_wait(pid), 0);
}

/* ---- mappings ---- */

/* Byte by byte, and what was written before each upgrade. */
static void check_bytes(const unsigned char *p, size_t n, unsigned char is)
{
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(p[i], is, "byte %zu is %02x, not %02x", i, p[i], is);
}

EACH_WAY_BARE(upgrade_clients, mappings_stay_where_they_are)
{
	const size_t length = 5 * MIB + 123;
	unsigned char *p[3], *reader;
	unsigned char byte;
	int fd, ro;

	way_start(devices());
	fd = open_file("f", O_CREAT | O_RDWR);
	cr_assert_eq(ftruncate(fd, (off_t)length), 0);
	ro = open_file("f", O_RDONLY);
	p[0] = map(fd, length, 0);
	p[1] = map(fd, length, 1);
	p[2] = map(fd, length, GAIA_DEVICE_HOST);
	reader = gaia_mmap(length - PAGE, PROT_READ, ro, PAGE, 0);
	cr_assert_neq(reader, MAP_FAILED);
	close(ro);
	for (unsigned char round = 1; round <= 6; round++) {
		unsigned char *writer = p[round % 3];

		for (unsigned i = 0; i < 3; i++) {
			cr_assert_eq(gaia_acquire(p[i], length, PROT_READ), 0, "%s", gaia_last_error_text());
			check_bytes(p[i], length, round - 1);
			cr_assert_eq(gaia_release(p[i], length), 0);
		}
		cr_assert_eq(gaia_acquire(writer, length, RW), 0, "%s", gaia_last_error_text());
		memset(writer, round, length);
		cr_assert_eq(gaia_release(writer, length), 0);
		cr_assert_eq(upgrade(NULL), 0);
		cr_assert_eq(gaia_acquire(reader, length - PAGE, PROT_READ), 0, "%s", gaia_last_error_text());
		check_bytes(reader, length - PAGE, round);
		cr_assert_eq(gaia_release(reader, length - PAGE), 0);
		cr_assert_eq(pread(fd, &byte, 1, length - 1), 1);
		cr_assert_eq(byte, round);
	}
	cr_assert_eq(gaia_munmap(reader, length - PAGE), 0);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(gaia_munmap(p[i], length), 0);
	close(fd);
}

static void is_lost(unsigned char *p)
{
	int start;

	errno = 0;
	cr_assert_eq(gaia_acquire(p, PAGE, RW), -1);
	cr_assert_eq(errno, ESTALE, "%s", strerror(errno));
	cr_assert(strstr(gaia_last_error_text(), "and did not map this: No such device; unmap it"), "%s", gaia_last_error_text());
	cr_assert(gaia_release(p, PAGE) == -1 && errno == ESTALE);
	cr_assert(gaia_sync(p, PAGE) == -1 && errno == ESTALE);
	cr_assert(gaia_advise(p, PAGE, GAIA_WILLNEED) == -1 && errno == ESTALE);
	cr_assert(gaia_acquirev(&(struct gaia_range){ p, PAGE }, 1, PROT_READ) == -1 && errno == ESTALE);
	cr_assert(gaia_releasev(&(struct gaia_range){ p, PAGE }, 1) == -1 && errno == ESTALE);
	start = gaia_acquire_start(p, PAGE, RW);
	cr_assert_geq(start, 0);
	cr_assert(gaia_wait(start) == -1 && errno == ESTALE);
}

/* Its device has been taken away. That the file has gone, or its mode has changed, is nothing that matters to who has it open. */
EACH_WAY_BARE(upgrade_clients, a_mapping_that_cannot_be_made_again_is_told)
{
	int fd, gone;
	unsigned char *stays, *is_gone, *lost;

	way_start(devices());
	fd = open_file("f", O_CREAT | O_RDWR);
	gone = open_file("gone", O_CREAT | O_RDWR);
	cr_assert(!ftruncate(fd, MIB) && !ftruncate(gone, MIB));
	stays = map(fd, MIB, 0);
	is_gone = map(gone, MIB, 0);
	lost = map(fd, MIB, 1);
	cr_assert(!gaia_acquire(lost, PAGE, RW));
	lost[0] = 'l';
	cr_assert(!gaia_release(lost, PAGE));
	cr_assert(!gaia_acquire(is_gone, PAGE, RW));
	is_gone[0] = 'g';
	cr_assert(!gaia_release(is_gone, PAGE));
	cr_assert(!fchmod(fd, 0) && !unlinkat(both_root[ON_MOUNT], "gone", 0));
	shell_ok(mnt.path, "\"$GAIA\" set --wait . device.%s1=off", on_gpus() ? "cuda" : "sim");
	for (unsigned times = 0; times < 2; times++) {
		cr_assert_eq(upgrade(NULL), 0);
		is_lost(lost);
		cr_assert_eq(gaia_acquire(stays, PAGE, RW), 0, "%s", gaia_last_error_text());
		cr_assert_eq(stays[0], 'l');
		cr_assert_eq(gaia_release(stays, PAGE), 0);
		cr_assert_eq(gaia_acquire(is_gone, PAGE, RW), 0, "%s", gaia_last_error_text());
		cr_assert_eq(is_gone[0], 'g' + times);
		is_gone[0]++;
		cr_assert_eq(gaia_release(is_gone, PAGE), 0);
	}
	cr_assert(!gaia_munmap(lost, MIB) && !gaia_munmap(stays, MIB) && !gaia_munmap(is_gone, MIB));
	close(fd);
	close(gone);
}

/* ---- clients that do as they please ---- */

static bool say_ready(const struct raw *r, uint64_t seq, uint32_t error)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_READY, .version = GAIA_PROTOCOL_VERSION, .seq = seq, .error = error };

	return send(r->sock, &msg, sizeof(msg), MSG_NOSIGNAL) == sizeof(msg);
}

/* Upgrade as soon as the daemon has noticed that a client has gone. */
static void upgrade_without(const struct raw *r)
{
	int tries = 0;

	close(r->sock);
	while (mnt_upgrade(&mnt, NULL, NULL))
		cr_assert_lt(tries++, 20);
}

static int sized_file(void)
{
	int fd = open_file("f", O_CREAT | O_RDWR);

	cr_assert_eq(ftruncate(fd, MIB), 0);
	return fd;
}

EACH_WAY(upgrade_clients, an_old_client_is_in_the_way)
{
	int fd = sized_file();
	struct raw r = raw_client_with(fd, GAIA_FEATURES & ~GAIA_FEATURE_MOVES);

	raw_map(fd, &r, MIB, RW);
	refused_for(NULL, "1 program has files mapped for a device and cannot come along: process ", getpid());
	upgrade_without(&r);
	close(fd);
}

EACH_WAY(upgrade_clients, one_that_says_that_it_cannot_is_in_the_way)
{
	int fd = sized_file();
	struct raw r = raw_client_with(fd, GAIA_FEATURES);
	struct gaia_msg msg;
	pid_t asker;

	raw_map(fd, &r, MIB, RW);
	/* It need not wait for long. */
	asker = child_start(ask, NULL);
	cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_MOVE);
	cr_assert(say_ready(&r, msg.seq, EOPNOTSUPP));
	cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_STAY);
	cr_assert_eq(child_wait(asker), 1);
	cr_assert_eq(mnt_log_lines(&mnt, "cannot come along: process "), 1);
	/* Next time it can. */
	mnt_may_adopt();
	asker = child_start(ask, NULL);
	cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_MOVE);
	cr_assert(say_ready(&r, msg.seq, 0));
	cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_MOVED);
	close(r.sock);
	cr_assert_eq(child_wait(asker), 0);
	cr_assert_eq(mnt_adopt(&mnt), 0);
	close(fd);
}

EACH_WAY(upgrade_clients, one_that_does_not_answer_is_in_the_way)
{
	int fd = sized_file();
	struct raw r = raw_client_with(fd, GAIA_FEATURES);
	struct gaia_msg msg;
	uint64_t first;

	raw_map(fd, &r, MIB, RW);
	refused_for("--wait 0.4", "1 program has not let go", getpid());
	cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_MOVE);
	first = msg.seq;
	/* It is not asked again before it has answered. */
	cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_STAY);
	cr_assert(recv(r.sock, &msg, sizeof(msg), MSG_DONTWAIT) == -1 && errno == EAGAIN);
	/* Late, but it may. That it was ready then says nothing of now. */
	cr_assert(say_ready(&r, first, 0));
	refused_for("--wait 0", "1 program has not let go", getpid());
	cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_MOVE && msg.seq > first);
	/* It loses. */
	cr_assert_eq(mnt_upgrade(&mnt, "--force --wait 0.2", NULL), 0);
	while (raw_receive(r.sock, &msg, NULL))
		cr_assert_neq(msg.kind, GAIA_MSG_MOVED);
	close(r.sock);
	close(fd);
}

/* It would not know what the client uses. */
EACH_WAY_BARE(upgrade_clients, an_heir_that_is_older_does_not_get_them)
{
	unsigned char *p;
	int fd;

	setenv("GAIAFS_FAULTS", "takeover.features=errno:EIO", 1);
	way_start(devices());
	unsetenv("GAIAFS_FAULTS");
	fd = sized_file();
	p = map(fd, MIB, 0);
	refused_for(NULL, "1 program has files mapped for a device and cannot come along: process ", getpid());
	cr_assert_eq(gaia_acquire(p, MIB, RW), 0, "%s", gaia_last_error_text());
	cr_assert_eq(gaia_release(p, MIB), 0);
	cr_assert_eq(gaia_munmap(p, MIB), 0);
	close(fd);
}

EACH_WAY(upgrade_clients, one_that_is_ready_has_moved)
{
	int fd = sized_file();
	struct raw r = raw_client_with(fd, GAIA_FEATURES);
	uint64_t id = raw_map(fd, &r, MIB, RW);
	struct gaia_ioc_range io = raw_range(&r, id, PAGE, RW);
	struct gaia_msg msg;
	pid_t asker;

	mnt_may_adopt();
	asker = child_start(ask, NULL);
	cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_MOVE);
	cr_assert(say_ready(&r, msg.seq, 0));
	do
		cr_assert(raw_receive(r.sock, &msg, NULL));
	while (msg.kind != GAIA_MSG_MOVED);
	cr_assert(raw_hung_up(r.sock));
	cr_assert(ioctl(fd, GAIA_IOC_ACQUIRE, &io) == -1 && errno == ENOTCONN);
	close(r.sock);
	cr_assert_eq(child_wait(asker), 0);
	close(fd);
	cr_assert_eq(mnt_adopt(&mnt), 0);
}

EACH_WAY(upgrade_clients, answers_that_nobody_asked_for_end_the_connection)
{
	int fd = sized_file();

	for (unsigned what = 0; what < 4; what++) {
		struct raw r = raw_client_with(fd, GAIA_FEATURES);
		struct gaia_msg msg;

		raw_map(fd, &r, MIB, RW);
		if (what > 0) {
			refused("--wait 0", "1 program has not let go");
			cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_MOVE);
			cr_assert(raw_receive(r.sock, &msg, NULL) && msg.kind == GAIA_MSG_STAY);
			msg.seq--;
		}
		switch (what) {
		case 0:
			cr_assert(say_ready(&r, 1, 0));
			break;
		case 1:
			cr_assert(say_ready(&r, msg.seq + 1, 0));
			break;
		case 2:
			cr_assert(say_ready(&r, msg.seq, 0) && say_ready(&r, msg.seq, 0));
			break;
		case 3:
			msg = (struct gaia_msg){ .kind = GAIA_MSG_READY, .version = GAIA_PROTOCOL_VERSION, .seq = msg.seq, .count = 1 };
			cr_assert_eq(send(r.sock, &msg, sizeof(msg), MSG_NOSIGNAL), (ssize_t)sizeof(msg));
			break;
		}
		cr_assert(raw_hung_up(r.sock), "%u", what);
		close(r.sock);
	}
	close(fd);
}

/* It is always ready, and always holds something. */
static int be_ready_and_hold(void *arg)
{
	int fd = open_in_child("f", O_RDWR);
	struct gaia_ioc_range io;
	struct gaia_msg msg;
	struct raw r;
	uint64_t id;

	CHILD_CHECK(raw_connect_with(fd, GAIA_FEATURES & ~GAIA_FEATURE_ANSWERS, &r));
	id = raw_map(fd, &r, MIB, RW);
	for (uint64_t n = 0; !rounds->over; n++, rounds->n++) {
		io = raw_range(&r, id, PAGE, RW);
		io.offset = n % 2 * PAGE;
		CHILD_CHECK(!ioctl(fd, GAIA_IOC_ACQUIRE, &io));
		io = raw_range(&r, id, PAGE, 0);
		io.offset = (n + 1) % 2 * PAGE;
		if (fsetxattr(fd, GAIA_XATTR_RELEASE, &io, sizeof(io), 0) && errno == EOPNOTSUPP)
			CHILD_CHECK(!ioctl(fd, GAIA_IOC_RELEASE, &io));
		while (recv(r.sock, &msg, sizeof(msg), MSG_DONTWAIT) > 0)
			if (msg.kind == GAIA_MSG_MOVE)
				CHILD_CHECK(say_ready(&r, msg.seq, 0));
	}
	return 0;
}

EACH_WAY(upgrade_clients, one_that_is_ready_and_holds_something_is_in_the_way)
{
	int fd = sized_file();
	pid_t pid;

	rounds_make();
	close(fd);
	pid = child_start(be_ready_and_hold, NULL);
	cr_assert(rounds_go_on());
	refused_for("--wait 1", "1 program has not let go", pid);
	cr_assert(rounds_go_on());
	rounds->over = true;
	cr_assert_eq(child_wait(pid), 0);
}

/* ---- processes that end, and children ---- */

static int kill_soon(void *arg)
{
	pid_t *pid = arg;

	usleep((useconds_t)pid[1]);
	kill(pid[0], SIGKILL);
	return 0;
}

EACH_WAY_BARE(upgrade_clients, if_one_is_killed_others_go_on)
{
	pid_t pid[PROCESSES];
	bool good;
	int fd;

	rounds_make();
	way_start(devices());
	fd = sized_file();
	close(fd);
	begin_load(pid);
	good = all_get_on(pid);
	for (int us = 0; us < 150000 && good; us += 50000) {
		pid_t victim = child_start(acquire_and_release, NULL), killer;

		good = rounds_go_on();
		killer = child_start(kill_soon, (pid_t[2]){ victim, us });
		good = good && !upgrade(NULL) && all_get_on(pid);
		cr_assert_eq(child_wait(victim), 128 + SIGKILL);
		cr_assert_eq(child_wait(killer), 0);
	}
	cr_assert(good);
	end_load(pid);
}

static int have_a_child(void *arg)
{
	int fd = open_in_child("f", O_RDWR), status;
	unsigned char *p = gaia_mmap(MIB, RW, fd, 0, 0), *own;
	pid_t pid;

	CHILD_CHECK(p != MAP_FAILED);
	WORKS(gaia_acquire(p, MIB, RW));
	p[0] = 'f';
	WORKS(gaia_release(p, MIB));
	pid = fork();
	if (pid == 0) {
		CHILD_CHECK(gaia_acquire(p, MIB, RW) && errno == ENOTCONN);
		gate_open(told);
		CHILD_CHECK(gate_pass(go));
		CHILD_CHECK(gaia_acquire(p, MIB, RW) && errno == ENOTCONN);
		own = gaia_mmap(MIB, RW, fd, 0, 0);
		CHILD_CHECK(own != MAP_FAILED);
		WORKS(gaia_acquire(own, MIB, RW));
		CHILD_CHECK(own[0] == 'f');
		own[0] = 'g';
		WORKS(gaia_release(own, MIB));
		_exit(0);
	}
	CHILD_CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
	WORKS(gaia_acquire(p, MIB, RW));
	CHILD_CHECK(p[0] == 'g');
	WORKS(gaia_release(p, MIB));
	return 0;
}

EACH_WAY(upgrade_clients, a_child_of_fork_has_nothing_to_do_with_it)
{
	int fd = sized_file();
	pid_t pid;

	close(fd);
	told = gate_make();
	go = gate_make();
	pid = child_start(have_a_child, NULL);
	cr_assert(gate_pass(told));
	cr_assert_eq(upgrade(NULL), 0);
	gate_open(go);
	cr_assert_eq(child_wait(pid), 0);
}
