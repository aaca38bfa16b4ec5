/*
 * lost.c - errors of the file system below about something that was written before, of which it tells once.
 *
 * An engine behind FUSE may answer writes before they are stored, and tell of a failure to whoever stores or closes the file next, by
 * whatever descriptor: perhaps to another program, perhaps to the daemon. (The kernel's own file systems tell each descriptor.) Who has to know?
 *
 *	shared source	all who have the file open to write, for calls or for devices: inode->lost has a number of its own for each
 *			failure, and in the last bits its errno; handle->errors_seen is what the open file was told last
 *	else		only the cache stores. What the daemon hears makes the next sync of the file fail, or the next close by a writer, which
 *			syncs then. So the cache stores again what it still has, and tells programs. inode->lost is the errno
 *
 * EBADFD is another matter: it says that a descriptor has been given up, and nothing of what others wrote by theirs.
 */
#include "base/counters.h"
#include "base/log.h"
#include "base/thread.h"
#include "fuse/internal.h"

#include <errno.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LOST_ERRNO 0xffffu
#define LOGGED_AGAIN_S 60u

void lost_init(struct fs *fs)
{
	struct statfs st;

	fs->below_is_fuse = !fstatfs(fs->root.fd, &st) && (unsigned long)st.f_type == FUSE_SUPER_MAGIC;
}

/* ---- noting ---- */

static void tell_log(struct inode *inode, int err)
{
	char path[CFILE_NAME_MAX], name[CFILE_NAME_MAX];

	log_warn("%s: the file system below says, late, that something written to it could not be stored: %s",
		 contents_name(inode, path, sizeof(path)) ? cache_safe_name(path, name) : "a file without a name", strerror(-err));
}

void lost_note(struct inode *inode, struct handle *h, int err)
{
	uint64_t before = atomic_load(&inode->lost), now, is = (uint64_t)errno_below(-err);
	unsigned at = 1 + (unsigned)(now_ns() / 1000000000), logged = atomic_load(&inode->lost_logged_s);

	do
		now = inode->fs->config.shared ? (before | LOST_ERRNO) + 1 + is : is;
	while (!atomic_compare_exchange_weak(&inode->lost, &before, now));
	if (h)
		atomic_store(&h->errors_seen, now);
	count(CTR_storage_errors, 1);
	/* As log_may(), but for each file. */
	if (!logged || at - logged >= LOGGED_AGAIN_S) {
		atomic_store(&inode->lost_logged_s, at);
		tell_log(inode, err);
	}
}

/* Whether somebody may have written what was heard of. */
static bool is_written(struct inode *inode)
{
	bool is;

	pthread_mutex_lock(&inode->fs->lock);
	is = inode->writers || (!inode->fs->config.shared && backing_is_written(inode));
	pthread_mutex_unlock(&inode->fs->lock);
	return is;
}

void lost_heard(struct inode *inode, int err)
{
	if (err != -EBADFD && (inode->fs->below_is_fuse || inode->fs->config.shared) && is_written(inode))
		lost_note(inode, NULL, err);
}

/* The handle's descriptor could not be stored. @told: the error goes to a program that will look at it. */
static void may_be_lost(struct handle *h, int err, bool told)
{
	bool writes = open_to_write(h->flags);

	if (err == -EBADFD && (!writes || atomic_exchange(&h->bad_noted, true)))
		return;
	if (writes)
		lost_note(h->inode, told ? h : NULL, err);
	else
		lost_heard(h->inode, err);
}

/* ---- calls under way ---- */

/*
 * A call that is under way may just be hearing what a sync that works at the same time is not told any more. So who has synced waits for the
 * calls about the file that had begun by then. (As syncs of the cache wait for each other: pagecache/writeback.c.)
 */
static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t call_ended = PTHREAD_COND_INITIALIZER;
static TAILQ_HEAD(, lost_call) calls = TAILQ_HEAD_INITIALIZER(calls);
static uint64_t calls_begun;

void lost_call_begins(struct lost_call *c, struct inode *inode)
{
	c->inode = inode;
	if (!inode->fs->below_is_fuse)
		return;
	pthread_mutex_lock(&calls_lock);
	c->number = ++calls_begun;
	TAILQ_INSERT_TAIL(&calls, c, link);
	pthread_mutex_unlock(&calls_lock);
}

void lost_call_ends(struct lost_call *c)
{
	if (!c->inode->fs->below_is_fuse)
		return;
	pthread_mutex_lock(&calls_lock);
	TAILQ_REMOVE(&calls, c, link);
	pthread_cond_broadcast(&call_ended);
	pthread_mutex_unlock(&calls_lock);
}

void lost_closed(struct lost_call *c, int err, bool wrote)
{
	struct fs *fs = c->inode->fs;

	if (err && wrote && (fs->below_is_fuse || fs->config.shared))
		lost_note(c->inode, NULL, err);
	else if (err)
		lost_heard(c->inode, err);
	lost_call_ends(c);
}

static bool calls_before(const struct inode *inode, uint64_t last)
{
	const struct lost_call *c;

	TAILQ_FOREACH(c, &calls, link)
		if (c->inode == inode && c->number <= last)
			return true;
	return false;
}

/* By who has no such call under way itself. */
static void wait_for_calls(const struct inode *inode)
{
	struct uses *waits = NULL;
	uint64_t last;

	if (!inode->fs->below_is_fuse)
		return;
	pthread_mutex_lock(&calls_lock);
	last = calls_begun;
	while (calls_before(inode, last)) {
		thread_waits();
		if (!waits)
			waits = wait_begin(WAIT_storage);
		pthread_cond_wait(&call_ended, &calls_lock);
	}
	pthread_mutex_unlock(&calls_lock);
	wait_end(waits, WAIT_storage);
}

void inode_close(struct inode *inode, int fd)
{
	struct lost_call c;

	lost_call_begins(&c, inode);
	lost_closed(&c, close(fd) ? -errno : 0, false);
}

/* ---- telling ---- */

/* An error from before that the open file has not been told, negative, or 0. */
static int owed_to(struct handle *h, bool told)
{
	uint64_t lost, seen;

	if (!open_to_write(h->flags))
		return 0;
	wait_for_calls(h->inode);
	lost = atomic_load(&h->inode->lost);
	seen = told ? atomic_exchange(&h->errors_seen, lost) : atomic_load(&h->errors_seen);
	return seen == lost ? 0 : -(int)(lost & LOST_ERRNO);
}

int lost_with(struct handle *h, struct lost_call *c, int err)
{
	if (err)
		may_be_lost(h, err, true);
	lost_call_ends(c);
	return err ? err : owed_to(h, true);
}

int lost_with_close(struct handle *h, struct lost_call *c, int err)
{
	if (err)
		may_be_lost(h, err, false);
	lost_call_ends(c);
	return err ? err : owed_to(h, false);
}

int lost_with_synced(struct handle *h, int err)
{
	int owed = h->inode->fs->config.shared ? owed_to(h, false) : 0;

	/* If it has failed for another reason that is still owed. */
	if (owed && (!err || err == owed))
		owed = owed_to(h, true);
	return err ? err : owed;
}

int lost_at_sync(struct inode *inode, int err)
{
	int before;

	if (inode->fs->config.shared) {
		if (err)
			lost_heard(inode, err);
		return err;
	}
	wait_for_calls(inode);
	before = -(int)atomic_exchange(&inode->lost, 0);
	return err ? err : before;
}
