/*
 * adversary.c - takes memory away at the worst moments.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "gaia/protocol.h"
#include "history.h"

/* One act of malice against pages first to last of a file. */
static void act(enum feature f, int fd, unsigned file, uint32_t first, uint32_t last)
{
	off_t off = (off_t)world->hot_page[first] * PAGE;
	off_t len = ((off_t)world->hot_page[last] - world->hot_page[first] + 1) * PAGE;
	struct gaia_ioc_file io = { .offset = (uint64_t)off, .length = (uint64_t)len };
	uint32_t cell = first * page_cells(), n = (last - first + 1) * page_cells();
	uint64_t start = now();
	unsigned arg = 0;
	int err;

	if (!HAS(&world->config, f))
		return;
	atomic_store(&world->procs[me].busy, start);
	switch (f) {
	case F_EVICT_DEVICE:
		io.from = below(world->config.devices + HAS(&world->config, F_HOST));
		arg = 1 + io.from;
		if (io.from == world->config.devices)
			io.from = GAIA_HOST;
		err = ioctl(fd, GAIA_IOC_EVICT, &io);
		op_note(OP_EVICT, file, cell, n, arg, start, err ? errno : 0);
		break;
	case F_EVICT_HOME:
		io.from = GAIA_FROM_HOME;
		err = ioctl(fd, GAIA_IOC_EVICT, &io);
		op_note(OP_EVICT, file, cell, n, 0, start, err ? errno : 0);
		break;
	case F_PARK:
		io.from = GAIA_FROM_DEVICE_CACHE;
		err = ioctl(fd, GAIA_IOC_EVICT, &io);
		op_note(OP_EVICT, file, cell, n, 0, start, err ? errno : 0);
		break;
	case F_FLUSH:
		err = ioctl(fd, GAIA_IOC_FLUSH, &io);
		op_note(OP_FLUSH, file, cell, n, 0, start, err ? errno : 0);
		break;
	default:
		if (chance(50))
			sync_file_range(fd, off, len, SYNC_FILE_RANGE_WRITE |
				SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER);
		err = posix_fadvise(fd, off, len, POSIX_FADV_DONTNEED);
		op_note(OP_FORGET, file, cell, n, 0, start, err);
	}
	atomic_store(&world->procs[me].busy, 0);
}

static void harass(unsigned slot)
{
	static const enum feature acts[] = { F_EVICT_DEVICE, F_EVICT_HOME, F_FLUSH, F_FORGET, F_EVICT_HOME, F_EVICT_HOME, F_PARK };
	unsigned file, turns = 1 + below(8);
	int fd = open_slot(slot, O_RDWR, &file);

	if (fd < 0)
		return;
	while (turns-- > 0 && phase_is(PHASE_RUN)) {
		uint32_t first = below(world->config.hot);

		act(acts[below(HAS(&world->config, F_PARK) ? 7 : 4)], fd, file, first, first + below(world->config.hot - first));
		usleep(below(2000));
	}
	close(fd);
}

_Noreturn void adversary_main(void)
{
	while (phase_is(PHASE_RUN) && log_has_room())
		harass(below(world->config.slots));
	phase_done(PHASE_RUN);
	phase_done(PHASE_SETTLE);
	phase_done(PHASE_LOOK);
	/* What is in no memory must come from the store. */
	for (unsigned slot = 0; slot < world->config.slots; slot++) {
		unsigned file;
		int fd = open_slot(slot, O_RDWR, &file);

		if (fd < 0)
			continue;
		for (unsigned i = 0; i < world->config.devices; i++)
			act(F_EVICT_DEVICE, fd, file, 0, world->config.hot - 1);
		act(F_FORGET, fd, file, 0, world->config.hot - 1);
		act(F_EVICT_HOME, fd, file, 0, world->config.hot - 1);
		act(F_PARK, fd, file, 0, world->config.hot - 1);
		close(fd);
	}
	phase_done(PHASE_STORE);
	phase_done(PHASE_LOOK_AGAIN);
	_exit(ALL_WELL);
}
