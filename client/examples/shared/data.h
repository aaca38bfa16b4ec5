/*
 * data.h - a file as the device has it, in one of several ways, and what moves because of that.
 *
 *	gaia	shared by gaiafs: only pages that changed move
 *	copy	read and copied whole at each acquire, and copied back whole at each release of what was acquired for writing
 *	mmap	the CPU plays the device, and maps the file as any program does; nothing moves (not tried on a GPU)
 *	strict	unified memory on a GPU; without one, the emulation of strict.h
 *
 * Ranges are bytes of the file. Whatever fails ends the program with a sentence that says why.
 */
#ifndef EXAMPLE_DATA_H
#define EXAMPLE_DATA_H

#include <gaia/client.h>

#include "device.h"
#include "moved.h"
#include "strict.h"

enum mode { MODE_GAIA, MODE_COPY, MODE_MMAP, MODE_STRICT };
static const char *const mode_names[] = { "gaia", "copy", "mmap", "strict" };

struct data {
	/* Constant. */
	enum mode mode;
	const char *path;
	int fd, prot;
	size_t size;
	unsigned char *p;	/* of size bytes, for the device */
	unsigned char *cpu;	/* strict: for CPU code of this program. NULL: use the file */
	struct strict *strict;
	int device;		/* gaia: its index */
	int cuda;		/* by CUDA: CUDA's number of it */

	/* By one thread at a time. */
	bool to_write;		/* copy: acquired for writing */
};

static inline enum mode parse_mode(const char *text)
{
	for (int i = 0; i < 4; i++)
		if (!strcmp(text, mode_names[i]))
			return (enum mode)i;
	errx(2, "%s: no such mode; there are gaia, copy, mmap and strict", text);
}

__attribute__((noreturn)) static inline void gaia_failed(const struct data *d)
{
	if (errno == ENOTTY)
		errx(1, "%s is not on a gaiafs mount (--mode copy, mmap and strict need none)", d->path);
	errx(1, "%s", gaia_last_error_text());
}

#ifdef __CUDACC__
/* The mount's device @wanted, or its first GPU, that this process sees, as CUDA's current device; its index. */
static inline int choose_device(int fd, int wanted)
{
	struct gaia_device_info info[64];
	cudaDeviceProp prop;
	int n = gaia_devices(fd, info, 64), visible = 0;

	if (cudaGetDeviceCount(&visible) != cudaSuccess || visible == 0) {
		warnx("no CUDA device: CUDA finds none");
		exit(EXIT_SKIPPED);
	}
	for (int i = 0; i < n && i < 64; i++) {
		for (int k = 0; k < visible && !strcmp(info[i].kind, "cuda") && (wanted < 0 || i == wanted); k++) {
			CUDA(cudaGetDeviceProperties(&prop, k));
			if (!memcmp(&prop.uuid, info[i].uuid, sizeof(info[i].uuid))) {
				CUDA(cudaSetDevice(k));
				return i;
			}
		}
	}
	if (n < 0 && errno == ENOTTY)
		errx(1, "the file is not on a gaiafs mount");
	warnx("no CUDA device: none that this mount has is visible to this process (gaiafs --device cuda)");
	exit(EXIT_SKIPPED);
}
#else
/* The mount's device @wanted or, if that is negative, its first. */
static inline int choose_device(int fd, int wanted)
{
	struct gaia_device_info info[64];
	int n = gaia_devices(fd, info, 64), index = wanted < 0 ? 0 : wanted;

	if (n >= 0 && index >= n)
		errx(1, "the mount has %d device%s", n, n == 1 ? "" : "s");
	if (n > index && index < 64 && !info[index].simulated)
		errx(1, "%s is no simulated device: this program is for those, and cuda-%s for GPUs", info[index].name,
		     program_invocation_short_name);
	return index;
}
#endif

/* Open the file for the device. @prot is PROT_READ or RW, @device the number of a mount's device or negative. */
static inline void data_open(struct data *d, enum mode mode, const char *path, int prot, int device)
{
	void *p;

	memset(d, 0, sizeof(*d));
	d->mode = mode;
	d->path = path;
	d->prot = prot;
	d->fd = open_file(path, prot == RW ? O_RDWR : O_RDONLY);
	d->size = file_size(d->fd, path);
	if (!d->size)
		errx(1, "%s is empty", path);
	switch (mode) {
	case MODE_GAIA:
		d->device = choose_device(d->fd, device);
		p = gaia_mmap(d->size, prot, d->fd, 0, d->device);
		if (p == MAP_FAILED)
			gaia_failed(d);
		break;
	case MODE_COPY:
		p = device_alloc(d->size);
		break;
#ifdef __CUDACC__
	case MODE_MMAP:
		warnx("--mode mmap is for simulated devices");
		exit(EXIT_SKIPPED);
	default:
		CUDA(cudaMallocManaged(&p, d->size));
		read_all(d->fd, p, d->size, 0);
		d->cpu = (unsigned char *)p;
		break;
#else
	case MODE_MMAP:
		p = mmap(NULL, d->size, prot, MAP_SHARED, d->fd, 0);
		if (p == MAP_FAILED)
			err(1, "%s", path);
		break;
	default:
		d->strict = strict_open(d->fd, d->size);
		d->cpu = d->strict->view[SIDE_CPU];
		p = d->strict->view[SIDE_DEVICE];
		break;
#endif
	}
	d->p = (unsigned char *)p;
#ifdef __CUDACC__
	CUDA(cudaGetDevice(&d->cuda));
#endif
}

/* Each thread that works on the file's device calls it first: which device is current CUDA keeps for each thread. */
static inline void data_use_device(const struct data *d)
{
#ifdef __CUDACC__
	CUDA(cudaSetDevice(d->cuda));
#else
	(void)d;
#endif
}

/* Copy a range of the file to the device's own memory, as programs do without gaiafs. */
static inline void copy_in(int fd, unsigned char *to, size_t off, size_t len)
{
#ifdef __CUDACC__
	void *host;

	CUDA(cudaMallocHost(&host, len));
	read_all(fd, host, len, off);
	device_copy(to, host, len);
	CUDA(cudaFreeHost(host));
#else
	read_all(fd, to, len, off);
#endif
	count_moved(len, 0, 1);
}

static inline void copy_out(int fd, const unsigned char *from, size_t off, size_t len)
{
#ifdef __CUDACC__
	void *host = own_memory(len);

	device_copy(host, from, len);
	write_all(fd, host, len, off);
	free(host);
#else
	write_all(fd, from, len, off);
#endif
	count_moved(0, len, 1);
}

/*
 * The device will see what was written to these ranges before the call. A signal does not end it. @prot as for gaia_acquire();
 * PROT_WRITE alone: all of it will be overwritten.
 */
static inline void data_acquirev(struct data *d, const struct gaia_range *ranges, size_t n, int prot)
{
	if (d->mode == MODE_GAIA) {
		while (gaia_acquirev(ranges, n, prot))
			if (errno != EINTR)
				gaia_failed(d);
	}
	for (size_t i = 0; i < n && d->mode == MODE_COPY && prot != PROT_WRITE; i++)
		copy_in(d->fd, (unsigned char *)ranges[i].addr, (size_t)((unsigned char *)ranges[i].addr - d->p), ranges[i].length);
	d->to_write = prot & PROT_WRITE;
}

static inline void data_releasev(struct data *d, const struct gaia_range *ranges, size_t n)
{
	if (d->mode == MODE_GAIA && gaia_releasev(ranges, n))
		gaia_failed(d);
	for (size_t i = 0; i < n && d->mode == MODE_COPY && d->to_write; i++)
		copy_out(d->fd, (unsigned char *)ranges[i].addr, (size_t)((unsigned char *)ranges[i].addr - d->p), ranges[i].length);
}

/*
 * The same without waiting where that is possible: data_wait() waits, with the same ranges and what this returned; others do all of
 * it then.
 */
static inline int data_acquirev_start(struct data *d, const struct gaia_range *ranges, size_t n, int prot)
{
	int fd = d->mode == MODE_GAIA && n ? gaia_acquirev_start(ranges, n, prot) : -1;

	if (d->mode == MODE_GAIA && n && fd < 0)
		gaia_failed(d);
	return fd;
}

static inline void data_wait(struct data *d, const struct gaia_range *ranges, size_t n, int prot, int fd)
{
	if (fd < 0)
		data_acquirev(d, ranges, n, prot);
	while (fd >= 0 && gaia_wait(fd))
		if (errno != EINTR)
			gaia_failed(d);
}

static inline void data_acquire(struct data *d, size_t off, size_t len, int prot)
{
	struct gaia_range range = { d->p + off, len };

	if (d->mode != MODE_GAIA) {
		data_acquirev(d, &range, 1, prot);
		return;
	}
	while (gaia_acquire(range.addr, len, prot))
		if (errno != EINTR)
			gaia_failed(d);
}

static inline void data_release(struct data *d, size_t off, size_t len)
{
	struct gaia_range range = { d->p + off, len };

	if (d->mode != MODE_GAIA)
		data_releasev(d, &range, 1);
	else if (gaia_release(range.addr, len))
		gaia_failed(d);
}

/* What was written and released is in the file then. */
static inline void data_close(struct data *d)
{
	switch (d->mode) {
	case MODE_GAIA:
		if (gaia_munmap(d->p, d->size))
			gaia_failed(d);
		break;
	case MODE_COPY:
		device_free(d->p);
		break;
#ifdef __CUDACC__
	default:
		if (d->prot == RW)
			write_all(d->fd, d->p, d->size, 0);
		CUDA(cudaFree(d->p));
		break;
#else
	case MODE_MMAP:
		munmap(d->p, d->size);
		break;
	default:
		strict_close(d->strict, d->prot == RW);
		break;
#endif
	}
	close(d->fd);
}

/* A counter of the mount, of gaia_status()'s text. */
static inline uint64_t status_counter(const char *status, const char *name)
{
	char key[64];
	const char *at;

	snprintf(key, sizeof(key), "\"%s\":", name);
	at = strstr(status, key);
	return at ? strtoull(at + strlen(key), NULL, 10) : 0;
}

/* Why it is not said how long what moved takes by the model. */
static inline const char *no_time(enum mode mode)
{
#ifdef __CUDACC__
	if (mode == MODE_STRICT)
		return " (what the driver moves is not counted)";
#endif
	return mode == MODE_GAIA ? " (the mount's device has no model of time)" : "";
}

/* All that has moved until now, because of this program; by gaiafs because of any, since the mount began. */
static inline struct moved moved_until_now(const struct data *any)
{
	struct moved moved;
	char *status;

	if (any->mode != MODE_GAIA)
		return own_moved_until_now();
	status = gaia_status(any->fd);
	if (!status)
		gaia_failed(any);
	moved.in = status_counter(status, "device_bytes_in");
	moved.out = status_counter(status, "device_bytes_out");
	moved.operations = status_counter(status, "device_operations");
	moved.model_ns = status_counter(status, "sim_ns");
	free(status);
	return moved;
}

#endif
