/*
 * leak.c - a file has held secrets, which a device was given, and which were removed before all may read it. Another user maps the
 * file, acquires its first page, and looks at all else in the chunk; or has it mapped since before the secrets were removed.
 *
 * Each test runs with a device that readers share; with one that cannot keep readers from writing, so that they have a replica of
 * their own; with two, both of which were given the secrets, and are looked at; and with the host beside one, where readers map the
 * daemon's own memory.
 */
#include <linux/falloc.h>
#include <signal.h>
#include <stdlib.h>

#include "gaia/client.h"
#include "hostile.h"

#define PAGE 4096u
#define CHUNK (2u << 20)
#define SECRET 'S'
#define RELEASED 'R'
#define RW (PROT_READ | PROT_WRITE)

static const char *path;

static const char *const one_device[] = { "--device", "sim:16M,strict=off", NULL };
static const char *const replica_of_ones_own[] = { "--device", "sim:16M,strict=off,readonly=off", NULL };
static const char *const two_devices[] = { "--device", "sim:16M,strict=off", "--device", "sim:16M,strict=off", NULL };

/* An attacker need not use a library that keeps to the rules: the devices are not strict. */
static const char *const *args;
static int devices;
static bool with_host; /* it is the last one */

/* ---- the owner ---- */

static unsigned char *map_all(int fd, int prot, int device)
{
	unsigned char *p = gaia_mmap(CHUNK, prot, fd, 0, with_host && device == devices - 1 ? GAIA_DEVICE_HOST : device);

	CHILD_CHECK(p != MAP_FAILED);
	return p;
}

struct owner {
	int fd;
	unsigned char *p[2]; /* by device */
};

static void owner_begin(struct owner *o)
{
	o->fd = open(path, O_RDWR | O_CLOEXEC);
	CHILD_CHECK(o->fd >= 0);
	for (int d = 0; d < devices; d++)
		o->p[d] = map_all(o->fd, RW, d);
}

/* By the first device, and all have it. */
static void store(const struct owner *o, int byte)
{
	CHILD_CHECK(!gaia_acquire(o->p[0], CHUNK, RW));
	memset(o->p[0], byte, CHUNK);
	CHILD_CHECK(!gaia_release(o->p[0], CHUNK));
	for (int d = 1; d < devices; d++) {
		/* On the host the one is a copy, and the other home. */
		CHILD_CHECK(!gaia_acquire(o->p[d], CHUNK, RW));
		CHILD_CHECK(o->p[d][0] == byte && o->p[d][CHUNK - 1] == byte);
		CHILD_CHECK(!gaia_release(o->p[d], CHUNK));
		CHILD_CHECK(!gaia_acquire(o->p[d], CHUNK, PROT_READ));
		CHILD_CHECK(o->p[d][0] == byte && o->p[d][CHUNK - 1] == byte);
		CHILD_CHECK(!gaia_release(o->p[d], CHUNK));
	}
}

/* A process of its own: what it maps goes with it. */
static int write_secrets(void *arg)
{
	struct owner o;

	(void)arg;
	owner_begin(&o);
	store(&o, SECRET);
	return 0;
}

/* Or has gone before: what a process leaves mapped is taken from all others, too, when the daemon notices its end. */
static int write_and_unmap(void *arg)
{
	struct owner o;

	(void)arg;
	owner_begin(&o);
	store(&o, SECRET);
	for (int d = 0; d < devices; d++)
		CHILD_CHECK(!gaia_munmap(o.p[d], CHUNK));
	return 0;
}

static void die_with_secrets(const struct owner *o)
{
	for (int d = 0; d < devices; d++) {
		CHILD_CHECK(!gaia_acquire(o->p[d], CHUNK, RW));
		memset(o->p[d], SECRET, CHUNK);
	}
	kill(getpid(), SIGKILL);
}

static int write_and_die(void *arg)
{
	struct owner o;

	(void)arg;
	owner_begin(&o);
	die_with_secrets(&o);
	return 0;
}

static int release_write_and_die(void *arg)
{
	struct owner o;

	(void)arg;
	owner_begin(&o);
	store(&o, RELEASED);
	die_with_secrets(&o);
	return 0;
}

static struct gate over;

/* Also the owner's. It harms nobody; but the chunk stays where it is. */
static int hold_a_page(void *arg)
{
	struct owner o;

	(void)arg;
	owner_begin(&o);
	for (int d = 0; d < devices; d++)
		CHILD_CHECK(!gaia_acquire(o.p[d] + 9 * PAGE, 1, PROT_READ));
	gate_open(ready);
	CHILD_CHECK(gate_pass(over));
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

static unsigned count(const unsigned char *p, int byte)
{
	unsigned n = 0;

	for (unsigned i = 0; i < CHUNK; i++)
		n += p[i] == byte;
	return n;
}

static int open_to_read(void)
{
	int fd;

	child_become(NOBODY, NOBODY);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	return fd;
}

static void look_by(int fd)
{
	for (int d = 0; d < devices; d++) {
		unsigned char *p = map_all(fd, PROT_READ, d);

		CHILD_CHECK(!gaia_acquire(p, 1, PROT_READ));
		shared->count += (int)count(p, SECRET);
	}
}

static int look(void *arg)
{
	(void)arg;
	look_by(open_to_read());
	return 0;
}

/* And finds everywhere what was released. */
static int look_and_read(void *arg)
{
	unsigned char *p, *bytes = malloc(CHUNK);
	int fd = open_to_read();

	(void)arg;
	look_by(fd);
	for (int d = 0; d < devices; d++) {
		p = map_all(fd, PROT_READ, d);
		CHILD_CHECK(!gaia_acquire(p, CHUNK, PROT_READ));
		CHILD_CHECK(count(p, RELEASED) == CHUNK);
	}
	CHILD_CHECK(pread(fd, bytes, CHUNK, 0) == CHUNK);
	CHILD_CHECK(count(bytes, RELEASED) == CHUNK);
	free(bytes);
	return 0;
}

static struct gate removed;

/* Has used all of it, in good faith; holds nothing any more. */
static int look_after(void *arg)
{
	unsigned char *p[2];
	int fd = open_to_read();

	(void)arg;
	for (int d = 0; d < devices; d++) {
		p[d] = map_all(fd, PROT_READ, d);
		CHILD_CHECK(!gaia_acquire(p[d], CHUNK, PROT_READ));
		CHILD_CHECK(count(p[d], SECRET) == CHUNK);
		CHILD_CHECK(!gaia_release(p[d], CHUNK));
	}
	gate_open(ready);
	CHILD_CHECK(gate_pass(removed));
	for (int d = 0; d < devices; d++)
		shared->count += (int)count(p[d], SECRET);
	return 0;
}

/* ---- the tests ---- */

static int secret_file(mode_t mode)
{
	int fd;

	hostile_start(args);
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

/* The owner stores the secrets, and ends, with all of them held. @holds: another process of the owner's holds one of the pages. */
static void of_the_dead(int (*write_and_end)(void *), int (*look_at_it)(void *), bool holds)
{
	int fd = secret_file(0600);
	pid_t holder = 0;

	over = gate_make();
	if (holds)
		holder = hostile_attack(hold_a_page);
	cr_assert_eq(child_run(write_and_end, NULL), 128 + SIGKILL);
	cr_assert_eq(fchmod(fd, 0644), 0);
	cr_assert_eq(child_run(look_at_it, NULL), 0);
	cr_assert_eq(shared->count, 0, "%d bytes of the secret", shared->count);
	gate_open(over);
	if (holds)
		cr_assert_eq(child_wait(holder), 0);
	close(fd);
}

static void with(const char *const *devices_args, int n)
{
	args = devices_args;
	devices = n;
}

static void with_the_host(void)
{
	with(one_device, 2);
	with_host = true;
}

#define EACH_DEVICE(name, call)                                                                     \
	EACH_WAY_BARE(leak, name) { with(one_device, 1); call; }                                    \
	EACH_WAY_BARE(leak, name##_in_a_replica_of_ones_own) { with(replica_of_ones_own, 1); call; } \
	EACH_WAY_BARE(leak, name##_with_two_devices) { with(two_devices, 2); call; }                \
	EACH_WAY_BARE(leak, name##_with_the_host) { with_the_host(); call; }

EACH_DEVICE(what_was_truncated, later(truncates))
EACH_DEVICE(what_was_cut_within_a_page, later(cuts_within_a_page))
EACH_DEVICE(what_was_punched, later(punches))
EACH_DEVICE(what_was_overwritten, later(overwrites))
EACH_DEVICE(what_was_opened_anew, later(opens_anew))

EACH_DEVICE(what_is_truncated_while_it_is_mapped, meanwhile(truncates))
EACH_DEVICE(what_is_punched_while_it_is_mapped, meanwhile(punches))
EACH_DEVICE(what_is_opened_anew_while_it_is_mapped, meanwhile(opens_anew))

EACH_DEVICE(what_the_dead_never_released, of_the_dead(write_and_die, look, false))
EACH_DEVICE(what_the_dead_never_released_while_another_holds_a_page, of_the_dead(write_and_die, look, true))
EACH_DEVICE(what_the_dead_stored_over_what_they_had_released, of_the_dead(release_write_and_die, look_and_read, false))
EACH_DEVICE(what_the_dead_stored_while_another_holds_a_page, of_the_dead(release_write_and_die, look_and_read, true))
