/*
 * memory.c - chunks of GPU memory.
 *
 * Chunk i is mapped at slot i of one reserved address range. It is an allocation of its own, since only whole
 * allocations can be exported; or GAIA_EXTENT_CHUNKS of them, side by side, are one: an extent. Extents have slots of their
 * own, so many that there is a place for each that fits into the capacity. An extent is mapped, given access to, and
 * unmapped as a whole, and that only when all of its chunks are freed; until then they all count towards the capacity.
 *
 * A descriptor or a mapping of a chunk in another process keeps its memory alive, and
 * nothing can take it back. So a chunk that was ever exported is destroyed when it is freed, not used again: a
 * client that claims to have let go of it may lie, and must not see, or spoil, what others keep there next. Memory
 * that such a client still has does not count in the budget any more.
 *
 * Chunks that were never exported (snapshots, for the most part) are scrubbed and used again. Creating a chunk takes
 * long, so the keeper keeps a few ready; these count towards the capacity. New memory is scrubbed as well: a client
 * gets all of a chunk, and the driver does not promise what is in it. Extents are not kept; to make one, chunks that are
 * kept have to go if there is no other room.
 *
 * In a context that broke, calls may not free anything any more. Its streams, buffers and registrations go when it
 * is reset; then the keeper unmaps the chunks that nobody has.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"
#include "device/cuda/internal.h"

#define MAKE_AT_ONCE 16u /* chunks */
#define READY_LOW 8u	 /* fewer ready: make some */
#define READY_MOST 64u	 /* more are destroyed when they are freed */

#define ARMED_CHUNKS 256u /* in an allocation of hashes */
#define ARMED_BYTES (GAIA_CHUNK_PAGES * sizeof(struct page_hash))

/* ---- addresses ---- */

static unsigned slot_of(const struct cuda *cuda, const struct cuda_chunk *chunk)
{
	return (unsigned)(chunk - cuda->chunk);
}

static CUdeviceptr chunk_address(const struct cuda *cuda, unsigned slot)
{
	return cuda->range + (CUdeviceptr)slot * GAIA_CHUNK;
}

static CUdeviceptr armed_address(const struct cuda *cuda, unsigned slot)
{
	return cuda->armed[slot / ARMED_CHUNKS] + slot % ARMED_CHUNKS * ARMED_BYTES;
}

static const struct cuda_chunk *to_chunk(const struct devmem *mem)
{
	return container_of(mem, const struct cuda_chunk, base);
}

/* The slots of the allocation that has this one: their number, from *@first on. */
static unsigned allocation_around(const struct cuda *cuda, unsigned slot, unsigned *first)
{
	bool joined = slot >= cuda->n_chunks;

	*first = joined ? slot - (slot - cuda->n_chunks) % GAIA_EXTENT_CHUNKS : slot;
	return joined ? GAIA_EXTENT_CHUNKS : 1;
}

struct cuda_chunk *cuda_allocation(struct cuda *cuda, const struct devmem *mem, size_t *bytes)
{
	unsigned first, n = allocation_around(cuda, slot_of(cuda, to_chunk(mem)), &first);

	*bytes = (size_t)n * GAIA_CHUNK;
	return &cuda->chunk[first];
}

CUdeviceptr cuda_page(struct cuda *cuda, const struct devmem *mem, uint32_t page)
{
	return chunk_address(cuda, slot_of(cuda, to_chunk(mem))) + (CUdeviceptr)page * GAIA_PAGE;
}

struct page_hash *cuda_armed(struct cuda *cuda, const struct devmem *mem, uint32_t page)
{
	return (struct page_hash *)armed_address(cuda, slot_of(cuda, to_chunk(mem))) + page;
}

struct cuda_chunk *cuda_find_live(struct cuda *cuda, const struct devmem *mem)
{
	uintptr_t offset = (uintptr_t)mem - (uintptr_t)&cuda->chunk[0].base;
	struct cuda_chunk *chunk;

	if (offset % sizeof(*chunk) || offset / sizeof(*chunk) >= cuda->n_slots)
		return NULL;
	chunk = &cuda->chunk[offset / sizeof(*chunk)];
	return chunk->state == CHUNK_LIVE ? chunk : NULL;
}

/* ---- making and destroying: the chunks are BUSY, no lock is held ---- */

/* cuda_check() for calls that may run out of memory, which is no reason to switch the device off. */
static int check_memory(struct cuda *cuda, CUresult result, const char *call)
{
	return result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : cuda_check(cuda, result, call);
}

/* Zero memory, and wait until that is done. */
static int clear(struct cuda *cuda, CUdeviceptr at, size_t bytes)
{
	int err = cuda_check(cuda, cuda->api->cuMemsetD8Async(at, 0, bytes, cuda->scrubber),
			     "cuMemsetD8Async");

	/* Also after an error: what was queued must not be carried out later. */
	return cuda_drain(cuda, cuda->scrubber) ? -EIO : err;
}

/* Allocate a part of `armed`. It is zeroed, so that nothing is read that was never written. */
static int make_armed_part(struct cuda *cuda, CUdeviceptr *out)
{
	CUdeviceptr part;
	int err = check_memory(cuda, cuda->api->cuMemAlloc(&part, ARMED_CHUNKS * ARMED_BYTES), "cuMemAlloc");

	if (err)
		return err;
	err = clear(cuda, part, ARMED_CHUNKS * ARMED_BYTES);
	*out = part; /* the caller frees it also after an error */
	return err;
}

static int make_armed(struct cuda *cuda, unsigned first, unsigned n)
{
	int err = 0;

	pthread_mutex_lock(&cuda->armed_lock);
	for (unsigned i = first / ARMED_CHUNKS; i <= (first + n - 1) / ARMED_CHUNKS && !err; i++)
		if (!cuda->armed[i])
			err = make_armed_part(cuda, &cuda->armed[i]);
	pthread_mutex_unlock(&cuda->armed_lock);
	return err;
}

/* Zero the chunks, whose memory had other contents before. (Hashes may stay, since no page is armed.) */
static int scrub(struct cuda *cuda, unsigned first, unsigned n)
{
	return clear(cuda, chunk_address(cuda, first), (size_t)n * GAIA_CHUNK);
}

/* Unmap @n consecutive chunks, extents as a whole. After an error the device is off. */
static void unmap(struct cuda *cuda, unsigned first, unsigned n)
{
	CUresult result = cuda->api->cuMemUnmap(chunk_address(cuda, first), (size_t)n * GAIA_CHUNK);
	unsigned of_first, single = allocation_around(cuda, first, &of_first), step;

	/*
	 * Some drivers may unmap only one mapping a call, and refuse more with any error. In a broken context all
	 * calls report the error that broke it; if the chunks were unmapped all the same, these calls are refused,
	 * which does no harm.
	 */
	if (n > single && result) {
		result = CUDA_SUCCESS;
		for (unsigned i = first; i < first + n; i += step) {
			step = allocation_around(cuda, i, &of_first);
			cuda_ended(cuda, cuda->api->cuMemUnmap(chunk_address(cuda, i), (size_t)step * GAIA_CHUNK), "cuMemUnmap");
		}
	}
	cuda_ended(cuda, result, "cuMemUnmap");
	for (unsigned i = first; i < first + n; i += allocation_around(cuda, i, &of_first))
		cuda_ended(cuda, cuda->api->cuMemRelease(cuda->chunk[i].handle), "cuMemRelease");
}

static int create(struct cuda *cuda, size_t bytes, CUmemGenericAllocationHandle *handle)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->ordinal },
		.allocFlags.gpuDirectRDMACapable = cuda->rdma,
	};

	return check_memory(cuda, cuda->api->cuMemCreate(handle, bytes, &prop, 0), "cuMemCreate");
}

/* The chunk of this slot, or, if it is the first of an extent's, the extent. */
static int create_and_map(struct cuda *cuda, unsigned slot)
{
	unsigned first, n = allocation_around(cuda, slot, &first);
	size_t bytes = (size_t)n * GAIA_CHUNK;
	CUmemGenericAllocationHandle handle;
	int err = create(cuda, bytes, &handle);

	if (err)
		return err;
	err = check_memory(cuda, cuda->api->cuMemMap(chunk_address(cuda, slot), bytes, 0, handle, 0), "cuMemMap");
	if (err)
		cuda_ended(cuda, cuda->api->cuMemRelease(handle), "cuMemRelease");
	for (unsigned i = slot; i < slot + n; i++) {
		cuda->chunk[i].handle = handle;
		cuda->chunk[i].readers = 0; /* BUSY: nobody else looks at it */
	}
	return err;
}

/*
 * Make as many chunks as there is memory for, from @first on, mapped and scrubbed. Returns their number, or, if there are
 * none, a negative errno. *@mapped: how many are mapped; after an error, which broke the context, these wait for its reset.
 */
static int make_chunks(struct cuda *cuda, unsigned first, unsigned n, unsigned *mapped)
{
	const CUmemAccessDesc access = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->ordinal },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	unsigned made = 0, start;
	int err = make_armed(cuda, first, n);

	while (!err && made < n) {
		err = create_and_map(cuda, first + made);
		if (!err)
			made += allocation_around(cuda, first + made, &start);
	}
	if (err && (err != -ENOMEM || !made))
		goto unmap;
	err = check_memory(cuda,
			   cuda->api->cuMemSetAccess(chunk_address(cuda, first), (size_t)made * GAIA_CHUNK,
						     &access, 1),
			   "cuMemSetAccess");
	if (!err)
		err = scrub(cuda, first, made);
unmap:
	*mapped = made;
	if (!err)
		return (int)made;
	if (made && !atomic_load(&cuda->off)) {
		unmap(cuda, first, made);
		if (!atomic_load(&cuda->off))
			*mapped = 0;
	}
	return err;
}

/* ---- states: lock held ---- */

/* How many more chunks there may be. */
static unsigned room(const struct cuda *cuda)
{
	return cuda->n_chunks - (cuda->n_ready + cuda->n_stale + cuda->n_ended + cuda->n_live + cuda->n_left + cuda->n_busy);
}

/* Consecutive free slots, made BUSY: up to @most of them, from *@first on. 0: none. */
static unsigned take_slots(struct cuda *cuda, unsigned most, unsigned *first)
{
	unsigned n = 0;

	most = MIN(most, room(cuda));
	for (unsigned k = 0; k < cuda->n_chunks && most; k++) {
		unsigned i = (cuda->hint + k) % cuda->n_chunks;

		if (cuda->chunk[i].state != CHUNK_NONE)
			continue;
		*first = i;
		while (n < most && i < cuda->n_chunks && cuda->chunk[i].state == CHUNK_NONE) {
			cuda->chunk[i++].state = CHUNK_BUSY;
			n++;
		}
		cuda->hint = i % cuda->n_chunks;
		break;
	}
	cuda->n_busy += n;
	return n;
}

/* The same for those of an extent; there is room for it. False: none, as the device gives no extents. */
static bool take_extent_slots(struct cuda *cuda, unsigned *first)
{
	unsigned extents = (cuda->n_slots - cuda->n_chunks) / GAIA_EXTENT_CHUNKS;

	for (unsigned k = 0; k < extents; k++) {
		unsigned i = (cuda->extent_hint + k) % extents;

		*first = cuda->n_chunks + i * GAIA_EXTENT_CHUNKS;
		if (cuda->chunk[*first].state != CHUNK_NONE)
			continue;
		for (unsigned at = *first; at < *first + GAIA_EXTENT_CHUNKS; at++)
			cuda->chunk[at].state = CHUNK_BUSY;
		cuda->n_busy += GAIA_EXTENT_CHUNKS;
		cuda->extent_hint = (i + 1) % extents;
		return true;
	}
	return false;
}

/* The list of chunks in that state, or NULL. */
static struct cuda_chunk_list *list_of(struct cuda *cuda, enum chunk_state state, unsigned **n)
{
	switch (state) {
	case CHUNK_READY:
		*n = &cuda->n_ready;
		return &cuda->ready;
	case CHUNK_STALE:
		*n = &cuda->n_stale;
		return &cuda->stale;
	case CHUNK_ENDED:
		*n = &cuda->n_ended;
		return &cuda->ended;
	default:
		return NULL;
	}
}

static void end_busy(struct cuda *cuda, struct cuda_chunk *chunk, enum chunk_state next)
{
	unsigned *n;
	struct cuda_chunk_list *list = list_of(cuda, next, &n);

	bug_on(chunk->state != CHUNK_BUSY);
	chunk->state = next;
	cuda->n_busy--;
	if (list) {
		LIST_INSERT_HEAD(list, chunk, link);
		++*n;
	} else if (next == CHUNK_LIVE) {
		cuda->n_live++;
	}
	pthread_cond_broadcast(&cuda->memory);
}

static void take_listed(struct cuda *cuda, struct cuda_chunk *chunk)
{
	unsigned *n;

	bug_on(!list_of(cuda, chunk->state, &n));
	LIST_REMOVE(chunk, link);
	--*n;
	chunk->state = CHUNK_BUSY;
	cuda->n_busy++;
}

static struct cuda_chunk *take_first(struct cuda *cuda, const struct cuda_chunk_list *list)
{
	struct cuda_chunk *chunk = LIST_FIRST(list);

	if (chunk)
		take_listed(cuda, chunk);
	return chunk;
}

/* Make @chunk and its neighbours in the same state BUSY. Returns their number, from *@first on. */
static unsigned take_run(struct cuda *cuda, const struct cuda_chunk *chunk, unsigned *first)
{
	enum chunk_state state = chunk->state;
	unsigned i = slot_of(cuda, chunk), n;

	while (i > 0 && cuda->chunk[i - 1].state == state)
		i--;
	*first = i;
	for (n = 0; i < cuda->n_slots && cuda->chunk[i].state == state; i++, n++)
		take_listed(cuda, &cuda->chunk[i]);
	return n;
}

/* ---- the keeper ---- */

static bool wants_more(const struct cuda *cuda)
{
	return cuda->n_ready + cuda->n_stale < READY_LOW && !cuda->physical_full && !cuda->extents_wanted && room(cuda);
}

/* Those that lie side by side at once. lock is held, but dropped meanwhile. */
static void scrub_stale(struct cuda *cuda)
{
	unsigned first, n = take_run(cuda, LIST_FIRST(&cuda->stale), &first);
	int err;

	pthread_mutex_unlock(&cuda->lock);
	err = scrub(cuda, first, n);
	pthread_mutex_lock(&cuda->lock);
	for (unsigned i = first; i < first + n; i++)
		end_busy(cuda, &cuda->chunk[i], err ? CHUNK_STALE : CHUNK_READY);
}

static void make_ready(struct cuda *cuda)
{
	unsigned first = 0, n = take_slots(cuda, MAKE_AT_ONCE, &first), mapped = 0;
	int made;

	pthread_mutex_unlock(&cuda->lock);
	made = make_chunks(cuda, first, n, &mapped);
	pthread_mutex_lock(&cuda->lock);
	if (made == -ENOMEM)
		cuda->physical_full = true;
	for (unsigned i = 0; i < n; i++)
		end_busy(cuda, &cuda->chunk[first + i], (int)i < made ? CHUNK_READY :
							i < mapped    ? CHUNK_ENDED :
									CHUNK_NONE);
}

/* In a context that broke nothing may be freed before the reset. */
static bool may_unmap(const struct cuda *cuda)
{
	return !atomic_load(&cuda->off) || cuda->given_back;
}

/* Unmap all chunks of the list that can be unmapped now. lock is held, but dropped meanwhile. */
static void unmap_listed(struct cuda *cuda, const struct cuda_chunk_list *list)
{
	struct cuda_chunk *chunk;
	unsigned first, n;

	while (may_unmap(cuda) && (chunk = LIST_FIRST(list))) {
		n = take_run(cuda, chunk, &first);
		pthread_mutex_unlock(&cuda->lock);
		unmap(cuda, first, n);
		pthread_mutex_lock(&cuda->lock);
		cuda->physical_full = false;
		for (unsigned i = first; i < first + n; i++)
			end_busy(cuda, &cuda->chunk[i], may_unmap(cuda) ? CHUNK_NONE : CHUNK_ENDED);
	}
}

/* What keep_descriptor() kept. Nobody calls the driver any more. */
static void drop_descriptor(struct cuda *cuda)
{
	if (cuda->kept >= 0)
		close(cuda->kept);
	cuda->kept = -1;
}

/* The device is off: free what its context holds. lock is held, but dropped meanwhile. */
static void give_back(struct cuda *cuda)
{
	while (cuda->outstanding || cuda->n_busy || cuda->readers || cuda->calls)
		pthread_cond_wait(&cuda->memory, &cuda->lock);
	pthread_mutex_unlock(&cuda->lock);
	drop_descriptor(cuda);
	cuda_reset_context(cuda);
	pthread_mutex_lock(&cuda->lock);
	cuda->given_back = true;
	unmap_listed(cuda, &cuda->ready);
	unmap_listed(cuda, &cuda->stale);
}

void *cuda_keeper_main(void *arg)
{
	struct cuda *cuda = arg;

	thread_set_name("cuda-keep");
	(void)cuda_enter(cuda); /* if it fails, the device is off */
	pthread_mutex_lock(&cuda->lock);
	for (;;) {
		bool off = atomic_load(&cuda->off);

		if (off && !cuda->given_back)
			give_back(cuda);
		else if (cuda->stop)
			break;
		else if (cuda->n_ended)
			unmap_listed(cuda, &cuda->ended);
		else if (cuda->n_stale && !off)
			scrub_stale(cuda);
		else if (!off && wants_more(cuda))
			make_ready(cuda);
		else
			pthread_cond_wait(&cuda->memory, &cuda->lock);
	}
	pthread_mutex_unlock(&cuda->lock);
	return NULL;
}

/* ---- the contract ---- */

/* Get a chunk, BUSY and ready to be used. lock is held, but dropped meanwhile. */
static int get_chunk(struct cuda *cuda, struct cuda_chunk **out)
{
	bool full = false; /* all memory of the GPU is in use, not only the device's part */
	unsigned slot, mapped = 0;
	int err;

	while (!atomic_load(&cuda->off)) {
		*out = take_first(cuda, &cuda->ready);
		if (*out)
			return 0;
		*out = take_first(cuda, &cuda->stale);
		if (*out) {
			pthread_mutex_unlock(&cuda->lock);
			err = scrub(cuda, slot_of(cuda, *out), 1);
			pthread_mutex_lock(&cuda->lock);
			if (err)
				end_busy(cuda, *out, CHUNK_STALE);
			return err;
		}
		if (!full && take_slots(cuda, 1, &slot)) {
			pthread_mutex_unlock(&cuda->lock);
			err = make_chunks(cuda, slot, 1, &mapped);
			pthread_mutex_lock(&cuda->lock);
			*out = &cuda->chunk[slot];
			if (err > 0)
				return 0;
			end_busy(cuda, *out, mapped ? CHUNK_ENDED : CHUNK_NONE);
			if (err != -ENOMEM)
				return err;
			full = true;
		} else if (cuda->n_busy || cuda->n_ended) {
			/* One may become ready, or a slot free. */
			pthread_cond_wait(&cuda->memory, &cuda->lock);
			full = false;
		} else {
			return -ENOMEM;
		}
	}
	return -ENODEV;
}

/* It is BUSY, and ready to be used. lock is held. */
static struct devmem *begin_life(struct cuda *cuda, struct cuda_chunk *chunk)
{
	chunk->base.dev = &cuda->base;
	chunk->base.generation = device_new_generation();
	chunk->base.joined = slot_of(cuda, chunk) >= cuda->n_chunks;
	chunk->exported = false;
	memset(chunk->unarmed, 0xff, sizeof(chunk->unarmed));
	end_busy(cuda, chunk, CHUNK_LIVE);
	return &chunk->base;
}

/* It is LIVE, and of an extent. If no other of that is, all of them go. lock is held. */
static void leave_extent(struct cuda *cuda, struct cuda_chunk *chunk)
{
	unsigned first, n = allocation_around(cuda, slot_of(cuda, chunk), &first);
	bool used = false;

	chunk->state = CHUNK_LEFT;
	cuda->n_live--;
	cuda->n_left++;
	for (unsigned i = first; i < first + n; i++)
		used |= cuda->chunk[i].state == CHUNK_LIVE;
	for (unsigned i = first; i < first + n && !used; i++) {
		cuda->chunk[i].state = CHUNK_BUSY;
		cuda->n_left--;
		cuda->n_busy++;
		end_busy(cuda, &cuda->chunk[i], CHUNK_ENDED);
	}
}

/* It is LIVE. lock is held. */
static void end_life(struct cuda *cuda, struct cuda_chunk *chunk)
{
	bool again = !chunk->exported && cuda->n_ready + cuda->n_stale < READY_MOST && !atomic_load(&cuda->off);

	if (chunk->base.joined) {
		leave_extent(cuda, chunk);
		return;
	}
	chunk->state = CHUNK_BUSY;
	cuda->n_live--;
	cuda->n_busy++;
	end_busy(cuda, chunk, again ? CHUNK_STALE : CHUNK_ENDED);
}

int cuda_alloc(struct device *dev, struct devmem **out)
{
	struct cuda *cuda = to_cuda(dev);
	struct cuda_chunk *chunk;
	int err;

	err = cuda_enter_call(cuda);
	if (err)
		return err;
	pthread_mutex_lock(&cuda->lock);
	err = get_chunk(cuda, &chunk);
	if (!err)
		*out = begin_life(cuda, chunk);
	pthread_mutex_unlock(&cuda->lock);
	cuda_leave_call(cuda);
	return err;
}

/* There is room for an extent: make one, of BUSY chunks, from *@out on. lock is held, but dropped meanwhile. */
static int make_extent(struct cuda *cuda, struct cuda_chunk **out)
{
	unsigned first, mapped = 0;
	int made;

	if (!take_extent_slots(cuda, &first))
		return -ENOMEM;
	pthread_mutex_unlock(&cuda->lock);
	made = make_chunks(cuda, first, GAIA_EXTENT_CHUNKS, &mapped);
	pthread_mutex_lock(&cuda->lock);
	*out = &cuda->chunk[first];
	for (unsigned i = first; i < first + GAIA_EXTENT_CHUNKS && made < 0; i++)
		end_busy(cuda, &cuda->chunk[i], mapped ? CHUNK_ENDED : CHUNK_NONE);
	return made < 0 ? made : 0;
}

/* Whether the capacity has room beside all chunks that callers have. lock is held. */
static bool extent_fits(const struct cuda *cuda)
{
	return cuda->n_live + cuda->n_left + GAIA_EXTENT_CHUNKS <= cuda->n_chunks;
}

/* Of the chunks that are kept, as many go as an extent needs. lock is held. */
static void drop_kept(struct cuda *cuda)
{
	while (room(cuda) + cuda->n_ended < GAIA_EXTENT_CHUNKS && cuda->n_ready + cuda->n_stale) {
		struct cuda_chunk *chunk = take_first(cuda, cuda->n_stale ? &cuda->stale : &cuda->ready);

		end_busy(cuda, chunk, CHUNK_ENDED);
	}
}

/*
 * Get an extent, as get_chunk() a chunk. -ENOMEM: the device has no room, or the GPU no memory, for so many chunks
 * together; it may have for single ones. lock is held, but dropped meanwhile.
 */
static int get_extent(struct cuda *cuda, struct cuda_chunk **out)
{
	int err = 1;

	cuda->extents_wanted++;
	while (err == 1) {
		if (atomic_load(&cuda->off)) {
			err = -ENODEV;
		} else if (!extent_fits(cuda)) {
			err = -ENOMEM;
		} else if (room(cuda) >= GAIA_EXTENT_CHUNKS) {
			err = make_extent(cuda, out);
		} else {
			drop_kept(cuda);
			/* Some are ENDED or BUSY now. */
			pthread_cond_wait(&cuda->memory, &cuda->lock);
		}
	}
	if (--cuda->extents_wanted == 0)
		pthread_cond_broadcast(&cuda->memory); /* for the keeper */
	return err;
}

/* As many single chunks, or none. lock is held, but dropped meanwhile. */
static int alloc_singles(struct cuda *cuda, struct devmem *out[GAIA_EXTENT_CHUNKS])
{
	struct cuda_chunk *got[GAIA_EXTENT_CHUNKS];
	unsigned n = 0;
	int err = extent_fits(cuda) ? 0 : -ENOMEM;

	while (!err && n < GAIA_EXTENT_CHUNKS) {
		err = get_chunk(cuda, &got[n]);
		if (!err)
			begin_life(cuda, got[n++]);
	}
	for (unsigned k = 0; k < n && err; k++)
		end_life(cuda, got[k]);
	for (unsigned k = 0; k < n && !err; k++)
		out[k] = &got[k]->base;
	return err;
}

int cuda_alloc_extent(struct device *dev, struct devmem *out[GAIA_EXTENT_CHUNKS])
{
	struct cuda *cuda = to_cuda(dev);
	struct cuda_chunk *first;
	int err;

	err = cuda_enter_call(cuda);
	if (err)
		return err;
	pthread_mutex_lock(&cuda->lock);
	err = get_extent(cuda, &first);
	for (unsigned k = 0; k < GAIA_EXTENT_CHUNKS && !err; k++)
		out[k] = begin_life(cuda, first + k);
	if (err == -ENOMEM)
		err = alloc_singles(cuda, out);
	pthread_mutex_unlock(&cuda->lock);
	cuda_leave_call(cuda);
	return err;
}

/* Calls nothing of CUDA, since CUDA may wait for streams. */
void cuda_free(struct device *dev, struct devmem *mem)
{
	struct cuda *cuda = to_cuda(dev);
	struct cuda_chunk *chunk;

	pthread_mutex_lock(&cuda->lock);
	chunk = cuda_find_live(cuda, mem);
	if (!chunk)
		bug("device %s: free of memory that it does not have: %p", dev->name, (void *)mem);
	if (chunk->in_flight)
		bug("device %s: free of chunk %" PRIu64 " with operations in flight", dev->name,
		    mem->generation);
	end_life(cuda, chunk);
	pthread_mutex_unlock(&cuda->lock);
}

/* The driver could not make a descriptor. It does not say why, but most likely the process has too many. */
static int no_descriptor(struct cuda *cuda)
{
	if (!atomic_exchange(&cuda->told_of_descriptors, true))
		log_warn("device %s: cannot export memory: probably out of descriptors: raise the limit of open files",
			 cuda->base.name);
	return -EMFILE;
}

/*
 * Have one descriptor of memory open, of a chunk that nobody else is given. For the first in a process the driver opens something,
 * and closes it with the last: half a millisecond each (an H200 with driver 580), where all others take 20 us. Without it nothing
 * but time is lost. Called between cuda_enter_call() and cuda_leave_call().
 */
static void keep_descriptor(struct cuda *cuda)
{
	CUmemGenericAllocationHandle handle;
	int fd = -1;

	if (atomic_exchange(&cuda->kept_tried, true) || create(cuda, GAIA_CHUNK, &handle))
		return; /* it was tried before, or there is no room for it */
	if (cuda->api->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
		fd = -1;
	cuda_ended(cuda, cuda->api->cuMemRelease(handle), "cuMemRelease");
	if (fd >= 0)
		(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	cuda->kept = fd;
}

int cuda_export_fd(struct device *dev, struct devmem *mem, bool write)
{
	struct cuda *cuda = to_cuda(dev);
	struct cuda_chunk *chunk;
	CUresult result;
	int fd = -1, err;

	/* The process that imports memory decides about access to it. */
	if (!write)
		return -ENOTSUP;
	pthread_mutex_lock(&cuda->lock);
	chunk = cuda_find_live(cuda, mem);
	if (chunk)
		chunk->exported = true;
	pthread_mutex_unlock(&cuda->lock);
	if (!chunk)
		return -EINVAL;
	err = cuda_enter_call(cuda);
	if (err)
		return err;
	result = cuda->api->cuMemExportToShareableHandle(
		&fd, chunk->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (!result)
		keep_descriptor(cuda);
	cuda_leave_call(cuda);
	if (result == CUDA_ERROR_OPERATING_SYSTEM || result == CUDA_ERROR_OUT_OF_MEMORY)
		return no_descriptor(cuda);
	err = cuda_check(cuda, result, "cuMemExportToShareableHandle");
	if (err)
		return err;
	if (fcntl(fd, F_SETFD, FD_CLOEXEC)) {
		err = -errno;
		close(fd);
		return err;
	}
	return fd;
}

/* ---- life ---- */

static size_t range_bytes(const struct cuda *cuda)
{
	return (size_t)cuda->n_slots * GAIA_CHUNK;
}

static unsigned armed_parts(const struct cuda *cuda)
{
	return (cuda->n_slots + ARMED_CHUNKS - 1) / ARMED_CHUNKS;
}

int cuda_memory_init(struct cuda *cuda)
{
	int err;

	cuda->n_chunks = (unsigned)(cuda->base.capacity / GAIA_CHUNK);
	cuda->n_slots = cuda->n_chunks;
	if (cuda->base.gives_extents)
		cuda->n_slots += cuda->n_chunks / GAIA_EXTENT_CHUNKS * GAIA_EXTENT_CHUNKS;
	cuda->chunk = xcalloc(cuda->n_slots, sizeof(*cuda->chunk));
	cuda->armed = xcalloc(armed_parts(cuda), sizeof(*cuda->armed));
	err = cuda_check(cuda,
			 cuda->api->cuMemAddressReserve(&cuda->range, range_bytes(cuda), GAIA_CHUNK, 0, 0),
			 "cuMemAddressReserve");
	if (!err)
		err = cuda_check(cuda, cuda->api->cuStreamCreate(&cuda->scrubber, CU_STREAM_NON_BLOCKING),
				 "cuStreamCreate");
	return err;
}

void cuda_memory_end(struct cuda *cuda)
{
	drop_descriptor(cuda);
	pthread_mutex_lock(&cuda->lock);
	unmap_listed(cuda, &cuda->stale);
	unmap_listed(cuda, &cuda->ready);
	unmap_listed(cuda, &cuda->ended);
	bug_on(cuda->n_busy || cuda->n_live || cuda->n_left);
	pthread_mutex_unlock(&cuda->lock);
	for (unsigned i = 0; i < armed_parts(cuda); i++) {
		if (cuda->armed[i] && !cuda->reset)
			cuda_ended(cuda, cuda->api->cuMemFree(cuda->armed[i]), "cuMemFree");
		cuda->armed[i] = 0;
	}
	if (cuda->scrubber && !cuda->reset)
		cuda_ended(cuda, cuda->api->cuStreamDestroy(cuda->scrubber), "cuStreamDestroy");
	cuda->scrubber = NULL;
}

void cuda_memory_destroy(struct cuda *cuda)
{
	if (cuda->range)
		cuda_ended(cuda, cuda->api->cuMemAddressFree(cuda->range, range_bytes(cuda)),
			   "cuMemAddressFree");
	free(cuda->armed);
	free(cuda->chunk);
}
