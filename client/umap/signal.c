/*
 * signal.c - faults that are served where they happen: regions with GAIA_UMAP_BY_SIGNAL.
 *
 * Their userfaultfd raises SIGBUS in the thread that touches a page which is not there (UFFD_FEATURE_SIGBUS), and nobody
 * else has to be woken: neither a thread of ours, nor afterwards the one that has touched. The handler does what a filler
 * does, and the access is tried again. It is entered from any code of the program's that touches memory of a region, and
 * that is never code of ours: so no lock of ours is held there (U6).
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

#include "internal.h"
#include "region.h"

static struct sigaction other;	/* what the program had. Constant once it is installed */
static bool installed;		/* process.lock */

/* Whether it was a store. Else a store to the page costs another fault, which the kernel serves alone. */
static bool was_store(const void *context)
{
#ifdef __x86_64__
	return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2;
#else
	(void)context;
	return false;
#endif
}

/* Not ours: as if we were not there. */
static void pass_on(int sig, siginfo_t *info, void *context)
{
	bool sent = info->si_code <= 0; /* by kill(2) */

	if (other.sa_flags & SA_SIGINFO) {
		other.sa_sigaction(sig, info, context);
	} else if (other.sa_handler == SIG_IGN && sent) {
		return;
	} else if (other.sa_handler == SIG_DFL || other.sa_handler == SIG_IGN) {
		/* What was touched is touched again, and that ends the process. */
		signal(SIGBUS, SIG_DFL);
		if (sent)
			raise(SIGBUS);
	} else {
		other.sa_handler(sig);
	}
}

/* Whether it shall be touched again. */
static bool serve(void *addr, bool write)
{
	static __thread void *before;
	uint64_t at;
	struct umap_region *r = umap_region_get(addr, &at);
	bool served;

	if (!r) {
		/* mremap(2) may have moved one here, or away, of which we are told just now. */
		umap_region_settle();
		served = before != addr;
		before = served ? addr : NULL;
		return served;
	}
	served = r->by_signal && !umap_fault_here(r, at, write);
	umap_region_put(r);
	return served;
}

static void on_bus(int sig, siginfo_t *info, void *context)
{
	int saved = errno, cancel;
	bool ours = false;

	/* Broken memory, and what kill(2) sends, have other codes. */
	if (info->si_code == BUS_ADRERR) {
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
		ours = serve(info->si_addr, was_store(context));
		pthread_setcancelstate(cancel, NULL);
	}
	errno = saved;
	if (!ours)
		pass_on(sig, info, context);
}

void umap_signal_start(void)
{
	struct sigaction sa = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_NODEFER };

	if (installed)
		return;
	/* A handler of another signal that touches a region comes later; a store's function that touches one is told so. */
	sigfillset(&sa.sa_mask);
	sigdelset(&sa.sa_mask, SIGBUS);
	sigdelset(&sa.sa_mask, SIGSEGV);
	sigdelset(&sa.sa_mask, SIGFPE);
	sigdelset(&sa.sa_mask, SIGILL);
	sigaction(SIGBUS, &sa, &other);
	installed = true;
}
