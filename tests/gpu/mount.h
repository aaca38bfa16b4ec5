/*
 * mount.h - gpu-mount: a file of a gaiafs mount, used by a device and by CPUs, and what the mount counted
 * meanwhile.
 */
#ifndef GAIA_TESTS_GPU_MOUNT_H
#define GAIA_TESTS_GPU_MOUNT_H

#include <fcntl.h>
#include <jansson.h>
#include <stdint.h>
#include <sys/mman.h>

#include "gaia/client.h"
#include "gaia/protocol.h"
#include "gpu.h"

#define PAGE ((size_t)GAIA_PAGE)
#define RW (PROT_READ | PROT_WRITE)

/* ---- mount.c ---- */

extern struct mount {
	char cpu_cache[32]; /* as the mount says: "auto" may have fallen back */
	bool simulated;	    /* the device: no driver is used, and the CPU plays its kernels */
	unsigned n_devices;
	uint64_t capacity; /* of the first device */
	uint64_t home;	   /* its budget */
	struct ceilings ceilings; /* 0: not measured */
	double trip_us;		  /* one request to the daemon that does nearly nothing */
} the_mount;

/* What every section begins with: asks the mount of the program's argument, measures, and labels all rows. */
void mount_start(void);

/* Ends the section where a call fails; errno says why. */
void must(bool ok, const char *what);

/*
 * What is new is passed through, where the mount does that. The others are files that a device has mapped
 * before, which are never passed through: of data on the storage, or of a hole, which takes no time to make.
 */
enum file_kind { FILE_OF_DATA, FILE_OF_A_HOLE, FILE_NEW };

struct file {
	char path[4096];
	int fd;
	size_t bytes;
	bool passed; /* it is passed through */
};
void file_begin(struct file *f, size_t bytes, enum file_kind kind);
void file_end(struct file *f);

/* At most @bytes, and so much that half of the device and of home are enough for it. */
size_t file_size(size_t bytes);

void write_file(const struct file *f, size_t bytes, int value);
void read_file(const struct file *f, size_t bytes);
/* @from: a device, or GAIA_FROM_HOME. */
void evict(const struct file *f, uint32_t from);
/* The kernel's copies of it are gone, and home has it all. */
void bring_home(const struct file *f, size_t bytes);
/* Neither has the kernel a copy, nor home. */
void drop_home(const struct file *f);
/* Nothing but storage has it. */
void forget(const struct file *f);

unsigned char *map(const struct file *f, size_t bytes, int device);
void unmap(unsigned char *p, size_t bytes);
void acquire(unsigned char *p, size_t bytes, int prot);
void release(unsigned char *p, size_t bytes);
/* On the device; waits for it. */
void fill(unsigned char *p, int value, size_t bytes);
/* The same on the second device. */
void fill_second(unsigned char *p, int value, size_t bytes);
/* A page in each @apart bytes. */
void fill_some(unsigned char *p, int value, size_t bytes, size_t apart);

/* Times and counters of one thing. */
struct timing {
	struct samples us;
	json_t *before, *moved; /* moved: by how much the counters did in one repetition */
	double t0;
};
/* What @t->moved is. */
void counting_begin(struct timing *t);
void counting_end(struct timing *t);
void timing_begin(struct timing *t, const struct repeat *r);
void timing_end(struct timing *t, const struct repeat *r);

/* A row without its end: the samples, and the rate of @bytes (0: none). */
void put_timing(struct timing *t, const struct file *f, const char *what, double bytes, double ceiling);
/*
 * For what is no rate: the least that it can take is @trips requests, one after the other, and @set bytes written and
 * @read bytes read by the GPU.
 */
struct least {
	double trips, set, read;
};
/* Beside @us: the ceiling, and the share of it. Nothing where it was not measured. */
void put_least(double us, struct least least);

/* With its end; forgets the counters. */
void end_timing(struct timing *t);

/* TIME(&t, 9, f(x)): f(x) is timed; what must come before each is @before. */
#define TIME(t, most, before, call)                            \
	for (struct repeat r_ = repeat(most); again(&r_);) {    \
		before;                                        \
		timing_begin(t, &r_);                          \
		call;                                          \
		timing_end(t, &r_);                            \
	}

/* ---- mount_sections.c ---- */

void section_first_touch(void);
void section_stale(void);
void section_current(void);
void section_changed(void);
void section_release(void);
void section_reads(void);
void section_first_map(void);

/* ---- mount_streams.c ---- */

void section_streams(void);
void section_evict(void);
void section_devices(void);

#endif
