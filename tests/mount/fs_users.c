/*
 * fs_users.c - many users on one mount: who owns what is made, who may do what,
 * and which set-id bits survive. Needs root, to be other users.
 */
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/xattr.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "child.h"
#include "ways.h"

#define ALICE 1234u
#define BOB 1235u
#define CLUB 5000u /* Alice's other group */

/* What a user does on one side: 0 or an errno. */
typedef int deed(int at);

struct as {
	uid_t uid;
	deed *deed;
	int at;
};

static int do_as(void *arg)
{
	struct as *a = arg;
	gid_t club = CLUB;

	if (a->uid == ALICE) {
		CHILD_CHECK(setgroups(1, &club) == 0);
		CHILD_CHECK(setresgid(ALICE, ALICE, ALICE) == 0);
		CHILD_CHECK(setresuid(ALICE, ALICE, ALICE) == 0);
	} else {
		child_become(a->uid, a->uid);
	}
	umask(022);
	return a->deed(a->at);
}

static int run_as(uid_t uid, deed *what, int at)
{
	struct as a = { uid, what, at };

	return child_run(do_as, &a);
}

/* The same outcome on both sides, and this one: 0 or an errno. */
#define AS(uid, deed, outcome)                                                                  \
	do {                                                                                    \
		int as_r = SAME(run_as(uid, deed, at));                                         \
		cr_assert_eq(as_r, (outcome), "%s by %u: %s", #deed, (unsigned)(uid),           \
			     strerror(as_r));                                                   \
	} while (0)

#define DEED(name, call)                          \
	static int name(int at)                   \
	{                                         \
		return (call) < 0 ? errno : 0;    \
	}

static int write_byte(int at, const char *name)
{
	int fd = openat(at, name, O_WRONLY), n;

	if (fd < 0)
		return -1;
	n = pwrite(fd, "w", 1, 0);
	close(fd);
	return n;
}

static int open_close(int at, const char *name, int flags)
{
	int fd = openat(at, name, flags, 0666);

	if (fd < 0)
		return -1;
	close(fd);
	return 0;
}

static void start(void)
{
	if (geteuid() != 0)
		WAY_SKIP("other users: needs root");
	/* A mount of root's is for everybody, as other mounts are. */
	way_start(NULL);
	umask(022);
	SAME_OK(mkdirat(at, "open", 0777));
	SAME_OK(fchmodat(at, "open", 0777, 0));
}

static void make(const char *name, mode_t mode, uid_t uid, gid_t gid)
{
	SAME_OK(mknodat(at, name, S_IFREG | 0600, 0));
	SAME_OK(fchownat(at, name, uid, gid, 0));
	SAME_OK(fchmodat(at, name, mode, 0));
}

static mode_t mode_of(const char *name)
{
	struct stat st[2];

	SAME_OK(fstatat(at, name, &st[side], 0));
	both_same_stat(st, name);
	return st[ON_MOUNT].st_mode & 07777;
}

DEED(make_file, open_close(at, "open/f", O_CREAT | O_EXCL | O_RDWR))
DEED(make_dir, mkdirat(at, "open/d", 0777))
DEED(make_link, symlinkat("x", at, "open/l"))
DEED(make_fifo, mkfifoat(at, "open/fifo", 0666))

EACH_WAY_BARE(fs_users, what_a_user_makes_is_theirs)
{
	struct stat st;

	start();
	AS(ALICE, make_file, 0);
	AS(ALICE, make_dir, 0);
	AS(ALICE, make_link, 0);
	AS(ALICE, make_fifo, 0);
	AS(BOB, make_file, EEXIST);
	both_same_tree();
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "open/f", &st, 0), 0);
	cr_assert_eq(st.st_uid, ALICE);
	cr_assert_eq(st.st_gid, ALICE);
	/* And beneath. */
	cr_assert_eq(fstatat(mnt.backing_fd, "open/f", &st, 0), 0);
	cr_assert_eq(st.st_uid, ALICE);
}

EACH_WAY_BARE(fs_users, a_setgid_directory_hands_down_its_group)
{
	struct stat st;

	start();
	SAME_OK(fchownat(at, "open", -1, CLUB, 0));
	SAME_OK(fchmodat(at, "open", 02777, 0));
	AS(BOB, make_file, 0);
	AS(BOB, make_dir, 0);
	AS(BOB, make_link, 0);
	AS(BOB, make_fifo, 0);
	both_same_tree();
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "open/d", &st, 0), 0);
	cr_assert_eq(st.st_gid, CLUB);
	cr_assert_eq(st.st_mode & 07777, 02755u);
}

DEED(remove_hers, unlinkat(at, "open/hers", 0))
DEED(rename_hers, renameat(at, "open/hers", at, "open/mine"))
DEED(replace_hers, renameat(at, "open/his", at, "open/hers"))

EACH_WAY_BARE(fs_users, a_sticky_directory_protects_names)
{
	start();
	SAME_OK(fchmodat(at, "open", 01777, 0));
	make("open/hers", 0666, ALICE, ALICE);
	make("open/his", 0666, BOB, BOB);
	AS(BOB, remove_hers, EPERM);
	AS(BOB, rename_hers, EPERM);
	AS(BOB, replace_hers, EPERM);
	AS(ALICE, remove_hers, 0);
	both_same_tree();
}

DEED(remove_her_dir, unlinkat(at, "open/dir", AT_REMOVEDIR))
DEED(exchange_hers, renameat2(at, "open/hers", at, "open/his", RENAME_EXCHANGE))

EACH_WAY_BARE(fs_users, the_owner_of_a_sticky_directory_decides)
{
	start();
	SAME_OK(fchownat(at, "open", BOB, BOB, 0));
	SAME_OK(fchmodat(at, "open", 01777, 0));
	make("open/hers", 0600, ALICE, ALICE);
	make("open/his", 0600, BOB, BOB);
	SAME_OK(mkdirat(at, "open/dir", 0700));
	AS(ALICE, remove_her_dir, EPERM);
	AS(ALICE, exchange_hers, EPERM);
	AS(ALICE, rename_hers, 0);
	AS(BOB, remove_her_dir, 0);
	make("open/hers", 0600, ALICE, ALICE);
	AS(BOB, exchange_hers, 0);
	AS(BOB, remove_hers, 0);
	both_same_tree();
}

DEED(leave_a_whiteout, renameat2(at, "open/his", at, "open/new", RENAME_WHITEOUT))

EACH_WAY_BARE(fs_users, a_whiteout_is_made_by_who_renames)
{
	start();
	make("open/his", 0600, BOB, BOB);
	/* Whether a user may is the kernel's decision, but it is the same. */
	SAME(run_as(BOB, leave_a_whiteout, at));
	both_same_tree();
}

DEED(read_secret, open_close(at, "secret", O_RDONLY))
DEED(write_secret, open_close(at, "secret", O_WRONLY))
DEED(write_public, open_close(at, "public", O_WRONLY))
DEED(read_public, open_close(at, "public", O_RDONLY))
DEED(make_in_root, open_close(at, "new", O_CREAT | O_RDWR))
DEED(remove_public, unlinkat(at, "public", 0))
DEED(look_inside, faccessat(at, "closed/f", F_OK, 0))
DEED(list_closed, open_close(at, "closed", O_RDONLY | O_DIRECTORY))
DEED(read_club, open_close(at, "club", O_RDWR))
DEED(run_public, faccessat(at, "public", X_OK, 0))

EACH_WAY_BARE(fs_users, modes_keep_others_out)
{
	start();
	make("secret", 0600, ALICE, ALICE);
	make("public", 0644, ALICE, ALICE);
	make("club", 0060, 0, CLUB);
	SAME_OK(mkdirat(at, "closed", 0711));
	make("closed/f", 0644, ALICE, ALICE);
	AS(ALICE, read_secret, 0);
	AS(ALICE, write_secret, 0);
	AS(BOB, read_secret, EACCES);
	AS(BOB, write_secret, EACCES);
	AS(BOB, read_public, 0);
	AS(BOB, write_public, EACCES);
	AS(BOB, run_public, EACCES);
	AS(BOB, make_in_root, EACCES);
	AS(ALICE, remove_public, EACCES);
	AS(BOB, look_inside, 0);
	AS(BOB, list_closed, EACCES);
	SAME_OK(fchmodat(at, "closed", 0700, 0));
	AS(BOB, look_inside, EACCES);
	/* Supplementary groups count. */
	AS(ALICE, read_club, 0);
	AS(BOB, read_club, EACCES);
	both_same_tree();
}

DEED(chmod_it, fchmodat(at, "f", 0777, 0))
DEED(chown_it, fchownat(at, "f", BOB, -1, 0))
DEED(chgrp_club, fchownat(at, "f", -1, CLUB, 0))
DEED(chgrp_root, fchownat(at, "f", -1, 0, 0))
DEED(touch_it, utimensat(at, "f", NULL, 0))
DEED(noatime, open_close(at, "f", O_RDONLY | O_NOATIME))
DEED(trusted, open_close(at, "f", O_RDWR | O_TRUNC))

static int backdate(int at)
{
	struct timespec t[2] = { { 1, 1 }, { 2, 2 } };

	return utimensat(at, "f", t, 0) < 0 ? errno : 0;
}

EACH_WAY_BARE(fs_users, only_the_owner_changes_attributes)
{
	start();
	make("f", 0666, ALICE, ALICE);
	AS(BOB, chmod_it, EPERM);
	AS(BOB, chown_it, EPERM);
	AS(BOB, chgrp_club, EPERM);
	AS(BOB, backdate, EPERM);
	AS(BOB, touch_it, 0);
	AS(BOB, noatime, EPERM);
	AS(BOB, trusted, 0);
	AS(ALICE, chown_it, EPERM);
	AS(ALICE, chgrp_root, EPERM);
	AS(ALICE, chgrp_club, 0);
	AS(ALICE, backdate, 0);
	AS(ALICE, noatime, 0);
	AS(ALICE, chmod_it, 0);
	SAME_OK(fchmodat(at, "f", 0644, 0));
	AS(BOB, touch_it, EACCES);
	both_same_tree();
}

DEED(chown_without_change, fchownat(at, "f", -1, -1, 0))

EACH_WAY_BARE(fs_users, a_chown_without_change_needs_the_owner_where_it_clears_set_id_bits)
{
	start();
	make("f", 0666, ALICE, ALICE);
	AS(BOB, chown_without_change, 0);
	SAME_OK(fchmodat(at, "f", 04755, 0));
	AS(BOB, chown_without_change, EPERM);
	cr_assert_eq(mode_of("f"), 04755u);
	SAME_OK(fchmodat(at, "f", 02755, 0));
	AS(BOB, chown_without_change, EPERM);
	cr_assert_eq(mode_of("f"), 02755u);
	AS(ALICE, chown_without_change, 0);
	cr_assert_eq(mode_of("f"), 0755u);
	SAME_OK(mkdirat(at, "d", 0755));
	SAME_OK(fchmodat(at, "d", 02755, 0));
	SAME_OK(renameat2(at, "d", at, "f", RENAME_EXCHANGE));
	AS(BOB, chown_without_change, 0);
	cr_assert_eq(mode_of("f"), 02755u);
}

static bool is_shared_and_passed(void)
{
	char how[16];

	return getenv("GAIA_SOURCE") && !mnt_says(&mnt, "cpu_cache", how) && !strcmp(how, "auto");
}

static mode_t mode_on_mount(const char *name)
{
	struct stat st;

	cr_assert_eq(fstatat(both_root[ON_MOUNT], name, &st, 0), 0);
	return st.st_mode & 07777;
}

DEED(write_suid, write_byte(at, "suid"))
DEED(truncate_suid, open_close(at, "suid", O_RDWR | O_TRUNC))
DEED(set_sgid, fchmodat(at, "sgid", 02775, 0))

EACH_WAY_BARE(fs_users, a_write_by_another_clears_set_id_bits)
{
	start();
	make("suid", 06777, ALICE, ALICE);
	AS(BOB, write_suid, 0);
	cr_assert_eq(mode_of("suid"), 0777u);
	SAME_OK(fchmodat(at, "suid", 06777, 0));
	AS(BOB, truncate_suid, 0);
	cr_assert_eq(mode_of("suid"), 0777u);
	/* The owner's own write clears them too: it has no privilege. */
	SAME_OK(fchmodat(at, "suid", 06777, 0));
	AS(ALICE, write_suid, 0);
	cr_assert_eq(mode_of("suid"), 0777u);
	/* Root's does not; but of a shared source, where it is passed through, it does (gaiafs-nodes(7)). */
	SAME_OK(fchmodat(at, "suid", 06777, 0));
	SAME_OK(write_byte(at, "suid"));
	if (is_shared_and_passed()) {
		cr_assert_eq(mode_on_mount("suid"), 0777u);
		SAME_OK(fchmodat(at, "suid", 06777, 0));
	}
	cr_assert_eq(mode_of("suid"), 06777u);
	/* A user who is not in the group cannot set its bit. */
	make("sgid", 0664, ALICE, BOB);
	AS(ALICE, set_sgid, 0);
	cr_assert_eq(mode_of("sgid"), 0775u);
	both_same_tree();
	way_unmount();
	way_remount();
	both_same_tree();
}

static int allocate(int at, const char *name)
{
	int fd = openat(at, name, O_WRONLY), r;

	if (fd < 0)
		return -1;
	r = fallocate(fd, 0, 0, 100);
	close(fd);
	return r;
}

/* The file's first byte over its third. */
static int copy_within(int at, const char *name)
{
	int fd = openat(at, name, O_RDWR);
	loff_t from = 0, to = 2;
	ssize_t n;

	if (fd < 0)
		return -1;
	n = copy_file_range(fd, &from, fd, &to, 1, 0);
	close(fd);
	return (int)n;
}

DEED(allocate_suid, allocate(at, "suid"))
DEED(copy_suid, copy_within(at, "suid"))

EACH_WAY_BARE(fs_users, what_changes_contents_otherwise_clears_set_id_bits)
{
	start();
	make("suid", 06777, ALICE, ALICE);
	SAME_OK(write_byte(at, "suid"));
	AS(BOB, copy_suid, 0);
	cr_assert_eq(mode_of("suid"), 0777u);
	SAME_OK(fchmodat(at, "suid", 06777, 0));
	AS(BOB, allocate_suid, 0);
	cr_assert_eq(mode_of("suid"), 0777u);
	both_same_tree();
}

static ssize_t capability_of(int at, const char *name)
{
	int fd = openat(at, name, O_RDONLY);
	char value[64];
	ssize_t n = fgetxattr(fd, XATTR_NAME_CAPS, value, sizeof(value));

	close(fd);
	return n;
}

static int give_capability(int at, const char *name)
{
	static const struct vfs_cap_data data = {
		.magic_etc = VFS_CAP_REVISION_2,
		.data = { { .permitted = 1 << CAP_NET_RAW } },
	};
	int fd = openat(at, name, O_RDONLY), r;

	r = fsetxattr(fd, XATTR_NAME_CAPS, &data, XATTR_CAPS_SZ_2, 0);
	close(fd);
	return r;
}

EACH_WAY_BARE(fs_users, a_write_takes_a_files_capabilities)
{
	start();
	make("f", 0777, ALICE, ALICE);
	for (int i = 0; i < 2; i++) {
		/* The second time it is known that the file has none. */
		SAME_OK(write_byte(at, "f"));
		SAME_OK(give_capability(at, "f"));
		cr_assert_eq(SAME(capability_of(at, "f")), XATTR_CAPS_SZ_2);
		SAME_OK(write_byte(at, "f"));
		cr_assert_eq(SAME(capability_of(at, "f")), -1);
	}
}
