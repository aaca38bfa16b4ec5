/*
 * share.c - a device that cannot prevent readers of its memory from storing there, as no GPU can. A user who opened a file for reading
 * stores wrong bytes all over the memory that the client was handed. It is the file's own memory if the user may write the file when it
 * is mapped; if not, it is memory of this user, and nobody else reads from it.
 */
#include <grp.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "gaia/client.h"
#include "hostile.h"
#include "report.h"

#define CHUNK (2u << 20)
#define ALICE 65531 /* whose the file is */
#define GROUP 65530
#define TRUE 't'
#define LIE 'L'

/* ---- users ---- */

struct who {
	uid_t uid;
	gid_t gid, group; /* a supplementary one; 0: none */
	bool powerless;	  /* without capabilities */
	bool namespaced;  /* with all of them, in a user namespace of its own */
};

#define USER(id) { .uid = (id), .gid = (id) }
static const struct who nobody = USER(NOBODY), somebody = USER(SOMEBODY), alice = USER(ALICE), root;

static void drop_capabilities(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct none[2] = { 0 };

	CHILD_CHECK(!syscall(SYS_capset, &head, none));
}

static void write_to(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	CHILD_CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
}

static void enter_namespace(void)
{
	CHILD_CHECK(!unshare(CLONE_NEWUSER));
	write_to("/proc/self/setgroups", "deny");
	write_to("/proc/self/uid_map", "0 0 1");
	write_to("/proc/self/gid_map", "0 0 1");
}

static void become(const struct who *who)
{
	CHILD_CHECK(!setgroups(who->group != 0, &who->group));
	CHILD_CHECK(!setresgid(who->gid, who->gid, who->gid));
	CHILD_CHECK(!setresuid(who->uid, who->uid, who->uid));
	if (who->powerless)
		drop_capabilities();
	if (who->namespaced)
		enter_namespace();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static const char *path;

static unsigned char *map_file(int flags)
{
	int fd = open(path, flags | O_CLOEXEC), prot = PROT_READ | (flags == O_RDWR ? PROT_WRITE : 0);
	unsigned char *p;

	CHILD_CHECK(fd >= 0);
	p = gaia_mmap(CHUNK, prot, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(!gaia_acquire(p, CHUNK, prot));
	return p;
}

static struct who attacker;
static struct gate over;

/* The library maps for reading what the device gave for writing as well. */
static int store_lies(void *arg)
{
	unsigned char *p;

	(void)arg;
	become(&attacker);
	p = map_file(O_RDONLY);
	CHILD_CHECK(p[0] == TRUE && p[CHUNK - 1] == TRUE);
	CHILD_CHECK(!mprotect(p, CHUNK, PROT_READ | PROT_WRITE));
	memset(p, LIE, CHUNK);
	gate_open(ready);
	CHILD_CHECK(gate_pass(over));
	CHILD_CHECK(p[0] == LIE && !gaia_release(p, CHUNK));
	return 0;
}

static int look(const struct who *who, int flags)
{
	unsigned char *p;

	become(who);
	p = map_file(flags);
	shared->count = 0;
	for (unsigned i = 0; i < CHUNK; i++)
		shared->count += p[i] != TRUE;
	CHILD_CHECK(!gaia_release(p, CHUNK));
	return 0;
}

/* By @who's right to read, or to write. */
static int look_to_read(void *who)
{
	return look(who, O_RDONLY);
}

static int look_to_write(void *who)
{
	return look(who, O_RDWR);
}

/* ---- scenes ---- */

static int begin_with(const char *const *args, mode_t mode)
{
	char *text = malloc(CHUNK);
	int fd;

	hostile_start(args);
	memset(text, TRUE, CHUNK);
	/* Beneath, so that it can be where nobody may write. */
	fd = openat(mnt.backing_fd, "f", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, text, CHUNK), CHUNK);
	cr_assert_eq(fchown(fd, ALICE, GROUP), 0);
	cr_assert_eq(fchmod(fd, mode), 0);
	close(fd);
	free(text);
	path = mnt_file(&mnt, "f");
	over = gate_make();
	return open(path, O_RDONLY | O_CLOEXEC);
}

#define DEVICE "--device", "sim:32M,readonly=off"
#define begin(mode) begin_with((const char *[]){ DEVICE, NULL }, mode)

static pid_t attack_by(struct who who)
{
	attacker = who;
	return hostile_attack(store_lies);
}

static void end_attack(pid_t pid)
{
	gate_open(over);
	cr_assert_eq(child_wait(pid), 0);
}

#define expect_lies(look, who)                                                 \
	do {                                                                   \
		cr_assert_eq(child_run(look, (void *)(who)), 0);               \
		cr_assert_eq(shared->count, (int)CHUNK);                       \
	} while (0)
#define expect_truth(look, who)                                                \
	do {                                                                   \
		cr_assert_eq(child_run(look, (void *)(who)), 0);               \
		cr_assert_eq(shared->count, 0, "%d bytes of lies", shared->count); \
	} while (0)

static void expect_file(int fd)
{
	char *text = malloc(CHUNK);

	cr_assert_eq(pread(fd, text, CHUNK, 0), CHUNK);
	cr_assert_null(memchr(text, LIE, CHUNK));
	free(text);
}

/* What @who stores goes to the memory that the file's writers have. */
static void shares_with_writers(struct who who, mode_t mode)
{
	int fd = begin(mode);
	pid_t pid = attack_by(who);

	expect_lies(look_to_write, &alice);
	end_attack(pid);
	close(fd);
}

static void is_kept_apart(struct who who, mode_t mode)
{
	int fd = begin(mode);
	pid_t pid = attack_by(who);

	expect_truth(look_to_write, &alice);
	end_attack(pid);
	expect_file(fd);
	close(fd);
}

/* ---- the tests ---- */

EACH_WAY_BARE(share, lies_of_a_reader_are_nobody_elses)
{
	int fd = begin(0644);
	pid_t pid = attack_by(nobody);

	expect_truth(look_to_read, &somebody);
	expect_truth(look_to_write, &alice);
	expect_file(fd);
	/* Nor do they become the file's when it is all that still has it. */
	cr_assert_eq(fsync(fd), 0);
	cr_assert_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	cr_assert_eq(ioctl(fd, GAIA_IOC_EVICT, &(struct gaia_ioc_file){ .from = GAIA_FROM_HOME }), 0);
	expect_file(fd);
	end_attack(pid);
	expect_truth(look_to_read, &nobody);
	expect_file(fd);
	close(fd);
}

/* Chunks of the device. */
static long used(void)
{
	return STATUS("devices", "0", "used") / CHUNK;
}

EACH_WAY_BARE(share, readers_of_a_user_have_one_copy)
{
	pid_t one, other, writer;
	int fd = begin(0644);

	one = attack_by(nobody);
	cr_assert_eq(used(), 1);
	/* These are the user's own lies. */
	expect_lies(look_to_read, &nobody);
	cr_assert_eq(used(), 1);
	other = attack_by(somebody);
	writer = attack_by(alice);
	cr_assert_eq(used(), 3);
	for (int i = 0; i < 3; i++)
		gate_open(over);
	cr_assert_eq(child_wait(one), 0);
	cr_assert_eq(child_wait(other), 0);
	cr_assert_eq(child_wait(writer), 0);
	close(fd);
}

EACH_WAY_BARE(share, is_for_the_owner) { shares_with_writers(alice, 0644); }
EACH_WAY_BARE(share, is_for_the_group) { shares_with_writers((struct who){ .uid = NOBODY, .gid = GROUP }, 0664); }
EACH_WAY_BARE(share, is_for_all_groups_of_the_user) { shares_with_writers((struct who){ .uid = NOBODY, .gid = NOBODY, .group = GROUP }, 0664); }
EACH_WAY_BARE(share, is_for_root) { shares_with_writers(root, 0644); }

EACH_WAY_BARE(share, is_not_for_an_owner_who_may_not_write)
{
	int fd = begin(0464);
	pid_t pid = attack_by(alice);

	expect_truth(look_to_write, &root);
	end_attack(pid);
	expect_file(fd);
	close(fd);
}

EACH_WAY_BARE(share, is_not_for_the_group_of_a_file_for_the_owner) { is_kept_apart((struct who){ .uid = NOBODY, .gid = GROUP }, 0644); }
EACH_WAY_BARE(share, is_not_for_root_without_powers) { is_kept_apart((struct who){ .powerless = true }, 0644); }
EACH_WAY_BARE(share, is_not_for_root_of_another_namespace) { is_kept_apart((struct who){ .namespaced = true }, 0644); }

EACH_WAY_BARE(share, is_not_what_roots_readers_do_with_powerless_ones)
{
	int fd;
	pid_t pid;

	fd = begin_with((const char *[]){ DEVICE, "-o", "ro", NULL }, 0644);
	pid = attack_by((struct who){ .powerless = true });
	expect_truth(look_to_read, &root);
	end_attack(pid);
	close(fd);
}

EACH_WAY_BARE(share, is_for_nobody_where_nobody_may_write)
{
	int fd = begin_with((const char *[]){ DEVICE, "-o", "ro", NULL }, 0666);
	pid_t pid = attack_by(nobody);

	expect_truth(look_to_read, &somebody);
	expect_truth(look_to_read, &root);
	end_attack(pid);
	close(fd);
}

/* faccessat2(2) says that the user may write it, but open(2) would only let the user append. */
EACH_WAY_BARE(share, is_for_nobody_where_all_may_only_append)
{
	int fd = begin(0666), below = openat(mnt.backing_fd, "f", O_RDONLY | O_CLOEXEC), flags = 0;
	pid_t pid;

	cr_assert_geq(below, 0);
	if (ioctl(below, FS_IOC_GETFLAGS, &flags) ||
	    (flags |= FS_APPEND_FL, ioctl(below, FS_IOC_SETFLAGS, &flags)))
		cr_skip_test("the file system below has no append-only files: %s", strerror(errno));
	pid = attack_by(nobody);
	expect_truth(look_to_read, &somebody);
	end_attack(pid);
	flags &= ~FS_APPEND_FL;
	cr_assert_eq(ioctl(below, FS_IOC_SETFLAGS, &flags), 0);
	close(below);
	close(fd);
}

EACH_WAY_BARE(share, is_for_nobody_since_a_remount)
{
	int fd = begin(0666);
	pid_t pid;

	cr_assert_eq(mount("none", mnt.path, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0, "%s", strerror(errno));
	pid = attack_by(nobody);
	expect_truth(look_to_read, &somebody);
	end_attack(pid);
	cr_assert_eq(mount("none", mnt.path, NULL, MS_REMOUNT, NULL), 0);
	close(fd);
}

/* Decided once, as open(2) decides: for a mapping from before the right was gone, and for one from after that. */
EACH_WAY_BARE(share, is_decided_when_it_is_mapped)
{
	int fd = begin(0666);
	pid_t before = attack_by(nobody), after;

	cr_assert_eq(chmod(path, 0644), 0);
	expect_lies(look_to_write, &alice);
	end_attack(before);
	cr_assert_eq(ioctl(fd, GAIA_IOC_EVICT, &(struct gaia_ioc_file){ .from = 0 }), 0);
	after = attack_by(nobody);
	expect_truth(look_to_write, &alice);
	end_attack(after);
	expect_file(fd);
	close(fd);
}
