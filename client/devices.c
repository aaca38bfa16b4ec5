/*
 * devices.c - which devices a mount has, and what this process can use of them.
 */
#pragma GCC visibility push(default)
#include "gaia/client.h"
#include "gaia/cuda.h"
#pragma GCC visibility pop

#include <limits.h>
#include <string.h>

#include "call.h"

static const struct kind_ops *const kinds[] = {
	&sim_kind,
	&host_kind,
#ifdef GAIA_CUDA
	&cuda_kind,
#endif
};

static void describe(const struct gaia_ioc_device *d, struct gaia_device_info *out)
{
	memset(out, 0, sizeof(*out));
	memcpy(out->name, d->name, sizeof(out->name) - 1);
	memcpy(out->kind, d->kind, sizeof(out->kind) - 1);
	memcpy(out->uuid, d->uuid, sizeof(out->uuid));
	out->capacity = d->capacity;
	out->used = d->used;
	out->simulated = d->simulated;
}

int gaia_devices(int fd, struct gaia_device_info *out, int max)
{
	CALL();
	unsigned total = 0, at = 0;

	error_about_fd(fd);
	if (max < 0 || (max && !out))
		return result(error_because(-EINVAL, "there is no room for the descriptions of %d devices", max));
	do {
		struct gaia_ioc_devices io = { .first = at };
		int err = wire_first_ioctl(fd, GAIA_IOC_DEVICES, &io);

		if (err)
			return result(err);
		if (io.count > GAIA_DEVICES_AT_ONCE || io.total > INT_MAX)
			return result(-EPROTO);
		total = io.total;
		for (unsigned i = 0; i < io.count && at < (unsigned)max; i++)
			describe(&io.device[i], &out[at++]);
		if (!io.count)
			break;
	} while (at < (unsigned)max && at < total);
	return total;
}

int device_find(int fd, int device, struct gaia_ioc_device *out, const struct kind_ops **ops)
{
	struct gaia_ioc_devices io = { .first = device_number(device) };
	int err = wire_first_ioctl(fd, GAIA_IOC_DEVICES, &io);

	if (err)
		return err;
	if (io.count < 1 && device == GAIA_DEVICE_HOST)
		return error_because(-ENODEV, "the daemon is older than this library: it does not know GAIA_DEVICE_HOST");
	if (io.count < 1)
		return error_because(-ENODEV, "the mount has no device %d: it has %u", device, io.total);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!strncmp(kinds[i]->kind, io.device[0].kind, sizeof(io.device[0].kind))) {
			*ops = kinds[i];
			*out = io.device[0];
			return 0;
		}
	}
	return error_because(-ENODEV, "this library was built without devices of kind \"%.15s\"", io.device[0].kind);
}

#ifdef GAIA_CUDA
/* The device of this UUID: its number, or a negative errno. */
static int find_uuid(int fd, const uint8_t uuid[16])
{
	struct gaia_ioc_devices io = { .first = 0 };
	unsigned first = 0;

	do {
		int err;

		io = (struct gaia_ioc_devices){ .first = first };
		err = wire_first_ioctl(fd, GAIA_IOC_DEVICES, &io);
		if (err)
			return err;
		if (io.count > GAIA_DEVICES_AT_ONCE || io.total > INT_MAX)
			return -EPROTO;
		for (unsigned i = 0; i < io.count; i++)
			if (!strncmp(io.device[i].kind, cuda_kind.kind, sizeof(io.device[i].kind)) &&
			    !memcmp(io.device[i].uuid, uuid, sizeof(io.device[i].uuid)))
				return (int)(first + i);
		first += io.count;
	} while (io.count && first < io.total);
	return error_because(-ENODEV, "the mount does not share this GPU: gaiafs --device cuda:N adds it");
}
#endif

static int device_of_cuda(int fd, int ordinal)
{
	struct gaia_ioc_devices io = { .first = 0 };
	int err = wire_first_ioctl(fd, GAIA_IOC_DEVICES, &io);

	if (err)
		return err;
#ifdef GAIA_CUDA
	uint8_t uuid[16];

	err = cuda_uuid(ordinal, uuid);
	if (err == -ENODEV)
		error_because(err, "this process sees no CUDA device %d: no driver, or it is hidden (CUDA_VISIBLE_DEVICES)", ordinal);
	return err ? err : find_uuid(fd, uuid);
#else
	return error_because(-ENODEV, "this library was built without CUDA");
#endif
}

int gaia_device_of_cuda(int fd, int ordinal)
{
	CALL();

	error_about_fd(fd);
	return result(device_of_cuda(fd, ordinal));
}

/* ---- why there is no room ---- */

#define MIB 1048576ull

int error_of_room(const struct mapping *m, size_t length, int err)
{
	struct gaia_ioc_devices io = { .first = m->device };
	const struct gaia_ioc_device *d = &io.device[0];

	if (err == -ENOMEM && !wire_ioctl(m->file->fd, GAIA_IOC_DEVICES, &io) && io.count)
		error_because(err, "it needs %llu MiB of device memory; %s has %llu MiB, of which %llu are in use: release or unmap what is "
			      "not needed, or see gaiafs --device and --user-limit",
			      (length + MIB - 1) / MIB, m->device_name, (unsigned long long)d->capacity / MIB, (unsigned long long)d->used / MIB);
	return err;
}
