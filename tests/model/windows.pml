/*
 * windows.pml - acquires and releases that work in windows: who waits for whom, and what may be relied on without a lock.
 *
 * Two chunks of two pages. A client acquires all of them for writing, twice; another one, on another device, releases what it
 * stored to them; the kernel writes back the first page and the last, by one WRITE, and a page of each chunk is in the kernel's cache, which the release has to
 * invalidate; a truncate wants the file for itself. The numbers are those of the rules in daemon/README.md.
 *
 * acquire	cache_acquire(): parts_acquire(), windows_go_on(), part_acquire_again(); ahead.c
 * release	cache_release(): group_release(), window_next(), settle(), group_complete()
 * server	op_write(), cache_write()
 * truncate	cache_truncate()
 */
#define NO_FAULT 0
#define KEEP_AHEAD 1	/* an acquire waits for a page while it has later ones, which it reads ahead */
#define TELL_LOCKED 2	/* a release tells the kernel while its next window is under way */
#define KEEP_RANGE 3	/* a release tells the kernel while it has the file's range */
#define KEEP_TURN 4	/* a release waits for pages while it has those of later chunks */
#define EARLY_UNLOCK 5	/* locks are given back when the device's operation has been submitted */
#define TRUST_INDEX 6	/* an acquire does not look at the index again when its window ends */
#define TRUST_LOCKED 7	/* an acquire relies on the index for pages that others have locked */
#define TURN_LOCKED 8	/* an acquire gives the file's range up while its next window is under way */
#define AGAIN_LOCKED 9	/* an acquire acquires a part again while its next window is under way */

#ifndef FAULT
#define FAULT NO_FAULT
#endif

#define CHUNKS 2
#define PAGES 4
#define FIRST(chunk) (2 * (chunk))
#define BIT(n) (1 << (n))

/* Who has a page locked. */
#define ACQUIRE 1
#define RELEASE 2
#define SERVER 3
#define TRUNCATE 4

typedef page {
	unsigned lock : 3;
	unsigned home : 3, seen : 3;	/* versions: of home's bytes, and those that the acquiring client's replica was last made equal to */
	bool stale;	/* the index */
	bool writing;	/* held for writing by the acquiring client: what it stores is merged with the bytes of @seen as their base */
	bool twin;	/* they are kept */
	bool ahead;	/* the other device has released what home lacks */
};
page p[PAGES];

/* cfile.range: who waits for it alone goes before those who would share it (2). */
byte sharers;
bool alone, wants_alone;

/* The kernel: whether its page of chunk 0 is dirty, is being written back. */
bool dirty = true, writing_back;

byte op_acquire, op_next;	/* pages that the device works on: of the acquire's window, and of its next one */
bool quiet;

#define BASE_IS_THERE(i) (!p[i].writing || p[i].seen == p[i].home || p[i].twin)
#define LOCKED_BY_OTHERS(chunk, who) \
	((p[FIRST(chunk)].lock != 0 && p[FIRST(chunk)].lock != (who)) || (p[FIRST(chunk) + 1].lock != 0 && p[FIRST(chunk) + 1].lock != (who)))

inline lock_wait(i, who) { atomic { p[i].lock == 0 -> p[i].lock = who } }
inline share_range() { atomic { !alone && !wants_alone -> sharers++ } }

inline unlock_all(pages, who)
{
	n = 0;
	do
	:: n < PAGES ->
		if
		:: (pages) & BIT(n) -> assert(p[n].lock == who); p[n].lock = 0
		:: else
		fi;
		n++
	:: else -> break
	od;
	n = 0
}

/*
 * home_change(): a base is saved once (9), if it was one when the thread @looked; what goes by it is stale. What is released is merged
 * first (8).
 */
inline home_change(i, looked)
{
	p[i].twin = p[i].twin || ((looked) && p[i].writing && p[i].seen == p[i].home);
	p[i].home++;
	p[i].stale = true;
	p[i].ahead = false;
	assert(BASE_IS_THERE(i))
}

/* ---- an acquire, for writing ---- */

/*
 * part_look(): the pages of the chunk that have to be locked, into todo; @all: all of them. If there are none they are only held
 * (part_is_held()).
 */
inline part_look(chunk, all)
{
	todo = (p[FIRST(chunk)].stale -> BIT(FIRST(chunk)) : 0) | (p[FIRST(chunk) + 1].stale -> BIT(FIRST(chunk) + 1) : 0);
	whole = (all) || (LOCKED_BY_OTHERS(chunk, 0) && FAULT != TRUST_LOCKED);
	todo = (whole -> BIT(FIRST(chunk)) | BIT(FIRST(chunk) + 1) : todo);
	if
	:: todo == 0 -> part_hold(chunk)
	:: else
	fi
}

inline page_hold(i)
{
	p[i].twin = p[i].writing && p[i].twin;
	p[i].writing = true;
	assert(BASE_IS_THERE(i))
}

/* part_grant() */
inline part_hold(chunk)
{
	page_hold(FIRST(chunk));
	page_hold(FIRST(chunk) + 1)
}

/* part_lock(): page i, if it is among those; the reads ahead end before it waits. */
inline part_lock(i)
{
	if
	:: atomic { !(todo & BIT(i)) }
	:: atomic { (todo & BIT(i)) && p[i].lock == 0 -> p[i].lock = ACQUIRE; window = window | BIT(i) }
	:: atomic {
		(todo & BIT(i)) && p[i].lock != 0 ->
		if
		:: FAULT != KEEP_AHEAD && ahead != 0 -> unlock_all(ahead, ACQUIRE); ahead = 0
		:: else
		fi
	   };
	   lock_wait(i, ACQUIRE);
	   window = window | BIT(i)
	fi
}

/* window_end(), part_end(): also of the pages that the index did not name it must not say anything by now, and nobody may have locked them (22). */
inline part_end(chunk, win)
{
	if
	:: FAULT != TRUST_INDEX && ((p[FIRST(chunk)].stale && !((win) & BIT(FIRST(chunk)))) ||
				    (p[FIRST(chunk) + 1].stale && !((win) & BIT(FIRST(chunk) + 1))) || LOCKED_BY_OTHERS(chunk, ACQUIRE)) ->
		again = again | BIT(chunk)
	:: else -> part_hold(chunk)
	fi
}

#define OF_CHUNK(pages, chunk) ((pages) >> FIRST(chunk) & 3)

/* window_begin(): fetch what others released, then submit one operation for all of the window. */
inline window_begin(win, op)
{
	d_step {
		n = 0;
		do
		:: n < PAGES ->
			if
			:: ((win) & BIT(n)) && p[n].ahead -> home_change(n, true)
			:: else
			fi;
			n++
		:: else -> break
		od;
		n = 0;
		op = win
	};
	if
	:: FAULT == EARLY_UNLOCK -> d_step { unlock_all(win, ACQUIRE) }
	:: else
	fi
}

/* window_await() */
inline window_await(op)
{
	d_step {
		op != 0 ->
		do
		:: n < PAGES ->
			if
			:: op & BIT(n) ->
				assert(p[n].lock == ACQUIRE);
				p[n].seen = p[n].home;
				p[n].twin = false;
				p[n].stale = false
			:: else
			fi;
			n++
		:: else -> break
		od;
		n = 0;
		op = 0
	}
}

/* window_end() */
inline window_unlock(win)
{
	if
	:: FAULT != EARLY_UNLOCK -> unlock_all(win, ACQUIRE)
	:: else
	fi;
	win = 0
}

/* part_acquire_again(): by itself, with all of its pages locked */
inline acquire_again()
{
	do
	:: atomic {
		again != 0 ->
		if
		:: ahead != 0 -> unlock_all(ahead, ACQUIRE); ahead = 0
		:: else
		fi;
		part = (again & BIT(0) -> 0 : 1);
		again = again & ~BIT(part);
		part_look(part, true)
	   };
	   part_lock(FIRST(part));
	   part_lock(FIRST(part) + 1);
	   window_begin(window, op_acquire);
	   window_await(op_acquire);
	   d_step {
		part_hold(part);
		window_unlock(window);
		todo = 0;
		part = 0
	   }
	:: again == 0 -> break
	od
}

/* give_turn() */
inline give_turn()
{
	if
	:: atomic {
		wants_alone ->
		if
		:: ahead != 0 -> unlock_all(ahead, ACQUIRE); ahead = 0
		:: else
		fi;
		sharers--
	   };
	   share_range()
	:: !wants_alone
	fi
}

proctype acquire()
{
	byte todo, window, next, ahead, again, chunk, joined, part, n, rounds;
	bool whole;

end:
	do
	:: atomic { !quiet && rounds < 2 -> rounds++ };
	   share_range();
	   /* ahead_go_on(): later pages are read meanwhile, if they can be had */
	   if
	   :: true
	   :: atomic { p[3].lock == 0 -> p[3].lock = ACQUIRE; ahead = BIT(3) }
	   fi;
	   do
	   :: chunk < CHUNKS ->
		/* window_first() */
		atomic {
			if
			:: ahead & (3 << FIRST(chunk)) -> unlock_all(ahead, ACQUIRE); ahead = 0	/* ahead_arrived() */
			:: else
			fi;
			part_look(chunk, false)
		};
		part_lock(FIRST(chunk));
		part_lock(FIRST(chunk) + 1);
		/* window_join(): by trying; not what is being read ahead */
		atomic {
			joined = chunk + 1;
			if
			:: chunk + 1 < CHUNKS && ahead == 0 ->
				part_look(chunk + 1, false);
				if
				:: !((todo & BIT(2)) && p[2].lock != 0) && !((todo & BIT(3)) && p[3].lock != 0) ->
					joined = chunk + 2;
					p[2].lock = (todo & BIT(2) -> ACQUIRE : p[2].lock);
					p[3].lock = (todo & BIT(3) -> ACQUIRE : p[3].lock);
					window = window | todo
				:: else
				fi
			:: true	/* the window is full */
			fi;
			todo = 0
		};
		if
		:: window != 0 -> window_begin(window, op_acquire)
		:: else
		fi;
		/* windows_go_on(): the next one, by trying, while the device is at work */
		atomic {
			if
			:: joined == chunk + 1 && joined < CHUNKS && ahead == 0 && window != 0 && !wants_alone ->
				part_look(chunk + 1, false);
				if
				:: !((todo & BIT(2)) && p[2].lock != 0) && !((todo & BIT(3)) && p[3].lock != 0) ->
					joined = chunk + 2;
					p[2].lock = (todo & BIT(2) -> ACQUIRE : p[2].lock);
					p[3].lock = (todo & BIT(3) -> ACQUIRE : p[3].lock);
					next = todo
				:: else
				fi
			:: else
			fi;
			todo = 0
		};
		if
		:: next != 0 -> window_begin(next, op_next)
		:: else
		fi;
		if
		:: window != 0 -> window_await(op_acquire)
		:: else
		fi;
		d_step {
			if
			:: OF_CHUNK(window, chunk) -> part_end(chunk, window)
			:: else
			fi;
			if
			:: joined > chunk + 1 && OF_CHUNK(window, chunk + 1) -> part_end(chunk + 1, window)
			:: else
			fi;
			window_unlock(window)
		};
		if
		:: FAULT == TURN_LOCKED -> give_turn()
		:: FAULT == AGAIN_LOCKED -> acquire_again()
		:: else
		fi;
		if
		:: next != 0 ->
			window_await(op_next);
			d_step { part_end(chunk + 1, next); window_unlock(next) }
		:: else
		fi;
		atomic { chunk = joined; joined = 0; whole = false };
		give_turn()
	   :: chunk == CHUNKS -> break
	   od;
	   acquire_again();
	   atomic {
		unlock_all(ahead, ACQUIRE);
		ahead = 0;
		sharers--;
		chunk = 0
	   };
	   /* ... and released, unchanged */
	   d_step {
		n = 0;
		do
		:: n < PAGES -> assert(p[n].writing && BASE_IS_THERE(n)); n++
		:: else -> break
		od;
		n = 0;
		do
		:: n < PAGES ->
			p[n].writing = false;
			p[n].stale = p[n].stale || p[n].seen != p[n].home;
			p[n].seen = (p[n].stale -> 0 : p[n].seen);
			p[n].twin = false;
			n++
		:: else -> break
		od;
		n = 0
	   }
	od
}

/* ---- another client's release ---- */

/* find_end(), publish(): the pages of window w; nothing is under way then. */
inline window_publish(w)
{
	d_step {
		n = 0;
		do
		:: n < PAGES ->
			if
			:: (w) & BIT(n) -> assert(p[n].lock == RELEASE); p[n].ahead = true; p[n].stale = true
			:: else
			fi;
			n++
		:: else -> break
		od;
		n = 0;
		unlock_all(w, RELEASE);
		w = 0
	}
}

/* host.invalidate(): waits for write-back; sends what is dirty (7). The kernel's page is that of chunk 0. */
inline invalidate()
{
	atomic { !writing_back -> writing_back = dirty; dirty = false };
	(!writing_back)
}

proctype release()
{
	byte first, next, n;

	/* window_begin(): waits for pages of one chunk with no other locked */
	share_range();
	if
	:: FAULT == KEEP_TURN -> lock_wait(2, RELEASE); lock_wait(3, RELEASE); next = BIT(2) | BIT(3)
	:: else
	fi;
	lock_wait(0, RELEASE);
	lock_wait(1, RELEASE);
	first = BIT(0) | BIT(1);
	/* while the device compares: the next chunk, by trying; not if a truncate waits */
	if
	:: atomic {
		p[2].lock == 0 && p[3].lock == 0 && next == 0 && !wants_alone ->
		p[2].lock = RELEASE;
		p[3].lock = RELEASE;
		next = BIT(2) | BIT(3)
	   }
	:: true
	fi;
	window_publish(first);
	/* settle(): the kernel is told with nothing locked, and without the range */
	if
	:: FAULT != TELL_LOCKED && next != 0 -> window_publish(next)
	:: else
	fi;
	if
	:: FAULT != KEEP_RANGE -> atomic { sharers-- }
	:: else
	fi;
	invalidate();
	if
	:: FAULT == KEEP_RANGE -> atomic { sharers-- }
	:: else
	fi;
	if
	:: next != 0 -> window_publish(next)
	:: else
	fi
}

/* ---- the kernel's requests ---- */

/* A WRITE of the first page and the last; by a thread that serves, which waits for pages, and in order (3, 6). */
proctype server()
{
	byte n;
	bool first, last;

end:
	do
	:: atomic { dirty && !writing_back && !quiet -> dirty = false; writing_back = true }
	:: atomic { writing_back && !alone && !wants_alone -> sharers++ };
	   lock_wait(0, SERVER);
	   lock_wait(3, SERVER);
	   /* span_prepare(), span_frames(): relies on what it sees now, as it has the pages */
	   d_step { first = p[0].writing; last = p[3].writing };
	   d_step {
		home_change(0, first);
		home_change(3, last);
		unlock_all(BIT(0) | BIT(3), SERVER);
		sharers--;
		writing_back = false;
		first = false;
		last = false
	   }
	od
}

proctype truncate()
{
	byte n;

end:
	atomic { !quiet -> wants_alone = true };
	atomic { sharers == 0 -> alone = true; wants_alone = false };
	lock_wait(1, TRUNCATE);
	lock_wait(2, TRUNCATE);
	d_step {
		home_change(1, true);
		home_change(2, true);
		unlock_all(BIT(1) | BIT(2), TRUNCATE);
		alone = false
	}
}

init {
	atomic {
		p[0].stale = true;
		p[1].stale = true;
		p[2].stale = true;
		p[3].stale = true;
		p[0].home = 1;
		p[1].home = 1;
		p[2].home = 1;
		p[3].home = 1;
		run acquire();
		run release();
		run server();
		run truncate()
	};
	quiet = true
}
