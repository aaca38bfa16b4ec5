/*
 * mount_streams.c - gpu-mount: streams; more than fits; a second device.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "gaia/cuda.h"
#include "mount.h"

static void put(struct timing *t, const struct file *f, const char *what, double bytes, double ceiling)
{
	put_timing(t, f, what, bytes, ceiling);
	end_timing(t);
}

/* ---- acquires and releases in the order of a stream ---- */

/* What a step cannot do without: two requests, what is set, and a look at what has changed. */
static struct least least_of_steps(unsigned steps, size_t n)
{
	double bytes = (double)steps * (double)n;

	return (struct least){ .trips = 2 * steps, .set = bytes, .read = bytes };
}

static void queue_step(unsigned char *p, size_t n, int value, CUstream s)
{
	must(gaia_acquire_on(p, n, RW, s) == 0, "gaia_acquire_on");
	CU(MemsetD8Async((CUdeviceptr)p, (unsigned char)value, n, s));
	must(gaia_release_on(p, n, s) == 0, "gaia_release_on");
}

static void plain_step(unsigned char *p, size_t n, int value, CUstream s)
{
	acquire(p, n, RW);
	CU(MemsetD8Async((CUdeviceptr)p, (unsigned char)value, n, s));
	CU(StreamSynchronize(s));
	release(p, n);
}

static void loop_rows(const struct file *f, unsigned char *p, size_t n, CUstream s)
{
	unsigned steps = quick ? 5 : n > 16 * MIB ? 10 : 50;
	struct timing queued = { 0 }, plain = { 0 };
	struct samples calls = { .n = 0 };

	for (struct repeat r = repeat(7); again(&r);) {
		double t0;

		timing_begin(&queued, &r);
		t0 = now_us();
		for (unsigned i = 0; i < steps; i++)
			queue_step(p, n, (int)(r.i + i), s);
		took(&r, &calls, (now_us() - t0) / steps);
		CU(StreamSynchronize(s));
		timing_end(&queued, &r);
	}
	TIME(&plain, 7, (void)0, for (unsigned i = 0; i < steps; i++) plain_step(p, n, (int)(r_.i + i), s));
	put_timing(&queued, f, "a loop of gaia_acquire_on, a kernel, gaia_release_on", 0, 0);
	row_number("bytes", (double)n);
	row_number("steps", steps);
	row_number("us_a_step", median(&queued.us) / steps);
	row_number("calls_us_a_step", median(&calls));
	put_least(median(&queued.us), least_of_steps(steps, n));
	end_timing(&queued);
	put_timing(&plain, f, "a loop of gaia_acquire, a kernel, waiting, gaia_release", 0, 0);
	row_number("bytes", (double)n);
	row_number("steps", steps);
	row_number("us_a_step", median(&plain.us) / steps);
	put_least(median(&plain.us), least_of_steps(steps, n));
	end_timing(&plain);
}

/* (The words that streams wait for were registered by gaia_mmap().) */
static void new_mapping_row(const struct file *f, CUstream s)
{
	struct timing t = { 0 };

	for (struct repeat r = repeat(9); again(&r);) {
		unsigned char *p = map(f, CHUNK, 0);

		acquire(p, CHUNK, PROT_READ);
		timing_begin(&t, &r);
		must(gaia_acquire_on(p, CHUNK, PROT_READ, s) == 0, "gaia_acquire_on");
		timing_end(&t, &r);
		CU(StreamSynchronize(s));
		release(p, CHUNK);
		unmap(p, CHUNK);
	}
	put_timing(&t, f, "gaia_acquire_on of a new mapping, the call", 0, 0);
	put_least(median(&t.us), (struct least){ .trips = 1 });
	end_timing(&t);
}

/* Each stream works on a half; then the two halves one after the other, on one stream. */
static void overlap_row(const struct file *f, unsigned char *p, CUstream s[2])
{
	unsigned steps = quick ? 3 : 10;
	struct timing both = { 0 }, one = { 0 };
	struct least least;
	size_t half = f->bytes / 2 < 16 * MIB ? f->bytes / 2 : 16 * MIB;

	TIME(&both, 7, (void)0, {
		for (unsigned i = 0; i < steps; i++)
			for (unsigned k = 0; k < 2; k++)
				queue_step(p + k * half, half, (int)(r_.i + i + k), s[k]);
		CU(StreamSynchronize(s[0]));
		CU(StreamSynchronize(s[1]));
	});
	TIME(&one, 7, (void)0, {
		for (unsigned i = 0; i < steps; i++)
			for (unsigned k = 0; k < 2; k++)
				queue_step(p + k * half, half, (int)(r_.i + i + k), s[0]);
		CU(StreamSynchronize(s[0]));
	});
	put_timing(&both, f, "two streams, each with a half: gaia_acquire_on, a kernel, gaia_release_on", 0, 0);
	row_number("bytes", (double)half);
	row_number("steps", 2 * steps);
	row_number("us_a_step", median(&both.us) / (2 * steps));
	row_number("on_one_stream_us_a_step", median(&one.us) / (2 * steps));
	/* The requests of one stream may go on beside the other's. */
	least = least_of_steps(2 * steps, half);
	least.trips /= 2;
	put_least(median(&both.us), least);
	end_timing(&both);
	json_decref(one.before);
	json_decref(one.moved);
}

void section_streams(void)
{
	CUstream s[2];
	struct file f;
	unsigned char *p;

	mount_start();
	if (the_mount.simulated)
		does_not_apply("a simulated device has no streams");
	s[0] = new_stream();
	s[1] = new_stream();
	file_begin(&f, file_size(quick ? 8 * MIB : 64 * MIB), FILE_OF_A_HOLE);
	new_mapping_row(&f, s[0]);
	p = map(&f, f.bytes, 0);
	for (size_t n = PAGE; n <= f.bytes; n = n < CHUNK ? CHUNK : n * 16)
		loop_rows(&f, p, n, s[0]);
	overlap_row(&f, p, s);
	unmap(p, f.bytes);
	file_end(&f);
}

/* ---- more than fits ---- */

#define TOO_LARGE (4 * GIB)

/* @write: a byte to write, 0: none. */
static void windows(const struct file *f, unsigned char *p, size_t window, int write, struct samples *acquiring)
{
	for (size_t at = 0; at < f->bytes; at += window) {
		size_t n = f->bytes - at < window ? f->bytes - at : window;
		double t0 = now_us();

		acquire(p + at, n, write ? RW : PROT_READ);
		sample(acquiring, now_us() - t0);
		if (write)
			fill(p + at, write, n);
		release(p + at, n);
	}
}

static void windows_row(const struct file *f, unsigned char *p, size_t window, bool write)
{
	struct samples acquiring = { .n = 0 };
	struct timing t = { 0 };

	/* Each time with another byte, so that there is something to find. */
	TIME(&t, 3, acquiring.n = 0, windows(f, p, window, write ? 1 + (int)r_.i : 0, &acquiring));
	put_timing(&t, f, write ? "windows of a file larger than the device, written" :
				  "windows of a file larger than the device, read", (double)f->bytes,
		   the_mount.ceilings.to_device);
	row_number("window_bytes", (double)window);
	row_number("device_bytes", (double)the_mount.capacity);
	row_samples("acquire_us", &acquiring);
	end_timing(&t);
}

void section_evict(void)
{
	size_t bytes, window;
	struct file f;
	unsigned char *p;

	mount_start();
	bytes = the_mount.capacity / 2 * 3;
	if (bytes > TOO_LARGE)
		does_not_apply("the device has %llu MiB: more than is soon written; mount with less",
			       (unsigned long long)the_mount.capacity >> 20);
	if (bytes > the_mount.home)
		does_not_apply("home has less than a file larger than the device: mount with more");
	window = the_mount.capacity / 8 / CHUNK * CHUNK;
	if (!window)
		does_not_apply("the device has less than 16 MiB");
	file_begin(&f, bytes, FILE_OF_A_HOLE);
	bring_home(&f, f.bytes);
	p = map(&f, f.bytes, 0);
	windows_row(&f, p, window, false);
	windows_row(&f, p, window, true);
	unmap(p, f.bytes);
	file_end(&f);
}

/* ---- a second device ---- */

void section_devices(void)
{
	struct timing t = { 0 }, through = { 0 };
	unsigned char *p, *other;
	struct file f;

	mount_start();
	if (the_mount.n_devices < 2)
		does_not_apply("the mount has one device");
	file_begin(&f, file_size(quick ? 8 * MIB : 128 * MIB), FILE_OF_A_HOLE);
	p = map(&f, f.bytes, 0);
	other = map(&f, f.bytes, 1);
	TIME(&t, 7, {
		acquire(other, f.bytes, PROT_READ);
		release(other, f.bytes);
		evict(&f, 0);
		drop_home(&f);
	}, {
		acquire(p, f.bytes, PROT_READ);
		release(p, f.bytes);
	});
	put(&t, &f, "second device to first, not in home", (double)f.bytes, 0);
	TIME(&through, 7, {
		acquire(other, f.bytes, RW);
		fill_second(other, (int)r_.i, f.bytes);
		release(other, f.bytes);
	}, {
		acquire(p, f.bytes, PROT_READ);
		release(p, f.bytes);
	});
	put(&through, &f, "second device to first, just written there", (double)f.bytes, 0);
	unmap(other, f.bytes);
	unmap(p, f.bytes);
	file_end(&f);
}
