/*
 * chunks.c - what it takes to have device memory, and to share it with another process.
 *
 * We create and export, as the daemon does; another process imports and maps, as its clients do.
 */
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "ceilings.h"
#include "gpu.h"

#define CHUNKS_MAX 512u
#define FDS_AT_ONCE 64u
#define MADE_AT_ONCE 16u /* by the daemon */

/* ---- the other process ---- */

/* A request: so many chunks come. The answer: the microseconds of each step. */
enum { IMPORT, MAP, ACCESS, UNMAP, RELEASE, STEPS };
static const char *const step_name[] = { "import_us", "map_us", "set_access_all_us", "unmap_us",
					 "importer_release_us" };

struct answer {
	double us[STEPS]; /* a chunk; of ACCESS all chunks */
};

#define TIMED(out, n, call)                                 \
	do {                                                \
		double t0_ = now_us();                      \
		for (unsigned k = 0; k < (n); k++)          \
			call;                               \
		(out) = (now_us() - t0_) / (n);             \
	} while (0)

static void import_once(int sock, unsigned n)
{
	static CUmemGenericAllocationHandle handle[CHUNKS_MAX];
	static int fd[CHUNKS_MAX];
	struct answer a;
	CUdeviceptr at;

	for (unsigned k = 0; k < n; k += FDS_AT_ONCE)
		hear_fds(sock, fd + k, n - k < FDS_AT_ONCE ? n - k : FDS_AT_ONCE);
	CU(MemAddressReserve(&at, n * CHUNK, CHUNK, 0, 0));
	TIMED(a.us[IMPORT], n,
	      CU(MemImportFromShareableHandle(&handle[k], (void *)(intptr_t)fd[k],
					      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
	TIMED(a.us[MAP], n, CU(MemMap(at + k * CHUNK, CHUNK, 0, handle[k], 0)));
	TIMED(a.us[ACCESS], 1, CU(MemSetAccess(at, n * CHUNK, &chunk_access, 1)));
	TIMED(a.us[UNMAP], n, CU(MemUnmap(at + k * CHUNK, CHUNK)));
	TIMED(a.us[RELEASE], n, CU(MemRelease(handle[k])));
	CU(MemAddressFree(at, n * CHUNK));
	for (unsigned k = 0; k < n; k++)
		close(fd[k]);
	tell(sock, &a, sizeof(a));
}

static void importer(int sock)
{
	unsigned n;

	hear(sock, &n, sizeof(n)); /* that there is a GPU */
	gpu_start();
	for (;;) {
		hear(sock, &n, sizeof(n));
		import_once(sock, n);
	}
}

/* ---- our side ---- */

enum { CREATE, EXPORT, MAKER_RELEASE, OWN_STEPS };
static const char *const own_name[] = { "create_us", "export_us", "release_us" };

struct sharing {
	struct samples own[OWN_STEPS], its[STEPS];
};

static void share_once(const struct repeat *r, int sock, unsigned n, struct sharing *out)
{
	static CUmemGenericAllocationHandle handle[CHUNKS_MAX];
	static int fd[CHUNKS_MAX];
	struct answer a;
	double us[OWN_STEPS];

	TIMED(us[CREATE], n, CU(MemCreate(&handle[k], CHUNK, &chunk_prop, 0)));
	TIMED(us[EXPORT], n,
	      CU(MemExportToShareableHandle(&fd[k], handle[k],
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
	tell(sock, &n, sizeof(n));
	for (unsigned k = 0; k < n; k += FDS_AT_ONCE)
		tell_fds(sock, fd + k, n - k < FDS_AT_ONCE ? n - k : FDS_AT_ONCE);
	for (unsigned k = 0; k < n; k++)
		close(fd[k]);
	hear(sock, &a, sizeof(a));
	TIMED(us[MAKER_RELEASE], n, CU(MemRelease(handle[k])));
	for (unsigned i = 0; i < OWN_STEPS; i++)
		took(r, &out->own[i], us[i]);
	for (unsigned i = 0; i < STEPS; i++)
		took(r, &out->its[i], a.us[i]);
}

static void put_sharing(struct sharing *s)
{
	for (unsigned i = 0; i < OWN_STEPS; i++)
		row_samples(own_name[i], &s->own[i]);
	for (unsigned i = 0; i < STEPS; i++)
		row_samples(step_name[i], &s->its[i]);
}

static struct other start_importer(void)
{
	struct other o = other_start(importer);
	unsigned go = 0;

	gpu_start();
	tell(o.sock, &go, sizeof(go));
	return o;
}

void section_chunks(void)
{
	static const char what[] = "chunks of 2 MiB from one process to another, each";
	struct other o = start_importer();

	for (unsigned n = 1; n <= (quick ? 8 : CHUNKS_MAX); n *= 2) {
		struct sharing s;

		if (n * CHUNK * 2 >= gpu_free()) {
			row_not_run(what, "%u chunks: the GPU has %zu MiB free", n, gpu_free() / MIB);
			continue;
		}
		memset(&s, 0, sizeof(s));
		for (struct repeat r = repeat(n > 64 ? 5 : 15); again(&r);)
			share_once(&r, o.sock, n, &s);
		row_begin("%s", what);
		row_number("chunks", n);
		put_sharing(&s);
		row_end();
	}
	other_end(&o);
}

/* ---- with many alive ---- */

struct alive {
	unsigned n, most;
	CUdeviceptr at;
};

/* Mapped and open, as the daemon's are. Microseconds a chunk: what the last of them took. */
static void grow(struct alive *alive, unsigned to, double *create, double *map, double *access)
{
	*create = *map = *access = 0;
	while (alive->n < to) {
		unsigned at_once = to - alive->n < MADE_AT_ONCE ? to - alive->n : MADE_AT_ONCE;
		CUdeviceptr first = alive->at + alive->n * CHUNK;
		CUmemGenericAllocationHandle handle[MADE_AT_ONCE];

		TIMED(*create, at_once, CU(MemCreate(&handle[k], CHUNK, &chunk_prop, 0)));
		TIMED(*map, at_once, CU(MemMap(first + k * CHUNK, CHUNK, 0, handle[k], 0)));
		TIMED(*access, 1, CU(MemSetAccess(first, at_once * CHUNK, &chunk_access, 1)));
		*access /= at_once;
		alive->n += at_once;
	}
}

void section_alive(void)
{
	static const unsigned wanted[] = { 0, 1000, 10000, 50000 }, small[] = { 0, 16, 50 };
	static const char what[] = "chunks shared while many are alive, each";
	const unsigned *n = quick ? small : wanted;
	unsigned steps = quick ? 3 : 4, shared = quick ? 8 : 64;
	struct other o = start_importer();
	struct alive alive = { .n = 0 };

	/* What is shared takes room, too; and a bit is the driver's. */
	alive.most = (unsigned)(gpu_free() / 32 * 31 / CHUNK);
	alive.most -= alive.most < 2 * shared ? alive.most : 2 * shared;
	CU(MemAddressReserve(&alive.at, n[steps - 1] * CHUNK, CHUNK, 0, 0));
	for (unsigned i = 0; i < steps; i++) {
		unsigned to = n[i] < alive.most ? n[i] : alive.most;
		double create, map, access;
		struct sharing s;

		/* A smaller GPU: as many as it can have, once. */
		if (to < n[i])
			row_not_run(what, "%u alive: the GPU has room for %u, beside the %u that are shared", n[i], alive.most, shared);
		if (i && to <= alive.n)
			continue;
		memset(&s, 0, sizeof(s));
		grow(&alive, to, &create, &map, &access);
		for (struct repeat r = repeat(5); again(&r);)
			share_once(&r, o.sock, shared, &s);
		row_begin("%s", what);
		row_number("chunks", shared);
		row_number("alive", to);
		put_sharing(&s);
		if (to) {
			row_number("last_alive_create_us", create);
			row_number("last_alive_map_us", map);
			row_number("last_alive_set_access_us", access);
		}
		row_end();
	}
	other_end(&o);
}

/* ---- larger pieces ---- */

static void allocation_row(size_t bytes)
{
	static const char *const name[] = { "create_us", "map_us", "set_access_us", "unmap_us",
					    "release_us", "cuMemAlloc_us", "cuMemFree_us" };
	struct samples s[7];

	memset(s, 0, sizeof(s));
	for (struct repeat r = repeat(9); again(&r);) {
		CUmemGenericAllocationHandle handle;
		CUdeviceptr at;
		double us[7];

		CU(MemAddressReserve(&at, bytes, CHUNK, 0, 0));
		TIMED(us[0], 1, CU(MemCreate(&handle, bytes, &chunk_prop, 0)));
		TIMED(us[1], 1, CU(MemMap(at, bytes, 0, handle, 0)));
		TIMED(us[2], 1, CU(MemSetAccess(at, bytes, &chunk_access, 1)));
		TIMED(us[3], 1, CU(MemUnmap(at, bytes)));
		TIMED(us[4], 1, CU(MemRelease(handle)));
		CU(MemAddressFree(at, bytes));
		TIMED(us[5], 1, CU(MemAlloc(&at, bytes)));
		TIMED(us[6], 1, CU(MemFree(at)));
		for (unsigned i = 0; i < 7; i++)
			took(&r, &s[i], us[i]);
	}
	row_begin("one allocation");
	row_number("bytes", (double)bytes);
	for (unsigned i = 0; i < 7; i++)
		row_samples(name[i], &s[i]);
	row_end();
}

void section_allocations(void)
{
	static const size_t sizes[] = { 2 * MIB, 16 * MIB, 64 * MIB, 512 * MIB };

	gpu_start();
	for (unsigned i = 0; i < (quick ? 2 : 4); i++) {
		if (sizes[i] < gpu_free() / 2)
			allocation_row(sizes[i]);
		else
			row_not_run("one allocation", "%zu MiB: the GPU has %zu MiB free", sizes[i] / MIB, gpu_free() / MIB);
	}
}
