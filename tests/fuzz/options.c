/*
 * options.c - command lines of gaiafs, a word a line.
 *
 * What is refused is refused with one line in the log. What is taken can be used: sizes, counts and names are within
 * their limits.
 */
#include "fuzz.h"

#include <limits.h>
#include <stdarg.h>

#include "base/log.h"
#include "options.h"
#include "pagecache/cache.h"

#define WORDS 64

static unsigned errors; /* logged */

/* In place of log_at(), by the linker. */
void __wrap_log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void __wrap_log_at(enum log_level level, const char *fmt, ...)
{
	char line[1000];
	va_list ap;

	va_start(ap, fmt);
	FUZZ_CHECK(vsnprintf(line, sizeof(line), fmt, ap) > 0);
	va_end(ap);
	errors += level == LOG_LEVEL_ERROR;
}

/* For --version; the real one brings all of fuse/ along. */
const char *fs_libfuse(void)
{
	return "none";
}

static void check_device(const struct device_choice *d, unsigned nth)
{
	FUZZ_CHECK(d->kind == CHOICE_SIM || d->kind == CHOICE_CUDA);
	FUZZ_CHECK(!d->cache || d->cache >= GAIA_CHUNK);
	if (d->kind == CHOICE_CUDA) {
		FUZZ_CHECK(d->cuda.index < 1024);
		FUZZ_CHECK(!d->cuda.capacity || d->cuda.capacity >= GAIA_CHUNK);
		return;
	}
	FUZZ_CHECK(d->sim.index == nth);
	FUZZ_CHECK(d->sim.capacity >= GAIA_CHUNK && d->sim.capacity <= OPTIONS_SIM_MAX);
	FUZZ_CHECK(d->sim.bandwidth <= INT64_MAX && d->sim.local <= INT64_MAX);
	FUZZ_CHECK(d->sim.latency_ns <= 1000000000000 && d->sim.submit_ns <= 1000000000000);
}

static void check_taken(const struct options *o)
{
	FUZZ_CHECK(o->source && o->mountpoint && o->mount_options);
	FUZZ_CHECK(o->n_devices <= CACHE_MAX_DEVICES);
	FUZZ_CHECK(!o->choose_devices || !o->n_devices);
	for (unsigned i = 0; i < o->n_devices; i++)
		check_device(&o->device[i], i);
	FUZZ_CHECK(!o->set.home_bytes || (o->set.home_bytes >= CACHE_HOME_MIN && o->set.home_bytes <= CACHE_HOME_MAX));
	FUZZ_CHECK(o->set.writeback_age_ms >= 1 && o->set.writeback_age_ms <= 86400000);
	FUZZ_CHECK(o->set.device_age_ms <= 86400000 && o->set.unmount_timeout_ms <= 86400000);
	FUZZ_CHECK(o->cpu_cache == FS_AUTO || o->cpu_cache == FS_WRITEBACK || o->cpu_cache == FS_WRITETHROUGH);
	for (unsigned i = 0; i < QUOTA_COUNT; i++)
		FUZZ_CHECK(o->set.each_user[i] <= INT_MAX && (!o->set.each_user[i] || quota_is_option((enum quota_of)i)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size), *rest = text, *word, *argv[WORDS + 2] = { "gaiafs" };
	enum options_result result;
	struct options o;
	int argc = 1;

	while (argc <= WORDS && (word = strsep(&rest, "\n")))
		if (*word)
			argv[argc++] = word;
	errors = 0;
	result = options_parse(argc, argv, &o);
	FUZZ_CHECK(errors == (result == OPTIONS_WRONG), "%u lines, result %d", errors, result);
	if (result == OPTIONS_RUN)
		check_taken(&o);
	options_free(&o);
	free(text);
	return 0;
}
