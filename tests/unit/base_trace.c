/* base_trace.c - recording accesses. */
#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/trace.h"

static char *take(pid_t reader)
{
	char *text = NULL;

	cr_assert_eq(trace_take(reader, &text), 0);
	cr_assert_not_null(text);
	return text;
}

Test(trace, is_off_until_somebody_takes_it)
{
	char *text;

	trace_access(TRACE_READ, 1, 2, 3, 1);
	cr_assert_not(atomic_load(&trace_on));
	text = take(10);
	cr_assert_str_eq(text, "# dropped 0\n");
	free(text);
	cr_assert(atomic_load(&trace_on));
}

Test(trace, says_what_was_accessed_in_order)
{
	uint64_t us, before, file, page;
	unsigned pages, hits;
	char *text, op;

	free(take(10));
	trace_access(TRACE_READ, 7, 1ull << 51, 3, 1);
	trace_access(TRACE_ACQUIRE_WRITE, UINT64_MAX, 0, 1ull << 40, 0);
	text = take(10);
	cr_assert_eq(sscanf(text, "# dropped 0\n%" SCNu64 " %c %" SCNu64 " %" SCNu64 " %u %u\n", &before, &op, &file, &page, &pages, &hits), 6, "%s",
		     text);
	cr_assert(op == 'r' && file == 7 && page == 1ull << 51 && pages == 3 && hits == 1, "%s", text);
	cr_assert_eq(sscanf(strchr(strchr(text, '\n') + 1, '\n') + 1, "%" SCNu64 " %c %" SCNu64 " %" SCNu64 " %u %u\n", &us, &op, &file, &page, &pages,
			    &hits), 6, "%s", text);
	cr_assert(us >= before && op == 'A' && file == UINT64_MAX && page == 0 && pages == UINT32_MAX && hits == 0, "%s", text);
	free(text);
	text = take(10);
	cr_assert_str_eq(text, "# dropped 0\n", "what was taken is not there again");
	free(text);
}

Test(trace, drops_and_counts_what_has_no_room)
{
	uint64_t lost;
	char *text;
	unsigned lines = 0;

	free(take(10));
	for (unsigned i = 0; i < TRACE_RECORDS + 5; i++)
		trace_access(TRACE_WRITE, i, UINT32_MAX, UINT32_MAX, UINT32_MAX);
	text = take(10);
	cr_assert_eq(sscanf(text, "# dropped %" SCNu64 "\n", &lost), 1);
	cr_assert_eq(lost, 5);
	for (const char *at = strchr(text, '\n'); (at = strchr(at + 1, '\n'));)
		lines++;
	cr_assert_eq(lines, TRACE_RECORDS);
	free(text);
	text = take(10);
	cr_assert_str_eq(text, "# dropped 0\n");
	free(text);
}

Test(trace, is_one_readers_until_that_has_stopped)
{
	char *text = NULL;

	free(take(getpid()));
	cr_assert_eq(trace_take(getppid(), &text), -EBUSY);
	trace_idle_ns = 0;
	usleep(1);
	trace_access(TRACE_READ, 1, 2, 3, 1);
	cr_assert_not(atomic_load(&trace_on), "nobody takes it");
	text = take(getppid());
	cr_assert_str_eq(text, "# dropped 0\n");
	free(text);
}

Test(trace, is_anybodys_when_its_reader_has_ended)
{
	pid_t ended = fork();
	char *text;

	if (ended == 0)
		_exit(0);
	waitpid(ended, NULL, 0);
	free(take(ended));
	trace_access(TRACE_READ, 1, 2, 3, 1);
	text = take(getpid());
	cr_assert_str_eq(text, "# dropped 0\n", "it begins anew");
	free(text);
}
