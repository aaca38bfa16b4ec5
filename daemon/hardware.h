/*
 * hardware.h - which devices a mount has, as its options say, and how they begin.
 */
#ifndef GAIA_HARDWARE_H
#define GAIA_HARDWARE_H

#include <stdbool.h>
#include <stdint.h>

#include "device/device.h"
#include "options.h"
#include "pagecache/cache.h"

/* Zeros at first. */
struct devices {
	struct device *at[CACHE_MAX_DEVICES];
	uint64_t cache[CACHE_MAX_DEVICES]; /* of each: see cache_config.device_cache */
	unsigned n;
	struct device *local; /* the host as a device; NULL: not made yet */
	bool faults;	      /* they are wrapped, so that tests can have them fail */
};

/* Make one. A negative errno after a line in the log. */
int device_start(const struct device_choice *choice, bool faults, struct device **out);
/* Make those of the options. A negative errno after a line in the log; then, and until a cache owns them, devices_destroy(). */
int devices_start(struct devices *dv, const struct options *o, bool faults);
/* The host, of which programs may map so many bytes. As that. */
int devices_start_host(struct devices *dv, uint64_t bytes);
/* How much it may be at most, for want of descriptors and mappings. */
uint64_t devices_host_most(void);
/* The daemon before this one had so many GPUs: -ENODEV, after a line in the log, if the cache has fewer, for the mount then stays with it. */
int devices_keep_gpus(struct cache *c, unsigned gpus_before);
/* Log them. GPUs have logged a line each already. */
void devices_announce(const struct devices *dv);
void devices_destroy(struct devices *dv);

#endif
