/*
 * run.c - one program on both sides, and whether they agree.
 */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "differ.h"
#include "tree.h"

volatile unsigned *run_now;
const struct step *volatile step_now;

static char told[2048];

static const char *differs(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(told, sizeof(told), fmt, ap);
	va_end(ap);
	return told;
}

const char *program_told(void)
{
	return told;
}

static void give_up(const char *what)
{
	perror(what);
	exit(2);
}

void run_name(unsigned run, char buf[32])
{
	snprintf(buf, 32, "run%u", run);
}

/* ---- steps ---- */

struct result {
	long value;
	int err;
};

static struct result do_step(struct side *s, const struct step *t)
{
	struct result r;

	s->n_out = 0;
	errno = 0;
	r.value = t->call->run(s, t);
	r.err = r.value < 0 ? errno : 0;
	return r;
}

static const char *result_text(struct result r, char buf[80])
{
	if (r.value >= 0)
		snprintf(buf, 80, "%ld", r.value);
	else if (r.err > GOT_SIGNAL)
		snprintf(buf, 80, "%s", strsignal(r.err - GOT_SIGNAL));
	else
		snprintf(buf, 80, "%s", strerrorname_np(r.err));
	return buf;
}

static const char *compare_outs(const struct side side[2])
{
	const struct side *m = &side[0], *p = &side[1];

	if (m->n_out == p->n_out && !memcmp(m->out, p->out, m->n_out))
		return NULL;
	/* Text, or file contents? */
	if (m->n_out < 400 && p->n_out < 400 && m->n_out && p->n_out &&
	    m->out[m->n_out - 1] >= ' ' && strspn(m->out, "model ") > 3)
		return differs("on the mount %.*s, on the plain directory %.*s", (int)m->n_out,
			       m->out, (int)p->n_out, p->out);
	for (size_t i = 0; i < m->n_out && i < p->n_out; i++)
		if (m->out[i] != p->out[i])
			return differs("byte %zu of %zu is %02x on the mount, %02x on the plain directory",
				       i, m->n_out, m->out[i] & 0xff, p->out[i] & 0xff);
	return differs("%zu bytes on the mount, %zu on the plain directory", m->n_out, p->n_out);
}

static const char *compare_step(struct side side[2], const struct step *t)
{
	struct result r[2];
	char text[2][80];

	become(t->who);
	for (int i = 0; i < 2; i++)
		r[i] = do_step(&side[i], t);
	if (r[0].value != r[1].value || r[0].err != r[1].err)
		return differs("on the mount %s, on the plain directory %s",
			       result_text(r[0], text[0]), result_text(r[1], text[1]));
	return compare_outs(side);
}

/* ---- the end ---- */

static const char *compare_texts(const char *what, char *a, char *b)
{
	char *line = tree_difference(a, b);
	const char *res = line ? differs("%s: %s", what, line) : NULL;

	free(line);
	free(a);
	free(b);
	return res;
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static FTS *walk(int dir, char path[40])
{
	char *const start[] = { path, NULL };
	FTS *fts;

	snprintf(path, 40, "/proc/self/fd/%d/", dir);
	fts = fts_open(start, FTS_PHYSICAL | FTS_NOCHDIR, by_name);
	if (!fts)
		give_up(path);
	return fts;
}

/* Stored; and so that what is cached does not make a preallocated hole look like data. */
static void settle(int dir)
{
	char path[40];
	FTS *fts = walk(dir, path);
	FTSENT *e;

	while ((e = fts_read(fts))) {
		int fd = e->fts_info == FTS_F ? open(e->fts_accpath, O_RDONLY | O_CLOEXEC) : -1;

		if (fd < 0)
			continue;
		if (fsync(fd))
			give_up(e->fts_path);
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
	}
	fts_close(fts);
}

static void print_extents(FILE *to, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	off_t at = 0, end;

	while (fd >= 0 && (at = lseek(fd, at, SEEK_DATA)) >= 0) {
		end = lseek(fd, at, SEEK_HOLE);
		fprintf(to, " %ld-%ld", (long)at, (long)end);
		at = end;
	}
	if (fd >= 0)
		close(fd);
}

enum detail { DETAIL_EXTENTS = 1, DETAIL_MTIMES = 2 };

/* One line a file: what tree.h leaves out. */
static char *details(int dir, int what)
{
	char path[40], *text;
	FTS *fts = walk(dir, path);
	size_t len, skip = strlen(path);
	FILE *to = open_memstream(&text, &len);
	FTSENT *e;

	while ((e = fts_read(fts))) {
		if (e->fts_info == FTS_DP || e->fts_level == 0)
			continue;
		fprintf(to, "%s", e->fts_path + skip);
		if (what & DETAIL_MTIMES && !S_ISFIFO(e->fts_statp->st_mode) &&
		    e->fts_statp->st_mtim.tv_sec < CLOCK_TIMES_FROM)
			fprintf(to, " mtime=%ld.%09ld", (long)e->fts_statp->st_mtim.tv_sec,
				e->fts_statp->st_mtim.tv_nsec);
		if (what & DETAIL_EXTENTS && e->fts_info == FTS_F)
			print_extents(to, e->fts_accpath);
		fputc('\n', to);
	}
	fts_close(fts);
	fclose(to);
	return text;
}

static const char *compare_ends(const int dir[2], int below, bool mtimes, bool extents)
{
	int what = mtimes ? DETAIL_MTIMES : 0, more = extents ? DETAIL_EXTENTS : 0;
	const char *res;

	settle(dir[0]);
	settle(dir[1]);
	settle(below);
	res = compare_texts("in the end", tree_print(dir[0]), tree_print(dir[1]));
	if (!res)
		res = compare_texts("beneath, in the end", tree_print_beneath(below), tree_print(dir[1]));
	if (!res && mtimes)
		res = compare_texts("times in the end", details(dir[0], what), details(dir[1], what));
	/* Reading the trees has cached them again. */
	settle(dir[1]);
	settle(below);
	if (!res)
		res = compare_texts("extents and times beneath, in the end",
				    details(below, what | more), details(dir[1], what | more));
	return res;
}

/* ---- a run ---- */

static void remove_tree(int root, const char *name)
{
	char path[80];
	char *const start[] = { path, NULL };
	FTS *fts;
	FTSENT *e;

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", root, name);
	fts = fts_open(start, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
	while (fts && (e = fts_read(fts))) {
		/* Without root only a user who may write a directory can remove what is in it. */
		if (e->fts_info == FTS_D)
			chmod(e->fts_accpath, 0700);
		else if (e->fts_info == FTS_DP)
			rmdir(e->fts_accpath);
		else
			unlink(e->fts_accpath);
	}
	if (fts)
		fts_close(fts);
}

static int make_dir(int root, const char *name)
{
	int fd;

	if (mkdirat(root, name, 0755) || fchmodat(root, name, 0777, 0))
		give_up(name);
	fd = openat(root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		give_up(name);
	return fd;
}

const char *program_run(const struct trees *trees, const struct step *step, unsigned n,
			struct theme theme, unsigned *at)
{
	static struct side side[2];
	static unsigned run;
	const char *res = NULL;
	char name[32];
	int dir[2], below;
	unsigned i;

	run_name(++run, name);
	umask(022);
	compare_mtimes = !theme.maps && !theme.noisy;
	dir[0] = make_dir(trees->mount, name);
	dir[1] = make_dir(trees->plain, name);
	below = openat(trees->backing, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (below < 0)
		give_up(name);
	side_open(&side[0], dir[0]);
	side_open(&side[1], dir[1]);
	*run_now = run;
	for (i = 0; i < n && !res; i++) {
		step_now = &step[i];
		res = compare_step(side, &step[i]);
	}
	*at = i - (res != NULL);
	step_now = NULL;
	become(0);
	if (!res)
		res = compare_texts("before the end", tree_print(dir[0]), tree_print(dir[1]));
	side_close(&side[0]);
	side_close(&side[1]);
	if (!res)
		res = compare_ends(dir, below, compare_mtimes, !theme.noisy && !theme.maps && !theme.preallocates);
	remove_tree(trees->mount, name);
	remove_tree(trees->plain, name);
	close(dir[0]);
	close(dir[1]);
	close(below);
	return res;
}
