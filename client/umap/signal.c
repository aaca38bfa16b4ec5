/*
 * signal.c - faults that are served where they happen: regions with GAIA_UMAP_BY_SIGNAL.
 *
 * Their userfaultfd raises SIGBUS in the thread that touches a page which is not there (UFFD_FEATURE_SIGBUS), and nobody
 * else has to be woken: neither a thread of ours, nor afterwards the one that has touched. The handler does what a filler
 * does, and the access is tried again. It is entered from any code of the program's that touches memory of a region, and
 * that is never code of ours: so no lock of ours is held there (U6). (Where there is no memory for a page of the desk, the
 * library may fault itself, with locks: then nothing is served, and the process ends as it would without the handler.)
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

#include "internal.h"
#include "region.h"

static struct sigaction other;	/* what the program had */
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
	struct sigaction to = other;
	bool sent = info->si_code <= 0; /* by kill(2) */
	sigset_t mask;

	if (to.sa_handler == SIG_IGN && sent)
		return;
	/* It must not jump out of a function of a store, whose page others wait for. */
	if (to.sa_handler == SIG_DFL || to.sa_handler == SIG_IGN || umap_in_store()) {
		/* What was touched is touched again, and that ends the process. */
		signal(SIGBUS, SIG_DFL);
		if (sent)
			raise(SIGBUS);
		return;
	}
	if (to.sa_flags & SA_RESETHAND)
		other = (struct sigaction){ .sa_handler = SIG_DFL };
	/* It may not return: blocked is what would be without us. */
	sigorset(&mask, &((ucontext_t *)context)->uc_sigmask, &to.sa_mask);
	if (!(to.sa_flags & SA_NODEFER))
		sigaddset(&mask, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	if (to.sa_flags & SA_SIGINFO)
		to.sa_sigaction(sig, info, context);
	else
		to.sa_handler(sig);
}

/* What mremap(2) has done is known then: not if that takes too long, as where this thread itself is in the way. */
static bool settle(void)
{
	for (unsigned tries = 0; tries < SETTLE_TRIES; tries++) {
		if (!pthread_mutex_trylock(&umap.events_lock)) {
			pthread_mutex_unlock(&umap.events_lock);
			return true;
		}
		sched_yield();
	}
	return false;
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
		served = before != addr && settle();
		before = served ? addr : NULL;
		return served;
	}
	before = NULL;
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

void umap_signals_of_others(sigset_t *set)
{
	static const int own[] = { SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS };

	sigfillset(set);
	for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		sigdelset(set, own[i]);
}

void umap_signal_start(void)
{
	struct sigaction sa = { .sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_NODEFER };

	if (installed)
		return;
	/* A handler of another signal that touches a region comes later. */
	umap_signals_of_others(&sa.sa_mask);
	/* First: another thread may need it at once. */
	sigaction(SIGBUS, NULL, &other);
	sigaction(SIGBUS, &sa, NULL);
	installed = true;
}
