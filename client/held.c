/*
 * held.c - which pages each mapping holds, as far as this library knows.
 *
 * The daemon counts holds. This library counts them only where they are needed: on a strict device, whose pages a
 * program can touch only while they are held; and with GAIA_DEBUG=1, which reports mistakes on stderr. A count changes
 * when the daemon has answered.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <time.h>
#include <unistd.h>

#include "internal.h"

/* Lines that one call reports at most. */
#define REPORTS 16

struct held_chunk {
	uint16_t n[GAIA_CHUNK_PAGES];	/* acquires not yet released */
	bool writes[GAIA_CHUNK_PAGES];	/* since n was last 0 an acquire was for writing */

	/* Strict mappings. */
	bool placed;	/* the chunk is there */
	bool together;	/* placed as part of an extent, which is one mapping */
	bool lax;	/* placed, and not protected: the process has no mappings left for that */
	int prot;	/* placed: the access that it allows at most */
};

/* Pages of a mapping, from m->base. */
struct pages {
	uint64_t a, b;
};

static bool debugging;

static void read_environment(void)
{
	const char *value = secure_getenv("GAIA_DEBUG");

	debugging = value && *value && strcmp(value, "0");
}

static bool is_debugging(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, read_environment);
	return debugging;
}

static struct pages pages_of(const struct mapping *m, const struct gaia_ioc_range *io)
{
	uint64_t from = io->offset - m->start;

	return (struct pages){ from / GAIA_PAGE, (from + io->length + GAIA_PAGE - 1) / GAIA_PAGE };
}

static uint16_t *count_of(const struct mapping *m, uint64_t page)
{
	return &m->held[page / GAIA_CHUNK_PAGES].n[page % GAIA_CHUNK_PAGES];
}

static bool *writes_of(const struct mapping *m, uint64_t page)
{
	return &m->held[page / GAIA_CHUNK_PAGES].writes[page % GAIA_CHUNK_PAGES];
}

/* ---- reports ---- */

/* Report that these pages @what: names the file as it is called now, and the bytes that are in the mapping. */
static void report(const struct mapping *m, struct pages p, const char *what)
{
	uint64_t first = MAX(m->start + p.a * GAIA_PAGE, m->offset);
	uint64_t end = MIN(m->start + p.b * GAIA_PAGE, m->offset + m->length);
	char link[40], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", m->file->fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = '\0';
	dprintf(STDERR_FILENO, "gaia: %s: bytes %llu to %llu %s\n", n < 0 ? "a file" : path, (unsigned long long)first,
		(unsigned long long)end - 1, what);
}

/* The next run of pages from @p.a on that are held, or that are not (@held); p.a == p.b: there is none. The lock is held. */
static struct pages next_run(const struct mapping *m, struct pages p, bool held)
{
	struct pages run;

	while (p.a < p.b && (*count_of(m, p.a) != 0) != held)
		p.a++;
	for (run = (struct pages){ p.a, p.a }; run.b < p.b && (*count_of(m, run.b) != 0) == held; run.b++)
		;
	return run;
}

/* Collect runs of pages, under the lock, to be reported without it. Returns their number. */
static unsigned note_runs(const struct mapping *m, struct pages p, bool held, struct pages out[REPORTS])
{
	unsigned n = 0;

	while (n < REPORTS) {
		struct pages run = next_run(m, p, held);

		if (run.a == run.b)
			break;
		out[n++] = run;
		p.a = run.b;
	}
	return n;
}

static void report_runs(const struct mapping *m, const struct pages *runs, unsigned n, const char *what)
{
	for (unsigned i = 0; i < n; i++)
		report(m, runs[i], what);
	if (n == REPORTS)
		dprintf(STDERR_FILENO, "gaia: there may be more\n");
}

#define UNWAITED "are being acquired since gaia_acquire_start(), and gaia_wait() was not called"

void held_unwaited(const struct mapping *m, const struct gaia_ioc_range *io)
{
	if (is_debugging())
		report(m, pages_of(m, io), UNWAITED);
}

void held_unmapped(struct mapping *m)
{
	struct pages all = { 0, m->span / GAIA_PAGE }, runs[REPORTS];
	unsigned n;

	if (!m->held || !is_debugging())
		return;
	pthread_mutex_lock(&gaia_lock);
	n = note_runs(m, all, true, runs);
	pthread_mutex_unlock(&gaia_lock);
	report_runs(m, runs, n, "are still held at gaia_munmap(): what was stored there since the last release is lost");
}

static void report_at_exit(struct mapping *m)
{
	struct pages all = { 0, m->span / GAIA_PAGE }, runs[REPORTS];

	if (m->held && !m->conn->forked)
		report_runs(m, runs, note_runs(m, all, true, runs),
			    "are still held at exit: what was stored there since the last release is lost");
}

/* At exit(3); other threads may still run, and this one may have the lock. */
__attribute__((destructor)) static void at_exit(void)
{
	struct timespec soon;

	if (!debugging)
		return;
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_sec++;
	if (pthread_mutex_timedlock(&gaia_lock, &soon))
		return;
	mappings_each(report_at_exit);
	starts_each(held_unwaited);
	pthread_mutex_unlock(&gaia_lock);
}

/* The handler that the program had for SIGSEGV. */
static struct sigaction next_handler;

static void report_fault(char *addr)
{
	struct mapping *m = mapping_find(addr, 1);
	uint64_t page;
	bool held;

	if (!m)
		return;
	page = (uint64_t)(addr - m->base) / GAIA_PAGE;
	if (m->strict) {
		pthread_mutex_lock(&gaia_lock);
		held = *count_of(m, page) != 0;
		pthread_mutex_unlock(&gaia_lock);
		report(m, (struct pages){ page, page + 1 },
		       held ? "are stored to, and held for reading only" : "are touched, and not held");
	}
	mapping_put(m);
}

/* The thread was in the program's code, so it holds none of our locks. */
static void on_fault(int sig, siginfo_t *info, void *context)
{
	int err = errno;

	/* If a process sent the signal there is no address, and nothing will fault again. */
	if (info->si_code > 0)
		report_fault(info->si_addr);
	errno = err;
	if (next_handler.sa_flags & SA_SIGINFO)
		next_handler.sa_sigaction(sig, info, context);
	else if (next_handler.sa_handler != SIG_DFL && next_handler.sa_handler != SIG_IGN)
		next_handler.sa_handler(sig);
	else if (!sigaction(SIGSEGV, &next_handler, NULL) && info->si_code <= 0)
		raise(sig); /* a real fault happens again by itself */
}

static void watch_faults(void)
{
	struct sigaction ours = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	sigaction(SIGSEGV, NULL, &next_handler);
	ours.sa_flags |= next_handler.sa_flags & SA_NODEFER;
	sigaction(SIGSEGV, &ours, NULL);
}

/* ---- strict devices ---- */

/* The access that a page of a strict mapping should allow, or -1 if that cannot be changed. */
static int access_of(const struct mapping *m, uint64_t page)
{
	const struct held_chunk *h = &m->held[page / GAIA_CHUNK_PAGES];

	if (!h->placed || h->lax)
		return -1;
	if (!*count_of(m, page))
		return PROT_NONE;
	return h->prot & (*writes_of(m, page) ? ~0 : ~PROT_WRITE);
}

/* Allow all access to these chunks from now on. Each, or its extent, is a mapping of its own, so this needs no more mappings. */
static void let_all(struct mapping *m, uint64_t first, uint64_t last)
{
	static bool said;
	uint64_t end;

	for (uint64_t k = first; k <= last; k = end) {
		bool together = m->held[k].together;
		uint64_t from = together ? k / GAIA_EXTENT_CHUNKS * GAIA_EXTENT_CHUNKS : k;

		end = from + (together ? GAIA_EXTENT_CHUNKS : 1);
		for (uint64_t i = from; i < end; i++)
			m->held[i].lax = true;
		m->ops->protect(m, from * GAIA_CHUNK_PAGES, end * GAIA_CHUNK_PAGES, m->held[k].prot);
	}
	if (!said)
		dprintf(STDERR_FILENO, "gaia: this process has no mappings left (vm.max_map_count): parts of files on the "
				       "simulated device can be touched without an acquire\n");
	said = true;
}

/* Let the program touch those of pages [p.a, p.b) that are held, in as few calls as possible. The lock is held. */
static void protect(struct mapping *m, struct pages p)
{
	uint64_t end;

	for (uint64_t at = p.a; m->strict && !m->gone && at < p.b; at = end) {
		int prot = access_of(m, at);

		for (end = at + 1; end < p.b && access_of(m, end) == prot; end++)
			;
		if (prot >= 0 && m->ops->protect(m, at, end, prot))
			let_all(m, at / GAIA_CHUNK_PAGES, (end - 1) / GAIA_CHUNK_PAGES);
	}
}

void held_placed(struct mapping *m, uint64_t first, unsigned n, bool together, int prot)
{
	if (!m->strict)
		return;
	for (unsigned k = 0; k < n; k++) {
		m->held[first + k].placed = true;
		m->held[first + k].together = together;
		m->held[first + k].lax = false;
		m->held[first + k].prot = prot;
	}
	/* Some may be held already: pages that were beyond the end of the file when they were acquired. */
	protect(m, (struct pages){ first * GAIA_CHUNK_PAGES, (first + n) * GAIA_CHUNK_PAGES });
}

void held_cleared(struct mapping *m, uint64_t first, unsigned n)
{
	/* (Of a long mapping most of the table is never touched.) */
	for (unsigned k = 0; m->strict && k < n; k++)
		if (m->held[first + k].placed)
			m->held[first + k].placed = false;
}

/* ---- holds ---- */

static size_t table_bytes(const struct mapping *m)
{
	return m->span / GAIA_CHUNK * sizeof(struct held_chunk);
}

int held_init(struct mapping *m)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	void *table;

	if (!is_debugging() && !m->strict)
		return 0;
	if (is_debugging() && m->strict)
		pthread_once(&once, watch_faults);
	/* The table is for all of the reserved range; most of it is never touched. */
	table = mmap(NULL, table_bytes(m), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (table == MAP_FAILED)
		return -ENOMEM;
	m->held = table;
	return 0;
}

void held_end(struct mapping *m)
{
	if (m->held)
		munmap(m->held, table_bytes(m));
}

/* Count an acquire. The lock is held. */
static void count_up(struct mapping *m, struct pages p, int prot)
{
	for (uint64_t at = p.a; at < p.b; at++) {
		++*count_of(m, at);
		*writes_of(m, at) |= (prot & PROT_WRITE) != 0;
	}
}

/* Count a release. The lock is held. */
static void count_down(struct mapping *m, struct pages p)
{
	for (uint64_t at = p.a; at < p.b; at++)
		if (!*count_of(m, at) || !--*count_of(m, at))
			*writes_of(m, at) = false;
}

void held_add(struct mapping *m, const struct gaia_ioc_range *io)
{
	struct pages p = pages_of(m, io);

	if (!m->held)
		return;
	pthread_mutex_lock(&gaia_lock);
	count_up(m, p, (int)io->prot);
	protect(m, p);
	pthread_mutex_unlock(&gaia_lock);
}

void held_take(struct mapping *m, const struct gaia_ioc_range *io)
{
	struct pages p = pages_of(m, io), runs[REPORTS];
	unsigned n;

	if (!m->held)
		return;
	pthread_mutex_lock(&gaia_lock);
	n = is_debugging() ? note_runs(m, p, false, runs) : 0;
	count_down(m, p);
	protect(m, p);
	pthread_mutex_unlock(&gaia_lock);
	report_runs(m, runs, n, "are released, and not held");
}

/* Ranges that touch each other are protected together: many may lie in one page. */
static void protect_run(struct mapping *m, struct pages *run, struct pages next)
{
	if (next.a < next.b && run->a < run->b && next.a <= run->b) {
		run->b = MAX(run->b, next.b);
		return;
	}
	pthread_mutex_lock(&gaia_lock);
	protect(m, *run);
	pthread_mutex_unlock(&gaia_lock);
	*run = next;
}

static struct pages pages_of_range(const struct mapping *m, const struct gaia_list_range *range)
{
	return pages_of(m, &(struct gaia_ioc_range){ .offset = range->offset, .length = range->length });
}

void held_add_list(struct mapping *m, const struct gaia_list_range *range, size_t n, int prot)
{
	struct pages run = { 0, 0 };

	for (size_t k = 0; k < n && m->held; k++) {
		struct pages p = pages_of_range(m, &range[k]);

		pthread_mutex_lock(&gaia_lock);
		count_up(m, p, prot);
		pthread_mutex_unlock(&gaia_lock);
		protect_run(m, &run, p);
	}
	protect_run(m, &run, (struct pages){ 0, 0 });
}

void held_take_list(struct mapping *m, const struct gaia_list_range *range, size_t n)
{
	struct pages run = { 0, 0 }, runs[REPORTS];
	unsigned n_runs;

	for (size_t k = 0; k < n && m->held; k++) {
		struct pages p = pages_of_range(m, &range[k]);

		pthread_mutex_lock(&gaia_lock);
		n_runs = is_debugging() ? note_runs(m, p, false, runs) : 0;
		count_down(m, p);
		pthread_mutex_unlock(&gaia_lock);
		report_runs(m, runs, n_runs, "are released, and not held");
		protect_run(m, &run, p);
	}
	protect_run(m, &run, (struct pages){ 0, 0 });
}

int held_prot(const struct mapping *m, const char *addr)
{
	uint64_t page = (uint64_t)(addr - m->base) / GAIA_PAGE;
	int prot = -1;

	if (!m->held)
		return prot;
	pthread_mutex_lock(&gaia_lock);
	prot = !*count_of(m, page) ? PROT_NONE : *writes_of(m, page) ? PROT_READ | PROT_WRITE : PROT_READ;
	pthread_mutex_unlock(&gaia_lock);
	return prot;
}
