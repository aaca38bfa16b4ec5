/*
 * tool.h - what the files of the gaia tool share.
 */
#ifndef GAIA_TOOL_H
#define GAIA_TOOL_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Exit statuses; see gaia(1). */
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* What the command line says. */
struct args {
	char **paths; /* one at least, but for commands that may have none */
	size_t n_paths;
	const char *path; /* the first, or NULL */
	bool json, force, everywhere, discard, recursive, estimate, batch, null, wait;
	bool from_given, device_given;
	uint32_t from; /* a device's index or GAIA_FROM_HOME */
	uint32_t device;
	uint32_t seconds; /* 0: no end */
	uint64_t offset, length;
};

/* One line on standard error: "gaia: ...". Returns EXIT_FAILED. */
int fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/*
 * How far something is, on standard error: on a terminal in the place of the last such line, which end_progress() and fail() take away; else a
 * line of its own.
 */
void say_progress(bool terminal, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void end_progress(void);

/* Say what went wrong with @path; @err is a negative errno. Returns EXIT_FAILED. */
int fail_on(const char *path, int err);
#define NOT_FOR_SHARED "not supported there; of a mount with --source shared nothing is cached (gaiafs-nodes(7))" /* EOPNOTSUPP */

/* The same for a mistake on the command line. Returns EXIT_USAGE. */
int usage(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A descriptor for reading of a file or directory on gaiafs, or a negative errno. */
int open_ours(const char *path, int flags);
/* The same of a file below the directory @dir, on the same mount, reached by no symbolic link. */
int open_beneath(int dir, const char *name);

/* Print a report (GAIA_REPORT_*) of the mount or file. Returns the exit status. */
int report_command(const struct args *a, unsigned what);

/* Refuse anything but regular files and, with @or_directory, directories: says so. Does not open it. */
int check_kind(const char *path, bool or_directory);

/* gaia residency, flush, evict. */
int residency_command(const struct args *a);
int flush_command(const struct args *a);
int evict_command(const struct args *a);

/* gaia stat: paths are a mount or none, an interval and a count; see rounds_parse(). */
int stat_command(const struct args *a);

/* gaia dedup. */
int dedup_command(const struct args *a);

/* gaia top: as gaia stat. */
int top_command(const struct args *a);

/* gaia pin, unpin, pins, warm. */
int pin_command(const struct args *a);
int unpin_command(const struct args *a);
int pins_command(const struct args *a);
int warm_command(const struct args *a);

/* gaia set: paths[1] and those after it are options. gaia reload. */
int set_command(const struct args *a);
int reload_command(const struct args *a);

/* Say what went wrong with each of a sync's "files", one line each on standard error. Returns their number. */
size_t show_unstored(const json_t *report);

/*
 * syncfs(2): have the kernel hand over what it has of the mount of @fd. 0, or a negative errno. (When a program was killed in a
 * release, Linux notes EINTR as an error of writing the file back, and tells the next who asks, once. Nothing was to be written.)
 */
int sync_kernel(int fd);

/* Print a report as text. */
void show_report(json_t *report);

/* Whether @path itself is a mount point. */
bool is_mount_point(const char *path);

/*
 * gaia umount. @force: do not ask the daemon anything. @everywhere: in other places and mount
 * namespaces, too. @discard: even if some data cannot be stored.
 */
int umount_command(const char *path, bool force, bool everywhere, bool discard);

/* gaia trace: until a signal ends it, or so many seconds have passed (0: no end). */
int trace_command(const char *path, uint32_t seconds);

/* gaia check-source: of two directories. */
int check_source_command(const struct args *a);

/* "1.5 MiB". */
void format_bytes(char *out, size_t size, json_int_t n);

#endif
