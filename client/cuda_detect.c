/*
 * cuda_detect.c - finding what has changed on a GPU: by a kernel in the mapping's context, so that no other process's kernel takes its turn on the
 * GPU for it. Calls that wait use a stream of the mapping's own; those in the order of a stream put it there.
 *
 * The kernel is loaded once for the process (a library, since CUDA 12.0), and launched once when a mapping is made: a first launch may have to load
 * it, which may wait for streams, and those may be waiting for us.
 */
#include <errno.h>
#include <stdlib.h>

#include "cuda_client.h"
#include "cuda_detect.h"

/* Made from cuda_detect.cu. */
extern const unsigned char gaia_detect_image[];

/* As CUDA_ENTRY_POINTS. Without one of these the daemon finds out itself. */
#define DETECT_ENTRY_POINTS(X)                                                                                        \
	X(LibraryLoadData, (CUlibrary *library, const void *code, CUjit_option *jit, void **jit_values, unsigned n_jit, \
			    CUlibraryOption *options, void **values, unsigned n))                                       \
	X(LibraryGetKernel, (CUkernel *kernel, CUlibrary library, const char *name))                                    \
	X(LaunchKernel, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,    \
			 unsigned shared, CUstream stream, void **params, void **extra))                                \
	X(MemAlloc, (CUdeviceptr *at, size_t bytes))                                                                    \
	X(MemFree, (CUdeviceptr at))                                                                                    \
	X(StreamCreate, (CUstream *stream, unsigned flags))                                                             \
	X(StreamDestroy, (CUstream stream))                                                                             \
	X(StreamGetId, (CUstream stream, unsigned long long *id))

static struct {
#define X(name, args) CUresult (*name) args;
	DETECT_ENTRY_POINTS(X)
#undef X
} api;

/* What a mapping needs. */
struct cuda_detect {
	CUdeviceptr hash;	/* struct page_hash of each page of the span */
	uint8_t *changed;	/* of each page; registered host memory, */
	size_t bytes;		/* so many; */
	CUdeviceptr changed_dev; /* the same for the device */
	CUstream stream;
};

static CUkernel kernel;

/* In some context. */
static int load(void)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static CUlibrary library;
	bool complete = true;
	CUresult r = CUDA_SUCCESS;

	pthread_mutex_lock(&lock);
#define X(name, args) complete &= (api.name = (CUresult(*) args)cuda_lookup("cu" #name)) != NULL;
	DETECT_ENTRY_POINTS(X)
#undef X
	if (complete && !library)
		r = api.LibraryLoadData(&library, gaia_detect_image, NULL, NULL, 0, NULL, NULL, 0);
	if (complete && !r && !kernel)
		r = api.LibraryGetKernel(&kernel, library, DETECT_KERNEL);
	pthread_mutex_unlock(&lock);
	return complete ? cuda_errno(r) : -ENOSYS;
}

/* ---- launches ---- */

static CUresult launch(struct detect_work *work, CUstream stream)
{
	unsigned blocks = work->n_pages > 0 ? (work->n_pages + DETECT_PAGES_A_BLOCK - 1) / DETECT_PAGES_A_BLOCK : 1;
	void *params[] = { work };

	return api.LaunchKernel((CUfunction)kernel, blocks, 1, 1, DETECT_WARPS * 32, 1, 1, 0, stream, params, NULL);
}

static struct detect_work work_of(const struct mapping *m, const struct cuda_detect *own, bool compare)
{
	return (struct detect_work){
		.base = m->base,
		.hash = (struct page_hash *)own->hash,
		.changed = compare ? (uint8_t *)own->changed_dev : NULL,
	};
}

static CUresult detect_on(const struct mapping *m, const struct detect_runs *rs, bool compare, CUstream stream)
{
	const struct cuda_detect *own = ((struct cuda_mapping *)m->own)->detect;
	struct detect_work work = work_of(m, own, compare);
	CUresult r = CUDA_SUCCESS;

	for (size_t k = 0; k < rs->n && !r; k++) {
		if (!rs->at[k].compare)
			continue;
		work.run[work.n_runs++] = (struct detect_pages){ (uint32_t)rs->at[k].page, work.n_pages };
		work.n_pages += rs->at[k].n;
		if (work.n_runs < DETECT_RUNS)
			continue;
		r = launch(&work, stream);
		work.n_runs = work.n_pages = 0;
	}
	return r || work.n_pages == 0 ? r : launch(&work, stream);
}

int cuda_detect_on(const struct mapping *m, const struct detect_runs *rs, bool compare, CUstream stream)
{
	return cuda_errno(detect_on(m, rs, compare, stream));
}

uint64_t cuda_detect_stream(CUstream stream)
{
	unsigned long long id;

	return api.StreamGetId(stream, &id) ? 0 : id + 1;
}

int cuda_detect(struct mapping *m, const struct detect_runs *rs, bool compare)
{
	struct cuda_mapping *c = m->own;
	struct cuda_scope scope;
	CUresult r;

	cuda_begin(&scope);
	r = cuda_enter(&scope, c);
	if (!r)
		r = detect_on(m, rs, compare, c->detect->stream);
	if (!r)
		r = cuda_api.StreamSynchronize(c->detect->stream);
	cuda_end(&scope);
	return cuda_errno(r);
}

/* ---- what a mapping needs ---- */

/* Host memory that the kernel writes to, of @own->bytes. */
static CUresult make_changed(struct cuda_detect *own)
{
	void *at = mmap(NULL, own->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CUresult r;

	if (at == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	/* As for flags (cuda_stream.c). */
	madvise(at, own->bytes, MADV_DONTFORK);
	r = cuda_api.MemHostRegister(at, own->bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	if (r) {
		munmap(at, own->bytes);
		return r;
	}
	own->changed = at;
	return cuda_api.MemHostGetDevicePointer(&own->changed_dev, at, 0);
}

/* In the mapping's context. @ended: nothing uses it any more. */
static void end(struct cuda_detect *own, bool ended)
{
	if (own->stream)
		api.StreamDestroy(own->stream);
	if (own->hash)
		api.MemFree(own->hash);
	if (own->changed)
		cuda_api.MemHostUnregister(own->changed);
	if (own->changed && ended)
		munmap(own->changed, own->bytes);
	free(own);
}

static CUresult make(struct mapping *m, struct cuda_detect *own)
{
	struct detect_work nothing;
	CUresult r;

	own->bytes = (m->span / GAIA_PAGE + GAIA_PAGE - 1) / GAIA_PAGE * GAIA_PAGE;
	r = api.StreamCreate(&own->stream, CU_STREAM_NON_BLOCKING);
	if (!r)
		r = api.MemAlloc(&own->hash, m->span / GAIA_PAGE * sizeof(struct page_hash));
	if (!r)
		r = make_changed(own);
	if (r)
		return r;
	nothing = work_of(m, own, false);
	r = launch(&nothing, own->stream);
	return r ? r : cuda_api.StreamSynchronize(own->stream);
}

int cuda_detect_make(struct mapping *m, struct detect *d)
{
	struct cuda_mapping *c = m->own;
	struct cuda_detect *own = calloc(1, sizeof(*own));
	struct cuda_scope scope;
	int err;

	if (!own)
		return -ENOMEM;
	cuda_begin(&scope);
	err = cuda_errno(cuda_enter(&scope, c));
	if (!err)
		err = load();
	if (!err)
		err = cuda_errno(make(m, own));
	if (err) {
		end(own, true);
	} else {
		c->detect = own;
		d->changed = own->changed;
	}
	cuda_end(&scope);
	return err;
}

void cuda_detect_end(struct cuda_mapping *c, bool ended)
{
	if (c->detect)
		end(c->detect, ended);
	c->detect = NULL;
}
