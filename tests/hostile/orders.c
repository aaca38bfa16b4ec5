/*
 * orders.c - orders about a file's place in memory, by the ioctls and by the tool, are refused to a user who may only read it,
 * and obeyed for a user who may write it.
 */
#include <sys/ioctl.h>

#include "gaia/protocol.h"
#include "hostile.h"
#include "shell.h"

#define ALICE 65531

static const char *path;

static int order(int fd, unsigned long cmd)
{
	struct gaia_ioc_file io = { .from = cmd == GAIA_IOC_EVICT ? GAIA_FROM_HOME : 0 };

	return ioctl(fd, cmd, &io) ? errno : 0;
}

static int gives_orders(void *arg)
{
	const int *expected = arg;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(order(fd, GAIA_IOC_FLUSH) == *expected);
	CHILD_CHECK(order(fd, GAIA_IOC_EVICT) == *expected);
	close(fd);
	return 0;
}

static int reader_gives_orders(void *arg)
{
	child_become(NOBODY, NOBODY);
	return gives_orders(arg);
}

/* With a descriptor for reading the daemon cannot know; the tool asks again with one for writing. */
static int owner_gives_orders(void *arg)
{
	int fd;

	child_become(ALICE, ALICE);
	CHILD_CHECK(gives_orders(arg) == 0);
	fd = open(path, O_RDWR | O_CLOEXEC);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(order(fd, GAIA_IOC_FLUSH) == 0);
	CHILD_CHECK(order(fd, GAIA_IOC_EVICT) == 0);
	close(fd);
	return 0;
}

EACH_WAY_BARE(orders, are_for_users_who_may_write)
{
	int refused = EPERM, obeyed = 0;

	hostile_start(NULL);
	close(hostile_file("f", 8192));
	path = mnt_file(&mnt, "f");
	cr_assert_eq(chown(path, ALICE, ALICE), 0);
	cr_assert_eq(child_run(reader_gives_orders, &refused), 0);
	cr_assert_eq(child_run(owner_gives_orders, &refused), 0);
	/* Root's. */
	cr_assert_eq(gives_orders(&obeyed), 0);
}

static struct tool {
	uid_t uid;
	char *command;
	char program[4096];
} tool;

/* By a descriptor: the build's folder may be closed to other users. */
static int run_tool(void *arg)
{
	char *argv[] = { "gaia", tool.command, (char *)path, NULL };
	int fd = open(tool.program, O_RDONLY | O_CLOEXEC);

	(void)arg;
	CHILD_CHECK(fd >= 0);
	child_become(tool.uid, tool.uid);
	fexecve(fd, argv, environ);
	return 99;
}

static int tool_by(uid_t uid, char *command)
{
	struct shell_result r = shell_run(mnt.path, 60, "printf %%s \"$GAIA\"");

	tool = (struct tool){ .uid = uid, .command = command };
	snprintf(tool.program, sizeof(tool.program), "%s", r.out);
	shell_free(&r);
	return child_run(run_tool, NULL);
}

EACH_WAY_BARE(orders, of_the_tool_ask_for_the_right)
{
	hostile_start(NULL);
	close(hostile_file("f", 8192));
	path = mnt_file(&mnt, "f");
	cr_assert_eq(chown(path, ALICE, ALICE), 0);
	cr_assert_eq(tool_by(NOBODY, "evict"), 1);
	cr_assert_eq(tool_by(NOBODY, "flush"), 1);
	cr_assert_eq(tool_by(ALICE, "evict"), 0);
	cr_assert_eq(tool_by(ALICE, "flush"), 0);
}
