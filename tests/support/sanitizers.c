/*
 * sanitizers.c - makes sanitizers and Criterion work together. Linked into every test program
 * of builds with a sanitizer.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/*
 * Criterion knows that a test passed before its process exits and does not look at
 * the exit status: what a sanitizer finds must kill the process at once, and a leak
 * found at the end must abort it. The environment (ASAN_OPTIONS...) may override.
 */
EXPORT const char *__asan_default_options(void);
EXPORT const char *__asan_default_options(void)
{
	return "abort_on_error=1:detect_stack_use_after_return=1:handle_sigbus=0";
}

#ifdef __SANITIZE_ADDRESS__
/* Criterion's runner leaks a little at times; its tests, whose processes have this name, must not leak. */
EXPORT int __lsan_is_turned_off(void);
EXPORT int __lsan_is_turned_off(void)
{
	return strcmp(program_invocation_name, "boxfort-worker") != 0;
}
#endif

EXPORT const char *__ubsan_default_options(void);
EXPORT const char *__ubsan_default_options(void)
{
	return "halt_on_error=1:abort_on_error=1:print_stacktrace=1";
}

EXPORT const char *__tsan_default_options(void);
EXPORT const char *__tsan_default_options(void)
{
	return "halt_on_error=1:abort_on_error=1:second_deadlock_stack=1";
}

#ifdef __SANITIZE_THREAD__
/*
 * Criterion shares an arena with the processes of its tests and maps it at a random
 * address, 0x200000000000 plus rand_r() * 16 MiB, that ThreadSanitizer on x86-64 mostly wants for
 * its shadow memory: mapping fails, or overwrites the shadow. What the program may map is
 * 0x550000000000 to 0x568000000000, and a position-independent executable never lies
 * below 0x555555554000. So the executable's own rand_r() picks from what remains.
 */
#define FIRST 0x350000u /* of 0x550000000000 */
#define COUNT 0x5000u

EXPORT int rand_r(unsigned *seed)
{
	static atomic_uint calls;

	(void)seed;
	/* Criterion calls again when something is mapped there already. */
	return (int)(FIRST + ((unsigned)getpid() + 4099u * atomic_fetch_add(&calls, 1)) % COUNT);
}
#endif
