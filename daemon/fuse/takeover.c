/*
 * takeover.c - a mount goes from one daemon to the next, between two requests. (fs.h: "handing a mount over".)
 *
 * The connection is the descriptor of /dev/fuse, and so are its inodes, open files and backing ids: whoever reads the descriptor serves
 * them. What begins a session, INIT, is not sent again; the heir's libfuse is given the old one, and its answer, which is not sent either,
 * must be what the kernel was told then.
 *
 *	heir			old daemon
 *	HELLO		->		VERSION, GAIA_FEATURES
 *			<-	PLACE	source, its lock, its root
 *	READY		->		the heir has a store, devices and a cache
 *					(stops receiving, stores everything)
 *			<-	SESSION	/dev/fuse, INIT and its answer
 *			<-	...	tables.c
 *	TAKEN		->		the heir's threads wait behind the gate (serve_pause())
 *			<-	COMMIT
 *	SERVING		->		from here on the mount is the heir's
 *
 * A process that dies before SERVING is in the socket leaves the mount to the old daemon, and after that to the heir: the socket decides.
 * The heir dies with the old daemon until COMMIT.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <linux/fuse.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "gaia/protocol.h"

/* To be raised with any change of what is sent, here or in tables.c. */
#define VERSION 1

enum { HELLO = 1, PLACE, READY, SESSION, TAKEN, COMMIT, SERVING };

#define OVER_IO_URING (1ull << 41) /* FUSE_OVER_IO_URING, which older headers lack */

static struct parcel *parcel_new(void)
{
	return xmalloc(sizeof(struct parcel));
}

/* A parcel with nothing in it but its kind. */
static int say(int sock, struct parcel *p, uint32_t kind)
{
	parcel_init(p, kind);
	return parcel_send(sock, p);
}

static int hear(int sock, struct parcel *p, uint32_t kind)
{
	int err = parcel_receive(sock, p, kind);

	parcel_drop(p);
	return err;
}

/* ---- the old daemon ---- */

static uint64_t answered_flags(const struct fs *fs)
{
	const struct fuse_init_out *out = (const void *)fs->begun.answer;

	return out->flags | (uint64_t)out->flags2 << 32;
}

/* NULL, or why this mount cannot be handed over. */
static const char *obstacle(const struct fs *fs)
{
	if (!fs->begun.request_size || fs->begun.answer_size < sizeof(struct fuse_init_out))
		return "it is not known how the session began";
	if (answered_flags(fs) & OVER_IO_URING)
		return "requests come by io_uring, which belongs to the process";
	if (strstr(fs->options.rest, "auto_unmount"))
		return "with -o auto_unmount it ends with its process";
	return NULL;
}

static int send_place(struct fs *fs, int heir, struct parcel *p)
{
	parcel_init(p, PLACE);
	parcel_put_text(p, fs->source);
	parcel_put_text(p, fs->mountpoint);
	parcel_put(p, fs->source_flags);
	parcel_put_fd(p, fs->source_fd);
	parcel_put_fd(p, fs->roots_lock_fd);
	parcel_put_fd(p, fs->root.fd);
	return parcel_send(heir, p);
}

int fs_offer(struct fs *fs, int heir, uint64_t *features)
{
	struct parcel *p = parcel_new();
	const char *why = obstacle(fs);
	uint64_t version;
	int err;

	if (fs->config.shared)
		why = "locks in a shared source cannot be handed over yet; unmount, and mount with the new program";
	if (why) {
		log_warn("%s: cannot be handed over: %s", fs->mountpoint, why);
		free(p);
		return -EOPNOTSUPP;
	}
	err = parcel_receive(heir, p, HELLO);
	version = err ? 0 : parcel_get(p);
	/* One that does not say has none: then no client moves. */
	*features = err ? 0 : parcel_get(p);
	parcel_drop(p);
	if (!err && version != VERSION) {
		log_warn("%s: cannot be handed over: the new program takes version %llu, this one gives %u; unmount, and mount with the new one",
			 fs->mountpoint, (unsigned long long)version, VERSION);
		err = -EPROTONOSUPPORT;
	}
	if (!err)
		err = send_place(fs, heir, p);
	if (!err)
		err = hear(heir, p, READY);
	free(p);
	return err;
}

/* An attempt to pause: how long for the requests, and then for ioctls and invalidations. */
#define ATTEMPT_NS 500000000ull
#define WORKERS_NS 50000000ull
#define BETWEEN_US 20000

/*
 * Whether no ioctl and no invalidation is under way by then; if so none begins any more. An invalidation may wait for a WRITE, which nobody
 * receives now: then it cannot end.
 */
static bool nothing_busy(struct fs *fs, uint64_t until)
{
	struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };
	bool nothing;

	pthread_mutex_lock(&fs->lock);
	while (fs->n_busy && pthread_cond_timedwait(&fs->nothing_busy, &fs->lock, &t) != ETIMEDOUT)
		;
	nothing = !fs->n_busy && !cache_is_invalidating(fs->cache);
	fs->deaf = nothing;
	pthread_mutex_unlock(&fs->lock);
	return nothing;
}

int fs_pause(struct fs *fs, uint64_t until)
{
	int err;

	for (;;) {
		err = serve_pause(fs, MIN(until, now_ns() + ATTEMPT_NS));
		if (!err && nothing_busy(fs, now_ns() + WORKERS_NS))
			return 0;
		fs_go_on(fs);
		if (err == -ENODEV || now_ns() >= until)
			return err ? err : -EBUSY;
		usleep(BETWEEN_US);
	}
}

void fs_go_on(struct fs *fs)
{
	supervisor_set_borrowed(fs, false);
	pthread_mutex_lock(&fs->lock);
	fs->deaf = false;
	pthread_mutex_unlock(&fs->lock);
	serve_go_on(fs);
}

static int send_session(struct fs *fs, int heir, struct parcel *p)
{
	parcel_init(p, SESSION);
	parcel_put(p, fs->dev_major);
	parcel_put(p, fs->dev_minor);
	parcel_put_text(p, fs->mounted_as);
	parcel_put_bytes(p, fs->begun.request, fs->begun.request_size);
	parcel_put_bytes(p, fs->begun.answer, fs->begun.answer_size);
	parcel_put_fd(p, fuse_session_fd(fs->session));
	return parcel_send(heir, p);
}

int fs_bequeath(struct fs *fs, int heir)
{
	struct parcel *p = parcel_new();
	int err = send_session(fs, heir, p);

	if (!err)
		err = tables_send(fs, heir, p);
	if (!err)
		err = hear(heir, p, TAKEN);
	free(p);
	return err;
}

int fs_has_heir(struct fs *fs, int heir)
{
	struct parcel *p = parcel_new();
	int err = hear(heir, p, SERVING);

	free(p);
	if (!err)
		fs->mounted = false;
	return err;
}

int fs_commit(struct fs *fs, int heir)
{
	struct parcel *p = parcel_new();
	int err;

	/* Before the heir has it: from then on our death must not end the connection. */
	supervisor_set_borrowed(fs, true);
	err = say(heir, p, COMMIT);
	free(p);
	return err ? -EPIPE : fs_has_heir(fs, heir);
}

/* ---- the heir ---- */

void takeover_die_with_old(const struct fs *fs)
{
	if (fs->borrowed)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int takeover_place(struct fs *fs)
{
	struct parcel *p = parcel_new();
	int old = fs->config.predecessor, err;

	fs->borrowed = true;
	takeover_die_with_old(fs);
	parcel_init(p, HELLO);
	parcel_put(p, fault_point("takeover.version") ? VERSION + 1 : VERSION);
	parcel_put(p, fault_point("takeover.features") ? 0 : GAIA_FEATURES);
	err = parcel_send(old, p);
	if (!err)
		err = parcel_receive(old, p, PLACE);
	if (err) {
		log_error("taking a mount over: the daemon that has it %s", err == -EPIPE ? "has ended, or refuses" : strerror(-err));
		free(p);
		return err;
	}
	fs->source = strdup(parcel_get_text(p));
	fs->mountpoint = strdup(parcel_get_text(p));
	fs->source_flags = parcel_get(p);
	fs->source_fd = parcel_get_fd(p);
	fs->roots_lock_fd = parcel_get_fd(p);
	fs->root_fd = parcel_get_fd(p);
	if (!parcel_good(p) || !fs->source || !fs->mountpoint || fs->source_fd < 0 || fs->root_fd < 0)
		err = -EPROTO;
	parcel_drop(p);
	free(p);
	if (!err)
		return 0;
	log_error("taking a mount over: %s", strerror(-err));
	source_lock_close(fs);
	free(fs->source);
	free(fs->mountpoint);
	return err;
}

/* Whether the answers to INIT agree, but for how many requests the kernel has under way, which stays as it is. */
static bool same_session(const struct begun *a, const struct begun *b)
{
	struct fuse_init_out x, y;

	if (a->answer_size != b->answer_size || a->answer_size < sizeof(x))
		return false;
	memcpy(&x, a->answer, sizeof(x));
	memcpy(&y, b->answer, sizeof(y));
	x.max_background = y.max_background;
	x.congestion_threshold = y.congestion_threshold;
	return !memcmp(&x, &y, sizeof(x));
}

static int copy_bytes(struct parcel *p, char to[INIT_BYTES], size_t *n)
{
	const void *bytes = parcel_get_bytes(p, n);

	if (!bytes || *n > INIT_BYTES)
		return -EPROTO;
	memcpy(to, bytes, *n);
	return 0;
}

static int get_session(struct fs *fs, struct parcel *p, struct begun *began)
{
	int fd, err;

	fs->dev_major = (unsigned)parcel_get(p);
	fs->dev_minor = (unsigned)parcel_get(p);
	snprintf(fs->mounted_as, sizeof(fs->mounted_as), "%s", parcel_get_text(p));
	err = copy_bytes(p, began->request, &began->request_size);
	if (!err)
		err = copy_bytes(p, began->answer, &began->answer_size);
	fd = parcel_get_fd(p);
	if (!err && parcel_good(p) && fd >= 0 && began->request_size >= sizeof(struct fuse_in_header))
		return fd;
	if (fd >= 0)
		close(fd);
	return -EPROTO;
}

static int begin_session(struct fs *fs, struct parcel *p, const struct fuse_lowlevel_ops *ops)
{
	struct begun began;
	char name[32];
	int fd, err = parcel_receive(fs->config.predecessor, p, SESSION);

	if (err) {
		log_error("taking the mount over: the daemon that has it %s", err == -EPIPE ? "keeps it" : strerror(-err));
		return err;
	}
	fd = get_session(fs, p, &began);
	parcel_drop(p);
	if (fd < 0) {
		log_error("taking the mount over: %s", strerror(-fd));
		return fd;
	}
	err = mount_make_session(fs, ops); /* logs */
	/* libfuse's name for a descriptor that is mounted already. */
	snprintf(name, sizeof(name), "/dev/fd/%d", fd);
	if (err || fuse_session_mount(fs->session, name)) {
		close(fd);
		return err ? err : -EINVAL;
	}
	memcpy(fs->begun.request, began.request, began.request_size);
	fs->begun.request_size = began.request_size;
	err = session_begin_again(fs);
	if (err || !same_session(&fs->begun, &began)) {
		log_error("taking the mount over: this program, or its libfuse, would begin it in another way; unmount, and mount anew");
		err = -EPROTO;
	}
	return err;
}

/* From the word SERVING on the mount is ours. */
static int take_mount(struct fs *fs, struct parcel *p)
{
	int old = fs->config.predecessor, err = fault_point("takeover.taken");

	takeover_die_with_old(fs);
	if (!err)
		err = say(old, p, TAKEN);
	if (!err)
		err = hear(old, p, COMMIT);
	if (!err)
		err = fault_point("takeover.committed");
	if (!err) {
		/* The old daemon may end as soon as it has heard. */
		prctl(PR_SET_PDEATHSIG, 0);
		supervisor_tell(fs);
		err = say(old, p, SERVING);
	}
	if (err) {
		log_error("taking the mount over: the daemon that has it %s", err == -EPIPE ? "keeps it" : strerror(-err));
		return err;
	}
	supervisor_set_borrowed(fs, false);
	fs->mounted = true;
	return 0;
}

int takeover(struct fs *fs, const struct fuse_lowlevel_ops *ops)
{
	struct parcel *p = parcel_new();
	int err = fault_point("takeover.ready");

	if (!err)
		err = say(fs->config.predecessor, p, READY);
	if (!err)
		err = begin_session(fs, p, ops); /* logs */
	if (!err)
		err = tables_receive(fs, fs->config.predecessor, p); /* logs */
	/* Everything that may fail comes before the mount is ours. */
	if (!err) {
		fs->pausing = true;
		err = serve_start(fs); /* logs */
	}
	if (!err)
		err = take_mount(fs, p); /* logs */
	free(p);
	if (err)
		return err;
	/* First: programs that waited may ask for what it changes. */
	fs->config.ready(fs->config.arg);
	serve_go_on(fs);
	return 0;
}
