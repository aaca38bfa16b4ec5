/*
 * both.c - see both.h.
 */
#include "both.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tree.h"

int both_root[2] = { -1, -1 };
static int kept[8];
static unsigned n_kept;

void both_open(const char *mount, const char *plain)
{
	both_root[ON_MOUNT] = open(mount, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	both_root[ON_PLAIN] = open(plain, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert(both_root[ON_MOUNT] >= 0 && both_root[ON_PLAIN] >= 0, "%s, %s: %s", mount, plain,
		  strerror(errno));
}

void both_close(void)
{
	for (int side = 0; side < 2; side++) {
		if (both_root[side] >= 0)
			close(both_root[side]);
		both_root[side] = -1;
	}
	while (n_kept > 0)
		close(kept[--n_kept]);
}

void both_keep(const char *name)
{
	cr_assert_lt(n_kept, sizeof(kept) / sizeof(kept[0]));
	kept[n_kept] = openat(both_root[ON_MOUNT], name, O_PATH | O_CLOEXEC);
	cr_assert_geq(kept[n_kept], 0, "%s: %s", name, strerror(errno));
	n_kept++;
}

void both_same_tree(void)
{
	char *text[2], *line;

	for (int side = 0; side < 2; side++)
		text[side] = tree_print(both_root[side]);
	line = tree_difference(text[ON_MOUNT], text[ON_PLAIN]);
	cr_assert_null(line, "mount and plain directory differ: %s", line);
	free(text[0]);
	free(text[1]);
}

void both_same_stat(const struct stat st[2], const char *what)
{
	cr_assert_eq(st[0].st_mode, st[1].st_mode, "%s: mode %o, plain %o", what, st[0].st_mode,
		     st[1].st_mode);
	cr_assert_eq(st[0].st_nlink, st[1].st_nlink, "%s: %lu links, plain %lu", what,
		     (unsigned long)st[0].st_nlink, (unsigned long)st[1].st_nlink);
	cr_assert_eq(st[0].st_size, st[1].st_size, "%s: size %ld, plain %ld", what,
		     (long)st[0].st_size, (long)st[1].st_size);
	cr_assert_eq(st[0].st_uid, st[1].st_uid, "%s: uid", what);
	cr_assert_eq(st[0].st_gid, st[1].st_gid, "%s: gid", what);
	cr_assert_eq(st[0].st_rdev, st[1].st_rdev, "%s: device number", what);
}
