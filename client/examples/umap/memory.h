/*
 * memory.h - what the examples here share: a file as memory, by gaia/umap.h or by mmap(2), and their options.
 *
 * Compiled with -DUMAP_H it is by umap/umap.h instead of gaia/umap.h: LLNL's UMap, or what gaiafs has in its place.
 */
#ifndef EXAMPLE_MEMORY_H
#define EXAMPLE_MEMORY_H

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef UMAP_H
#include <umap/umap.h>
#define BY "umap.h"
#else
#include <gaia/umap.h>
#define BY "umap"
#endif

struct options {
	bool use_mmap, by_threads, direct;
	uint64_t page_size, budget; /* bytes; 0: the default */
	unsigned threads;
	uint64_t make; /* make the file first: how large, in the program's own unit. 0: it is there */
	const char *path;
#ifndef UMAP_H
	const struct gaia_umap_policy *policy; /* of the program; NULL: the library's */
#endif
};

#define OPTIONS_TEXT                                                                                                                       \
	"  --mmap             by mmap(2), to compare; without, by user-space paging\n"                                                    \
	"  --by-threads       faults are served by threads of the library's, not by whoever touches\n"                                    \
	"  --direct           past the kernel's page cache (O_DIRECT); not with --mmap\n"                                                 \
	"  --page-size BYTES  4K to 2M (64K)\n"                                                                                           \
	"  --budget BYTES     of memory for pages of the file (the library's default)\n"                                                  \
	"  --threads N        (2)\n"

/* "64K", "1M", "2G" or bytes. */
static inline uint64_t parse_size(const char *text)
{
	const char *units = "KMG", *unit;
	char *end;
	uint64_t size = strtoull(text, &end, 10);

	if (*end && (unit = strchr(units, *end)) && !end[1])
		return size << (10 * (unit - units + 1));
	if (end == text || *end)
		errx(2, "%s: not a size", text);
	return size;
}

static inline struct options parse_options(int argc, char **argv, const char *usage)
{
	static const struct option longs[] = {
		{"mmap", no_argument, NULL, 'm'},	   {"page-size", required_argument, NULL, 'p'},
		{"budget", required_argument, NULL, 'b'},  {"threads", required_argument, NULL, 't'},
		{"make", required_argument, NULL, 'c'},	   {"by-threads", no_argument, NULL, 'y'},
		{"direct", no_argument, NULL, 'd'},	   {"help", no_argument, NULL, 'h'},
		{NULL, 0, NULL, 0},
	};
	struct options options = {.page_size = 64 << 10, .threads = 2};

	for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
		switch (c) {
		case 'm': options.use_mmap = true; break;
		case 'y': options.by_threads = true; break;
		case 'd': options.direct = true; break;
		case 'p': options.page_size = parse_size(optarg); break;
		case 'b': options.budget = parse_size(optarg); break;
		case 't': options.threads = (unsigned)parse_size(optarg); break;
		case 'c': options.make = parse_size(optarg); break;
		case 'h': fputs(usage, stdout); exit(0);
		default: fputs(usage, stderr); exit(2);
		}
	}
	if (argc - optind != 1 || !options.threads || !options.page_size) {
		fputs(usage, stderr);
		exit(2);
	}
	options.path = argv[optind];
	return options;
}

static inline double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* A bijection of 64 bits that looks random. */
static inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* The first length bytes of the file as memory; ends the program where that fails. */
static inline void *map_memory(const struct options *options, int fd, size_t length, int prot)
{
	void *memory;

	/* It stays open: others than gaiafs use it itself. */
	if (options->direct && !options->use_mmap)
		fd = open(options->path, (prot & PROT_WRITE ? O_RDWR : O_RDONLY) | O_DIRECT);
	if (fd < 0)
		err(1, "%s", options->path);
	if (options->use_mmap) {
		memory = mmap(NULL, length, prot, MAP_SHARED, fd, 0);
	} else {
#ifdef UMAP_H
		char text[32];

		/* UMap's settings are the environment's, read by its first call. */
		snprintf(text, sizeof(text), "%" PRIu64, options->page_size);
		setenv("UMAP_PAGESIZE", text, 1);
		snprintf(text, sizeof(text), "%" PRIu64, options->budget / options->page_size);
		if (options->budget)
			setenv("UMAP_BUFSIZE", text, 1);
		/* Whole pages, for UMap. */
		length = (length + options->page_size - 1) / options->page_size * options->page_size;
		memory = umap(NULL, length, prot, UMAP_PRIVATE, fd, 0);
#else
		struct gaia_umap_segment segment = {.fd = fd, .length = length};
		struct gaia_umap_config config = {
			.size = sizeof(config),
			.prot = prot,
			/* These programs give no memory of theirs to system calls. */
			.flags = options->by_threads ? 0 : GAIA_UMAP_BY_SIGNAL,
			.page_size = options->page_size,
			.budget = options->budget,
			.policy = options->policy,
			.segments = &segment,
			.n_segments = 1,
		};

		memory = gaia_umap(&config);
#endif
	}
	if (memory == MAP_FAILED)
		err(1, "%s: cannot be mapped", options->path);
	return memory;
}

static inline void unmap_memory(const struct options *options, void *memory, size_t length)
{
	int result;

	if (options->use_mmap) {
		result = munmap(memory, length);
	} else {
#ifdef UMAP_H
		length = (length + options->page_size - 1) / options->page_size * options->page_size;
		result = uunmap(memory, length);
#else
		result = gaia_uunmap(memory, length);
#endif
	}
	if (result)
		err(1, "%s: cannot be written", options->path);
}

static inline const char *how(const struct options *options)
{
	return options->use_mmap ? "mmap" : BY;
}

#endif
