/*
 * umap_rig.h - a file with known bytes, and a region over it, for the tests of gaia/umap.h.
 */
#ifndef UMAP_RIG_H
#define UMAP_RIG_H

#include <signal.h>
#include <stdbool.h>

#include "gaia/umap.h"

struct rig {
	char path[64];		/* unlinked at the end */
	int fd;
	size_t length;
	unsigned char *content;	/* the file's, at the beginning */
	struct gaia_umap_segment segment;
	struct gaia_umap_config config;	/* over all of the file, for reading and writing; to be changed before rig_map() */
	unsigned char *view;
};

struct rig *rig_create(size_t length);

/* Regions are made so that who touches a page serves itself (GAIA_UMAP_BY_SIGNAL). */
bool rig_by_signal(void);
#define NOT_BY_SIGNAL \
	do { \
		if (rig_by_signal()) \
			cr_skip_test("system calls do not bring pages of regions with GAIA_UMAP_BY_SIGNAL"); \
	} while (0)

/* Skips the test where there is no paging. */
void rig_map(struct rig *rig);
void rig_unmap(struct rig *rig);	/* and end */
void rig_end(struct rig *rig);

/* The first rig->length bytes of the file, by read(2), are these. */
void rig_check_file(struct rig *rig, const unsigned char *expected);
struct gaia_umap_stats rig_stats(struct rig *rig);

/* Whether touching it raises SIGBUS. */
bool rig_bus(volatile unsigned char *at);
/* For tests in which a child of fork() makes threads, which ThreadSanitizer ends; or that touch what the library is replacing. */
#ifdef __SANITIZE_THREAD__
#define NOT_FOR_TSAN cr_skip_test("ThreadSanitizer takes it for a mistake (umap_rig.h)")
#else
#define NOT_FOR_TSAN (void)0
#endif
/* For tests that fork() beside threads which allocate: its allocator is not locked meanwhile (GCC 12, seen), so the child may wait for ever. */
#ifdef __SANITIZE_ADDRESS__
#define NOT_FOR_ASAN cr_skip_test("AddressSanitizer does not survive fork() beside threads (umap_rig.h)")
#else
#define NOT_FOR_ASAN (void)0
#endif
/* Run it in a child; it returns whether all is well. */
bool rig_in_child(bool (*run)(struct rig *rig), struct rig *rig);

/* Why this cannot be made. */
int rig_errno(const struct gaia_umap_config *c);

#endif
