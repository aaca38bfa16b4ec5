/*
 * device_strict.c - mistakes of clients: where a strict device stops them, and what GAIA_DEBUG=1 says of them.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "gaia/cuda.h"
#include "shell.h"
#include "ways.h"

#define PAGE 4096
#define CHUNK (2 << 20)
#define FILE_SIZE (3 << 20)
#define RW (PROT_READ | PROT_WRITE)
#define KILLED (128 + SIGSEGV)

static int make_file(void)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, FILE_SIZE), 0);
	return fd;
}

/* What a client prints, and its exit status. No sanitizer may end it first. */
static struct shell_result client(const char *variables, const char *steps)
{
	return shell_run(NULL, WAY_SECONDS / 2, "exec env ASAN_OPTIONS=\"$ASAN_OPTIONS:handle_segv=0\" %s %s %s %s",
			 variables, GAIA_MISTAKES, mnt_file(&mnt, "f"), steps);
}

/* What a client says on stderr is these lines; %s in them is the file. Its exit status. */
static int says(const char *variables, const char *steps, const char *lines)
{
	struct shell_result r = client(variables, steps);
	char want[1000];
	int status = r.status;

	snprintf(want, sizeof(want), lines, mnt_file(&mnt, "f"), mnt_file(&mnt, "f"));
	cr_assert_str_eq(r.err, want, "\"%s\": %s", steps, r.err);
	shell_free(&r);
	return status;
}

static void may(const char *steps)
{
	cr_assert_eq(says("", steps, ""), 0, "%s", steps);
}

static void may_not(const char *steps)
{
	cr_assert_eq(says("", steps, ""), KILLED, "%s", steps);
}

/* ---- strict ---- */

EACH_WAY(device_strict, pages_can_be_touched_while_they_are_held)
{
	close(make_file());
	may("w:5000:4000 load:4096 store:4096 load:12287 store:12287 release:5000:4000");
	may_not("w:5000:4000 load:4095");
	may_not("w:5000:4000 load:12288");
	may_not("w:5000:4000 store:12288");
	may_not("w:0:4096 release:0:4096 load:0");
	may_not("w:0:4096 release:0:4096 store:0");
	may_not("load:0");
	/* In chunks that come later, and again in those that have been there. */
	may("w:2093056:8192 store:2093056 store:2101247 release:2093056:8192 r:2093056:8192 load:2093056 load:2101247");
	may_not("w:2093056:8192 release:2097152:4096 store:2093056 store:2097152");
	may_not("w:0:3145728 release:4096:4096 store:0 store:8192 load:4096");
	/* Beyond the end of the file, once that is there. */
	may_not("r:0:1 w:3145728:4096 release:3145728:1 load:3145728");
}

EACH_WAY(device_strict, pages_can_be_stored_to_while_they_are_held_for_writing)
{
	close(make_file());
	may("r:0:8192 load:4096");
	may_not("r:0:8192 load:4096 store:4096");
	may_not("w:0:4096 release:0:4096 r:0:4096 load:0 store:0");
	/* The strongest of the holds, until the last is gone. */
	may("r:0:4096 w:0:4096 store:0 release:0:4096 store:0 release:0:4096");
	may("w:0:5000 w:5000:3000 release:0:5000 store:4096 load:7999 release:5000:3000");
	may_not("w:0:5000 w:5000:3000 release:0:5000 store:0");
	may_not("w:0:4096 r:0:4096 release:0:8192 release:0:8192 load:0");
	may_not("w:0:4096 r:0:4096 release:0:4096 release:0:4096 r:0:4096 store:0");
}

/* The wrong byte is not stored, nor is it published. */
EACH_WAY(device_strict, what_is_stored_outside_a_hold_reaches_nobody)
{
	int fd = make_file();
	char byte[2];

	may_not("w:0:4096 store:0 release:0:4096 store:1");
	cr_assert_eq(pread(fd, byte, 2, 0), 2);
	cr_assert_arr_eq(byte, "s\0", 2);
	close(fd);
}

EACH_WAY_BARE(device_strict, strict_is_off)
{
	static const char *const args[] = { "--device", "sim:8M,strict=off", NULL };

	way_start(args);
	close(make_file());
	may("r:0:4096 load:4096 release:0:4096 store:0 load:0");
	cr_assert_eq(says("GAIA_DEBUG=1", "w:0:4096 store:4096 release:0:4096 store:0", ""), 0);
}

static int grows_while_held(void *arg)
{
	int fd = *(int *)arg;
	volatile unsigned char *p = gaia_mmap(2 * CHUNK, RW, fd, 0, 0);

	CHILD_CHECK(p != MAP_FAILED);
	/* The second chunk is not there yet. */
	CHILD_CHECK(ftruncate(fd, PAGE) == 0);
	CHILD_CHECK(gaia_acquire((void *)p, 2 * CHUNK, RW) == 0);
	p[0] = 'a';
	CHILD_CHECK(ftruncate(fd, 2 * CHUNK) == 0);
	CHILD_CHECK(gaia_acquire((void *)p, 2 * CHUNK, RW) == 0);
	p[2 * CHUNK - 1] = 'z';
	CHILD_CHECK(gaia_release((void *)p, 2 * CHUNK) == 0);
	p[2 * CHUNK - 1] = 'y';
	CHILD_CHECK(gaia_release((void *)p, 2 * CHUNK) == 0);
	/* Calls of the system on what is not held. */
	CHILD_CHECK(pwrite(fd, (void *)p, 1, 10) == -1 && errno == EFAULT);
	CHILD_CHECK(pread(fd, (void *)p, 1, 10) == -1 && errno == EFAULT);
	CHILD_CHECK(gaia_acquire((void *)p, PAGE, PROT_READ) == 0);
	CHILD_CHECK(pwrite(fd, (void *)p, 1, 10) == 1);
	CHILD_CHECK(pread(fd, (void *)p, 1, 0) == -1 && errno == EFAULT);
	CHILD_CHECK(gaia_munmap((void *)p, 2 * CHUNK) == 0);
	return 0;
}

EACH_WAY(device_strict, a_file_that_grows_and_calls_of_the_system)
{
	int fd = make_file();
	char byte[2];

	cr_assert_eq(child_run(grows_while_held, &fd), 0);
	cr_assert_eq(pread(fd, byte, 1, 2 * CHUNK - 1), 1);
	cr_assert_eq(byte[0], 'y');
	cr_assert_eq(pread(fd, byte, 1, 10), 1);
	cr_assert_eq(byte[0], 'a');
	close(fd);
}

/* The library's calls of mprotect(2) come here, as this program's do. */
static atomic_uint protects;

__attribute__((visibility("default"))) int mprotect(void *at, size_t len, int prot)
{
	protects++;
	return (int)syscall(SYS_mprotect, at, len, prot);
}

/* How many times an acquire, or a release, changes what can be touched. */
static unsigned acquires_by(void *p, size_t len, int prot)
{
	unsigned before = protects;

	cr_assert_eq(gaia_acquire(p, len, prot), 0, "%s", strerror(errno));
	return protects - before;
}

static unsigned releases_by(void *p, size_t len)
{
	unsigned before = protects;

	cr_assert_eq(gaia_release(p, len), 0, "%s", strerror(errno));
	return protects - before;
}

EACH_WAY(device_strict, neighbouring_pages_are_protected_together)
{
	int fd = make_file();
	char *p = gaia_mmap(FILE_SIZE, RW, fd, 0, 0);

	cr_assert_neq(p, MAP_FAILED);
	/* So that the chunks are there. */
	acquires_by(p, FILE_SIZE, RW);
	releases_by(p, FILE_SIZE);
	cr_assert_eq(acquires_by(p, 200 * PAGE, RW), 1);
	cr_assert_eq(releases_by(p, 200 * PAGE), 1);
	/* Across the border of the chunks. */
	cr_assert_eq(acquires_by(p + CHUNK - 100 * PAGE, 200 * PAGE, PROT_READ), 1);
	cr_assert_eq(releases_by(p + CHUNK - 100 * PAGE, 200 * PAGE), 1);
	/* Pages that may be stored to among others that may not be. */
	acquires_by(p + 50 * PAGE, 10 * PAGE, RW);
	cr_assert_eq(acquires_by(p, 200 * PAGE, PROT_READ), 3);
	cr_assert_eq(releases_by(p, 200 * PAGE), 3);
	cr_assert_eq(releases_by(p + 50 * PAGE, 10 * PAGE), 1);
	cr_assert_eq(gaia_munmap(p, FILE_SIZE), 0);
	close(fd);
}

/* How many a process may have; 0: unknown. */
static size_t max_mappings(void)
{
	FILE *f = fopen("/proc/sys/vm/max_map_count", "r");
	size_t n = 0;

	if (!f || fscanf(f, "%zu", &n) != 1)
		n = 0;
	if (f)
		fclose(f);
	return n;
}

/* Uses up all of them. */
static int has_no_mappings_left(void *arg)
{
	volatile unsigned char *p = gaia_mmap(FILE_SIZE, RW, *(int *)arg, 0, 0);
	char *many;

	CHILD_CHECK(p != MAP_FAILED);
	CHILD_CHECK(dup2(((int *)arg)[1], STDERR_FILENO) == STDERR_FILENO);
	CHILD_CHECK(gaia_acquire((void *)p, PAGE, RW) == 0 && gaia_release((void *)p, PAGE) == 0);
	many = mmap(NULL, max_mappings() * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHILD_CHECK(many != MAP_FAILED);
	while (mprotect(many, PAGE, PROT_READ) == 0)
		many += 2 * PAGE;
	CHILD_CHECK(errno == ENOMEM);
	for (int i = 0; i < 3; i++) {
		CHILD_CHECK(gaia_acquire((void *)(p + 10 * PAGE), PAGE, RW) == 0);
		p[10 * PAGE]++;
		CHILD_CHECK(gaia_release((void *)(p + 10 * PAGE), PAGE) == 0);
	}
	/* A store outside of holds does not fault now. */
	p[11 * PAGE] = 'x';
	CHILD_CHECK(gaia_munmap((void *)p, FILE_SIZE) == 0);
	return 0;
}

EACH_WAY(device_strict, without_mappings_it_is_lax_and_says_so_once)
{
	static const char want[] = "gaia: this process has no mappings left";
	char said[1000];
	int fd[2] = { make_file(), memfd_create("stderr", MFD_CLOEXEC) };
	ssize_t n;

	if (!max_mappings() || max_mappings() > 1 << 21)
		WAY_SKIP("a process may have too many mappings to use them up, or there is no /proc");
	cr_assert_eq(child_run(has_no_mappings_left, fd), 0);
	n = pread(fd[1], said, sizeof(said) - 1, 0);
	cr_assert_gt(n, 0);
	said[n] = '\0';
	cr_assert_eq(strncmp(said, want, strlen(want)), 0, "%s", said);
	cr_assert_eq(strchr(said, '\n'), said + n - 1, "%s", said);
	cr_assert_eq(pread(fd[0], said, 1, 10 * PAGE), 1);
	cr_assert_eq(said[0], 3);
	cr_assert_eq(pread(fd[0], said, 1, 11 * PAGE), 1);
	cr_assert_eq(said[0], 0);
	close(fd[0]);
	close(fd[1]);
}

/* Code for streams can be written without a GPU. */
EACH_WAY(device_strict, streams_act_at_once)
{
	int fd = make_file();
	volatile unsigned char *p = gaia_mmap(FILE_SIZE, RW, fd, 0, 0);
	struct CUstream_st *stream = (struct CUstream_st *)0x7;
	char byte;

	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(pwrite(fd, "c", 1, 0), 1);
	cr_assert_eq(gaia_acquire_on((void *)p, PAGE, RW, stream), 0, "%s", strerror(errno));
	cr_assert_eq(p[0], 'c');
	p[0] = 'd';
	cr_assert_eq(pread(fd, &byte, 1, 0), 1);
	cr_assert_eq(byte, 'c');
	cr_assert_eq(gaia_release_on((void *)p, PAGE, NULL), 0, "%s", strerror(errno));
	cr_assert_eq(pread(fd, &byte, 1, 0), 1);
	cr_assert_eq(byte, 'd');
	cr_assert_eq(gaia_acquire_on((void *)p, PAGE, PROT_WRITE << 5, stream), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_munmap((void *)p, FILE_SIZE), 0);
	close(fd);
}

/* ---- lists: what a program may touch is as after as many single calls ---- */

EACH_WAY(device_strict, lists_protect_what_they_do_not_name)
{
	close(make_file());
	may("wv:8192:1:0:4096 store:0 store:4095 store:8192 load:12287");
	may("wv:0:1:0:1:2097152:4096 releasev:0:1:2097152:1 store:0 releasev:0:1");
	may("rv:0:8192:4096:8192 releasev:0:8192 load:4096 load:8192");
	may("rv:0:4096 wv:0:1:4096:1 release:0:1 store:0 store:4096");
	may_not("wv:8192:1:0:4096 load:4096");
	may_not("wv:8192:1:0:4096 load:12288");
	may_not("rv:0:4096:8192:1 store:8192");
	may_not("wv:0:1:0:1:2097152:4096 releasev:0:1:2097152:1 load:2097152");
	may_not("wv:0:1:0:1:2097152:4096 releasev:0:1:0:2:2097152:1 load:0");
	may_not("rv:0:8192:4096:8192 releasev:0:8192 load:0");
	cr_assert_eq(says("GAIA_DEBUG=1", "wv:0:4096:8192:1 releasev:8192:1:4096:1:0:1:0:1 unmap",
			  "gaia: %s: bytes 0 to 4095 are released, and not held\n"
			  "gaia: %s: bytes 4096 to 8191 are released, and not held\n"), 0);
}

/* ---- reports ---- */

#define DEBUG "GAIA_DEBUG=1"

EACH_WAY(device_strict, what_is_right_is_not_reported)
{
	close(make_file());
	cr_assert_eq(says(DEBUG, "w:0:5000 w:5000:3000 store:100 release:0:5000 store:5000 load:4999 release:5000:3000 unmap", ""), 0);
	cr_assert_eq(says(DEBUG, "r:3145000:1000000 release:3145000:1000000 w:0:1 r:0:1 release:0:1 store:0 release:0:1", ""), 0);
	/* And nobody says anything who was not asked. */
	cr_assert_eq(says("GAIA_DEBUG=0", "w:0:4096 release:0:4194304 w:0:1", ""), 0);
	cr_assert_eq(says("", "w:0:4096 release:0:4194304 w:0:1 unmap", ""), 0);
}

EACH_WAY(device_strict, releases_of_what_is_not_held_are_reported)
{
	close(make_file());
	cr_assert_eq(says(DEBUG, "w:0:4096 w:8192:1 release:0:10000",
			  "gaia: %s: bytes 4096 to 8191 are released, and not held\n"), 0);
	cr_assert_eq(says(DEBUG, "w:2093056:8192 release:2093056:8192 release:2097152:1",
			  "gaia: %s: bytes 2097152 to 2101247 are released, and not held\n"), 0);
}

EACH_WAY(device_strict, what_is_held_to_the_end_is_reported)
{
	close(make_file());
	cr_assert_eq(says(DEBUG, "w:0:5000 r:5000:4000 release:0:4096 unmap",
			  "gaia: %s: bytes 4096 to 12287 are still held at gaia_munmap(): "
			  "what was stored there since the last release is lost\n"), 0);
	cr_assert_eq(says(DEBUG, "w:0:1 r:12288:1 store:0",
			  "gaia: %s: bytes 0 to 4095 are still held at exit: what was stored there since the last release is lost\n"
			  "gaia: %s: bytes 12288 to 16383 are still held at exit: what was stored there since the last release is lost\n"),
		     0);
}

EACH_WAY(device_strict, what_is_started_can_be_touched_when_it_has_been_waited_for)
{
	close(make_file());
	may("start:0:8192 wait load:0 store:4096");
	may_not("start:0:8192 ended load:0");
	may_not("start:0:8192 wait store:0 release:0:8192 load:0");
	may("r:0:4096 start:0:8192 load:0 release:0:4096 wait store:0 load:4096 release:0:8192");
	may_not("r:0:4096 start:0:4096 ended store:0");
}

EACH_WAY(device_strict, what_is_not_waited_for_is_reported)
{
	close(make_file());
	cr_assert_eq(says(DEBUG, "start:0:5000 ended wait start:8192:1 unmap",
			  "gaia: %s: bytes 8192 to 12287 are being acquired since gaia_acquire_start(), and gaia_wait() was not called\n"
			  "gaia: %s: bytes 0 to 8191 are still held at gaia_munmap(): "
			  "what was stored there since the last release is lost\n"), 0);
	cr_assert_eq(says(DEBUG, "start:0:5000 ended",
			  "gaia: %s: bytes 0 to 8191 are being acquired since gaia_acquire_start(), and gaia_wait() was not called\n"), 0);
}

EACH_WAY(device_strict, what_is_touched_outside_of_holds_is_reported)
{
	close(make_file());
	cr_assert_eq(says(DEBUG, "w:0:4096 store:4095 store:4096",
			  "gaia: %s: bytes 4096 to 8191 are touched, and not held\n"), KILLED);
	cr_assert_eq(says(DEBUG, "r:0:4096 load:0 store:0",
			  "gaia: %s: bytes 0 to 4095 are stored to, and held for reading only\n"), KILLED);
}
