/*
 * ready.c - memory at hand, right before something is measured.
 *
 *	ready MIB [FILE...]
 *
 * Takes MIB of memory and gives them back, then reads each FILE through.
 *
 * The host of a virtual machine takes back what has been free for some seconds (free page reporting, a balloon): the next
 * use of a page costs 12 us then, not 1, whichever system happens to be measured. And a kernel may give up cached pages
 * that were not used lately, with memory to spare (DAMON): what is to be hot is not any more.
 */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PAGE 4096

static void take_memory(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		err(1, "%zu MiB", size / MIB);
	/* Piece by piece, as a page cache takes it: those are the next ones that it gets. */
	(void)madvise(p, size, MADV_NOHUGEPAGE);
	for (size_t at = 0; at < size; at += PAGE)
		p[at] = 1;
	munmap(p, size);
}

static void read_through(const char *name)
{
	int fd = open(name, O_RDONLY);
	char *buf = malloc(MIB);
	ssize_t n = 1;

	if (fd < 0 || !buf)
		err(1, "%s", name);
	while (n > 0)
		n = read(fd, buf, MIB);
	if (n < 0)
		err(1, "%s", name);
	close(fd);
	free(buf);
}

int main(int argc, char **argv)
{
	size_t mib;

	if (argc < 2) {
		fprintf(stderr, "usage: ready MIB [FILE...]\n");
		return 2;
	}
	mib = strtoul(argv[1], NULL, 10);
	if (mib)
		take_memory(mib * MIB);
	for (int i = 2; i < argc; i++)
		read_through(argv[i]);
	return 0;
}
