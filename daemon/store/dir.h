/*
 * dir.h - shared by the files of the store dir only.
 */
#ifndef GAIA_STORE_DIR_H
#define GAIA_STORE_DIR_H

#include <stdatomic.h>

#include "store/async.h"
#include "store/store.h"

struct dir_store {
	struct store base;
	bool direct; /* constant */
	bool shared; /* other machines change the files, too */
	struct async async;
};

/* Lives from open() to close(). */
struct dir_file {
	struct store_file base;
	struct dir_store *store; /* constant */
	int fd;			 /* constant */
	atomic_int direct;	 /* a descriptor of the same file, O_DIRECT; or one of these */
};
#define DIRECT_UNTRIED (-2)
#define DIRECT_NONE (-1)

/* ---- dir_read.c ---- */

/*
 * Call preadv() or pwritev() until all of @iov is done, or nothing more is moved. Returns the bytes moved, including the
 * first @done, which were moved before.
 */
ssize_t move_bytes(ssize_t (*call)(int, const struct iovec *, int, off_t), int fd,
		   const struct iovec *iov, int n, off_t off, size_t done);
ssize_t dir_read(struct store_file *file, const struct iovec *iov, int n, off_t off);
void dir_read_begin(struct store_file *file, struct store_read *rd);
ssize_t dir_read_end(struct store_file *file, struct store_read *rd);

#endif
