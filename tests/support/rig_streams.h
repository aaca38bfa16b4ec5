/*
 * rig_streams.h - whether acquires that follow each other have more read ahead: in suites that say so (RIG_STREAMS). In the others, which count
 * what is copied and evicted, clients advise against it at first.
 */
#ifndef GAIA_TESTS_RIG_STREAMS_H
#define GAIA_TESTS_RIG_STREAMS_H

#include <stdbool.h>

extern bool rig_streams;

#define RIG_STREAMS                                                     \
	__attribute__((constructor)) static void rig_with_streams(void) \
	{                                                               \
		rig_streams = true;                                     \
	}

#endif
