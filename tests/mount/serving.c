/*
 * serving.c - requests do not wait for each other, however the daemon divides them among its threads.
 *
 * What makes a request wait for as long as a test likes is a file system below whose daemon is
 * stopped: another gaiafs.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <criterion/criterion.h>

#include "child.h"
#include "mountpoint.h"

#define PAGE 4096
#define STUCK 4
#define MANY 20000

static struct mnt below, above;
static int root; /* of the latter */
static atomic_uint n_reads, n_asking, n_answered;
static atomic_bool enough;

/* One request after the other, for what the daemon has in memory. */
static void *read_all_the_time(void *arg)
{
	void *page = aligned_alloc(PAGE, PAGE);
	int fd = open(mnt_file(&above, "f"), O_RDONLY | O_DIRECT);

	while (!enough && pread(fd, page, PAGE, 0) == PAGE)
		n_reads++;
	close(fd);
	free(page);
	return NULL;
}

/* One that must ask the file system below. */
static void *look_up(void *name)
{
	struct stat st;

	n_asking++;
	cr_expect_eq(fstatat(root, name, &st, 0), 0);
	n_answered++;
	return NULL;
}

static void wait_for(atomic_uint *counter, unsigned least)
{
	while (*counter < least)
		usleep(1000);
}

static void take_down(void)
{
	if (below.daemon)
		kill(below.daemon, SIGCONT);
	if (above.daemon)
		mnt_stop(&above);
	if (below.daemon)
		mnt_stop(&below);
}

static void make_file(int dir, const char *name)
{
	static const char page[PAGE];
	int fd = openat(dir, name, O_CREAT | O_WRONLY, 0644);

	cr_assert_eq(write(fd, page, PAGE), PAGE);
	close(fd);
}

Test(serving, a_request_that_waits_keeps_nobody_waiting, .timeout = 500, .fini = take_down)
{
	static char name[STUCK][2] = { "0", "1", "2", "3" };
	struct mnt_options options = { .backing = NULL };
	pthread_t reader, stuck[STUCK];
	char source[PATH_MAX + 8];

	cr_assert_eq(mnt_start(&below, &options), 0);
	snprintf(source, sizeof(source), "%s/d", below.path);
	cr_assert_eq(mkdir(source, 0755), 0);
	root = open(source, O_DIRECTORY | O_RDONLY);
	make_file(root, "f");
	for (int i = 0; i < STUCK; i++)
		make_file(root, name[i]);
	close(root);
	options.backing = source;
	cr_assert_eq(mnt_start(&above, &options), 0);
	root = open(above.path, O_DIRECTORY | O_RDONLY);

	pthread_create(&reader, NULL, read_all_the_time, NULL);
	wait_for(&n_reads, MANY);
	cr_assert(child_stop(below.daemon));
	for (int i = 0; i < STUCK; i++) {
		pthread_create(&stuck[i], NULL, look_up, name[i]);
		wait_for(&n_asking, i + 1);
		wait_for(&n_reads, n_reads + MANY);
	}
	cr_expect_eq(n_answered, 0);
	kill(below.daemon, SIGCONT);
	for (int i = 0; i < STUCK; i++)
		pthread_join(stuck[i], NULL);
	enough = true;
	pthread_join(reader, NULL);
	close(root);
	cr_expect_eq(mnt_stop(&above), 0);
	cr_expect_eq(mnt_stop(&below), 0);
}
