/*
 * with_counters.c - a man page, with the list of the daemon's counters where it says @COUNTERS@.
 *
 * with_counters < PAGE.scd.in > PAGE.scd. The names and texts are those of base/counters.h.
 */
#include <stdio.h>
#include <string.h>

#include "base/counters.h"

static const char *const counters[][2] = {
#define X(name, text) { #name, text },
	COUNTERS(X)
#undef X
};

int main(void)
{
	char line[4096];

	while (fgets(line, sizeof(line), stdin)) {
		if (strcmp(line, "@COUNTERS@\n")) {
			fputs(line, stdout);
			continue;
		}
		for (unsigned i = 0; i < CTR_COUNT; i++)
			printf("*%s*\n\t%s\n\n", counters[i][0], counters[i][1]);
	}
	return ferror(stdin) || fflush(stdout) ? 1 : 0;
}
