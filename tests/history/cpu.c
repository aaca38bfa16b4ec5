/*
 * cpu.c - processes that use the mount as any file system, and know nothing of devices.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gaia/client.h"
#include "history.h"

#define MOST_CELLS 2048		/* of one call */
#define DIRECT_PAGES 4

/* What this process has open of each slot. */
static struct {
	int fd, append, direct;
	unsigned file;
	unsigned char *map;
} held[MAX_SLOTS];

static unsigned char *bounce;	/* aligned, DIRECT_PAGES */

static void slot_path(char *out, size_t room, const char *name)
{
	snprintf(out, room, "%s/%s", world->mount, name);
}

static const char *slot_name(unsigned slot)
{
	static char name[32];

	snprintf(name, sizeof(name), "r%u-%u", world->round, slot);
	return name;
}

static size_t mapped_bytes(void)
{
	return ((size_t)world->hot_page[world->config.hot - 1] + 1) * PAGE;
}

/* ---- files ---- */

int open_slot(unsigned slot, int flags, unsigned *file)
{
	char path[PATH_MAX];
	int fd = -ENOENT, f;

	slot_path(path, sizeof(path), slot_name(slot));
	pthread_mutex_lock(&world->names);
	f = atomic_load(&world->slot_file[slot]);
	if (f >= 0) {
		fd = open(path, flags | O_CLOEXEC);
		if (fd < 0)
			fd = -errno;
		*file = (unsigned)f;
	}
	pthread_mutex_unlock(&world->names);
	return fd;
}

int make_file(unsigned slot, const char *name)
{
	unsigned f = atomic_fetch_add(&world->nfiles, 1);
	unsigned char buf[MOST_CELLS * 8];
	char path[PATH_MAX];
	struct stat st;
	struct op *op;
	off_t size;
	int fd;

	if (f >= MAX_FILES) {
		atomic_store(&world->nfiles, MAX_FILES);
		return -1;
	}
	memset((void *)world->last_value[f], 0, sizeof(world->last_value[f]));
	/* Not that of an earlier round's, if it cannot be made: last_look_main() would take another file for it. */
	world->files[f].ino = 0;
	slot_path(path, sizeof(path), name);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return -1;
	if (fstat(fd, &st))
		goto fail;
	world->files[f].slot = slot;
	world->files[f].ino = st.st_ino;
	/* Some are whole from the start, some short, some sparse. */
	size = chance(70) || !world->config.writeback ? (off_t)mapped_bytes() :
							cell_offset(below(all_cells()));
	op = op_begin(OP_TRUNCATE, f, size_cells(size), 0, 0);
	if (!op)
		goto fail;
	op->arg = 1;
	op_start(op);
	op_end(op, ftruncate(fd, size) ? errno : 0);
	for (unsigned n = below(5); n > 0 && size > 0; n--) {
		uint32_t cell, count;

		pick_run(&cell, &count, MOST_CELLS);
		op = op_begin(OP_WRITE, f, cell, count, count);
		if (!op || !op_values(op, buf))
			break;
		op_start(op);
		op_end(op, pwrite(fd, buf, (size_t)count * cell_size(), cell_offset(cell)) ==
				   (ssize_t)count * (ssize_t)cell_size() ? 0 : EIO);
	}
	close(fd);
	return (int)f;
fail:
	world->files[f].ino = 0;
	close(fd);
	unlink(path);
	return -1;
}

static void let_go(unsigned slot)
{
	if (held[slot].fd < 0)
		return;
	if (held[slot].map)
		munmap(held[slot].map, mapped_bytes());
	if (held[slot].append >= 0)
		close(held[slot].append);
	if (held[slot].direct >= 0)
		close(held[slot].direct);
	close(held[slot].fd);
	held[slot].fd = -1;
}

static bool get_hold(unsigned slot)
{
	char path[64];
	void *map;
	int fd;

	fd = open_slot(slot, O_RDWR, &held[slot].file);
	if (fd < 0)
		return false;
	held[slot].fd = fd;
	/* Of the same inode, whatever its name is by now. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	held[slot].append = open(path, O_RDWR | O_APPEND | O_CLOEXEC);
	held[slot].direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
	map = mmap(NULL, mapped_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	held[slot].map = map == MAP_FAILED ? NULL : map;
	return true;
}

/* A file to work on; -1: there is none. */
static int choose(void)
{
	unsigned slot = below(world->config.slots);

	if (held[slot].fd >= 0 && atomic_load(&world->slot_file[slot]) != (int)held[slot].file &&
	    chance(10))
		let_go(slot);
	if (held[slot].fd < 0 && !get_hold(slot))
		return -1;
	return (int)slot;
}

/* ---- operations on contents ---- */

static bool exclusive(void)
{
	return !world->config.writeback ||
	       world->config.features & (1u << F_DIRECT | 1u << F_COPY | 1u << F_APPEND | 1u << F_PUNCH);
}

static void quiet_shared(void)
{
	if (exclusive())
		pthread_rwlock_rdlock(&world->quiet);
}

static void quiet_alone(void)
{
	pthread_rwlock_wrlock(&world->quiet);
}

static void quiet_over(void)
{
	if (exclusive())
		pthread_rwlock_unlock(&world->quiet);
}

static int result(ssize_t got, size_t want)
{
	if (got < 0)
		return errno;
	return (size_t)got == want ? 0 : EAGAIN;
}

/*
 * Returns the bytes that exist, or -1. If a page cannot be read the kernel says how many bytes came before it, as it
 * does at the end of the file: asking again tells which it was.
 */
static ssize_t read_cells(int fd, void *buf, size_t bytes, off_t off)
{
	size_t done = 0;
	ssize_t got;

	do {
		got = pread(fd, (char *)buf + done, bytes - done, off + (off_t)done);
		if (got < 0)
			return -1;
		done += (size_t)got;
	} while (got > 0 && done < bytes && (off + (off_t)done) % PAGE == 0);
	return (ssize_t)done;
}

static void do_read(unsigned slot, uint32_t cell, uint32_t n)
{
	size_t bytes = (size_t)n * cell_size();
	struct op *op = op_begin(OP_READ, held[slot].file, cell, n, bytes);
	ssize_t got;

	if (!op)
		return;
	op_start(op);
	got = read_cells(held[slot].fd, op_data(op), bytes, cell_offset(cell));
	/* What is beyond the end counts as zeros. */
	if (got >= 0)
		memset((char *)op_data(op) + got, 0, bytes - (size_t)got);
	op_end(op, got < 0 ? errno : 0);
}

static void do_write(unsigned slot, uint32_t cell, uint32_t n)
{
	unsigned char buf[MOST_CELLS * 8];
	size_t bytes = (size_t)n * cell_size();
	struct op *op;
	struct stat st;

	/*
	 * A kernel that writes through knows of a file's growth only when the WRITE is answered. Where the
	 * last page is written back meanwhile, because of a store through a mapping, it zeroes what is new.
	 */
	if (!world->config.writeback &&
	    (fstat(held[slot].fd, &st) || st.st_size < cell_offset(cell) + (off_t)bytes))
		return;
	op = op_begin(OP_WRITE, held[slot].file, cell, n, n);
	if (!op || !op_values(op, buf))
		return;
	op_start(op);
	op_end(op, result(pwrite(held[slot].fd, buf, bytes, cell_offset(cell)), bytes));
}

static void do_append(unsigned slot, uint32_t n)
{
	unsigned char buf[MOST_CELLS * 8];
	size_t bytes;
	struct stat st;
	struct op *op;
	ssize_t got;
	off_t end;

	/* Where it goes is known only afterwards: values are made for the place that is likely, and
	 * it counts as what it is only if it was that. So: only where no one else changes the size. */
	quiet_alone();
	if (fstat(held[slot].append, &st) || st.st_size % cell_size() ||
	    st.st_size + (off_t)n * cell_size() > (off_t)mapped_bytes())
		goto out;
	bytes = (size_t)n * cell_size();
	op = op_begin(OP_APPEND, held[slot].file, size_cells(st.st_size), n, n);
	if (!op || !op_values(op, buf))
		goto out;
	op_start(op);
	got = write(held[slot].append, buf, bytes);
	op_end(op, result(got, bytes));
	end = lseek(held[slot].append, 0, SEEK_CUR);
	if (got == (ssize_t)bytes && end != st.st_size + (off_t)bytes) {
		fprintf(stderr, "history: append of %zu bytes to a file of %lld ended at %lld\n",
			bytes, (long long)st.st_size, (long long)end);
		_exit(VIOLATION);
	}
out:
	quiet_over();
}

static void do_load(unsigned slot, uint32_t cell, uint32_t n)
{
	size_t bytes = (size_t)n * cell_size();
	struct op *op;
	uint32_t got;

	if (!held[slot].map)
		return;
	op = op_begin(OP_MLOAD, held[slot].file, cell, n, bytes);
	if (!op)
		return;
	op_start(op);
	got = load_cells(op_data(op), held[slot].map + cell_offset(cell), n);
	memset((char *)op_data(op) + (size_t)got * cell_size(), 0, (size_t)(n - got) * cell_size());
	/* No memory: beyond the end of the file, unless reading fails. */
	op_end(op, got < n && config_fails(&world->config) ? EFAULT : 0);
}

static void do_store(unsigned slot, uint32_t cell, uint32_t n)
{
	unsigned char buf[MOST_CELLS * 8];
	struct op *op;
	uint32_t done;

	if (!held[slot].map)
		return;
	op = op_begin(OP_MSTORE, held[slot].file, cell, n, n);
	if (!op || !op_values(op, buf))
		return;
	op_start(op);
	done = store_cells(held[slot].map + cell_offset(cell), buf, n);
	op_end(op, done < n ? EFAULT : 0);
}

static void do_direct(unsigned slot, bool write)
{
	uint32_t page = below(world->config.hot), pages = 1 + below(DIRECT_PAGES);
	uint32_t cell = page * page_cells(), n = cell_run(cell, pages * page_cells());
	size_t bytes = (size_t)n * cell_size();
	struct op *op;
	ssize_t got;

	if (held[slot].direct < 0)
		return;
	quiet_alone();
	op = op_begin(write ? OP_DWRITE : OP_DREAD, held[slot].file, cell, n, write ? n : bytes);
	if (!op || (write && !op_values(op, bounce)))
		goto out;
	op_start(op);
	if (write) {
		op_end(op, result(pwrite(held[slot].direct, bounce, bytes, cell_offset(cell)), bytes));
		goto out;
	}
	got = read_cells(held[slot].direct, bounce, bytes, cell_offset(cell));
	if (got >= 0) {
		memcpy(op_data(op), bounce, (size_t)got);
		memset((char *)op_data(op) + got, 0, bytes - (size_t)got);
	}
	op_end(op, got < 0 ? errno : 0);
out:
	quiet_over();
}

static void do_truncate(unsigned slot)
{
	uint32_t cell = below(all_cells() + 1);
	off_t size = cell < all_cells() ? cell_offset(cell) : (off_t)mapped_bytes();
	struct op *op;

	/* Mostly it grows again soon: a short file is a quiet one. */
	if (chance(50)) {
		cell = all_cells();
		size = (off_t)mapped_bytes();
	} else if (chance(30)) {
		cell -= cell % page_cells();
		size = cell < all_cells() ? cell_offset(cell) : (off_t)mapped_bytes();
	}
	op = op_begin(OP_TRUNCATE, held[slot].file, cell, 0, 0);
	if (!op)
		return;
	op_start(op);
	op_end(op, ftruncate(held[slot].fd, size) ? errno : 0);
}

static void do_punch(unsigned slot, uint32_t cell, uint32_t n)
{
	struct op *op;

	quiet_alone();
	op = op_begin(OP_PUNCH, held[slot].file, cell, n, 0);
	if (op) {
		op_start(op);
		op_end(op, fallocate(held[slot].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				     cell_offset(cell), (off_t)n * cell_size()) ? errno : 0);
	}
	quiet_over();
}

static void do_copy(unsigned slot)
{
	unsigned other = below(world->config.slots);
	uint32_t to, from, n, m;
	off_t in, out;
	struct op *op;
	ssize_t got;

	if (held[other].fd < 0)
		return;
	pick_run(&to, &n, MOST_CELLS);
	pick_run(&from, &m, MOST_CELLS);
	/* Whole pages, of few others: with these they are equal then. (Of bytes few: what each of 4,096 may have read takes long to find out.) */
	if (HAS(&world->config, F_EQUAL) && chance(page_cells() > 1024 ? 3 : 70)) {
		to -= to % page_cells();
		from = below(world->config.hot < 3 ? world->config.hot : 3) * page_cells();
		n = page_cells();
	}
	n = cell_run(from, n);
	if (held[other].file == held[slot].file && from < to + n && to < from + n)
		return;
	quiet_alone();
	op = op_begin(OP_COPY, held[slot].file, to, n, 0);
	if (!op)
		goto unlock;
	op->from = from;
	op->from_file = (uint8_t)held[other].file;
	in = cell_offset(from);
	out = cell_offset(to);
	op_start(op);
	got = copy_file_range(held[other].fd, &in, held[slot].fd, &out, (size_t)n * cell_size(), 0);
	if (got >= 0 && got % cell_size() == 0)
		op->n = (uint32_t)got / cell_size();
	op_end(op, got < 0 ? errno : got % cell_size() ? EAGAIN : 0);
unlock:
	quiet_over();
}

static void do_sync(unsigned slot)
{
	struct op *op = op_begin(OP_SYNC, held[slot].file, 0, all_cells(), 0);
	unsigned how = below(3);
	int err;

	if (!op)
		return;
	op_start(op);
	if (how == 0)
		err = fsync(held[slot].fd);
	else if (how == 1 || !held[slot].map)
		err = fdatasync(held[slot].fd);
	else
		err = msync(held[slot].map, mapped_bytes(), MS_SYNC);
	op_end(op, err ? errno : 0);
}

/* ---- operations on names ---- */

static void do_rename(unsigned slot)
{
	char from[PATH_MAX], to[PATH_MAX], name[64];
	uint64_t start;
	int f, err;

	if (atomic_load(&world->nfiles) >= MAX_FILES)
		return;
	snprintf(name, sizeof(name), "r%u-new-%u", world->round, me);
	f = make_file(slot, name);
	if (f < 0)
		return;
	slot_path(from, sizeof(from), name);
	slot_path(to, sizeof(to), slot_name(slot));
	pthread_mutex_lock(&world->names);
	start = now();
	atomic_store(&world->procs[me].busy, start);
	err = rename(from, to) ? errno : 0;
	if (!err)
		atomic_store(&world->slot_file[slot], f);
	pthread_mutex_unlock(&world->names);
	op_note(OP_RENAME, (unsigned)f, 0, 0, 0, start, err);
}

static void do_unlink(unsigned slot)
{
	char path[PATH_MAX];
	uint64_t start;
	int err, f = -1;

	if (atomic_load(&world->nfiles) >= MAX_FILES)
		return;
	slot_path(path, sizeof(path), slot_name(slot));
	pthread_mutex_lock(&world->names);
	start = now();
	atomic_store(&world->procs[me].busy, start);
	err = unlink(path) ? errno : 0;
	if (!err)
		f = make_file(slot, slot_name(slot));
	atomic_store(&world->slot_file[slot], f);
	pthread_mutex_unlock(&world->names);
	op_note(OP_UNLINK, held[slot].file, 0, 0, 0, start, err);
}

/* ---- the program ---- */

static void step(void)
{
	const struct config *c = &world->config;
	int slot = choose();
	uint32_t cell, n;
	unsigned how;

	if (slot < 0)
		return;
	pick_run(&cell, &n, MOST_CELLS);
	how = below(1000);
	/* What changes much, or takes long, is rare. */
	if (how < 6 && HAS(c, F_TRUNCATE)) {
		c->writeback ? quiet_shared() : quiet_alone();
		do_truncate((unsigned)slot);
		quiet_over();
	} else if (how < 14 && HAS(c, F_PUNCH)) {
		do_punch((unsigned)slot, cell, n);
	} else if (how < 24 && HAS(c, F_COPY)) {
		do_copy((unsigned)slot);
	} else if (how < 36 && HAS(c, F_DIRECT)) {
		do_direct((unsigned)slot, chance(50));
	} else if (how < 46 && HAS(c, F_SYNC)) {
		do_sync((unsigned)slot);
	} else if (how < 52 && HAS(c, F_APPEND)) {
		do_append((unsigned)slot, n);
	} else if (how < 53 && HAS(c, F_RENAME)) {
		do_rename((unsigned)slot);
	} else if (how < 54 && HAS(c, F_UNLINK)) {
		do_unlink((unsigned)slot);
	} else {
		quiet_shared();
		switch (below(HAS(c, F_MMAP) ? 4 : 2)) {
		case 0:
			do_read((unsigned)slot, cell, n);
			break;
		case 1:
			do_write((unsigned)slot, cell, n);
			break;
		case 2:
			do_load((unsigned)slot, cell, n);
			break;
		case 3:
			do_store((unsigned)slot, cell, n);
			break;
		}
		quiet_over();
	}
}

/* Look at all of all files that this process knows, one way or the other. */
static void look(bool mapped)
{
	for (unsigned slot = 0; slot < world->config.slots; slot++) {
		if (held[slot].fd < 0 && !get_hold(slot))
			continue;
		for (uint32_t cell = 0, n; cell < all_cells(); cell += n) {
			n = cell_run(cell, MOST_CELLS);
			if (mapped && held[slot].map)
				do_load(slot, cell, n);
			else
				do_read(slot, cell, n);
		}
	}
}

_Noreturn void cpu_main(void)
{
	catch_faults();
	bounce = aligned_alloc(PAGE, DIRECT_PAGES * PAGE);
	for (unsigned i = 0; i < MAX_SLOTS; i++)
		held[i].fd = -1;
	while (phase_is(PHASE_RUN) && log_has_room()) {
		step();
		/* The logs should last for the whole round. */
		if (chance(20))
			usleep(below(300));
	}
	phase_done(PHASE_RUN);
	phase_done(PHASE_SETTLE);
	look(world->procs[me].number % 2);
	phase_done(PHASE_LOOK);
	if (world->procs[me].number == 0)
		for (unsigned slot = 0; slot < world->config.slots; slot++)
			if (held[slot].fd >= 0)
				do_sync(slot);
	phase_done(PHASE_STORE);
	look(world->procs[me].number % 2 == 0);
	phase_done(PHASE_LOOK_AGAIN);
	_exit(ALL_WELL);
}

static bool show_to_device(unsigned slot)
{
	char path[PATH_MAX];
	void *p = MAP_FAILED;
	int fd;

	slot_path(path, sizeof(path), slot_name(slot));
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		p = gaia_mmap(PAGE, PROT_READ, fd, 0, 0);
	if (p != MAP_FAILED)
		gaia_munmap(p, PAGE);
	if (fd >= 0)
		close(fd);
	return p != MAP_FAILED;
}

_Noreturn void setup_main(void)
{
	for (unsigned slot = 0; slot < world->config.slots; slot++) {
		int f = make_file(slot, slot_name(slot));

		if (f < 0) {
			fprintf(stderr, "history: cannot make the files of round %u: %s\n", world->round,
				strerror(errno));
			_exit(BROKEN);
		}
		atomic_store(&world->slot_file[slot], f);
		/* Some are cached from the first open on, since a device has had them. */
		if (world->config.automatic && chance(40) && !show_to_device(slot))
			fprintf(stderr, "history: showing a file to a device: %s\n",
				strerror(errno)), _exit(BROKEN);
	}
	_exit(ALL_WELL);
}

_Noreturn void last_look_main(int dirfd)
{
	bool crashed = world->daemon; /* and there is another; else we look beneath a mount that has ended */

	for (unsigned slot = 0; slot < world->config.slots; slot++) {
		struct stat st;
		int f = (int)atomic_load(&world->nfiles) - 1;
		int fd = openat(dirfd, slot_name(slot), O_RDONLY | O_CLOEXEC);

		if (fd < 0 || fstat(fd, &st))
			continue;
		/* Which of the slot's files it is: the last, as numbers of inodes come again. */
		while (f >= 0 && (world->files[f].slot != slot || world->files[f].ino != st.st_ino))
			f--;
		/* Made, but the daemon was killed before the caller heard of it. */
		if (f < 0 && crashed && atomic_load(&world->slot_file[slot]) < 0 && st.st_size == 0) {
			close(fd);
			continue;
		}
		if (f < 0) {
			fprintf(stderr, "history: %s is a file (inode %llu, %lld bytes) that nobody made\n",
				slot_name(slot), (unsigned long long)st.st_ino, (long long)st.st_size);
			_exit(VIOLATION);
		}
		held[slot].fd = fd;
		held[slot].file = (unsigned)f;
		for (uint32_t cell = 0, n; cell < all_cells(); cell += n) {
			n = cell_run(cell, MOST_CELLS);
			do_read(slot, cell, n);
		}
	}
	_exit(ALL_WELL);
}
