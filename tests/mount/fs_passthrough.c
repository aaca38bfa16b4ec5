/*
 * fs_passthrough.c - --cpu-cache auto: which files are passed through, which are cached, and that they stay coherent when
 * that changes. What programs see of them is what the other suites test.
 */
#include <errno.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "report.h"
#include "shell.h"
#include "ways.h"

#define SIZE (64 * 4096)
#define SOME 4096
#define RW (PROT_READ | PROT_WRITE)

static bool in_passthrough(const char *name)
{
	json_t *residency = report("residency", name);
	bool is = json_boolean_value(json_object_get(residency, "passthrough"));

	json_decref(residency);
	return is;
}

static void start(void)
{
	static const char *const args[] = { "--device", "sim:8M,count=2", NULL };
	static char bytes[SIZE];
	int fd;

	way_start(args);
	memset(bytes, '.', SIZE);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);
	close(fd);
}

/* A device maps the file and lets it go. */
static void show_to_device(const char *name)
{
	struct actor *dev = actor_start(name, SIZE, 0);

	actor_end(dev);
}

/* Map "f", and keep no descriptor of it. */
static char *map_only(void)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	char *p = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);

	cr_assert_neq(p, MAP_FAILED);
	close(fd);
	return p;
}

/* Once the last descriptor is closed; the kernel tells the daemon in its own time. */
static void wait_cached(const char *name)
{
	for (time_t end = time(NULL) + HANG_SECONDS; in_passthrough(name); usleep(5000))
		cr_assert_lt(time(NULL), end, "%s is still in passthrough", name);
}

AUTO_WAY_BARE(fs_passthrough, a_file_that_no_device_maps_is_the_kernels)
{
	char back[SIZE];
	char *p;
	int fd;

	start();
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	cr_assert_eq(pwrite(fd, "abc", 3, 100), 3);
	cr_assert_eq(pread(fd, back, SIZE, 0), SIZE);
	p = mmap(NULL, SIZE, RW, MAP_SHARED, fd, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_arr_eq(p + 100, "abc", 3);
	p[4096] = 'm';
	cr_assert_eq(pread(fd, back, 1, 4096), 1);
	cr_assert_eq(back[0], 'm');
	cr_assert(in_passthrough("f"));
	cr_assert_eq(STATUS("counters", "home_misses"), 0);
	cr_assert_eq(STATUS("counters", "home_hits"), 0);
	cr_assert_eq(STATUS("counters", "cpu_written_back"), 0);
	cr_assert_eq(STATUS("counters", "storage_writes"), 0);
	munmap(p, SIZE);
	close(fd);
}

/* A program has it open and mapped when the device comes; neither knows of the other. */
AUTO_WAY_BARE(fs_passthrough, a_file_that_is_open_in_passthrough_is_shared_with_a_device)
{
	struct actor *cpu, *dev, *other;
	char bytes[3];
	int below;

	start();
	below = openat(mnt.backing_fd, "f", O_RDONLY);
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_ok(cpu, MAP_STORE, 10, 1, 'c');
	actor_ok(cpu, WRITE, 4096, 1, 'w');
	dev = actor_start("f", SIZE, 0);
	other = actor_start("f", SIZE, 1);
	cr_assert(in_passthrough("f"));
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_sees(dev, LOAD, 10, 'c');
	actor_sees(dev, LOAD, 4096, 'w');
	actor_ok(dev, STORE, 11, 1, 'd');
	actor_ok(cpu, MAP_STORE, 12, 1, 'e');
	actor_sees(cpu, MAP_LOAD, 11, '.');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	actor_sees(cpu, MAP_LOAD, 11, 'd');
	actor_sees(cpu, READ, 11, 'd');
	actor_sees(cpu, MAP_LOAD, 12, 'e');
	actor_ok(other, ACQUIRE, 0, SIZE, PROT_READ);
	actor_sees(other, LOAD, 10, 'c');
	actor_sees(other, LOAD, 11, 'd');
	actor_sees(other, LOAD, 12, 'e');
	/* What is released is where fsync(2) and other programs below find it. */
	cr_assert_eq(pread(below, bytes, 3, 10), 3);
	cr_assert_arr_eq(bytes, "cde", 3);
	close(below);
	actor_end(cpu);
	actor_end(dev);
	actor_end(other);
}

AUTO_WAY_BARE(fs_passthrough, it_is_cached_when_it_is_opened_again)
{
	struct actor *cpu, *dev;

	start();
	show_to_device("f");
	wait_cached("f");
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_sees(cpu, READ, 5, '.');
	cr_assert(!in_passthrough("f"));
	cr_assert_geq(STATUS("counters", "home_misses"), 1);
	dev = actor_start("f", SIZE, 0);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 5, 1, 'd');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	cr_assert_eq(STATUS("counters", "device_to_home"), 0);
	actor_sees(cpu, READ, 5, 'd');
	actor_sees(cpu, MAP_LOAD, 5, 'd');
	actor_end(cpu);
	actor_end(dev);
}

/* Of a mapping the daemon hears nothing: not when it is made, not when its descriptor is closed, not when it goes. */
AUTO_WAY_BARE(fs_passthrough, a_mapping_that_outlives_its_descriptor_keeps_it_in_passthrough)
{
	struct actor *dev;
	char byte, *p;
	int fd;

	start();
	p = map_only();
	show_to_device("f");
	p[0] = 'm';
	fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	cr_assert(in_passthrough("f"));
	cr_assert_eq(pread(fd, &byte, 1, 0), 1);
	cr_assert_eq(byte, 'm');
	cr_assert_eq(pwrite(fd, "w", 1, 1), 1);
	cr_assert_eq(p[1], 'w');
	dev = actor_start("f", SIZE, 0);
	p[2] = 'n';
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_sees(dev, LOAD, 2, 'n');
	actor_ok(dev, STORE, 3, 1, 'd');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	cr_assert_eq(p[3], 'd');
	actor_end(dev);
	close(fd);
	cr_assert(in_passthrough("f"));
	munmap(p, SIZE);
	wait_cached("f");
}

AUTO_WAY_BARE(fs_passthrough, a_read_only_mapping_that_outlives_its_descriptor_sees_releases)
{
	struct actor *dev;
	const char *p;
	int fd;

	start();
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	p = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(p[7], '.');
	close(fd);
	show_to_device("f");
	dev = actor_start("f", SIZE, 0);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 7, 1, 'd');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	cr_assert_eq(p[7], 'd');
	actor_end(dev);
	munmap((void *)p, SIZE);
}

AUTO_WAY_BARE(fs_passthrough, files_of_devices_are_remembered_across_mounts)
{
	char list[256];
	int fd;

	start();
	show_to_device("f");
	way_unmount();
	way_remount();
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	cr_assert(!in_passthrough("f"));
	/* By an attribute that programs do not see, nor can take away. */
	cr_assert_eq(flistxattr(fd, list, sizeof(list)), 0);
	cr_assert_lt(fgetxattr(fd, "trusted.gaiafs.device", list, sizeof(list)), 0);
	cr_assert_eq(errno, ENODATA);
	cr_assert_eq(fsetxattr(fd, "trusted.gaiafs.device", "", 0, 0), -1);
	cr_assert_eq(errno, EPERM);
	cr_assert_eq(fremovexattr(fd, "trusted.gaiafs.device"), -1);
	cr_assert_eq(errno, ENODATA);
	close(fd);
}

/* A caller that may only read leaves no trace in the source. */
AUTO_WAY_BARE(fs_passthrough, files_that_are_only_read_by_devices_are_not_marked)
{
	struct stat before, after;
	unsigned char *p;
	int fd;

	start();
	cr_assert_eq(fstatat(mnt.backing_fd, "f", &before, 0), 0);
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	p = gaia_mmap(SIZE, PROT_READ, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(gaia_acquire(p, SIZE, PROT_READ), 0);
	cr_assert_eq(gaia_release(p, SIZE), 0);
	cr_assert_eq(gaia_munmap(p, SIZE), 0);
	close(fd);
	cr_assert_eq(fstatat(mnt.backing_fd, "f", &after, 0), 0);
	cr_assert_eq(before.st_ctim.tv_sec, after.st_ctim.tv_sec);
	cr_assert_eq(before.st_ctim.tv_nsec, after.st_ctim.tv_nsec);
	/* One that may write marks it, though the daemon knows it for a device's file already. */
	show_to_device("f");
	way_unmount();
	way_remount();
	cr_assert(!in_passthrough("f"));
}

/*
 * posix_fadvise(2) has the kernel read into pages that it does not look at, nor drop when the file changes, before the file
 * is cached. An open in passthrough would drop them: so nothing here opens the file between.
 */
AUTO_WAY_BARE(fs_passthrough, what_was_read_ahead_is_not_seen_when_it_is_old)
{
	static char bytes[SIZE], seen[SIZE];
	time_t end = time(NULL) + HANG_SECONDS;
	bool cached = false;
	char name[16];
	int fd;

	start();
	for (unsigned n = 0; !cached; n++) {
		cr_assert_lt(time(NULL), end, "none of %u files becomes cached", n);
		snprintf(name, sizeof(name), "ahead%u", n);
		fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);
		memset(bytes, 'o', SIZE);
		cr_assert_eq(pwrite(fd, bytes, SIZE, 0), SIZE);
		show_to_device(name);
		cr_assert_eq(posix_fadvise(fd, 0, SIZE, POSIX_FADV_WILLNEED), 0);
		for (int k = 0; k < 50; k++) /* meanwhile it is read ahead */
			cr_assert_eq(pread(fd, seen, SIZE, 0), SIZE);
		memset(bytes, 'n', SIZE);
		cr_assert_eq(pwrite(fd, bytes, SIZE, 0), SIZE);
		close(fd);
		fd = openat(both_root[ON_MOUNT], name, O_RDONLY);
		cr_assert_eq(pread(fd, seen, SIZE, 0), SIZE);
		cr_assert_arr_eq(seen, bytes, SIZE);
		cached = !in_passthrough(name); /* unless the daemon had not heard of close() yet */
		close(fd);
	}
}

/* The kernel is not told that a mapping was written to: it must not believe old times. */
AUTO_WAY_BARE(fs_passthrough, a_store_through_a_mapping_shows_in_the_modification_time)
{
	const struct timespec past[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	struct stat before, after;
	char *p;

	start();
	cr_assert_eq(utimensat(both_root[ON_MOUNT], "f", past, 0), 0);
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &before, 0), 0);
	cr_assert_eq(before.st_mtim.tv_sec, 1000);
	p = map_only();
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &before, 0), 0);
	cr_assert_eq(before.st_mtim.tv_sec, 1000);
	p[0] = 'x';
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &after, 0), 0);
	cr_assert_gt(after.st_mtim.tv_sec, 1000);
	munmap(p, SIZE);
}

static void *link_f(void *unused)
{
	cr_assert_eq(linkat(both_root[ON_MOUNT], "f", both_root[ON_MOUNT], "l", 0), 0);
	return NULL;
}

/* Attributes in an answer to link(2) count whatever the kernel was told since they were read. */
AUTO_WAY_BARE(fs_passthrough, a_store_shows_also_when_an_answer_to_link_comes_late)
{
	const struct timespec past[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	pthread_t linker;
	struct stat st;
	char *p;

	setenv("GAIAFS_FAULTS", "link.before_reply=delay:20000us,seed=1", 1);
	start();
	unsetenv("GAIAFS_FAULTS");
	for (int k = 0; k < 10; k++) {
		cr_assert_eq(utimensat(both_root[ON_MOUNT], "f", past, 0), 0);
		cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0);
		cr_assert_eq(pthread_create(&linker, NULL, link_f, NULL), 0);
		while (faccessat(mnt.backing_fd, "l", F_OK, 0))
			sched_yield();
		p = map_only();
		pthread_join(linker, NULL);
		p[0]++;
		cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0);
		cr_assert_gt(st.st_mtim.tv_sec, 1000, "round %d", k);
		munmap(p, SIZE);
		cr_assert_eq(unlinkat(both_root[ON_MOUNT], "l", 0), 0);
	}
}

/* What stat(2) says on the mount is what it says below. */
static void true_stat(const char *name, const char *after)
{
	struct stat st, below;

	cr_assert_eq(fstatat(both_root[ON_MOUNT], name, &st, 0), 0);
	cr_assert_eq(fstatat(mnt.backing_fd, name, &below, 0), 0);
	cr_assert_eq(st.st_size, below.st_size, "after %s: size", after);
	cr_assert(st.st_mtim.tv_sec == below.st_mtim.tv_sec && st.st_mtim.tv_nsec == below.st_mtim.tv_nsec,
		  "after %s: %ld.%09ld below, %ld.%09ld on the mount", after, below.st_mtim.tv_sec,
		  below.st_mtim.tv_nsec, st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
	cr_assert(st.st_ctim.tv_sec == below.st_ctim.tv_sec && st.st_ctim.tv_nsec == below.st_ctim.tv_nsec,
		  "after %s: time of the last change", after);
}

/* Change the file by a descriptor that cannot read. */
static void write_some(int fd, const char *call)
{
	static char bytes[SOME] __attribute__((aligned(SOME)));
	off_t from = 0;
	int p[2], source;

	if (!strcmp(call, "splice")) {
		cr_assert_eq(pipe(p), 0);
		cr_assert_eq(write(p[1], bytes, SOME), SOME);
		cr_assert_eq(splice(p[0], NULL, fd, NULL, SOME, 0), SOME);
		close(p[0]);
		close(p[1]);
	} else if (!strcmp(call, "sendfile")) {
		source = openat(mnt.backing_fd, "f", O_RDONLY);
		cr_assert_eq(sendfile(fd, source, &from, SOME), SOME);
		close(source);
	} else if (!strcmp(call, "fallocate")) {
		cr_assert_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SOME), 0);
	} else if (!strcmp(call, "ftruncate")) {
		cr_assert_eq(ftruncate(fd, lseek(fd, 0, SEEK_END) + SOME), 0);
	} else {
		cr_assert_eq(write(fd, bytes, SOME), SOME);
	}
}

/*
 * After a file was open for such calls only, the daemon does not ask who else could write it below: the kernel sees by itself
 * what they change. This checks that it does.
 */
AUTO_WAY_BARE(fs_passthrough, a_file_that_is_open_for_writing_only_is_shown_as_it_is)
{
	static const struct {
		const char *name;
		int flags;
	} calls[] = { { "write", 0 }, { "write", O_APPEND }, { "write", O_DIRECT }, { "splice", 0 },
		      { "sendfile", 0 }, { "fallocate", 0 }, { "ftruncate", 0 } };
	const struct timespec past[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	int fd;

	start();
	for (unsigned k = 0; k < sizeof(calls) / sizeof(calls[0]); k++) {
		cr_assert_eq(utimensat(both_root[ON_MOUNT], "f", past, 0), 0);
		true_stat("f", "utimensat"); /* for good */
		fd = openat(both_root[ON_MOUNT], "f", O_WRONLY | calls[k].flags);
		cr_assert_geq(fd, 0);
		true_stat("f", "open");
		for (int n = 0; n < 3; n++) {
			write_some(fd, calls[k].name);
			true_stat("f", calls[k].name);
		}
		write_some(fd, calls[k].name);
		close(fd);
		for (int n = 0; n < 3; n++)
			true_stat("f", "close");
	}
}

AUTO_WAY_BARE(fs_passthrough, and_so_it_is_when_somebody_has_mapped_it_before)
{
	const struct timespec past[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	bool noticed = false;
	struct stat st;
	char *p;
	int fd;

	start();
	p = map_only();
	fd = openat(both_root[ON_MOUNT], "f", O_WRONLY);
	write_some(fd, "write");
	close(fd);
	for (int n = 0; n < 10; n++) {
		cr_assert_eq(utimensat(both_root[ON_MOUNT], "f", past, 0), 0);
		true_stat("f", "utimensat");
		cr_assert_eq(msync(p, SIZE, MS_SYNC), 0); /* the next store is noticed below; not by each file system */
		p[0]++;
		true_stat("f", "a store");
		cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0);
		noticed |= st.st_mtim.tv_sec > 1000;
	}
	cr_assert(noticed);
	munmap(p, SIZE);
}

static void *stat_f(void *unused)
{
	struct stat st;

	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0);
	return NULL;
}

/* The kernel does not see by itself that a hole which leaves the size alone overtakes an answer about the time before. */
AUTO_WAY_BARE(fs_passthrough, and_so_it_is_when_an_answer_about_the_time_before_comes_late)
{
	const struct timespec past[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	pthread_t looker;
	int fd, read_fd;
	char byte;

	setenv("GAIAFS_FAULTS", "attr.read=delay:20000us,seed=1", 1);
	start();
	unsetenv("GAIAFS_FAULTS");
	read_fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	for (int k = 0; k < 20; k++) {
		cr_assert_eq(utimensat(both_root[ON_MOUNT], "f", past, 0), 0);
		cr_assert_eq(pread(read_fd, &byte, 1, 0), 1); /* so that stat(2) has to ask */
		cr_assert_eq(pthread_create(&looker, NULL, stat_f, NULL), 0);
		for (int n = 0; n < 10 * k; n++)
			sched_yield();
		fd = openat(both_root[ON_MOUNT], "f", O_WRONLY);
		write_some(fd, "fallocate");
		close(fd);
		pthread_join(looker, NULL);
		true_stat("f", "fallocate");
	}
	close(read_fd);
}

/* An empty file's attributes are the kernel's to keep: each way in which it gets contents must end that. */
AUTO_WAY_BARE(fs_passthrough, what_was_empty_is_shown_as_it_is)
{
	static const char *const ways[] = { "write", "ftruncate", "fallocate", "copy" };
	const struct timespec past[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	int fd, from;
	char *p;

	start();
	from = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	for (unsigned k = 0; k < 4; k++) {
		fd = openat(both_root[ON_MOUNT], ways[k], O_CREAT | O_RDWR, 0644);
		cr_assert_eq(futimens(fd, past), 0);
		true_stat(ways[k], "creating");
		if (k == 0)
			cr_assert_eq(write(fd, "x", 1), 1);
		else if (k == 1)
			cr_assert_eq(ftruncate(fd, 1), 0);
		else if (k == 2)
			cr_assert_eq(fallocate(fd, 0, 0, 1), 0);
		else
			cr_assert_eq(copy_file_range(from, NULL, fd, NULL, 1, 0), 1);
		true_stat(ways[k], ways[k]);
		cr_assert_eq(futimens(fd, past), 0);
		p = mmap(NULL, 1, RW, MAP_SHARED, fd, 0);
		close(fd);
		true_stat(ways[k], "mapping");
		p[0] = 'y';
		true_stat(ways[k], "a store");
		munmap(p, 1);
	}
	close(from);
}

AUTO_WAY_BARE(fs_passthrough, a_release_shows_in_the_modification_time)
{
	const struct timespec past[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
	struct actor *dev;
	struct stat st;

	start();
	dev = actor_start("f", SIZE, 0);
	cr_assert_eq(utimensat(both_root[ON_MOUNT], "f", past, 0), 0);
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0);
	actor_ok(dev, ACQUIRE, 0, SIZE, RW);
	actor_ok(dev, STORE, 0, 1, 'd');
	actor_ok(dev, RELEASE, 0, SIZE, 0);
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "f", &st, 0), 0);
	cr_assert_gt(st.st_mtim.tv_sec, 1000);
	actor_end(dev);
}

/* The pages that an acquire makes the daemon read. */
static json_int_t pages_looked_at(void *p)
{
	json_int_t before = STATUS("counters", "storage_reads");

	cr_assert_eq(gaia_acquire(p, SIZE, PROT_READ), 0);
	cr_assert_eq(gaia_release(p, SIZE), 0);
	return STATUS("counters", "storage_reads") - before;
}

/* With only readers, an acquire has nothing to look for. */
AUTO_WAY_BARE(fs_passthrough, nothing_is_compared_where_nobody_can_write)
{
	time_t end = time(NULL) + HANG_SECONDS;
	int fd;
	void *p;

	start();
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	p = gaia_mmap(SIZE, PROT_READ, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED, "gaia_mmap: %s", strerror(errno));
	cr_assert_geq(pages_looked_at(p), SIZE / 4096);
	/* start()'s descriptor can write, until the kernel says, in its own time, that it is closed. */
	while (pages_looked_at(p) > 0)
		cr_assert_lt(time(NULL), end, "all is looked at each time");
	for (int k = 0; k < 5; k++)
		cr_assert_eq(pages_looked_at(p), 0);
	/* Somebody could now. */
	show_to_device("f");
	cr_assert_geq(pages_looked_at(p), SIZE / 4096);
	cr_assert_eq(gaia_munmap(p, SIZE), 0);
	close(fd);
}

AUTO_WAY_BARE(fs_passthrough, a_file_that_is_both_written_and_opened_by_many_stays_one_file)
{
	char byte;
	int fd[16];

	start();
	for (int i = 0; i < 16; i++) {
		fd[i] = openat(both_root[ON_MOUNT], "f", i % 2 ? O_RDWR : O_RDONLY);
		cr_assert_geq(fd[i], 0);
		if (i == 7)
			show_to_device("f");
	}
	for (int i = 1; i < 16; i += 2)
		cr_assert_eq(pwrite(fd[i], &(char){ (char)('a' + i) }, 1, i), 1);
	for (int i = 0; i < 16; i += 2)
		for (int k = 1; k < 16; k += 2) {
			cr_assert_eq(pread(fd[i], &byte, 1, k), 1);
			cr_assert_eq(byte, 'a' + k);
		}
	for (int i = 0; i < 16; i++)
		close(fd[i]);
	wait_cached("f");
}

/* Only the machine's root may pass files through; others are told what they get, and why. */
AUTO_WAY_BARE(fs_passthrough, where_it_cannot_be_had_status_says_why)
{
	struct shell_result r;
	int status;

	r = shell_run("/", 60, "unshare --user --map-root-user --mount true");
	status = r.status;
	shell_free(&r);
	if (status != 0)
		WAY_SKIP("this user may not make user namespaces");
	way_start(NULL);
	r = shell_run(mnt.dir, 60,
		      "mkdir below above && unshare --user --map-root-user --mount --kill-child sh -c '"
		      "\"$GAIAFS\" --cpu-cache auto below above && "
		      "\"$GAIA\" status above --json; \"$GAIA\" umount above'");
	cr_assert_eq(r.status, 0, "%s", r.err);
	cr_assert(strstr(r.err, "only root may pass files through"), "%s", r.err);
	cr_assert(strstr(r.out, "\"cpu_cache\": \"writeback\""), "%s", r.out);
	cr_assert(strstr(r.out, "\"not_auto\": \"only root may pass files through\""), "%s", r.out);
	shell_free(&r);
}

/* ---- larger than home ---- */

#define LARGE (48 << 20)

static void start_large(char *bytes)
{
	static const char *const args[] = { "--device", "sim:64M", "--home", "16M", NULL };
	int fd;

	for (size_t i = 0; i < LARGE; i++)
		bytes[i] = (char)(i / 4096 * 31 + i % 251);
	way_start(args);
	/* Below: nobody has ever had it open for writing on the mount, whose daemon learns later when somebody closes it. */
	fd = openat(mnt.backing_fd, "large", O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, bytes, LARGE), LARGE);
	close(fd);
}

/* What a program reads that maps it anew is as in @bytes. Returns how many pages the daemon read from storage. */
static long read_large(const char *bytes)
{
	long before = STATUS("counters", "storage_reads");
	int fd = openat(both_root[ON_MOUNT], "large", O_RDONLY | O_CLOEXEC);
	char *p = gaia_mmap(LARGE, PROT_READ, fd, 0, 0);

	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	cr_assert_eq(gaia_acquire(p, LARGE, PROT_READ), 0, "%s", gaia_last_error_text());
	cr_assert_eq(memcmp(p, bytes, LARGE), 0);
	cr_assert_eq(gaia_release(p, LARGE), 0);
	cr_assert_eq(gaia_munmap(p, LARGE), 0);
	close(fd);
	return STATUS("counters", "storage_reads") - before;
}

Test(fs_passthrough, larger_than_home_is_read_once, .init = way_bare_auto, .fini = way_clean_up, .timeout = WAY_SECONDS)
{
	char *bytes = malloc(LARGE), *p;
	int fd, reader;

	cr_assert(bytes);
	start_large(bytes);
	/* As long as somebody has it open it stays passed through. */
	reader = openat(both_root[ON_MOUNT], "large", O_RDONLY | O_CLOEXEC);
	cr_assert_eq(read_large(bytes), LARGE / 4096);
	cr_assert(in_passthrough("large"));
	cr_assert_eq(read_large(bytes), 0);

	/* Then a program writes it: by write(2), and by stores. */
	fd = openat(both_root[ON_MOUNT], "large", O_RDWR | O_CLOEXEC);
	for (size_t at = 12345; at < LARGE; at += LARGE / 7) {
		bytes[at] ^= 0x55;
		cr_assert_eq(pwrite(fd, bytes + at, 1, (off_t)at), 1);
	}
	p = mmap(NULL, LARGE, RW, MAP_SHARED, fd, 0);
	cr_assert_neq(p, MAP_FAILED);
	close(fd);
	read_large(bytes);
	for (size_t at = 54321; at < LARGE; at += LARGE / 5)
		p[at] = bytes[at] ^= 0x55;
	read_large(bytes);
	munmap(p, LARGE);

	/* Nobody can any more, as soon as the daemon knows. */
	for (time_t end = time(NULL) + HANG_SECONDS; read_large(bytes) > 0;)
		cr_assert(time(NULL) < end, "it is read again and again");
	cr_assert(in_passthrough("large"));
	/* Then it is cached, since devices use it: what they have stays what it is. */
	both_keep("large");
	close(reader);
	for (time_t end = time(NULL) + HANG_SECONDS; in_passthrough("large");)
		cr_assert(time(NULL) < end, "it stays passed through");
	cr_assert_eq(read_large(bytes), 0);
	free(bytes);
	way_end();
}
