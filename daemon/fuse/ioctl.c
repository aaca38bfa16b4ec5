/*
 * ioctl.c - the requests of clients and of the control tool, decoded.
 *
 * These may wait for the kernel and for other clients, which the serving threads must not do. So a worker carries each
 * out, and answers it. Workers are divided into lanes (enum lane).
 *
 * Any signal to the caller interrupts an acquire: the thread that receives the INTERRUPT answers the acquire with
 * EINTR. The worker, which may be waiting for a client or for storage, goes on until it notices that, undoes what it
 * has done, and answers nothing. Whether the acquire was interrupted or succeeded is decided once (cache_decide()).
 */
#include "fuse/internal.h"

#include <errno.h>
#include <stddef.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/*
 * Threads of each lane: in all, for all users together, and for each user. Those that users may not have are for the
 * owners of the mount.
 */
static const struct lane_kind {
	const char *name;
	unsigned threads, users, each;
} lane_kinds[LANES] = {
	[LANE_ACQUIRE] = { "gaia-acquire", 128, 96, 48 },
	[LANE_PINNED] = { "gaia-pinned", 64, 48, 24 },
	[LANE_RELEASE] = { "gaia-release", 64, 48, 24 },
	[LANE_UNMAP] = { "gaia-unmap", 16, 12, 6 },
	[LANE_QUERY] = { "gaia-query", 16, 12, 6 },
	[LANE_LOOK] = { "gaia-look", 48, 36, 12 },
	[LANE_HOME] = { "gaia-home", 48, 36, 12 },
	[LANE_READ] = { "gaia-read", 48, 36, 12 },
	[LANE_WRITE] = { "gaia-write", 48, 36, 12 },
	[LANE_CHANGE] = { "gaia-change", 48, 36, 12 },
	[LANE_END] = { "gaia-end", 16, 12, 6 },
	[LANE_LOCK] = { "gaia-lock", 256, 224, 64 }, /* as QUOTA_lock_waits */
};

int lanes_start(struct fs *fs)
{
	for (unsigned i = 0; i < LANES; i++) {
		const struct lane_kind *kind = &lane_kinds[i];
		int err;

		if (i == LANE_LOCK && !fs->config.shared)
			continue;
		err = pool_create(kind->name, kind->threads, &fs->lane[i]);
		if (err)
			return err;
		pool_share(fs->lane[i], kind->each, kind->users);
	}
	return 0;
}

void lanes_stop(struct fs *fs)
{
	for (unsigned i = 0; i < LANES; i++)
		if (fs->lane[i])
			pool_destroy(fs->lane[i]);
}

void lane_submit(struct fs *fs, enum lane lane, uid_t uid, void (*fn)(void *arg), void *arg)
{
	pool_submit_for(fs->lane[lane], uid, quota_is_owner(fs->config.quota, uid), fn, arg);
}

union ioctl_arg {
	struct gaia_ioc_connect connect;
	struct gaia_ioc_devices devices;
	struct gaia_ioc_map map;
	struct gaia_ioc_range range;
	struct gaia_ioc_list list;
	struct gaia_ioc_lists lists;
	struct gaia_ioc_file file;
	struct gaia_ioc_place place;
	struct gaia_ioc_report report;
	struct gaia_ioc_set set;
};

struct ioctl_job {
	fuse_req_t req;
	struct fs *fs;
	struct handle *handle; /* the kernel's request keeps it until the answer; acquires keep it for longer */
	struct cfile *f;       /* set by carry_out(): NULL: not of a file */
	uid_t uid;	       /* the caller's */
	pid_t tid;
	unsigned cmd;
	int64_t came; /* serve_later() */
	bool interruptible;    /* is_interruptible(), of the arguments as they came; and then: */
	uint64_t unique;
	atomic_uint verdict;   /* see cache_acquire() */
	UT_hash_handle hh;     /* interrupts.jobs */

	union ioctl_arg arg; /* last: only that of @cmd, which is much less than the largest, has memory */
};

/*
 * GAIA_IOC_FLUSH and _EVICT. For callers who may write the file, since dropping pages from memory costs
 * everybody who uses them.
 */
static int file_range(struct ioctl_job *job, int access)
{
	struct gaia_ioc_file *io = &job->arg.file;
	struct cfile *f = job->f;
	uint64_t length = io->length;

	if (!f)
		return -ENODEV;
	if (access == O_RDONLY && !quota_is_owner(job->fs->config.quota, job->uid))
		return -EPERM;
	if (io->reserved || io->offset > INT64_MAX)
		return -EINVAL;
	if (!length)
		length = INT64_MAX - io->offset;
	if (length > INT64_MAX - io->offset)
		return -EINVAL;
	if (job->cmd == GAIA_IOC_EVICT)
		return cache_evict(f, io->from, io->offset, length);
	if (io->from > GAIA_FLUSH_DEVICES)
		return -EINVAL;
	return io->from == GAIA_FLUSH_DEVICES ? cache_flush_released(f) : cache_flush(f);
}

static bool shares_readonly(struct ioctl_job *job, unsigned device)
{
	struct cache_device_use use;

	if (!cache_has_device(job->fs->cache, device))
		return true;
	cache_device(job->fs->cache, device, &use);
	return use.dev->shares_readonly;
}

/*
 * The caller. One who has opened the file for reading may still have the right to write it: that is found out
 * if the device cannot prevent stores.
 */
static struct control_caller caller_of(struct ioctl_job *job, int access)
{
	struct control_caller caller = { .uid = job->uid };
	struct inode *inode = job->handle->inode;
	int fd;

	if (access != O_RDONLY || !job->f || shares_readonly(job, job->arg.map.device))
		return caller;
	if (!cred_is_whole(job->req))
		caller.uid = (uid_t)-1;
	fd = inode_fd_get(inode);
	if (fd < 0)
		return caller;
	caller.may_write = cred_may_write(job->req, fd) && !mount_is_readonly(job->fs);
	inode_fd_put(inode);
	return caller;
}

static int map_contents(struct ioctl_job *job, int access)
{
	struct gaia_ioc_map *io = &job->arg.map;
	int err;

	if (io->release)
		return -EINVAL;
	if (access != O_RDONLY)
		contents_written_by(job->handle->inode, job->uid);
	err = control_map(job->fs->control, job->f, access != O_WRONLY,
			  access != O_RDONLY, caller_of(job, access), io);
	/*
	 * A mapping for reading releases nothing that the kernel must drop. It may also be on a read-only
	 * mount, where setxattr(2) fails.
	 */
	if (!err)
		passthrough_mapped(job->handle->inode, access != O_RDONLY);
	io->release = job->fs->writeback || !(io->prot & GAIA_PROT_WRITE) ?
			      GAIA_RELEASE_BY_IOCTL :
			      GAIA_RELEASE_BY_XATTR;
	return err;
}

/*
 * A release that changed something has moved the file's times. If the kernel keeps times itself, the client moves those (see
 * GAIA_FEATURE_TIMES). Otherwise the kernel is told to ask for them again, even if it has no page of the range.
 */
static void file_changed(struct inode *inode, bool changed)
{
	if (changed && !inode->fs->writeback)
		invalidate(inode, -1, 0);
}

static int release(struct inode *inode, struct cfile *f, enum releases may, struct gaia_ioc_range *io)
{
	bool changed;
	int err = control_release(inode->fs->control, f, may, io, &changed);

	file_changed(inode, changed);
	return err;
}

static int release_list(struct inode *inode, struct cfile *f, enum releases may, struct gaia_ioc_list *io)
{
	bool changed;
	int err = control_releasev(inode->fs->control, f, may, io, &changed);

	file_changed(inode, changed);
	return err;
}

static enum releases by_ioctl(const struct fs *fs)
{
	return fs->writeback ? RELEASES_ANY : RELEASES_READERS;
}

/* Whether a signal to the caller ends it: acquires, and what brings contents without one. */
static bool is_interruptible(const struct ioctl_job *job)
{
	unsigned what = job->arg.place.what;

	return job->cmd == GAIA_IOC_ACQUIRE || job->cmd == GAIA_IOC_ACQUIREV ||
	       (job->cmd == GAIA_IOC_PLACE && (what == GAIA_PLACE_FILL || what == GAIA_PLACE_WARM));
}

/* An acquire for which a stream waits. */
static bool is_pinned(const struct ioctl_job *job)
{
	return job->cmd == GAIA_IOC_ACQUIRE && (job->arg.range.prot & GAIA_PROT_PINNED);
}

/* What went wrong is in the answer. */
static int set_options(struct ioctl_job *job)
{
	struct gaia_ioc_set *io = &job->arg.set;
	const struct fs_config *config = &job->fs->config;
	char words[sizeof(io->text)];
	uint32_t length = io->length;
	int err;

	if (!quota_is_owner(config->quota, job->uid) || !cred_is_whole(job->req))
		return -EPERM;
	if (length > sizeof(words) || io->error || (length && io->text[length - 1]))
		return -EINVAL;
	memcpy(words, io->text, sizeof(words));
	memset(io, 0, sizeof(*io));
	err = config->set(config->arg, words, length, io->text, sizeof(io->text));
	io->error = (uint32_t)-err;
	return 0;
}

/* Whether the request is about a file's contents. */
static bool is_for_contents(const struct ioctl_job *job)
{
	switch (job->cmd) {
	case GAIA_IOC_REPORT:
		return job->arg.report.what == GAIA_REPORT_RESIDENCY;
	case GAIA_IOC_CONNECT:
	case GAIA_IOC_DEVICES:
	case GAIA_IOC_LISTS:
	case GAIA_IOC_SET:
		return false;
	}
	return true;
}

/* What the request is about: job->f. */
static int find_contents(struct ioctl_job *job)
{
	struct handle *h = job->handle;

	job->f = h->cfile;
	return job->fs->config.shared && !h->dir && is_for_contents(job) ? shared_contents(h, &job->f) : 0;
}

/* What CPU programs have changed until now is to be found by the acquire. */
static int acquire_begins_below(struct ioctl_job *job)
{
	if (!job->f)
		return 0;
	if (job->fs->config.shared)
		return shared_acquire(job->handle, job->f);
	passthrough_acquire(job->handle->inode);
	return 0;
}

static int sync_contents(struct ioctl_job *job, struct cfile *f)
{
	int err = control_sync(job->fs->control, f, &job->arg.range);
	struct lost_call c;

	/* What the file below has other nodes see when its client has stored it. */
	if (!err && job->arg.range.prot && job->fs->config.shared) {
		lost_call_begins(&c, job->handle->inode);
		err = -errno_below(-lost_with(job->handle, &c, shared_store_writers(job->handle)));
	} else {
		err = lost_with_synced(job->handle, err);
	}
	return err || !job->fs->config.shared ? err : locks_check(job->handle, 0);
}

static int carry_out(struct ioctl_job *job)
{
	struct control *ctl = job->fs->control;
	int access = job->handle->flags & O_ACCMODE;
	int err = find_contents(job);
	struct cfile *f = job->f;

	if (err)
		return err;
	switch (job->cmd) {
	case GAIA_IOC_CONNECT:
		return control_connect(ctl, job->uid, job->tid, &job->arg.connect);
	case GAIA_IOC_DEVICES:
		return control_devices(ctl, &job->arg.devices);
	case GAIA_IOC_MAP:
		return map_contents(job, access);
	case GAIA_IOC_UNMAP:
		return control_unmap(ctl, f, &job->arg.range);
	case GAIA_IOC_ACQUIRE:
		err = acquire_begins_below(job);
		return err ? err : control_acquire(ctl, f, access != O_RDONLY, &job->arg.range, &job->verdict);
	case GAIA_IOC_RELEASE:
		return release(job->handle->inode, f, by_ioctl(job->fs), &job->arg.range);
	case GAIA_IOC_LISTS:
		return control_lists(ctl, &job->arg.lists);
	case GAIA_IOC_ACQUIREV:
		err = acquire_begins_below(job);
		return err ? err : control_acquirev(ctl, f, access != O_RDONLY, &job->arg.list, &job->verdict);
	case GAIA_IOC_RELEASEV:
		return release_list(job->handle->inode, f, by_ioctl(job->fs), &job->arg.list);
	case GAIA_IOC_SYNC:
		return sync_contents(job, f);
	case GAIA_IOC_ADVISE:
		return control_advise(ctl, f, &job->arg.range);
	case GAIA_IOC_REPORT:
		return control_report(ctl, f, job->uid, &job->arg.report);
	case GAIA_IOC_FLUSH:
	case GAIA_IOC_EVICT:
		err = file_range(job, access);
		return job->cmd == GAIA_IOC_FLUSH ? lost_with_synced(job->handle, err) : err;
	case GAIA_IOC_SET:
		return set_options(job);
	case GAIA_IOC_PLACE:
		if (!f)
			return -ENODEV;
		if (access == O_WRONLY)
			return -EACCES;
		return place_contents(job->handle->inode, f, job->uid, &job->arg.place, &job->verdict);
	}
	return -ENOTTY;
}

/* The errno to reply. A store may fail with ENOBUFS, but as an answer that means something else: see protocol.h. */
static int reply_errno(int err)
{
	return err == -ENOBUFS ? EIO : -err;
}

/* ---- acquires that are interrupted ---- */

/*
 * Whether the acquire is to be answered EINTR now. Work that goes on behind such an answer counts for the caller, since it must
 * be limited: the acquire of a user who has too much of it is not interrupted. Nor is an acquire for which a stream waits: it
 * would be repeated at once, and would need the room that the first attempt still has. interrupts.lock is held.
 */
static bool give_up(struct ioctl_job *job)
{
	struct quota *quota = job->fs->config.quota;

	if (is_pinned(job))
		return false;
	if (atomic_load(&job->verdict) != CACHE_OPEN || quota_take(quota, QUOTA_waiting_kib, job->uid))
		return false;
	if (cache_decide(&job->verdict, CACHE_GIVEN_UP))
		return true;
	quota_give(quota, QUOTA_waiting_kib, job->uid);
	return false;
}

bool was_interrupted(const struct interrupts *in, uint64_t unique)
{
	unsigned k = 0;

	while (k < INTERRUPTS_EARLY && in->early[k] != unique)
		k++;
	return k < INTERRUPTS_EARLY;
}

static void acquire_begins(struct ioctl_job *job)
{
	struct interrupts *in = &job->fs->interrupts;
	fuse_req_t given_up = NULL;

	handle_keep(job->handle);
	job->unique = serve_unique();
	pthread_mutex_lock(&in->lock);
	HASH_ADD(hh, in->jobs, unique, sizeof(job->unique), job);
	if (was_interrupted(in, job->unique) && give_up(job))
		given_up = job->req;
	pthread_mutex_unlock(&in->lock);
	if (given_up)
		fuse_reply_err(given_up, EINTR);
}

static void acquire_ends(struct ioctl_job *job)
{
	struct fs *fs = job->fs;

	pthread_mutex_lock(&fs->interrupts.lock);
	HASH_DEL(fs->interrupts.jobs, job);
	pthread_mutex_unlock(&fs->interrupts.lock);
	if (atomic_load(&job->verdict) == CACHE_GIVEN_UP)
		quota_give(fs->config.quota, QUOTA_waiting_kib, job->uid);
	handle_close(job->handle);
}

void interrupt_request(struct fs *fs, uint64_t unique)
{
	struct interrupts *in = &fs->interrupts;
	fuse_req_t given_up = NULL;
	struct ioctl_job *job;

	pthread_mutex_lock(&in->lock);
	HASH_FIND(hh, in->jobs, &unique, sizeof(unique), job);
	if (!job && locks_interrupt(fs, unique))
		; /* the worker that waits for the lock answers */
	else if (!job)
		in->early[in->n_early++ % INTERRUPTS_EARLY] = unique;
	else if (give_up(job))
		given_up = job->req;
	pthread_mutex_unlock(&in->lock);
	if (given_up)
		fuse_reply_err(given_up, EINTR);
}

static enum latency kind_of(unsigned cmd)
{
	switch (cmd) {
	case GAIA_IOC_MAP:
		return LATENCY_call_map;
	case GAIA_IOC_UNMAP:
		return LATENCY_call_unmap;
	case GAIA_IOC_ACQUIRE:
	case GAIA_IOC_ACQUIREV:
		return LATENCY_call_acquire;
	case GAIA_IOC_RELEASE:
	case GAIA_IOC_RELEASEV:
		return LATENCY_call_release;
	case GAIA_IOC_SYNC:
	case GAIA_IOC_FLUSH:
		return LATENCY_call_sync;
	case GAIA_IOC_ADVISE:
		return LATENCY_call_advise;
	case GAIA_IOC_EVICT:
	case GAIA_IOC_PLACE:
		return LATENCY_call_place;
	}
	return LATENCY_call_query;
}

static void run(void *arg)
{
	struct ioctl_job *job = arg;
	struct fs *fs = job->fs;
	int err;

	err = atomic_load(&job->verdict) == CACHE_GIVEN_UP ? -EINTR : carry_out(job);
	if (!cache_decide(&job->verdict, CACHE_DONE))
		; /* answered */
	else if (err)
		fuse_reply_err(job->req, reply_errno(err));
	else
		fuse_reply_ioctl(job->req, 0, &job->arg,
				 _IOC_DIR(job->cmd) & _IOC_READ ? _IOC_SIZE(job->cmd) : 0);
	serve_answered(kind_of(job->cmd), job->came);
	if (job->interruptible)
		acquire_ends(job);
	busy_end(fs);
	free(job);
}

static enum lane lane_of(const struct ioctl_job *job)
{
	switch (job->cmd) {
	case GAIA_IOC_CONNECT:
	case GAIA_IOC_DEVICES:
	case GAIA_IOC_LISTS:
	case GAIA_IOC_SET:
		return LANE_QUERY;
	case GAIA_IOC_REPORT:
		return job->arg.report.what == GAIA_REPORT_SYNC || job->arg.report.what == GAIA_REPORT_PINS ||
				       job->arg.report.what == GAIA_REPORT_USE ? LANE_ACQUIRE : LANE_QUERY;
	case GAIA_IOC_RELEASE:
	case GAIA_IOC_RELEASEV:
		return LANE_RELEASE;
	case GAIA_IOC_UNMAP:
		return LANE_UNMAP;
	case GAIA_IOC_ACQUIRE:
		if (is_pinned(job))
			return LANE_PINNED;
	}
	return LANE_ACQUIRE;
}

static bool is_our_ioctl(unsigned cmd)
{
	switch (cmd) {
	case GAIA_IOC_CONNECT:
	case GAIA_IOC_DEVICES:
	case GAIA_IOC_MAP:
	case GAIA_IOC_UNMAP:
	case GAIA_IOC_ACQUIRE:
	case GAIA_IOC_RELEASE:
	case GAIA_IOC_SYNC:
	case GAIA_IOC_ADVISE:
	case GAIA_IOC_FLUSH:
	case GAIA_IOC_EVICT:
	case GAIA_IOC_REPORT:
	case GAIA_IOC_LISTS:
	case GAIA_IOC_ACQUIREV:
	case GAIA_IOC_RELEASEV:
	case GAIA_IOC_PLACE:
	case GAIA_IOC_SET:
		return true;
	}
	return false;
}

void op_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg, struct fuse_file_info *fi,
	      unsigned flags, const void *in_buf, size_t in_size, size_t out_size)
{
	struct fs *fs = req_fs(req);
	struct ioctl_job *job;

	if (!is_our_ioctl(cmd)) {
		fuse_reply_err(req, ENOTTY);
		return;
	}
	/*
	 * The ioctl's number contains the struct's size, and the kernel copies that much. Nothing in
	 * the structs may be trusted.
	 */
	if (in_size != _IOC_SIZE(cmd) || in_size > sizeof(job->arg) ||
	    (_IOC_DIR(cmd) & _IOC_READ && out_size < in_size)) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	job = calloc(1, offsetof(struct ioctl_job, arg) + in_size);
	if (!job) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	if (!busy_begin(fs, false)) {
		free(job);
		fuse_reply_err(req, ENOTCONN);
		return;
	}
	job->req = req;
	job->fs = fs;
	job->handle = req_handle(req, fi);
	job->uid = fuse_req_ctx(req)->uid;
	job->tid = fuse_req_ctx(req)->pid;
	job->cmd = cmd;
	job->came = serve_later();
	memcpy(&job->arg, in_buf, in_size);
	job->interruptible = is_interruptible(job);
	if (job->interruptible)
		acquire_begins(job);
	lane_submit(fs, lane_of(job), job->uid, run, job);
}

/* ---- a release under the inode's lock, see GAIA_RELEASE_BY_XATTR ---- */

struct release_job {
	fuse_req_t req;
	struct fs *fs;
	struct inode *inode;
	int64_t came; /* serve_later() */
	bool is_list;
	union {
		struct gaia_ioc_range range;
		struct gaia_ioc_list list;
	};
};

static void run_release(void *arg)
{
	struct release_job *job = arg;
	struct fs *fs = job->fs;
	struct cfile *f;
	int err;

	err = contents_get(job->inode, &f);
	if (!err) {
		err = job->is_list ? release_list(job->inode, f, RELEASES_WRITERS, &job->list) : release(job->inode, f, RELEASES_WRITERS, &job->range);
		contents_put(job->inode);
	}
	fuse_reply_err(job->req, err ? reply_errno(err) : EALREADY);
	serve_answered(LATENCY_call_release, job->came);
	busy_end(fs);
	free(job);
}

void release_by_xattr(fuse_req_t req, struct inode *inode, bool is_list, const void *value, size_t size)
{
	struct fs *fs = req_fs(req);
	struct release_job *job;

	_Static_assert(sizeof(job->range) == sizeof(job->list), "one size for both");
	if (inode->type != S_IFREG || size != sizeof(job->range)) {
		fuse_reply_err(req, inode->type != S_IFREG ? ENODEV : EINVAL);
		return;
	}
	job = calloc(1, sizeof(*job));
	if (!job) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	if (!busy_begin(fs, false)) {
		free(job);
		fuse_reply_err(req, ENOTCONN);
		return;
	}
	/* The caller's descriptor keeps the inode until we have answered. */
	*job = (struct release_job){ .req = req, .fs = fs, .inode = inode, .is_list = is_list, .came = serve_later() };
	memcpy(&job->range, value, size);
	lane_submit(fs, LANE_RELEASE, fuse_req_ctx(req)->uid, run_release, job);
}
