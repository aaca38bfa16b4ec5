/*
 * hoard.c - one user takes as much as there is: clients, tickets, connections, mappings, open directories, reports, removed
 * files. Root and other users go on.
 */
#include <linux/capability.h>
#include <sys/prctl.h>

#include "attackers.h"
#include "hostile.h"

static void root_is_served(void)
{
	int fd = open(mnt.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char word[16];
	struct raw r;

	cr_assert_geq(fd, 0, "%s", strerror(errno));
	cr_assert(raw_connect(fd, &r), "%s", strerror(errno));
	close(r.sock);
	close(fd);
	cr_assert_eq(mnt_says(&mnt, "cpu_cache", word), 0);
	fd = open(mnt_file(&mnt, "new"), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0, "%s", strerror(errno));
	close(fd);
	cr_assert_eq(unlink(mnt_file(&mnt, "new")), 0);
}

static int one_connects(void *arg)
{
	struct raw r;
	int fd;

	(void)arg;
	child_become(SOMEBODY, SOMEBODY);
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(raw_connect(fd, &r));
	return 0;
}

static void others_are_served(void)
{
	root_is_served();
	cr_assert_eq(child_run(one_connects, NULL), 0);
}

/* ---- clients ---- */

EACH_WAY_BARE(hoard, clients)
{
	pid_t pid;

	hostile_start(NULL);
	pid = hostile_attack(take_clients);
	cr_assert_eq(shared->error, EMFILE, "%d clients, then %s", shared->count, strerror(shared->error));
	others_are_served();
	child_kill(pid);
}

/* ---- tickets, and connections that say nothing ---- */

/* Until the attacker has counted @more more. */
static void wait_for(pid_t attacker, int more)
{
	int since = shared->count;

	HOSTILE_WAIT(attacker, shared->count - since >= more);
}

EACH_WAY_BARE(hoard, tickets)
{
	pid_t pid;
	int fd;

	hostile_start(NULL);
	pid = hostile_attack(flood_with_tickets);
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < 20; i++) {
		uint8_t ticket[16];
		int sock = raw_socket(fd, ticket);
		struct gaia_msg msg = raw_hello(ticket);

		cr_assert_geq(sock, 0, "%s", strerror(errno));
		/* One who is slow to say hello. */
		wait_for(pid, 1000);
		cr_assert_eq(send(sock, &msg, sizeof(msg), MSG_NOSIGNAL), (ssize_t)sizeof(msg));
		cr_assert(raw_receive(sock, &msg, NULL), "turned away after 1000 tickets of another's");
		close(sock);
	}
	close(fd);
	others_are_served();
	child_kill(pid);
}

EACH_WAY_BARE(hoard, connections)
{
	pid_t pid;
	int fd;

	hostile_start(NULL);
	pid = hostile_attack(connect_and_say_nothing);
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < 20; i++) {
		uint8_t ticket[16];
		int sock = raw_socket(fd, ticket);
		struct gaia_msg msg = raw_hello(ticket);

		cr_assert_geq(sock, 0, "%s", strerror(errno));
		wait_for(pid, 100);
		cr_assert_eq(send(sock, &msg, sizeof(msg), MSG_NOSIGNAL), (ssize_t)sizeof(msg));
		cr_assert(raw_receive(sock, &msg, NULL), "turned away after 100 connections of another's");
		close(sock);
	}
	close(fd);
	others_are_served();
	child_kill(pid);
}

/* ---- mappings ---- */

EACH_WAY_BARE(hoard, mappings)
{
	struct raw r;
	pid_t pid;
	int fd;

	hostile_start(NULL);
	fd = hostile_file("f", GAIA_CHUNK);
	pid = hostile_attack(take_mappings);
	cr_assert_eq(shared->error, EMFILE, "%d mappings, then %s", shared->count, strerror(shared->error));
	/* Of the same file. */
	r = raw_client(fd);
	raw_map(fd, &r, GAIA_PAGE, GAIA_PROT_READ | GAIA_PROT_WRITE);
	close(r.sock);
	close(fd);
	others_are_served();
	child_kill(pid);
}

/* ---- directories ---- */

static void start_with_few_descriptors(void)
{
	struct rlimit few = { 3000, 3000 };

	if (!geteuid()) {
		/* Otherwise the daemon raises the limit again. */
		cr_assert_eq(prctl(PR_CAPBSET_DROP, CAP_SYS_RESOURCE), 0);
		cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	}
	hostile_start(NULL);
}

EACH_WAY_BARE(hoard, directories)
{
	pid_t pid;

	start_with_few_descriptors();
	cr_assert_eq(mkdir(mnt_file(&mnt, "d"), 0755), 0);
	pid = hostile_attack(take_directories);
	others_are_served();
	cr_assert_eq(shared->error, EMFILE, "%d directories, then %s", shared->count, strerror(shared->error));
	cr_assert_lt(shared->count, 2900, "the attacker's own limit ended it");
	child_kill(pid);
}

/* ---- files without a name: each keeps a descriptor of the daemon's as long as anybody has it ---- */

/* Files that nobody has looked at before. */
static int one_reads_a_file(void *arg)
{
	struct stat st;
	char byte;
	int fd;

	(void)arg;
	child_become(SOMEBODY, SOMEBODY);
	CHILD_CHECK(!stat(mnt_file(&mnt, "old/looked-at"), &st));
	fd = open(mnt_file(&mnt, "old/opened"), O_RDONLY | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(read(fd, &byte, 1) == 1 && byte == 'o');
	return 0;
}

#define OLD 40
#define SLACK 10 /* descriptors in use for a moment while the others took theirs */

/*
 * The attacker gets no more nameless files: neither by removing older ones, nor by O_TMPFILE. Other files are opened
 * meanwhile, whose descriptors the daemon may close; that makes no room.
 */
static int takes_more(void *arg)
{
	char name[32];
	int fd, more = 0;

	(void)arg;
	child_become(NOBODY, NOBODY);
	for (int n = 0; n < OLD; n++) {
		snprintf(name, sizeof(name), "open/old-%d", n);
		CHILD_CHECK(open(mnt_file(&mnt, name), O_PATH | O_CLOEXEC) >= 0);
		fd = open(mnt_file(&mnt, "old/opened"), O_RDONLY);
		CHILD_CHECK(fd >= 0 && !close(fd));
		more += open(mnt_file(&mnt, "open"), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) >= 0;
		if (n % 2)
			more += !unlink(mnt_file(&mnt, name));
		else
			more += !rename(mnt_file(&mnt, "open/old-1"), mnt_file(&mnt, name));
	}
	CHILD_CHECK(more < SLACK);
	return 0;
}

/* Other users make files, remove those that the kernel knows, and go on using them. */
static int one_removes_files(void *arg)
{
	char name[32];
	int fd;

	(void)arg;
	child_become(SOMEBODY, SOMEBODY);
	for (int n = 0; n < OLD; n++) {
		snprintf(name, sizeof(name), "open/else-%d", n);
		fd = open(mnt_file(&mnt, name), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		CHILD_CHECK(fd >= 0);
		CHILD_CHECK(!unlink(mnt_file(&mnt, name)));
		CHILD_CHECK(write(fd, "x", 1) == 1);
		CHILD_CHECK(open(mnt_file(&mnt, "open"), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600) >= 0);
	}
	return 0;
}

/* The attacker, having given up what it had. */
static int removes_again(void *arg)
{
	int fd;

	(void)arg;
	child_become(NOBODY, NOBODY);
	fd = open(mnt_file(&mnt, "open/again"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHILD_CHECK(fd >= 0);
	while (unlink(mnt_file(&mnt, "open/again")))
		usleep(1000);
	return 0;
}

/* Not through the mount, so that the daemon does not know of it. */
static void put_beneath(const char *name, uid_t uid)
{
	int fd = openat(mnt.backing_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	cr_assert_eq(write(fd, "o", 1), 1);
	cr_assert_eq(fchown(fd, uid, uid), 0);
	close(fd);
}

EACH_WAY_BARE(hoard, nameless_files)
{
	char name[32];
	pid_t pid;

	start_with_few_descriptors();
	cr_assert_eq(mkdir(mnt_file(&mnt, "open"), 0755), 0);
	cr_assert_eq(chmod(mnt_file(&mnt, "open"), 01777), 0);
	cr_assert_eq(mkdirat(mnt.backing_fd, "old", 0755), 0);
	put_beneath("old/looked-at", 0);
	put_beneath("old/opened", 0);
	for (int n = 0; n < OLD; n++) {
		snprintf(name, sizeof(name), "open/old-%d", n);
		put_beneath(name, NOBODY);
	}
	pid = hostile_attack(take_nameless_files_by_four);
	for (int i = 1; i < HOARDERS; i++)
		cr_assert(gate_pass(ready));
	others_are_served();
	cr_assert_eq(child_run(one_reads_a_file, NULL), 0);
	cr_assert_eq(child_run(takes_more, NULL), 0);
	cr_assert_eq(child_run(one_removes_files, NULL), 0);
	cr_assert_eq(shared->error, EMFILE, "%d files, then %s", shared->count, strerror(shared->error));
	child_kill(pid);
	/* They are given back with their files. */
	cr_assert_eq(child_run(removes_again, NULL), 0);
}

/* ---- reports, which are memory of the daemon's until they are read ---- */

#define REPORTERS 8
#define REPORTS 100 /* of each */

static struct raw reporter[REPORTERS];

static int take_reports(void *arg)
{
	struct gaia_ioc_report io = { .what = GAIA_REPORT_STATUS };
	struct gaia_msg msg;
	struct stat st;
	int fd, got;

	(void)arg;
	child_become(NOBODY, NOBODY);
	hostile_raise_limit();
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY);
	for (int k = 0; k < REPORTERS; k++) {
		CHILD_CHECK(raw_connect(fd, &reporter[k]));
		io.key = reporter[k].key;
		for (int n = 0; n < REPORTS; n++)
			CHILD_CHECK(!ioctl(fd, GAIA_IOC_REPORT, &io) || errno == EAGAIN);
	}
	gate_open(ready);
	while (!shared->stop)
		usleep(1000);
	/* What was kept all the time. */
	for (int k = 0; k < REPORTERS; k++)
		while (recv(reporter[k].sock, &msg, sizeof(msg), MSG_PEEK | MSG_DONTWAIT) > 0) {
			CHILD_CHECK(raw_receive(reporter[k].sock, &msg, &got) && got >= 0);
			CHILD_CHECK(!fstat(got, &st));
			shared->count++;
			shared->more += st.st_size > 0;
		}
	return 0;
}

EACH_WAY_BARE(hoard, reports)
{
	pid_t pid;

	hostile_start(NULL);
	pid = hostile_attack(take_reports);
	others_are_served();
	shared->stop = true;
	cr_assert_eq(child_wait(pid), 0);
	cr_assert_geq(shared->count, REPORTS);
	cr_assert_leq(shared->more, 16, "%d reports of %d lay in memory", shared->more, shared->count);
}
