/*
 * ways.c - see ways.h.
 */
#include "ways.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include <unistd.h>

#define MAX_ARGS 30

struct mnt mnt;
char plain_dir[PATH_MAX];
const char *way;

/* Must last as long as the mount. */
static const char *all_args[MAX_ARGS + 5];

bool way_is(const char *name)
{
	return strcmp(way, name) == 0;
}

/* What the daemon says when it cannot pass files through. */
static bool falls_back(void)
{
	char line[4096];
	FILE *f = fopen(mnt.log, "re");
	bool found = false;

	while (f && !found && fgets(line, sizeof(line), f))
		found = strstr(line, ": --cpu-cache writeback") != NULL;
	if (f)
		fclose(f);
	return found;
}

void way_start_at(const char *backing, const char *plain, const char *const *args)
{
	struct mnt_options o = { .args = all_args, .backing = backing };
	const char *source = getenv("GAIA_SOURCE");
	int n = 0;

	all_args[n++] = "--cpu-cache";
	all_args[n++] = way;
	if (source) {
		all_args[n++] = "--source";
		all_args[n++] = source;
	}
	for (int i = 0; args && args[i]; i++) {
		cr_assert_lt(i, MAX_ARGS);
		all_args[n++] = args[i];
	}
	all_args[n] = NULL;
	cr_assert_eq(mnt_start(&mnt, &o), 0, "cannot mount");
	if (way_is("auto") && falls_back())
		WAY_SKIP("auto: files cannot be passed through here (libfuse 3.17, Linux 6.9, root)");
	if (plain)
		snprintf(plain_dir, sizeof(plain_dir), "%s", plain);
	else
		snprintf(plain_dir, sizeof(plain_dir), "%s/plain", mnt.dir);
	if (!plain)
		cr_assert_eq(mkdir(plain_dir, 0755), 0);
	both_open(mnt.path, plain_dir);
}

void way_start(const char *const *args)
{
	way_start_at(NULL, NULL, args);
}

void way_unmount(void)
{
	both_close();
	cr_assert_eq(mnt_unmount(&mnt), 0, "the mount did not end cleanly");
}

void way_remount(void)
{
	cr_assert_eq(mnt_restart(&mnt), 0, "cannot mount again");
	both_open(mnt.path, plain_dir);
}

void way_make_cached(const char *name)
{
	int fd = openat(mnt.backing_fd, name, O_CREAT | O_RDWR | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0, "%s: %s", name, strerror(errno));
	if (way_is("auto"))
		cr_assert_eq(fsetxattr(fd, "trusted.gaiafs.device", "", 0, 0), 0, "%s",
			     strerror(errno));
	close(fd);
}

void backing_holds(const char *name, const void *bytes, size_t n)
{
	char *is = malloc(n + 1);
	int fd = openat(mnt.backing_fd, name, O_RDONLY | O_CLOEXEC);
	ssize_t got;

	cr_assert(is && fd >= 0, "%s in the backing directory: %s", name, strerror(errno));
	got = read(fd, is, n + 1);
	cr_assert_eq(got, (ssize_t)n, "%s in the backing directory has %zd bytes, not %zu", name,
		     got, n);
	for (size_t i = 0; i < n; i++)
		cr_assert_eq(is[i], ((const char *)bytes)[i],
			     "%s in the backing directory: byte %zu is %02x, not %02x", name, i,
			     is[i] & 0xff, ((const unsigned char *)bytes)[i]);
	close(fd);
	free(is);
}

void way_init_writeback(void)
{
	way = "writeback";
	way_start(NULL);
}

void way_init_writethrough(void)
{
	way = "writethrough";
	way_start(NULL);
}

void way_init_auto(void)
{
	way = "auto";
	way_start(NULL);
}

void way_bare_auto(void)
{
	way = "auto";
}

void way_bare_writeback(void)
{
	way = "writeback";
}

void way_bare_writethrough(void)
{
	way = "writethrough";
}

void way_end(void)
{
	both_close();
	if (mnt.dir[0])
		cr_assert_eq(mnt_stop(&mnt), 0, "the mount did not end cleanly");
}

void way_clean_up(void)
{
	both_close();
	if (mnt.dir[0])
		mnt_stop(&mnt);
}
