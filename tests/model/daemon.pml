/*
 * daemon.pml - what the daemon does to a page under its lock (daemon/README.md, rule 3).
 *
 * Each inline stands for the functions named above it, in daemon/pagecache and daemon/consistency, and runs within a
 * d_step, since nobody else sees what the holder of the page lock has half done.
 */

/* ---- state ---- */

/*
 * A track_id, by what it names: home's bytes as they are, a twin, or nothing that matters. SENT is a twin of what the kernel
 * sent and was merged, so that it has met home's changes already (page_track.met). Each
 * reference carries the bytes of its twin; that ids never lie is for tests/unit/track.c to show.
 */
mtype = { NOWHERE, HOME, TWIN, SENT };
typedef reference {
	mtype is = NOWHERE;
	byte twin;
};

/* struct page, struct page_track, struct page_extra */
bool home_here, home_dirty;
byte home;
bool may_hold = true;
reference kernel_base;
bool owned;		/* page_extra.owners is there */
byte owners;		/* a page of owners */

/*
 * page_track.pending is the number of windows that are open, a bit each: those of the devices' releases first, then those of
 * the notifier's queue. given: those since whose opening the kernel was given or sent a copy.
 */
byte windows, given;
#define RELEASE_OF(d) BIT(d)
#define FIRST_AGAIN 2
#define LAST_AGAIN 7
#define AGAIN_ALL 252
byte waits[2];		/* those of the notifier's that the release of device d waits for */

/* struct replica, struct page_replica */
typedef replica {
	bool here, evicting;
	byte bytes, shadow, hash;
	reference base;	/* seen; NOWHERE without AHEAD and writers: not PRESENT, or stale */
	bool ahead, snapped;
	byte cut = PAGE;
#if SHARED || HOLDS > 1
	bool armed;	/* else it always is where it matters */
#endif
};
replica r[2];

/*
 * struct grant, and struct hold of its page: what a client has of its device's replica. The holds of threads of one client are counted in
 * g[0]; the rest is for each of them.
 */
typedef grant {
	bool pinned;			/* by an acquire under way */
	unsigned n : 2, writes : 2;	/* holds; those for writing, as far as can be known */
#if FAIL
	unsigned coming : 2;		/* of n: of acquires that have not succeeded yet */
#endif
	bool mapped;			/* the client maps the memory */
};
grant g[2];

#if FAIL
#define COMING(c) (g[GRANT(c)].coming)
#define COME(c, more) g[GRANT(c)].coming = g[GRANT(c)].coming more
#else
#define COMING(c) 0
#define COME(c, more) skip
#endif

/* The grant of client or thread c, and the replica that it uses; whether replica d is held, is pinned for an acquire, has page_replica.writers. */
#if THREADS
#define GRANT(c) 0
#else
#define GRANT(c) (c)
#endif
#define WRITES(c) (g[GRANT(c)].writes > 0)
#if SHARED
#define REPLICA(c) 0
#define HELD(d) ((d) == 0 && g[0].n + g[1].n > 0)
#define PINNED(d) ((d) == 0 && (g[0].pinned || g[1].pinned))
#define WRITERS(d) ((d) == 0 && g[0].writes + g[1].writes > 0)
#else
#define REPLICA(c) (c)
#define HELD(d) (g[d].n > 0)
#define PINNED(d) (g[d].pinned)
#define WRITERS(d) (g[d].writes > 0)
#endif
#if SHARED || HOLDS > 1
#define ARMED(d) (r[d].armed)
#define ARM(d, to) r[d].armed = to
#else
#define ARMED(d) true
#define ARM(d, to) skip
#endif

byte disk = PAGE_OF(INITIAL, INITIAL);	/* the store */
byte size = PAGE;			/* cfile.size */
bool page_lock;				/* held across steps only with FAULT HOLD_LOCK */

#define TRACKED (r[0].here || r[1].here || windows != 0)
#define OUTSTANDING(d) (WRITERS(d) || r[d].ahead)
/* track_base_needed() of home's id */
#define BASE_NEEDED \
	((windows != 0 && kernel_base.is == HOME) || (OUTSTANDING(0) && r[0].base.is == HOME) || \
	 (OUTSTANDING(1) && r[1].base.is == HOME))
/* kernel_is_behind() */
#define KERNEL_BEHIND (windows != 0 && (kernel_base.is == TWIN || kernel_base.is == SENT))
/* base_bytes() */
#define BYTES_OF(ref) (ref.is == HOME || FAULT == DROP_TWIN -> home : ref.twin)

/* Of d_steps only, and no part of the state. */
hidden byte base, theirs, limit, n, plain, others, equal, known;

inline refer(ref, what, bytes_of_twin)
{
	ref.is = what;
	ref.twin = (what == TWIN || what == SENT -> bytes_of_twin : 0)
}

/* ---- home ---- */

/* fill.c: home_fill_some(), from the store; or from a replica (source.c), which must be the same. */
#define SAME_AS_HOME(d) (r[d].base.is != HOME || OUTSTANDING(d) || r[d].cut < PAGE || r[d].bytes == home)
inline home_fill()
{
	if
	:: !home_here ->
		home_here = true;
		home = HEAD(disk, size);
		assert(SAME_AS_HOME(0) && SAME_AS_HOME(1))
	:: else
	fi
}

/* Home's bytes are about to change: a reference to them becomes one to a twin, if they are needed. */
inline part_from_home(ref, needed)
{
	if
	:: ref.is == HOME && needed -> assert(home_here); refer(ref, TWIN, home)
	:: ref.is == HOME && !needed -> refer(ref, NOWHERE, 0)
	:: else
	fi
}

/* coherence.c: home_change(); track_home_changed() */
inline home_change()
{
	part_from_home(kernel_base, windows != 0);
	part_from_home(r[0].base, OUTSTANDING(0));
	part_from_home(r[1].base, OUTSTANDING(1))
}

/*
 * twins_collect(), track_maybe_free(); and what means the same is made the same, so that it is one state: bytes
 * that nobody will look at are 0. (Where acquires may fail a page is looked at some time after it was brought.)
 */
inline settle_replica(d)
{
	if
	:: !OUTSTANDING(d) && r[d].base.is != HOME ->
		refer(r[d].base, NOWHERE, 0);
		r[d].cut = PAGE;
		r[d].bytes = (r[d].here && !(FAIL && HELD(d)) -> 0 : r[d].bytes)
	:: else
	fi;
	r[d].hash = (WRITERS(d) -> r[d].hash : 0);
	r[d].shadow = (r[d].snapped -> r[d].shadow : 0)
}

inline settle()
{
	settle_replica(0);
	settle_replica(1);
	owned = owned && (OUTSTANDING(0) || OUTSTANDING(1));
	owners = (owned -> owners : 0);
	home = (home_here -> home : 0);
	if
	:: !TRACKED -> may_hold = true
	:: else
	fi
}

/* ---- what the kernel holds: track.c ---- */

/* track_kernel_given() */
inline kernel_given(what, bytes_of_twin)
{
	may_hold = true;
	given = windows;
	if
	:: windows != 0 -> refer(kernel_base, what, bytes_of_twin)
	:: else
	fi
}

/* track_window_open() */
inline window_open(window)
{
	if
	:: windows == 0 -> refer(kernel_base, HOME, 0)
	:: else
	fi;
	windows = windows | (window);
	given = given & ~(window)
}

/* track_window_close() */
inline window_close(window)
{
	if
	:: !(given & (window)) -> refer(kernel_base, NOWHERE, 0)
	:: else
	fi;
	windows = windows & ~(window);
	given = given & ~(window);
	if
	:: windows == 0 ->
		may_hold = kernel_base.is != NOWHERE;
		refer(kernel_base, NOWHERE, 0)
	:: else
	fi
}

/* again_ask() */
inline again_ask()
{
	n = FIRST_AGAIN;
	do
	:: windows & BIT(n) -> n++
	:: else -> break
	od;
	assert(n <= LAST_AGAIN);
	window_open(BIT(n))
}

/* ---- fetch and merge: coherence.c ---- */

/* merge3(): one byte. */
#define THEIRS_WIN(h, b, t) ((t) != (b) -> (t) : (h))
#define HOME_WINS(h, b, t) ((h) == (b) -> (t) : (h))
#define KERNEL_MERGE(h, b, t) (known -> THEIRS_WIN(h, b, t) : HOME_WINS(h, b, t))
/* merge3_owned(): whether byte b is taken. */
#define TAKEN(b, owner) (BYTE(theirs, b) != BYTE(base, b) && \
	(BYTE(home, b) == BYTE(base, b) || BYTE(owners, b) <= (owner)))

inline merge_owned(b, owner)
{
	if
	:: b < limit && TAKEN(b, owner) ->
		home = PUT(home, b, BYTE(theirs, b));
		owners = PUT(owners, b, owner)
	:: else
	fi
}

/* merge_note_owner() */
#define NOTED(now, owner) \
	PAGE_OF((LO(home) != LO(now) -> (owner) : LO(owners)), (HI(home) != HI(now) -> (owner) : HI(owners)))

/* fetch_from(), fetch_merge(); track_keep_released(), track_merged() */
inline fetch_from(d)
{
	if
	:: r[d].ahead ->
		others = OUTSTANDING(1 - d);
		known = r[d].base.is == HOME;
		plain = known && r[d].cut == PAGE;
		if
		:: !plain || others || owned || windows != 0 -> home_fill()	/* fetch_needs_home() */
		:: else
		fi;
		theirs = (r[d].snapped -> r[d].shadow : r[d].bytes);
		limit = (r[d].cut < size -> r[d].cut : size);
		theirs = (r[d].cut == PAGE -> HEAD(theirs, limit) : theirs);
		owned = owned || others;
		assert(known || r[d].base.is == TWIN);
		base = (FAULT == WRONG_BASE -> PAGE_OF(ZERO, ZERO) : BYTES_OF(r[d].base));
		refer(r[d].base, NOWHERE, 0);
		if
		:: plain ->
			owners = (others -> NOTED(theirs, d + 1) : owners);
			home_change();
			home_here = true;
			home = theirs
		:: !plain && known ->
			home_change();
			home = JOIN(theirs, limit, home)
		:: else ->
			home_change();
			if
			:: owned -> merge_owned(0, d + 1); merge_owned(1, d + 1)
			:: else -> home = JOIN(PAGE_OF(THEIRS_WIN(LO(home), LO(base), LO(theirs)),
						       THEIRS_WIN(HI(home), HI(base), HI(theirs))), limit, home)
			fi
		fi;
		equal = plain || (!known && home == theirs);
		if
		:: r[d].snapped && !WRITERS(d)	/* its own bytes were discarded earlier */
		:: !(r[d].snapped && !WRITERS(d)) && equal -> refer(r[d].base, HOME, 0)
		:: !(r[d].snapped && !WRITERS(d)) && !equal && WRITERS(d) -> refer(r[d].base, TWIN, theirs)
		:: else
		fi;
		r[d].ahead = false;
		r[d].snapped = false;
		r[d].cut = (WRITERS(d) -> r[d].cut : PAGE);
		home_dirty = true;
		settle()
	:: else
	fi
}

/* In order of the devices, so that of racing bytes the higher owner's come last. */
inline fetch_pages()
{
	fetch_from(0);
	fetch_from(1)
}

/* read.c: page_ready(); fill.c: home_bring() */
inline home_bring()
{
	if
	:: home_here && FAULT == STALE_READ
	:: else -> fetch_pages()
	fi;
	home_fill()
}

/* ---- writes by CPUs: coherence.c ---- */

/* kernel_write_merge(): the kernel wrote back a page that did not start from what home has. */
inline kernel_write_merge(sent, upto)
{
	base = BYTES_OF(kernel_base);
	theirs = HEAD(sent, upto);
	known = kernel_base.is == SENT;
	home_change();
	home = JOIN(PAGE_OF(KERNEL_MERGE(LO(home), LO(base), LO(theirs)),
			    KERNEL_MERGE(HI(home), HI(base), HI(theirs))), upto, home);
	if
	:: owned && LO(theirs) != LO(base) && LO(home) == LO(theirs) -> owners = PUT(owners, 0, 0)
	:: else
	fi;
	if
	:: owned && upto > 1 && HI(theirs) != HI(base) && HI(home) == HI(theirs) -> owners = PUT(owners, 1, 0)
	:: else
	fi;
	if
	:: home == theirs -> kernel_given(HOME, 0)
	:: else ->
		kernel_given(SENT, theirs);
		if
		:: FAULT != FORGET_AGAIN -> again_ask()
		:: else
		fi
	fi
}

/* kernel_page_write() */
inline kernel_page_write(sent, upto)
{
	if
	:: windows != 0 && FAULT == LOSE_WRITE_BACK
	:: !(windows != 0 && FAULT == LOSE_WRITE_BACK) && KERNEL_BEHIND -> kernel_write_merge(sent, upto)
	:: else ->
		if
		:: !known || HEAD(home, upto) != HEAD(sent, upto) ->
			home_change();
			owners = (owned -> NOTED(JOIN(sent, upto, home), 0) : owners);
			home = JOIN(sent, upto, home)
		:: else
		fi;
		kernel_given(HOME, 0)
	fi
}

/* cache_write(CACHE_WRITE_PAGES): span_prepare(), span_frames(), span_apply(). @upto: cut at the end of the file. */
inline write_pages(sent, upto)
{
	fetch_pages();
	if
	:: !home_here && (upto < size || (TRACKED && (BASE_NEEDED || KERNEL_BEHIND))) -> home_fill()
	:: else
	fi;
	known = home_here;
	home_here = true;
	if
	:: TRACKED -> kernel_page_write(sent, upto)
	:: else -> home = JOIN(sent, upto, home)
	fi;
	home_dirty = true;
	settle()
}

/* exact_write() of one byte; home is there. */
inline exact_write(b, v)
{
	known = kernel_base.is == HOME;
	if
	:: BYTE(home, b) != (v) ->
		home_change();
		home = PUT(home, b, v)
	:: else
	fi;
	owners = (owned -> PUT(owners, b, 0) : owners);
	if
	:: windows != 0 && known -> refer(kernel_base, HOME, 0)
	:: !known && KERNEL_BEHIND -> kernel_base.twin = PUT(kernel_base.twin, b, v)
	:: else
	fi
}

/* cache_write(CACHE_WRITE_THROUGH) of one byte */
inline write_through(b, v)
{
	fetch_pages();
	home_fill();	/* span_keeps(): the other byte */
	if
	:: TRACKED -> exact_write(b, v)
	:: else -> home = PUT(home, b, v)
	fi;
	home_dirty = true;
	settle()
}

/* ---- truncate: resize.c ---- */

/* truncate_page(), track_truncated(): for one replica. */
inline truncate_replica(d, to)
{
	if
	:: FAULT == FORGET_TRUNCATED && !r[d].ahead && r[d].base.is != NOWHERE -> refer(r[d].base, HOME, 0)
	:: else ->
		if
		:: to == 0 ->
			r[d].ahead = false;
			r[d].snapped = false;
			refer(r[d].base, NOWHERE, 0);
			r[d].cut = (WRITERS(d) -> 0 : PAGE)
		:: to > 0 && WRITERS(d) && to < r[d].cut -> r[d].cut = to
		:: else
		fi
	fi
}

/* cache_truncate(): prepare_cut(), cut_chunk(), cut_page(), truncate_page() */
inline cache_truncate(to)
{
	if
	:: to == 1 && size > 1 && TRACKED -> home_bring()
	:: else
	fi;
	disk = HEAD(disk, to);
	if
	:: to < size ->
		size = to;
		if
		:: TRACKED ->
			if
			:: to > 0 -> exact_write(1, ZERO)
			:: else		/* bases are void, too: no twins */
			fi;
			truncate_replica(0, to);
			truncate_replica(1, to);
			if
			:: to == 0 -> kernel_given(HOME, 0)
			:: else
			fi
		:: else
		fi;
		home = HEAD(home, to);
		home_here = home_here && to > 0;
		home_dirty = home_dirty && to > 0
	:: else -> size = to
	fi;
	settle()
}

/* ---- storing and evicting: writeback.c, page.c, leave.c ---- */

/* chunk_store(), store_run() */
inline chunk_store()
{
	if
	:: home_dirty ->
		disk = HEAD(home, size);
		home_dirty = false;
		stored(0, LO(disk));
		stored(1, HI(disk))
	:: else
	fi
}

/* ---- holds: holds.c ---- */

/* grant_hold(): holds_add() */
inline grant_hold(c, write)
{
	assert(g[GRANT(c)].n < 3);	/* as many as there may be, unless some are left over */
	g[GRANT(c)].n = g[GRANT(c)].n + 1;
	COME(c, + FAIL);
	g[GRANT(c)].writes = (FAULT == WEAKER_HOLD && !write -> 0 : g[GRANT(c)].writes + write)
}

inline clamp_holds(c)
{
	g[GRANT(c)].writes = (g[GRANT(c)].writes > g[GRANT(c)].n -> g[GRANT(c)].n : g[GRANT(c)].writes);
	COME(c, - (COMING(c) > g[GRANT(c)].n -> COMING(c) - g[GRANT(c)].n : 0))
}

/* holds_release(): it cannot know which hold ends, so the page stays held for writing until the last has ended. */
inline holds_release(c)
{
	if
	:: FAULT == COUNT_ONCE -> g[GRANT(c)].n = COMING(c)
	:: FAULT == TAKE_COMING && g[GRANT(c)].n > 0 ->
		g[GRANT(c)].n = g[GRANT(c)].n - 1
	:: else -> g[GRANT(c)].n = g[GRANT(c)].n - (g[GRANT(c)].n > COMING(c) -> 1 : 0)
	fi;
	clamp_holds(c)
}

/* holds_undo() */
inline holds_undo(c, write)
{
	g[GRANT(c)].n = (FAULT == UNDO_ALL -> 0 : g[GRANT(c)].n - (g[GRANT(c)].n > 0 -> 1 : 0));
	COME(c, - (COMING(c) > 0 -> 1 : 0));
	g[GRANT(c)].writes = g[GRANT(c)].writes - (write && g[GRANT(c)].writes > 0 -> 1 : 0);
	clamp_holds(c)
}

/* holds_drop() */
inline holds_drop(c)
{
	g[GRANT(c)].n = (FAULT == DROP_ONE && g[GRANT(c)].n > 0 -> g[GRANT(c)].n - 1 : 0);
	clamp_holds(c)
}

/* ---- acquire and release: acquire.c, release.c ---- */

mtype = { NOTHING, FETCH, SEND, PULL, SECURE };
hidden mtype step;

/* part_plan(), track_plan() into step */
#define CURRENT(d) (r[d].base.is == HOME && r[d].cut == PAGE)
inline part_plan(d, write)
{
	if
	:: r[1 - d].ahead -> step = FETCH
	:: else ->
		if
		:: r[d].ahead && (!CURRENT(d) || (r[d].snapped && !WRITERS(d))) -> step = FETCH
		:: r[d].ahead && CURRENT(d) && !r[d].snapped && write -> step = SECURE
		:: !r[d].ahead && !CURRENT(d) -> step = (WRITERS(d) || HELD(d) -> PULL : SEND)
		:: else -> step = NOTHING
		fi
	fi
}

/* One byte of DEV_PULL. */
#define PULLED(b) \
	(b >= limit || (BYTE(home, b) != BYTE(base, b) && BYTE(r[d].bytes, b) == BYTE(base, b)) -> \
		BYTE(home, b) : BYTE(r[d].bytes, b))

/* part_acquire(): part_bring(), part_fetch(), part_secure(), part_send(), part_pull(), part_arm(), part_grant() */
inline part_acquire(c, d, write, room)
{
	part_plan(d, write);
	if
	:: step == FETCH -> fetch_pages(); part_plan(d, write)
	:: else
	fi;
	if
	:: step == SECURE && room -> r[d].shadow = r[d].bytes; r[d].snapped = true; step = NOTHING
	:: step == SECURE && !room -> fetch_pages(); part_plan(d, write)
	:: else
	fi;
	assert(step == SEND || step == PULL || step == NOTHING);
	if
	:: step == SEND || step == PULL ->
		home_fill();
		limit = (step == PULL && WRITERS(d) -> r[d].cut : 0);
		base = (limit > 0 -> BYTES_OF(r[d].base) : 0);
		r[d].bytes = PAGE_OF(PULLED(0), PULLED(1));
		r[d].hash = home;
		ARM(d, true);
		refer(r[d].base, HOME, 0);
		r[d].cut = PAGE
	:: else
	fi;
	if
	:: !WRITERS(d) -> r[d].hash = r[d].bytes; ARM(d, true)	/* part_arm() */
	:: else
	fi;
	grant_hold(c, write);
	settle()
}

/* part_acquire() of a page beyond the end, which the client maps from before: part_zero(), part_grant(), track_voided() */
inline part_hold(c, d, write)
{
	assert(r[d].base.is == NOWHERE && !r[d].ahead);
	r[d].bytes = PAGE_OF(ZERO, ZERO);
	r[d].cut = (write && !WRITERS(d) -> 0 : r[d].cut);
	grant_hold(c, write)
}

/*
 * release_locked(): window_begin(), window_publish(): find_changed(), secure_shared(), publish_page(), track_released(), track_discarded(). @room:
 * for a snapshot of what another client, or this one by another hold, goes on writing.
 */
inline release_locked(c, d, room, published)
{
	published = false;
	known = WRITES(c);
	holds_release(c);
	if
	:: known && !(FAULT == LAST_PUBLISHES && WRITES(c)) ->
		r[d].bytes = (size == 1 -> HEAD(r[d].bytes, 1) : r[d].bytes);
		equal = r[d].bytes == r[d].hash && ARMED(d);
		r[d].hash = r[d].bytes;
		r[d].shadow = (!equal && WRITERS(d) && room -> r[d].bytes : r[d].shadow);
		if
		:: r[d].cut == 0 -> r[d].cut = (r[d].ahead || WRITERS(d) -> 0 : PAGE)
		:: r[d].cut > 0 && equal ->
			r[d].snapped = r[d].snapped && WRITERS(d);
			if
			:: r[d].cut < PAGE && !r[d].ahead && !WRITERS(d) -> refer(r[d].base, NOWHERE, 0)
			:: else
			fi
		:: else ->
			r[d].ahead = true;
			r[d].snapped = WRITERS(d) && room && FAULT != UNSECURED;
			ARM(d, (WRITERS(d) -> false : ARMED(d)));
			if
			:: may_hold -> published = true; window_open(RELEASE_OF(c))
			:: else
			fi;
			if
			:: WRITERS(d) && !room -> fetch_pages()
			:: else
			fi
		fi
	:: else
	fi;
	settle()
}

/* join_others(): a window that another one opened is the kernel's copy that lacks what was published for us. */
inline join_others(c, published)
{
	if
	:: windows != 0 && !published && FAULT != LEAVE_OTHERS ->
		published = true;
		window_open(RELEASE_OF(c))
	:: else
	fi
}

/* drop_ended(), replica_drop_hold(), track_discarded(): @was: it was held for writing. */
inline drop_ended(d, was)
{
	if
	:: (was) && !WRITERS(d) && !r[d].ahead && FAULT != KEEP_DEAD ->
		refer(r[d].base, NOWHERE, 0);
		r[d].cut = PAGE
	:: else
	fi;
	settle()
}

/* grant.c: grant_discard(): its client is gone. */
inline grant_discard(c, d)
{
	known = WRITES(c);
	holds_drop(c);
	drop_ended(d, known)
}

/* grant_unhold(): the acquire has failed. */
inline part_undo(c, d, write)
{
	known = WRITES(c);
	holds_undo(c, write);
	drop_ended(d, known)
}

/* replica_evict(), replica_destroy(): the memory is somebody else's from now on. */
inline replica_evict(d)
{
	fetch_pages();
	r[d].here = false;
	refer(r[d].base, NOWHERE, 0);
	r[d].evicting = false;
	r[d].bytes = (g[d].mapped -> PAGE_OF(FOREIGN, FOREIGN) : 0);
	settle()
}
