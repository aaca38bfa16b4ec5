/*
 * settings.c - options from a configuration file (gaiafs --config), and changed while it is mounted (gaia set, gaia reload, SIGHUP).
 */
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "gaia/protocol.h"
#include "report.h"
#include "shell.h"
#include "ways.h"

#define ALICE 1234u
#define MIB (1024 * 1024)

/* Where the way of caching makes no difference. */
#define ONCE_BARE(name)                                                                                        \
	static void name(void);                                                                                \
	Test(settings, name, .init = way_bare_writeback, .fini = way_clean_up, .timeout = WAY_SECONDS) \
	{                                                                                                      \
		name();                                                                                        \
		unlink(conf);                                                                                  \
		way_end();                                                                                     \
	}                                                                                                      \
	static void name(void)

static char conf[PATH_MAX];

/* The file, anew: where it may be before there is a mount. */
static void write_conf(const char *text)
{
	FILE *f;

	snprintf(conf, sizeof(conf), "/tmp/gaiafs-settings-%d.conf", (int)getpid());
	f = fopen(conf, "we");
	cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void start_with_conf(const char *text)
{
	const char *args[] = { "--config", conf, NULL };

	write_conf(text);
	way_start(args);
}

static void start(void)
{
	static const char *const args[] = { "--device", "sim:16M", "--home", "32M", "--writeback-age", "3600", NULL };

	way_start(args);
}

/* Exit status 1, and one line on standard error with these words. */
static void refused(const char *args, const char *says)
{
	shell_gaia_fails(mnt.path, 1, args, says);
}

/* What standard error says, of a success. */
static void says(const char *args, const char *words)
{
	struct shell_result r = shell_run(mnt.path, 60, "\"$GAIA\" %s", args);

	cr_assert_eq(r.status, 0, "gaia %s: status %d: %s", args, r.status, r.err);
	cr_assert(strstr(r.err, words), "gaia %s: no \"%s\" in \"%s\"", args, words, r.err);
	shell_free(&r);
}

static void pause_briefly(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
}

static long each_user(const char *of)
{
	json_t *s = report("status", "."), *limit;
	size_t k;
	long n = -1;

	json_array_foreach(json_object_get(s, "limits"), k, limit)
		if (!strcmp(json_string_value(json_object_get(limit, "of")), of))
			n = (long)json_integer_value(json_object_get(limit, "each_user"));
	json_decref(s);
	return n;
}

static void make(const char *name, size_t size, char byte)
{
	static char bytes[48 * MIB];
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);

	memset(bytes, byte, size);
	cr_assert_eq(write(fd, bytes, size), (ssize_t)size);
	close(fd);
}

/* ---- the file ---- */

ONCE_BARE(a_file_has_the_options_of_the_command_line)
{
	start_with_conf("# a comment\n; another\n\n\thome = 24M\ndevice=\"sim:8M,count=2\"\r\ndevice=\\\nsim:4M\nuser-limit=clients=7\n"
			"user-limit = device=50\nlog-level=debug\no=noatime\n");
	cr_assert_eq(STATUS("home", "budget"), 24 * MIB);
	cr_assert_eq(STATUS("devices", "1", "capacity"), 8 * MIB);
	cr_assert_eq(STATUS("devices", "2", "capacity"), 4 * MIB);
	cr_assert_eq(STATUS("devices", "2", "each_user_bytes"), 2 * MIB);
	cr_assert_eq(each_user("clients"), 7);
	cr_assert_geq(mnt_log_lines(&mnt, "home: 24 MiB"), 1, "the level of the log is not that of the file");
	shell_ok("/", "grep -F ' %s ' /proc/self/mountinfo | grep -q noatime", mnt.path);
}

/* The words of a command line, as files of the unit had them first. */
ONCE_BARE(a_file_may_have_a_part_of_a_command_line)
{
	start_with_conf("OPTIONS=--home 24M --device=sim:8M -o 'noatime' --user-limit \"clients=7\"\nhome=28M\n");
	cr_assert_eq(STATUS("home", "budget"), 28 * MIB, "the last does not count");
	cr_assert_eq(STATUS("devices", "0", "capacity"), 8 * MIB);
	cr_assert_eq(each_user("clients"), 7);
	shell_ok("/", "grep -F ' %s ' /proc/self/mountinfo | grep -q noatime", mnt.path);
}

static void is_wrong(const char *text, unsigned line, const char *why)
{
	struct shell_result r;
	char wanted[PATH_MAX + 128];

	write_conf(text);
	r = shell_run("/", 60, "\"$GAIAFS\" -c %s %s", conf, mnt.backing[0] ? mnt.backing : "/tmp");
	snprintf(wanted, sizeof(wanted), "gaiafs: %s:%u: %s", conf, line, why);
	cr_assert_neq(r.status, 0, "%s", text);
	cr_assert(strstr(r.err, wanted) == r.err && strchr(r.err, '\n') == r.err + strlen(r.err) - 1, "\"%s\" is not one line \"%s...\"", r.err, wanted);
	shell_free(&r);
}

ONCE_BARE(a_mistake_is_named_with_its_file_and_line)
{
	is_wrong("home=24M\nhomes=24M\n", 2, "homes: no such option");
	is_wrong("# x\n\nhome=1\n", 3, "--home 1: not a size from");
	is_wrong("home=\\\n24M\nhome\n", 3, "home: a value is missing");
	is_wrong("--home=24M\n", 1, "--home: options are written without dashes here");
	is_wrong("foreground=yes\n", 1, "foreground: takes no value");
	is_wrong("help\n", 1, "help: only for the command line");
	is_wrong("config=/etc/x\n", 1, "config: only for the command line");
	is_wrong("SOURCE=\n", 1, "SOURCE: a value is missing");
	is_wrong("OPTIONS=--home '24M\n", 1, "OPTIONS: a quote is not closed");
	is_wrong("OPTIONS=home\n", 1, "OPTIONS: home: not an option");
	is_wrong("OPTIONS=--home\n", 1, "home: a value is missing");
	shell_ok("/", "rm %s; \"$GAIAFS\" -c %s /tmp 2>&1 | grep -q '%s: cannot be read: No such file'", conf, conf, conf);
	shell_ok("/", "mkfifo %s; \"$GAIAFS\" -c %s /tmp 2>&1 | grep -q '%s: cannot be read: not a text file'; rm %s", conf, conf, conf, conf);
	shell_ok("/", "yes '# x' | head -c 2000000 > %s; \"$GAIAFS\" -c %s /tmp 2>&1 | grep -q '%s: cannot be read: File too large'; rm %s", conf, conf,
		 conf, conf);
}

ONCE_BARE(a_file_may_name_the_source_and_may_be_missing)
{
	char text[PATH_MAX + 16];

	start();
	snprintf(text, sizeof(text), "SOURCE=%s/my source\ndevice=none\n", mnt.dir);
	write_conf(text);
	shell_ok(mnt.dir, "mkdir -p there 'my source/in' && cd / && \"$GAIAFS\" -c -%s %s/there && ls %s/there/in && \"$GAIA\" umount %s/there", conf,
		 mnt.dir, mnt.dir, mnt.dir);
	shell_ok(mnt.dir, "rm %s && \"$GAIAFS\" --device none -c -%s there && findmnt there > /dev/null && \"$GAIA\" umount there && rm -r there my*",
		 conf, conf);
}

/* ---- reading it again ---- */

ONCE_BARE(a_file_is_read_again_when_asked)
{
	start_with_conf("home=24M\ndevice=sim:8M\n");
	write_conf("home=16M\ndevice=sim:8M\nuser-limit=clients=9\n");
	shell_ok(mnt.path, "\"$GAIA\" reload .");
	cr_assert_eq(STATUS("home", "budget"), 16 * MIB);
	cr_assert_eq(each_user("clients"), 9);
	/* What is not said any more is as it was by default; what cannot be changed is said. */
	write_conf("device=sim:16M\nhome=20M\n");
	says("reload .", "device: is different now, and cannot be changed while it is mounted; mount anew");
	cr_assert_eq(STATUS("home", "budget"), 20 * MIB);
	cr_assert_eq(STATUS("devices", "0", "capacity"), 8 * MIB);
	cr_assert_neq(each_user("clients"), 9);
	/* The same by a signal, in the foreground, too; a mistake changes nothing. */
	write_conf("home=12M\ndevice=sim:8M\n");
	cr_assert_eq(kill(mnt.daemon, SIGHUP), 0);
	while (STATUS("home", "budget") != 12 * MIB)
		pause_briefly();
	write_conf("home=28M\nwriteback-age=x\n");
	refused("reload .", ".conf:2: --writeback-age x: not a number of seconds");
	cr_assert_eq(STATUS("home", "budget"), 12 * MIB);
	cr_assert_geq(mnt_log_lines(&mnt, "nothing has changed"), 1);
	cr_assert_eq(unlink(conf), 0);
	refused("reload .", "cannot be read: No such file");
}

ONCE_BARE(without_a_file_nothing_is_read_again)
{
	start();
	refused("reload .", "without a configuration file");
}

/* The daemon is in / then. */
ONCE_BARE(in_the_background_the_same_file_is_read_again)
{
	start();
	write_conf("home=24M\ndevice=none\n");
	shell_ok(mnt.dir, "mkdir there && cp %s x.conf && \"$GAIAFS\" -c x.conf there && sed -i s/24M/16M/ x.conf && \"$GAIA\" reload there && "
		 "\"$GAIA\" status there | grep -q 'budget *16 MiB' && \"$GAIA\" umount there && rm -r there x.conf", conf);
}

/* ---- gaia set ---- */

CACHED_WAYS_BARE(settings, home_shrinks_and_grows)
{
	struct shell_result r;

	start();
	make("f", 24 * MIB, 'f');
	both_keep("f");
	while (STATUS("home", "used") < 20 * MIB)
		shell_ok(mnt.path, "\"$GAIA\" warm f");
	r = shell_run(mnt.path, 60, "\"$GAIA\" set . home=8M");
	cr_assert_eq(r.status, 0, "%s", r.err);
	cr_assert(strstr(r.err, "MiB more than that are in use"), "%s", r.err);
	shell_free(&r);
	cr_assert_eq(STATUS("home", "budget"), 8 * MIB);
	/* Also what is dirty, long before its time. */
	while (STATUS("home", "used") > 8 * MIB)
		pause_briefly();
	shell_ok(mnt.path, "test $(tr -d f < f | wc -c) = 0 && test $(wc -c < f) = %d", 24 * MIB);
	cr_assert_leq(STATUS("home", "used"), 8 * MIB);
	shell_ok(mnt.path, "\"$GAIA\" set . home=40M");
	cr_assert_eq(STATUS("home", "budget"), 40 * MIB);
	/* What the kernel has just got may leave home meanwhile. */
	while (STATUS("home", "used") <= 16 * MIB)
		shell_ok(mnt.path, "\"$GAIA\" warm f");
	cr_assert_eq(STATUS("counters", "home_overcommit"), 0);
}

/* In the other ways the kernel has what was written. Nor may a process that starts others have the file open: each close(2) stores. */
static void settings_ages_change(void);
WAY_TEST(settings, ages_change, writethrough, way_bare_writethrough)
static void settings_ages_change(void)
{
	struct actor *a;

	start();
	make("f", MIB, 'f');
	a = actor_start("f", MIB, 0);
	actor_ok(a, WRITE, 0, 64 * 1024, 'w');
	cr_assert_eq(STATUS("home", "dirty"), 64 * 1024);
	shell_ok(mnt.path, "\"$GAIA\" set . writeback-age=0.05 device-age=7 unmount-timeout=9 log-level=debug pin-share=25");
	while (STATUS("home", "dirty") > 0)
		pause_briefly();
	cr_assert_eq(STATUS("devices", "0", "pin_share_bytes"), 4 * MIB);
	cr_assert_geq(mnt_log_lines(&mnt, "gaia set writeback-age=0.05"), 1);
	actor_end(a);
}

ONCE_BARE(all_of_a_list_is_changed_or_nothing)
{
	start();
	refused("set . home=16M cpu-cache=auto", "cpu-cache: cannot be changed while it is mounted; mount anew");
	refused("set . home=16M pin=0:x", "pin: cannot be changed while it is mounted; use `gaia pin`");
	refused("set . home=16M o=ro", "o: cannot be changed while it is mounted; use `mount -o remount`");
	refused("set . home=16M homes=16M", "homes: no such option");
	refused("set . home=16M user-limit=x=1", "--user-limit x=1");
	refused("set . home=1", "--home 1: not a size");
	refused("set . writeback-age=1 home=4T", "home: of this mount it can be as much as the machine has memory");
	refused("set . home=16M help=1", "help: cannot be changed");
	cr_assert_eq(STATUS("home", "budget"), 32 * MIB);
	shell_ok(mnt.path, "\"$GAIA\" set . home=16M user-limit=clients=5,mappings=6 user-limit=directories=7");
	cr_assert_eq(STATUS("home", "budget"), 16 * MIB);
	cr_assert_eq(each_user("clients"), 5);
	cr_assert_eq(each_user("mappings"), 6);
	cr_assert_eq(each_user("directories"), 7);
}

/* All of the device's 12 MiB of "f" have changed there, and a program holds the first 2 of them. */
static struct actor *start_with_a_held_chunk(void)
{
	struct actor *a;

	start();
	make("f", 12 * MIB, 'f');
	a = actor_start("f", 12 * MIB, 0);
	actor_ok(a, ACQUIRE, 0, 12 * MIB, PROT_READ | PROT_WRITE);
	actor_ok(a, STORE, 0, 12 * MIB, 'd');
	actor_ok(a, RELEASE, 2 * MIB, 10 * MIB, 0);
	return a;
}

EACH_WAY_BARE(settings, devices_shrink_and_grow)
{
	struct actor *a;

	a = start_with_a_held_chunk();
	says("set . device.sim0=6M", "device.0: 6 MiB more than that are in use");
	cr_assert_eq(STATUS("devices", "0", "capacity"), 6 * MIB);
	while (STATUS("devices", "0", "used") > 6 * MIB)
		pause_briefly();
	/* What is held stays, and more does not fit. */
	says("set . device.0=2M", "");
	while (STATUS("devices", "0", "used") > 2 * MIB)
		pause_briefly();
	cr_assert_eq(actor_do(a, ACQUIRE, 4 * MIB, 4096, PROT_READ), -ENOMEM);
	shell_ok(mnt.path, "\"$GAIA\" set . device.sim0=16M");
	actor_ok(a, ACQUIRE, 2 * MIB, 10 * MIB, PROT_READ);
	cr_assert_eq(STATUS("devices", "0", "used"), 12 * MIB);
	actor_ok(a, RELEASE, 0, 12 * MIB, 0);
	actor_end(a);
	shell_ok(mnt.path, "test $(tr -d d < f | wc -c) = 0");
	refused("set . device.0=18M", "was mounted with 16 MiB, and cannot have more");
	refused("set . home=16M device.1=4M", "device.1: the mount has no such device");
	refused("set . device.sim=4M", "device.sim: the mount has no such device");
	refused("set . device.sim0=1M", "not of the form device.NAME=SIZE");
	refused("set . device.sim0=0", "not of the form device.NAME=SIZE");
	cr_assert_eq(STATUS("home", "budget"), 32 * MIB);
}

static int set_and_wait(void *arg)
{
	struct shell_result r = shell_run(mnt.path, 60, "\"$GAIA\" set --wait . device.sim0=off");
	int status = r.status;

	(void)arg;
	shell_free(&r);
	return status;
}

EACH_WAY_BARE(settings, a_device_is_taken_away_and_comes_back)
{
	struct actor *a, *b;
	pid_t waits;

	a = start_with_a_held_chunk();
	shell_ok(mnt.path, "printf small > g && \"$GAIA\" pin g --device 0");
	both_keep("g");
	refused("set . device.sim0=off", "device.0: files are pinned to it");
	shell_ok(mnt.path, "\"$GAIA\" unpin g");
	says("set . device.sim0=off", "device.0: 14 MiB are in use, and leave");
	waits = child_start(set_and_wait, NULL);
	while (STATUS("devices", "0", "used") > 2 * MIB)
		pause_briefly();
	cr_assert_eq(actor_do(a, ACQUIRE, 4 * MIB, 4096, PROT_READ), -ENODEV);
	cr_assert_eq(waitpid(waits, NULL, WNOHANG), 0);
	actor_ok(a, RELEASE, 0, 2 * MIB, 0);
	cr_assert_eq(child_wait(waits), 0);
	cr_assert_eq(STATUS("devices", "0", "used"), 0);
	cr_assert_eq(STATUS("devices", "0", "capacity"), 0);
	shell_ok(mnt.path, "test $(tr -d d < f | wc -c) = 0 && \"$GAIA\" status . > /dev/null && \"$GAIA\" stat . > /dev/null && \"$GAIA\" top -b . 0.1 1 | grep -q '^sim0 .* off$'");
	shell_ok(mnt.path, "\"$GAIA\" set --wait . device.0=16M");
	b = actor_start("f", 12 * MIB, 0);
	actor_ok(b, ACQUIRE, 0, 12 * MIB, PROT_READ | PROT_WRITE);
	actor_end(b);
	actor_ok(a, ACQUIRE, 0, 12 * MIB, PROT_READ);
	actor_ok(a, RELEASE, 0, 12 * MIB, 0);
	actor_end(a);
}

/* Each with the path of the file, which the log shows so that it cannot forge a line. */
CACHED_WAYS_BARE(settings, the_log_says_what_is_decided)
{
	struct actor *a;

	start();
	make("a\nb", 12 * MIB, 'f');
	shell_ok(mnt.path, "\"$GAIA\" set . log-level=debug");
	a = actor_start("a\nb", 12 * MIB, 0);
	actor_ok(a, ACQUIRE, 0, 12 * MIB, PROT_READ | PROT_WRITE);
	actor_ok(a, STORE, 0, 4096, 'd');
	actor_ok(a, RELEASE, 0, 12 * MIB, 0);
	cr_assert_geq(mnt_log_lines(&mnt, "device sim0: 6 chunks of"), 1);
	cr_assert_geq(mnt_log_lines(&mnt, "a\\012b for user"), 1);
	shell_ok(mnt.path, "\"$GAIA\" set . device.0=8M 2> /dev/null");
	while (mnt_log_lines(&mnt, "device sim0: 2 chunks leave, the first of them chunk 0 of") < 1)
		pause_briefly();
	shell_ok(mnt.path, "\"$GAIA\" set . writeback-age=0.01");
	while (mnt_log_lines(&mnt, "is stored, as it has been dirty for long") < 1)
		pause_briefly();
	actor_end(a);
	shell_ok(mnt.path, "\"$GAIA\" set . log-level=warn && \"$GAIA\" set . home=16M");
	cr_assert_eq(mnt_log_lines(&mnt, "gaia set home=16M"), 0, "the level of the log has not changed back");
}

static int as_alice(void *arg)
{
	struct gaia_ioc_set io = { .length = 9, .text = "home=16M" }, again = { .length = 0 };
	int fd;

	(void)arg;
	child_become(ALICE, ALICE);
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(ioctl(fd, GAIA_IOC_SET, &io) == -1 && errno == EPERM);
	CHILD_CHECK(ioctl(fd, GAIA_IOC_SET, &again) == -1 && errno == EPERM);
	return 0;
}

ONCE_BARE(options_are_changed_by_owners_alone)
{
	if (geteuid() != 0)
		WAY_SKIP("becomes another user, which needs root");
	start();
	shell_ok("/", "chmod 755 %s", mnt.dir);
	cr_assert_eq(child_run(as_alice, NULL), 0);
	cr_assert_eq(STATUS("home", "budget"), 32 * MIB);
}

ONCE_BARE(the_ioctl_is_checked)
{
	static const struct gaia_ioc_set wrong[] = {
		{ .length = 8, .text = "home=16M" }, /* no NUL */
		{ .length = 4089 },
		{ .length = UINT32_MAX },
		{ .length = 9, .error = 1, .text = "home=16M" },
	};
	struct gaia_ioc_set io = { .length = 2 };
	int fd;

	start();
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY);
	for (size_t k = 0; k < sizeof(wrong) / sizeof(wrong[0]); k++) {
		io = wrong[k];
		cr_assert(ioctl(fd, GAIA_IOC_SET, &io) == -1 && errno == EINVAL, "%zu", k);
	}
	/* Empty words. */
	io = (struct gaia_ioc_set){ .length = 2 };
	cr_assert_eq(ioctl(fd, GAIA_IOC_SET, &io), 0);
	cr_assert_eq(io.error, (uint32_t)EINVAL);
	close(fd);
	cr_assert_eq(STATUS("home", "budget"), 32 * MIB);
}

/* The daemon that takes the mount over goes on with what was set, also after the next upgrade; what the file says now is another matter. */
ONCE_BARE(what_was_set_goes_to_the_next_daemon)
{
	char said[512];

	start_with_conf("device=sim:16M\nhome=32M\nwriteback-age=3600\n");
	shell_ok(mnt.path, "\"$GAIA\" set . home=24M device.sim0=8M user-limit=clients=7 && \"$GAIA\" set . home=20M");
	for (unsigned k = 0; k < 2; k++) {
		cr_assert_eq(mnt_upgrade(&mnt, NULL, said), 0, "%s", said);
		cr_assert_eq(STATUS("home", "budget"), 20 * MIB);
		cr_assert_eq(STATUS("devices", "0", "capacity"), 8 * MIB);
	}
	/* Home is the file's when it is read again, and the device's budget is not. */
	shell_ok(mnt.path, "\"$GAIA\" reload .");
	cr_assert_eq(STATUS("home", "budget"), 32 * MIB);
	cr_assert_eq(mnt_upgrade(&mnt, NULL, said), 0, "%s", said);
	cr_assert_eq(STATUS("home", "budget"), 32 * MIB);
	cr_assert_eq(STATUS("devices", "0", "capacity"), 8 * MIB);
}

static void expect_devices(const char *names)
{
	json_t *s = report("status", "."), *device;
	char list[128] = "";
	size_t k;

	json_array_foreach(json_object_get(s, "devices"), k, device)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s ", json_string_value(json_object_get(device, "name")));
	json_decref(s);
	cr_assert_str_eq(list, names);
}

#define IS_USED "are in use, and leave"

static int wait_in_vain(void *arg)
{
	struct shell_result r = shell_run(mnt.path, 60, "\"$GAIA\" set --wait . device.sim0=off 2> %s/said; s=$?; cat %s/said >&2; exit $s", mnt.dir, mnt.dir);
	bool says_why = r.status == 1 && strstr(r.err, IS_USED) && strchr(r.err, '\n')[1] != '\0';

	(void)arg;
	shell_free(&r);
	return !says_why;
}

/* It says that it did not wait to the end. */
EACH_WAY_BARE(settings, waiting_ends_with_the_daemon)
{
	struct actor *a = start_with_a_held_chunk();
	pid_t waits = child_start(wait_in_vain, NULL);

	while (STATUS("devices", "0", "used") > 2 * MIB)
		pause_briefly();
	shell_ok(mnt.dir, "until grep -q '" IS_USED "' said; do sleep 0.01; done");
	mnt_crash(&mnt);
	cr_assert_eq(child_wait(waits), 0);
	actor_kill(a);
	cr_assert_eq(mnt_restart(&mnt), 0);
}

/* For programs that run already, too; and for the next daemon. */
EACH_WAY_BARE(settings, a_device_is_added)
{
	struct actor *a, *b;
	char said[512];

	start();
	make("f", 4 * MIB, 'f');
	a = actor_start("f", 4 * MIB, 0);
	actor_ok(a, ACQUIRE, 0, 4 * MIB, PROT_READ | PROT_WRITE);
	actor_ok(a, STORE, 0, 2 * MIB, 'a');
	actor_ok(a, RELEASE, 0, 4 * MIB, 0);
	refused("set . device=none", "device=none: names no device");
	refused("set . device=sim:8M,cache=auto", "cache= is for devices that the mount begins with");
	refused("set . device=sim:8M home=1M", "home");
	refused("set . device=tape", "no such kind of device");
	refused("set . device=cuda:99", "device=cuda:99: ");
	cr_assert_eq(STATUS("devices", "0", "capacity"), 16 * MIB);
	expect_devices("sim0 ");
	shell_ok(mnt.path, "\"$GAIA\" set . device=sim:8M,count=2 && \"$GAIA\" set . device=sim:8M device.sim0=12M");
	expect_devices("sim0 sim1 sim2 sim3 ");
	shell_ok(mnt.path, "printf small > g && \"$GAIA\" pin g --device 1");
	refused("set . home=16M device.1=off device.0=off", "device.1: files are pinned to it");
	cr_assert_eq(STATUS("devices", "0", "capacity"), 12 * MIB);
	cr_assert_eq(STATUS("home", "budget"), 32 * MIB);
	shell_ok(mnt.path, "\"$GAIA\" unpin g --device 1 && rm g");
	b = actor_start("f", 4 * MIB, 3);
	actor_ok(b, ACQUIRE, 0, 4 * MIB, PROT_READ | PROT_WRITE);
	actor_ok(b, STORE, 2 * MIB, 2 * MIB, 'b');
	actor_ok(b, RELEASE, 0, 4 * MIB, 0);
	cr_assert_gt(STATUS("devices", "3", "used"), 0);
	actor_ok(a, ACQUIRE, 0, 4 * MIB, PROT_READ);
	actor_ok(a, RELEASE, 0, 4 * MIB, 0);
	shell_ok(mnt.path, "test $(tr -d a < f | wc -c) = $((2 << 20)) && test $(tr -d b < f | wc -c) = $((2 << 20))");
	shell_ok(mnt.path, "\"$GAIA\" set --wait . device.sim3=off");
	actor_end(a);
	actor_end(b);
	cr_assert_eq(mnt_upgrade(&mnt, NULL, said), 0, "%s", said);
	cr_assert_eq(STATUS("devices", "0", "capacity"), 12 * MIB);
	cr_assert_eq(STATUS("devices", "2", "capacity"), 8 * MIB);
	cr_assert_eq(STATUS("devices", "3", "capacity"), 0);
	shell_ok(mnt.path, "test $(tr -d ab < f | wc -c) = 0");
}

/* A device that is off is off for the next daemon as well, until the file names other devices: then it may be another one. */
ONCE_BARE(devices_come_and_go_by_an_upgrade)
{
	char said[512];

	start_with_conf("device=sim:16M\nhome=32M\n");
	shell_ok(mnt.path, "\"$GAIA\" set . device.sim0=off");
	cr_assert_eq(mnt_upgrade(&mnt, NULL, said), 0, "%s", said);
	cr_assert_eq(STATUS("devices", "0", "capacity"), 0);
	write_conf("device=sim:16M,count=2\nhome=32M\n");
	says("reload .", "device: is different now, and cannot be changed while it is mounted");
	cr_assert_eq(mnt_upgrade(&mnt, NULL, said), 0, "%s", said);
	cr_assert_eq(STATUS("devices", "0", "capacity"), 16 * MIB);
	cr_assert_eq(STATUS("devices", "1", "capacity"), 16 * MIB);
	cr_assert_geq(mnt_log_lines(&mnt, "`gaia set device.sim0=off` is over: the options name 2 devices now, not 1"), 1);
}

/* Options of the command line are no business of a file's. */
ONCE_BARE(a_file_cannot_ask_for_an_upgrade)
{
	struct shell_result r;

	write_conf("take-over-set=home=8M\n");
	r = shell_run("/", 60, "\"$GAIAFS\" --config '%s' '%s'", conf, mnt.dir);
	cr_assert_eq(r.status, 1);
	cr_assert(strstr(r.err, ":1: take-over-set: only for the command line"), "%s", r.err);
	shell_free(&r);
	start();
}

/* Somebody is replacing it; what it said before stays. And who may write it says what root's daemon does. */
ONCE_BARE(a_file_that_is_missing_or_others_may_write_changes_nothing)
{
	char optional[PATH_MAX + 1];
	const char *args[] = { "--config", optional, NULL };
	struct shell_result r;

	write_conf("device=none\nhome=32M\n");
	snprintf(optional, sizeof(optional), "-%s", conf);
	way_start(args);
	shell_ok("/", "mv '%s' '%s.away'", conf, conf);
	refused("reload .", "is missing now");
	shell_ok("/", "mv '%s.away' '%s' && echo home=24M >> '%s' && chmod 666 '%s'", conf, conf, conf, conf);
	if (geteuid() == 0)
		refused("reload .", "others than root may write it");
	cr_assert_eq(STATUS("home", "budget"), 32 * MIB);
	shell_ok("/", "chmod 644 '%s'", conf);
	r = shell_run(mnt.path, 60, "\"$GAIA\" reload .");
	cr_assert_eq(r.status, 0, "%s", r.err);
	shell_free(&r);
	cr_assert_eq(STATUS("home", "budget"), 24 * MIB);
}

/* Each of users' limits is a setting of its own. */
ONCE_BARE(limits_that_were_set_one_by_one_go_to_the_next_daemon)
{
	char said[512];

	start();
	shell_ok(mnt.path, "\"$GAIA\" set . user-limit=clients=40,mappings=50 && \"$GAIA\" set . user-limit=clients=30");
	cr_assert_eq(mnt_upgrade(&mnt, NULL, said), 0, "%s", said);
	cr_assert_eq(each_user("clients"), 30);
	cr_assert_eq(each_user("mappings"), 50);
}
