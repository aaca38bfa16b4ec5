/*
 * device.h - the contract that every device fulfils.
 *
 * A device allocates chunks of GAIA_CHUNK bytes, exports them to clients as
 * descriptors, copies pages between itself and host memory, finds the pages that
 * changed, and merges. Everything above it sees only this. Implementations: sim
 * (the simulated device), cuda (one day), faulty (wraps any).
 *
 * Asynchronous calls: an operation is submitted with device_submit() and later,
 * never before the submit has returned, op->done(op, err) runs exactly once
 * on a thread of the device. Operations of one device complete in the order of
 * their submission. The caller keeps the memory on both ends alive, and keeps
 * others from changing it, until then. Thread-safe throughout.
 */
#ifndef GAIA_DEVICE_DEVICE_H
#define GAIA_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "gaia/protocol.h"

struct device;

/*
 * One chunk of device memory. Made by alloc(), ended by free(). Implementations
 * embed it. It remembers a hash of each page (see DEV_ARM).
 */
struct devmem {
	struct device *dev;
	uint64_t generation; /* unique in the process: memory is never mistaken for its successor */
};

/* Consecutive pages of one chunk, and the host memory that they correspond to. */
struct dev_run {
	struct devmem *mem;
	struct devmem *other; /* DEV_COPY_WITHIN: the source chunk, on the same device */
	uint32_t page;	      /* first page in the chunk */
	uint32_t npages;      /* > 0; page + npages <= GAIA_CHUNK_PAGES */
	void *host;	      /* npages * GAIA_PAGE bytes, page aligned; see the kinds */
	const void *base;     /* DEV_PULL only: as host */
	uint32_t limit;	      /* DEV_PULL and DEV_ZERO: see there; bytes */
};

enum dev_kind {
	/* host -> device. Forgets the pages' armed hashes. */
	DEV_COPY_IN,
	/* device -> host. */
	DEV_COPY_OUT,
	/* Pages of ->other to the same pages of ->mem. Armed hashes go along. */
	DEV_COPY_WITHIN,
	/*
	 * Merge what others wrote into a page that clients may be writing meanwhile:
	 * for each byte i below limit (of every page of the run), if host[i] != base[i] and
	 * the device's byte still equals base[i], it becomes host[i]; for i >= limit it becomes
	 * host[i]. Bytes that need no change are not stored to. (Contract, section 4.)
	 * The armed hash becomes that of host: a page that equals it afterwards
	 * holds nothing of the device's own.
	 */
	DEV_PULL,
	/* Zero the bytes from limit to the end of the page (one page a run). */
	DEV_ZERO,
	/* Remember the 128-bit hash of the pages' present contents. */
	DEV_ARM,
	/*
	 * Set a bit in op->changed for each page whose contents no longer have
	 * the armed hash, and arm them anew. A page that was never armed counts as
	 * changed. Bit k of op->changed is the k-th page of the op, over its runs
	 * in order.
	 */
	DEV_FIND_CHANGED,
};

/* Filled in by the caller, who owns it and the runs until done() is called. */
struct dev_op {
	enum dev_kind kind;
	const struct dev_run *runs;
	unsigned n;
	uint64_t *changed; /* DEV_FIND_CHANGED: zeroed by the caller, room for all pages */
	void (*done)(struct dev_op *op, int err);
	void *arg;

	/* The device's own, between submit and done. */
	struct dev_op *next;
	uint64_t start_ns;
};

struct device_ops {
	const char *name;

	/*
	 * On success a chunk of undefined contents. -ENOMEM means "evict
	 * something and retry"; anything else that the device is unusable.
	 */
	int (*alloc)(struct device *dev, struct devmem **out);

	/* Cannot fail. No operation touching @mem may be in flight. */
	void (*free)(struct device *dev, struct devmem *mem);

	/*
	 * A new descriptor by which another process can map the chunk; the
	 * caller closes it. @write false: the receiver must not be able to
	 * change the chunk through it (-ENOTSUP where that cannot be had).
	 */
	int (*export_fd)(struct device *dev, struct devmem *mem, bool write);

	/* 0 and done() later, or a negative errno, and then done() never runs. */
	int (*submit)(struct device *dev, struct dev_op *op);

	/* All operations have completed, all memory is freed. */
	void (*destroy)(struct device *dev);
};

struct device {
	const struct device_ops *ops;

	/* Constant after creation. */
	char name[32];		/* "sim0": unique in the daemon, for people */
	char kind[16];		/* "sim" */
	bool simulated;
	unsigned char uuid[16];
	uint64_t capacity;	/* bytes; a multiple of GAIA_CHUNK: the budget */
};

static inline int device_submit(struct device *dev, struct dev_op *op)
{
	return dev->ops->submit(dev, op);
}

/* Submit @op (done and arg are overwritten) and wait for it: its error. Not
 * from a device's own thread. */
int device_run(struct device *dev, struct dev_op *op);

/* The simulated device. */
struct sim_config {
	unsigned index;
	uint64_t capacity;  /* bytes, rounded down to chunks, at least one chunk */
	uint64_t bandwidth; /* bytes a second between host and device; 0: as fast as memory */
	uint64_t latency_ns;/* added to every operation */
};
int device_sim_create(const struct sim_config *config, struct device **out);

/*
 * Wraps @under, and owns it. Consults the fault points "device.alloc",
 * "device.export", "device.copy_in", "device.copy_out", "device.find_changed",
 * "device.submit"; a point on a copy makes done() report its errno and leaves the
 * destination in part changed.
 */
int device_faulty_create(struct device *under, struct device **out);

#endif
