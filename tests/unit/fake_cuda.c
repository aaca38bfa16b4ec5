/*
 * fake_cuda.c - that the fake CUDA driver is as strict as the documentation. Who passes on it has not been
 * flattered.
 */
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
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

Test(fake, access_is_set_for_whole_mappings)
{
	refused(cu->cuMemSetAccess(range, CHUNK / 2, &access_both, 1));
	refused(cu->cuMemSetAccess(range, 2 * CHUNK, &access_both, 1));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they die of something else */
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

Test(no_peers, no_access_can_be_given)
{
	int can = 1;

	cr_assert_eq(cu->cuDeviceCanAccessPeer(&can, 0, 1), 0);
	cr_assert_eq(can, 0);
	refused(cu->cuMemSetAccess(range, CHUNK, &access_both, 1));
}
