/*
 * huge.h - chunks of host memory are huge pages.
 *
 * A chunk of host memory (memfd.h) is one huge page, or 512 pages. One is mapped by a process at the cost of one page, and
 * read with fewer misses of the TLB: a process that maps a file which is there already has it sooner. And it is made at less than
 * a fifth of what 512 cost. So memory is asked for as one when it is made, by MADV_COLLAPSE of its first page alone. If that
 * fails, or takes long, since there is no free one, a thread of its own makes it one some time later, in the background; what
 * programs see in it does not change by that, nor are they kept from it. Where the kernel cannot (before Linux 6.1;
 * shmem_enabled set to deny) the thread ends, after a line in the log. Thread-safe, but for huge_start() and huge_end().
 */
#ifndef GAIA_DEVICE_HUGE_H
#define GAIA_DEVICE_HUGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

/* A chunk's place among those that are to become huge; zeroed by its owner at first, who leaves the rest alone. */
struct huge_wish {
	TAILQ_ENTRY(huge_wish) link;
	int fd;
	off_t from; /* in its memfd */
	unsigned tries;
	uint64_t from_ns; /* not before */
	enum { HUGE_NOWHERE, HUGE_QUEUED, HUGE_IN_HAND } where;
};

/* Without it nothing becomes huge. 0, or a negative errno. */
int huge_start(void);
/* Before the last chunk is gone or afterwards. Nothing if it was not started. */
void huge_end(void);

/*
 * Give GAIA_CHUNK bytes of the memfd @fd, those from @from on, their memory: zeros, as one huge page. They are empty, and mapped at @at,
 * aligned to their size. False: they have none, or only the first page.
 */
bool huge_at_once(int fd, off_t from, void *at);
/* Later. Until huge_forget(), @w and @fd stay. */
void huge_ask(struct huge_wish *w, int fd, off_t from);
/* Waits for nothing: if the thread has the chunk in hand it goes on with a descriptor of its own. */
void huge_forget(struct huge_wish *w);

#endif
