/*
 * log.c - see log.h.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/util.h"

#define PREFIX "gaiafs: "
#define PRIORITY "<7>"
#define CUT "..."
#define PACE_NS 60000000000ull

static const struct {
	const char *name;
	int priority;
} levels[] = {
	[LOG_LEVEL_ERROR] = {"error", LOG_ERR},
	[LOG_LEVEL_WARN] = {"warn", LOG_WARNING},
	[LOG_LEVEL_INFO] = {"info", LOG_INFO},
	[LOG_LEVEL_DEBUG] = {"debug", LOG_DEBUG},
};

static _Atomic int max_level = LOG_LEVEL_INFO;
static atomic_bool to_syslog, to_journal;

int log_level_parse(const char *name, enum log_level *out)
{
	for (unsigned i = 0; i < ARRAY_LEN(levels); i++) {
		if (strcmp(name, levels[i].name) == 0) {
			*out = (enum log_level)i;
			return 0;
		}
	}
	return -EINVAL;
}

void log_set_level(enum log_level level)
{
	atomic_store_explicit(&max_level, level, memory_order_relaxed);
}

void log_to_syslog(void)
{
	openlog("gaiafs", LOG_PID, LOG_DAEMON);
	atomic_store(&to_syslog, true);
}

void log_to_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long dev, ino;
	struct stat st;

	if (stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 && !fstat(STDERR_FILENO, &st) && st.st_dev == dev && st.st_ino == ino)
		atomic_store(&to_journal, true);
}

bool log_shows(enum log_level level)
{
	return (int)level <= atomic_load_explicit(&max_level, memory_order_relaxed);
}

static atomic_bool limits_lifted;

bool log_rate_take(struct log_rate *rate, unsigned at_once, uint64_t each_ns, uint64_t now)
{
	uint64_t was = atomic_load(&rate->free_ns), from;

	do {
		from = MAX(was, now);
		if (from - now > (at_once - 1) * each_ns) {
			atomic_fetch_add(&rate->left_out, 1);
			count(CTR_log_lines_left_out, 1);
			return false;
		}
	} while (!atomic_compare_exchange_weak(&rate->free_ns, &was, from + each_ns));
	return true;
}

void log_lift_limits(void)
{
	atomic_store(&limits_lifted, true);
}

bool log_may_more(struct log_rate *rate, enum log_level level, unsigned at_once, uint64_t each_ns)
{
	unsigned left_out;

	if (!log_shows(level) || !(log_rate_take(rate, at_once, each_ns, now_ns()) || atomic_load(&limits_lifted)))
		return false;
	left_out = atomic_exchange(&rate->left_out, 0);
	if (left_out > 0)
		log_at(level, "(%u lines like the next were left out)", left_out);
	return true;
}

bool log_may(struct log_rate *rate)
{
	return log_rate_take(rate, 1, PACE_NS, now_ns());
}

void log_end(void)
{
	uint64_t n = counter_value(CTR_log_lines_left_out);

	if (n > 0)
		log_at(LOG_LEVEL_WARN, "of the log %llu lines were left out in all, as there were too many like them", (unsigned long long)n);
}

/*
 * The whole line in one write(2), so that lines of several threads and processes do not mix. If it
 * cannot be written it is lost: there is nowhere else to report that.
 */
static void write_line(const char *line, size_t len)
{
	while (write(STDERR_FILENO, line, len) < 0 && errno == EINTR)
		;
}

void log_at(enum log_level level, const char *fmt, ...)
{
	char line[sizeof(PRIORITY PREFIX) + 1000];
	const size_t priority = atomic_load(&to_journal) ? sizeof(PRIORITY) - 1 : 0, start = priority + sizeof(PREFIX) - 1;
	const size_t room = sizeof(line) - start - 1; /* the newline takes the NUL's place */
	int saved = errno;
	va_list ap;
	size_t len;
	int n;

	if (!log_shows(level))
		return;
	if (priority)
		snprintf(line, sizeof(line), "<%d>", levels[level].priority);
	memcpy(line + priority, PREFIX, start - priority);
	va_start(ap, fmt);
	n = vsnprintf(line + start, room, fmt, ap);
	va_end(ap);
	if (n < 0)
		n = 0;
	len = start + MIN((size_t)n, room - 1);
	if ((size_t)n >= room)
		memcpy(line + len - strlen(CUT), CUT, strlen(CUT));
	/* Names of files come from users: a name must not forge a line or send commands to a terminal. */
	for (size_t i = start; i < len; i++)
		if ((unsigned char)line[i] < ' ' || line[i] == 0x7f)
			line[i] = '?';
	if (atomic_load(&to_syslog)) {
		line[len] = '\0';
		syslog(levels[level].priority, "%s", line + start);
	} else {
		line[len++] = '\n';
		write_line(line, len);
	}
	errno = saved;
}
