/*
 * gpu.h - what the sections share that use the driver themselves.
 */
#ifndef GAIA_TESTS_GPU_GPU_H
#define GAIA_TESTS_GPU_GPU_H

#include <stdbool.h>
#include <stddef.h>

#include "driver.h"
#include "kernels.h"
#include "rows.h"
#include "sections.h"

#define CHUNK ((size_t)2 << 20)
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* Ends the section where a call of the driver fails, and says which. */
void check_cu(CUresult r, const char *call);
#define CU(call) check_cu(cu.call, "cu" #call)
#define KERNEL(call) check_cu(call, #call)

/* The driver and a context of GPU 0; where there is none the section does not apply. After other_start(). */
void gpu_start(void);
int gpu_count(void);
size_t gpu_free(void);

CUstream new_stream(void);
CUevent new_event(unsigned flags);
CUdeviceptr new_memory(size_t bytes);
void *new_pinned(size_t bytes); /* written to */
CUdeviceptr address_of(void *pinned);

#if CUDA_VERSION >= 12080
/* cuMemcpyBatchAsync as in 12.8, which driver_lookup() is asked for; later versions leave @failed out. */
typedef CUresult copy_batch_fn(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t n, CUmemcpyAttributes *attributes,
			       size_t *which, size_t n_attributes, size_t *failed, CUstream stream);
#endif

/* Chunks of their own, as the daemon has them. */
extern CUmemAllocationProp chunk_prop; /* complete after gpu_start() */
extern const CUmemAccessDesc chunk_access;

/* GB/s of this GPU, of large pieces. @within: bytes copied, not read and written. */
struct ceilings {
	double to_device, to_host; /* pinned, by the copy engine */
	double within;
	double read; /* by a kernel that only reads */
	double set;
	double l2; /* bytes; 0: not known */
};
struct ceilings measure_ceilings(void);

#endif
