/* settings.c - see settings.h; and the umapcfg_...() functions. */
#pragma GCC visibility push(default)
#include <umap/umap.h>
#pragma GCC visibility pop
#include "settings.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE_SIZE_MIN 4096u
#define PAGE_SIZE_MAX (2u << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct settings now; /* pages 0: as much as default_pages() says */
static bool is_read;	    /* the environment */

/* A positive number, or fallback. */
static uint64_t number_in_environment(const char *name, uint64_t fallback)
{
	const char *text = secure_getenv(name);
	unsigned long long value;
	char *end;

	if (!text || *text < '0' || *text > '9')
		return fallback;
	errno = 0;
	value = strtoull(text, &end, 0);
	return errno || *end || !value ? fallback : value;
}

static bool is_page_size(uint64_t size)
{
	return size && size % PAGE_SIZE_MIN == 0;
}

static uint64_t default_pages(uint64_t page_size)
{
	uint64_t pages = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 4 / page_size;

	return pages ? pages : 1;
}

/* Under the lock. */
static void read_environment(void)
{
	uint64_t size = number_in_environment("UMAP_PAGESIZE", PAGE_SIZE_MIN);
	uint64_t high = number_in_environment("UMAP_EVICT_HIGH_WATER_THRESHOLD", 90);
	uint64_t low = number_in_environment("UMAP_EVICT_LOW_WATER_THRESHOLD", 70);

	if (is_read)
		return;
	is_read = true;
	now.page_size = is_page_size(size) ? size : PAGE_SIZE_MIN;
	now.pages = number_in_environment("UMAP_BUFSIZE", 0);
	now.read_ahead = number_in_environment("UMAP_READ_AHEAD", 0);
	if (now.read_ahead > UINT_MAX)
		now.read_ahead = 0;
	/* The two must make sense together. */
	now.evict_high = low < high && high <= 100 ? (unsigned)high : 90;
	now.evict_low = low < high && high <= 100 ? (unsigned)low : 70;
}

struct settings settings_now(void)
{
	struct settings copy;

	pthread_mutex_lock(&lock);
	read_environment();
	copy = now;
	pthread_mutex_unlock(&lock);
	if (!copy.pages)
		copy.pages = default_pages(copy.page_size);
	return copy;
}

uint64_t settings_page_size(const struct settings *settings)
{
	uint64_t size = settings->page_size & -settings->page_size; /* the lowest bit */

	return size < PAGE_SIZE_MAX ? size : PAGE_SIZE_MAX;
}

/* ---- what is the process's: gaia_umap() finds it in the environment ---- */

static const struct {
	const char *theirs, *ours;
} process_wide[] = {
	{"UMAP_PAGE_FILLERS", "GAIA_UMAP_PAGE_FILLERS"},
	{"UMAP_PAGE_EVICTORS", "GAIA_UMAP_PAGE_EVICTORS"},
	{"UMAP_MAX_FAULT_EVENTS", "GAIA_UMAP_MAX_FAULT_EVENTS"},
};

/* When the library is loaded, because later other threads may be reading the environment. */
__attribute__((constructor)) static void hand_on_environment(void)
{
	for (size_t i = 0; i < sizeof(process_wide) / sizeof(process_wide[0]); i++) {
		if (number_in_environment(process_wide[i].theirs, 0))
			setenv(process_wide[i].ours, getenv(process_wide[i].theirs), 0);
	}
}

static void set_in_environment(const char *name, uint64_t value)
{
	char text[24];

	if (!value)
		return;
	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	setenv(name, text, 1);
}

static uint64_t processors(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > 0 ? (uint64_t)n : 1;
}

/* ---- the interface ---- */

long umapcfg_get_system_page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

uint64_t umapcfg_get_umap_page_size(void)
{
	return settings_now().page_size;
}

uint64_t umapcfg_get_max_pages_in_buffer(void)
{
	return settings_now().pages;
}

uint64_t umapcfg_get_read_ahead(void)
{
	return settings_now().read_ahead;
}

uint64_t umapcfg_get_num_fillers(void)
{
	return number_in_environment("GAIA_UMAP_PAGE_FILLERS", processors());
}

uint64_t umapcfg_get_num_evictors(void)
{
	return number_in_environment("GAIA_UMAP_PAGE_EVICTORS", processors());
}

uint64_t umapcfg_get_max_fault_events(void)
{
	return number_in_environment("GAIA_UMAP_MAX_FAULT_EVENTS", 256);
}

int umapcfg_get_evict_low_water_threshold(void)
{
	return (int)settings_now().evict_low;
}

int umapcfg_get_evict_high_water_threshold(void)
{
	return (int)settings_now().evict_high;
}

void umapcfg_set_umap_page_size(uint64_t page_size)
{
	pthread_mutex_lock(&lock);
	read_environment();
	if (is_page_size(page_size))
		now.page_size = page_size;
	pthread_mutex_unlock(&lock);
}

void umapcfg_set_max_pages_in_buffer(uint64_t max_pages)
{
	pthread_mutex_lock(&lock);
	read_environment();
	if (max_pages)
		now.pages = max_pages;
	pthread_mutex_unlock(&lock);
}

void umapcfg_set_read_ahead(uint64_t num_pages)
{
	pthread_mutex_lock(&lock);
	read_environment();
	if (num_pages <= UINT_MAX)
		now.read_ahead = num_pages;
	pthread_mutex_unlock(&lock);
}

void umapcfg_set_num_fillers(uint64_t num_fillers)
{
	set_in_environment("GAIA_UMAP_PAGE_FILLERS", num_fillers);
}

void umapcfg_set_num_evictors(uint64_t num_evictors)
{
	set_in_environment("GAIA_UMAP_PAGE_EVICTORS", num_evictors);
}

void umapcfg_set_max_fault_events(uint64_t max_events)
{
	set_in_environment("GAIA_UMAP_MAX_FAULT_EVENTS", max_events);
}

void umapcfg_set_evict_low_water_threshold(int percent)
{
	pthread_mutex_lock(&lock);
	read_environment();
	if (percent > 0 && percent < (int)now.evict_high)
		now.evict_low = (unsigned)percent;
	pthread_mutex_unlock(&lock);
}

void umapcfg_set_evict_high_water_threshold(int percent)
{
	pthread_mutex_lock(&lock);
	read_environment();
	if (percent > (int)now.evict_low && percent <= 100)
		now.evict_high = (unsigned)percent;
	pthread_mutex_unlock(&lock);
}
