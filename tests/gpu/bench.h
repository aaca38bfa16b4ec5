/*
 * bench.h - what the files of gpu-bench share: the operations of a device (daemon/device/device.h) in this
 * process, without a mount.
 */
#ifndef GAIA_TESTS_GPU_BENCH_H
#define GAIA_TESTS_GPU_BENCH_H

#include "base/util.h"
#include "device/device.h"
#include "gpu.h"

#define BENCH_CHUNKS 64u

/* --device sim: no driver is used, and what needs one is not measured. */
extern bool on_sim;

/* ---- bench.c ---- */

/*
 * What every section begins with: a driver, the ceilings, unless on_sim (then they are 0). After
 * other_start().
 */
void bench_start(void);
extern struct ceilings ceilings;

/* A device with so many bytes. */
struct device *bench_device(uint64_t capacity);

/*
 * Chunks, and as much host memory in slabs that the device was told of. Aligned as a whole: host memory
 * of chunk i begins at i * GAIA_CHUNK.
 */
struct scene {
	struct device *dev;
	unsigned n;
	struct devmem *mem[BENCH_CHUNKS], *other[BENCH_CHUNKS];
	char *host, *base;
};
void scene_begin(struct scene *s, struct device *dev, unsigned chunks);
void scene_end(struct scene *s);

/* Slabs as the page cache makes them; announced. @settled: and registered, where that can be. */
char *new_slabs(struct device *dev, unsigned n, bool settled);
void settle_slabs(struct device *dev, char *slabs, unsigned n);
void free_slabs(struct device *dev, char *slabs, unsigned n);

/* Runs of an operation on @pages pages of the scene; every other page is one of its own if @scattered. */
unsigned make_runs(const struct scene *s, enum dev_kind kind, unsigned pages, bool scattered,
		   struct dev_run *runs);

/* Runs it and waits; dies where it fails. */
void run_op(struct device *dev, struct dev_op *op);

/* GB/s that limit operations of that kind; 0: not known. */
double ceiling_of(enum dev_kind kind);
/* Bytes that an operation on so many pages moves: over the bus, or from the GPU's memory. */
double bytes_of(enum dev_kind kind, unsigned pages);
/*
 * row_rate(); "staged" where memory could not be registered; "in_l2" where so few bytes may be in the GPU's
 * cache, which the ceilings know nothing of.
 */
void put_rate(double bytes, double us, double ceiling);
/*
 * What crosses the bus (pulls, and gathering and scattering by copies out and in) has the bus as its ceiling, which is the
 * lower one: beside it, the share of the speed at which a kernel only reads the GPU's memory.
 */
void put_memory_share(enum dev_kind kind, unsigned pages, double us);
const char *kind_name(enum dev_kind kind);

/* detect.c */
void section_detect(void);

/* pieces.c */
void section_pieces(void);
void section_both_ways(void);
void section_memory(void);
void section_slabs(void);

#endif
