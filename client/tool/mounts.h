/*
 * mounts.h - what is mounted, as a process's mountinfo tells it; no mount is touched, as it may not answer.
 */
#ifndef GAIA_TOOL_MOUNTS_H
#define GAIA_TOOL_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>

#define GAIAFS_TYPE "fuse.gaiafs"

/* A line of a process's mountinfo. */
struct mount_entry {
	unsigned id, major, minor;
	unsigned owner; /* who has mounted it, of a FUSE file system; else 0 */
	char *point;
	char *type;
	char *source;
};

void free_entry(struct mount_entry *e);

/* Whether neither root has mounted it nor the caller. */
bool is_others(const struct mount_entry *e);

/* The last mount of @table that @matches accepts: the topmost, where several are stacked. False: there is none. */
bool find_mount(const char *table, bool (*matches)(const struct mount_entry *e, const void *arg), const void *arg, struct mount_entry *out);

/*
 * The mounts of gaiafs here, to be freed one by one and as a whole: each file system once, and not those that another mount at
 * the same place covers. Those of root and of the caller come first: others must not be able to crowd them out. NULL: there are none.
 */
struct mount_entry *gaiafs_mounts(size_t *n);

#endif
