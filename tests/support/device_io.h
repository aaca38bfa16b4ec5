/*
 * device_io.h - what the suites about devices share: operations in a line, and
 * the client's end of device memory.
 */
#ifndef GAIA_TESTS_DEVICE_IO_H
#define GAIA_TESTS_DEVICE_IO_H

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/util.h"
#include "device/device.h"

/* xorshift64: the same numbers in every run. */
static inline uint64_t next_random(uint64_t *seed)
{
	*seed ^= *seed << 13;
	*seed ^= *seed >> 7;
	*seed ^= *seed << 17;
	return *seed;
}

static inline uint32_t random_below(uint64_t *seed, uint32_t n)
{
	return (uint32_t)(next_random(seed) % n);
}

static inline void fill_random(void *buf, size_t bytes, uint64_t *seed)
{
	uint64_t *words = buf;

	for (size_t i = 0; i < bytes / sizeof(*words); i++)
		words[i] = next_random(seed);
}

/* Zeroed; free() it. */
static inline void *host_pages(size_t n)
{
	return memset(aligned_alloc(GAIA_PAGE, n * GAIA_PAGE), 0, n * GAIA_PAGE);
}

static inline struct devmem *must_alloc(struct device *dev)
{
	struct devmem *mem = NULL;

	cr_assert_eq(dev->ops->alloc(dev, &mem), 0);
	return mem;
}

static inline void must_alloc_extent(struct device *dev, struct devmem *mem[GAIA_EXTENT_CHUNKS])
{
	cr_assert_eq(dev->ops->alloc_extent(dev, mem), 0);
}

static inline int run_one(struct device *dev, enum dev_kind kind, struct dev_run run)
{
	struct dev_op op = { .kind = kind, .runs = &run, .n = 1 };

	return device_run(dev, &op);
}

static inline int copy_in(struct devmem *mem, uint32_t page, uint32_t n, const void *host)
{
	return run_one(mem->dev, DEV_COPY_IN,
		       (struct dev_run){ mem, .page = page, .npages = n, .host = (void *)host });
}

static inline int copy_out(struct devmem *mem, uint32_t page, uint32_t n, void *host)
{
	return run_one(mem->dev, DEV_COPY_OUT,
		       (struct dev_run){ mem, .page = page, .npages = n, .host = host });
}

static inline int copy_within(struct devmem *to, struct devmem *from, uint32_t page, uint32_t n)
{
	return run_one(to->dev, DEV_COPY_WITHIN,
		       (struct dev_run){ to, .other = from, .page = page, .npages = n });
}

static inline int arm(struct devmem *mem, uint32_t page, uint32_t n)
{
	return run_one(mem->dev, DEV_ARM, (struct dev_run){ mem, .page = page, .npages = n });
}

/* How many pages changed. */
static inline unsigned find_changed(struct devmem *mem, uint32_t page, uint32_t n)
{
	struct dev_run run = { mem, .page = page, .npages = n };
	uint64_t bits[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct dev_op op = { .kind = DEV_FIND_CHANGED, .runs = &run, .n = 1, .changed = bits };
	unsigned changed = 0;

	cr_assert_eq(device_run(mem->dev, &op), 0);
	for (unsigned i = 0; i < ARRAY_LEN(bits); i++)
		changed += (unsigned)__builtin_popcountll(bits[i]);
	return changed;
}

/* Whether the suites must use GPU 0 instead of the fake driver. */
static inline bool on_real_gpu(void)
{
	return getenv("GAIAFS_TEST_CUDA") != NULL;
}

/* For tests whose clients are CPU code. */
static inline void skip_on_gpu(const struct device *dev)
{
	if (on_real_gpu() && !strcmp(dev->kind, "cuda"))
		cr_skip("CPU code cannot touch a GPU's memory; gpu-random has clients of other means");
}

static inline size_t exported_bytes(const struct devmem *mem)
{
	return mem->joined ? GAIA_EXTENT : GAIA_CHUNK;
}

/* The chunk, or its extent, as a client sees it: a mapping of the exported descriptor. */
static inline unsigned char *client_map(struct devmem *mem)
{
	int fd;
	void *p;

	skip_on_gpu(mem->dev);
	fd = mem->dev->ops->export_fd(mem->dev, mem, true);
	cr_assert_geq(fd, 0);
	p = mmap(NULL, exported_bytes(mem), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	cr_assert_neq(p, MAP_FAILED);
	close(fd);
	return p;
}

static inline void client_unmap(unsigned char *p)
{
	munmap(p, GAIA_CHUNK);
}

static inline void client_unmap_extent(unsigned char *p)
{
	munmap(p, GAIA_EXTENT);
}

#endif
