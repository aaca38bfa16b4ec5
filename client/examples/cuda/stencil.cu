/*
 * stencil.cu - heat on a plate: a GPU computes step after step, and between the steps a CPU process
 * heats the plate.
 *
 *	stencil FILE [STEPS [DEVICE]]
 *
 * FILE becomes two grids of floats, of which the GPU reads one and writes the other, in turn.
 * Another process, which knows nothing of gaiafs, stores into a part of the grid through mmap(2)
 * between the steps. Each acquire brings only the pages that the process changed. In the end every float is
 * compared with what a CPU computes alone.
 */
#include "common.h"

#include <sys/wait.h>
#include <vector>

#define WIDTH 1536
#define HEIGHT 1024
#define CELLS ((size_t)WIDTH * HEIGHT)

/* The same operations in the same order on both, none of them fused: the results are equal to the
 * last bit. */
static inline __host__ __device__ float sum(float a, float b)
{
#ifdef __CUDA_ARCH__
	return __fadd_rn(a, b);
#else
	return a + b;
#endif
}

static inline __host__ __device__ float cell(const float *from, int x, int y)
{
	size_t at = (size_t)y * WIDTH + x;

	if (x == 0 || y == 0 || x == WIDTH - 1 || y == HEIGHT - 1)
		return from[at];
	return sum(sum(from[at - 1], from[at + 1]), sum(from[at - WIDTH], from[at + WIDTH])) / 4;
}

__global__ void step(float *to, const float *from)
{
	int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;

	if (x < WIDTH && y < HEIGHT)
		to[(size_t)y * WIDTH + x] = cell(from, x, y);
}

/* Change the grid after step @s: heat a spot, in another place each time. */
static void heat(float *grid, int s)
{
	for (int y = 0; y < 20; y++)
		for (int x = 0; x < 30; x++)
			grid[(size_t)(100 + s * 37 % 800 + y) * WIDTH + 200 + s * 101 % 1100 + x] = 100 + s;
}

/* The CPU process: heats when it is told that a step has been done, and answers when it has. */
static int heater(int fd, int asked, int done)
{
	float *grid = (float *)mmap(NULL, 2 * CELLS * sizeof(float), RW, MAP_SHARED, fd, 0);
	int s;

	if (grid == MAP_FAILED)
		return 1;
	while (read(asked, &s, sizeof(s)) == sizeof(s)) {
		heat(grid + (s + 1) % 2 * CELLS, s);
		if (write(done, &s, sizeof(s)) != sizeof(s))
			return 1;
	}
	return 0;
}

static void check(int fd, int steps)
{
	std::vector<float> want(2 * CELLS), have(CELLS);

	for (int s = 0; s < steps; s++) {
		float *to = &want[(s + 1) % 2 * CELLS];

		for (int y = 0; y < HEIGHT; y++)
			for (int x = 0; x < WIDTH; x++)
				to[(size_t)y * WIDTH + x] = cell(&want[s % 2 * CELLS], x, y);
		heat(to, s);
	}
	read_all(fd, have.data(), CELLS * sizeof(float), steps % 2 * CELLS * sizeof(float));
	if (memcmp(have.data(), &want[steps % 2 * CELLS], CELLS * sizeof(float)))
		wrong("the grid differs from what a CPU computes");
}

int main(int argc, char **argv)
{
	const size_t bytes = 2 * CELLS * sizeof(float);
	dim3 block(32, 8), blocks((WIDTH + 31) / 32, (HEIGHT + 7) / 8);
	int fd, device, steps, status, asked[2], done[2];
	cudaStream_t stream;
	float *grid;
	pid_t cpu;

	if (argc < 2 || argc > 4 || (argc > 2 && atoi(argv[2]) < 1)) {
		fprintf(stderr, "usage: stencil FILE [STEPS [DEVICE]]\n");
		return 2;
	}
	steps = argc > 2 ? atoi(argv[2]) : 100;
	fd = open_file(argv[1], O_RDWR | O_CREAT | O_TRUNC);
	if (ftruncate(fd, bytes) < 0)
		fail(argv[1]);
	if (pipe(asked) < 0 || pipe(done) < 0)
		fail("pipe");
	cpu = fork();
	if (cpu < 0)
		fail("fork");
	if (cpu == 0) {
		close(asked[1]);
		_exit(heater(fd, asked[0], done[1]));
	}
	close(asked[0]);
	close(done[1]);

	device = use_gpu(fd, argc > 3 ? atoi(argv[3]) : -1);
	grid = (float *)map_gpu(fd, bytes, RW, device);
	CUDA(cudaStreamCreate(&stream));
	for (int s = 0; s < steps; s++) {
		if (gaia_acquire_on(grid, bytes, RW, stream) < 0)
			fail("gaia_acquire_on");
		step<<<blocks, block, 0, stream>>>(grid + (s + 1) % 2 * CELLS, grid + s % 2 * CELLS);
		CUDA(cudaGetLastError());
		if (gaia_release_on(grid, bytes, stream) < 0)
			fail("gaia_release_on");
		CUDA(cudaStreamSynchronize(stream));
		if (write(asked[1], &s, sizeof(s)) != sizeof(s) || read(done[0], &s, sizeof(s)) != sizeof(s))
			wrong("the CPU process ended");
	}
	close(asked[1]);
	if (waitpid(cpu, &status, 0) < 0 || status)
		wrong("the CPU process failed");
	if (gaia_munmap(grid, bytes) < 0)
		fail("gaia_munmap");
	check(fd, steps);
	printf("%d steps are right\n", steps);
	return 0;
}
