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
#include "metrics.h"
#include "option_table.h"
#include "pagecache/cache.h"

static int add_devices(struct options *o, const struct device_choice *like, uint64_t count)
{
	if (o->n_devices + count > CACHE_MAX_DEVICES) {
		log_error("--device: there can be at most %u devices", CACHE_MAX_DEVICES);
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

/* "cache=SIZE|auto". */
static int parse_cache(const char *text, uint64_t *bytes)
{
	if (!strcmp(text, "auto")) {
		*bytes = CACHE_DEVICE_AUTO;
		return 0;
	}
	return parse_size(text, bytes) || (*bytes && *bytes < GAIA_CHUNK) ? -EINVAL : 0;
}

static int parse_sim_key(const char *key, struct sim_config *sim, uint64_t *count)
{
	if (!strncmp(key, "bandwidth=", 10))
		return parse_size(key + 10, &sim->bandwidth) ? -EINVAL : 0;
	if (!strncmp(key, "local=", 6))
		return parse_size(key + 6, &sim->local) ? -EINVAL : 0;
	if (!strncmp(key, "latency=", 8))
		return parse_latency(key + 8, &sim->latency_ns);
	if (!strncmp(key, "submit=", 7))
		return parse_latency(key + 7, &sim->submit_ns);
	if (!strncmp(key, "wait=", 5))
		return parse_off(key + 5, &sim->no_wait);
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
		err = strncmp(word, "cache=", 6) ? parse_sim_key(word, sim, &count) : parse_cache(word + 6, &choice.cache);
		if (err == -ERANGE) {
			log_error("--device sim%s: \"%s\": not a number of devices from 1 to %u", text, word, CACHE_MAX_DEVICES);
			goto out;
		}
		if (err) {
			log_error("--device sim%s: \"%s\" is not count=N, bandwidth=SIZE, local=SIZE, "
				  "latency=MICROSECONDS, submit=MICROSECONDS, wait=on|off, peers=on|off, "
				  "readonly=on|off, strict=on|off or cache=SIZE|auto", text, word);
			goto out;
		}
	}
	err = add_devices(o, &choice, count);
out:
	free(copy);
	return err;
}

/* "SIZE", "cache=SIZE|auto", or both in this order. */
static int parse_cuda_keys(const char *text, struct device_choice *choice)
{
	const char *comma = strchr(text, ','), *key = !strncmp(text, "cache=", 6) ? text : comma ? comma + 1 : NULL;
	char *size = strndup(text, comma ? (size_t)(comma - text) : strlen(text));
	int err = size ? 0 : -ENOMEM;

	if (!err && key != text)
		err = parse_size(size, &choice->cuda.capacity) || choice->cuda.capacity < GAIA_CHUNK ? -EINVAL : 0;
	if (!err && key)
		err = strncmp(key, "cache=", 6) ? -EINVAL : parse_cache(key + 6, &choice->cache);
	free(size);
	return err;
}

/* @text: what follows "cuda". Which GPUs exist is found out later, when CUDA may be called. */
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
		log_error("--device cuda%s: not the number of a GPU (0 is the first)", text);
		return -EINVAL;
	}
	choice.cuda.index = (unsigned)index;
	if (*end && parse_cuda_keys(end + 1, &choice)) {
		log_error("--device cuda%s: \"%s\" is not a size of at least 2M, cache=SIZE or cache=auto", text, end + 1);
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

static int parse_device(struct options *o, const char *text)
{
	if (!strcmp(text, "none")) {
		o->no_device = true;
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
	bool pinned = is && is - word == 6 && !memcmp(word, "pinned", 6);
	unsigned long n;
	char *end;

	if ((what == QUOTA_COUNT && !device && !pinned) || is[1] < '0' || is[1] > '9')
		return -EINVAL;
	errno = 0;
	n = strtoul(is + 1, &end, 10);
	if (errno || end != word + len || (!n && !pinned) || n > (device || pinned ? 100 : INT_MAX))
		return -EINVAL;
	if (device)
		o->device_percent = (unsigned)n;
	else if (pinned)
		o->pin_user_percent = (unsigned)n;
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
			log_error("--user-limit %s: \"%.*s\" is not clients=N, mappings=N, directories=N, removed_files=N, device=PERCENT or pinned=PERCENT", text,
				  (int)len, word);
			return -EINVAL;
		}
		if (!word[len])
			return 0;
		word += len + 1;
	}
}

/* "0:models/a.safetensors" */
static int parse_pin(struct options *o, const char *text)
{
	unsigned long device;
	char *end;

	errno = 0;
	device = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || errno || device >= CACHE_MAX_DEVICES || *end != ':' || !end[1]) {
		log_error("--pin %s: not of the form DEVICE:PATH, the number of a device and a path below the mount point", text);
		return -EINVAL;
	}
	o->pins = xrealloc(o->pins, (o->n_pins + 1) * sizeof(*o->pins));
	o->pins[o->n_pins++] = (struct fs_pin){ (unsigned)device, end + 1 };
	return 0;
}

static int parse_pin_share(struct options *o, const char *text)
{
	unsigned long n;
	char *end;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || errno || *end || n > 100) {
		log_error("--pin-share %s: not a number of percent from 0 to 100", text);
		return -EINVAL;
	}
	o->pin_share = (unsigned)n;
	return 0;
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

static int parse_writeback_age(struct options *o, const char *text)
{
	return parse_seconds("writeback-age", text, 0.001, &o->writeback_age_ms);
}

static int parse_device_age(struct options *o, const char *text)
{
	return parse_seconds("device-age", text, 0.001, &o->device_age_ms);
}

static int parse_unmount_timeout(struct options *o, const char *text)
{
	return parse_seconds("unmount-timeout", text, 0, &o->unmount_timeout_ms);
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

static int ignore_transport(struct options *o, const char *text)
{
	(void)o;
	if (strcmp(text, "auto") && strcmp(text, "dev")) {
		log_error("--transport %s: requests come by /dev/fuse only; leave the option out", text);
		return -EINVAL;
	}
	log_warn("--transport %s: the option has no effect any more", text);
	return 0;
}

static int parse_source(struct options *o, const char *text)
{
	o->trusts_source = !strcmp(text, "local") || !strcmp(text, "exclusive");
	if (o->trusts_source)
		return 0;
	log_error("--source %s: not one of local, exclusive", text);
	return -EINVAL;
}

static int parse_metrics(struct options *o, const char *text)
{
	const char *fault = metrics_fault(text);

	o->metrics = text;
	if (!fault)
		return 0;
	log_error("--metrics %s: %s; it is unix:PATH, ADDRESS:PORT or PORT", text, fault);
	return -EINVAL;
}

static int parse_storage_io(struct options *o, const char *text)
{
	o->direct = !strcmp(text, "direct");
	if (o->direct || !strcmp(text, "buffered"))
		return 0;
	log_error("--storage-io %s: not one of direct, buffered", text);
	return -EINVAL;
}

static int parse_dedup(struct options *o, const char *text)
{
	static const char *const ways[] = { [CACHE_DEDUP_OFF] = "off", [CACHE_DEDUP_HOME] = "home", [CACHE_DEDUP_ALL_USERS] = "all-users" };

	for (size_t k = 0; k < ARRAY_LEN(ways); k++)
		if (!strcmp(text, ways[k])) {
			o->dedup = (enum cache_dedup)k;
			return 0;
		}
	log_error("--dedup %s: not one of off, home, all-users", text);
	return -EINVAL;
}

static int parse_supervisor(struct options *o, const char *text)
{
	o->unmounts_dead = !strcmp(text, "unmount");
	o->supervised = o->unmounts_dead || !strcmp(text, "on");
	if (o->supervised || !strcmp(text, "off"))
		return 0;
	log_error("--supervisor %s: not one of on, off, unmount", text);
	return -EINVAL;
}

static int parse_log_level(struct options *o, const char *text)
{
	enum log_level level;

	(void)o;
	if (log_level_parse(text, &level)) {
		log_error("--log-level %s: not one of error, warn, info, debug", text);
		return -EINVAL;
	}
	log_set_level(level);
	return 0;
}

static int add_mount_options(struct options *o, const char *text)
{
	size_t had = strlen(o->mount_options), more = strlen(text);

	o->mount_options = xrealloc(o->mount_options, had + more + 2);
	if (had)
		o->mount_options[had++] = ',';
	memcpy(o->mount_options + had, text, more + 1);
	return 0;
}

static int stay_in_foreground(struct options *o, const char *text)
{
	(void)text;
	o->foreground = true;
	return 0;
}

static int upgrade(struct options *o, const char *text)
{
	(void)text;
	o->upgrade = true;
	return 0;
}

static int force(struct options *o, const char *text)
{
	(void)text;
	o->force = true;
	return 0;
}

static int take_over(struct options *o, const char *text)
{
	(void)text;
	o->take_over = true;
	return 0;
}

/* ---- command line and help, from the table of all options ---- */

/* See option_table.h. */
struct option_kind {
	const char *name;
	char letter;
	const char *value;
	const char *help; /* the first line stands beside the name, if there is room */
	/* 0, or a negative errno after it logged one line that says what is wrong. */
	int (*parse)(struct options *o, const char *text);
};

static const struct option_kind kinds[] = {
#define X(name, letter, value, help, parse) { name, letter, value, help, parse },
	OPTIONS(X)
#undef X
};

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
	      "       gaiafs --upgrade [--force] DIR       have this program serve what is mounted on DIR\n\n",
	      stdout);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (*kinds[i].help)
			print_option(&kinds[i]);
	fputs("\nSIZE takes the suffixes K, M, G, T. `gaia umount DIR` unmounts it.\n", stdout);
}

static int parse_paths(struct options *o, int n, char **path)
{
	if (n != 1 && n != 2) {
		log_error("%s; `gaiafs -h` shows how to use it",
			  n ? "more than a source and a mount point" : "no directory is named");
		return -EINVAL;
	}
	if (o->upgrade && n != 1) {
		log_error("--upgrade: one mount point is to be named");
		return -EINVAL;
	}
	if (o->force && !o->upgrade) {
		log_error("--force: means something with --upgrade only");
		return -EINVAL;
	}
	o->source = path[0];
	o->mountpoint = path[n - 1];
	return 0;
}

/* Make what getopt_long(3) needs: it returns each option by its place in the table. */
#define FIRST_KIND 256

static void list_kinds(struct option *longs, char *letters)
{
	*letters++ = ':';
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		const struct option_kind *k = &kinds[i];

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
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (c == FIRST_KIND + (int)i || (kinds[i].letter && c == kinds[i].letter))
			return &kinds[i];
	return NULL;
}

enum options_result options_parse(int argc, char **argv, struct options *out)
{
	struct option longs[ARRAY_LEN(kinds) + 1];
	char letters[2 * ARRAY_LEN(kinds) + 2];
	const struct option_kind *kind;
	bool of_mounts = false; /* an option was given that an upgrade does not change */
	int c;

	*out = (struct options){
		.mount_options = xcalloc(1, 1),
		.writeback_age_ms = OPTIONS_AGE_S * 1000,
		.unmount_timeout_ms = OPTIONS_UNMOUNT_TIMEOUT_S * 1000,
		.pin_share = OPTIONS_PIN_SHARE,
		.cpu_cache = FS_AUTO,
		.direct = true,
		.supervised = true,
	};
	list_kinds(longs, letters);
	opterr = 0;
	while ((c = getopt_long(argc, argv, letters, longs, NULL)) != -1) {
		kind = kind_of(c);
		if (!kind) {
			log_error("%s: %s; `gaiafs -h` shows how to use it", argv[optind - 1],
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
		if (kind->parse(out, optarg))
			return OPTIONS_WRONG;
		of_mounts |= kind->parse != upgrade && kind->parse != force && kind->parse != parse_log_level;
	}
	if (out->upgrade && of_mounts) {
		log_error("--upgrade: the mount keeps the options that it has; unmount, and mount with others");
		return OPTIONS_WRONG;
	}
	if (out->no_device && out->n_devices) {
		log_error("--device none cannot be combined with other devices");
		return OPTIONS_WRONG;
	}
	if (parse_paths(out, argc - optind, argv + optind))
		return OPTIONS_WRONG;
	out->choose_devices = !out->no_device && !out->n_devices;
	return OPTIONS_RUN;
}

void options_free(struct options *o)
{
	free(o->mount_options);
	free(o->device);
	free(o->pins);
}
