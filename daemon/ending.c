/* ending.c - see ending.h. */
#include "ending.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"

#define SOON_NS 100000000ull /* until the second attempt; the pause doubles each time, up to: */
#define LATER_NS 1600000000ull
#define NAMED 100u /* files in the log; of the others only the number */

/* A descriptor of the same memory that allows reading only, or -1. */
static int read_only(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_CLOEXEC);
}

int ending_init(struct ending *e, uint64_t timeout_ms)
{
	int fd = memfd_create("gaiafs-end", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	pthread_condattr_t attr;
	void *at = MAP_FAILED;

	*e = (struct ending){ .timeout_ns = timeout_ms * 1000000, .fd = -1 };
	/* A process that gets the descriptor must not be able to truncate the memory while the daemon uses it. */
	if (fd >= 0 && !ftruncate(fd, GAIA_END_BYTES) &&
	    !fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		at = mmap(NULL, GAIA_END_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at != MAP_FAILED)
		e->fd = read_only(fd);
	if (fd >= 0)
		close(fd);
	if (at == MAP_FAILED)
		at = mmap(NULL, GAIA_END_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		return -ENOMEM;
	e->shared = at;
	pthread_mutex_init(&e->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&e->changed, &attr);
	pthread_condattr_destroy(&attr);
	return 0;
}

void ending_set_timeout(struct ending *e, uint64_t timeout_ms)
{
	atomic_store(&e->timeout_ns, timeout_ms * 1000000);
}

void ending_begin(struct ending *e)
{
	e->until = now_ns() + e->timeout_ns;
	__atomic_store_n(&e->shared->ending, 1, __ATOMIC_RELEASE);
}

void ending_give_up(struct ending *e)
{
	pthread_mutex_lock(&e->lock);
	e->given_up = true;
	pthread_cond_broadcast(&e->changed);
	pthread_mutex_unlock(&e->lock);
}

/* Wait until it is time to try again. False: the time is over, or waiting was given up. */
static bool wait_to_try_again(struct ending *e, uint64_t ns)
{
	uint64_t t = MIN(now_ns() + ns, e->until);
	struct timespec until = { (time_t)(t / 1000000000), (long)(t % 1000000000) };
	bool again;

	pthread_mutex_lock(&e->lock);
	while (!e->given_up && now_ns() < t)
		pthread_cond_timedwait(&e->changed, &e->lock, &until);
	again = !e->given_up && now_ns() < e->until;
	pthread_mutex_unlock(&e->lock);
	return again;
}

/* Whether trying again may help: data that is lost with its device does not come back. */
static bool some_may_be_stored(const json_t *unstored)
{
	json_t *file;
	size_t k;

	json_array_foreach(unstored, k, file)
		if (!json_is_true(json_object_get(file, "lost")))
			return true;
	return false;
}

int ending_store(struct ending *e, struct cache *c)
{
	json_t *unstored = json_array();
	uint64_t pause = SOON_NS;
	bool said = false, again;
	int err;

	for (;; pause = MIN(2 * pause, LATER_NS)) {
		json_array_clear(unstored);
		err = cache_sync_all(c, unstored);
		again = err && some_may_be_stored(unstored) && now_ns() < e->until;
		if (again && !said)
			log_warn("files that cannot be stored: %zu; they are tried again for %llu s, and lost then; another signal ends that",
				 json_array_size(unstored), (unsigned long long)((e->until - now_ns()) / 1000000000 + 1));
		said = true;
		if (!again || !wait_to_try_again(e, pause))
			break;
	}
	json_decref(unstored);
	return err;
}

/* Tell the process that unmounted, through the shared memory: as many of the files as there is room for. */
static void tell(struct ending *e, json_t *unstored)
{
	const size_t room = GAIA_END_BYTES - sizeof(*e->shared);
	char *text = NULL;

	do {
		json_t *all = json_pack("{s:O}", "files", unstored);

		free(text);
		text = json_dumps(all, JSON_COMPACT);
		json_decref(all);
	} while (text && strlen(text) >= room && !json_array_remove(unstored, json_array_size(unstored) - 1));
	if (text) {
		memcpy(e->shared->text, text, strlen(text) + 1);
		__atomic_store_n(&e->shared->length, (uint32_t)strlen(text), __ATOMIC_RELEASE);
	}
	free(text);
}

int ending_last(struct ending *e, struct cache *c)
{
	json_t *unstored = json_array(), *file;
	int err = cache_sync_all(c, unstored);
	size_t k;

	json_array_foreach(unstored, k, file) {
		if (k == NAMED) {
			log_at(LOG_LEVEL_ERROR, "and of %zu more files", json_array_size(unstored) - NAMED);
			break;
		}
		/* Not log_error(): none of the files that are named may be left out. */
		log_at(LOG_LEVEL_ERROR, "%s: some of what was written could not be stored and is lost: %s (%lld bytes)",
		       json_string_value(json_object_get(file, "path")), json_string_value(json_object_get(file, "error")),
		       (long long)json_integer_value(json_object_get(file, "bytes")));
	}
	tell(e, unstored);
	json_decref(unstored);
	return err;
}

void ending_destroy(struct ending *e)
{
	if (!e->shared)
		return;
	if (e->fd >= 0)
		close(e->fd);
	munmap(e->shared, GAIA_END_BYTES);
	pthread_cond_destroy(&e->changed);
	pthread_mutex_destroy(&e->lock);
}
