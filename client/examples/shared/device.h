/*
 * device.h - one source for both kinds of device: compiled by a C compiler, CPU code stands for the kernels of a simulated device;
 * compiled by nvcc, they are kernels.
 *
 *	struct scale { float *p; float by; };
 *
 *	KERNEL(scale, struct scale)			what the device does for index i
 *	{
 *		a->p[i] *= a->by;
 *	}
 *	...
 *	LAUNCH(scale, n, (struct scale *)&args);	for all i from 0 to n - 1, in any order; waits until it is done
 *
 * What the CPU has a part in begins with KERNEL_OR_CPU(scale, struct scale) instead, and is started by LAUNCH_ON(cpu, scale, n, &args):
 * cpu says whether the CPU does it, in memory of its own. alloc_on() and the like are for such memory.
 */
#ifndef EXAMPLE_DEVICE_H
#define EXAMPLE_DEVICE_H

#include "common.h"

#ifdef __CUDACC__

#include "cuda_device.h"

#else

#define DEVICE
#define KERNEL(name, type) static void name##_one(size_t i, const type *a)
#define LAUNCH(name, n, args)                                       \
	do {                                                        \
		for (size_t n_ = (n), i_ = 0; i_ < n_; i_++)        \
			name##_one(i_, args);                       \
	} while (0)

/* One thread stands for the device. */
static inline uint64_t device_min(uint64_t *p, uint64_t value)
{
	uint64_t old = *p;

	if (value < old)
		*p = value;
	return old;
}
static inline uint32_t device_add(uint32_t *p, uint32_t value)
{
	uint32_t old = *p;

	*p += value;
	return old;
}
static inline uint32_t device_exchange(uint32_t *p, uint32_t value)
{
	uint32_t old = *p;

	*p = value;
	return old;
}
static inline uint32_t device_or(uint32_t *p, uint32_t value)
{
	uint32_t old = *p;

	*p |= value;
	return old;
}
static inline uint64_t device_load(const uint64_t *p)
{
	return *p;
}

static inline void *device_alloc(size_t n)
{
	return own_memory(n);
}
static inline void device_free(void *p)
{
	free(p);
}
static inline void device_copy(void *to, const void *from, size_t n)
{
	memcpy(to, from, n);
}
static inline void device_fill(void *p, int byte, size_t n)
{
	memset(p, byte, n);
}

#endif

#define KERNEL_OR_CPU(name, type)                                   \
	BOTH static inline void name##_at(size_t i, const type *a); \
	KERNEL(name, type)                                          \
	{                                                           \
		name##_at(i, a);                                    \
	}                                                           \
	BOTH static inline void name##_at(size_t i, const type *a)
#define LAUNCH_ON(cpu, name, n, args)                                                \
	do {                                                                         \
		if (cpu) {                                                           \
			for (size_t all_ = (n), at_ = 0; at_ < all_; at_++)          \
				name##_at(at_, args);                                \
		} else {                                                             \
			LAUNCH(name, n, args);                                       \
		}                                                                    \
	} while (0)

static inline void *alloc_on(bool cpu, size_t n)
{
	return cpu ? own_memory(n) : device_alloc(n);
}
static inline void free_on(bool cpu, void *p)
{
	if (cpu)
		free(p);
	else
		device_free(p);
}
static inline void copy_on(bool cpu, void *to, const void *from, size_t n)
{
	if (cpu)
		memcpy(to, from, n);
	else
		device_copy(to, from, n);
}

#endif
