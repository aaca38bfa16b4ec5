/*
 * source_files.c - what the probes of gaia check-source are made of: files, looking at them, and children.
 *
 * Others may be able to put things into the probes' directory, on a file system that they serve: so nothing but regular files of one name is
 * opened, by no link, and nothing is waited for.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "source.h"

#define ENOUGH 3u /* a probe that was wrong so often is not made again */

int side[SIDES];
volatile sig_atomic_t interrupted;

double clock_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void rest(unsigned ms)
{
	nanosleep(&(struct timespec){ .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000l }, NULL);
}

bool failed(struct result *r, int err)
{
	if (err && !r->err)
		r->err = err;
	return err;
}

/* ---- files ---- */

/* A descriptor, or a negative errno. */
int open_file(int by, const char *name, int flags)
{
	int fd = openat(side[by], name, flags | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
	struct stat st;

	if (fd < 0)
		return -errno;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_nlink <= 1)
		return fd;
	close(fd);
	return -ELOOP;
}

/* Of a call that moves bytes: 0 if it was all of them. */
int moved(ssize_t done, size_t n)
{
	return done == (ssize_t)n ? 0 : done < 0 ? -errno : -EIO;
}

int close_file(int fd)
{
	return close(fd) ? -errno : 0;
}

/* The bytes of turn @turn. */
const char *bytes_of(unsigned turn, char out[BYTES])
{
	for (unsigned i = 0; i < BYTES; i++)
		out[i] = (char)('a' + (turn + i / 64) % 26);
	return out;
}

/* From open to close: it is so long then. 0, or a negative errno. @flags: O_CREAT | O_EXCL to make it. */
int put(int by, const char *name, int flags, unsigned turn, size_t n)
{
	int fd = open_file(by, name, O_WRONLY | flags), err, ended;
	char bytes[BYTES];

	if (fd < 0)
		return fd;
	err = moved(pwrite(fd, bytes_of(turn, bytes), n, 0), n);
	if (!err && ftruncate(fd, (off_t)n))
		err = -errno;
	ended = close_file(fd);
	return err ? err : ended;
}

/* Whether the client that opens it reads just these bytes, and is told that it is so long. */
bool reads(int by, const char *name, unsigned turn, size_t n)
{
	int fd = open_file(by, name, O_RDONLY);
	char want[BYTES], got[BYTES + 1];
	struct stat st;
	bool right;

	if (fd < 0)
		return false;
	right = read(fd, got, sizeof(got)) == (ssize_t)n && !memcmp(got, bytes_of(turn, want), n) && !fstat(fd, &st) && st.st_size == (off_t)n;
	close(fd);
	return right;
}

/* ---- looking ---- */

bool is_read(const struct look *l)
{
	return reads(l->by, l->name, l->turn, l->n);
}

bool is_gone(const struct look *l)
{
	return faccessat(side[l->by], l->name, F_OK, AT_SYMLINK_NOFOLLOW) && (errno == ENOENT || errno == ESTALE);
}

/* Look once, and count that; what is wrong is looked at until it is right. Whether the probe goes on. */
bool look(struct result *r, bool (*right)(const struct look *), struct look l)
{
	double begun = clock_now(), took = 0;

	r->turns++;
	if (right(&l))
		return !interrupted;
	r->wrong++;
	do {
		rest(10);
		if (right(&l)) {
			took = clock_now() - begun;
			break;
		}
		took = clock_now() - begun;
	} while (!interrupted && took < LOOK_FOR);
	r->longest = took > r->longest ? took : r->longest;
	return r->wrong < ENOUGH && !interrupted;
}

/* What is counted without looking for longer. Whether the probe goes on. */
bool count(struct result *r, bool right)
{
	r->turns++;
	r->wrong += !right;
	return r->wrong < ENOUGH && !interrupted;
}

/* ---- children ---- */

/* In a child, which must not outlive us. Signals end it. */
static void begin_child(pid_t parent)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		signal(ends[i], SIG_DFL);
	if (getppid() != parent)
		_exit(EINTR);
}

/* A child that does @does(arg), whose result (0 to 255) it ends with. A negative errno if there is none. */
pid_t child(int (*does)(void *), void *arg)
{
	pid_t parent = getpid(), pid = fork();

	if (!pid) {
		begin_child(parent);
		_exit(does(arg));
	}
	return pid < 0 ? -errno : pid;
}

/* Wait @seconds for it, and end it after that: what it ended with, or a negative errno: -ETIME if it had to be ended. */
int end_child(pid_t pid, double seconds)
{
	double begun = clock_now();
	int status;
	pid_t got;

	while (!(got = waitpid(pid, &status, WNOHANG)) && clock_now() - begun < seconds && !interrupted)
		rest(2);
	if (got == pid)
		return WIFEXITED(status) ? WEXITSTATUS(status) : -EINTR;
	kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return -ETIME;
}
