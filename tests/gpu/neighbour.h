/*
 * neighbour.h - another process, which uses the GPU all the time: 5 ms kernels on the whole of it, back to back.
 *
 * With --beside (sections.h) a section runs beside it: from gpu_start() to the section's end, but not while
 * ceilings are measured. All rows say so; the last one says what it cost the neighbour. Where there is no
 * --beside, and in processes of other_start(), these calls do nothing.
 */
#ifndef GAIA_TESTS_GPU_NEIGHBOUR_H
#define GAIA_TESTS_GPU_NEIGHBOUR_H

/* Forks it: before CUDA is used. The calls below do nothing without. */
void neighbour_fork(void);

/* It measures itself alone, then goes on beside us. */
void neighbour_begin(void);

/* Its kernels end; and begin again. */
void neighbour_pause(void);
void neighbour_resume(void);

/* Puts the row of its slowdown. */
void neighbour_end(void);

#endif
