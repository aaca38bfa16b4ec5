/*
 * ready.pml - a chunk that is ready for a client, which acquires it without a look at it (rule 20 in daemon/README.md).
 *
 * A chunk of one page, and its replica on a device. A client acquires it, to read or to write, and releases it, again and again. Another one
 * shares it, stores there, and dies; the kernel's WRITEs lock its page and change home; eviction wants its memory.
 *
 * acquire	cache_acquire(): ready_acquire(); else acquire_chunks(), grant_make_ready()
 * release	cache_release(): ready_release(); else release_unwritten(), publish(), grant_make_ready()
 * unready	chunk_unready(): grant_unready(), grant_catch_up()
 * sharer	another client's acquire and death; grants_drop_dead()
 * server	cache_write(): pages_lock(), home_change()
 * fetcher	fetch_pages(), for whoever asks
 * evictor	replica_claim(), replicas_revoke(), replicas_evict_all()
 */
#define NO_FAULT 0
#define LOCK_READY 1	/* who locks the page leaves the chunk ready */
#define CLAIM_READY 2	/* so does who claims the replica */
#define NO_CATCH_UP 3	/* the replica is not told what was held while the chunk was ready */
#define MAKE_LOCKED 4	/* a chunk becomes ready while its page is locked */
#define MAKE_STALE 5	/* ... though the index says that it is stale */
#define DO_NOT_ASK 6	/* an acquire of what is ready does not ask whether the others live */
#define READ_TO_WRITE 7	/* what is ready to be read is taken for ready to be written */
#define RELEASE_WRITTEN 8	/* a release of what is ready only takes the hold away, also if it was stored to */
#define LEAVE_INDEX 9	/* a release gives the snapshot of an earlier one up, and does not say so in the index */

#ifndef FAULT
#define FAULT NO_FAULT
#endif

#define MOST 2 /* holds */

/* The page, under its lock: versions of home, and of home that the replica's memory includes; the index; what was released and is not home. */
bool lock;
unsigned home : 3 = 1, seen : 3;
bool stale = true, unready = true;	/* replica.stale, replica.unready */
bool ahead, snapped, twin;
bool stored;		/* the client has stored what it did not release */
bool left;		/* a dead client's stores are in the memory */
byte changes;

/* The mapping, under its lock: what it holds; what is ready, to be read and to be written. */
unsigned n : 2, writes : 2;
bool ready_read, ready_write;

/* The replica, under chunk.lock: what it knows of the mapping's holds. */
bool pinned, counted;	/* for what is held */
bool used;		/* by an acquire or a release under way, which pins it, too */
bool claimed;
bool mapped;		/* grant.delivered */

/* Another client, which may store there. */
mtype = { AWAY, HOLDS, DEAD };
mtype other = AWAY;
bool other_stored;
bool quiet;

#define BASE_IS_THERE (seen == home || twin)

/* grant_unready(), grant_catch_up() */
inline end_ready()
{
	if
	:: ready_read ->
		ready_read = false;
		ready_write = false;
		pinned = (FAULT == NO_CATCH_UP -> pinned : n > 0);
		counted = (FAULT == NO_CATCH_UP -> counted : writes > 0)
	:: else
	fi
}

/* touched() */
inline touched()
{
	stale = true;
	unready = true
}

/* pages_lock(): includes chunk_unready(). */
inline page_lock(knowing)
{
	atomic {
		!lock ->
		if
		:: knowing || FAULT != LOCK_READY -> end_ready()
		:: else
		fi;
		lock = true
	}
}

/* grant_make_ready() */
inline make_ready()
{
	if
	:: mapped && !claimed && (!lock || FAULT == MAKE_LOCKED) && (!stale || FAULT == MAKE_STALE) && other != DEAD ->
		ready_read = true;
		ready_write = !unready;
		pinned = false	/* grant_repin() */
	:: else
	fi
}

/* The client has been told that it holds the page, which it acquired when home had version @since. */
inline acquired(since)
{
	assert(!lock || used);
	assert(seen >= since || ahead);		/* [2] */
	assert(!left);				/* [7] */
	assert(!claimed)
}

/* What a client holds for writing was compared, has a base, and is not the only copy of what was released. */
#define SAFE_TO_WRITE (BASE_IS_THERE && (!ahead || snapped))

/* fetch_pages(): the page is locked. Nothing that was not released may become home's. */
inline fetch()
{
	if
	:: ahead ->
		assert(snapped || !stored);	/* [7] */
		twin = counted && !BASE_IS_THERE;
		home++;
		seen = home;
		twin = counted;
		ahead = false;
		snapped = false;
		touched()
	:: else
	fi
}

/* home_change(): (8), (9) */
inline home_change()
{
	fetch();
	twin = counted && (twin || seen == home);
	home++;
	touched()
}

/* grants_drop_dead(), replica_drop_hold(): what it had not released is void; the page is locked. */
inline drop_dead()
{
	if
	:: other == DEAD ->
		other = AWAY;
		seen = (left && !ahead && !counted -> 0 : seen);
		left = left && counted;
		touched()
	:: else
	fi
}

proctype client()
{
	unsigned since : 3;
	bool write;

end:
	do
	:: atomic {
		!quiet && n < MOST && changes < 5 ->
		since = home;
		write = true;
		if
		:: true
		:: write = false
		fi
	   };
	   if
	   /* ready_acquire() */
	   :: d_step {
		(write && FAULT != READ_TO_WRITE -> ready_write : ready_read) && (other != DEAD || FAULT == DO_NOT_ASK) ->
		n++;
		writes = writes + write;
		acquired(since)
	      }
	   /* the long way */
	   :: atomic {
		!((write -> ready_write : ready_read) && other != DEAD) && !claimed ->
		used = true
	      };
	      page_lock(true);
	      d_step {
		drop_dead();
		/* track_plan(): fetch what is ahead of its base; secure; bring */
		if
		:: ahead && (seen != home || (snapped && !counted)) -> fetch()
		:: else
		fi;
		snapped = snapped || (ahead && write);
		if
		:: !ahead -> seen = home; twin = false
		:: else
		fi;
		stale = false;
		unready = !(write || counted);	/* armed */
		n++;
		writes = writes + write;
		pinned = true;
		counted = writes > 0;
		mapped = true;
		acquired(since);
		lock = false
	      };
	      d_step { make_ready(); used = false }
	   fi;
	   since = 0;
	   write = false
	:: d_step { writes > 0 && !stored && changes < 5 -> assert(SAFE_TO_WRITE || counted); stored = true; changes++ }
	:: atomic { n > 0 };
	   if
	   /* ready_release() */
	   :: d_step {
		ready_read && (writes == 0 || FAULT == RELEASE_WRITTEN) ->
		n--;
		writes = (writes > n -> n : writes);
		assert(!stored || n > 0);	/* [3] */
	      }
	   /* the long way */
	   :: atomic { !(ready_read && writes == 0) -> assert(!claimed); used = true };
	      page_lock(true);
	      d_step {
		assert(pinned && counted == (writes > 0));
		assert(BASE_IS_THERE || writes == 0 || ahead);
		n--;
		writes = (writes > n -> n : writes);
		if
		:: stored ->
			stored = false;
			ahead = true;
			snapped = writes > 0;
			touched()
		:: !stored && snapped && writes == 0 ->
			snapped = false;
			if
			:: FAULT != LEAVE_INDEX -> touched()
			:: else
			fi
		:: else
		fi;
		counted = writes > 0;
		twin = twin && (counted || ahead);
		pinned = n > 0;
		lock = false
	      };
	      d_step { make_ready(); used = false }
	   fi
	od
}

/* Another client: it takes the long way, with the page locked, and ends its own readiness only. */
proctype sharer()
{
end:
	do
	:: atomic { other == AWAY && !quiet && !claimed && changes < 5 && seen == home && !ahead && mapped };
	   page_lock(true);
	   d_step {
		if
		:: seen == home && !ahead && mapped && other == AWAY -> other = HOLDS
		:: else
		fi;
		lock = false
	   }
	:: d_step { other == HOLDS && changes < 5 -> other_stored = true; changes++ }
	/* it dies; what it had stored is in the memory */
	:: d_step {
		other == HOLDS ->
		other = DEAD;
		left = other_stored && !pinned && n == 0;
		other_stored = false
	   }
	/* its socket has ended: a worker looks */
	:: atomic { other == DEAD && !lock -> end_ready(); lock = true };
	   d_step { drop_dead(); lock = false }
	od
}

proctype server()
{
end:
	do
	:: atomic { changes < 5 && !quiet -> changes++ };
	   page_lock(false);
	   d_step { home_change() };
	   d_step { lock = false }
	:: atomic { ahead && !quiet };
	   page_lock(false);
	   d_step { fetch(); lock = false }
	od
}

proctype evictor()
{
end:
	do
	/* claim() */
	:: atomic {
		mapped && other == AWAY && (!pinned || ready_read) && !used && !claimed && !quiet ->
		if
		:: FAULT != CLAIM_READY -> end_ready()
		:: else
		fi;
		claimed = !pinned
	   };
	   if
	   :: claimed ->
		d_step {
			!lock ->
			assert(n == 0);		/* [12]: the client is asked for it */
			mapped = false;
			ready_read = false;
			ready_write = false;
			fetch();
			seen = 0;
			touched();
			claimed = false
		}
	   :: else
	   fi
	od
}

init {
	atomic {
		run client();
		run sharer();
		run server();
		run evictor()
	};
	quiet = true
}
