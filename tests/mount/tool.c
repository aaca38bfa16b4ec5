/*
 * tool.c - gaia(1), the control tool, against a mount.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "report.h"
#include "shell.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define SIZE (5 * MIB)
#define RW (PROT_READ | PROT_WRITE)

static void start(void)
{
	static const char *const args[] = { "--device", "sim:8M", "--device", "sim:16M", "--home",
					    "32M", "--writeback-age", "3600", NULL };
	static char bytes[SIZE];
	int fd;

	way_start(args);
	memset(bytes, '.', SIZE);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

/* Exit status and one line on standard error. */
static void refused(int status, const char *args)
{
	shell_gaia_fails(mnt.dir[0] ? mnt.path : "/", status, args, NULL);
}

/* How many reads that the kernel asked for the line tells of; each took some time. */
static double reads_of(const json_t *line, double seconds)
{
	const json_t *row;
	double n = 0;
	size_t k;

	json_array_foreach(json_object_get(line, "latencies"), k, row) {
		double p50 = json_real_value(json_object_get(row, "p50")), p99 = json_real_value(json_object_get(row, "p99"));

		cr_assert(p50 > 0 && p50 <= p99 && p99 <= json_real_value(json_object_get(row, "p999")));
		if (!strcmp(json_string_value(json_object_get(row, "of")), "request") && !strcmp(json_string_value(json_object_get(row, "kind")), "read"))
			n = json_real_value(json_object_get(row, "rate")) * seconds;
	}
	return n;
}

/* What one reads that the kernel has not, and nobody else reads, all lines together say. */
EACH_WAY_BARE(tool, stat_shows_what_happens_meanwhile)
{
	double pages = 0, seconds = 0, reads = 0;
	struct shell_result r;
	unsigned lines = 0;
	json_t *line;
	char *rest;

	start();
	r = shell_run(mnt.path, 60, "\"$GAIA\" stat . 0.1 1000 --json > %s/stat & lines() { wc -l < %s/stat; }; until [ $(lines) -gt 0 ]; do sleep 0.01; done; "
		      "dd if=f of=/dev/null bs=1M iflag=direct 2>&1; d=$?; n=$(($(lines) + 2)); until [ $(lines) -ge $n ]; do sleep 0.01; done; "
		      "kill $!; wait; head -n $n %s/stat; exit $d", mnt.dir, mnt.dir, mnt.dir);
	cr_assert_eq(r.status, 0, "%s", r.err);
	for (char *at = strtok_r(strchr(r.out, '{'), "\n", &rest); at; at = strtok_r(NULL, "\n", &rest), lines++) {
		line = json_loads(at, 0, NULL);
		cr_assert_not_null(line, "not JSON: %s", at);
		seconds = json_real_value(json_object_get(line, "seconds"));
		cr_assert_geq(seconds, 0.1);
		pages += seconds * (json_real_value(json_object_get(json_object_get(line, "rates"), "home_hits")) +
				    json_real_value(json_object_get(json_object_get(line, "rates"), "home_misses")));
		reads += reads_of(line, seconds);
		cr_assert_not_null(json_object_get(json_object_get(line, "home"), "budget"));
		json_decref(line);
	}
	shell_free(&r);
	cr_assert_gt(lines, 2);
	/* What is passed through the daemon does not see. */
	if (strcmp(way, "auto") != 0 || pages != 0)
		cr_assert_float_eq(pages, SIZE / 4096, 0.01, "%f pages", pages);
	/* A read has 1 MiB at most, and a page at least. */
	cr_assert(pages == 0 || (reads > 4.99 && reads < pages + 0.01), "%f reads", reads);

	r = shell_run(mnt.path, 60, "\"$GAIA\" stat f 0.1 2");
	cr_assert_eq(r.status, 0, "%s", r.err);
	cr_assert(strstr(r.out, "home_hit") == r.out && strstr(r.out, "  device\n"), "%s", r.out);
	shell_free(&r);
	refused(2, "stat . 0");
	refused(2, "stat . 1 0");
	refused(2, "stat . 1 1 1");
	refused(2, "stat . x");
	refused(2, "stat 0");
	refused(1, "stat /");
	refused(1, "stat nothing");
}

/* A map is the file from its beginning to its end; what is said of several files is of all of them, and of no other. */
EACH_WAY_BARE(tool, trees_and_lists_of_files)
{
	struct shell_result r;

	start();
	shell_ok(mnt.path, "mkdir -p d/e && head -c 4M f > d/a && head -c 10000 f > d/e/b && : > d/nothing && ln -s ../f d/link && mkfifo d/pipe && echo x > out");
	both_keep("d/a");
	both_keep("d/e/b");
	shell_ok(mnt.path, "\"$GAIA\" flush -r d && \"$GAIA\" evict -r d > /dev/null && \"$GAIA\" evict f out");
	shell_ok(mnt.path, "\"$GAIA\" warm d --json > /dev/null && \"$GAIA\" warm f > /dev/null");
	/* Else it is the kernel's memory that has them. */
	if (strcmp(way, "auto") != 0) {
		shell_ok(mnt.path, "\"$GAIA\" evict d/a --from home --range 1M:1M && \"$GAIA\" evict d/a --from home --range 3M:20K");
		r = shell_run(mnt.path, 30, "\"$GAIA\" residency -r d");
		cr_assert_eq(r.status, 0, "%s", r.err);
		cr_assert_str_eq(r.out, "d/a\n  home         [OOOOOOOOOOOOOOO               OOOOOOOOOOOOOOOoOOOOOOOOOOOOOO] 763/1024   74.5%\n"
					"d/e/b\n  home         [O] 3/3  100.0%\n"
					"d/nothing\n  home         [] 0/0       -\n"
					"3 files, 1027 pages: home 766,   74.6%; devices 0,    0.0%; not stored 0\n");
		shell_free(&r);
	}
	/* A list, of which one is not there; the others are done. */
	r = shell_run(mnt.path, 30, "printf 'd/a\\nmissing\\n\\nd/e/b' | \"$GAIA\" evict --files-from -");
	cr_assert_eq(r.status, 1);
	cr_assert_str_eq(r.err, "gaia: missing: No such file or directory\n");
	cr_assert_str_eq(r.out, "2 files, 4.0 MiB: not cached any more in all memories\n");
	shell_free(&r);
	shell_ok(mnt.path, "\"$GAIA\" residency d/a d/e/b | tail -n 1 | grep -q '^2 files, 1027 pages: home 0, '");
	shell_ok(mnt.path, "test $(\"$GAIA\" residency -r d --json | grep -c '\"path\": \"d/') = 3");
	/* A name with a line end; and a file that is nothing but a large hole. */
	shell_ok(mnt.path, "cp d/e/b 'd/two\nlines' && printf 'd/two\nlines\\0d/a' | \"$GAIA\" flush --null --files-from - && rm d/two*");
	shell_ok(mnt.path, "truncate -s 8T d/hole && \"$GAIA\" residency -r d | grep -q 'd/hole' && rm d/hole");
	shell_ok(mnt.path, ": > none && \"$GAIA\" flush --files-from none && test -z \"$(\"$GAIA\" warm --files-from none)\"");
	refused(1, "flush d");
	refused(1, "evict -r missing");
	refused(1, "warm --files-from missing");
	refused(2, "evict f out --range 0:4K");
	refused(2, "evict --files-from");
	refused(2, "pins . --files-from f");
}

/* A client's row has what it maps and how often it acquires; the file's, the device's memory. */
EACH_WAY_BARE(tool, top_says_who_acquires_what)
{
	struct shell_result r;
	struct actor *a;

	start();
	a = actor_start("f", SIZE, 0);
	actor_ok(a, ACQUIRE, 0, SIZE, RW);
	r = shell_run(mnt.path, 60, "\"$GAIA\" top . 0.1 1 -b");
	cr_assert_eq(r.status, 0, "%s", r.err);
	/* A client, user 0, that maps 5 MiB, in memory of three chunks, none of the host's or its own alone, and has acquired all. */
	cr_assert(strstr(r.out, "       0   5.00M   6.00M      0       0    5.00M "), "%s", r.out);
	cr_assert(strstr(r.out, "/f\n"), "%s", r.out);
	shell_free(&r);
	cr_assert_eq(STATUS("clients", "0", "mapped_bytes") + STATUS("clients", "1", "mapped_bytes"), SIZE);
	cr_assert_eq(STATUS("clients", "0", "acquires") + STATUS("clients", "1", "acquires"), 1);
	actor_end(a);
}

EACH_WAY_BARE(tool, status_describes_the_mount)
{
	struct actor *a;
	json_t *s;

	start();
	s = report("status", ".");
	cr_assert_str_eq(json_string_value(json_object_get(s, "mountpoint")), mnt.path);
	cr_assert_str_eq(json_string_value(json_object_get(s, "cpu_cache")), way);
	cr_assert_eq(strncmp(json_string_value(json_object_get(s, "storage_io")), "direct, ", 8), 0);
	cr_assert_eq(NUMBER(s, "pid"), mnt.daemon);
	cr_assert_eq(json_array_size(json_object_get(s, "devices")), 2u);
	cr_assert_eq(NUMBER(s, "devices", "1", "capacity"), 16 * MIB);
	cr_assert_eq(NUMBER(s, "devices", "0", "used"), 0);
	cr_assert_eq(NUMBER(s, "home", "budget"), 32 * MIB);
	json_decref(s);

	a = actor_start("f", SIZE, 0);
	actor_ok(a, ACQUIRE, 0, 4 * MIB, RW);
	s = report("status", "f");
	cr_assert_eq(NUMBER(s, "devices", "0", "used"), 4 * MIB);
	cr_assert_eq(NUMBER(s, "devices", "0", "pinned"), 4 * MIB);
	cr_assert_eq(NUMBER(s, "devices", "1", "used"), 0);
	cr_assert_eq(NUMBER(s, "counters", "acquires"), 1);
	cr_assert_eq(NUMBER(s, "counters", "home_to_device"), 4 * MIB / 4096);
	json_decref(s);
	actor_ok(a, STORE, 5, 1, 'd');
	actor_ok(a, RELEASE, 0, 4 * MIB, 0);
	s = report("status", ".");
	cr_assert_eq(NUMBER(s, "devices", "0", "pinned"), 0);
	cr_assert_eq(NUMBER(s, "counters", "releases"), 1);
	cr_assert_eq(NUMBER(s, "counters", "released_pages"), 1);
	json_decref(s);
	actor_end(a);
	/* For people. */
	shell_ok(mnt.path, "\"$GAIA\" status . | grep -q sim0 && \"$GAIA\" residency f > /dev/null");
	shell_ok(mnt.path, "\"$GAIA\" status . | grep -q 'twins_limit *8 MiB'");
}

EACH_WAY_BARE(tool, residency_says_where_the_chunks_are)
{
	struct actor *a;
	json_t *r;

	start();
	a = actor_start("f", SIZE, 1);
	actor_ok(a, ACQUIRE, 2 * MIB, 2 * MIB, RW);
	actor_ok(a, STORE, 2 * MIB, 1, 'd');
	actor_ok(a, RELEASE, 2 * MIB, 2 * MIB, 0);
	r = report("residency", "f");
	cr_assert_eq(NUMBER(r, "size"), SIZE);
	/* A file that is open and passed through has it at once, not only when somebody reads. */
	cr_assert_eq(NUMBER(r, "released"), way_is("auto") ? 0 : 1);
	json_decref(r);
	actor_sees(a, READ, 2 * MIB, 'd');
	r = report("residency", "f");
	cr_assert_eq(NUMBER(r, "released"), 0, "the read has fetched it");
	json_decref(r);
	actor_end(a);
}

EACH_WAY_BARE(tool, flush_stores_what_is_dirty)
{
	static char bytes[10000];
	int fd;

	start();
	fd = openat(both_root[ON_MOUNT], "g", O_CREAT | O_RDWR, 0644);
	memset(bytes, 'g', sizeof(bytes));
	cr_assert_eq(write(fd, bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
	shell_ok(mnt.path, "\"$GAIA\" flush g");
	backing_holds("g", bytes, sizeof(bytes));
	close(fd);
}

EACH_WAY_BARE(tool, evict_moves_and_loses_nothing)
{
	struct actor *a;
	json_t *s;

	start();
	a = actor_start("f", SIZE, 0);
	actor_ok(a, ACQUIRE, 0, SIZE, RW);
	actor_ok(a, STORE, 3 * MIB, 1000, 'd');
	/* Acquired: nobody takes it away. */
	refused(1, "evict f --from device 0");
	actor_ok(a, RELEASE, 0, SIZE, 0);
	shell_ok(mnt.path, "\"$GAIA\" evict f --from device 0");
	s = report("status", ".");
	cr_assert_eq(NUMBER(s, "devices", "0", "used"), 0);
	cr_assert_gt(NUMBER(s, "counters", "device_evicted"), 0);
	json_decref(s);
	shell_ok(mnt.path, "\"$GAIA\" evict f --from home --range 2M:1M && \"$GAIA\" evict f --from home");
	cr_assert_gt(STATUS("counters", "home_evicted"), 0);
	s = report("residency", "f");
	cr_assert_eq(NUMBER(s, "home"), 0);
	json_decref(s);
	actor_sees(a, READ, 3 * MIB + 999, 'd');
	actor_sees(a, READ, 3 * MIB + 1000, '.');
	actor_ok(a, ACQUIRE, 0, SIZE, PROT_READ);
	actor_sees(a, LOAD, 3 * MIB, 'd');
	shell_ok(mnt.path, "\"$GAIA\" evict f --from device 1");
	actor_end(a);
	shell_ok(mnt.path, "\"$GAIA\" evict f");
}

/* plain_dir/trace is what it prints; ended by SIGINT to the process in plain_dir/tracer. */
static int trace_child(void *arg)
{
	struct shell_result r = shell_run(plain_dir, 60, "echo $$ > tracer; exec \"$GAIA\" trace '%s' > trace", mnt.path);

	(void)arg;
	return r.status;
}

EACH_WAY_BARE(tool, trace_shows_accesses_until_it_is_ended)
{
	struct actor *a, *cpu;
	pid_t tracer;

	start();
	a = actor_start("f", SIZE, 0);
	cpu = actor_start("f", SIZE, NO_DEVICE);
	tracer = child_start(trace_child, NULL);
	shell_ok(plain_dir, "for i in $(seq 1000); do ! grep -qs '^# time_us' trace || exit 0; sleep 0.01; done; exit 1");
	refused(1, "trace .");
	actor_ok(a, ACQUIRE, 2 * MIB, 2 * MIB, RW);
	actor_ok(a, STORE, 3 * MIB, 1, 'd');
	actor_ok(a, RELEASE, 2 * MIB, 2 * MIB, 0);
	actor_ok(a, ACQUIRE, 0, 4096, PROT_READ);
	actor_sees(cpu, READ, 3 * MIB, 'd');
	shell_ok(plain_dir, "kill -INT $(cat tracer)");
	cr_assert_eq(child_wait(tracer), 0);
	shell_ok(plain_dir, "head -n 1 trace | grep -qx '# gaiafs trace 1' && grep -Eqx '[0-9]+ A [0-9]+ 512 512 0' trace && "
			    "grep -Eqx '[0-9]+ a [0-9]+ 0 1 0' trace");
	/* What is passed through is not seen. */
	if (!way_is("auto"))
		shell_ok(plain_dir, "grep -Eq '^[0-9]+ r ' trace");
	shell_ok(plain_dir, "! grep -Ev '^(#.*|[0-9]+ [rwaA]( [0-9]+){4})$' trace");
	actor_end(cpu);
	actor_end(a);
	shell_ok(mnt.path, "\"$GAIA\" trace . --seconds 1 | grep -q '^# gaiafs'");
}

/* Read past the kernel's cache, so that home has it. */
static void read_direct(const char *name, char byte)
{
	int fd = openat(both_root[ON_MOUNT], name, O_RDONLY | O_DIRECT);
	char *bytes = aligned_alloc(4096, MIB);

	cr_assert_geq(fd, 0);
	cr_assert_eq(read(fd, bytes, MIB), MIB);
	for (unsigned i = 0; i < MIB; i++)
		cr_assert_eq(bytes[i], byte, "byte %u", i);
	free(bytes);
	close(fd);
}

EACH_WAY_BARE(tool, pages_that_left_home_are_shown_where_they_are_parked)
{
	static const char *const args[] = { "--device", "sim:16M,cache=8M", "--home", "32M", NULL };
	static char bytes[MIB];
	long parked = 0;
	int fd;

	way_start(args);
	way_make_cached("f");
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	memset(bytes, 'p', MIB);
	cr_assert_eq(write(fd, bytes, MIB), MIB);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	both_keep("f");
	/* What leaves again is parked, once the device has made room for it. */
	for (unsigned tries = 0; tries < 1000 && parked < MIB; tries++) {
		json_t *r;

		read_direct("f", 'p');
		shell_ok(mnt.path, "\"$GAIA\" evict f --from home");
		r = report("residency", "f");
		parked = NUMBER(r, "victim_bytes");
		cr_assert_eq(NUMBER(r, "home"), 0);
		json_decref(r);
	}
	cr_assert_eq(parked, MIB);
	cr_assert_gt(STATUS("devices", "0", "cache_bytes"), 0);
	cr_assert_eq(STATUS("devices", "0", "used"), 0);
	cr_assert_geq(STATUS("counters", "victim_parked"), MIB / 4096);
	cr_assert_geq(STATUS("tiers", "3", "page_ns"), 1);
	read_direct("f", 'p');
	shell_ok(mnt.path, "\"$GAIA\" evict f --from device-cache && \"$GAIA\" residency f | grep -Eq '^victim_bytes *0 B'");
	read_direct("f", 'p');
	shell_ok(mnt.path, "\"$GAIA\" evict f");
}

EACH_WAY_BARE(tool, bad_usage_is_one_line)
{
	static const char *const usage[] = {
		"", "frobnicate", "status", "status . .", "status . --from home", "residency",
		"evict", "evict f --from", "evict f --from device", "evict f --from device x",
		"evict f --from cellar", "evict f --from device-cash", "evict f --range 5", "evict f --range 5:0",
		"evict f --range 5:6x", "flush", "flush f --json", "umount",
		"trace", "trace . --seconds", "trace . --seconds 0", "trace . --seconds x", "trace . --json",
	};

	start();
	for (size_t i = 0; i < sizeof(usage) / sizeof(usage[0]); i++)
		refused(2, usage[i]);
	refused(1, "status /proc");
	refused(1, "status /nowhere");
	refused(1, "residency .");
	refused(1, "residency /etc/passwd");
	refused(1, "flush missing");
	refused(1, "flush /etc/passwd");
	refused(1, "evict f --from device 2");
	refused(1, "umount /nowhere");
	refused(1, "trace /nowhere");
	refused(1, "umount f");
	refused(1, "umount /");
	shell_ok("/", "for h in -h --help help; do \"$GAIA\" $h | grep -q usage || exit; done && "
		      "test \"$(\"$GAIA\" -V)\" = \"$(\"$GAIA\" --version)\"");
}

static void says_kind(const char *args, const char *kind)
{
	struct shell_result r = shell_run(mnt.path, 30, "\"$GAIA\" %s", args);

	cr_assert_eq(r.status, 1, "gaia %s: status %d", args, r.status);
	cr_assert(strstr(r.err, kind), "gaia %s: no \"%s\" in \"%s\"", args, kind, r.err);
	shell_free(&r);
}

EACH_WAY_BARE(tool, what_is_no_regular_file_is_called_what_it_is)
{
	start();
	cr_assert_eq(mkfifoat(both_root[ON_MOUNT], "fifo", 0644), 0);
	cr_assert_eq(mkdirat(both_root[ON_MOUNT], "d", 0755), 0);
	says_kind("residency fifo", "a FIFO");
	says_kind("residency d", "a directory");
	says_kind("evict d", "a directory");
	says_kind("status fifo", "a FIFO");
	says_kind("residency /dev/null", "a device file");
	shell_ok(mnt.path, "\"$GAIA\" status d > /dev/null");
}

/* The examples are where gaia was built. */
EACH_WAY_BARE(tool, examples_say_which_file_is_not_on_a_mount)
{
	struct shell_result r;

	start();
	r = shell_run(plain_dir, 30, "at=\"${GAIA%%/*}/examples\"; test -x \"$at/increment\" || exit 77; "
				     "echo text > f; for e in 'increment f' 'histogram f' 'lines f' 'two_writers f new'; do "
				     "\"$at\"/$e && exit 1; done; true");
	if (r.status == 77) {
		shell_free(&r);
		WAY_SKIP("the examples are not beside gaia");
	}
	cr_assert_eq(r.status, 0);
	cr_assert_str_eq(r.err, "increment: cannot map f on the device: it is not on a gaiafs mount\n"
				"histogram: cannot map f on the device: it is not on a gaiafs mount\n"
				"lines: cannot map f on the device: it is not on a gaiafs mount\n"
				"two_writers: cannot map f on the device: it is not on a gaiafs mount\n");
	shell_free(&r);
}
