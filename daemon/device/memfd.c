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
static void *map_aligned(int fd)
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
	if (mmap(at, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED)
		return at;
	munmap(at, GAIA_CHUNK);
	return MAP_FAILED;
}

/* Give the memfd its memory, not by stores: if there is none that is an error now, not a SIGBUS later. */
static int fill(int fd, const void *bytes)
{
	ssize_t n;

	if (!bytes)
		return fallocate(fd, 0, 0, GAIA_CHUNK);
	n = pwrite(fd, bytes, GAIA_CHUNK, 0);
	if (n == GAIA_CHUNK)
		return 0;
	if (n >= 0)
		errno = ENOSPC;
	return -1;
}

/* The same, as one huge page or as many. */
static int fill_mapped(struct memfd *m, const void *bytes)
{
	if (huge_at_once(m->fd, m->at)) {
		if (bytes)
			memcpy(m->at, bytes, GAIA_CHUNK);
		return 0;
	}
	if (fill(m->fd, bytes))
		return -1;
	/* If this fails, pages are mapped when they are touched. */
	(void)madvise(m->at, GAIA_CHUNK, MADV_POPULATE_WRITE);
	huge_ask(&m->huge, m->fd);
	return 0;
}

int memfd_make(const char *name, const void *bytes, struct memfd *out)
{
	const char *what = "memfd_create";
	int err;

	out->huge = (struct huge_wish){ 0 };
	out->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (out->fd < 0)
		goto fail;
	/* Other users must not open it through /proc. (A new memfd has mode 0777.) */
	what = "fchmod";
	if (fchmod(out->fd, 0600))
		goto close_fd;
	what = "ftruncate";
	if (ftruncate(out->fd, GAIA_CHUNK))
		goto close_fd;
	/* Nobody has it so far. */
	what = "F_ADD_SEALS";
	if (fcntl(out->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		goto close_fd;
	what = "mmap";
	out->at = map_aligned(out->fd);
	if (out->at == MAP_FAILED)
		goto close_fd;
	what = bytes ? "write" : "fallocate";
	if (!fill_mapped(out, bytes))
		return 0;

	err = errno;
	munmap(out->at, GAIA_CHUNK);
	errno = err;
close_fd:
	err = errno;
	close(out->fd);
	errno = err;
fail:
	err = errno;
	if (err == ENOSPC)
		err = ENOMEM;
	if (err != ENOMEM && err != EMFILE && err != ENFILE)
		log_error("%s: %s: %s", name, what, strerror(err));
	return -err;
}

void memfd_end(struct memfd *m)
{
	huge_forget(&m->huge);
	munmap(m->at, GAIA_CHUNK);
	if (fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, GAIA_CHUNK))
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
