/*
 * host.c - regions that are the memory of a gaiafs daemon: their file is on such a mount, and all of it is mapped from there, by the device host
 * (gaia/client.h). Nothing is copied, and nothing faults to us.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "region.h"

#pragma GCC visibility push(default)
#include "gaia/client.h"
#pragma GCC visibility pop

#define CHUNK (2ul << 20)
#define FUSE_MAGIC 0x65735546

#define OTHERWISE (GAIA_UMAP_FIXED | GAIA_UMAP_NEED_PAGING | GAIA_UMAP_USE_MMAP | GAIA_UMAP_NO_HOST)

/*
 * Whether root or this user serves the mount: another user's FUSE server could give memory that it cuts, or never answer. The kernel says whose
 * it is (proc_pid_mountinfo(5)). False also if it does not.
 */
static bool is_trusted(dev_t dev)
{
	FILE *mounts = fopen("/proc/self/mountinfo", "re");
	unsigned major_of, minor_of, uid;
	char *line = NULL, *at;
	bool trusted = false;
	size_t size = 0;

	while (mounts && !trusted && getline(&line, &size, mounts) > 0) {
		if (sscanf(line, "%*d %*d %u:%u", &major_of, &minor_of) != 2 || makedev(major_of, minor_of) != dev)
			continue;
		/* Of the options of the file system, which are the last. */
		at = strrchr(line, ' ');
		at = at ? strstr(at, "user_id=") : NULL;
		trusted = at && sscanf(at, "user_id=%u", &uid) == 1 && (uid == 0 || uid == geteuid());
	}
	free(line);
	if (mounts)
		fclose(mounts);
	return trusted;
}

bool umap_host_may_be(const struct gaia_umap_config *c)
{
	const struct gaia_umap_segment *s = c->segments;
	struct statfs fs;
	struct stat st;

	/* The application's own is to be asked. */
	if (c->policy != GAIA_UMAP_S3FIFO && c->policy != GAIA_UMAP_FIFO && c->policy != GAIA_UMAP_LRU)
		return false;
	/* The address is as its page size asks for, since the file's place is. */
	if (c->prot != PROT_READ || c->flags & OTHERWISE || c->n_segments != 1 || s->store || s->offset % c->page_size)
		return false;
	return !fstatfs(s->fd, &fs) && fs.f_type == FUSE_MAGIC && !fstat(s->fd, &st) && S_ISREG(st.st_mode) && is_trusted(st.st_dev);
}

/* As of all regions, there is nothing behind its last page. */
static int cut_off(char *view, uint64_t length, uint64_t offset)
{
	uint64_t left = -(offset + length) % CHUNK;

	return left && mprotect(view + length, left, PROT_NONE) ? -errno : 0;
}

int umap_host_create(struct umap_region *r, const struct gaia_umap_config *c)
{
	uint64_t offset = c->segments->offset;
	struct stat st;
	char *view;
	int err;

	if (r->length > umap_budget(r, c) || offset > INT64_MAX)
		return -ENOMEM;
	if (fstat(c->segments->fd, &st))
		return -errno;
	/* The daemon hands over no memory behind the chunk in which the file ends, and the region reads as zeros there. */
	if (offset + r->view_length > ((uint64_t)st.st_size + CHUNK - 1) / CHUNK * CHUNK)
		return -ENOMEM;
	view = gaia_mmap(r->view_length, PROT_READ, c->segments->fd, (off_t)offset, GAIA_DEVICE_HOST);
	if (view == MAP_FAILED)
		return -errno;
	do
		err = gaia_acquire(view, r->view_length, PROT_READ) ? -errno : 0;
	while (err == -EINTR);
	if (!err)
		err = cut_off(view, r->view_length, offset);
	if (err) {
		gaia_munmap(view, r->view_length);
		return err;
	}
	r->is_host = true;
	r->view = view;
	/* The mapping has the file. */
	umap_segments_close(r);
	return 0;
}

void umap_host_end(struct umap_region *r)
{
	gaia_munmap(r->view, r->view_length);
}
