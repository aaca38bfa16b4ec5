/*
 * held.c - which pages each mapping holds, as far as this library knows.
 *
 * The daemon counts holds. Here they are counted only where somebody looks at them: with GAIA_DEBUG=1, which has mistakes
 * reported on stderr. A count changes when the daemon has answered.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <unistd.h>

#include "internal.h"

/* Reports of one call, at most. */
#define REPORTS 16

struct held_chunk {
	uint16_t n[GAIA_CHUNK_PAGES];	/* acquires not yet released */
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
	uint64_t from = io->offset - m->offset / GAIA_CHUNK * GAIA_CHUNK;

	return (struct pages){ from / GAIA_PAGE, (from + io->length + GAIA_PAGE - 1) / GAIA_PAGE };
}

static uint16_t *count_of(const struct mapping *m, uint64_t page)
{
	return &m->held[page / GAIA_CHUNK_PAGES].n[page % GAIA_CHUNK_PAGES];
}

static size_t table_bytes(const struct mapping *m)
{
	return m->span / GAIA_CHUNK * sizeof(struct held_chunk);
}

int held_init(struct mapping *m)
{
	void *table;

	if (!is_debugging())
		return 0;
	/* For all that it reserves; most of that is never touched. */
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

/* ---- reports ---- */

/* The file, as it is called now, and the bytes of pages that the mapping has. */
static void report(const struct mapping *m, struct pages p, const char *what)
{
	uint64_t start = m->offset / GAIA_CHUNK * GAIA_CHUNK;
	uint64_t first = MAX(start + p.a * GAIA_PAGE, m->offset);
	uint64_t end = MIN(start + p.b * GAIA_PAGE, m->offset + m->length);
	char link[40], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", m->file->fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = '\0';
	dprintf(STDERR_FILENO, "gaia: %s: bytes %llu to %llu %s\n", n < 0 ? "a file" : path, (unsigned long long)first,
		(unsigned long long)end - 1, what);
}

/* The next pages from @p.a that are held, or are not; p.a == p.b: no more. The lock is held. */
static struct pages next_run(const struct mapping *m, struct pages p, bool held)
{
	struct pages run;

	while (p.a < p.b && (*count_of(m, p.a) != 0) != held)
		p.a++;
	for (run = (struct pages){ p.a, p.a }; run.b < p.b && (*count_of(m, run.b) != 0) == held; run.b++)
		;
	return run;
}

/* Written down under the lock, said without it. Returns how many there are. */
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

/* At exit(3); other threads may be at work. */
__attribute__((destructor)) static void at_exit(void)
{
	if (!debugging || pthread_mutex_trylock(&gaia_lock))
		return;
	mappings_each(report_at_exit);
	pthread_mutex_unlock(&gaia_lock);
}

/* ---- holds ---- */

void held_add(struct mapping *m, const struct gaia_ioc_range *io)
{
	struct pages p = pages_of(m, io);

	if (!m->held)
		return;
	pthread_mutex_lock(&gaia_lock);
	for (uint64_t at = p.a; at < p.b; at++)
		++*count_of(m, at);
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
	for (uint64_t at = p.a; at < p.b; at++)
		if (*count_of(m, at))
			--*count_of(m, at);
	pthread_mutex_unlock(&gaia_lock);
	report_runs(m, runs, n, "are released, and not held");
}
