/*
 * two_writers.cu - a CPU process and a GPU write the same pages at the same time.
 *
 *	two_writers IN OUT [DEVICE]
 *
 * Like two_writers.c, with a real kernel. OUT becomes IN in capital letters: the GPU writes the first
 * half of every page (4096 bytes) of OUT, the CPU the second; neither waits for the
 * other. Writes of different bytes are merged. The result is checked.
 */
#include "common.h"

#include <sys/wait.h>

#define PAGE 4096u
#define HALF (PAGE / 2)

static inline __host__ __device__ unsigned char capital(unsigned char c)
{
	return c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c;
}

/* The first half of every page. */
__global__ void gpu_half(unsigned char *out, const unsigned char *in, size_t n)
{
	for (size_t k = blockIdx.x * (size_t)blockDim.x + threadIdx.x; k < n;
	     k += gridDim.x * (size_t)blockDim.x) {
		size_t i = k / HALF * PAGE + k % HALF;

		if (i < n)
			out[i] = capital(in[i]);
	}
}

/* A process that knows nothing of gaiafs nor of CUDA. */
static int cpu_half(int in_fd, int out_fd, size_t n)
{
	unsigned char *in = (unsigned char *)mmap(NULL, n, PROT_READ, MAP_SHARED, in_fd, 0);
	unsigned char *out = (unsigned char *)mmap(NULL, n, RW, MAP_SHARED, out_fd, 0);

	if (in == MAP_FAILED || out == MAP_FAILED)
		return 1;
	for (size_t page = 0; page < n; page += PAGE)
		for (size_t i = page + HALF; i < page + PAGE && i < n; i++)
			out[i] = capital(in[i]);
	return munmap(out, n) || munmap(in, n);
}

static void check(int in_fd, int out_fd, size_t n)
{
	static unsigned char in[1 << 20], out[1 << 20];
	char what[64];

	for (size_t off = 0; off < n; off += sizeof(in)) {
		size_t len = n - off < sizeof(in) ? n - off : sizeof(in);

		read_all(in_fd, in, len, off);
		read_all(out_fd, out, len, off);
		for (size_t i = 0; i < len; i++) {
			if (out[i] == capital(in[i]))
				continue;
			snprintf(what, sizeof(what), "byte %zu of the result", off + i);
			wrong(what);
		}
	}
}

int main(int argc, char **argv)
{
	unsigned char *in, *out;
	int in_fd, out_fd, device, status;
	cudaStream_t stream;
	size_t n;
	pid_t cpu;

	if (argc < 3 || argc > 4) {
		fprintf(stderr, "usage: two_writers IN OUT [DEVICE]\n");
		return 2;
	}
	in_fd = open_file(argv[1], O_RDONLY);
	n = file_size(in_fd, argv[1]);
	device = use_gpu(in_fd, argc == 4 ? atoi(argv[3]) : -1);
	out_fd = open_file(argv[2], O_RDWR | O_CREAT | O_TRUNC);
	if (ftruncate(out_fd, n) < 0)
		fail(argv[2]);
	if (n == 0)
		return 0;

	in = (unsigned char *)map_gpu(in_fd, n, PROT_READ, device);
	out = (unsigned char *)map_gpu(out_fd, n, RW, device);
	CUDA(cudaStreamCreate(&stream));
	/* Before the CPU writes: the GPU holds all of OUT for writing. */
	if (gaia_acquire(in, n, PROT_READ) < 0 || gaia_acquire(out, n, RW) < 0)
		fail("gaia_acquire");
	cpu = fork();
	if (cpu < 0)
		fail("fork");
	if (cpu == 0)
		_exit(cpu_half(in_fd, out_fd, n));

	gpu_half<<<512, 256, 0, stream>>>(out, in, n);
	CUDA(cudaGetLastError());
	if (gaia_release_on(out, n, stream) < 0 || gaia_release_on(in, n, stream) < 0)
		fail("gaia_release_on");
	CUDA(cudaStreamSynchronize(stream));
	if (gaia_munmap(out, n) < 0 || gaia_munmap(in, n) < 0)
		fail("gaia_munmap");
	if (waitpid(cpu, &status, 0) < 0)
		fail("waitpid");
	if (status)
		wrong("the CPU process failed");
	check(in_fd, out_fd, n);
	return 0;
}
