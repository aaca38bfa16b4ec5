/*
 * report.c - what the gaia tool shows of a report, which names files and processes as users called them.
 */
#include <stdarg.h>

#include "fuzz.h"

#include "../../client/tool/tool.h"

/* The tool's: it prints, and so what was made up is formatted here as well. */
int fail(const char *fmt, ...)
{
	char line[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	return 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *report = json_loadb((const char *)data, size, 0, NULL);

	if (json_is_object(report)) {
		show_report(report);
		(void)show_unstored(report);
	}
	json_decref(report);
	return 0;
}
