/*
 * flood.c - a user brings about an error, of which the daemon logs a line, again and again: on a source that fails. The log
 * stays short however often that is, and says how many lines are not there. Each error is told to the program, what was
 * written is not lost, and what is lost in the end is named.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "hostile.h"
#include "report.h"

#define PAGE 4096
/* What each place in the daemon's code may log, as gaiafs(8) has it; and then one line a second. */
#define AT_ONCE 50
#define TIMES 2000
#define LOST 80 /* files: more than AT_ONCE, and fewer than the end of a mount names */

static _Alignas(PAGE) unsigned char page[PAGE];
static time_t began;

static void begin(const char *fault, int count, const char *timeout)
{
	static const char *args[] = { "--writeback-age", "3600", "--unmount-timeout", NULL, NULL };
	char faults[64];

	args[3] = timeout;
	snprintf(faults, sizeof(faults), "%s=errno:EIO,count=%d", fault, count);
	setenv("GAIAFS_FAULTS", faults, 1);
	hostile_start(args);
	unsetenv("GAIAFS_FAULTS");
	began = time(NULL);
}

/* Of lines that contain @text, which are @least, and @greatest at most, the log has few, and the counter the others. */
static void log_is_short(const char *text, long least, long greatest)
{
	long all;
	int lines = mnt_log_lines(&mnt, text), most = AT_ONCE + (int)(time(NULL) - began) + 2;

	cr_assert_geq(lines, AT_ONCE);
	cr_assert_leq(lines, most, "%d lines, and not %d at most", lines, most);
	all = lines + STATUS("counters", "log_lines_left_out");
	cr_assert(all >= least && all <= greatest, "%d lines of %ld, not of %ld to %ld", lines, all, least, greatest);
}

/* ---- of one file, without end ---- */

static int reads_what_cannot_be_read(void *arg)
{
	int fd;

	(void)arg;
	hostile_become();
	fd = open(mnt_file(&mnt, "f"), O_RDONLY | O_DIRECT | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	for (int k = 0; k < TIMES; k++) {
		errno = 0;
		CHILD_CHECK(pread(fd, page, PAGE, 0) == -1 && errno == EIO);
	}
	CHILD_CHECK(pread(fd, page, PAGE, 0) == PAGE && page[7] == 'f');
	return 0;
}

EACH_WAY_BARE(flood, of_errors_of_reading_leaves_the_log_short)
{
	int fd;

	begin("store.read", TIMES, "60");
	way_make_cached("f");
	fd = openat(mnt.backing_fd, "f", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	memset(page, 'f', PAGE);
	cr_assert_eq(pwrite(fd, page, PAGE, 0), PAGE);
	cr_assert_eq(fchmod(fd, 0644), 0);
	close(fd);
	cr_assert_eq(child_run(reads_what_cannot_be_read, NULL), 0);
	log_is_short("f: reading at 0: ", TIMES, TIMES);
	way_unmount();
	cr_assert_eq(mnt_log_lines(&mnt, "lines were left out in all"), 1);
}

/* ---- of many files ---- */

static const char *name_of(int k)
{
	static char name[32];

	snprintf(name, sizeof(name), "d/%d", k);
	return mnt_file(&mnt, name);
}

static void let_all_write(void)
{
	cr_assert_eq(mkdir(mnt_file(&mnt, "d"), 0777), 0);
	cr_assert_eq(chmod(mnt_file(&mnt, "d"), 0777), 0);
}

/* The user's files, each of which cannot be stored at first. */
static int writes_many_files(void *arg)
{
	const int n = *(int *)arg;
	int fd;

	hostile_become();
	for (int k = 0; k < n; k++) {
		fd = open(name_of(k), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		CHILD_CHECK(fd >= 0);
		memset(page, 1 + k % 250, PAGE);
		CHILD_CHECK(pwrite(fd, page, PAGE, 0) == PAGE);
		errno = 0;
		CHILD_CHECK(fsync(fd) == -1 && errno == EIO);
		close(fd);
	}
	return 0;
}

CACHED_WAYS_BARE(flood, of_files_that_cannot_be_stored_leaves_the_log_short)
{
	int n = TIMES, fd;

	/* The daemon tries again by itself, too; when the mount ends it does so until the source is good again. */
	begin("store.write", 3 * TIMES, "60");
	let_all_write();
	cr_assert_eq(child_run(writes_many_files, &n), 0);
	/* A file that was not named yet counts at each failure. */
	log_is_short("what was written cannot be stored", TIMES, STATUS("counters", "storage_errors"));
	way_unmount();
	for (int k = 0; k < n; k++) {
		char name[32];

		snprintf(name, sizeof(name), "d/%d", k);
		fd = openat(mnt.backing_fd, name, O_RDONLY | O_CLOEXEC);
		cr_assert_eq(pread(fd, page, PAGE, 0), PAGE, "%s: %s", name, strerror(errno));
		cr_assert_eq(page[PAGE - 1], 1 + k % 250, "%s", name);
		close(fd);
	}
}

CACHED_WAYS_BARE(flood, does_not_hide_what_is_lost)
{
	int n = LOST, status;
	char text[128];

	begin("store.write", 0, "0.2");
	let_all_write();
	cr_assert_eq(child_run(writes_many_files, &n), 0);
	both_close();
	cr_assert_eq(kill(mnt.daemon, SIGTERM), 0);
	status = mnt_wait(&mnt);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1, "wait status %x", status);
	cr_assert_eq(mnt_log_lines(&mnt, "could not be stored and is lost"), LOST);
	for (int k = 0; k < n; k++) {
		snprintf(text, sizeof(text), "/d/%d: some of what was written could not be stored and is lost", k);
		cr_assert_eq(mnt_log_lines(&mnt, text), 1, "no \"%s\" in the log", text);
	}
	cr_assert_eq(mnt_log_lines(&mnt, "lines were left out in all"), 1);
}
