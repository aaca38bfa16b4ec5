/*
 * epoch.h - a file of items that a CPU program updates again and again, while a device reads it.
 *
 * gaiafs promises that an acquire brings every earlier write, and nothing about where in an update it stands. So the first page of
 * the file has an epoch: 2 k when k updates are whole, 2 k + 1 while the next is under way. The CPU program knows nothing of gaiafs:
 *
 *	k = epoch_begin(head);  ...store what update k changes...  epoch_end(head);
 *
 * The device looks at the epoch before and after it has read:
 *
 *	do {
 *		k = epoch_settled(&data);
 *		...acquire, copy to memory of its own, release...
 *	} while (!epoch_is_still(&data, k));
 *
 * What an update changes depends on its number alone, so that anybody can say what the file has after k updates; and a CPU
 * program that was killed in the midst of one is followed by one that begins the same update again.
 */
#ifndef EXAMPLE_EPOCH_H
#define EXAMPLE_EPOCH_H

#include "data.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

struct epoch_head {
	uint64_t magic;
	uint64_t epoch; /* atomic */
	uint64_t seed;
	uint64_t items;
	uint64_t changed_ppm; /* how many items an update changes, in millionths */
	uint64_t clustered;   /* 1: neighbours; 0: anywhere */
};

#define EPOCH_PATIENCE_NS 60000000000u

/* ---- the CPU program's side ---- */

static inline uint64_t epoch_begin(struct epoch_head *head)
{
	uint64_t epoch = __atomic_load_n(&head->epoch, __ATOMIC_RELAXED) | 1;

	__atomic_store_n(&head->epoch, epoch, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return epoch / 2 + 1;
}

static inline void epoch_end(struct epoch_head *head)
{
	__atomic_store_n(&head->epoch, head->epoch + 1, __ATOMIC_RELEASE);
}

/* How many items an update changes, and the nth of them. An item may be there twice. */
static inline uint64_t epoch_changes(const struct epoch_head *head)
{
	uint64_t n = (uint64_t)((double)head->items * (double)head->changed_ppm / 1e6);

	return n || !head->changed_ppm ? n : 1;
}

static inline uint64_t epoch_item(const struct epoch_head *head, uint64_t update, uint64_t n)
{
	uint64_t start = mix(head->seed ^ mix(update));

	return (head->clustered ? start % head->items + n : mix(start + n)) % head->items;
}

/* ---- the device's side ---- */

static inline uint64_t epoch_of(struct data *d)
{
	uint64_t epoch;

	data_use_device(d);
	data_acquire(d, 0, PAGE, PROT_READ);
	device_copy(&epoch, d->p + offsetof(struct epoch_head, epoch), sizeof(epoch));
	data_release(d, 0, PAGE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return epoch;
}

/* Wait until no update is under way: how many there were. */
static inline uint64_t epoch_settled(struct data *d)
{
	uint64_t start = now_ns(), epoch;

	while ((epoch = epoch_of(d)) % 2) {
		if (now_ns() - start > EPOCH_PATIENCE_NS)
			errx(1, "%s: an update has been under way for %u s: has its program died? Start it again.", d->path,
			     (unsigned)(EPOCH_PATIENCE_NS / 1000000000u));
		sleep_ms(1);
	}
	return epoch / 2;
}

static inline bool epoch_is_still(struct data *d, uint64_t updates)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return epoch_of(d) == 2 * updates;
}

/* ---- a program that updates: another process or, where the memory cannot be shared with one, a thread ---- */

typedef void apply_fn(void *file, uint64_t update);

struct updater {
	/* Constant. */
	apply_fn *apply;
	void *file;	   /* as the updater has it: begins with a struct epoch_head */
	const char *path;  /* a process maps it */
	bool live;	   /* updates all the time; else whenever it is asked */
	unsigned pause_ms; /* live: between updates */
	int ask[2], done[2];
	pid_t pid; /* 0: a thread */
	pthread_t thread;
};

static inline void update_once(apply_fn *apply, void *file)
{
	struct epoch_head *head = (struct epoch_head *)file;
	uint64_t update = epoch_begin(head);

	apply(file, update);
	epoch_end(head);
}

static inline void *updater_work(void *arg)
{
	struct updater *u = (struct updater *)arg;
	struct pollfd asked = { u->ask[0], POLLIN, 0 };
	char byte;

	while (u->live && !poll(&asked, 1, (int)u->pause_ms))
		update_once(u->apply, u->file);
	while (!u->live && read(u->ask[0], &byte, 1) == 1) {
		update_once(u->apply, u->file);
		if (write(u->done[1], &byte, 1) != 1)
			break;
	}
	return NULL;
}

static inline void *map_file(const char *path, int prot)
{
	int fd = open_file(path, prot & PROT_WRITE ? O_RDWR : O_RDONLY);
	void *p = mmap(NULL, file_size(fd, path), prot, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		err(1, "%s", path);
	close(fd);
	return p;
}

static inline void updater_pipes(struct updater *u)
{
	if (pipe2(u->ask, O_CLOEXEC) || pipe2(u->done, O_CLOEXEC))
		err(1, "pipe");
}

/* Call it before anything is mapped for a device. */
static inline void updater_start_process(struct updater *u)
{
	updater_pipes(u);
	u->pid = fork();
	if (u->pid < 0)
		err(1, "fork");
	if (u->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(u->ask[1]);
	u->file = map_file(u->path, RW);
	updater_work(u);
	_exit(0);
}

static inline void updater_start_thread(struct updater *u)
{
	updater_pipes(u);
	if ((errno = pthread_create(&u->thread, NULL, updater_work, u)))
		err(1, "pthread_create");
}

/* Have it make one update; a live one makes its own. */
static inline void updater_ask(struct updater *u)
{
	char byte = 0;

	if (u->live)
		return;
	if (u->pid && u->done[1] >= 0) {
		close(u->done[1]); /* so that the end of the process is seen */
		u->done[1] = -1;
	}
	if (write(u->ask[1], &byte, 1) != 1 || read(u->done[0], &byte, 1) != 1)
		errx(1, "the program that updates has ended");
}

static inline void updater_stop(struct updater *u)
{
	int status = 0;

	close(u->ask[1]);
	if (u->pid)
		waitpid(u->pid, &status, 0);
	else
		pthread_join(u->thread, NULL);
	if (status)
		errx(1, "the program that updates has failed");
	close(u->ask[0]);
	close(u->done[0]);
	if (u->done[1] >= 0)
		close(u->done[1]);
}

#endif
