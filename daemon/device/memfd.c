/* memfd.c - chunks of host memory that other processes can map. */
#include "device/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "gaia/protocol.h"

/* Not in the headers of older systems. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

/* Map the chunk, aligned to its size. MAP_FAILED, and errno. */
static void *map_aligned(int fd, off_t from)
{
	char *raw = mmap(NULL, 2 * (size_t)GAIA_CHUNK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *at;
	size_t before;

	if (raw == MAP_FAILED)
		return MAP_FAILED;
	before = -(uintptr_t)raw % GAIA_CHUNK;
	at = raw + before;
	if (before)
		munmap(raw, before);
	munmap(at + GAIA_CHUNK, GAIA_CHUNK - before);
	if (mmap(at, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, from) != MAP_FAILED)
		return at;
	munmap(at, GAIA_CHUNK);
	return MAP_FAILED;
}

/* Give the memfd its memory, not by stores: if there is none that is an error now, not a SIGBUS later. */
static int fill(const struct memfd *m, const void *bytes)
{
	ssize_t n;

	if (!bytes)
		return fallocate(m->fd, 0, m->from, GAIA_CHUNK);
	n = pwrite(m->fd, bytes, GAIA_CHUNK, m->from);
	if (n == GAIA_CHUNK)
		return 0;
	if (n >= 0)
		errno = ENOSPC;
	return -1;
}

/* The same, as one huge page or as many. */
static int fill_mapped(struct memfd *m, const void *bytes)
{
	if (huge_at_once(m->fd, m->from, m->at)) {
		if (bytes)
			memcpy(m->at, bytes, GAIA_CHUNK);
		return 0;
	}
	if (fill(m, bytes))
		return -1;
	/* If this fails, pages are mapped when they are touched. */
	(void)madvise(m->at, GAIA_CHUNK, MADV_POPULATE_WRITE);
	huge_ask(&m->huge, m->fd, m->from);
	return 0;
}

/* The errno of a failure, as an error of memfd_make(). */
static int failure(const char *name, const char *what, int err)
{
	if (err == ENOSPC)
		err = ENOMEM;
	if (err != ENOMEM && err != EMFILE && err != ENFILE)
		log_error("%s: %s: %s", name, what, strerror(err));
	return -err;
}

/* A memfd of so many bytes, which nobody has so far: its descriptor, or a negative errno. */
static int make_file(const char *name, size_t bytes)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING), err;
	const char *what = "memfd_create";

	if (fd < 0)
		return failure(name, what, errno);
	/* Other users must not open it through /proc. (A new memfd has mode 0777.) */
	what = "fchmod";
	if (fchmod(fd, 0600))
		goto fail;
	what = "ftruncate";
	if (ftruncate(fd, (off_t)bytes))
		goto fail;
	what = "F_ADD_SEALS";
	if (!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return fd;
fail:
	err = errno;
	close(fd);
	return failure(name, what, err);
}

/* The chunk of out->fd at out->from: map it, and give it its memory. */
static int make_part(const char *name, const void *bytes, struct memfd *out)
{
	int err;

	out->huge = (struct huge_wish){ 0 };
	out->at = map_aligned(out->fd, out->from);
	if (out->at == MAP_FAILED)
		return failure(name, "mmap", errno);
	if (!fill_mapped(out, bytes))
		return 0;
	err = errno;
	munmap(out->at, GAIA_CHUNK);
	return failure(name, bytes ? "write" : "fallocate", err);
}

int memfd_make(const char *name, const void *bytes, struct memfd *out)
{
	int fd = make_file(name, GAIA_CHUNK), err;

	if (fd < 0)
		return fd;
	out->fd = fd;
	out->from = 0;
	out->joined = false;
	err = make_part(name, bytes, out);
	if (err)
		close(fd);
	return err;
}

int memfd_make_extent(const char *name, const void *bytes, struct memfd *out[GAIA_EXTENT_CHUNKS])
{
	int fd = make_file(name, GAIA_EXTENT), err = 0;
	unsigned k;

	if (fd < 0)
		return fd;
	for (k = 0; k < GAIA_EXTENT_CHUNKS && !err; k++) {
		out[k]->fd = k == 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0);
		out[k]->from = (off_t)k * GAIA_CHUNK;
		out[k]->joined = true;
		if (out[k]->fd < 0)
			err = failure(name, "fcntl", errno);
		else
			err = make_part(name, bytes, out[k]);
		if (err && out[k]->fd >= 0)
			close(out[k]->fd);
	}
	for (k -= err != 0; err && k > 0; k--)
		memfd_end(out[k - 1]);
	return err;
}

void memfd_end(struct memfd *m)
{
	huge_forget(&m->huge);
	munmap(m->at, GAIA_CHUNK);
	if (fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, m->from, GAIA_CHUNK))
		log_warn("giving back memory of a device: %s", strerror(errno));
	close(m->fd);
}

int memfd_open(const struct memfd *m, bool write)
{
	char path[32];
	int fd, err;

	if (write) {
		fd = fcntl(m->fd, F_DUPFD_CLOEXEC, 0);
		return fd < 0 ? -errno : fd;
	}
	/*
	 * An open file description of its own, which cannot be mapped for writing. (Processes with the
	 * daemon's uid may reopen the memfd for writing through /proc; but they may do anything else to
	 * the daemon and its files, too.)
	 */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", m->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	err = -errno;
	if (err == -ENOENT) {
		log_error("memory cannot be shared read-only without /proc: mount it");
		return -ENOTSUP;
	}
	return err;
}
