/* hardware.c - see hardware.h. */
#include "hardware.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/util.h"
#include "device/huge.h"

/* @dev, or what makes it fail. Ends it if there is no memory for that. */
static int wrap(struct device *dev, bool faults, struct device **out)
{
	int err = faults ? device_faulty_create(dev, out) : 0;

	if (err) {
		log_error("device %s: %s", dev->name, strerror(-err));
		dev->ops->destroy(dev);
	} else if (!faults) {
		*out = dev;
	}
	return err;
}

int device_start(const struct device_choice *choice, bool faults, struct device **out)
{
	struct device *dev;
	int err;

	if (choice->kind == CHOICE_CUDA) {
		err = device_cuda_create(&choice->cuda, &dev); /* logs */
	} else {
		err = device_sim_create(&choice->sim, &dev);
		if (err)
			log_error("--device: simulated device %u: %s", choice->sim.index, strerror(-err));
	}
	return err ? err : wrap(dev, faults, out);
}

static int add_device(struct devices *dv, const struct device_choice *choice)
{
	int err = device_start(choice, dv->faults, &dv->at[dv->n]);

	dv->n += !err;
	return err;
}

/* All GPUs that work; if there is none, a simulated device. */
static int choose_devices(struct devices *dv)
{
	static const struct device_choice sim = { CHOICE_SIM, .sim = OPTIONS_USUAL_SIM };
	const char *why;
	unsigned n = device_cuda_count(&why);

	for (unsigned i = 0; i < n && i < CACHE_MAX_DEVICES; i++) {
		struct device_choice choice = { CHOICE_CUDA, .cuda = OPTIONS_USUAL_CUDA };

		choice.cuda.index = i;
		(void)add_device(dv, &choice);
	}
	if (dv->n)
		return 0;
	if (!n)
		log_debug("no GPU: %s", why);
	return add_device(dv, &sim);
}

int devices_keep_gpus(struct cache *c, unsigned gpus_before)
{
	struct cache_device_use use;
	unsigned n = 0;

	for (unsigned i = 0; i < cache_devices(c); i++) {
		cache_device(c, i, &use);
		n += !use.dev->simulated;
	}
	if (n >= gpus_before)
		return 0;
	log_error("the mount has %u GPU%s, and here are %u: unmount, and mount anew", gpus_before, gpus_before > 1 ? "s" : "", n);
	return -ENODEV;
}

static int make_devices(struct devices *dv, const struct options *o)
{
	int err = 0;

	if (o->choose_devices)
		return choose_devices(dv);
	for (unsigned i = 0; i < o->n_devices && !err; i++) {
		dv->cache[dv->n] = o->device[i].cache;
		err = add_device(dv, &o->device[i]);
	}
	return err;
}

int devices_start(struct devices *dv, const struct options *o, bool faults)
{
	int err = o->huge_pages ? huge_start() : 0;

	if (err)
		log_warn("--huge-pages: %s: memory of chunks stays small pages", strerror(-err));
	dv->faults = faults;
	return make_devices(dv, o);
}

/* Each of the host's chunks takes a descriptor and a mapping, of which others need more. */
uint64_t devices_host_most(void)
{
	struct rlimit limit = { .rlim_cur = 1024 };

	(void)getrlimit(RLIMIT_NOFILE, &limit);
	return MAX(1u, MIN((uint64_t)limit.rlim_cur / 12, 16384u)) * GAIA_CHUNK;
}

int devices_start_host(struct devices *dv, uint64_t bytes)
{
	struct device *dev;
	int err = device_host_create(bytes, &dev);

	if (err)
		log_error("the host's own device: %s", strerror(-err));
	return err ? err : wrap(dev, dv->faults, &dv->local);
}

void devices_announce(const struct devices *dv)
{
	uint64_t bytes = 0;
	unsigned n = 0;

	for (unsigned i = 0; i < dv->n; i++) {
		if (!dv->at[i]->simulated)
			continue;
		n++;
		bytes += dv->at[i]->capacity;
	}
	if (n)
		log_info("%u simulated device%s: %llu MiB of host memory in the place of a GPU's",
			 n, n > 1 ? "s" : "", (unsigned long long)bytes >> 20);
}

void devices_destroy(struct devices *dv)
{
	for (unsigned i = 0; i < dv->n; i++)
		dv->at[i]->ops->destroy(dv->at[i]);
	if (dv->local)
		dv->local->ops->destroy(dv->local);
}
