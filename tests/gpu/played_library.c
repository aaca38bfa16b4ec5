/*
 * played_library.c - the fake CUDA driver as a libcuda.so.1, for programs that load one: Python, with libgaiaclient.
 *
 * Where LD_LIBRARY_PATH names its folder, and gaiafs-played is the daemon, such a program has GPUs whose memory the CPU can look at.
 */
#include "fake_cuda_internal.h"

#define EXPORT __attribute__((visibility("default")))

#undef cuGetProcAddress
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *found)
{
	*out = fake_cuda_entry(name);
	if (found)
		*found = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- what tests ask ---- */

/* fake_cuda_violation() */
EXPORT const char *played_violation(void);
const char *played_violation(void)
{
	return fake_cuda_violation();
}

/* The first GPU that may read the byte; -1: none. */
EXPORT int played_gpu(const void *p);
int played_gpu(const void *p)
{
	int found = -1;

	pthread_mutex_lock(&fake.lock);
	for (int n = 0; n < (int)fake.config.n_devices && found < 0; n++)
		if (fake_readable_memory(p, 1, 1u << fake_gpu_of(n)))
			found = n;
	pthread_mutex_unlock(&fake.lock);
	return found;
}
