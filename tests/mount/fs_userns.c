/*
 * fs_userns.c - the root of a user namespace, a rootless container's for example, on a mount of the host's: its capabilities
 * over the namespace's users count as on a plain directory, and no further. From xfstests generic/633, what is not about
 * idmapped mounts. Needs root, to be other users.
 */
#include <endian.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <linux/xattr.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "child.h"
#include "ways.h"

/* The namespace's users 0 to 9; all others are "nobody" to it. */
#define FIRST 10000u
#define USERS 10u
#define OTHER (FIRST + 1)
#define STRANGER 20000u

/* What is done on one side: 0 or an errno. */
typedef int deed(int at);

struct inside {
	deed *deed;
	int at;
};

static bool write_map(pid_t pid, const char *what)
{
	char path[64], map[64];
	int n = snprintf(map, sizeof(map), "0 %u %u", FIRST, USERS), fd;
	bool ok;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, what);
	fd = open(path, O_WRONLY);
	ok = fd >= 0 && write(fd, map, (size_t)n) == n;
	close(fd);
	return ok;
}

/* Become the root of a new user namespace. Its users must be mapped from outside. */
static void enter_namespace(void)
{
	struct gate made = gate_make();
	pid_t self = getpid(), mapper = fork();
	int status;

	CHILD_CHECK(mapper >= 0);
	if (!mapper)
		_exit(!(gate_pass(made) && write_map(self, "uid_map") && write_map(self, "gid_map")));
	CHILD_CHECK(unshare(CLONE_NEWUSER) == 0);
	gate_open(made);
	CHILD_CHECK(waitpid(mapper, &status, 0) == mapper && status == 0);
	CHILD_CHECK(setgroups(0, NULL) == 0 && setresgid(0, 0, 0) == 0 && setresuid(0, 0, 0) == 0);
	umask(022);
}

static int do_inside(void *arg)
{
	const struct inside *in = arg;

	enter_namespace();
	return in->deed(in->at);
}

static int run_inside(deed *what, int at)
{
	struct inside in = { what, at };

	return child_run(do_inside, &in);
}

/* As a user of the namespace that has no capabilities. */
static int do_as_other(void *arg)
{
	const struct inside *in = arg;

	child_become(OTHER, OTHER);
	umask(022);
	return in->deed(in->at);
}

static int run_as_other(deed *what, int at)
{
	struct inside in = { what, at };

	return child_run(do_as_other, &in);
}

#define SAME_BY(run, deed, outcome)                                              \
	do {                                                                     \
		int by_r = SAME(run(deed, at));                                  \
		cr_assert_eq(by_r, (outcome), "%s: %s", #deed, strerror(by_r));  \
	} while (0)
#define INSIDE(deed, outcome) SAME_BY(run_inside, deed, outcome)
#define BY_OTHER(deed, outcome) SAME_BY(run_as_other, deed, outcome)

#define DEED(name, call)                       \
	static int name(int at)                \
	{                                      \
		return (call) < 0 ? errno : 0; \
	}

static int make_namespace(void *arg)
{
	(void)arg;
	return unshare(CLONE_NEWUSER) ? 1 : 0;
}

static int open_and_close(int at, const char *name, int flags, mode_t mode)
{
	int fd = openat(at, name, flags, mode);

	return fd < 0 ? -1 : close(fd);
}

static void make_dir(const char *name, mode_t mode, uid_t uid, gid_t gid)
{
	SAME_OK(mkdirat(at, name, 0700));
	SAME_OK(fchownat(at, name, uid, gid, 0));
	SAME_OK(fchmodat(at, name, mode, 0));
}

static void make_file(const char *name, mode_t mode, uid_t uid, gid_t gid)
{
	SAME_OK(open_and_close(at, name, O_CREAT | O_EXCL | O_WRONLY, 0600));
	SAME_OK(fchownat(at, name, uid, gid, 0));
	SAME_OK(fchmodat(at, name, mode, 0));
}

static void start(void)
{
	if (geteuid() != 0)
		WAY_SKIP("other users: needs root");
	if (child_run(make_namespace, NULL))
		WAY_SKIP("user namespaces cannot be made here");
	way_start(NULL);
	umask(022);
}

static mode_t mode_of(const char *name)
{
	struct stat st[2];

	SAME_OK(fstatat(at, name, &st[side], AT_SYMLINK_NOFOLLOW));
	both_same_stat(st, name);
	return st[ON_MOUNT].st_mode & 07777;
}

DEED(create_file, open_and_close(at, "d/f", O_CREAT | O_EXCL | O_RDWR, 0666))
DEED(create_dir, mkdirat(at, "d/e", 0777))
DEED(create_link, symlinkat("x", at, "d/l"))
DEED(create_fifo, mkfifoat(at, "d/fifo", 0666))
DEED(create_without_a_name, open_and_close(at, "d", O_TMPFILE | O_RDWR, 0666))
DEED(create_device, mknodat(at, "d/null", S_IFCHR | 0666, makedev(1, 3)))
DEED(create_whiteout, mknodat(at, "d/whiteout", S_IFCHR, makedev(0, 0)))
DEED(leave_whiteout, renameat2(at, "d/f", at, "d/g", RENAME_WHITEOUT))

static void creates_as_below(mode_t mode, uid_t uid)
{
	start();
	make_dir("d", mode, uid, uid);
	INSIDE(create_file, 0);
	INSIDE(create_file, EEXIST);
	INSIDE(create_dir, 0);
	INSIDE(create_link, 0);
	INSIDE(create_fifo, 0);
	INSIDE(create_without_a_name, 0);
	INSIDE(create_device, EPERM);
	INSIDE(create_whiteout, 0);
	INSIDE(leave_whiteout, 0);
	both_same_tree();
}

EACH_WAY_BARE(fs_userns, its_root_makes_files)
{
	struct stat st;

	creates_as_below(0755, FIRST);
	cr_assert_eq(fstatat(mnt.backing_fd, "d/g", &st, 0), 0);
	cr_assert(st.st_uid == FIRST && st.st_gid == FIRST);
}

/* CAP_DAC_OVERRIDE in the namespace. */
EACH_WAY_BARE(fs_userns, its_root_makes_files_in_directories_of_its_users)
{
	creates_as_below(0700, OTHER);
}

EACH_WAY_BARE(fs_userns, its_root_makes_nothing_in_directories_of_others)
{
	start();
	make_dir("d", 0755, STRANGER, STRANGER);
	INSIDE(create_file, EACCES);
	INSIDE(create_dir, EACCES);
	INSIDE(create_link, EACCES);
	INSIDE(create_without_a_name, EACCES);
	/* The group must be the namespace's, too. */
	SAME_OK(fchownat(at, "d", FIRST, STRANGER, 0));
	SAME_OK(fchmodat(at, "d", 0070, 0));
	INSIDE(create_file, EACCES);
	both_same_tree();
}

DEED(write_f, open_and_close(at, "f", O_RDWR | O_TRUNC, 0))
DEED(chmod_f, fchmodat(at, "f", 0604, 0))
DEED(set_group_f, fchmodat(at, "f", 02755, 0))
DEED(chown_f, fchownat(at, "f", 2, 3, 0))
DEED(chown_f_to_stranger, fchownat(at, "f", STRANGER, -1, 0))
DEED(backdate_f, utimensat(at, "f", (struct timespec[]){ { 1, 1 }, { 2, 2 } }, 0))
DEED(unlink_hers, unlinkat(at, "d/hers", 0))
DEED(rename_hers, renameat(at, "d/hers", at, "d/mine"))

EACH_WAY_BARE(fs_userns, its_root_changes_what_its_users_have)
{
	start();
	make_file("f", 0600, OTHER, OTHER);
	INSIDE(write_f, 0);
	INSIDE(set_group_f, 0);
	cr_assert_eq(mode_of("f"), 02755u);
	/* By CAP_FSETID alone: it owns the file, but is not in the group. */
	SAME_OK(fchownat(at, "f", FIRST, OTHER, 0));
	INSIDE(set_group_f, 0);
	cr_assert_eq(mode_of("f"), 02755u);
	SAME_OK(fchownat(at, "f", OTHER, OTHER, 0));
	INSIDE(chmod_f, 0);
	INSIDE(backdate_f, 0);
	INSIDE(chown_f_to_stranger, EINVAL);
	INSIDE(chown_f, 0);
	both_same_tree();
	make_dir("d", 01777, OTHER, OTHER);
	make_file("d/hers", 0600, FIRST + 2, FIRST + 2);
	INSIDE(rename_hers, 0);
	make_file("d/hers", 0600, FIRST + 2, FIRST + 2);
	INSIDE(unlink_hers, 0);
	both_same_tree();
}

EACH_WAY_BARE(fs_userns, its_root_does_not_change_what_others_have)
{
	start();
	make_file("f", 0644, STRANGER, STRANGER);
	INSIDE(write_f, EACCES);
	INSIDE(chmod_f, EPERM);
	INSIDE(backdate_f, EPERM);
	INSIDE(chown_f, EPERM);
	/* Nor does it set the group's bit on a file of its own whose group is not. */
	SAME_OK(fchownat(at, "f", FIRST, STRANGER, 0));
	INSIDE(set_group_f, 0);
	cr_assert_eq(mode_of("f"), 0755u);
	make_dir("d", 01777, STRANGER, STRANGER);
	make_file("d/hers", 0600, STRANGER, STRANGER);
	INSIDE(unlink_hers, EPERM);
	INSIDE(rename_hers, EPERM);
	both_same_tree();
}

/* ---- set-id programs, capabilities of files ---- */

static int write_byte(int at)
{
	int fd = openat(at, "f", O_WRONLY), n;

	if (fd < 0)
		return errno;
	n = (int)pwrite(fd, "w", 1, 0);
	close(fd);
	return n == 1 ? 0 : errno;
}

EACH_WAY_BARE(fs_userns, what_it_writes_keeps_set_id_bits_as_below)
{
	start();
	make_file("f", 06777, OTHER, OTHER);
	INSIDE(write_byte, 0);
	both_same_tree();
	SAME_OK(fchmodat(at, "f", 06777, 0));
	BY_OTHER(write_byte, 0);
	cr_assert_eq(mode_of("f"), 0777u);
	/* The namespace's powers end with its users. */
	SAME_OK(fchownat(at, "f", STRANGER, STRANGER, 0));
	SAME_OK(fchmodat(at, "f", 06777, 0));
	INSIDE(write_byte, 0);
	both_same_tree();
}

/* What file "f" has of them: 0 or an errno, and in *@out the version and the root that they count for. */
static int capabilities(int at, struct vfs_ns_cap_data *out)
{
	int fd = openat(at, "f", O_RDONLY);
	ssize_t n;

	memset(out, 0, sizeof(*out));
	n = fgetxattr(fd, XATTR_NAME_CAPS, out, sizeof(*out));
	close(fd);
	return n < 0 ? errno : 0;
}

static int give_capability(int at)
{
	static const struct vfs_cap_data data = {
		.magic_etc = VFS_CAP_REVISION_2,
		.data = { { .permitted = 1 << CAP_NET_RAW } },
	};
	int fd = openat(at, "f", O_RDONLY), r;

	r = fsetxattr(fd, XATTR_NAME_CAPS, &data, XATTR_CAPS_SZ_2, 0) ? errno : 0;
	close(fd);
	return r;
}

static int see_capability(int at)
{
	struct vfs_ns_cap_data data;
	int err = capabilities(at, &data);

	if (err)
		return err;
	return (data.magic_etc & VFS_CAP_REVISION_MASK) == VFS_CAP_REVISION_2 ? 0 : EPROTO;
}

DEED(take_capability, fchdir(at) || removexattr("f", XATTR_NAME_CAPS) ? -1 : 0)

EACH_WAY_BARE(fs_userns, the_capabilities_that_it_gives_are_its_own)
{
	struct vfs_ns_cap_data data[2];

	start();
	make_file("f", 0755, OTHER, OTHER);
	INSIDE(give_capability, 0);
	/* To it they are for everybody; to us for its programs only. */
	INSIDE(see_capability, 0);
	SAME_OK(capabilities(at, &data[side]) ? -1 : 0);
	cr_assert_arr_eq(&data[ON_MOUNT], &data[ON_PLAIN], sizeof(data[0]));
	cr_assert_eq(data[ON_MOUNT].magic_etc & VFS_CAP_REVISION_MASK, VFS_CAP_REVISION_3);
	cr_assert_eq(data[ON_MOUNT].rootid, FIRST);
	INSIDE(take_capability, 0);
	SAME_ERR(capabilities(at, &data[side]) ? -1 : 0, ENODATA);
	BY_OTHER(give_capability, EPERM);
	SAME_OK(fchownat(at, "f", STRANGER, STRANGER, 0));
	INSIDE(give_capability, EPERM);
	both_same_tree();
}

/* ---- directories that hand down their group ---- */

DEED(create_sgid, open_and_close(at, "d/sgid", O_CREAT | O_EXCL | O_RDWR, 02755))
DEED(create_sgid_no_exec, open_and_close(at, "d/locked", O_CREAT | O_EXCL | O_RDWR, 02700))
DEED(make_sgid_node, mknodat(at, "d/node", S_IFREG | 02755, 0))

/* @mode: what is left of a set-group-id file's that its root makes there. */
static void make_all_inside(unsigned owner, unsigned mode)
{
	start();
	make_dir("d", 02777, owner, owner);
	INSIDE(create_file, 0);
	INSIDE(create_dir, 0);
	INSIDE(create_sgid, 0);
	INSIDE(create_sgid_no_exec, 0);
	INSIDE(make_sgid_node, 0);
	cr_assert_eq(mode_of("d/sgid"), mode);
	cr_assert_eq(mode_of("d/e"), 02755u);
	both_same_tree();
}

EACH_WAY_BARE(fs_userns, a_setgid_directory_of_its_own) { make_all_inside(FIRST, 02755); }
EACH_WAY_BARE(fs_userns, a_setgid_directory_of_strangers) { make_all_inside(STRANGER, 0755); }

EACH_WAY_BARE(fs_userns, a_setgid_directory_of_its_users)
{
	start();
	make_dir("d", 02777, OTHER, OTHER);
	INSIDE(create_file, 0);
	INSIDE(create_dir, 0);
	BY_OTHER(create_sgid, 0);
	BY_OTHER(make_sgid_node, 0);
	cr_assert_eq(mode_of("d/sgid"), 02755u);
	both_same_tree();
}

/* A known difference, on the safe side. */
EACH_WAY_BARE(fs_userns, set_gid_by_a_capability_needs_a_chmod)
{
	struct stat st;

	start();
	make_dir("d", 02777, OTHER, OTHER);
	cr_assert_eq(run_inside(create_sgid, both_root[ON_MOUNT]), 0);
	cr_assert_eq(fstatat(both_root[ON_MOUNT], "d/sgid", &st, 0), 0);
	cr_assert_eq(st.st_mode & 07777, 0755u);
	make_file("f", 0755, OTHER, OTHER);
	INSIDE(set_group_f, 0);
	cr_assert_eq(mode_of("f"), 02755u);
}

/* ---- access control lists ---- */

struct acl {
	struct posix_acl_xattr_header header;
	struct posix_acl_xattr_entry entry[5];
};

/* u::rw- u:@user:r-- g::r-- m::r-- o::---, as setfacl(1) hands it to the kernel; @user in the caller's namespace. */
static int give_acl(int at, const char *name, const char *kind, unsigned user)
{
	const struct acl acl = {
		{ htole32(POSIX_ACL_XATTR_VERSION) },
		{ { htole16(ACL_USER_OBJ), htole16(6), htole32(ACL_UNDEFINED_ID) },
		  { htole16(ACL_USER), htole16(4), htole32(user) },
		  { htole16(ACL_GROUP_OBJ), htole16(4), htole32(ACL_UNDEFINED_ID) },
		  { htole16(ACL_MASK), htole16(4), htole32(ACL_UNDEFINED_ID) },
		  { htole16(ACL_OTHER), htole16(0), htole32(ACL_UNDEFINED_ID) } },
	};
	int fd = openat(at, name, O_RDONLY), r;

	r = fsetxattr(fd, kind, &acl, sizeof(acl), 0) ? errno : 0;
	close(fd);
	return r;
}

static int give_f_acl(int at)
{
	return give_acl(at, "f", XATTR_NAME_POSIX_ACL_ACCESS, 3);
}

static int give_d_acl(int at)
{
	return give_acl(at, "d", XATTR_NAME_POSIX_ACL_DEFAULT, 3);
}

static int give_f_acl_of_stranger(int at)
{
	return give_acl(at, "f", XATTR_NAME_POSIX_ACL_ACCESS, STRANGER);
}

EACH_WAY_BARE(fs_userns, its_root_sets_access_control_lists)
{
	struct acl acl;

	start();
	make_file("f", 0640, OTHER, OTHER);
	make_dir("d", 0755, OTHER, OTHER);
	if (give_acl(both_root[ON_PLAIN], "f", XATTR_NAME_POSIX_ACL_ACCESS, OTHER) == ENOTSUP)
		WAY_SKIP("access control lists: not on the file system of the test");
	INSIDE(give_f_acl, 0);
	INSIDE(give_d_acl, 0);
	cr_assert_eq(getxattr(mnt_file(&mnt, "f"), XATTR_NAME_POSIX_ACL_ACCESS, &acl, sizeof(acl)), sizeof(acl));
	cr_assert_eq(le32toh(acl.entry[1].e_id), FIRST + 3);
	INSIDE(create_file, 0);
	INSIDE(create_dir, 0);
	INSIDE(give_f_acl_of_stranger, EINVAL);
	SAME_OK(fchownat(at, "f", STRANGER, STRANGER, 0));
	SAME_OK(fchmodat(at, "f", 0644, 0));
	INSIDE(give_f_acl, EPERM);
	both_same_tree();
}
