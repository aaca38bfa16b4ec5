/*
 * log.h - logging: each line is for a human.
 *
 * The code that first decides that something is an error logs it, once, with what the
 * user can do; all other code passes the errno up. Before log_to_syslog() the
 * lines go to standard error, after it to syslog. If standard error is the journal (log_to_journal()), lines begin with their
 * priorities, as sd-daemon(3) has it. Thread-safe; no lock is taken.
 */
#ifndef GAIA_BASE_LOG_H
#define GAIA_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* "error", "warn", "info" or "debug"; -EINVAL otherwise. */
int log_level_parse(const char *name, enum log_level *out);
void log_set_level(enum log_level level);
void log_to_syslog(void);
/* If $JOURNAL_STREAM says that standard error is the journal: its lines have priorities from now on. */
void log_to_journal(void);
/* Whether lines of this level are shown: for those that cost something to make. */
bool log_shows(enum log_level level);

/* Text without a final newline. Has no limit: for what happens once, or a limited number of times. */
void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * What may be logged of one kind: some lines at once, and then one line every @each_ns. What is beyond is left out, and counted
 * (log_lines_left_out). So nobody can flood the log by whatever fails. Starts as zero.
 */
struct log_rate {
	atomic_uint_least64_t free_ns; /* when as many as at first may be logged at once again */
	atomic_uint left_out;	       /* since the last line */
};
/* Whether there may be a line @now_ns. If not, it is counted as left out. */
bool log_rate_take(struct log_rate *rate, unsigned at_once, uint64_t each_ns, uint64_t now_ns);
/* The same now, of a line of this level. If lines were left out before, a line says how many. */
bool log_may_more(struct log_rate *rate, enum log_level level, unsigned at_once, uint64_t each_ns);
/* From now on there is no limit but log_may()'s: for tests that look for each line. */
void log_lift_limits(void);
/* Of lines that any user can cause at will: true once, and then once a minute at most. */
bool log_may(struct log_rate *rate);
/* The last line: how many were left out since the daemon began. */
void log_end(void);

/* Each place in the code has a limit of its own. The arguments are evaluated only if there is a line. */
#define log_limited(level, at_once, each_ns, ...)                                  \
	do {                                                                       \
		static struct log_rate rate_;                                      \
                                                                                   \
		if (log_may_more(&rate_, (level), (at_once), (each_ns)))           \
			log_at((level), __VA_ARGS__);                              \
	} while (0)

#define LOG_AT_ONCE 50u
#define LOG_EACH_NS 1000000000ull
#define log_error(...) log_limited(LOG_LEVEL_ERROR, LOG_AT_ONCE, LOG_EACH_NS, __VA_ARGS__)
#define log_warn(...) log_limited(LOG_LEVEL_WARN, LOG_AT_ONCE, LOG_EACH_NS, __VA_ARGS__)
#define log_info(...) log_limited(LOG_LEVEL_INFO, LOG_AT_ONCE, LOG_EACH_NS, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

/* What the daemon decides, at debug: there may be very much of it, and each place has some lines a second. */
#define LOG_DECISIONS 20u
#define log_decision(...) log_limited(LOG_LEVEL_DEBUG, LOG_DECISIONS, 1000000000ull / LOG_DECISIONS, __VA_ARGS__)

#endif
