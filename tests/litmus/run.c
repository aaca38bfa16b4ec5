#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "actor.h"
#include "base/util.h"
#include "gpu_access.h"
#include "mountpoint.h"
#include "threads.h"

#define PAR_REPEATS 50
#define PATIENCE 12	/* times what a repetition may take: the end of it, also while the daemon has work */

struct player {
	pid_t pid;		/* 0: not there, or reaped */
	int sock;		/* -1: no longer spoken to */
	int open_file;
	bool killed;		/* by the scenario */
	bool waiting;		/* for its reply */
	const struct step *step;/* that it was told */
};

struct run {
	const struct scenario *s;
	const struct run_options *o;
	struct mnt mnt;
	struct actor_env env;
	struct stage *stage;
	struct player players[MAX_ACTORS];
	uint64_t seed;		/* of this repetition */
	uint64_t start;		/* of this repetition, now_ns() */
	uint64_t ran, looked;	/* patience_ns(), as of @looked, now_ns() */
	uint64_t deadline, end; /* patience_ns(): when to look whether it has deadlocked, and the last such time */
	uint64_t work;		/* that the daemon had done at the last look */
	bool failed, stuck;
	struct run_report *report;
};

/* ---- telling what went wrong ---- */

const char *run_way(const struct run_options *o)
{
	static const char *const starts[] = { "", ", cached", ", held", ", mapped" };
	static char text[64];

	snprintf(text, sizeof(text), "%s%s%s%s", o->cpu_cache, starts[o->start], o->delays ? ", delayed" : "", o->host ? ", host" : "");
	return text;
}

/* The first failure of a repetition starts the story; others of the same par follow. */
static void fail(struct run *r, const struct step *st, unsigned actor, const char *what)
{
	if (!r->failed)
		fprintf(stderr, "FAIL %s (%s, repetition %u, seed %llu): %s\n", r->s->path,
			run_way(r->o), r->env.repetition, (unsigned long long)r->seed,
			r->s->title);
	r->failed = true;
	if (st)
		fprintf(stderr, "  line %d: %s %s\n", st->line, r->s->actors[actor].name, st->text);
	fprintf(stderr, "    %s\n", what);
}

/* A disk may stall for longer than all else takes, and a machine may have no time for us. */
static bool has_work(struct run *r)
{
	bool work = threads_have_work(r->mnt.daemon, &r->work);

	/* What is passed through waits for the disk itself. */
	for (unsigned i = 0; i < r->s->n_actors && !work; i++)
		work = threads_wait_for_storage(r->players[i].pid);
	return work;
}

#define LOOK_NS 1000000000ull

/*
 * A clock that stands still while we do not run: a machine that stops for a minute has not deadlocked. Read at least every LOOK_NS
 * while something is waited for.
 */
static uint64_t patience_ns(struct run *r)
{
	uint64_t now = now_ns();

	r->ran += MIN(now - r->looked, 2 * LOOK_NS);
	r->looked = now;
	return r->ran;
}

/* The time is over, or it is time to look. Whether somebody still works on it, and there is more time. */
static bool goes_on(struct run *r)
{
	uint64_t now = patience_ns(r);

	if (now < r->deadline)
		return true;
	if (now >= r->end || !has_work(r))
		return false;
	r->deadline = MIN(now + r->o->seconds * 1000000000ull, r->end);
	return true;
}

static void fail_stuck(struct run *r)
{
	unsigned seconds = (unsigned)((now_ns() - r->start) / 1000000000);
	bool busy = has_work(r);
	char what[128];

	r->stuck = true;
	for (unsigned i = 0; i < r->s->n_actors; i++) {
		struct player *p = &r->players[i];

		if (!p->waiting)
			continue;
		snprintf(what, sizeof(what), "is not done after %u s: %s", seconds,
			 busy ? "the daemon has work, and no end of it" : "deadlock");
		fail(r, atomic_load(&r->stage->at[i]) ?: p->step, i, what);
		threads_show(p->pid, r->s->actors[i].name);
	}
	threads_show(r->mnt.daemon, "daemon");
}

/* ---- processes ---- */

static void start_player(struct run *r, unsigned i)
{
	struct player *p = &r->players[i];
	pid_t runner = getpid();
	int pair[2];

	*p = (struct player){ .sock = -1, .open_file = -1 };
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) {
		perror("socketpair");
		exit(2);
	}
	fflush(NULL);
	p->pid = fork();
	if (p->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != runner)
			_exit(0);
		close(pair[0]);
		for (unsigned k = 0; k < i; k++)
			close(r->players[k].sock);
		actor_main(&r->env, i, pair[1]);
	}
	close(pair[1]);
	if (p->pid < 0) {
		perror("fork");
		exit(2);
	}
	p->sock = pair[0];
}

static int poll_ms(struct run *r)
{
	uint64_t now = patience_ns(r);

	return now >= r->deadline ? 0 : (int)(MIN(r->deadline - now, LOOK_NS) / 1000000 + 1);
}

/* Wait for its end: whether it came in time. */
static bool reap(struct run *r, struct player *p, int *status)
{
	struct pollfd pfd = { .fd = (int)syscall(SYS_pidfd_open, p->pid, 0), .events = POLLIN };
	int n;

	do
		n = poll(&pfd, 1, poll_ms(r));
	while ((n < 0 && errno == EINTR) || (n == 0 && goes_on(r)));
	close(pfd.fd);
	if (n <= 0)
		return false;
	waitpid(p->pid, status, 0);
	p->pid = 0;
	return true;
}

static void tell(struct run *r, unsigned i, const struct command *cmd, const struct step *st)
{
	struct player *p = &r->players[i];

	p->step = st;
	p->waiting = true;
	/* If it is dead, the missing reply says so. */
	send(p->sock, cmd, sizeof(*cmd), MSG_NOSIGNAL);
}

/* The actor's end of the socket is closed: it died, as it was told to or not. */
static void player_died(struct run *r, unsigned i, bool by_order)
{
	struct player *p = &r->players[i];
	const struct step *at = atomic_load(&r->stage->at[i]);
	char what[128];
	int status;

	close(p->sock);
	p->sock = -1;
	p->open_file = -1;
	if (!reap(r, p, &status)) {
		fail(r, at, i, "was killed, but does not end");
		r->stuck = true;
	} else if (by_order && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
		p->killed = true;
	} else {
		snprintf(what, sizeof(what), "the process ended: %s %d",
			 WIFSIGNALED(status) ? "signal" : "status",
			 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		fail(r, at, i, what);
	}
}

static void take_reply(struct run *r, unsigned i, bool may_die)
{
	struct player *p = &r->players[i];
	struct reply reply;

	p->waiting = false;
	if (recv(p->sock, &reply, sizeof(reply), 0) != sizeof(reply)) {
		player_died(r, i, may_die);
		return;
	}
	p->open_file = reply.open_file;
	if (!reply.ok)
		fail(r, reply.step ?: p->step, i, reply.text);
}

/* Wait for everybody who was told something. @dying: bits of actors told to kill themselves. */
static void await(struct run *r, uint32_t dying)
{
	for (;;) {
		struct pollfd fds[MAX_ACTORS];
		unsigned who[MAX_ACTORS], n = 0;
		int got;

		for (unsigned i = 0; i < r->s->n_actors; i++)
			if (r->players[i].waiting) {
				fds[n] = (struct pollfd){ .fd = r->players[i].sock,
							  .events = POLLIN };
				who[n++] = i;
			}
		if (n == 0)
			return;
		got = poll(fds, n, poll_ms(r));
		if ((got < 0 && errno == EINTR) || (got == 0 && goes_on(r)))
			continue;
		if (got <= 0) {
			fail_stuck(r);
			return;
		}
		for (unsigned k = 0; k < n; k++)
			if (fds[k].revents)
				take_reply(r, who[k], dying & BIT(who[k]));
	}
}

static void tell_one(struct run *r, unsigned i, enum command_kind kind, unsigned step)
{
	struct command cmd = { .kind = kind, .step = step };
	const struct step *st = &r->s->steps[step];

	tell(r, i, &cmd, kind == CMD_STEP ? st : NULL);
	await(r, kind == CMD_STEP && st->op == OP_KILL ? BIT(i) : 0);
}

static void tell_all_actors(struct run *r, const struct command *cmd, const struct step *st)
{
	for (unsigned i = 1; i < r->s->n_actors; i++)
		if (r->players[i].sock >= 0)
			tell(r, i, cmd, st);
	await(r, 0);
}

/* ---- steps ---- */

static void do_par(struct run *r, unsigned step)
{
	const struct step *st = &r->s->steps[step];
	uint32_t dying = 0;
	int running = 0;
	uint64_t lane_seed = r->seed * MAX_ACTORS;

	for (unsigned l = 0; l < st->n_lanes; l++)
		running += !st->lanes[l].loops;
	atomic_store(&r->stage->ready, 0);
	atomic_store(&r->stage->go, false);
	atomic_store(&r->stage->running, running);
	for (unsigned l = 0; l < st->n_lanes; l++) {
		const struct lane *lane = &st->lanes[l];
		struct command cmd = { .kind = CMD_LANE, .step = step, .lane = l,
				       .seed = lane_seed + l };

		if (lane->steps[lane->n_steps - 1].op == OP_KILL)
			dying |= BIT(lane->actor);
		tell(r, lane->actor, &cmd, &lane->steps[0]);
	}
	while (atomic_load(&r->stage->ready) < st->n_lanes && (poll_ms(r) > 0 || goes_on(r)))
		sched_yield();
	atomic_store(&r->stage->go, true);
	await(r, dying);
}

static void do_drop(struct run *r, const struct step *st)
{
	struct command cmd = { .kind = CMD_DROP };

	for (unsigned i = 1; i < r->s->n_actors; i++)
		if (r->players[i].open_file >= 0)
			cmd.open_files |= BIT(r->players[i].open_file);
	tell_all_actors(r, &cmd, st);
	tell(r, ACTOR_RUNNER, &cmd, st);
	await(r, 0);
}

static void do_crash(struct run *r, const struct step *st)
{
	struct command cmd = { .kind = CMD_FORGET };

	mnt_crash(&r->mnt);
	tell(r, ACTOR_RUNNER, &cmd, st);
	tell_all_actors(r, &cmd, st);
	if (!r->failed && mnt_restart(&r->mnt))
		fail(r, st, ACTOR_RUNNER, "cannot mount again");
}

/* The actor that does a step of the runner on a file: one that has it open, if there is one. Opening
 * and closing it once more would be seen: close(2) pushes and stores what is dirty. */
static unsigned borrower(const struct run *r, unsigned file)
{
	/* After renames it is no longer known what goes by the name. Some users may not evict. */
	if (r->s->renames || r->s->users)
		return ACTOR_RUNNER;
	for (unsigned i = 1; i < r->s->n_actors; i++)
		if (r->players[i].open_file == (int)file)
			return i;
	return ACTOR_RUNNER;
}

static void do_step(struct run *r, unsigned i)
{
	const struct step *st = &r->s->steps[i];

	switch (st->op) {
	case OP_PAR:
		do_par(r, i);
		break;
	case OP_CRASH:
		do_crash(r, st);
		break;
	case OP_DROP:
		do_drop(r, st);
		break;
	case OP_FLUSH:
	case OP_EVICT:
		tell_one(r, borrower(r, st->file), CMD_STEP, i);
		break;
	default:
		tell_one(r, st->actor, CMD_STEP, i);
	}
}

/* ---- a repetition ---- */

/* In the backing directory: the cache first hears of it when an actor opens it. */
static bool make_file(struct run *r, unsigned i)
{
	const struct file_def *def = &r->s->names[i];
	uint8_t fill[65536];
	uint64_t at = 0;
	char name[64];
	bool ok;
	int fd;

	actor_file_name(&r->env, i, name);
	fd = openat(r->mnt.backing_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	ok = fd >= 0 && ftruncate(fd, (off_t)def->size) == 0;
	memset(fill, def->fill, sizeof(fill));
	while (ok && !def->hole && at < def->size) {
		size_t n = MIN(sizeof(fill), def->size - at);

		ok = pwrite(fd, fill, n, (off_t)at) == (ssize_t)n;
		at += n;
	}
	/* What a mount notes of files that devices have mapped. */
	if (ok && (r->o->start == START_CACHED || r->s->cached) && !strcmp(r->o->cpu_cache, "auto"))
		ok = fsetxattr(fd, "trusted.gaiafs.device", "", 0, 0) == 0 || geteuid() != 0;
	if (!ok)
		fail(r, NULL, ACTOR_RUNNER, strerror(errno));
	if (fd >= 0)
		close(fd);
	return ok;
}

/* Let them close what they have, and wait for their end. */
static void end_players(struct run *r)
{
	int status;

	for (unsigned i = 1; i < r->s->n_actors; i++)
		if (r->players[i].sock >= 0) {
			close(r->players[i].sock);
			r->players[i].sock = -1;
		}
	for (unsigned i = 1; i < r->s->n_actors; i++) {
		struct player *p = &r->players[i];

		if (!p->pid)
			continue;
		if (!reap(r, p, &status)) {
			fail(r, NULL, i, "does not get its file closed: deadlock");
			threads_show(p->pid, r->s->actors[i].name);
			threads_show(r->mnt.daemon, "daemon");
			r->stuck = true;
		} else if (status) {
			fail(r, NULL, i, "died while it closed its file");
		}
	}
}

/* Whatever state they are in. */
static void kill_players(struct run *r)
{
	int status;

	for (unsigned i = 0; i < r->s->n_actors; i++) {
		if (r->players[i].sock >= 0)
			close(r->players[i].sock);
		r->players[i].sock = -1;
		if (r->players[i].pid)
			kill(r->players[i].pid, SIGKILL);
	}
	/* In the kernel they may wait for the mount, which then has to go first. */
	r->deadline = r->end = patience_ns(r) + 3 * LOOK_NS;
	for (unsigned i = 0; i < r->s->n_actors; i++) {
		struct player *p = &r->players[i];

		if (p->pid && !reap(r, p, &status)) {
			mnt_crash(&r->mnt);
			waitpid(p->pid, &status, 0);
			p->pid = 0;
		}
	}
}

static bool daemon_died(const struct run *r)
{
	siginfo_t info = { 0 };

	return waitid(P_PID, (id_t)r->mnt.daemon, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
	       info.si_pid;
}

static void explain(struct run *r)
{
	struct player *p = &r->players[ACTOR_RUNNER];

	if (!r->mnt.daemon)
		return;
	if (daemon_died(r)) {
		fprintf(stderr, "  the daemon died; its log:\n");
		mnt_show_log(&r->mnt);
		mnt_crash(&r->mnt);
		return;
	}
	if (r->stuck || p->sock < 0 || p->waiting)
		return;
	/* Best effort, in a little time of its own. */
	r->deadline = r->end = patience_ns(r) + 3 * LOOK_NS;
	tell(r, ACTOR_RUNNER, &(struct command){ .kind = CMD_RESIDENCY }, NULL);
	if (poll(&(struct pollfd){ .fd = p->sock, .events = POLLIN }, 1, 3000) > 0)
		take_reply(r, ACTOR_RUNNER, false);
}

static void repetition(struct run *r)
{
	r->start = r->looked = now_ns();
	r->ran = 0;
	r->deadline = r->o->seconds * 1000000000ull;
	r->end = PATIENCE * r->deadline;
	r->work = 0;
	for (unsigned i = 0; i < r->s->n_names; i++)
		if (r->s->names[i].declared && !make_file(r, i))
			return;
	memset(r->stage, 0, sizeof(*r->stage));
	for (unsigned i = 0; i < r->s->n_actors; i++)
		start_player(r, i);
	if ((r->o->start == START_HELD || r->o->start == START_MAPPED) && !r->s->cached)
		tell_one(r, ACTOR_RUNNER, r->o->start == START_HELD ? CMD_HOLD : CMD_HOLD_MAPPED, 0);
	if (r->s->counts && !r->failed)
		tell_one(r, ACTOR_RUNNER, CMD_BASE, 0);
	for (unsigned i = 0; i < r->s->n_steps && !r->failed; i++)
		do_step(r, i);
	if (r->failed)
		explain(r);
	else
		end_players(r);
	if (!r->failed)
		tell_one(r, ACTOR_RUNNER, CMD_TIDY, 0);
	kill_players(r);
	r->report->repetitions++;
	r->report->slowest_ms = MAX(r->report->slowest_ms, (now_ns() - r->start) / 1000000);
}

/* ---- a scenario ---- */

static void mount_args(const struct scenario *s, const struct run_options *o, const char **args,
		       char device[MAX_DEVICES][64], char home[32])
{
	unsigned devices = s->devices - s->host;
	int n = 0;

	args[n++] = "--cpu-cache";
	args[n++] = o->cpu_cache;
	args[n++] = "--dedup";
	args[n++] = o->dedup ? "home" : "off";
	if (s->home || (s->host && s->device)) {
		/* Of which the host has a half. */
		snprintf(home, 32, "%lluK", (unsigned long long)s->device_bytes >> 9);
		args[n++] = "--home";
		args[n++] = s->home ? s->home : home;
	}
	for (unsigned i = 0; i < MAX(devices, 1u); i++) {
		args[n++] = "--device";
		args[n++] = devices ? gpu_option(i, s->device, device[i]) : "none";
		if (devices && s->no_readonly && !gpu_is(i))
			strcat(device[i], ",readonly=off");
		if (devices && s->lax && !gpu_is(i))
			strcat(device[i], ",strict=off");
		if (s->devices && o->park)
			strcat(device[i], ",cache=4M");
	}
	args[n] = NULL;
}

/*
 * Fault points of the daemon within which another request, or the kernel, must not do harm. Stretched, what
 * otherwise happens once in a million times happens all the time. (selftest.sh checks the names.)
 */
static const struct {
	const char *point;
	unsigned max_us;
} delays[] = {
	{ "release.before_publish", 300 },
	{ "release.before_invalidate", 1500 },
	{ "notifier.before_invalidate", 1500 },
	{ "fetch.before_merge", 500 },
	{ "read.before_reply", 300 },
	{ "acquire.before_grant", 300 },
	{ "truncate.before_cut", 500 },
	{ "ready.before_catch_up", 100 },
};

static void arm_faults(const struct run_options *o)
{
	uint64_t seed = o->seed;
	char text[1024] = "";
	size_t n = 0;

	if (o->park)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "park.all=errno:ENOSPC;source.store_is_dear=errno:ENOSPC");
	if (o->dedup)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%sdedup.all=errno:EEXIST", n ? ";" : "");
	for (unsigned i = 0; i < ARRAY_LEN(delays) && o->delays; i++)
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%s=delay:%uus,seed=%llu",
				      n ? ";" : "", delays[i].point, delays[i].max_us,
				      (unsigned long long)(seed + i));
	setenv("GAIAFS_FAULTS", text, 1);
}

bool run_scenario(const struct scenario *s, const struct run_options *o, struct run_report *report)
{
	struct run r = { .s = s, .o = o, .report = report };
	struct mnt_options mo = { .gaiafs = o->gaiafs };
	const char *args[64];
	char device[MAX_DEVICES][64], home[32];
	unsigned repeat = o->repeat;

	if (!repeat)
		repeat = MAX(MAX(s->repeat, 1u), s->has_par ? PAR_REPEATS : 1u);
	mount_args(s, o, args, device, home);
	mo.args = args;
	if (o->delays || o->park || o->dedup)
		arm_faults(o);
	if (mnt_start(&r.mnt, &mo)) {
		fprintf(stderr, "FAIL %s (%s): no mount\n", s->path, run_way(o));
		return false;
	}
	r.stage = mmap(NULL, sizeof(*r.stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	if (r.stage == MAP_FAILED) {
		perror("mmap");
		exit(2);
	}
	r.env = (struct actor_env){
		.scenario = s,
		.mount = r.mnt.path,
		.backing_fd = r.mnt.backing_fd,
		.gaia = o->gaia,
		.parks = o->park || o->dedup,
		.stage = r.stage,
	};
	for (unsigned i = 0; i < repeat && !r.failed; i++) {
		r.env.repetition = i;
		r.seed = o->seed + i;
		repetition(&r);
	}
	munmap(r.stage, sizeof(*r.stage));
	if (mnt_stop(&r.mnt) && !r.failed)
		fail(&r, NULL, ACTOR_RUNNER, "the mount did not end cleanly");
	return !r.failed;
}
