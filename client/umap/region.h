/*
 * region.h - making regions, and what the calls need of that.
 */
#ifndef UMAP_REGION_H
#define UMAP_REGION_H

#include "internal.h"

/* Turn a negative errno into -1 and errno. */
int umap_result(int err);

/* Write what is dirty in the range, and tell the error that was kept. */
int umap_flush(struct umap_region *r, uint64_t start, uint64_t end, bool sync);

/* Regions that are ordinary mappings (mmap.c). */
int umap_mmap_create(struct umap_region *r, const struct gaia_umap_config *c);
int umap_mmap_prefetch(struct umap_region *r, void *const *pages, size_t n, bool wait);
int umap_mmap_advise(struct umap_region *r, uint64_t start, uint64_t end, int advice);

/* Regions that are a daemon's memory (host.c). Whether one may be tried; what fails there is to be made otherwise. */
bool umap_host_may_be(const struct gaia_umap_config *c);
int umap_host_create(struct umap_region *r, const struct gaia_umap_config *c);
void umap_host_end(struct umap_region *r);

/* How much memory a region may have of its own, in bytes. */
uint64_t umap_budget(const struct umap_region *r, const struct gaia_umap_config *c);

/* Addresses for the view, mapped without access, aligned to its page size; or those of the configuration. */
int umap_reserve(struct umap_region *r, const struct gaia_umap_config *c, char **out);

struct umap_call {
	int cancel;
	sigset_t signals;
};

/*
 * First in every call: as in client.c, no call is a cancellation point. Signals come after it: their handlers may touch regions, and wait for locks that
 * this thread has.
 */
struct umap_call umap_begin_call(void);
void umap_end_call(struct umap_call *call);
#define NOT_CANCELLED __attribute__((cleanup(umap_end_call), unused)) struct umap_call call = umap_begin_call()

#endif
