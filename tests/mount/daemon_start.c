/*
 * daemon_start.c - how gaiafs starts, and what it says when it cannot.
 */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "shell.h"
#include "tree.h"
#include "ways.h"

/* The test's directory. What is mounted on dir, other and full in it is unmounted when it goes. */
static char top[PATH_MAX];

static void make_top(void)
{
	tree_make_temp(NULL, top);
	shell_ok(top, "mkdir dir other full locked && echo text > file && echo text > full/f && "
		      "echo text > dir/f && chmod 0700 locked");
}

static void remove_top(void)
{
	struct shell_result r;

	way_clean_up();
	r = shell_run("/tmp", 60,
		      "cd %s; for m in dir other full; do \"$GAIA\" umount --force $PWD/$m; done; umount -l full dir/sub dir/tmp; "
		      "cd /; rm -rf --one-file-system %s",
		      top, top);
	shell_free(&r);
}

/* Criterion does not tidy up after a test that is skipped. */
#define SKIP(...)                           \
	do {                                \
		remove_top();               \
		cr_skip_test(__VA_ARGS__);  \
	} while (0)

static bool is_mounted(const char *name)
{
	struct shell_result r = shell_run(top, 60, "grep -q ' %s/%s fuse' /proc/self/mountinfo || "
					  "grep -q ' %s/%s .* fuse' /proc/self/mountinfo",
					  top, name, top, name);
	bool is = r.status == 0;

	shell_free(&r);
	return is;
}

static int lines(const char *text)
{
	int n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

/* One line on standard error that has @word in it, nothing on standard output, no mount. */
static void refused(const char *word, const char *args)
{
	struct shell_result r = shell_run(top, 60, "\"$GAIAFS\" %s", args);

	cr_assert_neq(r.status, 0, "gaiafs %s: succeeds", args);
	cr_assert_lt(r.status, 126, "gaiafs %s: exit status %d", args, r.status);
	cr_assert_eq(lines(r.err), 1, "gaiafs %s: not one line but \"%s\"", args, r.err);
	cr_assert_not_null(strstr(r.err, word), "gaiafs %s: no \"%s\" in \"%s\"", args, word, r.err);
	cr_assert_str_eq(r.out, "", "gaiafs %s: \"%s\" on standard output", args, r.out);
	shell_free(&r);
	cr_assert(!is_mounted("dir") && !is_mounted("other"), "gaiafs %s: mounts", args);
}

#define ON_TOP(name) Test(daemon_start, name, .init = make_top, .fini = remove_top, .timeout = WAY_SECONDS)

ON_TOP(bad_usage_is_one_line)
{
	refused("director", "");
	refused("more", "dir other dir");
	refused("frobnicate", "--frobnicate dir");
	refused("-x", "-x dir");
	refused("--home", "dir --home");
	refused("--home", "--home 12Q dir");
	refused("--home", "--home 1K dir");
	refused("--home", "--home -5G dir");
	refused("--home", "--home '' dir");
	refused("--home", "--home 99999999999999T dir");
	refused("sim:0", "--device sim:0 dir");
	refused("sim:abc", "--device sim:abc dir");
	refused("sim:1M", "--device sim:1M dir");
	refused("nonsense", "--device sim,nonsense=1 dir");
	refused("cache=SIZE|auto", "--device sim,cache=some dir");
	refused("cache=1M", "--device sim,cache=1M dir");
	refused("cache=", "--device cuda:0,cache= dir");
	refused("cash=auto", "--device cuda:0,64M,cash=auto dir");
	refused("extents=no", "--device sim,extents=no dir");
	refused("from 1 to 254", "--device sim,count=0 dir");
	refused("from 1 to 254", "--device sim,count=255 dir");
	refused("from 1 to 254", "--device sim,count=99999999999999T dir");
	refused("to 4T", "--device sim:100T dir");
	refused("to 4T", "--home 999999T dir");
	refused("peers", "--device sim,peers=some dir");
	refused("readonly", "--device sim,readonly=some dir");
	refused("gpu", "--device gpu dir");
	/* Where there is no such GPU, or no CUDA at all. */
	refused("cuda1000", "--device cuda:1000 dir");
	refused("cuda1000", "--device cuda:1000,1G dir");
	refused("cuda:", "--device cuda: dir");
	refused("cuda:x", "--device cuda:x dir");
	refused("cuda:0x", "--device cuda:0x dir");
	refused("1M", "--device cuda:0,1M dir");
	refused("twice", "--device cuda --device cuda:0 dir");
	refused("none", "--device none --device sim dir");
	refused("sometimes", "--cpu-cache sometimes dir");
	refused("--transport pigeon", "--transport pigeon dir");
	refused("--transport uring", "--transport uring dir");
	refused("loud", "--log-level loud dir");
	refused("--writeback-age", "--writeback-age never dir");
	refused("--writeback-age", "--writeback-age 0 dir");
	refused("--device-age", "--device-age soon dir");
	refused("--unmount-timeout", "--unmount-timeout -1 dir");
	refused("--user-limit", "--user-limit clients dir");
	refused("--user-limit", "--user-limit clients=0 dir");
	refused("--user-limit", "--user-limit clients=1,dogs=2 dir");
	refused("--user-limit", "--user-limit clients=1, dir");
	refused("--user-limit", "--user-limit tickets=1 dir");
	refused("--user-limit", "--user-limit pins=1 dir");
	refused("--user-limit", "--user-limit clients=1x dir");
	refused("--storage-io", "--storage-io often dir");
	refused("--source", "--source everybody dir");
	refused("nonsense", "-o nonsense dir");
}

ON_TOP(bad_directories_are_one_line)
{
	refused("missing", "missing");
	refused("missing", "missing other");
	refused("missing", "dir missing");
	refused("file", "file");
	refused("file", "file other");
	refused("file", "dir file");
	refused("missing", "-f dir missing");
	/* Nothing there can be cached. */
	refused("proc", "/proc other");
	refused("sysfs", "/sys/kernel other");
}

/* Other machines might change what is there, and nobody would see it. */
ON_TOP(unknown_file_systems_are_one_line)
{
	if (geteuid() != 0)
		SKIP("unknown file systems: needs root, to mount one");
	shell_ok(top, OTHER_FS " full");
	refused("fuse.other, and", "full other");
	refused("--source exclusive", "full other");
	shell_ok(top, "\"$GAIAFS\" --device none --source exclusive full other && test -f other/file && \"$GAIA\" umount other");
	shell_ok(top, "\"$GAIAFS\" --device none --source local full other && test -f other/file && \"$GAIA\" umount other");
	refused("--source shared", "full other");
	shell_ok(top, "\"$GAIAFS\" --source shared full other && test -f other/file && \"$GAIA\" umount other");
	shell_ok(top, "umount full");
}

/* Below the source it is not served. */
ON_TOP(unknown_file_systems_below_are_refused)
{
	struct shell_result r;

	if (geteuid() != 0)
		SKIP("unknown file systems: needs root, to mount one");
	shell_ok(top, "mkdir dir/sub dir/tmp && " OTHER_FS " dir/sub && mount -t tmpfs none dir/tmp && touch dir/tmp/g");
	shell_ok(top, "\"$GAIAFS\" --device none dir other 2> log && test -f other/tmp/g && test \"$(cat other/f)\" = text");
	for (int k = 0; k < 2; k++) {
		r = shell_run(top, 60, "stat other/sub/file");
		cr_assert_neq(r.status, 0);
		cr_assert_not_null(strstr(r.err, "Object is remote"), "%s", r.err);
		shell_free(&r);
	}
	shell_ok(top, "\"$GAIA\" umount other");
	shell_ok(top, "\"$GAIAFS\" --device none --source exclusive dir other && test -f other/sub/file && \"$GAIA\" umount other");
	shell_ok(top, "umount dir/sub && umount dir/tmp");
}

static int as_nobody(void *arg)
{
	struct shell_result r;
	int ok;

	child_become(65534, 65534);
	r = shell_run(top, 60, "\"$GAIAFS\" %s", (const char *)arg);
	ok = r.status != 0 && lines(r.err) == 1 && !*r.out;
	if (!ok)
		fprintf(stderr, "gaiafs %s: status %d, \"%s\"\n", (const char *)arg, r.status, r.err);
	return ok ? 0 : 1;
}

ON_TOP(no_permission_is_one_line)
{
	if (geteuid() != 0)
		SKIP("no permission: needs root, to take permissions away");
	cr_assert_eq(child_run(as_nobody, "locked other"), 0);
	cr_assert_eq(child_run(as_nobody, "dir locked"), 0);
	/* Not their directory to mount over. */
	cr_assert_eq(child_run(as_nobody, "dir"), 0);
}

ON_TOP(help_and_version_need_nothing)
{
	struct shell_result r = shell_run(top, 60, "\"$GAIAFS\" --help");

	cr_assert_eq(r.status, 0);
	cr_assert_not_null(strstr(r.out, "usage"));
	cr_assert_str_eq(r.err, "");
	shell_free(&r);
	r = shell_run(top, 60, "\"$GAIAFS\" --version");
	cr_assert_eq(r.status, 0);
	cr_assert_eq(lines(r.out), 1);
	shell_free(&r);
}

ON_TOP(an_option_without_effect_is_accepted_with_a_warning)
{
	static const char *const values[] = { "auto", "dev" };
	struct shell_result r;

	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
		r = shell_run(top, 60,
			      "\"$GAIAFS\" --device none --cpu-cache writeback --transport %s dir other && "
			      "cat other/f && \"$GAIA\" status other --json && \"$GAIA\" status other; "
			      "\"$GAIA\" umount other", values[i]);
		cr_assert_eq(r.status, 0, "%s: %d: %s", values[i], r.status, r.err);
		cr_assert_eq(lines(r.err), 1, "%s: \"%s\"", values[i], r.err);
		cr_assert_not_null(strstr(r.err, "no effect"), "%s: \"%s\"", values[i], r.err);
		cr_assert_not_null(strstr(r.out, "storage_io"), "%s: no status: \"%s\"", values[i], r.out);
		cr_assert_null(strstr(r.out, "transport"), "%s: \"%s\"", values[i], r.out);
		shell_free(&r);
	}
}

ON_TOP(the_command_returns_when_the_mount_is_live)
{
	/* Many times: to return too early does not show each time. */
	for (int i = 0; i < 10; i++) {
		shell_ok(top, "\"$GAIAFS\" full other && cat other/f > /dev/null && "
			      "echo more > other/g && \"$GAIA\" umount other && cat full/g > /dev/null && "
			      "test ! -e other/g && rm full/g");
		cr_assert(!is_mounted("other"));
	}
}

ON_TOP(a_directory_over_itself)
{
	struct shell_result r;

	shell_ok(top, "\"$GAIAFS\" dir && cat dir/f > /dev/null && echo more > dir/g");
	cr_assert(is_mounted("dir"));
	r = shell_run(top, 30, "\"$GAIAFS\" dir");
	cr_assert_neq(r.status, 0, "mounted twice");
	cr_assert_eq(lines(r.err), 1, "\"%s\"", r.err);
	cr_assert_not_null(strstr(r.err, "already"), "\"%s\"", r.err);
	shell_free(&r);
	shell_ok(top, "test \"$(cat dir/f)\" = text && cd / && \"$GAIA\" umount %s/dir", top);
	cr_assert(!is_mounted("dir"));
	shell_ok(top, "test \"$(cat dir/g)\" = more");
}

ON_TOP(paths_may_be_relative_and_hold_blanks)
{
	shell_ok(top, "mkdir 'a b' 'c\\d' && echo x > 'a b/f' && \"$GAIAFS\" './a b' 'dir/../c\\d' && "
		      "cat 'c\\d/f' && \"$GAIA\" umount 'c\\d'");
}

ON_TOP(a_second_mount_on_the_same_place_is_refused)
{
	struct shell_result r;

	shell_ok(top, "\"$GAIAFS\" dir other");
	r = shell_run(top, 30, "\"$GAIAFS\" full other");
	cr_assert_neq(r.status, 0);
	cr_assert_eq(lines(r.err), 1, "\"%s\"", r.err);
	cr_assert_not_null(strstr(r.err, "other"), "\"%s\"", r.err);
	shell_free(&r);
	shell_ok(top, "test \"$(cat other/f)\" = text && \"$GAIA\" umount other");
}

/* As the systemd unit does if its file names no source. */
ON_TOP(source_and_mount_point_may_be_the_same_directory)
{
	shell_ok(top, "mkdir 'a b' && echo x > 'a b/f' && \"$GAIAFS\" -- 'a b' './a b' && echo y > 'a b/g'");
	shell_ok(top, "grep -c ' %s/a.040b .* fuse.gaiafs ' /proc/self/mountinfo && \"$GAIA\" umount -- 'a b' && "
		      "test \"$(cat 'a b/f' 'a b/g')\" = \"x\ny\"", top);
}

ON_TOP(the_log_level_debug_says_what_is_mounted)
{
	struct shell_result r = shell_run(top, 60, "\"$GAIAFS\" --log-level debug --home 16M --device sim:8M --cpu-cache writeback "
					  "--storage-io buffered dir other && \"$GAIA\" umount other");
	char both[2 * PATH_MAX + 64];

	cr_assert_eq(r.status, 0, "%s", r.err);
	snprintf(both, sizeof(both), "%s/dir on %s/other, --cpu-cache writeback", top, top);
	cr_assert_not_null(strstr(r.err, both), "no \"%s\" in \"%s\"", both, r.err);
	cr_assert_not_null(strstr(r.err, "home: 16 MiB"), "\"%s\"", r.err);
	cr_assert_not_null(strstr(r.err, "sim0, 8 MiB"), "\"%s\"", r.err);
	cr_assert_not_null(strstr(r.err, "FUSE 7."), "\"%s\"", r.err);
	shell_free(&r);
}

/* ---- SIGHUP ---- */

static void start_with(bool background)
{
	struct mnt_options o = { .background = background };

	cr_assert_eq(mnt_start(&mnt, &o), 0, "cannot mount");
}

ON_TOP(a_hangup_ends_what_is_in_the_foreground)
{
	signal(SIGHUP, SIG_DFL); /* the caller of the tests may ignore it */
	start_with(false);
	kill(mnt.daemon, SIGHUP);
	cr_assert_eq(mnt_wait(&mnt), 0);
}

/* To wait for what an ignored signal does proves nothing, so ask /proc. */
static bool is_ignored(pid_t pid, int number)
{
	char line[256];
	unsigned long long mask = 0;
	FILE *f;

	snprintf(line, sizeof(line), "/proc/%d/status", pid);
	f = fopen(line, "re");
	cr_assert_not_null(f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "SigIgn: %llx", &mask) == 1)
			break;
	fclose(f);
	return mask >> (number - 1) & 1;
}

ON_TOP(a_hangup_means_nothing_in_the_background)
{
	start_with(true);
	cr_assert(is_ignored(mnt.daemon, SIGHUP));
	kill(mnt.daemon, SIGHUP);
	shell_ok(mnt.path, "echo text > f");
	cr_assert_eq(mnt_unmount(&mnt), 0);
}

ON_TOP(a_hangup_means_nothing_under_nohup)
{
	signal(SIGHUP, SIG_IGN);
	start_with(false);
	cr_assert(is_ignored(mnt.daemon, SIGHUP));
	cr_assert_eq(mnt_unmount(&mnt), 0);
}

/* ---- the service manager ---- */

static void heard(int manager, const char *what)
{
	char text[256];
	struct pollfd p = { .fd = manager, .events = POLLIN };
	ssize_t n;

	cr_assert_eq(poll(&p, 1, WAY_SECONDS * 1000), 1, "not told of \"%s\"", what);
	n = recv(manager, text, sizeof(text) - 1, 0);
	cr_assert_gt(n, 0);
	text[n] = '\0';
	cr_assert_eq(strncmp(text, what, strlen(what)), 0, "told \"%s\", not \"%s\"", text, what);
}

static void manager_is_told(bool abstract)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), size;
	char name[PATH_MAX + 32];

	size = snprintf(name, sizeof(name), "%s%s/manager", abstract ? "@" : "", top);
	cr_assert_lt((size_t)size, sizeof(at.sun_path));
	memcpy(at.sun_path, name, (size_t)size);
	if (abstract)
		at.sun_path[0] = '\0';
	cr_assert_eq(bind(manager, (struct sockaddr *)&at, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)), 0);
	setenv("NOTIFY_SOCKET", name, 1);
	way_bare_writeback();
	way_start(NULL);
	unsetenv("NOTIFY_SOCKET");
	heard(manager, "READY=1\n");
	both_close();
	kill(mnt.daemon, SIGTERM);
	heard(manager, "STOPPING=1\n");
	cr_assert_eq(mnt_wait(&mnt), 0);
	close(manager);
}

ON_TOP(the_service_manager_is_told_of_start_and_end)
{
	manager_is_told(false);
}

ON_TOP(the_service_manager_may_have_an_abstract_socket)
{
	manager_is_told(true);
}

/* Nobody listens to the socket. */
ON_TOP(a_service_manager_that_is_gone_keeps_nobody_from_mounting)
{
	struct shell_result r = shell_run(top, 60, "NOTIFY_SOCKET=%s/nobody \"$GAIAFS\" dir other && "
					  "test \"$(cat other/f)\" = text && \"$GAIA\" umount other", top);

	cr_assert_eq(r.status, 0, "%s", r.err);
	shell_free(&r);
}

/* Leaves the mount of a daemon that was killed, and had no supervisor. */
static void make_dead_mount(void)
{
	shell_ok(top, "\"$GAIAFS\" --supervisor off dir other && "
		      "pid=$(\"$GAIA\" status other --json | sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' | "
		      "head -1) && kill -9 $pid && while kill -0 $pid 2> /dev/null && "
		      "! grep -q '^State:.Z' /proc/$pid/status; do sleep 0.01; done");
}

ON_TOP(a_dead_old_mount_can_be_taken_away)
{
	struct shell_result r;

	make_dead_mount();
	r = shell_run(top, 30, "cat other/f");
	cr_assert_neq(r.status, 0);
	shell_free(&r);
	r = shell_run(top, 30, "\"$GAIA\" status other");
	cr_assert_neq(r.status, 0);
	cr_assert_eq(lines(r.err), 1, "\"%s\"", r.err);
	shell_free(&r);
	shell_ok(top, "\"$GAIA\" umount other");
	cr_assert(!is_mounted("other"));
	shell_ok(top, "\"$GAIAFS\" dir other && test \"$(cat other/f)\" = text && \"$GAIA\" umount other");
}

ON_TOP(a_dead_old_mount_is_taken_away_by_the_next)
{
	struct shell_result r;

	make_dead_mount();
	r = shell_run(top, 30, "\"$GAIAFS\" dir other && test \"$(cat other/f)\" = text && "
			       "\"$GAIA\" umount other");
	cr_assert_eq(r.status, 0, "%s", r.err);
	cr_assert_not_null(strstr(r.err, "took away"), "it does not say so: \"%s\"", r.err);
	shell_free(&r);
	cr_assert(!is_mounted("other"), "the dead mount was covered, not taken away");
}

/* A dead mount keeps programs from writing beneath it. */
ON_TOP(a_start_that_fails_leaves_a_dead_old_mount)
{
	struct shell_result r;

	make_dead_mount();
	r = shell_run(top, 30, "\"$GAIAFS\" --device cuda:1000 dir other");
	cr_assert_eq(r.status, 1, "status %d: %s", r.status, r.err);
	shell_free(&r);
	cr_assert(is_mounted("other"), "the dead mount was taken away");
	r = shell_run(top, 30, "! echo text > other/beneath");
	cr_assert_eq(r.status, 0, "written beneath");
	shell_free(&r);
	shell_ok(top, "\"$GAIAFS\" dir other && test \"$(cat other/f)\" = text && \"$GAIA\" umount other && test -z \"$(ls -A other)\"");
	cr_assert(!is_mounted("other"));
}

/* ---- who else has the source ---- */

struct locking {
	struct gate taken;
	char path[PATH_MAX + 8];
};

/* Everybody who may read a directory may lock it. */
static int lock_as_nobody(void *arg)
{
	struct locking *l = arg;
	int fd;

	child_become(65534, 65534);
	fd = open(l->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0);
	gate_open(l->taken);
	pause();
	return 0;
}

ON_TOP(a_user_who_locks_the_source_does_not_keep_root_from_it)
{
	struct locking l = { .taken = gate_make() };
	struct shell_result r;
	char who[32];
	pid_t locker;

	if (geteuid() != 0)
		SKIP("another user's lock: needs root");
	snprintf(l.path, sizeof(l.path), "%s/dir", top);
	shell_ok(top, "chmod 755 . dir && mkdir bound && mount --bind dir bound");
	locker = child_start(lock_as_nobody, &l);
	cr_assert(gate_pass(l.taken));
	r = shell_run(top, 90, "\"$GAIAFS\" dir other && cat other/f");
	cr_assert_eq(r.status, 0, "status %d: %s", r.status, r.err);
	snprintf(who, sizeof(who), "process %d", (int)locker);
	cr_assert_not_null(strstr(r.err, who), "it does not say who has locked it: \"%s\"", r.err);
	shell_free(&r);
	/* Another daemon of root's sees the first, by whatever path. */
	shell_ok(top, "\"$GAIAFS\" -f bound full 2> said & pid=$!; n=0\n"
		      "until grep -q 'waiting for' said || grep -q ' %s/full ' /proc/mounts || test $n = 3000; do\n"
		      "  n=$((n + 1)); sleep 0.01; done; kill -9 $pid; wait $pid; grep -q 'waiting for' said", top);
	cr_assert(!is_mounted("full"));
	shell_ok(top, "\"$GAIA\" umount other && umount bound");
	child_kill(locker);
}

/* ---- a user's own mount ---- */

/* Exit statuses of the child. */
enum { FINE, CANNOT = 77 };

/* Root becomes nobody. False if the user may not mount. */
static bool become_user(void)
{
	int fd;

	if (geteuid() == 0)
		child_become(65534, 65534);
	fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	if (fd >= 0)
		close(fd);
	return fd >= 0;
}

static int mount_as_user(void *arg)
{
	struct shell_result r;

	if (!become_user())
		return CANNOT;
	r = shell_run(top, 60,
		      "set -e; cd mine; mkdir b m; echo text > b/f; \"$GAIAFS\" b m\n"
		      "trap '\"$GAIA\" umount m' EXIT\n"
		      "test \"$(cat m/f)\" = text; echo more > m/g; ln m/g m/h; chmod 600 m/g\n"
		      "mkdir m/d; mv m/g m/d/; test \"$(stat -c %%u m/d/g)\" = $(id -u)\n"
		      "\"$GAIA\" status m > /dev/null; dd if=/dev/zero of=m/z bs=1M count=3 status=none\n"
		      "trap - EXIT; \"$GAIA\" umount m; test \"$(cat b/h)\" = more; test ! -e m/h\n"
		      "test $(stat -c %%s b/z) = 3145728\n");
	if (r.status)
		fprintf(stderr, "%s%s", r.out, r.err);
	return r.status ? 1 : FINE;
}

/* To store as an unprivileged user clears set-id bits: so a chmod that sets them stores first what was written. */
static int set_id_as_user(void *arg)
{
	struct shell_result r;
	char path[PATH_MAX + 16];
	int fd;

	if (!become_user())
		return CANNOT;
	r = shell_run(top, 60, "cd mine; mkdir b m; \"$GAIAFS\" b m");
	CHILD_CHECK(r.status == 0);
	snprintf(path, sizeof(path), "%s/mine/m/f", top);
	fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	CHILD_CHECK(fd >= 0 && write(fd, "text", 4) == 4);
	CHILD_CHECK(fchmod(fd, 04755) == 0);
	close(fd);
	r = shell_run(top, 60, "cd mine; \"$GAIA\" umount m; test $(cat b/f)$(stat -c %%a b/f) = text4755");
	return r.status ? 1 : FINE;
}

static void run_as_user(int (*what)(void *arg))
{
	int status;

	if (shell_lacks((const char *const[]){ "fusermount3", NULL }))
		SKIP("a user's own mount: needs fusermount3");
	shell_ok(top, "mkdir mine && chmod 777 mine");
	status = child_run(what, NULL);
	if (status == CANNOT)
		SKIP("a user's own mount: users may not open /dev/fuse here");
	cr_assert_eq(status, FINE);
}

ON_TOP(an_unprivileged_user_mounts)
{
	run_as_user(mount_as_user);
}

ON_TOP(set_id_bits_survive_what_an_unprivileged_user_wrote_before)
{
	run_as_user(set_id_as_user);
}
