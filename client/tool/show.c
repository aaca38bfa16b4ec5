/*
 * show.c - a report as aligned text.
 *
 * It prints the daemon's report by its structure: values as lines, objects as sections, lists of
 * objects as tables. So the daemon may report more without a change here. Counters that are 0 and
 * empty lists are left out.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

/* Longer text is cut. */
#define CELL 512
#define COLUMNS 32

/* Whether a value is in bytes, to be shown in KiB, MiB, ...; else it is a number, mostly of pages. */
static bool is_bytes(const char *section, const char *key)
{
	static const char *const keys[] = { "capacity", "used", "pinned", "budget", "size" };
	static const char *const home_keys[] = { "dirty", "twins", "twins_limit" };
	size_t len = strlen(key);

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
		if (!strcmp(key, keys[i]))
			return true;
	}
	for (size_t i = 0; i < sizeof(home_keys) / sizeof(home_keys[0]); i++) {
		if (!strcmp(section, "home") && !strcmp(key, home_keys[i]))
			return true;
	}
	return len > 6 && !strcmp(key + len - 6, "_bytes");
}

void format_bytes(char *out, size_t size, json_int_t n)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double value = n;
	unsigned u = 0;

	while (value >= 1024 && u + 1 < sizeof(units) / sizeof(units[0])) {
		value /= 1024;
		u++;
	}
	snprintf(out, size, value == (double)(json_int_t)value ? "%.0f %s" : "%.1f %s", value, units[u]);
}

static void append(char *out, size_t size, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void append(char *out, size_t size, const char *fmt, ...)
{
	size_t len = strlen(out);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(out + len, size - len, fmt, ap);
	va_end(ap);
}

/* An object inside a cell: its strings, and its values that are not 0 or false. */
static void append_object(char *out, size_t size, json_t *object)
{
	const char *key, *sep = "";
	json_t *value;

	json_object_foreach(object, key, value) {
		if (!strcmp(key, "map"))
			continue;
		if (json_is_string(value))
			append(out, size, "%s%s", sep, json_string_value(value));
		else if (json_is_integer(value) && json_integer_value(value))
			append(out, size, "%s%s %" JSON_INTEGER_FORMAT, sep, key, json_integer_value(value));
		else if (json_is_true(value))
			append(out, size, "%s%s", sep, key);
		else
			continue;
		sep = ", ";
	}
}

static void format_value(char *out, size_t size, const char *section, const char *key, json_t *value)
{
	json_t *item;
	char *text;
	size_t i;

	*out = '\0';
	if (json_is_integer(value) && is_bytes(section, key)) {
		format_bytes(out, size, json_integer_value(value));
	} else if (json_is_string(value)) {
		append(out, size, "%s", json_string_value(value));
	} else if (json_is_boolean(value)) {
		append(out, size, "%s", json_is_true(value) ? "yes" : "no");
	} else if (json_is_array(value)) {
		json_array_foreach(value, i, item) {
			append(out, size, "%s", i ? "; " : "");
			append_object(out, size, item);
		}
	} else {
		text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
		append(out, size, "%s", text ? text : "");
		free(text);
	}
}

static bool is_section(const json_t *value)
{
	return json_is_object(value) || json_is_array(value);
}

/* The object's plain values, one a line. */
static void show_values(json_t *object, const char *section, int indent, bool no_zeros)
{
	const char *key;
	json_t *value;
	int width = 0;

	json_object_foreach(object, key, value) {
		if (!is_section(value) && (int)strlen(key) > width)
			width = strlen(key);
	}
	json_object_foreach(object, key, value) {
		char cell[CELL];

		if (is_section(value) ||
		    (no_zeros && json_is_integer(value) && !json_integer_value(value)))
			continue;
		format_value(cell, sizeof(cell), section, key, value);
		printf("%*s%-*s  %s\n", indent, "", width, key, cell);
	}
}

/* The last column is not padded. */
static void show_cell(const char *text, int width, bool last)
{
	printf("%-*s%s", last ? 0 : width, text, last ? "\n" : "  ");
}

/* Columns are the keys of the first row. */
static void show_table(json_t *rows, const char *section, int indent)
{
	const char *keys[COLUMNS], *key;
	int width[COLUMNS], n = 0;
	char cell[CELL];
	json_t *row, *value;
	size_t i;

	json_object_foreach(json_array_get(rows, 0), key, value) {
		/* A histogram's buckets, and maps, are for programs. */
		if (n < COLUMNS && !json_is_object(value) && strcmp(key, "map") != 0) {
			keys[n] = key;
			width[n++] = strlen(key);
		}
	}
	json_array_foreach(rows, i, row) {
		for (int k = 0; k < n; k++) {
			format_value(cell, sizeof(cell), section, keys[k], json_object_get(row, keys[k]));
			if ((int)strlen(cell) > width[k])
				width[k] = strlen(cell);
		}
	}
	printf("%*s", indent, "");
	for (int k = 0; k < n; k++)
		show_cell(keys[k], width[k], k + 1 == n);
	json_array_foreach(rows, i, row) {
		printf("%*s", indent, "");
		for (int k = 0; k < n; k++) {
			format_value(cell, sizeof(cell), section, keys[k], json_object_get(row, keys[k]));
			show_cell(cell, width[k], k + 1 == n);
		}
	}
}

static void show_object(json_t *object, const char *section, int indent)
{
	const char *key;
	json_t *value;

	show_values(object, section, indent, !strcmp(section, "counters"));
	json_object_foreach(object, key, value) {
		if (!is_section(value) || (json_is_array(value) && !json_array_size(value)))
			continue;
		printf("%*s%s\n", indent, "", key);
		if (json_is_array(value))
			show_table(value, key, indent + 2);
		else
			show_object(value, key, indent + 2);
	}
}

size_t show_unstored(const json_t *report)
{
	json_t *files = json_object_get(report, "files"), *file;
	size_t i;

	json_array_foreach(files, i, file) {
		char bytes[32];

		format_bytes(bytes, sizeof(bytes), json_integer_value(json_object_get(file, "bytes")));
		fail("%s: %s not stored: %s", json_string_value(json_object_get(file, "path")), bytes,
		     json_string_value(json_object_get(file, "error")));
	}
	return json_array_size(files);
}

void show_report(json_t *report)
{
	show_object(report, "", 0);
}
