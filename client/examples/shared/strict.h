/*
 * strict.h - an emulation of strict coherence by whole pages, as unified memory has it: a page is in the memory of the CPU or in
 * that of the device, and goes over when the other side touches it.
 *
 * The two memories are two views of the same pages. What is in one of them is missing in the other, where a touch is a page fault;
 * a thread takes these from userfaultfd(2) and moves the page (UFFDIO_MOVE, Linux 6.8). Pages that neither side has touched are
 * read from the file. The emulation moves single pages; drivers move more at a time where they guess well. What a fault of a
 * GPU's takes is not emulated: only counted, by the model of moved.h.
 */
#ifndef EXAMPLE_STRICT_H
#define EXAMPLE_STRICT_H

#include "moved.h"

#ifndef __CUDACC__

#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

/* Headers are older than kernels. */
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#define STRICT_FEATURE_MOVE (1u << 16)
struct strict_move {
	uint64_t dst, src, len, mode;
	int64_t move;
};
#define STRICT_MOVE _IOWR(UFFDIO, 0x05, struct strict_move)

enum strict_side { SIDE_CPU, SIDE_DEVICE, SIDE_NONE };

struct strict {
	/* Constant. */
	unsigned char *view[2]; /* of each side: pages * PAGE bytes */
	size_t pages, size;	/* size: of the file, bytes */
	int fd, uffd, stop;
	pthread_t thread;

	/* The thread's; others may look when no side touches anything. */
	uint8_t *owner;
};

/* Whether the file has anything but zeros there. */
static inline bool strict_from_file(struct strict *s, enum strict_side side, size_t page)
{
	static _Thread_local unsigned char bytes[PAGE];
	struct uffdio_copy copy = { .dst = (uintptr_t)s->view[side] + page * PAGE, .src = (uintptr_t)bytes, .len = PAGE };
	size_t have = page * PAGE < s->size ? smaller(PAGE, s->size - page * PAGE) : 0;

	read_all(s->fd, bytes, have, page * PAGE);
	memset(bytes + have, 0, PAGE - have);
	if (ioctl(s->uffd, UFFDIO_COPY, &copy))
		err(1, "UFFDIO_COPY");
	return bytes[0] || memcmp(bytes, bytes + 1, PAGE - 1);
}

static inline void strict_fault(struct strict *s, uintptr_t address)
{
	enum strict_side side = address - (uintptr_t)s->view[SIDE_DEVICE] < s->pages * PAGE ? SIDE_DEVICE : SIDE_CPU;
	size_t page = (address - (uintptr_t)s->view[side]) / PAGE;
	struct uffdio_range range = { .start = (uintptr_t)s->view[side] + page * PAGE, .len = PAGE };
	struct strict_move move = { .dst = range.start, .src = (uintptr_t)s->view[1 - side] + page * PAGE, .len = PAGE };

	bool moves = true; /* over the bus. Zeros of the file do not: they are made where they are touched. */

	if (s->owner[page] == side) { /* another thread of this side was first */
		ioctl(s->uffd, UFFDIO_WAKE, &range);
		return;
	}
	if (s->owner[page] == SIDE_NONE) {
		moves = strict_from_file(s, side, page) && side == SIDE_DEVICE;
	} else {
		while (ioctl(s->uffd, STRICT_MOVE, &move))
			if (errno != EAGAIN && errno != EBUSY)
				err(1, "UFFDIO_MOVE");
	}
	if (moves)
		count_moved(side == SIDE_DEVICE ? PAGE : 0, side == SIDE_CPU ? PAGE : 0, 1);
	s->owner[page] = side;
}

static inline void *strict_serve(void *arg)
{
	struct strict *s = (struct strict *)arg;

	for (;;) {
		struct pollfd ready[2] = { { s->uffd, POLLIN, 0 }, { s->stop, POLLIN, 0 } };
		struct uffd_msg msg;

		if (poll(ready, 2, -1) < 0 && errno != EINTR)
			err(1, "poll");
		if (ready[1].revents)
			return NULL;
		if (read(s->uffd, &msg, sizeof(msg)) == sizeof(msg) && msg.event == UFFD_EVENT_PAGEFAULT)
			strict_fault(s, msg.arg.pagefault.address);
	}
}

/* Ends the program where the kernel cannot do this. Call it after the last fork(). */
static inline struct strict *strict_open(int fd, size_t size)
{
	struct uffdio_api api = { .api = UFFD_API, .features = STRICT_FEATURE_MOVE };
	struct strict *s = (struct strict *)own_memory(sizeof(*s));

	s->fd = fd;
	s->size = size;
	s->pages = round_up(size, PAGE) / PAGE;
	s->owner = (uint8_t *)own_memory(s->pages);
	memset(s->owner, SIDE_NONE, s->pages);
	s->uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (s->uffd < 0 || ioctl(s->uffd, UFFDIO_API, &api)) {
		warnx("--mode strict needs userfaultfd(2) with UFFDIO_MOVE (Linux 6.8)");
		exit(EXIT_SKIPPED);
	}
	for (int side = 0; side < 2; side++) {
		struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
		void *p = mmap(NULL, s->pages * PAGE, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		if (p == MAP_FAILED)
			err(1, "mmap");
		madvise(p, s->pages * PAGE, MADV_NOHUGEPAGE);
		madvise(p, s->pages * PAGE, MADV_DONTFORK); /* a page that a child shares cannot be moved */
		reg.range.start = (uintptr_t)p;
		reg.range.len = s->pages * PAGE;
		if (ioctl(s->uffd, UFFDIO_REGISTER, &reg))
			err(1, "UFFDIO_REGISTER");
		s->view[side] = (unsigned char *)p;
	}
	s->stop = eventfd(0, EFD_CLOEXEC);
	if (s->stop < 0 || (errno = pthread_create(&s->thread, NULL, strict_serve, s)))
		err(1, "cannot serve page faults");
	return s;
}

/* No side may touch it any more. If @store, the file gets what is in the two memories. */
static inline void strict_close(struct strict *s, bool store)
{
	uint64_t one = 1;

	if (write(s->stop, &one, sizeof(one)) != sizeof(one))
		err(1, "eventfd");
	pthread_join(s->thread, NULL);
	for (size_t page = 0; page < s->pages && store; page++)
		if (s->owner[page] != SIDE_NONE)
			write_all(s->fd, s->view[s->owner[page]] + page * PAGE, smaller(PAGE, s->size - page * PAGE), page * PAGE);
	for (int side = 0; side < 2; side++)
		munmap(s->view[side], s->pages * PAGE);
	close(s->stop);
	close(s->uffd);
	free(s->owner);
	free(s);
}

#endif
#endif
