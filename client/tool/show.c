/*
 * show.c - a report as aligned text.
 *
 * It prints what the daemon says, by structure: values as lines, objects as sections, lists of objects as
 * tables. So the daemon may say more without this being changed. Of the counters, those that are 0
 * are left out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

/* Enough for any value but long strings, which are cut in tables only. */
#define CELL 48
#define COLUMNS 32

/* Keys whose values are bytes, for people to read as such. */
static bool is_bytes(const char *key)
{
	static const char *const keys[] = { "capacity", "used", "pinned", "budget", "size", "bytes" };
	size_t len = strlen(key);

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		if (!strcmp(key, keys[i]))
			return true;
	}
	return len > 6 && !strcmp(key + len - 6, "_bytes");
}

static void format_bytes(char *out, size_t size, json_int_t n)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double value = n;
	unsigned u = 0;

	while (value >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
		value /= 1024;
		u++;
	}
	snprintf(out, size, value == (json_int_t)value ? "%.0f %s" : "%.1f %s", value, units[u]);
}

static void format_value(char *out, size_t size, const char *key, const json_t *value)
{
	char *text;

	if (json_is_integer(value) && is_bytes(key)) {
		format_bytes(out, size, json_integer_value(value));
	} else if (json_is_string(value)) {
		snprintf(out, size, "%s", json_string_value(value));
	} else if (json_is_boolean(value)) {
		snprintf(out, size, "%s", json_is_true(value) ? "yes" : "no");
	} else {
		text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
		snprintf(out, size, "%s", text ? text : "?");
		free(text);
	}
}

static bool is_table(const json_t *value)
{
	return json_is_array(value) && json_is_object(json_array_get(value, 0));
}

static bool is_section(const json_t *value)
{
	return json_is_object(value) || is_table(value);
}

/* The object's plain values, one a line. */
static void show_values(json_t *object, int indent, bool no_zeros)
{
	const char *key;
	json_t *value;
	int width = 0;

	json_object_foreach(object, key, value) {
		if (!is_section(value) && (int)strlen(key) > width)
			width = strlen(key);
	}
	json_object_foreach(object, key, value) {
		char cell[4096];

		if (is_section(value))
			continue;
		if (no_zeros && json_is_integer(value) && !json_integer_value(value))
			continue;
		format_value(cell, sizeof(cell), key, value);
		printf("%*s%-*s  %s\n", indent, "", width, key, cell);
	}
}

/* Columns are the keys of the first row. */
static void show_table(json_t *rows, int indent)
{
	const char *keys[COLUMNS], *key;
	int width[COLUMNS], n = 0;
	char cell[CELL];
	json_t *row, *value;
	size_t i;

	json_object_foreach(json_array_get(rows, 0), key, value) {
		if (n < COLUMNS) {
			keys[n] = key;
			width[n++] = strlen(key);
		}
	}
	json_array_foreach(rows, i, row) {
		for (int k = 0; k < n; k++) {
			format_value(cell, sizeof(cell), keys[k], json_object_get(row, keys[k]));
			if ((int)strlen(cell) > width[k])
				width[k] = strlen(cell);
		}
	}
	printf("%*s", indent, "");
	for (int k = 0; k < n; k++)
		printf("%-*s%s", k + 1 < n ? width[k] : 0, keys[k], k + 1 < n ? "  " : "\n");
	json_array_foreach(rows, i, row) {
		printf("%*s", indent, "");
		for (int k = 0; k < n; k++) {
			format_value(cell, sizeof(cell), keys[k], json_object_get(row, keys[k]));
			printf("%-*s%s", k + 1 < n ? width[k] : 0, cell, k + 1 < n ? "  " : "\n");
		}
	}
}

static void show_object(json_t *object, int indent, bool no_zeros)
{
	const char *key;
	json_t *value;

	show_values(object, indent, no_zeros);
	json_object_foreach(object, key, value) {
		if (!is_section(value))
			continue;
		printf("%*s%s\n", indent, "", key);
		if (is_table(value))
			show_table(value, indent + 2);
		else
			show_object(value, indent + 2, !strcmp(key, "counters"));
	}
}

void show_report(const json_t *report)
{
	show_object((json_t *)report, 0, false);
}
