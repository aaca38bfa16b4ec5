/*
 * holds.c - counted spans against an array with the numbers of each page (holds_array.h), the input saying what happens.
 */
#include "fuzz.h"

#define MUST(...) FUZZ_CHECK(__VA_ARGS__)

static struct fuzz_input in;

static unsigned choose(unsigned n)
{
	return fuzz_below(&in, n);
}

#include "holds_array.h"

#define MOST 1000 /* events; more of them show nothing new, and take time */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint64_t from[] = { 0, 511, UINT32_MAX - 40, UINT64_MAX - PAGES };

	in = (struct fuzz_input){ data, size };
	begin(from[choose(4)]);
	for (unsigned n = 0; in.left && n < MOST; n++) {
		event();
		agree();
	}
	end();
	return 0;
}
