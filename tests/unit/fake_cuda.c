/*
 * fake_cuda.c - that the fake CUDA driver is as strict as the documentation. Code that passes on it has not been
 * flattered.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fake_cuda_api.h"

#define CHUNK ((size_t)GAIA_CHUNK)

static const struct cuda_api *cu;
static CUcontext context;
static CUdeviceptr range; /* of four chunks */
static CUmemGenericAllocationHandle handle;

static const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
};
static const CUmemAccessDesc access_both = {
	.location.type = CU_MEM_LOCATION_TYPE_DEVICE,
	.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

static void set_up(void)
{
	cr_assert_eq(cu->cuDevicePrimaryCtxRetain(&context, 0), 0);
	cr_assert_eq(cu->cuCtxSetCurrent(context), 0);
	cr_assert_eq(cu->cuMemAddressReserve(&range, 4 * CHUNK, CHUNK, 0, 0), 0);
	cr_assert_eq(cu->cuMemCreate(&handle, CHUNK, &prop, 0), 0);
	cr_assert_eq(cu->cuMemMap(range, CHUNK, 0, handle, 0), 0);
}

static void start(void)
{
	fake_cuda_start(8 * CHUNK);
	cu = fake_cuda_api();
	set_up();
}

static void end(void)
{
	(void)cu->cuMemUnmap(range, CHUNK);
	(void)cu->cuMemRelease(handle);
	(void)cu->cuMemAddressFree(range, 4 * CHUNK);
	(void)cu->cuDevicePrimaryCtxRelease(0);
	cr_assert_eq(fake_cuda_alive(true), 0);
}

TestSuite(fake, .init = start, .fini = end, .timeout = 60);

/* It fails, and it is noted. */
#define refused(call)                                                     \
	do {                                                              \
		cr_assert_neq((call), CUDA_SUCCESS, "%s", #call);         \
		cr_assert_not_null(fake_cuda_violation(), "%s", #call);   \
	} while (0)

Test(fake, nothing_is_mapped_twice)
{
	cr_assert_null(fake_cuda_violation());
	refused(cu->cuMemMap(range, CHUNK, 0, handle, 0));
}

Test(fake, mappings_are_whole_aligned_and_within_what_was_reserved)
{
	refused(cu->cuMemMap(range + CHUNK, CHUNK / 2, 0, handle, 0));
	refused(cu->cuMemMap(range + CHUNK + CHUNK / 2, CHUNK, 0, handle, 0));
	refused(cu->cuMemMap(range + CHUNK, CHUNK, CHUNK, handle, 0));
	refused(cu->cuMemMap(range + 4 * CHUNK, CHUNK, 0, handle, 0));
	refused(cu->cuMemMap(range + CHUNK, CHUNK, 0, handle + 1, 0));
}

Test(fake, a_mapping_is_unmapped_as_a_whole)
{
	refused(cu->cuMemUnmap(range, CHUNK / 2));
	refused(cu->cuMemUnmap(range, 2 * CHUNK));
	refused(cu->cuMemUnmap(range + CHUNK, CHUNK));
}

Test(fake, a_range_is_not_given_back_with_mappings)
{
	refused(cu->cuMemAddressFree(range, 4 * CHUNK));
}

Test(fake, sizes_are_multiples_of_the_granularity)
{
	CUmemGenericAllocationHandle h;

	refused(cu->cuMemCreate(&h, CHUNK / 2, &prop, 0));
}

Test(fake, memory_is_used_with_access_only)
{
	cr_assert_not(fake_cuda_usable((void *)range, CHUNK));
	refused(cu->cuMemsetD8Async(range, 0, CHUNK, NULL));
}

Test(fake, memory_that_can_only_be_read_is_copied_from_and_not_to)
{
	CUmemAccessDesc to_read = access_both;
	CUmemorytype type = CU_MEMORYTYPE_HOST;
	char *host;

	to_read.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	cr_assert_eq(cu->cuMemSetAccess(range, CHUNK, &to_read, 1), 0);
	cr_assert_eq(cu->cuMemHostAlloc((void **)&host, 4096, 0), 0);
	cr_assert_eq(cu->cuMemcpyDtoHAsync(host, range, 4096, NULL), 0);
	cr_assert_eq(cu->cuStreamSynchronize(NULL), 0);
	cr_assert_eq(memcmp(host, (char *)range, 4096), 0);
	cr_assert_eq(((CUresult(*)(void *, CUpointer_attribute, CUdeviceptr))fake_cuda_entry("cuPointerGetAttribute"))(
			     &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, range), 0);
	cr_assert_eq(type, CU_MEMORYTYPE_DEVICE);
	cr_assert_null(fake_cuda_violation());
	refused(cu->cuMemcpyHtoDAsync(range, host, 4096, NULL));
	cr_assert_eq(cu->cuMemFreeHost(host), 0);
}

Test(fake, access_is_set_for_whole_mappings)
{
	refused(cu->cuMemSetAccess(range, CHUNK / 2, &access_both, 1));
	refused(cu->cuMemSetAccess(range, 2 * CHUNK, &access_both, 1));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they die of something else */
/* Here, and where its descriptor is imported. */
Test(fake, memory_of_several_chunks_is_mapped_and_used_as_a_whole)
{
	CUresult (*import)(CUmemGenericAllocationHandle *handle, void *descriptor, CUmemAllocationHandleType type) =
		fake_cuda_entry("cuMemImportFromShareableHandle");
	CUmemGenericAllocationHandle several[2];
	CUdeviceptr at;
	int fd = -1;

	cr_assert_eq(cu->cuMemAddressReserve(&at, 6 * CHUNK, CHUNK, 0, 0), 0);
	cr_assert_eq(cu->cuMemCreate(&several[0], 3 * CHUNK, &prop, 0), 0);
	cr_assert_eq(cu->cuMemExportToShareableHandle(&fd, several[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), 0);
	cr_assert_eq(import(&several[1], (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), 0);
	close(fd);
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(cu->cuMemMap(at + i * 3 * CHUNK, 3 * CHUNK, 0, several[i], 0), 0);
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(cu->cuMemSetAccess(at + i * 3 * CHUNK, 3 * CHUNK, &access_both, 1), 0);
	((char *)at)[2 * CHUNK + 5] = 'x';
	cr_assert_eq(((char *)at)[5 * CHUNK + 5], 'x', "they are the same");
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
	for (unsigned i = 0; i < 2; i++) {
		refused(cu->cuMemMap(range + CHUNK, CHUNK, 0, several[i], 0));
		refused(cu->cuMemMap(range + CHUNK, 2 * CHUNK, CHUNK, several[i], 0));
		refused(cu->cuMemSetAccess(at + (i * 3 + 1) * CHUNK, CHUNK, &access_both, 1));
		refused(cu->cuMemUnmap(at + i * 3 * CHUNK, CHUNK));
	}
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(cu->cuMemUnmap(at + i * 3 * CHUNK, 3 * CHUNK), 0);
		cr_assert_eq(cu->cuMemRelease(several[i]), 0);
	}
	cr_assert_eq(cu->cuMemAddressFree(at, 6 * CHUNK), 0);
}

Test(fake, access_without_right_is_a_fault, .signal = SIGSEGV)
{
	*(volatile char *)range = 1;
}
#endif

Test(fake, handles_end_once)
{
	cr_assert_eq(cu->cuMemRelease(handle), 0); /* the mapping keeps the memory */
	refused(cu->cuMemRelease(handle));
}

Test(fake, copies_do_not_cross_registrations)
{
	char *host = aligned_alloc(CHUNK, 2 * CHUNK);

	cr_assert_eq(cu->cuMemSetAccess(range, CHUNK, &access_both, 1), 0);
	cr_assert_eq(cu->cuMemHostRegister(host, CHUNK, 0), 0);
	cr_assert_eq(cu->cuMemHostRegister(host + CHUNK, CHUNK, 0), 0);
	cr_assert_null(fake_cuda_violation());
	refused(cu->cuMemcpyHtoDAsync(range, host + CHUNK - 4096, 8192, NULL));
	cr_assert_eq(cu->cuMemHostUnregister(host), 0);
	cr_assert_eq(cu->cuMemHostUnregister(host + CHUNK), 0);
	free(host);
}

Test(fake, nothing_is_registered_twice)
{
	char *host = aligned_alloc(CHUNK, CHUNK);

	cr_assert_eq(cu->cuMemHostRegister(host, CHUNK, 0), 0);
	refused(cu->cuMemHostRegister(host + 4096, 4096, 0));
	cr_assert_eq(cu->cuMemHostUnregister(host), 0);
	free(host);
}

static void hold(void *arg)
{
	int *ends = arg;
	char byte;

	if (read(ends[0], &byte, 1) != 1)
		abort();
}

Test(fake, what_a_copy_is_to_bring_is_garbage_until_it_lands)
{
	CUstream stream;
	char *host;
	int ends[2];

	cr_assert_eq(pipe(ends), 0);
	cr_assert_eq(cu->cuMemSetAccess(range, CHUNK, &access_both, 1), 0);
	cr_assert_eq(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	cr_assert_eq(cu->cuMemHostAlloc((void **)&host, 4096, 0), 0);
	memset(host, 'h', 4096);
	memset((void *)range, 'd', 4096);
	cr_assert_eq(fake_cuda_launch(stream, hold, ends), 0);
	cr_assert_eq(cu->cuMemcpyDtoHAsync(host, range, 4096, stream), 0);
	cr_assert_neq(host[17], 'd'); /* it waits for the kernel */
	cr_assert_eq(write(ends[1], "x", 1), 1);
	cr_assert_eq(cu->cuStreamSynchronize(stream), 0);
	cr_assert_eq(host[17], 'd');
	cr_assert_eq(cu->cuStreamDestroy(stream), 0);
	cr_assert_eq(cu->cuMemFreeHost(host), 0);
	cr_assert_null(fake_cuda_violation());
}

Test(fake, memory_stays_while_a_copy_is_in_flight)
{
	CUstream stream;
	char *host;
	int ends[2];

	cr_assert_eq(pipe(ends), 0);
	cr_assert_eq(cu->cuMemSetAccess(range, CHUNK, &access_both, 1), 0);
	cr_assert_eq(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	cr_assert_eq(cu->cuMemHostAlloc((void **)&host, 4096, 0), 0);
	cr_assert_eq(fake_cuda_launch(stream, hold, ends), 0);
	cr_assert_eq(cu->cuMemcpyHtoDAsync(range, host, 4096, stream), 0);
	cr_assert_eq(cu->cuMemFreeHost(host), 0);
	cr_assert_eq(write(ends[1], "x", 1), 1);
	cr_assert_eq(cu->cuStreamSynchronize(stream), 0);
	cr_assert_not_null(fake_cuda_violation());
	cr_assert_eq(cu->cuStreamDestroy(stream), 0);
}

static void call_cuda(void *arg)
{
	size_t available, total;

	*(CUresult *)arg = cu->cuMemGetInfo(&available, &total);
}

Test(fake, a_host_function_calls_nothing_of_cuda)
{
	CUresult (*launch_host_func)(CUstream, CUhostFn, void *) = fake_cuda_entry("cuLaunchHostFunc");
	CUresult result = CUDA_SUCCESS;

	cr_assert_eq(launch_host_func(NULL, call_cuda, &result), 0);
	cr_assert_eq(cu->cuStreamSynchronize(NULL), 0);
	cr_assert_eq(result, CUDA_ERROR_NOT_PERMITTED);
	cr_assert_not_null(fake_cuda_violation());
}

Test(fake, a_forked_child_cannot_go_on_with_it)
{
	pid_t child = fork();
	int status, n;

	if (!child)
		_exit(cu->cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
	cr_assert_eq(waitpid(child, &status, 0), child);
	cr_assert_eq(status, 0);
}

Test(fake, memory_runs_out)
{
	CUmemGenericAllocationHandle h[8];
	unsigned n = 0;

	while (cu->cuMemCreate(&h[n], CHUNK, &prop, 0) == CUDA_SUCCESS)
		n++;
	cr_assert_eq(n, 7); /* one is mapped */
	while (n)
		cr_assert_eq(cu->cuMemRelease(h[--n]), 0);
	cr_assert_null(fake_cuda_violation());
}

/* ---- calls that wait ---- */

static struct {
	CUstream stream;
	uint32_t *flag; /* pinned; the stream's work waits until it is 1 */
	int carried_out;
	bool wanted; /* that a call waits for it */
	char *host;
} busy;

static void carried_out(void *arg)
{
	__atomic_store_n(&busy.carried_out, 1, __ATOMIC_RELEASE);
}

/* Work that waits: for the flag, and a host function behind it. */
static void keep_busy(void)
{
	CUresult (*launch_host_func)(CUstream, CUhostFn, void *) = fake_cuda_entry("cuLaunchHostFunc");
	CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned) =
		fake_cuda_entry("cuStreamWaitValue32");

	__atomic_store_n(busy.flag, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&busy.carried_out, 0, __ATOMIC_RELEASE);
	cr_assert_eq(wait_value(busy.stream, (CUdeviceptr)busy.flag, 1, CU_STREAM_WAIT_VALUE_EQ), 0);
	cr_assert_eq(launch_host_func(busy.stream, carried_out, NULL), 0);
}

/* Lets the work go on as soon as a call waits, which other calls do not notice. */
static void *let_go(void *arg)
{
	size_t available, total;

	while (!fake_cuda_waiting())
		if (!__atomic_load_n(&busy.wanted, __ATOMIC_ACQUIRE))
			return NULL;
	cr_assert_eq(cu->cuCtxSetCurrent(context), 0);
	cr_assert_eq(cu->cuMemGetInfo(&available, &total), 0);
	__atomic_store_n(busy.flag, 1, __ATOMIC_RELEASE);
	return NULL;
}

#define WAITING 12
static CUresult waiting_call(unsigned n)
{
	static CUmemGenericAllocationHandle other;
	static CUdeviceptr plain;
	static void *pinned;

	switch (n) {
	case 0:
		return cu->cuMemHostRegister(busy.host, 4096, 0);
	case 1:
		return cu->cuMemHostUnregister(busy.host);
	case 2:
		return cu->cuMemSetAccess(range, CHUNK, &access_both, 1);
	case 3:
		return cu->cuMemUnmap(range, CHUNK);
	case 4:
		return cu->cuMemMap(range, CHUNK, 0, handle, 0);
	case 5:
		return cu->cuMemCreate(&other, CHUNK, &prop, 0);
	case 6:
		return cu->cuMemRelease(other);
	case 7:
		return cu->cuMemAlloc(&plain, 4096);
	case 8:
		return cu->cuMemFree(plain);
	case 9:
		return cu->cuMemHostAlloc(&pinned, 4096, 0);
	case 10:
		return cu->cuMemFreeHost(pinned);
	}
	return cu->cuMemGetInfo(&(size_t){ 0 }, &(size_t){ 0 });
}

/* Does each call wait exactly where its bit says so? */
static void calls_wait(unsigned expected)
{
	cr_assert_eq(cu->cuStreamCreate(&busy.stream, CU_STREAM_NON_BLOCKING), 0);
	cr_assert_eq(cu->cuMemHostAlloc((void **)&busy.flag, 4096, 0), 0);
	busy.host = aligned_alloc(4096, 4096);
	for (unsigned n = 0; n < WAITING; n++) {
		bool waits = expected & 1u << n;
		pthread_t thread;

		keep_busy();
		busy.wanted = true;
		cr_assert_eq(pthread_create(&thread, NULL, let_go, NULL), 0);
		cr_expect_eq(waiting_call(n), 0, "call %u", n);
		cr_expect_eq(__atomic_load_n(&busy.carried_out, __ATOMIC_ACQUIRE), waits, "call %u", n);
		__atomic_store_n(&busy.wanted, false, __ATOMIC_RELEASE);
		pthread_join(thread, NULL);
		__atomic_store_n(busy.flag, 1, __ATOMIC_RELEASE);
		cr_assert_eq(cu->cuStreamSynchronize(busy.stream), 0);
	}
	cr_assert_eq(cu->cuStreamDestroy(busy.stream), 0);
	free(busy.host);
}

#define REGISTER 0x003u
#define ACCESS	 0x004u
#define UNMAP	 0x008u
#define MAP	 0x010u
#define ALLOC	 0x7e0u

/* The rig's own flag goes with what it was allocated by: outside of the mode. */
static void restart(struct fake_cuda_config config)
{
	end();
	config.n_devices = 1;
	config.memory = 8 * CHUNK;
	fake_cuda_reset(&config);
	cr_assert_eq(cu->cuInit(0), 0);
	set_up();
}

static void no_flag_left(void)
{
	cr_assert_eq(cu->cuMemFreeHost(busy.flag), 0);
	cr_assert_null(fake_cuda_violation());
}

Test(fake, without_a_mode_no_call_waits)
{
	restart((struct fake_cuda_config){ 0 });
	calls_wait(0);
	no_flag_left();
}

Test(fake, registration_waits)
{
	restart((struct fake_cuda_config){ .register_waits = true });
	calls_wait(REGISTER);
	no_flag_left();
}

Test(fake, setting_access_waits)
{
	restart((struct fake_cuda_config){ .access_waits = true });
	calls_wait(ACCESS);
	no_flag_left();
}

Test(fake, mapping_waits)
{
	restart((struct fake_cuda_config){ .map_waits = true });
	calls_wait(MAP);
	no_flag_left();
}

Test(fake, unmapping_waits)
{
	restart((struct fake_cuda_config){ .unmap_waits = true });
	calls_wait(UNMAP);
	no_flag_left();
}

Test(fake, allocation_and_freeing_wait)
{
	restart((struct fake_cuda_config){ .alloc_waits = true });
	calls_wait(ALLOC);
	no_flag_left();
}

Test(fake, the_environment_sets_modes)
{
	cr_assert_eq(setenv("FAKE_CUDA", "map_waits,unmap_waits", 1), 0);
	restart((struct fake_cuda_config){ .register_waits = true });
	calls_wait(REGISTER | UNMAP | MAP);
	no_flag_left();
	cr_assert_eq(setenv("FAKE_CUDA", "waits", 1), 0);
	restart((struct fake_cuda_config){ 0 });
	calls_wait(REGISTER | ACCESS | UNMAP | MAP | ALLOC);
	no_flag_left();
}

Test(fake, a_mode_that_is_not_known_aborts, .signal = SIGABRT)
{
	cr_assert_eq(setenv("FAKE_CUDA", "waits,map_wait", 1), 0);
	restart((struct fake_cuda_config){ 0 });
}

Test(fake, calls_are_counted_by_name)
{
	unsigned before = fake_cuda_calls_of("cuMemGetInfo"), all = fake_cuda_calls();

	cr_assert_eq(cu->cuMemGetInfo(&(size_t){ 0 }, &(size_t){ 0 }), 0);
	cr_assert_eq(fake_cuda_calls_of("cuMemGetInfo"), before + 1);
	cr_assert_eq(fake_cuda_calls(), all + 1);
}

/* ---- the legacy stream ---- */

static uint32_t *flag; /* pinned */

static CUresult (*wait_value)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

static void put_flag(uint32_t value)
{
	__atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

/* A stream whose work waits for the flag. */
static CUstream held_stream(unsigned flags)
{
	CUstream stream;

	wait_value = fake_cuda_entry("cuStreamWaitValue32");
	if (!flag)
		cr_assert_eq(cu->cuMemHostAlloc((void **)&flag, 4096, 0), 0);
	put_flag(0);
	cr_assert_eq(cu->cuStreamCreate(&stream, flags), 0);
	cr_assert_eq(wait_value(stream, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ), 0);
	return stream;
}

static void no_held_stream(CUstream stream)
{
	put_flag(1);
	cr_assert_eq(cu->cuStreamDestroy(stream), 0);
	cr_assert_eq(cu->cuMemFreeHost(flag), 0);
	cr_assert_null(fake_cuda_violation());
}

static void set_one(void *arg)
{
	__atomic_store_n((int *)arg, 1, __ATOMIC_RELEASE);
}

static void copy_flag(void *arg)
{
	__atomic_store_n((uint32_t *)arg, __atomic_load_n(flag, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

/* Work of @first waits for the flag. Does a kernel on @second that is queued behind it see the flag set? */
static void expect_order(CUstream first, CUstream second, bool ordered)
{
	uint32_t seen = 2;

	put_flag(0);
	cr_assert_eq(wait_value(first, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ), 0);
	cr_assert_eq(fake_cuda_launch(second, copy_flag, &seen), 0);
	/* It is to run now, or has a while to run when it must not. */
	for (int i = 0; ordered ? i < 5 : __atomic_load_n(&seen, __ATOMIC_ACQUIRE) == 2; i++)
		usleep(1000);
	put_flag(1);
	cr_assert_eq(cu->cuStreamSynchronize(first), 0);
	cr_assert_eq(cu->cuStreamSynchronize(second), 0);
	cr_assert_eq(seen, ordered);
}

Test(fake, the_legacy_stream_and_blocking_ones_wait_for_each_other)
{
	CUstream blocking, other, free_stream = held_stream(CU_STREAM_NON_BLOCKING);

	put_flag(1);
	cr_assert_eq(cu->cuStreamCreate(&blocking, CU_STREAM_DEFAULT), 0);
	cr_assert_eq(cu->cuStreamCreate(&other, CU_STREAM_DEFAULT), 0);
	expect_order(blocking, NULL, true);
	expect_order(NULL, blocking, true);
	expect_order(CU_STREAM_PER_THREAD, CU_STREAM_LEGACY, true);
	expect_order(CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, true);
	/* Others do not. */
	expect_order(free_stream, NULL, false);
	expect_order(NULL, free_stream, false);
	expect_order(other, blocking, false);
	expect_order(CU_STREAM_PER_THREAD, blocking, false);
	cr_assert_eq(cu->cuStreamDestroy(blocking), 0);
	cr_assert_eq(cu->cuStreamDestroy(other), 0);
	no_held_stream(free_stream);
}

static void *use_own_stream(void *arg)
{
	int *ran = arg;

	cr_assert_eq(cu->cuCtxSetCurrent(context), 0);
	cr_assert_eq(fake_cuda_launch(CU_STREAM_PER_THREAD, set_one, ran), 0);
	cr_assert_eq(cu->cuStreamSynchronize(CU_STREAM_PER_THREAD), 0);
	return NULL;
}

Test(fake, each_thread_has_a_stream_of_its_own)
{
	CUstream held = held_stream(CU_STREAM_NON_BLOCKING);
	pthread_t thread;
	int ran = 0;

	cr_assert_eq(wait_value(CU_STREAM_PER_THREAD, (CUdeviceptr)flag, 1, CU_STREAM_WAIT_VALUE_EQ), 0);
	cr_assert_eq(pthread_create(&thread, NULL, use_own_stream, &ran), 0);
	pthread_join(thread, NULL);
	cr_assert_eq(ran, 1);
	put_flag(1);
	cr_assert_eq(cu->cuStreamSynchronize(CU_STREAM_PER_THREAD), 0);
	no_held_stream(held);
}

/* ---- captures ---- */

static struct {
	CUresult (*begin)(CUstream, CUstreamCaptureMode);
	CUresult (*end)(CUstream, CUgraph *);
	CUresult (*exchange)(CUstreamCaptureMode *);
	CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *);
	CUresult (*graph_destroy)(CUgraph);
	CUresult (*event_query)(CUevent);
	CUresult (*wait_event)(CUstream, CUevent, unsigned);
	CUresult (*ctx_synchronize)(void);
} capture;

static CUstream capturing_stream(unsigned flags, CUstreamCaptureMode mode)
{
	CUstream stream;

	capture.begin = fake_cuda_entry("cuStreamBeginCapture_v2");
	capture.end = fake_cuda_entry("cuStreamEndCapture");
	capture.exchange = fake_cuda_entry("cuThreadExchangeStreamCaptureMode");
	capture.is_capturing = fake_cuda_entry("cuStreamIsCapturing");
	capture.graph_destroy = fake_cuda_entry("cuGraphDestroy");
	capture.event_query = fake_cuda_entry("cuEventQuery");
	capture.wait_event = fake_cuda_entry("cuStreamWaitEvent");
	capture.ctx_synchronize = fake_cuda_entry("cuCtxSynchronize");
	cr_assert_eq(cu->cuStreamCreate(&stream, flags), 0);
	cr_assert_eq(capture.begin(stream, mode), 0);
	return stream;
}

/* Ends the capture; whether it was still good. */
static bool capture_was_good(CUstream stream)
{
	CUstreamCaptureStatus status;
	CUgraph graph;
	CUresult err;

	cr_assert_eq(capture.is_capturing(stream, &status), 0);
	err = capture.end(stream, &graph);
	cr_assert_eq(status, err ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE);
	cr_assert(err == 0 || err == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "%d", (int)err);
	cr_assert_eq(!graph, err != 0);
	if (graph)
		cr_assert_eq(capture.graph_destroy(graph), 0);
	cr_assert_eq(capture.is_capturing(stream, &status), 0);
	cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
	return !err;
}

Test(fake, what_is_captured_is_not_carried_out)
{
	CUstream stream = capturing_stream(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
	int ran = 0;

	cr_assert_eq(fake_cuda_launch(stream, set_one, &ran), 0);
	cr_assert_eq(fake_cuda_launch_copy(stream, set_one, &ran, sizeof(ran)), 0);
	cr_assert(capture_was_good(stream));
	cr_assert_eq(cu->cuStreamSynchronize(stream), 0);
	cr_assert_eq(ran, 0);
	cr_assert_eq(fake_cuda_launch(stream, set_one, &ran), 0);
	cr_assert_eq(cu->cuStreamSynchronize(stream), 0);
	cr_assert_eq(ran, 1);
	cr_assert_eq(cu->cuStreamDestroy(stream), 0);
}

/* Each potentially unsafe; the arguments are good. */
#define UNSAFE 17
static CUresult unsafe_call(unsigned n, CUevent event)
{
	static char page[4096] __attribute__((aligned(4096)));
	CUmemGenericAllocationHandle other;
	CUdeviceptr p;
	int fd;

	switch (n) {
	case 0:
		return cu->cuMemAlloc(&p, 4096);
	case 1:
		return cu->cuMemHostAlloc((void **)&p, 4096, 0);
	case 2:
		return cu->cuMemHostRegister(page, 4096, 0);
	case 3:
		return cu->cuMemCreate(&other, CHUNK, &prop, 0);
	case 4:
		return cu->cuMemRelease(handle);
	case 5:
		return cu->cuMemMap(range + CHUNK, CHUNK, 0, handle, 0);
	case 6:
		return cu->cuMemUnmap(range, CHUNK);
	case 7:
		return cu->cuMemSetAccess(range, CHUNK, &access_both, 1);
	case 8:
		return cu->cuMemAddressReserve(&p, CHUNK, CHUNK, 0, 0);
	case 9:
		return cu->cuMemAddressFree(range, 4 * CHUNK);
	case 10:
		return cu->cuMemExportToShareableHandle(&fd, handle,
							CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	case 11:
		return capture.ctx_synchronize();
	case 12:
		return cu->cuStreamSynchronize(CU_STREAM_PER_THREAD);
	case 13:
		return cu->cuEventSynchronize(event);
	case 14:
		return capture.event_query(event);
	case 15:
		return cu->cuMemFreeHost(flag);
	}
	return ((CUresult(*)(CUdeviceptr, const void *, size_t))fake_cuda_entry("cuMemcpyHtoD"))(range, page, 16);
}

/* Does the capture of @mode forbid unsafe calls to a thread in @own mode? Neither has any effect. */
struct asked {
	CUstreamCaptureMode own, mode;
	CUstream stream;
	CUevent event;
	unsigned forbidden;
};

static void *ask(void *arg)
{
	struct asked *a = arg;
	CUstreamCaptureMode mode = a->own;

	cr_assert_eq(cu->cuCtxSetCurrent(context), 0);
	cr_assert_eq(capture.exchange(&mode), 0);
	cr_assert_eq(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
	/* One that is harmless where it is allowed, then all. */
	a->forbidden = capture.event_query(a->event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	for (unsigned n = 0; a->forbidden && n < UNSAFE; n++) {
		cr_expect_eq(unsafe_call(n, a->event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "call %u", n);
		a->forbidden++;
	}
	cr_assert_eq(capture.exchange(&mode), 0);
	cr_assert_eq(mode, a->own);
	return NULL;
}

Test(fake, captures_forbid_by_the_modes_of_capture_and_thread)
{
	static const CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL,
					 local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
					 relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	/* As documented for cuThreadExchangeStreamCaptureMode(). */
	static const struct {
		CUstreamCaptureMode capture, own;
		bool this_thread, another;
	} rules[] = {
		{ global, global, true, true },	  { global, local, true, false },
		{ global, relaxed, false, false }, { local, global, true, false },
		{ local, local, true, false },	   { local, relaxed, false, false },
		{ relaxed, global, false, false }, { relaxed, local, false, false },
		{ relaxed, relaxed, false, false },
	};
	CUevent event;
	pthread_t thread;

	cr_assert_eq(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), 0);
	cr_assert_eq(cu->cuMemHostAlloc((void **)&flag, 4096, 0), 0);
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		for (int another = 0; another < 2; another++) {
			bool expected = another ? rules[i].another : rules[i].this_thread;
			struct asked a = { .own = rules[i].own, .event = event };
			CUstream stream = capturing_stream(CU_STREAM_NON_BLOCKING, rules[i].capture);

			if (another) {
				cr_assert_eq(pthread_create(&thread, NULL, ask, &a), 0);
				pthread_join(thread, NULL);
			} else {
				ask(&a);
			}
			cr_expect_eq(a.forbidden, expected ? 1 + UNSAFE : 0, "rule %zu, %d", i, another);
			cr_expect_eq(capture_was_good(stream), !expected, "rule %zu, %d", i, another);
			cr_assert_eq(cu->cuStreamDestroy(stream), 0);
		}
	cr_assert_eq(cu->cuEventDestroy(event), 0);
	cr_assert_eq(cu->cuMemFreeHost(flag), 0);
	/* Nothing that was forbidden took effect. */
	cr_assert_eq(cu->cuMemUnmap(range, CHUNK), 0);
	cr_assert_eq(cu->cuMemMap(range, CHUNK, 0, handle, 0), 0);
	cr_assert_null(fake_cuda_violation());
}

/* ... even by a thread that is relaxed. */
Test(fake, what_conflicts_with_a_capture_spoils_it)
{
	CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUstreamCaptureStatus status;
	CUstream stream, second;
	CUevent event, before;

	stream = capturing_stream(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_GLOBAL);
	cr_assert_eq(capture.exchange(&relaxed), 0);
	cr_assert_eq(cu->cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	cr_assert_eq(fake_cuda_launch(stream, set_one, NULL), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	cr_assert_not(capture_was_good(stream));

	cr_assert_eq(capture.begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	cr_assert_eq(capture.ctx_synchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	cr_assert_not(capture_was_good(stream));

	/* Events take other streams into it, and cannot be asked. */
	cr_assert_eq(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), 0);
	cr_assert_eq(cu->cuEventCreate(&before, CU_EVENT_DISABLE_TIMING), 0);
	cr_assert_eq(cu->cuStreamCreate(&second, CU_STREAM_NON_BLOCKING), 0);
	cr_assert_eq(capture.begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	cr_assert_eq(cu->cuEventRecord(event, stream), 0);
	cr_assert_eq(capture.wait_event(second, event, 0), 0);
	cr_assert_eq(capture.is_capturing(second, &status), 0);
	cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	cr_assert(capture_was_good(stream));
	cr_assert_eq(capture.is_capturing(second, &status), 0);
	cr_assert_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
	cr_assert_eq(capture.event_query(event), CUDA_ERROR_CAPTURED_EVENT);
	cr_assert_eq(cu->cuEventRecord(event, stream), 0);
	cr_assert_eq(cu->cuEventSynchronize(event), 0);
	cr_assert_eq(capture.begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	cr_assert_eq(capture.wait_event(stream, before, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	cr_assert_not(capture_was_good(stream));
	cr_assert_eq(cu->cuEventDestroy(event), 0);
	cr_assert_eq(cu->cuEventDestroy(before), 0);
	cr_assert_eq(cu->cuStreamDestroy(second), 0);

	/* The legacy stream does not mind such streams, and waits for blocking ones. */
	cr_assert_eq(capture.begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	cr_assert_eq(cu->cuStreamSynchronize(NULL), 0);
	cr_assert(capture_was_good(stream));
	cr_assert_eq(cu->cuStreamDestroy(stream), 0);
	stream = capturing_stream(CU_STREAM_DEFAULT, CU_STREAM_CAPTURE_MODE_GLOBAL);
	cr_assert_eq(capture.is_capturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	cr_assert(capture_was_good(stream));
	cr_assert_eq(capture.begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), 0);
	cr_assert_eq(fake_cuda_launch(NULL, set_one, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	cr_assert_not(capture_was_good(stream));
	cr_assert_eq(capture.begin(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	cr_assert_eq(cu->cuStreamDestroy(stream), 0);
	cr_assert_null(fake_cuda_violation());
}

static void *end_elsewhere(void *arg)
{
	CUgraph graph;

	cr_assert_eq(cu->cuCtxSetCurrent(context), 0);
	return (void *)(uintptr_t)capture.end(arg, &graph);
}

Test(fake, a_capture_ends_in_its_thread)
{
	CUstream stream = capturing_stream(CU_STREAM_NON_BLOCKING, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	pthread_t thread;
	void *err;

	cr_assert_eq(pthread_create(&thread, NULL, end_elsewhere, stream), 0);
	pthread_join(thread, &err);
	cr_assert_eq((CUresult)(uintptr_t)err, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	cr_assert(capture_was_good(stream));
	cr_assert_eq(cu->cuStreamDestroy(stream), 0);
}

/* ---- broken contexts ---- */

#define BREAK CUDA_ERROR_ILLEGAL_ADDRESS

static struct {
	CUstream stream;
	CUevent event;
	CUdeviceptr plain;
	void *pinned, *host;
} owned;

/* Something of each kind, and work that never ends by itself. */
static void own_all(void)
{
	owned.stream = held_stream(CU_STREAM_NON_BLOCKING);
	owned.host = aligned_alloc(4096, 4096);
	cr_assert_eq(cu->cuEventCreate(&owned.event, CU_EVENT_DISABLE_TIMING), 0);
	cr_assert_eq(cu->cuMemAlloc(&owned.plain, 4096), 0);
	cr_assert_eq(cu->cuMemHostAlloc(&owned.pinned, 4096, 0), 0);
	cr_assert_eq(cu->cuMemHostRegister(owned.host, 4096, 0), 0);
}

static void end_all(CUresult expected)
{
	cr_expect_eq(cu->cuStreamDestroy(owned.stream), expected);
	cr_expect_eq(cu->cuEventDestroy(owned.event), expected);
	cr_expect_eq(cu->cuMemFree(owned.plain), expected);
	cr_expect_eq(cu->cuMemFreeHost(owned.pinned), expected);
	cr_expect_eq(cu->cuMemFreeHost(flag), expected);
	cr_expect_eq(cu->cuMemHostUnregister(owned.host), expected);
	cr_expect_eq(cu->cuMemUnmap(range, CHUNK), expected);
	cr_expect_eq(cu->cuMemRelease(handle), expected);
}

static void break_context(void)
{
	fake_cuda_fail("cuMemGetInfo", 1, BREAK, true);
	cr_assert_eq(cu->cuMemGetInfo(&(size_t){ 0 }, &(size_t){ 0 }), BREAK);
}

static CUresult reset_of(CUdevice dev)
{
	CUresult (*reset)(CUdevice) = fake_cuda_entry("cuDevicePrimaryCtxReset_v2");

	return reset(dev);
}

static CUresult reset_context(void)
{
	return reset_of(0);
}

Test(fake, frees_in_a_broken_context_take_effect)
{
	own_all();
	break_context();
	end_all(BREAK);
	cr_assert_eq(cu->cuMemAddressFree(range, 4 * CHUNK), BREAK);
	cr_assert_eq(cu->cuDevicePrimaryCtxRelease(0), BREAK);
	cr_assert_eq(fake_cuda_alive(true), 0);
	free(owned.host);
	fake_cuda_start(8 * CHUNK);
	set_up();
}

Test(fake, frees_in_a_broken_context_take_none_in_that_mode)
{
	unsigned alive;

	restart((struct fake_cuda_config){ .broken_frees = true });
	own_all();
	alive = fake_cuda_alive(false);
	break_context();
	end_all(BREAK);
	cr_assert_eq(cu->cuMemAddressFree(range, 4 * CHUNK), BREAK); /* it has a mapping */
	cr_assert_eq(fake_cuda_alive(false), alive);
	cr_assert_eq(fake_cuda_used(), CHUNK + 4096);
	/* But one that is made to fail only once does end, and the reset in any case. */
	fake_cuda_fail("cuDevicePrimaryCtxReset", 1, BREAK, true);
	cr_assert_eq(reset_context(), BREAK);
	cr_assert_eq(fake_cuda_used(), 0);
	cr_assert_eq(fake_cuda_alive(true), 2); /* the range, and what was retained */
	fake_cuda_fail("cuMemAddressFree", 1, CUDA_ERROR_UNKNOWN, false);
	cr_assert_eq(cu->cuMemAddressFree(range, 4 * CHUNK), CUDA_ERROR_UNKNOWN);
	cr_assert_eq(fake_cuda_alive(true), 1);
	cr_assert_eq(cu->cuDevicePrimaryCtxRelease(0), 0);
	cr_assert_null(fake_cuda_violation());
	free(owned.host);
	set_up();
}

Test(fake, a_reset_gives_all_of_the_context_back)
{
	CUdeviceptr p;

	own_all();
	cr_assert_eq(reset_context(), 0);
	cr_assert_eq(fake_cuda_used(), 0);
	cr_assert_eq(fake_cuda_alive(true), 2);
	/* It is to be retained anew. */
	cr_assert_eq(cu->cuMemAlloc(&p, 4096), CUDA_ERROR_INVALID_CONTEXT);
	cr_assert_eq(cu->cuDevicePrimaryCtxRetain(&context, 0), 0);
	cr_assert_eq(cu->cuMemAlloc(&p, 4096), 0);
	cr_assert_eq(cu->cuMemFree(p), 0);
	cr_assert_eq(cu->cuDevicePrimaryCtxRelease(0), 0);
	/* To end what is gone does no harm. */
	cr_assert_eq(cu->cuMemUnmap(range, CHUNK), CUDA_ERROR_INVALID_VALUE);
	cr_assert_eq(cu->cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
	cr_assert_eq(cu->cuMemHostUnregister(owned.host), CUDA_ERROR_INVALID_VALUE);
	cr_assert_null(fake_cuda_violation());
	free(owned.host);
}

/* ---- limits ---- */

/* That they take at least that, which a sleep promises. */
Test(fake, calls_take_their_time)
{
	struct timespec from, to;

	restart((struct fake_cuda_config){ .latency = 20000 });
	clock_gettime(CLOCK_MONOTONIC, &from);
	cr_assert_eq(cu->cuMemGetInfo(&(size_t){ 0 }, &(size_t){ 0 }), 0);
	clock_gettime(CLOCK_MONOTONIC, &to);
	cr_assert_geq((to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec, 20000000);
}

Test(fake, host_memory_is_pinned_up_to_a_limit)
{
	char *host = aligned_alloc(4096, 3 * 4096);

	restart((struct fake_cuda_config){ .pins = 8192 });
	cr_assert_eq(cu->cuMemHostRegister(host, 8192, 0), 0);
	cr_assert_eq(cu->cuMemHostRegister(host + 8192, 4096, 0), CUDA_ERROR_OUT_OF_MEMORY);
	cr_assert_eq(cu->cuMemHostUnregister(host), 0);
	cr_assert_eq(cu->cuMemHostRegister(host + 8192, 4096, 0), 0);
	cr_assert_eq(cu->cuMemHostUnregister(host + 8192), 0);
	restart((struct fake_cuda_config){ .no_pins = true });
	cr_assert_eq(cu->cuMemHostRegister(host, 4096, 0), CUDA_ERROR_OUT_OF_MEMORY);
	cr_assert_null(fake_cuda_violation());
	free(host);
}

static int export(CUresult expected)
{
	int fd = -1;

	cr_assert_eq(cu->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
		     expected);
	return fd;
}

Test(fake, descriptors_are_limited)
{
	int fds[2];

	cr_assert_eq(setenv("FAKE_CUDA", "descriptors=2", 1), 0);
	restart((struct fake_cuda_config){ 0 });
	fds[0] = export(CUDA_SUCCESS);
	fds[1] = export(CUDA_SUCCESS);
	export(CUDA_ERROR_OPERATING_SYSTEM);
	close(fds[0]);
	fds[0] = export(CUDA_SUCCESS);
	close(fds[0]);
	close(fds[1]);
	cr_assert_null(fake_cuda_violation());
}

/* As they are where the process has none left at all. */
Test(fake, descriptors_may_be_all_gone)
{
	struct rlimit limit, low;
	CUresult none;
	int fd = -1;

	restart((struct fake_cuda_config){ .descriptors = 2 });
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = limit;
	low.rlim_cur = 0;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	none = cu->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	cr_assert_eq(none, CUDA_ERROR_OPERATING_SYSTEM);
	close(export(CUDA_SUCCESS));
	cr_assert_null(fake_cuda_violation());
}

Test(fake, mappings_are_limited)
{
	restart((struct fake_cuda_config){ .mappings = 2 });
	cr_assert_eq(cu->cuMemMap(range + CHUNK, CHUNK, 0, handle, 0), 0);
	cr_assert_eq(cu->cuMemMap(range + 2 * CHUNK, CHUNK, 0, handle, 0), CUDA_ERROR_OUT_OF_MEMORY);
	cr_assert_eq(cu->cuMemUnmap(range + CHUNK, CHUNK), 0);
	cr_assert_eq(cu->cuMemMap(range + 2 * CHUNK, CHUNK, 0, handle, 0), 0);
	cr_assert_eq(cu->cuMemUnmap(range + 2 * CHUNK, CHUNK), 0);
	cr_assert_null(fake_cuda_violation());
}

Test(fake, mappings_side_by_side_are_unmapped_together)
{
	cr_assert_eq(cu->cuMemMap(range + CHUNK, CHUNK, 0, handle, 0), 0);
	cr_assert_eq(cu->cuMemMap(range + 2 * CHUNK, CHUNK, 0, handle, 0), 0);
	cr_assert_eq(cu->cuMemUnmap(range + CHUNK, 2 * CHUNK), 0);
	cr_assert_eq(cu->cuMemMap(range + CHUNK, CHUNK, 0, handle, 0), 0);
	cr_assert_eq(cu->cuMemUnmap(range, 2 * CHUNK), 0);
	cr_assert_eq(cu->cuMemMap(range, CHUNK, 0, handle, 0), 0);
	cr_assert_eq(cu->cuMemMap(range + 2 * CHUNK, CHUNK, 0, handle, 0), 0);
	cr_assert_null(fake_cuda_violation());
	refused(cu->cuMemUnmap(range, 3 * CHUNK)); /* with a gap */
	cr_assert_eq(cu->cuMemUnmap(range + 2 * CHUNK, CHUNK), 0);
}

Test(fake, importers_may_keep_memory)
{
	CUmemGenericAllocationHandle other;

	restart((struct fake_cuda_config){ .busy_importers = true });
	cr_assert_eq(cu->cuMemCreate(&other, CHUNK, &prop, 0), 0);
	cr_assert_eq(cu->cuMemRelease(other), 0); /* never exported */
	cr_assert_eq(fake_cuda_used(), CHUNK);
	close(export(CUDA_SUCCESS));
	cr_assert_eq(cu->cuMemUnmap(range, CHUNK), 0);
	cr_assert_eq(cu->cuMemRelease(handle), 0);
	cr_assert_eq(fake_cuda_used(), CHUNK);
	fake_cuda_importers_gone();
	cr_assert_eq(fake_cuda_used(), 0);
	cr_assert_eq(cu->cuMemCreate(&handle, CHUNK, &prop, 0), 0);
	cr_assert_eq(cu->cuMemMap(range, CHUNK, 0, handle, 0), 0);
}

/* ---- what a device is ---- */

static int attribute(CUdevice_attribute which)
{
	int value = -1;

	cr_assert_eq(cu->cuDeviceGetAttribute(&value, which, 0), 0);
	return value;
}

Test(fake, the_compute_mode_keeps_others_out)
{
	CUcontext other;

	cr_assert_eq(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE), CU_COMPUTEMODE_DEFAULT);
	restart((struct fake_cuda_config){ .compute_mode = CU_COMPUTEMODE_EXCLUSIVE_PROCESS });
	cr_assert_eq(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE), CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
	end();
	cr_assert_eq(setenv("FAKE_CUDA", "exclusive,taken", 1), 0);
	fake_cuda_start(8 * CHUNK);
	cr_assert_eq(cu->cuDevicePrimaryCtxRetain(&other, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
	cr_assert_eq(setenv("FAKE_CUDA", "prohibited", 1), 0);
	fake_cuda_start(8 * CHUNK);
	cr_assert_eq(cu->cuDevicePrimaryCtxRetain(&other, 0), CUDA_ERROR_UNKNOWN);
	cr_assert_eq(unsetenv("FAKE_CUDA"), 0);
	fake_cuda_start(8 * CHUNK);
	set_up();
}

Test(fake, memory_for_rdma_is_had_where_the_device_says_so)
{
	CUmemAllocationProp rdma = prop;
	CUmemGenericAllocationHandle other;

	rdma.allocFlags.gpuDirectRDMACapable = 1;
	cr_assert_eq(attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED), 1);
	cr_assert_eq(fake_cuda_rdma_capable(), 0);
	cr_assert_eq(cu->cuMemCreate(&other, CHUNK, &rdma, 0), 0);
	cr_assert_eq(fake_cuda_rdma_capable(), 1);
	cr_assert_eq(cu->cuMemRelease(other), 0);
	restart((struct fake_cuda_config){ .no_rdma = true });
	cr_assert_eq(attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED), 0);
	refused(cu->cuMemCreate(&other, CHUNK, &rdma, 0));
}

#define ENTRY(name, ...) ((CUresult(*)(__VA_ARGS__))fake_cuda_entry(#name))

Test(fake, programs_that_measure_learn_what_it_is)
{
	CUipcEventHandle shared;
	CUevent event, other;
	CUmemorytype type;
	unsigned flags = 0;
	int version = 0;
	char id[32] = "";
	size_t total;
	void *pinned;

	cr_assert_eq(ENTRY(cuDriverGetVersion, int *)(&version), 0);
	cr_assert_geq(version, 12000);
	cr_assert_eq(ENTRY(cuDeviceGetPCIBusId, char *, int, CUdevice)(id, sizeof(id), 0), 0);
	cr_assert_eq(strlen(id), strlen("0000:00:00.0"));
	cr_assert_eq(ENTRY(cuDeviceTotalMem, size_t *, CUdevice)(&total, 0), 0);
	cr_assert_eq(total, 8 * CHUNK);
	cr_assert_eq(cu->cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE), 0);
	cr_assert_eq(ENTRY(cuMemHostGetFlags, unsigned *, void *)(&flags, pinned), 0);
	cr_assert_eq(flags, CU_MEMHOSTALLOC_PORTABLE);
	cr_assert_eq(ENTRY(cuPointerGetAttribute, void *, CUpointer_attribute, CUdeviceptr)(
			     &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pinned), 0);
	cr_assert_eq(type, CU_MEMORYTYPE_HOST);
	cr_assert_eq(cu->cuMemFreeHost(pinned), 0);
	cr_assert_neq(ENTRY(cuMemHostGetFlags, unsigned *, void *)(&flags, pinned), 0);
	cr_assert_eq(cu->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS), 0);
	cr_assert_eq(ENTRY(cuIpcGetEventHandle, CUipcEventHandle *, CUevent)(&shared, event), 0);
	cr_assert_eq(ENTRY(cuIpcOpenEventHandle, CUevent *, CUipcEventHandle)(&other, shared), 0);
	cr_assert_eq(cu->cuEventSynchronize(other), 0);
	cr_assert_eq(cu->cuEventDestroy(event), 0);
	cr_assert_eq(cu->cuEventDestroy(other), 0);
	cr_assert_null(fake_cuda_violation());
}

Test(fake, calls_and_bytes_of_copies_are_counted)
{
	struct fake_cuda_traffic before, t;
	char host[4096];
	CUdeviceptr p;
	void *pinned;

	cr_assert_eq(cu->cuMemAlloc(&p, 8192), 0);
	cr_assert_eq(cu->cuMemHostAlloc(&pinned, 4096, 0), 0);
	before = fake_cuda_traffic();
	cr_assert_eq(cu->cuMemcpyDtoDAsync(p, p + 4096, 4096, NULL), 0);
	cr_assert_eq(cu->cuMemcpyHtoDAsync(p, pinned, 1000, NULL), 0);
	cr_assert_eq(cu->cuMemcpyDtoHAsync(pinned, p, 200, NULL), 0);
	cr_assert_eq(ENTRY(cuMemcpyDtoH, void *, CUdeviceptr, size_t)(host, p, 30), 0);
	cr_assert_eq(ENTRY(cuMemcpyHtoD, CUdeviceptr, const void *, size_t)(p, host, 4), 0);
	cr_assert_eq(cu->cuStreamSynchronize(NULL), 0);
	t = fake_cuda_traffic();
	cr_assert_eq(t.calls - before.calls, 6);
	cr_assert_eq(t.copies - before.copies, 5);
	cr_assert_eq(t.within - before.within, 4096);
	cr_assert_eq(t.in - before.in, 1004);
	cr_assert_eq(t.out - before.out, 230);
	cr_assert_eq(cu->cuMemFree(p), 0);
	cr_assert_eq(cu->cuMemFreeHost(pinned), 0);
}

typedef CUresult batch_t(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *,
			 CUstream);

Test(fake, batches_of_copies_are_checked_and_carried_out)
{
	batch_t *batch = (batch_t *)fake_cuda_entry("cuMemcpyBatchAsync");
	CUmemcpyAttributes attributes = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM }, none = { 0 };
	CUdeviceptr p, to[2], from[2];
	size_t bytes[2] = { 4096, 4096 }, first = 0, wrong_first = 1, failed;
	CUstream stream;
	char *pinned;

	cr_assert_eq(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	cr_assert_eq(cu->cuMemAlloc(&p, 16384), 0);
	cr_assert_eq(cu->cuMemHostAlloc((void **)&pinned, 16384, 0), 0);
	memset(pinned, 'p', 8192);
	memset(pinned + 8192, 'q', 8192);
	to[0] = p;
	from[0] = (CUdeviceptr)pinned;
	to[1] = p + 8192;
	from[1] = (CUdeviceptr)pinned + 8192;
	cr_assert_eq(batch(to, from, bytes, 2, &attributes, &first, 1, &failed, stream), 0);
	cr_assert_eq(cu->cuStreamSynchronize(stream), 0);
	cr_assert_eq(((char *)p)[0], 'p');
	cr_assert_eq(((char *)p)[8192 + 4095], 'q');
	cr_assert_null(fake_cuda_violation());
	/* Wrong attributes; the wrong stream; then memory of nobody, and copies that depend on each other. */
	cr_assert_neq(batch(to, from, bytes, 2, &none, &first, 1, &failed, stream), 0);
	cr_assert_neq(batch(to, from, bytes, 2, &attributes, &wrong_first, 1, &failed, stream), 0);
	cr_assert_neq(batch(to, from, bytes, 2, &attributes, &first, 0, &failed, stream), 0);
	cr_assert_neq(batch(to, from, bytes, 2, &attributes, &first, 1, &failed, NULL), 0);
	from[1] = (CUdeviceptr)&first;
	cr_assert_neq(batch(to, from, bytes, 2, &attributes, &first, 1, &failed, stream), 0);
	cr_assert_eq(failed, 1);
	from[1] = (CUdeviceptr)pinned + 8192;
	to[1] = p + 4095;
	cr_assert_neq(batch(to, from, bytes, 2, &attributes, &first, 1, &failed, stream), 0);
	to[1] = p + 8192;
	from[1] = p + 1;
	cr_assert_neq(batch(to, from, bytes, 2, &attributes, &first, 1, &failed, stream), 0);
	cr_assert_not_null(fake_cuda_violation());
	cr_assert_eq(cu->cuStreamDestroy(stream), 0);
	cr_assert_eq(cu->cuMemFree(p), 0);
	cr_assert_eq(cu->cuMemFreeHost(pinned), 0);
}

/* ---- two GPUs ---- */

static CUcontext contexts[2];

/* A chunk of GPU 1 at `range`, which it may use; GPU 0 is current. */
static void start_two(bool no_peers)
{
	CUmemAccessDesc own = access_both;
	CUmemAllocationProp like = prop;

	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 2, .memory = 8 * CHUNK,
						    .no_peers = no_peers });
	cu = fake_cuda_api();
	cr_assert_eq(cu->cuInit(0), 0);
	for (int i = 0; i < 2; i++)
		cr_assert_eq(cu->cuDevicePrimaryCtxRetain(&contexts[i], i), 0);
	cr_assert_eq(cu->cuCtxSetCurrent(contexts[0]), 0);
	cr_assert_eq(cu->cuMemAddressReserve(&range, 4 * CHUNK, CHUNK, 0, 0), 0);
	like.location.id = own.location.id = 1;
	cr_assert_eq(cu->cuMemCreate(&handle, CHUNK, &like, 0), 0);
	cr_assert_eq(cu->cuMemMap(range, CHUNK, 0, handle, 0), 0);
	cr_assert_eq(cu->cuMemSetAccess(range, CHUNK, &own, 1), 0);
}

static void start_peers(void)
{
	start_two(false);
}

static void start_no_peers(void)
{
	start_two(true);
}

static void end_two(void)
{
	(void)cu->cuDevicePrimaryCtxRelease(1);
	end();
}

TestSuite(peers, .init = start_peers, .fini = end_two, .timeout = 60);
TestSuite(no_peers, .init = start_no_peers, .fini = end_two, .timeout = 60);

Test(peers, a_gpu_uses_what_it_was_given_access_to_itself)
{
	int can = 0;

	cr_assert_eq(cu->cuDeviceCanAccessPeer(&can, 0, 1), 0);
	cr_assert_eq(can, 1);
	cr_assert_not(fake_cuda_usable((void *)range, CHUNK));
	cr_assert_eq(cu->cuMemSetAccess(range, CHUNK, &access_both, 1), 0);
	cr_assert(fake_cuda_usable((void *)range, CHUNK));
	/* Nor did the owner lose it. */
	cr_assert_eq(cu->cuCtxSetCurrent(contexts[1]), 0);
	cr_assert(fake_cuda_usable((void *)range, CHUNK));
	cr_assert_null(fake_cuda_violation());
}

Test(peers, a_stream_uses_what_its_own_gpu_may)
{
	CUdeviceptr own;
	CUstream stream;

	cr_assert_eq(cu->cuMemAlloc(&own, 8192), 0);
	cr_assert_eq(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
	/* Whatever is current when it is asked. */
	cr_assert_eq(cu->cuCtxSetCurrent(contexts[1]), 0);
	refused(cu->cuMemcpyDtoDAsync(own, range, 8192, stream));
	cr_assert_eq(cu->cuMemSetAccess(range, CHUNK, &access_both, 1), 0);
	cr_assert_eq(cu->cuMemcpyDtoDAsync(own, range, 8192, stream), 0);
	cr_assert_eq(cu->cuStreamDestroy(stream), 0);
	cr_assert_eq(cu->cuMemFree(own), 0);
}

Test(peers, plain_allocations_are_their_gpus_own)
{
	CUdeviceptr own;

	cr_assert_eq(cu->cuMemAlloc(&own, 4096), 0);
	cr_assert(fake_cuda_usable((void *)own, 4096));
	cr_assert_eq(cu->cuCtxSetCurrent(contexts[1]), 0);
	cr_assert_not(fake_cuda_usable((void *)own, 4096));
	cr_assert_eq(cu->cuMemFree(own), 0);
}

Test(peers, what_is_another_gpus_ends_when_a_context_breaks)
{
	CUdeviceptr own[2];

	end_two();
	cr_assert_eq(setenv("FAKE_CUDA", "broken_frees", 1), 0);
	start_peers();
	for (int i = 2; i-- > 0;) {
		cr_assert_eq(cu->cuCtxSetCurrent(contexts[i]), 0);
		cr_assert_eq(cu->cuMemAlloc(&own[i], 4096), 0);
	}
	break_context(); /* that of GPU 0 */
	cr_assert_eq(cu->cuMemFree(own[0]), BREAK);
	cr_assert_eq(cu->cuMemFree(own[1]), BREAK);
	cr_assert_eq(fake_cuda_used(), CHUNK + 4096);
	cr_assert_eq(reset_of(1), 0);
	cr_assert_eq(fake_cuda_used(), 4096);
	cr_assert_eq(cu->cuDeviceGetCount(&(int){ 0 }), BREAK);
	cr_assert_eq(cu->cuMemAddressFree(range, 4 * CHUNK), BREAK);
	for (int i = 0; i < 2; i++)
		cr_assert_eq(cu->cuDevicePrimaryCtxRelease(i), BREAK);
	cr_assert_eq(reset_of(0), 0);
	cr_assert_eq(fake_cuda_used(), 0);
	cr_assert_eq(fake_cuda_alive(true), 0);
	cr_assert_null(fake_cuda_violation());
	start_peers();
}

Test(no_peers, no_access_can_be_given)
{
	int can = 1;

	cr_assert_eq(cu->cuDeviceCanAccessPeer(&can, 0, 1), 0);
	cr_assert_eq(can, 0);
	refused(cu->cuMemSetAccess(range, CHUNK, &access_both, 1));
}
