/*
 * metrics.h - what the daemon counts, over HTTP, in OpenMetrics' text format (--metrics).
 *
 * GET /metrics is answered by a thread of its own. What it says names no file, process or user. Names and units follow
 * Prometheus' conventions; the texts are those of base/counters.h.
 */
#ifndef GAIA_METRICS_H
#define GAIA_METRICS_H

#include "base/quota.h"
#include "pagecache/cache.h"

struct metrics;

/*
 * Listen at @where, "unix:PATH", "ADDRESS:PORT" or "PORT" (of 127.0.0.1), and serve until metrics_stop(). @cache and @quota
 * must stay. A socket at PATH is the owner's only (mode 0600); one that a dead daemon has left there is replaced. Logs
 * what fails, and if others than this machine's programs may read. To be called after the last fork().
 *
 * -EINVAL: @where is of no such form; -ENOSYS: built without libmicrohttpd; else the error of the socket.
 */
int metrics_start(const char *where, struct cache *cache, struct quota *quota, struct metrics **out);
/* No request is under way any more afterwards. @m NULL: nothing. */
void metrics_stop(struct metrics *m);

/* Why @where is not of the form that metrics_start() takes, or NULL. */
const char *metrics_fault(const char *where);

#endif
