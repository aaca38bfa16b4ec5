/*
 * gaiafs.pml - the consistency protocol, small enough to be explored whole.
 *
 * One page of two bytes; the CPU processes, the kernel's cached page, home, one or two devices with
 * a client each, the store. What may happen at any time (write-back, reclaim, readahead, eviction, storing) does. README.md
 * has the functions of the daemon that the steps stand for, the configurations, and what was left out; this file has
 * the processes, daemon.pml what the daemon does to a page, oracle.pml what must hold.
 *
 * A configuration is a set of macros; tests/model/check knows them all.
 *
 *	DEVS=1|2	devices
 *	CPU=xy DEV0=xy DEV1=xy	how often each may write byte 0 (x) and byte 1 (y)
 *	LOADS		CPU processes read (default 1)
 *	RECLAIM		the kernel drops clean pages (default 1)
 *	WHOLE=1		write(2) of the whole page, too, which makes a cached page without a READ
 *	THROUGH=1	--cpu-cache writethrough: write(2) of byte 0 changes the cached page and is sent at once,
 *			while the kernel lets go of the page, but not of the inode, which releases lock as well
 *	STORES		CPU processes store through mappings (default 1)
 *	READ_ONLY=1	acquires for reading, too
 *	HOLDS=n		acquires of what is held already: how many holds (default 1)
 *	FAIL=1		acquires may fail at their end; and there may be a release too many while one is under way
 *	CUT		a truncate (1), and one that makes the file longer again (2)
 *	EVICT_HOME=1, EVICT_DEVICE=1, SYNC=1, DEATH=1
 *	NO_ROOM=1	device memory for a snapshot may be short
 *	SHARED=1	two clients of one device, instead of two devices (DEVS=2, DEV0 and DEV1 are the clients)
 *	THREADS=1	... two threads of one client
 *	OLD_KERNEL=1	Linux before 6.16: what is written back is a copy, which an invalidation does not wait for
 *	FAULT=...	one of those below
 */

/* Mistakes that spin must find: the ten of tests/history, one that must deadlock, one between clients, and those with counted holds. */
#define NO_FAULT 0
#define DROP_TWIN 1		/* home as it is now is taken for every base */
#define PUBLISH_LATE 2		/* a release invalidates first and publishes then */
#define SKIP_WRITE_BACK 3	/* acquires do not push what the kernel holds */
#define FORGET_TRUNCATED 4	/* a truncate leaves replicas as they are */
#define WRONG_BASE 5		/* releases are merged against zeros */
#define LOSE_WRITE_BACK 6	/* what the kernel writes back during a release is dropped */
#define KEEP_DEAD 7		/* a dead client's unreleased bytes stay in the replica */
#define STALE_READ 8		/* READs do not wait for what was released */
#define FORGET_AGAIN 9		/* no second invalidation after a merged write-back */
#define REUSE_MAPPED 10		/* a chunk is taken from a client that goes on using it */
#define HOLD_LOCK 11		/* a release invalidates with the page locked */
#define LEAVE_OTHERS 12		/* a release with no news does not await the invalidations of others' */
#define COUNT_ONCE 13		/* the first release ends all holds */
#define WEAKER_HOLD 14		/* an acquire for reading takes the right to store away */
#define LAST_PUBLISHES 15	/* a release publishes nothing as long as another hold for writing remains */
#define UNSECURED 16		/* ... publishes, and does not save what goes on being written */
#define DROP_ONE 17		/* a dead client loses one hold */
#define UNDO_ALL 18		/* an acquire that fails takes all holds away */
#define TAKE_COMING 19		/* a release takes away the hold of an acquire that is under way */

#ifndef FAULT
#define FAULT NO_FAULT
#endif
#ifndef DEVS
#define DEVS 1
#endif
#ifndef CPU
#define CPU 11
#endif
#ifndef DEV0
#define DEV0 11
#endif
#ifndef DEV1
#define DEV1 11
#endif
#ifndef LOADS
#define LOADS 1
#endif
#ifndef RECLAIM
#define RECLAIM 1
#endif
#ifndef WHOLE
#define WHOLE 0
#endif
#ifndef THROUGH
#define THROUGH 0
#endif
#ifndef STORES
#define STORES 1
#endif
#ifndef READ_ONLY
#define READ_ONLY 0
#endif
#ifndef HOLDS
#define HOLDS 1
#endif
#ifndef FAIL
#define FAIL 0
#endif
#ifndef EVICT_HOME
#define EVICT_HOME 0
#endif
#ifndef EVICT_DEVICE
#define EVICT_DEVICE 0
#endif
#ifndef SYNC
#define SYNC 0
#endif
#ifndef CUT
#define CUT 0
#endif
#ifndef DEATH
#define DEATH 0
#endif
#ifndef NO_ROOM
#define NO_ROOM 0
#endif
#ifndef OLD_KERNEL
#define OLD_KERNEL 0
#endif
#ifndef THREADS
#define THREADS 0
#endif
#ifndef SHARED
#define SHARED THREADS
#endif
#if SHARED && (DEATH || CUT || (EVICT_DEVICE && !THREADS))
#error what becomes of a shared replica then is not modelled
#endif

/*
 * A byte's value names the write that wrote it: 0 is what a truncate leaves, 1 what the file had at first, then
 * come three of CPU processes (owner 0), two of device 0 (owner 1), one of device 1. 15 is what other files have.
 */
#define ZERO 0
#define INITIAL 1
#define FOREIGN 15
#define VALUE(owner, b) (((owner) == 0 -> 2 : ((owner) == 1 -> 5 : 7)) + writes[2 * (owner) + (b)])
#define MAY_WRITE(owner, b) (writes[2 * (owner) + (b)] < \
	((b) == 0 -> QUOTA(owner) / 10 : QUOTA(owner) % 10))
#define QUOTA(owner) ((owner) == 0 -> CPU : ((owner) == 1 -> DEV0 : DEV1))
byte writes[6];		/* so far: [2 * owner + byte] */

/* A page is two values. */
#define PAGE 2
#define LO(p) ((p) & 15)
#define HI(p) ((p) >> 4)
#define PAGE_OF(lo, hi) ((lo) | (hi) << 4)
#define BYTE(p, b) ((p) >> (4 * (b)) & 15)
#define PUT(p, b, v) (((p) & ~(15 << (4 * (b)))) | (v) << (4 * (b)))
/* The first @upto bytes of p, then zeros; then those of q. */
#define HEAD(p, upto) ((upto) == 0 -> 0 : ((upto) == 1 -> LO(p) : (p)))
#define JOIN(p, upto, q) ((upto) == 0 -> (q) : ((upto) == 1 -> PAGE_OF(LO(p), HI(q)) : (p)))

#include "oracle.pml"
#include "daemon.pml"

/* After each step of a trail: what is where. */
#define SHOW(what) \
	printf(what); \
	printf("\n\t\tkernel %e %d,%d  home %d,%d%c  replicas %d,%d%c %d,%d%c  store %d,%d\n", \
	       k.state, LO(k.bytes), HI(k.bytes), LO(home), HI(home), (home_dirty -> '*' : ' '), \
	       LO(r[0].bytes), HI(r[0].bytes), (r[0].ahead -> '*' : ' '), \
	       LO(r[1].bytes), HI(r[1].bytes), (r[1].ahead -> '*' : ' '), LO(disk), HI(disk))

/* ---- the kernel: its page of the file ---- */

mtype = {
	NONE,
	READING,	/* READ sent; locked */
	GIVEN,		/* READ answered, the page not yet usable; locked */
	CLEAN,
	DIRTY,
	WRITING		/* WRITE sent; loads go on, stores wait */
};
typedef kernel_page {
	mtype state = NONE;
	byte bytes;
	bool locked;		/* by an invalidation, or a write(2) under way */
	byte size = PAGE;	/* the file's, as the kernel thinks */
	bool nowrite;		/* WRITEs wait for a truncate */
	bool copy_sent;		/* OLD_KERNEL: a WRITE of a copy is under way */
	byte copy;
};
kernel_page k;
bool inode_locked;		/* THROUGH: by a write(2), or by a release, which comes as a setxattr(2) */
bool w_sent;			/* THROUGH: a WRITE of byte 0 is under way */
byte w_value, w_knew;
bool quiet;			/* set once, at any time: programs begin nothing more, so that whoever waits for ever shows */

#define READABLE (k.state == CLEAN || k.state == DIRTY || k.state == WRITING)
#define STORABLE ((k.state == CLEAN || k.state == DIRTY) && !k.locked && !k.copy_sent)

/* Write-back begins. */
inline send_write()
{
	if
	:: OLD_KERNEL -> k.copy_sent = true; k.copy = k.bytes; k.state = CLEAN
	:: else -> k.state = WRITING
	fi
}

/* sync_file_range(WAIT_BEFORE | WRITE | WAIT_AFTER), by libgaiaclient before it acquires: the CPU release. */
inline push()
{
	(k.state != WRITING && !k.copy_sent);
	atomic {
		if
		:: k.state == DIRTY && !k.locked -> send_write()
		:: k.state != DIRTY
		fi
	};
	(k.state != WRITING && !k.copy_sent)
}

/*
 * cache_host.invalidate, fuse_lowlevel_notify_inval_inode(), invalidate_inode_pages2_range(): takes the page's
 * lock, which waits for READs; waits for write-back; launders what is dirty; drops it.
 */
inline invalidate()
{
	atomic {
		if
		:: k.state == NONE && !k.locked
		:: READABLE && !k.locked ->
			k.locked = true;
			(k.state != WRITING);
			if
			:: k.state == DIRTY ->
				(!k.copy_sent);
				send_write();
				(k.state != WRITING && !k.copy_sent)
			:: else
			fi;
			k.state = NONE;
			k.bytes = 0;
			k.locked = false
		fi
	}
}

proctype kernel()
{
end:
	do
	/* write-back at any time */
	:: atomic {
		k.state == DIRTY && !k.locked && !k.nowrite && !k.copy_sent ->
		send_write()
	   }
	/* op_write(), cache_write(CACHE_WRITE_PAGES); cut at the end of the file */
	:: d_step {
		(k.state == WRITING || k.copy_sent) && !k.nowrite && !page_lock ->
		if
		:: k.size > 0 && !OLD_KERNEL -> write_pages(k.bytes, k.size)
		:: k.size > 0 && OLD_KERNEL -> write_pages(k.copy, k.size)
		:: else
		fi;
		k.state = (k.state == WRITING -> CLEAN : k.state);
		k.copy_sent = false;
		k.copy = 0;
		SHOW("kernel: WRITE; daemon: kernel_page_write()")
	   }
	/* reclaim; never of a page whose WRITE is under way, which holds a reference to it */
	:: atomic {
		RECLAIM && k.state == CLEAN && !k.locked && !w_sent ->
		k.state = NONE;
		k.bytes = 0
	   }
	/* a fault, a read(2), readahead */
	:: atomic {
		k.state == NONE && !k.locked && !k.copy_sent && k.size > 0 && !quiet ->
		k.state = READING
	   }
	/* op_read(), cache_read_begin(): share_pages(), page_given() */
	:: d_step {
		k.state == READING && !page_lock ->
		if
		:: size > 0 ->
			home_bring();
			if
			:: TRACKED -> kernel_given(HOME, 0)
			:: else
			fi;
			k.bytes = HEAD(home, size);
			settle()
		:: else -> k.bytes = 0
		fi;
		k.state = GIVEN;
		SHOW("kernel: READ; daemon: share_pages()")
	   }
	/* fuse_readpages_end() */
	:: atomic { k.state == GIVEN -> k.state = CLEAN }
	/* op_write(), cache_write(CACHE_WRITE_THROUGH); write(2) returns */
	:: d_step {
		w_sent && !page_lock ->
		write_through(0, w_value);
		view_of[0].over[0] = view_of[0].over[0] | w_knew;
		view_of[0].knows[0] = (view_of[0].knows[0] | BIT(w_value)) & ~view_of[0].over[0];
		w_sent = false;
		w_value = 0;
		w_knew = 0;
		k.locked = (k.state == NONE -> false : k.locked);
		inode_locked = false;
		SHOW("kernel: WRITE of a byte; daemon: exact_write()")
	   }
	od
}

/* ---- the daemon's own threads ---- */

proctype notifier()
{
	byte a;

end:
	do
	:: d_step {
		windows & AGAIN_ALL ->
		a = FIRST_AGAIN;
		do
		:: !(windows & BIT(a)) -> a++
		:: else -> break
		od
	   };
	   /* notifier_main() */
	   invalidate();
	   /* page_invalidated() */
	   d_step {
		!page_lock ->
		window_close(BIT(a));
		waits[0] = waits[0] & ~BIT(a);
		waits[1] = waits[1] & ~BIT(a);
		a = 0;
		settle();
		SHOW("notifier: page_invalidated()")
	   }
	od
}

proctype daemon()
{
end:
	do
	/* flusher_main() */
	:: d_step {
		home_dirty && !page_lock ->
		chunk_store();
		SHOW("flusher: chunk_store()")
	   }
	/* chunk_shrink(), evict_home() */
	:: d_step {
		EVICT_HOME && home_here && !home_dirty && !page_lock ->
		home_here = false;
		home = 0;
		SHOW("chunk_shrink()")
	   }
	od
}

proctype evictor(byte d)
{
end:
	do
	/* claim(): nothing of it is acquired. replica_revoke(): the client unmaps and answers */
	:: atomic {
		r[d].here && !HELD(d) && !PINNED(d) ->
		assert(!HAS_ANY(d));	/* [12] */
		r[d].evicting = true;
		g[d].mapped = (FAULT == REUSE_MAPPED -> g[d].mapped : false)
	   };
	   d_step {
		!page_lock ->
		replica_evict(d);
		SHOW("replica_evict()")
	   }
	od
}

/* ---- devices' clients: one after the other, where they die ---- */

inline store(c, b)
{
	n = VALUE(c + 1, b);
	r[REPLICA(c)].bytes = PUT(r[REPLICA(c)].bytes, b, n);
	wrote(c + 1, b, n);
	writes[2 * (c + 1) + b]++;
	SHOW("device: store")
}

/* What the client stores, and has not acquired since, is beyond the end or was cut off. */
#define VOID(c) (WRITES(c) && r[REPLICA(c)].cut == 0)

inline acquire(c, d, write, room)
{
	/* gaia_acquire() */
	if
	:: FAULT == SKIP_WRITE_BACK
	:: else -> push()
	fi;
	/* replicas_pin() */
	atomic {
		!r[d].evicting ->
		g[c].pinned = true;
		r[d].here = true
	};
	/* part_acquire(), parts_deliver(); gaia_acquire() returns */
	d_step {
		!page_lock ->
		if
		:: VOID(c) -> drops(c + 1, 0); drops(c + 1, 1)
		:: else
		fi;
		if
		:: size == 0 && g[GRANT(c)].mapped ->
			part_hold(c, d, write);
			hold_begins(c, write)
		:: size > 0 ->
			part_acquire(c, d, write, room);
			g[GRANT(c)].mapped = EVICT_DEVICE || CUT;
			if
			:: !FAIL -> acquired(c, d, write)
			:: else
			fi
		:: else
		fi;
		g[c].pinned = FAIL;
		write = FAIL && write;
		room = false
	};
	/* parts_end(): cache_decide(); mapping_settle(), part_undo() */
	if
	:: d_step {
		FAIL ->
		COME(c, - 1);
		acquired(c, d, write);
		g[c].pinned = false;
		write = false
	   }
	:: d_step {
		FAIL && !page_lock ->
		part_undo(c, d, write);
		SHOW("device: part_undo()");
		g[c].pinned = false;
		write = false
	   }
	:: !FAIL
	fi
}

/* gaia_acquire() returns. */
inline acquired(c, d, write)
{
	hold_begins(c, write);
	SHOW("gaia_acquire()");
	sees(c + 1, 0, LO(r[d].bytes));
	if
	:: size == PAGE -> sees(c + 1, 1, HI(r[d].bytes))
	:: else -> assert(HI(r[d].bytes) == ZERO ||
			  (view_of[c + 1].unreleased[1] & BIT(HI(r[d].bytes))))
	fi
}

inline release(c, d, room, published)
{
	if
	:: FAULT == PUBLISH_LATE -> invalidate()
	:: else
	fi;
	/* cache_release(), release_part() */
	d_step {
		!page_lock ->
		if
		:: VOID(c) -> drops(c + 1, 0); drops(c + 1, 1)
		:: !VOID(c) && size == 1 && view_of[c + 1].unreleased[1] != 0 -> drops(c + 1, 1)
		:: else
		fi;
		publishes(c + 1, 0);
		publishes(c + 1, 1);
		release_locked(c, d, room, published);
		room = false;
		page_lock = published && FAULT == HOLD_LOCK;
		SHOW("device: release_locked()")
	};
	d_step {
		join_others(c, published);
		SHOW("device: join_others()")
	};
	if
	:: published ->
		/* invalidate_published() */
		if
		:: FAULT != PUBLISH_LATE -> invalidate()
		:: else
		fi;
		d_step {
			!page_lock || FAULT == HOLD_LOCK ->
			page_lock = false;
			window_close(RELEASE_OF(c));
			settle();
			SHOW("device: track_window_close()")
		}
	:: else
	fi;
	published = false;
	/* again_wait(): twice for what is asked by then */
	waits[c] = windows & AGAIN_ALL;
	atomic { waits[c] == 0 -> waits[c] = windows & AGAIN_ALL };
	atomic { waits[c] == 0 -> inode_locked = (THROUGH -> false : inode_locked) }
}

inline dies(c)
{
	g[c].mapped = false;
	has[c].holds = 0;
	has[c].writes = false;
	forgets(c + 1, 0);
	forgets(c + 1, 1)
}

inline discard(c)
{
	d_step {
		!page_lock ->
		grant_discard(c, REPLICA(c));
		SHOW("device: killed; grant_discard()")
	}
}

proctype client(byte c)
{
	bool write, room, published;

end:
	do
	:: atomic {
		!quiet && has[c].holds < HOLDS ->
		learns(c + 1, 0);
		learns(c + 1, 1);
		write = true;
		if
		:: true
		:: READ_ONLY -> write = false
		fi;
		room = true;
		if
		:: true
		:: NO_ROOM && write -> room = false
		fi
	   };
	   acquire(c, REPLICA(c), write, room)
	:: d_step { MAY_STORE(c) && MAY_WRITE(c + 1, 0) -> store(c, 0) }
	:: d_step { MAY_STORE(c) && MAY_WRITE(c + 1, 1) -> store(c, 1) }
	:: atomic {
		has[c].holds > 0 && !inode_locked ->
		hold_ends(c);
		inode_locked = THROUGH;
		room = true;
		if
		:: true
		:: NO_ROOM && (SHARED || HOLDS > 1) -> room = false
		fi
	   };
	   release(c, REPLICA(c), room, published);
	   /* gaia_release() returns; or the client died meanwhile, and nobody saw it return */
	   if
	   :: d_step { teaches(c + 1, 0); teaches(c + 1, 1); SHOW("gaia_release()") }
	   :: d_step { DEATH && !HAS_ANY(c) -> dies(c) }
	   :: d_step { DEATH && HAS_ANY(c) -> dies(c) };
	      discard(c)
	   fi
	/* A release too many. */
	:: d_step { FAIL && !HAS_ANY(c) && COMING(c) > 0 -> holds_release(c); settle() }
	/* kill -9; the daemon notices later: grants_drop_dead(), cache_unmap() */
	:: d_step { DEATH && HAS_ANY(c) -> dies(c) };
	   discard(c)
	/* What it maps is memory of this file, whether it holds it or not. */
	:: g[GRANT(c)].mapped && LO(r[REPLICA(c)].bytes) == FOREIGN -> assert(false)
	od
}

/* ---- CPU processes ---- */

inline cpu_store(b)
{
	n = VALUE(0, b);
	k.bytes = PUT(k.bytes, b, n);
	wrote(0, b, n);
	writes[b]++
}

/* ftruncate(2): fuse_do_setattr() */
inline truncate(to)
{
	/* fuse_set_nowrite(): waits for WRITEs under way */
	atomic {
		k.state != WRITING && !k.copy_sent ->
		k.nowrite = true;
		before[0] = issued[0];
		before[1] = issued[1];
		public[0] = public[0] | (to == 0 -> BIT(ZERO) : 0);
		public[1] = public[1] | (to < PAGE -> BIT(ZERO) : 0)
	};
	/* op_setattr() */
	d_step {
		!page_lock ->
		cache_truncate(to);
		SHOW("cache_truncate()")
	};
	/* i_size_write(), fuse_release_nowrite() */
	atomic {
		k.size = to;
		k.nowrite = false
	};
	/* truncate_pagecache() */
	atomic {
		(k.state == NONE || k.state == CLEAN || k.state == DIRTY) && !k.locked ->
		k.bytes = HEAD(k.bytes, to);
		k.state = (to == 0 -> NONE : k.state)
	};
	/* invalidate_inode_pages2() */
	invalidate();
	d_step {
		if
		:: to == 0 -> cut_off(0, before[0])
		:: else
		fi;
		if
		:: to < PAGE -> cut_off(1, before[1])
		:: else
		fi;
		before[0] = 0;
		before[1] = 0;
		SHOW("truncate(2) returns")
	}
}

proctype cpu()
{
	byte before[2];
	byte cuts;

end:
	do
	/* A load through a mapping, a read(2) of a cached page. */
	:: d_step {
		LOADS && !quiet && READABLE && k.size > 0 ->
		SHOW("cpu: load");
		if
		:: w_sent && LO(k.bytes) == w_value	/* its write(2) has not returned: no promise */
		:: else -> sees(0, 0, LO(k.bytes))
		fi;
		if
		:: k.size == PAGE -> sees(0, 1, HI(k.bytes))
		:: else
		fi
	   }
	/* A store through a mapping, a write(2) of a part: fuse_page_mkwrite() waits for write-back. */
	:: d_step {
		STORES && STORABLE && k.size > 0 && MAY_WRITE(0, 0) ->
		cpu_store(0);
		k.state = DIRTY;
		SHOW("cpu: store")
	   }
	:: d_step {
		STORES && STORABLE && k.size == PAGE && MAY_WRITE(0, 1) ->
		cpu_store(1);
		k.state = DIRTY;
		SHOW("cpu: store")
	   }
	/* A write(2) of all of it: no READ first. */
	:: d_step {
		WHOLE && (STORABLE || (k.state == NONE && !k.locked && !k.copy_sent)) && k.size == PAGE &&
		MAY_WRITE(0, 0) && MAY_WRITE(0, 1) ->
		cpu_store(0);
		cpu_store(1);
		k.state = DIRTY;
		SHOW("cpu: write(2) of the page")
	   }
	/*
	 * fuse_fill_write_pages(): write(2) of byte 0 changes the page, if there is one, and sends the WRITE. The page stays
	 * locked only if it is not there.
	 */
	:: d_step {
		THROUGH && (STORABLE || (k.state == NONE && !k.locked)) && !inode_locked && MAY_WRITE(0, 0) ->
		inode_locked = true;
		w_sent = true;
		w_value = VALUE(0, 0);
		w_knew = view_of[0].knows[0];
		public[0] = public[0] | BIT(w_value);
		writes[0]++;
		k.bytes = (k.state == NONE -> 0 : PUT(k.bytes, 0, w_value));
		k.locked = k.state == NONE;
		SHOW("cpu: write(2) of byte 0")
	   }
	/* Down, and up again: a second time down zero would be the value of two writes. */
	:: CUT && cuts == 0 -> cuts = 1; truncate(1)
	:: CUT && cuts == 0 -> cuts = 1; truncate(0)
	:: CUT > 1 && cuts == 1 -> cuts = 2; truncate(PAGE)
	od
}

/* fsync(2), gaia_sync() */
proctype syncer()
{
	byte promised[2];

end:
	do
	:: d_step { !quiet -> promised[0] = view_of[0].over[0]; promised[1] = view_of[0].over[1] };
	   push();
	   /* cache_fsync(): cfile_fetch(), store_range() */
	   d_step { !page_lock -> fetch_pages() };
	   d_step { !page_lock -> chunk_store() };
	   d_step {
		synced_over[0] = synced_over[0] | promised[0];
		synced_over[1] = synced_over[1] | promised[1];
		promised[0] = 0;
		promised[1] = 0;
		SHOW("sync returns");
		stored(0, LO(disk));
		stored(1, HI(disk))
	   }
	od
}

init {
	atomic {
		oracle_start();
		run kernel();
		run notifier();
		run daemon();
		run cpu();
		run client(0);
		if
		:: DEVS > 1 -> run client(1)
		:: else
		fi;
		if
		:: EVICT_DEVICE -> run evictor(0)
		:: else
		fi;
		if
		:: EVICT_DEVICE && DEVS > 1 && !SHARED -> run evictor(1)
		:: else
		fi;
		if
		:: SYNC -> run syncer()
		:: else
		fi
	};
	quiet = true
}
