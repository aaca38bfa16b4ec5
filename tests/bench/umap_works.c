/*
 * umap_works.c - what scripts/bench umap measures besides the examples: faults, bulk, resident pages and points, on a file as
 * memory. Prints how many bytes or operations, and the nanoseconds that they took; and of processes the bytes of memory that they have.
 *
 *	umap_works WORK [--mmap] [--page-size BYTES] [--budget BYTES] [--threads N] [--make MILLISECONDS] FILE
 */
#include "../../client/examples/umap/memory.h"

#include <math.h>
#include <pthread.h>
#include <sys/wait.h>

#define SMALL_PAGE 4096u
#define APART (64u << 10) /* what one fault of mmap(2) maps, by default */
#define ZIPF_EXPONENT 0.99

static volatile uint64_t sink;

struct file {
	const struct options *options;
	int fd;
	size_t size;
	unsigned char *memory;
};

static void report(uint64_t amount, double seconds)
{
	printf("%" PRIu64 " %.0f\n", amount, seconds * 1e9);
}

/* All of the file is in the kernel's page cache afterwards. */
static void warm(const struct file *file)
{
	static char block[1 << 20];

	for (off_t at = 0; (size_t)at < file->size; at += sizeof(block)) {
		if (pread(file->fd, block, sizeof(block), at) < 0)
			err(1, "%s", file->options->path);
	}
}

static void map_file(struct file *file)
{
	file->memory = map_memory(file->options, file->fd, file->size, PROT_READ);
}

static void unmap_file(struct file *file)
{
	unmap_memory(file->options, file->memory, file->size);
}

/* ---- works ---- */

/* One byte of every 16th page, in an order that nobody can read ahead of. */
static void fault(struct file *file)
{
	size_t n = file->size / APART;
	uint64_t *order = calloc(n, sizeof(*order)), sum = 0;
	double start;

	if (!order)
		err(1, "calloc");
	for (size_t i = 0; i < n; i++) {
		size_t at = mix(i) % (i + 1);

		order[i] = order[at];
		order[at] = i;
	}
	warm(file);
	map_file(file);
	start = seconds_now();
	for (size_t i = 0; i < n; i++)
		sum += file->memory[order[i] * APART + mix(i) % (APART / SMALL_PAGE) * SMALL_PAGE];
	report(n, seconds_now() - start);
	sink = sum;
	unmap_file(file);
	free(order);
}

/* One byte of each page, in order; the first time. */
static void touch(struct file *file)
{
	uint64_t sum = 0;

	for (size_t at = 0; at < file->size; at += SMALL_PAGE)
		sum += file->memory[at];
	sink = sum;
}

static void bulk(struct file *file)
{
	double start;

	warm(file);
	map_file(file);
	start = seconds_now();
	touch(file);
	report(file->size, seconds_now() - start);
	unmap_file(file);
}

/* The same by read(2), into memory that is there. */
static void bulk_read(struct file *file)
{
	char *memory = malloc(file->size);
	double start;

	if (!memory)
		err(1, "malloc");
	memset(memory, 1, file->size);
	warm(file);
	start = seconds_now();
	for (size_t done = 0; done < file->size;) {
		size_t left = file->size - done;
		ssize_t n = pread(file->fd, memory + done, left < 1 << 20 ? left : 1 << 20, (off_t)done);

		if (n <= 0)
			err(1, "%s", file->options->path);
		done += (size_t)n;
	}
	report(file->size, seconds_now() - start);
	free(memory);
}

static void resident(struct file *file)
{
	uint64_t sums[4] = {0};
	double start;

	map_file(file);
	touch(file);
	touch(file);
	start = seconds_now();
	for (const uint64_t *word = (const uint64_t *)file->memory, *end = word + file->size / 32 * 4; word < end; word += 4) {
		for (int i = 0; i < 4; i++)
			sums[i] += word[i];
	}
	report(file->size, seconds_now() - start);
	sink = sums[0] + sums[1] + sums[2] + sums[3];
	unmap_file(file);
}

/* ---- points: pages by Zipf's law, each at a random place ---- */

/* As of Gray et al., "Quickly generating billion-record synthetic databases" (1994). */
struct zipf {
	uint64_t n;
	double zeta, alpha, eta;
};

static void zipf_init(struct zipf *zipf, uint64_t n)
{
	double two = 1 + pow(0.5, ZIPF_EXPONENT);

	*zipf = (struct zipf){.n = n, .alpha = 1 / (1 - ZIPF_EXPONENT)};
	for (uint64_t i = 1; i <= n; i++)
		zipf->zeta += pow(1 / (double)i, ZIPF_EXPONENT);
	zipf->eta = (1 - pow(2 / (double)n, 1 - ZIPF_EXPONENT)) / (1 - two / zipf->zeta);
}

static uint64_t zipf_rank(const struct zipf *zipf, uint64_t random)
{
	double u = (double)(random >> 11) * 0x1p-53, uz = u * zipf->zeta;
	uint64_t rank;

	if (uz < 1)
		return 0;
	if (uz < 1 + pow(0.5, ZIPF_EXPONENT))
		return 1;
	rank = (uint64_t)((double)zipf->n * pow(zipf->eta * u - zipf->eta + 1, zipf->alpha));
	return rank < zipf->n ? rank : zipf->n - 1;
}

struct reader {
	const struct file *file;
	const struct zipf *zipf;
	uint64_t first;
	double end;    /* seconds_now() */
	uint64_t done; /* reads */
};

static void *read_points(void *arg)
{
	struct reader *reader = arg;
	uint64_t sum = 0, pages = reader->zipf->n, i = reader->first;

	do {
		for (int few = 0; few < 16; few++, i++) {
			uint64_t page = mix(zipf_rank(reader->zipf, mix(i))) % pages;

			sum += reader->file->memory[page * SMALL_PAGE + mix(~i) % SMALL_PAGE];
		}
	} while (seconds_now() < reader->end);
	sink = sum;
	reader->done = i - reader->first;
	return NULL;
}

/* How many reads all threads have done. */
static uint64_t run_readers(const struct file *file, const struct zipf *zipf, uint64_t first, double seconds)
{
	unsigned n = file->options->threads;
	pthread_t *threads = calloc(n, sizeof(*threads));
	struct reader *readers = calloc(n, sizeof(*readers));
	double end = seconds_now() + seconds;
	uint64_t done = 0;

	if (!threads || !readers)
		err(1, "calloc");
	for (unsigned i = 0; i < n; i++) {
		readers[i] = (struct reader){file, zipf, first + ((uint64_t)i << 40), end, 0};
		if ((errno = pthread_create(&threads[i], NULL, read_points, &readers[i])))
			err(1, "pthread_create");
	}
	for (unsigned i = 0; i < n; i++) {
		pthread_join(threads[i], NULL);
		done += readers[i].done;
	}
	free(threads);
	free(readers);
	return done;
}

/* --make is for how long. As long before, so that memory is full. */
static void points(struct file *file)
{
	double seconds = (double)(file->options->make ? file->options->make : 1000) * 1e-3, start;
	struct zipf zipf;
	uint64_t done;

	zipf_init(&zipf, file->size / SMALL_PAGE);
	map_file(file);
	/* At its best: without, each fault reads 128 KiB. */
	if (file->options->use_mmap)
		madvise(file->memory, file->size, MADV_RANDOM);
	run_readers(file, &zipf, (uint64_t)1 << 60, seconds);
	start = seconds_now();
	done = run_readers(file, &zipf, 0, seconds);
	report(done, seconds_now() - start);
	unmap_file(file);
}

/* ---- processes that read one file, one after the other; each keeps what it has ---- */

#define PROCESSES 8

/* What all of the file as memory takes one more process. */
static double read_all(struct file *file)
{
	uint64_t sums[4] = {0};
	double start = seconds_now();

	map_file(file);
	for (const uint64_t *word = (const uint64_t *)file->memory, *end = word + file->size / 32 * 4; word < end; word += 4) {
		for (int i = 0; i < 4; i++)
			sums[i] += word[i];
	}
	sink = sums[0] + sums[1] + sums[2] + sums[3];
	return seconds_now() - start;
}

/* The kernel's count of the process's memory, bytes: of what is shared its share. */
static double memory_share(void)
{
	FILE *rollup = fopen("/proc/self/smaps_rollup", "r");
	char line[256];
	unsigned long kib = 0;

	while (rollup && fgets(line, sizeof(line), rollup))
		if (sscanf(line, "Pss: %lu kB", &kib) == 1)
			break;
	if (rollup)
		fclose(rollup);
	return kib * 1024.0;
}

/* Wait until the other end of the pipe is closed. */
static void wait_for_end(int fd)
{
	char byte;

	if (read(fd, &byte, 1) != 0)
		_exit(1);
}

static void tell(int fd, double value)
{
	if (write(fd, &value, sizeof(value)) != sizeof(value))
		_exit(1);
}

static double hear(int fd)
{
	double value;

	if (read(fd, &value, sizeof(value)) != sizeof(value))
		errx(1, "a process has ended");
	return value;
}

/* The bytes that the second and those after it have read, and how long it took; and what all have of the machine's memory while all are there. */
static void processes(struct file *file)
{
	int told[2], all_there[2], all_looked[2], status;
	double took = 0, one, memory = 0;

	if (pipe(told) || pipe(all_there) || pipe(all_looked))
		err(1, "pipe");
	for (int i = 0; i < PROCESSES; i++) {
		pid_t child = fork();

		if (child < 0)
			err(1, "fork");
		if (child == 0) {
			close(told[0]);
			close(all_there[1]);
			close(all_looked[1]);
			tell(told[1], read_all(file));
			wait_for_end(all_there[0]);
			tell(told[1], memory_share());
			wait_for_end(all_looked[0]);
			unmap_file(file);
			_exit(0);
		}
		one = hear(told[0]);
		took += i > 0 ? one : 0;
	}
	close(all_there[1]);
	for (int i = 0; i < PROCESSES; i++)
		memory += hear(told[0]);
	close(all_looked[1]);
	for (int i = 0; i < PROCESSES; i++)
		if (wait(&status) < 0 || status)
			errx(1, "a process has failed");
	printf("%" PRIu64 " %.0f %.0f\n", (uint64_t)file->size * (PROCESSES - 1), took * 1e9, memory);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(struct file *file);
	} works[] = {{"fault", fault}, {"bulk", bulk}, {"read", bulk_read}, {"resident", resident}, {"points", points},
		     {"processes", processes}};
	const char *usage = "usage: umap_works fault|bulk|read|resident|points|processes [OPTIONS] FILE\n" OPTIONS_TEXT
			    "  --make N           points: for N milliseconds\n";
	struct options options;
	struct file file = {.options = &options};
	struct stat stat;

	if (argc < 2) {
		fputs(usage, stderr);
		return 2;
	}
	options = parse_options(argc - 1, argv + 1, usage);
	file.fd = open(options.path, O_RDONLY);
	if (file.fd < 0 || fstat(file.fd, &stat))
		err(1, "%s", options.path);
	file.size = (size_t)stat.st_size / APART * APART;
	for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
		if (!strcmp(works[i].name, argv[1])) {
			works[i].run(&file);
			close(file.fd);
			return 0;
		}
	}
	fputs(usage, stderr);
	return 2;
}
