/*
 * fill.c - one user fills memory. The daemon has to keep bytes: the bases of what devices hold for writing and CPU
 * programs write over. Home keeps to its budget, and what devices wrote is not lost. Or the user pins what a device has:
 * others find room.
 */
#include "gaia/client.h"
#include "hostile.h"
#include "report.h"

#define HOME (16l << 20)
#define BYTES (96ul << 20)
/* What twelve requests under way may have beyond the budget: a MiB each, and as much that is kept. */
#define RESERVE (24l << 20)

static const char *const small_home[] = { "--home", "16M", "--device", "sim:128M", "--device", "sim:128M", NULL };

static _Alignas(4096) char block[1 << 20]; /* as O_DIRECT wants it */

/* On each page a byte is the device's, which nobody else writes. */
static unsigned char *map_all(int fd, unsigned device)
{
	unsigned char *p = gaia_mmap(BYTES, PROT_READ | PROT_WRITE, fd, 0, (int)device);

	CHILD_CHECK(p != MAP_FAILED);
	return p;
}

/* Acquire as much as there is. How many bytes that was. */
static size_t hold_all(unsigned char *p, unsigned device)
{
	size_t held = 0;

	while (held < BYTES && !gaia_acquire(p + held, GAIA_CHUNK, PROT_READ | PROT_WRITE))
		held += GAIA_CHUNK;
	CHILD_CHECK(held == BYTES || errno == ENOMEM);
	for (size_t at = device; at < held; at += GAIA_PAGE)
		p[at] = (unsigned char)(1 + device);
	return held;
}

static void overwrite_all(int fd)
{
	for (size_t at = 0; at < BYTES; at += sizeof(block)) {
		memset(block, (int)(3 + (at >> 20)), sizeof(block));
		for (size_t page = 0; page < sizeof(block); page += GAIA_PAGE)
			memset(block + page, 0, 2);
		CHILD_CHECK(pwrite(fd, block, sizeof(block), (off_t)at) == sizeof(block));
	}
	CHILD_CHECK(!fdatasync(fd));
}

static struct {
	unsigned devices;
	int flags; /* of the descriptor that is written to */
} attack;

static int make_bases(void *arg)
{
	unsigned char *p[2], byte;
	size_t held[2];
	int fd, to;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open(mnt_file(&mnt, "f"), O_RDWR | O_CLOEXEC);
	to = open(mnt_file(&mnt, "f"), O_RDWR | O_CLOEXEC | attack.flags);
	CHILD_CHECK(fd >= 0 && to >= 0);
	for (unsigned d = 0; d < attack.devices; d++) {
		p[d] = map_all(fd, d);
		held[d] = hold_all(p[d], d);
		hostile_add(&shared->count);
	}
	shared->more = (int)(held[0] / GAIA_CHUNK);
	overwrite_all(to);
	/* Only an acquire notices what was written to a passed-through file. Of others it would drop the bases. */
	for (unsigned d = 0; d < attack.devices && way_is("auto"); d++)
		CHILD_CHECK(!gaia_acquire(p[d], held[d], PROT_READ));
	gate_open(ready);
	/* The test has looked. */
	while (!shared->stop)
		usleep(1000);
	for (unsigned d = 0; d < attack.devices; d++)
		CHILD_CHECK(!gaia_release(p[d], held[d]));
	for (unsigned d = 0; d < attack.devices; d++)
		for (size_t at = 0; at < held[d]; at += GAIA_PAGE) {
			CHILD_CHECK(pread(fd, &byte, 1, (off_t)(at + d)) == 1 && byte == 1 + d);
			CHILD_CHECK(pread(fd, &byte, 1, (off_t)at + 100) == 1);
			CHILD_CHECK(byte == (unsigned char)(3 + (at >> 20)));
		}
	return 0;
}

static void bases_leave_room(unsigned devices, int flags)
{
	pid_t pid;
	int fd;

	attack.devices = devices;
	attack.flags = flags;
	hostile_start(small_home);
	fd = hostile_file("f", BYTES);
	cr_assert_eq(fchmod(fd, 0666), 0);
	close(fd);
	pid = hostile_attack(make_bases);
	cr_assert_eq(STATUS("home", "twins_limit"), HOME / 4);
	cr_assert_leq(STATUS("home", "twins"), HOME / 4 + RESERVE);
	cr_assert_leq(STATUS("home", "used"), HOME + RESERVE);
	/* What is held of a passed-through file needs home. */
	if (way_is("auto"))
		cr_assert_leq(shared->more, HOME / GAIA_CHUNK);
	else
		cr_assert_eq(shared->more, BYTES / GAIA_CHUNK);
	shared->stop = true;
	cr_assert_eq(child_wait(pid), 0);
	cr_assert_eq(STATUS("home", "twins"), 0);
}

EACH_WAY_BARE(fill, twins)
{
	bases_leave_room(1, 0);
}

EACH_WAY_BARE(fill, twins_of_what_is_written_directly)
{
	bases_leave_room(1, O_DIRECT);
}

/* What one of them released is merged while the other holds it, so that is kept, too. */
EACH_WAY_BARE(fill, twins_of_two_devices)
{
	bases_leave_room(2, 0);
}

/* ---- device memory ---- */

static int pin_all(void *arg)
{
	unsigned char *p;
	int fd;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open(mnt_file(&mnt, "f"), O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	p = gaia_mmap(BYTES, PROT_READ, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	while (shared->count < (int)(BYTES / GAIA_CHUNK) &&
	       !gaia_acquire(p + (size_t)shared->count * GAIA_CHUNK, GAIA_CHUNK, PROT_READ))
		shared->count++;
	shared->error = errno;
	hostile_keep();
}

static int one_acquires(void *arg)
{
	unsigned char *p;
	int fd;

	child_become(*(uid_t *)arg, *(uid_t *)arg);
	fd = open(mnt_file(&mnt, "g"), O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	p = gaia_mmap(2 * GAIA_CHUNK, PROT_READ, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(!gaia_acquire(p, 2 * GAIA_CHUNK, PROT_READ));
	return 0;
}

/* By a user who may only read. */
EACH_WAY_BARE(fill, device_memory)
{
	static const char *const small_device[] = { "--device", "sim:32M", NULL };
	uid_t somebody = SOMEBODY, root = 0;
	pid_t pid;

	hostile_start(small_device);
	close(hostile_file("f", BYTES));
	close(hostile_file("g", 2 * GAIA_CHUNK));
	pid = hostile_attack(pin_all);
	cr_assert_eq(shared->count, 12, "%d chunks of 16, then %s", shared->count, strerror(shared->error));
	cr_assert_eq(shared->error, ENOMEM);
	cr_assert_eq(child_run(one_acquires, &somebody), 0);
	cr_assert_eq(child_run(one_acquires, &root), 0);
	child_kill(pid);
}
