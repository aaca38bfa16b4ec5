/*
 * worker.c - a client that goes on working, for tests that watch it.
 *
 * worker FILE DEVICE BYTES MS: again and again acquire BYTES of the file (wrapping around at its end), change a byte of each page, hold
 * them for MS milliseconds, release them and have them stored. If the file cannot be opened for writing it is only read. Says "working"
 * after the first time, and ends when standard input does.
 */
#include <errno.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PAGE 4096u

static int failed(const char *what)
{
	fprintf(stderr, "worker: %s: %s\n", what, strerror(errno));
	return 1;
}

/* The bytes of [p, p + n): changed, or only looked at. */
static unsigned work_on(unsigned char *p, size_t n, bool write)
{
	unsigned sum = 0;

	for (size_t i = 0; i < n; i += PAGE) {
		if (write)
			p[i]++;
		sum += p[i];
	}
	return sum;
}

int main(int argc, char **argv)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	bool write = true, told = false;
	size_t bytes, at = 0;
	unsigned char *p;
	struct stat st;
	int fd, prot;

	if (argc != 5)
		return 2;
	bytes = strtoull(argv[3], NULL, 0);
	fd = open(argv[1], O_RDWR);
	if (fd < 0 && errno == EACCES) {
		write = false;
		fd = open(argv[1], O_RDONLY);
	}
	if (fd < 0 || fstat(fd, &st))
		return failed(argv[1]);
	prot = write ? PROT_READ | PROT_WRITE : PROT_READ;
	p = gaia_mmap((size_t)st.st_size, prot, fd, 0, atoi(argv[2]));
	if (p == MAP_FAILED)
		return failed("gaia_mmap");
	do {
		size_t n = (size_t)st.st_size - at < bytes ? (size_t)st.st_size - at : bytes;

		if (gaia_acquire(p + at, n, prot))
			return failed("gaia_acquire");
		(void)work_on(p + at, n, write);
		if (!told) {
			puts("working");
			fflush(stdout);
			told = true;
		}
		if (poll(&input, 1, atoi(argv[4])) > 0)
			break;
		if (gaia_release(p + at, n))
			return failed("gaia_release");
		if (write && gaia_sync(p + at, n))
			return failed("gaia_sync");
		at = at + n < (size_t)st.st_size ? at + n : 0;
	} while (true);
	return gaia_munmap(p, (size_t)st.st_size) ? failed("gaia_munmap") : 0;
}
