/*
 * gaia.c - look at a gaiafs mount and give it orders: the gaia(1) command.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../report.h"
#include "../wire.h"
#include "tool.h"
#include "work.h"

static const char usage_text[] =
	"usage: gaia status MOUNT [--json]\n"
	"       gaia stat [MOUNT] [INTERVAL [COUNT]] [--json]\n"
	"       gaia top [MOUNT] [INTERVAL [COUNT]] [-b]\n"
	"       gaia residency FILE... | -r DIR... [--null] [--files-from LIST] [--json]\n"
	"       gaia flush FILE... | MOUNT | -r DIR... [--null] [--files-from LIST]\n"
	"       gaia evict FILE... | -r DIR... [--null] [--files-from LIST] [--from home | --from host | --from device N | --from device-cache] [--range OFFSET:LENGTH]\n"
	"       gaia pin FILE|DIR... [--null] [--files-from LIST] [--device N] [--json]\n"
	"       gaia unpin FILE|DIR... [--null] [--files-from LIST] [--device N] [--json]\n"
	"       gaia pins MOUNT [--json]\n"
	"       gaia warm FILE|DIR... [--null] [--files-from LIST] [--device N] [--json]\n"
	"       gaia dedup --estimate FILE|DIR... [--json]\n"
	"       gaia set [--wait] MOUNT NAME=VALUE...\n"
	"       gaia reload MOUNT\n"
	"       gaia trace MOUNT [--seconds N]\n"
	"       gaia check-source DIR DIR [--json]\n"
	"       gaia umount MOUNT [--discard] [--everywhere] | MOUNT --force\n"
	"       gaia --help | --version\n";

/* Names of files come from users: a name must not forge a line or send commands to root's terminal. */
static void make_harmless(char *line)
{
	for (unsigned char *c = (unsigned char *)line; *c; c++) {
		if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)
			c[0] = c[1] = '?'; /* a control character of two bytes */
		else if (*c < ' ' || *c == 0x7f)
			*c = '?';
	}
}

static bool progress_shown; /* a line of say_progress() is on the terminal */

void say_progress(bool terminal, const char *fmt, ...)
{
	char line[2 * PATH_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	make_harmless(line);
	fprintf(stderr, "%sgaia: %s%s", terminal ? "\r" : "", line, terminal ? "\033[K" : "\n");
	progress_shown = terminal;
}

void end_progress(void)
{
	if (progress_shown)
		fputs("\r\033[K", stderr);
	progress_shown = false;
}

static void say(const char *fmt, va_list ap)
{
	char line[2 * PATH_MAX];

	vsnprintf(line, sizeof(line), fmt, ap);
	make_harmless(line);
	progress_clear_any();
	end_progress();
	fprintf(stderr, "gaia: %s\n", line);
}

int fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
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
	case EOPNOTSUPP:
		return fail("%s: " NOT_FOR_SHARED, path);
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

int check_kind(const char *path, bool or_directory)
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
	if (S_ISDIR(st.st_mode))
		return fail("%s: a directory; -r is for the files in it", path);
	return fail("%s: %s; this is for regular files%s", path, kind, or_directory ? " and directories" : ", whose contents are cached");
}

/* ---- reports ---- */

/* Even the mount's root may not be opened while the file system below, a distributed one, waits for its server. */
#define SILENCE_S 2

struct silence {
	const char *path;
	pthread_t thread;
	bool watched;
	sem_t over;
};

static void complain(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	say(fmt, ap);
	va_end(ap);
}

static void *watch_silence(void *arg)
{
	struct silence *s = arg;
	struct timespec until;
	int res;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += SILENCE_S;
	do
		res = sem_clockwait(&s->over, CLOCK_MONOTONIC, &until);
	while (res && errno == EINTR);
	if (res)
		complain("%s: waiting for source: neither it nor the daemon answers yet", s->path);
	return NULL;
}

/* Until silence_ends() a line says so if nothing answers. Without a thread none does. */
static void silence_begins(struct silence *s, const char *path)
{
	s->path = path;
	sem_init(&s->over, 0, 0);
	s->watched = !pthread_create(&s->thread, NULL, watch_silence, s);
}

static void silence_ends(struct silence *s)
{
	sem_post(&s->over);
	if (s->watched)
		pthread_join(s->thread, NULL);
	sem_destroy(&s->over);
}

/* 0, and the report, to be freed; or one of the exit codes, and a line has said why. */
static int read_report(const struct args *a, unsigned what, char **text)
{
	int fd, err;

	if (check_kind(a->path, what != GAIA_REPORT_RESIDENCY))
		return EXIT_FAILED;
	fd = open(a->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return fail_on(a->path, -errno);
	err = fetch_report(fd, what, text);
	close(fd);
	return err ? fail_on(a->path, err) : EXIT_OK;
}

int report_command(const struct args *a, unsigned what)
{
	json_error_t where;
	struct silence silence;
	json_t *report;
	char *text;
	int err;

	silence_begins(&silence, a->path);
	err = read_report(a, what, &text);
	silence_ends(&silence);
	if (err)
		return err;
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

/* ---- files and mounts ---- */

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

/* Other users may replace parts of the tree by links meanwhile: opens only files that lie below it, on the same mount. */
int open_beneath(int dir, const char *name)
{
	struct open_how how = { .flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };

	while (*name == '/')
		name++;
	return if_ours((int)syscall(SYS_openat2, dir, name, &how, sizeof(how)));
}

int sync_kernel(int fd)
{
	for (int tries = 0; syncfs(fd); tries++)
		if (errno != EINTR || tries == 3)
			return -errno;
	return 0;
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

/* Adds a copy to the paths. False: no memory. */
static bool add_path_arg(struct args *a, size_t *room, const char *path)
{
	char *copy;

	if (a->n_paths + 1 >= *room) {
		char **more = realloc(a->paths, 2 * *room * sizeof(*more));

		if (!more)
			return false;
		a->paths = more;
		*room *= 2;
	}
	copy = strdup(path);
	if (!copy)
		return false;
	a->paths[a->n_paths++] = copy;
	a->path = a->paths[0];
	return true;
}

/* A name a line. Returns EXIT_OK, or says what is wrong. */
static int read_list(const char *name, struct args *a, size_t *room)
{
	FILE *list = strcmp(name, "-") ? fopen(name, "re") : stdin;
	char *line = NULL;
	size_t size = 0;
	int err = 0;

	if (!list)
		return fail("%s: %s", name, strerror(errno));
	while (!err && getdelim(&line, &size, a->null ? '\0' : '\n', list) > 0) {
		line[a->null ? strlen(line) : strcspn(line, "\n")] = '\0';
		err = *line && !add_path_arg(a, room, line) ? ENOMEM : 0;
	}
	if (!err && ferror(list))
		err = errno;
	free(line);
	if (list != stdin)
		fclose(list);
	return err ? fail("%s: %s", name, strerror(err)) : EXIT_OK;
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
       OPT_BATCH = 512, OPT_LIST = 1024, OPT_WAIT = 2048, OPT_NO_PATH = 4096 };

#define OPT_FILES (OPT_PATHS | OPT_LIST)

static const struct command {
	const char *name;
	unsigned options;
	int (*run)(const struct args *a);
} commands[] = {
	{ "status", OPT_JSON, status_command },
	{ "stat", OPT_JSON | OPT_PATHS | OPT_NO_PATH, stat_command },
	{ "top", OPT_BATCH | OPT_PATHS | OPT_NO_PATH, top_command },
	{ "residency", OPT_JSON | OPT_RECURSIVE | OPT_FILES, residency_command },
	{ "flush", OPT_RECURSIVE | OPT_FILES, flush_command },
	{ "evict", OPT_FROM | OPT_RANGE | OPT_RECURSIVE | OPT_FILES, evict_command },
	{ "pin", OPT_JSON | OPT_DEVICE | OPT_FILES, pin_command },
	{ "unpin", OPT_JSON | OPT_DEVICE | OPT_FILES, unpin_command },
	{ "pins", OPT_JSON, pins_command },
	{ "warm", OPT_JSON | OPT_DEVICE | OPT_FILES, warm_command },
	{ "dedup", OPT_ESTIMATE | OPT_JSON | OPT_PATHS, dedup_command },
	{ "set", OPT_PATHS | OPT_WAIT, set_command },
	{ "reload", 0, reload_command },
	{ "trace", OPT_SECONDS, trace_it },
	{ "check-source", OPT_JSON | OPT_PATHS, check_source_command },
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
static int parse_args(const struct command *cmd, char **argv, struct args *a, size_t room)
{
	bool options = true, listed = false;
	int status;

	for (; *argv; argv++) {
		const char *arg = *argv;

		if (!options || arg[0] != '-' || !arg[1]) {
			if (a->path && !(cmd->options & OPT_PATHS))
				return usage("%s: one path, not both '%s' and '%s'", cmd->name, a->path, arg);
			if (!add_path_arg(a, &room, *argv))
				return fail("%s", strerror(ENOMEM));
		} else if (!strcmp(arg, "--")) {
			options = false;
		} else if (!strcmp(arg, "--json") && cmd->options & OPT_JSON) {
			a->json = true;
		} else if (!strcmp(arg, "--estimate") && cmd->options & OPT_ESTIMATE) {
			a->estimate = true;
		} else if (!strcmp(arg, "-r") && cmd->options & OPT_RECURSIVE) {
			a->recursive = true;
		} else if (!strcmp(arg, "--files-from") && cmd->options & OPT_LIST) {
			if (!argv[1])
				return usage("%s: --files-from is a file with a name a line, or '-'", cmd->name);
			status = read_list(*++argv, a, &room);
			if (status)
				return status;
			listed = true;
		} else if (!strcmp(arg, "--null") && cmd->options & OPT_LIST) {
			a->null = true;
		} else if (!strcmp(arg, "-b") && cmd->options & OPT_BATCH) {
			a->batch = true;
		} else if (!strcmp(arg, "--wait") && cmd->options & OPT_WAIT) {
			a->wait = true;
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
	if (a->length && a->n_paths > 1)
		return usage("%s: --range is of one file", cmd->name);
	/* An empty list is done. */
	if (!a->path && !listed && !(cmd->options & OPT_NO_PATH))
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
	status = parse_args(cmd, argv + 2, &a, (size_t)argc + 1);
	if (!status && (a.path || cmd->options & OPT_NO_PATH))
		status = cmd->run(&a);
	for (size_t i = 0; i < a.n_paths; i++)
		free(a.paths[i]);
	free(a.paths);
	return status;
}
