/*
 * stuck.c - requests that wait for storage which does not answer, more than the daemon has threads that serve: what needs no
 * such answer goes on meanwhile, for other users and for root.
 *
 * A file system that is frozen takes no changes and answers everything else. One whose daemon is stopped, another
 * gaiafs, answers nothing.
 */
#include <dirent.h>
#include <linux/fs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "gaia/client.h"
#include "hostile.h"
#include "own_mounts.h"
#include "report.h"
#include "shell.h"
#include "tree.h"

/* Linux 6.16; headers may be older. */
#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83
#endif

#define STUCK 64
#define READERS 160 /* half of them by way of the kernel's cache, which the kernel has read in the background */
#define SERVE 12 /* as the daemon has at first (FS_THREADS) */
#define PAGE 4096
#define SIZE (16 * PAGE)
#define RW (PROT_READ | PROT_WRITE)

static const char *const args[] = { "--device", "sim:8M", NULL };

/* How many threads of the daemon @is_it is true of; it gets the thread's directory in /proc. */
static int daemon_threads(bool (*is_it)(int task))
{
	char path[64];
	struct dirent *e;
	int n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", mnt.daemon);
	dir = opendir(path);
	cr_assert_not_null(dir);
	while ((e = readdir(dir))) {
		int task = e->d_name[0] == '.' ? -1 : openat(dirfd(dir), e->d_name, O_PATH | O_CLOEXEC);

		if (task < 0)
			continue;
		n += is_it(task);
		close(task);
	}
	closedir(dir);
	return n;
}

static void read_word(int task, const char *name, const char *format, char word[64])
{
	int fd = openat(task, name, O_RDONLY | O_CLOEXEC);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "r");

	if (!f || fscanf(f, format, word) != 1)
		word[0] = '\0';
	if (f)
		fclose(f);
}

/* Waits for a change of what is frozen, which nothing interrupts. */
static bool waits_uninterrupted(int task)
{
	char state[64];

	read_word(task, "stat", "%*d (%*[^)]) %1s", state);
	return *state == 'D';
}

/*
 * A thread that serves waits for what is below, to open it (for which it is asked what it is, unless the kernel knows that) or to
 * read it; or a worker does, where the spare came so early that it took some of the requests from the others.
 */
static bool waits_for_storage(int task)
{
	char name[64], number[64];

	read_word(task, "comm", "%15s", name);
	read_word(task, "syscall", "%15s", number);
	if (strcmp(name, "gaia-fuse") && strcmp(name, "gaia-read"))
		return false;
	switch (atoi(number)) {
	case SYS_fstat:
	case SYS_newfstatat:
	case SYS_statx:
	case SYS_openat:
	case SYS_pread64:
	case SYS_preadv:
	case SYS_preadv2:
	case SYS_io_uring_enter:
		return true;
	default:
		return false;
	}
}

static pthread_t start(void *(*fn)(void *arg), long i)
{
	pthread_t thread;

	CHILD_CHECK(!pthread_create(&thread, NULL, fn, (void *)i));
	return thread;
}

/* ---- who does no harm ---- */

static struct gate go, attack;

/* What the daemon has and the kernel has not, by @flags past the kernel's cache or through it. */
static void read_hot(int flags)
{
	char *buf = aligned_alloc(PAGE, PAGE);
	int fd = open(mnt_file(&mnt, "hot"), O_RDONLY | O_CLOEXEC | flags);

	CHILD_CHECK(fd >= 0 && buf);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	CHILD_CHECK(pread(fd, buf, PAGE, 0) == PAGE && buf[1] == 'h');
	close(fd);
	free(buf);
}

/* What the kernel does not know yet, so that the daemon is asked. */
static void look_at(const char *name)
{
	struct statx st;

	CHILD_CHECK(!statx(AT_FDCWD, mnt_file(&mnt, name), AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &st));
	CHILD_CHECK(st.stx_size == SIZE);
}

/* By way of the file: a directory would be opened below. */
static void ask_for_status(void)
{
	struct shell_result r = shell_run(mnt.path, 30, "\"$GAIA\" status hot --json");

	CHILD_CHECK(!r.status);
	shell_free(&r);
}

/* Before and while others are stuck. */
static int go_on(uid_t uid, const char *unknown)
{
	unsigned char *p;
	int fd, prot = uid ? PROT_READ : RW;

	if (uid)
		child_become(uid, uid);
	fd = open(mnt_file(&mnt, "hot"), (uid ? O_RDONLY : O_RDWR) | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	p = gaia_mmap(SIZE, prot, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(!gaia_acquire(p, SIZE, prot));
	CHILD_CHECK(!gaia_release(p, SIZE));
	gate_open(ready);
	CHILD_CHECK(gate_pass(go));
	for (int i = 0; i < 50; i++) {
		read_hot(0);
		read_hot(O_DIRECT);
		look_at("hot");
		/* Meanwhile others find its pages locked now and then. */
		CHILD_CHECK(!gaia_acquire(p, SIZE, prot));
		CHILD_CHECK(!gaia_release(p, SIZE));
	}
	if (unknown)
		look_at(unknown);
	CHILD_CHECK(!gaia_acquire(p, SIZE, prot));
	CHILD_CHECK(p[1] == 'h');
	CHILD_CHECK(!gaia_release(p, SIZE));
	ask_for_status();
	CHILD_CHECK(!gaia_munmap(p, SIZE));
	close(fd);
	return 0;
}

static const char *unknown_to[2]; /* root, somebody */

static int root_goes_on(void *arg)
{
	(void)arg;
	return go_on(0, unknown_to[0]);
}

static int somebody_goes_on(void *arg)
{
	(void)arg;
	return go_on(SOMEBODY, unknown_to[1]);
}

static void begin(void)
{
	shared = mmap(NULL, sizeof(*shared), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(shared, MAP_FAILED);
	ready = gate_make();
	go = gate_make();
	attack = gate_make();
}

static void make_hot_file(void)
{
	static char bytes[SIZE];
	int fd = openat(both_root[ON_MOUNT], "hot", O_RDWR | O_CREAT | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0);
	memset(bytes, 'h', SIZE);
	cr_assert_eq(pwrite(fd, bytes, SIZE, 0), SIZE);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	cr_assert_eq(chmod(mnt_file(&mnt, "hot"), 0644), 0);
}

/* ---- a file system that is frozen ---- */

static char top[PATH_MAX]; /* holds it, at top/small, and the image of its disk */
static int frozen = -1;
#define FROZEN_FD 400

static void thaw(void)
{
	if (frozen >= 0)
		ioctl(frozen, FITHAW, 0);
	frozen = -1;
}

static void clean_up(void)
{
	struct shell_result r;

	thaw();
	way_clean_up();
	if (!top[0])
		return;
	r = shell_run("/", 60, "umount -l '%s/small'; umount -l '%s/disk'; rm -rf '%s'", top, top, top);
	shell_free(&r);
}

/* However the test ends, it does not stay frozen: its processes could not end either. */
static void freeze(void)
{
	int test = (int)syscall(SYS_pidfd_open, getpid(), 0);

	cr_assert_geq(test, 0);
	frozen = mnt.backing_fd;
	if (!fork()) {
		struct pollfd p = { .fd = test, .events = POLLIN };

		/* It keeps nothing of the mount open. */
		dup3(frozen, FROZEN_FD, O_CLOEXEC);
		p.fd = dup3(test, FROZEN_FD + 1, O_CLOEXEC);
		frozen = FROZEN_FD;
		close_range(3, FROZEN_FD - 1, 0);
		close_range(FROZEN_FD + 2, ~0u, 0);
		poll(&p, 1, -1);
		thaw();
		_exit(0);
	}
	close(test);
	cr_assert_eq(syncfs(frozen), 0);
	cr_assert_eq(ioctl(frozen, FIFREEZE, 0), 0, "%s", strerror(errno));
}

static void start_on_ext4(void)
{
	char small[PATH_MAX + 8];
	struct shell_result r;

	if (geteuid())
		WAY_SKIP("needs root, to be another user as well");
	cr_assert(own_mounts(NULL));
	tree_make_temp(NULL, top);
	r = shell_run(top, 60, "set -e; mkdir small disk; mount -t tmpfs -o size=40M none disk; "
			       "truncate -s 32M disk/image; mkfs.ext4 -q -m 0 disk/image; mount -o loop disk/image small");
	if (r.status) {
		shell_free(&r);
		clean_up();
		cr_skip_test("a small file system: cannot be made here (loop devices, mkfs.ext4)");
	}
	shell_free(&r);
	begin();
	snprintf(small, sizeof(small), "%s/small", top);
	way_start_at(small, top, args);
	way_make_cached("hot");
	make_hot_file();
}

static void *change(void *arg)
{
	long i = (long)arg;
	char name[16], new[24];
	int fd;

	snprintf(name, sizeof(name), "his/%ld", i);
	snprintf(new, sizeof(new), "dir%ld/new", i);
	fd = i % 4 ? open(mnt_file(&mnt, name), O_RDWR | O_CLOEXEC) : -1;
	hostile_add(&shared->count);
	CHILD_CHECK(gate_pass(attack));
	switch (i % 4) {
	case 0:
		fd = open(mnt_file(&mnt, new), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		CHILD_CHECK(fd >= 0);
		break;
	case 1:
		CHILD_CHECK(!fchmod(fd, 0640));
		break;
	case 2:
		CHILD_CHECK(pwrite(fd, "new", 3, 0) == 3 && !fsync(fd));
		break;
	case 3:
		CHILD_CHECK(!ftruncate(fd, 1));
		break;
	}
	close(fd);
	hostile_add(&shared->more);
	return NULL;
}

static int change_what_is_frozen(void *arg)
{
	pthread_t thread[STUCK];

	(void)arg;
	child_become(NOBODY, NOBODY);
	for (long i = 0; i < STUCK; i++)
		thread[i] = start(change, i);
	for (int i = 0; i < STUCK; i++)
		pthread_join(thread[i], NULL);
	return 0;
}

static void open_for(struct gate g, int n)
{
	while (n--)
		gate_open(g);
}

#define WHEN_FROZEN(name, way_)                                                                           \
	Test(stuck, name##_##way_, .init = way_bare_##way_, .fini = clean_up, .timeout = WAY_SECONDS) \
	{                                                                                                 \
		name();                                                                                   \
		way_end();                                                                                \
	}

static void changes_of_a_frozen_file_system_hold_up_nothing_else(void)
{
	pid_t attacker, root, other;

	start_on_ext4();
	/* Beneath the mount: it has seen none of them. */
	shell_ok(top, "cd small; mkdir his; "
		      "for i in $(seq 0 %d); do head -c %d /dev/zero > his/$i; mkdir dir$i; done; "
		      "chown -R %d:%d his dir*; head -c %d /dev/zero > new0; cp new0 new1; chmod 644 new?",
		 STUCK - 1, SIZE, NOBODY, NOBODY, SIZE);
	unknown_to[0] = "new0";
	unknown_to[1] = "new1";
	root = hostile_attack(root_goes_on);
	other = hostile_attack(somebody_goes_on);
	attacker = child_start(change_what_is_frozen, NULL);
	HOSTILE_WAIT(attacker, shared->count >= STUCK);
	freeze();
	open_for(attack, STUCK);
	HOSTILE_WAIT(attacker, daemon_threads(waits_uninterrupted) >= SERVE);
	open_for(go, 2);
	cr_expect_eq(child_wait(root), 0, "root");
	cr_expect_eq(child_wait(other), 0, "another user");
	cr_expect_eq(shared->more, 0, "%d changes of a frozen file system were made", shared->more);
	thaw();
	cr_assert_eq(child_wait(attacker), 0);
	cr_assert_eq(shared->more, STUCK);
}

WHEN_FROZEN(changes_of_a_frozen_file_system_hold_up_nothing_else, auto)
WHEN_FROZEN(changes_of_a_frozen_file_system_hold_up_nothing_else, writeback)
WHEN_FROZEN(changes_of_a_frozen_file_system_hold_up_nothing_else, writethrough)

/* ---- a file system that does not answer ---- */

static struct mnt below;

static void take_down(void)
{
	if (below.daemon)
		kill(below.daemon, SIGCONT);
	way_clean_up();
	if (below.daemon)
		mnt_stop(&below);
}

static void *read_what_is_not_at_home(void *arg)
{
	char *buf = aligned_alloc(PAGE, PAGE), name[16];
	int fd;

	snprintf(name, sizeof(name), "his%ld", (long)arg);
	fd = open(mnt_file(&mnt, name), O_RDONLY | ((long)arg % 2 ? O_DIRECT : 0) | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && buf);
	hostile_add(&shared->count);
	CHILD_CHECK(gate_pass(attack));
	CHILD_CHECK(pread(fd, buf, PAGE, 0) == PAGE);
	hostile_add(&shared->more);
	close(fd);
	free(buf);
	return NULL;
}

static int read_from_a_disk_that_is_stuck(void *arg)
{
	pthread_t thread[READERS];

	(void)arg;
	child_become(NOBODY, NOBODY);
	for (long i = 0; i < READERS; i++)
		thread[i] = start(read_what_is_not_at_home, i);
	for (int i = 0; i < READERS; i++)
		pthread_join(thread[i], NULL);
	return 0;
}

/* What the attacker's user has under way holds up that user's reads of storage, and nothing else. */
static int nobody_goes_on(void *arg)
{
	(void)arg;
	return go_on(NOBODY, NULL);
}

static void start_above(void)
{
	static const char *const of_below[] = { "--cpu-cache", "writethrough", NULL };
	struct mnt_options options = { .args = of_below };
	char source[PATH_MAX + 8], plain[PATH_MAX + 8];

	if (geteuid())
		WAY_SKIP("needs root, to be another user as well");
	begin();
	cr_assert_eq(mnt_start(&below, &options), 0);
	snprintf(source, sizeof(source), "%s/d", below.path);
	snprintf(plain, sizeof(plain), "%s/plain", below.path);
	cr_assert_eq(mkdir(source, 0755), 0);
	cr_assert_eq(mkdir(plain, 0755), 0);
	way_start_at(source, plain, args);
}

static void reads_that_storage_does_not_answer_hold_up_nothing_else(void)
{
	pid_t attacker, child[3];
	char name[16];

	start_above();
	for (int i = 0; i < READERS; i++) {
		snprintf(name, sizeof(name), "his%d", i);
		close(hostile_file(name, SIZE));
	}
	make_hot_file();
	child[0] = hostile_attack(root_goes_on);
	child[1] = hostile_attack(somebody_goes_on);
	child[2] = hostile_attack(nobody_goes_on);
	attacker = child_start(read_from_a_disk_that_is_stuck, NULL);
	HOSTILE_WAIT(attacker, shared->count >= READERS);
	cr_assert(child_stop(below.daemon));
	open_for(attack, READERS);
	HOSTILE_WAIT(attacker, daemon_threads(waits_for_storage) >= SERVE);
	open_for(go, 3);
	for (int i = 0; i < 3; i++)
		cr_expect_eq(child_wait(child[i]), 0, "%s", i == 2 ? "the same user" : i ? "another user" : "root");
	cr_expect_eq(shared->more, 0, "%d reads of a disk that is stuck were answered", shared->more);
	kill(below.daemon, SIGCONT);
	cr_assert_eq(child_wait(attacker), 0);
	cr_assert_eq(shared->more, READERS);
}

#define WHEN_STOPPED(name, way_)                                                                          \
	Test(stuck, name##_##way_, .init = way_bare_##way_, .fini = take_down, .timeout = WAY_SECONDS) \
	{                                                                                                 \
		name();                                                                                   \
		way_end();                                                                                \
		cr_assert_eq(mnt_stop(&below), 0);                                                        \
	}

WHEN_STOPPED(reads_that_storage_does_not_answer_hold_up_nothing_else, writeback)
WHEN_STOPPED(reads_that_storage_does_not_answer_hold_up_nothing_else, writethrough)

/* ---- descriptors that clients send ---- */

static bool send_descriptor(int sock, int fd)
{
	char control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(_Alignof(struct cmsghdr)))) = { 0 };
	struct gaia_msg msg = { .kind = GAIA_MSG_HELLO, .version = GAIA_PROTOCOL_VERSION };
	struct iovec iov = { &msg, sizeof(msg) };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&hdr);

	*c = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(sock, &hdr, MSG_NOSIGNAL) == sizeof(msg);
}

/*
 * The kernel stores what is dirty when an open file ends, and waits for that: here in whoever has the last reference. So that this is
 * not the attacker the file lies in a socket, when what is written to it otherwise becomes dirty.
 */
static int send_what_hangs(void *arg)
{
	char path[PATH_MAX + 8];
	uint8_t ticket[16];
	int root, fd, other, pair[2], sock;
	bool sent;

	(void)arg;
	snprintf(path, sizeof(path), "%s/hangs", below.path);
	hostile_become();
	fd = open(path, O_RDWR | O_CLOEXEC);
	other = open(path, O_RDWR | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && other >= 0 && !socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair));
	CHILD_CHECK(send_descriptor(pair[0], fd));
	close(fd);
	close(pair[0]);
	root = open(mnt.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	sock = raw_socket(root, ticket);
	CHILD_CHECK(sock >= 0);
	CHILD_CHECK(pwrite(other, "dirty", 5, 0) == 5);
	gate_open(ready);
	CHILD_CHECK(gate_pass(attack));
	sent = send_descriptor(sock, pair[1]);
	/* If it was refused the attacker hangs himself. */
	if (!sent)
		hostile_add(&shared->count);
	close(pair[1]);
	hostile_add(&shared->count);
	for (;;)
		pause();
}

/* Else the daemon cannot but receive them: daemon/README.md, "What is open". */
static bool can_refuse_descriptors(void)
{
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), no = 0;
	bool can = !setsockopt(sock, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));

	close(sock);
	return can;
}

static void descriptors_of_files_that_hang_stop_no_thread(void)
{
	static const char *const of_below[] = { "--cpu-cache", "writeback", NULL };
	struct mnt_options options = { .args = of_below };
	char path[PATH_MAX + 8];
	pid_t attacker;
	struct raw r;
	int fd;

	hostile_start(args);
	if (!can_refuse_descriptors())
		WAY_SKIP("Linux before 6.16: sockets cannot refuse descriptors");
	attack = gate_make();
	cr_assert_eq(mnt_start(&below, &options), 0);
	snprintf(path, sizeof(path), "%s/hangs", below.path);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	cr_assert(fd >= 0 && !fchmod(fd, 0666) && !close(fd));
	attacker = hostile_attack(send_what_hangs);
	cr_assert(child_stop(below.daemon));
	/* So that it receives the descriptor when the attacker has closed it. */
	cr_assert(child_stop(mnt.daemon));
	gate_open(attack);
	HOSTILE_WAIT(attacker, shared->count > 0);
	kill(mnt.daemon, SIGCONT);
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < 3; i++) {
		r = raw_client(fd);
		close(r.sock);
	}
	close(fd);
	kill(below.daemon, SIGCONT);
	child_kill(attacker);
}

WHEN_STOPPED(descriptors_of_files_that_hang_stop_no_thread, writeback)

/* ---- leases ---- */

/* Who opens a file for writing on which the attacker has a lease waits for it: for 45 s (/proc/sys/fs/lease-break-time). */
static void take_lease(int beneath)
{
	CHILD_CHECK(signal(SIGIO, SIG_IGN) != SIG_ERR);
	if (fcntl(beneath, F_SETLEASE, F_RDLCK))
		shared->error = errno;
	hostile_keep();
}

/* What is left of it on the device is idle. */
static int lease_and_cut(void *arg)
{
	int beneath, fd;
	char *p;

	(void)arg;
	beneath = openat(mnt.backing_fd, "leased", O_RDONLY | O_CLOEXEC);
	hostile_become();
	fd = open(mnt_file(&mnt, "leased"), O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && beneath >= 0);
	p = gaia_mmap(GAIA_CHUNK, PROT_READ, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED && !gaia_acquire(p, GAIA_CHUNK, PROT_READ) && !gaia_release(p, GAIA_CHUNK));
	CHILD_CHECK(!gaia_munmap(p, GAIA_CHUNK) && !close(fd));
	CHILD_CHECK(signal(SIGIO, SIG_IGN) != SIG_ERR && !fcntl(beneath, F_SETLEASE, F_RDLCK));
	/* Another process: it cannot be killed until the lease is over, which ends with this one. */
	if (!fork()) {
		close(beneath);
		(void)!truncate(mnt_file(&mnt, "leased"), GAIA_PAGE);
		_exit(0);
	}
	hostile_keep();
}

static int open_leased(int *beneath)
{
	int fd;

	*beneath = openat(mnt.backing_fd, "leased", O_RDONLY | O_CLOEXEC);
	hostile_become();
	fd = open(mnt_file(&mnt, "leased"), O_RDWR | O_CLOEXEC);
	CHILD_CHECK(fd >= 0 && *beneath >= 0);
	return fd;
}

/* What the kernel gathers goes to the daemon. */
static bool write_and_push(int fd, const char *text)
{
	return pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text) &&
	       !sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

static int lease_what_was_written(void *arg)
{
	int beneath, fd = open_leased(&beneath);

	(void)arg;
	CHILD_CHECK(write_and_push(fd, "written"));
	take_lease(beneath);
	return 0;
}

/* Its kernel knows nothing of it, so the daemon is asked. */
static void ask_for_attributes(int fd)
{
	struct statx st;

	CHILD_CHECK(!statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &st));
}

/* As the attacker: @named is an O_PATH descriptor, which does not count as an open one. */
static int open_named(int named)
{
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", named);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	return fd;
}

/*
 * In auto "leased" was passed through for writing, and is cached now. The kernel keeps the attributes of an empty file: so nobody has
 * asked yet whether somebody else can write it still.
 */
static int write_what_was_passed_through(int *beneath)
{
	int named = openat(mnt.backing_fd, "leased", O_PATH | O_CLOEXEC), fd;
	bool passed;
	char byte, *p;

	fd = open_leased(beneath);
	do {
		close(*beneath);
		p = gaia_mmap(GAIA_PAGE, RW, fd, 0, 0);
		CHILD_CHECK(p != MAP_FAILED);
		ask_for_attributes(fd);
		CHILD_CHECK(!gaia_munmap(p, GAIA_PAGE) && !close(fd));
		fd = open(mnt_file(&mnt, "leased"), O_RDWR | O_CLOEXEC);
		CHILD_CHECK(fd >= 0 && write_and_push(fd, "written"));
		*beneath = open_named(named);
		/* The end of the descriptor before may come later. */
		passed = pread(*beneath, &byte, 1, 0) == 1;
		CHILD_CHECK(!passed || !ftruncate(fd, 0));
	} while (passed);
	return fd;
}

static int lease_what_was_passed_through(void *arg)
{
	int beneath, fd = write_what_was_passed_through(&beneath);

	(void)arg;
	ask_for_attributes(fd);
	take_lease(beneath);
	return 0;
}

static int lease_what_was_passed_through_and_released(void *arg)
{
	int beneath, fd = write_what_was_passed_through(&beneath);
	char *p = gaia_mmap(GAIA_PAGE, RW, fd, 0, 0);

	(void)arg;
	CHILD_CHECK(p != MAP_FAILED && !gaia_acquire(p, GAIA_PAGE, RW));
	strcpy(p, "stored");
	CHILD_CHECK(!gaia_release(p, GAIA_PAGE));
	ask_for_attributes(fd);
	take_lease(beneath);
	return 0;
}

static int lease_what_was_released(void *arg)
{
	int beneath, fd = open_leased(&beneath);
	char *p = gaia_mmap(GAIA_PAGE, RW, fd, 0, 0);

	(void)arg;
	CHILD_CHECK(p != MAP_FAILED && !gaia_acquire(p, GAIA_PAGE, RW));
	strcpy(p, "stored");
	CHILD_CHECK(!gaia_release(p, GAIA_PAGE));
	take_lease(beneath);
	return 0;
}

/* @how: "", or "BREAKING": somebody waits for it. */
static bool has_lease(const char *name, const char *how)
{
	char line[256], inode[32];
	bool has = false;
	struct stat st;
	FILE *f = fopen("/proc/locks", "re");

	cr_assert_not_null(f);
	cr_assert_eq(fstatat(mnt.backing_fd, name, &st, 0), 0);
	snprintf(inode, sizeof(inode), ":%lu ", (unsigned long)st.st_ino);
	while (fgets(line, sizeof(line), f))
		has |= strstr(line, "LEASE") && strstr(line, how) && strstr(line, inode);
	fclose(f);
	return has;
}

static bool is_stored(const char *name)
{
	char byte = 0;
	int fd = openat(mnt.backing_fd, name, O_RDONLY | O_CLOEXEC);

	cr_assert_geq(fd, 0);
	cr_assert_geq(pread(fd, &byte, 1, 0), 0);
	close(fd);
	return byte == 'o';
}

/* The same way, and stored by age like it, but a moment later. */
static void others_is_stored(int (*lease)(void *), bool was_passed, bool by_device)
{
	static const char *const with_age[] = { "--device", "sim:8M", "--writeback-age", "1", "--device-age", "1", NULL };
	pid_t attacker;
	char *p = NULL;
	int fd;

	hostile_start(with_age);
	if (!was_passed)
		way_make_cached("leased");
	way_make_cached("others");
	fd = hostile_file("leased", was_passed ? 0 : GAIA_PAGE);
	cr_assert_eq(fchown(fd, NOBODY, NOBODY), 0);
	close(fd);
	attacker = hostile_attack(lease);
	fd = hostile_file("others", GAIA_PAGE);
	if (by_device) {
		p = gaia_mmap(GAIA_PAGE, RW, fd, 0, 0);
		cr_assert_neq(p, MAP_FAILED);
		cr_assert_eq(gaia_acquire(p, GAIA_PAGE, RW), 0);
		*p = 'o';
		cr_assert_eq(gaia_release(p, GAIA_PAGE), 0);
	} else {
		cr_assert(write_and_push(fd, "o"));
	}
	HOSTILE_WAIT(attacker, is_stored("others"));
	cr_assert(shared->error == EAGAIN || has_lease("leased", ""), "not before the lease was over");
	if (by_device)
		cr_assert_eq(gaia_munmap(p, GAIA_PAGE), 0);
	close(fd);
	child_kill(attacker);
}

CACHED_WAYS_BARE(stuck, leases_on_what_was_written_hold_up_no_storing)
{
	others_is_stored(lease_what_was_written, false, false);
}

EACH_WAY_BARE(stuck, leases_on_what_was_released_hold_up_no_storing)
{
	others_is_stored(lease_what_was_released, false, true);
}

EACH_WAY_BARE(stuck, leases_on_what_was_passed_through_and_written_hold_up_no_storing)
{
	others_is_stored(lease_what_was_passed_through, true, false);
}

EACH_WAY_BARE(stuck, leases_on_what_was_passed_through_and_released_hold_up_no_storing)
{
	others_is_stored(lease_what_was_passed_through_and_released, true, true);
}

EACH_WAY_BARE(stuck, leases_on_what_is_cut_hold_up_no_eviction)
{
	pid_t attacker;
	char *p;
	int fd;

	hostile_start(args);
	way_make_cached("leased");
	fd = hostile_file("leased", GAIA_CHUNK);
	cr_assert_eq(fchown(fd, NOBODY, NOBODY), 0);
	close(fd);
	way_unmount();
	way_remount();
	fd = hostile_file("all", 4 * GAIA_CHUNK);
	p = gaia_mmap(4 * GAIA_CHUNK, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED);
	close(fd);
	attacker = hostile_attack(lease_and_cut);
	HOSTILE_WAIT(attacker, has_lease("leased", "BREAKING"));
	cr_assert_eq(gaia_acquire(p, 4 * GAIA_CHUNK, RW), 0, "%s", strerror(errno));
	cr_assert(has_lease("leased", ""), "not before the lease was over");
	cr_assert_eq(gaia_munmap(p, 4 * GAIA_CHUNK), 0);
	child_kill(attacker);
}
