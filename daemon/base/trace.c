/* trace.c - see trace.h. */
#include "base/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

struct record {
	uint64_t time_us;
	uint64_t file;
	uint64_t page : 56; /* of a file of 2^63 bytes */
	uint64_t op : 8;
	uint32_t pages, hits;
};
_Static_assert(sizeof(struct record) == 32, "as trace.h says");

atomic_bool trace_on;
uint64_t trace_idle_ns = TRACE_IDLE_NS;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* lock. */
static struct record *record; /* TRACE_RECORDS; NULL: it is off */
static unsigned n;
static uint64_t dropped, taken_ns, handed_out; /* handed_out: records, and dropped ones, that trace_take() gave last */
static pid_t taker;

/* lock is held. */
static bool is_idle(uint64_t now)
{
	return !record || now - taken_ns > trace_idle_ns;
}

static void end(void)
{
	atomic_store(&trace_on, false);
	free(record);
	record = NULL;
	n = 0;
	dropped = 0;
}

void trace_add(enum trace_op op, uint64_t file, uint64_t page, uint64_t pages, uint64_t hits)
{
	uint64_t now = now_ns();

	pthread_mutex_lock(&lock);
	if (is_idle(now))
		end();
	else if (n == TRACE_RECORDS)
		dropped++;
	else
		record[n++] = (struct record){
			.time_us = now / 1000, .file = file, .page = page, .op = (uint8_t)op,
			.pages = (uint32_t)MIN(pages, (uint64_t)UINT32_MAX), .hits = (uint32_t)MIN(hits, (uint64_t)UINT32_MAX),
		};
	pthread_mutex_unlock(&lock);
}

static bool has_ended(pid_t pid)
{
	return kill(pid, 0) && errno == ESRCH;
}

#define LINE 96u /* bytes at most: five numbers of 20 digits would be more, but times, pages and counts are shorter */

static char *text_of(const struct record *r, unsigned count, uint64_t lost)
{
	size_t room = ((size_t)count + 1) * LINE, at;
	char *text = malloc(room);

	if (!text)
		return NULL;
	at = (size_t)snprintf(text, room, "# dropped %" PRIu64 "\n", lost);
	for (unsigned k = 0; k < count; k++)
		at += (size_t)snprintf(text + at, room - at, "%" PRIu64 " %c %" PRIu64 " %" PRIu64 " %u %u\n", r[k].time_us, (int)r[k].op,
				       r[k].file, (uint64_t)r[k].page, r[k].pages, r[k].hits);
	return text;
}

int trace_take(pid_t reader, char **text)
{
	struct record *full = NULL, *empty = malloc(TRACE_RECORDS * sizeof(*empty));
	uint64_t now = now_ns(), lost = 0;
	unsigned count = 0;
	int err = 0;

	if (!empty)
		return -ENOMEM;
	pthread_mutex_lock(&lock);
	if (is_idle(now) || (taker != reader && has_ended(taker))) {
		end();
	} else if (taker != reader) {
		err = -EBUSY;
	} else {
		full = record;
		count = n;
		lost = dropped;
	}
	if (!err) {
		handed_out = count + lost;
		record = empty;
		empty = NULL;
		n = 0;
		dropped = 0;
		taken_ns = now;
		taker = reader;
		atomic_store(&trace_on, true);
	}
	pthread_mutex_unlock(&lock);
	free(empty);
	if (!err)
		*text = text_of(full, count, lost);
	free(full);
	if (!err && !*text) {
		trace_lost();
		err = -ENOMEM;
	}
	return err;
}

void trace_lost(void)
{
	pthread_mutex_lock(&lock);
	dropped += handed_out;
	handed_out = 0;
	pthread_mutex_unlock(&lock);
}
