/*
 * query.c - calls that only tell something: what a pointer belongs to, what has failed, reports of the daemon.
 */
#pragma GCC visibility push(default)
#include "gaia/client.h"
#include "gaia/cuda.h"
#pragma GCC visibility pop

#include <string.h>

#include "call.h"
#include "report.h"

const char *gaia_version(void)
{
	return GAIA_VERSION;
}

const char *gaia_last_error_text(void)
{
	return error_text();
}

/* The mapping of an address, with a reference. */
static int find(const void *ptr, struct mapping **out)
{
	struct mapping *m = *out = mapping_find(ptr, 1);

	error_about_address(ptr, 1);
	if (!m)
		return error_because(-EINVAL, "it is not an address of gaia_mmap()'s");
	error_about_mapping(m, m->offset + (uint64_t)((const char *)ptr - m->addr), 1);
	return 0;
}

int gaia_query(const void *ptr, struct gaia_pointer_info *out)
{
	CALL();
	struct mapping *m;
	int err = find(ptr, &m);

	if (err)
		return result(err);
	if (m->conn->forked)
		return call_end(m, -ENOTCONN);
	*out = (struct gaia_pointer_info){
		.base = m->addr,
		.length = m->length,
		.offset = m->offset,
		.file_dev = m->conn->dev,
		.file_ino = m->file->ino,
		.device = m->device == GAIA_HOST ? GAIA_DEVICE_HOST : (int)m->device,
		.prot = m->prot,
		.held = held_prot(m, ptr),
	};
	memcpy(out->device_name, m->device_name, sizeof(out->device_name));
	strncpy(out->device_kind, m->ops->kind, sizeof(out->device_kind) - 1);
	return call_end(m, 0);
}

int gaia_stream_error(const void *ptr)
{
	CALL();
	struct late_error late;
	struct mapping *m;
	int err = find(ptr, &m);

	if (err)
		return result(err);
	if (m->conn->forked)
		return call_end(m, -ENOTCONN);
	err = -turns_take_error(m, &late);
	if (err) {
		error_about_mapping(m, late.offset, late.length);
		error_because(-err, "an earlier %s has failed when its turn had come", late.release ? "gaia_release_on()" : "gaia_acquire_on()");
		error_end(err);
	}
	return call_end(m, err);
}

/* The text of a report, to be freed, or NULL. */
static char *report(int fd, unsigned what)
{
	char *text = NULL;

	error_about_fd(fd);
	return result(fetch_report(fd, what, &text)) ? NULL : text;
}

char *gaia_status(int fd)
{
	CALL();

	return report(fd, GAIA_REPORT_STATUS);
}

char *gaia_residency(int fd)
{
	CALL();

	return report(fd, GAIA_REPORT_RESIDENCY);
}
