/*
 * actor.h - processes that a test directs, one step at a time.
 *
 * An actor is a process with one file open, mapped by mmap(2) and, if it
 * has a device, by gaia_mmap(). It carries out steps in the order in which the test
 * orders them from its actors, which is the order of the scenario.
 *
 *	struct actor *cpu = actor_start("f", SIZE, NO_DEVICE), *dev = actor_start("f", SIZE, 0);
 *
 *	actor_ok(dev, ACQUIRE, 0, SIZE, PROT_READ | PROT_WRITE);
 *	actor_ok(dev, STORE, 0, 1, 'd');
 *	actor_ok(dev, RELEASE, 0, SIZE, 0);
 *	actor_sees(cpu, READ, 0, 'd');
 *
 * Actors die with the test. The test makes them; an actor makes none.
 */
#ifndef GAIA_TESTS_ACTOR_H
#define GAIA_TESTS_ACTOR_H

#include <stddef.h>
#include <sys/types.h>

#define NO_DEVICE (-1)

enum act {
	/* On the device's memory: @arg is the byte, stored at [off, off + len). */
	STORE,
	LOAD,		/* the byte at off */
	/* The library's calls; @arg: prot, or advice. */
	ACQUIRE,
	RELEASE,
	SYNC,
	ADVISE,
	/* By calls: @arg is the byte. */
	WRITE,
	READ,		/* the byte at off; -ENODATA at the end of the file */
	/* Through the CPU's shared mapping. */
	MAP_STORE,
	MAP_LOAD,
	MSYNC,
	/* On the file. */
	FSYNC,
	FDATASYNC,
	TRUNCATE,	/* to off bytes */
	SIZE_OF,	/* st_size */
};

struct actor;

/* Opens @name on the test's mount (O_RDWR) and maps its first @len bytes. Asserts. */
struct actor *actor_start(const char *name, size_t len, int device);

/* The result, not negative, or a negative errno. */
long actor_do(struct actor *a, enum act act, off_t off, size_t len, int arg);

/* Order a step without waiting for its end, which actor_result() does. */
void actor_order(struct actor *a, enum act act, off_t off, size_t len, int arg);
long actor_result(struct actor *a);

/* Wait until a step that was ordered waits in a system call. */
void actor_blocks(struct actor *a);

/* Kill it (SIGKILL), whatever it is doing. */
void actor_kill(struct actor *a);
/* Let it unmap, close and exit with 0; asserts that it does. */
void actor_end(struct actor *a);

#define actor_ok(a, act, off, len, arg)                                                        \
	do {                                                                                   \
		long actor_r = actor_do(a, act, off, len, arg);                                \
		cr_assert(actor_r >= 0, "%s: %s", #act, strerror(-(int)actor_r));              \
	} while (0)

/* READ, MAP_LOAD or LOAD. */
#define actor_sees(a, act, off, byte)                                                          \
	do {                                                                                   \
		long actor_r = actor_do(a, act, off, 1, 0);                                    \
		cr_assert_eq(actor_r, (byte), "%s at %ld: %ld, not %d", #act, (long)(off),     \
			     actor_r, (byte));                                                 \
	} while (0)

#endif
