/*
 * two_writers.c - a CPU process and a device write the same pages at the same time.
 *
 *	two_writers IN OUT [DEVICE]
 *
 * OUT becomes IN in capital letters. The device writes the first half of every page (4096 bytes)
 * of OUT, the CPU the second; neither waits for the other. The CPU process
 * maps both files as any program does and knows nothing of gaiafs. Both halves of every page
 * arrive: writes of different bytes are merged.
 */
#include <errno.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define HALF (PAGE / 2)

/* Bytes [first, first + HALF) of every page of [0, n), in capitals. */
static void capitals(unsigned char *out, const unsigned char *in, size_t n, size_t first)
{
	for (size_t page = 0; page < n; page += PAGE) {
		size_t end = page + first + HALF < n ? page + first + HALF : n;

		for (size_t i = page + first; i < end; i++)
			out[i] = in[i] >= 'a' && in[i] <= 'z' ? in[i] - 'a' + 'A' : in[i];
	}
}

static int fail(const char *what)
{
	fprintf(stderr, "two_writers: %s: %s\n", what, strerror(errno));
	return 1;
}

static int cannot_map(const char *name)
{
	fprintf(stderr, "two_writers: cannot map %s on the device: %s\n", name,
		errno == ENOTTY ? "it is not on a gaiafs mount" : strerror(errno));
	return 1;
}

static int cpu_half(int in_fd, int out_fd, size_t n)
{
	unsigned char *in = mmap(NULL, n, PROT_READ, MAP_SHARED, in_fd, 0);
	unsigned char *out = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, out_fd, 0);

	if (in == MAP_FAILED || out == MAP_FAILED)
		return fail("mmap");
	capitals(out, in, n, HALF);
	munmap(out, n);
	munmap(in, n);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned char *in, *out;
	int in_fd, out_fd, device, status;
	struct stat st;
	size_t n;
	pid_t cpu;

	if (argc < 3 || argc > 4) {
		fprintf(stderr, "usage: two_writers IN OUT [DEVICE]\n");
		return 2;
	}
	device = argc == 4 ? atoi(argv[3]) : 0;
	in_fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (in_fd < 0 || fstat(in_fd, &st) < 0)
		return fail(argv[1]);
	n = st.st_size;
	out_fd = open(argv[2], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (out_fd < 0 || ftruncate(out_fd, n) < 0)
		return fail(argv[2]);
	if (n == 0)
		return 0;

	in = gaia_mmap(n, PROT_READ, in_fd, 0, device);
	if (in == MAP_FAILED)
		return cannot_map(argv[1]);
	out = gaia_mmap(n, PROT_READ | PROT_WRITE, out_fd, 0, device);
	if (out == MAP_FAILED)
		return cannot_map(argv[2]);
	if (gaia_acquire(in, n, PROT_READ) < 0 || gaia_acquire(out, n, PROT_READ | PROT_WRITE) < 0)
		return fail("gaia_acquire");

	/* The device holds all of OUT for writing; now the CPU writes it, too. */
	cpu = fork();
	if (cpu < 0)
		return fail("fork");
	if (cpu == 0)
		_exit(cpu_half(in_fd, out_fd, n));

	capitals(out, in, n, 0);	/* the kernel on the device */
	if (gaia_release(out, n) < 0 || gaia_release(in, n) < 0)
		return fail("gaia_release");
	if (gaia_munmap(out, n) < 0 || gaia_munmap(in, n) < 0)
		return fail("gaia_munmap");
	if (waitpid(cpu, &status, 0) < 0)
		return fail("waitpid");
	return status != 0;
}
