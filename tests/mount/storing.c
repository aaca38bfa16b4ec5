/*
 * storing.c - what reaches the storage by itself and on request, and what is reported of the rest.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "own_mounts.h"
#include "report.h"
#include "shell.h"
#include "tree.h"
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

/* ---- the end ---- */

#define BAD_DISK "store.write=errno:EIO"

/* A daemon whose storage takes nothing, or not for some attempts, and what a device has released there. */
static void release_to_bad_disk(const char *faults, const char *timeout)
{
	const char *args[] = { "--device", "sim:8M", "--writeback-age", "3600", "--unmount-timeout", timeout, NULL };
	struct actor *dev;

	setenv("GAIAFS_FAULTS", faults, 1);
	dev = start(args, "f");
	unsetenv("GAIAFS_FAULTS");
	release_page(dev, PAGE, 'd');
	both_keep("f"); /* else the daemon might try to store it before it is asked to */
	actor_end(dev);
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
	both_close();
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
	both_keep("f");
	actor_end(dev);
	says(file_and_error(), 1, umount_command(""));
	both_close();
	shell_ok("/", "%s", umount_command(""));
	cr_assert_eq(wait_for_end(), 0);
	end_of_test();
}

EACH_WAY_BARE(storing, gaia_umount_discards_what_it_is_told_to_and_names_it)
{
	release_to_bad_disk(BAD_DISK, "3600");
	both_close();
	says(file_and_error(), 0, umount_command("--discard"));
	cr_assert_eq(wait_for_end(), 1);
	cr_assert_eq(lines_in_log("/f: some of what was written could not be stored and is lost"), 1);
	end_of_test();
}

/* Its socket belongs to a network namespace, the mount does not: a daemon that may not make one there is out of reach, not dead. */
EACH_WAY_BARE(storing, gaia_umount_keeps_a_mount_whose_daemon_it_cannot_reach)
{
	struct actor *dev;
	char command[PATH_MAX + 128];
	int fd;

	if (geteuid() != 0)
		WAY_SKIP("a network namespace needs root");
	setenv("GAIAFS_FAULTS", "netns.listen=errno:EPERM", 1);
	dev = start(later, "f");
	unsetenv("GAIAFS_FAULTS");
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

/* ---- how far it is ---- */

/* Each write to the storage takes up to 2 s. Files of a page each, so that there are many. */
#define FILES 6

static void change_on_slow_disk(void)
{
	char name[8];
	int fd;

	setenv("GAIAFS_FAULTS", "store.write=delay:2000000us,seed=1", 1);
	way_start(later);
	unsetenv("GAIAFS_FAULTS");
	for (int i = 0; i < FILES; i++) {
		struct actor *dev;

		snprintf(name, sizeof(name), "f%d", i);
		way_make_cached(name);
		fd = openat(mnt.backing_fd, name, O_WRONLY | O_CLOEXEC);
		cr_assert_eq(ftruncate(fd, SIZE), 0);
		close(fd);
		dev = actor_start(name, SIZE, 0);
		release_page(dev, 0, 'd');
		actor_end(dev);
	}
	both_close();
}

static void all_is_stored(void)
{
	char name[8];

	for (int i = 0; i < FILES; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		cr_assert_eq(stored(name, 0), 'd');
	}
	cr_assert_eq(wait_for_end(), 0);
	end_of_test();
}

EACH_WAY_BARE(storing, gaia_umount_shows_on_a_terminal_how_much_is_left_and_the_rate)
{
	char said[8192], line[PATH_MAX + 64], *at, *last;
	unsigned long left, before = FILES * 4 + 1;
	bool rate = false;
	int lines = 0;

	change_on_slow_disk();
	cr_assert_eq(shell_on_terminal("/", WAY_SECONDS - 20, umount_command(""), said, sizeof(said)), 0, "%s", said);
	snprintf(line, sizeof(line), "\rgaia: %s: ", mnt.path);
	/* Each in the place of the last, and in the end nothing. */
	for (at = said; (at = strstr(at, line)); at += strlen(line)) {
		cr_assert_eq(sscanf(at + strlen(line), "%lu KiB left to store", &left), 1, "%s", at);
		cr_assert_leq(left, before, "%s", said);
		before = left;
		lines++;
	}
	cr_assert_gt(lines, 1, "%s", said);
	cr_assert_not(strchr(said, '\n'), "%s", said);
	for (at = said; (at = strstr(at, " left to store, ")); at++)
		rate = rate || sscanf(at, " left to store, %*f %*[KMGiB]/%c", (char[1]){ 0 }) == 1;
	cr_assert(rate, "no rate: %s", said);
	last = strrchr(said, '\r');
	cr_assert_str_eq(last, "\r\033[K", "%s", said);
	all_is_stored();
}

/* In a log, one line each. */
EACH_WAY_BARE(storing, gaia_umount_says_elsewhere_how_much_is_left)
{
	char line[PATH_MAX + 64];
	struct shell_result r;

	change_on_slow_disk();
	r = shell_run("/", WAY_SECONDS - 20, "%s", umount_command(""));
	cr_assert_eq(r.status, 0, "%s", r.err);
	snprintf(line, sizeof(line), "gaia: %s: ", mnt.path);
	cr_assert_eq(strncmp(r.err, line, strlen(line)), 0, "%s", r.err);
	cr_assert(strstr(r.err, " KiB left to store\n"), "%s", r.err);
	cr_assert_not(strpbrk(r.err, "\r\033"), "%s", r.err);
	shell_free(&r);
	all_is_stored();
}

/* ---- nobody asks first ---- */

/* umount -l, umount -i, fusermount3 -u: nobody asks first. */
EACH_WAY_BARE(storing, a_daemon_that_was_not_asked_stays_until_everything_is_stored)
{
	release_to_bad_disk(BAD_DISK ",count=3", "3600");
	both_close();
	cr_assert_eq(mnt_unmount(&mnt), 0);
	cr_assert_eq(stored("f", PAGE), 'd');
	end_of_test();
}

EACH_WAY_BARE(storing, a_daemon_that_was_not_asked_gives_up_in_the_end_and_names_what_is_lost)
{
	release_to_bad_disk(BAD_DISK, "0.3");
	both_close();
	cr_assert_eq(mnt_unmount(&mnt), -1);
	cr_assert_eq(lines_in_log("/f: some of what was written could not be stored and is lost"), 1);
	cr_assert_eq(lines_in_log("file 0x"), 0);
	end_of_test();
}

EACH_WAY_BARE(storing, a_signal_ends_a_mount_when_all_is_stored_and_a_second_one_at_once)
{
	const struct timespec pause = { .tv_nsec = 5000000 };

	release_to_bad_disk(BAD_DISK, "3600");
	both_close();
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

/* ---- a full source, and nobody asks first ---- */

static char full[PATH_MAX];

static void remove_full(void)
{
	way_clean_up();
	if (!full[0])
		return;
	umount2(full, MNT_DETACH);
	rmdir(full);
}

/* A place of 8 MiB without any room left, and two files that have blocks to be allocated: what a device released
 * in f; what was written to g, unless that is passed through, and fails at once. */
static int fill_source_and_change(const char *timeout)
{
	const char *args[] = { "--device", "sim:8M", "--writeback-age", "3600", "--unmount-timeout", timeout, NULL };
	struct actor *dev;
	int fd;

	if (geteuid() != 0)
		WAY_SKIP("a small file system: needs root");
	cr_assert(own_mounts(NULL));
	tree_make_temp(NULL, full);
	cr_assert_eq(mount("none", full, "tmpfs", 0, "size=8M,mode=0755"), 0, "%s", strerror(errno));
	way_start_at(full, "/tmp", args);
	way_make_cached("f");
	cr_assert_eq(ftruncate(fd = openat(mnt.backing_fd, "f", O_WRONLY | O_CLOEXEC), SIZE), 0);
	close(fd);
	close(openat(mnt.backing_fd, "g", O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
	shell_ok(mnt.backing, "! cat /dev/zero 2> /dev/null > ballast");
	dev = actor_start("f", SIZE, 0);
	release_page(dev, PAGE, 'd');
	actor_end(dev);
	if (!way_is("auto")) {
		fd = openat(both_root[ON_MOUNT], "g", O_WRONLY | O_CLOEXEC);
		cr_assert_eq(write(fd, "w", 1), 1);
		(void)close(fd);
	}
	both_close();
	return way_is("auto") ? 1 : 2;
}

static void wait_for_log(const char *text)
{
	const struct timespec pause = { .tv_nsec = 5000000 };

	for (time_t end = time(NULL) + HANG_SECONDS; !mnt_log_lines(&mnt, text); nanosleep(&pause, NULL)) {
		cr_assert_eq(waitpid(mnt.daemon, NULL, WNOHANG), 0, "the daemon has ended");
		cr_assert_lt(time(NULL), end, "the daemon does not say \"%s\"", text);
	}
}

/* @take_away takes the mount away, in all namespaces: then it is gone, and the daemon is not. */
static void stays_until_there_is_room(void (*take_away)(void))
{
	int files = fill_source_and_change("3600");
	char text[64];

	take_away();
	shell_ok("/", "! grep -F ' %s ' /proc/self/mountinfo", mnt.path);
	snprintf(text, sizeof(text), "files that cannot be stored: %d; they are tried again for 3600 s", files);
	wait_for_log(text);
	cr_assert_eq(stored("f", PAGE), 0);
	cr_assert_eq(unlinkat(mnt.backing_fd, "ballast", 0), 0);
	cr_assert_eq(wait_for_end(), 0);
	cr_assert_eq(stored("f", PAGE), 'd');
	if (files == 2)
		cr_assert_eq(stored("g", 0), 'w');
	cr_assert_eq(mnt_log_lines(&mnt, "is lost"), 0);
}

static void gives_up_and_names_the_files(void (*take_away)(void))
{
	int files = fill_source_and_change("0.3");
	char text[PATH_MAX + 200];

	take_away();
	cr_assert_eq(wait_for_end(), 1);
	cr_assert_eq(mnt_log_lines(&mnt, "could not be stored and is lost"), files);
	for (int i = 0; i < files; i++) {
		snprintf(text, sizeof(text), "%s/%c: some of what was written could not be stored and is lost: %s (4096 bytes)", mnt.path,
			 'f' + i, strerror(ENOSPC));
		cr_assert_eq(mnt_log_lines(&mnt, text), 1, "no \"%s\" in the log", text);
	}
	cr_assert_eq(stored("f", PAGE), 0);
}

#define FULL_TEST(taken, w)                                                                                                      \
	Test(storing, after_##taken##_the_daemon_stays_until_there_is_room_##w, .init = way_bare_##w, .fini = remove_full,         \
	     .timeout = WAY_SECONDS)                                                                                               \
	{                                                                                                                          \
		stays_until_there_is_room(taken);                                                                                  \
		way_end();                                                                                                         \
	}                                                                                                                          \
	Test(storing, after_##taken##_the_daemon_gives_up_in_the_end_and_names_the_files_##w, .init = way_bare_##w,                \
	     .fini = remove_full, .timeout = WAY_SECONDS)                                                                          \
	{                                                                                                                          \
		gives_up_and_names_the_files(taken);                                                                               \
		way_end();                                                                                                         \
	}

#define WHEN_FULL(taken)               \
	FULL_TEST(taken, auto)         \
	FULL_TEST(taken, writeback)    \
	FULL_TEST(taken, writethrough)

/* Without the helper, which asks first. A program that looks at all mounts of the machine makes them busy for a moment. */
static void umount_i(void)
{
	shell_ok("/", "for i in $(seq 200); do umount -i '%s' 2> /dev/null && exit; sleep 0.01; done; umount -i '%s'", mnt.path,
		 mnt.path);
}
WHEN_FULL(umount_i)

/* While a file is open. */
static void umount_l(void)
{
	int fd = open(mnt_file(&mnt, "f"), O_RDONLY | O_CLOEXEC);

	shell_ok("/", "umount -i -l '%s'", mnt.path);
	cr_assert_eq(close(fd), 0);
}
WHEN_FULL(umount_l)

static void fusermount_u(void)
{
	shell_ok("/", "for i in $(seq 200); do fusermount3 -q -u '%s' 2> /dev/null && exit; sleep 0.01; done; fusermount3 -u '%s'",
		 mnt.path, mnt.path);
}
WHEN_FULL(fusermount_u)

static int have_a_copy(void *arg)
{
	const struct gate *copied = arg;

	CHILD_CHECK(own_mounts(mnt.path));
	gate_open(*copied);
	for (;;)
		pause();
}

/* Of the last process in a namespace that has a copy of the mount. */
static void end_of_namespace(void)
{
	struct gate copied = gate_make();
	pid_t container = child_start(have_a_copy, &copied);

	cr_assert(gate_pass(copied));
	umount_i();
	/* There it is in use still. */
	shell_ok("/", "test \"$(nsenter --mount --target %d dd if='%s/f' bs=1 skip=%d count=1 status=none)\" = d", container, mnt.path,
		 PAGE);
	cr_assert_eq(mnt_log_lines(&mnt, "files that cannot be stored"), 0);
	child_kill(container);
}
WHEN_FULL(end_of_namespace)
