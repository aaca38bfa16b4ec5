/*
 * random.c - see random.h.
 */
#include "random.h"

#include <time.h>

static uint64_t random_state;

uint64_t draw(void)
{
	uint64_t z = random_state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

unsigned below(unsigned n)
{
	return n ? (unsigned)(draw() % n) : 0;
}

bool chance(unsigned percent)
{
	return below(100) < percent;
}

void reseed(uint64_t seed)
{
	random_state = seed;
}

uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
