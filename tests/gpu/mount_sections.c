/*
 * mount_sections.c - gpu-mount: the ways of a file's pages between CPUs and a device.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "mount.h"

static size_t usual_size(void)
{
	return file_size(quick ? 8 * MIB : 128 * MIB);
}

static void put(struct timing *t, const struct file *f, const char *what, double bytes, double ceiling)
{
	put_timing(t, f, what, bytes, ceiling);
	end_timing(t);
}

/* ---- to the device ---- */

void section_first_touch(void)
{
	struct timing hot = { 0 }, cold = { 0 }, written = { 0 }, passed = { 0 };
	struct file f;
	unsigned char *p;
	double ceiling;

	mount_start();
	ceiling = the_mount.ceilings.to_device;
	file_begin(&f, usual_size(), FILE_OF_DATA);
	p = map(&f, f.bytes, 0);
	TIME(&hot, 7, (evict(&f, 0), bring_home(&f, f.bytes)), {
		acquire(p, f.bytes, PROT_READ);
		release(p, f.bytes);
	});
	put(&hot, &f, "file to device, hot in home", (double)f.bytes, ceiling);
	TIME(&written, 5, (evict(&f, 0), write_file(&f, f.bytes, 2)), {
		acquire(p, f.bytes, PROT_READ);
		release(p, f.bytes);
	});
	put(&written, &f, "file to device, just written by a CPU", (double)f.bytes, ceiling);
	TIME(&cold, 5, forget(&f), {
		acquire(p, f.bytes, PROT_READ);
		release(p, f.bytes);
	});
	put(&cold, &f, "file to device, from storage", (double)f.bytes, ceiling);
	unmap(p, f.bytes);
	file_end(&f);
	if (strcmp(the_mount.cpu_cache, "auto") != 0)
		return;

	/* A new file is passed through, and stays so while it is open. */
	file_begin(&f, usual_size(), FILE_NEW);
	p = map(&f, f.bytes, 0);
	TIME(&passed, 5, (evict(&f, 0), evict(&f, GAIA_FROM_HOME)), {
		acquire(p, f.bytes, PROT_READ);
		release(p, f.bytes);
	});
	put(&passed, &f, "file to device, passed through to CPUs", (double)f.bytes, ceiling);
	unmap(p, f.bytes);
	file_end(&f);
}

void section_stale(void)
{
	struct file f;
	unsigned char *p;

	mount_start();
	file_begin(&f, usual_size(), FILE_OF_A_HOLE);
	p = map(&f, f.bytes, 0);
	acquire(p, f.bytes, PROT_READ);
	for (size_t n = PAGE; n <= f.bytes; n = n < CHUNK ? CHUNK : n * 4) {
		struct timing t = { 0 };
		int value = 1;

		TIME(&t, 9, write_file(&f, n, ++value), acquire(p, n, PROT_READ));
		put(&t, &f, "acquire, all of the replica is stale", (double)n, the_mount.ceilings.to_device);
	}
	release(p, f.bytes);
	unmap(p, f.bytes);
	file_end(&f);
}

void section_current(void)
{
	struct file f;
	unsigned char *p;

	mount_start();
	file_begin(&f, usual_size(), FILE_OF_A_HOLE);
	p = map(&f, f.bytes, 0);
	for (size_t n = PAGE; n <= f.bytes; n = n < CHUNK ? CHUNK : n * 4) {
		struct timing again_ = { 0 }, anew = { 0 }, write = { 0 };

		acquire(p, n, PROT_READ);
		TIME(&again_, 50, (void)0, acquire(p, n, PROT_READ));
		release(p, n);
		TIME(&anew, 50, (void)0, {
			acquire(p, n, PROT_READ);
			release(p, n);
		});
		TIME(&write, 50, acquire(p, n, PROT_READ), {
			acquire(p, n, RW);
			release(p, n);
		});
		put_timing(&again_, &f, "acquire again, nothing changed", 0, 0);
		row_number("bytes", (double)n);
		put_least(median(&again_.us), (struct least){ .trips = 1 });
		end_timing(&again_);
		put_timing(&anew, &f, "acquire for reading and release, nothing changed", 0, 0);
		row_number("bytes", (double)n);
		put_least(median(&anew.us), (struct least){ .trips = 2 });
		end_timing(&anew);
		put_timing(&write, &f, "acquire for writing and release, nothing changed", 0, 0);
		row_number("bytes", (double)n);
		/* The device is asked what has changed. */
		put_least(median(&write.us), (struct least){ .trips = 2, .read = (double)n });
		end_timing(&write);
	}
	unmap(p, f.bytes);
	file_end(&f);
}

static void write_scattered(const struct file *f, size_t pages, int value)
{
	size_t apart = f->bytes / pages;

	for (size_t k = 0; k < pages; k++)
		must(pwrite(f->fd, &value, sizeof(value), (off_t)(k * apart)) == sizeof(value),
		     "writing the file");
}

void section_changed(void)
{
	struct file f;
	unsigned char *p;

	mount_start();
	file_begin(&f, usual_size(), FILE_OF_A_HOLE);
	p = map(&f, f.bytes, 0);
	acquire(p, f.bytes, PROT_READ);
	for (size_t pages = 1; pages <= 4096 && pages <= f.bytes / PAGE; pages *= 8) {
		struct timing t = { 0 };
		int value = 1;

		TIME(&t, 9, write_scattered(&f, pages, ++value), acquire(p, f.bytes, PROT_READ));
		put_timing(&t, &f, "acquire, scattered pages changed", (double)(pages * PAGE),
			   the_mount.ceilings.to_device);
		row_number("pages_changed", (double)pages);
		row_number("of_bytes", (double)f.bytes);
		end_timing(&t);
	}
	release(p, f.bytes);
	unmap(p, f.bytes);
	file_end(&f);
}

/* ---- from the device ---- */

void section_release(void)
{
	struct timing none = { 0 }, all = { 0 }, some = { 0 }, reading = { 0 };
	struct file f;
	unsigned char *p;
	int value = 1;

	mount_start();
	file_begin(&f, usual_size(), FILE_OF_A_HOLE);
	p = map(&f, f.bytes, 0);
	TIME(&reading, 15, acquire(p, f.bytes, PROT_READ), release(p, f.bytes));
	put_timing(&reading, &f, "release of what was acquired for reading", 0, 0);
	row_number("bytes", (double)f.bytes);
	end_timing(&reading);
	TIME(&none, 15, acquire(p, f.bytes, RW), release(p, f.bytes));
	put(&none, &f, "release, nothing changed", (double)f.bytes, the_mount.ceilings.read);
	TIME(&some, 9, {
		acquire(p, f.bytes, RW);
		fill_some(p, ++value, f.bytes, 100 * PAGE);
	}, release(p, f.bytes));
	put(&some, &f, "release, 1 % of the pages changed", (double)f.bytes, the_mount.ceilings.read);
	TIME(&all, 9, {
		acquire(p, f.bytes, RW);
		fill(p, ++value, f.bytes);
	}, release(p, f.bytes));
	put(&all, &f, "release, all changed", (double)f.bytes, the_mount.ceilings.read);
	unmap(p, f.bytes);
	file_end(&f);
}

static void read_at_random(const struct file *f, struct timing *t)
{
	static unsigned seed = 1;
	char page[GAIA_PAGE];

	/* One of them cannot be told from noise by its counters; 64 can. */
	for (unsigned i = 0; i < 64; i++) {
		double t0;

		seed = seed * 1664525u + 1013904223u;
		t0 = now_us();
		must(pread(f->fd, page, PAGE, (off_t)(seed % (f->bytes / PAGE) * PAGE)) == (ssize_t)PAGE,
		     "reading the file");
		sample(&t->us, now_us() - t0);
	}
}

void section_reads(void)
{
	struct timing in_order = { 0 }, at_random = { 0 };
	struct file f;
	unsigned char *p;
	int value = 1;

	mount_start();
	file_begin(&f, usual_size(), FILE_OF_A_HOLE);
	p = map(&f, f.bytes, 0);
	TIME(&in_order, 7, {
		acquire(p, f.bytes, RW);
		fill(p, ++value, f.bytes);
		release(p, f.bytes);
	}, read_file(&f, f.bytes));
	put(&in_order, &f, "CPU reads what the device released, in order, 1 MiB at once", (double)f.bytes,
	    the_mount.ceilings.to_host);
	acquire(p, f.bytes, RW);
	fill(p, ++value, f.bytes);
	release(p, f.bytes);
	counting_begin(&at_random);
	read_at_random(&f, &at_random);
	counting_end(&at_random);
	put_timing(&at_random, &f, "CPU reads what the device released, 4 KiB at random", 0, 0);
	row_number("bytes", PAGE);
	row_number("counted_reads", 64);
	end_timing(&at_random);
	unmap(p, f.bytes);
	file_end(&f);
}

/* ---- the first use of a mapping ---- */

static void first_map_rows(const struct file *f, size_t n, bool on_device)
{
	struct samples mapping = { .n = 0 }, acquiring = { .n = 0 }, ending = { .n = 0 };
	struct timing t = { 0 };

	for (struct repeat r = repeat(9); again(&r);) {
		unsigned char *p;
		double t0, t1, t2;

		if (!on_device)
			evict(f, 0);
		timing_begin(&t, &r);
		t0 = now_us();
		p = map(f, f->bytes, 0);
		t1 = now_us();
		acquire(p, n, PROT_READ);
		t2 = now_us();
		timing_end(&t, &r);
		took(&r, &mapping, t1 - t0);
		took(&r, &acquiring, t2 - t1);
		release(p, n);
		t0 = now_us();
		unmap(p, f->bytes);
		took(&r, &ending, now_us() - t0);
	}
	put_timing(&t, f, on_device ? "gaia_mmap and first acquire, what the device has" :
				      "gaia_mmap and first acquire, from home", (double)n,
		   on_device ? 0 : the_mount.ceilings.to_device);
	row_number("chunks", (double)((n + CHUNK - 1) / CHUNK));
	row_number("gaia_mmap_us", median(&mapping));
	row_number("acquire_us", median(&acquiring));
	row_number("gaia_munmap_us", median(&ending));
	end_timing(&t);
}

void section_first_map(void)
{
	struct file f;

	mount_start();
	file_begin(&f, file_size(quick ? 8 * MIB : GIB), FILE_OF_A_HOLE);
	bring_home(&f, f.bytes);
	for (size_t n = PAGE; n <= f.bytes; n = n < CHUNK ? CHUNK : n * 8) {
		first_map_rows(&f, n, false);
		first_map_rows(&f, n, true);
	}
	file_end(&f);
}
