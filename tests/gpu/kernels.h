/*
 * kernels.h - kernels to measure with: kernels.cu, and in a rehearsal played.c.
 *
 * On the current context's device, by addresses of the device. All return at once.
 */
#ifndef GAIA_TESTS_GPU_KERNELS_H
#define GAIA_TESTS_GPU_KERNELS_H

#include <cuda.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

CUresult kernel_empty(CUstream stream);

/* Breaks the context. */
CUresult kernel_trap(CUstream stream);

/*
 * Runs for @us microseconds, or until the word at @stop is not 0 (@stop 0: there is none). @wide: on the whole
 * GPU; else as one block.
 */
CUresult kernel_spin(double us, CUdeviceptr stop, int wide, CUstream stream);

/* Reads all of it, and writes to the 8 bytes at @sink hardly ever. Multiples of 16. */
CUresult kernel_read(CUdeviceptr from, size_t bytes, CUdeviceptr sink, CUstream stream);

CUresult kernel_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);

#ifdef __cplusplus
}
#endif
#endif
