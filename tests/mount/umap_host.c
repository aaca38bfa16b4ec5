/* umap_host.c - regions (gaia/umap.h) over files on a mount: those that only read are the daemon's own memory. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "gaia/umap.h"
#include "report.h"
#include "seen.h"
#include "ways.h"

#define MIB (1 << 20)
#define PAGE 4096
#define CHUNK (2 * MIB)
#define SIZE (8 * MIB)
#define READERS 4

/* A file of 'x' on the mount, and one elsewhere. */
static void start(const char *home)
{
	const char *args[] = { "--device", "none", "--home", home, NULL };
	static unsigned char piece[CHUNK];

	way_start(args);
	memset(piece, 'x', sizeof(piece));
	for (int side = ON_MOUNT; side <= ON_PLAIN; side++) {
		int fd = openat(both_root[side], "f", O_CREAT | O_RDWR | O_CLOEXEC, 0644);

		for (int i = 0; i < SIZE / CHUNK; i++)
			cr_assert_eq(pwrite(fd, piece, CHUNK, (off_t)i * CHUNK), CHUNK);
		cr_assert_eq(fsync(fd), 0);
		close(fd);
	}
}

static struct gaia_umap_segment segment;

static struct gaia_umap_config config_of(int fd)
{
	segment = (struct gaia_umap_segment){ .fd = fd };
	return (struct gaia_umap_config){ .size = sizeof(struct gaia_umap_config), .segments = &segment, .n_segments = 1 };
}

static int open_file(enum both_side where, int flags)
{
	return openat(both_root[where], "f", flags | O_CLOEXEC);
}

static uint64_t kind_of(void *p)
{
	struct gaia_umap_stats stats = { .size = sizeof(stats) };

	cr_assert_eq(gaia_umap_stats(p, &stats), 0);
	return stats.is;
}

static struct gate ready, go_on;

static int read_region(void *arg)
{
	int fd = open_file(ON_MOUNT, O_RDONLY);
	struct gaia_umap_config c = config_of(fd);
	unsigned char *p = gaia_umap(&c);

	(void)arg;
	CHILD_CHECK(p != MAP_FAILED);
	close(fd);
	CHILD_CHECK(kind_of(p) == GAIA_UMAP_IS_HOST);
	CHILD_CHECK(all_are(p, SIZE, 'x'));
	gate_open(ready);
	CHILD_CHECK(gate_pass(go_on));
	CHILD_CHECK(gaia_uunmap(p, SIZE) == 0);
	return 0;
}

EACH_WAY_BARE(umap_host, regions_of_many_processes_are_one_copy)
{
	pid_t child[READERS];

	start("64M");
	ready = gate_make();
	go_on = gate_make();
	for (int i = 0; i < READERS; i++)
		child[i] = child_start(read_region, NULL);
	for (int i = 0; i < READERS; i++)
		cr_assert(gate_pass(ready));
	cr_assert_eq(STATUS("host", "used"), SIZE);
	cr_assert_eq(STATUS("host", "pinned"), SIZE);
	cr_assert_leq(STATUS("home", "used"), SIZE + MIB);
	cr_assert_eq(STATUS("counters", "home_to_device"), 0);
	for (int i = 0; i < READERS; i++)
		gate_open(go_on);
	for (int i = 0; i < READERS; i++)
		cr_assert_eq(child_wait(child[i]), 0);
	cr_assert_eq(STATUS("host", "pinned"), 0);
}

EACH_WAY_BARE(umap_host, a_region_is_the_part_of_the_file_and_no_more)
{
	int fd;
	struct gaia_umap_config c;
	unsigned char *p;
	void *pages[2];

	start("64M");
	fd = open_file(ON_MOUNT, O_RDWR);
	c = config_of(fd);
	cr_assert_eq(pwrite(fd, "a", 1, CHUNK - PAGE), 1);
	segment.offset = CHUNK - PAGE;
	segment.length = 3 * PAGE + 5;
	p = gaia_umap(&c);
	cr_assert_neq(p, MAP_FAILED);
	cr_assert_eq(kind_of(p), GAIA_UMAP_IS_HOST);
	cr_assert(p[0] == 'a' && all_are(p + 1, 4 * PAGE - 1, 'x'));
	cr_assert(is_mapped(p + 4 * PAGE - 1) && !is_mapped(p + 4 * PAGE));
	pages[0] = p;
	pages[1] = p + 3 * PAGE;
	cr_assert_eq(gaia_umap_prefetch(pages, 2, GAIA_UMAP_WAIT), 0);
	for (int advice = GAIA_UMAP_NORMAL; advice <= GAIA_UMAP_UNPIN; advice++)
		cr_assert_eq(gaia_umap_advise(p, 3 * PAGE, advice), 0);
	cr_assert_eq(gaia_umap_flush(p, 3 * PAGE, GAIA_UMAP_SYNC), 0);
	errno = 0;
	cr_assert_eq(gaia_uunmap(p, PAGE), -1);
	cr_assert_eq(errno, EINVAL);
	cr_assert_eq(gaia_uunmap(p, 3 * PAGE + 5), 0);
	cr_assert(!is_mapped(p));
	cr_assert_eq(STATUS("host", "pinned"), 0);
	close(fd);
}

EACH_WAY_BARE(umap_host, what_was_written_before_is_in_a_new_region)
{
	int fd;
	struct gaia_umap_config c;
	unsigned char *p, *q;

	start("64M");
	fd = open_file(ON_MOUNT, O_RDWR);
	c = config_of(fd);
	p = gaia_umap(&c);
	cr_assert_eq(pwrite(fd, "a", 1, 0), 1);
	q = gaia_umap(&c);
	cr_assert(p != MAP_FAILED && q != MAP_FAILED);
	cr_assert(p[0] == 'a' && q[0] == 'a', "it is one memory");
	cr_assert_eq(ftruncate(fd, CHUNK), 0);
	cr_assert(all_are(p + CHUNK, SIZE - CHUNK, 0));
	cr_assert_eq(gaia_uunmap(p, SIZE), 0);
	cr_assert(q[0] == 'a' && all_are(q + 1, CHUNK - 1, 'x'));
	cr_assert_eq(gaia_uunmap(q, SIZE), 0);
	close(fd);
}

/* Regions that are not the daemon's memory, and say so. */
static void otherwise(int fd, const struct gaia_umap_config *c, size_t length)
{
	unsigned char *p = gaia_umap(c);

	cr_assert_neq(p, MAP_FAILED, "%s", strerror(errno));
	cr_assert(!(kind_of(p) & GAIA_UMAP_IS_HOST));
	cr_assert(all_are(p, length < SIZE ? length : SIZE, 'x'));
	cr_assert(length <= SIZE || all_are(p + SIZE, length - SIZE, 0));
	cr_assert_eq(gaia_uunmap(p, length), 0);
	close(fd);
}

static void *no_state(void *arg, uint32_t slots)
{
	(void)arg;
	(void)slots;
	return NULL;
}

static void nothing(void *state)
{
	(void)state;
}

static void nothing_inserted(void *state, uint32_t slot, uint64_t page)
{
	(void)state;
	(void)slot;
	(void)page;
}

static void nothing_hit(void *state, uint32_t slot)
{
	(void)state;
	(void)slot;
}

static uint32_t nobody(void *state)
{
	(void)state;
	return UINT32_MAX;
}

static void nothing_removed(void *state, uint32_t slot, int evicted)
{
	(void)state;
	(void)slot;
	(void)evicted;
}

/* This one fails when it is asked. */
EACH_WAY_BARE(umap_host, a_policy_of_the_application_is_asked)
{
	static const struct gaia_umap_policy own = {
		sizeof(own), no_state, nothing, nothing_inserted, nothing_hit, nobody, nothing_removed, NULL,
	};
	struct gaia_umap_config c;
	int fd;

	start("64M");
	fd = open_file(ON_MOUNT, O_RDONLY);
	c = config_of(fd);
	c.policy = &own;
	errno = 0;
	cr_assert_eq(gaia_umap(&c), MAP_FAILED);
	cr_assert_eq(errno, ENOMEM);
	close(fd);
}

EACH_WAY_BARE(umap_host, other_regions_are_as_ever)
{
	struct gaia_umap_segment two[2];
	struct gaia_umap_config c;
	int fd;

	start("64M");
	fd = open_file(ON_MOUNT, O_RDWR);
	c = config_of(fd);
	c.prot = PROT_READ | PROT_WRITE;
	otherwise(fd, &c, SIZE);

	fd = open_file(ON_MOUNT, O_RDONLY);
	c = config_of(fd);
	c.flags = GAIA_UMAP_NO_HOST;
	otherwise(fd, &c, SIZE);

	fd = open_file(ON_MOUNT, O_RDONLY);
	c = config_of(fd);
	c.budget = MIB;
	otherwise(fd, &c, SIZE);

	fd = open_file(ON_MOUNT, O_RDONLY);
	c = config_of(fd);
	segment.offset = 7;
	otherwise(fd, &c, SIZE - 7);

	fd = open_file(ON_MOUNT, O_RDONLY);
	c = config_of(fd);
	two[0] = two[1] = (struct gaia_umap_segment){ .fd = fd, .length = CHUNK };
	c.segments = two;
	c.n_segments = 2;
	otherwise(fd, &c, 2 * CHUNK);

	/* The daemon has no memory for what is not of the file. */
	fd = open_file(ON_MOUNT, O_RDONLY);
	c = config_of(fd);
	segment.length = SIZE + CHUNK;
	otherwise(fd, &c, SIZE + CHUNK);

	fd = open_file(ON_PLAIN, O_RDONLY);
	c = config_of(fd);
	otherwise(fd, &c, SIZE);
	cr_assert_eq(STATUS("host", "used"), 0);
}

/* The host has 4 MiB. */
EACH_WAY_BARE(umap_host, a_file_that_the_daemon_has_no_room_for_is_read_otherwise)
{
	struct gaia_umap_config c;
	int fd;

	start("8M");
	fd = open_file(ON_MOUNT, O_RDONLY);
	c = config_of(fd);
	otherwise(fd, &c, SIZE);
	cr_assert_eq(STATUS("host", "pinned"), 0);
}

EACH_WAY_BARE(umap_host, a_child_has_no_region_and_may_make_its_own)
{
	struct gaia_umap_config c;
	unsigned char *p;
	pid_t child;
	int fd, status;

	start("64M");
	fd = open_file(ON_MOUNT, O_RDONLY);
	c = config_of(fd);
	p = gaia_umap(&c);
	cr_assert_neq(p, MAP_FAILED);
	for (int i = 0; i < 2; i++) {
		child = fork();
		if (child == 0 && i) {
			unsigned char *own = gaia_umap(&c);

			_exit(own != MAP_FAILED && all_are(own, SIZE, 'x') && gaia_uunmap(own, SIZE) == 0 ? 0 : 1);
		}
		if (child == 0) {
			signal(SIGSEGV, SIG_DFL);
			_exit(*(volatile unsigned char *)p);
		}
		cr_assert_eq(waitpid(child, &status, 0), child);
		cr_assert(i ? WIFEXITED(status) && WEXITSTATUS(status) == 0 : WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	}
	cr_assert(all_are(p, SIZE, 'x'));
	cr_assert_eq(gaia_uunmap(p, SIZE), 0);
	close(fd);
}
