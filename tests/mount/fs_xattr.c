/*
 * fs_xattr.c - extended attributes and POSIX access control lists.
 */
#include <endian.h>
#include <fcntl.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <linux/xattr.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "actor.h"
#include "child.h"
#include "shell.h"
#include "ways.h"

static int open_both(int fd[2], const char *name)
{
	SAME_FD_OK(fd, openat(at, name, O_CREAT | O_RDWR, 0644));
	return 0;
}

static void skip_without_xattrs(const int fd[2])
{
	if (fsetxattr(fd[ON_PLAIN], "user.probe", "", 0, 0) && errno == ENOTSUP)
		WAY_SKIP("extended attributes: not on the file system of the test");
	fremovexattr(fd[ON_PLAIN], "user.probe");
}

EACH_WAY(fs_xattr, set_get_list_remove)
{
	char value[2][100], names[2][1000];
	int fd[2];

	open_both(fd, "f");
	skip_without_xattrs(fd);
	SAME_ERR(fgetxattr(fd[side], "user.a", value[side], 100), ENODATA);
	SAME_OK(fsetxattr(fd[side], "user.a", "value", 5, 0));
	SAME_OK(fsetxattr(fd[side], "user.empty", "", 0, 0));
	cr_assert_eq(SAME_OK(fgetxattr(fd[side], "user.a", value[side], 100)), 5);
	cr_assert_arr_eq(value[ON_MOUNT], "value", 5);
	cr_assert_eq(SAME_OK(fgetxattr(fd[side], "user.a", NULL, 0)), 5);
	cr_assert_eq(SAME_OK(fgetxattr(fd[side], "user.empty", value[side], 100)), 0);
	SAME_ERR(fgetxattr(fd[side], "user.a", value[side], 4), ERANGE);
	SAME_ERR(fsetxattr(fd[side], "user.a", "x", 1, XATTR_CREATE), EEXIST);
	SAME_ERR(fsetxattr(fd[side], "user.b", "x", 1, XATTR_REPLACE), ENODATA);
	SAME_OK(fsetxattr(fd[side], "user.a", "longer value", 12, XATTR_REPLACE));
	SAME_OK(flistxattr(fd[side], NULL, 0));
	SAME_OK(flistxattr(fd[side], names[side], sizeof(names[0])));
	SAME_ERR(flistxattr(fd[side], names[side], 3), ERANGE);
	both_same_tree();
	SAME_OK(fremovexattr(fd[side], "user.a"));
	SAME_ERR(fremovexattr(fd[side], "user.a"), ENODATA);
	SAME_ERR(fsetxattr(fd[side], "nonsense", "x", 1, 0), EOPNOTSUPP);
	SAME_CLOSE(fd);
	way_unmount();
	way_remount();
	both_same_tree();
}

EACH_WAY(fs_xattr, limits_are_those_of_the_directory_beneath)
{
	static char value[XATTR_SIZE_MAX + 1];
	char name[300] = "user.";
	int fd[2];

	open_both(fd, "f");
	skip_without_xattrs(fd);
	memset(name + 5, 'n', sizeof(name) - 5);
	name[XATTR_NAME_MAX] = '\0';
	SAME(fsetxattr(fd[side], name, "x", 1, 0));
	name[XATTR_NAME_MAX] = 'n';
	name[XATTR_NAME_MAX + 1] = '\0';
	SAME_ERR(fsetxattr(fd[side], name, "x", 1, 0), ERANGE);
	SAME_ERR(fsetxattr(fd[side], "user.", "x", 1, 0), EINVAL);
	SAME_ERR(fsetxattr(fd[side], "user.big", value, sizeof(value), 0), E2BIG);
	SAME_OK(fsetxattr(fd[side], "user.page", value, 3000, 0));
	SAME(fsetxattr(fd[side], "user.large", value, XATTR_SIZE_MAX, 0));
	for (int i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "user.%d", i);
		SAME(fsetxattr(fd[side], name, name, strlen(name), 0));
	}
	SAME_CLOSE(fd);
	both_same_tree();
}

EACH_WAY(fs_xattr, directories_and_links_and_other_namespaces)
{
	char path[2][64];
	int fd[2];

	open_both(fd, "f");
	skip_without_xattrs(fd);
	SAME_OK(mkdirat(at, "d", 0755));
	SAME_OK(symlinkat("d", at, "l"));
	SAME_OK(snprintf(path[side], sizeof(path[0]), "/proc/self/fd/%d/l", at) > 0);
	SAME_OK(setxattr(path[side], "user.through", "x", 1, 0));
	SAME_ERR(lsetxattr(path[side], "user.link", "x", 1, 0), EPERM);
	if (geteuid() == 0) {
		SAME_OK(lsetxattr(path[side], "trusted.link", "x", 1, 0));
		SAME_OK(fsetxattr(fd[side], "trusted.file", "x", 1, 0));
	}
	SAME_CLOSE(fd);
	both_same_tree();
}

/* ---- access control lists, in the form that setfacl(1) hands to the kernel ---- */

struct acl {
	struct posix_acl_xattr_header header;
	struct posix_acl_xattr_entry entry[8];
	int n;
};

static void acl_add(struct acl *a, int tag, int perm, unsigned id)
{
	a->header.a_version = htole32(POSIX_ACL_XATTR_VERSION);
	a->entry[a->n].e_tag = htole16(tag);
	a->entry[a->n].e_perm = htole16(perm);
	a->entry[a->n].e_id = htole32(id);
	a->n++;
}

static size_t acl_size(const struct acl *a)
{
	return sizeof(a->header) + a->n * sizeof(a->entry[0]);
}

#define USER 1234u
#define OTHER 1235u

/* u::rw- u:1234:perm g::r-- m::rwx o::--- */
static struct acl acl_for_user(int perm)
{
	struct acl a = { .n = 0 };

	acl_add(&a, ACL_USER_OBJ, 7, ACL_UNDEFINED_ID);
	acl_add(&a, ACL_USER, perm, USER);
	acl_add(&a, ACL_GROUP_OBJ, 4, ACL_UNDEFINED_ID);
	acl_add(&a, ACL_MASK, 7, ACL_UNDEFINED_ID);
	acl_add(&a, ACL_OTHER, 0, ACL_UNDEFINED_ID);
	return a;
}

static void start_for_all(void)
{
	if (geteuid() != 0)
		WAY_SKIP("access control lists: needs root, to be other users");
	way_start(NULL);
}

static void skip_without_acls(int fd)
{
	struct acl a = acl_for_user(4);

	if (fsetxattr(fd, XATTR_NAME_POSIX_ACL_ACCESS, &a, acl_size(&a), 0) && errno == ENOTSUP)
		WAY_SKIP("access control lists: not on the file system of the test");
}

struct attempt {
	uid_t uid;
	int at;
	const char *name;
	int flags;
};

static int open_as_user(void *arg)
{
	struct attempt *a = arg;

	child_become(a->uid, a->uid);
	errno = 0;
	return openat(a->at, a->name, a->flags) < 0 ? errno : 0;
}

/* 0 or the errno with which another user's open ends. */
static int may(uid_t uid, int at, const char *name, int flags)
{
	struct attempt a = { uid, at, name, flags };

	return child_run(open_as_user, &a);
}

EACH_WAY_BARE(fs_xattr, an_access_list_decides_who_may)
{
	struct acl a;
	int fd[2];

	start_for_all();
	open_both(fd, "f");
	skip_without_acls(fd[ON_PLAIN]);
	a = acl_for_user(4);
	SAME_OK(fsetxattr(fd[side], XATTR_NAME_POSIX_ACL_ACCESS, &a, acl_size(&a), 0));
	cr_assert_eq(SAME(may(USER, at, "f", O_RDONLY)), 0);
	cr_assert_eq(SAME(may(USER, at, "f", O_RDWR)), EACCES);
	cr_assert_eq(SAME(may(OTHER, at, "f", O_RDONLY)), EACCES);
	a = acl_for_user(6);
	SAME_OK(fsetxattr(fd[side], XATTR_NAME_POSIX_ACL_ACCESS, &a, acl_size(&a), 0));
	cr_assert_eq(SAME(may(USER, at, "f", O_RDWR)), 0);
	both_same_tree();
	/* chmod changes the mask. */
	SAME_OK(fchmod(fd[side], 0640));
	cr_assert_eq(SAME(may(USER, at, "f", O_RDWR)), EACCES);
	both_same_tree();
	SAME_OK(fremovexattr(fd[side], XATTR_NAME_POSIX_ACL_ACCESS));
	cr_assert_eq(SAME(may(USER, at, "f", O_RDONLY)), EACCES);
	SAME_CLOSE(fd);
	both_same_tree();
	way_unmount();
	way_remount();
	both_same_tree();
}

static int list_as_user(void *arg)
{
	char names[1000];
	int fd;

	child_become(USER, USER);
	fd = openat(*(int *)arg, "f", O_RDONLY);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(fgetxattr(fd, "trusted.a", names, 10) == -1 && errno == ENODATA);
	CHILD_CHECK(flistxattr(fd, NULL, 0) == 14);
	CHILD_CHECK(flistxattr(fd, names, 13) == -1 && errno == ERANGE);
	CHILD_CHECK(flistxattr(fd, names, sizeof(names)) == 14);
	CHILD_CHECK(memmem(names, 14, "user.a", 7) && memmem(names, 14, "user.b", 7));
	return 0;
}

EACH_WAY_BARE(fs_xattr, trusted_names_are_for_the_privileged)
{
	char names[2][1000];
	int fd[2];

	start_for_all();
	open_both(fd, "f");
	skip_without_xattrs(fd);
	SAME_OK(fsetxattr(fd[side], "user.a", "x", 1, 0));
	SAME_OK(fsetxattr(fd[side], "trusted.a", "x", 1, 0));
	SAME_OK(fsetxattr(fd[side], "user.b", "x", 1, 0));
	cr_assert_eq(SAME_OK(flistxattr(fd[side], names[side], sizeof(names[0]))), 24);
	cr_assert_eq(SAME(child_run(list_as_user, &at)), 0);
	SAME_CLOSE(fd);
}

EACH_WAY_BARE(fs_xattr, an_access_list_that_only_says_the_mode_changes_the_mode)
{
	struct acl a = { .n = 0 };
	struct stat st[2];
	int fd[2];

	start_for_all();
	open_both(fd, "f");
	skip_without_acls(fd[ON_PLAIN]);
	acl_add(&a, ACL_USER_OBJ, 6, ACL_UNDEFINED_ID);
	acl_add(&a, ACL_GROUP_OBJ, 2, ACL_UNDEFINED_ID);
	acl_add(&a, ACL_OTHER, 1, ACL_UNDEFINED_ID);
	SAME_OK(fsetxattr(fd[side], XATTR_NAME_POSIX_ACL_ACCESS, &a, acl_size(&a), 0));
	SAME_OK(fstat(fd[side], &st[side]));
	both_same_stat(st, "after the list");
	cr_assert_eq(st[ON_MOUNT].st_mode & 0777, 0621u);
	a.entry[0].e_tag = 99;
	SAME_ERR(fsetxattr(fd[side], XATTR_NAME_POSIX_ACL_ACCESS, &a, acl_size(&a), 0), EINVAL);
	SAME_CLOSE(fd);
	both_same_tree();
}

EACH_WAY_BARE(fs_xattr, a_default_list_is_inherited)
{
	struct acl a;
	int dir[2], fd[2];

	start_for_all();
	SAME_OK(mkdirat(at, "d", 0755));
	SAME_FD_OK(dir, openat(at, "d", O_RDONLY | O_DIRECTORY));
	a = acl_for_user(6);
	if (fsetxattr(dir[ON_PLAIN], XATTR_NAME_POSIX_ACL_DEFAULT, &a, acl_size(&a), 0) &&
	    errno == ENOTSUP)
		WAY_SKIP("access control lists: not on the file system of the test");
	SAME_OK(fsetxattr(dir[side], XATTR_NAME_POSIX_ACL_DEFAULT, &a, acl_size(&a), 0));
	/* Where there is a default list, the umask counts for nothing. */
	umask(077);
	SAME_FD_OK(fd, openat(at, "d/f", O_CREAT | O_RDWR, 0666));
	SAME_CLOSE(fd);
	SAME_OK(mkdirat(at, "d/sub", 0777));
	SAME_OK(mknodat(at, "d/node", S_IFREG | 0660, 0));
	SAME_OK(symlinkat("x", at, "d/link"));
	SAME_FD_OK(fd, openat(at, "d/sub/f", O_CREAT | O_RDWR, 0640));
	SAME_CLOSE(fd);
	/* And elsewhere it counts. */
	SAME_FD_OK(fd, openat(at, "outside", O_CREAT | O_RDWR, 0666));
	SAME_CLOSE(fd);
	umask(022);
	both_same_tree();
	cr_assert_eq(SAME(may(USER, at, "d/f", O_RDWR)), 0);
	cr_assert_eq(SAME(may(OTHER, at, "d/f", O_RDONLY)), EACCES);
	SAME_CLOSE(dir);
}

/* ---- what the daemon knows of a file ---- */

#define MIB (1024 * 1024)
#define PREFIX "system.gaiafs."

static void says(const char *name, const char *attribute, const char *wanted)
{
	char value[256] = "";
	ssize_t n = getxattr(mnt_file(&mnt, name), attribute, value, sizeof(value) - 1);

	cr_assert_geq(n, 0, "%s of %s: %s", attribute, name, strerror(errno));
	cr_assert_str_eq(value, wanted, "%s of %s", attribute, name);
	cr_assert_eq(n, (ssize_t)strlen(wanted));
	cr_assert_eq(getxattr(mnt_file(&mnt, name), attribute, NULL, 0), n);
}

static void start_with_devices(void)
{
	static const char *const args[] = { "--device", "sim:8M,count=2", "--writeback-age", "3600", NULL };
	static char bytes[3 * MIB];
	int fd;

	way_start(args);
	way_make_cached("f");
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0640);
	cr_assert_eq(write(fd, bytes, sizeof(bytes)), (ssize_t)sizeof(bytes));
	cr_assert_eq(fsync(fd), 0);
	cr_assert_eq(fchmod(fd, 0640), 0);
	close(fd);
}

CACHED_WAYS_BARE(fs_xattr, the_daemon_says_where_a_file_is)
{
	struct actor *a;

	start_with_devices();
	shell_ok(mnt.path, "\"$GAIA\" evict f");
	says("f", PREFIX "residency", "home=0");
	says("f", PREFIX "device", "");
	says("f", PREFIX "dirty", "0");
	a = actor_start("f", 3 * MIB, 1);
	actor_ok(a, ACQUIRE, 0, 4096, PROT_READ | PROT_WRITE);
	actor_ok(a, ACQUIRE, 2 * MIB, 4096, PROT_READ | PROT_WRITE);
	says("f", PREFIX "device", "sim1");
	actor_ok(a, STORE, 0, 4096, 'd');
	actor_ok(a, RELEASE, 0, 3 * MIB, 0);
	says("f", PREFIX "dirty", "4096");
	shell_ok(mnt.path, "getfattr -n " PREFIX "residency --only-values f > /dev/null 2>&1 || ! command -v getfattr > /dev/null");
	shell_ok(mnt.path, "\"$GAIA\" evict f --from home");
	says("f", PREFIX "residency", "home=0 sim1=4194304");
	actor_end(a);
	/* Not of a directory. */
	cr_assert(getxattr(mnt.path, PREFIX "residency", NULL, 0) == -1 && errno == ENODATA);
}

/* What nobody has opened is not looked into. */
EACH_WAY_BARE(fs_xattr, what_the_daemon_says_is_never_listed_nor_set)
{
	char names[1000], value[8];
	ssize_t n;

	start_with_devices();
	n = listxattr(mnt_file(&mnt, "f"), names, sizeof(names));
	cr_assert_geq(n, 0);
	cr_assert_null(memmem(names, (size_t)n, PREFIX, strlen(PREFIX)));
	cr_assert(setxattr(mnt_file(&mnt, "f"), PREFIX "dirty", "0", 1, 0) == -1 && errno == EPERM);
	cr_assert(removexattr(mnt_file(&mnt, "f"), PREFIX "residency") == -1 && errno == EPERM);
	cr_assert(getxattr(mnt_file(&mnt, "f"), PREFIX "residency", value, 3) == -1 && errno == ERANGE);
	cr_assert(getxattr(mnt_file(&mnt, "f"), PREFIX "nothing", value, 8) == -1 && (errno == ENODATA || errno == EOPNOTSUPP));
	/* Programs that copy attributes copy what is listed, and fail if one cannot be set. */
	shell_ok(mnt.path, "set -e; setfattr -n user.own -v 1 f; to=$(mktemp -d); trap 'rm -rf \"$to\"' EXIT; "
			   "cp -a f g; rsync -aX f h; cp -a f \"$to/g\"; rsync -aX f \"$to/h\"; "
			   "for copy in g h \"$to/g\" \"$to/h\"; do cmp f \"$copy\"; names=$(getfattr -m - \"$copy\" | grep -v '^#'); "
			   "case $names in *gaiafs*) echo \"$names\"; exit 1;; *user.own*) ;; *) [ \"$copy\" != g ] || exit 1;; esac; done; rm g h");
}

static int as_stranger(void *arg)
{
	(void)arg;
	child_become(1234, 1234);
	CHILD_CHECK(getxattr(mnt_file(&mnt, "open"), PREFIX "dirty", NULL, 0) == 1);
	for (int k = 0; k < 3; k++) {
		const char *name = k == 0 ? PREFIX "dirty" : k == 1 ? PREFIX "device" : PREFIX "residency";

		CHILD_CHECK(getxattr(mnt_file(&mnt, "f"), name, NULL, 0) == -1 && errno == EACCES);
	}
	return 0;
}

EACH_WAY_BARE(fs_xattr, what_the_daemon_says_is_for_those_who_may_read_the_file)
{
	if (geteuid() != 0)
		WAY_SKIP("becomes another user, which needs root");
	start_with_devices();
	shell_ok(mnt.path, "chmod 755 . && chmod 755 %s && touch open && chmod 644 open", mnt.dir);
	cr_assert_eq(child_run(as_stranger, NULL), 0);
}
