/*
 * sgemm.cu - a product of matrices by cuBLAS, straight out of two files into a third.
 *
 *	sgemm DIRECTORY [N [DEVICE]]
 *
 * Writes N x N matrices A and B (2048) into files of a directory on a gaiafs mount, with write(2);
 * multiplies them on the GPU, where a file is a pointer like any other; reads C with read(2), and checks
 * it: its product with a vector against A times (B times the vector), which the CPU computes. The
 * numbers are small integers, so that there is no rounding.
 *
 *	nvcc sgemm.cu -o sgemm $(pkg-config --cflags --libs gaiaclient) -lcublas
 */
#include "common.h"

#include <cublas_v2.h>
#include <vector>

static int make_matrix(const char *name, size_t n, unsigned seed, bool empty)
{
	int fd = open_file(name, O_RDWR | O_CREAT | O_TRUNC);
	std::vector<float> row(n);

	if (ftruncate(fd, n * n * sizeof(float)) < 0)
		fail(name);
	for (size_t i = 0; i < n && !empty; i++) {
		for (float &x : row) {
			seed = seed * 1664525u + 1013904223u;
			x = (float)(seed >> 30) - 1;
		}
		write_all(fd, row.data(), n * sizeof(float), i * n * sizeof(float));
	}
	return fd;
}

/* The matrix in the file, times a vector. Exact: all are integers of little more than N. */
static std::vector<double> times(int fd, const std::vector<double> &v)
{
	size_t n = v.size();
	std::vector<float> row(n);
	std::vector<double> out(n);

	for (size_t i = 0; i < n; i++) {
		read_all(fd, row.data(), n * sizeof(float), i * n * sizeof(float));
		for (size_t k = 0; k < n; k++)
			out[i] += (double)row[k] * v[k];
	}
	return out;
}

int main(int argc, char **argv)
{
	const float one = 1, zero = 0;
	cublasHandle_t cublas;
	cudaStream_t stream;
	float *a, *b, *c;
	int fd[3], device;
	size_t n, bytes;

	if (argc < 2 || argc > 4 || (argc > 2 && atoi(argv[2]) < 1)) {
		fprintf(stderr, "usage: sgemm DIRECTORY [N [DEVICE]]\n");
		return 2;
	}
	n = argc > 2 ? atoi(argv[2]) : 2048;
	bytes = n * n * sizeof(float);
	if (chdir(argv[1]) < 0)
		fail(argv[1]);
	device = use_gpu(open_file(".", O_RDONLY | O_DIRECTORY), argc > 3 ? atoi(argv[3]) : -1);
	fd[0] = make_matrix("A.f32", n, 1, false);
	fd[1] = make_matrix("B.f32", n, 2, false);
	fd[2] = make_matrix("C.f32", n, 0, true);
	a = (float *)map_gpu(fd[0], bytes, PROT_READ, device);
	b = (float *)map_gpu(fd[1], bytes, PROT_READ, device);
	c = (float *)map_gpu(fd[2], bytes, RW, device);
	CUDA(cudaStreamCreate(&stream));
	if (cublasCreate(&cublas) || cublasSetStream(cublas, stream))
		no_device("cuBLAS does not work here");

	if (gaia_acquire_on(a, bytes, PROT_READ, stream) < 0 ||
	    gaia_acquire_on(b, bytes, PROT_READ, stream) < 0 ||
	    gaia_acquire_on(c, bytes, RW, stream) < 0)
		fail("gaia_acquire_on");
	/* Rows here are columns to cuBLAS, so the factors are swapped. */
	if (cublasSgemm(cublas, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, b, n, a, n, &zero, c, n))
		wrong("cublasSgemm fails");
	if (gaia_release_on(c, bytes, stream) < 0 || gaia_release_on(b, bytes, stream) < 0 ||
	    gaia_release_on(a, bytes, stream) < 0)
		fail("gaia_release_on");
	CUDA(cudaStreamSynchronize(stream));
	cublasDestroy(cublas);
	if (gaia_munmap(a, bytes) < 0 || gaia_munmap(b, bytes) < 0 || gaia_munmap(c, bytes) < 0)
		fail("gaia_munmap");

	std::vector<double> v(n);
	for (size_t i = 0; i < n; i++)
		v[i] = (double)(i % 7) - 3;
	if (times(fd[2], v) != times(fd[0], times(fd[1], v)))
		wrong("C is not A times B");
	printf("A times B, %zu x %zu, is right\n", n, n);
	return 0;
}
