/*
 * victim.h - pages that left home, parked on devices: victim.c (which pages, and what becomes of them), slots.c (their places), slabs.c (the memory).
 *
 * A device's memory that no replica needs is cut into slots of a page each: victim slabs, chunks of the device that are never exported to
 * a client. When a clean page leaves home for want of room, and it has left home before not long ago (policy/ghosts.h), its bytes are copied to a
 * slot: it is *parked*. When it is needed again it may come from there instead of the store (source.c). The slot stays until the page's bytes
 * change, its place is needed for another page, or the slab is given up. Equal pages that had one frame at home share a slot.
 *
 * A page's slot has what home's page has, or would have if it were present (26): whoever changes home's bytes drops the slot before anybody
 * could read them. The places where that happens are pages_become(), for everything that makes a page dirty, and those that remove
 * contents (resize.c).
 *
 * Only clean pages are parked, so a device that is lost, or an operation that fails, loses nothing. Not parked are pages of files that
 * are passed through: there home is no copy of the store's that could be read again.
 *
 * Out: the bytes are copied to a batch in host memory, and the page has left home; batches of VICTIM_BATCH pages are one operation of the device,
 * for which nobody waits. Until it has ended a slot cannot be read; the page comes from the store meanwhile. If there is no room in a batch,
 * or no slot, the page is not parked.
 *
 * Replicas come first: when a device has no memory for them slabs are given up (victim_give_up()), before anything is evicted or fails.
 *
 * victims.lock guards the index and the slots; it is a leaf (README.md, "Rules"). A chunk with parked pages is referenced.
 */
#ifndef GAIA_PAGECACHE_VICTIM_H
#define GAIA_PAGECACHE_VICTIM_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct cache;
struct cache_config;
struct cache_device;
struct chunk;
struct devmem;

#define VICTIM_BATCH 256u /* pages of an operation */

/* If some device is to have parked pages: c->victims, else NULL. Starts the thread that makes slabs. */
int victims_create(struct cache *c, const struct cache_config *config);
/* Nothing runs any more; the pages are parked still. */
void victims_stop(struct cache *c);
/* No page is parked any more, and all devices are idle. */
void victims_destroy(struct cache *c);

/*
 * Page i, which is clean, locked by nobody else, and present, is about to leave home: park it, if the policy wants it and there is room at
 * once. chunk->lock is held. The caller then calls victims_send(), without it.
 */
__attribute__((cold)) void victim_offer(struct chunk *ch, unsigned i);
/* Have the devices copy what has been collected, if that is a batch; @all: in any case. Waits for nothing. */
__attribute__((cold)) void victims_send(struct cache *c, bool all);

/* The page's bytes are not what is parked any more, or about to change: forget them. chunk->lock is held. */
void victim_drop_slot(struct chunk *ch, unsigned i);
/* All of its pages. */
void victim_drop_chunk(struct chunk *ch);
/* End the references to chunks that have no parked pages any more. For the flusher. */
void victims_reap(struct cache *c);

/*
 * Which of the chunk's pages page[0..n), which are absent and locked by the caller, can be read from slots of @dev: slot[k] is set and
 * stays until victim_read_ended(), else 0. chunk->lock is held. Returns how many.
 */
unsigned victim_find(struct chunk *ch, const struct cache_device *dev, const uint16_t *page, unsigned n, uint32_t *slot);
/*
 * Of these pages those that wait for their way to a device, or are on it: so they are in memory still. took[k]: page[k]'s bytes are in frame[k].
 * chunk->lock is held. Returns how many.
 */
unsigned victim_take_coming(struct chunk *ch, const uint16_t *page, unsigned n, const frame_t *frame, bool *took);
/*
 * With --dedup: page i, which is locked by the caller, has just come home from there, and perhaps got the frame of an equal one: so other pages that
 * have this frame may be parked there, too. chunk->lock is held.
 */
void victim_came(struct chunk *ch, unsigned i, uint32_t slot);
/* The device's memory and the place in it. @tag: that of its bytes (shares.h), if it is known: it need not be computed again; 0: it is not. */
struct devmem *victim_place(struct cache *c, uint32_t slot, unsigned *page, uint32_t *tag);
/* They were read, or will not be (0: nothing). @failed: what is there cannot be read. Any thread, also a device's. */
void victim_read_ended(struct cache *c, const uint32_t *slot, unsigned n, bool failed);

/* A replica needs memory of the device, which has none: give up a slab. May wait for operations of the device. False: there is none. */
bool victim_give_up(struct cache_device *dev);

/* Pages of the chunk that are parked. chunk->lock is held. */
unsigned victim_count(const struct chunk *ch);
/* Bytes of the device that are slabs. */
uint64_t victim_bytes(const struct cache_device *dev);
/* Pages that are parked in slots that they share, beyond the first of each. */
uint64_t victims_saved(struct cache *c);
/* For cache_check(): wait until nothing is under way; then a bug() if index and slots do not agree, or a slot has not what home has. */
void victims_check(struct cache *c);
/* The same of the chunk's index, afterwards. chunk->lock is held. */
void victim_check_chunk(const struct chunk *ch);

#endif
