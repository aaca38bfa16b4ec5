/* protect.c - userfaultfd(2) and PAGEMAP_SCAN. The constants are here because headers are older than kernels. */
#include "protect.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

struct scanned {
	uint64_t start, end, categories;
};
struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define DO_SCAN _IOWR('f', 16, struct scan)
#define SCAN_PROTECT 1u		/* PM_SCAN_WP_MATCHING */
#define SCAN_CHECK 2u		/* PM_SCAN_CHECK_WPASYNC */
#define SCAN_PAGE 4096u
#define IS_WRITTEN 2u
#define IS_PRESENT 8u
#define IS_SWAPPED 16u		/* also said of the mark that protected pages leave */
#define IS_HUGE 64u

static int passes(int err)
{
	return err == -EMFILE || err == -ENFILE || err == -ENOMEM ? err : -ENOSYS;
}

int uffd_open_user_mode(uint64_t features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

	if (fd < 0)
		return passes(-errno);
	if (!ioctl(fd, UFFDIO_API, &api))
		return fd;
	close(fd);
	return -ENOSYS;
}

int pagemap_open(void)
{
	struct scan nothing = { .size = sizeof(nothing) };
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return passes(-errno);
	if (ioctl(fd, DO_SCAN, &nothing) >= 0)
		return fd;
	close(fd);
	return -ENOSYS;
}

bool pagemap_is_huge(int pagemap, const void *at)
{
	struct scanned found;
	struct scan s = {
		.size = sizeof(s), .start = (uintptr_t)at, .end = (uintptr_t)at + SCAN_PAGE, .vec = (uintptr_t)&found, .vec_len = 1,
		.category_mask = IS_HUGE, .return_mask = IS_HUGE,
	};

	return ioctl(pagemap, DO_SCAN, &s) == 1;
}

int pagemap_scan(int pagemap, const void *at, uint64_t n, bool rearm, void (*part)(void *arg, uint64_t start, uint64_t end, bool mapped, bool clean),
		 void *arg)
{
	struct scanned found[64];
	uint64_t start = (uintptr_t)at, end = start + n;

	while (start < end) {
		struct scan s = {
			.size = sizeof(s), .flags = SCAN_CHECK | (rearm ? SCAN_PROTECT : 0), .start = start, .end = end,
			.vec = (uintptr_t)found, .vec_len = 64, .return_mask = IS_WRITTEN | IS_PRESENT | IS_SWAPPED,
		};
		int count = ioctl(pagemap, DO_SCAN, &s);

		if (count < 0 && errno == EINTR)
			continue;
		if (count < 0)
			return -errno;
		for (int i = 0; part && i < count; i++) {
			uint64_t is = found[i].categories;

			part(arg, found[i].start - (uintptr_t)at, found[i].end - (uintptr_t)at, is & IS_PRESENT,
			     is & (IS_PRESENT | IS_SWAPPED) && !(is & IS_WRITTEN));
		}
		if (s.walk_end <= start)
			break;
		start = s.walk_end;
	}
	return 0;
}
