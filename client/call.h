/*
 * call.h - how a function of the API begins and ends.
 *
 *	int gaia_thing(int fd)
 *	{
 *		CALL();
 *
 *		error_about_fd(fd);
 *		return result(fd < 0 ? -EBADF : thing(fd));
 *	}
 */
#ifndef GAIA_CLIENT_CALL_H
#define GAIA_CLIENT_CALL_H

#include <errno.h>
#include <pthread.h>

#include "internal.h"

static inline int begin_call(const char *name)
{
	int cancel;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	error_begin(name);
	return cancel;
}

static inline void end_call(int *cancel)
{
	pthread_setcancelstate(*cancel, NULL);
}

/*
 * First in every call: keep the thread from being cancelled until the call returns, because poll(2), close(2) and
 * others are cancellation points, and the library calls them with locks and references held. (Nobody can cancel the
 * library's own threads.)
 */
#define CALL() __attribute__((cleanup(end_call), unused)) int cancel = begin_call(__func__)

/* Turn a negative errno into -1 and errno, as callers of the library expect, and make the text of it. What the call is about is still there. */
static inline int result(int err)
{
	if (err >= 0)
		return err;
	error_end(-err);
	errno = -err;
	return -1;
}

/* The same at the end of a call that has a reference to @m. */
static inline int call_end(struct mapping *m, int err)
{
	int r = result(err), error = errno;

	mapping_put(m);
	errno = error;
	return r;
}

#endif
