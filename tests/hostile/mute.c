/*
 * mute.c - clients that never answer when they are to give memory up, and acquires that wait for that memory. What does not
 * need that memory goes on meanwhile: releases, and whoever asks for the state of the mount.
 */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>

#include "attackers.h"
#include "gaia/client.h"
#include "hostile.h"
#include "report.h"
#include "shell.h"

/* ---- clients that are mute ---- */

/* However many share the chunk. */
EACH_WAY_BARE(mute, clients_of_a_chunk_cost_one_timeout)
{
	static const char *const args[] = { "--device", "sim:8M", NULL };
	unsigned char *p;
	pid_t pid;
	int fd;

	hostile_start(args);
	close(hostile_file("shared", GAIA_CHUNK));
	pid = hostile_attack(share_a_chunk_and_be_mute);
	fd = hostile_file("all", FLOOD_BYTES);
	p = gaia_mmap(FLOOD_BYTES, PROT_READ | PROT_WRITE, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(p, FLOOD_BYTES, PROT_READ | PROT_WRITE), 0, "%s", strerror(errno));
	cr_assert_eq(shared->more, MUTE);
	cr_assert_eq(STATUS("counters", "revoke_timeouts"), 1);
	cr_assert_eq(gaia_munmap(p, FLOOD_BYTES), 0);
	close(fd);
	child_kill(pid);
}

static void make_files_of_the_mute(void)
{
	char name[8];

	for (int i = 0; i < MUTE; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		close(hostile_file(name, GAIA_CHUNK));
	}
}

#define NEEDED (MUTE * (size_t)GAIA_CHUNK)

static void *map_file(const char *name, size_t size)
{
	int fd = hostile_file(name, size);
	void *p = gaia_mmap(size, PROT_READ | PROT_WRITE, fd, 0, 0);

	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	close(fd);
	return p;
}

static atomic_bool has_all;

static void *acquire_all(void *p)
{
	int err = gaia_acquire(p, NEEDED, PROT_READ | PROT_WRITE);

	has_all = true;
	return (void *)(intptr_t)err;
}

#define ROUNDS 5 /* on a machine that is too busy a round may take as long as the timeout */

/* The device is full with what the mute have and these. Whether all was done before the mute were disconnected. */
static bool round_of_many_chunks(void)
{
	long timeouts = STATUS("counters", "revoke_timeouts");
	char *all, *held, *idle, word;
	bool in_time, promised;
	pthread_t thread;
	void *result;
	pid_t pid;
	int fd;

	shared->more = 0;
	has_all = false;
	pid = hostile_attack(be_mute);
	fd = hostile_file("idle", GAIA_CHUNK);
	held = map_file("held", 2 * GAIA_CHUNK);
	cr_assert_eq(gaia_acquire(held, GAIA_CHUNK, PROT_READ | PROT_WRITE), 0, "%s", strerror(errno));
	idle = map_file("idle", GAIA_CHUNK);
	cr_assert_eq(gaia_acquire(idle, GAIA_CHUNK, PROT_READ | PROT_WRITE), 0, "%s", strerror(errno));
	cr_assert_eq(gaia_release(idle, GAIA_CHUNK), 0, "%s", strerror(errno));
	cr_assert_eq(STATUS("devices", "0", "used"), 8l * GAIA_CHUNK);
	/* Who waits for the mute takes what nobody holds instead, as soon as they are late (rule 18); so something of each is held all the time. */
	cr_assert_eq(gaia_acquire(held, 1, PROT_READ), 0, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(idle + GAIA_CHUNK / 2, 1, PROT_READ), 0, "%s", strerror(errno));

	all = map_file("all", NEEDED);
	cr_assert_eq(pthread_create(&thread, NULL, acquire_all, all), 0);
	HOSTILE_WAIT(pid, shared->more >= MUTE);
	held[5] = 'h';
	cr_assert_eq(gaia_release(held, GAIA_CHUNK), 0, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(held, 1, PROT_READ), 0, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(idle, 6, PROT_READ | PROT_WRITE), 0, "%s", strerror(errno));
	idle[5] = 'i';
	promised = gaia_acquire(held + GAIA_CHUNK, 1, PROT_READ) == -1 && errno == ENOMEM;
	cr_assert_eq(gaia_release(idle, 6), 0, "%s", strerror(errno));
	cr_assert_eq(gaia_munmap(idle, GAIA_CHUNK), 0);
	cr_assert_eq(pread(fd, &word, 1, 5), 1);
	cr_assert_eq(word, 'i');
	in_time = !has_all && STATUS("counters", "revoke_timeouts") == timeouts;
	cr_assert(promised || !in_time, "its room is promised");

	cr_assert_eq(pthread_join(thread, &result), 0);
	cr_assert_eq((intptr_t)result, 0);
	cr_assert_eq(shared->more, MUTE);
	cr_assert_eq(STATUS("counters", "revoke_timeouts"), timeouts + 1);
	cr_assert_eq(gaia_munmap(all, NEEDED), 0);
	cr_assert_eq(gaia_munmap(held, 2 * GAIA_CHUNK), 0);
	close(fd);
	child_kill(pid);
	return in_time;
}

/* However many chunks they have; and they hold up nobody who does not need these. */
EACH_WAY_BARE(mute, clients_of_many_chunks_cost_one_timeout)
{
	static const char *const args[] = { "--device", "sim:16M", NULL };
	bool in_time = false;

	hostile_start(args);
	make_files_of_the_mute();
	for (uid_t round = 0; round < ROUNDS && !in_time; round++) {
		hostile_uid = NOBODY - 10 - round; /* one who was not mute yet has the longest timeout */
		in_time = round_of_many_chunks();
	}
	cr_assert(in_time, "others waited for the mute");
}

static int need_room(void *arg)
{
	int fd;
	void *p;

	(void)arg;
	child_become(SOMEBODY, SOMEBODY);
	fd = open(mnt_file(&mnt, "all"), O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	p = gaia_mmap(NEEDED, PROT_READ, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(!gaia_acquire(p, NEEDED, PROT_READ));
	return 0;
}

/* A process of another user that waits for them ends when it is killed, not when they have been waited for. */
EACH_WAY_BARE(mute, clients_keep_nobody_from_being_killed)
{
	static const char *const args[] = { "--device", "sim:16M", NULL };
	bool ended_before = false;

	hostile_start(args);
	make_files_of_the_mute();
	close(hostile_file("all", NEEDED));
	for (uid_t round = 0; round < ROUNDS && !ended_before; round++) {
		long timeouts = STATUS("counters", "revoke_timeouts");
		pid_t mute, waiter;

		shared->more = 0;
		hostile_uid = NOBODY - 10 - round; /* one who was not mute yet has the longest timeout */
		mute = hostile_attack(be_mute);
		waiter = child_start(need_room, NULL);
		HOSTILE_WAIT(mute, shared->more > 0);
		kill(waiter, SIGKILL);
		cr_assert_eq(child_wait(waiter), 128 + SIGKILL);
		ended_before = STATUS("counters", "revoke_timeouts") == timeouts;
		child_kill(mute);
	}
	cr_assert(ended_before, "only after the mute were disconnected");
}

static void evict(const char *name)
{
	struct shell_result r = shell_run(mnt.path, 60, "\"$GAIA\" evict %s --from device 0", name);

	cr_assert_eq(r.status, 0, "%s", r.err);
	shell_free(&r);
}

static double time_to_evict(const char *name)
{
	struct timespec begun, done;

	clock_gettime(CLOCK_MONOTONIC, &begun);
	evict(name);
	clock_gettime(CLOCK_MONOTONIC, &done);
	return (double)(done.tv_sec - begun.tv_sec) + (double)(done.tv_nsec - begun.tv_nsec) / 1e9;
}

static double other_took;

static void *evict_other(void *arg)
{
	(void)arg;
	other_took = time_to_evict("other");
	return NULL;
}

static bool log_says(const char *text)
{
	struct shell_result r = shell_run("/", 60, "grep -qF '%s' '%s'", text, mnt.log);
	bool says = !r.status;

	shell_free(&r);
	return says;
}

/* Meanwhile another user's clients, which are mute for the first time, are waited for as ever. */
Test(mute, clients_that_come_back_are_waited_for_less, .init = way_bare_writeback, .fini = way_clean_up,
     .timeout = WAY_SECONDS)
{
	static const char *const args[] = { "--device", "sim:8M", NULL };
	pid_t pid, other, first = 0;
	pthread_t thread;
	double shared_took;
	char line[256];

	hostile_start(args);
	close(hostile_file("shared", GAIA_CHUNK));
	close(hostile_file("other", GAIA_CHUNK));
	for (int times = 1; times <= 2; times++) {
		pid = hostile_attack(share_a_chunk_and_be_mute);
		first = first ? first : pid;
		evict("shared");
		cr_assert_eq(STATUS("counters", "revoke_timeouts"), times);
		cr_assert_eq(child_wait(pid), 0);
	}
	pid = hostile_attack(share_a_chunk_and_be_mute);
	hostile_uid = SOMEBODY;
	mute_shared = "other";
	other = hostile_attack(share_a_chunk_and_be_mute);
	shared->more = 0;
	cr_assert_eq(pthread_create(&thread, NULL, evict_other, NULL), 0);
	HOSTILE_WAIT(pid, shared->more >= MUTE);
	shared_took = time_to_evict("shared");
	cr_assert_eq(pthread_join(thread, NULL), 0);
	cr_assert_lt(shared_took, other_took, "clients that came back mute were waited for as long as others");
	/* Of the first of them; those in the same minute are not logged. */
	snprintf(line, sizeof(line), "client %d of user %u is disconnected: it did not give up memory within 5 s; for the next 10 minutes "
		 "clients of this user are waited for 1.25 s only", first, NOBODY);
	if (!log_says(line)) {
		mnt_show_log(&mnt);
		cr_assert_fail("the log does not say: %s", line);
	}
	cr_assert_eq(child_wait(other), 0);
	cr_assert_eq(child_wait(pid), 0);
	way_end();
}

/* ---- and acquires behind them ---- */

/* Threads of a process that are in an ioctl(2). */
static int threads_in_ioctl(pid_t pid)
{
	char path[300], word[16];
	struct dirent *e;
	int n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	cr_assert_not_null(dir);
	while ((e = readdir(dir))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/syscall", pid, e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "re");
		if (!f)
			continue;
		n += fscanf(f, "%15s", word) == 1 && atoi(word) == SYS_ioctl && *word != 'r';
		fclose(f);
	}
	closedir(dir);
	return n;
}

static struct gate go;

/* A client of the attacker's user, for whom, unlike for root, no thread is kept. */
static int hold_and_release(void *arg)
{
	unsigned char *p;
	int fd;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open(mnt_file(&mnt, "his"), O_RDONLY | O_CLOEXEC);
	p = gaia_mmap(GAIA_PAGE, PROT_READ, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(!gaia_acquire(p, GAIA_PAGE, PROT_READ));
	gate_open(ready);
	CHILD_CHECK(gate_pass(go));
	CHILD_CHECK(!gaia_release(p, GAIA_PAGE));
	return 0;
}

EACH_WAY_BARE(mute, clients_and_a_flood_of_acquires_hold_up_no_release)
{
	static const char *const args[] = { "--device", "sim:16M", NULL };
	char word[16];
	unsigned char *p;
	pid_t pid, other;
	int fd;

	/* So that it is not their end that lets the others go on. */
	setenv("GAIAFS_FAULTS", "revoke.patience=errno:EAGAIN", 1);
	hostile_start(args);
	unsetenv("GAIAFS_FAULTS");
	go = gate_make();
	make_files_of_the_mute();
	close(hostile_file("wanted", FLOOD_BYTES));
	close(hostile_file("his", GAIA_PAGE));
	other = hostile_attack(hold_and_release);
	fd = hostile_file("roots", GAIA_CHUNK);
	p = gaia_mmap(GAIA_CHUNK, PROT_READ | PROT_WRITE, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(p, GAIA_CHUNK, PROT_READ | PROT_WRITE), 0, "%s", strerror(errno));

	pid = hostile_attack(be_mute_and_flood);
	HOSTILE_WAIT(pid, shared->more && threads_in_ioctl(pid) >= FLOOD);
	p[5000] = 'r';
	cr_assert_eq(gaia_release(p, GAIA_CHUNK), 0, "%s", strerror(errno));
	cr_assert_eq(mnt_says(&mnt, "cpu_cache", word), 0);
	gate_open(go);
	cr_assert_eq(child_wait(other), 0);
	cr_assert_eq(shared->count, 0, "%d acquires of the flood were done before a release", shared->count);
	cr_assert_eq(pread(fd, word, 1, 5000), 1);
	cr_assert_eq(word[0], 'r');
	cr_assert_eq(shared->count, 0);
	child_kill(pid);
	cr_assert_eq(gaia_munmap(p, GAIA_CHUNK), 0);
	close(fd);
}
