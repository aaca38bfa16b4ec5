/*
 * fs_mmap.c - mappings of files, between processes and against read and write.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "child.h"
#include "ways.h"

#define SIZE 20000

static int make(const char *name)
{
	char bytes[SIZE];
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);

	cr_assert_geq(fd, 0);
	memset(bytes, '.', SIZE);
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);
	return fd;
}

static char *map(int fd, int prot, int flags)
{
	char *p = mmap(NULL, SIZE, prot, flags, fd, 0);

	cr_assert_neq(p, MAP_FAILED, "mmap: %s", strerror(errno));
	return p;
}

EACH_WAY(fs_mmap, stores_and_writes_see_each_other)
{
	int fd = make("f");
	char *p = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED), got[4];

	cr_assert_eq(p[0], '.');
	p[0] = 'm';
	p[8191] = 'm';
	cr_assert_eq(pread(fd, got, 1, 0), 1);
	cr_assert_eq(got[0], 'm', "read(2) sees the store");
	cr_assert_eq(pwrite(fd, "write", 5, 8190), 5);
	cr_assert_arr_eq(p + 8190, "write", 5, "the mapping sees write(2)");
	p[8192] = 'M';
	cr_assert_eq(pread(fd, got, 4, 8190), 4);
	cr_assert_arr_eq(got, "wrMt", 4);
	munmap(p, SIZE);
	close(fd);
}

struct two {
	struct gate to_child, to_parent;
};

static int second_process(void *arg)
{
	struct two *t = arg;
	int fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	volatile char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	char c;

	CHILD_CHECK(p != MAP_FAILED);
	for (int i = 0; i < 100; i++) {
		CHILD_CHECK(gate_pass(t->to_child));
		CHILD_CHECK(p[i * 100] == 'A');
		CHILD_CHECK(pread(fd, &c, 1, i * 100 + 1) == 1 && c == 'a');
		p[i * 100 + 2] = 'B';
		CHILD_CHECK(pwrite(fd, "b", 1, i * 100 + 3) == 1);
		gate_open(t->to_parent);
	}
	return 0;
}

EACH_WAY(fs_mmap, two_processes_share_a_mapping)
{
	struct two t = { gate_make(), gate_make() };
	int fd = make("f");
	volatile char *p = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
	pid_t child = child_start(second_process, &t);
	char got[4];

	for (int i = 0; i < 100; i++) {
		p[i * 100] = 'A';
		cr_assert_eq(pwrite(fd, "a", 1, i * 100 + 1), 1);
		gate_open(t.to_child);
		cr_assert(gate_pass(t.to_parent));
		cr_assert_eq(p[i * 100 + 2], 'B');
		cr_assert_eq(p[i * 100 + 3], 'b');
		cr_assert_eq(pread(fd, got, 4, i * 100), 4);
		cr_assert_arr_eq(got, "AaBb", 4);
	}
	cr_assert_eq(child_wait(child), 0);
	munmap((void *)p, SIZE);
	close(fd);
}

EACH_WAY(fs_mmap, msync_stores)
{
	static char want[SIZE];
	int fd = make("f");
	char *p = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);

	memset(want, '.', SIZE);
	memcpy(p + 4090, "synchronous", 11);
	memcpy(want + 4090, "synchronous", 11);
	cr_assert_eq(msync(p, SIZE, MS_SYNC), 0);
	backing_holds("f", want, SIZE);
	munmap(p, SIZE);
	close(fd);
}

/* The mapping outlives the descriptor and dirties after the last close. */
EACH_WAY(fs_mmap, stores_after_the_last_close_are_kept)
{
	static char want[SIZE];
	int fd = make("f");
	char *p = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);

	close(fd);
	memset(want, '.', SIZE);
	for (int i = 7; i < SIZE; i += 1000)
		p[i] = want[i] = 'k';
	munmap(p, SIZE);
	way_unmount();
	backing_holds("f", want, SIZE);
}

EACH_WAY(fs_mmap, a_mapping_of_an_unlinked_file_lives)
{
	int fd = make("f");
	char *p = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);

	close(fd);
	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "f", 0), 0);
	p[5] = 'x';
	cr_assert_eq(p[5], 'x');
	cr_assert_eq(madvise(p, SIZE, MADV_DONTNEED), 0);
	cr_assert_eq(p[5], 'x');
	cr_assert_eq(p[SIZE - 1], '.');
	cr_assert_eq(msync(p, SIZE, MS_SYNC), 0);
	munmap(p, SIZE);
}

EACH_WAY(fs_mmap, private_stores_stay_private)
{
	static char want[SIZE];
	int fd = make("f");
	char *p = map(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE), got;

	memset(want, '.', SIZE);
	p[0] = 'p';
	cr_assert_eq(pread(fd, &got, 1, 0), 1);
	cr_assert_eq(got, '.');
	cr_assert_eq(p[0], 'p');
	munmap(p, SIZE);
	close(fd);
	way_unmount();
	backing_holds("f", want, SIZE);
}

EACH_WAY(fs_mmap, a_hole_maps_as_zeros_and_takes_stores)
{
	static char want[SIZE];
	int fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);
	char *p;

	cr_assert_eq(ftruncate(fd, SIZE), 0);
	p = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);
	for (int i = 0; i < SIZE; i += 4096)
		cr_assert_eq(p[i], 0);
	p[9000] = want[9000] = 'h';
	munmap(p, SIZE);
	close(fd);
	way_unmount();
	backing_holds("f", want, SIZE);
}

/* What is stored beyond the end, in the last page, never reaches the file. */
EACH_WAY(fs_mmap, bytes_beyond_the_end_are_dropped)
{
	static char want[SIZE + 1000];
	struct statfs below;
	int fd = make("f");
	char *p = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);

	cr_assert_eq(fstatfs(mnt.backing_fd, &below), 0);
	if (!strcmp(way, "auto") && below.f_type == TMPFS_MAGIC)
		WAY_SKIP("passed through to tmpfs, which keeps such bytes");
	cr_assert_eq(p[SIZE], 0);
	p[SIZE] = 'x';
	p[SIZE - 1] = 'y';
	cr_assert_eq(msync(p, SIZE, MS_SYNC), 0);
	munmap(p, SIZE);
	cr_assert_eq(ftruncate(fd, SIZE + 1000), 0);
	memset(want, '.', SIZE);
	want[SIZE - 1] = 'y';
	close(fd);
	way_unmount();
	backing_holds("f", want, SIZE + 1000);
}

static int touch_beyond_end(void *arg)
{
	volatile char *p = arg;

	return p[8192];
}

EACH_WAY(fs_mmap, pages_beyond_the_end_give_sigbus)
{
	int fd = make("f");
	char *p = map(fd, PROT_READ | PROT_WRITE, MAP_SHARED);

	p[8192] = 'x';
	cr_assert_eq(ftruncate(fd, 5000), 0);
	cr_assert_eq(child_run(touch_beyond_end, p), 128 + SIGBUS);
	cr_assert_eq(p[4999], '.');
	cr_assert_eq(p[5000], 0, "the rest of the last page is zeros");
	cr_assert_eq(ftruncate(fd, SIZE), 0);
	cr_assert_eq(p[8192], 0, "and so is what comes back");
	munmap(p, SIZE);
	close(fd);
}

EACH_WAY(fs_mmap, a_descriptor_gives_no_more_rights_than_it_has)
{
	int fd = make("f");

	close(fd);
	fd = openat(both_root[ON_MOUNT], "f", O_RDONLY);
	cr_assert_eq(mmap(NULL, SIZE, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	cr_assert_eq(errno, EACCES);
	munmap(map(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE), SIZE);
	close(fd);
	fd = openat(both_root[ON_MOUNT], "f", O_WRONLY);
	cr_assert_eq(mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fd, 0), MAP_FAILED);
	cr_assert_eq(errno, EACCES);
	close(fd);
}

#define PAGES 512

struct stripe {
	int index, of;
};

/* Each process stores its own bytes of every page, over and over. */
static int store_stripe(void *arg)
{
	struct stripe *s = arg;
	int fd = openat(both_root[ON_MOUNT], "f", O_RDWR);
	char *p = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	CHILD_CHECK(p != MAP_FAILED);
	for (int round = 0; round < 3; round++) {
		for (int i = s->index; i < PAGES * 4096; i += s->of)
			p[i] = 'a' + s->index;
		if (round == s->index)
			CHILD_CHECK(msync(p, PAGES * 4096, MS_SYNC) == 0);
	}
	return 0;
}

EACH_WAY(fs_mmap, interleaved_stores_of_processes_are_all_kept)
{
	static char want[PAGES * 4096];
	struct stripe s[3];
	pid_t child[3];
	int fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);

	cr_assert_eq(ftruncate(fd, sizeof(want)), 0);
	close(fd);
	for (int i = 0; i < 3; i++) {
		s[i] = (struct stripe){ i, 3 };
		child[i] = child_start(store_stripe, &s[i]);
	}
	for (int i = 0; i < 3; i++)
		cr_assert_eq(child_wait(child[i]), 0);
	for (size_t i = 0; i < sizeof(want); i++)
		want[i] = 'a' + i % 3;
	way_unmount();
	backing_holds("f", want, sizeof(want));
}
