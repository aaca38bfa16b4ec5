/*
 * pins.c - a user pins files to a device, or tries to: others find room, and what is theirs stays.
 */
#include <sys/ioctl.h>

#include "gaia/client.h"
#include "gaia/protocol.h"
#include "hostile.h"
#include "report.h"
#include "shell.h"

#define MIB (1ul << 20)

/* In one way of caching, since they make no difference. */
static int n_calls(void)
{
	return way_is("writeback") ? 100000 : 1000;
}

static int place(int fd, unsigned what, size_t length)
{
	struct gaia_ioc_place io = { .what = what, .length = length };

	return ioctl(fd, GAIA_IOC_PLACE, &io) ? errno : 0;
}

static int open_as_nobody(const char *name, int flags)
{
	int fd = open(mnt_file(&mnt, name), flags | O_CLOEXEC);

	CHILD_CHECK(fd >= 0);
	return fd;
}

/* What somebody needs while a user attacks: most of the device. */
static int use_the_device(void *arg)
{
	size_t bytes = *(size_t *)arg;
	unsigned char *p;
	int fd;

	child_become(SOMEBODY, SOMEBODY);
	fd = open_as_nobody("theirs", O_RDONLY);
	p = gaia_mmap(bytes, PROT_READ, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(!gaia_acquire(p, bytes, PROT_READ));
	CHILD_CHECK(p[0] == 't');
	CHILD_CHECK(!gaia_release(p, bytes));
	return 0;
}

static void make_theirs(void)
{
	int fd = hostile_file("theirs", 64 * MIB);

	cr_assert_eq(pwrite(fd, "t", 1, 0), 1);
	close(fd);
}

/* ---- by default ---- */

static int pins_all_the_time(void *arg)
{
	int fd;

	(void)arg;
	hostile_become();
	fd = open_as_nobody("f", O_RDONLY);
	for (int k = 0; k < n_calls(); k++)
		CHILD_CHECK(place(fd, GAIA_PLACE_PIN, 0) == EPERM);
	CHILD_CHECK(place(fd, GAIA_PLACE_UNPIN, 0) == ENOENT);
	return 0;
}

EACH_WAY_BARE(pins, are_not_for_users)
{
	static const char *const args[] = { "--device", "sim:64M", "--home", "32M", NULL };
	size_t bytes = 32 * MIB;
	int fd;

	hostile_start(args);
	make_theirs();
	fd = hostile_file("f", 16 * MIB);
	cr_assert_eq(place(fd, GAIA_PLACE_PIN, 0), 0);
	cr_assert_eq(child_run(pins_all_the_time, NULL), 0);
	cr_assert_eq(STATUS("devices", "0", "pinned_files_bytes"), (long)(16 * MIB), "root's is there");
	cr_assert_eq(child_run(use_the_device, &bytes), 0);
	close(fd);
}

/* ---- where they may ---- */

static const char *const users_may[] = { "--device", "sim:64M", "--home", "32M", "--user-limit", "pinned=25", NULL };

/* Files of nobody's, more than a user may pin; then one that somebody needs, also held. */
static int pins_beyond_the_share(void *arg)
{
	char name[16];
	int fd, n = 0, err = 0;

	(void)arg;
	hostile_become();
	for (int k = 0; k < 16 && !err; k++) {
		snprintf(name, sizeof(name), "n%d", k);
		fd = open_as_nobody(name, O_RDWR);
		err = place(fd, GAIA_PLACE_PIN, 0);
		n += !err;
		CHILD_CHECK(err || !place(fd, GAIA_PLACE_FILL, 4 * MIB));
	}
	CHILD_CHECK(err == EDQUOT && n == 4);
	/* As often as they like. */
	fd = open_as_nobody("n0", O_RDONLY);
	for (int k = 0; k < n_calls(); k++)
		CHILD_CHECK(place(fd, GAIA_PLACE_PIN, 0) == 0);
	fd = open_as_nobody("theirs", O_RDONLY);
	CHILD_CHECK(place(fd, GAIA_PLACE_PIN, 0) == EDQUOT);
	/* Another's is not theirs to end. */
	fd = open_as_nobody("roots", O_RDONLY);
	CHILD_CHECK(place(fd, GAIA_PLACE_UNPIN, 0) == ENOENT);
	/* Longer than the device. */
	fd = open_as_nobody("n15", O_RDWR);
	CHILD_CHECK(!ftruncate(fd, 1l << 40));
	CHILD_CHECK(place(fd, GAIA_PLACE_PIN, 0) == EDQUOT);
	hostile_keep();
}

/* As gaia pin does when it cannot bring the contents. */
static void undo_roots_pin(const char *name)
{
	struct gaia_ioc_place io = { .what = GAIA_PLACE_UNPIN, .flags = GAIA_PLACE_MINE };
	int fd = open(mnt_file(&mnt, name), O_RDONLY | O_CLOEXEC);

	cr_assert_eq(place(fd, GAIA_PLACE_PIN, 0), 0);
	cr_assert_eq(ioctl(fd, GAIA_IOC_PLACE, &io), 0);
	close(fd);
}

EACH_WAY_BARE(pins, of_users_leave_others_their_room)
{
	size_t bytes = 40 * MIB;
	char name[16];
	json_t *pins;
	int roots;
	pid_t pid;

	hostile_start(users_may);
	make_theirs();
	roots = hostile_file("roots", 4 * MIB);
	cr_assert_eq(place(roots, GAIA_PLACE_PIN, 0), 0);
	for (int k = 0; k < 16; k++) {
		snprintf(name, sizeof(name), "n%d", k);
		close(hostile_file(name, 4 * MIB));
		cr_assert_eq(chown(mnt_file(&mnt, name), NOBODY, NOBODY), 0);
	}
	pid = hostile_attack(pins_beyond_the_share);
	cr_assert_eq(STATUS("devices", "0", "pinned_files_bytes"), (long)(20 * MIB));
	cr_assert_eq(child_run(use_the_device, &bytes), 0);
	/* Root sees whose they are, and can end them. They outlive the attacker, and a pin of root's own that is undone. */
	child_kill(pid);
	undo_roots_pin("n0");
	pins = report("pins", ".");
	cr_assert_eq(json_array_size(json_object_get(pins, "pins")), 5u);
	json_decref(pins);
	for (int k = 0; k < 4; k++) {
		int fd;

		snprintf(name, sizeof(name), "n%d", k);
		fd = open(mnt_file(&mnt, name), O_RDONLY | O_CLOEXEC);
		cr_assert_eq(place(fd, GAIA_PLACE_UNPIN, 0), 0);
		close(fd);
	}
	cr_assert_eq(STATUS("devices", "0", "pinned_files_bytes"), (long)(4 * MIB));
	close(roots);
}

/* ---- files that the user may not read ---- */

static int pins_what_is_not_readable(void *arg)
{
	int fd;

	(void)arg;
	hostile_become();
	CHILD_CHECK(open(mnt_file(&mnt, "secret"), O_RDONLY) == -1 && errno == EACCES);
	/* A descriptor by which one may write shows no right to read. */
	fd = open_as_nobody("secret", O_WRONLY);
	CHILD_CHECK(place(fd, GAIA_PLACE_PIN, 0) == EACCES);
	CHILD_CHECK(place(fd, GAIA_PLACE_WARM, MIB) == EACCES);
	CHILD_CHECK(place(fd, GAIA_PLACE_LOOK, 0) == EACCES);
	fd = open(mnt_file(&mnt, "secret"), O_PATH | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && place(fd, GAIA_PLACE_PIN, 0) == EBADF);
	return 0;
}

EACH_WAY_BARE(pins, take_the_right_to_read)
{
	int fd;

	hostile_start(users_may);
	fd = hostile_file("secret", 2 * MIB);
	cr_assert_eq(fchmod(fd, 0622), 0);
	cr_assert_eq(child_run(pins_what_is_not_readable, NULL), 0);
	cr_assert_eq(STATUS("devices", "0", "pinned_files_bytes"), 0);
	close(fd);
}

/* ---- on a device that cannot keep readers from writing: they have copies of their own, made from what is pinned ---- */

static int reads_what_is_pinned(void *arg)
{
	size_t bytes = *(size_t *)arg;
	unsigned char *p;
	int fd;

	hostile_become();
	fd = open_as_nobody("theirs", O_RDONLY);
	p = gaia_mmap(bytes, PROT_READ, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(!gaia_acquire(p, bytes, PROT_READ));
	CHILD_CHECK(p[0] == 't' && p[bytes - 1] == 0);
	return 0;
}

EACH_WAY_BARE(pins, serve_users_who_may_only_read)
{
	static const char *const args[] = { "--device", "sim:128M,readonly=off", "--home", "16M", NULL };
	size_t bytes = 64 * MIB;
	long sent, reads;

	hostile_start(args);
	make_theirs();
	shell_ok(mnt.path, "\"$GAIA\" pin theirs && \"$GAIA\" evict theirs --from home");
	sent = STATUS("counters", "home_to_device");
	reads = STATUS("counters", "storage_reads");
	for (int k = 1; k <= 3; k++) {
		cr_assert_eq(child_run(reads_what_is_pinned, &bytes), 0);
		/* The next one would share its copy. */
		hostile_await_end_of_mapping();
		cr_assert_eq(STATUS("counters", "device_within"), k * (long)(bytes / 4096));
	}
	cr_assert_eq(STATUS("counters", "home_to_device"), sent);
	cr_assert_eq(STATUS("counters", "storage_reads"), reads);
	shell_ok(mnt.path, "\"$GAIA\" unpin theirs");
}

/* ---- many, at once ---- */

static int pins_and_unpins(void *arg)
{
	char name[16];
	int fd, err;

	hostile_become();
	snprintf(name, sizeof(name), "n%d", *(int *)arg);
	fd = open_as_nobody(name, O_RDWR);
	for (int k = 0; k < 1000; k++) {
		err = place(fd, GAIA_PLACE_PIN, 0);
		CHILD_CHECK(err == 0 || err == EDQUOT || err == ENOMEM);
		err = place(fd, GAIA_PLACE_WARM, 4 * MIB);
		CHILD_CHECK(err == 0 || err == ENOMEM);
		CHILD_CHECK(!ftruncate(fd, (off_t)(k % 3 * MIB)));
		err = place(fd, GAIA_PLACE_UNPIN, 0);
		CHILD_CHECK(err == 0 || err == ENOENT);
	}
	return 0;
}

EACH_WAY_BARE(pins, by_many_at_once_leave_nothing)
{
	int who[6] = { 0, 1, 2, 3, 4, 0 };
	size_t bytes = 8 * MIB; /* a user may have three quarters of the device, all users seven eighths */
	pid_t pid[6];
	char name[16];

	hostile_start(users_may);
	make_theirs();
	for (int k = 0; k < 5; k++) {
		snprintf(name, sizeof(name), "n%d", k);
		close(hostile_file(name, 4 * MIB));
		cr_assert_eq(chown(mnt_file(&mnt, name), NOBODY, NOBODY), 0);
	}
	for (int k = 0; k < 6; k++)
		pid[k] = child_start(pins_and_unpins, &who[k]);
	for (int k = 0; k < 5; k++)
		cr_assert_eq(child_run(use_the_device, &bytes), 0);
	for (int k = 0; k < 6; k++)
		cr_assert_eq(child_wait(pid[k]), 0);
	cr_assert_eq(STATUS("devices", "0", "pinned_files_bytes"), 0);
}
