/*
 * report.c - see report.h.
 */
#include "report.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"

#define REPORT_TRIES 100

/* All of a descriptor's text, NUL-terminated, to be freed by the caller; or NULL. */
static char *read_text(int fd)
{
	struct stat st;
	char *text;
	off_t at = 0;

	if (fstat(fd, &st))
		return NULL;
	text = malloc(st.st_size + 1);
	while (text && at < st.st_size) {
		ssize_t n = pread(fd, text + at, st.st_size - at, at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			free(text);
			return NULL;
		}
		at += n;
	}
	if (text)
		text[at] = '\0';
	return text;
}

int fetch_report_fd(int fd, unsigned what)
{
	struct gaia_ioc_report io = { .what = what };
	int fds[GAIA_MSG_CHUNKS];
	struct gaia_msg msg;
	uint64_t seq;
	unsigned n;
	int sock, err;

	err = wire_join(&sock, fd, &io.key, &seq, NULL);
	if (err)
		return err;
	err = wire_ioctl(fd, GAIA_IOC_REPORT, &io);
	/*
	 * EAGAIN: the socket has room, since only the report comes through it, but the daemon may have too many
	 * descriptors in flight.
	 */
	for (int i = 0; i < REPORT_TRIES && err == -EAGAIN; i++) {
		nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
		err = wire_ioctl(fd, GAIA_IOC_REPORT, &io);
	}
	if (!err)
		err = wire_failed(wire_receive(sock, true, &msg, fds, &n));
	close(sock);
	if (err)
		return err;
	if (msg.kind == GAIA_MSG_REPORT)
		return fds[0];
	while (n)
		close(fds[--n]);
	return -EPROTO;
}

int fetch_report(int fd, unsigned what, char **text)
{
	int err, report = fetch_report_fd(fd, what);

	if (report < 0)
		return report;
	*text = read_text(report);
	close(report);
	err = !*text ? -EIO : !**text ? -EAGAIN : 0;
	if (err)
		free(*text);
	return err;
}
