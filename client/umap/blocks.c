/*
 * blocks.c - memory that pages are read to, before the region has them.
 *
 * Few of them, which are there already: new memory would be zeroed and mapped first, for each page. They lie in one mapping, of which only what is
 * used takes memory.
 */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define BLOCKS 16

static char *room;     /* of all blocks, while there are regions */
static unsigned taken; /* bits; atomic, as a handler of a signal may not wait */

/* Not in a child, nor in a core dump; and not all of it at once where all memory is locked (mlockall(2)). */
static char *reserve(uint64_t n)
{
	char *p = mmap(NULL, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	munlock(p, n);
	madvise(p, n, MADV_DONTFORK);
	madvise(p, n, MADV_DONTDUMP);
	madvise(p, n, MADV_NOHUGEPAGE);
	if (!mprotect(p, n, PROT_READ | PROT_WRITE))
		return p;
	munmap(p, n);
	return NULL;
}

int umap_blocks_start(void)
{
	room = reserve(BLOCKS * MAX_BLOCK);
	return room ? 0 : -ENOMEM;
}

void umap_blocks_end(void)
{
	munmap(room, BLOCKS * MAX_BLOCK);
	room = NULL;
}

char *umap_take_block(void)
{
	for (unsigned i = 0; i < BLOCKS; i++)
		if (!(__atomic_fetch_or(&taken, 1u << i, __ATOMIC_ACQUIRE) & 1u << i))
			return room + i * MAX_BLOCK;
	/* So many threads at once are rare. */
	return reserve(MAX_BLOCK);
}

void umap_give_block(char *block)
{
	if (block >= room && block < room + BLOCKS * MAX_BLOCK)
		__atomic_fetch_and(&taken, ~(1u << (block - room) / MAX_BLOCK), __ATOMIC_RELEASE);
	else
		munmap(block, MAX_BLOCK);
}

void umap_blocks_forget(void)
{
	room = NULL;
	taken = 0;
}
