/*
 * nodes_rights.c - --source shared: what one node knows of rights and names is old, and another has changed them.
 */
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "child.h"
#include "nodes_rig.h"

#define USER 12345
#define OTHER 23456

struct former {
	struct gate opened, go;
};

#define ACL "system.posix_acl_access"

/* Everything that only the owner may do, by a descriptor from when the file was the user's: so the kernel looks nothing up. */
static int do_what_an_owner_may(void *arg)
{
	const struct timespec long_ago[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
	struct {
		struct posix_acl_xattr_header head;
		struct posix_acl_xattr_entry entry[3];
	} acl = { { POSIX_ACL_XATTR_VERSION },
		  { { ACL_USER_OBJ, 7, ACL_UNDEFINED_ID }, { ACL_GROUP_OBJ, 7, ACL_UNDEFINED_ID }, { ACL_OTHER, 7, ACL_UNDEFINED_ID } } };
	struct former *f = arg;
	int fd;

	child_become(USER, USER);
	fd = openat(at[0], "f", O_RDWR);
	CHILD_CHECK(fd >= 0 && !fchmod(fd, 0700) && !futimens(fd, long_ago));
	gate_open(f->opened);
	CHILD_CHECK(gate_pass(f->go));
	CHILD_CHECK(fchmod(fd, 06755) == -1 && errno == EPERM);
	CHILD_CHECK(fchown(fd, (uid_t)-1, USER) == -1 && errno == EPERM);
	CHILD_CHECK(futimens(fd, long_ago) == -1 && errno == EPERM);
	CHILD_CHECK(fsetxattr(fd, ACL, &acl, sizeof(acl), 0) == -1 && (errno == EPERM || errno == EOPNOTSUPP));
	CHILD_CHECK(fremovexattr(fd, ACL) == -1 || errno == EOPNOTSUPP);
	return close(fd);
}

ALL(nodes_rights, who_owned_a_file_has_no_rights_of_an_owner)
{
	struct former f = { gate_make(), gate_make() };
	struct stat st;
	pid_t child;

	put(0, "f", "text");
	cr_assert_eq(fchownat(at[0], "f", USER, USER, 0), 0);
	child = child_start(do_what_an_owner_may, &f);
	cr_assert(gate_pass(f.opened));
	cr_assert_eq(fchownat(at[1], "f", 0, 0, 0), 0);
	gate_open(f.go);
	cr_assert_eq(child_wait(child), 0);
	cr_assert_eq(fstatat(at[1], "f", &st, 0), 0);
	cr_assert_eq(st.st_mode & 07777, 0700u, "%o", st.st_mode);
	cr_assert_eq(st.st_gid, 0u);
}

/* And who owns it has them, root as well. */
static int change_own(void *arg)
{
	const struct timespec long_ago[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
	int fd;

	if (arg)
		child_become(USER, USER);
	fd = openat(at[1], "f", O_RDWR);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(!fchmod(fd, 0666) && !fchmod(fd, 06755));
	CHILD_CHECK(!fchown(fd, (uid_t)-1, USER) && !fchmod(fd, 0640));
	CHILD_CHECK(!futimens(fd, long_ago) && !futimens(fd, NULL));
	return close(fd);
}

ALL(nodes_rights, who_owns_a_file_changes_it)
{
	struct stat st;

	put(0, "f", "text");
	cr_assert_eq(fchownat(at[0], "f", USER, USER, 0), 0);
	for (int user = 1; user >= 0; user--) {
		cr_assert_eq(child_run(change_own, user ? &st : NULL), 0);
		cr_assert_eq(fstatat(at[0], "f", &st, 0), 0);
		cr_assert_eq(st.st_mode & 07777, 0640u);
		cr_assert_gt(st.st_mtim.tv_sec, 1);
	}
}

/* ---- set-id bits ---- */

static ssize_t write_it(int fd)
{
	return pwrite(fd, "rs", 2, 0);
}

static ssize_t copy_it(int fd)
{
	loff_t from = 2, to = 0;

	return copy_file_range(fd, &from, fd, &to, 2, 0);
}

static ssize_t allocate_it(int fd)
{
	return fallocate(fd, 0, 0, 2) ? -1 : 2;
}

struct writer {
	struct former f;
	ssize_t (*how)(int fd);
};

static int write_by_an_old_descriptor(void *arg)
{
	struct writer *w = arg;
	int fd;

	child_become(USER, USER);
	fd = openat(at[0], "f", O_RDWR);
	CHILD_CHECK(fd >= 0);
	gate_open(w->f.opened);
	CHILD_CHECK(gate_pass(w->f.go));
	CHILD_CHECK(w->how(fd) == 2);
	return close(fd);
}

static void no_set_id_bits_after(ssize_t (*how)(int fd), const char *bytes)
{
	struct writer w = { { gate_make(), gate_make() }, how };
	struct stat st;
	pid_t child;

	put(0, "f", "users");
	cr_assert_eq(fchmodat(at[0], "f", 0666, 0), 0);
	child = child_start(write_by_an_old_descriptor, &w);
	cr_assert(gate_pass(w.f.opened));
	cr_assert_eq(fchmodat(at[1], "f", 06755, 0), 0);
	gate_open(w.f.go);
	cr_assert_eq(child_wait(child), 0);
	has(1, "f", bytes);
	cr_assert_eq(fstatat(at[1], "f", &st, 0), 0);
	cr_assert_eq(st.st_mode & 07777, 0755u, "%s: %o", bytes, st.st_mode);
}

/* Else whoever runs the file runs what the user has written, as its owner. This node does not know of the bits. */
static void what_others_write_has_no_set_id_bits(void)
{
	no_set_id_bits_after(write_it, "rsers");
	no_set_id_bits_after(copy_it, "erers");
	no_set_id_bits_after(allocate_it, "users");
}
ON(nodes_rights, what_others_write_has_no_set_id_bits, passed, false, true, "3600", "")
ON(nodes_rights, what_others_write_has_no_set_id_bits, direct, false, false, "3600", "")

/* ---- directories, of which rights may be known as they were ---- */

static int remove_and_rename(void *arg)
{
	struct stat st;

	child_become(USER, USER);
	CHILD_CHECK(!fstatat(at[1], "d/f", &st, 0)); /* known from now on */
	gate_open(((struct former *)arg)->opened);
	CHILD_CHECK(gate_pass(((struct former *)arg)->go));
	CHILD_CHECK(unlinkat(at[1], "d/f", 0) == -1 && (errno == EPERM || errno == EACCES));
	CHILD_CHECK(renameat(at[1], "d/f", at[1], "d/g") == -1 && (errno == EPERM || errno == EACCES));
	CHILD_CHECK(renameat(at[1], "d/own", at[1], "d/f") == -1 && (errno == EPERM || errno == EACCES));
	CHILD_CHECK(linkat(at[1], "d/own", at[1], "d/link", 0) == -1 || !fstatat(at[1], "d/own", &st, 0));
	return 0;
}

static void names_in_a_directory_that_is_restricted(mode_t restricted)
{
	struct former f = { gate_make(), gate_make() };
	pid_t child;

	cr_assert_eq(mkdirat(at[0], "d", 0777), 0);
	cr_assert_eq(fchmodat(at[0], "d", 0777, 0), 0);
	put(0, "d/f", "text");
	put(0, "d/own", "own");
	cr_assert_eq(fchownat(at[0], "d/own", USER, USER, 0), 0);
	child = child_start(remove_and_rename, &f);
	cr_assert(gate_pass(f.opened));
	cr_assert_eq(fchmodat(at[0], "d", restricted, 0), 0);
	gate_open(f.go);
	cr_assert_eq(child_wait(child), 0);
	has(0, "d/f", "text");
	has(0, "d/own", "own");
}

static void a_directory_that_became_sticky_keeps_others_files(void)
{
	names_in_a_directory_that_is_restricted(01777);
}
ON(nodes_rights, a_directory_that_became_sticky_keeps_others_files, passed, false, true, "3600", "")
ON(nodes_rights, a_directory_that_became_sticky_keeps_others_files, direct, false, false, "3600", "")
ON(nodes_rights, a_directory_that_became_sticky_keeps_others_files, engine, true, false, "3600", "")

static void a_directory_that_is_closed_to_others_keeps_its_names(void)
{
	names_in_a_directory_that_is_restricted(0755);
}
ON(nodes_rights, a_directory_that_is_closed_to_others_keeps_its_names, passed, false, true, "3600", "")
ON(nodes_rights, a_directory_that_is_closed_to_others_keeps_its_names, direct, false, false, "3600", "")
ON(nodes_rights, a_directory_that_is_closed_to_others_keeps_its_names, engine, true, false, "3600", "")

/* In a sticky directory the owners of the file and of the directory, and root, go on. */
static int remove_as(void *arg)
{
	uid_t uid = *(uid_t *)arg;

	if (uid)
		child_become(uid, uid);
	CHILD_CHECK(!renameat(at[1], "d/f", at[1], "d/g"));
	return unlinkat(at[1], "d/g", 0);
}

ALL(nodes_rights, owners_and_root_remove_names_in_a_sticky_directory)
{
	uid_t uid[] = { USER, OTHER, 0 };

	cr_assert_eq(mkdirat(at[0], "d", 0777), 0);
	cr_assert_eq(fchmodat(at[0], "d", 01777, 0), 0);
	cr_assert_eq(fchownat(at[0], "d", OTHER, OTHER, 0), 0);
	for (int i = 0; i < 3; i++) {
		put(0, "d/f", "text");
		cr_assert_eq(fchownat(at[0], "d/f", USER, USER, 0), 0);
		cr_assert_eq(child_run(remove_as, &uid[i]), 0, "%u", uid[i]);
		cr_assert(!is_there(0, "d/f") && !is_there(0, "d/g"));
	}
}

/* ---- directories that change places ---- */

/* A node that has few descriptors opens files anew by the names that it knows, of which some are old. */
static void with_few_descriptors(int n)
{
	const struct rlimit few = { 600, 600 };

	close(at[n]);
	cr_assert_eq(mnt_unmount(&node[n]), 0);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	cr_assert_eq(mnt_restart(&node[n]), 0);
	at[n] = open(node[n].path, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

#define MANY 500
static void directories_that_change_places_are_known_by_what_is_there(void)
{
	char name[16];
	struct stat st;
	int a, b;

	with_few_descriptors(1);
	cr_assert_eq(mkdirat(at[0], "a", 0777), 0);
	cr_assert_eq(mkdirat(at[0], "a/b", 0777), 0);
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		put(0, name, "");
	}
	/* Node 1 knows a/b; node 0 makes it b/a. What node 1 finds in b is above b, as far as it knows. */
	a = openat(at[1], "a", O_PATH | O_DIRECTORY | O_CLOEXEC);
	b = openat(at[1], "a/b", O_PATH | O_DIRECTORY | O_CLOEXEC);
	cr_assert(a >= 0 && b >= 0);
	cr_assert_eq(renameat(at[0], "a/b", at[0], "b"), 0);
	cr_assert_eq(renameat(at[0], "a", at[0], "b/a"), 0);
	cr_assert(!fstatat(b, "a", &st, 0) || errno == ELOOP, "%s", strerror(errno)); /* the kernel knows it so, too */
	for (int i = 0; i < MANY; i++) {
		snprintf(name, sizeof(name), "f%d", i);
		cr_assert_eq(fstatat(at[1], name, &st, 0), 0);
	}
	for (int i = 0; i < 2; i++)
		cr_assert(!fstat(i ? a : b, &st) || errno == ESTALE, "%s", strerror(errno));
	cr_assert_eq(fstatat(at[1], "b/a", &st, 0), 0, "%s", strerror(errno));
	cr_assert(!is_there(1, "a"));
	cr_assert_eq(fstat(a, &st), 0);
	cr_assert_eq(fstat(b, &st), 0);
	close(a);
	close(b);
}
ON(nodes_rights, directories_that_change_places_are_known_by_what_is_there, passed, false, true, "0", "")
ON(nodes_rights, directories_that_change_places_are_known_by_what_is_there, direct, false, false, "0", "")
