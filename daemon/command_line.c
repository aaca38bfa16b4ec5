/*
 * command_line.c - the command line of gaiafs, and its help.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"
#include "option_kinds.h"

#define HELP_COLUMN 39

/* Print "  --home SIZE", and its help in a column of its own. */
static void print_option(const struct option_kind *k)
{
	const char *lines = k->help;
	size_t n;
	int at;

	if (k->name && k->letter)
		at = printf("  -%c, --%s", k->letter, k->name);
	else if (k->name)
		at = printf("  --%s", k->name);
	else
		at = printf("  -%c", k->letter);
	if (k->value)
		at += printf(" %s", k->value);
	if (at >= HELP_COLUMN) {
		putchar('\n');
		at = 0;
	}
	for (; *lines; lines += n + (lines[n] == '\n'), at = 0) {
		n = strcspn(lines, "\n");
		printf("%*s%.*s\n", HELP_COLUMN - at, "", (int)n, lines);
	}
}

static void print_help(void)
{
	fputs("usage: gaiafs [options] DIR                 mount DIR over itself\n"
	      "       gaiafs [options] SOURCE MOUNTPOINT   mount SOURCE on MOUNTPOINT\n"
	      "       gaiafs --upgrade [--force] [--leave] [--wait SECONDS] DIR\n"
	      "                                            have this program serve what is mounted on DIR\n\n",
	      stdout);
	for (size_t i = 0; i < n_option_kinds; i++)
		if (*option_kinds[i].help)
			print_option(&option_kinds[i]);
	fputs("\nSIZE takes the suffixes K, M, G, T. `gaia umount DIR` unmounts it.\n", stdout);
}

static int wrong(struct options *o, const char *what)
{
	snprintf(o->why, sizeof(o->why), "%s; `gaiafs -h` shows how to use it", what);
	return -EINVAL;
}

/* The one directory that is named is where to mount, if a configuration file has named the source. */
static int parse_paths(struct options *o, int n, char **path)
{
	if (n != 1 && n != 2)
		return wrong(o, n ? "more than a source and a mount point" : "no directory is named");
	if (o->upgrade && n != 1) {
		snprintf(o->why, sizeof(o->why), "--upgrade: one mount point is to be named");
		return -EINVAL;
	}
	if (o->waits && !o->upgrade) {
		snprintf(o->why, sizeof(o->why), "--wait: means something with --upgrade only");
		return -EINVAL;
	}
	if ((o->force || o->leave) && !o->upgrade) {
		snprintf(o->why, sizeof(o->why), "--%s: means something with --upgrade only", o->force ? "force" : "leave");
		return -EINVAL;
	}
	o->source = n == 1 && o->config_source ? o->config_source : path[0];
	o->mountpoint = path[n - 1];
	return 0;
}

/* Make what getopt_long(3) needs: it returns each option by its place in the table. */
#define FIRST_KIND 256

static void list_kinds(struct option *longs, char *letters)
{
	*letters++ = ':';
	for (size_t i = 0; i < n_option_kinds; i++) {
		const struct option_kind *k = &option_kinds[i];

		if (k->name)
			*longs++ = (struct option){ k->name, k->value ? required_argument : no_argument, NULL,
						    FIRST_KIND + (int)i };
		if (k->letter)
			*letters++ = k->letter;
		if (k->letter && k->value)
			*letters++ = ':';
	}
	*longs = (struct option){ 0 };
	*letters = '\0';
}

static const struct option_kind *kind_of(int c)
{
	for (size_t i = 0; i < n_option_kinds; i++)
		if (c == FIRST_KIND + (int)i || (option_kinds[i].letter && c == option_kinds[i].letter))
			return &option_kinds[i];
	return NULL;
}

/* "FILE", or "-FILE": then it may be missing. It is read again later, wherever the daemon is then. */
static int take_config(struct options *o, const char *text)
{
	bool may_lack = *text == '-';
	const char *path = text + may_lack;
	size_t size = strlen(path) + (o->cwd ? strlen(o->cwd) : 0) + 2;

	if (o->config) {
		snprintf(o->why, sizeof(o->why), "--config: given more than once");
		return -EINVAL;
	}
	if (!*path) {
		snprintf(o->why, sizeof(o->why), "--config: no file is named");
		return -EINVAL;
	}
	o->config = xmalloc(size);
	o->config_may_lack = may_lack;
	snprintf(o->config, size, "%s%s%s", *path == '/' || !o->cwd ? "" : o->cwd, *path == '/' || !o->cwd ? "" : "/", path);
	return config_read(o, o->config, may_lack);
}

static enum options_result parse(int argc, char **argv, struct options *out)
{
	struct option longs[N_OPTION_KINDS + 1];
	char letters[2 * N_OPTION_KINDS + 2];
	const struct option_kind *kind;
	bool of_mounts = false; /* an option was given that an upgrade does not change */
	int c;

	list_kinds(longs, letters);
	opterr = 0;
	optind = 0; /* begin anew */
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		kind = kind_of(c);
		if (!kind) {
			snprintf(out->why, sizeof(out->why), "%s: %s; `gaiafs -h` shows how to use it", argv[optind - 1],
				 c == ':' ? "a value is missing" : "no such option");
			return OPTIONS_WRONG;
		}
		if (kind->letter == 'h') {
			print_help();
			return OPTIONS_DONE;
		}
		if (kind->letter == 'V') {
			printf("gaiafs %s (libfuse %s)\n", GAIA_VERSION, fs_libfuse());
			return OPTIONS_DONE;
		}
		if (kind->letter == 'c' ? take_config(out, optarg) : option_take_kind(out, kind, optarg))
			return OPTIONS_WRONG;
		of_mounts |= !kind->name || (strcmp(kind->name, "upgrade") && strcmp(kind->name, "force") && strcmp(kind->name, "leave") &&
					     strcmp(kind->name, "wait") && strcmp(kind->name, "log-level"));
	}
	if (out->upgrade && of_mounts) {
		snprintf(out->why, sizeof(out->why), "--upgrade: the mount keeps the options that it has; unmount, and mount with others");
		return OPTIONS_WRONG;
	}
	if (out->no_device && out->n_devices) {
		snprintf(out->why, sizeof(out->why), "--device none cannot be combined with other devices");
		return OPTIONS_WRONG;
	}
	if (parse_paths(out, argc - optind, argv + optind))
		return OPTIONS_WRONG;
	if (options_fit_source(out))
		return OPTIONS_WRONG;
	out->choose_devices = !out->no_device && !out->n_devices;
	return OPTIONS_RUN;
}

enum options_result options_parse(int argc, char **argv, struct options *out)
{
	char cwd[PATH_MAX];
	enum options_result result;

	options_begin(out);
	if (getcwd(cwd, sizeof(cwd)))
		out->cwd = strdup(cwd);
	result = parse(argc, argv, out);
	if (result == OPTIONS_WRONG)
		log_at(LOG_LEVEL_ERROR, "%s", out->why);
	return result;
}

bool options_parse_again(int argc, char **argv, const struct options *was, struct options *out)
{
	options_begin(out);
	out->cwd = was->cwd ? strdup(was->cwd) : NULL;
	if (parse(argc, argv, out) != OPTIONS_RUN)
		return false;
	/* Somebody is replacing it, perhaps. */
	if (was->config_found && !out->config_found) {
		snprintf(out->why, sizeof(out->why), "%s: is missing now", out->config);
		return false;
	}
	return true;
}
