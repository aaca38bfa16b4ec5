/*
 * nodes.pml - two nodes over one shared source (--source shared; "A source that other machines change" in daemon/README.md).
 *
 * One file of two bytes, all in one page. Each node has a client of the engine, the file system below, and a daemon. CPU programs read
 * and write what the engine's client has; home and devices' replicas are compared with that. The client keeps what was written until it
 * is told to store it, or stores it by itself. nodes_oracle.pml says what programs may rely on.
 *
 *	CPU0, CPU1	which bytes the program of each node writes, once each: 10 the first, 01 the second, 11 both, 00 none; 9 no program
 *	LOCKS=xy	x, y: the program of node 0, 1 has the file open and takes a lock for each session; else it opens and closes the file
 *	SESSIONS=n	so many of each program
 *	DEV0, DEV1	the same of a device's client on each node
 *	ROUNDS=n	acquires, releases and syncs of each
 *	SECOND=1	node 0 has a second device, whose client reads
 *	MAPPED=1	the program of node 0 stores to the first byte through a mapping, when it has closed the file
 *	LOOKER=1	another program of node 0 takes locks of its own at any time, so the daemon looks at the file
 *	READER=1	... reads at any time, or has the page read ahead
 *	EVICT=1		home's page may leave
 *	CUT=1		the program of node 1 makes the file shorter by a byte, once
 *	TICKS=n		how often the server's clock goes on
 *	KEEPS=1		an engine whose client does not drop its page when attributes have changed or the file is opened
 *	FAULT=...	one of those below
 *
 * look, revalidate	look(), shared_revalidate(), forget_below()
 * open, close		shared_open(), tell(); shared_flush(): shared_store()
 * lock, unlock		op_setlk(), op_flock(): lock_file(), finish()
 * acquire		shared_acquire(), look_as_if_opened(), look_for_end(), cfile_cpu_stopped(); part_prepare()
 * import, release	import_pages(); passthrough_released(): fetch_pages(), put_pages(), limit_below(), store_patch_by_write()
 * sync			cache_fsync()
 * page_get, client	the engine's client: READs, and what it stores by itself
 */
#define NO_FAULT 0
#define PUT_WHOLE 1		/* a put writes all of the page */
#define NO_GRANT_CHECK 2	/* a lock is granted without a look at the file */
#define PLAIN_STAT 3		/* a look has what the engine's client remembers */
#define TRUST_RACY 4		/* a token is trusted that is as young as the clock's grain */
#define UNLOCK_FIRST 5		/* a lock is given up before what was written is stored */
#define CLOSE_FIRST 6		/* a close is answered before that */
#define OWN_STORE_TRUSTED 7	/* the token after a store of this node's is taken for that of what home has */
#define STAT_AFTER_READ 8	/* an acquire notes the token that the file has after the contents were read */
#define SHARED_SAMPLE 9		/* a caller has the result of a look that began before it came */
#define PUT_GROWS 10		/* a put does not look where the file ends */
#define KEEP_CUT 11		/* nor does an acquire */
#define FORGET_OPENS 12		/* an acquire trusts the token though a program here has had the file open to write it */
#define FORGET_MAPPINGS 13	/* ... though a program here has it mapped */
#define ADVICE_ONLY 14		/* an acquire does not wait for pages that are being read */
#define TRUST_MISSING 15	/* a device's copy of a page that home lacks counts as current */
#define STOP_EARLY 16		/* acquires read nothing any more while the one that compares is still at it */
/* These three are how the daemon is: see README.md, "What two nodes found". */
#define NOTE_RACY 17		/* a racy token is noted as seen, and trusted when it is older */
#define NOTE_EARLY 18		/* a token is noted as seen before the page is forgotten */
#define ADVICE_GRANT 19		/* a grant does not wait for pages that are being read */

#ifndef FAULT
#define FAULT NO_FAULT
#endif
#ifndef CPU0
#define CPU0 9
#endif
#ifndef CPU1
#define CPU1 9
#endif
#ifndef LOCKS
#define LOCKS 00
#endif
#ifndef SESSIONS
#define SESSIONS 2
#endif
#ifndef DEV0
#define DEV0 9
#endif
#ifndef DEV1
#define DEV1 9
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef SECOND
#define SECOND 0
#endif
#ifndef MAPPED
#define MAPPED 0
#endif
#ifndef LOOKER
#define LOOKER 0
#endif
#ifndef READER
#define READER 0
#endif
#ifndef EVICT
#define EVICT 0
#endif
#ifndef CUT
#define CUT 0
#endif
#ifndef TICKS
#define TICKS 2
#endif
#ifndef KEEPS
#define KEEPS 0
#endif

/* Whether a mask has byte b. */
#define HAS(mask, b) ((b) == 0 -> (mask) / 10 % 10 == 1 : (mask) % 10 == 1)

/* What a byte may be: nothing, which is what a shorter file has; what each writer stores; what was there first. */
#define ZERO 0
#define OF_CPU(n) (1 + (n))
#define FIRST 3
#define OF_DEVICE(n) (4 + (n))

#include "nodes_oracle.pml"

/* ---- the engine ---- */

/* A token: what a look at the file shows. The clock's time of the last change, and whether the second byte is there. */
#define TOKEN(time, whole) (2 * (time) + (whole))
#define TIME(token) ((token) / 2)
#define WHOLE(token) ((token) % 2)
#define NONE 255

byte server[2];
byte token = TOKEN(0, 1);
byte clock = 1;
byte lock;			/* who has it: 1 + n */
bool shorter;			/* since a close: the second byte is not there */

/* The engine's client of a node. */
typedef engine_client {
	bool have;		/* the page, as far as it is not dirty */
	bool reading;		/* it is locked, and what the server had is under way */
	bool dirty[2];
	byte page[2], under_way[2];
	byte token;		/* what it remembers */
};
engine_client at[2];

/* The server gets a byte. */
inline serve(b, value)
{
	server[b] = value;
	token = TOKEN(clock, ((b) == 1 -> 1 : WHOLE(token)));
	shorter = shorter && (b) == 0
}

inline store_byte(n, b)
{
	if
	:: at[n].dirty[b] ->
		serve(b, at[n].page[b]);
		at[n].dirty[b] = false;
		at[n].page[b] = (at[n].have -> at[n].page[b] : ZERO)
	:: else
	fi
}

/* All that was written on the node is stored. */
inline store(n)
{
	d_step { store_byte(n, 0); store_byte(n, 1) }
}

inline drop(n)
{
	at[n].have = false;
	at[n].page[0] = (at[n].dirty[0] -> at[n].page[0] : ZERO);
	at[n].page[1] = (at[n].dirty[1] -> at[n].page[1] : ZERO)
}

/* The node's client has the page, and its bytes are in got. */
inline page_get(n)
{
	if
	:: d_step { at[n].have -> got[0] = at[n].page[0]; got[1] = at[n].page[1] }
	:: d_step { !at[n].have && !at[n].reading -> page_asked(n) };
	   d_step { page_arrives(n); got[0] = at[n].page[0]; got[1] = at[n].page[1] }
	fi
}

/* What was written is stored first; whoever writes now waits. */
inline page_asked(n)
{
	store_byte(n, 0);
	store_byte(n, 1);
	at[n].reading = true;
	at[n].under_way[0] = server[0];
	at[n].under_way[1] = server[1]
}

inline page_arrives(n)
{
	at[n].reading = false;
	at[n].have = true;
	at[n].page[0] = at[n].under_way[0];
	at[n].page[1] = at[n].under_way[1];
	at[n].under_way[0] = ZERO;
	at[n].under_way[1] = ZERO
}

/* To be done while the page is not being read. */
inline page_write(n, b, value)
{
	at[n].page[b] = value;
	at[n].dirty[b] = true
}

/* A file that is opened: the client waits for pages that are being read, and drops what it has. */
inline open_below(n)
{
	if
	:: !KEEPS -> d_step { !at[n].reading -> drop(n) }
	:: KEEPS
	fi
}

/* DONTNEED: but for what is being read. */
inline forget_below(n)
{
	d_step {
		if
		:: !at[n].reading -> drop(n)
		:: else
		fi
	}
}

/* ---- the daemons ---- */

/* cfile->cpu_writes: acquires compare, unless all was imported. */
#define WRITES 0
#define STOPPED 1
#define IMPORTED 2

typedef node {
	byte seen, taken;	/* of the inode */
	bool written_here, mapped;
	byte writers;		/* programs that have the file open to write it */
	byte cpu;
	byte stopper;		/* the client whose acquire is to say that all was imported; 0: none any more */
	bool whole;		/* cfile_size(): the second byte is there */
	bool locked;		/* home's page */
	bool have;
	byte home[2];
	byte holders;
	/* For SHARED_SAMPLE: a look that was answered below, and its result. */
	bool sampled;
	byte sample;
};
node daemon[2];

#define RACY(token) (TIME(token) == clock && FAULT != TRUST_RACY)

/* The file's token, asked of the server; the client notices by it that the file has changed. */
inline look(n)
{
	d_step { look_below(n) };
	look_drops(n)
}

inline look_below(n)
{
	if
	:: FAULT == PLAIN_STAT -> now = at[n].token
	:: else -> now = token; changed = at[n].token != now && !KEEPS; at[n].token = now
	fi
}

inline look_drops(n)
{
	if
	:: changed -> d_step { !at[n].reading -> drop(n); changed = false }
	:: else
	fi
}

/*
 * The rest of shared_revalidate(). A racy token must show nothing later, either: what is read now may be older than the last store with
 * that token. A token must not be noted before the page is forgotten: other callers trust it from then on. And advice is not enough for that.
 */
inline looked(n)
{
	d_step {
		changed = daemon[n].seen != now || RACY(now);
		now = (RACY(now) && FAULT != NOTE_RACY -> NONE : now);
		daemon[n].seen = (FAULT == NOTE_EARLY -> now : daemon[n].seen)
	};
	if
	:: changed && (KEEPS || FAULT == ADVICE_GRANT) -> forget_below(n)
	:: changed && !KEEPS && FAULT != ADVICE_GRANT -> open_below(n)
	:: !changed
	fi;
	d_step { daemon[n].seen = (FAULT == NOTE_EARLY -> daemon[n].seen : now); changed = false; now = 0 }
}

inline revalidate(n)
{
	if
	:: atomic { FAULT == SHARED_SAMPLE && daemon[n].sampled -> now = daemon[n].sample }
	:: else -> look(n)
	fi;
	looked(n)
}

/* ---- CPU programs ---- */

#define WRITES_OF(n) ((n) == 0 -> CPU0 : CPU1)
#define BY_LOCK(n) HAS(LOCKS, n)

inline enter(n)
{
	if
	:: BY_LOCK(n) ->
		atomic { lock == 0 -> lock = 1 + n; begins(n) };
		if
		:: FAULT != NO_GRANT_CHECK -> revalidate(n)
		:: else
		fi
	:: else ->
		d_step { begins(n) };
		open_below(n);
		revalidate(n);
		d_step { daemon[n].writers++; daemon[n].written_here = (FAULT != FORGET_OPENS) }
	fi
}

inline leave(n)
{
	if
	:: BY_LOCK(n) && FAULT == UNLOCK_FIRST -> d_step { publish(); forgets(); lock = 0 }; store(n)
	:: BY_LOCK(n) && FAULT != UNLOCK_FIRST -> store(n); d_step { publish(); forgets(); lock = 0 }
	:: !BY_LOCK(n) ->
		if
		:: FAULT != CLOSE_FIRST -> store(n)
		:: else
		fi;
		d_step {
			publish();
			forgets();
			daemon[n].writers--;
			shorter = (has_cut -> WHOLE(token) == 0 : shorter);
			has_cut = false
		}
	fi
}

/* ftruncate(2), which the engine's client asks of the server at once; nobody uses devices on this node. */
inline cut(n)
{
	d_step {
		!at[n].reading ->
		server[1] = ZERO;
		token = TOKEN(clock, 0);
		at[n].token = token;
		at[n].dirty[1] = false;
		at[n].page[1] = ZERO;
		stored(n, 1, ZERO);
		has_cut = true
	}
}

proctype program(byte n)
{
	byte sessions, now, got[2], begun[2];
	bool changed, has_cut;
	PARTY;

	do
	:: sessions < SESSIONS ->
		sessions++;
		enter(n);
		if
		:: d_step { begins_read(n) }; page_get(n); d_step { sees(0, got[0]); sees(1, got[1]); got[0] = 0; got[1] = 0 }
		:: true
		fi;
		if
		:: d_step { HAS(WRITES_OF(n), 0) && !begun[0] && !at[n].reading -> begun[0] = 1; page_write(n, 0, OF_CPU(n)); stored(n, 0, OF_CPU(n)) }
		:: true
		fi;
		if
		:: d_step { HAS(WRITES_OF(n), 1) && !begun[1] && !at[n].reading -> begun[1] = 1; page_write(n, 1, OF_CPU(n)); stored(n, 1, OF_CPU(n)) }
		:: CUT && n == 1 && !begun[1] -> begun[1] = 1; cut(n)
		:: true
		fi;
		leave(n)
	:: sessions == SESSIONS -> break
	od;
	if
	:: MAPPED && n == 0 ->
		enter(n);
		daemon[n].mapped = true;
		leave(n);
		/* A mapping need not follow what others store. */
		d_step { !at[n].reading -> page_write(n, 0, OF_CPU(n)); knows[0] = BIT(FIRST); stored(n, 0, OF_CPU(n)); forgets() };
		/* munmap(2) */
		store(n);
		daemon[n].mapped = false
	:: else
	fi
}

/* ---- devices ---- */

#define STORES_OF(id) ((id) == 1 -> DEV0 : ((id) == 2 -> DEV1 : 00))

/* Else nobody but the client of the node's device wants the page. */
#define LOCKED (SECOND || EVICT)

inline page_lock(n)
{
	if
	:: LOCKED -> d_step { !daemon[n].locked -> daemon[n].locked = true }
	:: else
	fi
}

/* The page is locked: what others have changed below becomes home's. */
inline import(n)
{
	if
	:: daemon[n].have && daemon[n].cpu != IMPORTED ->
		page_get(n);
		d_step { daemon[n].home[0] = got[0]; daemon[n].home[1] = got[1]; got[0] = 0; got[1] = 0 }
	:: else
	fi
}

/* cache_look_for_end(). What the device stored there is gone. */
inline look_for_end(n)
{
	look(n);
	d_step {
		if
		:: !WHOLE(now) ->
			daemon[n].whole = false;
			daemon[n].home[1] = ZERO;
			if
			:: mem[1] != base[1] -> withdraw(1)
			:: else
			fi;
			mem[1] = ZERO;
			base[1] = ZERO
		:: else
		fi;
		now = 0
	}
}

/* nobody_writes: passthrough_nobody_writes(). */
#define NOBODY_WRITES(n) (daemon[n].writers == 0 && (!daemon[n].mapped || FAULT == FORGET_MAPPINGS))
#define NOTE_TAKEN(n) \
	if \
	:: daemon[n].cpu == WRITES && !RACY(now) && NOBODY_WRITES(n) -> \
		daemon[n].written_here = false; \
		daemon[n].cpu = (FAULT == STOP_EARLY -> IMPORTED : STOPPED); \
		daemon[n].stopper = id; \
		news = true \
	:: else \
	fi

inline acquire(n, id)
{
	d_step { begins(n); was_shorter = shorter; look_below(n) };
	look_drops(n);
	/* inode->lock */
	d_step {
		if
		:: daemon[n].written_here || daemon[n].taken != now || RACY(now) -> daemon[n].cpu = WRITES; daemon[n].stopper = 0
		:: else
		fi;
		compares = daemon[n].cpu != IMPORTED;
		daemon[n].taken = (FAULT == STAT_AFTER_READ -> daemon[n].taken : now);
		NOTE_TAKEN(n);
		is_short = daemon[n].whole && !WHOLE(now) && FAULT != KEEP_CUT;
		daemon[n].whole = daemon[n].whole || WHOLE(now);
		now = 0
	};
	/* look_as_if_opened(): an open waits for what is being read, and drops no less than advice does. */
	if
	:: compares && (KEEPS || FAULT == ADVICE_ONLY) -> forget_below(n)
	:: compares && !KEEPS && FAULT != ADVICE_ONLY -> open_below(n)
	:: !compares
	fi;
	if
	:: is_short -> look_for_end(n)
	:: else
	fi;
	if
	:: news ->
		page_lock(n);
		import(n);
		d_step {
			if
			:: daemon[n].stopper == id -> daemon[n].stopper = 0; daemon[n].cpu = IMPORTED
			:: else
			fi;
			daemon[n].locked = false
		}
	:: else
	fi;
	page_lock(n);
	import(n);
	if
	:: !daemon[n].have && !(FAULT == TRUST_MISSING && current) ->
		page_get(n);
		d_step { daemon[n].home[0] = got[0]; daemon[n].home[1] = got[1]; daemon[n].have = true; got[0] = 0; got[1] = 0 }
	:: else
	fi;
	d_step {
		daemon[n].taken = (FAULT == STAT_AFTER_READ -> token : daemon[n].taken);
		if
		:: daemon[n].have -> take(0); take(1); current = true
		:: else
		fi;
		daemon[n].holders = daemon[n].holders + (holds -> 0 : 1);
		holds = true;
		daemon[n].locked = false;
		sees(0, mem[0]);
		sees(1, mem[1]);
		/* Shorter elsewhere is shorter here. */
		assert(!was_shorter || !shorter || !daemon[n].whole);
		was_shorter = false;
		compares = false;
		is_short = false;
		news = false;
		bad[0] = 0;
		bad[1] = 0
	}
}

/* The device's byte becomes home's, if its client has not changed it. */
inline take(b)
{
	mem[b] = (mem[b] == base[b] -> daemon[n].home[b] : mem[b]);
	base[b] = daemon[n].home[b]
}

#define CHANGED(b) (mem[b] != base[b])

inline put(n, b)
{
	if
	:: (released[b] || FAULT == PUT_WHOLE) && (b == 0 || limit) ->
		/* A device makes no file longer that was shorter before. */
		assert(b == 0 || !was_shorter || !shorter);
		d_step { !at[n].reading -> page_write(n, b, daemon[n].home[b]) }
	:: else
	fi
}

inline merge(n, b)
{
	released[b] = mem[b] != base[b];
	daemon[n].home[b] = (released[b] -> mem[b] : daemon[n].home[b]);
	base[b] = mem[b]
}

inline release(n, id)
{
	page_lock(n);
	if
	:: CHANGED(0) || CHANGED(1) ->
		import(n);
		d_step { merge(n, 0); merge(n, 1); was_shorter = shorter };
		limit = true;
		if
		:: CUT && FAULT != PUT_GROWS -> look(n); d_step { limit = WHOLE(now); now = 0 }
		:: else
		fi;
		put(n, 0);
		put(n, 1);
		d_step { released[0] = false; released[1] = false; limit = false; was_shorter = false }
	:: else
	fi;
	d_step { daemon[n].locked = false; daemon[n].holders--; holds = false; now_here(n); forgets() }
}

inline sync(n)
{
	store(n);
	d_step {
		publish();
		daemon[n].taken = (FAULT == OWN_STORE_TRUSTED -> token : daemon[n].taken)
	}
}

/* The client of a device: 1 and 2 write, on node 0 and 1; 3 reads, on node 0. */
proctype device(byte n; byte id)
{
	byte rounds, now, got[2], mem[2], base[2], begun[2];
	bool changed, compares, is_short, was_shorter, news, current, holds, limit, released[2];
	PARTY;

	do
	:: rounds < ROUNDS ->
		rounds++;
		acquire(n, id);
		if
		:: d_step { HAS(STORES_OF(id), 0) && !begun[0] -> begun[0] = 1; mem[0] = OF_DEVICE(n); stores(0, OF_DEVICE(n)) }
		:: true
		fi;
		if
		:: d_step { HAS(STORES_OF(id), 1) && !begun[1] && daemon[n].whole -> begun[1] = 1; mem[1] = OF_DEVICE(n); stores(1, OF_DEVICE(n)) }
		:: true
		fi;
		if
		:: release(n, id);
		   if
		   :: sync(n)
		   :: true
		   fi
		:: rounds < ROUNDS	/* it acquires what it holds */
		fi
	:: rounds == ROUNDS -> break
	od
}

/* ---- what happens at any time ---- */

/* The engine's client stores what was written by itself. */
proctype client(byte n)
{
end:	do
	:: d_step { at[n].dirty[0] -> store_byte(n, 0) }
	:: d_step { at[n].dirty[1] -> store_byte(n, 1) }
	od
}

proctype ticks()
{
end:	do
	:: clock < TICKS -> clock++
	od
}

/* The sample is kept until the caller has its answer. */
proctype looker(byte n)
{
	byte now;
	bool changed;

end:	do
	:: true ->
		look(n);
		d_step { daemon[n].sampled = (FAULT == SHARED_SAMPLE); daemon[n].sample = (FAULT == SHARED_SAMPLE -> now : 0) };
		looked(n);
		d_step { daemon[n].sampled = false; daemon[n].sample = 0 }
	od
}

proctype reader(byte n)
{
end:	do
	:: d_step { !at[n].have && !at[n].reading -> page_asked(n) };
	   d_step { page_arrives(n) }
	od
}

proctype evictor(byte n)
{
end:	do
	:: d_step { daemon[n].have && daemon[n].holders == 0 && !daemon[n].locked -> daemon[n].have = false; daemon[n].home[0] = 0; daemon[n].home[1] = 0 }
	od
}

init {
	atomic {
		server[0] = FIRST;
		server[1] = FIRST;
		at[0].token = token;
		at[1].token = token;
		daemon[0].seen = token;
		daemon[1].seen = token;
		daemon[0].whole = true;
		daemon[1].whole = true;
		public[0] = BIT(FIRST);
		public[1] = BIT(FIRST);
		if :: CPU0 != 9 -> run program(0) :: else fi;
		if :: CPU1 != 9 -> run program(1) :: else fi;
		if :: DEV0 != 9 -> run device(0, 1) :: else fi;
		if :: DEV1 != 9 -> run device(1, 2) :: else fi;
		if :: SECOND -> run device(0, 3) :: else fi;
		if :: LOOKER -> run looker(0) :: else fi;
		if :: READER -> run reader(0) :: else fi;
		if :: EVICT -> run evictor(0) :: else fi;
		run client(0);
		run client(1);
		run ticks()
	}
}
