/*
 * clock.c - see clock.h.
 */
#include "base/clock.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"

#define MEASURE_NS 200000000u
#define TOGETHER_NS 2000u /* two clocks are read at the same moment, if it takes no longer: so the rate is off by a hundred-thousandth at most */
#define TRIES 100u	  /* then the counter is not used */

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

/* False: the thread was interrupted between the two. */
static bool read_both(uint64_t *ticks, uint64_t *ns)
{
	uint64_t before = now_ns(), after;

	*ticks = quick_ticks();
	after = now_ns();
	*ns = before + (after - before) / 2;
	return after - before <= TOGETHER_NS;
}

void quick_clock_start(void)
{
	unsigned tries = 0;

	while (!read_both(&first_ticks, &first_ns) && ++tries < TRIES)
		;
#ifdef __x86_64__
	may_use_counter = tries < TRIES && kernel_uses_counter();
#else
	(void)kernel_uses_counter;
#endif
}

/* By one thread at a time. True: there is no more to do. */
static bool measure(void)
{
	static unsigned tries;
	uint64_t ns, ticks;

	if (!read_both(&ticks, &ns) || ticks <= first_ticks)
		return ++tries == TRIES;
	quick_clock.ns = ns;
	quick_clock.ticks = ticks;
	atomic_store_explicit(&quick_clock.rate, (uint64_t)((((unsigned __int128)(ns - first_ns)) << 32) / (ticks - first_ticks)),
			      memory_order_release);
	return true;
}

uint64_t quick_ns_slow(void)
{
	static atomic_bool measuring;
	uint64_t ns = now_ns();

	if (may_use_counter && ns - first_ns >= MEASURE_NS && !atomic_load(&measuring) && !atomic_exchange(&measuring, true) && !measure())
		atomic_store(&measuring, false);
	return ns;
}
