/*
 * liar_fs.c - a file system that says that it is gaiafs, and reports what takes whoever reads it much memory or time.
 *
 *	liar-fs DIR memory|time
 *
 * returns when it is mounted; umount(8) ends it. It has one client at a time.
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define FUSE_USE_VERSION 314
#include <fuse.h>

#include "gaia/protocol.h"

#define MEMORY (1l << 30)
#define ROWS 30000

static char name[48]; /* of the socket */
static int listener = -1, client = -1, report = -1;

static void *welcome(void *arg)
{
	struct gaia_msg msg;

	(void)arg;
	for (;;) {
		int next = accept(listener, NULL, NULL);

		if (client >= 0)
			close(client);
		client = next;
		if (recv(client, &msg, sizeof(msg), 0) <= 0)
			continue;
		msg = (struct gaia_msg){ .kind = GAIA_MSG_WELCOME, .version = GAIA_PROTOCOL_VERSION };
		(void)!send(client, &msg, sizeof(msg), MSG_NOSIGNAL);
	}
	return NULL;
}

static void *begin(struct fuse_conn_info *conn, struct fuse_config *cfg)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	pthread_t thread;

	(void)conn;
	(void)cfg;
	snprintf(name, sizeof(name), "liar-fs/%d", (int)getpid());
	strcpy(addr.sun_path + 1, name);
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&addr, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)) || listen(listener, 8) ||
	    pthread_create(&thread, NULL, welcome, NULL))
		abort();
	return NULL;
}

static void send_report(void)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_REPORT, .version = GAIA_PROTOCOL_VERSION, .count = 1 };
	struct iovec iov = { .iov_base = &msg, .iov_len = sizeof(msg) };
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&hdr);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &report, sizeof(report));
	(void)!sendmsg(client, &hdr, MSG_NOSIGNAL);
}

static int liar_ioctl(const char *path, unsigned cmd, void *arg, struct fuse_file_info *fi, unsigned flags, void *data)
{
	struct gaia_ioc_connect *io = data;

	(void)path;
	(void)arg;
	(void)fi;
	(void)flags;
	switch (cmd) {
	case GAIA_IOC_CONNECT:
		*io = (struct gaia_ioc_connect){ .version = GAIA_PROTOCOL_VERSION };
		strcpy(io->socket, name);
		return 0;
	case GAIA_IOC_REPORT:
		send_report();
		return 0;
	}
	return -ENOTTY;
}

static int liar_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	(void)fi;
	if (strcmp(path, "/") != 0)
		return -ENOENT;
	st->st_mode = S_IFDIR | 0755;
	st->st_nlink = 2;
	return 0;
}

/* Whoever compares two of them row by row takes the square of their number. */
static void write_rows(int fd)
{
	FILE *out = fdopen(dup(fd), "w");

	fputs("{\"pid\": 1, \"latencies\": [", out);
	for (int k = 0; k < ROWS; k++)
		fprintf(out, "%s{\"of\": \"a\", \"kind\": \"%d\", \"below_ns\": {\"8\": 1}}", k ? ", " : "", k);
	fputs("]}", out);
	fclose(out);
}

int main(int argc, char **argv)
{
	static const struct fuse_operations ops = { .getattr = liar_getattr, .ioctl = liar_ioctl, .init = begin };
	char *args[] = { argv[0], (char *)"-o", (char *)"subtype=gaiafs,fsname=liar", argc == 3 ? argv[1] : (char *)"", NULL };

	report = memfd_create("report", MFD_CLOEXEC);
	if (argc == 3 && !strcmp(argv[2], "time"))
		write_rows(report);
	else if (ftruncate(report, MEMORY))
		return 1;
	return fuse_main(4, args, &ops, NULL);
}
