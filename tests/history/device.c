/*
 * device.c - clients of devices, and the keepers that start and end them.
 *
 * A keeper has one client at a time, whose life is short: it ends by itself, having released or not, or
 * by kill -9 in the middle of whatever it does. The next begins when the daemon has noticed.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gaia/client.h"
#include "gpu_access.h"
#include "history.h"

#define MOST_CELLS 512

/* What this process has of each slot; fd is its keeper's, too. */
static struct {
	int fd;
	unsigned file;
	unsigned char *map;
	int prot;
	uint8_t may[MAX_HOT];	/* 1: acquired to read, 2: to write */
	unsigned holds[MAX_HOT];	/* acquires not yet released */
} held[MAX_SLOTS];

static size_t mapped_bytes(void)
{
	return ((size_t)world->hot_page[world->config.hot - 1] + 1) * PAGE;
}

/* ---- the client ---- */

/*
 * "break.skip_write_back": the library pushes what the kernel holds before each acquire and release with
 * this call, which it finds here.
 */
__attribute__((visibility("default")))
int sync_file_range(int fd, off64_t off, off64_t len, unsigned flags)
{
	const char *faults = getenv("GAIAFS_FAULTS");

	if (faults && strstr(faults, "break.skip_write_back"))
		return 0;
	return (int)syscall(SYS_sync_file_range, fd, off, len, flags);
}

static void holds_none(unsigned slot)
{
	memset(held[slot].may, 0, sizeof(held[slot].may));
	memset(held[slot].holds, 0, sizeof(held[slot].holds));
}

static void do_map(unsigned slot)
{
	unsigned device = world->procs[me].device, devices = world->config.devices;
	int prot = device == devices || (device < devices && chance(90)) ? PROT_READ | PROT_WRITE : PROT_READ;
	void *p;

	atomic_store(&world->procs[me].busy, now());
	p = gaia_mmap(mapped_bytes(), prot, held[slot].fd, 0, device < devices ? (int)device : GAIA_DEVICE_HOST);
	atomic_store(&world->procs[me].busy, 0);
	if (p == MAP_FAILED) {
		if (errno == ENOTCONN || errno == ENOTTY || config_fails(&world->config) ||
		    !phase_is(PHASE_RUN))
			_exit(ALL_WELL);
		fprintf(stderr, "history: gaia_mmap: %s\n", strerror(errno));
		_exit(VIOLATION);
	}
	held[slot].map = p;
	held[slot].prot = prot;
	holds_none(slot);
}

static void do_unmap(unsigned slot)
{
	struct op *op = op_begin(OP_DROP, held[slot].file, 0, all_cells(), 0);

	if (!op)
		_exit(ALL_WELL);
	op_start(op);
	op_end(op, gaia_munmap(held[slot].map, mapped_bytes()) ? errno : 0);
	held[slot].map = NULL;
	holds_none(slot);
}

/* Hot pages first to last as bytes of the mapping. Whole pages count, whatever part is named. */
static void range_of(uint32_t first, uint32_t last, size_t *off, size_t *len)
{
	size_t start = (size_t)world->hot_page[first] * PAGE;
	size_t end = ((size_t)world->hot_page[last] + 1) * PAGE;

	if (chance(30)) {
		start += below(PAGE / 2);
		end -= below(PAGE / 2);
	}
	*off = start;
	*len = end - start;
}

static void pick_pages(uint32_t *first, uint32_t *last)
{
	uint32_t hot = world->config.hot;

	*first = below(hot);
	*last = *first;
	if (chance(50))
		*last += below(hot - *first);
	if (chance(10)) {
		*first = 0;
		*last = hot - 1;
	}
}

/* In one call, or in two with some time between them. */
static int acquire(void *addr, size_t len, int prot)
{
	struct pollfd p = { .events = POLLIN };

	if (!HAS(&world->config, F_START) || chance(60))
		return gaia_acquire(addr, len, prot);
	p.fd = gaia_acquire_start(addr, len, prot);
	if (p.fd < 0)
		return -1;
	if (chance(30))
		usleep(below(200));
	else if (chance(30))
		poll(&p, 1, -1);
	return gaia_wait(p.fd);
}

/* An acquire that comes to nothing, whenever it is closed. */
static void do_cancelled(unsigned slot)
{
	struct pollfd p = { .events = POLLIN };
	uint32_t first, last;
	size_t off, len;
	struct op *op;

	pick_pages(&first, &last);
	range_of(first, last, &off, &len);
	op = op_begin(OP_CANCEL, held[slot].file, first * page_cells(), (last - first + 1) * page_cells(), 0);
	if (!op)
		return;
	op_start(op);
	p.fd = gaia_acquire_start(held[slot].map + off, len, chance(80) ? held[slot].prot : PROT_READ);
	if (p.fd >= 0) {
		if (chance(30))
			usleep(below(200));
		else if (chance(50))
			poll(&p, 1, -1);
		close(p.fd);
	}
	op_end(op, p.fd < 0 ? errno : 0);
}

static bool do_device_store(unsigned slot, uint32_t cell, uint32_t n);

/*
 * Nobody else has a client on this device now. (To others there an acquire for overwriting is a store of what the oracle knows no value
 * for.)
 */
static bool alone_on_device(void)
{
	const struct config *c = &world->config;
	unsigned n = 0;

	for (unsigned i = 0; i < c->clients; i++)
		n += c->client_device[i] == world->procs[me].device;
	return n == 1;
}

enum access { TO_READ, TO_WRITE, TO_OVERWRITE };

static int do_acquire(unsigned slot, uint32_t first, uint32_t last, enum access access)
{
	static const int prots[] = { PROT_READ, PROT_READ | PROT_WRITE, PROT_WRITE };
	bool write = access != TO_READ;
	struct op *op = op_begin(OP_ACQUIRE, held[slot].file, first * page_cells(),
				 (last - first + 1) * page_cells(), 0);
	size_t off, len;
	int err;

	if (!op)
		return -ENOSPC;
	range_of(first, last, &off, &len);
	op->arg = access;
	op_start(op);
	err = acquire(held[slot].map + off, len, prots[access]);
	op_end(op, err ? errno : 0);
	if (op->err == ENOTCONN)
		_exit(ALL_WELL);
	/* What is acquired to write stays so until its last hold is gone. */
	for (uint32_t p = first; p <= last && !err; p++) {
		held[slot].holds[p]++;
		held[slot].may[p] = write || held[slot].may[p] == 2 ? 2 : 1;
	}
	/* As it has said. If there is no room in the log for all of that nothing of it is ever released. */
	for (uint32_t p = first; p <= last && !err && access == TO_OVERWRITE; p++)
		if (!do_device_store(slot, p * page_cells(), page_cells()))
			_exit(ALL_WELL);
	return -op->err;
}

static void do_release(unsigned slot, uint32_t first, uint32_t last)
{
	struct op *op = op_begin(OP_RELEASE, held[slot].file, first * page_cells(),
				 (last - first + 1) * page_cells(), 0);
	size_t off, len;

	if (!op)
		return;
	range_of(first, last, &off, &len);
	op_start(op);
	op_end(op, gaia_release(held[slot].map + off, len) ? errno : 0);
	if (op->err == ENOTCONN)
		_exit(ALL_WELL);
	for (uint32_t p = first; p <= last; p++)
		if (held[slot].holds[p] && !--held[slot].holds[p])
			held[slot].may[p] = 0;
	/* What a failure leaves is not promised: start afresh. */
	if (op->err)
		do_unmap(slot);
}

/* Take all holds of hot pages first to last away. */
static void release_all(unsigned slot, uint32_t first, uint32_t last)
{
	bool more = true;

	while (more && held[slot].map && log_has_room()) {
		do_release(slot, first, last);
		more = false;
		for (uint32_t p = first; p <= last; p++)
			more |= held[slot].holds[p] != 0;
	}
}

static void do_gaia_sync(unsigned slot)
{
	uint32_t first, last;
	struct op *op;

	pick_pages(&first, &last);
	op = op_begin(OP_SYNC, held[slot].file, first * page_cells(), (last - first + 1) * page_cells(), 0);
	if (!op)
		return;
	op_start(op);
	op_end(op, gaia_sync(held[slot].map + (size_t)world->hot_page[first] * PAGE,
			     ((size_t)world->hot_page[last] - world->hot_page[first] + 1) * PAGE)
			   ? errno : 0);
}

static void do_advise(unsigned slot)
{
	int advice = chance(50) ? GAIA_WILLNEED : GAIA_DONTNEED;
	uint32_t first, last;
	uint64_t start = now();
	size_t off, len;
	int err;

	pick_pages(&first, &last);
	range_of(first, last, &off, &len);
	atomic_store(&world->procs[me].busy, start);
	err = gaia_advise(held[slot].map + off, len, advice);
	op_note(OP_ADVISE, held[slot].file, first * page_cells(), (last - first + 1) * page_cells(),
		(unsigned)advice, start, err ? errno : 0);
}

/* A page that is acquired, for @need; false: none that was tried. */
static bool pick_held(unsigned slot, uint8_t need, uint32_t *cell, uint32_t *n)
{
	for (unsigned tries = 0; tries < 4; tries++) {
		pick_run(cell, n, MOST_CELLS);
		if (held[slot].may[*cell / page_cells()] < need)
			continue;
		/* In one page, so that one acquire and one release are its own. */
		if (*n > page_cells() - *cell % page_cells())
			*n = page_cells() - *cell % page_cells();
		return true;
	}
	return false;
}

static void do_device_load(unsigned slot, uint32_t cell, uint32_t n)
{
	size_t bytes = (size_t)n * cell_size();
	struct op *op = op_begin(OP_LOAD, held[slot].file, cell, n, bytes);
	uint32_t got;

	if (!op)
		return;
	op->arg = held[slot].may[cell / page_cells()];
	op_start(op);
	if (gpu_is(world->procs[me].device))
		got = gpu_copy(op_data(op), held[slot].map + cell_offset(cell), bytes) ? 0 : n;
	else
		got = load_cells(op_data(op), held[slot].map + cell_offset(cell), n);
	memset((char *)op_data(op) + (size_t)got * cell_size(), 0, (size_t)(n - got) * cell_size());
	op_end(op, 0);
}

/* False: there is no room for it in the log. */
static bool do_device_store(unsigned slot, uint32_t cell, uint32_t n)
{
	unsigned char buf[MOST_CELLS * 8];
	struct op *op = op_begin(OP_STORE, held[slot].file, cell, n, n);
	uint32_t done;

	if (!op || !op_values(op, buf))
		return false;
	op_start(op);
	if (gpu_is(world->procs[me].device))
		done = gpu_copy(held[slot].map + cell_offset(cell), buf, (size_t)n * cell_size()) ? 0 : n;
	else
		done = store_cells(held[slot].map + cell_offset(cell), buf, n);
	op_end(op, done < n ? EFAULT : 0);
	return true;
}

static void client_step(void)
{
	const struct config *c = &world->config;
	unsigned slot = below(c->slots), how = below(100);
	uint32_t cell, n, first, last;

	if (held[slot].fd < 0)
		return;
	if (!held[slot].map)
		do_map(slot);
	if (how < 30) {
		if (pick_held(slot, 1, &cell, &n))
			do_device_load(slot, cell, n);
	} else if (how < 68) {
		if (pick_held(slot, 2, &cell, &n))
			do_device_store(slot, cell, n);
	} else if (how < 82) {
		enum access access = chance(80) && held[slot].prot & PROT_WRITE ? TO_WRITE : TO_READ;

		pick_pages(&first, &last);
		/* Of cells of one byte there are too few values to store to all of them. */
		if (access == TO_WRITE && HAS(c, F_OVERWRITE) && chance(40) && !c->bytes && alone_on_device())
			access = TO_OVERWRITE;
		if (HAS(c, F_START) && chance(30))
			do_cancelled(slot);
		else if (do_acquire(slot, first, last, access) == -ENOMEM)
			/* Make room: for others, too. */
			release_all(slot, 0, c->hot - 1);
	} else if (how < 96) {
		pick_pages(&first, &last);
		if (chance(50))
			release_all(slot, first, last);
		else
			do_release(slot, first, last);
	} else if (how < 97) {
		if (HAS(c, F_UNMAP) && chance(30))
			do_unmap(slot);
	} else if (how < 98) {
		if (HAS(c, F_SYNC))
			do_gaia_sync(slot);
	} else if (HAS(c, F_ADVISE)) {
		do_advise(slot);
	}
}

static _Noreturn void client_main(uint64_t until, bool release)
{
	while (phase_is(PHASE_RUN) && now() < until && log_has_room()) {
		client_step();
		if (chance(10))
			usleep(below(300));
	}
	for (unsigned slot = 0; release && slot < world->config.slots; slot++)
		if (held[slot].fd >= 0 && held[slot].map)
			do_release(slot, 0, world->config.hot - 1);
	_exit(ALL_WELL);
}

/* See all that there is from this device. */
static _Noreturn void look_main(void)
{
	uint32_t hot = world->config.hot;

	for (unsigned slot = 0; slot < world->config.slots; slot++) {
		if (held[slot].fd < 0)
			continue;
		do_map(slot);
		for (uint32_t p = 0, n; p < hot; p += n) {
			int err;

			n = cell_run(p * page_cells(), MAX_HOT * page_cells()) / page_cells();
			do {
				err = do_acquire(slot, p, p + n - 1, TO_READ);
				/* Others look, too, and let go soon. */
				if (err == -ENOMEM)
					usleep(1000);
			} while (err == -ENOMEM && !phase_is(PHASE_END));
			for (uint32_t i = p; i < p + n && !err; i++)
				do_device_load(slot, i * page_cells(), page_cells());
			do_release(slot, p, p + n - 1);
		}
	}
	_exit(ALL_WELL);
}

/* ---- its keeper ---- */

/* Whether the daemon still counts the process among its clients. */
static bool daemon_knows(pid_t pid)
{
	char command[PATH_MAX + 64], want[32], line[256];
	bool known = false;
	FILE *f;

	snprintf(command, sizeof(command), "exec '%s' status --json '%s' 2>/dev/null", GAIA_BUILT,
		 world->mount);
	snprintf(want, sizeof(want), "\"pid\": %d,", pid);
	f = popen(command, "re");
	if (!f)
		return false;
	while (fgets(line, sizeof(line), f))
		known |= strstr(line, want) != NULL;
	pclose(f);
	return known;
}

static void open_slots(void)
{
	for (unsigned slot = 0; slot < world->config.slots; slot++) {
		if (held[slot].fd >= 0)
			close(held[slot].fd);
		held[slot].fd = open_slot(slot, O_RDWR, &held[slot].file);
	}
}

/* With GAIA_DETECT=some in the environment half of the clients look for changes themselves. */
static void choose_detect(void)
{
	const char *detect = getenv("GAIA_DETECT");

	if (detect && !strcmp(detect, "some"))
		setenv("GAIA_DETECT", chance(50) ? "client" : "daemon", 1);
}

/* Run a client to its end, and until the daemon knows of it. */
static void one_client(bool looks)
{
	unsigned keeper = me, client;
	bool kills = !looks && HAS(&world->config, F_DEATH) && chance(50);
	bool release = chance(60);
	uint64_t seed = draw(), life = (20 + below(150)) * 1000000ull;
	uint64_t start = now();
	int status;
	pid_t pid;

	open_slots();
	if (!proc_new(PROC_CLIENT, world->procs[me].number, world->procs[me].device, &client))
		return;
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		me = client;
		reseed(seed);
		choose_detect();
		if (looks)
			look_main();
		client_main(kills ? NEVER : start + life, release);
	}
	if (pid < 0)
		return;
	world->procs[client].pid = pid;
	while (kills && now() < start + life && phase_is(PHASE_RUN))
		usleep(1000);
	if (kills)
		kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	world->procs[client].pid = 0;
	atomic_store(&world->procs[client].busy, 0);
	/* A keeper that says so ends the round. */
	if (WIFEXITED(status) ? WEXITSTATUS(status) != ALL_WELL : !kills) {
		if (phase_is(PHASE_END))
			_exit(ALL_WELL);
		fprintf(stderr, "history: a client of device %u ended with status 0x%x\n",
			world->procs[client].device, status);
		_exit(VIOLATION);
	}
	atomic_store(&world->procs[keeper].busy, now());
	while (!phase_is(PHASE_END) && daemon_knows(pid))
		usleep(1000);
	world->procs[client].confirmed = now();
	atomic_store(&world->procs[keeper].busy, 0);
}

_Noreturn void keeper_main(void)
{
	for (unsigned i = 0; i < MAX_SLOTS; i++)
		held[i].fd = -1;
	catch_faults();
	while (phase_is(PHASE_RUN))
		/* Two looks of each keeper must fit. */
		if (atomic_load(&world->nprocs) < MAX_PROCS - 2 * MAX_CLIENTS - 3)
			one_client(false);
		else
			usleep(1000);
	phase_done(PHASE_RUN);
	phase_done(PHASE_SETTLE);
	one_client(true);
	phase_done(PHASE_LOOK);
	phase_done(PHASE_STORE);
	one_client(true);
	phase_done(PHASE_LOOK_AGAIN);
	_exit(ALL_WELL);
}
