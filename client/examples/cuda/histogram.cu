/*
 * histogram.cu - how often each byte value occurs in a file, counted on a GPU.
 *
 *	histogram FILE [DEVICE]
 *
 * Like histogram.c, with a real kernel: counts again and again while other programs change the file,
 * until standard input ends; then counts once more, and prints that count. Every acquire brings only the
 * pages that changed. The acquire is queued on the stream before the kernel, and the release behind it:
 * the host waits only for the count.
 *
 * The last count is checked: against one that the CPU makes of the same bytes, copied back from the
 * GPU.
 */
#include "common.h"

#include <poll.h>
#include <stdint.h>

__global__ void count_bytes(const unsigned char *p, size_t n, unsigned long long *count)
{
	__shared__ unsigned here[256];

	for (unsigned i = threadIdx.x; i < 256; i += blockDim.x)
		here[i] = 0;
	__syncthreads();
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
	     i += gridDim.x * (size_t)blockDim.x)
		atomicAdd(&here[p[i]], 1);
	__syncthreads();
	for (unsigned i = threadIdx.x; i < 256; i += blockDim.x)
		atomicAdd(&count[i], (unsigned long long)here[i]);
}

/* Standard input has ended; never waits. */
static bool told_to_stop(void)
{
	struct pollfd in = { STDIN_FILENO, POLLIN, 0 };
	char buf[256];

	return poll(&in, 1, 0) > 0 && read(STDIN_FILENO, buf, sizeof(buf)) <= 0;
}

/* What the CPU counts in the device's copy. */
static void check(const unsigned char *p, size_t n, const unsigned long long *count)
{
	static unsigned char part[1 << 20];
	unsigned long long here[256] = { 0 };

	for (size_t off = 0; off < n; off += sizeof(part)) {
		size_t len = n - off < sizeof(part) ? n - off : sizeof(part);

		CUDA(cudaMemcpy(part, p + off, len, cudaMemcpyDeviceToHost));
		for (size_t i = 0; i < len; i++)
			here[part[i]]++;
	}
	if (memcmp(here, count, sizeof(here)))
		wrong("the GPU counted differently");
}

int main(int argc, char **argv)
{
	unsigned long long *count;
	unsigned long rounds = 0;
	cudaStream_t stream;
	unsigned char *p;
	size_t n;
	bool last;
	int fd;

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: histogram FILE [DEVICE]\n");
		return 2;
	}
	fd = open_file(argv[1], O_RDONLY);
	n = file_size(fd, argv[1]);
	if (n == 0) {
		fprintf(stderr, "histogram: %s is empty\n", argv[1]);
		return 1;
	}
	p = (unsigned char *)map_gpu(fd, n, PROT_READ, use_gpu(fd, argc == 3 ? atoi(argv[2]) : -1));
	close(fd);
	CUDA(cudaStreamCreate(&stream));
	CUDA(cudaMallocManaged(&count, 256 * sizeof(*count)));

	do {
		last = told_to_stop();
		memset(count, 0, 256 * sizeof(*count));
		if (gaia_acquire_on(p, n, PROT_READ, stream) < 0)
			fail("gaia_acquire_on");
		count_bytes<<<512, 256, 0, stream>>>(p, n, count);
		CUDA(cudaGetLastError());
		if (!last && gaia_release_on(p, n, stream) < 0)
			fail("gaia_release_on");
		CUDA(cudaStreamSynchronize(stream));
		rounds++;
	} while (!last);
	check(p, n, count);

	/* This call also reports whether everything went well on the stream. */
	if (gaia_release(p, n) < 0)
		fail("gaia_release");
	if (gaia_munmap(p, n) < 0)
		fail("gaia_munmap");
	for (int i = 0; i < 256; i++)
		printf("%d %llu\n", i, count[i]);
	fprintf(stderr, "counted %lu times\n", rounds);
	return fflush(stdout) ? 1 : 0;
}
