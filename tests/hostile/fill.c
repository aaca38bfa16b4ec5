/*
 * fill.c - one user fills memory: he pins what a device has. Others find room.
 */
#include "gaia/client.h"
#include "hostile.h"

#define BYTES (96ul << 20)

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

/* By one who may read only. */
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
