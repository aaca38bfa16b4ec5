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
 *  - Acquires count: a page that was acquired twice through a mapping must be released twice. Until
 *    the last release it stays acquired, for writing if any of those acquires was; each release
 *    publishes what was written until then. So threads may work on neighbouring ranges that share a
 *    page, and one thread's release may also publish what another wrote in that page.
 *  - Do not touch memory outside an acquired range: it may be gone (SIGSEGV). A simulated device is
 *    strict: touching a page that is not acquired, or storing to one that is acquired for reading
 *    only, is a SIGSEGV, and system calls fail with EFAULT (gaiafs --device sim:...,strict=off allows
 *    it). A store by another thread while the release is under way is not found so. When the process
 *    has no mappings left (vm.max_map_count), the library stops protecting the chunk of 2 MiB
 *    (or the eight that were handed over together) concerned, and says so on stderr, once.
 *  - Device memory is taken in units of 2 MiB of a file: acquiring one byte takes its whole unit. So
 *    128 small files fill a device of 256 MiB, and acquiring more of them at the same time fails with
 *    ENOMEM; put many small things into one file.
 *  - A mapping never makes a file longer. Bytes past its end in the last page read as
 *    zero, and what is stored there is dropped on release.
 *
 * All functions are thread-safe and may be used by several libraries of one
 * process; none is a cancellation point (pthread_cancel(3)). After fork() the child has no mappings:
 * calls on the parent's fail there with ENOTCONN; the child may make its own. Functions return -1 (or
 * MAP_FAILED) and set errno; gaia_last_error_text() then says more. Nothing prints, exits or aborts, unless the environment has GAIA_DEBUG=1:
 * then the library reports on stderr releases of pages that are not held, pages that are still held, and
 * acquires that were started and not waited for, at gaia_munmap() or exit(3), and on a strict device the SIGSEGVs above. (To report those it handles
 * SIGSEGV, and then calls the handler that was installed when the first mapping was made.)
 * Common errors, besides those named below:
 *	ENOTTY		fd is not on a gaiafs mount
 *	ENOTCONN	the daemon is gone, or has disconnected this process
 *	ESTALE		another daemon has taken the mount over (gaiafs --upgrade), and did not make this mapping again; others stay
 *	EINVAL		the range is not inside one mapping, or a value makes no sense
 *	EPROTO		library and daemon are too far apart: the majors of their protocols differ
 *	EMFILE		too many descriptors in this process; or this user has reached the limit
 *			of clients or mappings for one user (gaiafs --user-limit)
 *	ENFILE		all users of the mount together have reached their limit
 *
 * When another daemon takes the mount over mappings stay where they are, and calls wait until it serves: acquires from the moment when the upgrade
 * begins until all that this process holds has been released (or the upgrade is given up, after the time that gaiafs --wait says). A thread
 * that holds something is let on, if it can be. A process with mappings of a GPU does not move.
 *
 * For each file the library keeps a duplicate of the first mapping's fd until the last mapping of the
 * file has been unmapped (two duplicates, if the file is mapped by read-only and by read-write
 * descriptors). As with any descriptor, closing it drops the process's POSIX record locks (fcntl
 * F_SETLK) on the file. An acquire needs up to 64 more descriptors for a moment.
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

/*
 * The host as a device, for programs on the CPU: a number for gaia_mmap(), as others are. Every mount has it; gaia_devices() does not list it.
 *
 * What is acquired there to read is the daemon's own memory of the file: nothing is copied, and however many processes map it there is one
 * copy. The process can only read it: a store is SIGSEGV. Between acquire and release it shows others' writes at once, as a shared mapping of
 * mmap(2) does. What is acquired to write is, a chunk (2 MiB) at a time, a copy in host memory beside that, which the processes that write there
 * share as they share a device's, until it is released; the next acquire to read finds the daemon's memory again. Pages of such a chunk that the
 * mapping holds to read meanwhile are in the copy, too, and show what others write when they are acquired again. Both count as gaiafs --home, of
 * which the host has a half at most. A mapping with PROT_WRITE counts as two of the user's. Of writes to the same byte that race, the host's win
 * over other devices'.
 */
#define GAIA_DEVICE_HOST (-1)

/* A device of a mount. Its number is its index in gaia_devices()'s array. */
struct gaia_device_info {
	char name[32];		/* to be shown; unique in the mount: "sim0"; NUL-terminated */
	char kind[16];		/* "sim" or "cuda" ("host": GAIA_DEVICE_HOST) */
	unsigned char uuid[16];	/* cuda: the GPU's UUID */
	uint64_t capacity;	/* bytes of device memory that gaiafs may use */
	uint64_t used;		/* bytes of it in use now */
	int simulated;		/* not zero: host memory plays the part of a device */
};

/*
 * Write descriptions of the first max devices of fd's mount to out (which may be NULL if max is 0).
 * Returns the number of devices of the mount, which may be more than max; or -1. fd may be any
 * descriptor on the mount, a directory's too.
 */
int gaia_devices(int fd, struct gaia_device_info *out, int max);

/*
 * Reserve one device address range for length bytes of the file from offset, in file
 * order. Nothing is copied until gaia_acquire(). On a simulated device the CPU can use the address,
 * too; on a GPU only work of the GPU can (kernels, cudaMemcpy()).
 *
 * prot is PROT_READ or PROT_READ | PROT_WRITE. offset is a multiple of 4096. device is an index into
 * gaia_devices()'s array, or GAIA_DEVICE_HOST (ENODEV: the daemon is older than the library). The range may go beyond the end of the file.
 * fd may be closed afterwards. A GPU cannot keep a program from writing what it maps. So there a
 * mapping whose fd is not open for writing shares the file's device memory only if the caller may
 * write the file; else it has a copy, which only mappings of the same user share.
 *
 * EACCES: fd is not open for reading, or prot asks for writing and fd is not open for writing.
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
 * mapping's context. EBUSY: a stream of that context is being captured (see cuda.h); nothing has changed.
 */
int gaia_munmap(void *addr, size_t length);

/*
 * Bring the range up to date on the device and pin it there, for reading (PROT_READ) or
 * also for writing (PROT_READ | PROT_WRITE), or only pin it, to be overwritten (PROT_WRITE: see below). Any alignment; whole pages are acquired. Acquiring
 * a range again, released or not, brings it up to date again and keeps
 * what this device wrote. Either all of the range is acquired or nothing is.
 *
 * EINTR: a signal that the process catches interrupted the call, or the process was stopped or
 * traced. Nothing was acquired: call it again. Like poll(2) it is never restarted, whatever
 * SA_RESTART says; block signals that should not interrupt it, or use gaia_acquire_start(). The call first waits for the kernel to
 * hand over what programs wrote to the range: until that is done no signal ends the call, not even
 * SIGKILL; from then on a signal ends it at once. What an interrupted call had taken is given back
 * soon after, so that an acquire of another range may find ENOMEM meanwhile. No other call but gaia_wait() is
 * interrupted.
 * ENOMEM: the range does not fit the device beside what is pinned, or exceeds what one user may have
 * pinned there (gaiafs --user-limit); the process has no addresses left to map it; or, when acquiring
 * for writing on another user's mount, the daemon has no host memory left for a file that CPU
 * programs have open past its cache (gaiafs --cpu-cache auto).
 * EMFILE, ENFILE: no descriptors are left to receive the memory. After ENOMEM, EMFILE and ENFILE
 * other mappings and earlier acquires are as they were, and the call may be repeated. ENOTCONN,
 * instead of these: the library could not tell the daemon of the failure within a second.
 * EOVERFLOW: some page has been acquired 65,535
 * times through this mapping. ENOBUFS: what this user's mappings hold has been cut into too many separate ranges.
 * EACCES: for writing, through a mapping or descriptor that is not. EIO and others: the
 * backing store could not be read, or the device failed.
 * The part of the range beyond the end of the file must not be touched, except in the file's last page; when
 * the file has grown, acquire it again. (Where it is mapped it reads as zeros, and what is stored there may be dropped.)
 *
 * PROT_WRITE alone says that the device will store to every byte of the range. Of pages (4 KiB) that lie in the range and in the
 * file as a whole nothing is brought to the device, nor compared by the release. Until they are stored their bytes are undefined: the file's
 * own earlier ones, or zeros. The next release of such a page publishes all of it: bytes that were not stored, too, and over what others wrote
 * to it meanwhile. Of one that is not released nothing is left when the process ends, as always. A range's other pages are acquired
 * as by PROT_READ | PROT_WRITE. Other clients of the device that acquire such a page meanwhile find it as it is: share it only if you would
 * share memory so. ENOSYS: the daemon is older than the library, and cannot do this.
 */
int gaia_acquire(void *addr, size_t length, int prot);

/*
 * Publish what the device wrote in the range since it was acquired, and take back one acquire of each
 * page; a page that has none left is unpinned. Moves no data, except that pages which stay acquired
 * for writing are copied within the device. Work that writes the range must have ended (to release in
 * the order of a stream see cuda.h). Pages of the range that are not acquired are ignored. Partial
 * pages are released whole. If anything was published, the file's modification and change times move.
 *
 * After EINVAL, ENOTCONN and ENOBUFS (see gaia_acquire(); releasing a part of what was acquired cuts
 * it in two) nothing has changed. After any other error (EIO, ENOSPC, ENODEV...) the acquires are
 * taken back all the same: do not repeat the call. What could not be published or stored is kept, and
 * tried again by the next release, by gaia_sync(), or when somebody reads it; after ENODEV the
 * device, and what it had, is lost.
 */
int gaia_release(void *addr, size_t length);

/*
 * Acquire, or release, many ranges of one mapping by one call. The ranges may come in any order, and overlap.
 * The result is that of a call for each range: a page that k of the ranges touch is acquired, or released, k
 * times; an empty range, or n == 0, does nothing. But gaia_acquirev() acquires all of the ranges or none; and both
 * take few system calls and device operations, however many ranges there are. A signal ends
 * gaia_acquirev() as it ends gaia_acquire(), but not while it waits for room in the memory for lists (64 MiB).
 *
 * Errors are those of gaia_acquire() and gaia_release(), and the following. After each of these, EINVAL,
 * ENOTCONN and ENOBUFS gaia_releasev() has released nothing.
 * EINVAL: the ranges do not all lie in one mapping. E2BIG: more than 2^20 ranges, or more than the daemon has
 * memory for (which depends on gaiafs --home). ENOSYS: the daemon is older than the library, and knows no
 * lists. ENOBUFS, besides its other meaning: the lists of this user that are under way have too many ranges, or
 * there is no memory; try again, or pass shorter lists. EMFILE, ENFILE (gaia_acquirev()): also if too many
 * clients of this user, or of all users, use lists.
 */
struct gaia_range {
	void *addr;
	size_t length;
};
int gaia_acquirev(const struct gaia_range *ranges, size_t n, int prot);
int gaia_releasev(const struct gaia_range *ranges, size_t n);

/*
 * Acquire without waiting: gaia_acquire_start() begins what gaia_acquire() does, and gaia_acquirev_start() what gaia_acquirev()
 * does, on a thread of the library's, and returns a descriptor (close-on-exec). It is readable (POLLIN) when the acquire has ended, well or
 * not; do not read or write it.
 *
 *	int fd = gaia_acquire_start(next, len, PROT_READ);	...
 *	...work on what was acquired before...
 *	if (fd < 0 || gaia_wait(fd))				not acquired: see errno
 *		...
 *	...work on next...
 *	gaia_release(next, len);
 *
 * gaia_wait() waits until it has ended, returns its result, and closes the descriptor. When it has returned 0 the range is acquired: the
 * device sees at least what was written before the start; only then may it be touched, and must it be released. A range that the mapping
 * holds already can be used and released meanwhile as ever. Of each mount eight acquires are under way at a time; more wait, in order.
 *
 * close(2) instead of gaia_wait() cancels: what was acquired, or still is, is given back soon after, as by gaia_release(), but nothing is
 * published that the mapping holds otherwise, too. (Until then an acquire of another range may find ENOMEM. Daemons before 1.4 of the
 * protocol publish it.) Errors of this are not reported. A release of pages of it waits until it has been given back, and so until an acquire
 * that was under way has ended: else the release would end that hold and not an earlier one. A copy of the descriptor (dup(2)) can be waited
 * for as well, and keeps it open. gaia_munmap() cancels all of its mapping; so does the end of the process.
 *
 * The descriptor belongs to the process. A child of fork() has no such acquire: there the descriptor is readable, gaia_wait() fails with
 * ENOTCONN and closes it, and it does not keep the parent's open. (Copies of it do; and so do all in children that were made past fork(),
 * by clone(2), until they exec.)
 *
 * An acquire to overwrite (PROT_WRITE alone) brings nothing, and cannot be started: EINVAL.
 * Errors of gaia_acquire_start() and gaia_acquirev_start(): EINVAL, EACCES, ENOTCONN, E2BIG, ENOSYS, ENOBUFS as of gaia_acquirev(); EMFILE,
 * ENFILE: it takes two descriptors until it has been waited for, or closed, and one while there are any; ENOMEM; EAGAIN: there can be no
 * more threads. EINTR: never.
 * gaia_wait(): the other errors of gaia_acquire() and gaia_acquirev(). ECANCELED: the mapping has been unmapped. After the following ones the descriptor is as it was:
 * EINTR: a signal that the process catches interrupted the call; the acquire goes on; call it again. EBADF, EINVAL: fd is not open, or
 * is not of a start (or the program has shut it down).
 */
int gaia_acquire_start(void *addr, size_t length, int prot);
int gaia_acquirev_start(const struct gaia_range *ranges, size_t n, int prot);
int gaia_wait(int fd);

/*
 * On return everything that was written to the range of the file by CPUs, and everything released by
 * any device, is on stable storage. EIO, ENOSPC, EDQUOT...: it is not; the data stays cached
 * and is tried again.
 */
int gaia_sync(void *addr, size_t length);

/*
 * The same, but without waiting for the disk: on return it is in the file below the mount, where all see it who read that file, on other
 * nodes, too (gaiafs-nodes(7)), and a power cut may lose it. Errors are those of gaia_sync(); a daemon older than this library syncs.
 */
int gaia_publish(void *addr, size_t length);

/*
 * Say how the range will be used: as madvise(2), with the same numbers. Any alignment; advice holds for whole
 * pages. It never changes what a program sees. All but DONTNEED return at once.
 *
 * Without advice the daemon notices when acquires of a mapping follow each other, one range after the other or
 * at equal distances (up to four such streams of a mapping). It then copies the next 1 to 16 MiB to the device
 * while the program works: only into memory that nobody uses, and only pages that nothing holds. It leaves files
 * alone that CPU programs have open for writing past the cache (gaiafs --cpu-cache auto). It does not report
 * errors of such copies.
 *
 * EAGAIN: more than 16 ranges of the mapping would have advice (RANDOM, SEQUENTIAL) of their own. Other errors
 * are those named above.
 */
#define GAIA_NORMAL 0	  /* as described; the default */
#define GAIA_RANDOM 1	  /* copy nothing before it is acquired */
#define GAIA_SEQUENTIAL 2 /* copy the next 16 MiB from the first acquire on */
#define GAIA_WILLNEED 3	  /* copy the range now, in the background, into free memory; ignored if 32 such ranges wait already; on the host: read it */
#define GAIA_DONTNEED 4	  /* the device may drop its copy of the range unless other mappings use it; nothing is lost */
int gaia_advise(void *addr, size_t length, int advice);

/* The library's version, "0.1.0"; a constant. (For what the daemon is older than, calls fail with ENOSYS.) */
const char *gaia_version(void);

/*
 * A sentence about the last call of client.h or cuda.h in this thread that failed, for people: which call, of which file and bytes, why, and
 * what can be done about it. "" if none has failed. As of errno, calls that succeed leave it alone. The library owns the text; it stays until
 * the thread calls one of these functions again. Its words may change; programs look at errno. The file is named as it is called at the
 * time, without control characters.
 *
 *	gaia_acquire: bytes 0 to 314572799 of /mnt/data on sim0: Cannot allocate memory: it needs 300 MiB of device memory; sim0
 *	has 256 MiB, of which 200 are in use: ...
 */
const char *gaia_last_error_text(void);

/* What a pointer belongs to. */
struct gaia_pointer_info {
	void *base;		/* the mapping, as gaia_mmap() returned it... */
	size_t length;		/* ...and as it was given to it, bytes */
	uint64_t offset;	/* of base in the file, bytes: the mapping has the file's bytes from offset to offset + length - 1 */
	uint64_t file_dev;	/* the file's st_dev and st_ino */
	uint64_t file_ino;
	int device;		/* index into gaia_devices()'s array, or GAIA_DEVICE_HOST */
	int prot;		/* given to gaia_mmap() */
	char device_name[32];	/* as in struct gaia_device_info */
	char device_kind[16];
	/*
	 * How the mapping holds the page at the pointer: PROT_NONE: it does not; PROT_READ; PROT_READ | PROT_WRITE, also for one that is
	 * being overwritten. -1: not known. The library counts only for strict simulated devices, and where the environment has GAIA_DEBUG=1.
	 */
	int held;
	int reserved[7];	/* 0 */
};

/*
 * Describe what ptr, any address inside of a mapping, belongs to. It asks neither the daemon nor the device. EINVAL: it is in no
 * mapping. ENOTCONN: in one of the parent's, and this is a child of fork(). It works after the daemon has ended.
 */
int gaia_query(const void *ptr, struct gaia_pointer_info *out);

/*
 * What `gaia status --json` and `gaia residency --json` print: the state of fd's mount, which may be any descriptor on it, and
 * which memories have how much of fd's file. A text (JSON) from malloc(3), for the caller to free; or NULL, and errno is set. What others
 * do is shown to root only. EAGAIN: the daemon has no room for it just now. ENODEV (gaia_residency()): not a regular file.
 */
char *gaia_status(int fd);
char *gaia_residency(int fd);

#ifdef __cplusplus
}
#endif
#endif
