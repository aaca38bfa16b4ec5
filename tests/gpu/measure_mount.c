/*
 * measure_mount.c - gaiafs on a GPU, as fractions of what the machine can do.
 *
 * The GPU writes by cuMemsetD8Async() into the mapping; what matters here is not the kernel but the
 * way to and from it.
 */
#include "measure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "gaia/client.h"
#include "gaia/protocol.h"

#define PAGE 4096u
#define RW (PROT_READ | PROT_WRITE)
#define REPS 7u

static size_t length;

static void must(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "measure: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void write_file(int fd, size_t n, char value)
{
	static char part[1 << 20];

	memset(part, value, sizeof(part));
	for (size_t off = 0; off < n; off += sizeof(part))
		must(pwrite(fd, part, sizeof(part), off) == sizeof(part), "write");
}

static double read_file(int fd, size_t n)
{
	static char part[1 << 20];
	double t0 = now_us();

	for (size_t off = 0; off < n; off += sizeof(part))
		must(pread(fd, part, sizeof(part), off) == sizeof(part), "read");
	return now_us() - t0;
}

static void evict(int fd, unsigned from)
{
	struct gaia_ioc_file io = { .from = from };

	must(ioctl(fd, GAIA_IOC_EVICT, &io) == 0, "evict");
}

static double acquire(unsigned char *p, size_t n, int prot)
{
	double t0 = now_us();

	must(gaia_acquire(p, n, prot) == 0, "gaia_acquire");
	return now_us() - t0;
}

static double release(unsigned char *p, size_t n)
{
	double t0 = now_us();

	must(gaia_release(p, n) == 0, "gaia_release");
	return now_us() - t0;
}

static void fill(unsigned char *p, unsigned char value, size_t n)
{
	CU(MemsetD8Async((CUdeviceptr)p, value, n, 0));
	CU(CtxSynchronize());
}

static void put_rate(const char *what, struct samples *us, size_t bytes, double ceiling)
{
	double rate = bytes / median(us) / 1e3;

	put_row(true);
	fprintf(stderr, "  %s:", what);
	printf("\"what\": \"%s\", ", what);
	put_number("bytes", bytes);
	put_samples("us", us);
	put_number("gb_s", rate);
	put_number("of_ceiling", rate / ceiling);
	put_row(false);
}

static void put_time(const char *what, struct samples *us, double of, const char *unit)
{
	put_row(true);
	fprintf(stderr, "  %s:", what);
	printf("\"what\": \"%s\", ", what);
	put_number(unit, of);
	put_samples("us", us);
	put_row(false);
}

/* File to device, hot in home; back again, by a CPU that reads what the device released. */
static void measure_transfers(int fd, unsigned char *p)
{
	struct samples in = { .n = 0 }, found = { .n = 0 }, silent = { .n = 0 }, out = { .n = 0 };

	for (unsigned i = 0; i < REPS; i++) {
		evict(fd, 0);
		read_file(fd, length); /* home has it all */
		sample(&in, acquire(p, length, PROT_READ));
		release(p, length);
		acquire(p, length, RW);
		sample(&silent, release(p, length));
		acquire(p, length, RW);
		fill(p, (unsigned char)i, length);
		sample(&found, release(p, length));
		sample(&out, read_file(fd, length));
	}
	put_rate("file to device, hot in home", &in, length, best_to_device);
	put_rate("release, nothing changed", &silent, length, best_within);
	put_rate("release, all changed", &found, length, best_within);
	put_rate("what was released, read by a CPU", &out, length, best_to_host);
}

/* The second device has what the first one acquires; host memory does not. */
static void measure_between_devices(int fd, unsigned char *p)
{
	unsigned char *other = gaia_mmap(length, PROT_READ, fd, 0, 1);
	struct samples t = { .n = 0 };

	must(other != MAP_FAILED, "gaia_mmap on the second device");
	for (unsigned i = 0; i < REPS; i++) {
		acquire(other, length, PROT_READ);
		release(other, length);
		evict(fd, 0);
		evict(fd, GAIA_FROM_HOME);
		sample(&t, acquire(p, length, PROT_READ));
		release(p, length);
	}
	/* Where GPUs do not reach each other this goes through host memory. */
	put_rate("second device to first, not in host memory", &t, length,
		 best_between > 0 ? best_between : best_to_device);
	must(gaia_munmap(other, length) == 0, "gaia_munmap");
}

static void measure_idle_acquire(unsigned char *p)
{
	for (size_t n = 2u << 20; n <= length; n *= 4) {
		struct samples t = { .n = 0 };

		acquire(p, n, PROT_READ);
		for (unsigned i = 0; i < 21; i++)
			sample(&t, acquire(p, n, PROT_READ));
		release(p, n);
		put_time("acquire, nothing changed", &t, (double)n, "mapped_bytes");
	}
}

static void measure_changed_acquire(int fd, unsigned char *p)
{
	acquire(p, length, PROT_READ);
	for (size_t pages = 1; pages <= length / PAGE; pages *= 8) {
		struct samples t = { .n = 0 };
		size_t apart = length / pages;

		for (unsigned i = 0; i < REPS; i++) {
			for (size_t k = 0; k < pages; k++)
				must(pwrite(fd, &i, sizeof(i), k * apart) == sizeof(i), "write");
			sample(&t, acquire(p, length, PROT_READ));
		}
		put_time("acquire, scattered pages changed", &t, (double)pages, "pages");
	}
	release(p, length);
}

/* CPU reads of a file that is on the device and nowhere else in memory. */
static void measure_reads(int fd)
{
	struct samples t = { .n = 0 };
	char page[PAGE];
	unsigned seed = 1;

	must(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "fadvise");
	evict(fd, GAIA_FROM_HOME);
	for (unsigned i = 0; i < 64; i++) {
		double t0;

		seed = seed * 1664525u + 1013904223u;
		t0 = now_us();
		must(pread(fd, page, PAGE, (off_t)(seed % (length / PAGE)) * PAGE) == PAGE, "read");
		sample(&t, now_us() - t0);
	}
	put_time("random 4 KiB read, cold in host memory", &t, PAGE, "bytes");
}

void measure_mount(const char *dir, size_t bytes)
{
	char path[4096];
	unsigned char *p;
	int fd;

	length = bytes;
	snprintf(path, sizeof(path), "%s/measure.data", dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	must(fd >= 0, path);
	write_file(fd, length, 1);
	p = gaia_mmap(length, RW, fd, 0, 0);
	must(p != MAP_FAILED, "gaia_mmap");
	put_section("gaiafs", true);
	measure_transfers(fd, p);
	if (gaia_devices(fd, NULL, 0) > 1)
		measure_between_devices(fd, p);
	measure_idle_acquire(p);
	measure_changed_acquire(fd, p);
	measure_reads(fd);
	put_section(NULL, false);
	must(gaia_munmap(p, length) == 0, "gaia_munmap");
	close(fd);
	unlink(path);
}
