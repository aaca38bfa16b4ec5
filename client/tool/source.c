/*
 * source.c - gaia check-source: whether two clients of a file system see of each other what gaiafs --source shared needs (gaiafs-nodes(7)).
 *
 * All is tried in a directory of its own, which only its user may enter, and which is removed again. A child does it: a file system that does not
 * answer holds up that one only.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "source.h"
#include "tool.h"

#define PATIENCE 60.0 /* seconds for a probe */
#define TO_END 5.0    /* and to clean up after a signal */

static int progress = -1; /* to the parent: a byte for each probe, before it */

static void interrupt(int signal)
{
	interrupted = signal;
}

static void catch_signals(void)
{
	static const int ends[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
	struct sigaction end = { .sa_handler = interrupt };

	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		sigaction(ends[i], &end, NULL);
	signal(SIGPIPE, SIG_IGN);
}

/* ---- what the probes say ---- */

static bool is_wrong(const struct result *r)
{
	return r->wrong || r->err;
}

static void show(const struct probe *p, const struct result *r)
{
	unsigned right = r->err && !r->wrong && r->turns ? r->turns - 1 : r->turns - (r->wrong < r->turns ? r->wrong : r->turns);

	printf("%3u of %-3u %s", right, r->turns, p->what);
	if (r->err)
		printf(": %s", strerror(-r->err));
	else if (r->longest >= LOOK_FOR)
		printf(": not within %.0f s", LOOK_FOR);
	else if (r->longest > 0)
		printf(": only after up to %.2f s", r->longest);
	else if (r->grain)
		printf(", if they are %u ms apart", r->grain);
	if (is_wrong(r))
		printf("\n           look at %s", r->err == -ENOLCK || r->err == -ENOSYS || r->err == -EOPNOTSUPP ? LOCKS : p->setting);
	putchar('\n');
	fflush(stdout);
}

static json_t *as_json(const struct probe *p, const struct result *r)
{
	json_t *o = json_pack("{s:s, s:s, s:b, s:i, s:i, s:f}", "name", p->name, "what", p->what, "right", !is_wrong(r), "turns", (int)r->turns,
			      "wrong", (int)r->wrong, "longest_s", r->longest);

	if (r->err)
		json_object_set_new(o, "error", json_string(strerror(-r->err)));
	return o;
}

static void sum_up(bool json, json_t *list, unsigned wrong, unsigned grain)
{
	json_t *all;

	if (json) {
		all = json_pack("{s:b, s:i, s:O}", "fit", !wrong, "grain_ms", (int)grain, "probes", list);
		json_dumpf(all, stdout, JSON_INDENT(1));
		putchar('\n');
		json_decref(all);
	} else if (wrong) {
		printf("not fit: %u of %zu are wrong; gaiafs-nodes(7) names settings of file systems\n", wrong, n_probes);
	} else if (grain) {
		printf("fit, with a grain of %u ms\n", grain);
	} else {
		puts("fit");
	}
}

static int run_all(bool json)
{
	json_t *list = json_array();
	unsigned wrong = 0, grain = 0;

	for (size_t i = 0; i < n_probes && !interrupted && !ferror(stdout); i++) {
		struct result r = { 0 };

		(void)!write(progress, &(unsigned char){ (unsigned char)i }, 1);
		probes[i].run(&r);
		if (interrupted)
			break;
		wrong += is_wrong(&r);
		grain = r.grain ? r.grain : grain;
		if (json)
			json_array_append_new(list, as_json(&probes[i], &r));
		else
			show(&probes[i], &r);
	}
	if (!interrupted)
		sum_up(json, list, wrong, grain);
	json_decref(list);
	if (interrupted)
		return fail("interrupted");
	if (fflush(stdout) || ferror(stdout))
		return fail("standard output: %s", strerror(errno));
	return wrong ? EXIT_FAILED : EXIT_OK;
}

/* ---- the directory ---- */

/* Nobody else can have put it there, nor put anything in. */
static bool is_our_own(int fd)
{
	int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = again < 0 ? NULL : fdopendir(again);
	unsigned n = 0;
	struct stat st;

	if (!dir) {
		if (again >= 0)
			close(again);
		return false;
	}
	for (struct dirent *e; (e = readdir(dir));)
		n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
	closedir(dir);
	return !n && !fstat(fd, &st) && st.st_uid == geteuid() && !(st.st_mode & 077);
}

/* The other client's view of what the first has made. It may take a moment there, which a probe will tell. */
static int open_other(int dir, const char *name)
{
	double begun = clock_now();
	int fd;

	while ((fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0 && errno == ENOENT && clock_now() - begun < 5 && !interrupted)
		rest(20);
	return fd;
}

static int check_sides(const struct args *a, const char *name, const char *secret)
{
	struct stat st = { 0 };

	if (interrupted)
		return fail("interrupted");
	if (side[0] < 0 || fstat(side[0], &st))
		return fail("%s/%s: %s", a->paths[0], name, strerror(errno));
	if (st.st_uid != geteuid())
		return fail("%s: what this user makes is another user's there (uid %u): NFS needs no_root_squash", a->paths[0], (unsigned)st.st_uid);
	if (!is_our_own(side[0]))
		return fail("%s/%s: others can reach into it (mode %o), or have", a->paths[0], name, st.st_mode & 07777);
	if (side[1] < 0 || !is_our_own(side[1]) || !probes_begin(secret)) {
		/* So nothing is removed there. */
		if (side[1] >= 0)
			close(side[1]);
		side[1] = -1;
		if (interrupted)
			return fail("interrupted");
		return fail("%s: what is made in %s is not there; they must be two mounts of one file system, and the same directory of it", a->paths[1], a->paths[0]);
	}
	return run_all(a->json);
}

static int check_in(const struct args *a, const int dir[SIDES], const char *name, const char *secret)
{
	int status;

	if (mkdirat(dir[0], name, 0700))
		return fail("%s: no directory for the probes can be made: %s", a->paths[0], strerror(errno));
	side[0] = openat(dir[0], name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	side[1] = open_other(dir[1], name);
	status = check_sides(a, name, secret);
	probes_clean_up();
	for (int i = 0; i < SIDES; i++)
		if (side[i] >= 0)
			close(side[i]);
	if (unlinkat(dir[0], name, AT_REMOVEDIR))
		return fail("%s/%s: cannot be removed: %s", a->paths[0], name, strerror(errno));
	return status;
}

/* ---- the parent ---- */

struct work {
	const struct args *a;
	const int *dir;
	char name[64], secret[40];
	int pipe[2];
};

static int do_work(void *arg)
{
	struct work *w = arg;

	catch_signals();
	close(w->pipe[0]);
	progress = w->pipe[1];
	return check_in(w->a, w->dir, w->name, w->secret);
}

/* Wait for it as long as it goes on. Its status, or an error. */
static int watch(const struct work *w, pid_t pid)
{
	struct pollfd p = { .fd = w->pipe[0], .events = POLLIN };
	double until = clock_now() + PATIENCE;
	const char *what = "what is needed before";
	bool told = false;
	unsigned char at;
	int status;

	for (;;) {
		if (poll(&p, 1, 50) > 0 && read(p.fd, &at, 1) == 1 && at < n_probes) {
			what = probes[at].what;
			until = clock_now() + PATIENCE;
		}
		if (waitpid(pid, &status, WNOHANG) == pid)
			return WIFEXITED(status) ? WEXITSTATUS(status) : fail("interrupted");
		if (interrupted && !told) {
			kill(pid, SIGTERM);
			until = clock_now() + TO_END;
			told = true;
		}
		if (clock_now() < until)
			continue;
		kill(pid, SIGKILL);
		return fail("the file system does not answer, at: %s. Remove %s/%s when it does", what, w->a->paths[0], w->name);
	}
}

static int check_in_child(const struct args *a, const int dir[SIDES])
{
	struct work w = { .a = a, .dir = dir };
	unsigned long long random[2];
	int status;
	pid_t pid;

	if (getrandom(random, sizeof(random), 0) != sizeof(random) || pipe2(w.pipe, O_CLOEXEC))
		return fail("%s", strerror(errno));
	snprintf(w.name, sizeof(w.name), ".gaia-check-source.%ld.%08llx", (long)getpid(), random[0] & 0xffffffff);
	snprintf(w.secret, sizeof(w.secret), "%016llx%016llx", random[0], random[1]);
	fflush(NULL);
	catch_signals();
	pid = child(do_work, &w);
	close(w.pipe[1]);
	status = pid < 0 ? fail("%s", strerror(-pid)) : watch(&w, pid);
	close(w.pipe[0]);
	return status;
}

int check_source_command(const struct args *a)
{
	int dir[SIDES] = { -1, -1 }, ours, status = EXIT_OK;
	struct stat st[SIDES];

	if (a->n_paths != SIDES)
		return usage("check-source: two directories: the same one, by two mounts of the file system");
	for (int i = 0; i < SIDES && !status; i++) {
		dir[i] = open(a->paths[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (dir[i] < 0 || fstat(dir[i], &st[i]))
			status = fail("%s: %s", a->paths[i], strerror(errno));
		ours = status ? -1 : open_ours(a->paths[i], O_DIRECTORY);
		if (ours >= 0) {
			close(ours);
			status = fail("%s: on gaiafs; the probes are for mounts of the file system below it", a->paths[i]);
		}
	}
	if (!status && st[0].st_dev == st[1].st_dev)
		status = fail("%s, %s: one mount to this kernel, whose caches are one: nothing can be found out. Mount it twice (NFS: nosharecache, CephFS: noshare), "
			      "or have another machine's mount exported here (Lustre)", a->paths[0], a->paths[1]);
	if (!status)
		status = check_in_child(a, dir);
	for (int i = 0; i < SIDES; i++)
		if (dir[i] >= 0)
			close(dir[i]);
	return status;
}
