/*
 * gaia.c - look at a gaiafs mount and give it orders: the gaia(1) command.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../report.h"
#include "../wire.h"
#include "tool.h"

static const char usage_text[] =
	"usage: gaia status MOUNT [--json]\n"
	"       gaia stat MOUNT [INTERVAL [COUNT]] [--json]\n"
	"       gaia top MOUNT [INTERVAL [COUNT]] [-b]\n"
	"       gaia residency FILE [--json]\n"
	"       gaia flush FILE | MOUNT | -r DIR\n"
	"       gaia evict FILE [--from home | --from host | --from device N | --from device-cache] [--range OFFSET:LENGTH]\n"
	"       gaia pin FILE|DIR... [--device N] [--json]\n"
	"       gaia unpin FILE|DIR... [--device N] [--json]\n"
	"       gaia pins MOUNT [--json]\n"
	"       gaia warm FILE|DIR... [--device N] [--json]\n"
	"       gaia dedup --estimate FILE|DIR... [--json]\n"
	"       gaia trace MOUNT [--seconds N]\n"
	"       gaia umount MOUNT [--discard] [--everywhere] | MOUNT --force\n"
	"       gaia --help | --version\n";

int fail(const char *fmt, ...)
{
	char line[2 * PATH_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	/* Names of files come from users: a name must not forge a line or send commands to root's terminal. */
	for (char *c = line; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f || ((unsigned char)c[0] == 0xc2 && (unsigned char)c[1] < 0xa0))
			*c = '?';
	fprintf(stderr, "gaia: %s\n", line);
	return EXIT_FAILED;
}

int fail_on(const char *path, int err)
{
	switch (-err) {
	case ENOTTY:
		return fail("%s: not on a gaiafs mount", path);
	case ENOTCONN:
		return fail("%s: the mount's daemon is gone; 'gaia umount' its mount point and mount again", path);
	case EPROTO:
		return fail("%s: the mount's daemon is of another version than this tool (" GAIA_VERSION ")", path);
	case ENODEV:
		return fail("%s: not a regular file, or no such device", path);
	case EPERM:
		return fail("%s: only root, and users who may write it, may do that", path);
	case EMFILE:
		return fail("%s: this user has as many clients or open directories there as a user may (gaiafs --user-limit)", path);
	case ENFILE:
		return fail("%s: all users together have as many clients or open directories there as they may", path);
	default:
		return fail("%s: %s", path, strerror(-err));
	}
}

int usage(const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "gaia: ");
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fprintf(stderr, "; 'gaia --help' says how\n");
	return EXIT_USAGE;
}

/* Refuse anything but regular files and, with @or_directory, directories. Does not open it. */
static int check_kind(const char *path, bool or_directory)
{
	const char *kind = NULL;
	struct stat st;

	if (stat(path, &st))
		return fail_on(path, -errno);
	switch (st.st_mode & S_IFMT) {
	case S_IFDIR:
		kind = or_directory ? NULL : "a directory";
		break;
	case S_IFIFO:
		kind = "a FIFO";
		break;
	case S_IFSOCK:
		kind = "a socket";
		break;
	case S_IFCHR:
	case S_IFBLK:
		kind = "a device file";
		break;
	}
	if (!kind)
		return EXIT_OK;
	return fail("%s: %s; this is for regular files%s", path, kind, or_directory ? " and directories" : ", whose contents are cached");
}

/* ---- reports ---- */

int report_command(const struct args *a, unsigned what)
{
	json_error_t where;
	json_t *report;
	char *text;
	int fd, err;

	if (check_kind(a->path, what != GAIA_REPORT_RESIDENCY))
		return EXIT_FAILED;
	fd = open(a->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return fail_on(a->path, -errno);
	err = fetch_report(fd, what, &text);
	close(fd);
	if (err)
		return fail_on(a->path, err);
	if (a->json) {
		puts(text);
	} else {
		report = json_loads(text, 0, &where);
		if (report)
			show_report(report);
		else
			err = fail("%s: the daemon's report is not JSON: %s", a->path, where.text);
		json_decref(report);
	}
	free(text);
	if (fflush(stdout))
		return fail("standard output: %s", strerror(errno));
	return err ? EXIT_FAILED : EXIT_OK;
}

static int status_command(const struct args *a)
{
	return report_command(a, GAIA_REPORT_STATUS);
}

static int residency_command(const struct args *a)
{
	return report_command(a, GAIA_REPORT_RESIDENCY);
}

/* ---- orders ---- */

/*
 * Give an order. Opens the file for writing only if the daemon refuses without that: for a file that CPU programs read and write
 * past the daemon, such an open has the device programs' acquires compare it.
 */
static int order(int *fd, const char *path, unsigned long cmd, struct gaia_ioc_file *io)
{
	int err = wire_ioctl(*fd, cmd, io), writable;

	if (err != -EPERM)
		return err;
	writable = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (writable < 0)
		return err;
	close(*fd);
	*fd = writable;
	return wire_ioctl(*fd, cmd, io);
}

/*
 * Whether the file is on gaiafs. Asked before anything is done: on other file systems the first half of an
 * order would succeed.
 */
static int if_ours(int fd)
{
	int err;

	if (fd < 0)
		return -errno;
	err = wire_first_ioctl(fd, GAIA_IOC_DEVICES, &(struct gaia_ioc_devices){ 0 });
	if (!err)
		return fd;
	close(fd);
	return err;
}

int open_ours(const char *path, int flags)
{
	return if_ours(open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags));
}

/* Closes @fd, which may be an error. */
static int flush_opened(const char *path, int fd)
{
	struct gaia_ioc_file io = { .from = GAIA_FLUSH_DEVICES };
	int err;

	if (fd < 0)
		return fail_on(path, fd);
	err = wire_push(fd, 0, 0);
	if (!err)
		err = order(&fd, path, GAIA_IOC_FLUSH, &io);
	close(fd);
	return err ? fail_on(path, err) : EXIT_OK;
}

static int flush_file(const char *path)
{
	return flush_opened(path, open_ours(path, 0));
}

int sync_kernel(int fd)
{
	for (int tries = 0; syncfs(fd); tries++)
		if (errno != EINTR || tries == 3)
			return -errno;
	return 0;
}

/* The kernel's part first: the daemon stores what it has been sent. */
static int flush_mount(const char *path)
{
	int fd = open_ours(path, O_DIRECTORY), err, status = EXIT_OK;
	json_t *report = NULL;
	char *text = NULL;

	if (fd < 0)
		return fail_on(path, fd);
	err = sync_kernel(fd);
	if (!err)
		err = fetch_report(fd, GAIA_REPORT_SYNC, &text);
	close(fd);
	if (err == -EPERM)
		return fail("%s: only root, and the user whose daemon it is, may flush a whole mount; others flush their own files, "
			    "with -r", path);
	if (err)
		return fail_on(path, err);
	report = json_loads(text, 0, NULL);
	if (!report)
		status = fail("%s: the daemon's report is not JSON", path);
	else if (show_unstored(report))
		status = EXIT_FAILED;
	json_decref(report);
	free(text);
	return status;
}

/* Variables of flush -r's walk: nftw(3) passes no argument on. */
static int below_status, below_fd;
static size_t below_length; /* of the name of the directory that below_fd is */

/* Other users may replace parts of the tree by links meanwhile: opens only files that lie below it, on the same mount. */
int open_beneath(int dir, const char *name)
{
	struct open_how how = { .flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };

	while (*name == '/')
		name++;
	return if_ours((int)syscall(SYS_openat2, dir, name, &how, sizeof(how)));
}

static int flush_below(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)ftw;
	if (type == FTW_DNR || type == FTW_NS)
		below_status = fail("%s: cannot be read", path);
	else if (type == FTW_F && S_ISREG(st->st_mode) && flush_opened(path, open_beneath(below_fd, path + below_length)))
		below_status = EXIT_FAILED;
	return 0;
}

static int flush_command(const struct args *a)
{
	struct stat st;
	int fd;

	if (stat(a->path, &st))
		return fail_on(a->path, -errno);
	if (!S_ISDIR(st.st_mode))
		return flush_file(a->path);
	if (!a->recursive)
		return is_mount_point(a->path) ? flush_mount(a->path) :
						 fail("%s: a directory; -r flushes the files in it", a->path);
	fd = open_ours(a->path, O_DIRECTORY);
	if (fd < 0)
		return fail_on(a->path, fd);
	below_status = EXIT_OK;
	below_fd = fd;
	below_length = strlen(a->path);
	if (nftw(a->path, flush_below, 64, FTW_PHYS | FTW_MOUNT))
		below_status = fail_on(a->path, -errno);
	close(fd);
	return below_status;
}

/* False also where the daemon knows no pins. */
static bool is_pinned(int fd, uint32_t device)
{
	struct gaia_ioc_place io = { .what = GAIA_PLACE_LOOK, .device = device };

	return !wire_ioctl(fd, GAIA_IOC_PLACE, &io) && io.bytes > 0;
}

static int evict_from(int *fd, const struct args *a, uint32_t from)
{
	struct gaia_ioc_file io = { .offset = a->offset, .length = a->length, .from = from };
	char memory[32] = "home memory";
	int err;

	err = order(fd, a->path, GAIA_IOC_EVICT, &io);
	/* Older daemons have no such cache. */
	if (!err || (err == -ENODEV && from == GAIA_FROM_DEVICE_CACHE && !a->from_given))
		return EXIT_OK;
	if (from == GAIA_FROM_DEVICE_CACHE)
		strcpy(memory, "devices' caches");
	else if (from == GAIA_HOST)
		strcpy(memory, "host device");
	else if (from != GAIA_FROM_HOME)
		snprintf(memory, sizeof(memory), "device %" PRIu32, from);
	if (err == -EBUSY && is_pinned(*fd, from))
		return fail("%s: pinned to %s; 'gaia unpin' it first", a->path, memory);
	if (err == -EBUSY)
		return fail("%s: in use in %s: a program has acquired it and not yet released it", a->path, memory);
	if (err == -ENODEV && from != GAIA_FROM_HOME)
		return fail("%s: there is no %s, or this is no regular file", a->path, memory);
	return fail_on(a->path, err);
}

static int evict_from_all(int *fd, const struct args *a, uint32_t devices)
{
	struct gaia_ioc_devices host = { .first = GAIA_HOST };
	int status = EXIT_OK;

	for (uint32_t i = 0; i < devices && !status; i++)
		status = evict_from(fd, a, i);
	/* Older daemons have none. */
	if (!status && !wire_ioctl(*fd, GAIA_IOC_DEVICES, &host) && host.count)
		status = evict_from(fd, a, GAIA_HOST);
	if (!status)
		status = evict_from(fd, a, GAIA_FROM_HOME);
	return status ? status : evict_from(fd, a, GAIA_FROM_DEVICE_CACHE);
}

/*
 * Evict from the named memory, or from all: from devices first, since their released pages go home; and last what left home for a device's
 * cache.
 */
static int evict_command(const struct args *a)
{
	struct gaia_ioc_devices io = { 0 };
	int fd, err, status = EXIT_OK;

	if (check_kind(a->path, false))
		return EXIT_FAILED;
	fd = open(a->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return fail_on(a->path, -errno);
	err = wire_first_ioctl(fd, GAIA_IOC_DEVICES, &io);
	if (err) {
		status = fail_on(a->path, err);
	} else if (a->from_given) {
		status = evict_from(&fd, a, a->from);
	} else {
		status = evict_from_all(&fd, a, io.total);
	}
	close(fd);
	return status;
}

static int trace_it(const struct args *a)
{
	int status = check_kind(a->path, true);

	return status ? status : trace_command(a->path, a->seconds);
}

static int umount_it(const struct args *a)
{
	return umount_command(a->path, a->force, a->everywhere, a->discard);
}

/* ---- arguments ---- */

/* Digits and an optional K, M, G or T, up to @end. False: the text is something else. */
static bool parse_bytes(const char *text, char end, const char **rest, uint64_t *out)
{
	static const char suffixes[] = "KMGT";
	unsigned long long n;
	unsigned shift = 0;
	const char *s;
	char *after;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	n = strtoull(text, &after, 10);
	if (*after && (s = strchr(suffixes, *after))) {
		shift = 10 * (s - suffixes + 1);
		after++;
	}
	if (errno || *after != end || n > (unsigned long long)INT64_MAX >> shift)
		return false;
	*out = (uint64_t)n << shift;
	*rest = after + 1;
	return true;
}

static bool parse_range(const char *text, struct args *a)
{
	return parse_bytes(text, ':', &text, &a->offset) &&
	       parse_bytes(text, '\0', &text, &a->length) && a->length;
}

static bool parse_seconds(const char *text, struct args *a)
{
	const char *end;
	uint64_t n;

	if (!text || !parse_bytes(text, '\0', &end, &n) || !n || n > UINT32_MAX)
		return false;
	a->seconds = n;
	return true;
}

static bool parse_device(const char *text, uint32_t *device)
{
	unsigned long n;
	char *end;

	if (!text || *text < '0' || *text > '9')
		return false;
	errno = 0;
	n = strtoul(text, &end, 10);
	if (errno || *end || n >= GAIA_FROM_DEVICE_CACHE)
		return false;
	*device = (uint32_t)n;
	return true;
}

enum { OPT_JSON = 1, OPT_FROM = 2, OPT_RANGE = 4, OPT_UMOUNT = 8, OPT_RECURSIVE = 16, OPT_DEVICE = 32, OPT_PATHS = 64, OPT_SECONDS = 128, OPT_ESTIMATE = 256,
       OPT_BATCH = 512 };

static const struct command {
	const char *name;
	unsigned options;
	int (*run)(const struct args *a);
} commands[] = {
	{ "status", OPT_JSON, status_command },
	{ "stat", OPT_JSON | OPT_PATHS, stat_command },
	{ "top", OPT_BATCH | OPT_PATHS, top_command },
	{ "residency", OPT_JSON, residency_command },
	{ "flush", OPT_RECURSIVE, flush_command },
	{ "evict", OPT_FROM | OPT_RANGE, evict_command },
	{ "pin", OPT_JSON | OPT_DEVICE | OPT_PATHS, pin_command },
	{ "unpin", OPT_JSON | OPT_DEVICE | OPT_PATHS, unpin_command },
	{ "pins", OPT_JSON, pins_command },
	{ "warm", OPT_JSON | OPT_DEVICE | OPT_PATHS, warm_command },
	{ "dedup", OPT_ESTIMATE | OPT_JSON | OPT_PATHS, dedup_command },
	{ "trace", OPT_SECONDS, trace_it },
	{ "umount", OPT_UMOUNT, umount_it },
};

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		if (!strcmp(commands[i].name, name))
			return &commands[i];
	}
	return NULL;
}

/*
 * The arguments after the command's name, NULL-terminated. Returns EXIT_OK, or the status to exit with. Not getopt(): the
 * value of --from may be two words.
 */
static int parse_args(const struct command *cmd, char **argv, struct args *a)
{
	bool options = true;

	for (; *argv; argv++) {
		const char *arg = *argv;

		if (!options || arg[0] != '-' || !arg[1]) {
			if (a->path && !(cmd->options & OPT_PATHS))
				return usage("%s: one path, not both '%s' and '%s'", cmd->name, a->path, arg);
			a->paths[a->n_paths++] = *argv;
			a->path = a->paths[0];
		} else if (!strcmp(arg, "--")) {
			options = false;
		} else if (!strcmp(arg, "--json") && cmd->options & OPT_JSON) {
			a->json = true;
		} else if (!strcmp(arg, "--estimate") && cmd->options & OPT_ESTIMATE) {
			a->estimate = true;
		} else if (!strcmp(arg, "-r") && cmd->options & OPT_RECURSIVE) {
			a->recursive = true;
		} else if (!strcmp(arg, "-b") && cmd->options & OPT_BATCH) {
			a->batch = true;
		} else if (!strcmp(arg, "--force") && cmd->options & OPT_UMOUNT) {
			a->force = true;
		} else if (!strcmp(arg, "--discard") && cmd->options & OPT_UMOUNT) {
			a->discard = true;
		} else if (!strcmp(arg, "--everywhere") && cmd->options & OPT_UMOUNT) {
			a->everywhere = true;
		} else if (!strcmp(arg, "--seconds") && cmd->options & OPT_SECONDS) {
			if (!parse_seconds(argv[1], a))
				return usage("%s: --seconds takes a number", cmd->name);
			argv++;
		} else if (!strcmp(arg, "--range") && cmd->options & OPT_RANGE) {
			if (!argv[1] || !parse_range(argv[1], a))
				return usage("%s: --range is OFFSET:LENGTH, in bytes or with K, M, G or T", cmd->name);
			argv++;
		} else if (!strcmp(arg, "--device") && cmd->options & OPT_DEVICE) {
			if (!argv[1] || !parse_device(argv[1], &a->device))
				return usage("%s: --device is the number of a device", cmd->name);
			a->device_given = true;
			argv++;
		} else if (!strcmp(arg, "--from") && cmd->options & OPT_FROM) {
			a->from_given = true;
			a->from = GAIA_FROM_HOME;
			if (argv[1] && !strcmp(argv[1], "device-cache"))
				a->from = GAIA_FROM_DEVICE_CACHE;
			else if (argv[1] && !strcmp(argv[1], "host"))
				a->from = GAIA_HOST;
			else if (argv[1] && !strcmp(argv[1], "device") && parse_device(argv[2], &a->from))
				argv++;
			else if (!argv[1] || strcmp(argv[1], "home"))
				return usage("%s: --from is 'home', 'host', 'device N' or 'device-cache'", cmd->name);
			argv++;
		} else {
			return usage("%s: no option '%s'", cmd->name, arg);
		}
	}
	if (!a->path)
		return usage("%s: a path is missing", cmd->name);
	return EXIT_OK;
}

int main(int argc, char **argv)
{
	const struct command *cmd;
	struct args a = { 0 };
	int status;

	if (argc < 2)
		return usage("a command is missing");
	for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
		if (!strcmp(argv[i], "--help") || (i == 1 && (!strcmp(argv[i], "-h") || !strcmp(argv[i], "help")))) {
			fputs(usage_text, stdout);
			return EXIT_OK;
		}
		if (!strcmp(argv[i], "--version") || (i == 1 && !strcmp(argv[i], "-V"))) {
			puts("gaia " GAIA_VERSION);
			return EXIT_OK;
		}
	}
	cmd = find_command(argv[1]);
	if (!cmd)
		return usage("no command '%s'", argv[1]);
	a.paths = calloc((size_t)argc + 1, sizeof(char *));
	if (!a.paths)
		return fail("%s", strerror(ENOMEM));
	status = parse_args(cmd, argv + 2, &a);
	if (!status)
		status = cmd->run(&a);
	free(a.paths);
	return status;
}
