/*
 * threads.c - see threads.h. Threads come and go while we look: what cannot be read any more counts as nothing.
 */
#include "threads.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file of /proc/@pid/task/@tid, cut off at the buffer's end; "" where there is none, or it may not be read. */
static void read_file(pid_t pid, const char *tid, const char *name, char *text, size_t size)
{
	char path[320];
	size_t n = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%s/%s", pid, tid, name);
	f = fopen(path, "re");
	if (f) {
		n = fread(text, 1, size - 1, f);
		fclose(f);
	}
	text[n] = '\0';
}

/* Whether @look is true of a thread; those after it are not looked at. */
static bool any_thread(pid_t pid, bool (*look)(pid_t pid, const char *tid, const void *arg), const void *arg)
{
	bool found = false;
	struct dirent *e;
	char path[64];
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	d = opendir(path);
	while (d && !found && (e = readdir(d)))
		found = e->d_name[0] != '.' && look(pid, e->d_name, arg);
	if (d)
		closedir(d);
	return found;
}

/* ---- telling ---- */

/* The innermost functions, without offsets. */
static void show_stack(const char *stack)
{
	char word[128];
	int n = 0;

	for (const char *line = stack; line && n < 6; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (sscanf(line, "[<0>] %127[^+\n]", word) == 1)
			fprintf(stderr, "%s%s", n++ ? " < " : "", word);
	}
}

static bool show(pid_t pid, const char *tid, const void *name)
{
	char text[4096];

	read_file(pid, tid, "comm", text, sizeof(text));
	text[strcspn(text, "\n")] = '\0';
	fprintf(stderr, "      %s, thread %s, %s: ", (const char *)name, tid, text);
	read_file(pid, tid, "stack", text, sizeof(text));
	show_stack(text);
	fputc('\n', stderr);
	return false;
}

void threads_show(pid_t pid, const char *name)
{
	any_thread(pid, show, name);
}

/* ---- whether it has work ---- */

/* 'D': in uninterruptible sleep; 'R': runs, or is ready to. */
static char state_of(pid_t pid, const char *tid)
{
	char text[512], *end;

	read_file(pid, tid, "stat", text, sizeof(text));
	end = strrchr(text, ')');
	return end && end[1] ? end[2] : '\0';
}

static bool waits_for_storage(pid_t pid, const char *tid, const void *unused)
{
	char stack[4096];

	(void)unused;
	read_file(pid, tid, "stack", stack, sizeof(stack));
	if (strstr(stack, "io_cqring_wait"))
		return true;
	/* In FUSE it waits for a daemon, or for a page that it may have itself; not so for files that are passed through. */
	return state_of(pid, tid) == 'D' && (!strstr(stack, "fuse_") || strstr(stack, "backing_file_"));
}

static bool runs(pid_t pid, const char *tid, const void *unused)
{
	(void)unused;
	return state_of(pid, tid) == 'R';
}

/* Processor time, and what was read and written: grows while the process makes progress. */
static uint64_t done_by(pid_t pid)
{
	uint64_t user = 0, system = 0, sum = 0, n;
	char tid[16], text[512], *at;

	snprintf(tid, sizeof(tid), "%d", pid);
	read_file(pid, tid, "../../stat", text, sizeof(text));
	at = strrchr(text, ')');
	if (at)
		sscanf(at, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64, &user, &system);
	read_file(pid, tid, "../../io", text, sizeof(text));
	for (at = strchr(text, ':'); at && sscanf(at, ": %" SCNu64, &n) == 1; at = strchr(at + 1, ':'))
		sum += n;
	return sum + user + system;
}

bool threads_wait_for_storage(pid_t pid)
{
	return pid > 0 && any_thread(pid, waits_for_storage, NULL);
}

bool threads_have_work(pid_t pid, uint64_t *last)
{
	uint64_t before = *last;

	if (pid <= 0)
		return false;
	*last = done_by(pid);
	return *last != before || any_thread(pid, runs, NULL) || threads_wait_for_storage(pid);
}
