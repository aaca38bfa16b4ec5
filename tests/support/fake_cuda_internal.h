/*
 * fake_cuda_internal.h - what the files of the fake CUDA driver share.
 */
#ifndef GAIA_TESTS_FAKE_CUDA_INTERNAL_H
#define GAIA_TESTS_FAKE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdint.h>
#include <sys/queue.h>

#include "fake_cuda.h"

#define FAKE_GPUS 8u
#define FAKE_CALLED 96u /* entry points */

struct CUctx_st {
	TAILQ_ENTRY(CUctx_st) link; /* made by cuCtxCreate() */
	unsigned gpu, refs;	    /* refs: of a primary context, retains */
	CUstream default_stream;    /* the legacy one; made on demand */
	bool reset;		    /* a primary one, and not retained since */
};

/* From cuStreamBeginCapture() to cuStreamEndCapture(). */
struct fake_capture {
	TAILQ_ENTRY(fake_capture) link;
	CUstream origin;
	CUstreamCaptureMode mode;
	uint64_t thread;
	bool invalidated;
};

/* What was captured: nothing of it can be launched. */
struct CUgraph_st {
	TAILQ_ENTRY(CUgraph_st) link;
};

/* One command of a stream. */
struct fake_item {
	STAILQ_ENTRY(fake_item) link;
	enum { ITEM_COPY, ITEM_SET, ITEM_KERNEL, ITEM_HOST_FUNC, ITEM_RECORD, ITEM_WAIT_EVENT,
	       ITEM_WAIT_VALUE, ITEM_WRITE_VALUE } kind;
	void *to;	  /* COPY, SET; *_VALUE: the address */
	const void *from; /* COPY */
	size_t bytes;	  /* COPY, SET */
	uint32_t value;	  /* SET: a byte; *_VALUE */
	unsigned flags;	  /* WAIT_VALUE */
	void (*fn)(void *arg);
	void *arg;
	void *copy; /* of the arguments; freed with the item */
	CUevent event;
	uint64_t number; /* of the event's record */
	uint64_t issued; /* ascends over all streams */
	bool spoiled;
	CUresult broken; /* this item breaks the context instead of being carried out */
};

struct CUstream_st {
	TAILQ_ENTRY(CUstream_st) link;
	CUcontext ctx;
	pthread_t thread;
	bool user; /* counts as alive */
	bool blocking, legacy;
	uint64_t owner; /* of a thread's own default stream: the thread; else 0 */
	uint64_t id;	/* never used again */

	/* fake.lock */
	struct fake_capture *capture;
	bool abandoned; /* no further item begins */
	STAILQ_HEAD(, fake_item) items; /* the first is being carried out */
	bool stop;
};

struct CUevent_st {
	TAILQ_ENTRY(CUevent_st) link;
	uint64_t recorded, reached; /* the last record's number, and that of the last one reached */
	unsigned users;		    /* items that name it, calls that wait for it */
	CUcontext ctx;
	struct fake_capture *capture; /* that recorded it last; good while it is in fake.captures */
	bool destroyed, captured;
};

/* Physical memory of a GPU. Lives while a handle or a mapping refers to it. */
struct fake_memory {
	int fd;
	size_t size;
	unsigned gpu, refs;
	bool imported, exportable, exported, rdma;
};

struct fake_handle {
	TAILQ_ENTRY(fake_handle) link;
	CUmemGenericAllocationHandle id; /* never used again */
	struct fake_memory *memory;
	unsigned refs;
};

/* An address range: a reservation, or an allocation by cuMemAlloc(), or pinned host memory. */
struct fake_range {
	TAILQ_ENTRY(fake_range) link;
	char *at;
	size_t size;
	unsigned gpu; /* allocations */
	bool owned;   /* pinned memory made by cuMemHostAlloc() */
	unsigned flags;
	CUcontext ctx; /* the context it was made in; NULL: a reservation */
};

struct fake_mapping {
	TAILQ_ENTRY(fake_mapping) link;
	char *at;
	size_t size;
	struct fake_memory *memory;
	unsigned access; /* one bit for each GPU that may read and write */
	unsigned readable; /* one for each that may read */
};

struct fake {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* anything in a stream or an event */
	struct fake_cuda_config config;
	int pid; /* of the process that called cuInit(); 0 */
	struct {
		size_t used, kept; /* kept: of it, by importers */
		struct CUctx_st primary;
	} gpu[FAKE_GPUS];
	TAILQ_HEAD(fake_contexts, CUctx_st) contexts, dead; /* dead: what was made in them names them */
	TAILQ_HEAD(, CUstream_st) streams;
	TAILQ_HEAD(, CUevent_st) events;
	TAILQ_HEAD(, fake_handle) handles;
	TAILQ_HEAD(fake_ranges, fake_range) reserved, allocated, pinned;
	TAILQ_HEAD(, fake_mapping) mappings; /* ascending */
	TAILQ_HEAD(, fake_capture) captures;
	TAILQ_HEAD(, CUgraph_st) graphs;
	CUmemGenericAllocationHandle last_id;
	uint64_t last_issued, last_stream;
	bool configured; /* the environment is read */
	unsigned memories, resets;
	struct fake_cuda_traffic traffic; /* but for calls and launches */

	unsigned calls, waiting;
	struct {
		const char *entry;
		unsigned calls;
	} called[FAKE_CALLED];
	CUresult broken; /* every call returns this from now on */
	CUcontext broken_ctx; /* the context where that began; NULL: none in particular */
	struct {
		const char *entry;
		unsigned nth; /* 0: not armed */
		CUresult result;
		bool sticky;
	} fail, fail_later;
	bool failed;
	char violation[200];
};

extern struct fake fake;

/* First in every entry point: counts the call, and returns the error that it must fail with. */
CUresult fake_enter(const char *entry);

/*
 * Whether a call that ends something of the GPUs (one bit each), for which fake_enter() has just returned @err, does so
 * all the same.
 */
bool fake_takes_effect(CUresult err, unsigned gpus);

/* A number of the calling thread, never used again. */
uint64_t fake_thread(void);

/* For a call that names what does not exist: a broken rule, except after a reset, which may have freed it. */
CUresult fake_refuse_gone(CUresult result, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* All that is the context's, or its GPU's. fake.lock not held. */
void fake_streams_reset(CUcontext ctx);
void fake_memory_reset(CUcontext ctx);

/* Note a broken rule; returns @result, for the caller to return. With or without fake.lock. */
CUresult fake_refuse(CUresult result, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The current context, or NULL. */
CUcontext fake_context(void);
bool fake_is_context(CUcontext ctx);

/*
 * Returns after everything that was queued until now on the streams of the GPUs (one bit each). fake.lock is not held.
 */
void fake_wait_gpus(unsigned gpus);
#define ALL_GPUS (~0u)

/* The bit of the GPU that the calling thread works for; all bits if there is none. fake.lock is not held. */
unsigned fake_gpu_bit(void);

/* The GPU that a stream's thread works for. */
extern _Thread_local unsigned fake_stream_gpu_bit;

unsigned fake_gpu_of(CUdevice ordinal);

/* fake.lock held. @gpus: bits, of which one is to have access. */
bool fake_device_memory(const void *p, size_t bytes, unsigned gpus);
/* The same where it need only be read. */
bool fake_readable_memory(const void *p, size_t bytes, unsigned gpus);
bool fake_pinned_memory(const void *p, size_t bytes);

/* True in a host function: no call is allowed. */
extern _Thread_local bool fake_in_host_func;

/* What the context has streams of its own for; they end. */
void fake_default_streams_end(CUcontext ctx);

/* Waits until its items are carried out, and frees it. */
void fake_stream_end(CUstream stream);

struct fake_entry {
	const char *name;
	void *function;
};
extern const struct fake_entry fake_context_entries[], fake_memory_entries[], fake_stream_entries[], fake_library_entries[];

#endif
