/*
 * device.h - the contract of devices.
 *
 * A device allocates chunks of GAIA_CHUNK bytes, exports them to clients as descriptors, copies pages to
 * and from host memory, and from other devices that it reaches, finds the pages that changed, and merges.
 * Code above it sees only this interface. Implementations: sim (the simulated device, and the host for programs on the CPU), cuda
 * (NVIDIA GPUs), faulty (wraps any).
 *
 * Asynchronous calls: an operation is submitted with device_submit(). If that returns 0,
 * op->done(op, err) runs exactly once on a thread of the device, never within
 * submit(): the caller may hold a lock that done() takes. (It may have run by the time
 * that submit() returns: then op is the caller's again.) Operations of one device are carried out
 * and complete in the order of their submission, so one may build on another that was
 * submitted before it. The runs of one operation have no order: none may touch pages or host
 * memory that another one changes. The caller keeps the memory on both ends alive, and keeps
 * others from changing it, until done(). done() may submit, alloc and free.
 * Thread-safe throughout.
 *
 * There is no order between operations of different devices: from before a DEV_COPY_PEER is submitted
 * until its done(), nobody may change the pages that it reads, and no operation of the source device that
 * changes them may be outstanding.
 *
 * An operation that failed may have been carried out in part: the contents of its destination are
 * undefined, armed hashes included, except that no DEV_PULL loses a client's byte.
 *
 * Until a copy has completed its destination is undefined: the simulated device puts
 * garbage there at once. So nobody, clients included, may be reading it. For pages
 * that clients may be using meanwhile only DEV_PULL and DEV_ZERO are safe.
 *
 * A malformed operation (a range outside the chunk, no runs, a run of no pages, host
 * memory that is missing or not aligned, memory of another device) is refused with
 * -EINVAL. Freeing memory that is in use or not the device's is a bug().
 */
#ifndef GAIA_DEVICE_DEVICE_H
#define GAIA_DEVICE_DEVICE_H

#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>

#include "gaia/protocol.h"

struct device;

/*
 * One chunk of device memory, from alloc() to free(). Implementations
 * embed it. It remembers a hash of each page (see DEV_ARM).
 */
struct devmem {
	struct device *dev; /* the device to submit to: of layered devices, the outermost */
	uint64_t generation; /* unique in the process: memory is never mistaken for its successor */
	bool joined; /* it is part of an extent, and only all of that can be exported; see alloc_extent() */
};

/* Consecutive pages of one chunk, and the host memory that they correspond to. */
struct dev_run {
	struct devmem *mem;
	struct devmem *other; /* DEV_COPY_WITHIN, _PEER: the source chunk */
	uint32_t page;	      /* first page in the chunk */
	uint32_t npages;      /* > 0; page + npages <= GAIA_CHUNK_PAGES */
	void *host;	      /* npages * GAIA_PAGE bytes, page aligned; see the kinds */
	const void *base;     /* DEV_PULL only: as host; unused when limit is 0 */
	uint32_t limit;	      /* DEV_PULL and DEV_ZERO: see there; bytes */
};

enum dev_kind {
	/* host -> device. Forgets the pages' armed hashes; with op->arm it arms them with what it copied. */
	DEV_COPY_IN,
	/* device -> host. Armed hashes stay. */
	DEV_COPY_OUT,
	/* Pages of ->other to the same pages of ->mem. Armed hashes go along. */
	DEV_COPY_WITHIN,
	/*
	 * Pages of ->other, which is memory of op->from, to the same pages of ->mem. Forgets the pages' armed hashes, or arms
	 * them, as DEV_COPY_IN. op->from is a device that device_reaches(). -EHOSTUNREACH, from submit() or done(): op->from's
	 * memory cannot be read after all, because of op->from or of the connection between the two; the device itself works.
	 */
	DEV_COPY_PEER,
	/*
	 * Merge what others wrote into a page that clients may be writing meanwhile:
	 * for each byte i below limit (of every page of the run), if host[i] != base[i] and
	 * the device's byte still equals base[i], it becomes host[i]; for i >= limit it becomes
	 * host[i]. Bytes that need no change are not stored to. (Contract, section 4.)
	 * The armed hash becomes that of host: so a page that equals host afterwards
	 * holds nothing of the device's own. A limit of 0 overwrites, like DEV_COPY_IN, but
	 * in place: a client that reads sees the old or the new byte.
	 */
	DEV_PULL,
	/* Zero the bytes from limit to the end of the page (one page a run, unless limit is 0). Armed hashes stay. */
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
	struct device *from; /* DEV_COPY_PEER: the device of the source chunks */
	uint64_t *changed; /* DEV_FIND_CHANGED: zeroed by the caller, room for all pages */
	bool arm; /* DEV_COPY_IN, _PEER: has the effect of a DEV_ARM of the same pages that follows, for less */
	void (*done)(struct dev_op *op, int err);
	void *arg;

	/* For the device, between submit and done. */
	struct dev_op *next;
	uint64_t start_ns;
	uint64_t start_model_ns;
	bool spoiled;
};

/* Host memory comes, or goes. What comes alone goes when others beside it stay: so it is better registered by itself. */
enum host_slab { HOST_SLAB_GOES, HOST_SLAB_COMES, HOST_SLAB_COMES_ALONE };

struct device_ops {
	const char *name;

	/*
	 * On success a chunk of undefined contents. -ENOMEM means "evict
	 * something and retry"; any other error means that the device is unusable.
	 */
	int (*alloc)(struct device *dev, struct devmem **out);

	/*
	 * Optional (NULL). Memory for GAIA_EXTENT_CHUNKS neighbouring chunks of a file, of undefined contents. If it is one allocation
	 * (devmem.joined), export_fd() of any of them exports all, in this order, which costs as much as exporting one chunk. If the device
	 * has memory, but not that much together, it gives single chunks. Each is freed by itself; the memory of an extent can be used
	 * again when all are. Errors as alloc()'s.
	 */
	int (*alloc_extent)(struct device *dev, struct devmem *out[GAIA_EXTENT_CHUNKS]);

	/* Cannot fail. No operation touching @mem may be in flight. */
	void (*free)(struct device *dev, struct devmem *mem);

	/*
	 * A new descriptor by which another process can map the chunk, or all of the extent of which it is; the
	 * caller closes it. @write false: the receiver must not be able to
	 * change the chunk through it (-ENOTSUP if the device cannot do that).
	 */
	int (*export_fd)(struct device *dev, struct devmem *mem, bool write);

	/* 0, and done() runs later; or a negative errno, and done() never runs. */
	int (*submit)(struct device *dev, struct dev_op *op);

	/*
	 * Optional (NULL). Announces that GAIA_CHUNK bytes of host memory at @slab, aligned to as much, will
	 * be named often by operations from now on, or no longer: a device may
	 * register them for DMA. When a slab goes, no operation that names it is outstanding; the call may wait for others,
	 * and must not come from done(). Operations may also name memory that was not announced; that is slower.
	 */
	void (*host_slab)(struct device *dev, void *slab, enum host_slab what);

	/*
	 * Optional (NULL). Where this process has the chunk's memory mapped, aligned to GAIA_CHUNK, from alloc() to free(): for devices whose
	 * memory is the host's own, and may be used as such. New memory of such a device is zeros.
	 */
	void *(*host_memory)(struct device *dev, struct devmem *mem);

	/* Optional (NULL: none). See device_reaches(). */
	bool (*reaches)(struct device *dev, const struct device *from);

	/* Called when all operations have completed, all memory is freed, and all slabs are gone. */
	void (*destroy)(struct device *dev);
};

struct device {
	const struct device_ops *ops;

	/* Constant after creation. */
	struct device *core;	/* itself; of layered devices, the innermost */
	char name[32];		/* "sim0": unique in the daemon, for messages */
	char kind[16];		/* "sim", "cuda", "host" */
	bool simulated;
	bool shares_readonly;	/* export_fd() can make descriptors that do not allow writing */
	bool strict;		/* clients let programs touch only pages that they hold */
	bool gives_extents;	/* ops->alloc_extent() may be called */
	bool inherited;		/* a client's child inherits the memory that the client mapped, and keeps it when the client ends */
	unsigned char uuid[16];
	uint64_t capacity;	/* bytes; a multiple of GAIA_CHUNK: the budget */

	/* As the counters device_bytes_in and _out, of this device alone; of layered devices, of the innermost. */
	uint64_t bytes_in, bytes_out; /* by __atomic operations: C++ includes this */
};

/* As ops->submit(); also counts the operation. */
int device_submit(struct device *dev, struct dev_op *op);

/*
 * Whether @dev can copy from the memory of @from, another device, without going through host memory (DEV_COPY_PEER). This
 * does not imply the other direction. May take long: ask once. False if either device does not work any more.
 */
static inline bool device_reaches(struct device *dev, const struct device *from)
{
	return dev->ops->reaches && dev->core != from->core && dev->ops->reaches(dev, from);
}

/* Submit @op (done and arg are overwritten) and wait for it: its error. Must not be called
 * from a device's own thread. Calls thread_waits() unless the operation is small and soon done. */
int device_run(struct device *dev, struct dev_op *op);

/*
 * The same in two steps, so that other operations, and reads of a store, can be under way at the same time: submit @op; then, if that
 * returned 0, wait for it: its error. @w stays where it is in between.
 */
struct device_wait {
	sem_t completed;
	int err;
	uint64_t began_ns; /* when it was submitted; */
	uint64_t ended_ns; /* when it completed, which may be long before somebody waits for it */
	bool few;	   /* pages: for device_end() */
	void (*then)(void *arg, int err); /* NULL: nothing; see device_begin_then() */
	void *then_arg;
};
int device_begin(struct device *dev, struct dev_op *op, struct device_wait *w);
/* The same; and @then(@arg) is called on a thread of the device when it has completed, with its error, before anybody who waits for it goes on. */
int device_begin_then(struct device *dev, struct dev_op *op, struct device_wait *w, void (*then)(void *arg, int err), void *arg);
int device_end(struct device_wait *w);

/* For implementations: the next devmem.generation. */
uint64_t device_new_generation(void);

/* For implementations: why @op is malformed, or NULL. (Does not check whether the memory is this device's.) */
const char *device_op_fault(const struct dev_op *op);

/* "copy in", ...: a text that completes "refused to ...". Also for an unknown kind. */
const char *device_kind_name(enum dev_kind kind);

/* COPY_IN, COPY_OUT and PULL: the kinds that use host memory. */
bool device_uses_host(enum dev_kind kind);

/* Bytes that the operation moves to or from host memory: of a DEV_PULL those of its bases, too. */
uint64_t device_host_bytes(const struct dev_op *op);

/* The simulated device. For the model by which its operations take time see sim.c. */
struct sim_config {
	unsigned index;
	uint64_t capacity;  /* bytes, rounded down to chunks, at least one chunk */
	uint64_t bandwidth; /* bytes a second, each way, between it and host or peers; 0: no time */
	uint64_t local;	    /* bytes a second of its own memory; 0: no time */
	uint64_t latency_ns;/* from when an operation has ended until its completion is seen; at most 10^12 */
	uint64_t submit_ns; /* to submit one, when no other can be submitted; at most 10^12 */
	bool no_wait;	    /* the model's time is only counted */
	bool no_peers;	    /* reaches no other device, and none reaches it */
	bool no_readonly;   /* cannot share memory for reading only, as GPUs cannot */
	bool lax;	    /* not strict: see struct device */
	bool no_extents;    /* gives none */
};
int device_sim_create(const struct sim_config *config, struct device **out);

/*
 * The host itself (GAIA_DEVICE_HOST), for programs on the CPU: chunks of host memory that clients map. It is implemented as the simulated
 * device is, but takes no time, spoils nothing, and is not strict.
 */
int device_host_create(uint64_t capacity, struct device **out);

/* A GPU. Only after the last fork(). In builds without CUDA there are none, and creating one logs that. */
struct cuda_config {
	unsigned index;	    /* as CUDA numbers them */
	uint64_t capacity;  /* bytes, rounded down to chunks; 0: 80 % of what is free */
	bool no_extents;    /* gives none */
};
/* Logs what is wrong. -ENODEV: no such GPU. */
int device_cuda_create(const struct cuda_config *config, struct device **out);

/* How many GPUs there are. If 0, *@why says why, as a text. */
unsigned device_cuda_count(const char **why);

/*
 * Wraps @under, and owns it. Consults the fault points "device.alloc", "device.export" and
 * "device.submit", and when an operation is submitted the point of its kind: "device.copy_in",
 * "device.copy_out", "device.copy_within", "device.copy_peer", "device.pull", "device.zero",
 * "device.arm", "device.find_changed". The latter make done() report their errno, in order and later as
 * usual. By then half of the pages were worked on (one page, for a copy from another device); and the
 * last of these is garbage, except in a copy within the device. "device.garble_peer" leaves such
 * garbage in a copy from another device, which ends without an error.
 */
int device_faulty_create(struct device *under, struct device **out);

#endif
