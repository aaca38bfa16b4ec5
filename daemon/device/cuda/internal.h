/*
 * internal.h - what the files of the CUDA device share.
 *
 *	device.c	life; errors, and switching off
 *	memory.c	chunks: creating, pooling, scrubbing, exporting
 *	queue.c		operations: from submit to done
 *	host.c		home memory that is registered for DMA
 *	peer.c		memory of other GPUs
 *	calibrate.c	from which run length on the copy engine is used
 *
 * Threads: the callers'; "issue", which turns operations into commands of the stream; "complete",
 * which waits for them and calls done(); "keep", which keeps a few chunks ready, and gives back the memory of a
 * broken context; "pin", which registers home memory. Commands of operations are all on one stream: so
 * operations are carried out in order.
 *
 * Rules:
 * 1. device->lock is a leaf, except for the driver's own locks: nothing of CUDA is called, and no other
 *    device's lock is taken, with it held.
 * 2. A thread calls cuda_enter() before it calls the driver.
 * 3. Each result of the driver goes through cuda_check() or cuda_ended(), or a comment says why it does not matter.
 */
#ifndef GAIA_DEVICE_CUDA_INTERNAL_H
#define GAIA_DEVICE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "base/util.h"
#include "device/cuda/api.h"

#define CUDA_ORDINALS 64u /* GPUs: sets of them have a bit for each */
#define BATCH_ITEMS LIST_LONG
#define BATCH_COPIES 512u
#define BATCH_PAGES 16384u
#define BATCH_STAGING GAIA_CHUNK /* bytes */
#define BATCHES 6u

/* One slot of the address range. */
struct cuda_chunk {
	struct devmem base;

	/* The fields of the thread that has the chunk: first the one that makes it, then the owner's. */
	CUmemGenericAllocationHandle handle; /* of an extent, the same in all of its chunks */

	/* device->lock */
	enum chunk_state {
		CHUNK_NONE,  /* nothing mapped */
		CHUNK_BUSY,  /* being made, scrubbed or destroyed */
		CHUNK_READY, /* on `ready`: mapped and scrubbed, and never exported */
		CHUNK_STALE, /* on `stale`: as READY, but not scrubbed */
		CHUNK_LIVE,  /* allocated */
		CHUNK_LEFT,  /* freed, but others of its extent are LIVE */
		CHUNK_ENDED, /* on `ended`: freed, to be unmapped; of an extent, all chunks are */
	} state;
	bool exported;
	uint64_t readers;   /* one bit for each ordinal: other GPUs that were given access to it; of an extent, its first chunk's count */
	unsigned in_flight; /* mentions in the runs of outstanding operations, also of other GPUs */
	LIST_ENTRY(cuda_chunk) link;

	/*
	 * The issuer's while the chunk is LIVE: one bit for each page that is not armed, whatever its hash on the GPU is.
	 * Operations are issued in the order in which they are carried out, so this is current.
	 */
	uint64_t unarmed[GAIA_CHUNK_PAGES / 64];
};

LIST_HEAD(cuda_chunk_list, cuda_chunk);

/* Host memory that is not registered, and gets its bytes from the staging buffer. */
struct cuda_unstage {
	void *to;
	const void *from;
	size_t bytes;
};

/*
 * Commands of one operation, or of a part of it, that are waited for together. A batch is idle, then
 * the issuer's, then on `issued`, then the completer's, then idle again.
 */
struct cuda_batch {
	/* Constant. */
	uint64_t *changed;	 /* pinned; results of DEV_FIND_CHANGED, a bit a page */
	CUdeviceptr device_changed;
	char *staging;		 /* pinned */
	CUdeviceptr device_staging;
	CUevent event;

	/* The fields of the thread that has the batch. */
	struct dev_op *op;
	bool last;	 /* the op's last batch */
	bool recorded;	 /* there is an event; otherwise wait for the whole stream */
	int err;
	uint32_t n_items, n_pages, n_unstage; /* items and pages: of the next launch */
	struct page_item items[BATCH_ITEMS];
	/* What the copy engine is to copy before the next launch. Host memory has its own address. */
	uint32_t n_copies;
	CUdeviceptr copy_to[BATCH_COPIES], copy_from[BATCH_COPIES];
	size_t copy_bytes[BATCH_COPIES];
	uint64_t unarmed[BATCH_PAGES / 64]; /* DEV_FIND_CHANGED: pages that were not armed */
	unsigned host_epoch; /* see cuda_host_begin() */
	uint32_t staged; /* bytes */
	struct cuda_unstage unstage[BATCH_STAGING / GAIA_PAGE];
	STAILQ_ENTRY(cuda_batch) link;
};

STAILQ_HEAD(cuda_batch_list, cuda_batch);

struct cuda {
	struct device base;

	/* Constant after creation. */
	const struct cuda_api *api;
	CUdevice ordinal;
	CUcontext context;
	CUdeviceptr range;	/* n_slots times GAIA_CHUNK, reserved */
	unsigned n_chunks;	/* the capacity; as many slots are for single chunks, */
	unsigned n_slots;	/* and those that follow them for extents */
	struct cuda_chunk *chunk; /* n_slots */
	CUstream stream;	/* of operations */
	CUstream scrubber;	/* clears new memory */
	/*
	 * bytes: the copy engine copies runs of this length and more; the second: where each takes a call, or a
	 * kernel arms it afterwards
	 */
	uint32_t copy_from, copy_alone_from;
	uint32_t few_runs;	/* operations of no more are the copy engine's, if they only copy; set before operations come */
	struct cuda_batch batch[BATCHES];
	pthread_t issuer, completer, keeper, pinner;
	bool created;		/* set before there are threads */
	bool rdma;		/* the GPU has memory that network cards and disks may reach */

	bool no_copy_batch;	/* cuMemcpyBatchAsync() does not work here; the issuer's field, once there are threads */

	atomic_bool off;	/* broken: everything fails from now on */
	bool stop_pinner;	/* the lock of host.c */
	atomic_bool told_of_descriptors, kept_tried;
	int kept; /* a descriptor of memory, or -1: see keep_descriptor(), which writes it once; then who ends the device has it */

	/* armed_lock is taken to make entries of `armed`, which are constant once they are not 0. */
	pthread_mutex_t armed_lock;
	CUdeviceptr *armed;	/* hashes of ARMED_CHUNKS chunks each */

	pthread_mutex_t lock;
	/* lock. */
	pthread_cond_t work;	/* for the issuer */
	pthread_cond_t issued_cond;	/* for the completer */
	pthread_cond_t memory;	/* chunks changed their state */
	struct dev_op *head, **tail; /* not yet issued, oldest first */
	unsigned outstanding;	/* submitted, and done() not yet called */
	bool stop, stop_completer;
	struct cuda_batch_list idle, issued;
	struct cuda_chunk_list ready, stale, ended;
	unsigned n_ready, n_stale, n_ended, n_live, n_left, n_busy; /* chunks, n_chunks at most; other slots are NONE */
	unsigned hint, extent_hint; /* where to look for a free slot */
	unsigned extents_wanted; /* calls that wait for room: the keeper takes none */
	unsigned readers;	/* operations of other GPUs that read this one's memory */
	unsigned calls;		/* callers inside the driver */
	bool given_back;	/* off: the keeper has reset the context if it had to, and chunks can be unmapped again */
	bool reset;		/* off: the context was reset, so everything that belonged to it is gone */
	bool physical_full;	/* the keeper does not try until something is freed */
};

static inline struct cuda *to_cuda(struct device *dev)
{
	return container_of(dev, struct cuda, base);
}

/* ---- device.c ---- */

/* Make the device's context the calling thread's. */
int cuda_enter(struct cuda *cuda);

/*
 * The same for callers' threads: until cuda_leave_call() the context is not reset. -ENODEV: the device is off.
 */
int cuda_enter_call(struct cuda *cuda);
void cuda_leave_call(struct cuda *cuda);

/* 0, or -EIO after it switched the device off. @call: for messages. */
int cuda_check(struct cuda *cuda, CUresult result, const char *call);

/* Wait until nothing of the stream is under way, even after errors. 0 or -EIO. */
int cuda_drain(struct cuda *cuda, CUstream stream);

/* For a device that is off, with nothing under way: free everything in the context. In a broken one nothing else frees it. */
void cuda_reset_context(struct cuda *cuda);

/* For results of calls that free something: if the device is broken already, their errors are not logged. */
void cuda_ended(struct cuda *cuda, CUresult result, const char *call);

/* ---- memory.c ---- */

/* Reserve the range and its tables. Logs errors. Also after an error, cuda_memory_destroy() frees what was made. */
int cuda_memory_init(struct cuda *cuda);
/*
 * Called when no chunk is live. Frees what belongs to the context. If the context breaks meanwhile, call it
 * again to free the rest.
 */
void cuda_memory_end(struct cuda *cuda);
void cuda_memory_destroy(struct cuda *cuda);
void *cuda_keeper_main(void *arg);
int cuda_alloc(struct device *dev, struct devmem **out);
int cuda_alloc_extent(struct device *dev, struct devmem *out[GAIA_EXTENT_CHUNKS]);
void cuda_free(struct device *dev, struct devmem *mem);
int cuda_export_fd(struct device *dev, struct devmem *mem, bool write);

/* The chunk of @mem if that is live memory of the device, else NULL. @mem is not dereferenced. lock is held. */
struct cuda_chunk *cuda_find_live(struct cuda *cuda, const struct devmem *mem);
/* The first chunk of the allocation that @mem is in: @mem itself, or its extent's first. *@bytes: the allocation's size. */
struct cuda_chunk *cuda_allocation(struct cuda *cuda, const struct devmem *mem, size_t *bytes);
CUdeviceptr cuda_page(struct cuda *cuda, const struct devmem *mem, uint32_t page);
struct page_hash *cuda_armed(struct cuda *cuda, const struct devmem *mem, uint32_t page);

/* ---- peer.c ---- */

bool cuda_reaches(struct device *dev, const struct device *from);

/* The GPU that a DEV_COPY_PEER reads. */
struct cuda *cuda_source(const struct dev_op *op);

/*
 * Pin the sources. 0: none of them can be freed until cuda_sources_drop(). -EINVAL: *@fault says, as a text, what is wrong
 * with them. -EHOSTUNREACH: their GPU is off. Called without a lock.
 */
int cuda_sources_hold(struct cuda *cuda, const struct dev_op *op, const char **fault);
void cuda_sources_drop(const struct dev_op *op);

/* Give @cuda access to @mem, a chunk of @source, and to all of its extent. -EHOSTUNREACH: it is not allowed. */
int cuda_source_open(struct cuda *cuda, struct cuda *source, struct devmem *mem);

/* ---- queue.c ---- */

/* As cuda_memory_init(). */
int cuda_queue_init(struct cuda *cuda);
void cuda_queue_destroy(struct cuda *cuda);
void *cuda_issuer_main(void *arg);
void *cuda_completer_main(void *arg);
int cuda_submit(struct device *dev, struct dev_op *op);

/* ---- host.c ---- */

void cuda_host_slab(struct device *dev, void *slab, enum host_slab what);

/*
 * The address, on all devices, of host memory. 0: it is not registered; if the slab was announced, it will be
 * registered next. *@bytes: what lies together there, registered or not, from @host on. The address is good between
 * cuda_host_begin() and cuda_host_done(), which takes what that returned.
 */
CUdeviceptr cuda_host_address(const void *host, size_t *bytes);
unsigned cuda_host_begin(void);
void cuda_host_done(unsigned epoch);

/* Wait until the announced slab is registered, or cannot be. */
void cuda_host_settle(struct cuda *cuda, void *slab);

void *cuda_pinner_main(void *arg);
void cuda_host_stop(struct cuda *cuda);
/* Called when the device is off. */
void cuda_host_wake(void);

/*
 * Called before the context is reset, which ends its registrations: waits until nobody uses those. Until cuda_host_left()
 * is called nobody gets one of them. @ended: whether the context was reset.
 */
void cuda_host_leave(struct cuda *cuda);
void cuda_host_left(struct cuda *cuda, bool ended);
/* Called when the device ends: nothing is registered through it any more. */
void cuda_host_end(struct cuda *cuda);

/* ---- calibrate.c ---- */

/* Set cuda->copy_from. */
int cuda_calibrate(struct cuda *cuda);

#endif
