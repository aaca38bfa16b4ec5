/*
 * daemon_options.c - each option of the daemon means the same on the command line and in a configuration file.
 *
 * The options are those of the daemon's own table: one that has no sample here fails the tests, and so does one of which
 * described() does not say what it changes.
 */
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"
#include "option_kinds.h"

#define MANY 64

/* In place of log_at(), by the linker: what was logged last as an error. */
static char logged[1024];
void __wrap_log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void __wrap_log_at(enum log_level level, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	if (level == LOG_LEVEL_ERROR)
		vsnprintf(logged, sizeof(logged), fmt, ap);
	va_end(ap);
}

/* For --version; the real one brings all of fuse/ along. */
const char *fs_libfuse(void)
{
	return "none";
}

/* ---- the samples ---- */

/* For each row of the table one with its name at least; "o" is the option that has no name. */
static const struct sample {
	const char *name, *value; /* that is no default */
	const char *wrong;	  /* that is refused; NULL: there is none */
	const char *needs;	  /* another option, as a line of a file; NULL: none */
} samples[] = {
	{ "device", "sim", "simple", NULL },
	{ "device", "sim:64M", "sim:1", NULL },
	{ "device", "sim,count=2", "sim,count=0", NULL },
	{ "device", "sim,bandwidth=1G", "sim,bandwidth=fast", NULL },
	{ "device", "sim,local=2G", "sim,local=", NULL },
	{ "device", "sim,latency=3us", "sim,latency=3s", NULL },
	{ "device", "sim,submit=4", "sim,submit=x", NULL },
	{ "device", "sim,wait=off", "sim,wait=no", NULL },
	{ "device", "sim,peers=off", "sim,peers=", NULL },
	{ "device", "sim,readonly=off", "sim,readonly", NULL },
	{ "device", "sim,strict=off", "sim,strict=2", NULL },
	{ "device", "sim,extents=off", "sim,extents=8M", NULL },
	{ "device", "sim,cache=8M", "sim,cache=1", NULL },
	{ "device", "cuda:1", "cuda:x", NULL },
	{ "device", "cuda:2,1G", "cuda:2,1", NULL },
	{ "device", "cuda:3,1G,cache=auto", "cuda:x", NULL },
	{ "device", "cuda:4,extents=off,cache=16M", "cuda:4,extents=off,1G", NULL },
	{ "device", "none", "gpu", NULL },
	{ "home", "24M", "1", NULL },
	{ "cpu-cache", "writethrough", "never", NULL },
	{ "cpu-cache", "writeback", "", NULL },
	{ "storage-io", "buffered", "slow", NULL },
	{ "source", "exclusive", "mine", NULL },
	{ "source", "shared", "both", NULL },
	{ "names-age", "7.5", "-1", "source=shared" },
	{ "huge-pages", "off", "2M", NULL },
	{ "dedup", "all-users", "on", NULL },
	{ "dedup", "home", "all", NULL },
	{ "writeback-age", "0.25", "0", NULL },
	{ "device-age", "11", "soon", NULL },
	{ "unmount-timeout", "0", "100000", NULL },
	{ "user-limit", "clients=7", "clients=0", NULL },
	{ "user-limit", "mappings=8", "mappings=-1", NULL },
	{ "user-limit", "directories=9", "directories", NULL },
	{ "user-limit", "removed_files=10", "removed_files=", NULL },
	{ "user-limit", "device=30", "device=101", NULL },
	{ "user-limit", "pinned=20", "cats=9", NULL },
	{ "user-limit", "clients=9,pinned=30", "clients=9,", NULL },
	{ "pin", "1:models/a file", "models/a", NULL },
	{ "pin-share", "90", "101", NULL },
	{ "supervisor", "unmount", "twice", NULL },
	{ "supervisor", "off", "0", NULL },
	{ "metrics", "[::1]:9000", "0", NULL },
	{ "metrics", "unix:/run/a socket", "unix:relative", NULL },
	{ "log-level", "debug", "loud", NULL },
	{ "log-level", "warn", "warning", NULL },
	{ "log-level", "error", "3", NULL },
	{ "foreground", NULL, NULL, NULL },
	{ "o", "ro,noatime,fsname=one\\,two", NULL, NULL },
};

/* It is taken for the sake of old scripts, and nothing comes of it. */
static const struct sample without_effect = { "transport", "auto", "carrier-pigeon", NULL };

/* A file has no say in these. */
static const char *const of_the_command_line[] = {
	"config", "upgrade", "force", "wait", "leave", "adopt", "take-over", "take-over-set", "take-over-devices", "take-over-left", "take-over-gpus",
	"help", "version",
};

static bool is_named(const struct option_kind *k, const char *name)
{
	return k->name ? !strcmp(k->name, name) : name[0] == k->letter && !name[1];
}

static bool is_of_the_command_line(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(of_the_command_line); i++)
		if (!strcmp(of_the_command_line[i], name))
			return true;
	return false;
}

Test(daemon_options, each_has_a_sample)
{
	for (size_t i = 0; i < n_option_kinds; i++) {
		const char letter[2] = { option_kinds[i].letter }, *name = option_kinds[i].name ? option_kinds[i].name : letter;
		size_t rows = 0, has = 0;

		for (size_t k = 0; k < n_option_kinds; k++)
			rows += is_named(&option_kinds[k], name);
		for (size_t k = 0; k < ARRAY_LEN(samples); k++)
			has += !strcmp(samples[k].name, name);
		if (is_of_the_command_line(name) || !strcmp(name, without_effect.name))
			cr_assert_eq(has, 0, "%s", name);
		else
			cr_assert_geq(has, rows, "--%s has %zu rows in option_table.h, and %zu samples here: add one, and what comes of it to described()",
				      name, rows, has);
	}
}

/* ---- what came of options ---- */

static void describe_device(FILE *out, const struct device_choice *d)
{
	fprintf(out, "device %s cache %llu\n", d->kind == CHOICE_SIM ? "sim" : "cuda", (unsigned long long)d->cache);
	if (d->kind == CHOICE_SIM)
		fprintf(out, "sim %u %llu %llu %llu %llu %llu %d%d%d%d%d\n", d->sim.index, (unsigned long long)d->sim.capacity,
			(unsigned long long)d->sim.bandwidth, (unsigned long long)d->sim.local, (unsigned long long)d->sim.latency_ns,
			(unsigned long long)d->sim.submit_ns, d->sim.no_wait, d->sim.no_peers, d->sim.no_readonly, d->sim.lax, d->sim.no_extents);
	else
		fprintf(out, "cuda %u %llu %d\n", d->cuda.index, (unsigned long long)d->cuda.capacity, d->cuda.no_extents);
}

/* All that options say, but where they come from. To be freed. */
static char *described(const struct options *o)
{
	const struct settings *s = &o->set;
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);

	cr_assert_not_null(out);
	fprintf(out, "home %llu device_percent %u pins %u %u ages %llu %llu %llu log %d\n", (unsigned long long)s->home_bytes, s->device_percent,
		s->pin_share, s->pin_user_percent, (unsigned long long)s->writeback_age_ms, (unsigned long long)s->device_age_ms,
		(unsigned long long)s->unmount_timeout_ms, (int)s->log_level);
	for (unsigned i = 0; i < QUOTA_COUNT; i++)
		fprintf(out, "each user %s %u\n", quota_name((enum quota_of)i), s->each_user[i]);
	fprintf(out, "source %s mountpoint %s -o %s\n", o->source, o->mountpoint, o->mount_options);
	for (unsigned i = 0; i < o->n_devices; i++)
		describe_device(out, &o->device[i]);
	fprintf(out, "no device %d choose %d\n", o->no_device, o->choose_devices);
	for (unsigned i = 0; i < o->n_pins; i++)
		fprintf(out, "pin %u %s\n", o->pins[i].device, o->pins[i].path);
	fprintf(out, "metrics %s cpu-cache %d trusts %d shared %d aged %d %llu huge %d dedup %d direct %d foreground %d supervised %d unmounts %d\n",
		o->metrics ? o->metrics : "-", (int)o->cpu_cache, o->trusts_source, o->shared, o->names_aged, (unsigned long long)o->names_age_ms,
		o->huge_pages, (int)o->dedup, o->direct, o->foreground, o->supervised, o->unmounts_dead);
	fprintf(out, "upgrade %d %d %d %d %d %d %llu, from another %d %d %u %s\n", o->upgrade, o->force, o->leave, o->left, o->adopt, o->waits,
		(unsigned long long)o->wait_ms, o->take_over, o->devices_before, o->gpus_before, o->words ? o->words : "-");
	cr_assert_eq(fclose(out), 0);
	return text;
}

/* Of a command line of these words. NULL: it was refused, and @logged says why. */
static char *of_words(unsigned n, char **words)
{
	char *argv[MANY] = { (char *)"gaiafs" }, *text = NULL;
	struct options o;

	cr_assert_lt(n, MANY - 3);
	for (unsigned i = 0; i < n; i++)
		argv[i + 1] = words[i];
	argv[n + 1] = (char *)"/from";
	argv[n + 2] = (char *)"/to";
	*logged = '\0';
	if (options_parse((int)n + 3, argv, &o) == OPTIONS_RUN)
		text = described(&o);
	options_free(&o);
	cr_assert_eq(!text, !!*logged, "refused, and not said why; or taken, and an error said: %s", logged);
	return text;
}

static char conf[64];

static void begin(void)
{
	snprintf(conf, sizeof(conf), "/tmp/gaiafs-options-%d.conf", (int)getpid());
}

static void end(void)
{
	unlink(conf);
}

/* Of a file with two lines of comment, and these. */
static char *of_file(const char *lines)
{
	FILE *f = fopen(conf, "we");

	cr_assert(f && fprintf(f, "# options\n\n%s\n", lines) > 0 && fclose(f) == 0);
	return of_words(2, (char *[]){ (char *)"--config", conf });
}

#define FIRST_LINE 3

/* As the words of a command line. */
static char *of_option(const struct sample *s, const char *value)
{
	char word[512], needs[64];
	char *words[2] = { word, needs };

	if (!strcmp(s->name, "o"))
		snprintf(word, sizeof(word), "-o%s", value);
	else
		snprintf(word, sizeof(word), "--%s%s%s", s->name, value ? "=" : "", value ? value : "");
	snprintf(needs, sizeof(needs), "--%s", s->needs ? s->needs : "");
	return of_words(s->needs ? 2 : 1, words);
}

static char *of_line(const struct sample *s, const char *format, const char *value)
{
	char lines[1024], line[512];

	snprintf(line, sizeof(line), format, s->name, value ? "=" : "", value ? value : "");
	snprintf(lines, sizeof(lines), "%s\n%s", line, s->needs ? s->needs : "");
	return of_file(lines);
}

static void same(const struct sample *s, const char *how, char *wanted, char *text)
{
	cr_assert(text, "%s=%s %s: %s", s->name, s->value, how, logged);
	cr_assert_str_eq(text, wanted, "%s=%s %s means something else", s->name, s->value, how);
	free(text);
}

static void means_the_same(const struct sample *s)
{
	char *wanted = of_option(s, s->value);

	cr_assert(wanted, "--%s %s: %s", s->name, s->value, logged);
	same(s, "as a line", wanted, of_line(s, "%s%s%s", s->value));
	same(s, "with blanks, and in quotes", wanted, of_line(s, s->value ? "\t%s %s \"%s\" " : " %s%s%s ", s->value));
	same(s, "as a word of OPTIONS", wanted, of_line(s, s->name[1] ? "OPTIONS=--%s%s'%s'" : "OPTIONS=-%s%.0s'%s'", s->value));
	free(wanted);
}

/* Each says something of its own. */
Test(daemon_options, no_two_mean_the_same)
{
	char *text[ARRAY_LEN(samples) + 1] = { of_words(0, NULL) };

	for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
		text[i + 1] = of_option(&samples[i], samples[i].value);
		cr_assert(text[i + 1], "--%s %s: %s", samples[i].name, samples[i].value, logged);
		for (size_t k = 0; k <= i; k++)
			cr_assert_str_neq(text[k], text[i + 1], "described() makes no difference between --%s %s and %s%s", samples[i].name,
					  samples[i].value, k ? "--" : "", k ? samples[k - 1].name : "nothing");
	}
	for (size_t i = 0; i <= ARRAY_LEN(samples); i++)
		free(text[i]);
}

Test(daemon_options, each_means_the_same_in_a_file, .init = begin, .fini = end)
{
	for (size_t i = 0; i < ARRAY_LEN(samples); i++)
		means_the_same(&samples[i]);
	means_the_same(&without_effect);
}

/* All at once, in a file and as words: in both the later of two counts, and devices and pins add up. */
Test(daemon_options, together_they_mean_the_same_in_a_file, .init = begin, .fini = end)
{
	char words[MANY][512], *word[MANY], lines[8192] = "", *wanted, *text;
	unsigned n = 0;

	for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
		const struct sample *s = &samples[i];
		size_t at = strlen(lines);

		/* None goes with no other device, nor the kernel's writeback with a shared source. */
		if (s->value && (!strcmp(s->value, "none") || !strcmp(s->value, "writeback")))
			continue;
		snprintf(words[n], sizeof(words[n]), s->name[1] ? "--%s%s%s" : "-%s%.0s%s", s->name, s->value ? "=" : "", s->value ? s->value : "");
		word[n] = words[n];
		snprintf(lines + at, sizeof(lines) - at, "%s%s%s\n", s->name, s->value ? "=" : "", s->value ? s->value : "");
		n++;
	}
	wanted = of_words(n, word);
	cr_assert(wanted, "%s", logged);
	text = of_file(lines);
	cr_assert(text, "%s", logged);
	cr_assert_str_eq(text, wanted);
	free(text);
	free(wanted);
}

/* ---- what is refused ---- */

/* The same words, behind the name of the file and the number of the line. */
static void is_refused(const struct sample *s)
{
	char why[sizeof(logged)], wanted[sizeof(logged) + MANY + sizeof(conf)];

	cr_assert_null(of_option(s, s->wrong), "--%s %s is taken", s->name, s->wrong);
	cr_assert(strstr(logged, s->name) && strstr(logged, s->wrong), "--%s %s: its name or its value is not in \"%s\"", s->name, s->wrong, logged);
	snprintf(why, sizeof(why), "%s", logged);
	snprintf(wanted, sizeof(wanted), "%s:%d: %s", conf, FIRST_LINE, why);
	cr_assert_null(of_line(s, "%s%s%s", s->wrong), "%s=%s is taken", s->name, s->wrong);
	cr_assert_str_eq(logged, wanted);
}

Test(daemon_options, a_wrong_value_is_refused_with_its_line, .init = begin, .fini = end)
{
	char wanted[256];

	for (size_t i = 0; i < ARRAY_LEN(samples); i++) {
		const struct sample *s = &samples[i];

		if (s->wrong)
			is_refused(s);
		/* A value that is missing, or one that is too many. */
		snprintf(wanted, sizeof(wanted), "%s:%d: %s: %s", conf, FIRST_LINE, s->name, s->value ? "a value is missing" : "takes no value");
		cr_assert_null(of_line(s, "%s%s%s", s->value ? NULL : "yes"), "%s", s->name);
		cr_assert_str_eq(logged, wanted);
	}
	is_refused(&without_effect);
}

/* Above all not those that a daemon gives the one that takes over from it. */
Test(daemon_options, a_file_has_no_say_in_what_is_of_the_command_line, .init = begin, .fini = end)
{
	char wanted[256];

	for (size_t i = 0; i < ARRAY_LEN(of_the_command_line); i++) {
		const struct sample s = { of_the_command_line[i], NULL, NULL, NULL };

		for (int with_value = 0; with_value < 2; with_value++) {
			cr_assert_null(of_line(&s, "%s%s%s", with_value ? "1" : NULL), "%s is taken", s.name);
			snprintf(wanted, sizeof(wanted), "%s:%d: %s: only for the command line", conf, FIRST_LINE, s.name);
			cr_assert_str_eq(logged, wanted);
		}
	}
}
