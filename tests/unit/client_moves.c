/*
 * client_moves.c - tests of client/gate.c and of what uses it, while a mount goes from one daemon to another: what comes in an order that real daemons
 * seldom bring about. The tests are the daemons: they say what is sent, and answer ioctls. The device is simulated, or (ON_GPU) a GPU of a fake driver.
 */
#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../client/internal.h"
#include "gaia/client.h"
#include "gaia/cuda.h"
#include "thread_sleeps.h"

#ifdef ON_GPU
#include "../../client/cuda_client.h"
#include "fake_cuda.h"
#define KIND "cuda"
#else
#define KIND "sim"
#endif

#define RW (PROT_READ | PROT_WRITE)
#define LENGTH ((size_t)GAIA_CHUNK)
#define SECONDS 120 /* a call that hangs */

static int file, listener;
static struct sockaddr_un name;
static socklen_t name_len;

/* The connections so far; the last is to the daemon that has the mount. */
static int sock[4];
static atomic_int n_socks;
static uint64_t seq;
static sem_t welcomed;
static atomic_bool late; /* the next is welcomed when it may be */
static sem_t may_welcome;

/* What was asked, and how the next ioctl is answered. */
static atomic_int maps, acquires, releases;
static int (*on_acquire)(void), (*on_release)(void);
static atomic_int push_error; /* of the next wire_push() */
static uint8_t uuid[16];

static void *greet(void *arg)
{
	struct gaia_msg msg;

	for (;;) {
		int s = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (s < 0)
			return NULL;
		if (recv(s, &msg, sizeof(msg), 0) != sizeof(msg) || msg.kind != GAIA_MSG_HELLO)
			abort();
		if (atomic_exchange(&late, false))
			sem_wait(&may_welcome);
		msg = (struct gaia_msg){ .kind = GAIA_MSG_WELCOME, .version = GAIA_PROTOCOL_VERSION, .seq = 1 };
		seq = 1;
		sock[n_socks] = s;
		n_socks++; /* it is there from now on */
		if (send(s, &msg, sizeof(msg), MSG_NOSIGNAL) != sizeof(msg))
			abort();
		sem_post(&welcomed);
	}
}

static int answer(int fd, unsigned long request, void *arg)
{
	int (*fn)(void) = NULL;
	int err = 0;

	switch (request) {
	case GAIA_IOC_CONNECT: {
		struct gaia_ioc_connect *io = arg;

		io->version = GAIA_PROTOCOL_VERSION;
		io->features = GAIA_FEATURES;
		memcpy(io->socket, name.sun_path + 1, sizeof(io->socket));
		break;
	}
	case GAIA_IOC_DEVICES: {
		struct gaia_ioc_devices *io = arg;

		io->total = io->count = 1;
		strcpy(io->device[0].kind, KIND);
		memcpy(io->device[0].uuid, uuid, sizeof(uuid));
		break;
	}
	case GAIA_IOC_MAP:
		((struct gaia_ioc_map *)arg)->map = (uint64_t)++maps;
		((struct gaia_ioc_map *)arg)->release = GAIA_RELEASE_BY_IOCTL;
		break;
	case GAIA_IOC_ACQUIRE:
		acquires++;
		fn = on_acquire;
		on_acquire = NULL;
		break;
	case GAIA_IOC_RELEASE:
		releases++;
		fn = on_release;
		on_release = NULL;
		break;
	}
	if (fn)
		err = fn();
	errno = err;
	return err ? -1 : 0;
}

static int push(int fd, off_t off, off_t len)
{
	errno = atomic_exchange(&push_error, 0);
	return errno ? -1 : 0;
}

/* ---- the daemon ---- */

static void say_with(uint32_t kind, uint64_t map, uint32_t count)
{
	struct gaia_msg msg = { .kind = kind, .version = GAIA_PROTOCOL_VERSION, .seq = ++seq, .map = map, .count = count };

	cr_assert_eq(send(sock[n_socks - 1], &msg, sizeof(msg), MSG_NOSIGNAL), (ssize_t)sizeof(msg));
}

static void say(uint32_t kind)
{
	say_with(kind, 0, 0);
}

static void hear_ready(void)
{
	struct gaia_msg msg;

	cr_assert_eq(recv(sock[n_socks - 1], &msg, sizeof(msg), 0), (ssize_t)sizeof(msg));
	cr_assert_eq(msg.kind, GAIA_MSG_READY);
	cr_assert_eq(msg.error, 0);
}

static void ask(void)
{
	say(GAIA_MSG_MOVE);
	hear_ready();
}

/* The daemon ends; what was sent can still be read. The program may come to the next one before that. */
static void hand_over(void)
{
	int old = sock[n_socks - 1];

	say(GAIA_MSG_MOVED);
	cr_assert_eq(close(old), 0);
}

/* ---- the program ---- */

static unsigned char *at;

#ifdef ON_GPU
static void have_gpus(void)
{
	const struct fake_cuda_config config = { .n_devices = 2, .memory = 64 << 20 };

	fake_cuda_reset(&config);
	cuda_lookup = fake_cuda_entry;
	fake_cuda_uuid(0, uuid);
}
#endif

static void begin(void)
{
	pthread_t greeter;

	sem_init(&welcomed, 0, 0);
	sem_init(&may_welcome, 0, 0);
#ifdef ON_GPU
	have_gpus();
#endif
	name.sun_family = AF_UNIX;
	name_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
			       (size_t)snprintf(name.sun_path + 1, 40, "gaiafs-moves/%d", (int)getpid()));
	listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	cr_assert(listener >= 0 && !bind(listener, (struct sockaddr *)&name, name_len) && !listen(listener, 8));
	cr_assert(!pthread_create(&greeter, NULL, greet, NULL) && !pthread_detach(greeter));
	file = memfd_create("file", MFD_CLOEXEC);
	wire_sys.ioctl = answer;
	wire_sys.push = push;
	at = gaia_mmap(LENGTH, RW, file, 0, 0);
	cr_assert_neq(at, MAP_FAILED, "%s", gaia_last_error_text());
	sem_wait(&welcomed);
}

TestSuite(client_moves, .init = begin, .timeout = SECONDS);

static bool runs(const char *thread)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *e;
	char path[300], comm[32];
	bool found = false;

	while ((e = readdir(tasks))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (!f)
			continue;
		if (fgets(comm, sizeof(comm), f))
			found |= !strcmp(strtok(comm, "\n"), thread);
		fclose(f);
	}
	closedir(tasks);
	return found;
}

static void is_moved(void)
{
	sem_wait(&welcomed);
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0, "%s", gaia_last_error_text());
	cr_assert_eq(gaia_release(at, LENGTH), 0, "%s", gaia_last_error_text());
	cr_assert_eq(maps, 2);
}

/* The daemon has ended meanwhile: the answer to what comes first cannot be sent. */
Test(client_moves, is_heard_of_though_an_answer_is_owed)
{
	ask();
	pthread_mutex_lock(&gaia_lock);
	say_with(GAIA_MSG_REVOKE, 1, 1);
	hand_over();
	pthread_mutex_unlock(&gaia_lock);
	is_moved();
}

/* The kernel reports this before what is there to be read. */
Test(client_moves, is_heard_of_though_an_answer_was_not_read)
{
	struct pollfd p = { .fd = sock[0], .events = POLLIN };

	say(GAIA_MSG_MOVE);
	cr_assert_eq(poll(&p, 1, SECONDS * 1000), 1);
	pthread_mutex_lock(&gaia_lock);
	hand_over();
	pthread_mutex_unlock(&gaia_lock);
	is_moved();
}

/* ---- a connection that ends ---- */

/* Another thread finds out, and a MOVE is there to be read. */
static int kill_it(void)
{
	struct mapping *m = mapping_find((char *)at, LENGTH);

	pthread_mutex_lock(&gaia_lock);
	say(GAIA_MSG_MOVE);
	conn_kill(m->conn, -ENOTCONN);
	pthread_mutex_unlock(&gaia_lock);
	mapping_put(m);
	while (runs("gaia"))
		usleep(1000);
	return ENOTCONN;
}

Test(client_moves, nobody_waits_for_a_connection_that_has_ended)
{
	on_acquire = kill_it;
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), -1);
	cr_assert_eq(errno, ENOTCONN);
	cr_assert_eq(gaia_munmap(at, LENGTH), 0);
}

/* ---- acquires, while it may move ---- */

static sem_t interrupted;
static int starter; /* the thread that acquires what was started */

/* The acquire comes to the gate again. */
static int ask_and_interrupt(void)
{
	ask();
	starter = gettid();
	sem_post(&interrupted);
	return EINTR;
}

static unsigned calls_inside(void)
{
	struct mapping *m = mapping_find((char *)at, LENGTH);
	unsigned calls;

	pthread_mutex_lock(&gaia_lock);
	calls = m->conn->calls;
	pthread_mutex_unlock(&gaia_lock);
	mapping_put(m);
	return calls;
}

static int start_that_waits(void)
{
	int fd;

	sem_init(&interrupted, 0, 0);
	on_acquire = ask_and_interrupt;
	fd = gaia_acquire_start(at, LENGTH, RW);
	cr_assert_geq(fd, 0);
	sem_wait(&interrupted);
	/* It has left, and waits to come in again. */
	while (calls_inside() || !thread_sleeps(starter))
		sched_yield();
	return fd;
}

/* It may be the release that the daemon waits for. */
Test(client_moves, a_release_does_not_wait_for_a_cancelled_acquire)
{
	close(start_that_waits());
	cr_assert_eq(gaia_release(at, LENGTH), 0);
	cr_assert_eq(acquires, 1);
	cr_assert_eq(releases, 1);
}

Test(client_moves, unmapping_ends_an_acquire_that_waits)
{
	int fd = start_that_waits();

	cr_assert_eq(gaia_munmap(at, LENGTH), 0);
	cr_assert_eq(gaia_wait(fd), -1);
	cr_assert_eq(errno, ECANCELED);
	cr_assert_eq(acquires, 1);
}

static void *start_and_wait(void *arg)
{
	int fd = gaia_acquire_start(at, GAIA_PAGE, PROT_READ);

	return (void *)(intptr_t)gaia_wait(fd);
}

/* Each other time. */
Test(client_moves, who_holds_something_gets_more)
{
	struct gaia_range second = { at + GAIA_PAGE, GAIA_PAGE };
	unsigned char *more;
	pthread_t other;
	void *result;
	int fd;

	cr_assert_eq(gaia_acquire(at, GAIA_PAGE, RW), 0);
	ask();
	cr_assert_eq(pthread_create(&other, NULL, start_and_wait, NULL), 0);
	cr_assert_eq(gaia_acquire(second.addr, second.length, RW), 0);
	fd = gaia_acquire_start(at + 2 * GAIA_PAGE, GAIA_PAGE, RW);
	cr_assert_eq(gaia_wait(fd), 0);
	more = gaia_mmap(LENGTH, RW, file, 0, 0);
	cr_assert_neq(more, MAP_FAILED);
	cr_assert_eq(gaia_munmap(more, LENGTH), 0);
	cr_assert_eq(acquires, 3, "one that holds nothing has acquired");
	say(GAIA_MSG_STAY);
	cr_assert_eq(pthread_join(other, &result), 0);
	cr_assert_null(result);
	cr_assert_eq(acquires, 4);
	ask();
	fd = gaia_acquire_start(at + 2 * GAIA_PAGE, GAIA_PAGE, RW);
	/* Nothing is to happen: so there is nothing to wait for. */
	usleep(50000);
	cr_assert_eq(acquires, 4, "nobody has been asked for what is held");
	say(GAIA_MSG_STAY);
	cr_assert_eq(gaia_wait(fd), 0);
}

static atomic_int ended;

static void *acquire(void *arg)
{
	int r = gaia_acquire(at, LENGTH, RW);

	ended = r ? errno : -1;
	return NULL;
}

static void on_signal(int sig)
{
}

Test(client_moves, a_signal_interrupts_who_waits)
{
	struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	pthread_t thread;

	cr_assert_eq(sigaction(SIGUSR1, &act, NULL), 0);
	ask();
	cr_assert_eq(pthread_create(&thread, NULL, acquire, NULL), 0);
	while (!ended) {
		pthread_kill(thread, SIGUSR1);
		usleep(1000);
	}
	cr_assert_eq(ended, EINTR);
	cr_assert_eq(acquires, 0);
	pthread_join(thread, NULL);
	/* One that is not interrupted goes on. */
	ended = 0;
	cr_assert_eq(pthread_create(&thread, NULL, acquire, NULL), 0);
	say(GAIA_MSG_STAY);
	pthread_join(thread, NULL);
	cr_assert_eq(ended, -1);
	cr_assert_eq(acquires, 1);
}

/* ---- errors ---- */

/* It came to the next daemon. */
static int hand_over_first(void)
{
	hand_over();
	return ENOTCONN;
}

/* The kernel tells of it once, and the release is made twice. */
Test(client_moves, an_error_of_writing_back_is_kept)
{
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	ask();
	push_error = EIO;
	on_release = hand_over_first;
	cr_assert_eq(gaia_release(at, LENGTH), -1);
	cr_assert_eq(errno, EIO);
	cr_assert_eq(releases, 2);
	cr_assert_eq(maps, 2);
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), 0);
	cr_assert_eq(gaia_release(at, LENGTH), 0);
}

/* ---- devices ---- */

/* The new daemon calls another by its number. */
Test(client_moves, a_mapping_stays_on_its_device)
{
	ask();
	uuid[0]++;
	hand_over();
	sem_wait(&welcomed);
	cr_assert_eq(gaia_acquire(at, LENGTH, RW), -1);
	cr_assert_eq(errno, ESTALE, "%s", strerror(errno));
	cr_assert_eq(maps, 1);
	cr_assert_eq(gaia_munmap(at, LENGTH), 0);
}

#ifdef ON_GPU
#define ENTRY(name, ...) ((CUresult(*)(__VA_ARGS__))fake_cuda_entry(#name))

static sem_t go;

static void wait_to_go(void *arg)
{
	sem_wait(&go);
}

static bool is_moving(void)
{
	struct mapping *m = mapping_find((char *)at, LENGTH);
	bool moving;

	pthread_mutex_lock(&gaia_lock);
	moving = m->conn->move == MOVE_MADE;
	pthread_mutex_unlock(&gaia_lock);
	mapping_put(m);
	return moving;
}

/* The connection's thread may be in a driver that waits for the stream. */
Test(client_moves, a_stream_does_not_wait_for_it)
{
	CUcontext ctx;
	CUstream stream;

	sem_init(&go, 0, 0);
	cr_assert(!ENTRY(cuDevicePrimaryCtxRetain, CUcontext *, CUdevice)(&ctx, 0) && !ENTRY(cuCtxSetCurrent, CUcontext)(ctx));
	cr_assert(!ENTRY(cuStreamCreate, CUstream *, unsigned)(&stream, 0) && !fake_cuda_launch(stream, wait_to_go, NULL));
	/* Of nothing: nobody waits for that, either. */
	if (gaia_release_on(at, LENGTH, stream)) {
		cr_assert(errno == EIO && fake_cuda_mode()->no_pins);
		return;
	}
	ask();
	late = true;
	hand_over();
	while (!is_moving())
		sched_yield();
	sem_post(&go);
	cr_assert_eq(ENTRY(cuStreamSynchronize, CUstream)(stream), CUDA_SUCCESS);
	cr_assert(is_moving());
	sem_post(&may_welcome);
	cr_assert_eq(gaia_stream_error(at), EINVAL);
	cr_assert_eq(releases, 0);
	is_moved();
	cr_assert_null(fake_cuda_violation(), "%s", fake_cuda_violation());
}
#endif
