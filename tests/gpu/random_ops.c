/*
 * random_ops.c - the operations of a device, at random, against a reference in host memory.
 *
 *	gpu-random sim|cuda [SECONDS [SEED]]
 *
 * Random operations of device/device.h on random runs of pages of a few chunks, with random bytes;
 * what each must leave behind is computed byte by byte on the CPU, and compared. Between them
 * another process, which mapped the chunks by their descriptors as clients do, writes into them.
 * For a GPU this is the check of the kernels on the hardware itself. 77: there is no GPU.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/util.h"
#include "device/device.h"
#include "driver.h"

#define CHUNKS 4u
#define RUNS_MAX 24u

static uint64_t state;

static uint32_t below(uint32_t n)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((state >> 33) % n);
}

static void die(const char *what)
{
	fprintf(stderr, "gpu-random: %s\n", what);
	exit(1);
}

static void random_bytes(void *to, size_t n)
{
	uint64_t x = state + below(1u << 30);
	char *p = to;

	for (size_t i = 0; i < n; i += 8) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		memcpy(p + i, &x, n - i < 8 ? n - i : 8);
	}
}

/* ---- the other process ---- */

struct order {
	uint32_t chunk, at, n; /* bytes */
	uint64_t seed;
};

static int receive_fd(int sock)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	int fd;

	if (recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&hdr))
		_exit(0);
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&hdr)), sizeof(fd));
	return fd;
}

static void send_fd(int sock, int fd)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int))];
	} control = { .buf = { 0 } };
	struct iovec iov = { "", 1 };
	struct msghdr hdr = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf,
			      .msg_controllen = sizeof(control.buf) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&hdr);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	if (sendmsg(sock, &hdr, 0) != 1)
		die("cannot pass a descriptor");
}

static void import_chunk(int fd, CUdeviceptr at)
{
	CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
				 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;

	if (cu.MemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ||
	    cu.MemMap(at, GAIA_CHUNK, 0, handle, 0) || cu.MemRelease(handle) ||
	    cu.MemSetAccess(at, GAIA_CHUNK, &desc, 1))
		die("the other process cannot map a chunk");
}

/* Maps CHUNKS descriptors, then carries out orders, answering each with a byte. */
static int other_main(int sock, bool gpu)
{
	unsigned char *at[CHUNKS], *bytes = malloc(GAIA_CHUNK);
	struct order o;
	CUdeviceptr base = 0;

	for (unsigned k = 0; k < CHUNKS; k++) {
		int fd = receive_fd(sock);

		if (gpu && k == 0 &&
		    (driver_start() ||
		     cu.MemAddressReserve(&base, CHUNKS * (size_t)GAIA_CHUNK, GAIA_CHUNK, 0, 0)))
			die("the other process cannot use the GPU");
		at[k] = (unsigned char *)base + k * (size_t)GAIA_CHUNK;
		if (gpu)
			import_chunk(fd, (CUdeviceptr)at[k]);
		else
			at[k] = mmap(NULL, GAIA_CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	}
	while (read(sock, &o, sizeof(o)) == sizeof(o)) {
		state = o.seed;
		random_bytes(bytes, o.n);
		if (!gpu)
			memcpy(at[o.chunk] + o.at, bytes, o.n);
		else if (cu.MemcpyHtoD((CUdeviceptr)(at[o.chunk] + o.at), bytes, o.n) || cu.CtxSynchronize())
			die("the other process cannot write");
		if (write(sock, "", 1) != 1)
			break;
	}
	free(bytes);
	return 0;
}

/* ---- the reference ---- */

enum armed { UNARMED, ARMED };

static struct {
	struct devmem *mem;
	unsigned char bytes[GAIA_CHUNK];    /* what it holds */
	unsigned char hashed[GAIA_CHUNK];   /* what the armed hashes are of */
	uint8_t armed[GAIA_CHUNK_PAGES];
} chunk[CHUNKS];

static struct device *dev;
static unsigned char *host, *base; /* GAIA_CHUNK bytes each */

static void arm(unsigned c, unsigned page, const unsigned char *as)
{
	memcpy(chunk[c].hashed + page * GAIA_PAGE, as, GAIA_PAGE);
	chunk[c].armed[page] = ARMED;
}

static void expect_page(enum dev_kind kind, unsigned c, unsigned from, unsigned page,
			const struct dev_run *run, unsigned k)
{
	unsigned char *is = chunk[c].bytes + page * GAIA_PAGE;
	const unsigned char *h = (unsigned char *)run->host + k * GAIA_PAGE;
	const unsigned char *b = (const unsigned char *)run->base + k * GAIA_PAGE;

	switch (kind) {
	case DEV_COPY_IN:
		memcpy(is, h, GAIA_PAGE);
		chunk[c].armed[page] = UNARMED;
		break;
	case DEV_COPY_WITHIN:
		memcpy(is, chunk[from].bytes + page * GAIA_PAGE, GAIA_PAGE);
		memcpy(chunk[c].hashed + page * GAIA_PAGE, chunk[from].hashed + page * GAIA_PAGE, GAIA_PAGE);
		chunk[c].armed[page] = chunk[from].armed[page];
		break;
	case DEV_PULL:
		for (unsigned i = 0; i < GAIA_PAGE; i++)
			if (i >= run->limit || (h[i] != b[i] && is[i] == b[i]))
				is[i] = h[i];
		arm(c, page, h);
		break;
	case DEV_ZERO:
		memset(is + run->limit, 0, GAIA_PAGE - run->limit);
		break;
	case DEV_ARM:
		arm(c, page, is);
		break;
	default:
		break;
	}
}

/* Runs of disjoint pages of one chunk, in order; host memory follows the pages. */
static unsigned make_runs(enum dev_kind kind, unsigned c, unsigned from, struct dev_run *runs)
{
	static const unsigned limits[] = { 0, 1, 100, 2048, 4095, GAIA_PAGE };
	unsigned page = below(64), n = 0;

	while (n < RUNS_MAX && page < GAIA_CHUNK_PAGES) {
		unsigned len = 1 + below(below(4) ? 3 : 120);

		len = MIN(len, GAIA_CHUNK_PAGES - page);
		runs[n++] = (struct dev_run){
			.mem = chunk[c].mem,
			.other = kind == DEV_COPY_WITHIN ? chunk[from].mem : NULL,
			.page = page,
			.npages = len,
			.host = kind <= DEV_COPY_OUT || kind == DEV_PULL ? host + page * GAIA_PAGE : NULL,
			.base = kind == DEV_PULL ? base + page * GAIA_PAGE : NULL,
			.limit = kind == DEV_PULL || kind == DEV_ZERO ? limits[below(6)] : 0,
		};
		/* Of one page its end, or several whole ones. */
		if (kind == DEV_ZERO)
			runs[n - 1].limit = len > 1 ? 0 : MIN(runs[n - 1].limit, 4095u);
		page += len + below(below(3) ? 4 : 100);
	}
	return n;
}

/*
 * For a pull: bases and host bytes that have much in common with the device's, and with each other.
 */
static void prepare_pull(unsigned c)
{
	memcpy(base, chunk[c].bytes, GAIA_CHUNK);
	for (unsigned i = 0; i < 4000; i++)
		base[below(GAIA_CHUNK)] ^= (unsigned char)(1 + below(255));
	memcpy(host, base, GAIA_CHUNK);
	for (unsigned i = 0; i < 4000; i++)
		host[below(GAIA_CHUNK)] ^= (unsigned char)(1 + below(255));
}

static void check_changed(const struct dev_op *op, unsigned c)
{
	unsigned nth = 0;

	for (unsigned r = 0; r < op->n; r++)
		for (unsigned k = 0; k < op->runs[r].npages; k++, nth++) {
			unsigned page = op->runs[r].page + k;
			size_t at = page * (size_t)GAIA_PAGE;
			bool is = op->changed[nth / 64] >> (nth % 64) & 1;
			bool should = chunk[c].armed[page] == UNARMED ||
				      memcmp(chunk[c].bytes + at, chunk[c].hashed + at, GAIA_PAGE);

			if (is != should)
				die(should ? "a changed page was not found" : "an unchanged page was found");
			arm(c, page, chunk[c].bytes + at);
		}
}

static void check_out(const struct dev_op *op, unsigned c)
{
	for (unsigned r = 0; r < op->n; r++)
		if (memcmp(op->runs[r].host, chunk[c].bytes + op->runs[r].page * GAIA_PAGE,
			   op->runs[r].npages * (size_t)GAIA_PAGE))
			die("the device's bytes are not what they should be");
}

static void one_operation(void)
{
	static const enum dev_kind kinds[] = { DEV_COPY_IN, DEV_COPY_OUT, DEV_COPY_WITHIN, DEV_PULL,
					       DEV_ZERO, DEV_ARM, DEV_FIND_CHANGED };
	enum dev_kind kind = kinds[below(ARRAY_LEN(kinds))];
	unsigned c = below(CHUNKS), from = (c + 1 + below(CHUNKS - 1)) % CHUNKS;
	uint64_t changed[GAIA_CHUNK_PAGES / 64] = { 0 };
	struct dev_run runs[RUNS_MAX];
	struct dev_op op = { .kind = kind, .runs = runs, .changed = changed };

	if (kind == DEV_COPY_IN)
		random_bytes(host, GAIA_CHUNK);
	if (kind == DEV_PULL)
		prepare_pull(c);
	op.n = make_runs(kind, c, from, runs);
	op.arm = kind == DEV_COPY_IN && below(2);
	if (device_run(dev, &op))
		die("an operation failed");
	for (unsigned r = 0; r < op.n; r++)
		for (unsigned k = 0; k < runs[r].npages; k++)
			expect_page(kind, c, from, runs[r].page + k, &runs[r], k);
	for (unsigned r = 0; op.arm && r < op.n; r++)
		for (unsigned k = 0; k < runs[r].npages; k++)
			arm(c, runs[r].page + k, chunk[c].bytes + (runs[r].page + k) * GAIA_PAGE);
	if (kind == DEV_FIND_CHANGED)
		check_changed(&op, c);
	if (kind == DEV_COPY_OUT)
		check_out(&op, c);
}

/* The other process writes some bytes somewhere. */
static void one_write(int sock)
{
	struct order o = { .chunk = below(CHUNKS), .at = below(GAIA_CHUNK - 8192), .n = 1 + below(8000),
			   .seed = state };
	uint64_t keep = state;
	char byte;

	if (write(sock, &o, sizeof(o)) != sizeof(o) || read(sock, &byte, 1) != 1)
		die("the other process is gone");
	random_bytes(chunk[o.chunk].bytes + o.at, o.n);
	state = keep + 1;
}

static void begin(int sock)
{
	struct dev_run run = { .page = 0, .npages = GAIA_CHUNK_PAGES };
	struct dev_op op = { .kind = DEV_COPY_IN, .runs = &run, .n = 1 };

	host = aligned_alloc(GAIA_CHUNK, GAIA_CHUNK);
	base = aligned_alloc(GAIA_CHUNK, GAIA_CHUNK);
	for (unsigned k = 0; k < CHUNKS; k++) {
		int fd;

		if (dev->ops->alloc(dev, &chunk[k].mem))
			die("no memory");
		fd = dev->ops->export_fd(dev, chunk[k].mem, true);
		if (fd < 0)
			die("a chunk cannot be exported");
		send_fd(sock, fd);
		close(fd);
		random_bytes(host, GAIA_CHUNK);
		memcpy(chunk[k].bytes, host, GAIA_CHUNK);
		run.mem = chunk[k].mem;
		run.host = host;
		if (device_run(dev, &op))
			die("the first copy failed");
	}
}

int main(int argc, char **argv)
{
	bool gpu = argc > 1 && !strcmp(argv[1], "cuda");
	struct cuda_config cuda = { .capacity = 64 << 20 };
	struct sim_config sim = { .capacity = 64 << 20 };
	int pair[2], status, seconds = argc > 2 ? atoi(argv[2]) : 5;
	unsigned long n = 0;
	const char *why;
	time_t end;
	pid_t other;

	if (argc < 2 || (!gpu && strcmp(argv[1], "sim"))) {
		fprintf(stderr, "usage: gpu-random sim|cuda [SECONDS [SEED]]\n");
		return 2;
	}
	log_set_level(LOG_LEVEL_WARN);
	state = argc > 3 ? strtoull(argv[3], NULL, 0) : (uint64_t)time(NULL);
	printf("gpu-random: %s, seed %llu\n", argv[1], (unsigned long long)state);
	fflush(stdout);
	/* Before CUDA is used: it does not survive a fork(). */
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		die("no sockets");
	other = fork();
	if (other == 0) {
		close(pair[0]);
		_exit(other_main(pair[1], gpu));
	}
	close(pair[1]);
	if (gpu && device_cuda_count(&why) == 0) {
		fprintf(stderr, "gpu-random: no CUDA device: %s\n", why);
		return 77;
	}
	if (gpu ? device_cuda_create(&cuda, &dev) : device_sim_create(&sim, &dev))
		die("no device");
	begin(pair[0]);
	end = time(NULL) + seconds;
	while (time(NULL) < end) {
		for (unsigned i = 0; i < 20; i++, n++)
			one_operation();
		one_write(pair[0]);
	}
	for (unsigned k = 0; k < CHUNKS; k++)
		dev->ops->free(dev, chunk[k].mem);
	dev->ops->destroy(dev);
	close(pair[0]);
	if (waitpid(other, &status, 0) < 0 || status)
		die("the other process failed");
	free(host);
	free(base);
	printf("%lu operations are right\n", n);
	return 0;
}
