/*
 * ceilings.h - the sections of gpu-ceilings, by file.
 */
#ifndef GAIA_TESTS_GPU_CEILINGS_H
#define GAIA_TESTS_GPU_CEILINGS_H

/* copies.c */
void section_copies(void);
void section_both_ways(void);
void section_batched(void);
void section_within(void);
void section_host_access(void);
void section_between(void);

/* chunks.c */
void section_chunks(void);
void section_alive(void);
void section_allocations(void);

/* ceilings.c: the rest. */

#endif
