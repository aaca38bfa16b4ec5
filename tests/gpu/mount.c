/*
 * mount.c - gpu-mount: gaiafs on a GPU, through a mount, as shares of what the machine can do.
 *
 *	gpu-mount --list | [--quick] SECTION DIRECTORY	see sections.h
 *
 * DIRECTORY is one of a gaiafs mount, which is asked for its way of caching and for its device. A GPU writes
 * by cuMemsetD8Async(): what matters here is not the kernel but the way to and from it. The CPU writes to a
 * simulated device; the numbers mean nothing then.
 */
#include "mount.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../client/wire.h"

struct mount the_mount;

static CUstream stream;

void must(bool ok, const char *what)
{
	if (!ok)
		die("%s: %s", what, strerror(errno));
}

static void must_not_err(int err, const char *what)
{
	errno = -err;
	must(err == 0, what);
}

/* ---- reports ---- */

static struct {
	int sock;
	struct gaia_client_key key;
} client = { .sock = -1 };

static void become_client(int fd)
{
	uint64_t seq;

	client.sock = wire_socket();
	must(client.sock >= 0, "a socket");
	must_not_err(wire_handshake(client.sock, fd, &client.key, &seq, NULL), "the mount's daemon");
}

/* The whole of a sealed memfd with JSON. */
static json_t *read_json(int fd)
{
	json_error_t where;
	json_t *json;

	must(lseek(fd, 0, SEEK_SET) == 0, "a report");
	json = json_loadfd(fd, 0, &where);
	if (!json)
		die("a report is not JSON: %s", where.text);
	close(fd);
	return json;
}

static json_t *report(int fd, uint32_t what)
{
	struct gaia_ioc_report io = { .key = client.key, .what = what };
	int fds[GAIA_MSG_CHUNKS];
	struct gaia_msg msg;
	unsigned n;

	must_not_err(wire_ioctl(fd, GAIA_IOC_REPORT, &io), "asking for a report");
	must_not_err(wire_failed(wire_receive(client.sock, true, &msg, fds, &n)), "receiving a report");
	if (msg.kind != GAIA_MSG_REPORT || n != 1)
		die("the daemon says something else than a report");
	return read_json(fds[0]);
}

static int dir_fd;

static json_t *counters(void)
{
	json_t *status = report(dir_fd, GAIA_REPORT_STATUS);
	json_t *counts = json_incref(json_object_get(status, "counters"));

	json_decref(status);
	if (!counts)
		die("the daemon's report has no counters");
	return counts;
}

/* ---- the mount ---- */

static void ask_mount(void)
{
	json_t *status = report(dir_fd, GAIA_REPORT_STATUS);
	const char *way = json_string_value(json_object_get(status, "cpu_cache"));
	json_t *home;

	snprintf(the_mount.cpu_cache, sizeof(the_mount.cpu_cache), "%s", way ? way : "unknown");
	home = json_object_get(status, "home");
	the_mount.home = (uint64_t)json_integer_value(json_object_get(home, "budget"));
	json_decref(status);
}

/* A request for attributes that the kernel may not answer itself. */
static double measure_trip(void)
{
	struct samples us = { .n = 0 };
	struct statx of;

	for (struct repeat r = repeat(50); again(&r);) {
		double t0 = now_us();

		must(statx(dir_fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &of) == 0, "statx");
		took(&r, &us, now_us() - t0);
	}
	return median(&us);
}

void mount_start(void)
{
	static struct gaia_device_info device;
	int n;

	if (!argument)
		die("a directory of a gaiafs mount must be named");
	dir_fd = open(argument, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	must(dir_fd >= 0, argument);
	n = gaia_devices(dir_fd, &device, 1);
	must(n >= 0, argument);
	if (n == 0)
		does_not_apply("the mount has no device");
	the_mount.n_devices = (unsigned)n;
	the_mount.capacity = device.capacity;
	the_mount.simulated = device.simulated;
	become_client(dir_fd);
	ask_mount();
	the_mount.trip_us = measure_trip();
	rows_label("cpu_cache", the_mount.cpu_cache);
	rows_label("device", device.kind);
	if (the_mount.simulated) {
		rows_simulated();
		return;
	}
	gpu_start();
	stream = new_stream();
	the_mount.ceilings = measure_ceilings();
}

/* ---- files ---- */

/* As an open descriptor is, so it stays. */
static bool is_passed(int fd)
{
	json_t *residency = report(fd, GAIA_REPORT_RESIDENCY);
	bool passed = json_is_true(json_object_get(residency, "passthrough"));

	json_decref(residency);
	return passed;
}

static void open_file(struct file *f, int flags)
{
	f->fd = open(f->path, O_RDWR | O_CLOEXEC | flags, 0600);
	must(f->fd >= 0, f->path);
	f->passed = is_passed(f->fd);
}

/*
 * Maps it once, which marks it, and opens it again. The kernel does not wait until the daemon knows of a close;
 * until it does, the file stays as it was.
 */
static void have_it_cached(struct file *f)
{
	unsigned char *p = map(f, f->bytes, 0);

	unmap(p, f->bytes);
	for (unsigned ms = 0; ms < 250; ms++) {
		close(f->fd);
		usleep(ms * 1000);
		open_file(f, 0);
		if (!f->passed)
			return;
	}
	die("%s is passed through, although a device has mapped it", f->path);
}

size_t file_size(size_t bytes)
{
	while (bytes > CHUNK && (bytes > the_mount.capacity / 2 || bytes > the_mount.home / 2))
		bytes /= 2;
	return bytes;
}

void file_begin(struct file *f, size_t bytes, enum file_kind kind)
{
	snprintf(f->path, sizeof(f->path), "%s/gpu-mount.%d", argument, (int)getpid());
	f->bytes = bytes;
	open_file(f, O_CREAT | O_TRUNC);
	if (kind == FILE_OF_A_HOLE) {
		must(ftruncate(f->fd, (off_t)bytes) == 0, "ftruncate");
	} else {
		write_file(f, bytes, 1);
		must(fsync(f->fd) == 0, "fsync");
	}
	if (kind != FILE_NEW)
		have_it_cached(f);
}

void file_end(struct file *f)
{
	close(f->fd);
	must(unlink(f->path) == 0, f->path);
}

#define PART MIB

void write_file(const struct file *f, size_t bytes, int value)
{
	static char part[PART];

	memset(part, value, sizeof(part));
	for (size_t off = 0, n; off < bytes; off += n) {
		n = bytes - off < PART ? bytes - off : PART;
		must(pwrite(f->fd, part, n, (off_t)off) == (ssize_t)n, "writing the file");
	}
}

void read_file(const struct file *f, size_t bytes)
{
	static char part[PART];

	for (size_t off = 0, n; off < bytes; off += n) {
		n = bytes - off < PART ? bytes - off : PART;
		must(pread(f->fd, part, n, (off_t)off) == (ssize_t)n, "reading the file");
	}
}

void evict(const struct file *f, uint32_t from)
{
	struct gaia_ioc_file io = { .from = from };

	must(ioctl(f->fd, GAIA_IOC_EVICT, &io) == 0, "evicting the file");
}

static void drop_kernel_copies(const struct file *f){
	must(fsync(f->fd) == 0, "fsync");
	errno = posix_fadvise(f->fd, 0, 0, POSIX_FADV_DONTNEED);
	must(!errno, "posix_fadvise");
}

void drop_home(const struct file *f)
{
	drop_kernel_copies(f);
	evict(f, GAIA_FROM_HOME);
}

void bring_home(const struct file *f, size_t bytes)
{
	drop_kernel_copies(f);
	read_file(f, bytes);
}

void forget(const struct file *f)
{
	for (unsigned i = 0; i < the_mount.n_devices; i++)
		evict(f, i);
	drop_home(f);
}

/* ---- the device's side ---- */

unsigned char *map(const struct file *f, size_t bytes, int device)
{
	unsigned char *p = gaia_mmap(bytes, RW, f->fd, 0, device);

	must(p != MAP_FAILED, "gaia_mmap");
	return p;
}

void unmap(unsigned char *p, size_t bytes)
{
	must(gaia_munmap(p, bytes) == 0, "gaia_munmap");
}

void acquire(unsigned char *p, size_t bytes, int prot)
{
	must(gaia_acquire(p, bytes, prot) == 0, "gaia_acquire");
}

void release(unsigned char *p, size_t bytes)
{
	must(gaia_release(p, bytes) == 0, "gaia_release");
}

void fill(unsigned char *p, int value, size_t bytes)
{
	fill_some(p, value, bytes, 0);
}

void fill_some(unsigned char *p, int value, size_t bytes, size_t apart)
{
	size_t n = apart ? PAGE : bytes;

	for (size_t at = 0; at < bytes; at += apart ? apart : bytes) {
		if (the_mount.simulated)
			memset(p + at, value, n);
		else
			CU(MemsetD8Async((CUdeviceptr)(p + at), (unsigned char)value, n, stream));
	}
	if (!the_mount.simulated)
		CU(StreamSynchronize(stream));
}

void fill_second(unsigned char *p, int value, size_t bytes)
{
	static CUcontext first, second;
	CUdevice dev;

	if (the_mount.simulated) {
		memset(p, value, bytes);
		return;
	}
	if (!second) {
		CU(DeviceGet(&dev, 0));
		CU(DevicePrimaryCtxRetain(&first, dev));
		CU(DeviceGet(&dev, 1));
		CU(DevicePrimaryCtxRetain(&second, dev));
	}
	CU(CtxSetCurrent(second));
	CU(MemsetD8Async((CUdeviceptr)p, (unsigned char)value, bytes, NULL));
	CU(CtxSynchronize());
	CU(CtxSetCurrent(first));
}

/* ---- times and counters ---- */

void counting_begin(struct timing *t)
{
	json_decref(t->before);
	t->before = counters();
}

void counting_end(struct timing *t)
{
	const char *name;
	json_t *after = counters(), *value;

	json_decref(t->moved);
	t->moved = json_object();
	json_object_foreach(after, name, value) {
		json_int_t before = json_integer_value(json_object_get(t->before, name));
		json_int_t by = json_integer_value(value) - before;

		if (by)
			json_object_set_new(t->moved, name, json_integer(by));
	}
	json_decref(after);
}

/*
 * The counters of one repetition only, the third of those that count: asking for them takes longer than much of what is
 * timed, and what comes after a rest is slower.
 */
static bool counted(const struct repeat *r)
{
	return r->i == r->warm_up + 3;
}

void timing_begin(struct timing *t, const struct repeat *r)
{
	if (counted(r))
		counting_begin(t);
	t->t0 = now_us();
}

void timing_end(struct timing *t, const struct repeat *r)
{
	double us = now_us() - t->t0;

	took(r, &t->us, us);
	if (counted(r))
		counting_end(t);
}

void put_timing(struct timing *t, const struct file *f, const char *what, double bytes, double ceiling)
{
	row_begin("%s", what);
	if (f)
		row_bool("passed_through", f->passed);
	if (bytes > 0)
		row_number("bytes", bytes);
	row_samples("us", &t->us);
	if (bytes > 0)
		row_rate(bytes, median(&t->us), ceiling);
}

void put_least(double us, struct least least)
{
	const struct ceilings *c = &the_mount.ceilings;
	double at_least = least.trips * the_mount.trip_us;

	if ((least.set > 0 && c->set <= 0) || (least.read > 0 && c->read <= 0))
		return;
	at_least += least.set > 0 ? least.set / c->set / 1e3 : 0;
	at_least += least.read > 0 ? least.read / c->read / 1e3 : 0;
	row_number("ceiling_us", at_least);
	row_number("of_ceiling", at_least / us);
}

void end_timing(struct timing *t)
{
	const char *name;
	json_t *value;

	row_open("counters");
	json_object_foreach(t->moved, name, value)
		row_number(name, (double)json_integer_value(value));
	row_close();
	row_end();
	json_decref(t->before);
	json_decref(t->moved);
	t->before = t->moved = NULL;
}

static const struct section sections[] = {
	{ "first_touch", 15, 0, section_first_touch },
	{ "release", 10, 0, section_release },
	{ "current", 10, 0, section_current },
	{ "changed", 7, 0, section_changed },
	{ "stale", 6, 0, section_stale },
	{ "streams", 7, 0, section_streams },
	{ "reads", 5, 0, section_reads },
	{ "first_map", 8, 0, section_first_map },
	{ "devices", 5, 0, section_devices },
	{ "evict", 10, 0, section_evict },
	{ NULL, 0, 0, NULL },
};

int main(int argc, char **argv)
{
	return sections_main("gpu-mount", sections, argc, argv);
}
