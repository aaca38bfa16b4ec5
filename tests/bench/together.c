/*
 * together.c - several processes at work on one file at the same time.
 *
 *	together FILE PROCESSES read|write call|mapping sequential|random BLOCK BYTES
 *
 * Each works in a part of the file of its own, until all together have moved BYTES; none begins before all
 * have the file open. Prints the nanoseconds from the first's begin to the last's end. (fio lets one process begin after
 * the other, and what takes milliseconds is then done one after the other.)
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 64u

/* What the processes share. */
struct scene {
	pthread_barrier_t all_open;
	uint64_t begun[MOST], ended[MOST];
};

struct work {
	const char *file;
	unsigned processes;
	bool writes, maps, random;
	size_t block, bytes;
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static void do_block(const struct work *w, int fd, char *map, char *buf, off_t off)
{
	ssize_t n = (ssize_t)w->block;

	if (w->maps && w->writes)
		memcpy(map + off, buf, w->block);
	else if (w->maps)
		memcpy(buf, map + off, w->block);
	else if (w->writes)
		n = pwrite(fd, buf, w->block, off);
	else
		n = pread(fd, buf, w->block, off);
	if (n != (ssize_t)w->block)
		errx(1, "%s: %s", w->file, n < 0 ? strerror(errno) : "too short");
}

static void one_process(const struct work *w, unsigned k, struct scene *scene)
{
	int fd = open(w->file, w->writes ? O_RDWR : O_RDONLY), prot = PROT_READ;
	char *buf = malloc(w->block), *map = NULL;
	size_t blocks, at;
	struct stat st;
	off_t part;

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* when another one has failed */
	if (fd < 0 || fstat(fd, &st))
		err(1, "%s", w->file);
	part = st.st_size / w->processes;
	blocks = (size_t)part / w->block;
	if (!buf || !blocks || (blocks & (blocks - 1)))
		errx(1, "%s: a process's part must be a power of two of blocks", w->file);
	memset(buf, (int)k + 1, w->block);
	if (w->writes)
		prot |= PROT_WRITE;
	if (w->maps)
		map = mmap(NULL, (size_t)st.st_size, prot, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		err(1, "map %s", w->file);

	pthread_barrier_wait(&scene->all_open);
	scene->begun[k] = now_ns();
	at = w->random ? (size_t)getpid() % blocks : 0;
	for (size_t n = w->bytes / w->processes / w->block; n > 0; n--) {
		do_block(w, fd, map, buf, k * part + (off_t)(at * w->block));
		/* At random each block comes once before any comes again. */
		at = (w->random ? at * 1664525 + 1013904223 : at + 1) & (blocks - 1);
	}
	scene->ended[k] = now_ns();
	_exit(0);
}

int main(int argc, char **argv)
{
	uint64_t begin = UINT64_MAX, end = 0;
	pthread_barrierattr_t shared;
	struct scene *scene;
	struct work w;
	int status;

	if (argc != 8)
		errx(2, "usage: together FILE PROCESSES read|write call|mapping sequential|random BLOCK BYTES");
	w = (struct work){
		.file = argv[1],
		.processes = (unsigned)atoi(argv[2]),
		.writes = !strcmp(argv[3], "write"),
		.maps = !strcmp(argv[4], "mapping"),
		.random = !strcmp(argv[5], "random"),
		.block = strtoul(argv[6], NULL, 10),
		.bytes = strtoul(argv[7], NULL, 10),
	};
	if (!w.processes || w.processes > MOST || !w.block)
		errx(2, "1 to %u processes, and blocks of a byte at least", MOST);
	scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (scene == MAP_FAILED)
		err(1, "memory");
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&scene->all_open, &shared, w.processes);
	for (unsigned k = 0; k < w.processes; k++) {
		pid_t pid = fork();

		if (pid < 0)
			err(1, "fork");
		if (!pid)
			one_process(&w, k, scene);
	}
	for (unsigned k = 0; k < w.processes; k++) {
		if (wait(&status) < 0 || status)
			exit(1); /* it said why; the others end with us */
	}
	for (unsigned k = 0; k < w.processes; k++) {
		begin = scene->begun[k] < begin ? scene->begun[k] : begin;
		end = scene->ended[k] > end ? scene->ended[k] : end;
	}
	printf("%llu\n", (unsigned long long)(end - begin));
	return 0;
}
