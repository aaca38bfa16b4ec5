/*
 * round.c - one round: starts everybody, leads them through the phases, sees whether somebody
 * hangs, and leaves nobody behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gaia/protocol.h"
#include "history.h"

#define HANG_NS (60 * 1000000000ull)	/* an operation that takes longer hangs */

struct stats stats;
static unsigned slow = 1;		/* how much slower than usual this machine and build are */

/* Nobody holds them: the last round's processes are gone, maybe killed. */
static void renew_locks(void)
{
	pthread_mutexattr_t m;
	pthread_rwlockattr_t rw;

	pthread_mutexattr_init(&m);
	pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
	pthread_mutex_init(&world->names, &m);
	pthread_rwlockattr_init(&rw);
	pthread_rwlockattr_setpshared(&rw, PTHREAD_PROCESS_SHARED);
	pthread_rwlockattr_setkind_np(&rw, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&world->quiet, &rw);
}

void round_init(void)
{
	const char *env = getenv("HISTORY_SLOW");

	world = mmap(NULL, sizeof(*world), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (world == MAP_FAILED) {
		perror("history: memory for the logs");
		exit(2);
	}
	if (env && atoi(env) > 0)
		slow = (unsigned)atoi(env);
}

static void set_phase(uint32_t phase)
{
	atomic_store(&world->arrived, 0);
	atomic_store(&world->phase, phase);
	syscall(SYS_futex, &world->phase, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* ---- processes ---- */

static bool start(enum proc_kind kind, unsigned number, unsigned device, int dirfd)
{
	unsigned id;
	pid_t pid;

	if (!proc_new(kind, number, device, &id))
		return false;
	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return false;
	if (pid > 0) {
		world->procs[id].pid = pid;
		return true;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	me = id;
	reseed(world->config.seed * 1000003u + world->round * 1009u + kind * 101u + number);
	switch (kind) {
	case PROC_SETUP:
		setup_main();
	case PROC_CPU:
		cpu_main();
	case PROC_ADVERSARY:
		adversary_main();
	case PROC_KEEPER:
		keeper_main();
	default:
		last_look_main(dirfd);
	}
}

/* Note which processes ended. Returns what the worst of them ended with. */
static enum verdict reap(void)
{
	enum verdict worst = ALL_WELL;

	for (unsigned i = 0; i < atomic_load(&world->nprocs); i++) {
		struct proc *p = &world->procs[i];
		int status;

		if (!p->pid || p->kind == PROC_CLIENT || waitpid(p->pid, &status, WNOHANG) != p->pid)
			continue;
		p->pid = 0;
		atomic_store(&p->busy, 0);
		if (WIFEXITED(status) && WEXITSTATUS(status) == ALL_WELL)
			continue;
		fprintf(stderr, "history: process %u (kind %d) ended with status 0x%x\n", i, p->kind,
			status);
		worst = WIFEXITED(status) && WEXITSTATUS(status) == BROKEN ? BROKEN : VIOLATION;
	}
	return worst;
}

static bool all_gone(void)
{
	for (unsigned i = 0; i < atomic_load(&world->nprocs); i++)
		if (world->procs[i].pid && world->procs[i].kind != PROC_CLIENT)
			return false;
	return true;
}

static void kill_all(void)
{
	set_phase(PHASE_END);
	for (unsigned i = 0; i < atomic_load(&world->nprocs); i++)
		/* A client dies with its keeper, and its number may be another's by then. */
		if (world->procs[i].pid && world->procs[i].kind != PROC_CLIENT)
			kill(world->procs[i].pid, SIGKILL);
}

/* How it ended, as a text; NULL: it lives. */
static const char *daemon_died(const struct mnt *m)
{
	static char how[48];
	siginfo_t info = { .si_pid = 0 };

	if (!m->daemon || waitid(P_PID, (id_t)m->daemon, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid != m->daemon)
		return NULL;
	snprintf(how, sizeof(how), "%s %d", info.si_code == CLD_EXITED ? "exit status" : "signal", info.si_status);
	return how;
}

/* The process that has been in one operation for too long; -1: none. */
static int who_hangs(void)
{
	uint64_t t = now();

	for (unsigned i = 0; i < atomic_load(&world->nprocs); i++) {
		uint64_t since = atomic_load(&world->procs[i].busy);

		if (since && since < t && t - since > HANG_NS * slow)
			return (int)i;
	}
	return -1;
}

/* Wait until @n have done the phase, or for @ms (0: for ever), or for the end of all (@n 0, @ms 0). */
static enum verdict watch(const struct mnt *m, unsigned n, unsigned ms)
{
	uint64_t began = now();

	for (;;) {
		enum verdict v = reap();
		const char *death = daemon_died(m);
		int hangs;

		/* First: what others report may follow from it. */
		if (death) {
			fprintf(stderr, "history: the daemon died (%s); its log:\n", death);
			mnt_show_log(m);
			return VIOLATION;
		}
		if (v != ALL_WELL)
			return v;
		if (ms ? now() - began > ms * 1000000ull :
		    n ? atomic_load(&world->arrived) >= n : all_gone())
			return ALL_WELL;
		hangs = who_hangs();
		if (hangs >= 0 || now() - began > 2 * HANG_NS * slow) {
			fprintf(stderr, "history: %s %d hangs in phase %u\n",
				hangs >= 0 ? "process" : "nobody's operation, but something", hangs,
				atomic_load(&world->phase));
			show_stacks();
			return STUCK;
		}
		usleep(2000);
	}
}

/* ---- stacks ---- */

static void show_file(pid_t pid, const char *task, const char *name)
{
	char path[128], buf[4096];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/task/%s/%s", pid, task, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	n = read(fd, buf, sizeof(buf) - 1);
	close(fd);
	if (n <= 0)
		return;
	buf[n] = '\0';
	fprintf(stderr, "  %s: %s%s", name, buf, buf[n - 1] == '\n' ? "" : "\n");
}

void show_stacks(void)
{
	char command[256];

	for (unsigned i = 0; i < atomic_load(&world->nprocs); i++) {
		const struct proc *p = &world->procs[i];
		uint32_t nops = atomic_load(&world->logs[i].nops);
		char task[16];

		if (!p->pid)
			continue;
		fprintf(stderr, "process %u, pid %d, busy for %lld ms\n", i, p->pid,
			p->busy ? (long long)((now() - p->busy) / 1000000) : 0);
		if (nops)
			fprintf(stderr, "  last: %s\n", op_text(&world->logs[i].ops[nops - 1], i));
		snprintf(task, sizeof(task), "%d", p->pid);
		show_file(p->pid, task, "wchan");
		show_file(p->pid, task, "stack");
	}
	snprintf(command, sizeof(command),
		 "timeout 30 gdb -p %d -batch -ex 'thread apply all bt 24' 2>/dev/null >&2", world->daemon);
	if (system("command -v gdb > /dev/null") == 0 && system(command) == 0)
		return;
	fprintf(stderr, "(no stacks of the daemon: gdb is missing, or may not trace it)\n");
}

pid_t stacks_soon(void)
{
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sleep((unsigned)(HANG_NS / 1000000000 * slow));
	fprintf(stderr, "history: the unmount hangs\n");
	show_stacks();
	_exit(0);
}

void stacks_not(pid_t pid)
{
	if (pid <= 0)
		return;
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

static int unmount(struct mnt *m)
{
	pid_t watcher = stacks_soon();
	int err = mnt_unmount(m);

	stacks_not(watcher);
	return err;
}

/* ---- the round ---- */

/*
 * A few pages here, a few pages there, up to about 24 MiB: beside each other in one chunk or in two, on both sides of chunks that are left
 * out, or anywhere.
 */
static uint32_t skip_pages(uint32_t page)
{
	uint32_t next = page / GAIA_CHUNK_PAGES + 1, how = below(10);

	if (next > 10)
		return page + 1 + below(4);
	/* After the last page of a chunk: the first of one that is not the next. */
	if (page % GAIA_CHUNK_PAGES == 0 || how == 9)
		return (next + below(2)) * GAIA_CHUNK_PAGES;
	if (how < 5 || next * GAIA_CHUNK_PAGES - page < 4)
		return page + 1 + below(400);
	return next * GAIA_CHUNK_PAGES - 1 - below(3);
}

static void prepare(const struct mnt *m, const struct config *c, unsigned round)
{
	world->config = *c;
	world->round = round;
	world->daemon = m->daemon;
	memcpy(world->mount, m->path, sizeof(world->mount) - 1);
	atomic_store(&world->nprocs, 0);
	atomic_store(&world->nfiles, 0);
	renew_locks();
	reseed(c->seed + round);
	for (uint32_t p = 0, page = 0; p < c->hot; p++) {
		world->hot_page[p] = page++;
		if (HAS(c, F_LARGE) && chance(40))
			page = skip_pages(page);
	}
	for (unsigned s = 0; s < MAX_SLOTS; s++)
		atomic_store(&world->slot_file[s], -1);
	set_phase(PHASE_RUN);
}

static void remove_files(const struct mnt *m)
{
	for (unsigned slot = 0; slot < world->config.slots; slot++) {
		char name[32];

		snprintf(name, sizeof(name), "r%u-%u", world->round, slot);
		unlink(mnt_file(m, name));
	}
}

static enum verdict start_all(const struct mnt *m)
{
	const struct config *c = &world->config;
	enum verdict v;

	if (!start(PROC_SETUP, 0, 0, -1))
		return BROKEN;
	v = watch(m, 0, 0);
	if (v != ALL_WELL)
		return v;
	for (unsigned i = 0; i < c->cpus; i++)
		if (!start(PROC_CPU, i, 0, -1))
			return BROKEN;
	for (unsigned i = 0; i < c->clients; i++)
		if (!start(PROC_KEEPER, i, c->client_device[i], -1))
			return BROKEN;
	return start(PROC_ADVERSARY, 0, 0, -1) ? ALL_WELL : BROKEN;
}

/* The daemon is gone in the middle of it. */
static uint64_t crash(struct mnt *m)
{
	uint64_t at = now();

	kill(m->daemon, SIGKILL);
	/* What fails from now on says nothing. */
	set_phase(PHASE_END);
	mnt_crash(m);
	world->daemon = 0;
	return at;
}

static enum verdict last_look(struct mnt *m, bool beneath)
{
	int dirfd = beneath ? m->backing_fd : open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	enum verdict v = BROKEN;

	if (start(PROC_LAST, 0, 0, dirfd))
		v = watch(m, 0, 0);
	if (!beneath)
		close(dirfd);
	return v;
}

static void count_shared(const struct mnt *m, const struct config *c)
{
	long n = HAS(c, F_PARK) && HAS(c, F_EQUAL) ? mnt_number(m, "dedup_parked") : 0;

	stats.shared += n > 0 ? (unsigned long)n : 0;
}

static enum verdict play(struct mnt *m, bool last, uint64_t *crashed)
{
	const struct config *c = &world->config;
	unsigned everybody = c->cpus + c->clients + 1;
	bool now_or_then = HAS(c, F_CRASH) && chance(30), at_the_end = HAS(c, F_CRASH) && chance(30);
	enum verdict v = start_all(m);

	if (v != ALL_WELL)
		return v;
	v = watch(m, 0, now_or_then ? 1 + below(c->run_ms) : c->run_ms);
	if (v != ALL_WELL)
		return v;
	if (now_or_then) {
		*crashed = crash(m);
	} else {
		for (uint32_t phase = PHASE_RUN; phase < PHASE_END; phase++) {
			/* They stop running when the phase is no longer that, and say so then. */
			if (phase != PHASE_RUN) {
				v = watch(m, everybody, 0);
				if (v != ALL_WELL)
					return v;
			}
			set_phase(phase + 1);
		}
		v = watch(m, 0, 0);
		if (v != ALL_WELL)
			return v;
		if (at_the_end)
			*crashed = crash(m);
	}
	set_phase(PHASE_END);
	v = watch(m, 0, 0);
	if (v != ALL_WELL)
		return v;
	if (*crashed != NEVER) {
		stats.crashes++;
		if (mnt_restart(m))
			return VIOLATION;
		world->daemon = m->daemon;
		return last_look(m, false);
	}
	if (!last)
		return ALL_WELL;
	count_shared(m, c);
	/* All that anybody wrote is in the backing directory when the mount has ended. */
	if (unmount(m))
		return VIOLATION;
	world->daemon = 0;
	return last_look(m, true);
}

static void count(void)
{
	stats.rounds++;
	for (unsigned i = 0; i < atomic_load(&world->nprocs); i++) {
		stats.ops += atomic_load(&world->logs[i].nops);
		stats.deaths += world->procs[i].kind == PROC_CLIENT;
	}
}

enum verdict round_play(struct mnt *m, const struct config *c, unsigned round, bool last)
{
	uint64_t crashed = NEVER;
	enum verdict v, judged;

	prepare(m, c, round);
	v = play(m, last, &crashed);
	if (v != ALL_WELL) {
		kill_all();
		/* A process that hangs on a mount that does not answer cannot be waited for: so end the mount first. */
		mnt_crash(m);
		for (unsigned ms = 0; !all_gone() && ms < 10000; ms++) {
			reap();
			usleep(1000);
		}
	}
	count();
	/* Where a process saw what cannot be, or hung, the histories may say why. */
	if (v != ALL_WELL)
		return v;
	judged = oracle(crashed);
	if (judged == ALL_WELL && m->daemon)
		remove_files(m);
	return judged;
}
