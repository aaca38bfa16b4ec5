/* faulty.c - a layer over any store that makes it fail, or slows it down, at the fault points. */
#include <errno.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/util.h"
#include "gaia/protocol.h"
#include "store/store.h"

struct faulty_store {
	struct store base;
	struct store *under; /* owned */
};

/* Lives from open() to close(); constant in between. */
struct faulty_file {
	struct store_file base;
	struct store_file *under; /* owned */
};

static struct store_file *under_of(struct store_file *file)
{
	return container_of(file, struct faulty_file, base)->under;
}

static ssize_t faulty_read(struct store_file *file, const struct iovec *iov, int n, off_t off)
{
	int err = fault_point("store.read");

	return err ? err : under_of(file)->ops->read(under_of(file), iov, n, off);
}

static void faulty_read_begin(struct store_file *file, struct store_read *rd)
{
	rd->got = fault_point("store.read");
	if (!rd->got)
		store_read_begin(under_of(file), rd);
}

static ssize_t faulty_read_end(struct store_file *file, struct store_read *rd)
{
	return store_read_end(under_of(file), rd);
}

/* Write what a disk that fails halfway leaves behind: the first half, in whole pages. */
static void write_half(struct store_file *file, const struct iovec *iov, int n, off_t off)
{
	size_t left = 0;

	for (int i = 0; i < n; i++)
		left += iov[i].iov_len;
	left = ROUND_DOWN(left / 2, GAIA_PAGE);
	for (int i = 0; i < n && left > 0; i++) {
		struct iovec part = {iov[i].iov_base, MIN(left, iov[i].iov_len)};

		if (file->ops->write(file, &part, 1, off))
			return;
		off += (off_t)part.iov_len;
		left -= part.iov_len;
	}
}

static int faulty_write(struct store_file *file, const struct iovec *iov, int n, off_t off)
{
	int err = fault_point("store.write");

	if (err) {
		write_half(under_of(file), iov, n, off);
		return err;
	}
	err = under_of(file)->ops->write(under_of(file), iov, n, off);
	(void)fault_point("store.written");
	return err;
}

static int faulty_patch(struct store_file *file, const void *buf, const void *base, size_t len,
			off_t off)
{
	int err = fault_point("store.write");

	return err ? err : under_of(file)->ops->patch(under_of(file), buf, base, len, off);
}

static int faulty_sync(struct store_file *file, bool data_only)
{
	int err = fault_point("store.sync");

	if (!err)
		err = under_of(file)->ops->sync(under_of(file), data_only);
	(void)fault_point("store.synced");
	return err;
}

static int faulty_truncate(struct store_file *file, off_t size)
{
	int err = fault_point("store.truncate");

	return err ? err : under_of(file)->ops->truncate(under_of(file), size);
}

static int faulty_allocate(struct store_file *file, int mode, off_t off, off_t len)
{
	int err = fault_point("store.allocate");

	return err ? err : under_of(file)->ops->allocate(under_of(file), mode, off, len);
}

static off_t faulty_seek(struct store_file *file, off_t off, int whence)
{
	return under_of(file)->ops->seek(under_of(file), off, whence);
}

static int faulty_stat(struct store_file *file, struct stat *out)
{
	return under_of(file)->ops->stat(under_of(file), out);
}

static int faulty_utimens(struct store_file *file, const struct timespec ts[2])
{
	return under_of(file)->ops->utimens(under_of(file), ts);
}

static ssize_t faulty_copy_range(struct store_file *from, off_t from_off, struct store_file *to,
				 off_t to_off, size_t len)
{
	if (to->ops != from->ops)
		return -EXDEV;
	return under_of(from)->ops->copy_range(under_of(from), from_off, under_of(to), to_off, len);
}

static int faulty_close(struct store_file *file)
{
	int err = under_of(file)->ops->close(under_of(file));

	free(container_of(file, struct faulty_file, base));
	return err;
}

static const struct store_file_ops faulty_file_ops = {
	.read = faulty_read,
	.read_begin = faulty_read_begin,
	.read_end = faulty_read_end,
	.write = faulty_write,
	.patch = faulty_patch,
	.sync = faulty_sync,
	.truncate = faulty_truncate,
	.allocate = faulty_allocate,
	.seek = faulty_seek,
	.stat = faulty_stat,
	.utimens = faulty_utimens,
	.copy_range = faulty_copy_range,
	.close = faulty_close,
};

static int faulty_open(struct store *store, int ref, bool write, struct store_file **out)
{
	struct faulty_store *s = container_of(store, struct faulty_store, base);
	int err = fault_point("store.open");
	struct faulty_file *f;

	if (err)
		return err;
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	err = store_open(s->under, ref, write, &f->under);
	if (err)
		goto free_file;
	f->base.ops = &faulty_file_ops;
	f->base.writable = f->under->writable;
	*out = &f->base;
	return 0;

free_file:
	free(f);
	return err;
}

static void faulty_destroy(struct store *store)
{
	struct faulty_store *s = container_of(store, struct faulty_store, base);

	s->under->ops->destroy(s->under);
	free(s);
}

static const struct store_ops faulty_ops = {
	.name = "faulty",
	.open = faulty_open,
	.destroy = faulty_destroy,
};

int store_faulty_create(struct store *under, struct store **out)
{
	struct faulty_store *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->base.ops = &faulty_ops;
	s->under = under;
	*out = &s->base;
	return 0;
}
