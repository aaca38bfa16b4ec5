/*
 * source.c - gaia check-source: whether two clients of a file system see of each other what gaiafs --source shared needs (gaiafs-nodes(7)).
 *
 * All is tried in a directory of its own, which only its user may enter, and which is removed again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source.h"
#include "tool.h"

static void interrupt(int signal)
{
	interrupted = signal;
}

/* ---- what the probes say ---- */

static bool is_wrong(const struct result *r)
{
	return r->wrong || r->err;
}

static void show(const struct probe *p, const struct result *r)
{
	printf("%3u of %-3u %s", r->turns - (r->wrong < r->turns ? r->wrong : r->turns), r->turns, p->what);
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

static int run_all(bool json)
{
	json_t *list = json_array();
	unsigned wrong = 0, grain = 0;

	for (size_t i = 0; i < n_probes && !interrupted; i++) {
		struct result r = { 0 };

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
	if (interrupted) {
		json_decref(list);
		return fail("interrupted");
	}
	if (json) {
		json_t *all = json_pack("{s:b, s:i, s:o}", "fit", !wrong, "grain_ms", (int)grain, "probes", list);

		json_dumpf(all, stdout, JSON_INDENT(1));
		putchar('\n');
		json_decref(all);
	} else {
		json_decref(list);
		if (wrong)
			printf("not fit: %u of %zu are wrong; gaiafs-nodes(7) names settings of file systems\n", wrong, n_probes);
		else if (grain)
			printf("fit, with a grain of %u ms\n", grain);
		else
			puts("fit");
	}
	if (fflush(stdout))
		return fail("standard output: %s", strerror(errno));
	return wrong ? EXIT_FAILED : EXIT_OK;
}

/* ---- the directory ---- */

/* The other client's view of what the first has made. It may take a moment there, which a probe will tell. */
static int open_other(int dir, const char *name)
{
	double begun = clock_now();
	int fd;

	while ((fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0 && errno == ENOENT && clock_now() - begun < 5 && !interrupted)
		rest(20);
	return fd;
}

static int check_in(const struct args *a, const int dir[SIDES])
{
	struct stat st;
	char name[64];
	int status;

	snprintf(name, sizeof(name), ".gaia-check-source.%ld.%08lx", (long)getpid(), (unsigned long)(clock_now() * 1e6) & 0xffffffff);
	if (mkdirat(dir[0], name, 0700))
		return fail("%s: no directory for the probes can be made: %s", a->paths[0], strerror(errno));
	side[0] = openat(dir[0], name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	side[1] = open_other(dir[1], name);
	if (side[0] < 0 || fstat(side[0], &st))
		status = fail("%s/%s: %s", a->paths[0], name, strerror(errno));
	else if (st.st_uid != geteuid() || st.st_mode & 077)
		status = fail("%s: what this user makes is not this user's there (uid %u, mode %o); NFS: no_root_squash", a->paths[0], (unsigned)st.st_uid, st.st_mode & 07777);
	else if (side[1] < 0)
		status = fail("%s: what is made in %s is not there: %s; they must be two mounts of one file system, and the same directory of it", a->paths[1], a->paths[0], strerror(errno));
	else
		status = run_all(a->json);
	if (side[0] >= 0)
		probes_clean_up();
	for (int i = 0; i < SIDES; i++)
		if (side[i] >= 0)
			close(side[i]);
	if (unlinkat(dir[0], name, AT_REMOVEDIR))
		return fail("%s/%s: cannot be removed: %s", a->paths[0], name, strerror(errno));
	return status;
}

int check_source_command(const struct args *a)
{
	int dir[SIDES], ours, status = EXIT_OK;
	struct stat st[SIDES];

	if (a->n_paths != SIDES)
		return usage("check-source: two directories: the same one, by two mounts of the file system");
	for (int i = 0; i < SIDES; i++) {
		dir[i] = open(a->paths[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (dir[i] < 0 || fstat(dir[i], &st[i])) {
			status = fail("%s: %s", a->paths[i], strerror(errno));
			if (i)
				close(dir[0]);
			return status;
		}
		ours = open_ours(a->paths[i], O_DIRECTORY);
		if (ours >= 0) {
			close(ours);
			status = fail("%s: on gaiafs; the probes are for mounts of the file system below it", a->paths[i]);
		}
	}
	if (!status && st[0].st_dev == st[1].st_dev)
		status = fail("%s, %s: one mount to this kernel, whose caches are one: nothing can be found out. Mount it twice (NFS: with nosharecache), or let another machine export it", a->paths[0], a->paths[1]);
	if (!status) {
		struct sigaction end = { .sa_handler = interrupt };

		sigaction(SIGINT, &end, NULL);
		sigaction(SIGTERM, &end, NULL);
		status = check_in(a, dir);
	}
	close(dir[0]);
	close(dir[1]);
	return status;
}
