/*
 * session.c - how a session with the kernel begins: INIT, the first request, and its answer.
 *
 * Before there are threads, and so that the answer is known: another daemon that takes the mount over must come to the same one.
 *
 * Before each write(2) the kernel sends a GETXATTR for security.capability, unless the file system promises to clear
 * set-id bits itself (FUSE_HANDLE_KILLPRIV_V2); then the kernel remembers that there is no such attribute. libfuse before
 * 3.17 cannot promise that, so we add the promise to its answer.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/fault.h"

/*
 * Have libfuse answer INIT (fs->begun.request), and note the answer in place of sending it: meanwhile libfuse's descriptor is a pipe.
 * Called while no other thread uses the session. The answer's error, or that of what is needed for this, as a negative errno.
 */
static int answer_init(struct fs *fs)
{
	struct begun *b = &fs->begun;
	struct fuse_buf buf = { .mem = b->request, .size = b->request_size };
	struct fuse_out_header head = { .error = -EPROTO };
	int fd = fuse_session_fd(fs->session), device, ends[2], err = -EMFILE;
	struct iovec parts[] = { { &head, sizeof(head) }, { b->answer, sizeof(b->answer) } };
	ssize_t n;

	device = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (device < 0 || pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		goto close_device;
	if (dup3(ends[1], fd, O_CLOEXEC) != fd)
		goto close_pipe;
	fuse_session_process_buf(fs->session, &buf);
	while (dup3(device, fd, O_CLOEXEC) != fd)
		bug_on(errno != EINTR && errno != EBUSY);
	n = readv(ends[0], parts, ARRAY_LEN(parts));
	b->answer_size = n > (ssize_t)sizeof(head) ? (size_t)n - sizeof(head) : 0;
	err = head.error;

close_pipe:
	close(ends[0]);
	close(ends[1]);
close_device:
	if (device >= 0)
		close(device);
	return err;
}

/* What libfuse before 3.17 cannot promise itself. */
static void promise_more(struct begun *b)
{
	struct fuse_init_out *out = (void *)b->answer;
	const struct fuse_init_in *in = (const void *)(b->request + sizeof(struct fuse_in_header));

	if (!FUSE_CAP_HANDLE_KILLPRIV_V2 && b->answer_size > offsetof(struct fuse_init_out, flags))
		out->flags |= in->flags & FUSE_HANDLE_KILLPRIV_V2;
}

int session_begin(struct fs *fs)
{
	struct begun *b = &fs->begun;
	struct fuse_out_header head = { .unique = 0 };
	struct iovec parts[] = { { &head, sizeof(head) }, { b->answer, 0 } };
	char *bytes = xmalloc(FS_REQUEST_BYTES);
	const struct fuse_in_header *in = (const void *)bytes;
	ssize_t n;
	int err = 0;

	do
		n = read(fuse_session_fd(fs->session), bytes, FS_REQUEST_BYTES);
	while (n < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT));
	if (n < 0)
		goto out;
	err = -EPROTO;
	if (in->opcode != FUSE_INIT || (size_t)n > sizeof(b->request))
		goto out;
	memcpy(b->request, bytes, (size_t)n);
	b->request_size = (size_t)n;
	head.unique = in->unique;
	head.error = answer_init(fs);
	promise_more(b);
	parts[1].iov_len = b->answer_size;
	head.len = (uint32_t)(sizeof(head) + b->answer_size);
	err = writev(fuse_session_fd(fs->session), parts, 2) < 0 && errno != ENODEV && errno != ENOENT ? -errno : 0;
out:
	free(bytes);
	if (err)
		log_error("fuse: the session cannot begin: %s", strerror(-err));
	return err;
}

int session_begin_again(struct fs *fs)
{
	int err = answer_init(fs);

	promise_more(&fs->begun);
	return err || fuse_session_exited(fs->session) ? -EPROTO : 0;
}

void session_begun(struct fs *fs)
{
	(void)fault_point("mount.answered");
	if (!fuse_session_exited(fs->session)) {
		fs->config.ready(fs->config.arg);
		return;
	}
	if (fs->supervised)
		fs->supervised->live = false;
	fs->over = true;
	fs->config.ended(fs->config.arg);
}
