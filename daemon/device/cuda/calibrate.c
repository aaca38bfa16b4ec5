/*
 * calibrate.c - finding the length from which on the copy engine copies a run.
 *
 * The engine is faster, but must be started for each copy; a kernel copies any number of runs with one start. So
 * calibration copies many runs of one length to the GPU in both ways, for one length after the other, and the shorter
 * time wins. (This is measured where the engine takes many runs by one call. Where each run takes a call of its own,
 * the length is USUAL at least.)
 */
#include <errno.h>
#include <stdlib.h>

#include "base/log.h"
#include "device/cuda/internal.h"

#define ROUNDS 3u
#define USUAL (28u << 10) /* bytes: the value that others have measured */
#define LONGEST (GAIA_CHUNK / 4)

/* Nanoseconds to copy every other @pages pages of a chunk from @host; 0: it failed. */
static uint64_t time_runs(struct cuda *cuda, struct devmem *mem, char *host, uint32_t pages,
			  bool engine)
{
	struct dev_run runs[GAIA_CHUNK_PAGES / 2];
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = runs };
	uint64_t best = 0;

	for (uint32_t page = 0; page + pages <= GAIA_CHUNK_PAGES; page += 2 * pages)
		runs[op.n++] = (struct dev_run){ .mem = mem, .page = page, .npages = pages,
						 .host = host + (size_t)page * GAIA_PAGE };
	cuda->copy_from = engine ? 1 : UINT32_MAX;
	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t start = now_ns(), took;

		if (device_run(&cuda->base, &op))
			return 0;
		took = MAX(now_ns() - start, 1ull);
		best = best ? MIN(best, took) : took;
	}
	return best;
}

int cuda_calibrate(struct cuda *cuda)
{
	char *host = aligned_alloc(GAIA_CHUNK, GAIA_CHUNK);
	uint32_t pages = 1, from = USUAL;
	struct devmem *mem;
	int err;

	if (!host)
		return -ENOMEM;
	err = cuda_alloc(&cuda->base, &mem);
	if (err == -ENOMEM)
		log_error("device %s: its memory is full", cuda->base.name);
	if (err)
		goto free_host;
	cuda_host_slab(&cuda->base, host, HOST_SLAB_COMES);
	cuda_host_settle(cuda, host);
	for (; pages * GAIA_PAGE <= LONGEST; pages *= 2) {
		uint64_t engine = time_runs(cuda, mem, host, pages, true);
		uint64_t kernel = time_runs(cuda, mem, host, pages, false);

		err = engine && kernel ? 0 : -EIO;
		from = pages * GAIA_PAGE;
		if (err || engine < kernel)
			break;
	}
	cuda->copy_from = from;
	cuda->copy_alone_from = MAX(from, USUAL);
	cuda_host_slab(&cuda->base, host, HOST_SLAB_GOES);
	cuda_free(&cuda->base, mem);
	log_debug("device %s: runs of %u KiB and more are the copy engine's", cuda->base.name, from >> 10);
free_host:
	free(host);
	return err;
}
