/* umap_rig.c - see umap_rig.h. */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "umap_rig.h"

bool rig_by_signal(void)
{
	return getenv("UMAP_TEST_BY_SIGNAL");
}

static __thread sigjmp_buf fault;
static __thread volatile bool may_fault;

static void on_bus(int sig)
{
	if (may_fault)
		siglongjmp(fault, 1);
	signal(sig, SIG_DFL);
}

static void install(void)
{
	signal(SIGBUS, on_bus);
}

/* Before the library has a handler, which passes on what it cannot serve. */
static void watch_bus(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, install);
}

bool rig_bus(volatile unsigned char *at)
{
	watch_bus();
	may_fault = true;
	if (sigsetjmp(fault, 1)) {
		may_fault = false;
		return true;
	}
	(void)*at;
	may_fault = false;
	return false;
}

struct rig *rig_create(size_t length)
{
	struct rig *rig = calloc(1, sizeof(*rig));
	unsigned seed = length;

	rig->length = length;
	rig->content = malloc(length + 1);
	for (size_t i = 0; i < length; i++)
		rig->content[i] = rand_r(&seed) % 255 + 1;
	strcpy(rig->path, "/tmp/umap-test-XXXXXX");
	rig->fd = mkstemp(rig->path);
	cr_assert_geq(rig->fd, 0);
	cr_assert_eq(pwrite(rig->fd, rig->content, length, 0), (ssize_t)length);
	rig->segment = (struct gaia_umap_segment){ .fd = rig->fd };
	rig->config = (struct gaia_umap_config){
		.size = sizeof(rig->config), .prot = PROT_READ | PROT_WRITE, .flags = GAIA_UMAP_NEED_PAGING,
		.segments = &rig->segment, .n_segments = 1,
	};
	return rig;
}

void rig_map(struct rig *rig)
{
	watch_bus();
	rig->config.flags |= rig_by_signal() ? GAIA_UMAP_BY_SIGNAL : 0;
	rig->view = gaia_umap(&rig->config);
	if (rig->view == MAP_FAILED && errno == ENOSYS) {
		unlink(rig->path);
		cr_skip_test("this kernel has no userfaultfd(2) with what paging needs, or it is forbidden");
	}
	cr_assert_neq(rig->view, MAP_FAILED, "gaia_umap: %s", strerror(errno));
}

void rig_end(struct rig *rig)
{
	close(rig->fd);
	unlink(rig->path);
	free(rig->content);
	free(rig);
}

void rig_unmap(struct rig *rig)
{
	cr_assert_eq(gaia_uunmap(rig->view, rig->length), 0);
	rig_end(rig);
}

void rig_check_file(struct rig *rig, const unsigned char *expected)
{
	unsigned char *now = malloc(rig->length + 1);

	cr_assert_eq(pread(rig->fd, now, rig->length, 0), (ssize_t)rig->length);
	for (size_t i = 0; i < rig->length; i++)
		cr_assert_eq(now[i], expected[i], "byte %zu of the file is %u, not %u", i, now[i], expected[i]);
	free(now);
}

struct gaia_umap_stats rig_stats(struct rig *rig)
{
	struct gaia_umap_stats s = { .size = sizeof(s) };

	cr_assert_eq(gaia_umap_stats(rig->view, &s), 0);
	return s;
}

bool rig_in_child(bool (*run)(struct rig *rig), struct rig *rig)
{
	pid_t pid = fork();
	int status;

	if (!pid) {
		alarm(60);
		_exit(run(rig) ? 0 : 1);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int rig_errno(const struct gaia_umap_config *c)
{
	cr_assert_eq(gaia_umap(c), MAP_FAILED);
	return errno;
}
