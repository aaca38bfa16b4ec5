/*
 * counters.h - what happened, counted.
 *
 * Process-wide, since a daemon serves one mount. Relaxed atomics: each value
 * is exact, a set of them read together is not a snapshot. The unit is pages
 * unless the line says otherwise. The names are those of `gaia status --json`
 * and of the litmus files' `count`.
 */
#ifndef GAIA_BASE_COUNTERS_H
#define GAIA_BASE_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#define COUNTERS(X)                                                                             \
	X(storage_reads, "pages read from the backing store")                                   \
	X(storage_read_runs, "reads issued to the backing store (calls)")                       \
	X(storage_direct, "of those, pages read past the kernel's page cache")                  \
	X(storage_writes, "pages written to the backing store")                                 \
	X(storage_errors, "failed reads, writes and syncs of the backing store (calls)")        \
	X(home_hits, "pages of CPU reads served from home memory")                              \
	X(home_misses, "pages of CPU reads that had to be brought home")                        \
	X(passthrough_imported, "pages that CPU programs had changed in files open past the cache") \
	X(passthrough_put, "pages that devices had changed, stored in files open past the cache") \
	X(home_evicted, "pages dropped from home memory")                                       \
	X(home_given, "pages that left home memory since the kernel's cache had just got them") \
	X(home_overcommit, "frames allocated beyond the home budget because nothing could go")  \
	X(home_to_device, "pages copied to devices")                                            \
	X(device_to_home, "pages copied from devices")                                          \
	X(device_to_device, "pages copied from one device to another, not by way of home")      \
	X(peer_failures, "copies between devices that failed: home sent the pages (calls)")     \
	X(device_reads, "pages of home filled from a device instead of the store")              \
	X(device_snapshots, "pages secured on a device before being written again")             \
	X(device_zeroed, "pages of device memory made zeros, so that who maps them sees nothing else") \
	X(device_evicted, "chunks dropped from devices (chunks)")                               \
	X(device_renewed, "chunks copied on their device, away from clients that are gone (chunks)") \
	X(kernel_invalidated, "pages whose kernel copy was invalidated")                        \
	X(cpu_written_back, "pages that CPU programs changed: pushed by the kernel, or imported") \
	X(merges, "3-way merges")                                                               \
	X(merge_races, "bytes that two owners wrote concurrently, met in a merge (bytes)")      \
	X(twins, "twins saved")                                                                 \
	X(twins_pulled, "pages brought up to date on devices since twins had their share of home") \
	X(acquires, "acquires (calls)")                                                         \
	X(releases, "releases (calls)")                                                         \
	X(acquire_nomem, "acquires refused because the range does not fit the device (calls)")  \
	X(released_pages, "pages that releases found changed")                                  \
	X(writeback_runs, "writes issued to the backing store (calls)")                         \
	X(clients_lost, "clients that ended without unmapping, or were disconnected (clients)") \
	X(grants_refused, "messages with chunks that a client could not map (messages)")         \
	X(revokes, "chunks taken back from clients (chunks)")                                   \
	X(revoke_timeouts, "waits for clients that did not give up memory in time (waits)")

enum counter {
#define X(name, text) CTR_##name,
	COUNTERS(X)
#undef X
	CTR_COUNT
};

/* Several of each, so that threads that count the same thing seldom write to the same cache line. */
#define COUNTER_SETS 16u
struct counter_set {
	_Alignas(64) _Atomic uint64_t value[CTR_COUNT];
};
extern struct counter_set counter_sets[COUNTER_SETS];
extern __thread struct counter_set *counter_set; /* the thread's; NULL: none yet */
void counter_set_choose(void);

static inline void count(enum counter c, uint64_t n)
{
	if (!counter_set)
		counter_set_choose();
	atomic_fetch_add_explicit(&counter_set->value[c], n, memory_order_relaxed);
}

uint64_t counter_value(enum counter c);
const char *counter_name(enum counter c);
const char *counter_text(enum counter c);

#endif
