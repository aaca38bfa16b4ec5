/*
 * frames.pml - frames of home that several pages have, because their bytes are equal (rule 28 in daemon/README.md).
 *
 * Pages, each of a file of its own; frames; the index, in which a frame is found by its bytes. Threads bring pages home, change, replace,
 * store and evict them, in any order. A hash says no more than whether bytes are zeros: all others collide.
 *
 *	THREADS, PAGES, FRAMES	how many there are; where frames are scarce a page cannot be read, or not be changed
 *	CHANGES=n		how often pages' bytes change, all together
 *	WITH_ZEROS=1		... also to zeros
 *	REPLACE=1		a device's release may replace a page's frame, and what it had stays as somebody's base
 *	OWNERS=1		the last page is another user's, and the first becomes that user's
 *	FAULT=...		one of those below
 *
 * bring	fill_done(): dedup_frame(), find_domain(), shares_join()
 * own		pages_own(), page_own(): is_own(), shares_own(), page_move()
 * change	span_apply(), cut_page(), fetch_merge(): all that changes home's bytes where they are
 * replace	fetch_merge() of a plain copy: home_replace(), twin_add()
 * collect	twins_collect(): kept_give()
 * evict	chunk_shrink(), page_leave()
 * take, give	frames_take(); frames_give(): shares_indexed(), shares_put(), give_all()
 *
 * What is done with a bucket of the index locked is one step. That an indexed frame stays while one has a share of it is not: who looks
 * whether it is in the index does so in a step of its own, as in the code.
 */
#define NO_FAULT 0
#define DO_NOT_OWN 1	/* a page is changed where it is, though others have its frame */
#define OWN_INDEXED 2	/* a page whose frame nobody else has is changed, and stays in the index */
#define OWN_UNLOCKED 3	/* that nobody else has it is looked at before the index is locked */
#define OWN_AND_KEEP 4	/* a page that gets a frame of its own does not give its share of the other one back */
#define JOIN_UNCOUNTED 5	/* a page that finds a frame is not counted */
#define JOIN_UNLOCKED 6	/* a frame is found and compared, and had only then, without another look at it */
#define JOIN_BY_HASH 7	/* what is found is not compared */
#define JOIN_EARLY 8	/* a frame enters the index before all of its bytes are there */
#define PUT_INDEXED 9	/* the last who gives a frame back leaves it in the index */
#define PUT_UNLOCKED 10	/* ... takes it out only after it has counted that it was the last */
#define GIVE_WHOLE 11	/* a base that is not needed any more is given back as if nobody else had its frame */
#define EVICT_LOCKED 12	/* a page is evicted that somebody has locked */
#define MIX_OWNERS 13	/* a frame is found by pages of any user */
#define TRUST_OWNER 14	/* whose a file is, is kept, though it may have changed while the store was asked */

#ifndef FAULT
#define FAULT NO_FAULT
#endif
#ifndef THREADS
#define THREADS 2
#endif
#ifndef PAGES
#define PAGES 2
#endif
#ifndef FRAMES
#define FRAMES 3
#endif
#ifndef CHANGES
#define CHANGES 2
#endif
#ifndef REPLACE
#define REPLACE 0
#endif
#ifndef WITH_ZEROS
#define WITH_ZEROS 0
#endif
#ifndef OWNERS
#define OWNERS 0
#endif

/* Bytes, and the domain of who has zeros; bytes that are no page's; the domain of who shares nothing else. */
#define ZEROS 0
#define NONSENSE 3
#define NOBODY 0

typedef home_frame {
	unsigned bytes : 2;
	bool free;
	unsigned refs : 3;	/* who has it; the program does not know */
	bool indexed, zeros;	/* in the index; by which tag */
	unsigned owners : 3, domain : 2;
};
home_frame f[FRAMES + 1];	/* 0: none */

typedef home_page {
	bool lock, dirty;
	unsigned frame : 3;
	unsigned shows : 2;	/* the bytes that a reader must see */
	unsigned store : 2;
	unsigned twin : 3, base : 2;	/* a base that somebody needs: its frame, and the bytes that it must have */
	unsigned user : 2;	/* whose the file is */
	unsigned known : 2;	/* cfile.dedup.owner: whose it was when the store was asked; NOBODY: it is to be asked */
	bool change, told;	/* ... and whether that has changed; the program that has changed it has had its answer */
};
home_page p[PAGES];

byte changes, busy;

/* Of pages that nobody is about to change: what they show is there. So it is for a reader at any time, who shares the page's lock. */
inline check_bytes()
{
	n = 0;
	do
	:: n < PAGES ->
		assert(p[n].frame == 0 || p[n].lock || f[p[n].frame].bytes == p[n].shows);
		assert(p[n].twin == 0 || f[p[n].twin].bytes == p[n].base);
		/* as pages_become() asserts; without that it is seen what comes of it */
		assert(FAULT != NO_FAULT || !p[n].dirty || !f[p[n].frame].indexed);
		n++
	:: else -> break
	od;
	n = 0
}

/* cache_check(), when nothing runs: shares_check(). */
inline check_counts()
{
	n = 1;
	do
	:: n <= FRAMES ->
		assert(f[n].free == (f[n].refs == 0));
		assert(!f[n].indexed || f[n].owners == f[n].refs);
		assert(f[n].indexed || f[n].refs <= 1);
		n++
	:: else -> break
	od;
	n = 0
}

/* A thread has begun, or ended, what it does. */
inline ended()
{
	busy--;
	i = 0;
	check_bytes();
	if
	:: busy == 0 -> check_counts()
	:: else
	fi
}

/* Into @out; 0: there is none. */
inline take(out)
{
	n = 1;
	do
	:: n <= FRAMES && !f[n].free -> n++
	:: else -> break
	od;
	out = (n <= FRAMES -> n : 0);
	if
	:: out != 0 ->
		assert(f[out].refs == 0 && !f[out].indexed);
		f[out].free = false;
		f[out].refs = 1
	:: else
	fi;
	n = 0
}

inline leave_index(which)
{
	f[which].indexed = false;
	f[which].zeros = false;
	f[which].owners = 0;
	f[which].domain = NOBODY
}

/* give_all(): of @mine. Others take it, and store to it what they like. */
inline give_all()
{
	assert(!f[mine].free);
	f[mine].free = true;
	f[mine].bytes = NONSENSE;
	mine = 0;
	check_bytes()
}

/* frames_give() of @mine, the thread's; @shares: it may be a share of it. What is looked at first is the step before. */
inline give(shares)
{
	if
	:: atomic { !f[mine].indexed || !(shares) -> f[mine].refs--; give_all() }
	:: atomic { f[mine].indexed && (shares) -> f[mine].refs-- };
	   /* shares_put() */
	   atomic {
		f[mine].owners--;
		if
		:: f[mine].owners > 0 -> mine = 0
		:: else ->
			if
			:: FAULT != PUT_INDEXED && FAULT != PUT_UNLOCKED -> leave_index(mine)
			:: else
			fi
		fi
	   };
	   if
	   :: atomic {
		mine != 0 ->
		if
		:: FAULT == PUT_UNLOCKED -> leave_index(mine)
		:: else
		fi;
		give_all()
	      }
	   :: mine == 0
	   fi
	fi
}

/* find_domain(): whose the page is, into @domain; NOBODY: it does not share. */
inline find_domain()
{
	if
	:: atomic { p[i].known != NOBODY -> domain = p[i].known; assert(!p[i].told || domain == p[i].user) }
	/* ask_owner() */
	:: atomic { p[i].known == NOBODY -> change = p[i].change; late = p[i].told };
	   domain = p[i].user;
	   atomic {
		if
		:: (p[i].change == change && p[i].known == NOBODY) || FAULT == TRUST_OWNER -> p[i].known = domain
		:: else -> domain = NOBODY
		fi;
		/* Who asks after the program has had its answer asks for what is true now. */
		assert(!late || domain == NOBODY || domain == p[i].user);
		late = false;
		change = false
	   }
	fi
}

#define SAME(a, b) (f[a].zeros == (f[b].bytes == ZEROS) && (f[a].zeros || FAULT == JOIN_BY_HASH || f[a].bytes == f[b].bytes) && \
		    (f[a].domain == domain || FAULT == MIX_OWNERS))

/* shares_join(), the index is locked: @found, or the frame itself. */
inline look_up()
{
	n = 1;
	do
	:: n <= FRAMES && !(f[n].indexed && SAME(n, mine)) -> n++
	:: else -> break
	od;
	found = (n <= FRAMES -> n : mine);
	n = 0
}

inline join_or_enter()
{
	if
	:: found != mine ->
		/* Of another user's nobody has anything but zeros. */
		assert(!f[found].indexed || f[found].domain == domain || f[found].bytes == ZEROS);
		f[found].owners = f[found].owners + (FAULT != JOIN_UNCOUNTED);
		f[found].refs++
	:: else ->
		assert(!f[mine].indexed);
		f[mine].indexed = true;
		f[mine].zeros = f[mine].bytes == ZEROS;
		f[mine].owners = 1;
		f[mine].domain = domain
	fi;
	domain = NOBODY
}

inline join()
{
	atomic {
		look_up();
		if
		:: FAULT != JOIN_UNLOCKED -> join_or_enter()
		:: else
		fi
	};
	if
	:: FAULT == JOIN_UNLOCKED -> atomic { join_or_enter() }
	:: else
	fi
}

/* dedup_frame(): of @mine, which the page is to get, into @found. */
inline dedup()
{
	if
	/* it is not in the sample, or there is no memory for it */
	:: atomic { true -> found = mine }
	:: atomic { f[mine].bytes == ZEROS -> domain = ZEROS }; join()
	:: f[mine].bytes != ZEROS ->
	   find_domain();
	   if
	   :: domain != NOBODY -> join()
	   :: atomic { domain == NOBODY -> found = mine }
	   fi
	fi
}

/* is_own() and pages_own(): page i has a frame that nobody else has, nor gets; @failed: there is none for it. */
inline own()
{
	if
	:: !f[p[i].frame].indexed || FAULT == DO_NOT_OWN
	:: f[p[i].frame].indexed && FAULT != DO_NOT_OWN ->
	   if
	   :: FAULT == OWN_UNLOCKED -> alone = f[p[i].frame].owners == 1
	   :: else
	   fi;
	   /* shares_own() */
	   atomic {
		alone = (FAULT == OWN_UNLOCKED -> alone : f[p[i].frame].owners == 1);
		if
		:: alone && FAULT != OWN_INDEXED -> leave_index(p[i].frame)
		:: else
		fi
	   };
	   if
	   :: atomic { alone -> alone = false }
	   :: atomic { !alone -> take(found); failed = found == 0 };
	      if
	      /* page_move() */
	      :: atomic {
			found != 0 ->
			f[found].bytes = f[p[i].frame].bytes;
			mine = p[i].frame;
			p[i].frame = found;
			found = 0;
			if
			:: FAULT == OWN_AND_KEEP -> f[mine].refs--; mine = 0
			:: else
			fi
		 };
		 if
		 :: mine != 0 -> give(true)
		 :: mine == 0
		 fi
	      :: found == 0
	      fi
	   fi
	fi
}

/* Other bytes than @old, into @new. */
inline other_bytes(old, new)
{
	if
	:: old != ZEROS && WITH_ZEROS -> new = ZEROS
	:: old != 1 -> new = 1
	:: old != 2 -> new = 2
	fi
}

/* The page's frame gets other bytes. */
inline change_bytes()
{
	other_bytes(p[i].shows, p[i].shows);
	f[p[i].frame].bytes = p[i].shows;
	p[i].dirty = true
}

#define TO_BRING(n) (!p[n].lock && p[n].frame == 0)
#define TO_CHANGE(n) (!p[n].lock && p[n].frame != 0 && changes < CHANGES)
#define TO_REPLACE(n) (REPLACE && TO_CHANGE(n))
#define TO_COLLECT(n) (!p[n].lock && p[n].twin != 0)
#define TO_STORE(n) (!p[n].lock && p[n].dirty)
#define TO_EVICT(n) ((!p[n].lock || FAULT == EVICT_LOCKED) && p[n].frame != 0 && !p[n].dirty)

/* Page i is one of which that is true. */
#define FIND(is) \
	if \
	:: is(0) -> i = 0 \
	:: is(1) -> i = 1 \
	:: PAGES > 2 && is(PAGES - 1) -> i = PAGES - 1 \
	fi

inline begin()
{
	p[i].lock = true;
	busy++
}

proctype thread()
{
	byte i, n, mine, found, domain;
	bool alone, failed, late, change;

	do
	/* home_fill_some(): a page comes home, to be read, or to be changed then */
	:: atomic {
		FIND(TO_BRING);
		begin();
		take(mine);
		if
		:: mine != 0 && FAULT != JOIN_EARLY -> f[mine].bytes = p[i].store
		:: else
		fi
	   };
	   if
	   :: mine != 0 ->
		dedup();
		if
		:: FAULT == JOIN_EARLY -> f[mine].bytes = p[i].store
		:: else
		fi;
		if
		:: atomic { found == mine -> mine = 0 }
		:: found != mine -> give(true)
		fi;
		atomic {
			p[i].frame = found;
			found = 0;
			p[i].lock = false;
			ended()
		}
	   :: atomic { mine == 0 -> p[i].lock = false; ended() }
	   fi
	/* its bytes are changed where they are */
	:: atomic { FIND(TO_CHANGE); begin(); changes++ };
	   own();
	   atomic {
		if
		:: !failed -> change_bytes()
		:: else -> failed = false
		fi;
		p[i].lock = false;
		ended()
	   }
	/* what was released becomes home's, and what home had somebody's base */
	:: atomic { FIND(TO_REPLACE); begin(); changes++; take(found) };
	   if
	   :: atomic {
		found != 0 ->
		mine = p[i].frame;
		p[i].frame = found;
		found = 0;
		if
		:: p[i].twin == 0 -> p[i].twin = mine; p[i].base = p[i].shows; mine = 0
		:: true
		fi;
		change_bytes()
	      };
	      if
	      :: mine != 0 -> give(true)
	      :: mine == 0
	      fi
	   :: found == 0
	   fi;
	   atomic { p[i].lock = false; ended() }
	/* nobody needs the base any more */
	:: atomic { FIND(TO_COLLECT); begin(); mine = p[i].twin; p[i].twin = 0; p[i].base = 0 };
	   give(FAULT != GIVE_WHOLE);
	   atomic { p[i].lock = false; ended() }
	:: atomic { FIND(TO_STORE); p[i].store = f[p[i].frame].bytes; p[i].dirty = false; i = 0 }
	/* with chunk.lock held; what the frame was is given back without a lock of the page */
	:: atomic { FIND(TO_EVICT); busy++; mine = p[i].frame; p[i].frame = 0 };
	   give(true);
	   atomic { ended() }
	od
}

/* Another user becomes the owner of the first page's file: in the store, then here; then the program has its answer. */
proctype owner()
{
	p[0].user = 2;
	atomic { p[0].change = true; p[0].known = NOBODY };
	p[0].told = true
}

init {
	byte n;

	atomic {
		n = 1;
		do
		:: n <= FRAMES -> f[n].free = true; f[n].bytes = NONSENSE; n++
		:: else -> break
		od;
		n = 0;
		do
		:: n < PAGES ->
			p[n].store = 1;
			p[n].shows = 1;
			p[n].user = 1;
			n++
		:: else -> break
		od;
		p[PAGES - 1].user = (OWNERS -> 2 : 1);
		n = 0;
		do
		:: n < THREADS -> run thread(); n++
		:: else -> break
		od;
		n = 0;
		if
		:: OWNERS -> run owner()
		:: else
		fi
	}
}
