/*
 * run.h - building a device operation.
 */
#ifndef GAIA_PAGECACHE_RUN_H
#define GAIA_PAGECACHE_RUN_H

#include <stddef.h>

#include "device/device.h"

/* Add a page to the runs of @op; if it continues the last run, to that. */
static inline void dev_run_add(struct dev_op *op, struct dev_run *runs, struct devmem *mem,
			       unsigned page, void *host, struct devmem *other)
{
	struct dev_run *last = op->n > 0 ? &runs[op->n - 1] : NULL;

	if (last && last->mem == mem && last->other == other &&
	    last->page + last->npages == page &&
	    (host ? (char *)last->host + (size_t)last->npages * GAIA_PAGE == host : !last->host)) {
		last->npages++;
		return;
	}
	runs[op->n++] = (struct dev_run){ .mem = mem, .other = other, .page = page, .npages = 1,
					  .host = host };
}

#endif
