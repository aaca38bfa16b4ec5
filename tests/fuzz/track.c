/*
 * track.c - ids and bits against full version vectors (track_vectors.h), the input saying what happens.
 */
#include "fuzz.h"

#define MUST(...) FUZZ_CHECK(__VA_ARGS__)

static struct fuzz_input in;

static unsigned choose(unsigned n)
{
	uint16_t wide;

	if (n <= 256)
		return fuzz_below(&in, n);
	fuzz_take(&in, &wide, sizeof(wide));
	return wide % n;
}

#include "track_vectors.h"

/* Events that the reference must follow at once; more of them show nothing new, and take time. */
#define MOST 2000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned age;

	in = (struct fuzz_input){ data, size };
	begin();
	/* Ids come round: some pages have seen many. */
	for (age = choose(256) == 255 ? choose(UINT16_MAX + 1) : 0; age; age--)
		cpu_write();
	for (unsigned n = 0; in.left && n < MOST; n++) {
		event();
		agree();
	}
	return 0;
}
