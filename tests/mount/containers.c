/*
 * containers.c - programs in network namespaces of their own (daemon/control/netns.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "gaia/protocol.h"
#include "ways.h"

#define PAGE 4096
#define SIZE (4 * PAGE)
#define RW (PROT_READ | PROT_WRITE)
#define NOBODY 65534

static void start(const char *faults)
{
	static const char *const args[] = { "--device", "sim:8M,strict=off", "-o", "allow_other", NULL };
	static char bytes[SIZE];
	int fd;

	if (geteuid() != 0)
		WAY_SKIP("a network namespace needs root");
	if (faults)
		setenv("GAIAFS_FAULTS", faults, 1);
	way_start(args);
	unsetenv("GAIAFS_FAULTS");
	memset(bytes, 'x', SIZE);
	fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	cr_assert_eq(write(fd, bytes, SIZE), SIZE);
	cr_assert_eq(fchmod(fd, 0666), 0);
	close(fd);
}

static int open_file(void)
{
	return openat(both_root[ON_MOUNT], "f", O_RDWR | O_CLOEXEC);
}

/* How many sockets of the daemon's this process could connect to by their names. */
static unsigned listeners(void)
{
	FILE *f = fopen("/proc/self/net/unix", "re");
	unsigned n = 0, flags;
	char line[256];

	/* 10000: it listens. Connections have the name, too. */
	while (f && fgets(line, sizeof(line), f))
		n += strstr(line, "@gaiafs/") && sscanf(line, "%*s %*s %*s %x", &flags) == 1 && flags & 0x10000;
	if (f)
		fclose(f);
	return n;
}

/* ---- in a namespace of its own ---- */

static int work_in_a_namespace(void *arg)
{
	unsigned char *p;
	int fd;

	(void)arg;
	CHILD_CHECK(unshare(CLONE_NEWNET) == 0);
	CHILD_CHECK(listeners() == 0);
	fd = open_file();
	p = gaia_mmap(SIZE, RW, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	/* It has gone with its ticket. */
	CHILD_CHECK(listeners() == 0);
	CHILD_CHECK(gaia_acquire(p, SIZE, RW) == 0 && p[0] == 'x');
	p[PAGE] = 'd';
	CHILD_CHECK(gaia_release(p, SIZE) == 0);
	CHILD_CHECK(gaia_munmap(p, SIZE) == 0);
	close(fd);
	return 0;
}

EACH_WAY_BARE(containers, share_files_with_devices)
{
	char byte = 0;
	int fd;

	start(NULL);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(child_run(work_in_a_namespace, NULL), 0);
	fd = open_file();
	cr_assert_eq(pread(fd, &byte, 1, PAGE), 1);
	cr_assert_eq(byte, 'd');
	close(fd);
}

static int user_in_a_namespace(void *arg)
{
	unsigned char *p;
	int fd;

	(void)arg;
	CHILD_CHECK(unshare(CLONE_NEWNET) == 0);
	child_become(NOBODY, NOBODY);
	fd = open_file();
	p = gaia_mmap(SIZE, PROT_READ, fd, 0, 0);
	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(gaia_acquire(p, SIZE, PROT_READ) == 0 && p[0] == 'x');
	CHILD_CHECK(gaia_munmap(p, SIZE) == 0);
	close(fd);
	return 0;
}

EACH_WAY_BARE(containers, of_users)
{
	start(NULL);
	cr_assert_eq(child_run(user_in_a_namespace, NULL), 0);
}

/* ---- who else is there ---- */

static int ask(int fd, struct gaia_ioc_connect *io)
{
	*io = (struct gaia_ioc_connect){ .version = GAIA_PROTOCOL_VERSION, .minor = GAIA_PROTOCOL_MINOR };
	return ioctl(fd, GAIA_IOC_CONNECT, io);
}

/* Show the ticket. Whether the daemon welcomes us. */
static bool is_welcome(const struct gaia_ioc_connect *io)
{
	struct gaia_msg hello = { .kind = GAIA_MSG_HELLO, .version = GAIA_PROTOCOL_VERSION }, msg = { 0 };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	size_t name = strnlen(io->socket, sizeof(io->socket));
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	bool is;

	memcpy(addr.sun_path + 1, io->socket, name);
	memcpy(hello.ticket, io->ticket, sizeof(hello.ticket));
	is = connect(sock, (struct sockaddr *)&addr, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + name)) == 0 &&
	     send(sock, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello) && recv(sock, &msg, sizeof(msg), 0) == sizeof(msg) &&
	     msg.kind == GAIA_MSG_WELCOME;
	close(sock);
	return is;
}

static int thief(void *arg)
{
	child_become(NOBODY, NOBODY);
	return is_welcome(arg) ? 1 : 0;
}

static int has_its_ticket_stolen(void *arg)
{
	struct gaia_ioc_connect io, next;
	int fd = open_file();

	(void)arg;
	CHILD_CHECK(unshare(CLONE_NEWNET) == 0);
	CHILD_CHECK(ask(fd, &io) == 0 && listeners() == 1);
	CHILD_CHECK(child_run(thief, &io) == 0);
	/* Nor is it spent. */
	CHILD_CHECK(is_welcome(&io));
	CHILD_CHECK(!is_welcome(&io));
	CHILD_CHECK(ask(fd, &next) == 0 && strcmp(io.socket, next.socket) != 0);
	CHILD_CHECK(is_welcome(&next));
	return 0;
}

EACH_WAY_BARE(containers, admit_nobody_by_the_ticket_of_another)
{
	start(NULL);
	cr_assert_eq(child_run(has_its_ticket_stolen, NULL), 0);
}

/* More tickets than a user may have at a time: the oldest go, with their sockets. */
static int asks_again_and_again(void *arg)
{
	struct gaia_ioc_connect io;
	int fd = open_file();

	(void)arg;
	CHILD_CHECK(unshare(CLONE_NEWNET) == 0);
	child_become(NOBODY, NOBODY);
	for (unsigned i = 0; i < 100; i++)
		CHILD_CHECK(ask(fd, &io) == 0);
	CHILD_CHECK(listeners() > 0 && listeners() <= 16);
	CHILD_CHECK(is_welcome(&io));
	return 0;
}

EACH_WAY_BARE(containers, have_so_many_sockets_and_no_more)
{
	start(NULL);
	cr_assert_eq(child_run(asks_again_and_again, NULL), 0);
	/* Others are none the worse for it. */
	cr_assert_eq(child_run(work_in_a_namespace, NULL), 0);
}

/* ---- where no socket can be made ---- */

static int is_told(void *arg)
{
	int fd = open_file();

	(void)arg;
	CHILD_CHECK(unshare(CLONE_NEWNET) == 0);
	CHILD_CHECK(gaia_mmap(SIZE, RW, fd, 0, 0) == MAP_FAILED && errno == EHOSTUNREACH);
	CHILD_CHECK(strstr(gaia_last_error_text(), "network namespace"));
	return 0;
}

EACH_WAY_BARE(containers, are_told_if_they_cannot_be_reached)
{
	unsigned char *p;
	int fd;

	start("netns.listen=errno:EPERM");
	cr_assert_eq(child_run(is_told, NULL), 0);
	fd = open_file();
	p = gaia_mmap(SIZE, RW, fd, 0, 0);
	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	cr_assert_eq(gaia_munmap(p, SIZE), 0);
	close(fd);
}
