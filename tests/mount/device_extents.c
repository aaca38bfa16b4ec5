/* device_extents.c - device memory in extents, on a real mount: programs that map a long file, others beside them, and little room. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "actor.h"
#include "gaia/client.h"
#include "report.h"
#include "ways.h"

#define PAGE 4096
#define CHUNK (2 << 20)
#define EXTENT (8 * CHUNK)
#define SIZE (EXTENT + 2 * CHUNK)
#define RW (PROT_READ | PROT_WRITE)

static void make_file(const char *name)
{
	int fd;

	way_make_cached(name);
	fd = openat(both_root[ON_MOUNT], name, O_RDWR | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, SIZE), 0);
	for (unsigned i = 0; i < SIZE / CHUNK; i++)
		cr_assert_eq(pwrite(fd, ".", 1, (off_t)i * CHUNK), 1);
	cr_assert_eq(close(fd), 0);
}

/* Two files on a mount whose device has room for little more than one. */
static void start(void)
{
	static const char *const args[] = { "--device", "sim:24M", NULL };

	way_start(args);
	make_file("f");
	make_file("g");
}

EACH_WAY_BARE(device_extents, are_shared_by_programs)
{
	struct actor *one, *two, *cpu;

	start();
	one = actor_start("f", SIZE, 0);
	two = actor_start("f", 3 * CHUNK, 0);
	cpu = actor_start("f", SIZE, NO_DEVICE);
	actor_ok(one, ACQUIRE, 0, SIZE, RW);
	cr_assert_eq(STATUS("counters", "device_extents"), 1);
	actor_sees(one, LOAD, 5 * CHUNK, '.');
	actor_ok(one, STORE, 2 * CHUNK + 1, 1, 'a');
	actor_ok(one, STORE, 7 * CHUNK + 1, 1, 'b');
	actor_ok(one, RELEASE, 0, SIZE, 0);
	actor_sees(cpu, READ, 7 * CHUNK + 1, 'b');
	/* It maps a part of the extent, and is given all. */
	actor_ok(two, ACQUIRE, 2 * CHUNK, PAGE, RW);
	actor_sees(two, LOAD, 2 * CHUNK + 1, 'a');
	actor_ok(two, STORE, 2 * CHUNK + 2, 1, 'c');
	actor_ok(two, RELEASE, 2 * CHUNK, PAGE, 0);
	actor_sees(cpu, MAP_LOAD, 2 * CHUNK + 2, 'c');
	cr_assert_eq(STATUS("counters", "device_extents"), 1);
	actor_end(one);
	actor_end(two);
	actor_end(cpu);
}

EACH_WAY_BARE(device_extents, give_way_to_each_other)
{
	struct actor *f, *g, *cpu;

	start();
	f = actor_start("f", SIZE, 0);
	g = actor_start("g", SIZE, 0);
	cpu = actor_start("f", SIZE, NO_DEVICE);
	for (int byte = 'a'; byte <= 'd'; byte++) {
		actor_ok(f, ACQUIRE, 0, SIZE, RW);
		actor_ok(f, STORE, 3 * CHUNK + 9, 1, byte);
		actor_ok(f, STORE, 9 * CHUNK + 9, 1, byte);
		actor_ok(f, RELEASE, 0, SIZE, 0);
		actor_ok(g, ACQUIRE, 0, SIZE, RW);
		actor_sees(g, LOAD, 3 * CHUNK, '.');
		actor_ok(g, RELEASE, 0, SIZE, 0);
		actor_sees(cpu, READ, 3 * CHUNK + 9, byte);
		actor_sees(cpu, READ, 9 * CHUNK + 9, byte);
	}
	cr_assert_geq(STATUS("counters", "device_extents"), 5);
	actor_end(f);
	actor_end(g);
	actor_end(cpu);
}

/* What it had released is not lost, and its memory is nobody else's. */
EACH_WAY_BARE(device_extents, outlive_a_program_that_is_killed)
{
	struct actor *one, *two;

	start();
	one = actor_start("f", SIZE, 0);
	actor_ok(one, ACQUIRE, 0, SIZE, RW);
	actor_ok(one, STORE, 4 * CHUNK + 1, 1, 'a');
	actor_ok(one, RELEASE, 0, SIZE, 0);
	actor_ok(one, ACQUIRE, 4 * CHUNK, PAGE, RW);
	actor_ok(one, STORE, 4 * CHUNK + 1, 1, 'b');
	actor_kill(one);
	two = actor_start("f", SIZE, 0);
	actor_ok(two, ACQUIRE, 0, SIZE, RW);
	actor_sees(two, LOAD, 4 * CHUNK + 1, 'a');
	actor_ok(two, RELEASE, 0, SIZE, 0);
	actor_end(two);
}
