/*
 * counters.h - counters of what happened.
 *
 * Process-wide, since a daemon serves one mount. Relaxed atomics: each value
 * is exact, but values that are read together are not a snapshot. The unit is pages
 * unless the line says otherwise. `gaia status --json` and `count` of the litmus
 * files use these names.
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
	X(shared_revalidations, "times that the source was asked whether other machines had changed a file (calls)") \
	X(storage_errors, "failed reads, writes and syncs of the backing store (calls)")        \
	X(home_hits, "pages of CPU reads served from home memory")                              \
	X(home_misses, "pages of CPU reads that had to be brought home")                        \
	X(passthrough_imported, "pages that CPU programs had changed in files that are passed through") \
	X(passthrough_put, "pages that devices had changed, stored in files that are passed through") \
	X(home_evicted, "pages dropped from home memory")                                       \
	X(home_given, "pages that left home memory because the kernel's cache had just got them") \
	X(home_overcommit, "frames allocated beyond the home budget because nothing could be evicted") \
	X(home_to_device, "pages copied to devices")                                            \
	X(home_viewed, "pages of home moved to where clients on the host map them")              \
	X(device_to_home, "pages copied from devices")                                          \
	X(device_to_device, "pages copied from one device to another, without going through home") \
	X(device_within, "pages copied within a device, to memory that users have for themselves who may only read") \
	X(peer_failures, "copies between devices that failed: home sent the pages (calls)")     \
	X(device_reads, "pages of home filled from a device instead of the store")              \
	X(device_read_failures, "copies for that which failed: the store was read (calls)")     \
	X(victim_parked, "pages parked on devices when they left home") \
	X(victim_batches, "operations by which they were copied there (calls)")                 \
	X(victim_hits, "of the pages filled from a device, those that were parked there")       \
	X(victim_returned, "pages filled with what was still on its way to be parked")          \
	X(victim_refused, "pages that left home and were not parked: they had not left it before, lately, or there was no room at once") \
	X(victim_dropped, "parked pages that were forgotten: they changed, or their place was needed") \
	X(victim_given_up, "memory of devices that was taken back from parked pages, for replicas or on request (chunks)") \
	X(dedup_hashed, "pages that were looked for among equal ones when they came home (--dedup)") \
	X(dedup_found, "of those, pages that home had already, and that have one frame with these") \
	X(dedup_zeros, "pages of zeros that came home and took no memory, as others had been there (--dedup)") \
	X(dedup_unshared, "pages that were written and so got frames of their own again") \
	X(dedup_parked, "pages that came to be parked in the place of an equal one, with which they had one frame: nothing was copied") \
	X(read_probes, "reads from a source that seemed dearer, to learn what it costs by now (calls)") \
	X(device_operations, "operations that devices were given (calls)")                      \
	X(device_bytes_in, "bytes moved from host memory to devices, bases of merges too (bytes)") \
	X(device_bytes_out, "bytes moved from devices to host memory (bytes)")                  \
	X(sim_in_ns, "time that simulated copies to devices take by their model (ns, of all devices)") \
	X(sim_out_ns, "time that simulated copies from devices take by their model (ns, of all devices)") \
	X(sim_local_ns, "time that work on simulated devices' own memory takes by their model (ns, of all devices)") \
	X(sim_ns, "time that all of this takes by their model, with latencies; what overlaps counts once (ns, of all devices)") \
	X(sim_wall_ns, "time in which simulated devices really had operations under way (ns, of all devices)") \
	X(device_snapshots, "pages secured on a device before being written again")             \
	X(device_zeroed, "pages of device memory made zeros, so that clients that map them see nothing else") \
	X(device_evicted, "chunks dropped from devices (chunks)")                               \
	X(device_extents, "extents that device memory was given out in (extents of 16 MiB)")     \
	X(huge_chunks, "chunks of simulated devices and of the host that became huge pages (chunks)") \
	X(device_renewed, "chunks copied on their device, away from clients that are gone (chunks)") \
	X(kernel_invalidated, "pages whose kernel copy was invalidated")                        \
	X(cpu_written_back, "pages that CPU programs changed: pushed by the kernel, or imported") \
	X(merges, "3-way merges")                                                               \
	X(merge_races, "bytes that two owners wrote concurrently, found in a merge (bytes)")    \
	X(twins, "twins saved (old bytes of home's pages, for merges to come)")                 \
	X(twins_pulled, "pages brought up to date on devices because twins had used up their share of home") \
	X(acquires, "acquires (calls)")                                                         \
	X(acquires_ready, "of those, acquires of what was ready: no chunk was looked at (calls)")  \
	X(acquired_current, "chunks that acquires found current, without a look at their pages (chunks)") \
	X(acquired_looked_at, "chunks that acquires looked at page by page (chunks)")           \
	X(acquire_windows, "windows in which acquires did so: each takes one device operation of a kind (windows)") \
	X(release_windows, "windows in which releases had devices look for changes (windows)")  \
	X(compared_pages, "pages of which releases had devices find out whether they had changed") \
	X(fetch_windows, "windows in which releases were fetched home (windows)")               \
	X(page_waits, "waits for pages that other threads had locked (waits)")                  \
	X(readahead, "pages brought to devices before they were acquired: by readahead, or because of GAIA_WILLNEED") \
	X(readahead_used, "of those, pages that acquires found current (of a chunk that they left ready: all)") \
	X(readahead_wasted, "of those, pages that were evicted, or changed, before they were acquired") \
	X(readahead_home, "pages read from the store into home before the host acquired them: by readahead, or because of GAIA_WILLNEED") \
	X(readahead_failed, "requests to bring pages before they are acquired that were given up: no room on the device, or errors (calls)") \
	X(releases, "releases (calls)")                                                         \
	X(acquire_nomem, "acquires refused because the range does not fit the device (calls)")  \
	X(released_pages, "pages that releases found changed")                                  \
	X(detected_pages, "of those, pages that clients had found changed (GAIA_DETECT=client, not on the host)") \
	X(overwritten_pages, "of those, pages that had been acquired to be overwritten: all of them was published") \
	X(writeback_runs, "writes issued to the backing store (calls)")                         \
	X(clients_lost, "clients that ended without unmapping, or were disconnected (clients)") \
	X(grants_refused, "messages with chunks that a client could not map (messages)")         \
	X(revokes, "chunks taken back from clients (chunks)")                                   \
	X(revoke_timeouts, "waits for clients that did not give up memory in time (waits)")     \
	X(log_lines_left_out, "lines that were left out of the log, as there were too many like them (lines)")

enum counter {
#define X(name, text) CTR_##name,
	COUNTERS(X)
#undef X
	CTR_COUNT
};

/* Several sets, so that threads that count the same thing seldom write to the same cache line. */
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
