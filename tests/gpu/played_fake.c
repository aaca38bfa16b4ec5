/*
 * played_fake.c - the fake CUDA driver that rehearsals run on: two GPUs.
 *
 *	GAIAFS_PLAYED_MEMORY	MiB of memory a GPU (512)
 *	GAIAFS_PLAYED_FAIL	ENTRY:N, the Nth call of that entry point of the driver fails
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

__attribute__((constructor)) static void play(void)
{
	const char *memory = getenv("GAIAFS_PLAYED_MEMORY"), *fail = getenv("GAIAFS_PLAYED_FAIL");
	struct fake_cuda_config config = { .n_devices = 2, .memory = (size_t)512 << 20 };
	static char entry[64];
	unsigned nth = 1;

	if (memory)
		config.memory = strtoul(memory, NULL, 10) << 20;
	fake_cuda_reset(&config);
	if (fail && sscanf(fail, "%63[^:]:%u", entry, &nth) >= 1)
		fake_cuda_fail(entry, nth, CUDA_ERROR_UNKNOWN, false);
}
