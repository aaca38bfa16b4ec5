/*
 * lines.c - how many lines a file has, counted on a device, window by window.
 *
 *	lines FILE [DEVICE]
 *
 * The file may be larger than the device's memory. While the device works on one window, the next is being acquired.
 */
#include <errno.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WINDOW ((size_t)1 << 20)

/* Stands for a kernel on the device, launched and waited for. */
static unsigned long count(const unsigned char *p, size_t n)
{
	unsigned long lines = 0;

	for (size_t i = 0; i < n; i++)
		lines += p[i] == '\n';
	return lines;
}

static size_t min(size_t a, size_t b)
{
	return a < b ? a : b;
}

int main(int argc, char **argv)
{
	unsigned long lines = 0;
	unsigned char *p;
	struct stat st;
	size_t size, n;
	int fd, next;

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: lines FILE [DEVICE]\n");
		return 2;
	}
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0) {
		fprintf(stderr, "lines: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	size = (size_t)st.st_size;
	if (size == 0) {
		puts("0");
		return 0;
	}
	p = gaia_mmap(size, PROT_READ, fd, 0, argc == 3 ? atoi(argv[2]) : 0);
	if (p == MAP_FAILED) {
		fprintf(stderr, "lines: cannot map %s on the device: %s\n", argv[1],
			errno == ENOTTY ? "it is not on a gaiafs mount" : strerror(errno));
		return 1;
	}
	close(fd);

	next = gaia_acquire_start(p, min(WINDOW, size), PROT_READ);
	for (size_t at = 0; at < size; at += n) {
		n = min(WINDOW, size - at);
		if (next < 0 || gaia_wait(next) < 0) {
			perror("lines: acquiring");
			return 1;
		}
		if (at + n < size)
			next = gaia_acquire_start(p + at + n, min(WINDOW, size - at - n), PROT_READ);
		lines += count(p + at, n);
		if (gaia_release(p + at, n) < 0) {
			perror("lines: gaia_release");
			return 1;
		}
	}
	printf("%lu\n", lines);
	if (gaia_munmap(p, size) < 0) {
		perror("lines: gaia_munmap");
		return 1;
	}
	return 0;
}
