/* detect.cc - the client's kernel, for a warp of CPU threads. */
#include "cuda_detect.cu"

extern "C" void warp_detect(struct detect_work *work, unsigned blocks)
{
	void *args[] = { work };

	(void)cudaLaunchKernel(gaia_detect, dim3(blocks), dim3(DETECT_WARPS * 32), args, 0, NULL);
}
