/*
 * gpu_access.c - see gpu_access.h. Declares the few functions of the driver that it needs itself,
 * so that tests are the same with and without the toolkit.
 */
#include "gpu_access.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static struct {
	int (*init)(unsigned flags);
	int (*retain)(void **ctx, int dev);
	int (*set_current)(void *ctx);
	int (*copy)(unsigned long long to, unsigned long long from, size_t n);
	int (*synchronize)(void);
} cu;

bool gpu_is(unsigned device)
{
	return device == 0 && getenv("GAIAFS_TEST_CUDA");
}

const char *gpu_option(unsigned device, const char *size, char out[64])
{
	snprintf(out, 64, gpu_is(device) ? "cuda:0,%s" : "sim:%s", size ? size : "256M");
	return out;
}

static void *need(void *lib, const char *name)
{
	void *f = lib ? dlsym(lib, name) : NULL;

	if (f)
		return f;
	fprintf(stderr, "GAIAFS_TEST_CUDA is set, but the CUDA driver lacks %s\n", name);
	exit(1);
}

static void start(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *ctx;

	cu.init = (int (*)(unsigned))need(lib, "cuInit");
	cu.retain = (int (*)(void **, int))need(lib, "cuDevicePrimaryCtxRetain");
	cu.set_current = (int (*)(void *))need(lib, "cuCtxSetCurrent");
	cu.synchronize = (int (*)(void))need(lib, "cuCtxSynchronize");
	cu.copy = (int (*)(unsigned long long, unsigned long long, size_t))need(lib, "cuMemcpy");
	if (cu.init(0) || cu.retain(&ctx, 0) || cu.set_current(ctx)) {
		fprintf(stderr, "GAIAFS_TEST_CUDA is set, but GPU 0 cannot be used\n");
		exit(1);
	}
}

int gpu_copy(void *to, const void *from, size_t n)
{
	if (!cu.copy)
		start();
	/* Addresses are of one space. A copy from pageable memory may still be on its way when it
	 * returns. */
	if (cu.copy((unsigned long long)to, (unsigned long long)from, n) || cu.synchronize())
		return EFAULT;
	return 0;
}
