/*
 * faults.c - what GAIAFS_FAULTS may say (base/fault.h).
 *
 * What is refused arms nothing. What is taken fails as it was asked to: with an error whose name is in the text, for some
 * time and then no more; and sleeps no longer than was said.
 */
#include "fuzz.h"

#include <errno.h>
#include <time.h>

#include "base/fault.h"

#define HITS 40

static unsigned sleeps;

/* In place of nanosleep(2), by the linker. */
int __wrap_nanosleep(const struct timespec *want, struct timespec *left);
int __wrap_nanosleep(const struct timespec *want, struct timespec *left)
{
	FUZZ_CHECK(want->tv_sec >= 0 && want->tv_sec <= UINT32_MAX / 1000000 && want->tv_nsec >= 0 &&
		   want->tv_nsec < 1000000000);
	sleeps++;
	return 0;
}

static void hit(const char *name, const char *text, bool armed)
{
	bool failed = false, over = false;
	int first = 0;

	for (unsigned n = 0; n < HITS; n++) {
		int err = fault_point(name);

		FUZZ_CHECK(armed || !err, "%s was refused, and %s is armed", text, name);
		FUZZ_CHECK(!err || !over, "%s fails again", name);
		over = failed && !err;
		if (!err)
			continue;
		FUZZ_CHECK(err < 0 && strerrorname_np(-err) && strstr(text, strerrorname_np(-err)),
			   "%s: %d is not in %s", name, err, text);
		FUZZ_CHECK(!failed || err == first, "%s changes its mind", name);
		failed = true;
		first = err;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = fuzz_text(data, size), *names = fuzz_text(data, size), *rest = names, *entry;
	int err = fault_parse(text);

	FUZZ_CHECK(err == 0 || err == -EINVAL, "%d", err);
	sleeps = 0;
	while ((entry = strsep(&rest, ";")))
		hit(strsep(&entry, "="), text, !err);
	FUZZ_CHECK(!err || !sleeps, "%s was refused, and delays", text);
	fault_disarm_all();
	hit("store.read", text, false);
	free(names);
	free(text);
	return 0;
}
