/*
 * driver.c - see driver.h.
 */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

struct driver cu;

static void *lookup(const char *name, int version)
{
	static CUresult (*get)(const char *, void **, int, cuuint64_t, void *);
	void *lib, *out = NULL;

	if (!get) {
		lib = dlopen("libcuda.so.1", RTLD_NOW);
		if (lib)
			get = (CUresult(*)(const char *, void **, int, cuuint64_t, void *))dlsym(
				lib, "cuGetProcAddress_v2");
	}
	return get && !get(name, &out, version, 0, NULL) ? out : NULL;
}

void *(*driver_lookup)(const char *name, int version) = lookup;

const char *driver_start(void)
{
	static char why[128];
	CUcontext ctx;
	CUdevice dev;
	CUresult r;
	int n;

#define X(name, args)                                                                          \
	cu.name = (CUresult(*) args)driver_lookup("cu" #name, 12000);                               \
	if (!cu.name) {                                                                        \
		snprintf(why, sizeof(why), "no CUDA driver of 12.0 or newer (no libcuda.so.1 with %s is found)", \
			 "cu" #name);                                                          \
		return why;                                                                    \
	}
	DRIVER_ENTRIES(X)
#undef X
	r = cu.Init(0);
	if (r || cu.DeviceGetCount(&n) || n == 0) {
		snprintf(why, sizeof(why), "the CUDA driver finds no GPU (%d)", (int)r);
		return why;
	}
	r = cu.DeviceGet(&dev, 0);
	if (!r)
		r = cu.DevicePrimaryCtxRetain(&ctx, dev);
	if (!r)
		r = cu.CtxSetCurrent(ctx);
	if (!r)
		return NULL;
	snprintf(why, sizeof(why), "GPU 0 cannot be used (%d)", (int)r);
	return why;
}
