/*
 * common.h - what the applications share besides data.h and device.h: numbers, files, time and progress. Good C, and good C++ for nvcc.
 *
 * Exit codes of the applications: 0 the result was checked and is right, 1 it is wrong or something failed, 2 usage, 77 there is
 * no such device, or the kernel cannot do what a mode needs.
 */
#ifndef EXAMPLE_COMMON_H
#define EXAMPLE_COMMON_H

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u
#define RW (PROT_READ | PROT_WRITE)
#define EXIT_SKIPPED 77

#ifdef __CUDACC__
#define BOTH __host__ __device__ /* of a function that the CPU and kernels call */
#else
#define BOTH
#endif

/* A bijection of 64 bits that looks random. */
BOTH static inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static inline size_t round_up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

static inline size_t smaller(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* "64K", "1M", "2G" or a plain number. */
static inline uint64_t parse_size(const char *text)
{
	const char *units = "KMG", *unit;
	char *end;
	uint64_t size = strtoull(text, &end, 10);

	if (end != text && *end && (unit = strchr(units, *end)) && !end[1])
		return size << (10 * (unit - units + 1));
	if (end == text || *end || *text == '-')
		errx(2, "%s: not a number", text);
	return size;
}

static inline double parse_percent(const char *text)
{
	char *end;
	double percent = strtod(text, &end);

	if (end == text || *end || !(percent >= 0 && percent <= 100))
		errx(2, "%s: not from 0 to 100", text);
	return percent;
}

static inline uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void sleep_ms(unsigned ms)
{
	struct timespec pause = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };

	nanosleep(&pause, NULL);
}

/* Memory of the program's; ends it where there is none. */
static inline void *own_memory(size_t n)
{
	void *p = calloc(1, n ? n : 1);

	if (!p)
		err(1, "no memory for %zu bytes", n);
	return p;
}

static inline int open_file(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0666);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

static inline size_t file_size(int fd, const char *path)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		err(1, "%s", path);
	return (size_t)st.st_size;
}

static inline void read_all(int fd, void *buf, size_t n, size_t off)
{
	char *p = (char *)buf;

	while (n) {
		ssize_t got = pread(fd, p, n, (off_t)off);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			err(1, "read");
		if (got == 0)
			errx(1, "the file ends at byte %zu", off);
		p += got;
		off += (size_t)got;
		n -= (size_t)got;
	}
}

static inline void write_all(int fd, const void *buf, size_t n, size_t off)
{
	const char *p = (const char *)buf;

	while (n) {
		ssize_t put = pwrite(fd, p, n, (off_t)off);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			err(1, "write");
		p += put;
		off += (size_t)put;
		n -= (size_t)put;
	}
}

/* A line on the terminal that is written over, at most ten times a second; nothing where standard error is no terminal. */
__attribute__((format(printf, 1, 2))) static inline void progress(const char *format, ...)
{
	static uint64_t shown;
	uint64_t now = now_ns();
	va_list args;

	if (!isatty(STDERR_FILENO) || now - shown < 100000000)
		return;
	shown = now;
	fprintf(stderr, "\r\033[K%s: ", program_invocation_short_name);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fflush(stderr);
}

static inline void end_progress(void)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[K");
}

/* For people; the buffer is one of a few that are used in turn. */
static inline const char *size_text(uint64_t bytes)
{
	static char text[8][32];
	static unsigned turn;
	static const char *const units[] = { "bytes", "KiB", "MiB", "GiB" };
	char *out = text[turn++ % 8];
	double size = (double)bytes;
	unsigned unit = 0;

	while (size >= 1024 && unit < 3) {
		size /= 1024;
		unit++;
	}
	snprintf(out, sizeof(text[0]), unit && size < 100 ? "%.1f %s" : "%.0f %s", size, units[unit]);
	return out;
}

#endif
