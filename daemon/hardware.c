/* hardware.c - see hardware.h. */
#include "hardware.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "base/log.h"
#include "base/util.h"

/* Add the device, which it then owns, even if that fails. */
static int add_device(struct devices *dv, struct device *dev)
{
	struct device *faulty;
	int err = dv->faults ? device_faulty_create(dev, &faulty) : 0;

	if (err) {
		log_error("device %s: %s", dev->name, strerror(-err));
		dev->ops->destroy(dev);
		return err;
	}
	dv->at[dv->n++] = dv->faults ? faulty : dev;
	return 0;
}

static int start_sim(struct devices *dv, const struct sim_config *config)
{
	struct device *dev;
	int err = device_sim_create(config, &dev);

	if (!err)
		return add_device(dv, dev);
	log_error("--device: simulated device %u: %s", config->index, strerror(-err));
	return err;
}

static int start_cuda(struct devices *dv, const struct cuda_config *config)
{
	struct device *dev;
	int err = device_cuda_create(config, &dev); /* logs */

	return err ? err : add_device(dv, dev);
}

/* All GPUs that work; if there is none, a simulated device. */
static int choose_devices(struct devices *dv)
{
	static const struct sim_config sim = OPTIONS_USUAL_SIM;
	const char *why;
	unsigned n = device_cuda_count(&why);

	for (unsigned i = 0; i < n && i < CACHE_MAX_DEVICES; i++)
		(void)start_cuda(dv, &(struct cuda_config){ .index = i });
	if (dv->n)
		return 0;
	if (!n)
		log_debug("no GPU: %s", why);
	return start_sim(dv, &sim);
}

/* The daemon before this one may have had GPUs of which nothing is left now: then the mount stays with it. */
static int keep_gpus(const struct devices *dv, unsigned gpus_before)
{
	unsigned n = 0;

	for (unsigned i = 0; i < dv->n; i++)
		n += !dv->at[i]->simulated;
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
		if (o->device[i].kind == CHOICE_CUDA)
			err = start_cuda(dv, &o->device[i].cuda);
		else
			err = start_sim(dv, &o->device[i].sim);
	}
	return err;
}

int devices_start(struct devices *dv, const struct options *o, bool faults)
{
	int err;

	dv->faults = faults;
	err = make_devices(dv, o);
	return err ? err : keep_gpus(dv, o->gpus_before);
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
	struct device *dev, *faulty;
	int err = device_host_create(bytes, &dev);

	if (!err && dv->faults) {
		err = device_faulty_create(dev, &faulty);
		if (err)
			dev->ops->destroy(dev);
		dev = faulty;
	}
	if (!err)
		dv->local = dev;
	else
		log_error("the host's own device: %s", strerror(-err));
	return err;
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
