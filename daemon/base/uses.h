/*
 * uses.h - what each client and each file uses: bytes that are moved for it, what its calls wait for, memory that it has.
 *
 * The columns are said here only: the rows of clients in `gaia status` and of files in the report for `gaia top`, and what gaia(1) says
 * of them, are made from these tables.
 *
 * A thread that carries out a client's call says so by uses_enter(); what it moves and waits for until uses_leave() counts for the
 * client. What is read ahead for a client is moved for it, too, but the client does not wait: uses_enter_ahead(). Work for several
 * clients, or none (write-back by age), counts for no client. Any thread may count; values that are read together are not a snapshot.
 */
#ifndef GAIA_BASE_USES_H
#define GAIA_BASE_USES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

/* Bytes, since the client connected or the file came into the cache. */
#define MOVED(X)                                                                                        \
	X(to_device_bytes, "bytes copied or merged into devices' pages, from home memory or another device") \
	X(from_device_bytes, "bytes copied from devices into home memory")                              \
	X(from_storage_bytes, "bytes read from storage")                                                \
	X(to_storage_bytes, "bytes written to storage")                                                 \
	X(released_bytes, "pages that releases found changed, in bytes")

#define WAITS(X)                                                                                        \
	X(room, "room on a device: for others' memory to leave it")                                     \
	X(clients, "other clients, to give up a chunk; or the client itself, to map what it is handed") \
	X(pages, "pages that other threads have locked")                                                \
	X(kernel, "the kernel, to drop what it caches of the file")     \
	X(device, "operations of devices")                                                              \
	X(storage, "reads, writes and syncs of the backing store")

/* What a client has at the moment, in bytes. */
#define CLIENT_AMOUNTS(X)                                                                               \
	X(mapped_bytes, "what its mappings cover, whether it is in memory or not; one on the host that is written to counts twice")                      \
	X(device_bytes, "memory of devices that its mappings have, whole chunks: with other clients, if they share it") \
	X(host_bytes, "the same of the host as a device, which is home memory")                         \
	X(private_bytes, "of both, memory that only this user's clients have who may not write the file") \
	X(pinned_bytes, "pages that it has acquired and not released: these stay where they are")

/* What there is of a file, in bytes. */
#define FILE_AMOUNTS(X)                                                                                 \
	X(home_bytes, "its pages in home memory")                                                       \
	X(device_bytes, "memory of devices that it has, whole chunks")                                  \
	X(pinned_bytes, "of that, chunks that somebody has acquired, or that are pinned (*gaia pin*)")  \
	X(private_bytes, "of that, copies for users who may not write the file")                        \
	X(parked_bytes, "its pages that left home memory and are parked on devices")                    \
	X(dirty_bytes, "what storage lacks of it")

#define X(name, text) MOVED_##name,
enum moved { MOVED(X) MOVED_COUNT };
#undef X
#define X(name, text) WAIT_##name,
enum wait_for { WAITS(X) WAIT_COUNT };
#undef X
#define X(name, text) CLIENT_##name,
enum client_amount { CLIENT_AMOUNTS(X) CLIENT_AMOUNT_COUNT };
#undef X
#define X(name, text) FILE_##name,
enum file_amount { FILE_AMOUNTS(X) FILE_AMOUNT_COUNT };
#undef X

extern const char *const moved_names[MOVED_COUNT], *const wait_names[WAIT_COUNT];
extern const char *const client_amount_names[CLIENT_AMOUNT_COUNT], *const file_amount_names[FILE_AMOUNT_COUNT];

/* All zeros: nothing was moved. */
struct moved_bytes {
	atomic_uint_least64_t of[MOVED_COUNT];
};

/* A client's. */
struct uses {
	struct moved_bytes moved;
	pthread_mutex_t lock; /* a leaf, held for some instructions */
	/* lock. */
	struct waits {
		unsigned now;	/* threads that wait */
		uint64_t sum;	/* of ticks (clock.h) that were waited, less the times when those began that wait now */
	} waits[WAIT_COUNT];
};

void uses_init(struct uses *u);
void uses_destroy(struct uses *u);

/* For whom the thread moves bytes, and who waits when it does. NULL: nobody in particular. */
struct working_for {
	struct uses *moves, *waits;
};
extern __thread struct working_for working_for;

/* From now on the thread works for @u, which stays until the thread calls uses_leave() with what this returns. */
static inline struct working_for uses_enter(struct uses *u)
{
	struct working_for before = working_for;

	working_for = (struct working_for){ u, u };
	return before;
}

/* The same, but nobody waits for the thread. */
static inline struct working_for uses_enter_ahead(struct uses *u)
{
	struct working_for before = working_for;

	working_for = (struct working_for){ u, NULL };
	return before;
}

static inline void uses_leave(struct working_for before)
{
	working_for = before;
}

/* Bytes were moved: of the file whose @file is, for whom the thread works for. */
static inline void moved(struct moved_bytes *file, enum moved what, uint64_t bytes)
{
	struct uses *u = working_for.moves;

	atomic_fetch_add_explicit(&file->of[what], bytes, memory_order_relaxed);
	if (u)
		atomic_fetch_add_explicit(&u->moved.of[what], bytes, memory_order_relaxed);
}

static inline uint64_t moved_get(const struct moved_bytes *m, enum moved what)
{
	return atomic_load_explicit(&m->of[what], memory_order_relaxed);
}

/* The thread is about to wait; pass what this returns to wait_end(). One wait at a time. */
struct uses *wait_begin_slow(struct uses *u, enum wait_for what);
void wait_end_slow(struct uses *u, enum wait_for what);

static inline struct uses *wait_begin(enum wait_for what)
{
	return working_for.waits ? wait_begin_slow(working_for.waits, what) : NULL;
}

static inline void wait_end(struct uses *u, enum wait_for what)
{
	if (u)
		wait_end_slow(u, what);
}

/* Nanoseconds that were waited, by all threads, waits that are under way included; *@now: threads that wait. */
uint64_t uses_waited_ns(struct uses *u, enum wait_for what, unsigned *now);

#endif
