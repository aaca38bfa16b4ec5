/*
 * protect.h - which pages of this process's memory have been stored to: asynchronous write protection (userfaultfd(2), Linux 6.7), which goes with
 * the first store to a page and sends no message, and PAGEMAP_SCAN, which tells where it has gone. For umap/ and host_detect.c.
 *
 * Errors are negative errnos. Of those that open something -EMFILE, -ENFILE and -ENOMEM may pass; -ENOSYS: the kernel cannot do it, or may not.
 */
#ifndef GAIA_CLIENT_PROTECT_H
#define GAIA_CLIENT_PROTECT_H

#include <linux/userfaultfd.h>
#include <stdbool.h>
#include <stdint.h>

/* The headers may be older than the kernel. */
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#define FEATURE_WP_ASYNC (1u << 15) /* and so of pages that are not there, too */

/*
 * A userfaultfd(2) with these features. Faults within system calls send it no messages, and so it takes no privileges; protection that is
 * asynchronous goes with their stores, too.
 */
int uffd_open_user_mode(uint64_t features);

/* To scan this process's memory, not a child's. */
int pagemap_open(void);

/* Whether the page there is mapped as part of a huge page. */
bool pagemap_is_huge(int pagemap, const void *at);

/*
 * Tell for each part of the memory, of whole pages of 4 KiB, whether it is clean: protected, or unmapped while it was. What nothing is told of is
 * not there. @rearm: protect again what was stored to, or is not there. @part may be NULL. -EPERM: some of it is not registered.
 */
int pagemap_scan(int pagemap, const void *at, uint64_t n, bool rearm, void (*part)(void *arg, uint64_t start, uint64_t end, bool mapped, bool clean),
		 void *arg);

#endif
