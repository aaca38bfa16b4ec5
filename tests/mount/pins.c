/*
 * pins.c - gaia pin, unpin, pins and warm against a mount; and what is pinned when the mount begins.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actor.h"
#include "gaia/protocol.h"
#include "report.h"
#include "shell.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define SIZE (5 * MIB)
#define CHUNKS (6 * MIB) /* the memory of a file of that size */
#define RW (PROT_READ | PROT_WRITE)

static void make(const char *name, char byte)
{
	static char bytes[SIZE];
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);

	memset(bytes, byte, SIZE);
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

static const char *const usual[] = { "--device", "sim:8M", "--device", "sim:16M", "--home", "32M", "--writeback-age", "3600", NULL };

static void start(void)
{
	way_start(usual);
	make("f", 'f');
}

/* Exit status 1, and one line on standard error with these words. */
static void refused(const char *args, const char *says)
{
	shell_gaia_fails(mnt.path, 1, args, says);
}

static long pinned(const char *device)
{
	return STATUS("devices", device, "pinned_files_bytes");
}

static size_t n_pins(void)
{
	json_t *r = report("pins", ".");
	size_t n = json_array_size(json_object_get(r, "pins"));

	json_decref(r);
	return n;
}

/* A new program acquires the file on the device: so many pages go there. */
static void expect_sent(const char *name, int device, char byte, long pages)
{
	long before = STATUS("counters", "home_to_device");
	struct actor *a = actor_start(name, SIZE, device);

	actor_ok(a, ACQUIRE, 0, SIZE, PROT_READ);
	actor_sees(a, LOAD, 0, byte);
	actor_sees(a, LOAD, SIZE - 1, byte);
	cr_assert_eq(STATUS("counters", "home_to_device") - before, pages);
	actor_end(a);
}

EACH_WAY_BARE(pins, files_stay_on_the_device)
{
	struct actor *a, *other;
	json_t *r;

	start();
	make("g", 'g');
	make("h", 'h');
	shell_ok(mnt.path, "\"$GAIA\" pin f --device 1 | grep -q '1 file, 5 MiB: pinned to device 1 (sim1)'");
	cr_assert_eq(pinned("1"), CHUNKS);
	cr_assert_eq(pinned("0"), 0);
	cr_assert_eq(STATUS("devices", "1", "pin_share_bytes"), 8 * MIB);
	r = report("pins", ".");
	cr_assert_eq(n_pins(), 1u);
	cr_assert_str_eq(json_string_value(json_object_get(json_array_get(json_object_get(r, "pins"), 0), "path")), mnt_file(&mnt, "f"));
	cr_assert_eq(NUMBER(r, "pins", "0", "device"), 1);
	cr_assert_eq(NUMBER(r, "pins", "0", "uid"), (long)geteuid());
	cr_assert_eq(NUMBER(r, "pins", "0", "pinned_bytes"), CHUNKS);
	cr_assert_eq(NUMBER(r, "pins", "0", "memory_bytes"), CHUNKS);
	cr_assert_eq(NUMBER(r, "pins", "0", "current_bytes"), SIZE);
	json_decref(r);
	shell_ok(mnt.path, "\"$GAIA\" evict f --from home");
	expect_sent("f", 1, 'f', 0);
	/* Others use up the device, and are gone. */
	a = actor_start("g", SIZE, 1);
	actor_ok(a, ACQUIRE, 0, SIZE, RW);
	actor_kill(a);
	expect_sent("h", 1, 'h', SIZE / 4096);
	expect_sent("f", 1, 'f', 0);
	/* Not beside both. */
	a = actor_start("g", SIZE, 1);
	actor_ok(a, ACQUIRE, 0, SIZE, PROT_READ);
	other = actor_start("h", SIZE, 1);
	cr_assert_eq(actor_do(other, ACQUIRE, 0, SIZE, PROT_READ), -ENOMEM);
	actor_end(other);
	actor_end(a);
	shell_ok(mnt.path, "\"$GAIA\" unpin f && test -z \"$(\"$GAIA\" pins .)\"");
	cr_assert_eq(pinned("1"), 0);
	shell_ok(mnt.path, "\"$GAIA\" evict f --from device 1");
}

EACH_WAY_BARE(pins, of_files_keep_no_programs_waiting_for_what_they_write)
{
	struct actor *cpu;

	start();
	shell_ok(mnt.path, "\"$GAIA\" pin f --device 1");
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_ok(cpu, WRITE, 0, 1, 'n');
	actor_ok(cpu, WRITE, SIZE - 1, 1, 'n');
	actor_end(cpu);
	expect_sent("f", 1, 'n', 2);
	shell_ok(mnt.path, "\"$GAIA\" unpin f --device 1");
}

EACH_WAY_BARE(pins, that_cannot_be_are_refused_in_a_line_that_helps)
{
	struct actor *a;

	start();
	make("g", 'g');
	refused("pin f --device 0", "--pin-share");
	refused("pin f --device 2", "there is no device 2");
	refused("pin missing --device 1", "No such file");
	refused("pin /etc/passwd --device 1", "not on a gaiafs mount");
	refused("unpin f", "has not pinned it");
	refused("unpin f --device 1", "to that device");
	cr_assert_eq(n_pins(), 0u);
	a = actor_start("g", SIZE, 1);
	actor_ok(a, ACQUIRE, 0, SIZE, PROT_READ);
	shell_ok(mnt.path, "\"$GAIA\" pin f --device 1");
	refused("pin g --device 1", "--pin-share");
	refused("evict f --from device 1", "pinned to device 1");
	refused("evict f", "gaia unpin");
	refused("evict g --from device 1", "acquired");
	actor_end(a);
	shell_ok(mnt.path, "for c in 'pin f' 'pin --device 1' 'pin f --device x' 'pins' 'pins . .' 'warm' 'unpin f --from home'; do "
			   "\"$GAIA\" $c 2> /dev/null; test $? = 2 || exit 1; done");
}

/* Of a device that is full of what programs hold. */
EACH_WAY_BARE(pins, need_room_beside_what_programs_hold)
{
	static const char *const args[] = { "--device", "sim:8M", "--pin-share", "100", "--home", "32M", NULL };
	struct actor *a;

	way_start(args);
	make("f", 'f');
	make("g", 'g');
	a = actor_start("g", SIZE, 0);
	actor_ok(a, ACQUIRE, 0, SIZE, PROT_READ);
	refused("pin f", "programs hold 6 MiB");
	cr_assert_eq(pinned("0"), 0);
	actor_ok(a, RELEASE, 0, SIZE, 0);
	/* The only device need not be named. */
	shell_ok(mnt.path, "\"$GAIA\" pin f");
	cr_assert_eq(actor_do(a, ACQUIRE, 0, SIZE, PROT_READ), -ENOMEM);
	actor_end(a);
}

/* What a file's end brings about happens behind it. */
static void expect_no_pins(void)
{
	for (int k = 0; pinned("1") && k < 1000; k++)
		usleep(10000);
	cr_assert_eq(pinned("1"), 0);
	cr_assert_eq(n_pins(), 0u);
}

/* The pin is the file's, whatever it is called. */
EACH_WAY_BARE(pins, belong_to_files_and_not_to_names)
{
	struct stat st;
	int fd;

	start();
	make("new", 'n');
	shell_ok(mnt.path, "\"$GAIA\" pin f --device 1 && mv f moved");
	shell_ok(mnt.path, "\"$GAIA\" pins . | grep -q /moved");
	expect_sent("moved", 1, 'f', 0);
	/* Replaced: the old file goes, with its pin, when nobody has it any more. */
	fd = openat(both_root[ON_MOUNT], "moved", O_RDONLY);
	shell_ok(mnt.path, "mv new moved");
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(st.st_nlink, 0);
	cr_assert_eq(pinned("1"), CHUNKS);
	refused("unpin moved", "has not pinned it");
	close(fd);
	expect_no_pins();
	/* Removed when nobody has it, and the kernel may have forgotten it. */
	shell_ok(mnt.path, "\"$GAIA\" pin moved --device 1 && { echo 2 > /proc/sys/vm/drop_caches || true; } 2> /dev/null");
	expect_sent("moved", 1, 'n', 0);
	shell_ok(mnt.path, "{ echo 2 > /proc/sys/vm/drop_caches || true; } 2> /dev/null; rm moved");
	expect_no_pins();
}

EACH_WAY_BARE(pins, outlive_the_tool_and_go_with_the_mount)
{
	start();
	shell_ok(mnt.path, "\"$GAIA\" pin f --device 1");
	/* Whatever it was doing. */
	shell_ok(mnt.path, "for k in 1 2 3 4 5; do \"$GAIA\" unpin f > /dev/null; \"$GAIA\" pin f --device 1 > /dev/null & sleep 0.00$k; "
			   "kill -9 $! 2> /dev/null; wait; \"$GAIA\" pin f --device 1 > /dev/null || exit 1; done");
	expect_sent("f", 1, 'f', 0);
	way_unmount();
	way_remount();
	cr_assert_eq(pinned("1"), 0);
	cr_assert_eq(n_pins(), 0u);
}

EACH_WAY_BARE(pins, of_directories_are_of_all_files_in_them)
{
	json_t *r;

	start();
	shell_ok(mnt.path, "mkdir -p d/e && mv f d/e/f && echo text > d/a && ln -s a d/link && mkfifo d/fifo");
	shell_ok(mnt.path, "\"$GAIA\" pin d --device 1 --json > report.json && grep -q '\"whole_files\": 2' report.json && "
			   "grep -A1 '\"path\"' report.json | tr -d '\\n' | grep -q 'd/a.*d/e/f'");
	cr_assert_eq(pinned("1"), CHUNKS + 2 * MIB);
	r = report("pins", ".");
	cr_assert_eq(json_array_size(json_object_get(r, "pins")), 2u);
	json_decref(r);
	/* More than there is room for: those that fit are pinned. */
	shell_ok(mnt.path, "\"$GAIA\" unpin d && cp d/e/f d/e/g && ! \"$GAIA\" pin d --device 1 > out 2> err && grep -q '2 of 3 files' out && "
			   "grep -c . err | grep -qx 1 && \"$GAIA\" unpin d");
	cr_assert_eq(pinned("1"), 0);
}

/* So much of the only pinned file is there as it is now. */
static void expect_current(long bytes)
{
	json_t *r = report("pins", ".");

	cr_assert_eq(NUMBER(r, "pins", "0", "current_bytes"), bytes);
	json_decref(r);
}

/* Pins are made behind the mount's back: the log says when the last of them has been looked at. */
static void await_last_pin(int mounts)
{
	for (int k = 0; mnt_log_lines(&mnt, "--pin 1:d/../d: ") < mounts && k < 1000; k++)
		usleep(10000);
}

#define TOO_MANY 70 /* more than the log names at once */

/* A device without room for any of them: some are named, and their number is told. */
EACH_WAY_BARE(pins, that_cannot_be_made_are_counted_in_the_log)
{
	static const char *const args[] = { "--device", "sim:8M", "--pin", "0:d", NULL };
	char text[64];

	way_start(args);
	shell_ok(mnt.backing, "mkdir d && for k in $(seq %d); do truncate -s 64M d/$k; done", TOO_MANY);
	way_unmount();
	way_remount();
	snprintf(text, sizeof(text), "--pin 0:d: in it, %d files or directories are not pinned", TOO_MANY);
	for (int k = 0; mnt_log_lines(&mnt, text) < 1 && k < 1000; k++)
		usleep(10000);
	cr_assert_eq(mnt_log_lines(&mnt, text), 1, "no \"%s\" in the log", text);
	cr_assert_geq(mnt_log_lines(&mnt, ": is not pinned: pinned files would have more"), 50);
}

EACH_WAY_BARE(pins, are_made_when_the_mount_begins)
{
	static const char *const args[] = { "--device", "sim:8M", "--device", "sim:16M", "--home", "32M", "--pin", "1:d", "--pin",
					    "1:missing", "--pin", "0:f", "--pin", "9:d/f", "--pin", "1:link", "--pin", "1:d/../d", NULL };

	way_start(args);
	await_last_pin(1);
	cr_assert_eq(mnt_log_lines(&mnt, "is not pinned: "), 6);
	make("f", 'f');
	shell_ok(mnt.path, "mkdir d && cp f d/f && ln -s d/f link");
	cr_assert_eq(n_pins(), 0u);
	way_unmount();
	way_remount();
	await_last_pin(2);
	cr_assert_eq(mnt_log_lines(&mnt, "--pin 1:d: 1 file is pinned, 5 MiB"), 1);
	cr_assert_eq(mnt_log_lines(&mnt, "--pin 1:missing: is not pinned: No such file"), 2);
	cr_assert_eq(mnt_log_lines(&mnt, "--pin 0:f: is not pinned: pinned files would have more"), 1);
	cr_assert_eq(mnt_log_lines(&mnt, "--pin 9:d/f: is not pinned: there is no such device"), 1);
	cr_assert_eq(mnt_log_lines(&mnt, "--pin 1:link: is not pinned: a symbolic link"), 1);
	cr_assert_eq(pinned("1"), CHUNKS);
	/* Home's copy does not matter, nor that the kernel has never heard of the file. */
	expect_current(SIZE);
	shell_ok(mnt.path, "\"$GAIA\" evict d/f --from home");
	expect_current(SIZE);
	expect_sent("d/f", 1, 'f', 0);
	shell_ok(mnt.path, "\"$GAIA\" unpin d");
}

/* ---- failures: a file is pinned with all of its memory and contents, or not at all ---- */

/* The next mount of the tree has these faults. */
static void start_faulty(const char *faults)
{
	setenv("GAIAFS_FAULTS", faults, 1);
	start();
	way_unmount();
	way_remount();
	unsetenv("GAIAFS_FAULTS");
}

EACH_WAY_BARE(pins, of_what_cannot_be_read_are_not_made)
{
	start_faulty("store.read=errno:EIO,count=6");
	refused("pin f --device 1", "Input/output error");
	cr_assert_eq(pinned("1"), 0);
	cr_assert_eq(n_pins(), 0u);
	shell_ok(mnt.path, "for k in 1 2 3 4 5 6; do ! \"$GAIA\" pin f --device 1 2> /dev/null || exit 0; done; exit 1");
	cr_assert_eq(pinned("1"), CHUNKS, "it has passed");
	expect_sent("f", 1, 'f', 0);
}

EACH_WAY_BARE(pins, take_no_memory_if_there_is_not_enough)
{
	start_faulty("device.alloc=errno:ENOMEM,after=2,count=1000");
	refused("pin f --device 1", "programs hold");
	cr_assert_eq(pinned("1"), 0);
	cr_assert_eq(n_pins(), 0u);
	/* Two chunks were had, and are idle: anybody gets them. */
	cr_assert_leq(STATUS("devices", "1", "used"), 4 * MIB);
	cr_assert_eq(STATUS("devices", "1", "pinned"), 0);
}

/* What was begun is undone. (The way of caching makes no difference, and this takes some seconds.) */
Test(pins, that_are_interrupted_are_not_made, .init = way_bare_writeback, .fini = way_clean_up, .timeout = WAY_SECONDS)
{
	static const char *const slow[] = { "--device", "sim:16M,latency=3000000", "--home", "32M", NULL };

	way_start(slow);
	make("f", 'f');
	shell_ok(mnt.path, "\"$GAIA\" pin f 2> err & until \"$GAIA\" pins . | grep -q /f; do sleep 0.01; done; kill $!; wait $!; "
			   "test $? = 1 && grep -q 'f: interrupted' err");
	cr_assert_eq(pinned("0"), 0);
	way_end();
}

/* Bytes, rate and time left, one in the place of the other, and nothing in the end; of @files files of 5 MiB, each of which takes longer than
 * a line stays. */
static void expect_progress(const char *verb, const char *names, int files)
{
	char said[8192], command[64], line[64], end[8];
	double done, before = 0, rate;
	unsigned left;
	int lines = 0;

	snprintf(command, sizeof(command), "\"$GAIA\" %s %s", verb, names);
	cr_assert_eq(shell_on_terminal(mnt.path, WAY_SECONDS - 20, command, said, sizeof(said)), 0, "%s: %s", command, said);
	snprintf(line, sizeof(line), "\r%s: ", verb);
	for (char *at = said; (at = strstr(at, line)); at += strlen(line)) {
		cr_assert_eq(sscanf(at + strlen(line), "%lf MiB of %*f MiB, %lf %*[KM]iB/s, %u s left%7[^\r]", &done, &rate, &left, end), 4, "%s", at);
		cr_assert_str_eq(end, "\033[K");
		cr_assert(done > before && done <= 5.0 * files && rate > 0, "%s", said);
		cr_assert(done < 5.0 * files || left == 0, "%s", said);
		before = done;
		lines++;
	}
	cr_assert_geq(lines, files - 1, "%s: %s", command, said);
	cr_assert(before == 5.0 * files, "not up to the end: %s", said);
	cr_assert_not(strchr(said, '\n'), "%s", said);
	cr_assert_str_eq(strrchr(said, '\r'), "\r\033[K", "%s", said);
}

Test(pins, show_on_a_terminal_how_far_they_are_and_how_long_it_takes, .init = way_bare_writeback, .fini = way_clean_up, .timeout = WAY_SECONDS)
{
	static const char *const slow[] = { "--device", "sim:64M,latency=300000", "--home", "32M", NULL };

	way_start(slow);
	make("1", 'f');
	make("2", 'f');
	make("3", 'f');
	expect_progress("pin", "1 2 3", 3);
	shell_ok(mnt.path, "\"$GAIA\" unpin 1 2 3 --json > out && grep -q '\"command\": \"unpin\"' out && grep -q '\"whole_files\": 3' out && "
			   "rm out && \"$GAIA\" evict 1 2 3");
	expect_progress("warm", "1 2 3 --device 0", 3);
	/* Elsewhere than on a terminal only how it ended. */
	shell_ok(mnt.path, "\"$GAIA\" evict 1 && \"$GAIA\" pin 1 2> err && test ! -s err && rm err");
	way_end();
}

/*
 * Whoever may write a pinned file can make it longer: what it has grown by takes nothing that is ready for others, though it is filled. (Of files
 * that are passed through nothing is ready.)
 */
CACHED_WAYS_BARE(pins, are_of_what_the_file_was)
{
	struct gaia_ioc_place io = { .what = GAIA_PLACE_FILL, .device = 1, .offset = CHUNKS, .length = 3 * 2 * MIB };
	struct actor *a;
	long before;
	int fd;

	start();
	make("g", 'g');
	shell_ok(mnt.path, "\"$GAIA\" pin f --device 1");
	a = actor_start("g", SIZE, 1);
	actor_ok(a, ACQUIRE, 0, SIZE, PROT_READ);
	actor_ok(a, RELEASE, 0, SIZE, 0);
	shell_ok(mnt.path, "truncate -s 64M f");
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	cr_assert(ioctl(fd, GAIA_IOC_PLACE, &io) == -1 && errno == ENOMEM, "%llu bytes", (unsigned long long)io.bytes);
	close(fd);
	before = STATUS("counters", "home_to_device");
	actor_ok(a, ACQUIRE, 0, SIZE, PROT_READ);
	cr_assert_eq(STATUS("counters", "home_to_device"), before);
	actor_end(a);
	shell_ok(mnt.path, "\"$GAIA\" unpin f");
}

/* ---- warm ---- */

EACH_WAY_BARE(pins, are_not_what_warming_makes)
{
	start();
	both_keep("f");
	shell_ok(mnt.path, "\"$GAIA\" warm f --device 1 | grep -q '1 file, 5 MiB: in device 1'");
	cr_assert_eq(n_pins(), 0u);
	expect_sent("f", 1, 'f', 0);
	shell_ok(mnt.path, "\"$GAIA\" evict f --from device 1");
	cr_assert_eq(STATUS("devices", "1", "used"), 0);
}

/* It drops nothing that it has brought, and nothing that is in use. */
EACH_WAY_BARE(pins, and_what_is_in_use_are_left_by_warming)
{
	struct actor *a;

	start();
	shell_ok(mnt.path, "mkdir d && cp f d/1 && cp f d/2 && cp f d/3 && cp f g");
	both_keep("f");
	both_keep("d/1");
	both_keep("d/2");
	both_keep("d/3");
	a = actor_start("g", SIZE, 1);
	actor_ok(a, ACQUIRE, 0, SIZE, PROT_READ);
	shell_ok(mnt.path, "\"$GAIA\" warm d --device 1 > out && grep -q '1 of 3 files' out && grep -q 'no room for the rest' out");
	expect_sent("d/1", 1, 'f', 0);
	actor_sees(a, LOAD, 0, 'f');
	actor_end(a);
	shell_ok(mnt.path, "\"$GAIA\" evict g --from device 1; \"$GAIA\" pin f --device 1 && \"$GAIA\" warm d f --device 1 > out; "
			   "grep -q '2 of 4 files' out");
	expect_sent("f", 1, 'f', 0);
}

CACHED_WAYS_BARE(pins, are_no_matter_of_home)
{
	start();
	way_unmount();
	way_remount();
	both_keep("f");
	shell_ok(mnt.path, "\"$GAIA\" warm f --json > out && grep -q '\"done_bytes\": 5242880' out && grep -q '\"memory\": \"home\"' out");
	cr_assert_geq(STATUS("home", "used"), SIZE);
}

/* The kernel serves such a file: from its own memory. */
AUTO_WAY_BARE(pins, of_passed_through_files_begin_while_they_are_open)
{
	struct actor *cpu;

	start();
	shell_ok(mnt.path, "\"$GAIA\" warm f | grep -q '1 file, 5 MiB'");
	cpu = actor_start("f", SIZE, NO_DEVICE);
	shell_ok(mnt.path, "\"$GAIA\" pin f --device 1");
	actor_ok(cpu, WRITE, 4096, 1, 'n');
	expect_sent("f", 1, 'f', 1);
	actor_end(cpu);
	expect_sent("f", 1, 'f', 0);
	/* Now it is cached. */
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_sees(cpu, READ, 4096, 'n');
	actor_ok(cpu, WRITE, 4096, 1, 'm');
	actor_end(cpu);
	expect_sent("f", 1, 'f', 1);
	shell_ok(mnt.path, "\"$GAIA\" unpin f");
}

/* ---- the ioctl ---- */

EACH_WAY_BARE(pins, are_asked_for_in_one_way)
{
	static const struct gaia_ioc_place wrong[] = {
		{ .what = 5 },
		{ .what = GAIA_PLACE_PIN, .flags = 1 },
		{ .what = GAIA_PLACE_PIN, .reserved = 1 },
		{ .what = GAIA_PLACE_PIN, .length = 1 },
		{ .what = GAIA_PLACE_PIN, .device = GAIA_FROM_HOME },
		{ .what = GAIA_PLACE_FILL },
		{ .what = GAIA_PLACE_FILL, .length = 1, .device = GAIA_FROM_HOME },
		{ .what = GAIA_PLACE_WARM, .offset = 1, .length = INT64_MAX },
		{ .what = GAIA_PLACE_LOOK, .bytes = 1 },
		{ .what = GAIA_PLACE_LOOK, .room = 1 },
	};
	int fd, dir;

	start();
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	for (size_t k = 0; k < sizeof(wrong) / sizeof(wrong[0]); k++) {
		struct gaia_ioc_place io = wrong[k];

		cr_assert(ioctl(fd, GAIA_IOC_PLACE, &io) == -1 && errno == EINVAL, "%zu: %d", k, errno);
	}
	for (unsigned what = GAIA_PLACE_LOOK; what <= GAIA_PLACE_WARM; what++) {
		struct gaia_ioc_place io = { .what = what, .device = 2, .length = what >= GAIA_PLACE_FILL };

		cr_assert(ioctl(fd, GAIA_IOC_PLACE, &io) == -1 && errno == ENODEV, "%u: %d", what, errno);
	}
	dir = openat(both_root[ON_MOUNT], ".", O_RDONLY | O_DIRECTORY);
	cr_assert(ioctl(dir, GAIA_IOC_PLACE, &(struct gaia_ioc_place){ 0 }) == -1 && errno == ENODEV);
	close(dir);
	close(fd);
	fd = openat(both_root[ON_MOUNT], "f", O_WRONLY);
	cr_assert(ioctl(fd, GAIA_IOC_PLACE, &(struct gaia_ioc_place){ 0 }) == -1 && errno == EACCES);
	close(fd);
}
