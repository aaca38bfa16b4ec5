/*
 * parked.pml - pages that left home, parked in slots of a device's memory (rule 26 in daemon/README.md).
 *
 * Pages; slots, all of one slab. Threads bring pages home, from the store or from a slot, and change them; what is clean leaves home at
 * any time, and may be parked. The device's copies take their time, and may fail. A part of the file is removed, and the slab is given up.
 *
 *	PAGES, SLOTS	how many there are
 *	CHANGES=n	how often pages' bytes change
 *	REMOVES=n	how often the first page's bytes are removed from the file
 *	FAULT=...	one of those below
 *
 * bring	home_fill_some(): source_plan(), victim_find(); copy_begin(), slots_read(), victim_read_ended(); fill_done()
 * change	span_apply(), fetch_merge(): pages_become(), victim_drop_slot()
 * remove	cache_fallocate(): zero_cached(), forget_clean(); cut_page() in the same order
 * leave	chunk_shrink(), page_leave(): victim_offer(), park()
 * device	batch_send(), batch_ended(): of each slot for itself
 * slab		victim_give_up(): slab_end(); grow(): slab_add()
 *
 * What is done with victims.lock held is one step.
 */
#define NO_FAULT 0
#define KEEP_SLOT 1	/* a page that is changed stays parked as it was */
#define DROP_EARLY 2	/* what is removed is dropped before the store has removed it */
#define READ_COMING 3	/* a slot is read while its bytes are under way */
#define FREE_COMING 4	/* a slot that is dropped while its bytes are under way is free at once */
#define TAKE_READ 5	/* a slot that is being read is taken for another page */
#define KEEP_FAILED 6	/* a copy to the device that fails leaves its slot the page's */
#define PARK_DIRTY 7	/* a page is parked that is not stored */
#define END_BUSY 8	/* the slab's memory is freed while it is being copied to or read */

#ifndef FAULT
#define FAULT NO_FAULT
#endif
#ifndef PAGES
#define PAGES 2
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef CHANGES
#define CHANGES 2
#endif
#ifndef REMOVES
#define REMOVES 1
#endif

/* Bytes: what is removed; what is no page's. */
#define ZEROS 0
#define NONSENSE 3

typedef home_page {
	bool lock, home, dirty;
	unsigned bytes : 2;	/* home's */
	unsigned shows : 2;	/* what a reader must see */
	unsigned store : 2;
	unsigned slot : 2;	/* 0: it is not parked */
};
home_page p[PAGES];

typedef victim_slot {
	bool taken, coming, read, gone;	/* as in victim_inner.h */
	unsigned page : 2;
	unsigned bytes : 2;	/* in the device's memory */
	unsigned batch : 2;	/* on their way there */
};
victim_slot s[SLOTS + 1];

bool there = true, leaves;	/* the slab */
byte sharers, changes, removes;
bool alone;			/* cfile.range is held exclusively */

#define BUSY(n) (s[n].coming || s[n].read)

/* slot_drop() of page @which's, if it has one */
inline drop(which)
{
	if
	:: p[which].slot != 0 ->
		assert(s[p[which].slot].taken && !s[p[which].slot].gone && s[p[which].slot].page == which);
		if
		:: s[p[which].slot].read || (s[p[which].slot].coming && FAULT != FREE_COMING) -> s[p[which].slot].gone = true
		:: else -> s[p[which].slot].taken = false
		fi;
		p[which].slot = 0
	:: else
	fi
}

/* slot_free() */
inline ended(n)
{
	if
	:: s[n].gone -> s[n].gone = false; s[n].taken = false; s[n].page = 0
	:: else
	fi
}

#define MAY_READ(n) (p[n].slot != 0 && (!s[p[n].slot].coming || FAULT == READ_COMING) && !s[p[n].slot].read)
#define TO_BRING(n) (!p[n].lock && !p[n].home && !alone)
#define TO_CHANGE(n) (!p[n].lock && !alone && changes < CHANGES)
#define TO_STORE(n) (!p[n].lock && p[n].dirty && !alone)
#define TO_LEAVE(n) (!p[n].lock && p[n].home && (!p[n].dirty || FAULT == PARK_DIRTY))
#define MAY_TAKE(n) (!leaves && there && (!s[n].taken || !s[n].coming && (!s[n].read || FAULT == TAKE_READ)))

#define FIND(is) \
	if \
	:: is(0) -> i = 0 \
	:: is(1) -> i = 1 \
	:: PAGES > 2 && is(PAGES - 1) -> i = PAGES - 1 \
	fi

/* Page i, which is locked and absent, comes home; how it is shown is looked at with the page locked. */
inline bring()
{
	if
	/* victim_find() */
	:: atomic { MAY_READ(i) -> slot = p[i].slot; s[slot].read = true };
	   /* the copy */
	   if
	   :: atomic { assert(there); p[i].bytes = s[slot].bytes }
	   :: failed = true
	   fi;
	   /* victim_read_ended() */
	   atomic {
		if
		:: failed && !s[slot].gone -> drop(i)
		:: else
		fi;
		s[slot].read = false;
		ended(slot);
		slot = 0
	   };
	   if
	   /* fill_read_instead() */
	   :: atomic { failed -> failed = false; p[i].bytes = p[i].store }
	   :: !failed
	   fi
	:: atomic { true -> p[i].bytes = p[i].store }
	fi;
	atomic { p[i].home = true; assert(p[i].bytes == p[i].shows) }
}

proctype thread()
{
	byte i, slot;
	bool failed;

	do
	:: atomic { FIND(TO_BRING); p[i].lock = true; sharers++ };
	   bring();
	   atomic { p[i].lock = false; sharers--; i = 0 }
	:: atomic { FIND(TO_CHANGE); p[i].lock = true; sharers++; changes++ };
	   if
	   :: !p[i].home -> bring()
	   :: p[i].home
	   /* all of it is written */
	   :: atomic { !p[i].home -> p[i].home = true; p[i].bytes = NONSENSE }
	   fi;
	   atomic {
		if
		:: p[i].shows != 1 -> p[i].shows = 1
		:: p[i].shows != 2 -> p[i].shows = 2
		fi;
		p[i].bytes = p[i].shows
	   };
	   /* pages_become() */
	   atomic {
		p[i].dirty = true;
		if
		:: FAULT != KEEP_SLOT -> drop(i)
		:: else
		fi;
		p[i].lock = false;
		sharers--;
		i = 0
	   }
	od
}

proctype flusher()
{
	byte i;

	do
	:: atomic { FIND(TO_STORE); p[i].store = p[i].bytes; p[i].dirty = false; i = 0 }
	od
}

/* With chunk.lock held; slot_take(), slot_give(). */
proctype evictor()
{
	byte i, slot;

	do
	:: atomic {
		FIND(TO_LEAVE);
		/* victim_offer() */
		if
		:: p[i].slot == 0 ->
			slot = 1;
			do
			:: slot <= SLOTS && MAY_TAKE(slot) ->
				if
				:: s[slot].taken -> drop(s[slot].page)
				:: else
				fi;
				/* TAKE_READ: it has been dropped only for those who come */
				s[slot].gone = false;
				s[slot].taken = true;
				s[slot].coming = true;
				s[slot].page = i;
				s[slot].batch = p[i].bytes;
				p[i].slot = slot;
				break
			:: slot <= SLOTS -> slot++
			:: slot > SLOTS -> break	/* there is no room, or the policy does not want it */
			od;
			slot = 0
		:: else
		fi;
		p[i].home = false;
		p[i].dirty = false;
		p[i].bytes = ZEROS;
		i = 0
	   }
	od
}

/* Of each slot; a copy that fails leaves anything there. */
proctype device()
{
	byte n;
	bool failed;

	do
	:: atomic {
		if
		:: s[1].coming -> n = 1
		:: SLOTS > 1 && s[SLOTS].coming -> n = SLOTS
		fi;
		assert(there);
		if
		:: s[n].bytes = s[n].batch
		:: s[n].bytes = NONSENSE; failed = true
		fi
	   };
	   /* batch_ended() */
	   atomic {
		if
		:: failed && !s[n].gone && FAULT != KEEP_FAILED -> drop(s[n].page)
		:: else
		fi;
		s[n].coming = false;
		s[n].batch = 0;
		failed = false;
		ended(n);
		n = 0
	   }
	od
}

/* The first page's bytes, for which file.range is held exclusively. */
proctype remover()
{
	do
	:: atomic { sharers == 0 && removes < REMOVES -> alone = true; removes++ };
	   if
	   :: FAULT == DROP_EARLY -> atomic { drop(0) }
	   :: else
	   fi;
	   /* the store forgets them; nobody can read them before it is done */
	   atomic { p[0].store = ZEROS; p[0].shows = ZEROS };
	   /* zero_cached() */
	   if
	   :: atomic {
		!p[0].dirty ->
		p[0].home = false;
		p[0].bytes = ZEROS;
		if
		:: FAULT != DROP_EARLY -> drop(0)
		:: else
		fi
	      }
	   :: atomic { p[0].dirty -> p[0].bytes = ZEROS; assert(p[0].slot == 0 || FAULT != NO_FAULT); drop(0) }
	   fi;
	   alone = false
	od
}

proctype slab()
{
	byte n;

	do
	/* slab_end() */
	:: atomic {
		there ->
		leaves = true;
		n = 0;
		do
		:: n < PAGES -> drop(n); n++
		:: else -> break
		od;
		n = 0
	   };
	   atomic {
		(!BUSY(1) && !BUSY(SLOTS)) || FAULT == END_BUSY ->
		assert(FAULT != NO_FAULT || (!s[1].taken && !s[SLOTS].taken));
		there = false;
		s[1].bytes = NONSENSE;
		s[SLOTS].bytes = NONSENSE
	   };
	   /* slab_add() */
	   atomic { there = true; leaves = false }
	od
}

init {
	atomic {
		p[0].store = 1;
		p[0].shows = 1;
		p[1].store = 2;
		p[1].shows = 2;
		p[PAGES - 1].store = 2;
		p[PAGES - 1].shows = 2;
		run thread();
		run thread();
		run flusher();
		run evictor();
		run device();
		run remover();
		run slab()
	}
}
