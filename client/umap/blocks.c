/*
 * blocks.c - memory that pages are read to, before the region has them.
 *
 * A limited number, which are there already: new memory would be zeroed and mapped first, for each page. Only what is used takes memory.
 */
#include <errno.h>
#include <sys/mman.h>

#include "internal.h"

static struct pool {
	const uint64_t size;
	const unsigned n;
	char *room;	/* of all blocks, while there are regions */
	uint64_t taken; /* bits; atomic, as a handler of a signal may not wait */
} pools[] = { { .size = BLOCK, .n = 64 }, { .size = MAX_BLOCK, .n = 16 } };

#define FOR_POOLS(p) for (struct pool *p = pools; p < pools + sizeof(pools) / sizeof(pools[0]); p++)

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
	FOR_POOLS(p)
		p->room = reserve(p->n * p->size);
	/* Without the others regions with large pages take longer. */
	return pools[0].room ? 0 : -ENOMEM;
}

void umap_blocks_end(void)
{
	FOR_POOLS(p) {
		if (p->room)
			munmap(p->room, p->n * p->size);
		p->room = NULL;
	}
}

char *umap_take_block(uint64_t n)
{
	FOR_POOLS(p)
		for (unsigned i = 0; p->room && n <= p->size && i < p->n; i++)
			if (!(__atomic_fetch_or(&p->taken, 1ull << i, __ATOMIC_ACQUIRE) & 1ull << i))
				return p->room + i * p->size;
	/* So many threads at once are rare. */
	return reserve(MAX_BLOCK);
}

void umap_give_block(char *block)
{
	FOR_POOLS(p) {
		if (!p->room || block < p->room || block >= p->room + p->n * p->size)
			continue;
		__atomic_fetch_and(&p->taken, ~(1ull << (uint64_t)(block - p->room) / p->size), __ATOMIC_RELEASE);
		return;
	}
	munmap(block, MAX_BLOCK);
}

void umap_blocks_forget(void)
{
	FOR_POOLS(p) {
		p->room = NULL;
		p->taken = 0;
	}
}
