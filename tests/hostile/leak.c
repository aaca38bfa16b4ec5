/*
 * leak.c - a file has held secrets, which a device was given, and which were removed before all may read it. Another user maps the
 * file, acquires its first page, and looks at all else in the chunk; or has it mapped since before the secrets were removed.
 */
#include <linux/falloc.h>
#include <signal.h>
#include <stdlib.h>

#include "gaia/client.h"
#include "hostile.h"

#define PAGE 4096u
#define CHUNK (2u << 20)
#define SECRET 'S'
#define RW (PROT_READ | PROT_WRITE)

static const char *path;

/* ---- the owner ---- */

static unsigned char *map_all(int fd, int prot)
{
	unsigned char *p = gaia_mmap(CHUNK, prot, fd, 0, 0);

	CHILD_CHECK(p != MAP_FAILED);
	return p;
}

static unsigned char *store_secrets(void)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	unsigned char *p;

	CHILD_CHECK(fd >= 0);
	p = map_all(fd, RW);
	CHILD_CHECK(!gaia_acquire(p, CHUNK, RW));
	memset(p, SECRET, CHUNK);
	CHILD_CHECK(!gaia_release(p, CHUNK));
	return p;
}

/* A process of its own: what it maps goes with it. */
static int write_secrets(void *arg)
{
	(void)arg;
	store_secrets();
	return 0;
}

/* Or has gone before: what a process leaves mapped is taken from all others, too, when the daemon notices its end. */
static int write_and_unmap(void *arg)
{
	(void)arg;
	CHILD_CHECK(!gaia_munmap(store_secrets(), CHUNK));
	return 0;
}

static int write_and_die(void *arg)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	unsigned char *p;

	(void)arg;
	CHILD_CHECK(fd >= 0);
	p = map_all(fd, RW);
	CHILD_CHECK(!gaia_acquire(p, CHUNK, RW));
	memset(p, SECRET, CHUNK);
	kill(getpid(), SIGKILL);
	return 0;
}

static void truncates(int fd)
{
	cr_assert_eq(ftruncate(fd, 0), 0);
	cr_assert_eq(ftruncate(fd, CHUNK), 0);
}

static void cuts_within_a_page(int fd)
{
	cr_assert_eq(ftruncate(fd, 6), 0);
	cr_assert_eq(pwrite(fd, "      ", 6, 0), 6);
	cr_assert_eq(ftruncate(fd, CHUNK), 0);
}

static void punches(int fd)
{
	cr_assert_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, CHUNK), 0);
}

static void overwrites(int fd)
{
	char *zeros = calloc(1, CHUNK);

	cr_assert_eq(pwrite(fd, zeros, CHUNK, 0), CHUNK);
	free(zeros);
}

static void opens_anew(int fd)
{
	int again = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);

	(void)fd;
	cr_assert_geq(again, 0);
	cr_assert_eq(ftruncate(again, CHUNK), 0);
	close(again);
}

/* ---- the attacker ---- */

static unsigned secrets(const unsigned char *p)
{
	unsigned n = 0;

	for (unsigned i = 0; i < CHUNK; i++)
		n += p[i] == SECRET;
	return n;
}

static int look(void *arg)
{
	unsigned char *p;
	int fd;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	p = map_all(fd, PROT_READ);
	CHILD_CHECK(!gaia_acquire(p, 1, PROT_READ));
	shared->count = (int)secrets(p);
	return 0;
}

static struct gate removed;

/* Has used all of it, in good faith; holds nothing any more. */
static int look_after(void *arg)
{
	unsigned char *p;
	int fd;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	p = map_all(fd, PROT_READ);
	CHILD_CHECK(!gaia_acquire(p, CHUNK, PROT_READ));
	CHILD_CHECK(secrets(p) == CHUNK);
	CHILD_CHECK(!gaia_release(p, CHUNK));
	gate_open(ready);
	CHILD_CHECK(gate_pass(removed));
	shared->count = (int)secrets(p);
	return 0;
}

/* ---- the tests ---- */

static int secret_file(mode_t mode)
{
	int fd;

	/* An attacker need not use a library that keeps to the rules. */
	hostile_start((const char *[]){ "--device", "sim:16M,strict=off", NULL });
	fd = hostile_file("f", CHUNK);
	path = mnt_file(&mnt, "f");
	cr_assert_eq(fchmod(fd, mode), 0);
	return fd;
}

/* The secrets are gone from the file when all may read it. */
static void later(void (*remove_them)(int fd))
{
	int fd = secret_file(0600);

	cr_assert_eq(child_run(write_secrets, NULL), 0);
	remove_them(fd);
	cr_assert_eq(fchmod(fd, 0644), 0);
	cr_assert_eq(child_run(look, NULL), 0);
	cr_assert_eq(shared->count, 0, "%d bytes of the secret", shared->count);
	close(fd);
}

/* All may read them until they are removed; then nobody finds them in a mapping from before. */
static void meanwhile(void (*remove_them)(int fd))
{
	int fd = secret_file(0644);
	pid_t pid;
	int status;

	cr_assert_eq(child_run(write_and_unmap, NULL), 0);
	removed = gate_make();
	pid = hostile_attack(look_after);
	remove_them(fd);
	gate_open(removed);
	status = child_wait(pid);
	cr_assert_eq(status, 0, "%d", status);
	cr_assert_eq(shared->count, 0, "%d bytes of the secret", shared->count);
	close(fd);
}

EACH_WAY_BARE(leak, what_was_truncated) { later(truncates); }
EACH_WAY_BARE(leak, what_was_cut_within_a_page) { later(cuts_within_a_page); }
EACH_WAY_BARE(leak, what_was_punched) { later(punches); }
EACH_WAY_BARE(leak, what_was_overwritten) { later(overwrites); }
EACH_WAY_BARE(leak, what_was_opened_anew) { later(opens_anew); }

EACH_WAY_BARE(leak, what_the_dead_never_released)
{
	int fd = secret_file(0600);

	cr_assert_eq(child_run(write_and_die, NULL), 128 + SIGKILL);
	cr_assert_eq(fchmod(fd, 0644), 0);
	cr_assert_eq(child_run(look, NULL), 0);
	cr_assert_eq(shared->count, 0, "%d bytes of the secret", shared->count);
	close(fd);
}

EACH_WAY_BARE(leak, what_is_truncated_while_it_is_mapped) { meanwhile(truncates); }
EACH_WAY_BARE(leak, what_is_punched_while_it_is_mapped) { meanwhile(punches); }
EACH_WAY_BARE(leak, what_is_opened_anew_while_it_is_mapped) { meanwhile(opens_anew); }
