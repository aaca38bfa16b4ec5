/*
 * home.h - contents of home's pages: read.c, write.c, fill.c, source.c.
 */
#ifndef GAIA_PAGECACHE_HOME_H
#define GAIA_PAGECACHE_HOME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "pagecache/cache.h"
#include "pagecache/readcost.h"

struct cfile;
struct chunk;
struct fill;

/*
 * Make home present and current for pages [a, b), all locked exclusively: merge what devices released, read what is absent.
 * file->range is held. Only pages below the end of the file.
 */
int home_bring(struct chunk *ch, unsigned a, unsigned b);
/*
 * Only read the absent ones that are in @pages (one bit for each page), all at the same time, without regard to devices. Both for who is about to
 * change them.
 */
int home_fill_some(struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages);
/*
 * The same in two steps: in between pages are on their way, from the store and from devices that have them (readcost.h). They stay
 * locked, and file->range held, until everything that was begun, for whatever pages, has ended. All by one thread.
 */
struct fills {
	STAILQ_HEAD(, fill) list;   /* under way from the store; */
	STAILQ_HEAD(, fill) copies; /* from devices */
	uint64_t began;		  /* ns, of the first from the store; 0: there was none */
	bool ahead;		  /* reads are begun before they are needed */
	bool in_order;		  /* reads continue what lies before them in the file */
	bool more;		  /* more are begun before any is waited for */
	bool may_probe;		  /* some may come from a source that seems dearer */
	unsigned devices_only;	  /* 0, or a page of the chunk: from there on what no device gives stays absent */
	bool quiet;		  /* nobody has asked for it: what fails is counted, and not logged; and home evicts nothing (-ENOBUFS: it is full) */

	bool made_room; /* for some of them pages had to leave home */
	/* If this is a probe: */
	struct read_cost *probe; /* of this source */
	uint64_t probe_began, instead_ns;
	bool to_change; /* the pages are about to be changed: equal ones are not looked for (dedup.h) */
};
#define FILLS(name, ahead_)                                                                                       \
	{ .list = STAILQ_HEAD_INITIALIZER((name).list), .copies = STAILQ_HEAD_INITIALIZER((name).copies), .ahead = (ahead_) }
/* The absent ones of pages [a, b) that are in @pages (a bit for each; NULL: all). It is ended also after an error. */
int home_fill_begin(struct fills *fills, struct chunk *ch, unsigned a, unsigned b, const uint64_t *pages);
/* 0 or the first error; what was read is in home in any case. */
int home_fill_end(struct fills *fills);
/* cache_write() for callers that hold file->range; @buf NULL: zeros. */
int home_write(struct cfile *f, const void *buf, size_t len, uint64_t off,
	       enum cache_write_kind kind);
extern const char frame_zeros[GAIA_PAGE];
/* How many bytes of the page are below the end of the file: 0 to GAIA_PAGE. */
unsigned page_limit(const struct chunk *ch, unsigned i);

#endif
