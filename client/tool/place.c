/*
 * place.c - where files' contents are: gaia pin, unpin, pins and warm.
 *
 * The daemon does one piece at a time, and pins a file as a whole before any of it is brought. So a file is pinned with all of its
 * memory or not at all, what is shown of the progress is what has been done, and a signal ends the work at a piece.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../report.h"
#include "../wire.h"
#include "tool.h"
#include "work.h"

/* Bytes, multiples of GAIA_CHUNK. They are to take so many seconds. */
#define PIECE (64u << 20)
#define PIECE_LEAST (16u << 20)
#define PIECE_MOST (1u << 30)
#define PIECE_LEAST_S 0.2
#define PIECE_MOST_S 1.0
#define REOPENS 10

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
	(void)number;
	stopped = 1;
}

/* So that what was begun is undone. */
static void catch_signals(void)
{
	static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
	struct sigaction now, act = { .sa_handler = on_signal };

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (!sigaction(numbers[i], NULL, &now) && now.sa_handler != SIG_IGN)
			sigaction(numbers[i], &act, NULL);
}

/* ---- the mount ---- */

/* Whether the daemon knows pins, how many devices it has, and the name of ours. False: said why not. */
static bool look_at_mount(struct work *w, const char *path, uint32_t *devices)
{
	struct gaia_ioc_connect hello = { .version = 0 };
	struct gaia_ioc_devices io = { .first = w->device };
	int fd = open_ours(path, 0), err;

	if (fd < 0) {
		fail_on(path, fd);
		return false;
	}
	err = wire_ioctl(fd, GAIA_IOC_CONNECT, &hello);
	if (!err && w->device != GAIA_FROM_HOME)
		err = wire_ioctl(fd, GAIA_IOC_DEVICES, &io);
	close(fd);
	if (err) {
		fail_on(path, err);
		return false;
	}
	if (!(hello.features & GAIA_FEATURE_PINS)) {
		fail("%s: the mount's daemon is older than this command; mount it anew with a gaiafs of this version (" GAIA_VERSION ")", path);
		return false;
	}
	*devices = hello.devices;
	if (w->device == GAIA_FROM_HOME) {
		snprintf(w->memory, sizeof(w->memory), "home");
		return true;
	}
	if (w->device >= hello.devices) {
		fail("%s: there is no device %" PRIu32 "; the mount has %" PRIu32, path, w->device, hello.devices);
		return false;
	}
	if (!strcmp(w->verb, "unpin") && !w->a->device_given)
		snprintf(w->memory, sizeof(w->memory), "any device");
	else
		snprintf(w->memory, sizeof(w->memory), "device %" PRIu32 " (%.31s)", w->device, io.device[0].name);
	return true;
}

/* ---- pin ---- */

/* What the daemon's report says of the device, or NULL. */
static json_t *device_report(int fd, uint32_t device)
{
	json_t *report = NULL, *found;
	char *text;

	if (!fetch_report(fd, GAIA_REPORT_STATUS, &text)) {
		report = json_loads(text, 0, NULL);
		free(text);
	}
	found = json_incref(json_array_get(json_object_get(report, "devices"), device));
	json_decref(report);
	return found;
}

/* A number of bytes that the report names. */
static const char *bytes_of(json_t *device, const char *key, char out[32])
{
	format_bytes(out, 32, json_integer_value(json_object_get(device, key)));
	return out;
}

/* Why the daemon has refused the pin, and what can be done. */
static void pin_refused(struct work *w, struct item *it, int fd, int err, bool fresh)
{
	json_t *device = device_report(fd, w->device);
	char text[512], needs[32], a[32], b[32];

	format_bytes(needs, sizeof(needs), (json_int_t)((it->size + GAIA_CHUNK - 1) / GAIA_CHUNK * GAIA_CHUNK));
	switch (-err) {
	case ENOSPC:
		snprintf(text, sizeof(text), "needs %s of %s, where pinned files have %s of the %s that they may have: 'gaia unpin' some (gaia pins), "
			 "or mount with a larger --pin-share", needs, w->memory, bytes_of(device, "pinned_files_bytes", a),
			 bytes_of(device, "pin_share_bytes", b));
		break;
	case EDQUOT:
		snprintf(text, sizeof(text), "needs %s of %s, where a user's pinned files may have %s: 'gaia unpin' some (gaia pins), or ask for a "
			 "larger --user-limit pinned=", needs, w->memory, bytes_of(device, "pin_each_user_bytes", a));
		break;
	case ENOMEM:
		snprintf(text, sizeof(text), "needs %s of %s, of whose %s programs hold %s: pin it when they have released some, or end them", needs,
			 w->memory, bytes_of(device, "capacity", a), bytes_of(device, "pinned", b));
		break;
	case EPERM:
		snprintf(text, sizeof(text), "only root, and the user whose daemon it is, may pin files here (gaiafs --user-limit pinned=PERCENT "
			 "lets others)");
		break;
	case ENODEV:
		snprintf(text, sizeof(text), "%s is gone, or was taken away (gaia set), or this is no regular file", w->memory);
		break;
	case EINTR:
		snprintf(text, sizeof(text), "interrupted: %s", fresh ? "it is not pinned" : "it was pinned before, and still is");
		break;
	default:
		snprintf(text, sizeof(text), "%s: %s", strerror(-err), fresh ? "it is not pinned" : "it was pinned before, and still is");
	}
	json_decref(device);
	item_failed(w, it, text);
}

static int place(int fd, struct gaia_ioc_place *io)
{
	return stopped ? -EINTR : wire_ioctl_once(fd, GAIA_IOC_PLACE, io);
}

/*
 * The daemon knows by now that the file is for devices. If the kernel serves it itself, because we have opened it so, open it again: then what
 * the device has of it stays good whatever home drops. (close(2) does not wait for the daemon to hear of it.) A descriptor, or a negative errno.
 */
static int open_again(const struct item *it, int fd)
{
	struct gaia_ioc_place io = { .flags = GAIA_PLACE_PASSED };

	for (int k = 0; fd >= 0 && k < REOPENS; k++) {
		io = (struct gaia_ioc_place){ .what = GAIA_PLACE_LOOK, .device = GAIA_FROM_HOME };
		if (place(fd, &io) || !(io.flags & GAIA_PLACE_PASSED))
			break;
		close(fd);
		nanosleep(&(struct timespec){ .tv_nsec = k * 1000000l }, NULL);
		fd = open_item(it);
	}
	return fd;
}

static int fill(struct work *w, struct item *it, int fd)
{
	uint64_t piece = PIECE;
	double began, took;
	int err = 0;

	for (uint64_t at = 0; at < it->size;) {
		struct gaia_ioc_place io = { .what = GAIA_PLACE_FILL, .device = w->device, .offset = at, .length = piece };

		began = seconds();
		err = place(fd, &io);
		if (err)
			break;
		item_done(w, it, piece);
		took = seconds() - began;
		/* Between two pieces the disk waits; within one nothing is shown. */
		at += piece;
		if (took < PIECE_LEAST_S && piece < PIECE_MOST)
			piece *= 2;
		else if (took > PIECE_MOST_S && piece > PIECE_LEAST)
			piece /= 2;
	}
	return err;
}

static void pin_item(struct work *w, struct item *it)
{
	struct gaia_ioc_place io = { .what = GAIA_PLACE_PIN, .device = w->device };
	int fd = open_item(it), err;
	struct stat before, now;

	if (fd < 0) {
		item_failed(w, it, strerror(-fd));
		return;
	}
	err = fstat(fd, &before) ? -errno : place(fd, &io);
	if (!err) {
		fd = open_again(it, fd);
		if (fd < 0 || fstat(fd, &now) || now.st_dev != before.st_dev || now.st_ino != before.st_ino) {
			item_failed(w, it, "it was moved or replaced meanwhile, and is pinned; 'gaia pins' names it");
			if (fd >= 0)
				close(fd);
			return;
		}
		it->size = it->size < io.bytes ? it->size : io.bytes;
		err = fill(w, it, fd);
		/* What had been pinned before, or is by others, stays so. */
		if (err && io.flags & GAIA_PLACE_FRESH)
			wire_ioctl(fd, GAIA_IOC_PLACE,
				   &(struct gaia_ioc_place){ .what = GAIA_PLACE_UNPIN, .device = w->device, .flags = GAIA_PLACE_MINE });
	}
	if (err)
		pin_refused(w, it, fd, err, !io.bytes || io.flags & GAIA_PLACE_FRESH);
	close(fd);
}

/* ---- unpin ---- */

static void unpin_item(struct work *w, struct item *it, uint32_t devices)
{
	uint32_t first = w->a->device_given ? w->device : 0, end = w->a->device_given ? w->device + 1 : devices;
	int fd = open_item(it), err = 0;
	bool any = false;

	if (fd < 0) {
		item_failed(w, it, strerror(-fd));
		return;
	}
	for (uint32_t i = first; i < end && (!err || err == -ENOENT); i++) {
		err = place(fd, &(struct gaia_ioc_place){ .what = GAIA_PLACE_UNPIN, .device = i });
		any |= !err;
	}
	close(fd);
	if (any && (!err || err == -ENOENT))
		item_done(w, it, it->size);
	else if (err && err != -ENOENT)
		item_failed(w, it, strerror(-err));
	else if (it->dir < 0) /* of a directory those that are pinned are unpinned */
		item_failed(w, it, w->a->device_given ? "this user has not pinned it to that device (gaia pins)" :
							"this user has not pinned it (gaia pins)");
}

/* ---- warm ---- */

/* The kernel serves the file from its own memory: that is where it is read to. */
static int read_piece(int fd, uint64_t at, uint64_t length, uint64_t *done)
{
	static char buf[1u << 20];
	ssize_t n = 1;

	*done = 0;
	while (*done < length && n > 0 && !stopped) {
		n = pread(fd, buf, sizeof(buf) < length - *done ? sizeof(buf) : length - *done, (off_t)(at + *done));
		if (n < 0)
			return -errno;
		*done += (uint64_t)n;
	}
	return stopped ? -EINTR : 0;
}

/* One piece; *@length is cut to what there is room for, and to 0 if there is none. */
static int warm_piece(struct work *w, int fd, uint64_t at, uint64_t *length, bool pinned)
{
	struct gaia_ioc_place io = { .what = GAIA_PLACE_WARM, .device = w->device, .offset = at };
	uint64_t asked = *length;
	int err;

	/* A chunk on a device is had as a whole. What is pinned has its memory. */
	if (w->device != GAIA_FROM_HOME && !pinned) {
		uint64_t room = w->left / GAIA_CHUNK * GAIA_CHUNK;

		asked = asked < room ? asked : room;
	}
	*length = 0;
	if (asked == 0)
		return 0;
	io.length = asked;
	err = place(fd, &io);
	if (err == -EOPNOTSUPP && w->device == GAIA_FROM_HOME)
		return read_piece(fd, at, asked, length);
	if (err == -ENOMEM)
		return 0; /* others have taken the room */
	if (err)
		return err;
	*length = io.bytes;
	if (!pinned && w->device != GAIA_FROM_HOME)
		w->left -= (io.bytes + GAIA_CHUNK - 1) / GAIA_CHUNK * GAIA_CHUNK;
	return 0;
}

/* So that the daemon knows that the file is for a device. */
static int warm_begin(struct work *w, const struct item *it, bool pinned, int *fd)
{
	struct gaia_ioc_place io = { .what = GAIA_PLACE_WARM, .device = w->device, .length = 1 };
	int err;

	if (w->device == GAIA_FROM_HOME || it->size == 0 || (w->left < GAIA_CHUNK && !pinned))
		return 0;
	err = place(*fd, &io);
	if (!err && io.flags & GAIA_PLACE_PASSED)
		*fd = open_again(it, *fd);
	return *fd < 0 ? *fd : err == -ENOMEM ? 0 : err;
}

static int warm_opened(struct work *w, struct item *it, int *from)
{
	struct gaia_ioc_place io = { .what = GAIA_PLACE_LOOK, .device = w->device };
	int err = place(*from, &io), fd;
	uint64_t pinned = io.bytes;

	if (!err && !w->looked)
		w->left = io.room;
	w->looked = true;
	if (!err)
		err = warm_begin(w, it, pinned >= it->size, from);
	fd = *from;
	while (!err && it->done < it->size) {
		uint64_t asked = it->size - it->done < PIECE ? it->size - it->done : PIECE, length = asked;

		err = warm_piece(w, fd, it->done, &length, pinned >= it->size);
		if (!err)
			item_done(w, it, length);
		if (length < asked) {
			w->full = true;
			break;
		}
	}
	return err;
}

static void warm_item(struct work *w, struct item *it)
{
	int fd = open_item(it), err;

	err = fd < 0 ? fd : warm_opened(w, it, &fd);
	if (fd >= 0)
		close(fd);
	if (err)
		item_failed(w, it, err == -EINTR ? "interrupted" : err == -EOPNOTSUPP ? NOT_FOR_SHARED : strerror(-err));
}

/* Do it for all files of the arguments, in order. */
static int work_on(const struct args *a, const char *verb, const char *are, uint32_t device)
{
	struct work w = { .a = a, .verb = verb, .device = device, .terminal = isatty(STDERR_FILENO) };
	uint32_t devices = 0;
	bool failed;

	w.dirs = calloc(a->n_paths, sizeof(*w.dirs));
	if (!w.dirs)
		return fail("%s", strerror(ENOMEM));
	if (!look_at_mount(&w, a->path, &devices)) {
		work_end(&w);
		return EXIT_FAILED;
	}
	for (size_t i = 0; i < a->n_paths; i++)
		add_path(&w, a->paths[i]);
	catch_signals();
	w.began = seconds();
	for (size_t i = 0; i < w.n && !stopped; i++) {
		if (!strcmp(verb, "pin"))
			pin_item(&w, &w.at[i]);
		else if (!strcmp(verb, "unpin"))
			unpin_item(&w, &w.at[i], devices);
		else
			warm_item(&w, &w.at[i]);
	}
	progress_clear(&w);
	if (a->json)
		print_json(&w, seconds() - w.began);
	else if (w.n > 0 && !(w.n == 1 && w.failed))
		print_summary(&w, are);
	failed = w.failed || stopped;
	work_end(&w);
	if (fflush(stdout))
		return fail("standard output: %s", strerror(errno));
	return failed ? EXIT_FAILED : EXIT_OK;
}

/* Where it is not said which, and there is one, it is that one. */
static int choose_device(const struct args *a, uint32_t *device)
{
	struct gaia_ioc_devices io = { 0 };
	int fd, err;

	*device = a->device;
	if (a->device_given)
		return EXIT_OK;
	fd = open_ours(a->path, 0);
	err = fd < 0 ? fd : wire_ioctl(fd, GAIA_IOC_DEVICES, &io);
	if (fd >= 0)
		close(fd);
	if (err)
		return fail_on(a->path, err);
	return io.total == 1 ? EXIT_OK : usage("pin: --device N is missing: the mount has %" PRIu32 " devices", io.total);
}

int pin_command(const struct args *a)
{
	uint32_t device;
	int status = choose_device(a, &device);

	return status ? status : work_on(a, "pin", "pinned to", device);
}

int unpin_command(const struct args *a)
{
	return work_on(a, "unpin", "not pinned any more to", a->device);
}

int warm_command(const struct args *a)
{
	return work_on(a, "warm", "in", a->device_given ? a->device : GAIA_FROM_HOME);
}

int pins_command(const struct args *a)
{
	return report_command(a, GAIA_REPORT_PINS);
}
