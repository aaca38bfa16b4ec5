/*
 * report.c - what the gaia tool shows of a report, which names files and processes as users called them.
 */
#include "fuzz.h"

#include "../../client/tool/tool.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *report = json_loadb((const char *)data, size, 0, NULL);

	if (json_is_object(report))
		show_report(report);
	json_decref(report);
	return 0;
}
