/*
 * calls.c - the system calls that programs are made of.
 */
#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <linux/xattr.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "differ.h"

#define ROOM (LONGEST + 8192)

bool compare_mtimes;

static char *input; /* aligned, as side.out is: for O_DIRECT */

/* ---- users ---- */

static const struct {
	uid_t uid;
	gid_t gid, other;
} user[USERS] = { { 0, 0, 0 }, { 1234, 1234, 5000 }, { 1235, 1235, 1235 } };

static unsigned am;

void become(unsigned who)
{
	if (who == am)
		return;
	if (seteuid(0) || setegid(user[who].gid) || setgroups(who ? 1 : 0, &user[who].other) ||
	    seteuid(user[who].uid)) {
		perror("differ: become another user");
		abort();
	}
	am = who;
}

/* ---- sides ---- */

static void close_file(struct open_file *f)
{
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
}

static void drop_mapping(struct mapping *m)
{
	if (!m->p)
		return;
	munmap(m->p, MAP_BYTES);
	close(m->fd);
	m->p = NULL;
}

void side_open(struct side *s, int root)
{
	if (!s->out && posix_memalign((void **)&s->out, 4096, ROOM))
		abort();
	s->root = root;
	for (unsigned i = 0; i < SLOTS; i++)
		s->file[i].fd = -1;
	for (unsigned i = 0; i < MAPS; i++)
		s->map[i].p = NULL;
}

void side_close(struct side *s)
{
	for (unsigned i = 0; i < SLOTS; i++)
		close_file(&s->file[i]);
	for (unsigned i = 0; i < MAPS; i++)
		drop_mapping(&s->map[i]);
}

static int at(const struct side *s, const struct step *t)
{
	return t->base < SLOTS ? s->file[t->base].fd : s->root;
}

static const char *a(const struct step *t)
{
	static char buf[NAME_MAX_TEXT];

	return name_text(t->a, buf);
}

static const char *b(const struct step *t)
{
	static char buf[NAME_MAX_TEXT];

	return name_text(t->b, buf);
}

/* For the calls that have no *at(): below the root. */
static const char *path_of(const struct side *s, const struct step *t)
{
	static char buf[NAME_MAX_TEXT + 40];

	snprintf(buf, sizeof(buf), "/proc/self/fd/%d/%s", s->root, a(t));
	return buf;
}

static int fd_of(const struct side *s, const struct step *t)
{
	return s->file[t->fd].fd;
}

static void tell(struct side *s, const void *what, size_t n)
{
	memcpy(s->out + s->n_out, what, n);
	s->n_out += n;
}

/* Put @fd into the slot, whose own is closed first. */
static long keep(struct side *s, unsigned slot, int fd, bool direct)
{
	int err = errno;

	if (fd < 0)
		return -1;
	close_file(&s->file[slot]);
	s->file[slot].fd = fd;
	s->file[slot].direct = direct;
	errno = err;
	return 0;
}

/* What is written: bytes that tell a step from others. */
static const char *fill(const struct step *t)
{
	for (size_t i = 0; i < t->len; i++)
		input[i] = (char)(t->text + i / 7);
	return input;
}

/* ---- descriptors ---- */

static long run_open(struct side *s, const struct step *t)
{
	int fd = openat(at(s, t), a(t), (int)t->flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, t->mode);

	return keep(s, t->fd, fd, t->flags & O_DIRECT && !(t->flags & O_PATH));
}

static long run_reopen(struct side *s, const struct step *t)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd_of(s, t));
	return keep(s, t->fd2, open(path, (int)t->flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC), false);
}

static long run_close(struct side *s, const struct step *t)
{
	int fd = fd_of(s, t);

	s->file[t->fd].fd = -1;
	return close(fd);
}

static long run_dup(struct side *s, const struct step *t)
{
	int fd = fcntl(fd_of(s, t), F_DUPFD_CLOEXEC, 0);

	return t->fd == t->fd2 && fd >= 0 ? close(fd) :
					    keep(s, t->fd2, fd, s->file[t->fd].direct);
}

static long run_setfl(struct side *s, const struct step *t)
{
	int flags = fcntl(fd_of(s, t), F_GETFL);

	if (s->file[t->fd].direct)
		return 0;
	/* Appending is not taken away: fs_differences does. */
	return fcntl(fd_of(s, t), F_SETFL, t->flags | O_NONBLOCK | (flags > 0 ? flags & O_APPEND : 0));
}

static long run_getfl(struct side *s, const struct step *t)
{
	return fcntl(fd_of(s, t), F_GETFL);
}

/* ---- reading and writing ---- */

/* Direct I/O must be aligned below, and need not be on the mount. */
static struct step aligned(const struct side *s, const struct step *t)
{
	struct step copy = *t;

	if (s->file[t->fd].direct) {
		copy.off &= ~4095l;
		copy.len = (t->len + 4095) & ~4095ul;
		if (copy.len > LONGEST)
			copy.len = LONGEST & ~4095ul;
	}
	return copy;
}

static long run_pread(struct side *s, const struct step *t)
{
	struct step u = aligned(s, t);
	long n = pread(fd_of(s, t), s->out, u.len, u.off);

	s->n_out = n > 0 ? (size_t)n : 0;
	return n;
}

static long run_pwrite(struct side *s, const struct step *t)
{
	struct step u = aligned(s, t);

	return pwrite(fd_of(s, t), fill(&u), u.len, u.off);
}

static long run_read(struct side *s, const struct step *t)
{
	long n;

	if (s->file[t->fd].direct)
		return run_pread(s, t);
	n = read(fd_of(s, t), s->out, t->len);
	s->n_out = n > 0 ? (size_t)n : 0;
	return n;
}

static long run_write(struct side *s, const struct step *t)
{
	if (s->file[t->fd].direct)
		return run_pwrite(s, t);
	return write(fd_of(s, t), fill(t), t->len);
}

/* Three parts, one of them odd. */
static int parts(struct iovec v[3], char *p, size_t len)
{
	v[0] = (struct iovec){ p, len / 3 };
	v[1] = (struct iovec){ p + len / 3, len / 7 };
	v[2] = (struct iovec){ p + len / 3 + len / 7, len - len / 3 - len / 7 };
	return 3;
}

static long run_preadv(struct side *s, const struct step *t)
{
	struct iovec v[3];
	long n;

	if (s->file[t->fd].direct)
		return run_pread(s, t);
	n = preadv(fd_of(s, t), v, parts(v, s->out, t->len), t->off);
	s->n_out = n > 0 ? (size_t)n : 0;
	return n;
}

static long run_pwritev2(struct side *s, const struct step *t)
{
	struct iovec v[3];

	if (s->file[t->fd].direct)
		return run_pwrite(s, t);
	fill(t);
	return pwritev2(fd_of(s, t), v, parts(v, input, t->len), t->off, (int)t->flags);
}

static bool is_dir(int fd)
{
	struct stat st;

	return !fstat(fd, &st) && S_ISDIR(st.st_mode);
}

static long run_lseek(struct side *s, const struct step *t)
{
	if (is_dir(fd_of(s, t)))
		return 0;
	return lseek(fd_of(s, t), t->flags == SEEK_SET ? t->off : t->off - 5000, (int)t->flags);
}

static long run_find_data(struct side *s, const struct step *t)
{
	if (is_dir(fd_of(s, t)))
		return 0;
	return lseek(fd_of(s, t), t->off, (int)t->flags);
}

static long run_ftruncate(struct side *s, const struct step *t)
{
	return ftruncate(fd_of(s, t), t->off);
}

static long run_truncate(struct side *s, const struct step *t)
{
	return truncate(path_of(s, t), t->off);
}

static long run_fallocate(struct side *s, const struct step *t)
{
	return fallocate(fd_of(s, t), (int)t->flags, t->off, (off_t)t->len);
}

static long run_copy(struct side *s, const struct step *t)
{
	int from = s->file[t->fd].fd, to = s->file[t->fd2].fd;
	off_t from_off = t->off, to_off = t->off2;
	size_t done = 0;
	ssize_t n;

	if (s->file[t->fd].direct || s->file[t->fd2].direct)
		return 0;
	/* A call may copy less. */
	do {
		n = copy_file_range(from, &from_off, to, &to_off, t->len - done, 0);
		if (n < 0)
			return done ? (long)done : -1;
		done += (size_t)n;
	} while (n > 0 && done < t->len);
	return (long)done;
}

static long run_sendfile(struct side *s, const struct step *t)
{
	off_t off = t->off;

	if (s->file[t->fd].direct || s->file[t->fd2].direct)
		return 0;
	return sendfile(s->file[t->fd2].fd, s->file[t->fd].fd, &off, t->len % 4096);
}

static long run_fsync(struct side *s, const struct step *t)
{
	return fsync(fd_of(s, t));
}

static long run_fdatasync(struct side *s, const struct step *t)
{
	return fdatasync(fd_of(s, t));
}

static long run_sync_range(struct side *s, const struct step *t)
{
	return sync_file_range(fd_of(s, t), t->off, (off_t)t->len,
			       SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
				       SYNC_FILE_RANGE_WAIT_AFTER);
}

static long run_drop(struct side *s, const struct step *t)
{
	return posix_fadvise(fd_of(s, t), 0, 0, POSIX_FADV_DONTNEED);
}

/* ---- mappings ---- */

static sigjmp_buf fault;

static void on_fault(int signal)
{
	siglongjmp(fault, GOT_SIGNAL + signal);
}

/* As memcpy(); -1 and errno where it faults. */
static int copy_or_fault(void *to, const void *from, size_t n)
{
	int signal = sigsetjmp(fault, 1);

	if (signal) {
		errno = signal;
		return -1;
	}
	memcpy(to, from, n);
	return 0;
}

static long run_map(struct side *s, const struct step *t)
{
	struct mapping *m = &s->map[t->map];
	int fd = fd_of(s, t);
	char *p = mmap(NULL, MAP_BYTES, (int)t->flags, MAP_SHARED, fd, t->off & ~4095l);

	if (p == MAP_FAILED)
		return -1;
	drop_mapping(m);
	m->p = p;
	m->off = t->off & ~4095l;
	m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return 0;
}

static long run_unmap(struct side *s, const struct step *t)
{
	drop_mapping(&s->map[t->map]);
	return 0;
}

static size_t touched(const struct step *t)
{
	size_t from = (size_t)t->off % MAP_BYTES;

	return from + t->len > MAP_BYTES ? MAP_BYTES - from : t->len;
}

/* What is stored and loaded where nothing is mapped, or not so, faults: both sides must. */
static long run_load(struct side *s, const struct step *t)
{
	const char *p = s->map[t->map].p;

	if (!p)
		return 0;
	if (copy_or_fault(s->out, p + t->off % MAP_BYTES, touched(t)))
		return -1;
	s->n_out = touched(t);
	return 0;
}

/*
 * Nothing is stored between the end of the file and the end of its last page: what becomes
 * of that when the file grows is not said.
 */
static long run_store(struct side *s, const struct step *t)
{
	struct mapping *m = &s->map[t->map];
	size_t from = (size_t)t->off % MAP_BYTES, n = touched(t);
	struct stat st;
	off_t pos;

	if (!m->p || fstat(m->fd, &st))
		return 0;
	pos = m->off + (off_t)from;
	if (pos < st.st_size)
		n = pos + (off_t)n > st.st_size ? (size_t)(st.st_size - pos) : n;
	else if (pos < ((st.st_size + 4095) & ~4095l))
		return 0;
	return copy_or_fault(m->p + from, fill(t), n);
}

static long run_msync(struct side *s, const struct step *t)
{
	return s->map[t->map].p ? msync(s->map[t->map].p, MAP_BYTES, MS_SYNC) : 0;
}

/* ---- names ---- */

static long run_mkdir(struct side *s, const struct step *t)
{
	return mkdirat(at(s, t), a(t), t->mode);
}

static long run_mknod(struct side *s, const struct step *t)
{
	return mknodat(at(s, t), a(t), t->flags | (t->mode & 0777), 0);
}

static long run_unlink(struct side *s, const struct step *t)
{
	return unlinkat(at(s, t), a(t), (int)t->flags);
}

static long run_rename(struct side *s, const struct step *t)
{
	return renameat2(at(s, t), a(t), s->root, b(t), t->flags);
}

static long run_link(struct side *s, const struct step *t)
{
	return linkat(at(s, t), a(t), s->root, b(t), (int)t->flags);
}

static long run_link_fd(struct side *s, const struct step *t)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd_of(s, t));
	return linkat(AT_FDCWD, path, s->root, b(t), AT_SYMLINK_FOLLOW);
}

static long run_symlink(struct side *s, const struct step *t)
{
	return symlinkat(b(t), at(s, t), a(t));
}

static long run_readlink(struct side *s, const struct step *t)
{
	long n = readlinkat(at(s, t), a(t), s->out, ROOM);

	s->n_out = n > 0 ? (size_t)n : 0;
	return n;
}

static int by_text(const void *x, const void *y)
{
	return strcmp(x, y);
}

/* All names with their types; in order, since that of a directory is its own. */
static long run_readdir(struct side *s, const struct step *t)
{
	static char names[300][280];
	unsigned n = 0;
	struct dirent *e;
	int fd = openat(at(s, t), a(t), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);
	long res;

	if (!d)
		return -1;
	errno = 0;
	while (n < 300 && (e = readdir(d)))
		snprintf(names[n++], sizeof(names[0]), "%s:%d\n", e->d_name, e->d_type);
	res = errno ? -1 : (long)n;
	closedir(d);
	qsort(names, n, sizeof(names[0]), by_text);
	for (unsigned i = 0; i < n; i++)
		tell(s, names[i], strlen(names[i]));
	return res;
}

/* ---- attributes ---- */

static void tell_stat(struct side *s, const struct stat *st)
{
	time_t mtime = st->st_mtim.tv_sec;
	int n;

	/* Times that the clock gave differ. What goes through a FIFO does not reach the file system. */
	if (!compare_mtimes || S_ISFIFO(st->st_mode))
		mtime = 0;
	else if (mtime >= CLOCK_TIMES_FROM)
		mtime = CLOCK_TIMES_FROM;
	n = snprintf(s->out + s->n_out, 200, "mode %o links %lu uid %u gid %u size %ld mtime %ld.%09ld",
		     st->st_mode, (unsigned long)st->st_nlink, st->st_uid, st->st_gid,
		     S_ISDIR(st->st_mode) ? 0 : (long)st->st_size, (long)mtime,
		     mtime && mtime < CLOCK_TIMES_FROM ? st->st_mtim.tv_nsec : 0);
	s->n_out += (size_t)n;
}

static long run_stat(struct side *s, const struct step *t)
{
	struct stat st;

	if (fstatat(at(s, t), a(t), &st, (int)t->flags))
		return -1;
	tell_stat(s, &st);
	return 0;
}

static long run_fstat(struct side *s, const struct step *t)
{
	struct stat st;

	if (fstat(fd_of(s, t), &st))
		return -1;
	tell_stat(s, &st);
	return 0;
}

static long run_access(struct side *s, const struct step *t)
{
	return faccessat(at(s, t), a(t), (int)t->flags, AT_EACCESS);
}

static long run_chmod(struct side *s, const struct step *t)
{
	return fchmodat(at(s, t), a(t), t->mode, 0);
}

static long run_fchmod(struct side *s, const struct step *t)
{
	return fchmod(fd_of(s, t), t->mode);
}

static uid_t uid_from(unsigned text)
{
	return text % 4 < USERS ? user[text % 4].uid : (uid_t)-1;
}

/* Only root changes nothing at all: fs_differences has what others do with it. */
static gid_t gid_from(const struct step *t)
{
	const gid_t gid[] = { 0, 1234, 1235, 5000,
			      t->who && uid_from(t->text) == (uid_t)-1 ? user[t->who].gid : (gid_t)-1 };

	return gid[t->text / 4 % 5];
}

static long run_chown(struct side *s, const struct step *t)
{
	return fchownat(at(s, t), a(t), uid_from(t->text), gid_from(t), (int)t->flags);
}

static long run_fchown(struct side *s, const struct step *t)
{
	return fchown(fd_of(s, t), uid_from(t->text), gid_from(t));
}

static void times_from(const struct step *t, struct timespec ts[2])
{
	for (int i = 0; i < 2; i++)
		ts[i] = (struct timespec){ 1000000000 + t->text + i, t->text * 7 };
	if (t->text % 5 == 0)
		ts[1].tv_nsec = UTIME_OMIT;
	if (t->text % 5 == 1)
		ts[0].tv_nsec = UTIME_OMIT;
	if (t->text % 5 == 2)
		ts[0].tv_nsec = ts[1].tv_nsec = UTIME_NOW;
}

static long run_utimens(struct side *s, const struct step *t)
{
	struct timespec ts[2];

	times_from(t, ts);
	return utimensat(at(s, t), a(t), ts, (int)t->flags);
}

static long run_futimens(struct side *s, const struct step *t)
{
	struct timespec ts[2];

	times_from(t, ts);
	return futimens(fd_of(s, t), ts);
}

static long run_umask(struct side *s, const struct step *t)
{
	(void)s;
	/* Both sides set it; what it was is the same for neither. */
	umask(t->mode & 0067); /* see mode() in program.c */
	return 0;
}

static long run_statfs(struct side *s, const struct step *t)
{
	struct statvfs v;

	if (fstatvfs(fd_of(s, t), &v))
		return -1;
	tell(s, &v.f_namemax, sizeof(v.f_namemax));
	tell(s, &v.f_frsize, sizeof(v.f_frsize));
	return 0;
}

/* ---- extended attributes and access lists ---- */

static const char *attribute(const struct step *t)
{
	static const char *const names[] = { "user.a", "user.b", "user.c", "trusted.t", "user.",
					     "nonsense", XATTR_NAME_POSIX_ACL_ACCESS,
					     XATTR_NAME_POSIX_ACL_DEFAULT };

	return names[t->text % 8];
}

/* Where a value of any bytes would be an access list, which has its own call. */
static const char *plain_attribute(const struct step *t)
{
	const char *name = attribute(t);

	return strncmp(name, "system.", 7) ? name : "user.d";
}

static long run_setxattr(struct side *s, const struct step *t)
{
	return setxattr(path_of(s, t), plain_attribute(t), fill(t), t->len % 70000, (int)t->flags);
}

static long run_fsetxattr(struct side *s, const struct step *t)
{
	return fsetxattr(fd_of(s, t), plain_attribute(t), fill(t), t->len % 300, (int)t->flags);
}

static long run_getxattr(struct side *s, const struct step *t)
{
	long n = getxattr(path_of(s, t), attribute(t), s->out, t->len % 2 ? t->len % 100 : ROOM);

	s->n_out = n > 0 ? (size_t)n : 0;
	return n;
}

static long run_removexattr(struct side *s, const struct step *t)
{
	return removexattr(path_of(s, t), attribute(t));
}

static long run_listxattr(struct side *s, const struct step *t)
{
	static char list[65536];
	long n = listxattr(path_of(s, t), list, sizeof(list));
	unsigned long sum = 0;

	for (long i = 0; i < n; i++)
		sum += (unsigned char)list[i];
	tell(s, &sum, sizeof(sum));
	return n;
}

static void acl_entry(struct posix_acl_xattr_entry *e, int tag, unsigned perm, unsigned id)
{
	e->e_tag = htole16((uint16_t)tag);
	e->e_perm = htole16((uint16_t)(perm & 7));
	e->e_id = htole32(id);
}

static long run_set_acl(struct side *s, const struct step *t)
{
	struct {
		struct posix_acl_xattr_header header;
		struct posix_acl_xattr_entry e[6];
	} acl = { .header.a_version = htole32(POSIX_ACL_XATTR_VERSION) };
	unsigned n = 0, text = t->text | 1 << 6 | 1 << 10; /* as mode() in program.c */

	acl_entry(&acl.e[n++], ACL_USER_OBJ, text | (geteuid() ? 5 : 4), ACL_UNDEFINED_ID);
	if (text & 0x100)
		acl_entry(&acl.e[n++], ACL_USER, text >> 3, user[1].uid);
	acl_entry(&acl.e[n++], ACL_GROUP_OBJ, text >> 6, ACL_UNDEFINED_ID);
	if (text & 0x200)
		acl_entry(&acl.e[n++], ACL_GROUP, text >> 4, user[1].other);
	/* Without a mask where one is needed it is not valid. */
	if (text & 0x300 && text % 16)
		acl_entry(&acl.e[n++], ACL_MASK, text >> 10, ACL_UNDEFINED_ID);
	acl_entry(&acl.e[n++], ACL_OTHER, text >> 12, ACL_UNDEFINED_ID);
	return setxattr(path_of(s, t),
			t->flags ? XATTR_NAME_POSIX_ACL_DEFAULT : XATTR_NAME_POSIX_ACL_ACCESS,
			&acl, sizeof(acl.header) + n * sizeof(acl.e[0]), 0);
}

/* ---- locks: between open file descriptions, which one process can have many of ---- */

static long run_flock(struct side *s, const struct step *t)
{
	return flock(fd_of(s, t), (int)t->flags | LOCK_NB);
}

static long run_lock(struct side *s, const struct step *t)
{
	struct flock l = { .l_type = (short)t->flags, .l_whence = SEEK_SET, .l_start = t->off % 1000,
			   .l_len = (off_t)t->len % 500 };

	return fcntl(fd_of(s, t), F_OFD_SETLK, &l);
}

static long run_lock_test(struct side *s, const struct step *t)
{
	struct flock l = { .l_type = (short)t->flags, .l_whence = SEEK_SET, .l_start = t->off % 1000,
			   .l_len = (off_t)t->len % 500 };
	long res = fcntl(fd_of(s, t), F_OFD_GETLK, &l);

	tell(s, &l.l_type, sizeof(l.l_type));
	tell(s, &l.l_start, sizeof(l.l_start));
	tell(s, &l.l_len, sizeof(l.l_len));
	return res;
}

/* ---- the table ---- */

#define FLAGS(...) ((const unsigned[]){ __VA_ARGS__ }), sizeof((unsigned[]){ __VA_ARGS__ }) / sizeof(unsigned)

#define OPEN_FLAGS                                                                               \
	FLAGS(O_RDWR | O_CREAT, O_RDWR | O_CREAT, O_RDWR | O_CREAT, O_RDWR, O_RDWR, O_RDONLY,    \
	      O_WRONLY, O_RDWR | O_CREAT | O_EXCL, O_RDWR | O_CREAT | O_TRUNC, O_RDWR | O_TRUNC, \
	      O_RDONLY | O_TRUNC, O_RDWR | O_APPEND | O_CREAT, O_WRONLY | O_APPEND,              \
	      O_RDONLY | O_DIRECTORY, O_RDONLY | O_DIRECTORY, O_RDWR | O_DIRECTORY,              \
	      O_RDWR | O_NOFOLLOW, O_RDWR | O_CREAT | O_NOFOLLOW, O_PATH, O_PATH | O_NOFOLLOW,   \
	      O_RDWR | O_CREAT | O_DIRECT, O_RDWR | O_DIRECT, O_RDONLY | O_NOATIME,              \
	      O_RDWR | O_SYNC, O_RDWR | O_CREAT | O_DSYNC, O_RDWR | O_TMPFILE,                   \
	      O_WRONLY | O_TMPFILE | O_EXCL, O_RDWR | O_CREAT | O_DIRECTORY)

const struct call calls[] = {
	{ "open", 14, USES_FD | USES_A | USES_FLAGS | USES_MODE, run_open, OPEN_FLAGS },
	{ "reopen", 2, USES_FD | USES_FD2 | USES_FLAGS, run_reopen,
	  FLAGS(O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_TRUNC, O_RDWR | O_APPEND, O_PATH) },
	{ "close", 4, USES_FD, run_close, NULL, 0 },
	{ "dup", 2, USES_FD | USES_FD2, run_dup, NULL, 0 },
	{ "setfl", 1, USES_FD | USES_FLAGS, run_setfl, FLAGS(0, O_APPEND) },
	{ "getfl", 1, USES_FD, run_getfl, NULL, 0 },
	{ "read", 3, USES_FD | USES_LEN, run_read, NULL, 0 },
	{ "write", 6, USES_FD | USES_LEN | USES_TEXT, run_write, NULL, 0 },
	{ "pread", 5, USES_FD | USES_OFF | USES_LEN, run_pread, NULL, 0 },
	{ "pwrite", 8, USES_FD | USES_OFF | USES_LEN | USES_TEXT, run_pwrite, NULL, 0 },
	{ "preadv", 1, USES_FD | USES_OFF | USES_LEN, run_preadv, NULL, 0 },
	{ "pwritev2", 2, USES_FD | USES_OFF | USES_LEN | USES_TEXT | USES_FLAGS, run_pwritev2,
	  FLAGS(0, RWF_APPEND, RWF_DSYNC, RWF_SYNC) },
	{ "lseek", 3, USES_FD | USES_OFF | USES_FLAGS, run_lseek,
	  FLAGS(SEEK_SET, SEEK_CUR, SEEK_END) },
	{ "find_data", 3, USES_FD | USES_OFF | USES_FLAGS | TELLS_HOLES | NOT_MAPS, run_find_data,
	  FLAGS(SEEK_DATA, SEEK_HOLE) },
	{ "truncate", 3, USES_A | USES_OFF, run_truncate, NULL, 0 },
	{ "ftruncate", 4, USES_FD | USES_OFF, run_ftruncate, NULL, 0 },
	{ "punch", 2, USES_FD | USES_OFF | USES_LEN | USES_FLAGS, run_fallocate,
	  FLAGS(FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE) },
	{ "fallocate", 3, USES_FD | USES_OFF | USES_LEN | USES_FLAGS | ONLY_PREALLOCATES,
	  run_fallocate,
	  FLAGS(0, 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_ZERO_RANGE,
		FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE) },
	{ "copy", 3, USES_FD | USES_FD2 | USES_OFF | USES_OFF2 | USES_LEN, run_copy, NULL, 0 },
	{ "sendfile", 1, USES_FD | USES_FD2 | USES_OFF | USES_LEN, run_sendfile, NULL, 0 },
	{ "fsync", 1, USES_FD, run_fsync, NULL, 0 },
	{ "fdatasync", 1, USES_FD, run_fdatasync, NULL, 0 },
	{ "sync_range", 1, USES_FD | USES_OFF | USES_LEN, run_sync_range, NULL, 0 },
	{ "drop", 1, USES_FD, run_drop, NULL, 0 },
	{ "map", 4, USES_MAP | USES_FD | USES_OFF | USES_FLAGS | ONLY_MAPS, run_map,
	  FLAGS(PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ) },
	{ "unmap", 1, USES_MAP | ONLY_MAPS, run_unmap, NULL, 0 },
	{ "store", 8, USES_MAP | USES_OFF | USES_LEN | USES_TEXT | ONLY_MAPS, run_store, NULL, 0 },
	{ "load", 6, USES_MAP | USES_OFF | USES_LEN | ONLY_MAPS, run_load, NULL, 0 },
	{ "msync", 1, USES_MAP | ONLY_MAPS, run_msync, NULL, 0 },
	{ "mkdir", 5, USES_A | USES_MODE, run_mkdir, NULL, 0 },
	{ "mknod", 2, USES_A | USES_MODE | USES_FLAGS, run_mknod,
	  FLAGS(S_IFIFO, S_IFSOCK, S_IFREG, S_IFCHR) },
	{ "unlink", 4, USES_A, run_unlink, FLAGS(0) },
	{ "rmdir", 2, USES_A, run_unlink, FLAGS(AT_REMOVEDIR) },
	{ "rename", 6, USES_A | USES_B, run_rename, FLAGS(0) },
	{ "rename2", 3, USES_A | USES_B | USES_FLAGS, run_rename,
	  FLAGS(RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_EXCHANGE, RENAME_WHITEOUT,
		RENAME_NOREPLACE | RENAME_EXCHANGE, 8) },
	{ "link", 4, USES_A | USES_B | USES_FLAGS, run_link, FLAGS(0, AT_SYMLINK_FOLLOW) },
	{ "link_fd", 2, USES_FD | USES_B, run_link_fd, NULL, 0 },
	{ "symlink", 4, USES_A | USES_B, run_symlink, NULL, 0 },
	{ "readlink", 1, USES_A, run_readlink, NULL, 0 },
	{ "readdir", 4, USES_A, run_readdir, NULL, 0 },
	{ "stat", 6, USES_A | USES_FLAGS, run_stat, FLAGS(0, AT_SYMLINK_NOFOLLOW) },
	{ "fstat", 4, USES_FD, run_fstat, NULL, 0 },
	{ "access", 2, USES_A | USES_FLAGS, run_access, FLAGS(F_OK, R_OK, W_OK, X_OK, R_OK | W_OK) },
	{ "chmod", 4, USES_A | USES_MODE, run_chmod, NULL, 0 },
	{ "fchmod", 1, USES_FD | USES_MODE, run_fchmod, NULL, 0 },
	{ "chown", 3, USES_A | USES_TEXT | USES_FLAGS, run_chown, FLAGS(0, AT_SYMLINK_NOFOLLOW) },
	{ "fchown", 1, USES_FD | USES_TEXT, run_fchown, NULL, 0 },
	{ "utimens", 4, USES_A | USES_TEXT | USES_FLAGS, run_utimens,
	  FLAGS(0, AT_SYMLINK_NOFOLLOW) },
	{ "futimens", 1, USES_FD | USES_TEXT, run_futimens, NULL, 0 },
	{ "umask", 1, USES_MODE, run_umask, NULL, 0 },
	{ "statfs", 1, USES_FD, run_statfs, NULL, 0 },
	{ "setxattr", 3, USES_A | USES_TEXT | USES_LEN | USES_FLAGS, run_setxattr,
	  FLAGS(0, 0, XATTR_CREATE, XATTR_REPLACE) },
	{ "fsetxattr", 2, USES_FD | USES_TEXT | USES_LEN | USES_FLAGS, run_fsetxattr,
	  FLAGS(0, XATTR_CREATE, XATTR_REPLACE) },
	{ "getxattr", 2, USES_A | USES_TEXT | USES_LEN, run_getxattr, NULL, 0 },
	{ "removexattr", 2, USES_A | USES_TEXT, run_removexattr, NULL, 0 },
	{ "listxattr", 2, USES_A, run_listxattr, NULL, 0 },
	{ "set_acl", 3, USES_A | USES_TEXT | USES_FLAGS, run_set_acl, FLAGS(0, 0, 1) },
	{ "flock", 2, USES_FD | USES_FLAGS, run_flock, FLAGS(LOCK_SH, LOCK_EX, LOCK_UN) },
	{ "lock", 2, USES_FD | USES_OFF | USES_LEN | USES_FLAGS, run_lock,
	  FLAGS(F_RDLCK, F_WRLCK, F_UNLCK) },
	{ "lock_test", 1, USES_FD | USES_OFF | USES_LEN | USES_FLAGS, run_lock_test,
	  FLAGS(F_RDLCK, F_WRLCK) },
};
const unsigned n_calls = sizeof(calls) / sizeof(calls[0]);

void calls_prepare(void)
{
	struct sigaction sa = { .sa_handler = on_fault };

	if (posix_memalign((void **)&input, 4096, ROOM))
		abort();
	sigaction(SIGBUS, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
	signal(SIGPIPE, SIG_IGN);
	umask(022);
}
