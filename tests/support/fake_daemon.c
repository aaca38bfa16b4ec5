/*
 * fake_daemon.c - see fake_daemon.h. The functions of pagecache/cache.h that the control room calls
 * are defined here.
 */
#include "fake_daemon.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "control/internal.h"

#define FILES 64
#define DEVICES 8

struct cfile {
	ino_t ino;
};

struct granted {
	uint64_t idx;
	int fd;
	unsigned char *at;
	int ready;	/* a duplicate of fd, for the next grant; or -1 */
	bool held;	/* by the client */
	bool together;	/* it is part of an extent: fd is all of that */
	uint64_t seq;	/* of the message that brought it there */
	LIST_ENTRY(granted) link;
};

struct mapping {
	struct cfile *file;
	void *client;
	uint64_t id;
	unsigned prot;
	bool extents;
	LIST_HEAD(, granted) granted;
	LIST_ENTRY(mapping) link;
};

struct fake_gate fake_gate;
struct fake_errors fake_errors;
atomic_uint fake_chunks;
atomic_bool fake_extents;
sem_t fake_unmapped;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_cache fake_cache;
static LIST_HEAD(, mapping) mappings;
static struct cfile files[FILES];
static unsigned n_files;

static struct device device[DEVICES] = {
	{ .name = "sim0", .kind = "sim", .simulated = true, .capacity = 64 << 20 },
	{ .name = "odd1", .kind = "odd", .capacity = 32 << 20 },
};
static unsigned n_devices = 2;

static struct control *control;
static struct quota *quota;
uid_t fake_uid;
atomic_bool fake_holds;
uint64_t fake_lacks;

static int do_connect(struct gaia_ioc_connect *io)
{
	int err;

	io->features &= ~fake_lacks;
	err = control_connect(control, fake_uid, 0, io);
	io->features &= ~fake_lacks;
	return err;
}
static uv_loop_t loop;
static uv_async_t stop;
static pthread_t loop_thread;
static bool stopped;

/* ---- the cache ---- */

struct fake_cache fake_seen(void)
{
	struct fake_cache seen;

	pthread_mutex_lock(&lock);
	seen = fake_cache;
	pthread_mutex_unlock(&lock);
	return seen;
}

int cache_map(struct cfile *f, unsigned dev, void *client, struct cache_user user, uint64_t map_id, unsigned prot,
	      bool may_write, uint64_t off, uint64_t len, struct mapping **out)
{
	struct mapping *m = calloc(1, sizeof(*m));

	m->file = f;
	m->client = client;
	m->id = map_id;
	m->prot = prot;
	m->extents = user.extents;
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&mappings, m, link);
	fake_cache.maps++;
	fake_cache.live++;
	fake_cache.client = client;
	fake_cache.may_write = may_write;
	fake_cache.alone = user.alone;
	fake_cache.extents = user.extents;
	fake_cache.map_id = map_id;
	fake_cache.detects = false;
	fake_cache.prot = prot;
	fake_cache.off = off;
	fake_cache.len = len;
	pthread_mutex_unlock(&lock);
	*out = m;
	return 0;
}

void cache_unmapping(struct mapping *m)
{
	(void)m;
}

void cache_unmap(struct mapping *m, enum cache_left left)
{
	struct granted *g;

	pthread_mutex_lock(&lock);
	while ((g = LIST_FIRST(&m->granted))) {
		LIST_REMOVE(g, link);
		munmap(g->at, GAIA_CHUNK);
		close(g->fd);
		free(g);
	}
	LIST_REMOVE(m, link);
	fake_cache.unmaps++;
	fake_cache.kept += left == CACHE_KEPT;
	fake_cache.live--;
	pthread_mutex_unlock(&lock);
	free(m);
	sem_post(&fake_unmapped);
}

static struct granted *find_granted(struct mapping *m, uint64_t idx)
{
	struct granted *g;

	LIST_FOREACH(g, &m->granted, link) {
		if (g->idx == idx)
			return g;
	}
	return NULL;
}

/* A chunk whose first byte says which one it is, @from bytes from the beginning of the memory @fd. The lock is held. */
static struct granted *make_part(struct mapping *m, uint64_t idx, int fd, off_t from)
{
	struct granted *g = calloc(1, sizeof(*g));

	g->idx = idx;
	g->ready = -1;
	g->fd = fd;
	g->at = mmap(NULL, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, from);
	cr_assert_neq(g->at, MAP_FAILED);
	g->at[0] = idx;
	LIST_INSERT_HEAD(&m->granted, g, link);
	return g;
}

static int make_memory(off_t bytes)
{
	int fd = memfd_create("chunk", MFD_CLOEXEC);

	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, bytes), 0);
	return fd;
}

static struct granted *make_chunk(struct mapping *m, uint64_t idx)
{
	return make_part(m, idx, make_memory(GAIA_CHUNK), 0);
}

static void make_extent(struct mapping *m, uint64_t first)
{
	int fd = make_memory(GAIA_EXTENT);

	for (uint64_t k = 0; k < GAIA_EXTENT_CHUNKS; k++)
		make_part(m, first + k, k == 0 ? fd : fcntl(fd, F_DUPFD_CLOEXEC, 0), (off_t)k * GAIA_CHUNK)->together = true;
}

/* The chunks that the client maps together with this one. */
static unsigned chunks_with(struct mapping *m, uint64_t idx, uint64_t *first)
{
	bool together = find_granted(m, idx)->together;

	*first = together ? idx / GAIA_EXTENT_CHUNKS * GAIA_EXTENT_CHUNKS : idx;
	return together ? GAIA_EXTENT_CHUNKS : 1;
}

/* The client has them, or has not. The lock is held. */
static void set_held(struct mapping *m, uint64_t idx, bool held, const uint64_t *seq)
{
	unsigned n = chunks_with(m, idx, &idx);

	for (unsigned k = 0; k < n; k++) {
		struct granted *g = find_granted(m, idx + k);

		g->held = held;
		g->seq = seq ? *seq : g->seq;
	}
}

/* As the page cache: one packet at a time, and what the client could not map is handed over again. */
static int grant(struct mapping *m, const uint64_t *idx, const int *fd, unsigned n, uint64_t *seq)
{
	unsigned *chunks = xcalloc(n, sizeof(*chunks));
	struct handover *answer;
	int err = 0;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < n; i++)
		chunks[i] = chunks_with(m, idx[i], &(uint64_t){ 0 });
	pthread_mutex_unlock(&lock);
	for (unsigned i = 0, k; i < n; i += k) {
		k = n - i < GAIA_MSG_CHUNKS ? n - i : GAIA_MSG_CHUNKS;
		answer = NULL;
		if (!err)
			err = control_grant(m->client, m->id, m->prot, idx + i, fd + i, chunks + i, k, seq, &answer);
		else
			for (unsigned j = i; j < i + k; j++)
				close(fd[j]);
		if (!err && answer)
			err = control_granted(answer);
		pthread_mutex_lock(&lock);
		for (unsigned j = i; j < i + k; j++)
			set_held(m, idx[j], !err, seq);
		pthread_mutex_unlock(&lock);
	}
	free(chunks);
	return err;
}

static struct moved_bytes fake_moved; /* of all files */

int cache_acquire(struct mapping *m, uint64_t off, uint64_t len, unsigned prot, uint64_t *seq,
		  atomic_uint *verdict)
{
	uint64_t first = off / GAIA_CHUNK, last = (off + len - 1) / GAIA_CHUNK;
	/* Nothing is granted beyond the end, however long the range. */
	uint64_t most = fake_chunks ? MIN(last - first + 1, fake_chunks) : last - first + 1;
	uint64_t *idx = calloc(most, sizeof(*idx));
	int *fd = calloc(most, sizeof(*fd)), err;
	bool pin = prot & GAIA_PROT_PIN, bring = prot & (GAIA_PROT_READ | GAIA_PROT_WRITE) && !pin;
	uint64_t brought = 0;
	unsigned n = 0;

	if (bring)
		moved(&fake_moved, MOVED_to_device_bytes, GAIA_PAGE);
	if (fake_gate.armed && bring) {
		struct uses *waits = wait_begin(WAIT_room);

		sem_post(&fake_gate.entered);
		sem_wait(&fake_gate.leave);
		wait_end(waits, WAIT_room);
	}
	err = pin ? fake_errors.pin : bring ? fake_errors.acquire : 0;
	if (err)
		goto free_lists;
	pthread_mutex_lock(&lock);
	/* As the page cache: an acquire that was not announced is refused. */
	if ((prot & GAIA_PROT_PINNED) && fake_cache.pins <= 0) {
		pthread_mutex_unlock(&lock);
		err = -EINVAL;
		goto free_lists;
	}
	fake_cache.acquires += bring;
	fake_cache.pins += pin - !!(prot & GAIA_PROT_PINNED);
	fake_cache.off = off;
	fake_cache.len = len;
	fake_cache.prot = prot;
	for (uint64_t k = first; k <= last && (pin || bring); k++) {
		struct granted *g = find_granted(m, k);

		if (fake_chunks && k >= fake_chunks)
			break;
		if (!g && fake_extents && m->extents)
			make_extent(m, k / GAIA_EXTENT_CHUNKS * GAIA_EXTENT_CHUNKS);
		else if (!g)
			make_chunk(m, k);
		g = find_granted(m, k);
		if (g->held) {
			brought = g->seq > brought ? g->seq : brought;
			continue;
		}
		set_held(m, k, true, NULL);
		(void)chunks_with(m, k, &idx[n]);
		fd[n++] = g->ready >= 0 ? g->ready : fcntl(g->fd, F_DUPFD_CLOEXEC, 0);
		g->ready = -1;
	}
	pthread_mutex_unlock(&lock);
	if (n)
		err = grant(m, idx, fd, n, seq);
	else
		*seq = brought;
free_lists:
	free(idx);
	free(fd);
	return err;
}

int cache_acquirev(struct mapping *m, struct gaia_list_range *range, size_t n, unsigned prot, uint64_t *seq, atomic_uint *verdict)
{
	uint64_t its = 0;
	int err = 0;

	*seq = 0;
	for (size_t k = 0; k < n && !err; k++) {
		err = range[k].length ? cache_acquire(m, range[k].offset, range[k].length, prot, &its, verdict) : 0;
		*seq = its > *seq ? its : *seq;
	}
	return err;
}

int cache_releasev(struct mapping *m, struct gaia_list_range *range, size_t n, bool *changed)
{
	int err = 0;

	*changed = false;
	for (size_t k = 0; k < n && !err; k++)
		err = range[k].length ? cache_release(m, range[k].offset, range[k].length, changed) : 0;
	return err;
}

int cache_release(struct mapping *m, uint64_t off, uint64_t len, bool *changed)
{
	pthread_mutex_lock(&lock);
	fake_cache.releases++;
	fake_cache.off = off;
	fake_cache.len = len;
	pthread_mutex_unlock(&lock);
	*changed = false;
	return fake_errors.release;
}

int cache_give_back(struct mapping *m, uint64_t off, uint64_t len, bool *changed)
{
	int err = cache_release(m, off, len, changed);

	pthread_mutex_lock(&lock);
	fake_cache.given_back++;
	fake_cache.give_back_failed += err != 0;
	pthread_mutex_unlock(&lock);
	return err;
}

int cache_give_backv(struct mapping *m, struct gaia_list_range *range, size_t n, bool *changed)
{
	int err = cache_releasev(m, range, n, changed);

	pthread_mutex_lock(&lock);
	fake_cache.given_back++;
	fake_cache.give_back_failed += err != 0;
	pthread_mutex_unlock(&lock);
	return err;
}

void cache_map_detects(struct mapping *m)
{
	pthread_mutex_lock(&lock);
	fake_cache.detects = true;
	fake_cache.detects_id = m->id;
	pthread_mutex_unlock(&lock);
}

int cache_release_told(struct mapping *m, struct gaia_list_range *range, size_t n, struct gaia_list_range *told, size_t n_told,
		       bool unused, bool *changed)
{
	pthread_mutex_lock(&lock);
	fake_cache.told++;
	fake_cache.n_found = n_told;
	for (size_t k = 0; k < n_told && k < ARRAY_LEN(fake_cache.found); k++)
		fake_cache.found[k] = told[k];
	pthread_mutex_unlock(&lock);
	return unused ? cache_give_backv(m, range, n, changed) : cache_releasev(m, range, n, changed);
}

int cache_advise(struct mapping *m, uint64_t off, uint64_t len, unsigned advice)
{
	pthread_mutex_lock(&lock);
	fake_cache.advices++;
	pthread_mutex_unlock(&lock);
	return 0;
}

int cache_publish(struct cfile *f, off_t off, off_t len)
{
	pthread_mutex_lock(&lock);
	fake_cache.publishes++;
	pthread_mutex_unlock(&lock);
	return 0;
}

int cache_fsync(struct cfile *f, off_t off, off_t len, bool data_only)
{
	pthread_mutex_lock(&lock);
	fake_cache.syncs++;
	pthread_mutex_unlock(&lock);
	return 0;
}

unsigned cache_devices(struct cache *c)
{
	return n_devices;
}

bool cache_has_device(struct cache *c, unsigned number)
{
	return number < n_devices;
}

void cache_device(struct cache *c, unsigned i, struct cache_device_use *out)
{
	*out = (struct cache_device_use){ .dev = &device[i] };
}

unsigned fake_device(const char *kind, const unsigned char uuid[16])
{
	struct device *dev = &device[n_devices];

	cr_assert_lt(n_devices, DEVICES);
	*dev = (struct device){ .capacity = 64 << 20 };
	snprintf(dev->kind, sizeof(dev->kind), "%s", kind);
	snprintf(dev->name, sizeof(dev->name), "%s%u", kind, n_devices);
	memcpy(dev->uuid, uuid, sizeof(dev->uuid));
	return n_devices++;
}

json_t *cache_status_json(struct cache *c)
{
	return json_pack("{s:[], s:{}, s:[{s:i}], s:{s:i, s:i}}", "devices", "home", "races", "offset", 4096, "counters", "twins", 1, "dedup_found", 1);
}

void cache_mapping_amounts(const struct mapping *m, uint64_t amounts[static CLIENT_AMOUNT_COUNT])
{
	(void)m;
	amounts[CLIENT_device_bytes] += GAIA_CHUNK;
	amounts[CLIENT_pinned_bytes] += GAIA_PAGE;
}

bool cache_mapping_holds(const struct mapping *m)
{
	(void)m;
	return fake_holds;
}

int cache_sync_all(struct cache *c, json_t *unstored)
{
	return 0;
}

json_t *cache_use_json(struct cache *c)
{
	(void)c;
	return json_pack("{s:[]}", "files");
}

/* Says whose pins were asked for. */
json_t *cache_pins_json(struct cache *c, uid_t uid, bool all)
{
	(void)c;
	return json_pack("{s:[{s:i, s:b}]}", "pins", "uid", (int)uid, "all", (int)all);
}

json_t *cfile_residency_json(struct cfile *f)
{
	return json_pack("{s:[]}", "chunks");
}

/* ---- the mount ---- */

int fake_file(void)
{
	int fd = memfd_create("file", MFD_CLOEXEC);
	struct stat st;

	cr_assert_geq(fd, 0);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_lt(n_files, FILES);
	files[n_files++].ino = st.st_ino;
	return fd;
}

struct cfile *fake_cfile(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		return NULL;
	for (unsigned i = 0; i < n_files; i++) {
		if (files[i].ino == st.st_ino)
			return &files[i];
	}
	return NULL;
}

static int carry_out(int fd, unsigned long request, void *arg)
{
	struct cfile *f = fake_cfile(fd);
	int access = fcntl(fd, F_GETFL) & O_ACCMODE;

	if (!f)
		return -ENOTTY;
	if (stopped)
		return -ENOTCONN;
	switch (request) {
	case GAIA_IOC_CONNECT:
		return do_connect(arg);
	case GAIA_IOC_DEVICES:
		return control_devices(control, arg);
	case GAIA_IOC_MAP:
		return control_map(control, f, access != O_WRONLY, access != O_RDONLY, (struct control_caller){ .uid = fake_uid }, arg);
	case GAIA_IOC_UNMAP:
		return control_unmap(control, f, arg);
	case GAIA_IOC_ACQUIRE:
		return control_acquire(control, f, access != O_RDONLY, arg, NULL);
	case GAIA_IOC_RELEASE:
		return control_release(control, f, RELEASES_ANY, arg, &(bool){ false });
	case GAIA_IOC_LISTS:
		return control_lists(control, arg);
	case GAIA_IOC_ACQUIREV:
		return control_acquirev(control, f, access != O_RDONLY, arg, NULL);
	case GAIA_IOC_RELEASEV:
		return control_releasev(control, f, RELEASES_ANY, arg, &(bool){ false });
	case GAIA_IOC_SYNC:
		return control_sync(control, f, arg);
	case GAIA_IOC_ADVISE:
		return control_advise(control, f, arg);
	case GAIA_IOC_REPORT:
		return control_report(control, f, fake_uid, arg);
	}
	return -ENOTTY;
}

int fake_ioctl(int fd, unsigned long request, void *arg)
{
	int err = carry_out(fd, request, arg);

	if (!err)
		return 0;
	errno = -err;
	return -1;
}

/* ---- life ---- */

static void on_stop(uv_async_t *async)
{
	uv_close((uv_handle_t *)async, NULL);
	uv_stop(&loop);
}

static void *run_loop(void *arg)
{
	uv_run(&loop, UV_RUN_DEFAULT);
	control_destroy(control);
	uv_run(&loop, UV_RUN_DEFAULT);
	cr_assert_eq(uv_loop_close(&loop), 0);
	return NULL;
}

void fake_start(void)
{
	stopped = false;
	sem_init(&fake_unmapped, 0, 0);
	sem_init(&fake_gate.entered, 0, 0);
	sem_init(&fake_gate.leave, 0, 0);
	cr_assert_eq(uv_loop_init(&loop), 0);
	cr_assert_eq(uv_async_init(&loop, &stop, on_stop), 0);
	quota = quota_create(0);
	cr_assert_eq(control_create(&loop, NULL, quota, &control), 0);
	control_set_mount_info(control, json_pack("{s:s}", "version", "test"));
	cr_assert_eq(pthread_create(&loop_thread, NULL, run_loop, NULL), 0);
}

void fake_stop(void)
{
	stopped = true;
	uv_async_send(&stop);
	cr_assert_eq(pthread_join(loop_thread, NULL), 0);
	cr_assert_eq(fake_seen().live, 0);
	/* It says what has not been given back. */
	quota_destroy(quota);
}

struct quota *fake_quota(void)
{
	return quota;
}

struct control *fake_control(void)
{
	return control;
}

/* The lock is held. */
static struct mapping *find_mapping(uint64_t map_id)
{
	struct mapping *m;

	LIST_FOREACH(m, &mappings, link) {
		if (m->id == map_id)
			return m;
	}
	return NULL;
}

unsigned char *fake_chunk(uint64_t map_id, uint64_t idx)
{
	struct mapping *m;
	struct granted *g;

	pthread_mutex_lock(&lock);
	m = find_mapping(map_id);
	g = m ? find_granted(m, idx) : NULL;
	pthread_mutex_unlock(&lock);
	return g ? g->at : NULL;
}

int fake_revoke(uint64_t map_id, uint64_t idx)
{
	struct mapping *m;
	int err;

	pthread_mutex_lock(&lock);
	m = find_mapping(map_id);
	pthread_mutex_unlock(&lock);
	cr_assert_not_null(m);
	err = control_revoke(m->client, map_id, idx);
	pthread_mutex_lock(&lock);
	if (!err)
		set_held(m, idx, false, NULL);
	pthread_mutex_unlock(&lock);
	return err;
}

void fake_fill_socket(uint64_t map_id)
{
	static const struct gaia_msg nothing;
	struct mapping *m;

	pthread_mutex_lock(&lock);
	m = find_mapping(map_id);
	while (send(((struct client *)m->client)->fd, &nothing, sizeof(nothing), MSG_DONTWAIT) > 0)
		;
	pthread_mutex_unlock(&lock);
}

void fake_await_sender(uint64_t client)
{
	struct client *c;
	bool busy = false;

	while (!busy) {
		pthread_mutex_lock(&control->lock);
		HASH_FIND(hh, control->clients, &client, sizeof(client), c);
		cr_assert_not_null(c);
		busy = pthread_mutex_trylock(&c->send_lock);
		if (!busy)
			pthread_mutex_unlock(&c->send_lock);
		pthread_mutex_unlock(&control->lock);
		sched_yield();
	}
}

void fake_await_sent(uint64_t client)
{
	struct client *c;

	pthread_mutex_lock(&control->lock);
	HASH_FIND(hh, control->clients, &client, sizeof(client), c);
	cr_assert_not_null(c);
	pthread_mutex_lock(&c->send_lock);
	pthread_mutex_unlock(&c->send_lock);
	pthread_mutex_unlock(&control->lock);
}

unsigned fake_revoke_all(uint64_t idx)
{
	struct cache_revoke list[64];
	struct mapping *m;
	unsigned n = 0, given = 0;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(m, &mappings, link) {
		cr_assert_lt(n, sizeof(list) / sizeof(list[0]));
		list[n++] = (struct cache_revoke){ .client = m->client, .map = m->id, .idx = idx };
	}
	pthread_mutex_unlock(&lock);
	control_revoke_many(list, n);
	while (n > 0)
		given += !list[--n].err;
	return given;
}

unsigned fake_revoke_many(uint64_t map_id, unsigned n)
{
	struct cache_revoke *list = xcalloc(n, sizeof(*list));
	struct mapping *m;
	unsigned given = 0;

	pthread_mutex_lock(&lock);
	m = find_mapping(map_id);
	pthread_mutex_unlock(&lock);
	cr_assert_not_null(m);
	for (unsigned i = 0; i < n; i++)
		list[i] = (struct cache_revoke){ .client = m->client, .map = m->id, .idx = i };
	control_revoke_many(list, n);
	for (unsigned i = 0; i < n; i++)
		given += !list[i].err;
	free(list);
	return given;
}

void fake_prepare(uint64_t map_id, uint64_t first, unsigned n)
{
	struct mapping *m;

	pthread_mutex_lock(&lock);
	m = find_mapping(map_id);
	for (uint64_t k = first; k < first + n; k++) {
		struct granted *g = make_chunk(m, k);

		g->ready = fcntl(g->fd, F_DUPFD_CLOEXEC, 0);
	}
	pthread_mutex_unlock(&lock);
}

void fake_disconnect(void)
{
	client_disconnect(fake_cache.client);
}

bool fake_alive(void)
{
	bool alive;

	/* Its last mapping keeps a client, and goes only under the lock. */
	pthread_mutex_lock(&lock);
	alive = fake_cache.live && control_alive(fake_cache.client);
	pthread_mutex_unlock(&lock);
	return alive;
}

void *fake_client(uint64_t map_id)
{
	void *client;

	pthread_mutex_lock(&lock);
	client = find_mapping(map_id)->client;
	pthread_mutex_unlock(&lock);
	return client;
}
