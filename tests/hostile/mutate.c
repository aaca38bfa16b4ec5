/*
 * mutate.c - a user whose every request is wrong somewhere: ioctls, attributes, packets and descriptors that are changed
 * at random, mixed with right ones, so that there are objects to be wrong about. Two attackers at the same time, each one process after
 * the other; they fork, and half of them are killed in the middle of it.
 *
 * Afterwards the daemon lives and no sanitizer has reported anything (the daemon would have ended); root's file is as it was, root
 * acquires and releases as ever; and of the attackers nothing is left: no client, mapping, pin or descriptor.
 *
 * GAIAFS_MUTATIONS says how many requests there are (10000), GAIAFS_SEED repeats a run but for which attacker is first.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

#include "gaia/client.h"
#include "hostile.h"
#include "mutant.h"
#include "report.h"
#include "shell.h"

#define ATTACKERS 2
#define STUCK_SECONDS 120
/* ---- root ---- */

static unsigned char right_byte(size_t at)
{
	return (unsigned char)(at % 251 + at / GAIA_PAGE);
}

static void root_reads_what_was_written(int fd)
{
	unsigned char *p = gaia_mmap(MUTANT_FILE_SIZE, PROT_READ, fd, 0, 0), *bytes = malloc(MUTANT_FILE_SIZE);

	cr_assert(bytes && p != MAP_FAILED, "%s", strerror(errno));
	cr_assert_eq(pread(fd, bytes, MUTANT_FILE_SIZE, 0), MUTANT_FILE_SIZE);
	cr_assert_eq(gaia_acquire(p, MUTANT_FILE_SIZE, PROT_READ), 0, "%s", strerror(errno));
	for (size_t i = 0; i < MUTANT_FILE_SIZE; i++) {
		cr_assert_eq(bytes[i], right_byte(i), "read(2), byte %zu", i);
		cr_assert_eq(p[i], right_byte(i), "acquired, byte %zu", i);
	}
	cr_assert_eq(gaia_release(p, MUTANT_FILE_SIZE), 0, "%s", strerror(errno));
	cr_assert_eq(gaia_munmap(p, MUTANT_FILE_SIZE), 0);
	free(bytes);
}

static void root_writes_through_a_device(void)
{
	int fd = hostile_file("another", GAIA_CHUNK);
	unsigned char *p = gaia_mmap(GAIA_CHUNK, PROT_READ | PROT_WRITE, fd, 0, 1), got, want;

	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	cr_assert_eq(gaia_acquire(p, GAIA_CHUNK, PROT_READ | PROT_WRITE), 0, "%s", strerror(errno));
	want = p[70000] ^= 0x55;
	cr_assert_eq(gaia_release(p, GAIA_CHUNK), 0, "%s", strerror(errno));
	cr_assert_eq(pread(fd, &got, 1, 70000), 1);
	cr_assert_eq(got, want);
	cr_assert_eq(gaia_munmap(p, GAIA_CHUNK), 0);
	close(fd);
}

/* The daemon's sockets and pieces of memory: of a client's each would be one. */
static int daemon_descriptors(void)
{
	struct shell_result r = shell_run(NULL, 30, "ls -l /proc/%d/fd | grep -e socket: -e memfd: | grep -c -v gaiafs-report", (int)mnt.daemon);
	int n = atoi(r.out);

	shell_free(&r);
	return n;
}

static json_int_t value(json_t *row, const char *key)
{
	return json_integer_value(json_object_get(row, key));
}

/* What is left of the attackers, in words. */
static void find_remains(json_t *status, char what[200])
{
	json_t *row;
	size_t i;

	*what = '\0';
	json_array_foreach(json_object_get(status, "clients"), i, row)
		if (value(row, "uid") == NOBODY || value(row, "mappings"))
			snprintf(what, 200, "client %lld", (long long)value(row, "pid"));
	json_array_foreach(json_object_get(status, "users"), i, row)
		/* A ticket that was not redeemed has a client's place, until it expires. */
		if (value(row, "uid") == NOBODY && (value(row, "mappings") || value(row, "pins") || value(row, "directories") ||
						    value(row, "clients") != value(row, "tickets")))
			snprintf(what, 200, "%lld mappings, %lld pins, %lld clients", (long long)value(row, "mappings"),
				 (long long)value(row, "pins"), (long long)value(row, "clients"));
	json_array_foreach(json_object_get(status, "devices"), i, row)
		if (value(row, "pinned"))
			snprintf(what, 200, "%lld pinned bytes of a device", (long long)value(row, "pinned"));
}

static void nothing_is_left(int had)
{
	time_t end = time(NULL) + STUCK_SECONDS;
	char what[200] = "";
	int has = 0;

	while (time(NULL) < end) {
		json_t *status = report("status", ".");

		find_remains(status, what);
		json_decref(status);
		shell_ok(mnt.path, "for f in *; do \"$GAIA\" evict \"$f\"; done");
		has = daemon_descriptors();
		if (!*what && has <= had)
			return;
		usleep(100000);
	}
	cr_assert_str_empty(what, "left behind: %s", what);
	cr_assert_leq(has, had, "%d sockets and memfds in the daemon; it had %d", has, had);
}

static void make_files(void)
{
	unsigned char *bytes = malloc(MUTANT_FILE_SIZE);
	int fd = hostile_file("roots", MUTANT_FILE_SIZE);

	for (size_t i = 0; i < MUTANT_FILE_SIZE; i++)
		bytes[i] = right_byte(i);
	cr_assert_eq(pwrite(fd, bytes, MUTANT_FILE_SIZE, 0), MUTANT_FILE_SIZE);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	free(bytes);
	fd = hostile_file("mine", MUTANT_FILE_SIZE);
	cr_assert_eq(fchown(fd, NOBODY, NOBODY), 0);
	close(fd);
	fd = hostile_file("mine-too", MUTANT_FILE_SIZE);
	cr_assert_eq(fchown(fd, NOBODY, NOBODY), 0);
	close(fd);
}

static unsigned long from_environment(const char *name, unsigned long usual)
{
	const char *text = getenv(name);

	return text ? strtoul(text, NULL, 0) : usual;
}

static int requests(void)
{
	return shared->count + shared->more;
}

/* Process after process, until there were so many requests; some are killed while they are at it. */
static void attack_until(unsigned long most)
{
	pid_t pid[ATTACKERS] = { 0 };
	int kill_at[ATTACKERS] = { 0 }, last = 0;
	time_t moved = time(NULL);
	unsigned nth = 0;

	for (;;) {
		bool running = false;

		for (int i = 0; i < ATTACKERS; i++) {
			int status;

			if (!pid[i] && (unsigned long)requests() < most) {
				nth++;
				pid[i] = child_start(mutant, &nth);
				kill_at[i] = one_in(2) ? requests() + (int)below(MUTANT_REQUESTS) : 0;
			}
			if (pid[i] && kill_at[i] && requests() >= kill_at[i])
				kill(pid[i], SIGKILL);
			if (pid[i] && waitpid(pid[i], &status, WNOHANG) == pid[i]) {
				cr_assert(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : !WEXITSTATUS(status),
					  "an attacker ended by itself, with status %x", status);
				pid[i] = 0;
			}
			running |= pid[i] != 0;
		}
		if (!running && (unsigned long)requests() >= most)
			return;
		if (requests() != last)
			moved = time(NULL);
		last = requests();
		cr_assert_lt(time(NULL) - moved, STUCK_SECONDS, "the attackers are stuck after %d requests", last);
		usleep(500);
	}
}

static void mutate(void)
{
	static const char *const args[] = { "--device", "sim:8M,count=2", "--home", "16M", NULL };
	int fd, had;

	seed = from_environment("GAIAFS_SEED", 1);
	chance = seed * 0x9e3779b97f4a7c15 | 1;
	hostile_start(args);
	make_files();
	fd = open(mnt_file(&mnt, "roots"), O_RDONLY | O_CLOEXEC);
	root_reads_what_was_written(fd);
	root_writes_through_a_device();
	shell_ok(mnt.path, "for f in *; do \"$GAIA\" evict \"$f\"; done");
	had = daemon_descriptors();
	attack_until(from_environment("GAIAFS_MUTATIONS", 10000));
	fprintf(stderr, "mutate: %s, GAIAFS_SEED=%lu: %d ioctls, of which %d were carried out, %d other requests; %ld acquires, "
		"%ld revokes, %ld of them in vain, %ld clients lost\n", way, seed, shared->count, shared->done, shared->more,
		STATUS("counters", "acquires"), STATUS("counters", "revokes"), STATUS("counters", "revoke_timeouts"),
		STATUS("counters", "clients_lost"));
	cr_assert_eq(kill(mnt.daemon, 0), 0, "the daemon is gone");
	nothing_is_left(had);
	root_reads_what_was_written(fd);
	root_writes_through_a_device();
	close(fd);
	way_end();
}

Test(mutate, breaks_nothing_auto, .init = way_bare_auto, .fini = way_clean_up, .timeout = 36000)
{
	mutate();
}

Test(mutate, breaks_nothing_writeback, .init = way_bare_writeback, .fini = way_clean_up, .timeout = 36000)
{
	mutate();
}

Test(mutate, breaks_nothing_writethrough, .init = way_bare_writethrough, .fini = way_clean_up, .timeout = 36000)
{
	mutate();
}
