/*
 * room.h - room for what is acquired.
 */
#ifndef GAIA_PAGECACHE_ROOM_H
#define GAIA_PAGECACHE_ROOM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct grant;
struct mapping;
struct replica;

/*
 * Pins the replicas of the file's chunks index[0..n), in order, made where missing, into @out: all or none (-ENOMEM).
 * Unreleased writes of clients that have died are dropped on the way. [W]
 */
int replicas_pin(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out);
/*
 * The same. But if nothing has to leave for it and nobody is waited for, only the replicas out[0..*kept) have memory then; the others get
 * theirs by promises_keep() (promises.h), or promises_break() comes before their pins end. *kept is @n otherwise.
 * @lacks: see promises_later().
 */
int replicas_pin_piecewise(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out, uint64_t *kept, atomic_bool *lacks);
/* The same, for what nobody needs now: only if it fits beside what is ready for some client, too, which stays ready. */
int replicas_pin_modestly(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out);
/*
 * The same of those that the mapping holds something of, up to the first that it does not: how many. Makes none, and so
 * takes no dev->reserve and waits for no client.
 */
uint64_t replicas_pin_again(struct mapping *m, const uint64_t *index, uint64_t n, struct replica **out);

/*
 * Add a pin to a replica of which the mapping holds something, or will (to_come). One that is ready and held may be idle: while it
 * is ready nobody claims it. mapping->lock is held.
 */
bool grant_pin_held(const struct mapping *m, const struct grant *g);

#endif
