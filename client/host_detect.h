/* host_detect.h - host_kind's way to find what has changed, see host_detect.c. */
#ifndef GAIA_CLIENT_HOST_DETECT_H
#define GAIA_CLIENT_HOST_DETECT_H

#include "internal.h"

/* kind_ops.detect_make, .detect */
int host_detect_make(struct mapping *m, struct detect *d);
int host_detect(struct mapping *m, const struct detect_runs *rs, bool compare);
/* Undo host_detect_make(), if there is anything. Nobody looks. */
void host_detect_end(struct mapping *m);
/* In a child of fork(); the lock is held. */
void host_detect_forked(void);

/* What a test needs to know: the descriptors, -1 while no mapping needs them. */
void host_detect_descriptors(int fd[2]);

#endif
