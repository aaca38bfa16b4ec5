/*
 * stalls.c - gpu-stalls: which calls of the driver wait for what runs on the GPU, and for whom.
 *
 *	gpu-stalls --list | [--quick] SECTION		see sections.h
 *
 * Something runs; a call is made; how long does it take? A call that waits for another stream, or for another
 * process, must not be made with a lock held that those need. Each row names what it decides.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu.h"
#include "stalls.h"

/* ---- what runs meanwhile ---- */

/* start() returns when it runs; end() ends it, and says whether it was still running. */
struct background {
	const char *what;
	bool elsewhere; /* in another process */
	bool (*start)(double us); /* false: cannot be had, which a row has said */
	bool (*end)(void);
};

static CUstream bg_stream;
static CUevent bg_begins, bg_ends;
static volatile uint32_t *bg_word; /* pinned; not 0: end */
static CUdeviceptr bg_word_dev;

static void bg_init(void)
{
	bg_stream = new_stream();
	bg_begins = new_event(CU_EVENT_BLOCKING_SYNC);
	bg_ends = new_event(CU_EVENT_BLOCKING_SYNC);
	bg_word = new_pinned(4096);
	bg_word_dev = address_of((void *)bg_word);
}

static bool bg_is_running(void)
{
	CUresult r = cu.EventQuery(bg_ends);

	if (r != CUDA_ERROR_NOT_READY)
		check_cu(r, "cuEventQuery");
	return r == CUDA_ERROR_NOT_READY;
}

static bool kernel_start(double us)
{
	__atomic_store_n(bg_word, 0, __ATOMIC_RELEASE);
	CU(EventRecord(bg_begins, bg_stream));
	KERNEL(kernel_spin(us, bg_word_dev, 0, bg_stream));
	CU(EventRecord(bg_ends, bg_stream));
	CU(EventSynchronize(bg_begins));
	usleep(1000);
	return true;
}

static bool kernel_end(void)
{
	bool was_running = bg_is_running();

	__atomic_store_n(bg_word, 1, __ATOMIC_RELEASE);
	CU(StreamSynchronize(bg_stream));
	return was_running;
}

/* Another thread releases the stream at last, by a store: no call of the driver is needed for it. */
static struct {
	pthread_t thread;
	double us;
	atomic_bool now;
} releaser;

static void *release_later(void *arg)
{
	double until = now_us() + releaser.us;

	while (now_us() < until && !atomic_load(&releaser.now))
		usleep(200);
	__atomic_store_n(bg_word, 1, __ATOMIC_RELEASE);
	return NULL;
}

static bool wait_start(double us)
{
	CUresult r;

	__atomic_store_n(bg_word, 0, __ATOMIC_RELEASE);
	releaser.us = us;
	atomic_store(&releaser.now, false);
	CU(EventRecord(bg_begins, bg_stream));
	r = cu.StreamWaitValue32(bg_stream, bg_word_dev, 1, CU_STREAM_WAIT_VALUE_GEQ);
	if (r == CUDA_ERROR_NOT_SUPPORTED) {
		row_not_run("calls while a stream waits", "cuStreamWaitValue32: error %d", (int)r);
		return false;
	}
	check_cu(r, "cuStreamWaitValue32");
	CU(EventRecord(bg_ends, bg_stream));
	CU(EventSynchronize(bg_begins));
	if (pthread_create(&releaser.thread, NULL, release_later, NULL))
		die("no thread");
	usleep(1000);
	return true;
}

static bool wait_end(void)
{
	bool was_running = bg_is_running();

	atomic_store(&releaser.now, true);
	pthread_join(releaser.thread, NULL);
	CU(StreamSynchronize(bg_stream));
	return was_running;
}

/* ---- in another process ---- */

static struct other program;

static void program_main(int sock)
{
	double us;
	char byte;
	bool was_running;

	hear(sock, &byte, 1);
	gpu_start();
	bg_init();
	for (;;) {
		hear(sock, &us, sizeof(us));
		kernel_start(us);
		tell(sock, &byte, 1);
		hear(sock, &byte, 1);
		was_running = kernel_end();
		tell(sock, &was_running, sizeof(was_running));
	}
}

static bool other_kernel_start(double us)
{
	char byte;

	tell(program.sock, &us, sizeof(us));
	hear(program.sock, &byte, 1);
	return true;
}

static bool other_kernel_end(void)
{
	bool was_running;
	char byte = 0;

	tell(program.sock, &byte, 1);
	hear(program.sock, &was_running, sizeof(was_running));
	return was_running;
}

/* ---- the calls ---- */

static CUstream stream;
static CUevent event;
static CUdeviceptr range, memory; /* a chunk's addresses; 2 MiB of plain memory */
static CUmemGenericAllocationHandle chunk, imported;
static void *host, *pinned, *allocated; /* 2 MiB each */
static int chunk_fd = -1;

static void create(void)
{
	CU(MemCreate(&chunk, CHUNK, &chunk_prop, 0));
}

static void release(void)
{
	CU(MemRelease(chunk));
}

static void map(void)
{
	CU(MemMap(range, CHUNK, 0, chunk, 0));
}

static void unmap(void)
{
	CU(MemUnmap(range, CHUNK));
}

static void set_access(void)
{
	CU(MemSetAccess(range, CHUNK, &chunk_access, 1));
}

static void export_chunk(void)
{
	CU(MemExportToShareableHandle(&chunk_fd, chunk, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

static void close_fd(void)
{
	close(chunk_fd);
}

static void import_chunk(void)
{
	CU(MemImportFromShareableHandle(&imported, (void *)(intptr_t)chunk_fd,
					CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

static void release_imported(void)
{
	CU(MemRelease(imported));
}

static void reserve(void)
{
	CU(MemAddressReserve(&range, CHUNK, CHUNK, 0, 0));
}

static void unreserve(void)
{
	CU(MemAddressFree(range, CHUNK));
}

static void register_host(void)
{
	CU(MemHostRegister(host, CHUNK, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
}

static void unregister_host(void)
{
	CU(MemHostUnregister(host));
}

static void allocate(void)
{
	memory = new_memory(CHUNK);
}

static void deallocate(void)
{
	CU(MemFree(memory));
}

static void allocate_host(void)
{
	CU(MemHostAlloc(&allocated, CHUNK, CU_MEMHOSTALLOC_DEVICEMAP));
}

static void deallocate_host(void)
{
	CU(MemFreeHost(allocated));
}

static void create_stream(void)
{
	stream = new_stream();
}

static void destroy_stream(void)
{
	CU(StreamDestroy(stream));
}

static void record(void)
{
	create_stream();
	CU(EventRecord(event, stream));
}

static void synchronize_event(void)
{
	CU(EventSynchronize(event));
}

static void copy_in(void)
{
	CU(MemcpyHtoDAsync(memory, pinned, CHUNK, stream));
	CU(StreamSynchronize(stream));
}

static void launch(void)
{
	KERNEL(kernel_empty(stream));
	CU(StreamSynchronize(stream));
}

static void get_info(void)
{
	size_t available, total;

	CU(MemGetInfo(&available, &total));
}

static void nothing(void)
{
}

#define STEPS 6
/*
 * What a call of the connection's thread holds up: a mapping, which others wait for (rule 4), and never a turn
 * (rule 3).
 */
#define RULE_3 ". client/internal.h: rule 3: the turns thread waits for nobody who may be in the driver"

static const struct call {
	const char *name;
	/* FILE: text. A function() that the text names is in the file: check_decides.py. */
	const char *decides_own;   /* where a stream of the same process is what runs */
	const char *decides_other; /* where another process is; NULL: the same */
	void (*call)(void);
	void (*before[STEPS])(void), (*after[STEPS])(void); /* while nothing runs */
} calls[] = {
	/* First: only a first launch can show it. */
	{ "the first launch of a kernel, and its end",
	  "daemon/device/cuda/queue.c: launch(): kernels are loaded when first launched (CUDA_MODULE_LOADING)", NULL,
	  launch, { create_stream }, { destroy_stream } },
	{ "cuMemUnmap",
	  "client/cuda.c: cuda_clear() and cuda_unreserve()" RULE_3,
	  "daemon/device/cuda/memory.c: unmap(), by the keeper: does it wait for other programs' kernels?",
	  unmap, { reserve, create, map, set_access }, { release, unreserve } },
	{ "cuMemHostUnregister",
	  "client/cuda_stream.c: cuda_flags_end(), in gaia_munmap(), when the mapping's work has ended",
	  "daemon/device/cuda/host.c: cuda_host_slab(), for frames_trim(): does it wait for other programs' kernels?",
	  unregister_host, { register_host }, { nothing } },
	{ "cuMemHostRegister",
	  "client/cuda_stream.c: cuda_flags_make(), in gaia_mmap()",
	  "daemon/device/cuda/host.c: pin_next(), by the pinner: operations go on, staged",
	  register_host, { nothing }, { unregister_host } },
	{ "cuMemSetAccess",
	  "client/cuda.c: allow(), in cuda_place()" RULE_3,
	  "daemon/device/cuda/memory.c: make_chunks(): does it wait for what runs?",
	  set_access, { reserve, create, map }, { unmap, release, unreserve } },
	{ "cuMemMap",
	  "client/cuda.c: map_memory(), in cuda_place()" RULE_3,
	  "daemon/device/cuda/memory.c: create_and_map(): who allocates, or the keeper, is held up",
	  map, { reserve, create }, { unmap, release, unreserve } },
	{ "cuMemImportFromShareableHandle",
	  "client/cuda.c: map_memory(), in cuda_place()" RULE_3, NULL,
	  import_chunk, { create, export_chunk }, { release_imported, close_fd, release } },
	{ "cuMemRelease",
	  "client/cuda.c: map_memory(), in cuda_place()" RULE_3,
	  "daemon/device/cuda/memory.c: unmap(), by the keeper",
	  release, { create }, { nothing } },
	{ "cuMemCreate",
	  "daemon/device/cuda/memory.c: create_and_map(): who allocates, or the keeper, is held up", NULL,
	  create, { nothing }, { release } },
	{ "cuMemExportToShareableHandle",
	  "daemon/device/cuda/memory.c: cuda_export_fd(), when a client first needs a chunk", NULL,
	  export_chunk, { create }, { close_fd, release } },
	{ "cuMemFree",
	  "daemon/device/cuda/device.c: only at the end of a device", NULL,
	  deallocate, { allocate }, { nothing } },
	{ "cuMemAlloc",
	  "daemon/device/cuda/memory.c: make_armed(), for each 256 chunks", NULL,
	  allocate, { nothing }, { deallocate } },
	{ "cuEventSynchronize of another stream",
	  "daemon/device/cuda/queue.c: cuda_completer_main() waits for its own stream only", NULL,
	  synchronize_event, { record }, { destroy_stream } },
	{ "copying 2 MiB to the device on another stream, and its end",
	  "daemon/device/cuda/queue.c: operations go on beside what programs run", NULL,
	  copy_in, { create_stream, allocate }, { deallocate, destroy_stream } },
	{ "a kernel on another stream, and its end",
	  "daemon/device/cuda/queue.c: operations go on beside what programs run", NULL,
	  launch, { create_stream }, { destroy_stream } },
	{ "cuMemAddressReserve",
	  "client/cuda.c: cuda_reserve(), in gaia_mmap()", NULL,
	  reserve, { nothing }, { unreserve } },
	{ "cuMemAddressFree",
	  "client/cuda.c: cuda_unreserve(), in gaia_munmap()", NULL,
	  unreserve, { reserve }, { nothing } },
	{ "cuStreamCreate",
	  "daemon/device/cuda/device.c: only at the start of a device", NULL,
	  create_stream, { nothing }, { destroy_stream } },
	{ "cuStreamDestroy",
	  "daemon/device/cuda/device.c: only at the end of a device", NULL,
	  destroy_stream, { create_stream }, { nothing } },
	{ "cuMemHostAlloc",
	  "daemon/device/cuda/queue.c: only at the start of a device", NULL,
	  allocate_host, { nothing }, { deallocate_host } },
	{ "cuMemFreeHost",
	  "daemon/device/cuda/queue.c: only at the end of a device", NULL,
	  deallocate_host, { allocate_host }, { nothing } },
	{ "cuMemGetInfo",
	  "daemon/device/cuda/device.c: only at the start of a device", NULL,
	  get_info, { nothing }, { nothing } },
};

static void all(void (*const *step)(void))
{
	for (unsigned i = 0; i < STEPS && step[i]; i++)
		step[i]();
}

static CUresult host_refused; /* what registering host memory ends with */

/* How long a call may wait. Less, when some have: the phase has its budget. */
static double running_us;
static unsigned n_waited;

static bool call_row(const struct background *bg, const struct call *c)
{
	struct samples us = { .n = 0 }, idle = { .n = 0 };
	bool waited = false, still_running = true;

	if (host_refused && (c->call == register_host || c->call == unregister_host)) {
		row_not_run(c->name, "cuMemHostRegister: error %d (ulimit -l does not count)", (int)host_refused);
		return true;
	}
	for (unsigned i = 0; i < 3; i++) {
		double t0;

		all(c->before);
		if (i == 0 && c != calls) { /* the first of them happens only once */
			t0 = now_us();
			c->call();
			sample(&idle, now_us() - t0);
			all(c->after);
			all(c->before);
		}
		if (!bg->start(running_us))
			return false;
		t0 = now_us();
		c->call();
		sample(&us, now_us() - t0);
		still_running = bg->end() && still_running;
		all(c->after);
		waited = quantile(&us, 1) > running_us / 2;
		if (waited || c == calls)
			break;
	}
	row_begin("%s", c->name);
	row_text("while", bg->what);
	row_number("running_us", running_us);
	row_samples("us", &us);
	row_number("us_most", quantile(&us, 1));
	if (idle.n)
		row_number("while_nothing_runs_us", median(&idle));
	row_bool("waited", waited);
	row_bool("still_running", still_running);
	row_text("decides", bg->elsewhere && c->decides_other ? c->decides_other : c->decides_own);
	row_end();
	n_waited += waited;
	if (n_waited == 3 && waited)
		running_us /= 4;
	return true;
}

/* Sets up what the calls use; what runs meanwhile has its own. */
static void calls_init(void)
{
	char *p = mmap(NULL, 2 * CHUNK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("no memory");
	host = (void *)(((uintptr_t)p + CHUNK - 1) & ~(CHUNK - 1));
	memset(host, 1, CHUNK);
	host_refused = cu.MemHostRegister(host, CHUNK, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (!host_refused)
		unregister_host();
	pinned = new_pinned(CHUNK);
	event = new_event(CU_EVENT_BLOCKING_SYNC);
}

static void all_calls(const struct background *bg, double us)
{
	running_us = quick ? 200e3 : us; /* quick: no other pause on a busy machine comes near that */
	calls_init();
	for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (!call_row(bg, &calls[i]))
			break;
}

/* ---- access of one more GPU, to a chunk that a kernel uses ---- */

static void peer_access_row(void)
{
	static const char what[] = "cuMemSetAccess for one more GPU, of a chunk that the kernel reads";
	CUmemAccessDesc desc = chunk_access;
	double us = quick ? 20e3 : 300e3, t0;
	int can = 0;

	if (gpu_count() > 1)
		CU(DeviceCanAccessPeer(&can, 1, 0));
	if (!can) {
		row_not_run(what, gpu_count() > 1 ? "GPU 1 cannot reach GPU 0" : "there is one GPU");
		return;
	}
	reserve();
	create();
	map();
	set_access();
	CU(MemsetD8Async(range, 0, CHUNK, bg_stream));
	CU(StreamSynchronize(bg_stream));
	desc.location.id = 1;
	KERNEL(kernel_spin(us, range, 0, bg_stream));
	usleep(1000);
	t0 = now_us();
	CU(MemSetAccess(range, CHUNK, &desc, 1));
	t0 = now_us() - t0;
	CU(StreamSynchronize(bg_stream));
	row_begin("%s", what);
	row_text("while", "a kernel runs on another stream of this process");
	row_number("running_us", us);
	row_number("us", t0);
	row_bool("waited", t0 > us / 2);
	row_text("decides",
		 "daemon/device/cuda/peer.c: cuda_source_open(): does it wait for what runs on the chunk?");
	row_end();
	unmap();
	release();
	unreserve();
}

static void section_kernel(void)
{
	static const struct background bg = { "a kernel runs on another stream of this process", false,
					      kernel_start, kernel_end };

	gpu_start();
	bg_init();
	all_calls(&bg, 2e6);
	peer_access_row();
}

static void section_wait(void)
{
	static const struct background bg = { "a stream of this process waits in cuStreamWaitValue32", false,
					      wait_start, wait_end };

	gpu_start();
	bg_init();
	all_calls(&bg, 1e6);
}

static void section_other(void)
{
	static const struct background bg = { "a kernel runs in another process", true, other_kernel_start,
					      other_kernel_end };
	char go = 0;

	program = other_start(program_main);
	gpu_start();
	tell(program.sock, &go, 1);
	all_calls(&bg, 1e6);
	other_end(&program);
}

/* ---- a stream that waits for a thread ---- */

/*
 * As client/cuda_stream.c does it: a host function wakes a thread, which stores a word that the stream
 * waits for.
 */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t ready;
	unsigned due; /* words to store */
	volatile uint32_t *word;
	CUdeviceptr word_dev;
	uint32_t value; /* stored last */
	double called, stored;
} turn = { .lock = PTHREAD_MUTEX_INITIALIZER, .ready = PTHREAD_COND_INITIALIZER };

static void *turn_main(void *arg)
{
	pthread_mutex_lock(&turn.lock);
	for (;;) {
		while (!turn.due)
			pthread_cond_wait(&turn.ready, &turn.lock);
		turn.due--;
		turn.stored = now_us();
		__atomic_store_n(turn.word, ++turn.value, __ATOMIC_RELEASE);
	}
	return NULL;
}

static void CUDA_CB stream_is_here(void *arg)
{
	pthread_mutex_lock(&turn.lock);
	turn.called = now_us();
	turn.due++;
	pthread_cond_signal(&turn.ready);
	pthread_mutex_unlock(&turn.lock);
}

static void CUDA_CB stream_passes(void *arg)
{
}

static void queue_turn(CUstream s, uint32_t value)
{
	CU(LaunchHostFunc(s, stream_is_here, NULL));
	CU(StreamWaitValue32(s, turn.word_dev, value, CU_STREAM_WAIT_VALUE_GEQ));
}

#define DECIDES_TURNS "client/cuda_stream.c: cuda_queue(): what a gaia_acquire_on() costs beyond the acquire"

static void one_turn_row(const char *what, CUstream s, uint32_t *value)
{
	struct samples queued = { .n = 0 }, called = { .n = 0 }, stored = { .n = 0 }, us = { .n = 0 };

	for (struct repeat r = repeat(100); again(&r);) {
		double t0 = now_us(), t1;

		queue_turn(s, ++*value);
		t1 = now_us();
		CU(StreamSynchronize(s));
		took(&r, &us, now_us() - t0);
		took(&r, &queued, t1 - t0);
		took(&r, &called, turn.called - t0);
		took(&r, &stored, turn.stored - t0);
	}
	row_begin("%s", what);
	row_samples("us", &us);
	row_samples("calls_us", &queued);
	row_samples("until_host_function_us", &called);
	row_samples("until_word_us", &stored);
	row_text("decides", DECIDES_TURNS);
	row_end();
}

static void many_turns_row(CUstream s, uint32_t *value, unsigned n)
{
	struct samples us = { .n = 0 };

	for (struct repeat r = repeat(15); again(&r);) {
		double t0 = now_us();

		for (unsigned i = 0; i < n; i++)
			queue_turn(s, ++*value);
		CU(StreamSynchronize(s));
		took(&r, &us, (now_us() - t0) / n);
	}
	row_begin("host function, word and wait: %u queued at once, each", n);
	row_samples("us", &us);
	row_text("decides", DECIDES_TURNS);
	row_end();
}

static void parts_rows(CUstream s)
{
	struct samples kernel = { .n = 0 }, function = { .n = 0 }, wait = { .n = 0 };
	CUresult r = cu.StreamWaitValue32(s, turn.word_dev, 0, CU_STREAM_WAIT_VALUE_GEQ);

	if (r == CUDA_ERROR_NOT_SUPPORTED)
		does_not_apply("cuStreamWaitValue32: error %d", (int)r);
	for (struct repeat rep = repeat(100); again(&rep);) {
		double t0 = now_us(), t1, t2;

		KERNEL(kernel_empty(s));
		CU(StreamSynchronize(s));
		t1 = now_us();
		CU(StreamWaitValue32(s, turn.word_dev, 0, CU_STREAM_WAIT_VALUE_GEQ));
		CU(StreamSynchronize(s));
		t2 = now_us();
		CU(LaunchHostFunc(s, stream_passes, NULL));
		CU(StreamSynchronize(s));
		took(&rep, &function, now_us() - t2);
		took(&rep, &wait, t2 - t1);
		took(&rep, &kernel, t1 - t0);
	}
	row_begin("parts of a round trip, and waiting for the stream");
	row_samples("empty_kernel_us", &kernel);
	row_samples("wait_for_a_word_that_is_there_us", &wait);
	row_samples("empty_host_function_us", &function);
	row_text("decides", DECIDES_TURNS);
	row_end();
}

static void section_round_trip(void)
{
	double us = quick ? 50e3 : 2e6;
	pthread_t thread;
	uint32_t value = 0;
	CUstream s;

	gpu_start();
	bg_init();
	turn.word = new_pinned(4096);
	*turn.word = 0;
	turn.word_dev = address_of((void *)turn.word);
	if (pthread_create(&thread, NULL, turn_main, NULL))
		die("no thread");
	s = new_stream();
	parts_rows(s);
	one_turn_row("host function, word and wait", s, &value);
	many_turns_row(s, &value, quick ? 10 : 100);
	kernel_start(us);
	one_turn_row("host function, word and wait, while a kernel runs on another stream", s, &value);
	kernel_end();
}

static const struct section sections[] = {
	{ "other", 20, 0, section_other },
	{ "kernel", 25, 0, section_kernel },
	{ "wait", 15, 0, section_wait },
	{ "round_trip", 6, 0, section_round_trip },
	{ "assumptions", 48, 0, section_assumptions },
	{ NULL, 0, 0, NULL },
};

int main(int argc, char **argv)
{
	return sections_main("gpu-stalls", sections, argc, argv);
}
