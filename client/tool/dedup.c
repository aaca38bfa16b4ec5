/*
 * dedup.c - gaia dedup --estimate: how much memory --dedup would save, if all of some files were in home memory.
 *
 * Pages are told apart by 64 bits of a hash. The hashes that are remembered are bounded: when the table is full only every second of them is, by a
 * bit of their own, and so on. Those that are left are a sample of what differs.
 */
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xxhash.h>

#include "gaia/protocol.h"
#include "tool.h"
#include "work.h"

#define SLOTS (1u << 22) /* a power of two; 8 bytes each */
#define PIECE (256 * (size_t)GAIA_PAGE)
#define SHOW_EVERY 0.2 /* seconds */

/* The hashes that differ, of a sample of all hashes: those whose lowest @bits are 0. 0 is no hash. */
struct differing {
	uint64_t *slot;
	uint64_t n;
	unsigned bits;
};

struct known_file {
	dev_t dev;
	ino_t ino;
};

struct estimate {
	struct differing of_owners, of_all;
	uint64_t files, bytes, pages, zeros;
	char *piece; /* PIECE bytes */
	void *linked; /* tsearch(3): files of several names that were read */
	double began, shown;
	bool terminal, failed;
	bool no_memory; /* no more can be counted */
};

/* ---- which pages differ ---- */

static void put(struct differing *d, uint64_t hash)
{
	uint64_t at = hash >> d->bits & (SLOTS - 1);

	while (d->slot[at] && d->slot[at] != hash)
		at = (at + 1) & (SLOTS - 1);
	d->n += !d->slot[at];
	d->slot[at] = hash;
}

static bool halve(struct differing *d)
{
	uint64_t *old = d->slot, *fresh = calloc(SLOTS, sizeof(*fresh));

	if (!fresh)
		return false;
	d->slot = fresh;
	d->n = 0;
	d->bits++;
	for (unsigned k = 0; k < SLOTS; k++)
		if (old[k] && !(old[k] & ((1ull << d->bits) - 1)))
			put(d, old[k]);
	free(old);
	return true;
}

static bool note(struct differing *d, uint64_t hash)
{
	if (hash & ((1ull << d->bits) - 1))
		return true;
	put(d, hash ? hash : 1ull << 63);
	return d->n < SLOTS / 4 * 3 || halve(d);
}

static uint64_t pages_that_differ(const struct differing *d)
{
	return d->n << d->bits;
}

/* ---- files ---- */

static bool note_page(struct estimate *e, const char *page, uid_t owner)
{
	uint64_t hash;

	e->pages++;
	if (page[0] == 0 && !memcmp(page, page + 1, GAIA_PAGE - 1)) {
		e->zeros++;
		return true;
	}
	hash = XXH3_64bits(page, GAIA_PAGE);
	/* Another hash for each owner, whose lowest bits are as random. */
	return note(&e->of_all, hash) && note(&e->of_owners, XXH3_64bits_withSeed(&hash, sizeof(hash), owner));
}

static void add(uint64_t *sum, uint64_t n)
{
	/* Holes of sparse files are as large as anybody likes. */
	*sum = n < (uint64_t)INT64_MAX / GAIA_PAGE - *sum ? *sum + n : (uint64_t)INT64_MAX / GAIA_PAGE;
}

static void clear_line(const struct estimate *e)
{
	if (e->terminal)
		fputs("\r\033[K", stderr);
}

static void failed(struct estimate *e, const char *path, const char *why)
{
	clear_line(e);
	fail("%s: %s", path, why);
	e->failed = true;
}

static void show(struct estimate *e)
{
	double now = seconds();
	char bytes[32], each[32];

	if (!e->terminal || now - e->shown < SHOW_EVERY)
		return;
	e->shown = now;
	format_bytes(bytes, sizeof(bytes), (json_int_t)e->bytes);
	format_bytes(each, sizeof(each), (json_int_t)((double)e->bytes / (now - e->began + 1e-9)));
	fprintf(stderr, "\rdedup: %s of %" PRIu64 " files, %s/s\033[K", bytes, e->files, each);
}

/* The file's next bytes from @at on, as many as a piece has; what lies beyond its end is zeros. How many pages; or a negative errno. */
static int read_piece(struct estimate *e, int fd, off_t at)
{
	size_t got = 0;
	ssize_t n = 1;

	while (got < PIECE && n > 0) {
		n = pread(fd, e->piece + got, PIECE - got, at + (off_t)got);
		if (n < 0 && errno == EINTR)
			n = 1;
		else if (n < 0)
			return -errno;
		else
			got += (size_t)n;
	}
	memset(e->piece + got, 0, (GAIA_PAGE - got % GAIA_PAGE) % GAIA_PAGE);
	e->bytes += got;
	return (int)((got + GAIA_PAGE - 1) / GAIA_PAGE);
}

/* A hole is not read. Where the next data are, rounded down to a page; or the end. */
static off_t skip_hole(struct estimate *e, int fd, off_t at, off_t size)
{
	off_t data = lseek(fd, at, SEEK_DATA);

	/* Also of a file system that does not tell. */
	if (data < 0 && errno != ENXIO)
		return at;
	data = data < 0 || data > size ? size : data;
	if (data - at < (off_t)GAIA_PAGE)
		return at;
	if (data < size)
		data -= data % GAIA_PAGE;
	add(&e->zeros, ((uint64_t)(data - at) + GAIA_PAGE - 1) / GAIA_PAGE);
	add(&e->pages, ((uint64_t)(data - at) + GAIA_PAGE - 1) / GAIA_PAGE);
	return data;
}

static int read_file(struct estimate *e, int fd, const struct stat *st)
{
	off_t at = 0;

	e->files++;
	while (at < st->st_size && (at = skip_hole(e, fd, at, st->st_size)) < st->st_size) {
		int pages = read_piece(e, fd, at);

		for (int k = 0; k < pages; k++)
			if (!note_page(e, e->piece + (size_t)k * GAIA_PAGE, st->st_uid)) {
				e->no_memory = true;
				return -ENOMEM;
			}
		show(e);
		if (pages <= 0)
			return pages;
		/* It may end close to the largest number. */
		at = st->st_size - at > (off_t)pages * GAIA_PAGE ? at + (off_t)pages * GAIA_PAGE : st->st_size;
	}
	return 0;
}

static int by_number(const void *a, const void *b)
{
	const struct known_file *x = a, *y = b;

	if (x->dev != y->dev)
		return x->dev < y->dev ? -1 : 1;
	return x->ino < y->ino ? -1 : x->ino > y->ino;
}

/* Whether it has several names, of which one was read. */
static bool was_read(struct estimate *e, const struct stat *st)
{
	struct known_file *f, **found;

	if (st->st_nlink < 2)
		return false;
	f = malloc(sizeof(*f));
	if (!f)
		return false;
	*f = (struct known_file){ st->st_dev, st->st_ino };
	found = tsearch(f, &e->linked, by_number);
	if (found && *found == f)
		return false;
	free(f);
	return found;
}

/* Others may replace parts of the tree by links meanwhile: opens only what lies below @dir, in the same file system. */
static int open_below(int dir, const char *name)
{
	struct open_how how = { .flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };

	while (*name == '/')
		name++;
	return (int)syscall(SYS_openat2, dir, name, &how, sizeof(how));
}

static void estimate_file(struct estimate *e, const char *path, int fd)
{
	int err = fd < 0 ? -errno : 0;
	struct stat st;

	if (!err && fstat(fd, &st))
		err = -errno;
	if (!err && S_ISREG(st.st_mode) && !was_read(e, &st))
		err = read_file(e, fd, &st);
	if (fd >= 0)
		close(fd);
	if (err)
		failed(e, path, strerror(-err));
}

static void estimate_below(struct estimate *e, char *path, int dir)
{
	char *roots[] = { path, NULL };
	FTS *fts = fts_open(roots, FTS_COMFOLLOW | FTS_PHYSICAL | FTS_XDEV | FTS_NOCHDIR, NULL);
	FTSENT *at;

	while (fts && !e->no_memory && (errno = 0, at = fts_read(fts))) {
		if (at->fts_info == FTS_F)
			estimate_file(e, at->fts_path, open_below(dir, at->fts_path + strlen(path)));
		else if (at->fts_info == FTS_DNR || at->fts_info == FTS_ERR || at->fts_info == FTS_NS)
			failed(e, at->fts_path, strerror(at->fts_errno));
	}
	if (!e->no_memory && errno)
		failed(e, path, strerror(errno));
	if (fts)
		fts_close(fts);
}

static void estimate_path(struct estimate *e, char *path)
{
	struct stat st;
	int fd;

	if (stat(path, &st)) {
		failed(e, path, strerror(errno));
	} else if (S_ISREG(st.st_mode)) {
		estimate_file(e, path, open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC));
	} else if (!S_ISDIR(st.st_mode)) {
		failed(e, path, "neither a regular file nor a directory");
	} else {
		fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0)
			failed(e, path, strerror(errno));
		else
			estimate_below(e, path, fd);
		if (fd >= 0)
			close(fd);
	}
}

/* ---- what it says ---- */

static void print_line(const char *mode, uint64_t kept, uint64_t pages)
{
	char bytes[32];

	format_bytes(bytes, sizeof(bytes), (json_int_t)(kept * GAIA_PAGE));
	printf("--dedup %-10s %12s  %.2f x\n", mode, bytes, kept ? (double)pages / (double)kept : 1.0);
}

static int print_estimate(const struct estimate *e, bool json)
{
	uint64_t owners = pages_that_differ(&e->of_owners) + (e->zeros > 0), all = pages_that_differ(&e->of_all) + (e->zeros > 0);
	char bytes[32], zeros[32];

	/* A sample may say more than there is. */
	owners = owners < e->pages ? owners : e->pages;
	all = all < e->pages ? all : e->pages;
	if (json)
		return printf("{\"files\": %" PRIu64 ", \"read_bytes\": %" PRIu64 ", \"memory_bytes\": %" PRIu64 ", \"zeros_bytes\": %" PRIu64 ", \"home_bytes\": %" PRIu64
			      ", \"all_users_bytes\": %" PRIu64 ", \"sampled\": %s}\n", e->files, e->bytes, e->pages * GAIA_PAGE, e->zeros * GAIA_PAGE,
			      owners * GAIA_PAGE, all * GAIA_PAGE, e->of_owners.bits || e->of_all.bits ? "true" : "false") < 0;
	format_bytes(bytes, sizeof(bytes), (json_int_t)(e->pages * GAIA_PAGE));
	format_bytes(zeros, sizeof(zeros), (json_int_t)(e->zeros * GAIA_PAGE));
	printf("%" PRIu64 " %s %s of home memory (%s of it zeros), with\n", e->files, e->files == 1 ? "file takes" : "files take", bytes, zeros);
	print_line("off", e->pages, e->pages);
	print_line("home", owners, e->pages);
	print_line("all-users", all, e->pages);
	if (e->of_owners.bits || e->of_all.bits)
		puts("(estimated from a sample)");
	return 0;
}

int dedup_command(const struct args *a)
{
	struct estimate e = { .began = seconds(), .terminal = isatty(STDERR_FILENO) };
	int status = EXIT_OK;

	if (!a->estimate)
		return usage("dedup: what files share is known only while they are mounted (gaia status); --estimate says what they would");
	e.piece = malloc(PIECE);
	e.of_owners.slot = calloc(SLOTS, sizeof(uint64_t));
	e.of_all.slot = calloc(SLOTS, sizeof(uint64_t));
	if (!e.piece || !e.of_owners.slot || !e.of_all.slot) {
		status = fail("%s", strerror(ENOMEM));
	} else {
		for (size_t k = 0; k < a->n_paths; k++)
			estimate_path(&e, a->paths[k]);
		clear_line(&e);
		status = print_estimate(&e, a->json) || e.failed ? EXIT_FAILED : EXIT_OK;
	}
	tdestroy(e.linked, free);
	free(e.piece);
	free(e.of_owners.slot);
	free(e.of_all.slot);
	return status;
}
