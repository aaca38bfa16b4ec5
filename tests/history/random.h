/*
 * random.h - random numbers that follow from a seed, and the time: for both history checkers. Each process has a state of its own.
 */
#ifndef HISTORY_RANDOM_H
#define HISTORY_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

uint64_t draw(void);
unsigned below(unsigned n);
bool chance(unsigned percent);
void reseed(uint64_t seed);

/* CLOCK_MONOTONIC, in ns. */
uint64_t now(void);

#endif
