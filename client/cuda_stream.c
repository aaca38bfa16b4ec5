/*
 * cuda_stream.c - acquires and releases in the order of a stream.
 *
 * On the stream: a host function, which says that the stream has come to this point, and a wait for a
 * word of memory. The host function hands the acquire or release to the connection's turns (turns.c).
 * Their thread carries it out, notes its error, and writes the word. The word is written whatever
 * happens, so that no stream waits for ever because of a daemon that is gone.
 *
 * If changes are found here (detect.c) the stream hashes what has been acquired behind the wait, and compares what is to be released before
 * the host function.
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

/*
 * One page for each mapping, not one for all: the page lives as long as the mapping's context, and when
 * the program ends a context, only that context's mappings lose their flags.
 */
void cuda_flags_make(struct cuda_mapping *c)
{
	uint32_t *flag;

	flag = mmap(NULL, GAIA_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (flag == MAP_FAILED)
		return;
	/* Otherwise, after a fork(), this process's writes could go to another page than the one that the device sees. */
	madvise(flag, GAIA_PAGE, MADV_DONTFORK);
	if (cuda_api.MemHostRegister(flag, GAIA_PAGE,
				     CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP)) {
		munmap(flag, GAIA_PAGE);
		return;
	}
	c->flag = flag;
	if (cuda_api.MemHostGetDevicePointer(&c->flag_dev, flag, 0)) {
		cuda_flags_end(c, true);
		c->flag = NULL;
	}
}

void cuda_flags_end(struct cuda_mapping *c, bool ended)
{
	if (!c->flag)
		return;
	cuda_api.MemHostUnregister(c->flag);
	if (ended)
		munmap(c->flag, GAIA_PAGE);
}

/*
 * Give @t a flag that no other turn uses: 0 or -EAGAIN. A flag is free again as soon as it is written:
 * a stream that still looks at it sees that value or a later one. The lock is held.
 */
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
	c->reached[t->flag] = t->value;
	c->taken[t->flag / 64] &= ~(1ull << (t->flag % 64));
}

/* ---- queueing ---- */

/*
 * 0 if the stream can be used, else an errno. It must be one of the mapping's context, because the
 * library knows when that one is not used any more. It must not be captured: each launch of the graph
 * would repeat the call.
 */
static int check_stream(struct cuda_scope *scope, const struct cuda_mapping *c, CUstream stream)
{
	CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
	CUcontext now = NULL, owner = NULL;
	CUresult r;

	r = cuda_api.CtxGetCurrent(&now);
	/* A thread without a context gets the mapping's: it may pass the default stream. */
	if (!r && !now)
		r = cuda_enter(scope, c);
	if (!r)
		r = cuda_api.StreamGetCtx(stream, &owner);
	if (!r && owner == c->ctx)
		r = cuda_api.StreamIsCapturing(stream, &capture);
	if (!r && owner == c->ctx && now != c->ctx)
		r = now ? cuda_enter(scope, c) : CUDA_SUCCESS;
	if (r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || r == CUDA_ERROR_INVALID_HANDLE ||
	    r == CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return -EINVAL;
	if (r)
		return cuda_errno(r);
	return owner != c->ctx || capture != CU_STREAM_CAPTURE_STATUS_NONE ? -EINVAL : 0;
}

/* A host function: it must not call CUDA, nor block. */
static void CUDA_CB stream_is_here(void *arg)
{
	turn_ready(arg);
}

/* The turn that writes @value to @flag, if no stream has reached it yet, or NULL. turns_lock is held. */
static struct turn *find_queued(const struct mapping *m, unsigned flag, uint32_t value)
{
	struct turn *turn;

	LIST_FOREACH(turn, &m->turns_queued, queued) {
		const struct cuda_turn *t = (const struct cuda_turn *)turn;

		if (t->flag == flag && t->value == value)
			break;
	}
	return turn;
}

/* Wait for the turn on the calling thread: for devices whose streams cannot wait for memory. */
static int wait_here(struct mapping *m, CUstream stream, unsigned flag, uint32_t value)
{
	const struct cuda_mapping *c = m->own;
	CUresult r = cuda_api.StreamSynchronize(stream);
	struct turn *left;

	pthread_mutex_lock(&turns_lock);
	/* In a broken context the stream may never reach the turn. If it has, the turn will be carried out. */
	left = r ? find_queued(m, flag, value) : NULL;
	if (left)
		turn_abandon(left);
	while ((int32_t)(c->reached[flag] - value) < 0)
		pthread_cond_wait(&m->conn->turns.changed, &turns_lock);
	pthread_mutex_unlock(&turns_lock);
	return left ? cuda_errno(r) : 0;
}

/* ---- what changes, in the order of the stream ---- */

/*
 * Held while a release is noted and its comparison queued: an acquire that is noted in between would count as behind it on the same stream, and be
 * queued before it, so that the release found what the acquire remembers. Before gaia_lock.
 */
static pthread_mutex_t detect_order = PTHREAD_MUTEX_INITIALIZER;

/* The turn comes next on the stream. */
static void detect_before(struct mapping *m, struct turn *t, CUstream stream)
{
	const struct gaia_list_range range = range_of(&t->io);
	uint64_t id = cuda_detect_stream(stream);

	pthread_mutex_lock(&detect_order);
	if (!t->release) {
		detect_acquire(m, &range, 1, (int)(t->io.prot & (GAIA_PROT_READ | GAIA_PROT_WRITE)), id);
		detect_settled(m, &range, 1, true);
	} else {
		detect_queue_release(m, &range, id, &t->runs);
		/* Then what it finds is not known. */
		if (cuda_detect_on(m, &t->runs, true, stream))
			detect_lost(m);
	}
	pthread_mutex_unlock(&detect_order);
}

/* An acquire has come; or its stream may never come to it (@err). */
static void detect_behind(struct mapping *m, const struct gaia_list_range *range, int err, CUstream stream)
{
	struct detect_runs rs = { .n = 0 };

	if (err) {
		detect_lost(m);
		return;
	}
	detect_queue_acquired(m, range, &rs);
	detect_queue_hashed(m, &rs, cuda_detect_on(m, &rs, false, stream) == 0);
	detect_runs_free(&rs);
}

static void detect_not_queued(struct mapping *m, const struct turn *t)
{
	const struct gaia_list_range range = range_of(&t->io);

	if (!t->release) {
		detect_dropped(m, &range, 1);
		return;
	}
	/* It counts as released here, and is held. */
	detect_lost(m);
	detect_queue_released(m, &range);
}

/* Called in the mapping's context. */
static int queue_turn(struct mapping *m, const struct gaia_ioc_range *io, bool release,
		      CUstream stream)
{
	struct cuda_turn *t = calloc(1, sizeof(*t));
	const struct gaia_list_range range = range_of(io);
	struct cuda_mapping *c = m->own;
	CUdeviceptr word;
	unsigned flag;
	uint32_t value;
	CUresult r;
	int err;

	if (!t)
		return -ENOMEM;
	t->turn = (struct turn){ .m = m, .io = *io, .release = release, .done = write_flag };
	atomic_store(&c->used, true);
	pthread_mutex_lock(&turns_lock);
	err = take_flag(c, t);
	if (!err)
		turn_queued(&t->turn);
	pthread_mutex_unlock(&turns_lock);
	if (err)
		goto free_turn;
	flag = t->flag;
	word = c->flag_dev + t->flag * sizeof(*c->flag);
	value = t->value;
	if (m->detect)
		detect_before(m, &t->turn, stream);

	r = cuda_api.LaunchHostFunc(stream, stream_is_here, &t->turn);
	if (r) {
		err = cuda_errno(r);
		goto take_back;
	}
	/* From here on the turn belongs to the thread. */
	r = cuda_api.StreamWaitValue32(stream, word, value, CU_STREAM_WAIT_VALUE_GEQ);
	err = r ? wait_here(m, stream, flag, value) : 0;
	if (m->detect && !release)
		detect_behind(m, &range, err, stream);
	return err;

take_back:
	if (m->detect)
		detect_not_queued(m, &t->turn);
	pthread_mutex_lock(&turns_lock);
	turn_not_queued(&t->turn);
	write_flag(&t->turn);
	pthread_mutex_unlock(&turns_lock);
free_turn:
	detect_runs_free(&t->turn.runs);
	free(t);
	return err;
}

int cuda_queue(struct mapping *m, const struct gaia_ioc_range *io, bool release,
	       struct CUstream_st *stream)
{
	struct cuda_mapping *c = m->own;
	struct cuda_scope scope;
	int err;

	cuda_begin(&scope);
	err = check_stream(&scope, c, stream);
	if (!err && !c->flag)
		err = -EIO;
	if (!err)
		err = turns_start(m->conn);
	if (!err)
		err = queue_turn(m, io, release, stream);
	cuda_end(&scope);
	return err;
}
