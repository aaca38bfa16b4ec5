/*
 * log.h - logging: each line is for a human.
 *
 * The code that first decides that something is an error logs it, once, with what the
 * user can do; all other code passes the errno up. Before log_to_syslog() the
 * lines go to standard error, after it to syslog. Thread-safe.
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

/* Text without a final newline. */
void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Limits lines that any user can cause at will. Starts as zero; log_may() is true once, and then once a minute at most. */
struct log_pace {
	atomic_uint_least64_t next_ns;
};
bool log_may(struct log_pace *pace);

#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
