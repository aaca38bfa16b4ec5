#include "actor.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "gaia/client.h"
#include "gaia/protocol.h"
#include "gpu_access.h"

#define MAX_STARTED 32 /* acquires of one actor that nobody has waited for */

/* What a step yielded. */
struct seen {
	int err;		/* errno value, 0: it succeeded */
	uint8_t *bytes;		/* buf, or NULL when the step yields none */
	size_t len;
	char text[256];		/* instead of bytes: "size 4096" */
	bool wrong;		/* a check failed that is no expectation of data */
};

struct actor {
	const struct actor_env *env;
	const struct actor_def *def;
	unsigned self;
	int mount;		/* -1: by its path; else opened for a user who may not search the directories above */
	int fd;			/* -1: nothing open */
	int file;		/* its index, -1 when it goes by no known name any more */
	uint8_t *map;		/* P: after mmap; D: the device's, while open */
	size_t map_len;
	uint8_t *buf;		/* page aligned, grows */
	size_t buf_len;
	int started[MAX_STARTED]; /* acquires, in order */
	unsigned n_started;
	json_t *base;		/* counters at --- */
	struct {
		int fd;		/* 0: none */
		void *map;	/* or NULL */
		size_t len;
	} held[MAX_FILES];
};

/* ---- touching memory that may not be there ---- */

static sigjmp_buf fault_jump;
static volatile sig_atomic_t may_fault;

static void on_fault(int sig)
{
	if (!may_fault) {
		signal(sig, SIG_DFL);
		return;
	}
	siglongjmp(fault_jump, 1);
}

static bool on_gpu(const struct actor *a)
{
	return a->def->kind == 'D' && !a->def->on_host && gpu_is(a->def->device);
}

/* Of memory of the GPU: the same by the driver. */
static int copy_gpu(uint8_t *to, const void *from, size_t len, uint64_t times, uint64_t stride)
{
	int err = 0;

	for (uint64_t i = 0; i < times && !err; i++)
		err = gpu_copy(to + i * stride, from, len);
	return err;
}

/* 0, or EFAULT: somewhere in it a SIGSEGV or SIGBUS came. @times: as often, in steps of @stride in @to. */
static int copy_guarded(const struct actor *a, uint8_t *to, const void *from, size_t len,
			uint64_t times, uint64_t stride)
{
	if (on_gpu(a))
		return copy_gpu(to, from, len, times, stride);
	if (sigsetjmp(fault_jump, 1)) {
		may_fault = 0;
		return EFAULT;
	}
	may_fault = 1;
	atomic_signal_fence(memory_order_seq_cst);
	for (uint64_t i = 0; i < times; i++)
		memcpy(to + i * stride, from, len);
	atomic_signal_fence(memory_order_seq_cst);
	may_fault = 0;
	return 0;
}

/* ---- files ---- */

void actor_file_name(const struct actor_env *env, unsigned file, char out[64])
{
	snprintf(out, 64, "%.40s.%u", env->scenario->names[file].name, env->repetition);
}

static const char *file_path(const struct actor *a, unsigned file, char out[PATH_MAX])
{
	char name[64];

	actor_file_name(a->env, file, name);
	snprintf(out, PATH_MAX, "%s/%s", a->env->mount, name);
	return out;
}

static uint8_t *buffer(struct actor *a, size_t len)
{
	if (len > a->buf_len) {
		free(a->buf);
		a->buf_len = ROUND_UP(len, (size_t)GAIA_PAGE);
		a->buf = aligned_alloc(GAIA_PAGE, a->buf_len);
		if (!a->buf)
			abort();
	}
	return a->buf;
}

static void unmap(struct actor *a)
{
	if (!a->map)
		return;
	if (a->def->kind == 'D')
		gaia_munmap(a->map, a->map_len);
	else
		munmap(a->map, a->map_len);
	a->map = NULL;
}

static int do_open(struct actor *a, const struct step *st)
{
	static const int flags[] = {
		[OPEN_RW] = O_RDWR,
		[OPEN_RO] = O_RDONLY,
		[OPEN_APPEND] = O_RDWR | O_APPEND,
		[OPEN_DIRECT] = O_RDWR | O_DIRECT,
		[OPEN_TRUNC] = O_RDWR | O_TRUNC,
	};
	char path[PATH_MAX];
	struct stat sb;
	int err;

	if (a->fd >= 0)
		return EBUSY;
	if (a->mount >= 0) {
		actor_file_name(a->env, st->file, path);
		a->fd = openat(a->mount, path, flags[st->mode] | O_CLOEXEC);
	} else {
		a->fd = open(file_path(a, st->file, path), flags[st->mode] | O_CLOEXEC);
	}
	if (a->fd < 0)
		return errno;
	a->file = (int)st->file;
	if (a->def->kind != 'D')
		return 0;
	if (fstat(a->fd, &sb))
		goto close_fd;
	a->map_len = MAX(MAX((size_t)sb.st_size, a->env->scenario->reach), (size_t)GAIA_CHUNK);
	a->map_len = ROUND_UP(a->map_len, (size_t)GAIA_PAGE);
	a->map = gaia_mmap(a->map_len, PROT_READ | (st->mode == OPEN_RO || a->def->only_reads ? 0 : PROT_WRITE), a->fd, 0,
			   a->def->on_host ? GAIA_DEVICE_HOST : (int)a->def->device);
	if (a->map != MAP_FAILED)
		return 0;
	a->map = NULL;
close_fd:
	err = errno;
	close(a->fd);
	a->fd = -1;
	return err;
}

static int do_close(struct actor *a)
{
	int err = 0;

	if (a->def->kind == 'D' && a->map) {
		if (gaia_munmap(a->map, a->map_len))
			err = errno;
		a->map = NULL;
	}
	if (close(a->fd) && !err)
		err = errno;
	a->fd = -1;
	a->file = -1;
	return err;
}

static int do_mmap(struct actor *a)
{
	int flags = fcntl(a->fd, F_GETFL);
	struct stat sb;
	void *p;

	if (flags < 0 || fstat(a->fd, &sb))
		return errno;
	unmap(a);
	/* Beyond the end too, so that the mapping need not change when the file grows. */
	a->map_len = ROUND_UP(MAX((size_t)sb.st_size, (size_t)GAIA_CHUNK), (size_t)GAIA_PAGE);
	p = mmap(NULL, a->map_len,
		 PROT_READ | ((flags & O_ACCMODE) == O_RDONLY ? 0 : PROT_WRITE), MAP_SHARED, a->fd,
		 0);
	if (p == MAP_FAILED)
		return errno;
	a->map = p;
	return 0;
}

static void do_read(struct actor *a, int fd, const struct step *st, struct seen *seen)
{
	uint8_t *buf = buffer(a, st->len);
	ssize_t n;

	for (seen->len = 0; seen->len < st->len; seen->len += (size_t)n) {
		n = pread(fd, buf + seen->len, st->len - seen->len, (off_t)(st->off + seen->len));
		if (n < 0)
			seen->err = errno;
		if (n <= 0)
			break;
	}
	seen->bytes = buf;
}

static int do_write(struct actor *a, const struct step *st)
{
	uint8_t *buf = buffer(a, st->len);
	size_t done = 0;

	memcpy(buf, st->data, st->len);
	while (done < st->len) {
		ssize_t n = pwrite(a->fd, buf + done, st->len - done, (off_t)(st->off + done));

		if (n < 0)
			return errno;
		done += (size_t)n;
	}
	return 0;
}

static int do_copyrange(struct actor *a, const struct step *st)
{
	off_t from = (off_t)st->off, to = (off_t)st->number;
	size_t left = st->len;

	while (left > 0) {
		ssize_t n = copy_file_range(a->fd, &from, a->fd, &to, left, 0);

		if (n < 0)
			return errno;
		if (n == 0)
			break;
		left -= (size_t)n;
	}
	return 0;
}

static void do_sendfile(struct actor *a, const struct step *st, struct seen *seen)
{
	off_t from = (off_t)st->off;
	int mem = memfd_create("sendfile", MFD_CLOEXEC);
	ssize_t n;

	seen->bytes = buffer(a, st->len);
	if (mem < 0) {
		seen->err = errno;
		return;
	}
	for (seen->len = 0; seen->len < st->len; seen->len += (size_t)n) {
		n = sendfile(mem, a->fd, &from, st->len - seen->len);
		if (n < 0)
			seen->err = errno;
		if (n <= 0)
			break;
	}
	if (!seen->err && pread(mem, seen->bytes, seen->len, 0) != (ssize_t)seen->len)
		seen->err = errno;
	close(mem);
}

static void do_splice(struct actor *a, const struct step *st, struct seen *seen)
{
	loff_t from = (loff_t)st->off;
	int p[2];
	ssize_t n;

	seen->bytes = buffer(a, st->len);
	if (pipe2(p, O_CLOEXEC)) {
		seen->err = errno;
		return;
	}
	for (seen->len = 0; seen->len < st->len; seen->len += (size_t)n) {
		n = splice(a->fd, &from, p[1], NULL, MIN(st->len - seen->len, (size_t)65536), 0);
		if (n > 0)
			n = read(p[0], seen->bytes + seen->len, (size_t)n);
		if (n < 0)
			seen->err = errno;
		if (n <= 0)
			break;
	}
	close(p[0]);
	close(p[1]);
}

static int do_splicein(struct actor *a, const struct step *st)
{
	loff_t to = (loff_t)st->off;
	size_t done = 0;
	int p[2], err = 0;

	if (pipe2(p, O_CLOEXEC))
		return errno;
	while (!err && done < st->len) {
		ssize_t n = write(p[1], st->data + done, MIN(st->len - done, (size_t)65536));
		ssize_t in = n;

		while (in > 0) {
			ssize_t out = splice(p[0], NULL, a->fd, &to, (size_t)in, 0);

			if (out <= 0) {
				err = out ? errno : EIO;
				break;
			}
			in -= out;
		}
		if (n < 0)
			err = errno;
		else
			done += (size_t)n;
	}
	close(p[0]);
	close(p[1]);
	return err;
}

static bool compare(uint64_t is, enum comparison cmp, uint64_t number)
{
	return cmp == CMP_EQ ? is == number : cmp == CMP_LE ? is <= number : is >= number;
}

static void do_stat(struct actor *a, const struct step *st, struct seen *seen)
{
	char path[PATH_MAX];
	struct stat sb;
	uint64_t is;

	if (stat(file_path(a, st->file, path), &sb)) {
		seen->err = errno;
		return;
	}
	is = (uint64_t)(st->mode == STAT_SIZE ? sb.st_size : sb.st_blocks);
	snprintf(seen->text, sizeof(seen->text), "%s %llu",
		 st->mode == STAT_SIZE ? "size" : "blocks", (unsigned long long)is);
	seen->wrong = !compare(is, st->cmp, st->number);
}

/* rename(2) or link(2). */
static int do_names(struct actor *a, const struct step *st, int (*call)(const char *from, const char *to))
{
	char from[PATH_MAX], to[PATH_MAX];

	return call(file_path(a, st->file, from), file_path(a, st->to_file, to));
}

/* For good. */
static int do_user(struct actor *a, const struct step *st)
{
	uid_t id = USERS + (uid_t)st->number;

	a->mount = open(a->env->mount, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (a->mount < 0 || setgroups(0, NULL) || setresgid(id, id, id) || setresuid(id, id, id))
		return errno;
	/* Changing ids clears it. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return 0;
}

/* ---- the runner's steps ---- */

/* The file, by the actor's own descriptor if it has it open: closing another one would send FLUSH. */
static int borrow(struct actor *a, unsigned file)
{
	char path[PATH_MAX];

	if (a->file == (int)file)
		return a->fd;
	return open(file_path(a, file, path), O_RDONLY | O_CLOEXEC);
}

static void give_back(struct actor *a, int fd)
{
	if (fd >= 0 && fd != a->fd)
		close(fd);
}

static void do_file_ioctl(struct actor *a, const struct step *st, struct seen *seen)
{
	struct gaia_ioc_file io = { 0 };
	unsigned long cmd = GAIA_IOC_FLUSH;
	int fd = borrow(a, st->file);

	if (st->op == OP_EVICT) {
		cmd = GAIA_IOC_EVICT;
		io.offset = st->off;
		io.length = st->len;
		io.from = st->from;
	}
	if (fd < 0 || ioctl(fd, cmd, &io) < 0)
		seen->err = errno;
	give_back(a, fd);
}

static void do_below(struct actor *a, const struct step *st, struct seen *seen)
{
	char name[64];
	int fd;

	actor_file_name(a->env, st->file, name);
	fd = openat(a->env->backing_fd, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		seen->err = errno;
		return;
	}
	do_read(a, fd, st, seen);
	close(fd);
}

/*
 * Drop clean pages of the kernel's cache. posix_fadvise() and not drop_caches: it needs no root and
 * concerns this mount only. It starts the write-back of what is dirty, which the kernel may do at
 * any time anyway. Files that an actor has open are left to it: it uses its own descriptor, since closing one
 * more would send FLUSH, and with it push and store everything. Like drop_caches it leaves pages that are mapped now.
 */
static void drop_one(struct actor *a, unsigned file)
{
	int fd = borrow(a, file);

	if (fd >= 0)
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	give_back(a, fd);
}

static void drop(struct actor *a, uint32_t open_files)
{
	if (a->self != ACTOR_RUNNER) {
		if (a->fd >= 0)
			posix_fadvise(a->fd, 0, 0, POSIX_FADV_DONTNEED);
		return;
	}
	for (unsigned i = 0; i < a->env->scenario->n_names; i++)
		if (!(open_files & BIT(i)))
			drop_one(a, i);
}

/* New reference: what 'gaia VERB PATH --json' prints, by way of @mem, which is closed; NULL: it failed. */
static json_t *gaia_says(struct actor *a, const char *verb, const char *path, int mem)
{
	json_t *says = NULL;
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		dup2(mem, 1);
		execl(a->env->gaia, a->env->gaia, verb, path, "--json", NULL);
		fprintf(stderr, "cannot run %s: %s\n", a->env->gaia, strerror(errno));
		_exit(127);
	}
	if (pid > 0 && waitpid(pid, &status, 0) == pid && status == 0 &&
	    lseek(mem, 0, SEEK_SET) == 0)
		says = json_loadfd(mem, 0, NULL);
	close(mem);
	return says;
}

/* New reference: the counters now; NULL: there is no telling. */
static json_t *counters_now(struct actor *a)
{
	int mem = memfd_create("status", MFD_CLOEXEC);
	json_t *status = mem >= 0 ? gaia_says(a, "status", a->env->mount, mem) : NULL;
	json_t *counters = json_incref(json_object_get(status, "counters"));

	json_decref(status);
	return counters;
}

static void do_count(struct actor *a, const struct step *st, struct seen *seen)
{
	json_t *now = counters_now(a);
	uint64_t growth;

	growth = (uint64_t)(json_integer_value(json_object_get(now, st->counter)) -
			    json_integer_value(json_object_get(a->base, st->counter)));
	if (!json_object_get(now, st->counter)) {
		snprintf(seen->text, sizeof(seen->text), "no such counter from 'gaia status'");
		seen->wrong = true;
	} else {
		snprintf(seen->text, sizeof(seen->text), "%llu", (unsigned long long)growth);
		/* What comes from devices and from the store is another then. */
		seen->wrong = !a->env->parks && !compare(growth, st->cmp, st->number);
	}
	json_decref(now);
}

/* To stderr, a line for each file. */
static void print_residency(struct actor *a)
{
	char path[PATH_MAX], *line;
	json_t *where;
	int mem;

	for (unsigned i = 0; i < a->env->scenario->n_names; i++) {
		if (access(file_path(a, i, path), F_OK))
			continue;
		mem = memfd_create("residency", MFD_CLOEXEC);
		where = mem >= 0 ? gaia_says(a, "residency", path, mem) : NULL;
		line = where ? json_dumps(where, JSON_COMPACT) : NULL;
		fprintf(stderr, "  residency of %s: %s\n", a->env->scenario->names[i].name,
			line ? line : "unknown");
		free(line);
		json_decref(where);
	}
}

static void tidy(struct actor *a)
{
	char path[PATH_MAX];

	for (unsigned i = 0; i < a->env->scenario->n_names; i++)
		unlink(file_path(a, i, path));
}

/* ---- steps ---- */

/*
 * What a GPU leaves to programs: it does not refuse what was not acquired, and what has no memory its driver takes for an
 * address of the program's.
 */
static bool nothing_refuses(const struct actor *a, const struct step *st)
{
	return on_gpu(a) && st->n_allowed == 1 && st->allowed[0].kind == OUT_ERROR && st->allowed[0].error == EFAULT;
}

static void do_memory(struct actor *a, const struct step *st, struct seen *seen)
{
	if (!a->map || st->off + st->len > a->map_len) {
		snprintf(seen->text, sizeof(seen->text), "%s",
			 a->map ? "the range is outside the mapping" : "nothing is mapped");
		seen->wrong = true;
		return;
	}
	if (nothing_refuses(a, st)) {
		seen->err = EFAULT;
		return;
	}
	if (st->op == OP_STORE) {
		seen->err = copy_guarded(a, a->map + st->off, st->data, st->len, 1, 0);
		return;
	}
	if (st->op == OP_SCATTER) {
		seen->err = copy_guarded(a, a->map + st->off, st->data, st->unit, st->number,
					 st->stride);
		return;
	}
	seen->bytes = buffer(a, st->len);
	seen->len = st->len;
	seen->err = copy_guarded(a, seen->bytes, a->map + st->off, st->len, 1, 0);
}

/* @fd: of gaia_acquire_start(). */
static int note_started(struct actor *a, int fd)
{
	if (fd < 0)
		return errno;
	if (a->n_started == MAX_STARTED) {
		close(fd);
		return EXFULL;
	}
	a->started[a->n_started++] = fd;
	return 0;
}

static int do_list(struct actor *a, const struct step *st)
{
	struct gaia_range *list = xcalloc(st->n_ranges, sizeof(*list));
	int err;

	for (size_t k = 0; k < st->n_ranges; k++)
		list[k] = (struct gaia_range){ a->map + st->ranges[k].off, st->ranges[k].len };
	if (st->op == OP_STARTV)
		err = note_started(a, gaia_acquirev_start(list, st->n_ranges, (int)st->mode));
	else if (st->op == OP_ACQUIREV)
		err = gaia_acquirev(list, st->n_ranges, (int)st->mode) ? errno : 0;
	else
		err = gaia_releasev(list, st->n_ranges) ? errno : 0;
	free(list);
	return err;
}

/* Of the first that was started, and neither waited for nor cancelled. */
static int do_started(struct actor *a, enum op op)
{
	struct pollfd first = { .fd = a->started[0], .events = POLLIN };
	int err;

	if (a->n_started == 0)
		return EBADF;
	if (op == OP_ENDED)
		return poll(&first, 1, -1) == 1 ? 0 : errno;
	err = op == OP_WAIT ? gaia_wait(first.fd) : close(first.fd);
	err = err ? errno : 0;
	memmove(a->started, a->started + 1, --a->n_started * sizeof(a->started[0]));
	return err;
}

static int do_device(struct actor *a, const struct step *st)
{
	uint8_t *at = a->map + st->off;
	int err;

	switch (st->op) {
	case OP_ACQUIREV:
	case OP_RELEASEV:
	case OP_STARTV:
		return do_list(a, st);
	case OP_START:
		return note_started(a, gaia_acquire_start(at, st->len, (int)st->mode));
	case OP_ENDED:
	case OP_WAIT:
	case OP_CANCEL:
		return do_started(a, st->op);
	case OP_ACQUIRE:
		err = gaia_acquire(at, st->len, (int)st->mode);
		break;
	case OP_RELEASE:
		err = gaia_release(at, st->len);
		break;
	case OP_SYNC:
		err = gaia_sync(at, st->len);
		break;
	default:
		err = gaia_advise(at, st->len,
				  st->op == OP_WILLNEED ? GAIA_WILLNEED : GAIA_DONTNEED);
	}
	return err ? errno : 0;
}

static bool needs_open_file(enum op op)
{
	switch (op) {
	case OP_CLOSE: case OP_READ: case OP_WRITE: case OP_FSYNC: case OP_FDATASYNC:
	case OP_TRUNCATE: case OP_FALLOCATE: case OP_PUNCH: case OP_COPYRANGE: case OP_SENDFILE:
	case OP_SPLICE: case OP_SPLICEIN: case OP_MMAP: case OP_ACQUIRE: case OP_RELEASE:
	case OP_ACQUIREV: case OP_RELEASEV: case OP_START: case OP_STARTV:
	case OP_SYNC: case OP_WILLNEED: case OP_DONTNEED:
		return true;
	default:
		return false;
	}
}

static void perform(struct actor *a, const struct step *st, struct seen *seen)
{
	char path[PATH_MAX];
	int err = 0;		/* -1: see errno */

	if (needs_open_file(st->op) && a->fd < 0) {
		snprintf(seen->text, sizeof(seen->text), "nothing is open");
		seen->wrong = true;
		return;
	}
	switch (st->op) {
	case OP_OPEN:
		seen->err = do_open(a, st);
		break;
	case OP_CLOSE:
		seen->err = do_close(a);
		break;
	case OP_KILL:
		raise(SIGKILL);
		break;
	case OP_READ:
		do_read(a, a->fd, st, seen);
		break;
	case OP_WRITE:
		seen->err = do_write(a, st);
		break;
	case OP_FSYNC:
		err = fsync(a->fd);
		break;
	case OP_FDATASYNC:
		err = fdatasync(a->fd);
		break;
	case OP_TRUNCATE:
		err = ftruncate(a->fd, (off_t)st->number);
		break;
	case OP_FALLOCATE:
		err = fallocate(a->fd, 0, (off_t)st->off, (off_t)st->len);
		break;
	case OP_PUNCH:
		err = fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)st->off,
				(off_t)st->len);
		break;
	case OP_COPYRANGE:
		seen->err = do_copyrange(a, st);
		break;
	case OP_SENDFILE:
		do_sendfile(a, st, seen);
		break;
	case OP_SPLICE:
		do_splice(a, st, seen);
		break;
	case OP_SPLICEIN:
		seen->err = do_splicein(a, st);
		break;
	case OP_UNLINK:
		err = unlink(file_path(a, st->file, path));
		break;
	case OP_RENAME:
		err = do_names(a, st, rename);
		break;
	case OP_LINK:
		err = do_names(a, st, link);
		break;
	case OP_STAT:
		do_stat(a, st, seen);
		break;
	case OP_USER:
		seen->err = do_user(a, st);
		break;
	case OP_CHMOD:
		err = chmod(file_path(a, st->file, path), st->mode);
		break;
	case OP_LOAD:
	case OP_STORE:
	case OP_SCATTER:
		do_memory(a, st, seen);
		break;
	case OP_MMAP:
		seen->err = do_mmap(a);
		break;
	case OP_MUNMAP:
		unmap(a);
		break;
	case OP_MSYNC:
		if (!a->map)
			seen->err = EFAULT;
		else
			err = msync(a->map + ROUND_DOWN(st->off, (uint64_t)GAIA_PAGE),
				    st->len + st->off % GAIA_PAGE, MS_SYNC);
		break;
	case OP_ACQUIRE:
	case OP_ACQUIREV:
	case OP_RELEASE:
	case OP_RELEASEV:
	case OP_START:
	case OP_STARTV:
	case OP_ENDED:
	case OP_WAIT:
	case OP_CANCEL:
	case OP_SYNC:
	case OP_WILLNEED:
	case OP_DONTNEED:
		seen->err = do_device(a, st);
		break;
	case OP_DROP:
		drop(a, 0);
		break;
	case OP_FLUSH:
	case OP_EVICT:
		do_file_ioctl(a, st, seen);
		break;
	case OP_BELOW:
		do_below(a, st, seen);
		break;
	case OP_COUNT:
		do_count(a, st, seen);
		break;
	case OP_CRASH:
	case OP_PAR:
		break;	/* the runner's own */
	}
	if (err)
		seen->err = errno;
}

/* ---- judging ---- */

/* As the scenario would write it: runs of one byte as aa*N. */
static void print_bytes(FILE *out, const uint8_t *b, size_t len)
{
	unsigned parts = 0;

	if (len == 0)
		fputs("eof", out);
	for (size_t i = 0, n; i < len; i += n) {
		for (n = 1; i + n < len && b[i + n] == b[i]; n++)
			;
		if (parts++ == 24) {
			fprintf(out, ",... (%zu bytes in all)", len);
			return;
		}
		fprintf(out, n > 1 ? "%s%02x*%zu" : "%s%02x", i ? "," : "", b[i], n);
	}
}

static void print_outcome(FILE *out, const struct actor *a, const struct outcome *o)
{
	const struct note *note = &a->env->stage->notes[o->note];

	switch (o->kind) {
	case OUT_OK:
		fputs("success", out);
		break;
	case OUT_BYTES:
		print_bytes(out, o->bytes, o->len);
		break;
	case OUT_NOTED:
		print_bytes(out, note->bytes, note->len);
		fprintf(out, " (%s)", a->env->scenario->notes[o->note]);
		break;
	case OUT_ERROR:
		fprintf(out, "error %s", strerrorname_np(o->error));
		break;
	}
}

static bool same_bytes(const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len)
{
	return a_len == b_len && (a_len == 0 || memcmp(a, b, a_len) == 0);
}

static bool matches(const struct actor *a, const struct outcome *o, const struct seen *seen)
{
	const struct note *note = &a->env->stage->notes[o->note];

	if (seen->err)
		return o->kind == OUT_ERROR && o->error == seen->err;
	switch (o->kind) {
	case OUT_OK:
		return true;
	case OUT_BYTES:
		return same_bytes(o->bytes, o->len, seen->bytes, seen->len);
	case OUT_NOTED:
		return same_bytes(note->bytes, note->len, seen->bytes, seen->len);
	default:
		return false;
	}
}

static bool is_allowed(const struct actor *a, const struct step *st, const struct seen *seen)
{
	if (seen->wrong)
		return false;
	for (unsigned i = 0; i < st->n_allowed; i++)
		if (matches(a, &st->allowed[i], seen))
			return true;
	return st->n_allowed == 0 && seen->err == 0;
}

static void take_note(const struct actor *a, const struct step *st, const struct seen *seen)
{
	struct note *note = &a->env->stage->notes[st->note];

	if (seen->err || seen->len > sizeof(note->bytes))
		return;
	note->len = seen->len;
	memcpy(note->bytes, seen->bytes, seen->len);
}

/* Where to look in a long range: the first byte that the first expectation has otherwise. */
static void print_difference(FILE *out, const struct step *st, const struct seen *seen)
{
	const struct outcome *o = st->allowed;
	size_t i = 0;

	if (seen->err || !seen->bytes || !o || o->kind != OUT_BYTES || o->len < 16)
		return;
	while (i < o->len && i < seen->len && o->bytes[i] == seen->bytes[i])
		i++;
	fprintf(out, " (first difference at offset %llu: ", (unsigned long long)(st->off + i));
	print_bytes(out, seen->bytes + i, seen->len > i ? 1 : 0);
	fputc(')', out);
}

static void describe(const struct actor *a, const struct step *st, const struct seen *seen,
		     char *text, size_t size)
{
	FILE *out = fmemopen(text, size, "w");

	if (!out)
		return;
	fputs("saw ", out);
	if (seen->text[0])
		fputs(seen->text, out);
	else if (seen->err)
		fprintf(out, "error %s", strerrorname_np(seen->err));
	else if (seen->bytes)
		print_bytes(out, seen->bytes, seen->len);
	else
		fputs("success", out);
	print_difference(out, st, seen);
	if (!seen->wrong) {
		fputs(", allowed is ", out);
		for (unsigned i = 0; i < st->n_allowed; i++) {
			if (i)
				fputs(" or ", out);
			print_outcome(out, a, &st->allowed[i]);
		}
		if (st->n_allowed == 0)
			fputs("success", out);
	}
	fclose(out);
	text[size - 1] = '\0';
}

/* Whether what came of the step is allowed; if not, @reply says it. */
static bool step_done(struct actor *a, const struct step *st, struct reply *reply)
{
	struct seen seen = { 0 };

	atomic_store(&a->env->stage->at[a->self], st);
	perform(a, st, &seen);
	atomic_store(&a->env->stage->at[a->self], NULL);
	if (is_allowed(a, st, &seen)) {
		if (st->note >= 0)
			take_note(a, st, &seen);
		return true;
	}
	reply->ok = false;
	reply->step = st;
	describe(a, st, &seen, reply->text, sizeof(reply->text));
	return false;
}

/* ---- par ---- */

static uint64_t random_next(uint64_t *state)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Nothing at all, or up to half a millisecond, short more often than long. */
static void jitter(uint64_t *state)
{
	uint64_t until = now_ns();

	if (random_next(state) % 3 == 0)
		return;
	until += random_next(state) % (512u << random_next(state) % 11);
	while (now_ns() < until)
		;
}

static void lane_ends(struct actor *a, const struct lane *lane)
{
	if (!lane->loops)
		atomic_fetch_sub(&a->env->stage->running, 1);
}

static void run_lane(struct actor *a, const struct lane *lane, uint64_t seed, struct reply *reply)
{
	struct stage *stage = a->env->stage;
	uint64_t random = seed;

	atomic_fetch_add(&stage->ready, 1);
	while (!atomic_load(&stage->go))
		sched_yield();
	for (unsigned i = 0; i < lane->n_steps && reply->ok; i++) {
		const struct step *st = &lane->steps[i];

		jitter(&random);
		if (st->op == OP_KILL)
			lane_ends(a, lane);
		while (step_done(a, st, reply) && st->loop && atomic_load(&stage->running) > 0)
			;
	}
	lane_ends(a, lane);
}

/* ---- commands ---- */

static bool hold(struct actor *a, bool mapped)
{
	for (unsigned i = 0; i < a->env->scenario->n_names; i++) {
		const struct file_def *def = &a->env->scenario->names[i];
		char path[PATH_MAX];
		int fd;

		if (!def->declared)
			continue;
		fd = open(file_path(a, i, path), O_RDWR | O_CLOEXEC);
		if (fd < 0)
			return false;
		a->held[i].fd = fd;
		if (!mapped)
			continue;
		a->held[i].len = ROUND_UP(MAX((size_t)def->size, (size_t)1), (size_t)GAIA_PAGE);
		a->held[i].map = mmap(NULL, a->held[i].len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (a->held[i].map == MAP_FAILED)
			return false;
		close(fd);
		a->held[i].fd = 0;
	}
	return true;
}

static void let_go(struct actor *a)
{
	for (unsigned i = 0; i < MAX_FILES; i++) {
		if (a->held[i].fd > 0)
			close(a->held[i].fd);
		if (a->held[i].map)
			munmap(a->held[i].map, a->held[i].len);
	}
	memset(a->held, 0, sizeof(a->held));
}

static void forget(struct actor *a)
{
	let_go(a);
	while (a->n_started > 0)
		close(a->started[--a->n_started]);
	unmap(a);
	if (a->fd >= 0)
		close(a->fd);
	a->fd = -1;
	a->file = -1;
	/* A new daemon counts from nothing. */
	json_decref(a->base);
	a->base = NULL;
}

static void obey(struct actor *a, const struct command *cmd, struct reply *reply)
{
	const struct step *st = &a->env->scenario->steps[cmd->step];

	switch (cmd->kind) {
	case CMD_STEP:
		step_done(a, st, reply);
		break;
	case CMD_LANE:
		run_lane(a, &st->lanes[cmd->lane], cmd->seed, reply);
		break;
	case CMD_FORGET:
		forget(a);
		break;
	case CMD_DROP:
		drop(a, cmd->open_files);
		break;
	case CMD_HOLD:
	case CMD_HOLD_MAPPED:
		reply->ok = hold(a, cmd->kind == CMD_HOLD_MAPPED);
		if (!reply->ok)
			snprintf(reply->text, sizeof(reply->text), "cannot hold the files: %s",
				 strerror(errno));
		break;
	case CMD_BASE:
		a->base = counters_now(a);
		reply->ok = a->base != NULL;
		if (!reply->ok)
			strcpy(reply->text, "'gaia status --json' gives no counters");
		break;
	case CMD_RESIDENCY:
		print_residency(a);
		break;
	case CMD_TIDY:
		tidy(a);
		break;
	}
	reply->open_file = a->fd >= 0 ? a->file : -1;
}

_Noreturn void actor_main(const struct actor_env *env, unsigned self, int sock)
{
	struct actor a = {
		.env = env,
		.def = &env->scenario->actors[self],
		.self = self,
		.mount = -1,
		.fd = -1,
		.file = -1,
	};
	struct sigaction sa = { .sa_handler = on_fault };
	struct command cmd;

	sigaction(SIGSEGV, &sa, NULL);
	sigaction(SIGBUS, &sa, NULL);
	while (recv(sock, &cmd, sizeof(cmd), 0) == sizeof(cmd)) {
		struct reply reply = { .ok = true };

		obey(&a, &cmd, &reply);
		if (send(sock, &reply, sizeof(reply), MSG_NOSIGNAL) != sizeof(reply))
			break;
	}
	forget(&a);
	_exit(0);
}
