/*
 * cache_gpu.c - the page cache over GPUs (on a fake driver) of which each call fails once in turn: the
 * others keep working, nothing hangs, and a call that reported success has succeeded.
 */
#include "cache_scene.h"
#include "fake_cuda_api.h"

#define PAGE(n) ((uint64_t)(n) * GAIA_PAGE)

/* 0, or one of the errors that a broken GPU may cause. */
static bool passes(int err)
{
	cr_assert(err == 0 || err == -EIO || err == -ENODEV || err == -ENOMEM || err == -EMFILE, "%d", err);
	return err == 0;
}

/* Writes a word on the device and releases it: whether it was said to be released. */
static bool write_and_release(struct client *cl, uint64_t off, const char *text)
{
	if (!passes(client_acquire(cl, off, strlen(text), GAIA_PROT_RW)))
		return false;
	client_store(cl, text, strlen(text), off);
	return passes(client_release(cl, off, strlen(text)));
}

/* Reads it by the CPU: an error, or @text. @was: what else it may be. */
static void look(uint64_t off, const char *text, const char *was)
{
	char seen[16] = "";

	if (passes(MIN(cpu_read(kf, seen, strlen(text), off), 0)))
		cr_assert(!strcmp(seen, text) || (was && !strcmp(seen, was)), "%s", seen);
}

static void play(void)
{
	static const char whole[GAIA_PAGE] = "again";
	struct client *a = new_client(0), *b = new_client(1);
	bool released[2];
	char seen[16] = "";

	released[0] = write_and_release(a, PAGE(1), "first");
	released[1] = write_and_release(b, PAGE(2), "other");
	look(PAGE(1), released[0] ? "first" : "-----", "first");
	if (passes(client_acquire(a, PAGE(2), 5, GAIA_PROT_READ))) {
		client_load(a, seen, 5, PAGE(2));
		cr_assert(!strcmp(seen, "other") || (!released[1] && !strcmp(seen, "-----")), "%s", seen);
		passes(client_release(a, PAGE(2), 5));
	}
	write_cpu(PAGE(3), "third");
	released[0] = write_and_release(a, PAGE(3) + 100, "beside");
	look(PAGE(3), "third", NULL);
	look(PAGE(3) + 100, released[0] ? "beside" : "------", "beside");
	look(PAGE(2), released[1] ? "other" : "-----", "other");
	/* No device ever had it. */
	expect_cpu(PAGE(600), "-----");
	store_cpu(PAGE(600), "mapped");
	expect_cpu(PAGE(600), "mapped");
	/* What is lost is lost until it is written over. */
	for (unsigned i = 1; i <= 3; i++) {
		cr_assert_eq(cpu_write(kf, whole, GAIA_PAGE, PAGE(i)), 0);
		expect_cpu(PAGE(i), "again");
	}
}

static void begin_gpus(void)
{
	char *line = malloc(GAIA_CHUNK);

	begin(&(struct rig_options){ .devices = 2, .device_chunks = 3 }, 4 * GAIA_CHUNK);
	memset(line, '-', GAIA_CHUNK);
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(cpu_write(kf, line, GAIA_CHUNK, i * (uint64_t)GAIA_CHUNK), 0);
	free(line);
}

static void each_in_turn(CUresult result)
{
	bool failed = true;

	for (unsigned nth = 1; failed; nth++) {
		begin_gpus();
		fake_cuda_fail(NULL, nth, result, false);
		play();
		failed = fake_cuda_failed();
		end(); /* nothing is left, in the cache or in the fake */
		cr_assert(failed || nth > 30);
	}
}

TestSuite(gpu, .timeout = 300);

Test(gpu, any_call_may_fail_once)
{
	each_in_turn(CUDA_ERROR_UNKNOWN);
}

Test(gpu, any_call_may_run_out_of_memory)
{
	each_in_turn(CUDA_ERROR_OUT_OF_MEMORY);
}
