/*
 * measure.h - what the parts of the measuring program share: medians, and JSON on standard output
 * beside a table on standard error.
 */
#ifndef GAIA_TESTS_GPU_MEASURE_H
#define GAIA_TESTS_GPU_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver.h"

/* Ends the program where a call of the driver fails, and says which. */
void check_cu(CUresult r, const char *call);
#define CU(call) check_cu(cu.call, #call)

double now_us(void);

/* Samples of one quantity. */
struct samples {
	double v[64];
	unsigned n;
};
void sample(struct samples *s, double v);
/* p: 0 to 1. */
double quantile(struct samples *s, double p);
double median(struct samples *s);

/* A member of the JSON object being printed, and a line of the table. @wide: also the 10th and 90th
 * percentile. */
void put_section(const char *name, bool open);
void put_row(bool open);
void put_number(const char *name, double v);
void put_samples(const char *name, struct samples *s);

/* The machine's own ceilings. */
void measure_ceilings(void);
/* gaiafs: with a file of @length bytes in a directory of a mount whose first device is a GPU. Needs what
 * measure_ceilings() found of copies. */
void measure_mount(const char *dir, size_t length);

/* GB/s of the largest pinned copies, within the device (bytes read plus written), and from GPU 1 (0: none). */
extern double best_to_device, best_to_host, best_within, best_between;

#endif
