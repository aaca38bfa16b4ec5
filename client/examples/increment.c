/*
 * increment.c - the smallest useful program: a device adds one to every byte of a file.
 *
 *	cc increment.c -o increment $(pkg-config --cflags --libs gaiaclient)
 */
#include <errno.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Stands for a kernel on the device, launched and waited for. */
static void increment(unsigned char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i]++;
}

int main(int argc, char **argv)
{
	int fd = argc == 2 ? open(argv[1], O_RDWR) : -1;
	struct stat st;
	unsigned char *p;

	if (argc != 2) {
		fprintf(stderr, "usage: increment FILE (not empty, on a gaiafs mount)\n");
		return 2;
	}
	if (fd < 0 || fstat(fd, &st) < 0) {
		perror(argv[1]);
		return 1;
	}
	if (st.st_size == 0)
		return 0;
	p = gaia_mmap(st.st_size, PROT_READ | PROT_WRITE, fd, 0, 0);
	if (p == MAP_FAILED) {
		fprintf(stderr, "increment: cannot map %s on the device: %s\n", argv[1],
			errno == ENOTTY ? "it is not on a gaiafs mount" : strerror(errno));
		return 1;
	}
	if (gaia_acquire(p, st.st_size, PROT_READ | PROT_WRITE) < 0) {
		perror("gaia_acquire");
		return 1;
	}
	increment(p, st.st_size);
	if (gaia_release(p, st.st_size) < 0) { /* now everybody sees it */
		perror("gaia_release");
		return 1;
	}
	return gaia_munmap(p, st.st_size) < 0;
}
