/*
 * common.h - what the examples on a GPU share: finding the device, and giving up.
 *
 * Exit codes: 0 the result was checked and is right, 1 it is not or something failed, 2 usage,
 * 77 there is no CUDA device to try it on.
 */
#ifndef GAIA_EXAMPLES_CUDA_COMMON_H
#define GAIA_EXAMPLES_CUDA_COMMON_H

#include <cuda_runtime.h>
#include <errno.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <gaia/cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RW (PROT_READ | PROT_WRITE)

[[noreturn]] static inline void fail(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

[[noreturn]] static inline void wrong(const char *what)
{
	fprintf(stderr, "%s: WRONG: %s\n", program_invocation_short_name, what);
	exit(1);
}

#define CUDA(call)                                                                            \
	do {                                                                                  \
		cudaError_t e_ = (call);                                                      \
		if (e_ != cudaSuccess) {                                                      \
			fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, #call, \
				cudaGetErrorString(e_));                                      \
			exit(1);                                                              \
		}                                                                             \
	} while (0)

[[noreturn]] static inline void no_device(const char *why)
{
	fprintf(stderr, "%s: no CUDA device: %s\n", program_invocation_short_name, why);
	exit(77);
}

/*
 * The number that the mount of @fd gives to its first GPU (or @wanted, if that is not negative),
 * and CUDA's current device set to the same GPU.
 */
static inline int use_gpu(int fd, int wanted)
{
	struct gaia_device_info info[64];
	cudaDeviceProp prop;
	int n, visible = 0;

	if (cudaGetDeviceCount(&visible) != cudaSuccess || visible == 0)
		no_device("CUDA finds none");
	n = gaia_devices(fd, info, 64);
	if (n < 0 && errno == ENOTTY) {
		fprintf(stderr, "%s: the file is not on a gaiafs mount\n", program_invocation_short_name);
		exit(1);
	}
	if (n < 0)
		fail("gaia_devices");
	for (int i = 0; i < n && i < 64; i++) {
		if (strcmp(info[i].kind, "cuda") || (wanted >= 0 && i != wanted))
			continue;
		for (int k = 0; k < visible; k++) {
			CUDA(cudaGetDeviceProperties(&prop, k));
			if (memcmp(&prop.uuid, info[i].uuid, sizeof(info[i].uuid)))
				continue;
			CUDA(cudaSetDevice(k));
			return i;
		}
	}
	no_device("none that this mount has is visible to this process (gaiafs --device cuda)");
}

static inline int open_file(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0666);

	if (fd < 0)
		fail(path);
	return fd;
}

static inline size_t file_size(int fd, const char *path)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		fail(path);
	return st.st_size;
}

static inline void *map_gpu(int fd, size_t length, int prot, int device)
{
	void *p = gaia_mmap(length, prot, fd, 0, device);

	if (p == MAP_FAILED)
		fail("gaia_mmap");
	return p;
}

static inline void read_all(int fd, void *buf, size_t n, off_t off)
{
	char *p = (char *)buf;

	while (n) {
		ssize_t got = pread(fd, p, n, off);

		if (got <= 0)
			fail("read");
		p += got;
		off += got;
		n -= got;
	}
}

static inline void write_all(int fd, const void *buf, size_t n, off_t off)
{
	const char *p = (const char *)buf;

	while (n) {
		ssize_t put = pwrite(fd, p, n, off);

		if (put <= 0)
			fail("write");
		p += put;
		off += put;
		n -= put;
	}
}

#endif
