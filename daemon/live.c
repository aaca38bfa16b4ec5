/* live.c - see live.h. */
#include "live.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/util.h"
#include "hardware.h"

/* What programs on the host may map of home, and what they have beside it, is so much of it. */
#define HOST_SHARE 2u

/* A text that is made of lines; what does not fit is left out. */
struct said {
	char *text;
	size_t size, length;
};

static void say(struct said *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(struct said *s, const char *fmt, ...)
{
	size_t left = s->size - s->length;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(s->text + s->length, left, fmt, ap);
	va_end(ap);
	s->length += MIN((size_t)MAX(n, 0), left - 1);
}

void live_init(struct live *l)
{
	pthread_mutex_init(&l->reading, NULL);
	pthread_mutex_init(&l->lock, NULL);
	pthread_mutex_init(&l->making, NULL);
}

void live_begin(struct live *l, struct cache *c)
{
	pthread_mutex_lock(&l->lock);
	l->cache = c;
	pthread_mutex_unlock(&l->lock);
}

void live_end(struct live *l)
{
	/* Until a device is made, which looks at those of the cache. */
	pthread_mutex_lock(&l->making);
	live_begin(l, NULL);
	pthread_mutex_unlock(&l->making);
}

void live_destroy(struct live *l)
{
	pthread_mutex_destroy(&l->reading);
	pthread_mutex_destroy(&l->lock);
	pthread_mutex_destroy(&l->making);
	free(l->words);
}

uint64_t live_host_bytes(const struct live *l, uint64_t home_bytes)
{
	return MIN(home_bytes / HOST_SHARE, l->host_most);
}

void live_set_user_limits(struct live *l, const struct settings *set)
{
	for (unsigned i = 0; i < QUOTA_COUNT; i++) {
		unsigned each = set->each_user[i], users = quota_use(l->quota, i).users;

		if (!quota_is_option(i))
			continue;
		if (each > users)
			log_warn("--user-limit %s=%u: all users together may have %u here, so one user may have no more", quota_name(i), each,
				 users);
		quota_set_each(l->quota, i, each ? each : l->usual_each[i]);
	}
}

static uint64_t home_of(const struct live *l, const struct settings *set)
{
	return set->home_bytes ? set->home_bytes : l->usual_home;
}

/* Home first, which alone may fail. The lock is held. */
static int apply(struct live *l, const struct settings *set, struct said *said)
{
	uint64_t home = home_of(l, set), beyond = 0;
	int err = 0;

	if (home != home_of(l, &l->options->set))
		err = cache_set_home(l->cache, home, live_host_bytes(l, home), &beyond);
	if (err) {
		say(said, "home: of this mount it can be as much as the machine has memory, or as it was mounted with; mount anew for more\n");
		return err == -ERANGE ? -EINVAL : err;
	}
	if (beyond)
		say(said, "home: %llu MiB more than that are in use, and leave in the background\n", (unsigned long long)(beyond >> 20) + 1);
	cache_set_ages(l->cache, set->writeback_age_ms, set->device_age_ms);
	cache_set_shares(l->cache, set->device_percent, set->pin_share, set->pin_user_percent);
	if (memcmp(set->each_user, l->options->set.each_user, sizeof(set->each_user)) != 0)
		live_set_user_limits(l, set);
	ending_set_timeout(l->end, set->unmount_timeout_ms);
	log_set_level(set->log_level);
	l->options->set = *set;
	return 0;
}

#define DEVICE "device."
#define ADD "device="

bool live_adds(const char *word)
{
	return !strncmp(word, ADD, strlen(ADD));
}

bool live_is_of_devices(const char *word)
{
	return !strncmp(word, DEVICE, strlen(DEVICE)) || live_adds(word);
}

/* What budgets of devices become; 0: as they are. */
struct budgets {
	uint64_t bytes[CACHE_MAX_DEVICES];
	bool off[CACHE_MAX_DEVICES];
	bool done[CACHE_MAX_DEVICES]; /* it is off now, */
	uint64_t left[CACHE_MAX_DEVICES]; /* and there is still so much */
};

/* Devices that are added. The options' begin with those that there are. */
struct added {
	struct options options;
	struct device *dev[CACHE_MAX_DEVICES];
	unsigned n;
};

static void added_begin(struct live *l, struct added *a)
{
	struct cache_device_use use;

	a->options.device = xcalloc(CACHE_MAX_DEVICES, sizeof(*a->options.device));
	a->options.n_devices = cache_devices(l->cache);
	for (unsigned i = 0; i < a->options.n_devices; i++) {
		cache_device(l->cache, i, &use);
		if (sscanf(use.dev->name, "cuda%u", &a->options.device[i].cuda.index) == 1)
			a->options.device[i].kind = CHOICE_CUDA;
	}
}

/* "device=cuda:1": make it. */
static int add_device(struct live *l, const char *text, struct added *a, struct said *said)
{
	unsigned first;
	int err;

	if (!a->options.device)
		added_begin(l, a);
	first = a->options.n_devices;
	err = options_add_device(&a->options, text);
	if (err)
		say(said, "%s\n", a->options.why);
	for (unsigned i = first; i < a->options.n_devices && !err; i++) {
		err = device_start(&a->options.device[i], l->faults, &a->dev[a->n]); /* logs */
		if (err)
			say(said, "device=%s: %s; the daemon's log says why\n", text, strerror(-err));
		a->n += !err;
	}
	return err;
}

/* Unless something was wrong (@err) they are the cache's from here on; else they end. */
static int added_end(struct live *l, struct added *a, int err, struct said *said)
{
	for (unsigned i = 0; i < a->n; i++) {
		if (!err) {
			err = cache_add_device(l->cache, a->dev[i]);
			if (err)
				say(said, "device %s: not added, nor others after it: another device does not answer; all else was changed\n", a->dev[i]->name);
			if (err && i > 0)
				log_warn("%u devices that were added by the same command are not those of another daemon after an upgrade", i);
		}
		if (err)
			a->dev[i]->ops->destroy(a->dev[i]);
	}
	free(a->options.device);
	return err;
}

/* Make the devices that the words add: only one thread, since it may take seconds. */
static int make_added(struct live *l, const char *words, size_t length, struct added *a, struct said *said)
{
	int err = 0;

	for (const char *word = words; word < words + length && !err; word += strlen(word) + 1)
		if (live_adds(word))
			err = add_device(l, word + strlen(ADD), a, said);
	return err;
}

/* "device.sim0=1G", "device.0=1G", or "device.0=off". */
static int change_device(struct live *l, const char *word, struct budgets *b, struct said *said)
{
	const char *name = word + strlen(DEVICE), *is = strchr(word, '=');
	bool off = is && !strcmp(is + 1, "off");
	struct cache_device_use use;
	char number[16];
	uint64_t bytes = 0;

	if (!is || (!off && (parse_size(is + 1, &bytes) || bytes < GAIA_CHUNK))) {
		say(said, "%s: not of the form device.NAME=SIZE, with a size of at least 2M, or device.NAME=off\n", word);
		return -EINVAL;
	}
	for (unsigned i = 0; i < cache_devices(l->cache); i++) {
		cache_device(l->cache, i, &use);
		snprintf(number, sizeof(number), "%u", i);
		if ((strncmp(name, number, (size_t)(is - name)) || number[is - name]) &&
		    (strncmp(name, use.dev->name, (size_t)(is - name)) || use.dev->name[is - name]))
			continue;
		if (bytes > use.dev->capacity) {
			say(said, "%.*s: was mounted with %llu MiB, and cannot have more; mount anew\n", (int)(is - word), word,
			    (unsigned long long)use.dev->capacity >> 20);
			return -ENOTSUP;
		}
		b->bytes[i] = bytes;
		b->off[i] = off;
		return 0;
	}
	say(said, "%.*s: the mount has no such device\n", (int)(is - word), word);
	return -EINVAL;
}

/* Take devices away, all or none: the only thing of budgets that may fail. */
static int devices_off(struct live *l, struct budgets *b, struct said *said)
{
	struct cache_device_use use;
	int err = 0;

	for (unsigned i = 0; i < cache_devices(l->cache) && !err; i++) {
		if (!b->off[i])
			continue;
		cache_device(l->cache, i, &use);
		b->bytes[i] = use.capacity;
		err = cache_device_off(l->cache, i, &b->left[i]);
		b->done[i] = !err;
		if (err)
			say(said, "device.%u: files are pinned to it; gaia pins names them, and gaia unpin lets go of them\n", i);
	}
	return err;
}

/* The others. Or, if something else has failed, those that were taken away get back what they had. */
static void apply_budgets(struct live *l, struct budgets *b, bool good, struct said *said)
{
	uint64_t ignored;

	for (unsigned i = 0; i < cache_devices(l->cache); i++) {
		if (b->bytes[i] && (good ? !b->off[i] : b->done[i]))
			(void)cache_set_device(l->cache, i, b->bytes[i], good ? &b->left[i] : &ignored);
		if (good && b->left[i])
			say(said, "device.%u: %llu MiB %sare in use, and leave in the background, or when programs release them\n", i,
			    (unsigned long long)b->left[i] >> 20, b->off[i] ? "" : "more than that ");
	}
}

/* Whether both change the same: also which of users' limits. Devices that are added are different ones. */
static bool same_setting(const char *a, const char *b)
{
	size_t length = (size_t)(strrchr(a, '=') - a);

	return !live_adds(a) && !strncmp(a, b, length + 1);
}

/* Forget those that @word, or NULL: the file, has changed again. Which devices there are, and their budgets, are not what the file says. */
static void words_drop(struct live *l, const char *word)
{
	size_t kept = 0, size;

	for (size_t at = 0; at < l->words_length; at += size) {
		size = strlen(l->words + at) + 1;
		if (word ? same_setting(word, l->words + at) : !live_is_of_devices(l->words + at))
			continue;
		memmove(l->words + kept, l->words + at, size);
		kept += size;
	}
	l->words_length = kept;
}

static void words_add(struct live *l, const char *word)
{
	size_t size = strlen(word) + 1;

	words_drop(l, word);
	l->words = xrealloc(l->words, l->words_length + size);
	memcpy(l->words + l->words_length, word, size);
	l->words_length += size;
}

/* "user-limit=a=1,b=2" is "user-limit=a=1" and "user-limit=b=2". */
static void words_note(struct live *l, const char *word)
{
	static const char limits[] = "user-limit=";
	size_t head = strlen(limits), length;
	char one[128];

	if (strncmp(word, limits, head) != 0) {
		words_add(l, word);
		return;
	}
	for (const char *at = word + head; *at; at += length + (at[length] == ',')) {
		length = strcspn(at, ",");
		snprintf(one, sizeof(one), "%s%.*s", limits, (int)length, at);
		words_add(l, one);
	}
}

void live_freeze(struct live *l, bool freeze)
{
	pthread_mutex_lock(&l->lock);
	l->handing_over = freeze;
	pthread_mutex_unlock(&l->lock);
}

/* The lock is held. 0, or a negative errno, and why. */
static int may_change(const struct live *l, struct said *said)
{
	if (!l->cache)
		return -ENOTCONN;
	if (!l->handing_over)
		return 0;
	say(said, "another daemon is taking the mount over; try again\n");
	return -EBUSY;
}

char *live_words(struct live *l, size_t *length)
{
	char *words;

	pthread_mutex_lock(&l->lock);
	*length = l->words_length;
	words = xmalloc(*length + 1);
	if (*length)
		memcpy(words, l->words, *length);
	pthread_mutex_unlock(&l->lock);
	return words;
}

/* The lock is held. */
static int change_words(struct live *l, const char *words, size_t length, struct added *added, struct said *said)
{
	/* Options that can be changed are settings, and of those only these are looked at. */
	struct options next = { .set = l->options->set };
	struct budgets budgets = { .bytes = { 0 } };
	int err = 0, not_added;

	for (const char *word = words; word < words + length && !err; word += strlen(word) + 1) {
		if (live_adds(word))
			continue;
		if (live_is_of_devices(word)) {
			err = change_device(l, word, &budgets, said);
		} else {
			err = options_change(&next, word);
			if (err)
				say(said, "%s\n", next.why);
		}
	}
	if (!err)
		err = devices_off(l, &budgets, said);
	if (!err)
		err = apply(l, &next.set, said);
	apply_budgets(l, &budgets, !err, said);
	for (unsigned i = 0; i < CACHE_MAX_DEVICES && !err; i++)
		if (budgets.done[i])
			cache_device_unpin(l->cache, i);
	not_added = added_end(l, added, err, said);
	for (const char *word = words; word < words + length && !err; word += strlen(word) + 1) {
		if (not_added && live_adds(word))
			continue;
		log_info("gaia set %s", word);
		words_note(l, word);
	}
	return err ? err : not_added;
}

static bool adds(const char *words, size_t length)
{
	for (const char *word = words; word < words + length; word += strlen(word) + 1)
		if (live_adds(word))
			return true;
	return false;
}

int live_set(struct live *l, const char *words, size_t length, char *text, size_t size)
{
	struct said said = { .text = text, .size = size };
	struct added added = { .n = 0 };
	int err;

	*text = '\0';
	if (length == 0 || words[length - 1])
		return -EINVAL;
	if (adds(words, length) && pthread_mutex_trylock(&l->making)) {
		say(&said, "another device is being added; try again\n");
		return -EBUSY;
	}
	pthread_mutex_lock(&l->lock);
	err = may_change(l, &said);
	if (!err && adds(words, length)) {
		/* Not with the lock, for which an upgrade would wait. Only this thread adds, and the cache stays: live_end() waits for it. */
		pthread_mutex_unlock(&l->lock);
		err = make_added(l, words, length, &added, &said);
		pthread_mutex_lock(&l->lock);
		if (!err)
			err = may_change(l, &said);
	}
	err = err ? added_end(l, &added, err, &said) : change_words(l, words, length, &added, &said);
	pthread_mutex_unlock(&l->lock);
	if (adds(words, length))
		pthread_mutex_unlock(&l->making);
	return err;
}

/* What is different, and has to wait for another mount. */
static void say_what_stays(const struct options *was, const struct options *now, struct said *said)
{
	const char *name, *instead;
	size_t at = 0;

	while ((name = options_stay(was, now, &at, &instead)))
		say(said, "%s: is different now, and cannot be changed while it is mounted; %s\n", name, instead);
	if (strcmp(was->source, now->source) != 0)
		say(said, "SOURCE: is different now, and cannot be changed while it is mounted; mount anew\n");
}

static int read_again(struct live *l, struct said *said)
{
	struct options next;
	int err = 0;

	if (!options_parse_again(l->argc, l->argv, l->options, &next)) {
		say(said, "%s\n", next.why);
		err = -EINVAL;
	}
	pthread_mutex_lock(&l->lock);
	if (!err)
		err = may_change(l, said);
	if (!err)
		err = apply(l, &next.set, said);
	if (!err) {
		words_drop(l, NULL);
		say_what_stays(l->options, &next, said);
	}
	pthread_mutex_unlock(&l->lock);
	options_free(&next);
	return err;
}

int live_reload(struct live *l, char *text, size_t size)
{
	struct said said = { .text = text, .size = size };
	int err;

	*text = '\0';
	if (!l->options->config) {
		say(&said, "it was mounted without a configuration file (gaiafs --config)\n");
		return -EINVAL;
	}
	if (pthread_mutex_trylock(&l->reading)) {
		say(&said, "%s: is being read already\n", l->options->config);
		return -EBUSY;
	}
	err = read_again(l, &said);
	pthread_mutex_unlock(&l->reading);
	if (err)
		log_error("%s: not read again, and nothing has changed: %.*s", l->options->config, (int)strcspn(text, "\n"), *text ? text : strerror(-err));
	else
		log_info("%s: read again", l->options->config);
	for (const char *line = text; *line && !err; line += strcspn(line, "\n") + 1)
		log_at(LOG_LEVEL_WARN, "%s: %.*s", l->options->config, (int)strcspn(line, "\n"), line);
	return err;
}
