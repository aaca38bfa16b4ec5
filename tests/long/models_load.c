/*
 * models_load.c - a process of models.py: loads a model and reads a tensor that is replaced, again and again, forks and dies.
 *
 *	models_load MODEL SLOTS SEED
 *
 * MODEL: a page, then 64-bit words: word i is i * WORD. SLOTS: a file of gaiafs.Replaceable (client/python): the epoch in its first
 * eight bytes, and from the second page on two slots of 64-bit words; those of the array number e are e. It ends by SIGKILL only, its
 * own or models.py's; or with status 1 when a byte was wrong.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define WORD UINT64_C(0x9e3779b97f4a7c15)

static const char *model, *slots;

static uint64_t random_below(uint64_t n)
{
	return ((uint64_t)random() << 31 | (uint64_t)random()) % n;
}

static void die_now(void)
{
	kill(getpid(), SIGKILL);
	pause();
}

static void *map(const char *name, int fd, size_t length, int prot)
{
	void *p = gaia_mmap(length, prot, fd, 0, 0);

	if (p == MAP_FAILED)
		errx(1, "%s: %s", name, gaia_last_error_text());
	return p;
}

static void acquire(void *p, size_t length, int prot)
{
	if (gaia_acquire(p, length, prot))
		errx(1, "%s", gaia_last_error_text());
}

static void release(void *p, size_t length)
{
	if (gaia_release(p, length))
		errx(1, "%s", gaia_last_error_text());
}

static int open_file(const char *name, int flags, size_t *length)
{
	int fd = open(name, flags | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		err(1, "%s", name);
	*length = st.st_size;
	return fd;
}

/* ---- the model ---- */

static void check_model(const uint64_t *p, size_t first, size_t end)
{
	for (size_t i = first; i < end; i++)
		if (p[i] != (i - PAGE / 8) * WORD)
			errx(1, "the model's word %zu is %" PRIx64, i - PAGE / 8, p[i]);
}

/* In a child of fork(): the parent's mapping is not there, and own ones are. */
static void check_forked(uint64_t *theirs, size_t length)
{
	size_t own_length;
	uint64_t *own;
	int fd;

	/* First: later an own one may have its addresses. */
	if (gaia_acquire(theirs, length, PROT_READ) != -1 || errno != ENOTCONN)
		errx(1, "a child of fork() has its parent's mapping");
	fd = open_file(model, O_RDONLY, &own_length);
	own = map(model, fd, own_length, PROT_READ);
	acquire(own, own_length, PROT_READ);
	check_model(own, PAGE / 8, own_length / 8);
	if (random_below(2))
		die_now();
	_exit(0);
}

static void load_model(void)
{
	size_t length, first, end;
	int fd = open_file(model, O_RDONLY, &length), status;
	uint64_t *p = map(model, fd, length, PROT_READ);
	pid_t child;

	close(fd);
	for (unsigned n = random_below(4) + 1; n; n--) {
		first = PAGE / 8 + random_below(length / 8 - PAGE / 8);
		end = random_below(3) ? first + random_below(length / 8 - first) + 1 : length / 8;
		acquire(p + first, (end - first) * 8, PROT_READ);
		check_model(p, first, end);
		if (!random_below(40))
			die_now();
		if (!random_below(10)) {
			child = fork();
			if (child < 0)
				err(1, "fork");
			if (!child)
				check_forked(p, length);
			if (waitpid(child, &status, 0) != child || (status && !WIFSIGNALED(status)))
				errx(1, "a child has ended with status %d", status);
			check_model(p, first, end);
		}
		release(p + first, (end - first) * 8);
	}
	if (random_below(3) && gaia_munmap(p, length))
		errx(1, "%s", gaia_last_error_text());
}

/* ---- the tensor that is replaced ---- */

static void lock(int fd, short type, off_t byte)
{
	struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};

	if (fcntl(fd, F_OFD_SETLKW, &lock))
		err(1, "%s: lock", slots);
}

static uint64_t epoch_of(int fd)
{
	uint64_t epoch;

	if (pread(fd, &epoch, sizeof(epoch), 0) != sizeof(epoch))
		err(1, "%s: epoch", slots);
	return epoch;
}

static void read_tensor(void)
{
	size_t length, n;
	int fd = open_file(slots, O_RDONLY, &length);
	char *p = map(slots, fd, length, PROT_READ);
	uint64_t epoch, *slot;

	for (;;) {
		epoch = epoch_of(fd);
		lock(fd, F_RDLCK, 1 + epoch % 2);
		if (epoch_of(fd) == epoch)
			break;
		lock(fd, F_UNLCK, 1 + epoch % 2);
	}
	n = (length - PAGE) / 2;
	slot = (uint64_t *)(p + PAGE + epoch % 2 * n);
	acquire(slot, n, PROT_READ);
	for (size_t i = 0; i < n / 8; i++)
		if (slot[i] != epoch)
			errx(1, "array %" PRIu64 ": word %zu is %" PRIu64, epoch, i, slot[i]);
	if (!random_below(40))
		die_now();
	release(slot, n);
	gaia_munmap(p, length);
	close(fd);
}

static void replace_tensor(void)
{
	size_t length, n;
	int fd = open_file(slots, O_RDWR, &length);
	char *p = map(slots, fd, length, PROT_READ | PROT_WRITE);
	uint64_t epoch, *slot;

	lock(fd, F_WRLCK, 0);
	epoch = epoch_of(fd) + 1;
	lock(fd, F_WRLCK, 1 + epoch % 2);
	n = (length - PAGE) / 2;
	slot = (uint64_t *)(p + PAGE + epoch % 2 * n);
	acquire(slot, n, PROT_WRITE);
	for (size_t i = 0; i < n / 8; i++) {
		slot[i] = epoch;
		if (i == n / 16 && !random_below(10))
			die_now();
	}
	release(slot, n);
	if (!random_below(20))
		die_now();
	if (pwrite(fd, &epoch, sizeof(epoch), 0) != sizeof(epoch))
		err(1, "%s: epoch", slots);
	gaia_munmap(p, length);
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 4)
		errx(2, "usage: models_load MODEL SLOTS SEED");
	model = argv[1];
	slots = argv[2];
	srandom(strtoul(argv[3], NULL, 10));
	for (;;)
		switch (random_below(8)) {
		case 0:
			replace_tensor();
			break;
		case 1:
		case 2:
		case 3:
			read_tensor();
			break;
		default:
			load_model();
		}
}
