/* process.c - clients' processes, as /proc shows them: whether they end, and whether they keep memory beyond their clients' ends. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "control/internal.h"

/* After a failure to open a file: false if it does not exist; true if it only could not be opened (EMFILE, say). */
static bool is_there(void)
{
	return errno != ENOENT && errno != ESRCH;
}

/*
 * Whether @is_so is true of some thread. Checks at least one, and stops at the time @until. @unseen: the result
 * if the threads cannot be listed.
 */
static bool some_thread(struct look *look, uint64_t until, bool (*is_so)(pid_t pid, const char *tid), bool unseen)
{
	char path[32];
	struct dirent *entry = NULL;
	uint64_t nth = 0;
	bool found = false;
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)look->pid);
	threads = opendir(path);
	if (!threads)
		found = unseen && is_there();
	while (threads && !found && (entry = readdir(threads))) {
		if (entry->d_name[0] == '.' || nth++ < look->thread)
			continue;
		found = is_so(look->pid, entry->d_name);
		if (now_ns() >= until)
			break;
	}
	if (threads)
		closedir(threads);
	look->thread = entry ? nth : 0;
	return found;
}

static bool thread_is_killed(pid_t pid, const char *tid)
{
	unsigned long long pending;
	char path[64], line[128];
	bool killed = false;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/task/%.20s/status", (int)pid, tid);
	status = fopen(path, "re");
	if (!status)
		return false;
	while (!killed && fgets(line, sizeof(line), status))
		if (sscanf(line, "SigPnd: %llx", &pending) == 1)
			killed = pending & 1ull << (SIGKILL - 1);
	fclose(status);
	return killed;
}

bool process_is_ending(struct look *look, uint64_t until)
{
	return some_thread(look, until, thread_is_killed, false);
}

static bool thread_has_memory(pid_t pid, const char *tid)
{
	unsigned long pages = 0;
	char path[64];
	FILE *statm;

	snprintf(path, sizeof(path), "/proc/%d/task/%.20s/statm", (int)pid, tid);
	statm = fopen(path, "re");
	if (!statm)
		return is_there();
	if (fscanf(statm, "%lu", &pages) != 1)
		pages = 0;
	fclose(statm);
	return pages > 0;
}

bool keeps_memory(const struct client *c)
{
	struct look look = { .pid = c->pid };

	return c->pid == 0 || some_thread(&look, UINT64_MAX, thread_has_memory, true);
}

/* ---- processes, beyond their clients' ends ---- */

/*
 * When the process started, in ticks since boot: tells it from a later process with the same number. 0: it does
 * not exist, or cannot be looked at.
 */
static unsigned long long started(pid_t pid)
{
	unsigned long long ticks = 0;
	char path[32], text[1024], *p;
	FILE *stat;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	stat = fopen(path, "re");
	if (!stat)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, stat);
	fclose(stat);
	text[n] = '\0';
	/* Start behind the process's name: that is in parentheses, and may contain anything. */
	p = strrchr(text, ')');
	if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ticks) != 1)
		return 0;
	return ticks;
}

bool control_process(void *client, struct cache_process *out)
{
	const struct client *c = client;
	unsigned long long ticks = c->pid ? started(c->pid) : 0;

	if (!ticks || !keeps_memory(c))
		return false;
	*out = (struct cache_process){ (uint64_t)c->pid, ticks };
	return true;
}

bool control_process_lives(const struct cache_process *process)
{
	struct look look = { .pid = (pid_t)process->id };
	unsigned long long ticks = started(look.pid);
	char path[64];

	/* 0: it has ended, or that cannot be found out for want of descriptors. */
	snprintf(path, sizeof(path), "/proc/%d", (int)look.pid);
	if (!ticks)
		return !access(path, F_OK);
	return ticks == process->started && some_thread(&look, UINT64_MAX, thread_has_memory, true);
}
