/*
 * options.c - see options.h.
 */
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/util.h"
#include "fuse/fs.h"
#include "metrics.h"
#include "option_kinds.h"
#include "option_table.h"
#include "pagecache/cache.h"

/* Say why the option is not taken. */
static void refuse(struct options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void refuse(struct options *o, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(o->why, sizeof(o->why), fmt, ap);
	va_end(ap);
}

static int add_devices(struct options *o, const struct device_choice *like, uint64_t count)
{
	if (o->n_devices + count > CACHE_MAX_DEVICES) {
		refuse(o, "--device: there can be at most %u devices", CACHE_MAX_DEVICES);
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
	if (!strncmp(key, "extents=", 8))
		return parse_off(key + 8, &sim->no_extents);
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
			refuse(o, "--device sim%s: \"%s\" is not a size from 2M to %lluT", text, word + 1,
				  OPTIONS_SIM_MAX >> 40);
			err = -EINVAL;
			goto out;
		}
	}
	while ((word = strsep(&rest, ","))) {
		err = strncmp(word, "cache=", 6) ? parse_sim_key(word, sim, &count) : parse_cache(word + 6, &choice.cache);
		if (err == -ERANGE) {
			refuse(o, "--device sim%s: \"%s\": not a number of devices from 1 to %u", text, word, CACHE_MAX_DEVICES);
			goto out;
		}
		if (err) {
			refuse(o, "--device sim%s: \"%s\" is not count=N, bandwidth=SIZE, local=SIZE, "
				  "latency=MICROSECONDS, submit=MICROSECONDS, wait=on|off, peers=on|off, "
				  "readonly=on|off, strict=on|off, extents=on|off or cache=SIZE|auto", text, word);
			goto out;
		}
	}
	err = add_devices(o, &choice, count);
out:
	free(copy);
	return err;
}

static int parse_cuda_key(const char *word, bool first, struct device_choice *choice)
{
	if (!strncmp(word, "cache=", 6))
		return parse_cache(word + 6, &choice->cache);
	if (!strncmp(word, "extents=", 8))
		return parse_off(word + 8, &choice->cuda.no_extents);
	return !first || parse_size(word, &choice->cuda.capacity) || choice->cuda.capacity < GAIA_CHUNK ? -EINVAL : 0;
}

/* "SIZE", "cache=SIZE|auto" and "extents=on|off": any of these, the size first. */
static int parse_cuda_keys(const char *text, struct device_choice *choice)
{
	char *copy = strdup(text), *rest = copy, *word;
	int err = copy ? 0 : -ENOMEM;

	while (!err && (word = strsep(&rest, ",")))
		err = parse_cuda_key(word, word == copy, choice);
	free(copy);
	return err;
}

/* @text: what follows "cuda". Which GPUs exist is found out later, when CUDA may be called. */
static int parse_cuda(struct options *o, const char *text)
{
	struct device_choice choice = { CHOICE_CUDA, .cuda = OPTIONS_USUAL_CUDA };
	unsigned long index = 0;
	char *end = "";

	errno = 0;
	if (*text)
		index = strtoul(text + 1, &end, 10);
	if ((*text && (text[1] < '0' || text[1] > '9')) || errno || index > 1023 ||
	    (*end && *end != ',')) {
		refuse(o, "--device cuda%s: not the number of a GPU (0 is the first)", text);
		return -EINVAL;
	}
	choice.cuda.index = (unsigned)index;
	if (*end && parse_cuda_keys(end + 1, &choice)) {
		refuse(o, "--device cuda%s: \"%s\" is not a size of at least 2M, cache=SIZE|auto or extents=on|off", text, end + 1);
		return -EINVAL;
	}
	for (unsigned i = 0; i < o->n_devices; i++) {
		if (o->device[i].kind != CHOICE_CUDA || o->device[i].cuda.index != index)
			continue;
		refuse(o, "--device cuda%s: GPU %lu is named twice", text, index);
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
	refuse(o, "--device %s: no such kind of device; there are sim, cuda and none", text);
	return -EINVAL;
}

int options_add_device(struct options *o, const char *text)
{
	unsigned before = o->n_devices;
	int err = parse_device(o, text);

	if (err)
		return err;
	if (o->n_devices == before) {
		refuse(o, "device=%s: names no device; device.NAME=off takes one away", text);
		return -EINVAL;
	}
	/* Where its parked pages are is settled when the mount begins. */
	for (unsigned i = before; i < o->n_devices; i++) {
		if (!o->device[i].cache)
			continue;
		refuse(o, "device=%s: cache= is for devices that the mount begins with", text);
		return -EINVAL;
	}
	return 0;
}

static int parse_home(struct options *o, const char *text)
{
	int err = parse_size(text, &o->set.home_bytes);

	if (!err && o->set.home_bytes >= CACHE_HOME_MIN && o->set.home_bytes <= CACHE_HOME_MAX)
		return 0;
	refuse(o, "--home %s: not a size from %lluM to %lluT", text, CACHE_HOME_MIN >> 20, CACHE_HOME_MAX >> 40);
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
		o->set.device_percent = (unsigned)n;
	else if (pinned)
		o->set.pin_user_percent = (unsigned)n;
	else
		o->set.each_user[what] = (unsigned)n;
	return 0;
}

static int parse_user_limits(struct options *o, const char *text)
{
	const char *word = text;
	size_t len;

	for (;;) {
		len = strcspn(word, ",");
		if (parse_user_limit(o, word, len)) {
			refuse(o, "--user-limit %s: \"%.*s\" is not clients=N, mappings=N, directories=N, removed_files=N, device=PERCENT or pinned=PERCENT", text,
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
		refuse(o, "--pin %s: not of the form DEVICE:PATH, the number of a device and a path below the mount point", text);
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
		refuse(o, "--pin-share %s: not a number of percent from 0 to 100", text);
		return -EINVAL;
	}
	o->set.pin_share = (unsigned)n;
	return 0;
}

static int parse_seconds(struct options *o, const char *option, const char *text, double least, uint64_t *ms)
{
	char *end;
	double s = strtod(text, &end);

	if (end != text && !*end && s >= least && s <= 86400) {
		*ms = (uint64_t)(s * 1000);
		return 0;
	}
	refuse(o, "--%s %s: not a number of seconds from %g to 86400", option, text, least);
	return -EINVAL;
}

static int parse_writeback_age(struct options *o, const char *text)
{
	return parse_seconds(o, "writeback-age", text, 0.001, &o->set.writeback_age_ms);
}

static int parse_device_age(struct options *o, const char *text)
{
	return parse_seconds(o, "device-age", text, 0.001, &o->set.device_age_ms);
}

static int parse_unmount_timeout(struct options *o, const char *text)
{
	return parse_seconds(o, "unmount-timeout", text, 0, &o->set.unmount_timeout_ms);
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
	refuse(o, "--cpu-cache %s: not one of auto, writeback, writethrough", text);
	return -EINVAL;
}

static int ignore_transport(struct options *o, const char *text)
{
	if (strcmp(text, "auto") && strcmp(text, "dev")) {
		refuse(o, "--transport %s: requests come by /dev/fuse only; leave the option out", text);
		return -EINVAL;
	}
	log_warn("--transport %s: the option has no effect any more", text);
	return 0;
}

static int parse_source(struct options *o, const char *text)
{
	o->shared = !strcmp(text, "shared");
	o->trusts_source = o->shared || !strcmp(text, "local") || !strcmp(text, "exclusive");
	if (o->trusts_source)
		return 0;
	refuse(o, "--source %s: not one of local, exclusive, shared", text);
	return -EINVAL;
}

static int parse_names_age(struct options *o, const char *text)
{
	o->names_aged = true;
	return parse_seconds(o, "names-age", text, 0, &o->names_age_ms);
}

int options_fit_source(struct options *o)
{
	if (!o->shared && o->names_aged)
		refuse(o, "--names-age: is for --source shared; without it nobody but the mount changes names");
	else if (o->shared && o->cpu_cache == FS_WRITEBACK)
		refuse(o, "--source shared: with --cpu-cache writeback other machines would not see what is written; use auto or writethrough");
	else
		return 0;
	return -EINVAL;
}

static int parse_metrics(struct options *o, const char *text)
{
	const char *fault = metrics_fault(text);

	o->metrics = text;
	if (!fault)
		return 0;
	refuse(o, "--metrics %s: %s; it is unix:PATH, ADDRESS:PORT or PORT", text, fault);
	return -EINVAL;
}

static int parse_storage_io(struct options *o, const char *text)
{
	o->direct = !strcmp(text, "direct");
	if (o->direct || !strcmp(text, "buffered"))
		return 0;
	refuse(o, "--storage-io %s: not one of direct, buffered", text);
	return -EINVAL;
}

static int parse_huge_pages(struct options *o, const char *text)
{
	o->huge_pages = !strcmp(text, "on");
	if (o->huge_pages || !strcmp(text, "off"))
		return 0;
	refuse(o, "--huge-pages %s: not one of on, off", text);
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
	refuse(o, "--dedup %s: not one of off, home, all-users", text);
	return -EINVAL;
}

static int parse_supervisor(struct options *o, const char *text)
{
	o->unmounts_dead = !strcmp(text, "unmount");
	o->supervised = o->unmounts_dead || !strcmp(text, "on");
	if (o->supervised || !strcmp(text, "off"))
		return 0;
	refuse(o, "--supervisor %s: not one of on, off, unmount", text);
	return -EINVAL;
}

static int parse_log_level(struct options *o, const char *text)
{
	if (!log_level_parse(text, &o->set.log_level))
		return 0;
	refuse(o, "--log-level %s: not one of error, warn, info, debug", text);
	return -EINVAL;
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

static int leave(struct options *o, const char *text)
{
	(void)text;
	o->leave = true;
	return 0;
}

static int adopt(struct options *o, const char *text)
{
	(void)text;
	o->adopt = true;
	return 0;
}

static int wait_for_programs(struct options *o, const char *text)
{
	o->waits = true;
	return parse_seconds(o, "wait", text, 0, &o->wait_ms);
}

/* What `gaia set` had changed. */
static int take_setting(struct options *o, const char *text)
{
	size_t size = strlen(text) + 1;

	o->words = xrealloc(o->words, o->words_length + size);
	memcpy(o->words + o->words_length, text, size);
	o->words_length += size;
	return 0;
}

static int take_left(struct options *o, const char *text)
{
	(void)text;
	o->left = true;
	return 0;
}

static int take_gpus(struct options *o, const char *text)
{
	o->gpus_before = (unsigned)strtoul(text, NULL, 10);
	return 0;
}

static int take_devices(struct options *o, const char *text)
{
	o->devices_before = atoi(text);
	return 0;
}

static int take_over(struct options *o, const char *text)
{
	(void)text;
	o->take_over = true;
	return 0;
}

/* ---- by name, from the table of all options ---- */

const struct option_kind option_kinds[] = {
#define X(name, letter, value, help, parse, stays) { name, letter, value, help, parse, stays },
	OPTIONS(X)
#undef X
};
const size_t n_option_kinds = ARRAY_LEN(option_kinds);
_Static_assert(ARRAY_LEN(option_kinds) <= N_OPTION_KINDS, "N_OPTION_KINDS is too small");

/* The first row with this name, or, of an option that has only a letter, with that. */
static const struct option_kind *kind_named(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(option_kinds); i++) {
		const struct option_kind *k = &option_kinds[i];

		if (k->name ? !strcmp(k->name, name) : k->letter == name[0] && !name[1])
			return k;
	}
	return NULL;
}

static const struct option_kind *first_row(const struct option_kind *kind)
{
	return kind->name ? kind_named(kind->name) : kind;
}

void options_begin(struct options *o)
{
	*o = (struct options){
		.set = {
			.writeback_age_ms = OPTIONS_AGE_S * 1000,
			.unmount_timeout_ms = OPTIONS_UNMOUNT_TIMEOUT_S * 1000,
			.pin_share = OPTIONS_PIN_SHARE,
			.log_level = LOG_LEVEL_INFO,
		},
		.mount_options = xcalloc(1, 1),
		.given = xcalloc(ARRAY_LEN(option_kinds), sizeof(*o->given)),
		.cpu_cache = FS_AUTO,
		.names_age_ms = OPTIONS_NAMES_AGE_S * 1000,
		.direct = true,
		.supervised = true,
		.huge_pages = true,
		.devices_before = -1,
		.wait_ms = OPTIONS_WAIT_S * 1000,
	};
}

int option_take_kind(struct options *o, const struct option_kind *kind, const char *text)
{
	char **given = &o->given[first_row(kind) - option_kinds];
	size_t had = *given ? strlen(*given) : 0, more = text ? strlen(text) : 0;

	snprintf(o->why, sizeof(o->why), "there is no memory");
	if (kind->parse(o, text))
		return -EINVAL;
	*given = xrealloc(*given, had + more + 2);
	memcpy(*given + had, text ? text : "", more);
	memcpy(*given + had + more, "\n", 2);
	return 0;
}

/* A configuration file has no say in it: how a daemon takes over from another, and what one tells the other of that. */
static bool is_of_command_line(const struct option_kind *kind)
{
	static int (*const parse[])(struct options *o, const char *text) = {
		NULL, /* help, version and config */
		upgrade, force, leave, adopt, wait_for_programs,
		take_over, take_setting, take_devices, take_left, take_gpus,
	};

	for (size_t i = 0; i < ARRAY_LEN(parse); i++)
		if (kind->parse == parse[i])
			return true;
	return false;
}

int options_take(struct options *o, const char *name, const char *value)
{
	const struct option_kind *kind = kind_named(name);

	if (!kind)
		refuse(o, "%s: no such option", name);
	else if (is_of_command_line(kind))
		refuse(o, "%s: only for the command line", name);
	else if (kind->value && !value)
		refuse(o, "%s: a value is missing", name);
	else if (!kind->value && value)
		refuse(o, "%s: takes no value", name);
	else
		return option_take_kind(o, kind, value);
	return -EINVAL;
}

int options_change(struct options *o, const char *word)
{
	const char *is = strchr(word, '=');
	char name[64] = "";
	const struct option_kind *kind;

	snprintf(name, sizeof(name), "%.*s", is ? (int)MIN(is - word, 63) : 63, word);
	kind = kind_named(name);
	if (!kind || !is) {
		refuse(o, kind ? "%s: not of the form NAME=VALUE" : "%s: no such option", name);
		return -EINVAL;
	}
	if (kind->stays) {
		refuse(o, "%s: cannot be changed while it is mounted; %s", name, *kind->stays ? kind->stays : "it is not a setting");
		return -ENOTSUP;
	}
	snprintf(o->why, sizeof(o->why), "there is no memory");
	return kind->parse(o, is + 1) ? -EINVAL : 0;
}

const char *options_stay(const struct options *was, const struct options *now, size_t *at, const char **instead)
{
	for (; *at < ARRAY_LEN(option_kinds); ++*at) {
		const struct option_kind *k = &option_kinds[*at];
		const char *a = was->given[*at], *b = now->given[*at];

		if (!k->stays || !k->parse || first_row(k) != k || (!a && !b) || (a && b && !strcmp(a, b)))
			continue;
		*instead = k->stays;
		++*at;
		return k->name ? k->name : "o";
	}
	return NULL;
}

void options_free(struct options *o)
{
	for (size_t i = 0; o->given && i < ARRAY_LEN(option_kinds); i++)
		free(o->given[i]);
	for (size_t i = 0; i < o->n_texts; i++)
		free(o->texts[i]);
	free(o->given);
	free(o->texts);
	free(o->words);
	free(o->cwd);
	free(o->config);
	free(o->mount_options);
	free(o->device);
	free(o->pins);
}
