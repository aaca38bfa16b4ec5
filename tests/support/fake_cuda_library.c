/*
 * fake_cuda_library.c - the fake CUDA driver: kernels that a program loads. There is one library; its kernels are functions of this
 * process, which the test names (fake_cuda_kernel()).
 */
#include "fake_cuda_internal.h"

#include <stdlib.h>
#include <string.h>

#define KERNELS 4u

static struct fake_kernel {
	const char *name;
	void (*fn)(void *parameter, unsigned blocks, unsigned threads);
	size_t bytes;
} kernels[KERNELS];

static int the_library;

/* A launch, as it waits in its stream: the parameter is behind it. */
struct fake_launch {
	const struct fake_kernel *kernel;
	unsigned blocks, threads;
	_Alignas(16) char parameter[];
};

void fake_cuda_kernel(const char *name, void (*fn)(void *parameter, unsigned blocks, unsigned threads), size_t bytes)
{
	unsigned k = 0;

	while (k < KERNELS && kernels[k].name && strcmp(kernels[k].name, name))
		k++;
	if (k == KERNELS)
		abort();
	kernels[k] = (struct fake_kernel){ name, fn, bytes };
}

static CUresult fake_library_load(CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values, unsigned n_jit,
				  CUlibraryOption *options, void **values, unsigned n)
{
	CUresult err = fake_enter("cuLibraryLoadData");

	if (err)
		return err;
	if (!code)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "a library of nothing");
	*library = (CUlibrary)&the_library;
	return CUDA_SUCCESS;
}

static CUresult fake_library_get_kernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	CUresult err = fake_enter("cuLibraryGetKernel");

	if (err)
		return err;
	if (library != (CUlibrary)&the_library)
		return fake_refuse(CUDA_ERROR_INVALID_HANDLE, "a kernel of no library");
	for (unsigned k = 0; k < KERNELS && kernels[k].name; k++) {
		if (strcmp(kernels[k].name, name))
			continue;
		*kernel = (CUkernel)&kernels[k];
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

static void run(void *arg)
{
	struct fake_launch *l = arg;

	l->kernel->fn(l->parameter, l->blocks, l->threads);
}

static CUresult fake_launch_kernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
				   unsigned shared, CUstream stream, void **params, void **extra)
{
	const struct fake_kernel *kernel = (const struct fake_kernel *)f;
	CUresult err = fake_enter("cuLaunchKernel");
	struct fake_launch *l;

	if (err)
		return err;
	if (kernel < kernels || kernel >= kernels + KERNELS || !kernel->name)
		return fake_refuse(CUDA_ERROR_INVALID_HANDLE, "a launch of no kernel");
	if (!gx || gy != 1 || gz != 1 || !bx || by != 1 || bz != 1 || bx > 1024 || shared || extra)
		return fake_refuse(CUDA_ERROR_INVALID_VALUE, "a launch of %u times %u threads", gx, bx);
	l = malloc(sizeof(*l) + kernel->bytes);
	*l = (struct fake_launch){ kernel, gx, bx };
	memcpy(l->parameter, params[0], kernel->bytes);
	err = fake_cuda_launch_copy(stream, run, l, sizeof(*l) + kernel->bytes);
	free(l);
	return err;
}

const struct fake_entry fake_library_entries[] = {
	{ "cuLibraryLoadData", fake_library_load },
	{ "cuLibraryGetKernel", fake_library_get_kernel },
	{ "cuLaunchKernel", fake_launch_kernel },
	{ NULL, NULL },
};
