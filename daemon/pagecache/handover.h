/*
 * handover.h - handing chunks to clients. [W].
 */
#ifndef GAIA_PAGECACHE_HANDOVER_H
#define GAIA_PAGECACHE_HANDOVER_H

#include <stdbool.h>
#include <stdint.h>

struct grant;
struct mapping;

/* Hand the chunks of grant[0..n), whose replicas are pinned, to the client if it does not map them. 0: it says that it maps them. */
int grants_deliver(struct mapping *m, struct grant **grant, uint64_t n);
/*
 * If another thread is handing the chunk over, wait until it has ended. @seq becomes at least the message by which the client
 * has it. False: the client does not have it, since the other thread failed.
 */
bool delivery_wait(struct grant *g, uint64_t *seq);

#endif
