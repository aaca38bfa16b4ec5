/*
 * assumptions.c - gpu-stalls: what gaiafs assumes of the driver where its documentation is silent.
 *
 * Each is tried in a process of its own, which it may break. Rows give the results of the calls as they are: which is
 * right depends on the driver, and the daemon is to cope with all of them.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu.h"
#include "stalls.h"

#define MANY 64u
#define PAGE_SIZE ((size_t)4 * KIB)
#define OF_PROGRAM (64 * MIB)
#define PATIENCE_US (quick ? 30e6 : 6e6) /* all parts within the limit of the section, on a GPU */

static void put_result(const char *call, CUresult r)
{
	const char *name = NULL;
	char text[80];

	if (!r)
		name = "no error";
	else if (cu.GetErrorName(r, &name) || !name)
		name = "unknown";
	snprintf(text, sizeof(text), "%d, %s", (int)r, name);
	row_text(call, text);
}

/* ---- chunks side by side ---- */

struct chunks {
	CUdeviceptr at;
	CUmemGenericAllocationHandle handle[MANY];
};

static void map_chunks(struct chunks *c)
{
	CU(MemAddressReserve(&c->at, MANY * CHUNK, CHUNK, 0, 0));
	for (unsigned k = 0; k < MANY; k++) {
		CU(MemCreate(&c->handle[k], CHUNK, &chunk_prop, 0));
		CU(MemMap(c->at + k * CHUNK, CHUNK, 0, c->handle[k], 0));
	}
	CU(MemSetAccess(c->at, MANY * CHUNK, &chunk_access, 1));
}

static void release_chunks(const struct chunks *c)
{
	for (unsigned k = 0; k < MANY; k++)
		CU(MemRelease(c->handle[k]));
	CU(MemAddressFree(c->at, MANY * CHUNK));
}

static void unmap_one_by_one(const struct chunks *c)
{
	for (unsigned k = 0; k < MANY; k++)
		CU(MemUnmap(c->at + k * CHUNK, CHUNK));
}

static void unmap_many(void)
{
	struct chunks c;
	double t0, one_call, singly;
	CUresult r;

	gpu_start();
	map_chunks(&c);
	t0 = now_us();
	r = cu.MemUnmap(c.at, MANY * CHUNK);
	one_call = now_us() - t0;
	if (r)
		unmap_one_by_one(&c);
	release_chunks(&c);
	map_chunks(&c);
	t0 = now_us();
	unmap_one_by_one(&c);
	singly = now_us() - t0;
	release_chunks(&c);
	row_begin("one cuMemUnmap of chunks side by side");
	row_number("chunks", MANY);
	put_result("result", r);
	row_number("us", one_call);
	row_number("one_by_one_us", singly);
	row_text("decides", "daemon/device/cuda/memory.c: unmap(), which does it one by one where that fails");
	row_end();
}

/* ---- a batch of copies ---- */

#if CUDA_VERSION >= 12080
/* One call for all pages at @to and @from, and their arrival. */
static CUresult copy_pages(copy_batch_fn *copy, CUdeviceptr *to, CUdeviceptr *from, CUstream s)
{
	CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
	size_t bytes[MANY], which = 0, failed = 0;
	CUresult r;

	for (unsigned k = 0; k < MANY; k++)
		bytes[k] = PAGE_SIZE;
	r = copy(to, from, bytes, MANY, &attributes, &which, 1, &failed, s);
	CU(StreamSynchronize(s));
	return r;
}

/* A page of each chunk, from one registered slab, and to another. */
static void batch_of_chunks(void)
{
	static const char what[] = "one cuMemcpyBatchAsync between chunks and registered slabs";
	CUdeviceptr chunk[MANY], slab[2][MANY];
	copy_batch_fn *copy;
	unsigned wrong = 0;
	struct chunks c;
	CUresult r;
	CUstream s;
	char *host;

	gpu_start();
	copy = (copy_batch_fn *)driver_lookup("cuMemcpyBatchAsync", 12080);
	if (!copy) {
		row_not_run(what, "the driver has none: it came with CUDA 12.8");
		return;
	}
	host = mmap(NULL, 2 * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (host == MAP_FAILED)
		die("no memory");
	for (unsigned i = 0; i < 2; i++) {
		memset(host + i * CHUNK, (int)i, CHUNK);
		r = cu.MemHostRegister(host + i * CHUNK, CHUNK, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
		if (r) {
			row_not_run(what, "cuMemHostRegister: error %d (ulimit -l does not count)", (int)r);
			return;
		}
	}
	s = new_stream();
	map_chunks(&c);
	for (unsigned k = 0; k < MANY; k++) {
		chunk[k] = c.at + k * CHUNK + k * PAGE_SIZE;
		slab[0][k] = (CUdeviceptr)(host + k * PAGE_SIZE);
		slab[1][k] = slab[0][k] + CHUNK;
		*(char *)slab[0][k] = (char)(k + 2);
	}
	row_begin("%s", what);
	row_number("chunks", MANY);
	put_result("to_device", copy_pages(copy, chunk, slab[0], s));
	put_result("to_host", copy_pages(copy, slab[1], chunk, s));
	for (unsigned k = 0; k < MANY; k++)
		wrong += memcmp((char *)slab[0][k], (char *)slab[1][k], PAGE_SIZE) != 0;
	row_number("wrong_pages", wrong);
	row_text("decides", "daemon/device/cuda/queue.c: copy_by_engine(), which copies one by one where that fails");
	row_end();
}
#else
static void batch_of_chunks(void)
{
	gpu_start();
	row_not_run("one cuMemcpyBatchAsync between chunks and registered slabs", "this program was built with a CUDA older than 12.8");
}
#endif

/* ---- a context that broke ---- */

static void put_free(const char *name)
{
	size_t available, total;
	CUresult r = cu.MemGetInfo(&available, &total);

	if (r)
		put_result(name, r);
	else
		row_number(name, (double)available);
}

static void break_context(void)
{
	char *host = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUresult (*reset)(CUdevice), r, registered;
	struct chunks c;
	CUcontext ctx;
	CUstream s;

	if (host == MAP_FAILED)
		die("no memory");
	memset(host, 1, CHUNK);
	if (getenv("CUDA_MPS_PIPE_DIRECTORY") || !access("/tmp/nvidia-mps", F_OK)) {
		row_not_run("a context that a kernel broke", "with MPS it may break those of other programs");
		return;
	}
	gpu_start();
	reset = (CUresult(*)(CUdevice))driver_lookup("cuDevicePrimaryCtxReset", 12000);
	if (!reset)
		die("the driver lacks cuDevicePrimaryCtxReset");
	row_begin("a context that a kernel broke");
	put_free("free_bytes_before");
	map_chunks(&c);
	s = new_stream();
	put_free("free_bytes_with_chunks");
	row_number("chunks", MANY);
	(void)new_memory(OF_PROGRAM);
	put_free("free_bytes_with_a_buffer");
	registered = cu.MemHostRegister(host, CHUNK, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	put_result("cuMemHostRegister", registered);
	KERNEL(kernel_trap(s));
	put_result("cuStreamSynchronize", cu.StreamSynchronize(s));
	put_result("cuMemUnmap_before_reset", cu.MemUnmap(c.at, CHUNK));
	put_result("cuMemRelease_before_reset", cu.MemRelease(c.handle[0]));
	put_result("cuCtxSetCurrent_of_none", cu.CtxSetCurrent(NULL));
	put_result("cuDevicePrimaryCtxReset", reset(0));
	put_result("cuMemUnmap", cu.MemUnmap(c.at + CHUNK, CHUNK));
	put_result("cuMemRelease", cu.MemRelease(c.handle[1]));
	for (unsigned k = 2; k < MANY; k++) {
		(void)cu.MemUnmap(c.at + k * CHUNK, CHUNK);
		(void)cu.MemRelease(c.handle[k]);
	}
	put_result("cuMemAddressFree", cu.MemAddressFree(c.at, MANY * CHUNK));
	r = cu.DevicePrimaryCtxRetain(&ctx, 0);
	put_result("cuDevicePrimaryCtxRetain", r);
	if (!r)
		put_result("cuCtxSetCurrent", cu.CtxSetCurrent(ctx));
	put_free("free_bytes_after");
	/* Is what was registered before registered still? */
	if (!registered)
		put_result("cuMemHostRegister_again", cu.MemHostRegister(host, CHUNK, CU_MEMHOSTREGISTER_PORTABLE |
											      CU_MEMHOSTREGISTER_DEVICEMAP));
	row_text("decides", "daemon/device/cuda/device.c: cuda_reset_context(): whether a broken GPU's memory comes back");
	row_end();
}

/* ---- no more descriptors ---- */

static void no_descriptors(void)
{
	CUmemGenericAllocationHandle handle;
	struct rlimit limit, low;
	CUresult r, again;
	int next, fd = -1;

	gpu_start();
	CU(MemCreate(&handle, CHUNK, &chunk_prop, 0));
	next = dup(STDERR_FILENO);
	if (next < 0 || getrlimit(RLIMIT_NOFILE, &limit))
		die("descriptors: %s", strerror(errno));
	close(next);
	low = limit;
	low.rlim_cur = (rlim_t)next;
	if (setrlimit(RLIMIT_NOFILE, &low))
		die("RLIMIT_NOFILE: %s", strerror(errno));
	r = cu.MemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (setrlimit(RLIMIT_NOFILE, &limit))
		die("RLIMIT_NOFILE: %s", strerror(errno));
	if (!r)
		close(fd);
	again = cu.MemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (!again)
		close(fd);
	row_begin("cuMemExportToShareableHandle without a free descriptor");
	row_number("descriptors", next);
	put_result("result", r);
	put_result("with_one_again", again);
	row_text("decides", "daemon/device/cuda/memory.c: cuda_export_fd(), which takes this error for no_descriptor()");
	row_end();
}

/* ---- registered by one thread, unregistered by another ---- */

struct unregister {
	void *at;
	bool enter; /* the context first */
	CUresult r;
};

static void *unregister_main(void *arg)
{
	struct unregister *u = arg;
	CUcontext ctx;

	if (u->enter) {
		CU(DevicePrimaryCtxRetain(&ctx, 0));
		CU(CtxSetCurrent(ctx));
	}
	u->r = cu.MemHostUnregister(u->at);
	return NULL;
}

static void other_thread(void)
{
	static const char what[] = "host memory that one thread registers and another unregisters";
	struct unregister u[] = { { .enter = true }, { .enter = false } };
	char *p = mmap(NULL, 2 * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t thread;
	CUresult r;

	if (p == MAP_FAILED)
		die("no memory");
	gpu_start();
	for (unsigned i = 0; i < 2; i++) {
		u[i].at = p + i * CHUNK;
		memset(u[i].at, 1, CHUNK);
		r = cu.MemHostRegister(u[i].at, CHUNK, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
		if (r) {
			row_not_run(what, "cuMemHostRegister: error %d (ulimit -l does not count)", (int)r);
			return;
		}
		if (pthread_create(&thread, NULL, unregister_main, &u[i]))
			die("no thread");
		pthread_join(thread, NULL);
	}
	row_begin("%s", what);
	put_result("result", u[0].r);
	put_result("without_a_context", u[1].r);
	row_text("decides", "daemon/device/cuda/host.c: withdraw(), by whoever lets go of a slab that the pinner registered");
	row_end();
}

/* ---- one registration for all GPUs ---- */

static void one_address(void)
{
	static const char what[] = "host memory that is registered once, on each GPU";
	unsigned char *p = mmap(NULL, CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), seen;
	bool same = true, read = true;
	CUdeviceptr first, at, copy;
	CUcontext ctx;
	CUstream s;
	CUresult r;
	int n;

	if (p == MAP_FAILED)
		die("no memory");
	memset(p, 'h', CHUNK);
	gpu_start();
	n = gpu_count();
	if (n < 2) {
		row_not_run(what, "there is one GPU");
		return;
	}
	r = cu.MemHostRegister(p, CHUNK, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (r) {
		row_not_run(what, "cuMemHostRegister: error %d (ulimit -l does not count)", (int)r);
		return;
	}
	CU(MemHostGetDevicePointer(&first, p, 0));
	for (int i = 1; i < n && !r; i++) {
		CU(DevicePrimaryCtxRetain(&ctx, i));
		CU(CtxSetCurrent(ctx));
		r = cu.MemHostGetDevicePointer(&at, p, 0);
		same = same && !r && at == first;
		s = new_stream();
		copy = new_memory(PAGE_SIZE);
		KERNEL(kernel_copy(copy, first, PAGE_SIZE, s));
		CU(StreamSynchronize(s));
		seen = 0;
		CU(MemcpyDtoH(&seen, copy + PAGE_SIZE - 1, 1));
		read = read && seen == 'h';
	}
	row_begin("%s", what);
	row_number("gpus", n);
	put_result("result", r);
	row_bool("same_address", same);
	row_bool("kernels_read_it_there", read);
	row_text("decides", "daemon/device/cuda/host.c: cuda_host_address(), which gives all GPUs the address that it has on one");
	row_end();
}

/* ---- without MPS ---- */

static void without_mps(void)
{
	double t0 = now_us();
	const char *why;

	setenv("CUDA_MPS_PIPE_DIRECTORY", "/dev/null", 1);
	why = driver_start();
	row_begin("a driver whose pipes of MPS are at /dev/null");
	row_number("us", now_us() - t0);
	row_bool("starts", !why);
	row_text("result", why ? why : "no error");
	row_bool("mps_at_its_usual_place", !access("/tmp/nvidia-mps", F_OK));
	row_text("decides", "daemon/device/cuda/driver.c: avoid_mps(): whether the daemon finds its GPUs then");
	row_end();
}

/* ---- what a daemon leaves to programs ---- */

struct program {
	char why[128]; /* it has no context */
	size_t free;
	CUresult alloc, kernel;
};

static void program_main(int sock)
{
	struct program answer = { .why = "" };
	const char *why;
	CUdeviceptr p;
	size_t total;
	char go;

	hear(sock, &go, 1);
	why = driver_start();
	if (why) {
		snprintf(answer.why, sizeof(answer.why), "%s", why);
	} else {
		CU(MemGetInfo(&answer.free, &total));
		answer.alloc = cu.MemAlloc(&p, OF_PROGRAM);
		answer.kernel = kernel_empty(NULL);
		if (!answer.kernel)
			answer.kernel = cu.CtxSynchronize();
	}
	tell(sock, &answer, sizeof(answer));
	hear(sock, &go, 1);
}

/* In one allocation: what the daemon's many take besides is not seen here. */
static void what_is_left(void)
{
	struct other o = other_start(program_main);
	CUmemGenericAllocationHandle handle;
	size_t before, taken, hashes, left;
	struct program program;
	CUresult created, hashed;
	CUdeviceptr p;
	char go = 0;

	gpu_start();
	before = gpu_free();
	taken = quick ? 8 * CHUNK : before / 5 * 4 / CHUNK * CHUNK;
	hashes = taken / CHUNK * (8 * KIB);
	created = cu.MemCreate(&handle, taken, &chunk_prop, 0);
	hashed = cu.MemAlloc(&p, hashes);
	left = gpu_free();
	tell(o.sock, &go, 1);
	hear(o.sock, &program, sizeof(program));
	row_begin("what is left to a program when 80 %% of the free memory is taken");
	row_number("free_bytes_before", (double)before);
	row_number("taken_bytes", (double)taken);
	row_number("of_hashes_bytes", (double)hashes);
	put_result("cuMemCreate", created);
	put_result("cuMemAlloc_of_hashes", hashed);
	row_number("left_bytes", (double)left);
	if (*program.why) {
		row_text("program", program.why);
	} else {
		row_number("left_bytes_after_its_context", (double)program.free);
		put_result("program_cuMemAlloc_of_64_MiB", program.alloc);
		put_result("program_kernel", program.kernel);
	}
	row_text("decides", "daemon/device/cuda/device.c: choose_capacity(), where nobody says how much");
	row_end();
	other_end(&o);
}

/* ---- the section ---- */

static const struct {
	const char *what;
	void (*run)(void);
} parts[] = {
	{ "one cuMemUnmap of chunks side by side", unmap_many },
	{ "one cuMemcpyBatchAsync between chunks and registered slabs", batch_of_chunks },
	{ "cuMemExportToShareableHandle without a free descriptor", no_descriptors },
	{ "host memory that one thread registers and another unregisters", other_thread },
	{ "host memory that is registered once, on each GPU", one_address },
	{ "a driver whose pipes of MPS are at /dev/null", without_mps },
	{ "what is left to a program when 80 % of the free memory is taken", what_is_left },
	/* Last: it may leave the GPU in any state. */
	{ "a context that a kernel broke", break_context },
};

/* Its wait status; -1: it had to be killed, since it did not end. */
static int run_apart(void (*run)(void))
{
	double until = now_us() + PATIENCE_US;
	int status;
	pid_t pid = fork();

	if (pid < 0)
		die("fork: %s", strerror(errno));
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run();
		_exit(0);
	}
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (now_us() > until) {
			kill(pid, SIGKILL);
			return -1;
		}
		usleep(2000);
	}
	return status;
}

void section_assumptions(void)
{
	bool failed = false;

	for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		int status = run_apart(parts[i].run);

		if (status == 0)
			continue;
		if (status > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 77)
			_exit(77); /* it has said why */
		failed = true;
		if (status < 0)
			row_not_run(parts[i].what, "no end after %.0f s", PATIENCE_US / 1e6);
		else if (WIFSIGNALED(status))
			row_not_run(parts[i].what, "signal %d", WTERMSIG(status));
		else
			row_not_run(parts[i].what, "exit status %d: see the log", WEXITSTATUS(status));
	}
	if (failed)
		die("parts did not end well: their rows say which");
}
