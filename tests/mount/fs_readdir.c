/*
 * fs_readdir.c - listing directories, also while names come and go.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ways.h"

#define MANY 700

static void make_many(const char *dir, const char *prefix, int n)
{
	char name[64];

	mkdirat(both_root[ON_MOUNT], dir, 0755);
	for (int i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%s/%s%d", dir, prefix, i);
		cr_assert_eq(mknodat(both_root[ON_MOUNT], name, S_IFREG | 0644, 0), 0);
	}
}

static DIR *list(const char *dir)
{
	int fd = openat(both_root[ON_MOUNT], dir, O_RDONLY | O_DIRECTORY);
	DIR *d = fdopendir(fd);

	cr_assert_not_null(d, "%s: %s", dir, strerror(errno));
	return d;
}

/* Count the times that old0, old1... are listed. */
static void tally(DIR *d, int *seen, int n, int *others)
{
	struct dirent *e;
	int i;

	*others = 0;
	while ((e = readdir(d))) {
		if (sscanf(e->d_name, "old%d", &i) == 1 && i >= 0 && i < n)
			seen[i]++;
		else if (e->d_name[0] != '.')
			++*others;
	}
}

EACH_WAY(fs_readdir, lists_every_name_once_with_type_and_inode)
{
	static int seen[MANY];
	struct dirent *e;
	struct stat st;
	int others, dots = 0;
	DIR *d;

	make_many("d", "old", MANY);
	d = list("d");
	tally(d, seen, MANY, &others);
	for (int i = 0; i < MANY; i++)
		cr_assert_eq(seen[i], 1, "old%d is listed %d times", i, seen[i]);
	cr_assert_eq(others, 0);
	closedir(d);

	SAME_OK(mkdirat(at, "kinds", 0755));
	SAME_OK(mkdirat(at, "kinds/dir", 0755));
	SAME_OK(mknodat(at, "kinds/fifo", S_IFIFO | 0600, 0));
	SAME_OK(mknodat(at, "kinds/file", S_IFREG | 0600, 0));
	SAME_OK(symlinkat("x", at, "kinds/link"));
	d = list("kinds");
	while ((e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) {
			dots++;
			continue;
		}
		cr_assert_eq(fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW), 0);
		cr_assert_eq(IFTODT(st.st_mode), e->d_type, "type of %s", e->d_name);
		cr_assert_eq(st.st_ino, e->d_ino, "inode number of %s", e->d_name);
	}
	cr_assert_eq(dots, 2);
	closedir(d);
}

EACH_WAY(fs_readdir, an_empty_directory_lists_itself_and_its_parent)
{
	struct dirent *e;
	int n = 0;
	DIR *d;

	SAME_OK(mkdirat(at, "d", 0755));
	d = list("d");
	while ((e = readdir(d)))
		n++;
	cr_assert_eq(n, 2);
	closedir(d);
}

EACH_WAY(fs_readdir, names_that_stay_are_listed_once_while_others_come_and_go)
{
	static int seen[MANY];
	struct dirent *e;
	char name[64];
	int others, i, n = 0;
	DIR *d;

	make_many("d", "old", MANY);
	make_many("d", "gone", MANY);
	d = list("d");
	/* Between reads, remove some names and make others. */
	while ((e = readdir(d))) {
		if (sscanf(e->d_name, "old%d", &i) == 1)
			seen[i]++;
		if (n < MANY) {
			snprintf(name, sizeof(name), "d/gone%d", n);
			cr_assert_eq(unlinkat(both_root[ON_MOUNT], name, 0), 0);
			snprintf(name, sizeof(name), "d/new%d", n++);
			cr_assert_eq(mknodat(both_root[ON_MOUNT], name, S_IFREG | 0600, 0), 0);
		}
	}
	for (i = 0; i < MANY; i++)
		cr_assert_eq(seen[i], 1, "old%d is listed %d times", i, seen[i]);
	rewinddir(d);
	memset(seen, 0, sizeof(seen));
	tally(d, seen, MANY, &others);
	for (i = 0; i < MANY; i++)
		cr_assert_eq(seen[i], 1, "after rewinddir, old%d is listed %d times", i, seen[i]);
	cr_assert_eq(others, MANY, "rewinddir shows what came and not what went");
	closedir(d);
}

EACH_WAY(fs_readdir, seekdir_returns_to_where_telldir_was)
{
	static char after[MANY + 2][32];
	static long where[MANY + 2];
	struct dirent *e;
	int n = 0;
	DIR *d;

	make_many("d", "old", MANY);
	d = list("d");
	while ((e = readdir(d))) {
		where[n] = telldir(d);
		if (n > 0)
			snprintf(after[n - 1], sizeof(after[0]), "%.31s", e->d_name);
		n++;
	}
	cr_assert_eq(n, MANY + 2);
	for (int i = 0; i < n - 1; i += 17) {
		seekdir(d, where[i]);
		e = readdir(d);
		cr_assert_not_null(e, "nothing after entry %d", i);
		cr_assert_str_eq(e->d_name, after[i]);
	}
	seekdir(d, where[n - 1]);
	cr_assert_null(readdir(d), "the end is the end");
	closedir(d);
}

EACH_WAY(fs_readdir, removing_while_listing_empties_a_directory)
{
	struct dirent *e;
	DIR *d;

	make_many("d", "old", MANY);
	d = list("d");
	while ((e = readdir(d)))
		if (e->d_name[0] != '.')
			cr_assert_eq(unlinkat(dirfd(d), e->d_name, 0), 0);
	closedir(d);
	cr_assert_eq(unlinkat(both_root[ON_MOUNT], "d", AT_REMOVEDIR), 0, "%s", strerror(errno));
}

EACH_WAY(fs_readdir, an_open_listing_survives_the_directory)
{
	DIR *d;

	SAME_OK(mkdirat(at, "d", 0755));
	d = list("d");
	SAME_OK(unlinkat(at, "d", AT_REMOVEDIR));
	errno = 0;
	while (readdir(d))
		;
	cr_assert(errno == 0 || errno == ENOENT, "%s", strerror(errno));
	closedir(d);
}

EACH_WAY(fs_readdir, two_listings_of_one_directory_do_not_disturb_each_other)
{
	static int seen[2][MANY];
	struct dirent *e;
	DIR *d[2];
	int i, done = 0;

	make_many("d", "old", MANY);
	d[0] = list("d");
	d[1] = list("d");
	while (done != 3) {
		for (int k = 0; k < 2; k++) {
			e = readdir(d[k]);
			if (!e)
				done |= 1 << k;
			else if (sscanf(e->d_name, "old%d", &i) == 1)
				seen[k][i]++;
		}
	}
	for (i = 0; i < MANY; i++)
		cr_assert(seen[0][i] == 1 && seen[1][i] == 1, "old%d", i);
	closedir(d[0]);
	closedir(d[1]);
}

/* The kernel may keep a listing. */
static void expect_names(const char *dir, int n, const char *const *name)
{
	DIR *d = list(dir);
	struct dirent *e;
	int found = 0, all = 0;

	while ((e = readdir(d))) {
		all += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
		for (int i = 0; i < n; i++)
			found += !strcmp(e->d_name, name[i]);
	}
	closedir(d);
	cr_assert_eq(all, n, "%s lists %d names, not %d", dir, all, n);
	cr_assert_eq(found, n, "%s lists %d of %d names", dir, found, n);
}
#define EXPECT_NAMES(dir, ...)                                                   \
	do {                                                                     \
		const char *const names_[] = { __VA_ARGS__ };                    \
		for (int again_ = 0; again_ < 2; again_++)                       \
			expect_names(dir, (int)(sizeof(names_) / sizeof(names_[0])), names_); \
	} while (0)

EACH_WAY(fs_readdir, each_change_of_names_shows_in_the_next_listing)
{
	int at = both_root[ON_MOUNT], fd;
	char path[32];

	cr_assert_eq(mkdirat(at, "d", 0755), 0);
	cr_assert_eq(mkdirat(at, "e", 0755), 0);
	cr_assert_eq(mknodat(at, "d/a", S_IFREG | 0644, 0), 0);
	EXPECT_NAMES("d", "a");
	cr_assert_eq(mkdirat(at, "d/b", 0755), 0);
	EXPECT_NAMES("d", "a", "b");
	cr_assert_eq(symlinkat("a", at, "d/c"), 0);
	EXPECT_NAMES("d", "a", "b", "c");
	cr_assert_eq(linkat(at, "d/a", at, "d/l", 0), 0);
	EXPECT_NAMES("d", "a", "b", "c", "l");
	cr_assert_eq(renameat(at, "d/a", at, "e/a"), 0);
	EXPECT_NAMES("d", "b", "c", "l");
	EXPECT_NAMES("e", "a");
	cr_assert_eq(renameat(at, "e/a", at, "d/c"), 0);
	EXPECT_NAMES("d", "b", "c", "l");
	cr_assert_eq(renameat(at, "d/b", at, "d/bb"), 0);
	EXPECT_NAMES("d", "bb", "c", "l");
	cr_assert_eq(unlinkat(at, "d/l", 0), 0);
	EXPECT_NAMES("d", "bb", "c");
	cr_assert_eq(unlinkat(at, "d/bb", AT_REMOVEDIR), 0);
	EXPECT_NAMES("d", "c");
	fd = openat(at, "d", O_TMPFILE | O_RDWR, 0644);
	if (fd >= 0) {
		EXPECT_NAMES("d", "c");
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		cr_assert_eq(linkat(AT_FDCWD, path, at, "d/t", AT_SYMLINK_FOLLOW), 0);
		EXPECT_NAMES("d", "c", "t");
		close(fd);
	}
}

/* A listing that ends early leaves the rest to the next one. */
EACH_WAY(fs_readdir, a_listing_that_was_broken_off_hides_no_later_change)
{
	static int seen[MANY];
	int others;
	DIR *d;

	make_many("d", "old", MANY);
	d = list("d");
	cr_assert_not_null(readdir(d));
	make_many("d", "new", MANY);
	closedir(d);
	for (int again = 0; again < 3; again++) {
		memset(seen, 0, sizeof(seen));
		d = list("d");
		tally(d, seen, MANY, &others);
		closedir(d);
		for (int i = 0; i < MANY; i++)
			cr_assert_eq(seen[i], 1, "old%d is listed %d times", i, seen[i]);
		cr_assert_eq(others, MANY);
	}
}

static ino_t number_of(const char *dir, const char *name)
{
	struct dirent *e;
	ino_t ino = 0;
	DIR *d = list(dir);

	while ((e = readdir(d)))
		if (!strcmp(e->d_name, name))
			ino = e->d_ino;
	closedir(d);
	return ino;
}

EACH_WAY(fs_readdir, a_directory_that_is_moved_lists_its_new_parent)
{
	int at = both_root[ON_MOUNT];
	struct stat from, to;

	cr_assert_eq(mkdirat(at, "from", 0755), 0);
	cr_assert_eq(mkdirat(at, "to", 0755), 0);
	cr_assert_eq(mkdirat(at, "from/d", 0755), 0);
	cr_assert_eq(mkdirat(at, "to/e", 0755), 0);
	cr_assert_eq(fstatat(at, "from", &from, 0), 0);
	cr_assert_eq(fstatat(at, "to", &to, 0), 0);
	cr_assert_eq(number_of("from/d", ".."), from.st_ino);
	cr_assert_eq(number_of("to/e", ".."), to.st_ino);
	cr_assert_eq(renameat2(at, "from/d", at, "to/e", RENAME_EXCHANGE), 0);
	cr_assert_eq(number_of("to/e", ".."), to.st_ino);
	cr_assert_eq(number_of("from/d", ".."), from.st_ino);
	cr_assert_eq(renameat(at, "from/d", at, "to/d"), 0);
	cr_assert_eq(number_of("to/d", ".."), to.st_ino);
}

/* One getdents64(2): the names that it gives, which end with NULs. False at the end. */
static bool list_some(int fd, char *names, size_t room)
{
	char buf[4096];
	ssize_t n = syscall(SYS_getdents64, fd, buf, sizeof(buf));

	cr_assert_geq(n, 0);
	for (ssize_t at = 0; at < n; at += ((struct dirent64 *)(buf + at))->d_reclen) {
		const char *name = ((struct dirent64 *)(buf + at))->d_name;
		size_t used = strlen(names);

		cr_assert_lt(used + strlen(name) + 2, room);
		snprintf(names + used, room - used, "/%s/", name);
	}
	return n > 0;
}

/* The kernel keeps what it has of a listing that was broken off, and the next reader continues from there. */
EACH_WAY(fs_readdir, a_listing_that_was_broken_off_is_nobodys_beginning)
{
	static char first[1 << 16], names[1 << 16];
	char victim[64], path[80], *name, *end;
	int at = both_root[ON_MOUNT], fd, other;

	make_many("d", "old", MANY);
	fd = openat(at, "d", O_RDONLY | O_DIRECTORY);
	cr_assert(list_some(fd, first, sizeof(first)));
	name = first + strlen(first);
	cr_assert(list_some(fd, first, sizeof(first)));
	cr_assert(list_some(fd, first, sizeof(first)));
	close(fd);

	/* A name that the second call gave, but not its first: offsets of others lead there. */
	for (int k = 0; k < 5; k++)
		name = strchr(name + 1, '/') + 1;
	end = strchr(name + 1, '/');
	snprintf(victim, sizeof(victim), "%.*s", (int)(end + 1 - name), name);
	snprintf(path, sizeof(path), "d%.*s", (int)(end - name), name);
	cr_assert_eq(unlinkat(at, path, 0), 0);

	fd = openat(at, "d", O_RDONLY | O_DIRECTORY);
	other = openat(at, "d", O_RDONLY | O_DIRECTORY);
	cr_assert(list_some(fd, names, sizeof(names)));
	do
		first[0] = '\0';
	while (list_some(other, first, sizeof(first)));
	while (list_some(fd, names, sizeof(names)))
		;
	cr_assert_null(strstr(names, victim), "%s is still listed", victim);
	close(other);
	close(fd);
}
