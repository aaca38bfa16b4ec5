/*
 * memory.c - see memory.h.
 */
#include "base/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where each version of cgroups is mounted. The last row: version 2 beside version 1. */
static const struct hierarchy {
	const char *mount, *file;
	bool v1;
} hierarchies[] = {
	{ "/sys/fs/cgroup", "memory.max", false },
	{ "/sys/fs/cgroup/unified", "memory.max", false },
	{ "/sys/fs/cgroup/memory", "memory.limit_in_bytes", true },
};

/* Lower @least to the limit in the file, if that is smaller. A file that is missing, or says "max", limits nothing. */
static void take_limit(const char *path, struct memory_limit *least)
{
	unsigned long long bytes;
	FILE *f = fopen(path, "re");

	if (!f)
		return;
	if (fscanf(f, "%llu", &bytes) == 1 && bytes < least->bytes) {
		least->bytes = bytes;
		snprintf(least->from, sizeof(least->from), "%s", path);
	}
	fclose(f);
}

/*
 * Take the limits of the group and of those above it. In a container that sees only a part of the tree the group's
 * path may not exist below the mount; then the mount itself is the container's group.
 */
static void take_limits(const char *root, const struct hierarchy *h, char *group,
			struct memory_limit *least)
{
	char path[PATH_MAX], *slash;

	for (;;) {
		int n = snprintf(path, sizeof(path), "%s%s%s/%s", root, h->mount, group, h->file);

		if (n > 0 && n < (int)sizeof(path))
			take_limit(path, least);
		slash = strrchr(group, '/');
		if (!slash)
			return;
		*slash = '\0';
	}
}

/* Whether a line of /proc/PID/cgroup, "ID:CONTROLLERS:PATH", belongs to the hierarchy. */
static bool is_of(const char *controllers, const struct hierarchy *h)
{
	char list[256], *rest = list, *word;

	if (!h->v1)
		return !*controllers;
	snprintf(list, sizeof(list), "%s", controllers);
	while ((word = strsep(&rest, ",")))
		if (!strcmp(word, "memory"))
			return true;
	return false;
}

static void take_line(const char *root, char *line, struct memory_limit *least)
{
	char *controllers, *group;

	line[strcspn(line, "\n")] = '\0';
	controllers = strchr(line, ':');
	group = controllers ? strchr(controllers + 1, ':') : NULL;
	if (!group)
		return;
	*controllers++ = '\0';
	*group++ = '\0';
	for (size_t i = 0; i < sizeof(hierarchies) / sizeof(hierarchies[0]); i++) {
		char copy[PATH_MAX];

		if (!is_of(controllers, &hierarchies[i]))
			continue;
		/* "/" is the top; "/../x" is a group outside of the part of the tree that is visible here. */
		snprintf(copy, sizeof(copy), "%s", strcmp(group, "/") && !strstr(group, "/..") ? group : "");
		take_limits(root, &hierarchies[i], copy, least);
	}
}

void memory_limit(const char *root, struct memory_limit *out)
{
	char path[PATH_MAX], line[PATH_MAX + 256];
	FILE *f;

	out->bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	out->from[0] = '\0';
	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	f = fopen(path, "re");
	if (!f)
		return;
	while (fgets(line, sizeof(line), f))
		take_line(root, line, out);
	fclose(f);
}
