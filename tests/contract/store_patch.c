/*
 * store_patch.c - the store of a directory changes bytes of a word while somebody else stores the bytes beside them, through a mapping:
 * none is lost, wherever in between that is.
 *
 * Not left to chance: a child does the patch, one instruction at a time (ptrace(2)). Once to see at which one the word
 * changes; then again and again, for each of those before it: there the other byte is stored, and the child goes on.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "child.h"
#include "gaia/protocol.h"
#include "store/store.h"

/* More than a patch takes, sanitizers included. */
#define STEPS_MAX 100000
/* Between looking at a word and storing it, with room to spare. */
#define STEPS_BEFORE 50

static const char base[8] = "abcdefgh", new[8] = "AbCdefgh", beside[8] = "AbCdeXgh";

static struct store *store;
static int file;
/* Its word, which both see. */
static char *word;

/* They take turns, which is far slower across two. */
static void one_processor(void)
{
	int cpu = sched_getcpu();
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(MAX(cpu, 0), &set);
	(void)sched_setaffinity(0, sizeof(set), &set);
}

static void setup(void)
{
	char *page;

	file = memfd_create("patched", MFD_CLOEXEC);
	cr_assert_geq(file, 0);
	cr_assert_eq(ftruncate(file, 2 * GAIA_PAGE), 0);
	page = mmap(NULL, 2 * GAIA_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	cr_assert_neq(page, MAP_FAILED);
	word = page + GAIA_PAGE + 8;
	cr_assert_eq(store_dir_create(true, false, &store), 0);
	one_processor();
}

static void teardown(void)
{
	store->ops->destroy(store);
	close(file);
}

TestSuite(patch, .init = setup, .fini = teardown);

#define NOT_ALLOWED 77

static int patches(void *arg)
{
	struct store_file *f;

	CHILD_CHECK(!store_open(store, file, true, &f));
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		return NOT_ALLOWED;
	for (;;) {
		raise(SIGSTOP);
		CHILD_CHECK(!f->ops->patch(f, new, base, sizeof(new), GAIA_PAGE + 8));
	}
}

/* It stops with @signal next. */
static void stops(pid_t pid, int signal)
{
	int status;

	cr_assert_eq(TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)), pid);
	cr_assert(WIFSTOPPED(status) && WSTOPSIG(status) == signal, "status %#x", status);
}

/* To the next instruction, or the next begin or end of a system call. */
static void step(pid_t pid, enum __ptrace_request how)
{
	cr_assert_eq(ptrace(how, pid, NULL, NULL), 0, "%s", strerror(errno));
	stops(pid, SIGTRAP);
}

/* To the end of the patch. */
static void go_on(pid_t pid)
{
	cr_assert_eq(ptrace(PTRACE_CONT, pid, NULL, NULL), 0, "%s", strerror(errno));
	stops(pid, SIGSTOP);
}

/* Where a patch is: so many stops at system calls, and then so many instructions. */
struct place {
	unsigned calls, steps;
};

static void go_to(pid_t pid, struct place to)
{
	memcpy(word, base, sizeof(base));
	for (unsigned n = 0; n < to.calls; n++)
		step(pid, PTRACE_SYSCALL);
	for (unsigned n = 0; n < to.steps; n++)
		step(pid, PTRACE_SINGLESTEP);
}

static bool is_changed(void)
{
	return memcmp(word, base, sizeof(base)) != 0;
}

/* After the instruction that changes the word. */
static struct place find_change(pid_t pid)
{
	struct place at = { 0 };

	go_to(pid, at);
	for (step(pid, PTRACE_SYSCALL); !is_changed(); step(pid, PTRACE_SYSCALL))
		at.calls++;
	go_on(pid);
	go_to(pid, at);
	while (at.steps < STEPS_MAX && !is_changed()) {
		step(pid, PTRACE_SINGLESTEP);
		at.steps++;
	}
	go_on(pid);
	return at;
}

static void store_beside_at(pid_t pid, struct place at)
{
	go_to(pid, at);
	word[5] = beside[5];
	go_on(pid);
	cr_assert_arr_eq(word, beside, sizeof(beside), "stored at step %u: %.8s", at.steps, word);
}

Test(patch, loses_no_byte_that_is_stored_beside, .timeout = 200)
{
	pid_t pid = child_start(patches, NULL);
	struct place at;
	unsigned last;
	int status;

	cr_assert_eq(TEMP_FAILURE_RETRY(waitpid(pid, &status, 0)), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_ALLOWED)
		cr_skip_test("ptrace(2) is not allowed here");
	cr_assert(WIFSTOPPED(status), "status %#x", status);
	/* The first call finds its functions and pages. */
	go_on(pid);
	at = find_change(pid);
	cr_assert_lt(at.steps, STEPS_MAX, "the word did not change");
	last = at.steps;
	for (at.steps = last > STEPS_BEFORE ? last - STEPS_BEFORE : 0; at.steps <= last; at.steps++)
		store_beside_at(pid, at);
	child_kill(pid);
}
