/*
 * client.h - use the pages that a gaiafs mount caches, from a device.
 *
 *	int fd = open("/mnt/data", O_RDWR);
 *	unsigned char *p = gaia_mmap(len, PROT_READ | PROT_WRITE, fd, 0, 0);
 *
 *	gaia_acquire(p, len, PROT_READ | PROT_WRITE);	see what everybody wrote
 *	...device code reads and writes p...
 *	gaia_release(p, len);				let everybody see it
 *	gaia_munmap(p, len);
 *
 * What may be relied on (lazy release consistency; daemon/README.md has it whole):
 *  - When gaia_acquire() returns, the device sees all that any process wrote to the
 *    range before the call, with write(2) or through a shared mapping.
 *  - When gaia_release() returns, every later read(2), load through a mapping, and
 *    acquire sees what the device wrote in the range.
 *  - Writes of different bytes are all kept, whoever makes them and however they
 *    mix in a page. Of concurrent writes of the same byte one wins.
 *  - What is not released reaches nobody, and is lost when the process ends or
 *    unmaps. Clients of the same device share its memory as threads do.
 *  - Acquires count: a page that was acquired through a mapping twice must be released twice. Until then it
 *    stays acquired, for writing if one of them was for that; each release publishes what was written until then. So
 *    threads may work on neighbouring ranges, which share a page, and what one wrote another's release may publish.
 *  - Memory outside an acquired range must not be touched: it may be gone (SIGSEGV). A simulated device is strict: there
 *    what is not acquired cannot be touched, nor stored to what is acquired for reading only: SIGSEGV, and EFAULT from
 *    system calls (gaiafs --device sim:...,strict=off). Where the process has no mappings left (vm.max_map_count) it is
 *    lax with a chunk of 2 MiB, which is said on stderr, once.
 *  - A file takes device memory by 2 MiB: of each such part of it that is acquired, however little. So 128 small files fill
 *    a device of 256 MiB, and to acquire more of them at a time fails with ENOMEM; put many small things into one file.
 *  - A mapping never makes a file longer. Bytes past its end in the last page read as
 *    zero, and what is stored there is dropped on release.
 *
 * All functions are thread-safe and may be used by several libraries of one
 * process; none is a cancellation point (pthread_cancel(3)). After fork() the child has no mappings: calls on the parent's fail there with
 * ENOTCONN; the child may make its own. Functions return -1 (or MAP_FAILED) and set errno; nothing prints,
 * exits or aborts, unless the environment has GAIA_DEBUG=1: then releases of pages that are not held, pages
 * that are still held at gaia_munmap() or exit(3) and, on a strict device, the SIGSEGVs above are reported on
 * stderr. (For these the library handles SIGSEGV, and calls the handler that was there when the first mapping was made.) Common errors, besides those named below:
 *	ENOTTY		fd is not on a gaiafs mount
 *	ENOTCONN	the daemon is gone, or has disconnected this process
 *	EINVAL		the range is not inside one mapping, or a value makes no sense
 *	EPROTO		library and daemon are too far apart: the majors of their protocols differ
 *	EMFILE		too many descriptors in this process; or this user has as many clients or
 *			mappings as each may have (gaiafs --user-limit)
 *	ENFILE		all users of the mount together have as many as there may be
 *
 * The library keeps one descriptor for each file and way of opening it (for reading, or for both), a duplicate of the first
 * mapping's fd, until the last of these mappings has been unmapped. As with any descriptor, closing it drops the
 * process's POSIX record locks (fcntl F_SETLK) on the file. An acquire needs up to 64 more for a moment.
 */
#ifndef GAIA_CLIENT_H
#define GAIA_CLIENT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A device of a mount. Its number is its index in gaia_devices()'s array. */
struct gaia_device_info {
	char name[32];		/* for people, unique in the mount: "sim0"; NUL-terminated */
	char kind[16];		/* "sim" or "cuda" */
	unsigned char uuid[16];	/* cuda: the GPU's UUID */
	uint64_t capacity;	/* bytes of device memory that gaiafs may use */
	uint64_t used;		/* bytes of it in use now */
	int simulated;		/* not zero: no device, host memory plays its part */
};

/*
 * Describe the devices of the mount that fd lives on: the first max of them into
 * out (which may be NULL if max is 0). Returns the number of devices there are, which may
 * be more than max; or -1. Any descriptor on the mount will do, a directory's too.
 */
int gaia_devices(int fd, struct gaia_device_info *out, int max);

/*
 * Reserve one device address range for length bytes of the file from offset, in file
 * order. Nothing is copied until gaia_acquire(). On the simulated device the address
 * is one of the CPU too; on a GPU it is good for kernels only.
 *
 * prot is PROT_READ or PROT_READ | PROT_WRITE. offset is a multiple of 4096. device is an index into
 * gaia_devices()'s array. The range may go beyond the end of the file.
 * fd may be closed afterwards. On a GPU a mapping whose fd is not open for writing has memory of
 * its own, shared with nobody: the hardware cannot keep a program from writing what it maps.
 *
 * EACCES: fd is not open for reading, or prot asks to write and fd is not open for that.
 * ENODEV: no such device, or fd is not a regular file; or this process cannot use the device: no
 * driver, or the GPU is hidden from it (CUDA_VISIBLE_DEVICES). EBUSY: another process has the GPU to
 * itself (exclusive-process mode; that may be gaiafs), or MPS takes no more clients. ENOMEM: no address range.
 * EOVERFLOW: offset + length is too large.
 */
void *gaia_mmap(size_t length, int prot, int fd, off_t offset, int device);

/*
 * End a mapping: addr and length as given by and to gaia_mmap() (a whole mapping, not a
 * part). Acquired ranges are dropped without a release: what was
 * written in them since the last release is lost. On a GPU it waits for all work of the
 * mapping's context. EBUSY: it cannot now (cuda.h, captures); nothing has changed.
 */
int gaia_munmap(void *addr, size_t length);

/*
 * Bring the range up to date on the device and pin it there, for reading (PROT_READ) or
 * also for writing (PROT_READ | PROT_WRITE). Any alignment; whole pages are acquired. Acquiring
 * a range again, released or not, brings it up to date again and keeps
 * what this device wrote. Either all of the range is acquired or nothing is.
 *
 * EINTR: a signal that the process catches interrupted the call, or the process was stopped or traced. Nothing was acquired:
 * call it again. It is never restarted, whatever SA_RESTART says, as with poll(2); block signals that should not interrupt
 * it. First the kernel hands over what programs wrote to the range: until that is done signals wait, also SIGKILL; from then on
 * they end the call at once. What it had taken by then is given back soon after, so that an acquire
 * of another range may find ENOMEM meanwhile. No other call is interrupted.
 * ENOMEM: the range does not fit the device beside what is pinned, or is more than one user may
 * have pinned of it (gaiafs --user-limit); the process has no addresses left to map it; or, on another user's mount, to
 * write: the daemon has no room for what it keeps of a file that is open past its cache (gaiafs --cpu-cache).
 * EMFILE, ENFILE: no descriptors are left to receive it. After these other mappings, and what was acquired before, are
 * as they were, and the call may be repeated. ENOTCONN, instead of these: the daemon had not been told within a second.
 * EOVERFLOW: some page has been acquired 65,535
 * times through this mapping. ENOBUFS: what this user's mappings hold has been cut into too many separate ranges.
 * EACCES: for writing, through a mapping or descriptor that is not. EIO and others: the
 * backing store could not be read, or the device failed.
 * The part of the range beyond the end of the file must not be touched, except in the file's last page; when
 * the file has grown, acquire it again. (Where it is mapped it reads as zeros, and what is stored there may be dropped.)
 */
int gaia_acquire(void *addr, size_t length, int prot);

/*
 * Publish what the device wrote in the range since it was acquired, and take one acquire of each page back; what has none
 * left is unpinned. Moves no data by itself, but for pages that stay acquired for writing: these are copied within the
 * device. Work that writes the range must have ended (cuda.h: in the order of a stream). Pages of the range that are not
 * acquired are passed over. Partial pages are released whole. If it published something the file's modification and
 * change times move.
 *
 * EINVAL, ENOTCONN; ENOBUFS, as gaia_acquire() has it, of a release of a part of what was acquired: nothing has changed.
 * With any other error (EIO, ENOSPC, ENODEV...) the acquires are taken back all the same: do not repeat the call. What could
 * not be published or stored is kept, and tried again by the next release, by gaia_sync(), or when somebody reads it;
 * with ENODEV the device, and what it had, is lost.
 */
int gaia_release(void *addr, size_t length);

/*
 * On return everything that was written to the range of the file by CPUs, and everything released by
 * any device, is on stable storage. EIO, ENOSPC, EDQUOT...: it is not; the data stays cached
 * and is tried again.
 */
int gaia_sync(void *addr, size_t length);

/* Advice for gaia_advise(). */
#define GAIA_WILLNEED 3	/* copy the range to the device now, as far as there is room */
#define GAIA_DONTNEED 4	/* the device may drop what it holds of the range for this mapping alone; nothing is lost */
int gaia_advise(void *addr, size_t length, int advice);

#ifdef __cplusplus
}
#endif
#endif
