/* settings.h - what regions of umap/umap.h are made with: from the environment, and from umapcfg_set_...() since. */
#ifndef GAIA_COMPAT_SETTINGS_H
#define GAIA_COMPAT_SETTINGS_H

#include <stdint.h>

struct settings {
	uint64_t page_size;   /* bytes, as the program set it */
	uint64_t pages;	      /* of a region's buffer at most */
	uint64_t read_ahead;  /* pages; 0: the library decides */
	unsigned evict_high, evict_low; /* percent */
};

/* What is set now. Thread-safe. */
struct settings settings_now(void);

/* The page size that gaia_umap() can have: the largest power of two that divides the program's, at most 2 MiB. */
uint64_t settings_page_size(const struct settings *settings);

#endif
