/*
 * storing.c - what reaches the storage by itself and on request, and what is reported of the rest.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "report.h"
#include "shell.h"
#include "ways.h"

#define PAGE 4096
#define SIZE (4 * PAGE)
#define RW (PROT_READ | PROT_WRITE)

/* Files that are cached, and so not stored before a release returns. */
static struct actor *start(const char *const *args, const char *name)
{
	char zeros[SIZE] = "";
	int fd;

	if (!mnt.dir[0])
		way_start(args);
	way_make_cached(name);
	fd = openat(mnt.backing_fd, name, O_WRONLY | O_CLOEXEC);
	cr_assert_eq(write(fd, zeros, SIZE), SIZE);
	close(fd);
	return actor_start(name, SIZE, 0);
}

static void release_page(struct actor *dev, off_t off, int byte)
{
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, off, PAGE, byte);
	actor_ok(dev, RELEASE, 0, SIZE, 0);
}

static int stored(const char *name, off_t off)
{
	int fd = openat(mnt.backing_fd, name, O_RDONLY | O_CLOEXEC);
	unsigned char byte = 0;

	cr_assert_eq(pread(fd, &byte, 1, off), 1);
	close(fd);
	return byte;
}

static void wait_for_stored(const char *name, off_t off, int byte)
{
	const struct timespec pause = { .tv_nsec = 5000000 };
	time_t end = time(NULL) + WAY_SECONDS - 20;

	while (stored(name, off) != byte) {
		cr_assert_lt(time(NULL), end, "%s was not stored", name);
		nanosleep(&pause, NULL);
	}
}

/* ---- by age ---- */

EACH_WAY_BARE(storing, what_a_device_released_outlives_the_daemon_once_it_is_old)
{
	static const char *const args[] = { "--device", "sim:8M", "--device-age", "0.05", NULL };
	struct actor *dev = start(args, "f");

	release_page(dev, PAGE, 'd');
	wait_for_stored("f", PAGE, 'd');
	mnt_crash(&mnt);
	cr_assert_eq(stored("f", PAGE), 'd');
	actor_kill(dev);
	both_close();
	mnt_stop(&mnt);
}

EACH_WAY_BARE(storing, the_writeback_age_is_that_of_devices_unless_they_have_their_own)
{
	static const char *const args[] = { "--device", "sim:8M", "--writeback-age", "0.05", NULL };
	struct actor *dev = start(args, "f");

	release_page(dev, 0, 'd');
	wait_for_stored("f", 0, 'd');
	actor_end(dev);
}

/* ---- on request ---- */

static const char *const later[] = { "--device", "sim:8M", "--writeback-age", "3600", NULL };

EACH_WAY_BARE(storing, what_is_only_on_devices_is_counted_and_flushed_with_the_mount)
{
	struct actor *dev = start(later, "f");
	int fd;

	release_page(dev, PAGE, 'd');
	cr_assert_eq(stored("f", PAGE), 0);
	cr_assert_eq(STATUS("only_on_devices_bytes"), PAGE);
	cr_assert_eq(STATUS("dirty_bytes"), PAGE);
	fd = openat(both_root[ON_MOUNT], "g", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, "w", 1), 1);
	shell_ok(mnt.path, "\"$GAIA\" flush .");
	cr_assert_eq(stored("f", PAGE), 'd');
	cr_assert_eq(stored("g", 0), 'w');
	cr_assert_eq(STATUS("dirty_bytes"), 0);
	close(fd);
	actor_end(dev);
}

EACH_WAY_BARE(storing, a_file_and_a_directory_are_flushed_with_what_devices_released)
{
	struct actor *f = start(later, "f"), *g;
	struct shell_result r;

	cr_assert_eq(mkdirat(mnt.backing_fd, "d", 0755), 0);
	g = start(NULL, "d/g");
	release_page(f, 0, '1');
	release_page(g, 0, '1');
	shell_ok(mnt.path, "\"$GAIA\" flush f");
	cr_assert_eq(stored("f", 0), '1');
	cr_assert_eq(stored("d/g", 0), 0);
	release_page(f, 0, '2');
	shell_ok(mnt.path, "\"$GAIA\" flush -r d");
	cr_assert_eq(stored("d/g", 0), '1');
	cr_assert_eq(stored("f", 0), '1');
	shell_ok(mnt.path, "mkfifo pipe && \"$GAIA\" flush -r .");
	cr_assert_eq(stored("f", 0), '2');
	/* A directory needs -r. */
	r = shell_run(mnt.path, 30, "\"$GAIA\" flush d");
	cr_assert_eq(r.status, 1);
	cr_assert(strstr(r.err, "-r"), "%s", r.err);
	shell_free(&r);
	actor_end(f);
	actor_end(g);
}

/* Of a FUSE file system the kernel sends its own pages only, and waits for none of the daemon's. */
EACH_WAY_BARE(storing, syncfs_leaves_on_devices_what_they_released)
{
	struct actor *dev = start(later, "f");
	int fd;

	release_page(dev, PAGE, 'd');
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_CLOEXEC);
	cr_assert_eq(syncfs(fd), 0, "%s", strerror(errno));
	cr_assert_eq(stored("f", PAGE), 0);
	cr_assert_eq(STATUS("only_on_devices_bytes"), PAGE);
	shell_ok(mnt.path, "sync -f f");
	cr_assert_eq(STATUS("only_on_devices_bytes"), PAGE);
	cr_assert_eq(fsync(fd), 0, "%s", strerror(errno));
	cr_assert_eq(stored("f", PAGE), 'd');
	cr_assert_eq(STATUS("only_on_devices_bytes"), 0);
	close(fd);
	actor_end(dev);
}

/* A daemon whose storage takes nothing, or not for some attempts, and what a device has released there. */
static void release_to_bad_disk(const char *faults, const char *timeout)
{
	const char *args[] = { "--device", "sim:8M", "--writeback-age", "3600", "--unmount-timeout", timeout, NULL };
	struct actor *dev;

	setenv("GAIAFS_FAULTS", faults, 1);
	dev = start(args, "f");
	unsetenv("GAIAFS_FAULTS");
	release_page(dev, PAGE, 'd');
	actor_end(dev);
	both_close();
}

static int lines_in_log(const char *text)
{
	char line[PATH_MAX + 512];
	FILE *f = fopen(mnt.log, "re");
	int n = 0;

	cr_assert_not_null(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, text) != NULL;
	fclose(f);
	return n;
}

static int wait_for_end(void)
{
	int status = mnt_wait(&mnt);

	cr_assert(WIFEXITED(status), "wait status %x", status);
	return WEXITSTATUS(status);
}

static void end_of_test(void)
{
	cr_assert_eq(mnt_stop(&mnt), 0);
}

/* What a shell's command says on standard error. */
static void says(const char *text, int status, const char *command)
{
	struct shell_result r = shell_run("/", WAY_SECONDS - 20, "%s", command);

	cr_assert_eq(r.status, status, "%s: status %d: %s", command, r.status, r.err);
	cr_assert(strstr(r.err, text), "%s: no \"%s\" in: %s", command, text, r.err);
	shell_free(&r);
}

static const char *umount_command(const char *option)
{
	static char command[PATH_MAX + 64];

	snprintf(command, sizeof(command), "\"$GAIA\" umount %s '%s'", option, mnt.path);
	return command;
}

static const char *file_and_error(void)
{
	static char text[PATH_MAX + 128];

	snprintf(text, sizeof(text), "%s/f: 4 KiB not stored: %s", mnt.path, strerror(EIO));
	return text;
}

EACH_WAY_BARE(storing, gaia_umount_names_what_cannot_be_stored_and_keeps_the_mount)
{
	release_to_bad_disk(BAD_DISK ",count=2", "0");
	says(file_and_error(), 1, umount_command(""));
	says("not unmounted", 1, umount_command(""));
	/* Programs can still read it. */
	shell_ok("/", "test \"$(dd if='%s/f' bs=1 skip=%d count=1 status=none)\" = d", mnt.path, PAGE);
	cr_assert_eq(stored("f", PAGE), 0);
	shell_ok("/", "%s", umount_command(""));
	cr_assert_eq(stored("f", PAGE), 'd');
	cr_assert_eq(wait_for_end(), 0);
	end_of_test();
}

/* With noatime, files are opened below a clone of the source's mount, where their paths are others. */
EACH_WAY_BARE(storing, without_access_times_names_are_the_same)
{
	static const char *const args[] = { "--device", "sim:8M", "--writeback-age", "3600", "-o", "noatime", NULL };
	struct actor *dev;

	setenv("GAIAFS_FAULTS", BAD_DISK ",count=1", 1);
	dev = start(args, "f");
	unsetenv("GAIAFS_FAULTS");
	release_page(dev, PAGE, 'd');
	actor_end(dev);
	both_close();
	says(file_and_error(), 1, umount_command(""));
	shell_ok("/", "%s", umount_command(""));
	cr_assert_eq(wait_for_end(), 0);
	end_of_test();
}

EACH_WAY_BARE(storing, gaia_umount_discards_what_it_is_told_to_and_names_it)
{
	release_to_bad_disk(BAD_DISK, "3600");
	says(file_and_error(), 0, umount_command("--discard"));
	cr_assert_eq(wait_for_end(), 1);
	cr_assert_eq(lines_in_log("/f: some of what was written could not be stored and is lost"), 1);
	end_of_test();
}

/* Its socket belongs to a network namespace, the mount does not: a daemon out of reach is not a dead one. */
EACH_WAY_BARE(storing, gaia_umount_keeps_a_mount_whose_daemon_it_cannot_reach)
{
	struct actor *dev;
	char command[PATH_MAX + 128];
	int fd;

	if (geteuid() != 0)
		WAY_SKIP("a network namespace needs root");
	dev = start(later, "f");
	release_page(dev, PAGE, 'd');
	actor_end(dev);
	fd = openat(both_root[ON_MOUNT], "g", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, "w", 1), 1);
	snprintf(command, sizeof(command), "unshare --net %s", umount_command(""));
	says("network namespace", 1, command);
	/* The connection is as it was. */
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	shell_ok("/", "test \"$(dd if='%s/f' bs=1 skip=%d count=1 status=none)\" = d", mnt.path, PAGE);
	both_close();
	snprintf(command, sizeof(command), "unshare --net %s", umount_command("--discard"));
	says("could not be asked", 0, command);
	cr_assert_eq(wait_for_end(), 0);
	cr_assert_eq(stored("f", PAGE), 'd');
	cr_assert_eq(stored("g", 0), 'w');
	end_of_test();
}

/* umount -l, umount -i, fusermount3 -u: nobody asks first. */
EACH_WAY_BARE(storing, a_daemon_that_was_not_asked_stays_until_everything_is_stored)
{
	release_to_bad_disk(BAD_DISK ",count=3", "3600");
	cr_assert_eq(mnt_unmount(&mnt), 0);
	cr_assert_eq(stored("f", PAGE), 'd');
	end_of_test();
}

EACH_WAY_BARE(storing, a_daemon_that_was_not_asked_gives_up_in_the_end_and_names_what_is_lost)
{
	release_to_bad_disk(BAD_DISK, "0.3");
	cr_assert_eq(mnt_unmount(&mnt), -1);
	cr_assert_eq(lines_in_log("/f: some of what was written could not be stored and is lost"), 1);
	cr_assert_eq(lines_in_log("file 0x"), 0);
	end_of_test();
}

EACH_WAY_BARE(storing, a_signal_ends_a_mount_when_all_is_stored_and_a_second_one_at_once)
{
	const struct timespec pause = { .tv_nsec = 5000000 };

	release_to_bad_disk(BAD_DISK, "3600");
	kill(mnt.daemon, SIGTERM);
	for (time_t end = time(NULL) + 60; !lines_in_log("tried again for 3600 s"); nanosleep(&pause, NULL))
		cr_assert_lt(time(NULL), end, "the daemon does not say that it tries again");
	/* Programs can still read it. */
	shell_ok("/", "test \"$(dd if='%s/f' bs=1 skip=%d count=1 status=none)\" = d", mnt.path, PAGE);
	kill(mnt.daemon, SIGTERM);
	cr_assert_eq(wait_for_end(), 1);
	cr_assert_eq(lines_in_log("/f: some of what was written could not be stored and is lost"), 1);
	end_of_test();
}
