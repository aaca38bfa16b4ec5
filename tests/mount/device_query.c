/*
 * device_query.c - what the library tells: what a pointer belongs to, what has failed, reports, which version.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "child.h"
#include "gaia/client.h"
#include "gaia/cuda.h"
#include "ways.h"

#define MIB (1 << 20)
#define PAGE 4096
#define RW (PROT_READ | PROT_WRITE)

static int make_file(const char *name, off_t size)
{
	int fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR | O_CLOEXEC, 0644);

	cr_assert_geq(fd, 0, "%s", strerror(errno));
	cr_assert_eq(ftruncate(fd, size), 0);
	return fd;
}

static unsigned char *map(int fd, size_t len, int prot, off_t off)
{
	unsigned char *p = gaia_mmap(len, prot, fd, off, 0);

	cr_assert_neq(p, MAP_FAILED, "%s", gaia_last_error_text());
	return p;
}

#define OK(call) cr_assert_eq((call), 0, "%s: %s", #call, gaia_last_error_text())

/* The call has failed with this error, and the text begins so: %s in it is the file's name, as the mount calls it. */
static void failed(int r, int err, const char *name, const char *beginning)
{
	const char *text = gaia_last_error_text();
	char want[2000];

	cr_assert_eq(r, -1, "it succeeded: %s", beginning);
	cr_assert_eq(errno, err, "%s", text);
	snprintf(want, sizeof(want), beginning, name ? mnt_file(&mnt, name) : "");
	cr_assert_eq(strncmp(text, want, strlen(want)), 0, "\"%s\" does not begin with \"%s\"", text, want);
}

/* ---- pointers ---- */

EACH_WAY(device_query, pointers_are_described)
{
	int fd = make_file("f", 3 * MIB);
	unsigned char *p = map(fd, 2 * MIB + 5, RW, MIB);
	struct gaia_pointer_info info;
	struct stat st;

	cr_assert_eq(fstat(fd, &st), 0);
	memset(&info, 0xee, sizeof(info));
	OK(gaia_query(p + 2 * MIB + 4, &info));
	cr_assert_eq(info.base, p);
	cr_assert_eq(info.length, 2u * MIB + 5);
	cr_assert_eq(info.offset, 1u * MIB);
	cr_assert_eq(info.file_dev, st.st_dev);
	cr_assert_eq(info.file_ino, st.st_ino);
	cr_assert_eq(info.device, 0);
	cr_assert_eq(info.prot, RW);
	cr_assert_str_eq(info.device_name, "sim0");
	cr_assert_str_eq(info.device_kind, "sim");
	for (int i = 0; i < 7; i++)
		cr_assert_eq(info.reserved[i], 0);
	cr_assert_eq(gaia_query(p + 2 * MIB + 5, &info), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_query(&st, &info), -1);
	cr_assert_eq(errno, EINVAL);
	OK(gaia_munmap(p, 2 * MIB + 5));
	cr_assert_eq(gaia_query(p, &info), -1);
	cr_assert_eq(errno, EINVAL);
	close(fd);
}

static int held(const void *p)
{
	struct gaia_pointer_info info;

	OK(gaia_query(p, &info));
	return info.held;
}

EACH_WAY(device_query, of_a_strict_device_it_is_known_what_is_held)
{
	int fd = make_file("f", MIB);
	unsigned char *p = map(fd, MIB, RW, 0);

	cr_assert_eq(held(p), PROT_NONE);
	OK(gaia_acquire(p, PAGE, PROT_READ));
	OK(gaia_acquire(p + PAGE, PAGE, RW));
	OK(gaia_acquire(p + 2 * PAGE, PAGE, PROT_WRITE));
	cr_assert_eq(held(p + PAGE - 1), PROT_READ);
	cr_assert_eq(held(p + PAGE), RW);
	cr_assert_eq(held(p + 2 * PAGE), RW);
	cr_assert_eq(held(p + 3 * PAGE), PROT_NONE);
	OK(gaia_release(p, 3 * PAGE));
	cr_assert_eq(held(p + PAGE), PROT_NONE);
	OK(gaia_munmap(p, MIB));
	close(fd);
}

EACH_WAY_BARE(device_query, otherwise_it_is_not_known)
{
	static const char *const args[] = { "--device", "sim:8M,strict=off", NULL };
	unsigned char *p;
	int fd;

	way_start(args);
	fd = make_file("f", MIB);
	p = map(fd, MIB, PROT_READ, 0);
	OK(gaia_acquire(p, PAGE, PROT_READ));
	cr_assert_eq(held(p), -1);
	OK(gaia_munmap(p, MIB));
	close(fd);
}

static int query_in_child(void *p)
{
	struct gaia_pointer_info info;

	CHILD_CHECK(gaia_query(p, &info) == -1 && errno == ENOTCONN);
	CHILD_CHECK(strstr(gaia_last_error_text(), "fork()"));
	CHILD_CHECK(gaia_stream_error(p) == -1 && errno == ENOTCONN);
	CHILD_CHECK(gaia_acquire(p, 1, PROT_READ) == -1 && errno == ENOTCONN);
	CHILD_CHECK(strstr(gaia_last_error_text(), "map the file in the child"));
	return 0;
}

EACH_WAY(device_query, a_child_is_told_that_it_has_no_mappings)
{
	int fd = make_file("f", MIB);
	unsigned char *p = map(fd, MIB, RW, 0);

	cr_assert_eq(child_run(query_in_child, p), 0);
	cr_assert_eq(held(p), PROT_NONE);
	OK(gaia_munmap(p, MIB));
	close(fd);
}

EACH_WAY(device_query, after_the_daemons_end_pointers_are_still_described)
{
	int fd = make_file("f", MIB);
	unsigned char *p = map(fd, MIB, RW, 0);

	mnt_crash(&mnt);
	cr_assert_eq(held(p), PROT_NONE);
	failed(gaia_acquire(p, MIB, RW), ENOTCONN, NULL, "gaia_acquire: bytes 0 to 1048575 of ");
	cr_assert(strstr(gaia_last_error_text(), "the daemon has ended"), "%s", gaia_last_error_text());
	OK(gaia_munmap(p, MIB));
	close(fd);
}

/* ---- texts ---- */

EACH_WAY(device_query, an_error_names_the_call_the_bytes_and_the_file)
{
	int fd = make_file("f", 3 * MIB), ro = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_CLOEXEC), elsewhere = open("/", O_RDONLY);
	unsigned char *p = map(ro, 2 * MIB, PROT_READ, MIB);
	struct gaia_range two[] = { { p + 10, 20 }, { p + 2 * MIB, 1 } };

	failed(gaia_acquire(p + 10, 20, RW), EACCES, "f", "gaia_acquire: bytes 1048586 to 1048605 of %s on sim0: Permission denied: ");
	failed(gaia_acquire_start(p + 10, 20, RW), EACCES, "f", "gaia_acquire_start: bytes 1048586 to 1048605 of %s on sim0: ");
	failed(gaia_acquire_on(p + 10, 20, RW, NULL), EACCES, "f", "gaia_acquire_on: bytes 1048586 to 1048605 of %s on sim0: ");
	failed(gaia_acquirev(two, 1, RW), EACCES, "f", "gaia_acquirev: bytes 1048586 to 1048605 of %s on sim0: ");
	failed(gaia_acquirev(two, 2, PROT_READ), EINVAL, "f", "gaia_acquirev: bytes 1048586 to 1048605 of %s on sim0: Invalid argument: range 1");
	failed(gaia_acquire(p, 2 * MIB + 1, PROT_READ), EINVAL, NULL, "gaia_acquire: addresses 0x");
	failed(gaia_release(&fd, 1), EINVAL, NULL, "gaia_release: addresses 0x");
	failed(gaia_acquire(p, 1, PROT_EXEC), EINVAL, NULL, "gaia_acquire: Invalid argument: prot must be ");
	failed(gaia_munmap(p, MIB), EINVAL, NULL, "gaia_munmap: addresses 0x");
	failed(gaia_mmap(1, RW, ro, 0, 0) == MAP_FAILED ? -1 : 0, EACCES, "f", "gaia_mmap: %s: Permission denied: ");
	failed(gaia_mmap(1, RW, fd, 5, 0) == MAP_FAILED ? -1 : 0, EINVAL, "f", "gaia_mmap: %s: Invalid argument: the offset, 5, ");
	failed(gaia_mmap(1, RW, fd, 0, 7) == MAP_FAILED ? -1 : 0, ENODEV, "f", "gaia_mmap: %s: No such device: the mount has no device 7: it has 1");
	failed(gaia_mmap(1, RW, elsewhere, 0, 0) == MAP_FAILED ? -1 : 0, ENOTTY, NULL, "gaia_mmap: /: ");
	failed(gaia_devices(-1, NULL, 0), EBADF, NULL, "gaia_devices: Bad file descriptor");
	failed(gaia_wait(fd), EINVAL, NULL, "gaia_wait: ");
	failed(gaia_status(elsewhere) ? 0 : -1, ENOTTY, NULL, "gaia_status: /: ");
	failed(gaia_device_of_cuda(elsewhere, 0), ENOTTY, NULL, "gaia_device_of_cuda: /: ");
	OK(gaia_munmap(p, 2 * MIB));
	close(elsewhere);
	close(ro);
	close(fd);
}

EACH_WAY_BARE(device_query, no_room_is_explained_in_numbers)
{
	static const char *const args[] = { "--device", "sim:8M", NULL };
	unsigned char *p;
	int fd;

	way_start(args);
	fd = make_file("f", 12 * MIB);
	p = map(fd, 12 * MIB, PROT_READ, 0);
	OK(gaia_acquire(p, 6 * MIB, PROT_READ));
	failed(gaia_acquire(p, 12 * MIB, PROT_READ), ENOMEM, "f", "gaia_acquire: bytes 0 to 12582911 of %s on sim0: Cannot allocate memory: "
	       "it needs 12 MiB of device memory; sim0 has 8 MiB, of which 6 are in use: ");
	OK(gaia_munmap(p, 12 * MIB));
	close(fd);
}

static void *has_none(void *arg)
{
	return *gaia_last_error_text() ? "" : NULL;
}

EACH_WAY(device_query, a_text_is_its_threads_and_stays_until_another_call_fails)
{
	pthread_t t;
	void *wrong = "";
	int fd = make_file("f\n\x1b[31m\xc2\x9b", MIB);
	unsigned char *p = map(fd, MIB, PROT_READ, 0);

	cr_assert_str_eq(gaia_last_error_text(), "");
	cr_assert_eq(gaia_acquire(p, 1, RW), -1);
	OK(gaia_acquire(p, 1, PROT_READ));
	cr_assert_eq(strncmp(gaia_last_error_text(), "gaia_acquire: bytes 0 to 0 of ", 30), 0);
	/* No name of a file forges a line. */
	cr_assert(strstr(gaia_last_error_text(), "/f??[31m?? on sim0: "), "%s", gaia_last_error_text());
	cr_assert_eq(pthread_create(&t, NULL, has_none, NULL), 0);
	pthread_join(t, &wrong);
	cr_assert_null(wrong);
	OK(gaia_munmap(p, MIB));
	close(fd);
}

/* A name as long as names may be: of the text nothing but the name's beginning is missing. */
EACH_WAY(device_query, of_long_names_the_end_is_shown)
{
	int fd, at = both_root[ON_MOUNT];
	char name[251];
	unsigned char *p;

	memset(name, 'd', 250);
	name[250] = '\0';
	for (int depth = 0; depth < 8; depth++) {
		cr_assert_eq(mkdirat(at, name, 0755), 0);
		fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		cr_assert_geq(fd, 0);
		if (depth)
			close(at);
		at = fd;
	}
	fd = openat(at, "last", O_CREAT | O_RDWR | O_CLOEXEC, 0644);
	cr_assert_geq(fd, 0);
	close(at);
	p = map(fd, PAGE, PROT_READ, 0);
	failed(gaia_acquire(p, 1, RW), EACCES, NULL, "gaia_acquire: bytes 0 to 0 of ...ddd");
	cr_assert(strstr(gaia_last_error_text(), "/last on sim0: Permission denied: the mapping is for reading only"), "%s", gaia_last_error_text());
	OK(gaia_munmap(p, PAGE));
	close(fd);
}

/* ---- reports, versions, streams ---- */

EACH_WAY(device_query, reports_are_those_of_the_tool)
{
	int fd = make_file("f", MIB);
	char *text = gaia_status(both_root[ON_MOUNT]);
	json_t *report;

	cr_assert_not_null(text, "%s", gaia_last_error_text());
	report = json_loads(text, 0, NULL);
	cr_assert(json_is_array(json_object_get(report, "devices")), "%s", text);
	json_decref(report);
	free(text);

	text = gaia_residency(fd);
	cr_assert_not_null(text, "%s", gaia_last_error_text());
	report = json_loads(text, 0, NULL);
	cr_assert(json_is_object(report), "%s", text);
	json_decref(report);
	free(text);

	cr_assert_null(gaia_residency(both_root[ON_MOUNT]));
	cr_assert_eq(errno, ENODEV, "%s", gaia_last_error_text());
	close(fd);
}

EACH_WAY(device_query, there_is_no_gpu_and_no_error_of_a_stream)
{
	int fd = make_file("f", MIB);
	unsigned char *p = map(fd, MIB, RW, 0);

	OK(gaia_acquire_on(p, PAGE, RW, NULL));
	OK(gaia_release_on(p, PAGE, NULL));
	cr_assert_eq(gaia_stream_error(p), 0);
	failed(gaia_stream_error(&fd), EINVAL, NULL, "gaia_stream_error: ");
	failed(gaia_device_of_cuda(fd, 1000), ENODEV, "f", "gaia_device_of_cuda: %s: No such device: this ");
	OK(gaia_munmap(p, MIB));
	close(fd);
}

Test(device_query_library, has_a_version)
{
	int major, minor, patch, end = 0;

	cr_assert_eq(sscanf(gaia_version(), "%d.%d.%d%n", &major, &minor, &patch, &end), 3);
	cr_assert_eq(gaia_version()[end], '\0');
}
