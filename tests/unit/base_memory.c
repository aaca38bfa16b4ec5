/*
 * base_memory.c - tests of base/memory.h, over made-up /proc and /sys.
 */
#include <criterion/criterion.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

#define MIB (1ull << 20)

static char root[64];

/* root/@path, whose directories are made, says @text. */
static void says(const char *path, const char *text)
{
	char full[PATH_MAX];
	FILE *f;

	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *slash = full + strlen(root); (slash = strchr(slash + 1, '/'));) {
		*slash = '\0';
		mkdir(full, 0755);
		*slash = '/';
	}
	f = fopen(full, "w");
	cr_assert_not_null(f, "%s", full);
	fputs(text, f);
	fclose(f);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static void begin(void)
{
	strcpy(root, "/tmp/gaia-memory-XXXXXX");
	cr_assert_not_null(mkdtemp(root));
}

static void end(void)
{
	nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* The limit is @bytes, and root/@from said so. */
static void limit_is(uint64_t bytes, const char *from)
{
	struct memory_limit limit;

	memory_limit(root, &limit);
	cr_assert_eq(limit.bytes, bytes, "%llu", (unsigned long long)limit.bytes);
	cr_assert_eq(strncmp(limit.from, root, strlen(root)), 0, "%s", limit.from);
	cr_assert_str_eq(limit.from + strlen(root), from);
}

static void limit_is_the_machines(void)
{
	struct memory_limit limit;

	memory_limit(root, &limit);
	cr_assert_eq(limit.bytes, (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
	cr_assert_str_eq(limit.from, "");
}

Test(memory, is_the_machines_without_cgroups, .init = begin, .fini = end)
{
	limit_is_the_machines();
	says("/proc/self/cgroup", "0::/a/b\n");
	limit_is_the_machines();
	says("/sys/fs/cgroup/a/memory.max", "max\n");
	says("/sys/fs/cgroup/a/b/memory.max", "max\n");
	limit_is_the_machines();
	/* More than there is. */
	says("/sys/fs/cgroup/a/memory.max", "9223372036854771712\n");
	limit_is_the_machines();
}

Test(memory, is_the_smallest_limit_up_the_tree, .init = begin, .fini = end)
{
	says("/proc/self/cgroup", "0::/a/b/c\n");
	says("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
	says("/sys/fs/cgroup/a/b/memory.max", "268435456\n");
	says("/sys/fs/cgroup/a/memory.max", "536870912\n");
	limit_is(256 * MIB, "/sys/fs/cgroup/a/b/memory.max");
	says("/sys/fs/cgroup/a/memory.max", "134217728\n");
	limit_is(128 * MIB, "/sys/fs/cgroup/a/memory.max");
	says("/sys/fs/cgroup/a/b/c/memory.max", "67108864\n");
	limit_is(64 * MIB, "/sys/fs/cgroup/a/b/c/memory.max");
	/* A neighbour's is not ours. */
	says("/sys/fs/cgroup/a/other/memory.max", "1\n");
	limit_is(64 * MIB, "/sys/fs/cgroup/a/b/c/memory.max");
}

Test(memory, is_the_top_ones_in_a_container, .init = begin, .fini = end)
{
	says("/sys/fs/cgroup/memory.max", "100000000\n");
	says("/proc/self/cgroup", "0::/\n");
	limit_is(100000000, "/sys/fs/cgroup/memory.max");
	/* There its path is that of the host, which does not exist. */
	says("/proc/self/cgroup", "0::/docker/0123\n");
	limit_is(100000000, "/sys/fs/cgroup/memory.max");
	says("/proc/self/cgroup", "0::/../outside\n");
	limit_is(100000000, "/sys/fs/cgroup/memory.max");
}

Test(memory, is_limited_by_version_1_too, .init = begin, .fini = end)
{
	says("/proc/self/cgroup", "5:devices:/d\n4:memory:/a/b\n1:name=systemd:/x\n0::/u\n");
	says("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
	says("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "268435456\n");
	limit_is(256 * MIB, "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
	says("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "134217728\n");
	limit_is(128 * MIB, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes");
	/* Both versions: the smaller. */
	says("/sys/fs/cgroup/unified/u/memory.max", "67108864\n");
	limit_is(64 * MIB, "/sys/fs/cgroup/unified/u/memory.max");
	/* Another controller's group of that version says nothing of memory. */
	says("/sys/fs/cgroup/memory/d/memory.limit_in_bytes", "1\n");
	limit_is(64 * MIB, "/sys/fs/cgroup/unified/u/memory.max");
}
