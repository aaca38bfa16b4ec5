/*
 * histogram.c - how often each byte value occurs in a file, counted on a device.
 *
 *	histogram FILE [DEVICE]
 *
 * Counts again and again while other programs change the file, until standard input
 * ends; then counts once more, and prints that count: 256 lines, value and number. Every
 * acquire brings only the pages that changed since the one before.
 *
 *	histogram FILE < /dev/null	counts once
 */
#include <errno.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Stands for a kernel on the device, launched and waited for. */
static void histogram(const unsigned char *p, size_t n, uint64_t count[256])
{
	memset(count, 0, 256 * sizeof(count[0]));
	for (size_t i = 0; i < n; i++)
		count[p[i]]++;
}

/* Standard input has ended; never waits. */
static int told_to_stop(void)
{
	struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
	char buf[256];

	return poll(&in, 1, 0) > 0 && read(STDIN_FILENO, buf, sizeof(buf)) <= 0;
}

int main(int argc, char **argv)
{
	uint64_t count[256];
	unsigned long rounds = 0;
	unsigned char *p;
	struct stat st;
	int fd, last;

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: histogram FILE [DEVICE]\n");
		return 2;
	}
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0) {
		fprintf(stderr, "histogram: %s: %s\n", argv[1], strerror(errno));
		return 1;
	}
	if (st.st_size == 0) {
		fprintf(stderr, "histogram: %s is empty\n", argv[1]);
		return 1;
	}
	p = gaia_mmap(st.st_size, PROT_READ, fd, 0, argc == 3 ? atoi(argv[2]) : 0);
	if (p == MAP_FAILED) {
		fprintf(stderr, "histogram: cannot map %s on the device: %s\n", argv[1],
			errno == ENOTTY ? "it is not on a gaiafs mount" : strerror(errno));
		return 1;
	}
	close(fd);

	do {
		last = told_to_stop();
		if (gaia_acquire(p, st.st_size, PROT_READ) < 0) {
			perror("histogram: gaia_acquire");
			return 1;
		}
		histogram(p, st.st_size, count);
		if (gaia_release(p, st.st_size) < 0) {
			perror("histogram: gaia_release");
			return 1;
		}
		rounds++;
	} while (!last);

	if (gaia_munmap(p, st.st_size) < 0) {
		perror("histogram: gaia_munmap");
		return 1;
	}
	for (int i = 0; i < 256; i++)
		printf("%d %llu\n", i, (unsigned long long)count[i]);
	fprintf(stderr, "counted %lu times\n", rounds);
	return fflush(stdout) ? 1 : 0;
}
