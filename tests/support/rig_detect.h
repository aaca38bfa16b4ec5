/*
 * rig_detect.h - clients of a rig that look for changes themselves, as libgaiaclient does with GAIA_DETECT=client (client/detect.c), but with
 * copies of pages instead of hashes.
 *
 * A page that is held for writing once is compared with what it was when it was acquired. One that is held so several times counts as changed.
 */
#ifndef GAIA_TESTS_RIG_DETECT_H
#define GAIA_TESTS_RIG_DETECT_H

#include "cache_rig.h"

struct rig_detect;

struct rig_detect *rig_detect_make(uint64_t pages);
void rig_detect_free(struct rig_detect *d);

/* Before an acquire of pages [a, b), and after it. */
void rig_detect_begin(struct client *cl, uint64_t a, uint64_t b, unsigned prot);
void rig_detect_end(struct client *cl, uint64_t a, uint64_t b, unsigned prot, int err);

/* Release the range, telling what has changed. */
int rig_detect_release(struct client *cl, uint64_t off, uint64_t len);

#endif
