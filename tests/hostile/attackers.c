/*
 * attackers.c - see attackers.h.
 */
#include "attackers.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "gaia/client.h"
#include "hostile.h"

volatile struct shared *shared;
struct gate ready;
uid_t hostile_uid = NOBODY;
const char *mute_shared = "shared";
unsigned long fill_bytes = 64ul << 20;

static int open_to_read(const char *name)
{
	int fd = open(mnt_file(&mnt, name), O_RDONLY | O_CLOEXEC);

	CHILD_CHECK(fd >= 0);
	return fd;
}

/* ---- attackers that take as much as there is ---- */

int take_clients(void *arg)
{
	struct raw r;
	int fd;

	(void)arg;
	hostile_become();
	hostile_raise_limit();
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY);
	while (shared->count < 6000 && raw_connect(fd, &r))
		shared->count++;
	shared->error = errno;
	hostile_keep();
}

static void *ask_for_tickets(void *arg)
{
	int fd = *(int *)arg;

	for (;;) {
		struct gaia_ioc_connect io = { .version = GAIA_PROTOCOL_VERSION };

		if (!ioctl(fd, GAIA_IOC_CONNECT, &io))
			hostile_add(&shared->count);
	}
	return NULL;
}

#define FLOODERS 16

int flood_with_tickets(void *arg)
{
	pthread_t thread;
	int fd;

	(void)arg;
	hostile_become();
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY);
	for (int i = 0; i < FLOODERS; i++)
		CHILD_CHECK(!pthread_create(&thread, NULL, ask_for_tickets, &fd));
	hostile_keep();
}

int connect_and_say_nothing(void *arg)
{
	uint8_t ticket[16];
	int fd, sock;

	(void)arg;
	hostile_become();
	hostile_raise_limit();
	fd = open(mnt.path, O_RDONLY | O_DIRECTORY);
	for (int n = 0; getppid() > 1; n++) {
		sock = raw_socket(fd, ticket);
		if (n == 200)
			gate_open(ready);
		/* The last hundred stay open. */
		if (sock < 0)
			continue;
		dup3(sock, 1000 + n % 100, O_CLOEXEC);
		close(sock);
		hostile_add(&shared->count);
	}
	return 0;
}

int take_mappings(void *arg)
{
	struct gaia_ioc_map io = { .length = GAIA_PAGE, .prot = GAIA_PROT_READ };
	struct raw r = { .sock = -1 };
	int fd;

	(void)arg;
	hostile_become();
	fd = open(mnt_file(&mnt, "f"), O_RDONLY);
	CHILD_CHECK(raw_connect(fd, &r));
	io.key = r.key;
	while (shared->count < 70000 && !ioctl(fd, GAIA_IOC_MAP, &io))
		shared->count++;
	shared->error = errno;
	hostile_keep();
}

int take_pins(void *arg)
{
	struct gaia_ioc_map map = { .length = GAIA_PAGE, .prot = GAIA_PROT_READ };
	struct gaia_ioc_range io;
	struct raw r = { .sock = -1 };
	int fd;

	(void)arg;
	hostile_become();
	fd = open_to_read("f");
	CHILD_CHECK(raw_connect(fd, &r));
	map.key = r.key;
	/* A mapping has its own limit. */
	for (int last = -1; shared->count > last;) {
		last = shared->count;
		CHILD_CHECK(!ioctl(fd, GAIA_IOC_MAP, &map));
		do
			io = raw_range(&r, map.map, GAIA_PAGE, GAIA_PROT_READ | GAIA_PROT_PIN);
		while (!ioctl(fd, GAIA_IOC_ACQUIRE, &io) && ++shared->count);
		shared->error = errno;
	}
	hostile_keep();
}

int take_directories(void *arg)
{
	(void)arg;
	hostile_become();
	while (shared->count < 4000 && open(mnt.path, O_RDONLY | O_DIRECTORY) >= 0)
		shared->count++;
	shared->error = errno;
	hostile_keep();
}

/* Files that are open by O_PATH only: the file system does not hear of such opens. */
static void take_nameless_files(int hoarder)
{
	char name[32];
	int fd;

	for (int n = 0; n < 2500; n++) {
		snprintf(name, sizeof(name), "open/%d-%d", hoarder, n);
		fd = open(mnt_file(&mnt, name), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		if (fd < 0) {
			shared->error = errno;
			break;
		}
		if (open(mnt_file(&mnt, name), O_PATH | O_CLOEXEC) < 0)
			break;
		if (unlink(mnt_file(&mnt, name))) {
			shared->error = errno;
			break;
		}
		close(fd);
		hostile_add(&shared->count);
	}
	hostile_keep();
}

int take_nameless_files_by_four(void *arg)
{
	(void)arg;
	hostile_become();
	hostile_raise_limit();
	for (int i = 1; i < HOARDERS; i++) {
		pid_t parent = getpid();

		if (fork())
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == parent)
			take_nameless_files(i);
		_exit(1);
	}
	take_nameless_files(0);
	return 0;
}

/* ---- attackers that do not give memory up ---- */

/* The socket of a client that was given the file's first chunk and holds nothing of it. */
static int mute_client(int fd)
{
	struct gaia_ioc_map map = { .length = GAIA_CHUNK, .prot = GAIA_PROT_READ };
	struct gaia_ioc_range io;
	struct gaia_msg grant;
	struct raw r = { .sock = -1 };

	CHILD_CHECK(raw_connect(fd, &r));
	map.key = r.key;
	CHILD_CHECK(!ioctl(fd, GAIA_IOC_MAP, &map));
	io = raw_range(&r, map.map, GAIA_PAGE, GAIA_PROT_READ);
	CHILD_CHECK(!ioctl(fd, GAIA_IOC_ACQUIRE, &io));
	io.prot = io.seq = 0;
	CHILD_CHECK(!ioctl(fd, GAIA_IOC_RELEASE, &io));
	CHILD_CHECK(raw_receive(r.sock, &grant, NULL) && grant.kind == GAIA_MSG_GRANT);
	hostile_add(&shared->done);
	return r.sock;
}

/* Until all are disconnected: count those that are asked for memory, and say nothing. */
static void listen_to(struct pollfd *p)
{
	struct gaia_msg msg;

	for (int left = MUTE; left > 0;) {
		poll(p, MUTE, -1);
		for (int i = 0; i < MUTE; i++) {
			if (!p[i].revents)
				continue;
			if (raw_receive(p[i].fd, &msg, NULL) && msg.kind == GAIA_MSG_REVOKE) {
				hostile_add(&shared->more);
			} else {
				p[i].fd = -1;
				left--;
			}
		}
	}
}

int share_a_chunk_and_be_mute(void *arg)
{
	struct pollfd p[MUTE];
	int fd;

	(void)arg;
	hostile_become();
	fd = open_to_read(mute_shared);
	for (int i = 0; i < MUTE; i++)
		p[i] = (struct pollfd){ .fd = mute_client(fd), .events = POLLIN };
	gate_open(ready);
	listen_to(p);
	return 0;
}

/* Each of them with a chunk of its own. */
static void mute_clients(struct pollfd *p)
{
	char name[8];

	for (int i = 0; i < MUTE; i++) {
		snprintf(name, sizeof(name), "m%d", i);
		p[i] = (struct pollfd){ .fd = mute_client(open_to_read(name)), .events = POLLIN };
	}
}

int be_mute(void *arg)
{
	struct pollfd p[MUTE];

	(void)arg;
	hostile_become();
	mute_clients(p);
	gate_open(ready);
	listen_to(p);
	return 0;
}

struct flood {
	int fd;
	struct gaia_ioc_range io;
	bool again; /* release, and acquire again, without end */
};

static void *acquire(void *arg)
{
	const struct flood *f = arg;
	struct gaia_ioc_range io;

	do {
		io = f->io;
		ioctl(f->fd, GAIA_IOC_ACQUIRE, &io);
		hostile_add(&shared->count);
		io = f->io;
		io.prot = 0;
		if (f->again)
			ioctl(f->fd, GAIA_IOC_RELEASE, &io);
	} while (f->again);
	return NULL;
}

static void flood(struct flood *f)
{
	struct gaia_ioc_map map = { .length = FLOOD_BYTES, .prot = GAIA_PROT_READ };
	struct raw r = { .sock = -1 };
	pthread_t thread;

	f->fd = open_to_read("wanted");
	CHILD_CHECK(raw_connect(f->fd, &r));
	map.key = r.key;
	CHILD_CHECK(!ioctl(f->fd, GAIA_IOC_MAP, &map));
	f->io = raw_range(&r, map.map, FLOOD_BYTES, GAIA_PROT_READ);
	for (int i = 0; i < FLOOD; i++)
		CHILD_CHECK(!pthread_create(&thread, NULL, acquire, f));
}

int be_mute_and_flood(void *arg)
{
	struct flood f = { .again = false };
	struct pollfd p[MUTE];

	(void)arg;
	hostile_become();
	mute_clients(p);
	flood(&f);
	gate_open(ready);
	listen_to(p);
	return 0;
}

int flood_with_acquires(void *arg)
{
	struct flood f = { .again = true };

	(void)arg;
	hostile_become();
	flood(&f);
	hostile_keep();
}

/* ---- attackers that read without a pause ---- */

struct score *score;

static void *read_on(void *arg)
{
	int fd = openat(both_root[ON_MOUNT], "f", O_RDONLY | O_DIRECT);
	void *buf = aligned_alloc(GAIA_PAGE, STARVE_SIZE);

	(void)arg;
	CHILD_CHECK(fd >= 0 && buf);
	while (!atomic_load(&score->stop)) {
		unsigned long mine = atomic_fetch_add(&score->began, 1) + 1, turn;

		CHILD_CHECK(pread(fd, buf, STARVE_SIZE, 0) == STARVE_SIZE);
		atomic_fetch_add(&score->answered, 1);
		turn = atomic_load(&score->turn);
		if (turn && mine > turn)
			atomic_fetch_add(&score->overtook, 1);
		if (turn && mine > turn + HOPELESS)
			atomic_store(&score->stop, true);
	}
	free(buf);
	close(fd);
	return NULL;
}

int starve_writers(void *arg)
{
	pthread_t thread[READERS];

	(void)arg;
	hostile_become();
	for (unsigned k = 0; k < READERS; k++)
		CHILD_CHECK(!pthread_create(&thread[k], NULL, read_on, NULL));
	for (unsigned k = 0; k < READERS; k++)
		pthread_join(thread[k], NULL);
	return 0;
}

/* ---- attackers that fill what the daemon keeps ---- */

#define MIB (1ul << 20)
#define SYNCED (64 * MIB)
#define TWINS (4ul * GAIA_CHUNK)
#define SYNCERS 12

static int open_own(const char *name)
{
	int fd = open(mnt_file(&mnt, name), O_RDWR | O_CLOEXEC);

	CHILD_CHECK(fd >= 0);
	return fd;
}

int fill_home(void *arg)
{
	char *bytes = malloc(MIB);
	int fd;

	(void)arg;
	hostile_become();
	fd = open_own("filled");
	CHILD_CHECK(bytes);
	gate_open(ready);
	for (int n = 0;; n++) {
		memset(bytes, n, MIB);
		for (size_t at = 0; at < fill_bytes; at += MIB) {
			CHILD_CHECK(pwrite(fd, bytes, MIB, (off_t)at) == (ssize_t)MIB);
			for (size_t i = 0; i < MIB / GAIA_PAGE; i++)
				hostile_add(&shared->count);
		}
		CHILD_CHECK(!ftruncate(fd, 0));
	}
}

int fill_with_twins(void *arg)
{
	char *bytes = malloc(TWINS), *p;
	int fd;

	(void)arg;
	hostile_become();
	fd = open_own("twins");
	p = gaia_mmap(TWINS, PROT_READ | PROT_WRITE, fd, 0, 1);
	CHILD_CHECK(bytes && p != MAP_FAILED);
	gate_open(ready);
	for (int n = 0;; n++) {
		CHILD_CHECK(!gaia_acquire(p, TWINS, PROT_READ | PROT_WRITE));
		/* One half of each page is written, the other is the device's. */
		memset(bytes, n, TWINS);
		for (size_t at = 0; at < TWINS; at += GAIA_PAGE) {
			CHILD_CHECK(pwrite(fd, bytes + at, GAIA_PAGE / 2, (off_t)at) == GAIA_PAGE / 2);
			memset(p + at + GAIA_PAGE / 2, n, GAIA_PAGE / 2);
			hostile_add(&shared->count);
		}
		CHILD_CHECK(!gaia_release(p, TWINS));
		CHILD_CHECK(pread(fd, bytes, TWINS, 0) == (ssize_t)TWINS);
	}
}

static void *write_and_sync(void *arg)
{
	int fd = *(int *)arg;
	char byte = 0;

	for (;;) {
		byte++;
		CHILD_CHECK(pwrite(fd, &byte, 1, random() % SYNCED) == 1);
		CHILD_CHECK(!fsync(fd));
		hostile_add(&shared->count);
	}
	return NULL;
}

int flood_with_fsyncs(void *arg)
{
	pthread_t thread;
	int fd;

	(void)arg;
	hostile_become();
	fd = open_own("synced");
	for (int i = 0; i < SYNCERS; i++)
		CHILD_CHECK(!pthread_create(&thread, NULL, write_and_sync, &fd));
	hostile_keep();
}

/* ---- attackers who use what they have a right to in ways that they have not ---- */

int give_orders(void *arg)
{
	struct gaia_ioc_file io;
	int fd;

	(void)arg;
	hostile_become();
	fd = open_to_read("read");
	gate_open(ready);
	for (;;) {
		io = (struct gaia_ioc_file){ .from = GAIA_FLUSH_DEVICES };
		CHILD_CHECK(ioctl(fd, GAIA_IOC_FLUSH, &io) && errno == EPERM);
		io = (struct gaia_ioc_file){ .from = GAIA_FROM_HOME };
		CHILD_CHECK(ioctl(fd, GAIA_IOC_EVICT, &io) && errno == EPERM);
		hostile_add(&shared->count);
	}
}

int store_as_a_reader(void *arg)
{
	char *p;
	int fd;

	(void)arg;
	hostile_become();
	fd = open_to_read("read");
	p = gaia_mmap(2ul * GAIA_CHUNK, PROT_READ, fd, 0, STORE_DEVICE);
	CHILD_CHECK(p != MAP_FAILED);
	gate_open(ready);
	for (int n = 0;; n++) {
		/* There may be no room. */
		if (gaia_acquire(p, 2ul * GAIA_CHUNK, PROT_READ))
			continue;
		CHILD_CHECK(!mprotect(p, 2ul * GAIA_CHUNK, PROT_READ | PROT_WRITE));
		memset(p, n, 2ul * GAIA_CHUNK);
		CHILD_CHECK(!gaia_release(p, 2ul * GAIA_CHUNK));
		gaia_advise(p, 2ul * GAIA_CHUNK, GAIA_DONTNEED);
		hostile_add(&shared->count);
	}
}

/* Whether it has had a page of the file for writing, and goes on storing to it when it is no client any more. */
static bool keep_chunk(int fd)
{
	struct gaia_ioc_map map = { .length = GAIA_CHUNK, .prot = GAIA_PROT_READ | GAIA_PROT_WRITE };
	struct gaia_ioc_range io;
	struct gaia_msg msg;
	struct raw r = { .sock = -1 };
	int chunk = -1;
	char *p;

	if (!raw_connect(fd, &r))
		return false;
	map.key = r.key;
	CHILD_CHECK(!ioctl(fd, GAIA_IOC_MAP, &map));
	io = raw_range(&r, map.map, GAIA_PAGE, GAIA_PROT_READ | GAIA_PROT_WRITE);
	if (!ioctl(fd, GAIA_IOC_ACQUIRE, &io) && raw_receive(r.sock, &msg, &chunk))
		CHILD_CHECK(msg.kind == GAIA_MSG_GRANT);
	close(r.sock);
	if (chunk < 0)
		return false;
	p = mmap(NULL, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, chunk, 0);
	close(chunk);
	CHILD_CHECK(p != MAP_FAILED);
	for (int n = 0; n < 100; n++)
		memset(p, n, GAIA_PAGE);
	munmap(p, GAIA_CHUNK);
	return true;
}

int keep_memory(void *arg)
{
	int fd;

	(void)arg;
	hostile_become();
	fd = open_own("kept");
	gate_open(ready);
	for (;;)
		if (keep_chunk(fd))
			hostile_add(&shared->count);
}
