/*
 * clock.c - see clock.h.
 */
#include "base/clock.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

#define MEASURE_NS 50000000u /* what reading two clocks one after the other is off by is no more than a millionth of that, or two */

struct quick_clock quick_clock;

static bool may_use_counter; /* constant after quick_clock_start(), like the next two */
static uint64_t first_ticks, first_ns;

static bool kernel_uses_counter(void)
{
	int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource", O_RDONLY | O_CLOEXEC);
	char text[16] = "";
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	return n > 0 && strcmp(text, "tsc\n") == 0;
}

void quick_clock_start(void)
{
#ifdef __x86_64__
	may_use_counter = kernel_uses_counter();
#else
	(void)kernel_uses_counter;
#endif
	first_ns = now_ns();
	first_ticks = quick_ticks();
}

uint64_t quick_ns_slow(void)
{
	static atomic_bool measured;
	uint64_t ns = now_ns(), ticks = quick_ticks();

	if (!may_use_counter || ns - first_ns < MEASURE_NS || ticks <= first_ticks || atomic_exchange(&measured, true))
		return ns;
	quick_clock.ns = ns;
	quick_clock.ticks = ticks;
	atomic_store_explicit(&quick_clock.rate, (uint64_t)((((unsigned __int128)(ns - first_ns)) << 32) / (ticks - first_ticks)),
			      memory_order_release);
	return ns;
}
