/*
 * replay.c - run a harness with stored inputs.
 *
 *	fuzz_NAME FILE|DIRECTORY...
 *
 * As libFuzzer's programs do where they are given files, so that an input that was found can be looked at
 * with any compiler and sanitizer. Says which input it is that ends the process.
 */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sys/stat.h>

#include "fuzz.h"

#pragma weak LLVMFuzzerInitialize

static char path[PATH_MAX]; /* of the input that is running */
static unsigned replayed;

static void on_signal(int sig)
{
	static const char text[] = "replay: ended by ";
	ssize_t n = write(fuzz_err, text, sizeof(text) - 1);

	n = write(fuzz_err, path, strlen(path));
	n = write(fuzz_err, "\n", 1);
	(void)n;
	signal(sig, SIG_DFL);
	raise(sig);
}

/* Unless a sanitizer has more to say about it. */
static void watch(int sig)
{
	struct sigaction is;

	if (!sigaction(sig, NULL, &is) && is.sa_handler == SIG_DFL)
		signal(sig, on_signal);
}

static void replay(const char *name)
{
	struct stat st;
	uint8_t *data;
	FILE *f;

	snprintf(path, sizeof(path), "%s", name);
	f = fopen(path, "re");
	FUZZ_CHECK(f && !fstat(fileno(f), &st), "%s: %s", path, strerror(errno));
	/* Exactly as large, so that a sanitizer sees what reads beyond it. */
	data = malloc((size_t)st.st_size);
	FUZZ_CHECK(fread(data, 1, (size_t)st.st_size, f) == (size_t)st.st_size, "%s: cannot be read", path);
	fclose(f);
	LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
	free(data);
	replayed++;
}

static void replay_all(const char *dir)
{
	struct dirent **entry;
	int n = scandir(dir, &entry, NULL, alphasort);
	char name[PATH_MAX];

	FUZZ_CHECK(n >= 0, "%s: %s", dir, strerror(errno));
	for (int i = 0; i < n; i++) {
		if (entry[i]->d_name[0] != '.') {
			snprintf(name, sizeof(name), "%s/%s", dir, entry[i]->d_name);
			replay(name);
		}
		free(entry[i]);
	}
	free(entry);
}

static void be_quiet(void)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	FUZZ_CHECK(null >= 0);
	fflush(NULL);
	dup2(null, STDOUT_FILENO);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose reports go there */
	dup2(null, STDERR_FILENO);
#endif
	close(null);
}

int main(int argc, char **argv)
{
	static const int deadly[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL };
	struct stat st;

	if (argc < 2) {
		fprintf(stderr, "usage: %s FILE|DIRECTORY...\n", argv[0]);
		return 2;
	}
	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		watch(deadly[i]);
	be_quiet();
	if (LLVMFuzzerInitialize)
		LLVMFuzzerInitialize(&argc, &argv);
	for (int i = 1; i < argc; i++) {
		FUZZ_CHECK(!stat(argv[i], &st), "%s: %s", argv[i], strerror(errno));
		if (S_ISDIR(st.st_mode))
			replay_all(argv[i]);
		else
			replay(argv[i]);
	}
	FUZZ_CHECK(replayed, "there was nothing to replay");
	dprintf(fuzz_err, "replayed %u inputs\n", replayed);
	return 0;
}
