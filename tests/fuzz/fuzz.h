/*
 * fuzz.h - what the harnesses share.
 *
 * A harness is LLVMFuzzerTestOneInput() in a file of its own. In a build with -Dfuzz=true libFuzzer calls it with inputs
 * that it makes up; in every other build replay.c calls it with those in corpus/NAME.
 *
 * A harness ends the process on what must not be (FUZZ_CHECK()), and leaves nothing behind: what an input does not
 * depend on the inputs before. What the code under test prints is thrown away, by libFuzzer (-close_fd_mask=3) and by replay.c.
 */
#ifndef GAIA_TESTS_FUZZ_H
#define GAIA_TESTS_FUZZ_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Called by name from outside. */
#define FUZZ_EXPORT __attribute__((visibility("default")))

FUZZ_EXPORT int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Of the harnesses that need it: once, before the first input. */
FUZZ_EXPORT int LLVMFuzzerInitialize(int *argc, char ***argv);

/* Standard error, as it was before it was closed. */
static int fuzz_err = STDERR_FILENO;

__attribute__((constructor)) static inline void fuzz_keep_stderr(void)
{
	int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);

	fuzz_err = fd < 0 ? STDERR_FILENO : fd;
}

#define FUZZ_CHECK(cond, ...)                                                         \
	do {                                                                          \
		if (!(cond)) {                                                        \
			dprintf(fuzz_err, "%s:%d: not so: %s", __FILE__, __LINE__, #cond); \
			dprintf(fuzz_err, " " __VA_ARGS__);                           \
			dprintf(fuzz_err, "\n");                                      \
			abort();                                                      \
		}                                                                     \
	} while (0)

/* How many descriptors are open, of those that can be. The lowest free one tells nothing of those above it. */
static inline unsigned fuzz_descriptors(void)
{
	char path[32], target[64];
	unsigned n = 0;

	for (int fd = 0; fd < 256; fd++) {
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		len = readlink(path, target, sizeof(target) - 1);
		if (len < 0)
			continue;
		target[len] = 0;
		n += !strstr(target, "gaiafs-report");
	}
	return n;
}

/* An input that is taken byte by byte. Where it has ended there are zeros. */
struct fuzz_input {
	const uint8_t *at;
	size_t left;
};

static inline void fuzz_take(struct fuzz_input *in, void *out, size_t n)
{
	size_t has = n < in->left ? n : in->left;

	memset(out, 0, n);
	if (!has)
		return;
	memcpy(out, in->at, has);
	in->at += has;
	in->left -= has;
}

static inline uint8_t fuzz_byte(struct fuzz_input *in)
{
	uint8_t byte;

	fuzz_take(in, &byte, 1);
	return byte;
}

/* Less than @n, which is at most 256. */
static inline unsigned fuzz_below(struct fuzz_input *in, unsigned n)
{
	return fuzz_byte(in) % n;
}

/* The input as a string, which ends at its first NUL; to be freed. */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	FUZZ_CHECK(text);
	if (size)
		memcpy(text, data, size);
	text[size] = '\0';
	return text;
}

#endif
