/*
 * nodes.c - --source shared: names and bytes, as two nodes see them.
 */
#include <gaia/client.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "child.h"
#include "nodes_rig.h"
#include "shell.h"

/* ---- names ---- */

ALL(nodes, what_one_makes_and_removes_the_other_sees)
{
	char name[16];

	for (int i = 0; i < 20; i++) {
		int a = i % 2, b = !a;

		snprintf(name, sizeof(name), "f%d", i / 2);
		cr_assert_eq(is_there(b, name), i % 2 == 1);
		put(a, name, "made");
		has(b, name, "made");
		cr_assert(is_there(b, name));
		if (i % 2 == 0)
			continue;
		cr_assert_eq(unlinkat(at[b], name, 0), 0);
		cr_assert(!is_there(a, name));
		cr_assert_eq(openat(at[a], name, O_RDONLY), -1);
		cr_assert_eq(mkdirat(at[a], name, 0755), 0);
		cr_assert(is_there(b, name));
		cr_assert_eq(unlinkat(at[b], name, AT_REMOVEDIR), 0);
		cr_assert(!is_there(a, name));
	}
}

ALL(nodes, a_file_that_is_renamed_over_another_is_seen_whole)
{
	char text[32];

	put(0, "f", "first");
	for (int i = 0; i < 30; i++) {
		int a = i % 2, b = !a;

		snprintf(text, sizeof(text), "version %d", i);
		put(a, "new", text);
		cr_assert_eq(renameat(at[a], "new", at[a], "f"), 0);
		has(b, "f", text);
		cr_assert(!is_there(b, "new"));
	}
}

ALL(nodes, a_symbolic_link_that_is_replaced_leads_elsewhere)
{
	char to[16];

	put(0, "a", "of a");
	put(0, "b", "of b");
	for (int i = 0; i < 6; i++) {
		const char *target = i % 2 ? "a" : "b";

		cr_assert_eq(symlinkat(target, at[0], "new"), 0);
		cr_assert_eq(renameat(at[0], "new", at[0], "link"), 0);
		cr_assert_eq(readlinkat(at[1], "link", to, sizeof(to)), 1);
		cr_assert_eq(to[0], *target);
	}
}

#define TRIES 150
struct maker {
	int n;
	struct gate go;
	int made;
};

static int make_many(void *arg)
{
	struct maker *m = arg;
	char name[16];

	CHILD_CHECK(gate_pass(m->go));
	for (int i = 0; i < TRIES; i++) {
		int fd;

		snprintf(name, sizeof(name), "x%d", i);
		fd = openat(at[m->n], name, O_CREAT | O_EXCL | O_WRONLY, 0644);
		CHILD_CHECK(fd >= 0 || errno == EEXIST);
		if (fd >= 0)
			CHILD_CHECK(write(fd, &(char){ (char)('0' + m->n) }, 1) == 1 && ++m->made && !close(fd));
	}
	/* As many as there are names are made by the two. */
	snprintf(name, sizeof(name), "made%d", m->n);
	int fd = openat(at[m->n], name, O_CREAT | O_WRONLY, 0644);
	CHILD_CHECK(dprintf(fd, "%d", m->made) > 0);
	return close(fd);
}

ALL(nodes, of_two_that_make_a_file_with_O_EXCL_one_does)
{
	struct maker m[NODES];
	pid_t child[NODES];
	int made = 0;
	char is[16] = "", name[16];

	for (int i = 0; i < NODES; i++)
		m[i] = (struct maker){ .n = i, .go = gate_make() };
	for (int i = 0; i < NODES; i++)
		child[i] = child_start(make_many, &m[i]);
	for (int i = 0; i < NODES; i++)
		gate_open(m[i].go);
	for (int i = 0; i < NODES; i++)
		cr_assert_eq(child_wait(child[i]), 0);
	for (int i = 0; i < NODES; i++) {
		snprintf(name, sizeof(name), "made%d", i);
		int fd = open_at(!i, name, O_RDONLY);
		cr_assert_gt(read(fd, is, sizeof(is) - 1), 0);
		close(fd);
		made += atoi(is);
		memset(is, 0, sizeof(is));
	}
	/* GlusterFS tells both now and then that the file exists: 2 of 3,000 times, without gaiafs. */
	if (getenv("GAIA_ENGINE_CLIENTS"))
		cr_assert(made <= TRIES && made > TRIES * 9 / 10, "%d, not %d", made, TRIES);
	else
		cr_assert_eq(made, TRIES, "%d, not %d", made, TRIES);
}

/* Without O_EXCL the name may be made between the kernel's looking and our making: then it is opened, with O_TRUNC cut, and by one's rights. */
static int make_and_remove(void *arg)
{
	struct maker *m = arg;

	for (int i = 0; i < TRIES; i++) {
		int fd = openat(at[m->n], "often", O_CREAT | O_TRUNC | O_RDWR, 0644);
		char back[8];
		ssize_t n;

		/* A real engine's open may meet the other's unlink. */
		if (fd < 0 && getenv("GAIA_ENGINE_CLIENTS") && (errno == ESTALE || errno == EIO))
			continue;
		CHILD_CHECK(fd >= 0);
		CHILD_CHECK(write(fd, "abc", 3) == 3);
		n = pread(fd, back, sizeof(back), 0); /* the other may have cut it, and written the same */
		CHILD_CHECK(n >= 0 && n <= 3);
		CHILD_CHECK(!close(fd));
		CHILD_CHECK(!unlinkat(at[m->n], "often", 0) || errno == ENOENT);
	}
	return 0;
}

ALL(nodes, a_name_that_both_make_and_remove_can_always_be_opened)
{
	struct maker m[NODES] = { { .n = 0 }, { .n = 1 } };
	pid_t child[NODES];

	for (int i = 0; i < NODES; i++)
		child[i] = child_start(make_and_remove, &m[i]);
	for (int i = 0; i < NODES; i++)
		cr_assert_eq(child_wait(child[i]), 0);
}

static void names_are_old(void)
{
	struct stat st;

	cr_assert_eq(mkdirat(at[0], "d", 0755), 0);
	cr_assert_eq(fstatat(at[1], "d", &st, 0), 0);
	cr_assert_eq(renameat(at[0], "d", at[0], "e"), 0);
	/* For as long as --names-age says the other node believes the directory's name; but not what is in it. */
	cr_assert_eq(fstatat(at[1], "d", &st, 0), 0);
	cr_assert_eq(fstatat(at[1], "e", &st, 0), 0);
	put(0, "e/f", "text");
	has(1, "e/f", "text");
	cr_assert_eq(unlinkat(at[1], "e/f", 0), 0);
	cr_assert(!is_there(0, "e/f"));
}
ON(nodes, names_are_old, passed, false, true, "3600", "")

ALL(nodes, a_directory_that_is_renamed_is_seen_at_once_with_names_age_0)
{
	for (int i = 0; i < 10; i++) {
		const char *from = i % 2 ? "e" : "d", *to = i % 2 ? "d" : "e";

		if (i == 0)
			cr_assert_eq(mkdirat(at[0], "d", 0755), 0);
		cr_assert(is_there(1, from));
		cr_assert_eq(renameat(at[0], from, at[0], to), 0);
		cr_assert(!is_there(1, from));
		cr_assert(is_there(1, to));
	}
}

/* ---- bytes ---- */

ALL(nodes, what_was_written_before_a_close_is_read_after_an_open)
{
	char text[32];

	put(0, "f", "text 000");
	for (int i = 1; i < 100; i++) {
		/* Of the same size, so that only times show it. */
		snprintf(text, sizeof(text), "text %03d", i);
		int fd = open_at(i % 2, "f", O_WRONLY);
		cr_assert_eq(pwrite(fd, text, 8, 0), 8);
		cr_assert_eq(close(fd), 0);
		has(!(i % 2), "f", text);
	}
}

/* Another descriptor of the file stays open, so that nothing but the close stores what was written. */
ALL(nodes, a_close_stores)
{
	int other, fd;

	put(0, "f", "old");
	other = open_at(0, "f", O_RDWR);
	fd = open_at(0, "f", O_WRONLY);
	cr_assert_eq(pwrite(fd, "new", 3, 0), 3);
	/* Any close does. (After the last one the descriptor below is closed, too, a moment later.) */
	cr_assert_eq(close(dup(fd)), 0);
	has(1, "f", "new");
	cr_assert_eq(close(fd), 0);
	cr_assert_eq(pwrite(other, "own", 3, 0), 3);
	cr_assert_eq(fsync(other), 0);
	has(1, "f", "own");
	close(other);
}

/* By a descriptor, without looking the name up. */
ALL(nodes, an_open_asks_what_has_changed)
{
	char path[64], is[16] = "";
	long before;
	int name, fd;

	put(1, "f", "12");
	has(0, "f", "12");
	name = openat(at[0], "f", O_PATH | O_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", name);
	for (int i = 0; i < 20; i++) {
		char text[16];

		snprintf(text, sizeof(text), "text %d", i);
		put(1, "f", text);
		before = counter_of(0, "shared_revalidations");
		fd = open(path, O_RDONLY | O_CLOEXEC);
		cr_assert_eq(read(fd, is, sizeof(is)), (ssize_t)strlen(text));
		cr_assert_arr_eq(is, text, strlen(text));
		close(fd);
		cr_assert_eq(counter_of(0, "shared_revalidations"), before + 1);
	}
	close(name);
}

ALL(nodes, what_one_makes_longer_or_shorter_the_other_sees)
{
	struct stat st;
	int open_there, fd;

	put(0, "f", "");
	open_there = open_at(1, "f", O_RDONLY);
	for (int i = 1; i < 30; i++) {
		off_t size = i % 3 ? i * 5000 : i * 10;

		if (i % 2) {
			fd = open_at(0, "f", O_RDWR);
			cr_assert_eq(ftruncate(fd, size), 0);
			cr_assert_eq(fstat(fd, &st), 0);
			cr_assert_eq(st.st_size, size);
			close(fd);
		} else {
			cr_assert_eq(truncate(mnt_file(&node[0], "f"), size), 0);
		}
		/* First without looking the name up, by which the engine's client would learn of it, too. */
		cr_assert_eq(fstat(open_there, &st), 0);
		cr_assert_eq(st.st_size, size, "%ld, not %ld", (long)st.st_size, (long)size);
		cr_assert_eq(lseek(open_there, 0, SEEK_END), size);
		cr_assert_eq(fstatat(at[1], "f", &st, 0), 0);
		cr_assert_eq(st.st_size, size);
	}
	fd = open_at(1, "f", O_WRONLY | O_TRUNC);
	cr_assert_eq(fstatat(at[0], "f", &st, 0), 0);
	cr_assert_eq(st.st_size, 0);
	close(fd);
	close(open_there);
}

/* Lines of 8 bytes, so none is in two pages: the kernel's client of an engine behind FUSE may make two writes of such an append. */
#define LINES 200
struct appender {
	int n, id;
	struct gate turn, next;
	bool in_turns;
};

static int append(void *arg)
{
	struct appender *a = arg;
	int fd = openat(at[a->n], "log", O_WRONLY | O_APPEND);

	CHILD_CHECK(fd >= 0);
	for (int i = 0; i < LINES; i++) {
		char line[16];
		int n = snprintf(line, sizeof(line), "%d:%05d\n", a->id, i);

		CHILD_CHECK(!a->in_turns || gate_pass(a->turn));
		CHILD_CHECK(write(fd, line, (size_t)n) == n);
		if (a->in_turns)
			gate_open(a->next);
	}
	return close(fd);
}

static void both_append(bool in_turns)
{
	struct gate turns[NODES] = { gate_make(), gate_make() };
	struct appender a[2 * NODES];
	int children = in_turns ? NODES : 2 * NODES;
	bool seen[2 * NODES][LINES] = { { false } };
	pid_t child[2 * NODES];
	char line[16];
	FILE *log;
	int id, i, n = 0;

	put(0, "log", "");
	for (int k = 0; k < children; k++)
		a[k] = (struct appender){ .n = k % NODES, .id = k, .turn = turns[k % 2], .next = turns[!(k % 2)], .in_turns = in_turns };
	for (int k = 0; k < children; k++)
		child[k] = child_start(append, &a[k]);
	gate_open(turns[0]);
	for (int k = 0; k < children; k++)
		cr_assert_eq(child_wait(child[k]), 0);
	log = fdopen(open_at(1, "log", O_RDONLY), "r");
	while (fgets(line, sizeof(line), log)) {
		cr_assert_eq(sscanf(line, "%d:%d", &id, &i), 2, "a line is torn: %s", line);
		cr_assert(id < children && i < LINES && !seen[id][i], "line %d: %s", n, line);
		seen[id][i] = true;
		n++;
	}
	fclose(log);
	cr_assert_eq(n, children * LINES, "%d of %d lines", n, children * LINES);
}

ALL(nodes, appends_in_turns_are_all_there)
{
	both_append(true);
}

ALL(nodes, appends_at_once_are_all_there)
{
	both_append(false);
}

/* O_APPEND is set later, or taken away. (An engine's client is not told that of its own open files.) */
static void appends_by_a_descriptor_that_becomes_one_for_appending(void)
{
	int a, b;

	put(0, "f", "");
	a = open_at(0, "f", O_WRONLY);
	b = open_at(1, "f", O_WRONLY | O_APPEND);
	cr_assert_eq(fcntl(a, F_SETFL, O_APPEND), 0);
	for (int i = 0; i < 5; i++) {
		cr_assert_eq(write(a, "a", 1), 1);
		cr_assert_eq(fsync(a), 0);
		cr_assert_eq(write(b, "b", 1), 1);
	}
	cr_assert_eq(fcntl(b, F_SETFL, 0), 0);
	cr_assert_eq(pwrite(b, "B", 1, 0), 1);
	close(a);
	close(b);
	has(0, "f", "Bbabababab");
}
ON(nodes, appends_by_a_descriptor_that_becomes_one_for_appending, direct, false, false, "0", "")

#define PAGE 4096
struct writer {
	int n;
	bool mapped;
};

static int write_own_bytes(void *arg)
{
	struct writer *w = arg;
	int fd = openat(at[w->n], "page", O_RDWR);
	char *map = w->mapped ? mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : NULL;

	CHILD_CHECK(fd >= 0 && map != MAP_FAILED);
	for (int i = w->n; i < PAGE; i += NODES) {
		char c = (char)('a' + i % 23);

		if (map)
			map[i] = c;
		else
			CHILD_CHECK(pwrite(fd, &c, 1, i) == 1);
		if (map && i % 64 == w->n)
			CHILD_CHECK(msync(map, PAGE, MS_SYNC) == 0);
	}
	CHILD_CHECK(!map || msync(map, PAGE, MS_SYNC) == 0);
	return close(fd);
}

static void both_write_a_page(bool mapped)
{
	struct writer w[NODES] = { { 0, mapped }, { 1, mapped } };
	char page[PAGE] = { 0 };
	pid_t child[NODES];
	int fd = open_at(0, "page", O_CREAT | O_RDWR);

	cr_assert_eq(write(fd, page, PAGE), PAGE);
	close(fd);
	for (int i = 0; i < NODES; i++)
		child[i] = child_start(write_own_bytes, &w[i]);
	for (int i = 0; i < NODES; i++)
		cr_assert_eq(child_wait(child[i]), 0);
	for (int k = 0; k < NODES; k++) {
		fd = open_at(k, "page", O_RDONLY);
		cr_assert_eq(read(fd, page, PAGE), PAGE);
		for (int i = 0; i < PAGE; i++)
			cr_assert_eq(page[i], (char)('a' + i % 23), "node %d: byte %d is lost", k, i);
		close(fd);
	}
}

ALL(nodes, different_bytes_of_a_page_are_all_kept)
{
	both_write_a_page(false);
}

/* (The engine's client keeps whole pages of mappings: there it is the engine that loses.) */
static void different_bytes_of_a_mapped_page_are_all_kept(void)
{
	both_write_a_page(true);
}
ON(nodes, different_bytes_of_a_mapped_page_are_all_kept, passed, false, true, "0", "")

PASSED(nodes, what_was_stored_by_a_mapping_is_seen_after_msync)
static void what_was_stored_by_a_mapping_is_seen_after_msync(void)
{
	int fd;
	char *p;

	put(0, "f", "12345678");
	fd = open_at(0, "f", O_RDWR);
	p = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(p, MAP_FAILED);
	memcpy(p, "abc", 3);
	cr_assert_eq(msync(p, 8, MS_SYNC), 0);
	close(fd);
	has(1, "f", "abc45678");
	munmap(p, 8);
}

/* Where calls are passed on. */
static void shared_mappings_are_refused_and_private_ones_are_fresh(void)
{
	int fd;
	char *p;

	for (int i = 0; i < 3; i++) {
		put(0, "f", i % 2 ? "odd" : "even");
		fd = open_at(1, "f", O_RDWR);
		cr_assert_eq(mmap(NULL, 4, PROT_READ, MAP_SHARED, fd, 0), MAP_FAILED);
		cr_assert_eq(errno, ENODEV, "%s", strerror(errno));
		p = mmap(NULL, 4, PROT_READ, MAP_PRIVATE, fd, 0);
		cr_assert_neq(p, MAP_FAILED);
		cr_assert_arr_eq(p, i % 2 ? "odd" : "eve", 3);
		munmap(p, 4);
		close(fd);
	}
}
DIRECT(nodes, shared_mappings_are_refused_and_private_ones_are_fresh)

/* By a program that knows of no gaiafs. */
static void what_is_changed_in_the_source_is_seen(void)
{
	int fd;

	for (int i = 0; i < 10; i++) {
		char text[16];

		snprintf(text, sizeof(text), "by hand %d", i % 5);
		fd = openat(below, "f", O_CREAT | O_TRUNC | O_WRONLY, 0644);
		cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
		close(fd);
		has(0, "f", text);
		has(1, "f", text);
		if (i % 3 == 0)
			cr_assert_eq(unlinkat(below, "f", 0), 0);
		cr_assert_eq(is_there(0, "f"), i % 3 != 0);
	}
}
PASSED(nodes, what_is_changed_in_the_source_is_seen)
DIRECT(nodes, what_is_changed_in_the_source_is_seen)

/* One node removes what the other has open. */
static void a_file_that_the_other_removes_can_be_used_on(void)
{
	char is[8];
	int fd;

	put(0, "f", "text");
	fd = open_at(0, "f", O_RDWR);
	cr_assert_eq(unlinkat(at[1], "f", 0), 0);
	put(1, "f", "another");
	cr_assert_eq(pread(fd, is, 8, 0), 4);
	cr_assert_arr_eq(is, "text", 4);
	cr_assert_eq(pwrite(fd, "more", 4, 4), 4);
	cr_assert_eq(fsync(fd), 0);
	cr_assert_eq(pread(fd, is, 8, 0), 8);
	cr_assert_eq(close(fd), 0);
	has(0, "f", "another");
	has(1, "f", "another");
}
ON(nodes, a_file_that_the_other_removes_can_be_used_on, passed, false, true, "0", "")
ON(nodes, a_file_that_the_other_removes_can_be_used_on, direct, false, false, "0", "")

/* File systems behind FUSE know no times of birth, which would tell the two apart. */
static void a_number_that_is_used_again_is_another_file(void)
{
	struct stat first, second, old;
	char is[8] = "";
	int fd;

	for (int i = 0; i < 4; i++) {
		put(0, "f", "first");
		fd = open_at(1, "f", O_RDONLY);
		cr_assert_eq(fstat(fd, &first), 0);
		cr_assert_eq(unlinkat(at[0], "f", 0), 0);
		put(0, "f", "the second");
		cr_assert_eq(fstat(fd, &old), 0);
		cr_assert_eq(old.st_size, 5);
		/* By looking, or by opening. */
		if (i % 2 == 0) {
			cr_assert_eq(fstatat(at[1], "f", &second, 0), 0);
			cr_assert_eq(second.st_ino, first.st_ino);
			cr_assert_eq(second.st_size, 10);
			cr_assert_eq(second.st_nlink, 1);
		}
		has(1, "f", "the second");
		cr_assert_eq(pread(fd, is, 5, 0), 5);
		cr_assert_arr_eq(is, "first", 5);
		cr_assert_eq(fstat(fd, &old), 0);
		cr_assert_eq(old.st_size, 5);
		close(fd);
		cr_assert_eq(unlinkat(at[1], "f", 0), 0);
	}
}
/* The engine tells of it once, to whoever closes or syncs the file next. */
static void a_write_that_the_engine_loses_is_told_to_whoever_wrote(void)
{
	int writer, other, reader, later;

	if (getenv("GAIA_ENGINE_CLIENTS"))
		cr_skip_test("of this engine_fs only");
	put(0, "f", "text");
	writer = open_at(0, "f", O_RDWR);
	other = open_at(0, "f", O_RDWR);
	reader = open_at(0, "f", O_RDONLY);
	cr_assert_eq(pwrite(writer, "LOSE", 4, 0), 4);
	cr_assert_eq(fsync(other), -1);
	cr_assert_eq(errno, EIO, "%s", strerror(errno));
	later = open_at(0, "f", O_RDWR);
	cr_assert_eq(fsync(writer), -1);
	cr_assert_eq(errno, EIO, "%s", strerror(errno));
	/* Once. Who cannot have written it, or did not have the file open, is not told. */
	cr_assert_eq(fsync(writer), 0);
	cr_assert_eq(close(writer), 0);
	cr_assert_eq(close(other), 0);
	cr_assert_eq(close(reader), 0);
	cr_assert_eq(close(later), 0);
}

ON(nodes, a_write_that_the_engine_loses_is_told_to_whoever_wrote, passed, true, true, "0", "")
ON(nodes, a_write_that_the_engine_loses_is_told_to_whoever_wrote, direct, true, false, "0", "")

static void a_number_that_is_used_again_is_another_file(void);
ON(nodes, a_number_that_is_used_again_is_another_file, passed, true, true, "0", "reuse")
ON(nodes, a_number_that_is_used_again_is_another_file, direct, true, false, "0", "reuse")

/* ---- the engine's client is gone ---- */

/* Its mount stays, and says ENOTCONN. */
static void end_client(int n)
{
	char client[PATH_MAX + 16];

	snprintf(client, sizeof(client), "%s/client%d", top, n);
	cr_assert_eq(umount2(client, MNT_FORCE), -1);
	cr_assert_eq(errno, EBUSY, "%s", strerror(errno));
}

/* Above, that error would say that our daemon is dead; and then its mount is taken away. */
static void a_node_whose_engine_is_gone_is_not_taken_for_a_dead_one(void)
{
	struct shell_result r;
	struct statfs sfs;
	struct stat st;
	pid_t daemon = node[0].daemon;

	put(0, "f", "text");
	end_client(0);
	cr_assert_eq(statfs(node[0].path, &sfs), -1);
	cr_assert_eq(errno, EIO, "%s", strerror(errno));
	cr_assert_eq(fstatat(at[0], "f", &st, 0), -1);
	cr_assert_eq(errno, EIO, "%s", strerror(errno));
	cr_assert_eq(openat(at[0], "f", O_RDONLY | O_CLOEXEC), -1);
	cr_assert_eq(errno, EIO, "%s", strerror(errno));
	cr_assert_eq(openat(at[0], "new", O_CREAT | O_WRONLY | O_CLOEXEC, 0644), -1);
	cr_assert_eq(errno, EIO, "%s", strerror(errno));
	r = shell_run(top, 100, "\"$GAIA\" status '%s'", node[0].path);
	cr_assert_neq(r.status, 0);
	cr_assert_null(strstr(r.err, "daemon is gone"), "%s", r.err);
	shell_free(&r);
	/* Another gaiafs does not take its place. */
	r = shell_run(top, 100, "mkdir -p other && \"$GAIAFS\" other '%s'", node[0].path);
	cr_assert_neq(r.status, 0);
	cr_assert_null(strstr(r.err, "took away"), "%s", r.err);
	shell_free(&r);
	cr_assert_eq(kill(daemon, 0), 0);
	has(1, "f", "text");
}
/* (By an engine of ours: it is the one that is ended.) */
ON(nodes, a_node_whose_engine_is_gone_is_not_taken_for_a_dead_one, passed, true, true, "0", "nolocks")
ON(nodes, a_node_whose_engine_is_gone_is_not_taken_for_a_dead_one, direct, true, false, "0", "nolocks")
