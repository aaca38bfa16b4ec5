/*
 * users.h - what each user has pinned. Owners of the mount are not counted.
 */
#ifndef GAIA_PAGECACHE_USERS_H
#define GAIA_PAGECACHE_USERS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "pagecache/cache.h"

struct cache_device;
struct mapping;
struct pinner;
struct replica;

/* Whether the user may pin these replicas (NULL: one that has still to be made). */
bool user_may_pin(const struct mapping *m, struct replica *const *reps, uint64_t n);
/* -ENOMEM, and a line in the log. */
int user_refuse(const struct mapping *m);
/*
 * Count these replicas, which are pinned, as pinned by the user, once each: all, or none if the user may not pin so many. Takes
 * dev->reserve, so that a thread that decides what an acquire gets either counts them or is counted.
 */
bool user_pin_all(const struct mapping *m, struct replica *const *reps, uint64_t n);
void user_unpin_all(const struct mapping *m, struct replica *const *reps, uint64_t n);
/* For a grant whose acquire found room when it began. chunk->lock is held. */
void user_pin(const struct mapping *m, struct replica *rep);
void user_unpin(const struct mapping *m, struct replica *rep);
/* Bytes of a device that one user may have pinned. */
uint64_t user_limit(const struct cache_device *dev);
/* dev->lock held. Chunks of the files that the user has pinned to the device; so many more, or less. */
uint64_t user_file_chunks(const struct cache_device *dev, uid_t uid);
void user_file_chunks_more(struct cache_device *dev, uid_t uid, uint64_t n);
void user_file_chunks_less(struct cache_device *dev, uid_t uid, uint64_t n);
/* dev->lock held. The unit counts for this user, who has pinned its file; not any more; not for any user. Each may be called again. */
void user_file_pinned(struct replica *unit, uid_t uid);
void user_file_unpinned(struct replica *unit, uid_t uid);
void users_file_unpinned(struct replica *unit);
/* dev->lock held. Whether one chunk more may be read ahead for the user; and one more, or less, is there. */
bool user_may_ahead(const struct cache_device *dev, const struct cache_user *user);
/* Whether the user may have one more when one of @other's that nobody has used is gone, or sooner. */
bool user_ahead_helps(const struct cache_device *dev, const struct cache_user *user, const struct cache_user *other);
void user_ahead_more(struct cache_device *dev, const struct cache_user *user);
void user_ahead_less(struct cache_device *dev, const struct cache_user *user);
uint64_t user_ahead(const struct cache_device *dev, const struct cache_user *user);
/* dev->lock held. Once more, or less, of the memory whose list it is, which has so many chunks. */
void user_pin_more(struct cache_device *dev, struct pinner **pinners, uid_t uid, unsigned chunks);
void user_pin_less(struct cache_device *dev, struct pinner **pinners, uid_t uid, unsigned chunks);

#endif
