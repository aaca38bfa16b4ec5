/*
 * base_parcel.c - tests of base/parcel.h.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/parcel.h"

enum { KIND = 7 };

static int end[2];
static struct parcel out, in;

static void begin(void)
{
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, end), 0);
}

static void finish(void)
{
	close(end[0]);
	close(end[1]);
}

#define PARCEL(name) Test(parcel, name, .init = begin, .fini = finish)

static ino_t ino_of(int fd)
{
	struct stat st;

	cr_assert_eq(fstat(fd, &st), 0);
	return st.st_ino;
}

PARCEL(what_is_packed_is_unpacked)
{
	int file = open("/dev/null", O_RDONLY), got;
	const char *bytes;
	size_t n;

	parcel_init(&out, KIND);
	parcel_put(&out, UINT64_MAX);
	parcel_put_text(&out, "text");
	parcel_put_fd(&out, file);
	parcel_put_fd(&out, -1);
	parcel_put_text(&out, "");
	parcel_put_bytes(&out, "a\0b", 3);
	cr_assert_eq(parcel_send(end[0], &out), 0);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), 0);
	cr_assert_eq(parcel_get(&in), UINT64_MAX);
	cr_assert_str_eq(parcel_get_text(&in), "text");
	got = parcel_get_fd(&in);
	cr_assert_eq(ino_of(got), ino_of(file));
	cr_assert_eq(fcntl(got, F_GETFD), FD_CLOEXEC);
	cr_assert_eq(parcel_get_fd(&in), -1);
	cr_assert_str_eq(parcel_get_text(&in), "");
	bytes = parcel_get_bytes(&in, &n);
	cr_assert(n == 3 && !memcmp(bytes, "a\0b", 3));
	cr_assert(parcel_good(&in) && parcel_is_empty(&in));
	close(got);
	close(file);
}

/* As many as a parcel may have. */
PARCEL(many_descriptors_go_along)
{
	int file = open("/dev/null", O_RDONLY);

	parcel_init(&out, KIND);
	for (unsigned i = 0; i < PARCEL_FDS; i++)
		parcel_put_fd(&out, file);
	cr_assert_not(parcel_has_room(&out, 8, 1));
	cr_assert_eq(parcel_send(end[0], &out), 0);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), 0);
	for (unsigned i = 0; i < PARCEL_FDS; i++) {
		int got = parcel_get_fd(&in);

		cr_assert_eq(ino_of(got), ino_of(file));
		close(got);
	}
	cr_assert(parcel_good(&in) && parcel_is_empty(&in));
	parcel_put_fd(&out, file);
	cr_assert_eq(parcel_send(end[0], &out), -E2BIG);
	close(file);
}

PARCEL(what_is_not_there_is_nothing_and_is_noticed)
{
	parcel_init(&out, KIND);
	parcel_put(&out, 1000); /* as the length of bytes: more than there are */
	parcel_put(&out, 0);
	cr_assert_eq(parcel_send(end[0], &out), 0);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), 0);
	cr_assert_str_eq(parcel_get_text(&in), "");
	cr_assert_not(parcel_good(&in));
	cr_assert_eq(parcel_get(&in), 0);
	cr_assert_eq(parcel_get_fd(&in), -1);
	cr_assert(parcel_is_empty(&in), "so that a loop over its parts ends");

	/* A text without an end; a descriptor that did not come. */
	parcel_init(&out, KIND);
	parcel_put_bytes(&out, "ab", 2);
	cr_assert_eq(parcel_send(end[0], &out), 0);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), 0);
	cr_assert_str_eq(parcel_get_text(&in), "");
	cr_assert_not(parcel_good(&in));
	parcel_init(&out, KIND);
	parcel_put(&out, 1);
	cr_assert_eq(parcel_send(end[0], &out), 0);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), 0);
	cr_assert_eq(parcel_get_fd(&in), -1);
	cr_assert_not(parcel_good(&in));
}

PARCEL(another_kind_is_an_error_and_its_descriptors_are_closed)
{
	int ends[2];
	char byte;

	cr_assert_eq(pipe(ends), 0);
	parcel_init(&out, KIND + 1);
	parcel_put_fd(&out, ends[1]);
	cr_assert_eq(parcel_send(end[0], &out), 0);
	close(ends[1]);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), -EPROTO);
	cr_assert_eq(read(ends[0], &byte, 1), 0, "nobody can write any more");
	close(ends[0]);
	cr_assert_eq(send(end[0], "x", 1, 0), 1);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), -EPROTO);
}

PARCEL(an_end_that_is_gone_or_silent_is_told)
{
	struct timeval soon = { .tv_usec = 1000 };

	cr_assert_eq(setsockopt(end[1], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon)), 0);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), -ETIMEDOUT);
	/* What was sent before arrives all the same. */
	parcel_init(&out, KIND);
	cr_assert_eq(parcel_send(end[0], &out), 0);
	close(end[0]);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), 0);
	cr_assert_eq(parcel_receive(end[1], &in, KIND), -EPIPE);
	parcel_init(&out, KIND);
	cr_assert_eq(parcel_send(end[1], &out), -EPIPE);
	end[0] = dup(end[1]);
}
