/*
 * ask.c - see ask.h.
 */
#include "ask.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gaia/protocol.h"
#include "rates.h"
#include "source.h"
#include "tool.h"

#define MOUNTS_MOST 128u
#define TEXT_MOST (96u << 10) /* a message has to have room for it */
#define AGAIN_S 30.0	      /* after a child has ended by itself */
/* No more for others' mounts: they could mount one after the other, have us ask it, and detach it without an answer. */
#define LEFT_MOST 64u
/* So many mounts are asked of others, and of each of them, since each has a child which takes memory and time. */
#define OTHERS_MOST 16u
#define OWNERS_MOST 4u
/* What a report may take of the child's memory and time: it may be made to take much. */
#define CHILD_BYTES (192u << 20)
#define CHILD_CPU_S 3u
#define CHILD_NICE 10

#define JUST_ASKED "asked just now"

struct answer {
	unsigned what;
	int err;
	double weight;
	char text[TEXT_MOST]; /* only what there is of it is sent */
};
#define HEAD offsetof(struct answer, text)

/* ---- the child ---- */

struct job {
	const struct mount_entry *mount;
	const struct asks *all;
	int sock;
	json_t *before;
	double last; /* when that was */
};

/* Nothing is kept open that others wait for: what reads our output, the terminal, the other children. */
static void be_alone(struct job *j)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), oom = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
	struct rlimit none = { 0 };

	/* (Not where we were: it may have to be unmounted.) */
	if (null < 0 || chdir("/"))
		_exit(1);
	if (oom >= 0)
		(void)!write(oom, "1000", 4);
	(void)!nice(CHILD_NICE);
	setsid();
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	j->sock = dup2(j->sock, 3);
	close_range(4, ~0u, 0);
	setrlimit(RLIMIT_CORE, &none);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* which take terabytes of addresses */
	setrlimit(RLIMIT_AS, &(struct rlimit){ CHILD_BYTES, CHILD_BYTES });
#endif
}

static void limit_time(void)
{
	struct rlimit limit;
	struct rusage used;

	if (getrlimit(RLIMIT_CPU, &limit) || getrusage(RUSAGE_SELF, &used))
		return;
	limit.rlim_cur = (rlim_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + CHILD_CPU_S;
	setrlimit(RLIMIT_CPU, &limit);
}

/*
 * The mount itself, not opened yet: others may have moved something else into its path. -ESTALE: it is covered. The descriptor keeps it
 * busy, so it is closed soon.
 */
static int find_it(const struct mount_entry *m)
{
	struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS };
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, m->point, &how, sizeof(how)), err;
	struct statx st;

	if (fd < 0)
		return -errno;
	err = statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &st) ? -errno : 0;
	if (!err && (st.stx_mask & STATX_MNT_ID ? st.stx_mnt_id != m->id : st.stx_dev_major != m->major || st.stx_dev_minor != m->minor))
		err = -ESTALE;
	if (!err)
		return fd;
	close(fd);
	return err;
}

/* The length of the text, without a part of a line if it was too long. */
static size_t make_text(struct job *j, struct answer *out, const struct round *r, const char *path)
{
	char *text = NULL;
	size_t len = 0;
	FILE *file = open_memstream(&text, &len);

	out->err = -ENOMEM;
	if (!file)
		return 0;
	out->weight = j->all->make(file, r, out->what, path);
	if (fclose(file) || !text) {
		free(text);
		return 0;
	}
	if (len > TEXT_MOST)
		for (len = TEXT_MOST; len > 0 && text[len - 1] != '\n'; len--)
			;
	memcpy(out->text, text, len);
	free(text);
	out->err = len > 0 ? 0 : -EBADMSG;
	return len;
}

static size_t look_at_it(struct job *j, struct answer *out)
{
	json_t *after = NULL;
	double at = 0;
	size_t len = 0;
	char path[32];
	int fd = find_it(j->mount);

	out->err = fd < 0 ? fd : 0;
	out->weight = 0;
	if (fd >= 0) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		out->err = fetch_json(path, GAIA_REPORT_STATUS, &after);
		at = clock_seconds();
	}
	if (!out->err && (!j->before || number_at(j->before, "pid") != number_at(after, "pid") || at <= j->last))
		out->err = ASK_NEW;
	else if (!out->err)
		len = make_text(j, out, &(struct round){ .before = j->before, .after = after, .seconds = at - j->last, .name = j->mount->point }, path);
	if (fd >= 0)
		close(fd);
	json_decref(j->before);
	j->before = after;
	j->last = at;
	return len;
}

static int serve(void *arg)
{
	static struct answer answer;
	struct job *j = arg;
	size_t len;

	be_alone(j);
	while (recv(j->sock, &answer.what, sizeof(answer.what), 0) == sizeof(answer.what)) {
		limit_time();
		len = look_at_it(j, &answer);
		if (send(j->sock, &answer, HEAD + len, MSG_NOSIGNAL) >= 0)
			continue;
		/* There may be less room for messages than is usual. */
		answer.err = -errno;
		if (send(j->sock, &answer, HEAD, MSG_NOSIGNAL) < 0)
			break;
	}
	return 0;
}

/* ---- children ---- */

/* @n mounts of others, or fewer, are asked already. */
static bool may_ask(const struct asks *a, struct ask *const *asked, size_t n, const struct mount_entry *m)
{
	unsigned others = 0, of_owner = 0;

	for (size_t k = 0; k < n; k++) {
		bool counts = asked[k]->child > 0 && is_others(&asked[k]->mount);

		others += counts;
		of_owner += counts && asked[k]->mount.owner == m->owner;
	}
	return !is_others(m) || (a->left < LEFT_MOST && others < OTHERS_MOST && of_owner < OWNERS_MOST);
}

static void begin(struct asks *a, struct ask *one, struct ask *const *asked, size_t n)
{
	int pair[2];

	one->sock = -1;
	one->ended = clock_seconds();
	if (one->child > 0) /* not gone yet */
		return;
	one->err = may_ask(a, asked, n, &one->mount) ? -ECHILD : -EUSERS;
	if (one->err == -EUSERS || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return;
	one->child = child(serve, &(struct job){ .mount = &one->mount, .all = a, .sock = pair[1] });
	close(pair[1]);
	if (one->child < 0) {
		one->child = 0;
		close(pair[0]);
		return;
	}
	one->sock = pair[0];
	one->err = ASK_NEW;
}

/* It may not be possible to end it, so it is not waited for. */
static void end(struct asks *a, struct ask *one)
{
	if (one->sock >= 0)
		close(one->sock);
	if (one->child > 0 && !kill(one->child, SIGKILL))
		a->left++;
	for (unsigned k = 0; k < ASKS; k++)
		free(one->text[k]);
	free_entry(&one->mount);
	free(one);
}

/* Those that have ended: their numbers may be others' from now on. */
static void reap(struct asks *a)
{
	pid_t pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
		size_t k = 0;

		while (k < a->n && a->at[k]->child != pid)
			k++;
		if (k < a->n)
			a->at[k]->child = 0;
		else
			a->left -= a->left > 0;
	}
}

static void ended_by_itself(struct ask *one)
{
	close(one->sock);
	one->sock = -1;
	one->asked = 0;
	one->ended = clock_seconds();
	one->err = -ECHILD;
}

/* Take it out of the list. NULL: it is not there. */
static struct ask *take_out(struct asks *a, const struct mount_entry *m)
{
	for (size_t k = 0; k < a->n; k++) {
		struct ask *one = a->at[k];

		if (one->mount.id != m->id || one->mount.major != m->major || one->mount.minor != m->minor || strcmp(one->mount.point, m->point) != 0)
			continue;
		a->at[k] = a->at[--a->n];
		return one;
	}
	return NULL;
}

void asks_refresh(struct asks *a)
{
	size_t n, kept = 0;
	struct mount_entry *mounts = gaiafs_mounts(&n);
	struct ask **list = calloc(MOUNTS_MOST, sizeof(struct ask *)), *one;

	reap(a);
	for (size_t k = 0; k < n; k++) {
		one = list && kept < MOUNTS_MOST ? take_out(a, &mounts[k]) : NULL;
		if (!one && list && kept < MOUNTS_MOST && (one = calloc(1, sizeof(*one)))) {
			one->mount = mounts[k];
			begin(a, one, list, kept);
		} else {
			free_entry(&mounts[k]);
		}
		if (one)
			list[kept++] = one;
	}
	free(mounts);
	while (a->n > 0)
		end(a, a->at[--a->n]);
	free(a->at);
	a->at = list;
	a->n = kept;
	a->more = n - kept;
	for (size_t k = 0; k < a->n; k++)
		if (a->at[k]->sock < 0 && clock_seconds() - a->at[k]->ended >= AGAIN_S)
			begin(a, a->at[k], a->at, a->n);
}

void asks_end(struct asks *a)
{
	reap(a);
	while (a->n > 0)
		end(a, a->at[--a->n]);
	free(a->at);
	a->at = NULL;
}

/* ---- questions and answers ---- */

void asks_send(struct asks *a, const struct ask *opened)
{
	for (size_t k = 0; k < a->n; k++) {
		struct ask *one = a->at[k];
		unsigned what = one == opened ? ASK_SCREEN : ASK_ROW;

		if (one->sock >= 0 && one->asked == 0 && send(one->sock, &what, sizeof(what), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(what))
			one->asked = clock_seconds();
	}
}

static void receive(struct ask *one)
{
	static struct answer answer;
	ssize_t len = recv(one->sock, &answer, sizeof(answer), MSG_DONTWAIT);

	if (len < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (len < (ssize_t)HEAD || answer.what >= ASKS) {
		ended_by_itself(one);
		return;
	}
	one->asked = 0;
	one->err = answer.err;
	if (answer.err)
		return;
	if (answer.what == ASK_ROW)
		one->weight = answer.weight;
	free(one->text[answer.what]);
	one->text[answer.what] = strndup(answer.text, (size_t)len - HEAD);
}

void asks_wait(struct asks *a, double until, int keys)
{
	struct pollfd p[MOUNTS_MOST + 1];
	bool any = true;

	while (any) {
		double now = clock_seconds(), left = until > now ? until - now : 0;

		any = false;
		for (size_t k = 0; k < a->n; k++) {
			const struct ask *one = a->at[k];

			p[k] = (struct pollfd){ .fd = one->sock, .events = POLLIN };
			if (one->asked > 0 && now - one->asked < SILENCE_S) {
				any = true;
				left = left < one->asked + SILENCE_S - now ? left : one->asked + SILENCE_S - now;
			}
		}
		p[a->n] = (struct pollfd){ .fd = keys, .events = POLLIN };
		if (poll(p, a->n + 1, any && left > 0 ? (int)(left * 1000) + 1 : 0) < 0)
			return; /* a signal */
		for (size_t k = 0; k < a->n; k++)
			if (p[k].revents)
				receive(a->at[k]);
		any = any && clock_seconds() < until && !p[a->n].revents;
	}
}

const char *ask_trouble(const struct ask *one, unsigned what, char room[64], bool *wrong)
{
	double silent = one->asked > 0 ? clock_seconds() - one->asked : 0;

	*wrong = true;
	if (silent >= SILENCE_S) {
		snprintf(room, 64, "does not answer, for %.0f s", silent);
		return room;
	}
	switch (one->err) {
	case ASK_NEW:
		*wrong = false;
		return JUST_ASKED;
	case -ENOTCONN:
		return "its daemon is gone, or cannot be reached from here";
	case -EACCES:
		return "only another user may look at it";
	case -EPROTO:
		return "its daemon is of another version than this tool";
	case -ENOTTY:
		return "no gaiafs, though it says so";
	case -ESTALE:
		return "another mount covers it";
	case -EUSERS:
		return "not asked: too many of others' mounts";
	case -EBADMSG:
	case -EIO:
	case -ECHILD:
		return "no report of it could be read";
	}
	*wrong = one->err != 0;
	return one->err ? strerror(-one->err) : !one->text[what] ? JUST_ASKED : NULL;
}

int asks_run(struct asks *a, const struct asks_rounds *r)
{
	double next = clock_seconds() + r->interval;
	int status = EXIT_OK;

	for (double n = 0; !status && n < r->count && r->wait(next, r->arg); n++) {
		next = clock_seconds() + r->interval;
		asks_refresh(a);
		asks_send(a, r->opened(r->arg));
		/* (Later than the last was asked: who does not answer until then is silent.) */
		asks_wait(a, clock_seconds() + (r->keys < 0 ? SILENCE_S : r->interval < 1 ? r->interval : 1), r->keys);
		status = r->show(n, r->arg);
	}
	return status;
}
