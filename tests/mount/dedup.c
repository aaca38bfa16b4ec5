/*
 * dedup.c - equal pages kept once in home memory (--dedup), as programs and administrators see it; and gaia dedup --estimate.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "actor.h"
#include "report.h"
#include "shell.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define SIZE (4 * MIB)

static char bytes[SIZE], seen[SIZE] __attribute__((aligned(4096)));

/* Pages that all differ; the same for the same @kind. */
static void make(const char *name, unsigned kind)
{
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);

	for (unsigned i = 0; i < SIZE / sizeof(unsigned); i++)
		((unsigned *)bytes)[i] = (i + 1) * 2654435761u + kind;
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	shell_ok(mnt.path, "\"$GAIA\" evict %s", name);
}

static void read_past_the_kernel(const char *name)
{
	int fd = openat(both_root[ON_MOUNT], name, O_RDONLY | O_DIRECT);

	cr_assert_eq(pread(fd, seen, SIZE, 0), SIZE);
	close(fd);
}

static void expect_same(const char *name)
{
	read_past_the_kernel(name);
	cr_assert_eq(memcmp(seen, bytes, SIZE), 0);
}

/* The kernel may forget files that nobody has open, when memory is scarce, and then the daemon drops what it has of them. */
static int held[2];

static void let_go(void)
{
	for (unsigned k = 0; k < 2; k++)
		close(held[k]);
}

static void make_two(void)
{
	make("a", 1);
	make("b", 1);
	for (unsigned k = 0; k < 2; k++) {
		held[k] = openat(both_root[ON_MOUNT], k ? "b" : "a", O_PATH | O_CLOEXEC);
		cr_assert_geq(held[k], 0);
	}
}

static void start(const char *dedup)
{
	const char *const args[] = { "--device", "sim:16M", "--home", "32M", "--writeback-age", "3600", "--dedup", dedup, NULL };

	/* All pages are looked for. */
	setenv("GAIAFS_FAULTS", "dedup.all=errno:EEXIST", 1);
	way_start(args);
	unsetenv("GAIAFS_FAULTS");
	make_two();
}

static long saved(void)
{
	return STATUS("dedup", "saved_bytes");
}

CACHED_WAYS_BARE(dedup, keeps_equal_pages_of_files_once)
{
	int fd;

	start("home");
	expect_same("a");
	cr_assert_eq(saved(), 0);
	expect_same("b");
	cr_assert_eq(saved(), SIZE);
	cr_assert_leq(STATUS("home", "used"), SIZE + MIB);
	shell_ok(mnt.path, "\"$GAIA\" status . > ../status; grep -q 'saved_bytes  *4 MiB' ../status || { cat ../status >&2; exit 1; }");
	/* One is written, and the other stays as it is. */
	fd = openat(both_root[ON_MOUNT], "b", O_RDWR);
	cr_assert_eq(pwrite(fd, "changed", 7, 8192), 7);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	expect_same("a");
	memcpy(bytes + 8192, "changed", 7);
	expect_same("b");
	cr_assert_leq(saved(), SIZE - 4096);
	shell_ok(mnt.path, "\"$GAIA\" evict a && \"$GAIA\" evict b");
	cr_assert_eq(saved(), 0);
	expect_same("b");
	let_go();
}

CACHED_WAYS_BARE(dedup, is_of_one_owners_files_unless_told_otherwise)
{
	int fd;

	start("home");
	shell_ok(mnt.path, "chown 1000 a");
	read_past_the_kernel("a");
	read_past_the_kernel("b");
	cr_assert_eq(saved(), 0);
	/* It is given to the owner of the other one, and read anew; and given away again. */
	shell_ok(mnt.path, "chown 0 a && \"$GAIA\" evict a");
	expect_same("a");
	cr_assert_eq(saved(), SIZE);
	/* Meanwhile the daemon knows the file, as somebody has it open. */
	fd = openat(both_root[ON_MOUNT], "a", O_RDONLY | O_DIRECT);
	cr_assert_eq(pread(fd, seen, MIB / 4, 0), MIB / 4);
	shell_ok(mnt.path, "chown 1000 a && \"$GAIA\" evict a");
	cr_assert_eq(pread(fd, seen, MIB / 4, 0), MIB / 4);
	close(fd);
	cr_assert_eq(saved(), 0);
	let_go();
	way_end();
	way_bare_writeback();
	start("all-users");
	shell_ok(mnt.path, "chown 1000 a");
	expect_same("a");
	expect_same("b");
	cr_assert_eq(saved(), SIZE);
	let_go();
}

/* Each tells the daemon, which knows the file: somebody has it open. */
CACHED_WAYS_BARE(dedup, is_not_of_files_that_others_may_write)
{
	static const char *const lets_others[] = { "chmod 602 a", "chmod 620 a", "setfacl -m u:1000:rw a" };

	for (unsigned k = 0; k < sizeof(lets_others) / sizeof(lets_others[0]); k++) {
		int fd;

		if (!k)
			start("home");
		shell_ok(mnt.path, "chmod 600 a && \"$GAIA\" evict a && \"$GAIA\" evict b");
		read_past_the_kernel("b");
		fd = openat(both_root[ON_MOUNT], "a", O_RDONLY | O_DIRECT);
		cr_assert_eq(pread(fd, seen, MIB / 4, 0), MIB / 4);
		/* And what was read ahead. */
		cr_assert_geq(saved(), MIB / 4, "%s: %ld", lets_others[k], saved());
		shell_ok(mnt.path, "%s && \"$GAIA\" evict a", lets_others[k]);
		cr_assert_eq(pread(fd, seen, MIB / 4, 0), MIB / 4);
		close(fd);
		cr_assert_eq(saved(), 0, "%s", lets_others[k]);
		shell_ok(mnt.path, "chmod 600 a");
	}
	let_go();
}

CACHED_WAYS_BARE(dedup, leaves_each_file_what_devices_write_to_it)
{
	struct actor *a;

	start("home");
	a = actor_start("b", SIZE, 0);
	read_past_the_kernel("a");
	read_past_the_kernel("b");
	actor_ok(a, ACQUIRE, 0, SIZE, PROT_READ | PROT_WRITE);
	actor_ok(a, STORE, 5000, 1, (int)'x');
	actor_ok(a, RELEASE, 0, SIZE, 0);
	expect_same("a");
	bytes[5000] = 'x';
	expect_same("b");
	actor_end(a);
	let_go();
}

/* Equal pages that leave home with one frame are parked in one place; what is not parked at first, while others are copied, is later. */
CACHED_WAYS_BARE(dedup, parks_equal_pages_once)
{
	static const char *const args[] = { "--device", "sim:32M,cache=16M", "--home", "32M", "--writeback-age", "3600", "--dedup", "all-users", NULL };
	long now = 0;

	setenv("GAIAFS_FAULTS", "dedup.all=errno:EEXIST;park.all=errno:ENOSPC;source.store_is_dear=errno:ENOSPC", 1);
	way_start(args);
	unsetenv("GAIAFS_FAULTS");
	make_two();
	for (unsigned tries = 0; now < SIZE; tries++) {
		cr_assert_lt(tries, 200u, "%ld", now);
		expect_same("a");
		expect_same("b");
		shell_ok(mnt.path, "\"$GAIA\" evict a --from home && \"$GAIA\" evict b --from home");
		now = STATUS("dedup", "parked_saved_bytes");
	}
	cr_assert_eq(now, SIZE);
	cr_assert_geq(STATUS("counters", "dedup_parked"), SIZE / 4096);
	now = STATUS("counters", "victim_hits");
	expect_same("a");
	expect_same("b");
	/* What is still on its way there comes from storage. */
	cr_assert_geq(STATUS("counters", "victim_hits") - now, SIZE / 4096);
	shell_ok(mnt.path, "\"$GAIA\" evict a --from device-cache");
	cr_assert_eq(STATUS("dedup", "parked_saved_bytes"), 0);
	shell_ok(mnt.path, "\"$GAIA\" evict b --from home");
	expect_same("b");
	let_go();
}

Test(dedup, is_off_unless_asked_for, .init = way_bare_writeback, .fini = way_end)
{
	start("off");
	expect_same("a");
	expect_same("b");
	cr_assert_eq(saved(), 0);
	shell_ok(mnt.path, "\"$GAIA\" status . --json | grep -q '\"mode\": *\"off\"'");
	let_go();
}

Test(dedup, estimates_what_it_would_save, .init = way_bare_writeback, .fini = way_end)
{
	struct shell_result r;
	json_t *said;

	start("off");
	shell_ok(mnt.path, "truncate -s 3M hole && cp a c && chown 1000 c && ln a link && mkdir d && ln -s ../a d/symlink");
	r = shell_run(mnt.path, 60, "\"$GAIA\" dedup --estimate --json a b c hole link d");
	cr_assert_eq(r.status, 0, "%s", r.err);
	said = json_loads(r.out, 0, NULL);
	cr_assert_eq(NUMBER(said, "files"), 4);
	cr_assert_eq(NUMBER(said, "read_bytes"), 3 * SIZE);
	cr_assert_eq(NUMBER(said, "memory_bytes"), 3 * SIZE + 3 * MIB);
	cr_assert_eq(NUMBER(said, "zeros_bytes"), 3 * MIB);
	cr_assert_eq(NUMBER(said, "home_bytes"), 2 * SIZE + 4096);
	cr_assert_eq(NUMBER(said, "all_users_bytes"), SIZE + 4096);
	json_decref(said);
	shell_free(&r);
	shell_ok(mnt.path, "\"$GAIA\" dedup --estimate . | grep -q 'all-users *4.0 MiB *3.75 x'");
	r = shell_run(mnt.path, 60, "\"$GAIA\" dedup --estimate a nothing");
	cr_assert_eq(r.status, 1);
	cr_assert_str_eq(r.err, "gaia: nothing: No such file or directory\n");
	cr_assert(strstr(r.out, "1 file takes"), "%s", r.out);
	shell_free(&r);
	shell_ok(mnt.path, "\"$GAIA\" dedup --estimate d/symlink | grep -q '^1 file '");
	r = shell_run(mnt.path, 60, "mkfifo fifo; \"$GAIA\" dedup --estimate fifo; truncate -s 8T huge huger; \"$GAIA\" dedup --estimate --json huge huger");
	cr_assert_str_eq(r.err, "gaia: fifo: neither a regular file nor a directory\n");
	shell_free(&r);
	r = shell_run(mnt.path, 60, "\"$GAIA\" dedup a");
	cr_assert_eq(r.status, 2);
	shell_free(&r);
	let_go();
}
