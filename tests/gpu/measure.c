/*
 * measure.c - what a GPU machine can do, and what gaiafs makes of it.
 *
 *	measure [--quick] [DIRECTORY]
 *	measure --gpus			only says how many there are
 *
 * First the machine's own ceilings, with bare calls of the driver: copies between host and device
 * by size, and from a second GPU, creating, exporting, importing, mapping and opening 1 to 512 chunks of device memory,
 * registering host memory, an event's way to another process and back. Then, in a DIRECTORY of a
 * gaiafs mount whose first device is a GPU, ours as fractions of them. One JSON object on standard
 * output, a table on standard error. 77: there is no GPU.
 */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

double best_to_device, best_to_host, best_within, best_between;

static unsigned reps = 15;
static size_t largest = 256u << 20;

void check_cu(CUresult r, const char *call)
{
	if (r == CUDA_SUCCESS)
		return;
	fprintf(stderr, "measure: cu%s: error %d\n", call, (int)r);
	exit(1);
}

double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* ---- numbers ---- */

void sample(struct samples *s, double v)
{
	if (s->n < sizeof(s->v) / sizeof(s->v[0]))
		s->v[s->n++] = v;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double quantile(struct samples *s, double p)
{
	if (!s->n)
		return 0;
	qsort(s->v, s->n, sizeof(s->v[0]), by_value);
	return s->v[(unsigned)(p * (s->n - 1) + 0.5)];
}

double median(struct samples *s)
{
	return quantile(s, 0.5);
}

static unsigned members; /* of the object being printed */

static void member(void)
{
	printf("%s", members++ ? ", " : "");
}

void put_section(const char *name, bool open)
{
	if (open) {
		member();
		printf("\n\"%s\": [", name);
		fprintf(stderr, "\n%s\n", name);
	} else {
		printf("]");
	}
	members = open ? 0 : 1;
}

void put_row(bool open)
{
	if (open) {
		member();
		printf("\n  {");
		members = 0;
	} else {
		printf("}");
		fputc('\n', stderr);
		members = 1;
	}
}

void put_number(const char *name, double v)
{
	member();
	printf("\"%s\": %.10g", name, v);
	fprintf(stderr, "  %s %.5g", name, v);
}

void put_samples(const char *name, struct samples *s)
{
	char wide[64];

	put_number(name, median(s));
	member();
	snprintf(wide, sizeof(wide), "%s_p10", name);
	printf("\"%s\": %.6g, ", wide, quantile(s, 0.1));
	snprintf(wide, sizeof(wide), "%s_p90", name);
	printf("\"%s\": %.6g", wide, quantile(s, 0.9));
}

/* ---- copies ---- */

static void measure_copies(void)
{
	CUdeviceptr dev;
	CUstream s;
	void *host;

	CU(StreamCreate(&s, 0));
	CU(MemAlloc(&dev, largest));
	CU(MemHostAlloc(&host, largest, 0));
	memset(host, 1, largest);
	put_section("copies", true);
	for (size_t bytes = 4096; bytes <= largest; bytes *= 2) {
		struct samples in = { .n = 0 }, out = { .n = 0 };

		for (unsigned i = 0; i < reps + 2; i++) {
			double t0 = now_us(), t1, t2;

			CU(MemcpyHtoDAsync(dev, host, bytes, s));
			CU(StreamSynchronize(s));
			t1 = now_us();
			CU(MemcpyDtoHAsync(host, dev, bytes, s));
			CU(StreamSynchronize(s));
			t2 = now_us();
			if (i >= 2) {
				sample(&in, t1 - t0);
				sample(&out, t2 - t1);
			}
		}
		best_to_device = bytes / median(&in) / 1e3;
		best_to_host = bytes / median(&out) / 1e3;
		put_row(true);
		put_number("bytes", bytes);
		put_samples("to_device_us", &in);
		put_number("to_device_gb_s", best_to_device);
		put_samples("to_host_us", &out);
		put_number("to_host_gb_s", best_to_host);
		put_row(false);
	}
	put_section(NULL, false);
	CU(MemFreeHost(host));
	CU(MemFree(dev));
}

static void measure_within(void)
{
	CUdeviceptr from, to;
	struct samples t = { .n = 0 };
	CUstream s;

	CU(StreamCreate(&s, 0));
	CU(MemAlloc(&from, largest));
	CU(MemAlloc(&to, largest));
	for (unsigned i = 0; i < reps + 2; i++) {
		double t0 = now_us();

		for (unsigned k = 0; k < 8; k++)
			CU(MemcpyDtoDAsync(to, from, largest, s));
		CU(StreamSynchronize(s));
		if (i >= 2)
			sample(&t, (now_us() - t0) / 8);
	}
	best_within = 2 * largest / median(&t) / 1e3;
	put_section("within_device", true);
	put_row(true);
	put_number("bytes", largest);
	put_samples("copy_us", &t);
	put_number("read_and_written_gb_s", best_within);
	put_row(false);
	put_section(NULL, false);
	CU(MemFree(from));
	CU(MemFree(to));
}

/* ---- chunks ---- */

#define CHUNK ((size_t)2 << 20)
#define CHUNKS_MAX 512u

enum { CREATE, EXPORT, IMPORT, MAP, ACCESS, UNMAP, RELEASE, STEPS };
static const char *const step_name[STEPS] = {
	"create_us", "export_us", "import_us", "map_us", "set_access_us", "unmap_us", "release_us",
};

static void chunks_once(unsigned n, struct samples t[STEPS])
{
	static CUmemGenericAllocationHandle made[CHUNKS_MAX], imported[CHUNKS_MAX];
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	};
	CUmemAccessDesc desc = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	static int fd[CHUNKS_MAX];
	CUdeviceptr at;
	double t0;

#define TIMED(step, divide, work)                                                              \
	do {                                                                                   \
		t0 = now_us();                                                                 \
		work;                                                                          \
		sample(&t[step], (now_us() - t0) / (divide));                                  \
	} while (0)
#define EACH(call)                                                                             \
	for (unsigned k = 0; k < n; k++)                                                       \
		CU(call)

	CU(MemAddressReserve(&at, n * CHUNK, CHUNK, 0, 0));
	TIMED(CREATE, n, EACH(MemCreate(&made[k], CHUNK, &prop, 0)));
	TIMED(EXPORT, n, EACH(MemExportToShareableHandle(&fd[k], made[k],
							 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)));
	TIMED(IMPORT, n, EACH(MemImportFromShareableHandle(&imported[k], (void *)(intptr_t)fd[k],
							   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)));
	TIMED(MAP, n, EACH(MemMap(at + k * CHUNK, CHUNK, 0, imported[k], 0)));
	TIMED(ACCESS, 1, CU(MemSetAccess(at, n * CHUNK, &desc, 1)));
	TIMED(UNMAP, n, EACH(MemUnmap(at + k * CHUNK, CHUNK)));
	for (unsigned k = 0; k < n; k++)
		close(fd[k]);
	EACH(MemRelease(imported[k]));
	TIMED(RELEASE, n, EACH(MemRelease(made[k])));
	CU(MemAddressFree(at, n * CHUNK));
}

static void measure_chunks(void)
{
	size_t free_bytes, total;

	CU(MemGetInfo(&free_bytes, &total));
	put_section("chunks", true);
	for (unsigned n = 1; n <= CHUNKS_MAX && n * CHUNK * 2 < free_bytes; n *= 2) {
		struct samples t[STEPS];

		memset(t, 0, sizeof(t));
		for (unsigned i = 0; i < (n > 64 ? 5 : reps); i++)
			chunks_once(n, t);
		put_row(true);
		put_number("chunks", n);
		/* A chunk, but set_access for all. */
		for (unsigned i = 0; i < STEPS; i++)
			put_samples(step_name[i], &t[i]);
		put_row(false);
	}
	put_section(NULL, false);
}

/* ---- between two GPUs ---- */

/* A chunk's worth of memory of GPU 1, to which both have access: *@access is what giving it to GPU 0 took. */
static CUmemGenericAllocationHandle open_peer(CUdeviceptr *at, double *access)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1 },
	};
	CUmemAccessDesc desc = {
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1 },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUmemGenericAllocationHandle handle;
	double t0;

	CU(MemAddressReserve(at, CHUNK, CHUNK, 0, 0));
	CU(MemCreate(&handle, CHUNK, &prop, 0));
	CU(MemMap(*at, CHUNK, 0, handle, 0));
	CU(MemSetAccess(*at, CHUNK, &desc, 1));
	desc.location.id = 0;
	t0 = now_us();
	CU(MemSetAccess(*at, CHUNK, &desc, 1));
	*access = now_us() - t0;
	return handle;
}

static void measure_between(void)
{
	struct samples open = { .n = 0 }, copy = { .n = 0 };
	CUdeviceptr from, to;
	int n, can = 0;
	CUstream s;

	CU(DeviceGetCount(&n));
	if (n > 1)
		CU(DeviceCanAccessPeer(&can, 0, 1));
	put_section("between_gpus", true);
	if (!can)
		fprintf(stderr, n > 1 ? "  GPU 0 cannot read the memory of GPU 1\n" :
					"  not measured: there is one GPU\n");
	CU(StreamCreate(&s, 0));
	CU(MemAlloc(&to, CHUNK));
	for (unsigned i = 0; i < reps + 2 && can; i++) {
		CUmemGenericAllocationHandle handle;
		double access, t0;

		handle = open_peer(&from, &access);
		t0 = now_us();
		for (unsigned k = 0; k < 8; k++)
			CU(MemcpyDtoDAsync(to, from, CHUNK, s));
		CU(StreamSynchronize(s));
		if (i >= 2) {
			sample(&copy, (now_us() - t0) / 8);
			sample(&open, access);
		}
		CU(MemUnmap(from, CHUNK));
		CU(MemRelease(handle));
		CU(MemAddressFree(from, CHUNK));
	}
	if (can) {
		best_between = CHUNK / median(&copy) / 1e3;
		put_row(true);
		put_number("bytes", CHUNK);
		put_samples("copy_us", &copy);
		put_number("gb_s", best_between);
		put_samples("set_access_us", &open);
		put_row(false);
	}
	put_section(NULL, false);
	CU(MemFree(to));
}

/* ---- host memory ---- */

static void measure_registration(void)
{
	put_section("registration", true);
	for (size_t bytes = CHUNK; bytes <= 4 * largest; bytes *= 8) {
		struct samples in = { .n = 0 }, out = { .n = 0 };
		char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (p == MAP_FAILED)
			break;
		madvise(p, bytes, MADV_HUGEPAGE);
		memset(p, 1, bytes);
		for (unsigned i = 0; i < 5; i++) {
			double t0 = now_us(), t1;

			CU(MemHostRegister(p, bytes, 0));
			t1 = now_us();
			CU(MemHostUnregister(p));
			sample(&in, t1 - t0);
			sample(&out, now_us() - t1);
		}
		put_row(true);
		put_number("bytes", bytes);
		put_samples("register_us", &in);
		put_samples("unregister_us", &out);
		put_row(false);
		munmap(p, bytes);
	}
	put_section(NULL, false);
}

/* ---- events between processes ---- */

/* The other end: waits for our event on its stream, records its own, says so. Started before CUDA
 * is. */
struct peer {
	pid_t pid;
	int to, from;
};

static void exchange(int in, int out, CUevent mine, CUevent *theirs)
{
	CUipcEventHandle handle;

	CU(IpcGetEventHandle(&handle, mine));
	if (write(out, &handle, sizeof(handle)) != sizeof(handle) ||
	    read(in, &handle, sizeof(handle)) != sizeof(handle))
		exit(1);
	CU(IpcOpenEventHandle(theirs, handle));
}

static int peer_main(int in, int out)
{
	CUevent mine, theirs;
	CUstream s;
	char byte;

	if (driver_start())
		return 1;
	CU(StreamCreate(&s, 0));
	CU(EventCreate(&mine, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	exchange(in, out, mine, &theirs);
	while (read(in, &byte, 1) == 1) {
		CU(StreamWaitEvent(s, theirs, 0));
		CU(EventRecord(mine, s));
		if (write(out, &byte, 1) != 1)
			return 1;
	}
	return 0;
}

static struct peer start_peer(void)
{
	int there[2], back[2];
	struct peer p;

	if (pipe(there) || pipe(back))
		exit(1);
	fflush(NULL);
	p.pid = fork();
	if (p.pid == 0) {
		/* Until we know that there is a GPU, nothing; else as above. */
		char go;

		close(there[1]);
		close(back[0]);
		_exit(read(there[0], &go, 1) == 1 ? peer_main(there[0], back[1]) : 0);
	}
	close(there[0]);
	close(back[1]);
	p.to = there[1];
	p.from = back[0];
	return p;
}

static void measure_events(struct peer *p)
{
	struct samples t = { .n = 0 };
	CUevent mine, theirs;
	CUstream s;
	char byte = 0;

	CU(StreamCreate(&s, 0));
	CU(EventCreate(&mine, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
	if (write(p->to, &byte, 1) != 1)
		exit(1);
	exchange(p->from, p->to, mine, &theirs);
	for (unsigned i = 0; i < 60; i++) {
		double t0 = now_us();

		CU(EventRecord(mine, s));
		if (write(p->to, &byte, 1) != 1 || read(p->from, &byte, 1) != 1)
			exit(1);
		CU(StreamWaitEvent(s, theirs, 0));
		CU(StreamSynchronize(s));
		if (i >= 10)
			sample(&t, now_us() - t0);
	}
	put_section("event_round_trip", true);
	put_row(true);
	put_samples("us", &t);
	put_row(false);
	put_section(NULL, false);
}

/* ---- the whole ---- */

void measure_ceilings(void)
{
	measure_copies();
	measure_within();
	measure_chunks();
	measure_between();
	measure_registration();
}

static void describe(void)
{
	char name[128] = "";
	size_t free_bytes, total;
	int version;

	CU(DeviceGetName(name, sizeof(name), 0));
	CU(DriverGetVersion(&version));
	CU(MemGetInfo(&free_bytes, &total));
	printf("{\"gpu\": \"%s\", \"driver\": \"%d.%d\", \"memory_bytes\": %zu, \"free_bytes\": %zu", name,
	       version / 1000, version % 1000 / 10, total, free_bytes);
	fprintf(stderr, "%s, CUDA %d.%d, %zu MiB, %zu free\n", name, version / 1000,
		version % 1000 / 10, total >> 20, free_bytes >> 20);
	members = 1;
}

static int say_gpus(void)
{
	int n = 0;

	if (!driver_start())
		CU(DeviceGetCount(&n));
	printf("%d\n", n);
	return 0;
}

int main(int argc, char **argv)
{
	const char *dir = NULL, *why;
	struct peer peer;
	int status;

	if (argc > 1 && !strcmp(argv[1], "--gpus"))
		return say_gpus();
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--quick")) {
			reps = 3;
			largest = 4u << 20;
		} else {
			dir = argv[i];
		}
	}
	peer = start_peer();
	why = driver_start();
	if (why) {
		fprintf(stderr, "measure: %s\n", why);
		close(peer.to);
		waitpid(peer.pid, &status, 0);
		return 77;
	}
	describe();
	measure_ceilings();
	measure_events(&peer);
	close(peer.to);
	waitpid(peer.pid, &status, 0);
	if (dir)
		measure_mount(dir, 2 * largest);
	printf("\n}\n");
	return fflush(stdout) ? 1 : 0;
}
