/*
 * mount.c - locking the source, mounting at the mountpoint, and unmounting.
 *
 * For each thing that can be wrong there is one line that names it and says what to do; messages of libfuse and
 * fusermount3 are caught and become part of that line.
 */
#include "fuse/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUSE_DEVICE "/dev/fuse"
#define FUSERMOUNT "fusermount3"
#define TYPE "fuse.gaiafs"

/* How long a new daemon waits for its directory while an earlier one ends, seconds. */
#define LAST_DATA_S 60

struct mount_entry {
	unsigned major, minor;
	char type[SOURCE_TYPE_SIZE];
	char source[PATH_MAX];
};

/* Undo, in place, the octal escapes that /proc writes for blanks and backslashes. */
static void unescape(char *s)
{
	char *to = s;

	while (*s) {
		unsigned c;

		if (s[0] == '\\' && sscanf(s + 1, "%3o", &c) == 1) {
			*to++ = (char)c;
			s += 4;
		} else {
			*to++ = *s++;
		}
	}
	*to = '\0';
}

/*
 * Find a mount in @table (a process's mountinfo): the topmost at @path, or, if @path is NULL, any
 * gaiafs of @source. -ENOENT if there is none. Does not touch the mount, which may be dead.
 */
static int find_mount_in(const char *table, const char *path, const char *source, struct mount_entry *out, char **where)
{
	FILE *file = fopen(table, "re");
	char *line = NULL;
	size_t room = 0;
	int err = -ENOENT;

	if (!file)
		return -errno;
	while (getline(&line, &room, file) > 0) {
		char at[PATH_MAX], *rest = strstr(line, " - ");
		struct mount_entry e;

		if (!rest || sscanf(rest, " - %63s %4095s", e.type, e.source) != 2 ||
		    sscanf(line, "%*d %*d %u:%u %*s %4095s", &e.major, &e.minor, at) != 3)
			continue;
		unescape(at);
		unescape(e.source);
		if (path ? strcmp(at, path) : strcmp(e.type, TYPE) || strcmp(e.source, source))
			continue;
		*out = e;
		if (where) {
			free(*where);
			*where = strdup(at);
		}
		err = 0;
	}
	free(line);
	fclose(file);
	return err;
}

static int find_mount(const char *path, const char *source, struct mount_entry *out, char **where)
{
	return find_mount_in("/proc/self/mountinfo", path, source, out, where);
}

int mount_type(dev_t dev, char type[SOURCE_TYPE_SIZE])
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t room = 0;
	int err = -ENOENT;

	while (file && err && getline(&line, &room, file) > 0) {
		char *rest = strstr(line, " - ");
		unsigned major, minor;

		if (rest && sscanf(line, "%*d %*d %u:%u", &major, &minor) == 2 && makedev(major, minor) == dev &&
		    sscanf(rest, " - %63s", type) == 1)
			err = 0;
	}
	free(line);
	if (file)
		fclose(file);
	return err;
}

/* Unmount, for users other than root. */
static int run_fusermount(const char *path, bool lazy)
{
	char *argv[] = { FUSERMOUNT, "-u", "-q", lazy ? "-z" : "-q", "--", (char *)path, NULL };
	posix_spawn_file_actions_t actions;
	int err, status = 0;
	pid_t pid;

	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
	err = -posix_spawnp(&pid, FUSERMOUNT, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (err)
		return err;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status ? lazy ? -EPERM : -EBUSY : 0;
}

/* Take away the mount of a daemon that is dead. */
static int unmount_dead(const char *path)
{
	if (geteuid())
		return run_fusermount(path, true);
	return umount2(path, UMOUNT_NOFOLLOW | MNT_FORCE | MNT_DETACH) ? -errno : 0;
}

/* Whether a file system whose daemon has died is mounted there. (stat(2) might not ask the file system.) */
static bool is_dead(const char *path)
{
	struct statfs sfs;

	return statfs(path, &sfs) && (errno == ENOTCONN || errno == ECONNABORTED);
}

/* The absolute path of the dead mount that @given names, if it is a gaiafs. is_dead(@given) is true. */
static int name_dead(const char *given, char path[PATH_MAX])
{
	char link[32];
	struct mount_entry entry;
	ssize_t n;
	int fd;

	/* With O_PATH this sends the file system no request. */
	fd = open(given, O_PATH | O_CLOEXEC);
	if (fd < 0)
		return -ENOTCONN;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, PATH_MAX - 1);
	close(fd);
	path[MAX(n, 0)] = '\0';
	return find_mount(path, NULL, &entry, NULL) || strcmp(entry.type, TYPE) ? -ENOTCONN : 0;
}

/* Unmount what daemons that have died left mounted at @given. Logs. */
static int uncover(const char *given)
{
	char path[PATH_MAX];

	while (is_dead(given)) {
		if (name_dead(given, path) || unmount_dead(path)) {
			log_error("%s: a file system whose daemon is gone is still mounted here; "
				  "`gaia umount %s` removes it", given, given);
			return -ENOTCONN;
		}
		log_info("%s: took away the mount of a gaiafs that has died", path);
	}
	return 0;
}

/* The absolute path of a directory, or NULL after logging a line. Only mounts that uncover() will take away may cover it. */
static char *resolve(const char *given)
{
	struct mount_entry entry;
	char at[PATH_MAX];
	struct stat st;
	char *path;
	int err;

	/* A dead mount covers a directory, too. */
	if (is_dead(given) && !name_dead(given, at))
		return strdup(at);
	if (stat(given, &st)) {
		err = errno;
		if (err == ENOTCONN)
			log_error("%s: a file system whose daemon is gone is still mounted here; "
				  "`gaia umount %s` removes it", given, given);
		else
			log_error("%s: %s", given, strerror(err));
		errno = err;
		return NULL;
	}
	if (!S_ISDIR(st.st_mode)) {
		log_error("%s: not a directory; gaiafs mounts directories", given);
		errno = ENOTDIR;
		return NULL;
	}
	path = realpath(given, NULL);
	if (!path) {
		err = errno;
		log_error("%s: %s", given, strerror(err));
		errno = err;
		return NULL;
	}
	if (!find_mount(path, NULL, &entry, NULL) && !strcmp(entry.type, TYPE)) {
		log_error("%s: already mounted by gaiafs; `gaia umount %s` ends that", path, path);
		free(path);
		errno = EBUSY;
		return NULL;
	}
	return path;
}

static bool is_inside(const char *path, const char *dir)
{
	size_t n = strlen(dir);

	return !strncmp(path, dir, n) && (path[n] == '/' || dir[n - 1] == '/') && path[n];
}

static void name_process(pid_t pid, char name[32])
{
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	file = fopen(path, "re");
	if (!file || fscanf(file, "%31[^\n]", name) != 1)
		strcpy(name, "?");
	if (file)
		fclose(file);
}

/* A process in whose mount namespace @source is mounted; 0: there is none that we may look at. */
static pid_t find_holder(const char *source)
{
	DIR *proc = opendir("/proc");
	struct mount_entry entry;
	struct dirent *e;
	pid_t holder = 0;
	char table[64];

	while (proc && !holder && (e = readdir(proc))) {
		snprintf(table, sizeof(table), "/proc/%.20s/mountinfo", e->d_name);
		if (e->d_name[0] >= '1' && e->d_name[0] <= '9' && !find_mount_in(table, NULL, source, &entry, NULL))
			holder = atoi(e->d_name);
	}
	if (proc)
		closedir(proc);
	return holder;
}

/*
 * Log what the daemon waits for. The lock's holder has no mount here any more, or a @dead one. To be called once, since it
 * reads the mount tables of all processes.
 */
static void say_who_goes_on(const struct fs *fs, bool dead)
{
	pid_t holder = dead ? 0 : find_holder(fs->source), daemon = source_daemon(fs);
	char name[32], end[32] = "ending its daemon";

	if (!holder) {
		log_info("%s: waiting for the gaiafs that was mounted before to store "
			 "its last data", fs->source);
		return;
	}
	name_process(holder, name);
	if (daemon)
		snprintf(end, sizeof(end), "`kill %d`, its daemon,", (int)daemon);
	log_info("%s: waiting for the gaiafs that was mounted before: another mount namespace (of process %d, %s) has a copy of the "
		 "mount; %s stores everything and ends it there, too", fs->source, (int)holder, name, end);
}

/*
 * Lock the source; -EBUSY if that is not possible. A daemon whose mount is gone keeps the lock
 * while it stores the last data: wait for that.
 */
static int wait_for_lock(struct fs *fs, char **where)
{
	const struct timespec pause = { .tv_nsec = 20000000 };
	uint64_t deadline = now_ns() + LAST_DATA_S * 1000000000ull;
	struct mount_entry entry;
	bool said_so = false, dead;
	int err;

	while ((err = source_trylock(fs))) {
		if (err != -EWOULDBLOCK)
			return err;
		if (now_ns() > deadline)
			return -EBUSY;
		dead = !find_mount(NULL, fs->source, &entry, where);
		if (dead) {
			/* If the mount is dead, its supervisor is at work: wait for it. */
			if (!is_dead(*where))
				return -EBUSY;
			free(*where);
			*where = NULL;
		}
		if (!said_so)
			say_who_goes_on(fs, dead);
		said_so = true;
		nanosleep(&pause, NULL);
	}
	return 0;
}

/* A source that cannot be cached, or whose contents others may change. */
static int refuse_kind(const struct fs *fs)
{
	char type[SOURCE_TYPE_SIZE];

	switch (source_kind(fs->source_fd, type)) {
	case SOURCE_MADE_UP:
		log_error("%s: cannot be cached: the kernel makes up the files of %s when they are read; mount another directory",
			  fs->source, type);
		return -EINVAL;
	case SOURCE_SHARED:
		if (fs->config.trusts_source)
			return 0;
		log_error("%s: other machines may change the files of %s, and what they and this one change would be lost; if none uses "
			  "them while they are mounted here, say --source exclusive, if none can, --source local, and if all that do have gaiafs, --source shared", fs->source, type);
		return -EREMOTE;
	default:
		return 0;
	}
}

/* Keep other daemons from the source: two caches of one directory would not know of each other. */
static int lock_source(struct fs *fs)
{
	char *where = NULL;
	pid_t locker;
	int err;

	err = source_lock_open(fs);
	if (err) {
		log_error("%s: %s; gaiafs must be able to read what it mounts", fs->source,
			  strerror(-err));
		return err;
	}
	err = refuse_kind(fs);
	if (err) {
		source_lock_close(fs);
		return err;
	}
	err = wait_for_lock(fs, &where);
	if (!err)
		return 0;
	if (where)
		log_error("%s: already mounted by gaiafs on %s; `gaia umount %s` ends that",
			  fs->source, where, where);
	else if (err == -EBUSY && (locker = source_locker(fs)))
		log_error("%s: in use by process %d: another gaiafs, or a program that has locked it", fs->source, (int)locker);
	else if (err == -EBUSY)
		log_error("%s: in use by another gaiafs, or locked by another program", fs->source);
	else
		log_error("%s: cannot be locked: %s", fs->source, strerror(-err));
	free(where);
	source_lock_close(fs);
	return err;
}

int mount_resolve(struct fs *fs)
{
	struct statvfs st;
	int err;

	/* The source is the directory beneath a dead mount, also if the new mount is to cover that directory again. */
	err = uncover(fs->config.source);
	if (err)
		return err;
	fs->source = resolve(fs->config.source);
	if (!fs->source)
		return -errno;
	fs->mountpoint = resolve(fs->config.mountpoint);
	if (!fs->mountpoint) {
		err = -errno;
		goto free_source;
	}
	if (is_inside(fs->mountpoint, fs->source)) {
		log_error("%s: lies inside of %s, which would then contain itself; mount elsewhere",
			  fs->mountpoint, fs->source);
		err = -EINVAL;
		goto free_mountpoint;
	}
	err = lock_source(fs);
	if (err)
		goto free_mountpoint;
	/* A user's mount is always `nosuid,nodev`. */
	fs->source_flags = geteuid() || fstatvfs(fs->source_fd, &st) ? ST_NOSUID | ST_NODEV : st.f_flag;
	return 0;

free_mountpoint:
	free(fs->mountpoint);
free_source:
	free(fs->source);
	return err;
}

int mount_open_source(const struct fs *fs)
{
	/* A local file system that is mounted read-only changes no access times either. */
	bool noatime = fs->options.noatime || fs->options.readonly;
	struct mount_attr quiet = { .attr_set = (noatime ? MOUNT_ATTR_NOATIME : 0) |
						(fs->options.nodiratime ? MOUNT_ATTR_NODIRATIME : 0),
				    /* noatime is one value of this field: the field has to be cleared first. */
				    .attr_clr = noatime ? MOUNT_ATTR__ATIME : 0 };
	int fd;

	/*
	 * A clone of the source's mount that nobody else sees: for a passed-through file, the mount on which it was opened
	 * decides whether reading changes its access time.
	 */
	if (quiet.attr_set && !geteuid()) {
		fd = open_tree(fs->source_fd, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE);
		if (fd >= 0 && !mount_setattr(fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &quiet, sizeof(quiet)))
			return fd;
		log_warn("%s: cannot be mounted without access times (%s): reading changes them", fs->source, strerror(errno));
		if (fd >= 0)
			close(fd);
	}
	fd = openat(fs->source_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* ---- libfuse's messages ---- */

/* What libfuse wrote while it mounted, as one line; only the main thread uses it. */
static char said[512];
static atomic_bool listening;

static void hear(enum fuse_log_level level, const char *fmt, va_list ap)
{
	char text[sizeof(said)];
	size_t had = strlen(said);

	vsnprintf(text, sizeof(text), fmt, ap);
	text[strcspn(text, "\n")] = '\0';
	if (listening)
		snprintf(said + had, sizeof(said) - had, "%s", text);
	else if (text[0] && level <= FUSE_LOG_WARNING)
		log_warn("%s", text);
	else if (text[0])
		log_debug("%s", text);
}

/* fusermount3 writes to standard error itself: redirect that to a file meanwhile. */
static int divert_stderr(int *saved)
{
	int fd = memfd_create("stderr", MFD_CLOEXEC);

	*saved = dup(STDERR_FILENO);
	if (fd >= 0 && *saved >= 0)
		dup2(fd, STDERR_FILENO);
	return fd;
}

static void restore_stderr(int fd, int saved)
{
	ssize_t n;

	if (saved >= 0) {
		dup2(saved, STDERR_FILENO);
		close(saved);
	}
	if (fd < 0)
		return;
	n = pread(fd, said, said[0] ? 0 : sizeof(said) - 1, 0);
	if (n > 0) {
		said[n] = '\0';
		said[strcspn(said, "\n")] = '\0';
	}
	close(fd);
}

static const char *explanation(void)
{
	const char *text = said;

	if (!strncmp(text, "fuse: ", 6))
		text += 6;
	if (!strncmp(text, FUSERMOUNT ": ", strlen(FUSERMOUNT) + 2))
		text += strlen(FUSERMOUNT) + 2;
	return text[0] ? text : "the kernel refused";
}

/* ---- mounting ---- */

static bool fusermount_there(void)
{
	static const char *const places[] = { "/usr/bin/", "/bin/", "/usr/local/bin/" };

	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		char path[64];

		snprintf(path, sizeof(path), "%s" FUSERMOUNT, places[i]);
		if (!access(path, X_OK))
			return true;
	}
	return false;
}

static int check_fuse(void)
{
	int err;

	if (access(FUSE_DEVICE, F_OK)) {
		err = -errno;
		log_error(FUSE_DEVICE ": %s; `modprobe fuse` loads it, or the container must be "
			  "given it", strerror(-err));
		return err;
	}
	if (access(FUSE_DEVICE, R_OK | W_OK)) {
		err = -errno;
		log_error(FUSE_DEVICE ": %s; run as root, or get the permission for it",
			  strerror(-err));
		return err;
	}
	if (geteuid() && !fusermount_there()) {
		log_error(FUSERMOUNT " is missing; install fuse3, or run as root");
		return -ENOENT;
	}
	return 0;
}

/*
 * Set-id bits and device files mean what they mean in the source. We add the options ourselves: mount(8) removes `suid` and
 * `dev` from what it passes on, and without them libfuse adds `nosuid,nodev`.
 */
static int add_rights(const struct fs *fs, char **options)
{
	return fuse_opt_add_opt(options, fs->source_flags & ST_NOSUID ? "nosuid" : "suid") ||
	       fuse_opt_add_opt(options, fs->source_flags & ST_NODEV ? "nodev" : "dev") ||
	       (fs->source_flags & ST_NOEXEC && fuse_opt_add_opt(options, "noexec"));
}

int mount_make_session(struct fs *fs, const struct fuse_lowlevel_ops *ops)
{
	const struct mount_options *o = &fs->options;
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	char *options = NULL, *fsname = NULL, max_read[32];
	int err = -ENOMEM;

	/* First the options that the user's may override, then those that they may not. */
	if (asprintf(&fsname, "fsname=%s", fs->source) < 0) {
		fsname = NULL;
		goto out;
	}
	snprintf(max_read, sizeof(max_read), "max_read=%u", o->max_read);
	if (fuse_opt_add_opt(&options, "subtype=gaiafs") ||
	    fuse_opt_add_opt_escaped(&options, fsname) ||
	    (fs->privileged && fuse_opt_add_opt(&options, "allow_other")) ||
	    (!geteuid() && add_rights(fs, &options)) ||
	    (o->rest[0] && fuse_opt_add_opt(&options, o->rest)) ||
	    (o->noatime && fuse_opt_add_opt(&options, "noatime")) ||
	    (o->nodiratime && fuse_opt_add_opt(&options, "nodiratime")) ||
	    (o->max_read && fuse_opt_add_opt(&options, max_read)) ||
	    fuse_opt_add_opt(&options, "default_permissions") ||
	    fuse_opt_add_arg(&args, "gaiafs") || fuse_opt_add_arg(&args, "-o") ||
	    fuse_opt_add_arg(&args, options))
		goto out;
	fuse_set_log_func(hear);
	said[0] = '\0';
	listening = true;
	fs->session = fuse_session_new(&args, ops, sizeof(*ops), fs);
	listening = false;
	err = fs->session ? 0 : -EINVAL;
	if (err)
		log_error("-o %s: %s", fs->config.options, explanation());
out:
	if (err == -ENOMEM)
		log_error("fuse: %s", strerror(ENOMEM));
	fuse_opt_free_args(&args);
	free(options);
	free(fsname);
	return err;
}

static void name_mount(struct fs *fs, const struct mount_entry *entry)
{
	fs->dev_major = entry->major;
	fs->dev_minor = entry->minor;
	memcpy(fs->mounted_as, entry->source, sizeof(fs->mounted_as));
}

static void write_bdi(const struct fs *fs, const char *name, const char *value)
{
	char path[96];
	int fd;

	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/%s", fs->dev_major, fs->dev_minor, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	if (write(fd, value, strlen(value)) < 0)
		log_debug("%s: %s", path, strerror(errno));
	close(fd);
}

int mount_begin(struct fs *fs, const struct fuse_lowlevel_ops *ops)
{
	struct mount_entry entry;
	int err, fd, saved;

	err = check_fuse();
	if (err)
		return err;
	err = mount_make_session(fs, ops);
	if (err)
		return err;
	/* As late as possible: between the dead mount and the new one, programs would write to the directory beneath. */
	err = uncover(fs->mountpoint);
	if (err)
		return err;
	if (fs->supervised)
		fs->supervised->mounting = true;

	said[0] = '\0';
	listening = true;
	fd = divert_stderr(&saved);
	err = fuse_session_mount(fs->session, fs->mountpoint);
	restore_stderr(fd, saved);
	listening = false;
	if (err) {
		log_error("%s: cannot be mounted: %s", fs->mountpoint, explanation());
		return -EPERM;
	}
	fs->mounted = true;
	if (!find_mount(fs->mountpoint, NULL, &entry, NULL))
		name_mount(fs, &entry);
	supervisor_tell(fs);
	if (fs->privileged) {
		/*
		 * By default the kernel lets a FUSE mount have few dirty pages (strict_limit), which slows buffered
		 * writes down several times. max_ratio matters when much of the machine's memory is dirty.
		 */
		write_bdi(fs, "strict_limit", "0");
		write_bdi(fs, "max_ratio", "100");
	}
	return 0;
}

bool mount_is_ours(const struct fs *fs)
{
	struct mount_entry entry;

	return !find_mount(fs->mountpoint, NULL, &entry, NULL) && entry.major == fs->dev_major &&
	       entry.minor == fs->dev_minor && !strcmp(entry.source, fs->mounted_as);
}

bool mount_is_readonly(const struct fs *fs)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	bool found = false, readonly = true;
	char *line = NULL;
	size_t room = 0;

	while (file && !found && getline(&line, &room, file) > 0) {
		char of_all[8], *rest = strstr(line, " - ");
		unsigned major, minor;

		found = rest && sscanf(rest, " - %*s %*s %7[^,\n]", of_all) == 1 &&
			sscanf(line, "%*d %*d %u:%u", &major, &minor) == 2 && major == fs->dev_major && minor == fs->dev_minor;
		if (found)
			readonly = strcmp(of_all, "rw") != 0;
	}
	free(line);
	if (file)
		fclose(file);
	return readonly;
}

int mount_end(struct fs *fs, bool lazy)
{
	int err = 0;

	if (!mount_is_ours(fs))
		return 0;
	if (geteuid())
		err = run_fusermount(fs->mountpoint, lazy);
	else if (umount2(fs->mountpoint, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)))
		err = -errno;
	if (!err)
		fs->mounted = false;
	return err;
}

/*
 * The root of fusectl, where that is not mounted. This mounts it at no path. (A mount namespace of our
 * own would serve, too, but it would have a copy of every mount of the machine, and so keep them in
 * use.)
 */
static int fusectl_open(void)
{
	int context = fsopen("fusectl", FSOPEN_CLOEXEC), dir = -1;

	if (context < 0)
		return -1;
	if (!fsconfig(context, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		dir = fsmount(context, FSMOUNT_CLOEXEC, 0);
	close(context);
	return dir;
}

/* The file that ends the connection of this number, or -1. (It belongs to the user who mounted.) */
static int abort_file(unsigned number)
{
	char path[64];
	int dir, fd;

	snprintf(path, sizeof(path), FUSE_CONNECTIONS "/%u/abort", number);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		dir = fusectl_open();
		if (dir < 0)
			return -1;
		fd = openat(dir, path + sizeof(FUSE_CONNECTIONS), O_WRONLY | O_CLOEXEC);
		close(dir);
	}
	return fd;
}

int mount_abort_file(const struct fs *fs)
{
	struct pollfd session = { .fd = fuse_session_fd(fs->session) };
	int fd = fs->dev_minor ? abort_file(fs->dev_minor) : -1;

	/* If the connection still is then the number has been its own all the time. */
	if (fd >= 0 && (poll(&session, 1, 0) < 0 || session.revents & POLLERR)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/*
 * Returns whether it worked. @kept: the file, opened when it certainly was this connection's: when the connection has ended it does
 * nothing. -1: the file is looked for by the connection's number, which may be another's as soon as the mount is gone: only if it is @there.
 */
static bool abort_connection(const struct fs *fs, int kept, bool there)
{
	int fd = kept >= 0 ? kept : there ? abort_file(fs->dev_minor) : -1;
	bool done;

	if (fd < 0)
		return false;
	done = write(fd, "1", 1) == 1;
	if (!done)
		log_debug("connection %u: %s", fs->dev_minor, strerror(errno));
	if (fd != kept)
		close(fd);
	return done;
}

enum mount_left mount_abort(struct fs *fs, bool hangs, int kept)
{
	struct mount_entry entry;
	bool ours, stays;

	/*
	 * The daemon died before it could tell the number. (While `mounting` is not set, a mount that is found there belongs
	 * to a daemon that died earlier.)
	 */
	if (!fs->dev_minor && fs->supervised->mounting && !find_mount(fs->mountpoint, NULL, &entry, NULL) &&
	    !strcmp(entry.type, TYPE) && !strcmp(entry.source, fs->source))
		name_mount(fs, &entry);
	if (!fs->dev_minor)
		return MOUNT_NONE;
	hangs = hangs && !fs->supervised->over;
	ours = mount_is_ours(fs);
	stays = ours && !fs->config.unmounts_dead && fs->supervised->live;
	/*
	 * Before unmounting, which may wait for the daemon (except root's unmount, which ends the connection itself). By now the
	 * connection may have ended, and its number be another's, of which a daemon that was killed has not heard.
	 */
	if (hangs && (stays || !ours || geteuid()))
		stays = abort_connection(fs, kept, ours) && stays;
	if (!ours)
		return MOUNT_NONE;
	if (stays)
		return MOUNT_DEAD;
	unmount_dead(fs->mountpoint);
	return MOUNT_TAKEN;
}

void mount_destroy_session(struct fs *fs)
{
	int ends[2], fd;

	if (!fs->session)
		return;
	/*
	 * fuse_session_unmount() frees what fuse_session_mount() made, but also detaches whatever is
	 * mounted at the mountpoint by now, unless its descriptor says that the connection has ended.
	 * So replace the descriptor by the writing end of a pipe that has no reader: that ends the
	 * connection, and poll(2) reports an error.
	 */
	fd = fuse_session_fd(fs->session);
	if (fd >= 0 && !pipe2(ends, O_CLOEXEC)) {
		close(ends[0]);
		dup3(ends[1], fd, O_CLOEXEC);
		close(ends[1]);
		fuse_session_unmount(fs->session);
	}
	fuse_session_destroy(fs->session);
}
