/*
 * stalls.h - sections of gpu-stalls that have a file of their own.
 */
#ifndef GAIA_TESTS_GPU_STALLS_H
#define GAIA_TESTS_GPU_STALLS_H

void section_assumptions(void); /* assumptions.c */

#endif
