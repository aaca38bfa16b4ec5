/*
 * threads.h - what the threads of another process do, as /proc has it: for tests that wait for it, and have to say at
 * some time that it hangs.
 */
#ifndef GAIA_TESTS_THREADS_H
#define GAIA_TESTS_THREADS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Tell on stderr where each thread waits in the kernel; only root may see that. @name: of the process, in the message. */
void threads_show(pid_t pid, const char *name);

/* Whether one waits for a disk: not for a FUSE file system, and not for another thread. */
bool threads_wait_for_storage(pid_t pid);

/*
 * Whether the process has work: one of its threads waits for a disk or runs, or it has made progress since the last call with the same
 * *@last, which is 0 before the first.
 */
bool threads_have_work(pid_t pid, uint64_t *last);

#endif
