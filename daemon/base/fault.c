/*
 * fault.c - see fault.h.
 *
 * Points are kept in a list: tests arm a handful at a time.
 */
#include "base/fault.h"

#ifdef GAIA_FAULTS

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "base/util.h"

/* From arming until fault_disarm_all(). */
struct fault {
	LIST_ENTRY(fault) link;
	char *name;

	/* The error: skip `after` hits, then fail `left` times, or always. */
	int err; /* 0: none */
	unsigned after;
	unsigned left;
	bool forever;

	/* The delay. */
	unsigned max_us; /* 0: none */
	uint64_t random;

	enum { HOLDS_NOBODY, HOLDS_NEXT, HOLDS_ONE } hold;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hold_changed = PTHREAD_COND_INITIALIZER;
static LIST_HEAD(, fault) faults = LIST_HEAD_INITIALIZER(faults); /* lock */
static atomic_bool armed; /* whether faults may have entries; written under lock */

static struct fault *find(const char *name)
{
	struct fault *f;

	LIST_FOREACH(f, &faults, link)
		if (strcmp(f->name, name) == 0)
			return f;
	return NULL;
}

static struct fault *find_or_make(const char *name)
{
	struct fault *f = find(name);

	if (f)
		return f;
	f = xcalloc(1, sizeof(*f));
	f->name = strcpy(xmalloc(strlen(name) + 1), name);
	LIST_INSERT_HEAD(&faults, f, link);
	atomic_store_explicit(&armed, true, memory_order_relaxed);
	return f;
}

/* splitmix64: any seed will do, also 0. */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* The lock is held, so the counts are exact. */
static int hit_error(struct fault *f)
{
	if (!f->err)
		return 0;
	if (f->after) {
		f->after--;
		return 0;
	}
	if (f->forever)
		return f->err;
	if (!f->left)
		return 0;
	f->left--;
	return f->err;
}

/* The lock is held, but dropped while it waits; the fault may be gone afterwards. */
static void hit_hold(struct fault *f, const char *name)
{
	if (f->hold != HOLDS_NEXT)
		return;
	f->hold = HOLDS_ONE;
	pthread_cond_broadcast(&hold_changed);
	while (f && f->hold == HOLDS_ONE) {
		pthread_cond_wait(&hold_changed, &lock);
		f = find(name);
	}
}

int fault_point(const char *name)
{
	struct timespec pause = {0};
	struct fault *f;
	uint64_t us = 0;
	int err = 0;

	if (!atomic_load_explicit(&armed, memory_order_relaxed))
		return 0;
	pthread_mutex_lock(&lock);
	f = find(name);
	if (f) {
		err = hit_error(f);
		if (f->max_us)
			us = next_random(&f->random) % ((uint64_t)f->max_us + 1);
		hit_hold(f, name);
	}
	pthread_mutex_unlock(&lock);
	if (us) {
		pause.tv_sec = (time_t)(us / 1000000);
		pause.tv_nsec = (long)(us % 1000000) * 1000;
		nanosleep(&pause, NULL);
	}
	return err;
}

void fault_arm(const char *name, int err, unsigned after, unsigned count)
{
	struct fault *f;

	pthread_mutex_lock(&lock);
	f = find_or_make(name);
	f->err = err;
	f->after = after;
	f->left = count;
	f->forever = count == 0;
	pthread_mutex_unlock(&lock);
}

void fault_arm_delay(const char *name, unsigned max_us, uint64_t seed)
{
	struct fault *f;

	pthread_mutex_lock(&lock);
	f = find_or_make(name);
	f->max_us = max_us;
	f->random = seed;
	pthread_mutex_unlock(&lock);
}

void fault_hold(const char *name)
{
	pthread_mutex_lock(&lock);
	find_or_make(name)->hold = HOLDS_NEXT;
	pthread_mutex_unlock(&lock);
}

void fault_await_held(const char *name)
{
	struct fault *f;

	pthread_mutex_lock(&lock);
	while ((f = find(name)) && f->hold == HOLDS_NEXT)
		pthread_cond_wait(&hold_changed, &lock);
	pthread_mutex_unlock(&lock);
}

void fault_let_go(const char *name)
{
	pthread_mutex_lock(&lock);
	find_or_make(name)->hold = HOLDS_NOBODY;
	pthread_cond_broadcast(&hold_changed);
	pthread_mutex_unlock(&lock);
}

void fault_disarm_all(void)
{
	struct fault *f;

	pthread_mutex_lock(&lock);
	atomic_store_explicit(&armed, false, memory_order_relaxed);
	while ((f = LIST_FIRST(&faults))) {
		LIST_REMOVE(f, link);
		free(f->name);
		free(f);
	}
	pthread_cond_broadcast(&hold_changed);
	pthread_mutex_unlock(&lock);
}

/* One entry of GAIAFS_FAULTS, parsed. */
struct spec {
	const char *name;
	int err;
	unsigned after, count;
	bool is_delay;
	unsigned max_us;
	uint64_t seed;
};

static int parse_errno(const char *text, int *out)
{
	/* The largest errno that user space sees is 133. */
	for (int e = 1; e < 256; e++) {
		const char *name = strerrorname_np(e);

		if (name && strcmp(name, text) == 0) {
			*out = -e;
			return 0;
		}
	}
	return -EINVAL;
}

/* Digits, then exactly @unit. */
static int parse_number(const char *text, const char *unit, uint64_t max, uint64_t *out)
{
	unsigned long long n;
	char *end;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || n > max || strcmp(end, unit) != 0)
		return -EINVAL;
	*out = n;
	return 0;
}

static int parse_option(char *text, struct spec *spec)
{
	char *value = strchr(text, '=');
	uint64_t n;

	if (!value)
		return -EINVAL;
	*value++ = '\0';
	if (spec->is_delay) {
		if (strcmp(text, "seed") != 0)
			return -EINVAL;
		return parse_number(value, "", UINT64_MAX, &spec->seed);
	}
	if (parse_number(value, "", UINT32_MAX, &n))
		return -EINVAL;
	if (strcmp(text, "after") == 0)
		spec->after = (unsigned)n;
	else if (strcmp(text, "count") == 0)
		spec->count = (unsigned)n;
	else
		return -EINVAL;
	return 0;
}

/* Modifies @text; @spec refers to it afterwards. */
static int parse_spec(char *text, struct spec *spec)
{
	char *kind = strchr(text, '=');
	char *value, *rest, *option;
	uint64_t n;

	*spec = (struct spec){.name = text};
	if (!kind || kind == text)
		return -EINVAL;
	*kind++ = '\0';
	rest = kind;
	kind = strsep(&rest, ",");
	value = strchr(kind, ':');
	if (!value)
		return -EINVAL;
	*value++ = '\0';
	if (strcmp(kind, "errno") == 0) {
		if (parse_errno(value, &spec->err))
			return -EINVAL;
	} else if (strcmp(kind, "delay") == 0) {
		spec->is_delay = true;
		if (parse_number(value, "us", UINT32_MAX, &n))
			return -EINVAL;
		spec->max_us = (unsigned)n;
	} else {
		return -EINVAL;
	}
	while ((option = strsep(&rest, ",")))
		if (parse_option(option, spec))
			return -EINVAL;
	return 0;
}

static int parse_all(const char *text, bool arm)
{
	char *copy = strcpy(xmalloc(strlen(text) + 1), text);
	char *rest = copy;
	char *entry;
	int err = 0;

	while (!err && (entry = strsep(&rest, ";"))) {
		struct spec spec;

		if (!*entry)
			continue; /* nothing, or a final semicolon */
		err = parse_spec(entry, &spec);
		if (err || !arm)
			continue;
		if (spec.is_delay)
			fault_arm_delay(spec.name, spec.max_us, spec.seed);
		else
			fault_arm(spec.name, spec.err, spec.after, spec.count);
	}
	free(copy);
	return err;
}

int fault_parse(const char *text)
{
	int err = parse_all(text, false);

	return err ? err : parse_all(text, true);
}

#endif /* GAIA_FAULTS */
