/*
 * tool.h - what the files of the gaia tool share.
 */
#ifndef GAIA_TOOL_H
#define GAIA_TOOL_H

#include <jansson.h>
#include <stdbool.h>

/* Exit statuses; see gaia(1). */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* One line on standard error: "gaia: ...". Returns EXIT_FAILED. */
int fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Say what went wrong with @path; @err is a negative errno. Returns EXIT_FAILED. */
int fail_on(const char *path, int err);

/* Say what went wrong with each of a sync's "files", one line each on standard error. Returns their number. */
size_t show_unstored(const json_t *report);

/* Print a report as text. */
void show_report(json_t *report);

/* Whether @path itself is a mount point. */
bool is_mount_point(const char *path);

/*
 * gaia umount. @force: do not ask the daemon anything. @everywhere: in other places and mount
 * namespaces, too. @discard: even if some data cannot be stored.
 */
int umount_command(const char *path, bool force, bool everywhere, bool discard);

/* "1.5 MiB". */
void format_bytes(char *out, size_t size, json_int_t n);

#endif
