/*
 * cuda_stream.c - acquires and releases in the order of a stream.
 *
 * On the stream: a host function, which says that the stream has come to this point, and a wait for
 * a word of memory. The host function hands the acquire or release to the connection's turns
 * (turns.c), whose thread carries it out, notes what went wrong, and writes the word. It is written
 * whatever happens: no stream waits for ever because of a daemon that is gone.
 */
#include <errno.h>
#include <stdlib.h>

#include "cuda_client.h"

struct cuda_turn {
	struct turn turn;
	unsigned flag;
	uint32_t value; /* the stream waits for flag >= value */
};

/* ---- flags ---- */

static void end_flags(uint32_t *flag)
{
	cuda_api.MemHostUnregister(flag);
	munmap(flag, GAIA_PAGE);
}

static int new_flags(uint32_t **out, CUdeviceptr *dev)
{
	uint32_t *flag;
	CUresult r;

	flag = mmap(NULL, GAIA_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (flag == MAP_FAILED)
		return -ENOMEM;
	/* After a fork() the page that we write could be another one than the device's. */
	madvise(flag, GAIA_PAGE, MADV_DONTFORK);
	r = cuda_api.MemHostRegister(flag, GAIA_PAGE,
				     CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (r) {
		munmap(flag, GAIA_PAGE);
		return cuda_errno(r);
	}
	r = cuda_api.MemHostGetDevicePointer(dev, flag, 0);
	if (r) {
		end_flags(flag);
		return cuda_errno(r);
	}
	*out = flag;
	return 0;
}

static int make_flags(struct cuda_mapping *c)
{
	uint32_t *flag = NULL;
	CUdeviceptr dev;
	bool have;
	int err;

	pthread_mutex_lock(&turns_lock);
	have = c->flag != NULL;
	pthread_mutex_unlock(&turns_lock);
	if (have)
		return 0;
	/* Not under the lock, which host functions take: the driver may wait for them. */
	err = new_flags(&flag, &dev);
	if (err)
		return err;
	pthread_mutex_lock(&turns_lock);
	have = c->flag != NULL;
	if (!have) {
		c->flag = flag;
		c->flag_dev = dev;
	}
	pthread_mutex_unlock(&turns_lock);
	if (have)
		end_flags(flag);
	return 0;
}

/* The lock is held. A flag is free again as soon as it is written: who still looks at it sees at
 * least that. */
static int take_flag(struct cuda_mapping *c, struct cuda_turn *t)
{
	for (unsigned i = 0; i < CUDA_FLAGS; i++) {
		if (c->taken[i / 64] >> (i % 64) & 1)
			continue;
		c->taken[i / 64] |= 1ull << (i % 64);
		t->flag = i;
		t->value = ++c->awaited[i];
		return 0;
	}
	return -EAGAIN;
}

/* The lock is held. */
static void write_flag(struct turn *turn)
{
	struct cuda_turn *t = (struct cuda_turn *)turn;
	struct cuda_mapping *c = turn->m->own;

	__atomic_store_n(&c->flag[t->flag], t->value, __ATOMIC_RELEASE);
	c->taken[t->flag / 64] &= ~(1ull << (t->flag % 64));
}

void cuda_queue_end(struct cuda_mapping *c, bool ended)
{
	if (!c->flag)
		return;
	if (ended)
		end_flags(c->flag);
	else
		cuda_api.MemHostUnregister(c->flag);
}

/* ---- queueing ---- */

/* Only in the mapping's context can we tell when it is used no more; and a graph would run us again
 * and again. */
static int check_stream(const struct cuda_mapping *c, CUstream stream)
{
	CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
	CUcontext now = NULL, owner = NULL;
	bool entered;
	CUresult r;

	r = cuda_api.CtxGetCurrent(&now);
	if (r)
		return cuda_errno(r);
	/* A thread that has none yet gets the mapping's: it may name the default stream. */
	entered = !now;
	if (entered) {
		int err = cuda_enter(c);

		if (err)
			return err;
	}
	r = cuda_api.StreamGetCtx(stream, &owner);
	if (!r && owner == c->ctx)
		r = cuda_api.StreamIsCapturing(stream, &capture);
	if (entered)
		cuda_leave();
	if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || r == CUDA_ERROR_INVALID_HANDLE ||
	    r == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return -EINVAL;
	if (r)
		return cuda_errno(r);
	return owner != c->ctx || capture != CU_STREAM_CAPTURE_STATUS_NONE ? -EINVAL : 0;
}

/* No call of CUDA, and no blocking, in a host function. */
static void CUDA_CB stream_is_here(void *arg)
{
	turn_ready(arg);
}

/* The stream cannot wait: so we do. */
static int wait_here(struct conn *conn, CUstream stream, const uint32_t *flag, uint32_t value)
{
	CUresult r = cuda_api.StreamSynchronize(stream);

	/* In a broken context it may never come to be ready. */
	if (r)
		return cuda_errno(r);
	pthread_mutex_lock(&turns_lock);
	while ((int32_t)(*flag - value) < 0)
		pthread_cond_wait(&conn->turns.changed, &turns_lock);
	pthread_mutex_unlock(&turns_lock);
	return 0;
}

/* In the mapping's context. */
static int queue_turn(struct cuda_mapping *c, struct cuda_turn *t, CUstream stream)
{
	struct conn *conn = t->turn.m->conn;
	CUdeviceptr word;
	uint32_t *flag, value;
	CUresult r;
	int err;

	err = make_flags(c);
	if (err)
		goto free_turn;
	pthread_mutex_lock(&turns_lock);
	err = take_flag(c, t);
	if (!err)
		turn_queued(&t->turn);
	pthread_mutex_unlock(&turns_lock);
	if (err)
		goto free_turn;
	flag = &c->flag[t->flag];
	word = c->flag_dev + t->flag * sizeof(*c->flag);
	value = t->value;

	r = cuda_api.LaunchHostFunc(stream, stream_is_here, &t->turn);
	if (r) {
		err = cuda_errno(r);
		goto take_back;
	}
	/* From here on the turn is not ours. */
	r = cuda_api.StreamWaitValue32(stream, word, value, CU_STREAM_WAIT_VALUE_GEQ);
	return r ? wait_here(conn, stream, flag, value) : 0;

take_back:
	pthread_mutex_lock(&turns_lock);
	turn_not_queued(&t->turn);
	write_flag(&t->turn);
	pthread_mutex_unlock(&turns_lock);
free_turn:
	free(t);
	return err;
}

int cuda_queue(struct mapping *m, const struct gaia_ioc_range *io, bool release,
	       struct CUstream_st *stream)
{
	struct cuda_turn *t;
	int err;

	err = check_stream(m->own, stream);
	if (err)
		return err;
	err = turns_start(m->conn);
	if (err)
		return err;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->turn = (struct turn){ .m = m, .io = *io, .release = release, .done = write_flag };
	err = cuda_enter(m->own);
	if (err) {
		free(t);
		return err;
	}
	err = queue_turn(m->own, t, stream);
	cuda_leave();
	return err;
}
