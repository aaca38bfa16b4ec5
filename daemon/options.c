/*
 * options.c - see options.h.
 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"
#include "fuse/fs.h"
#include "pagecache/cache.h"

#define DEFAULT_AGE_S 5
#define DEFAULT_UNMOUNT_TIMEOUT_S 60

static const char help[] =
	"usage: gaiafs [options] DIR                 mount DIR over itself\n"
	"       gaiafs [options] SOURCE MOUNTPOINT   mount SOURCE on MOUNTPOINT\n"
	"\n"
	"  --device sim[:SIZE][,KEY=VALUE]...   a simulated device (256M); keys: count=N,\n"
	"                                       bandwidth=SIZE (a second), latency=MICROSECONDS,\n"
	"                                       peers=on|off (copies from other devices, on),\n"
	"                                       readonly=on|off (off: as a GPU shares, on),\n"
	"                                       strict=on|off (a touch of what is not acquired is a\n"
	"                                       SIGSEGV, on)\n"
	"  --device cuda[:INDEX[,SIZE]]         a GPU (0), with 80 % of its free memory\n"
	"  --device none                        no device; without --device: every GPU that works,\n"
	"                                       and if there is none, a simulated device\n"
	"  --home SIZE                          host memory for file contents (a quarter of the\n"
	"                                       machine's or, if less, the cgroup's; 4G at most)\n"
	"  --cpu-cache auto|writeback|writethrough\n"
	"                                       how the kernel caches for CPU programs (auto: it\n"
	"                                       serves files that no device maps by itself)\n"
	"  --storage-io direct|buffered         how what is cached is read: past the kernel's memory,\n"
	"                                       where it has nothing of it, or never (direct)\n"
	"  --writeback-age SECONDS              store what has been dirty for so long (5)\n"
	"  --device-age SECONDS                 fetch and store what a device has released for so\n"
	"                                       long (as --writeback-age)\n"
	"  --unmount-timeout SECONDS            once unmounted, try for so long to store what cannot be\n"
	"                                       stored (60)\n"
	"  --user-limit WHAT=N[,WHAT=N]...      how many a user other than root may have: clients (1024),\n"
	"                                       mappings (16384), open directories and\n"
	"                                       removed_files that are in use (by ulimit -n);\n"
	"                                       device=PERCENT of each device's memory (75)\n"
	"  --supervisor on|off|unmount          a second process that ends the connection when this\n"
	"                                       one is killed, so that nobody hangs (on), and takes\n"
	"                                       the mount away, too (unmount)\n"
	"  --log-level error|warn|info|debug    (info)\n"
	"  -f, --foreground                     stay there, and log to standard error\n"
	"  -o OPTION[,OPTION]...                mount options: ro, allow_other, noatime, ...\n"
	"  -h, --help\n"
	"  -V, --version\n"
	"\n"
	"SIZE takes the suffixes K, M, G, T. `gaia umount DIR` ends it.\n";

static int add_devices(struct options *o, const struct device_choice *like, uint64_t count)
{
	if (o->n_devices + count > CACHE_MAX_DEVICES) {
		log_error("--device: more than %u devices are too many", CACHE_MAX_DEVICES);
		return -EINVAL;
	}
	o->device = xrealloc(o->device, (o->n_devices + count) * sizeof(*o->device));
	while (count--) {
		o->device[o->n_devices] = *like;
		o->device[o->n_devices].sim.index = o->n_devices;
		o->n_devices++;
	}
	return 0;
}

/* A number of microseconds, with or without "us". */
static int parse_latency(const char *text, uint64_t *ns)
{
	char *end;
	unsigned long us;

	errno = 0;
	us = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || errno || us > 1000000000 || (*end && strcmp(end, "us")))
		return -EINVAL;
	*ns = us * 1000;
	return 0;
}

static int parse_off(const char *text, bool *off)
{
	*off = !strcmp(text, "off");
	return *off || !strcmp(text, "on") ? 0 : -EINVAL;
}

static int parse_sim_key(const char *key, struct sim_config *sim, uint64_t *count)
{
	if (!strncmp(key, "bandwidth=", 10))
		return parse_size(key + 10, &sim->bandwidth) ? -EINVAL : 0;
	if (!strncmp(key, "latency=", 8))
		return parse_latency(key + 8, &sim->latency_ns);
	if (!strncmp(key, "peers=", 6))
		return parse_off(key + 6, &sim->no_peers);
	if (!strncmp(key, "readonly=", 9))
		return parse_off(key + 9, &sim->no_readonly);
	if (!strncmp(key, "strict=", 7))
		return parse_off(key + 7, &sim->lax);
	if (!strncmp(key, "count=", 6)) {
		int err = parse_size(key + 6, count);

		return err == -ERANGE || (!err && (!*count || *count > CACHE_MAX_DEVICES)) ? -ERANGE : err;
	}
	return -ENOENT;
}

/* @text: what follows "sim". */
static int parse_sim(struct options *o, const char *text)
{
	struct device_choice choice = { CHOICE_SIM, .sim = OPTIONS_USUAL_SIM };
	struct sim_config *sim = &choice.sim;
	char *copy = strdup(text), *rest = copy, *word;
	uint64_t count = 1;
	int err = -ENOMEM;

	if (!copy)
		goto out;
	word = strsep(&rest, ",");
	if (*word) {
		err = parse_size(word + 1, &sim->capacity);
		if (err || sim->capacity < GAIA_CHUNK || sim->capacity > OPTIONS_SIM_MAX) {
			log_error("--device sim%s: \"%s\" is not a size from 2M to %lluT", text, word + 1,
				  OPTIONS_SIM_MAX >> 40);
			err = -EINVAL;
			goto out;
		}
	}
	while ((word = strsep(&rest, ","))) {
		err = parse_sim_key(word, sim, &count);
		if (err == -ERANGE) {
			log_error("--device sim%s: \"%s\": from 1 to %u devices", text, word, CACHE_MAX_DEVICES);
			goto out;
		}
		if (err) {
			log_error("--device sim%s: \"%s\" is not count=N, bandwidth=SIZE, "
				  "latency=MICROSECONDS, peers=on|off, readonly=on|off or strict=on|off", text, word);
			goto out;
		}
	}
	err = add_devices(o, &choice, count);
out:
	free(copy);
	return err;
}

/* @text: what follows "cuda". Which GPUs there are is seen later, when CUDA may be asked. */
static int parse_cuda(struct options *o, const char *text)
{
	struct device_choice choice = { CHOICE_CUDA, .cuda = { .index = 0 } };
	unsigned long index = 0;
	char *end = "";

	errno = 0;
	if (*text)
		index = strtoul(text + 1, &end, 10);
	if ((*text && (text[1] < '0' || text[1] > '9')) || errno || index > 1023 ||
	    (*end && *end != ',')) {
		log_error("--device cuda%s: not a GPU's number, 0 for the first", text);
		return -EINVAL;
	}
	choice.cuda.index = (unsigned)index;
	if (*end && (parse_size(end + 1, &choice.cuda.capacity) || choice.cuda.capacity < GAIA_CHUNK)) {
		log_error("--device cuda%s: \"%s\" is not a size of at least 2M", text, end + 1);
		return -EINVAL;
	}
	for (unsigned i = 0; i < o->n_devices; i++) {
		if (o->device[i].kind != CHOICE_CUDA || o->device[i].cuda.index != index)
			continue;
		log_error("--device cuda%s: GPU %lu is named twice", text, index);
		return -EINVAL;
	}
	return add_devices(o, &choice, 1);
}

static int parse_device(struct options *o, const char *text, bool *none)
{
	if (!strcmp(text, "none")) {
		*none = true;
		return 0;
	}
	if (!strncmp(text, "sim", 3) && (!text[3] || text[3] == ':' || text[3] == ','))
		return parse_sim(o, text + 3);
	if (!strncmp(text, "cuda", 4) && (!text[4] || text[4] == ':'))
		return parse_cuda(o, text + 4);
	log_error("--device %s: no such kind of device; there are sim, cuda and none", text);
	return -EINVAL;
}

static int parse_home(struct options *o, const char *text)
{
	int err = parse_size(text, &o->home_bytes);

	if (!err && o->home_bytes >= CACHE_HOME_MIN && o->home_bytes <= CACHE_HOME_MAX)
		return 0;
	log_error("--home %s: not a size from %lluM to %lluT", text, CACHE_HOME_MIN >> 20, CACHE_HOME_MAX >> 40);
	return -EINVAL;
}

/* "clients=16": the word up to a comma or the end. */
static int parse_user_limit(struct options *o, const char *word, size_t len)
{
	const char *is = memchr(word, '=', len);
	enum quota_of what = is ? quota_named(word, (size_t)(is - word)) : QUOTA_COUNT;
	bool device = is && is - word == 6 && !memcmp(word, "device", 6);
	unsigned long n;
	char *end;

	if ((what == QUOTA_COUNT && !device) || is[1] < '0' || is[1] > '9')
		return -EINVAL;
	errno = 0;
	n = strtoul(is + 1, &end, 10);
	if (errno || end != word + len || !n || n > (device ? 100 : INT_MAX))
		return -EINVAL;
	if (device)
		o->device_percent = (unsigned)n;
	else
		o->each_user[what] = (unsigned)n;
	return 0;
}

static int parse_user_limits(struct options *o, const char *text)
{
	const char *word = text;
	size_t len;

	for (;;) {
		len = strcspn(word, ",");
		if (parse_user_limit(o, word, len)) {
			log_error("--user-limit %s: \"%.*s\" is not clients=N, mappings=N, directories=N, removed_files=N or device=PERCENT", text,
				  (int)len, word);
			return -EINVAL;
		}
		if (!word[len])
			return 0;
		word += len + 1;
	}
}

static int parse_seconds(const char *option, const char *text, double least, uint64_t *ms)
{
	char *end;
	double s = strtod(text, &end);

	if (end != text && !*end && s >= least && s <= 86400) {
		*ms = (uint64_t)(s * 1000);
		return 0;
	}
	log_error("--%s %s: not a number of seconds from %g to 86400", option, text, least);
	return -EINVAL;
}

static int parse_cpu_cache(struct options *o, const char *text)
{
	static const char *const ways[] = {
		[FS_AUTO] = "auto",
		[FS_WRITEBACK] = "writeback",
		[FS_WRITETHROUGH] = "writethrough",
	};

	for (size_t k = 0; k < ARRAY_LEN(ways); k++)
		if (!strcmp(text, ways[k])) {
			o->cpu_cache = (enum fs_cpu_cache)k;
			return 0;
		}
	log_error("--cpu-cache %s: not one of auto, writeback, writethrough", text);
	return -EINVAL;
}

/* Not in the help: for tables of mounts and scripts that name it. */
static int ignore_transport(const char *text)
{
	if (strcmp(text, "auto") && strcmp(text, "dev")) {
		log_error("--transport %s: requests come by /dev/fuse only; leave the option out", text);
		return -EINVAL;
	}
	log_warn("--transport %s: the option has no effect any more", text);
	return 0;
}

static int parse_either(const char *option, const char *text, const char *yes, const char *no, bool *out)
{
	*out = !strcmp(text, yes);
	if (*out || !strcmp(text, no))
		return 0;
	log_error("--%s %s: neither %s nor %s", option, text, yes, no);
	return -EINVAL;
}

static int parse_supervisor(struct options *o, const char *text)
{
	o->unmounts_dead = !strcmp(text, "unmount");
	o->supervised = o->unmounts_dead || !strcmp(text, "on");
	if (o->supervised || !strcmp(text, "off"))
		return 0;
	log_error("--supervisor %s: none of on, off, unmount", text);
	return -EINVAL;
}

static int parse_log_level(const char *text)
{
	enum log_level level;

	if (log_level_parse(text, &level)) {
		log_error("--log-level %s: none of error, warn, info, debug", text);
		return -EINVAL;
	}
	log_set_level(level);
	return 0;
}

static void add_mount_options(struct options *o, const char *text)
{
	size_t had = strlen(o->mount_options), more = strlen(text);

	o->mount_options = xrealloc(o->mount_options, had + more + 2);
	if (had)
		o->mount_options[had++] = ',';
	memcpy(o->mount_options + had, text, more + 1);
}

static int parse_one(struct options *o, int c, bool *none)
{
	switch (c) {
	case 'd':
		return parse_device(o, optarg, none);
	case 'm':
		return parse_home(o, optarg);
	case 'c':
		return parse_cpu_cache(o, optarg);
	case 't':
		return ignore_transport(optarg);
	case 'i':
		return parse_either("storage-io", optarg, "direct", "buffered", &o->direct);
	case 'a':
		return parse_seconds("writeback-age", optarg, 0.001, &o->writeback_age_ms);
	case 'A':
		return parse_seconds("device-age", optarg, 0.001, &o->device_age_ms);
	case 'U':
		return parse_seconds("unmount-timeout", optarg, 0, &o->unmount_timeout_ms);
	case 'u':
		return parse_user_limits(o, optarg);
	case 's':
		return parse_supervisor(o, optarg);
	case 'l':
		return parse_log_level(optarg);
	case 'o':
		add_mount_options(o, optarg);
		return 0;
	case 'f':
		o->foreground = true;
		return 0;
	}
	return -EINVAL;
}

static int parse_paths(struct options *o, int n, char **path)
{
	if (n != 1 && n != 2) {
		log_error("%s; `gaiafs -h` shows how to use it",
			  n ? "more than a source and a mount point" : "which directory?");
		return -EINVAL;
	}
	o->source = path[0];
	o->mountpoint = path[n - 1];
	return 0;
}

enum options_result options_parse(int argc, char **argv, struct options *out)
{
	static const struct option longs[] = {
		{ "device", required_argument, NULL, 'd' },
		{ "home", required_argument, NULL, 'm' },
		{ "cpu-cache", required_argument, NULL, 'c' },
		{ "transport", required_argument, NULL, 't' },
		{ "storage-io", required_argument, NULL, 'i' },
		{ "writeback-age", required_argument, NULL, 'a' },
		{ "device-age", required_argument, NULL, 'A' },
		{ "unmount-timeout", required_argument, NULL, 'U' },
		{ "user-limit", required_argument, NULL, 'u' },
		{ "supervisor", required_argument, NULL, 's' },
		{ "log-level", required_argument, NULL, 'l' },
		{ "foreground", no_argument, NULL, 'f' },
		{ "help", no_argument, NULL, 'h' },
		{ "version", no_argument, NULL, 'V' },
		{ NULL, 0, NULL, 0 },
	};
	bool none = false;
	int c;

	*out = (struct options){
		.mount_options = xcalloc(1, 1),
		.writeback_age_ms = DEFAULT_AGE_S * 1000,
		.unmount_timeout_ms = DEFAULT_UNMOUNT_TIMEOUT_S * 1000,
		.cpu_cache = FS_AUTO,
		.direct = true,
		.supervised = true,
	};
	opterr = 0;
	while ((c = getopt_long(argc, argv, ":fho:V", longs, NULL)) != -1) {
		if (c == 'h') {
			fputs(help, stdout);
			return OPTIONS_DONE;
		}
		if (c == 'V') {
			printf("gaiafs %s (libfuse %s)\n", GAIA_VERSION, fs_libfuse());
			return OPTIONS_DONE;
		}
		if (c == '?' || c == ':') {
			log_error("%s: %s; `gaiafs -h` shows how to use it", argv[optind - 1],
				  c == ':' ? "a value is missing" : "no such option");
			return OPTIONS_WRONG;
		}
		if (parse_one(out, c, &none))
			return OPTIONS_WRONG;
	}
	if (none && out->n_devices) {
		log_error("--device none and other devices exclude each other");
		return OPTIONS_WRONG;
	}
	if (parse_paths(out, argc - optind, argv + optind))
		return OPTIONS_WRONG;
	out->choose_devices = !none && !out->n_devices;
	return OPTIONS_RUN;
}

void options_free(struct options *o)
{
	free(o->mount_options);
	free(o->device);
}
