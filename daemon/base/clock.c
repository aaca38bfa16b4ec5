/*
 * clock.c - see clock.h.
 */
#include "base/clock.h"

#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct quick_clock quick_clock = { .tick_ns = -1 };

#ifdef __x86_64__
#define MEASURE_NS 5000000u
#define TOGETHER_NS 2000u /* two clocks are read at the same moment, if it takes no longer: so the rate is off by a two-thousandth at most */
#define TRIES 100u	  /* then the counter is not used */

static bool kernel_uses_counter(void)
{
	int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
	char text[16] = "";
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	return n > 0 && strcmp(text, "tsc\n") == 0;
}

/* False: each time the thread was interrupted between the two. */
static bool read_both(uint64_t *ticks, uint64_t *ns)
{
	for (unsigned i = 0; i < TRIES; i++) {
		uint64_t before = now_ns(), after;

		*ticks = __builtin_ia32_rdtsc();
		after = now_ns();
		*ns = before + (after - before) / 2;
		if (after - before <= TOGETHER_NS)
			return true;
	}
	return false;
}

void quick_clock_start(void)
{
	const struct timespec pause = { .tv_nsec = MEASURE_NS };
	uint64_t ticks, ns, first_ticks, first_ns;

	if (!kernel_uses_counter() || !read_both(&first_ticks, &first_ns))
		return;
	while (now_ns() - first_ns < MEASURE_NS)
		nanosleep(&pause, NULL);
	if (!read_both(&ticks, &ns) || ticks <= first_ticks)
		return;
	quick_clock.tick_ns = (double)(ns - first_ns) / (double)(ticks - first_ticks);
	quick_clock.is_counter = true;
}
#else
void quick_clock_start(void)
{
}
#endif
