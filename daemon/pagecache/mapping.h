/*
 * mapping.h - what a client maps of a file.
 */
#ifndef GAIA_PAGECACHE_MAPPING_H
#define GAIA_PAGECACHE_MAPPING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "pagecache/cache.h"
#include "pagecache/holds.h"
#include "pagecache/range.h"
#include "pagecache/segments.h"

struct cache_device;
struct cfile;
struct grant;
struct readahead;
struct readers;

enum { READY_TO_READ, READY_TO_WRITE, READY_KINDS };
#define SHARERS_MOST 16u /* with more clients that may store there nothing is ready */

/* An announced acquire (GAIA_PROT_PIN), and the chunks that stay for it: each counts in its grant's to_come. */
struct pin {
	STAILQ_ENTRY(pin) link; /* mapping.pins, oldest first */
	struct page_span span;
	bool taken;		/* the acquire itself has come, and is under way */
	uint64_t first, n;	/* chunks of the file */
	unsigned n_beyond;	/* runs of others of the span, which the client maps */
	struct chunk_span beyond[];
};

struct mapping {
	struct cfile *file; /* held */
	struct cache_device *dev;
	void *client;
	atomic_bool ended; /* see cache_unmapping() */
	struct cache_user user;
	uint64_t id;
	unsigned prot;
	bool export_write;    /* descriptors for the client allow writing */
	bool detects;	      /* it is for writing, and its client looks for changes itself: see cache_map_detects() */
	bool unarmed;	      /* and so no page is armed for its sake */
	struct readers *readers; /* the readers whose replicas it uses; NULL: it uses the shared ones */
	uint64_t off, len;
	pthread_mutex_t lock; /* taken inside chunk.lock */
	/* lock. */
	struct grant *grants;
	atomic_uint n_grants; /* the same, counted: may be read without the lock */
	struct holds holds; /* of pages of chunks that it has a grant of */
	struct holds ready[READY_KINDS]; /* pages: see ready.c */
	/* Who must live for what is ready to be acquired without a look at it: see ready.c. */
	struct sharer {
		void *client;
		uint64_t n; /* grants of the client's, of replicas that are ready for this mapping */
	} sharer[SHARERS_MOST];
	unsigned n_sharers;
	uint64_t ready_seq; /* the last message by which the client got such a chunk */
	/*
	 * Pages that were acquired when they were beyond the end, in chunks that the client does not map: an acquire that
	 * brings the chunk to the client acquires these pages, too.
	 */
	struct holds wanted;
	unsigned span_blocks; /* blocks of spans that were asked for, for these two: see cache_host.spans */
	uint64_t spans_to_come; /* room for so many is kept for releases that cut spans */
	STAILQ_HEAD(, pin) pins;
	unsigned n_pins;
	struct readahead *readahead; /* constant */
	struct cache_process process; /* lock: its client's, once it was asked for; see keeper_make() */
	bool process_known;
	_Atomic uint64_t kept; /* "break.reuse_mapped": 1 + a chunk that the client was left with */
};

static inline bool mapping_has(const struct mapping *m, uint64_t off, uint64_t len)
{
	return off >= m->off && len <= m->len && off - m->off <= m->len - len;
}

/* The mapping's grants of the chunks in which @segs lie that hold something, in order, with their replicas pinned; *@out must
 * be freed. */
unsigned grants_pin(struct mapping *m, struct segments segs, struct grant ***out);
/*
 * The same for grants whose memory the client maps, of chunks from @from on. @idle: also those that hold nothing; takes
 * dev->reserve. [W]
 */
unsigned grants_pin_mapped(struct mapping *m, struct segments segs, uint64_t from, bool idle, struct grant ***out);

#endif
