/*
 * errors.c - what gaia_last_error_text() says.
 *
 * Each call of the library notes, for its thread, what it is about as it learns of it. Only if it fails a text is made of
 * that, by end_call(): before the mapping that the text names is given up.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

#define TEXT 1024
/* Of longer names the end is shown. */
#define NAME 600

/* What the thread's current call is about. */
static _Thread_local struct {
	const char *call;
	int fd;			/* the program's descriptor; -1: none */
	int file;		/* a descriptor of the range's file; -1: none */
	const char *device;	/* of the mapping; NULL: none */
	bool forked;		/* the mapping is an ancestor's */
	bool in_file;		/* offset is one of a file, not an address */
	uint64_t offset, length; /* length 0: no range */
	bool told;		/* error_end() has made the text */
	char why[256];		/* the cause, where the call knows it better than errno says it; may be empty */
} about;

static _Thread_local char text[TEXT];

void error_begin(const char *call)
{
	about.call = call;
	about.fd = about.file = -1;
	about.device = NULL;
	about.forked = about.in_file = about.told = false;
	about.length = 0;
	about.why[0] = '\0';
}

void error_about_fd(int fd)
{
	about.fd = fd;
}

void error_about_address(const void *addr, size_t length)
{
	about.offset = (uintptr_t)addr;
	about.length = length;
	about.in_file = false;
}

void error_about_mapping(const struct mapping *m, uint64_t offset, uint64_t length)
{
	about.file = m->file->fd;
	about.device = m->device_name;
	about.forked = m->conn->forked;
	about.in_file = true;
	about.offset = offset;
	about.length = length;
}

void error_about_range(uint64_t offset, uint64_t length)
{
	about.in_file = true;
	about.offset = offset;
	about.length = length;
}

int error_because(int err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(about.why, sizeof(about.why), fmt, ap);
	va_end(ap);
	return err;
}

/* ---- the parts of the text ---- */

struct out {
	char *at;
	size_t left;
};

static void add(struct out *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct out *o, const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(o->at, o->left, fmt, ap);
	va_end(ap);
	n = n < 0 ? 0 : (size_t)n < o->left ? n : (int)o->left - 1;
	o->at += n;
	o->left -= n;
}

/* The file's present name. Names come from users: no control characters, which could forge lines of a log. */
static void add_name(struct out *o, int fd)
{
	char link[40], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0) {
		add(o, "descriptor %d", fd);
		return;
	}
	path[n] = '\0';
	for (char *c = path; *c; c++) {
		if ((unsigned char)c[0] == 0xc2 && (unsigned char)c[1] < 0xa0 && c[1])
			*c++ = '?';
		else if ((unsigned char)*c >= ' ' && *c != 0x7f)
			continue;
		*c = '?';
	}
	add(o, "%s%s", n > NAME ? "..." : "", n > NAME ? path + n - NAME : path);
}

static void add_what(struct out *o)
{
	unsigned long long a = about.offset, b = about.offset + about.length - 1;

	if (about.length && about.in_file) {
		add(o, ": bytes %llu to %llu of ", a, b);
		if (about.file >= 0)
			add_name(o, about.file);
		else
			add(o, "a file");
		if (about.device)
			add(o, " on %s", about.device);
	} else if (about.length) {
		add(o, ": addresses 0x%llx to 0x%llx", a, b);
	} else if (about.fd >= 0) {
		add(o, ": ");
		add_name(o, about.fd);
	}
}

static bool is_call(const char *beginning)
{
	return !strncmp(about.call, beginning, strlen(beginning));
}

/* What the caller can do about it. NULL: the error's name says all. */
static const char *advice(int err)
{
	bool maps = is_call("gaia_mmap"), acquires = is_call("gaia_acquire") || is_call("gaia_wait");

	switch (err) {
	case ENOTTY:
		return "it is not on a gaiafs mount: open the file by its name below the mount point";
	case ENOTCONN:
		return about.forked ? "a child of fork() has none of its parent's mappings: map the file in the child" :
				      "the daemon has ended, or disconnected this process: map the file again, after mounting again if need be";
	case EHOSTUNREACH:
		return "this process is in another network namespace than the daemon (a container), which may not make a socket there: run the daemon as root, or the program in the daemon's namespace";
	case EPROTO:
		return "the library and the daemon are of versions too far apart; the daemon's log names both";
	case EMFILE:
		return "this process has no descriptors left (ulimit -n), or its user as many clients or mappings as a user may have (gaiafs --user-limit)";
	case ENFILE:
		return "the system has no descriptors left, or all users have as many clients or mappings as the mount allows (gaiafs --user-limit)";
	case EACCES:
		return maps ? "open the file for reading, and to map it for writing for both (O_RDWR)" :
			      "the mapping is for reading only: map the file with PROT_WRITE, by a descriptor that is open for both (O_RDWR)";
	case EINTR:
		return "a signal came first, and nothing was acquired: call again";
	case EOVERFLOW:
		return maps ? "offset + length is too large" : "a page has been acquired 65,535 times: release it";
	case ENOBUFS:
		return "what this user holds is cut into too many ranges, or too many lists are under way: nothing has changed; use larger ranges or shorter lists";
	case E2BIG:
		return "the list has too many ranges: nothing has changed; use shorter lists";
	case ENOSYS:
		return "the daemon is older than the library, and cannot do this";
	case EBUSY:
		return maps ? "another process has the GPU to itself, or MPS takes no more clients" : "a stream of the context is being captured: end the capture first";
	case ECANCELED:
		return "the mapping has been unmapped";
	case ESTALE:
		return "the file is gone: another machine has removed it, or put another in its place (gaiafs --source shared); unmap it, and map what is there now";
	case ENODEV:
		return maps ? "only regular files can be mapped, on a device that this process can use (driver, CUDA_VISIBLE_DEVICES; not one that was taken away by gaia set)" :
			      "the device is gone, or was taken away (gaia set): `gaia status` shows which there are";
	case ENOMEM:
		return acquires ? "release or unmap what is not needed; gaiafs --device sets what a device may use, --user-limit what a user may hold" : NULL;
	case EIO:
	case ENOSPC:
	case EDQUOT:
	case ENOTSUP:
		if (is_call("gaia_release"))
			return "the range is released; what could not be stored is kept and tried again: do not repeat the call";
		return is_call("gaia_sync") || is_call("gaia_publish") ? "it is not on storage; the data stays cached and is tried again" :
			      "the storage or the device failed; the daemon's log says more";
	default:
		return NULL;
	}
}

void error_end(int err)
{
	const char *name = strerrordesc_np(err), *more = about.why[0] ? about.why : advice(err);
	struct out o = { text, sizeof(text) };

	if (about.told)
		return;
	about.told = true;
	add(&o, "%s", about.call);
	add_what(&o);
	if (name)
		add(&o, ": %s", name);
	else
		add(&o, ": error %d", err);
	if (more)
		add(&o, ": %s", more);
}

int error_of_lost(int lost)
{
	return error_because(-ESTALE, "another daemon has taken the mount over (gaiafs --upgrade), and did not map this: %s; unmap it, and map the file again",
			     strerror(-lost));
}

const char *error_text(void)
{
	return text;
}

