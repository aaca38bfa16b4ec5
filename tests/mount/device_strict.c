/*
 * device_strict.c - mistakes of clients: what GAIA_DEBUG=1 says of them.
 */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "shell.h"
#include "ways.h"

#define FILE_SIZE (3 << 20)

static void make_file(void)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_CREAT | O_RDWR, 0644);

	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, FILE_SIZE), 0);
	close(fd);
}

/* What a client says, and its exit status. */
static struct shell_result client(const char *variables, const char *steps)
{
	return shell_run(NULL, WAY_SECONDS / 2, "%s %s %s %s", variables, GAIA_MISTAKES, mnt_file(&mnt, "f"), steps);
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

#define DEBUG "GAIA_DEBUG=1"

EACH_WAY(device_strict, what_is_right_is_not_reported)
{
	make_file();
	cr_assert_eq(says(DEBUG, "w:0:5000 w:5000:3000 store:100 release:0:5000 store:5000 load:4999 release:5000:3000 unmap", ""), 0);
	cr_assert_eq(says(DEBUG, "r:3145000:1000000 release:3145000:1000000 w:0:1 r:0:1 release:0:1 store:0 release:0:1", ""), 0);
	/* And nobody says anything who was not asked. */
	cr_assert_eq(says("GAIA_DEBUG=0", "w:0:4096 release:0:4194304 w:0:1", ""), 0);
	cr_assert_eq(says("", "w:0:4096 release:0:4194304 w:0:1 unmap", ""), 0);
}

EACH_WAY(device_strict, releases_of_what_is_not_held_are_reported)
{
	make_file();
	cr_assert_eq(says(DEBUG, "w:0:4096 w:8192:1 release:0:10000",
			  "gaia: %s: bytes 4096 to 8191 are released, and not held\n"), 0);
	cr_assert_eq(says(DEBUG, "w:2093056:8192 release:2093056:8192 release:2097152:1",
			  "gaia: %s: bytes 2097152 to 2101247 are released, and not held\n"), 0);
}

EACH_WAY(device_strict, what_is_held_to_the_end_is_reported)
{
	make_file();
	cr_assert_eq(says(DEBUG, "w:0:5000 r:5000:4000 release:0:4096 unmap",
			  "gaia: %s: bytes 4096 to 12287 are still held at gaia_munmap(): "
			  "what was stored there since the last release is lost\n"), 0);
	cr_assert_eq(says(DEBUG, "w:0:1 r:12288:1 store:0",
			  "gaia: %s: bytes 0 to 4095 are still held at exit: what was stored there since the last release is lost\n"
			  "gaia: %s: bytes 12288 to 16383 are still held at exit: what was stored there since the last release is lost\n"),
		     0);
}
