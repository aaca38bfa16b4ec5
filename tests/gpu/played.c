/*
 * played.c - gives the measuring program the fake CUDA driver, to see that it runs to its end, also
 * in a mount with the simulated device. Its numbers mean nothing then.
 */
#include <string.h>

#include "driver.h"
#include "fake_cuda.h"

static CUresult version(int *out)
{
	*out = 12000;
	return CUDA_SUCCESS;
}

/* Events do not go from process to process: each end makes its own. */
static CUresult get_handle(CUipcEventHandle *out, CUevent event)
{
	memset(out, 0, sizeof(*out));
	return CUDA_SUCCESS;
}

static CUresult open_handle(CUevent *out, CUipcEventHandle handle)
{
	return ((CUresult(*)(CUevent *, unsigned))fake_cuda_entry("cuEventCreate"))(out, 0);
}

/* Also into memory of the simulated device. */
static CUresult set(CUdeviceptr to, unsigned char byte, size_t bytes, CUstream stream)
{
	memset((void *)to, byte, bytes);
	return CUDA_SUCCESS;
}

static void *lookup(const char *name)
{
	if (!strcmp(name, "cuMemsetD8Async"))
		return set;
	if (!strcmp(name, "cuDriverGetVersion"))
		return version;
	if (!strcmp(name, "cuIpcGetEventHandle"))
		return get_handle;
	if (!strcmp(name, "cuIpcOpenEventHandle"))
		return open_handle;
	return fake_cuda_entry(name);
}

__attribute__((constructor)) static void play(void)
{
	fake_cuda_reset(&(struct fake_cuda_config){ .n_devices = 2, .memory = 256 << 20 });
	driver_lookup = lookup;
}
