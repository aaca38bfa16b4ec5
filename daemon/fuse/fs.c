/*
 * fs.c - creating, mounting and ending the file system.
 */
#include "fuse/fs.h"
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Limits to the requests that the kernel has under way by itself (readahead, writeback), for all files together. From CONGESTED on
 * it begins none that nobody waits for. At most_background() every read that misses the kernel's cache waits, and so does every
 * writeback, of whatever file. So the limit is above what files on storage that does not answer usually have under way, and as high
 * as memory allows if all are WRITEs that wait (hand.c). A user with that many threads that read from such storage, by way of the
 * kernel's cache, still holds up everybody's reads that miss it.
 */
#define CONGESTED 48
#define LEAST_BACKGROUND 64

static unsigned most_background(const struct fs *fs)
{
	uint64_t kib = quota_use(fs->config.quota, QUOTA_waiting_kib).all;

	return (unsigned)MAX(LEAST_BACKGROUND, kib * 1024 / FS_MAX_WRITE);
}

/*
 * What these are good for (tests/bench/README.md has the times):
 *  PARALLEL_DIROPS: several processes may look up names in one directory at the same time.
 *  READDIRPLUS_AUTO: readers of names alone do not pay for attributes, and `ls -l` needs no request a name.
 *  CACHE_SYMLINKS: a readlink(2) that was answered before sends no request.
 *  HANDLE_KILLPRIV_V2: write(2) sends no GETXATTR first.
 */
static void op_init(void *userdata, struct fuse_conn_info *conn)
{
	struct fs *fs = userdata;
	unsigned want = FUSE_CAP_ASYNC_READ | FUSE_CAP_EXPLICIT_INVAL_DATA |
			FUSE_CAP_PARALLEL_DIROPS | FUSE_CAP_READDIRPLUS |
			FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_DONT_MASK | FUSE_CAP_IOCTL_DIR |
			FUSE_CAP_CACHE_SYMLINKS | FUSE_CAP_HANDLE_KILLPRIV_V2;

	if (fs->config.cpu_cache == FS_AUTO) {
		fs->not_auto = passthrough_init(fs, conn);
		fs->passthrough = !fs->not_auto;
		if (fs->not_auto)
			log_info("%s: --cpu-cache %s", fs->not_auto,
				 fs->config.shared ? "writethrough; files cannot be mapped shared" : "writeback");
	}
	fs->writeback = fs->config.cpu_cache != FS_WRITETHROUGH && !fs->passthrough && !fs->config.shared;
	cache_set_times_above(fs->cache, fs->writeback);
	if (fs->passthrough)
		want |= CAP_PASSTHROUGH;
	if (fs->writeback)
		want |= FUSE_CAP_WRITEBACK_CACHE;
	if (fs->acl)
		want |= FUSE_CAP_POSIX_ACL;
	if (fs->config.shared) {
		/* Others change files: the kernel is to look, and to ask before it grants a lock. */
		want &= ~(unsigned)(FUSE_CAP_EXPLICIT_INVAL_DATA | FUSE_CAP_CACHE_SYMLINKS);
		/* Attributes that come with names would be asked for again all the same. */
		want &= ~(unsigned)(FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
		want |= FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_POSIX_LOCKS | FUSE_CAP_FLOCK_LOCKS;
	}
	lost_init(fs);
	/*
	 * Not wanted: ASYNC_DIO. After a direct write by io_submit(2) or io_uring the kernel would not drop the
	 * pages that others have read meanwhile: these would stay stale, and with WRITEBACK_CACHE a store to another part of
	 * such a page would write its old bytes back. Where the kernel writes through we may not drop them either (rule 15).
	 *
	 * Not wanted either: splicing (slower than our own pages), O_TRUNC in OPEN (truncation goes
	 * one way, SETATTR), the first HANDLE_KILLPRIV, locks (the kernel's own are enough, but for a shared source).
	 */
	conn->want = want & conn->capable;
	/*
	 * max_readahead stays the kernel's 128 KiB. More would speed up sequential reads of cold files, but the kernel
	 * also reads that much around each page of a mapping that is touched, which costs random access far more.
	 */
	conn->max_write = FS_MAX_WRITE;
#if GAIA_HAVE_PASSTHROUGH
	/* We handle interrupts ourselves (ioctl.c): libfuse would take a lock of the session for each request. */
	conn->no_interrupt = 1;
#endif
	conn->max_background = most_background(fs);
	conn->congestion_threshold = CONGESTED;
	log_debug("the kernel speaks FUSE %u.%u; it may have %u requests of its own under way", conn->proto_major, conn->proto_minor,
		  conn->max_background);
	conn->max_read = fs->options.max_read; /* libfuse insists that both say the same */
	/* Before the answer: with that programs may work on the mount at once. */
	if (fs->supervised)
		fs->supervised->live = true;
}

static const struct fuse_lowlevel_ops ops = {
	.init = op_init,
	.lookup = op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = op_getattr,
	.setattr = op_setattr,
	.readlink = op_readlink,
	.mknod = op_mknod,
	.mkdir = op_mkdir,
	.unlink = op_unlink,
	.rmdir = op_rmdir,
	.symlink = op_symlink,
	.rename = op_rename,
	.link = op_link,
	.open = op_open,
	.create = op_create,
	.read = op_read,
	.write = op_write,
	.flush = op_flush,
	.release = op_release,
	.fsync = op_fsync,
	.opendir = op_opendir,
	.readdir = op_readdir,
	.readdirplus = op_readdirplus,
	.releasedir = op_releasedir,
	.fsyncdir = op_fsyncdir,
	.statfs = op_statfs,
	.setxattr = op_setxattr,
	.getxattr = op_getxattr,
	.listxattr = op_listxattr,
	.removexattr = op_removexattr,
	.ioctl = op_ioctl,
	.fallocate = op_fallocate,
	.lseek = op_lseek,
	.copy_file_range = op_copy_file_range,
};

static void host_invalidate(void *arg, void *cookie, off_t off, off_t len)
{
	invalidate(cookie, off, len);
}

static const struct cache_host host = {
	.invalidate = host_invalidate,
	.grant = control_grant,
	.granted = control_granted,
	.revoke = control_revoke,
	.revoke_many = control_revoke_many,
	.revoke_soon = control_revoke_soon,
	.revoke_more = control_revoke_more,
	.alive = control_alive,
	.process = control_process,
	.process_lives = control_process_lives,
	.spans = control_spans,
};

const struct cache_host *fs_cache_host(void)
{
	return &host;
}

const char *fs_libfuse(void)
{
	static char text[64];

	snprintf(text, sizeof(text), "%s%s", fuse_pkgversion(),
		 GAIA_HAVE_PASSTHROUGH ? "" : ", without passthrough");
	return text;
}

const char *fs_cpu_cache(const struct fs *fs)
{
	return fs->passthrough ? "auto" : fs->writeback ? "writeback" : "writethrough";
}

const char *fs_not_auto(const struct fs *fs)
{
	return fs->not_auto;
}

const char *fs_source(const struct fs *fs)
{
	return fs->source;
}

const char *fs_mountpoint(const struct fs *fs)
{
	return fs->mountpoint;
}

int fs_create(const struct fs_config *config, struct fs **out)
{
	struct fs *fs = calloc(1, sizeof(*fs));
	int err;

	if (!fs)
		return -ENOMEM;
	fs->config = *config;
	fs->source_fd = fs->roots_lock_fd = -1;
	pthread_mutex_init(&fs->lock, NULL);
	cond_init_monotonic(&fs->nothing_busy);
	cond_init_monotonic(&fs->nothing_handed);
	cond_init_monotonic(&fs->pause_changed);
	pthread_mutex_init(&fs->interrupts.lock, NULL);

	/*
	 * To act as a caller the daemon must have no supplementary groups of its own. It cannot do so in a user namespace
	 * where even root may not drop them.
	 */
	fs->privileged = !geteuid() && !setgroups(0, NULL);
	umask(0);

	err = mount_options_parse(config->options, &fs->options); /* logs */
	if (err)
		goto free_fs;
	fs->root_fd = -1;
	err = config->predecessor < 0 ? mount_resolve(fs) : takeover_place(fs); /* logs */
	if (err)
		goto free_options;
	err = supervisor_start(fs); /* logs */
	if (err)
		goto close_source;
	err = inode_table_init(fs);
	if (err) {
		log_error("%s: %s", fs->source, strerror(-err));
		goto end_supervisor;
	}
	fs->acl = xattr_source_has_acl(fs->root.fd);
	cred_init(fs); /* logs */
	takeover_die_with_old(fs);
	err = lanes_start(fs);
	if (err) {
		log_error("fuse: cannot start workers: %s", strerror(-err));
		goto stop_lanes;
	}
	*out = fs;
	return 0;

stop_lanes:
	lanes_stop(fs);
	inode_table_destroy(fs);
end_supervisor:
	supervisor_end(fs);
close_source:
	source_lock_close(fs);
	free(fs->source);
	free(fs->mountpoint);
free_options:
	free(fs->options.rest);
free_fs:
	pthread_mutex_destroy(&fs->interrupts.lock);
	pthread_cond_destroy(&fs->pause_changed);
	pthread_cond_destroy(&fs->nothing_handed);
	pthread_cond_destroy(&fs->nothing_busy);
	pthread_mutex_destroy(&fs->lock);
	free(fs);
	return err;
}

int fs_start(struct fs *fs, struct cache *cache, struct store *store, struct control *control)
{
	struct fuse_lowlevel_ops mine = ops;
	int err;

	if (fs->config.shared)
		shared_ops(&mine);
	fs->cache = cache;
	fs->store = store;
	fs->control = control;
	if (fs->config.predecessor >= 0)
		return takeover(fs, &mine); /* logs */
	err = mount_begin(fs, &mine); /* logs */
	if (err)
		return err;
	err = serve_start(fs); /* logs */
	if (err)
		mount_end(fs, true);
	return err;
}

static bool is_written(const struct inode *inode)
{
	return inode->writers;
}

/* Have what the kernel caches of files that are open for writing written to the cache. */
static void push_writers(struct fs *fs)
{
	unsigned n;
	struct inode **list = inode_list(fs, is_written, &n);

	for (unsigned i = 0; i < n; i++) {
		invalidate(list[i], 0, 0);
		inode_put(list[i]);
	}
	free(list);
}

/* syncfs(2) starts to write everything back; whether it waits depends on the kernel's version. */
static void push_all(struct fs *fs, int mount_fd)
{
	if (mount_fd >= 0)
		syncfs(mount_fd);
	push_writers(fs);
}

static int open_mount(struct fs *fs)
{
	if (!mount_is_ours(fs))
		return -1;
	return open(fs->mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

void fs_push(struct fs *fs)
{
	int fd;

	if (!fs->mounted || fs->over)
		return;
	fd = open_mount(fs);
	push_all(fs, fd);
	if (fd >= 0)
		close(fd);
}

int fs_unmount(struct fs *fs)
{
	int fd, err;

	if (!fs->mounted || fs->over)
		return 0;
	fs_push(fs);
	err = mount_end(fs, false);
	if (err == -EBUSY) {
		/* Programs that use the mount go on until the very end; others do not reach it any more. */
		fd = open_mount(fs);
		err = mount_end(fs, true);
		push_all(fs, fd);
		if (fd >= 0)
			close(fd);
	}
	if (err)
		log_error("%s: cannot be unmounted: %s; `gaia umount %s` may help", fs->mountpoint,
			  strerror(-err), fs->mountpoint);
	return err;
}

static void wait_idle(struct fs *fs, bool deaf)
{
	pthread_mutex_lock(&fs->lock);
	fs->quiescing = true;
	fs->deaf = deaf;
	pthread_mutex_unlock(&fs->lock);
	locks_interrupt_all(fs); /* others may hold the locks for as long as they like */
	pthread_mutex_lock(&fs->lock);
	while (fs->n_busy)
		pthread_cond_wait(&fs->nothing_busy, &fs->lock);
	pthread_mutex_unlock(&fs->lock);
}

void fs_quiesce(struct fs *fs)
{
	wait_idle(fs, false);
}

void fs_stop(struct fs *fs)
{
	struct handle *h;
	uint32_t slot = 0;

	wait_idle(fs, true);
	serve_stop(fs);
	while ((h = id_table_next(&fs->handles, &slot)))
		handle_close(h);
	/* The session was ended from outside: the connection was aborted, or its mount is covered by another. */
	if (fs->mounted && mount_is_ours(fs))
		mount_end(fs, true);
}

void fs_destroy(struct fs *fs)
{
	lanes_stop(fs);
	mount_destroy_session(fs);
	inode_table_destroy(fs);
	supervisor_end(fs);
	source_lock_close(fs);
	pthread_mutex_destroy(&fs->interrupts.lock);
	pthread_cond_destroy(&fs->pause_changed);
	pthread_cond_destroy(&fs->nothing_handed);
	pthread_cond_destroy(&fs->nothing_busy);
	pthread_mutex_destroy(&fs->lock);
	free(fs->source);
	free(fs->mountpoint);
	free(fs->options.rest);
	free(fs);
}
