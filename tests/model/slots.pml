/*
 * slots.pml - slots of a device that equal pages share, since they left home with one frame (rules 26 and 28 in daemon/README.md).
 *
 * Pages; frames, of which those in the index are found by their bytes; slots, each of any pages; and the links between frames and slots.
 * Threads bring pages home, from the store or from a slot, and change them; what is clean leaves home at any time, and may be parked. The
 * device's copies take their time, and may fail.
 *
 *	THREADS, PAGES, FRAMES, SLOTS	how many there are
 *	CHANGES=n		how often pages' bytes change
 *	FAULT=...		one of those below
 *
 * bring	fill_bring(): source_plan(), slot_read(); victim_read_ended(); fill_done(): shares_join(); victim_came()
 * change	span_apply(): pages_own(), shares_own(), page_move(); pages_become(), victim_drop_slot()
 * leave	chunk_shrink(), page_leave(): victim_offer(), park(), park_again(); then frames_give(), shares_put()
 * device	batch_send(), batch_ended(): of each slot for itself
 *
 * What is done with victims.lock held, or with a bucket of the index locked, is one step. Slabs come and go in parked.pml; how a frame is shared,
 * and by whom, is explored in frames.pml.
 */
#define NO_FAULT 0
#define STALE_LINK 1	/* a frame that enters the index knows the slot from before */
#define KEEP_FRAME 2	/* a slot that no page has any more knows the frame from before */
#define TRUST_FRAME 3	/* that a frame knows a slot is a link */
#define LINK_OWN 4	/* a frame that has left the index, as its page is changed, is linked still */
#define DROP_ALL 5	/* a slot is free when one of its pages is changed */
#define READ_ONCE 6	/* a slot that two pages are read from may be taken when the first has been */
#define LINK_LATE 7	/* a slot from which a page has come is linked with the page's frame, though it is not the page's any more */

#ifndef FAULT
#define FAULT NO_FAULT
#endif
#ifndef PAGES
#define PAGES 2
#endif
#ifndef FRAMES
#define FRAMES 2
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef THREADS
#define THREADS 2
#endif
#ifndef CHANGES
#define CHANGES 2
#endif

#define NONSENSE 3	/* bytes that are no page's */

typedef home_page {
	bool lock;
	unsigned frame : 2;	/* 0: it is not home */
	unsigned shows : 2;	/* what a reader must see */
	unsigned store : 2;
	unsigned slot : 2;	/* 0: it is not parked */
};
home_page p[PAGES];

typedef home_frame {
	unsigned bytes : 2;
	unsigned owners : 2;	/* 0: it is free */
	bool indexed;
	unsigned slot : 2;	/* struct share: what it knows */
};
home_frame f[FRAMES + 1];

typedef victim_slot {
	bool taken, coming, gone;	/* as in victim_inner.h */
	unsigned reads : 2;
	unsigned bytes : 2;	/* in the device's memory */
	unsigned batch : 2;	/* on their way there */
	unsigned frame : 2;	/* struct slot_known: what it knows */
};
victim_slot s[SLOTS + 1];

byte changes;

#define HAS(n) (p[0].slot == n || p[1].slot == n || p[PAGES - 1].slot == n)
#define BUSY(n) (s[n].coming || s[n].reads > 0)

/* slot_abandon() */
inline abandon(n)
{
	if
	:: FAULT != KEEP_FRAME -> s[n].frame = 0
	:: else
	fi;
	if
	:: BUSY(n) -> s[n].gone = true
	:: else -> s[n].taken = false; s[n].bytes = NONSENSE
	fi
}

/* slot_leave(), of page @which's slot, if it has one; @was becomes 0 */
inline drop(which)
{
	was = p[which].slot;
	p[which].slot = 0;
	if
	:: was != 0 && !s[was].gone && (!HAS(was) || FAULT == DROP_ALL) -> abandon(was)
	:: else
	fi;
	was = 0
}

/* slot_drop_all() */
inline drop_all(n)
{
	k = 0;
	do
	:: k < PAGES && p[k].slot == n -> drop(k); k++
	:: k < PAGES && p[k].slot != n -> k++
	:: k == PAGES -> break
	od;
	k = 0
}

/* slot_ended(), of a copy that @failed or not */
inline ended(n)
{
	if
	:: failed && !s[n].gone -> drop_all(n)
	:: else
	fi;
	if
	:: s[n].coming -> s[n].coming = false; s[n].batch = 0
	:: else -> s[n].reads = (FAULT == READ_ONCE -> 0 : s[n].reads - 1)
	fi;
	if
	:: s[n].gone && !BUSY(n) -> s[n].gone = false; s[n].taken = false; s[n].bytes = NONSENSE
	:: else
	fi
}

/* A free frame, into @out; 0: there is none */
inline take(out)
{
	if
	:: f[1].owners == 0 -> out = 1
	:: f[1].owners > 0 && f[2].owners == 0 -> out = 2
	:: f[1].owners > 0 && f[2].owners > 0 && FRAMES > 2 && f[FRAMES].owners == 0 -> out = FRAMES
	:: else -> out = 0
	fi;
	if
	:: out != 0 -> f[out].owners = 1; assert(!f[out].indexed)
	:: else
	fi
}

/* shares_put() and give_all() */
inline give(n)
{
	f[n].owners--;
	if
	:: f[n].owners == 0 -> f[n].indexed = false; f[n].bytes = NONSENSE
	:: else
	fi
}

/* slot_of_frame(): a link, only if both know it. */
#define LINKED(n) (f[n].slot != 0 && (s[f[n].slot].frame == n || FAULT == TRUST_FRAME) && (f[n].indexed || FAULT == LINK_OWN))

/* A link is true: the slot has pages, and the frame's bytes, or will have. */
inline check_links()
{
	k = 1;
	do
	:: k <= FRAMES ->
		assert(FAULT != NO_FAULT || !LINKED(k) ||
		       s[f[k].slot].taken && !s[f[k].slot].gone && HAS(f[k].slot) &&
		       f[k].bytes == (s[f[k].slot].coming -> s[f[k].slot].batch : s[f[k].slot].bytes));
		k++
	:: else -> break
	od;
	k = 0
}

#define MAY_READ(n) (p[n].slot != 0 && !s[p[n].slot].coming)
#define TO_BRING(n) (!p[n].lock && p[n].frame == 0)
#define TO_CHANGE(n) (!p[n].lock && p[n].frame != 0 && changes < CHANGES)
#define TO_LEAVE(n) (!p[n].lock && p[n].frame != 0)
#define MAY_TAKE(n) (!s[n].taken || !BUSY(n))

#define FIND(is) \
	if \
	:: is(0) -> i = 0 \
	:: is(1) -> i = 1 \
	:: PAGES > 2 && is(PAGES - 1) -> i = PAGES - 1 \
	fi

/* @mine is page i's to come: its bytes, and then perhaps another frame that has the same. */
inline bring()
{
	if
	/* slot_read() */
	:: atomic { MAY_READ(i) -> slot = p[i].slot; s[slot].reads++ };
	   /* the copy */
	   if
	   :: atomic { true -> f[mine].bytes = s[slot].bytes }
	   :: failed = true
	   fi;
	   /* victim_read_ended() */
	   atomic { ended(slot) };
	   if
	   /* fill_read_instead() */
	   :: atomic { failed -> failed = false; slot = 0; f[mine].bytes = p[i].store }
	   :: !failed
	   fi
	:: atomic { true -> f[mine].bytes = p[i].store }
	fi;
	if
	/* it is not looked for */
	:: true
	/* shares_join() */
	:: atomic {
		true ->
		k = 1;
		do
		:: k <= FRAMES && !(f[k].indexed && f[k].bytes == f[mine].bytes) -> k++
		:: else -> break
		od;
		if
		:: k <= FRAMES -> f[k].owners++; give(mine); mine = k
		:: else ->
			f[mine].indexed = true;
			if
			:: FAULT != STALE_LINK -> f[mine].slot = 0
			:: else
			fi
		fi;
		k = 0
	   }
	fi;
	atomic {
		p[i].frame = mine;
		mine = 0;
		assert(f[p[i].frame].bytes == p[i].shows);
		/* victim_came(): the slot is the page's still, and what the frame is linked with is full, or nothing */
		if
		:: slot != 0 && (p[i].slot == slot || FAULT == LINK_LATE) && f[p[i].frame].indexed ->
			s[slot].frame = p[i].frame;
			f[p[i].frame].slot = slot
		:: true
		fi;
		slot = 0
	}
}

proctype thread()
{
	byte i, k, slot, mine, was;
	bool failed;

	do
	:: atomic { FIND(TO_BRING); p[i].lock = true; take(mine) };
	   if
	   :: mine != 0 -> bring()
	   :: mine == 0
	   fi;
	   atomic { p[i].lock = false; i = 0 }
	:: atomic { FIND(TO_CHANGE); p[i].lock = true; changes++ };
	   /* shares_own(); page_move() */
	   atomic {
		if
		:: f[p[i].frame].owners == 1 -> f[p[i].frame].indexed = false
		:: else ->
			take(mine);
			if
			:: mine != 0 -> f[mine].bytes = f[p[i].frame].bytes; give(p[i].frame); p[i].frame = mine; mine = 0
			:: else -> failed = true
			fi
		fi
	   };
	   /* pages_become(); and it is stored: what is dirty does not leave */
	   atomic {
		if
		:: !failed ->
			p[i].shows = 3 - p[i].shows;
			f[p[i].frame].bytes = p[i].shows;
			p[i].store = p[i].shows;
			drop(i)
		:: else -> failed = false
		fi;
		p[i].lock = false;
		i = 0;
		check_links()
	   }
	od
}

/* Its frame is @old. It may be full, or too much be shared. */
inline offer()
{
	slot = (LINKED(old) -> f[old].slot : 0);
	if
	/* park_again() */
	:: slot != 0 && p[i].slot != 0 && slot != p[i].slot && !s[slot].coming ->
		was = p[i].slot;
		p[i].slot = slot;
		if
		:: !HAS(was) && !s[was].gone -> abandon(was)
		:: else
		fi;
		was = 0
	:: p[i].slot != 0	/* it stays where it is parked */
	/* park() */
	:: p[i].slot == 0 && slot != 0 -> p[i].slot = slot
	:: p[i].slot == 0 ->
		slot = 1;
		do
		:: slot <= SLOTS && MAY_TAKE(slot) ->
			if
			:: s[slot].taken -> drop_all(slot)
			:: else
			fi;
			/* READ_ONCE, DROP_ALL: it has been left only for those who come */
			s[slot].gone = false;
			s[slot].taken = true;
			s[slot].coming = true;
			s[slot].batch = f[old].bytes;
			p[i].slot = slot;
			if
			:: f[old].indexed -> s[slot].frame = old; f[old].slot = slot
			:: else
			fi;
			break
		:: slot <= SLOTS -> slot++
		:: slot > SLOTS -> break
		od
	:: p[i].slot == 0	/* the policy does not want it */
	fi;
	slot = 0
}

/* With chunk.lock held. */
proctype evictor()
{
	byte i, k, slot, old, was;

	do
	:: atomic { FIND(TO_LEAVE); old = p[i].frame; offer(); p[i].frame = 0; check_links(); give(old); old = 0; i = 0 }
	od
}

/* Of each slot; a copy that fails leaves anything there. */
proctype device()
{
	byte n, k, was;
	bool failed;

	do
	:: atomic {
		if
		:: s[1].coming -> n = 1
		:: SLOTS > 1 && s[SLOTS].coming -> n = SLOTS
		fi;
		if
		:: s[n].bytes = s[n].batch
		:: s[n].bytes = NONSENSE; failed = true
		fi
	   };
	   /* batch_ended() */
	   atomic { ended(n); failed = false; n = 0; check_links() }
	od
}

init {
	byte k;

	atomic {
		do
		:: k < PAGES -> p[k].store = 1; p[k].shows = 1; k++
		:: else -> break
		od;
		k = 1;
		do
		:: k <= FRAMES -> f[k].bytes = NONSENSE; k++
		:: else -> break
		od;
		k = 1;
		do
		:: k <= SLOTS -> s[k].bytes = NONSENSE; k++
		:: else -> break
		od;
		k = 0;
		run thread();
		if
		:: THREADS > 1 -> run thread()
		:: else
		fi;
		run evictor();
		run device()
	}
}
