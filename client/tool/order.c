/*
 * order.c - gaia flush and gaia evict: of a mount, of files, of trees and lists of files.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../report.h"
#include "../wire.h"
#include "tool.h"
#include "work.h"

/*
 * Give an order. Opens the file for writing only if the daemon refuses without that: for a file that CPU programs read and write
 * past the daemon, such an open has the device programs' acquires compare it. Not by its name, which others may have replaced.
 */
static int order(int *fd, unsigned long cmd, struct gaia_ioc_file *io)
{
	int err = wire_ioctl(*fd, cmd, io), writable;
	char name[32];

	if (err != -EPERM)
		return err;
	snprintf(name, sizeof(name), "/proc/self/fd/%d", *fd);
	writable = open(name, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (writable < 0)
		return err;
	close(*fd);
	*fd = writable;
	return wire_ioctl(*fd, cmd, io);
}

/* ---- flush ---- */

static int flush_item(const struct work *w, const struct item *it, int *fd)
{
	struct gaia_ioc_file io = { .from = GAIA_FLUSH_DEVICES };
	int err = wire_push(*fd, 0, 0);

	(void)w;
	if (!err)
		err = order(fd, GAIA_IOC_FLUSH, &io);
	return err ? fail_on(it->path, err) : EXIT_OK;
}

/* The kernel's part first: the daemon stores what it has been sent. */
static int flush_mount(const char *path)
{
	int fd = open_ours(path, O_DIRECTORY), err, status = EXIT_OK;
	json_t *report = NULL;
	char *text = NULL;

	if (fd < 0)
		return fail_on(path, fd);
	err = sync_kernel(fd);
	if (!err)
		err = fetch_report(fd, GAIA_REPORT_SYNC, &text);
	close(fd);
	if (err == -EPERM)
		return fail("%s: only root, and the user whose daemon it is, may flush a whole mount; others flush their own files, "
			    "with -r", path);
	if (err)
		return fail_on(path, err);
	report = json_loads(text, 0, NULL);
	if (!report)
		status = fail("%s: the daemon's report is not JSON", path);
	else if (show_unstored(report))
		status = EXIT_FAILED;
	json_decref(report);
	free(text);
	return status;
}

/* ---- evict ---- */

/* False also where the daemon knows no pins. */
static bool is_pinned(int fd, uint32_t device)
{
	struct gaia_ioc_place io = { .what = GAIA_PLACE_LOOK, .device = device };

	return !wire_ioctl(fd, GAIA_IOC_PLACE, &io) && io.bytes > 0;
}

static const char *memory_name(uint32_t from, char out[static 32])
{
	if (from == GAIA_FROM_DEVICE_CACHE)
		strcpy(out, "devices' caches");
	else if (from == GAIA_HOST)
		strcpy(out, "host device");
	else if (from == GAIA_FROM_HOME)
		strcpy(out, "home memory");
	else
		snprintf(out, 32, "device %" PRIu32, from);
	return out;
}

static int evict_from(int *fd, const struct args *a, const char *path, uint32_t from)
{
	struct gaia_ioc_file io = { .offset = a->offset, .length = a->length, .from = from };
	char memory[32];
	int err;

	err = order(fd, GAIA_IOC_EVICT, &io);
	/* Older daemons have no such cache. */
	if (!err || (err == -ENODEV && from == GAIA_FROM_DEVICE_CACHE && !a->from_given))
		return EXIT_OK;
	memory_name(from, memory);
	if (err == -EBUSY && is_pinned(*fd, from))
		return fail("%s: pinned to %s; 'gaia unpin' it first", path, memory);
	if (err == -EBUSY)
		return fail("%s: in use in %s: a program has acquired it and not yet released it", path, memory);
	if (err == -ENODEV && from != GAIA_FROM_HOME)
		return fail("%s: there is no %s, or this is no regular file", path, memory);
	return fail_on(path, err);
}

/*
 * From the named memory, or from all: from devices first, since their released pages go home; and last what left home for a device's
 * cache.
 */
static int evict_item(const struct work *w, const struct item *it, int *fd)
{
	struct gaia_ioc_devices io = { 0 }, host = { .first = GAIA_HOST };
	int err = wire_first_ioctl(*fd, GAIA_IOC_DEVICES, &io), status = EXIT_OK;

	if (err)
		return fail_on(it->path, err);
	if (w->a->from_given)
		return evict_from(fd, w->a, it->path, w->a->from);
	for (uint32_t i = 0; i < io.total && !status; i++)
		status = evict_from(fd, w->a, it->path, i);
	/* Older daemons have none. */
	if (!status && !wire_ioctl(*fd, GAIA_IOC_DEVICES, &host) && host.count)
		status = evict_from(fd, w->a, it->path, GAIA_HOST);
	if (!status)
		status = evict_from(fd, w->a, it->path, GAIA_FROM_HOME);
	return status ? status : evict_from(fd, w->a, it->path, GAIA_FROM_DEVICE_CACHE);
}

/* ---- files, trees and lists ---- */

/* Do it for all files of the arguments, in order; what fails for one is said, and the others are done. */
static int order_all(struct work *w, const char *are, int (*one)(const struct work *w, const struct item *it, int *fd))
{
	const struct args *a = w->a;
	bool failed;

	w->terminal = isatty(STDERR_FILENO);
	w->dirs = calloc(a->n_paths, sizeof(*w->dirs));
	if (!w->dirs)
		return fail("%s", strerror(ENOMEM));
	for (size_t i = 0; i < a->n_paths; i++) {
		if (check_kind(a->paths[i], a->recursive))
			w->failed = true;
		else
			add_path(w, a->paths[i]);
	}
	w->began = seconds();
	progress_is_of(w);
	for (size_t i = 0; i < w->n; i++) {
		struct item *it = &w->at[i];
		int fd = open_item(it), status = fd < 0 ? fail_on(it->path, fd) : one(w, it, &fd);

		if (fd >= 0)
			close(fd);
		if (status) {
			w->failed = true;
			it->error = strdup("");
		} else {
			item_done(w, it, it->size);
		}
	}
	progress_is_of(NULL);
	progress_clear(w);
	if (w->n > 0 && (w->n > 1 || a->recursive))
		print_summary(w, are);
	failed = w->failed;
	work_end(w);
	if (fflush(stdout))
		return fail("standard output: %s", strerror(errno));
	return failed ? EXIT_FAILED : EXIT_OK;
}

int flush_command(const struct args *a)
{
	struct work w = { .a = a, .verb = "flush", .memory = "storage" };

	if (!a->recursive && a->n_paths == 1 && is_mount_point(a->path))
		return flush_mount(a->path);
	return order_all(&w, "on", flush_item);
}

int evict_command(const struct args *a)
{
	struct work w = { .a = a, .verb = "evict" };

	if (a->from_given)
		memory_name(a->from, w.memory);
	else
		strcpy(w.memory, "all memories");
	return order_all(&w, "not cached any more in", evict_item);
}
