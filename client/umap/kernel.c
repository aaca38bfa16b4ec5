/*
 * kernel.c - userfaultfd(2) as regions use it; see also ../protect.c. The constants are here because headers are older than kernels.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/param.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../protect.h"
#include "internal.h"

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xaa, 0)
#endif
#ifndef UFFD_FEATURE_SIGBUS
#define UFFD_FEATURE_SIGBUS (1u << 7)
#endif
#define FEATURE_POISON (1u << 14)
#define FEATURES (UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM | UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_THREAD_ID | \
		  UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_UNMAP | FEATURE_POISON | FEATURE_WP_ASYNC)

#define CONTINUE_PROTECTED 2u	/* UFFDIO_CONTINUE_MODE_WP */

struct poison {
	struct uffdio_range range;
	uint64_t mode;
	int64_t updated;
};
#define DO_POISON _IOWR(UFFDIO, 0x08, struct poison)

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#define SELF (-10001)		/* PIDFD_SELF_THREAD_GROUP */

static int open_uffd(struct umap_kernel *k)
{
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), dev;

	k->user_mode = false;
	if (fd >= 0 || errno != EPERM)
		return fd < 0 ? -errno : fd;
	dev = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (dev >= 0) {
		fd = ioctl(dev, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
		close(dev);
		if (fd >= 0)
			return fd;
	}
	k->user_mode = true;
	fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	return fd < 0 ? -errno : fd;
}

int umap_kernel_open_by_signal(struct umap_kernel *k)
{
	/* Faults within system calls would be refused anyway; and so it needs no privileges. */
	int fd = uffd_open_user_mode(FEATURES | UFFD_FEATURE_SIGBUS);

	if (fd < 0)
		return fd;
	/* Whoever polls looks at it without a lock. */
	__atomic_store_n(&k->by_signal, fd, __ATOMIC_RELEASE);
	return 0;
}

int umap_kernel_open(struct umap_kernel *k)
{
	struct uffdio_api api = { .api = UFFD_API, .features = FEATURES };

	k->uffd = open_uffd(k);
	if (k->uffd < 0)
		return k->uffd == -EMFILE || k->uffd == -ENFILE || k->uffd == -ENOMEM ? k->uffd : -ENOSYS;
	k->pagemap = pagemap_open();
	if (k->pagemap < 0) {
		int err = k->pagemap;

		close(k->uffd);
		k->uffd = -1;
		return err;
	}
	if (ioctl(k->uffd, UFFDIO_API, &api)) {
		umap_kernel_close(k);
		return -ENOSYS;
	}
	return 0;
}

void umap_kernel_close(struct umap_kernel *k)
{
	close(k->uffd);
	close(k->pagemap);
	if (k->by_signal >= 0)
		close(k->by_signal);
	k->uffd = k->pagemap = k->by_signal = -1;
}

int umap_kernel_register(int uffd, void *view, uint64_t n)
{
	struct uffdio_register reg = {
		.range = { (uintptr_t)view, n },
		.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_MINOR | UFFDIO_REGISTER_MODE_WP,
	};

	return ioctl(uffd, UFFDIO_REGISTER, &reg) ? -errno : 0;
}

void umap_kernel_unregister(int uffd, void *view, uint64_t n)
{
	struct uffdio_range range = { (uintptr_t)view, n };

	ioctl(uffd, UFFDIO_UNREGISTER, &range);
}

/* A call for n bytes failed. Where the program has used mprotect(2), mlock(2)... on a part there is more than one mapping: then 4 KiB at a time. */
static int less(uint64_t n, uint64_t *most)
{
	if (errno == EINTR)
		return 0;
	if (errno != ENOENT || n <= SMALL_PAGE)
		return -errno;
	*most = SMALL_PAGE;
	return 0;
}

int umap_kernel_map(int uffd, void *view, uint64_t n, bool protect, uint64_t *done)
{
	uint64_t at = (uintptr_t)view, end = at + n, most = n;
	int err = 0;

	while (at < end) {
		struct uffdio_continue c = { .range = { at, MIN(most, end - at) }, .mode = protect ? CONTINUE_PROTECTED : 0 };

		if (!ioctl(uffd, UFFDIO_CONTINUE, &c)) {
			at += c.range.len;
		} else if (c.mapped > 0) {
			at += c.mapped;
		} else if (c.mapped == -EEXIST || errno == EEXIST) {
			/* This one is mapped already. Somebody may wait for it all the same. */
			umap_kernel_wake(uffd, (void *)at, SMALL_PAGE);
			at += SMALL_PAGE;
		} else {
			err = less(c.range.len, &most);
			if (err)
				break;
		}
	}
	if (done)
		*done = at - (uintptr_t)view;
	return err;
}

int umap_kernel_copy(int uffd, void *view, const void *from, uint64_t n, bool protect, uint64_t *done)
{
	uint64_t most = n;
	int err = 0;

	for (*done = 0; *done < n && !err;) {
		struct uffdio_copy c = {
			.dst = (uintptr_t)view + *done, .src = (uintptr_t)from + *done, .len = MIN(most, n - *done),
			.mode = UFFDIO_COPY_MODE_DONTWAKE | (protect ? UFFDIO_COPY_MODE_WP : 0),
		};

		if (!ioctl(uffd, UFFDIO_COPY, &c))
			*done += c.len;
		else if (c.copy > 0)
			*done += c.copy;
		else
			err = less(c.len, &most);
	}
	return err;
}

int umap_kernel_mark(int uffd, void *view, uint64_t n)
{
	struct uffdio_writeprotect wp = { .range = { (uintptr_t)view, n }, .mode = UFFDIO_WRITEPROTECT_MODE_WP };

	return ioctl(uffd, UFFDIO_WRITEPROTECT, &wp) ? -errno : 0;
}

int umap_kernel_unmap(void *view, uint64_t n)
{
	/* Old kernels refuse what is locked (mlock(2)) either way. */
	if (!madvise(view, n, MADV_DONTNEED_LOCKED) || !madvise(view, n, MADV_DONTNEED))
		return 0;
	return -errno;
}

bool umap_kernel_unmap_at_once(const struct iovec *parts, unsigned n)
{
	static bool refused;	/* atomic */
	ssize_t all = 0, done;

	if (__atomic_load_n(&refused, __ATOMIC_RELAXED))
		return false;
	for (unsigned i = 0; i < n; i++)
		all += parts[i].iov_len;
	done = syscall(SYS_process_madvise, SELF, parts, n, MADV_DONTNEED_LOCKED, 0);
	if (done < 0 && errno != EINTR && errno != EAGAIN && errno != ENOMEM)
		__atomic_store_n(&refused, true, __ATOMIC_RELAXED);
	return done == all;
}

void umap_kernel_wake(int uffd, void *view, uint64_t n)
{
	struct uffdio_range range = { (uintptr_t)view, n };

	ioctl(uffd, UFFDIO_WAKE, &range);
}

void umap_kernel_poison(int uffd, void *view)
{
	/* The mark that a protected page left would be in the way. Who is woken before there is poison faults again. */
	struct uffdio_writeprotect wp = { .range = { (uintptr_t)view, SMALL_PAGE }, .mode = UFFDIO_WRITEPROTECT_MODE_DONTWAKE };
	struct poison p = { .range = { (uintptr_t)view, SMALL_PAGE } };

	ioctl(uffd, UFFDIO_WRITEPROTECT, &wp);
	ioctl(uffd, DO_POISON, &p);
	umap_kernel_wake(uffd, view, SMALL_PAGE);
}

int umap_kernel_scan(void *view, uint64_t n, bool rearm, void (*part)(void *arg, uint64_t start, uint64_t end, bool mapped, bool clean),
		     void *arg)
{
	return pagemap_scan(umap.kernel.pagemap, view, n, rearm, part, arg);
}
