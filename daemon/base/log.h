/*
 * log.h - logging: each line is for a human.
 *
 * The code that first decides that something is an error logs it, once, with what the
 * user can do; all other code passes the errno up. Before log_to_syslog() the
 * lines go to standard error, after it to syslog. If standard error is the journal (log_to_journal()), lines begin with their
 * priorities, as sd-daemon(3) has it. Thread-safe.
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

/* Text without a final newline. */
void log_at(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Limits lines that any user can cause at will. Starts as zero; log_may() is true once, and then once a minute at most. */
struct log_pace {
	atomic_uint_least64_t next_ns;
};
bool log_may(struct log_pace *pace);

/*
 * Limits lines of the level debug that say what the daemon decides, of which there may be very many: each place in the code has some a second. The
 * first after others were left out says how many. Starts as zero.
 */
struct log_rate {
	atomic_uint_least64_t second;
	atomic_uint lines, left_out;
};
#define LOG_RATE 20u /* a second */
bool log_may_often(struct log_rate *rate, unsigned *left_out);

/* What the daemon decides, at debug. The arguments are evaluated only if the line is shown. */
#define log_decision(fmt, ...)                                                                                                      \
	do {                                                                                                                        \
		static struct log_rate rate_;                                                                                       \
		unsigned left_out_;                                                                                                 \
                                                                                                                                    \
		if (log_shows(LOG_LEVEL_DEBUG) && log_may_often(&rate_, &left_out_)) {                                              \
			if (left_out_ > 0)                                                                                          \
				log_debug("(%u lines like the next were left out)", left_out_);                                      \
			log_debug(fmt, __VA_ARGS__);                                                                                \
		}                                                                                                                   \
	} while (0)

#define log_error(...) log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...) log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...) log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
