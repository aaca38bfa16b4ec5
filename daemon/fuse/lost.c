/*
 * lost.c - errors of the file system below about something that was written before, of which it tells once.
 *
 * An engine behind FUSE, or a server, may answer writes before they are stored, and tell of a failure to whoever stores or closes the file
 * next, by whatever descriptor: perhaps to another program, perhaps to the daemon. Who else has to know?
 *
 *	shared source	all who have the file open to write, for calls or for devices, as the kernel tells them of a file system's own:
 *			inode->lost has a number of its own for each failure, and in the last bits its errno; handle->errors_seen is what
 *			the open file was told last
 *	else		only the cache stores. If the daemon closes a descriptor the next sync of the file fails, by which the cache
 *			stores again what it still has, and tells programs: inode->lost is the errno
 */
#include "base/counters.h"
#include "base/log.h"
#include "fuse/internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define LOST_ERRNO 0xffffu

static bool is_written(struct inode *inode)
{
	bool is;

	pthread_mutex_lock(&inode->fs->lock);
	is = inode->writers;
	pthread_mutex_unlock(&inode->fs->lock);
	return is;
}

static void tell_log(struct inode *inode, int err)
{
	char name[PATH_MAX];

	log_warn("%s: the file system below says, late, that something written to it could not be stored: %s; those who have it open are told",
		 contents_name(inode, name, sizeof(name)) ? name : "(a file without a name)", strerror(-err));
}

void lost_note(struct inode *inode, struct handle *h, int err)
{
	uint64_t before = atomic_load(&inode->lost), now;

	do
		now = inode->fs->config.shared ? (before | LOST_ERRNO) + 1 + (uint64_t)-err : (uint64_t)-err;
	while (!atomic_compare_exchange_weak(&inode->lost, &before, now));
	if (h)
		atomic_store(&h->errors_seen, now);
	count(CTR_storage_errors, 1);
	tell_log(inode, err);
}

/* A descriptor of the file could not be stored or closed. If nobody has written the file nothing is lost. */
static void may_be_lost(struct inode *inode, struct handle *h, int err)
{
	if ((h && open_to_write(h->flags)) || is_written(inode) || (!inode->fs->config.shared && contents_cached(inode)))
		lost_note(inode, h, err);
}

/* An error from before that the open file has not been told, negative, or 0. */
static int owed_to(struct handle *h, bool told)
{
	uint64_t lost = atomic_load(&h->inode->lost), seen;

	if (!open_to_write(h->flags))
		return 0;
	seen = told ? atomic_exchange(&h->errors_seen, lost) : atomic_load(&h->errors_seen);
	return seen == lost ? 0 : -(int)(lost & LOST_ERRNO);
}

int lost_with(struct handle *h, int err)
{
	if (!err)
		return owed_to(h, true);
	may_be_lost(h->inode, h, err);
	return err;
}

int lost_with_close(struct handle *h, int err)
{
	if (!err)
		return owed_to(h, false);
	may_be_lost(h->inode, NULL, err);
	return err;
}

int lost_with_synced(struct handle *h, int err)
{
	int owed = h->inode->fs->config.shared ? owed_to(h, true) : 0;

	return err ? err : owed;
}

int lost_at_sync(struct inode *inode, int err)
{
	int before = inode->fs->config.shared ? 0 : -(int)atomic_exchange(&inode->lost, 0);

	if (!inode->fs->config.shared)
		return err ? err : before;
	if (err)
		may_be_lost(inode, NULL, err);
	return err;
}

void lost_below(struct inode *inode, int err)
{
	if (err)
		may_be_lost(inode, NULL, -errno_below(-err));
}

void inode_close(struct inode *inode, int fd)
{
	lost_below(inode, close(fd) ? -errno : 0);
}
