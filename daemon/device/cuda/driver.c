/*
 * driver.c - the table of functions, from the driver that is installed.
 *
 * The CUDA runtime is linked statically and loads the driver when it is first used: so the
 * daemon starts without a driver. Nothing here may run before the last fork().
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/util.h"
#include "device/cuda/api.h"

/* The entry points have the form of CUDA 12.0; newer drivers keep it. */
#define CUDA_VERSION_OF_CALLS 12000
#define CUDA_VERSION_OF_COPY_BATCH 12080
/* The first version in which kernels can have as many bytes of parameters as ours. */
#define CUDA_VERSION_OF_PARAMETERS 12010

static const struct {
	const char *name;
	size_t offset; /* in struct cuda_api */
} calls[] = {
#define X(name) { #name, offsetof(struct cuda_api, name) },
	CUDA_CALLS(X)
#undef X
};

/*
 * Keep the driver from using MPS. It would connect to a control daemon through pipes in a directory where any user could
 * have put them, and wait without end while that daemon serves another user. If it finds no pipes it goes on without MPS.
 * (Then the device shares the GPU by time slices. Clients are not affected.)
 */
static void avoid_mps(void)
{
	const char *was = getenv("CUDA_MPS_PIPE_DIRECTORY");

	if (was && strcmp(was, "/dev/null"))
		log_info("CUDA_MPS_PIPE_DIRECTORY is ignored: gaiafs uses GPUs without MPS");
	setenv("CUDA_MPS_PIPE_DIRECTORY", "/dev/null", 1);
}

static const char *fill(struct cuda_api *api)
{
	static char text[160];
	enum cudaDriverEntryPointQueryResult found;
	cudaError_t err;
	CUresult result;
	void *function;
	int version;

	avoid_mps();
	for (size_t i = 0; i < ARRAY_LEN(calls); i++) {
		err = cudaGetDriverEntryPointByVersion(calls[i].name, &function, CUDA_VERSION_OF_CALLS,
						       cudaEnableDefault, &found);
		if (err == cudaErrorInsufficientDriver || err == cudaErrorStubLibrary)
			return "no CUDA driver, or one that is older than CUDA " CUDA_BUILT_WITH;
		if (err) {
			snprintf(text, sizeof(text), "the CUDA runtime: %s", cudaGetErrorString(err));
			return text;
		}
		if (found != cudaDriverEntryPointSuccess) {
			snprintf(text, sizeof(text), "the CUDA driver is too old: it has no %s",
				 calls[i].name);
			return text;
		}
		*(void **)((char *)api + calls[i].offset) = function;
	}
	err = cudaGetDriverEntryPointByVersion("cuMemcpyBatchAsync", &function, CUDA_VERSION_OF_COPY_BATCH,
					       cudaEnableDefault, &found);
	if (!err && found == cudaDriverEntryPointSuccess)
		*(void **)&api->copy_batch = function;
	err = cudaDriverGetVersion(&version);
	if (err || version < CUDA_VERSION_OF_PARAMETERS)
		return "the CUDA driver is older than CUDA 12.1";
	api->launch = cuda_launch;
	result = api->cuInit(0);
	if (result == CUDA_ERROR_NO_DEVICE)
		return "the CUDA driver finds no GPU";
	if (result == CUDA_SUCCESS)
		return NULL;
	snprintf(text, sizeof(text), "the CUDA driver does not start: error %d", (int)result);
	return text;
}

const struct cuda_api *cuda_driver(const char **why)
{
	static struct cuda_api api;
	static const char *fault;
	static bool filled;

	if (!filled)
		fault = fill(&api);
	filled = true;
	*why = fault;
	return fault ? NULL : &api;
}
