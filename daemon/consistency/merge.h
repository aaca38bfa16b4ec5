/*
 * merge.h - byte-wise 3-way merge of pages.
 *
 * A byte that differs from the base was written (GAIA, USENIX ATC'19, section 4).
 * Bytes that only one side wrote are that side's. A byte that both wrote, with different
 * values, is a race; it goes to the owner with the higher number (CPU 0, device i: i + 1), always.
 *
 * Pure functions: no I/O, no locks, no memory of their own.
 */
#ifndef GAIA_CONSISTENCY_MERGE_H
#define GAIA_CONSISTENCY_MERGE_H

#include <stddef.h>
#include <stdint.h>

enum merge_winner { MERGE_HOME_WINS, MERGE_THEIRS_WINS };

/*
 * Merge what @theirs changed against @base into @home, both of which
 * started from @base. @home is updated in place; the three do not overlap. Any length.
 * Returns the number of races.
 */
size_t merge3(void *home, const void *base, const void *theirs, size_t len,
	      enum merge_winner winner);

/* The reference that merge3() is tested against: the definition, a byte at a time. */
size_t merge3_reference(void *home, const void *base, const void *theirs, size_t len,
			enum merge_winner winner);

/*
 * As merge3(), where other devices have merged into @home since @base: @owners[i] is the owner of home's byte i if a
 * device wrote it since, else 0 (the CPU). Races are decided by comparing owners; bytes that are taken from @theirs
 * become @owner's.
 */
size_t merge3_owned(void *home, uint8_t *owners, const void *base, const void *theirs, size_t len,
		    unsigned owner);

/* Note in @owners that @owner wrote the bytes in which @now differs from @before. */
void merge_note_owner(uint8_t *owners, const void *before, const void *now, size_t len,
		      unsigned owner);

/*
 * Offset of the first race at or after @from, @len if there is none. For reports:
 * call before the merge.
 */
size_t merge_next_race(const void *home, const void *base, const void *theirs, size_t len,
		       size_t from);

#endif
