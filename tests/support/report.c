#include "report.h"

#include <stdlib.h>

#include "shell.h"
#include "ways.h"

json_t *report(const char *command, const char *name)
{
	struct shell_result r = shell_run(mnt.path, 30, "\"$GAIA\" %s %s --json", command, name);
	json_error_t where;
	json_t *json;

	cr_assert_eq(r.status, 0, "gaia %s %s: %s", command, name, r.err);
	json = json_loads(r.out, 0, &where);
	cr_assert_not_null(json, "gaia %s %s: %s in %s", command, name, where.text, r.out);
	shell_free(&r);
	return json;
}

long report_number(json_t *json, const char *const *path)
{
	json_t *at = json;

	for (; *path; path++) {
		at = json_is_array(at) ? json_array_get(at, atoi(*path)) : json_object_get(at, *path);
		cr_assert_not_null(at, "no \"%s\" in the report", *path);
	}
	cr_assert(json_is_integer(at));
	return json_integer_value(at);
}

long report_status(const char *const *path)
{
	json_t *status = report("status", ".");
	long n = report_number(status, path);

	json_decref(status);
	return n;
}
