/*
 * overwrite.pml - acquires for writing only, which bring nothing (promise 15, rule 24 in daemon/README.md).
 *
 * A page of two bytes, which lies in the file as a whole; home; a replica on each of two devices. Clients 0 and 1 are of device 0, client 2
 * of device 1. Each acquires the page to read it, to read and write, or to overwrite it, stores, and releases it or dies. CPU programs
 * read and write home's bytes; what the kernel caches is in gaiafs.pml.
 *
 *	CLIENTS=abc	how often each client acquires the page (client 0: a)
 *	STORES=abc	how many bytes each may store that nobody else stores, one each
 *	CPU=xy		how often CPU programs may write byte 0 (x) and byte 1 (y)
 *	READ=1		clients acquire the page also to read it, and to read and write
 *	FAIL=1		acquires may fail at their end
 *	DEATHS		so many clients may die
 *	CUT=1		the second byte is cut off once, and the file grows again at once
 *	EVICT=1		idle replicas are evicted
 *	NO_ROOM=1	there may be no room for snapshots
 *	TRIM=1		home is merged into what is held, for lack of room
 *	FAULT=...	one of those below
 *
 * bring		replica_plan(): track_plan(), track_plan_overwrite(); parts_fetch(), window_zero(), merge_done()
 * settle		part_settle(): settle_overwriting(), track_overwriting(), grant_overwrites()
 * undo			part_undo(), ready_end(): grant_unhold(), replica_drop_hold(), replica_undo_hold()
 * release		look_at(), publish(): replica_release(), replica_overwritten()
 * fetch		fetch_pages(): fetch_merge()
 * drop_dead, scrub	grants_drop_dead(): grant_discard(); replica_scrub()
 * show			show() in handover.c, for a client that acquires another page of the chunk
 * trim			kept_trim()
 *
 * What one thread does with the page locked is one step.
 */
#define NO_FAULT 0
#define LEAVE_STALE 1	/* what is not current stays as it is in memory, and is not zeroed */
#define FRESH_AT_ONCE 2	/* a page is fresh before its acquire has succeeded */
#define COMPARE_WHOLE 3	/* a release compares what was overwritten */
#define WHOLE_TWICE 4	/* each release of a client that was overwriting publishes all of the page */
#define PULL_WHOLE 5	/* what was brought into a page is published by its overwriter */
#define OLD_BASE 6	/* a page that somebody holds is not brought up to date when it is acquired to be overwritten */
#define LOSE_RELEASE 7	/* what was released is not secured before it is overwritten */
#define MEET_BEFORE 8	/* what another device had released before is merged with what is stored after it */
#define NO_PARTNER 9	/* a client that acquires a fresh page to write it is none that overwrites it */
#define CUT_WHOLE 10	/* what lies behind a cut is published with the rest */
#define KEEP_FRESH 11	/* a page whose overwriter died stays what it was */
#define KEEP_LEFT 12	/* what a dead client left counts as the file's when an acquire of what is ready is given up */
#define FRESH_ALONE 13	/* an acquire to read a page that its device overwrites leaves what another one released to a merge with what is stored after it */

#ifndef FAULT
#define FAULT NO_FAULT
#endif
#ifndef CLIENTS
#define CLIENTS 220
#endif
#ifndef STORES
#define STORES 110
#endif
#ifndef CPU
#define CPU 11
#endif
#ifndef READ
#define READ 1
#endif
#ifndef FAIL
#define FAIL 0
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef CUT
#define CUT 0
#endif
#ifndef EVICT
#define EVICT 0
#endif
#ifndef NO_ROOM
#define NO_ROOM 0
#endif
#ifndef TRIM
#define TRIM 0
#endif

/* A byte's value names who wrote it. Overwriters store INITIAL as well: what a comparison would not find. */
#define ZERO 0
#define INITIAL 1
#define CPU_FIRST 2 /* and the next one */
#define OF_CLIENT 4 /* and the next two */
#define FOREIGN 7 /* another file's */

#define PAGE 2
#define BYTE(p, b) ((p) >> (4 * (b)) & 15)
#define PUT(p, b, v) (((p) & ~(15 << (4 * (b)))) | (v) << (4 * (b)))
#define ALL(v) ((v) | (v) << 4)
#define BIT(v) (1 << (v))
#define OF3(digits, c) ((c) == 0 -> (digits) / 100 : ((c) == 1 -> (digits) / 10 % 10 : (digits) % 10))
#define OF2(digits, b) ((b) == 0 -> (digits) / 10 : (digits) % 10)
#define DEVICE(c) ((c) / 2)

/* ---- the daemon ---- */

mtype = { NOTHING, HOME, TWIN };

/* A page of a replica: flags and fields of struct page_replica, and its memory. */
typedef page_replica {
	bool present, ahead, snapped, armed, zeros, removed, fresh, whole, left;
	mtype seen = NOTHING;	/* what it names: home's bytes as they are, the twin, or nothing */
	unsigned cut : 2 = PAGE;
	byte mem = ALL(FOREIGN), twin, shadow, hash;
};

/* A client's hold. */
typedef hold {
	bool is, writes, coming, over, dead;
};

page_replica r[2];
hold h[3];
byte home = ALL(INITIAL);
byte owner[2];		/* who wrote home's byte since it was some replica's base: merge3_owned() */
bool room = true;

#define WRITTEN(d) ((d) == 0 -> h[0].writes || h[1].writes : h[2].writes)
#define HELD(d) ((d) == 0 -> h[0].is || h[1].is : h[2].is)
#define OUTSTANDING(d) (r[d].ahead || WRITTEN(d))

#include "overwrite_oracle.pml"

/* ---- home, and fetches ---- */

/* What means nothing has one value. */
inline tidy(d)
{
	r[d].twin = (r[d].seen == TWIN -> r[d].twin : 0);
	r[d].shadow = (r[d].snapped -> r[d].shadow : 0);
	r[d].hash = (r[d].armed -> r[d].hash : 0)
}

inline forget(d)
{
	r[d].present = false;
	r[d].armed = false;
	r[d].zeros = false;
	r[d].removed = false;
	r[d].fresh = false;
	r[d].seen = NOTHING;
	r[d].cut = PAGE;
	tidy(d)
}

/* track_discarded() */
inline discarded(d)
{
	if
	:: r[d].ahead
	:: else -> forget(d)
	fi
}

inline home_was(d)
{
	if
	:: r[d].seen == HOME && OUTSTANDING(d) -> r[d].seen = TWIN; r[d].twin = home
	:: r[d].seen == HOME && !OUTSTANDING(d) -> r[d].seen = NOTHING
	:: else
	fi
}

/* home_change() */
inline home_becomes(bytes)
{
	if
	:: home != (bytes) -> home_was(0); home_was(1); home = bytes
	:: else
	fi
}

/* Locals of the inlines below. */
byte theirs, merged, kept;
bool plain;

inline merge_byte(d, b)
{
	if
	:: b >= r[d].cut && !(FAULT == CUT_WHOLE && r[d].whole)
	:: else ->
		if
		:: plain || r[d].whole ->
			owner[b] = (BYTE(theirs, b) != BYTE(home, b) -> d + 1 : owner[b]);
			merged = PUT(merged, b, BYTE(theirs, b))
		:: !plain && !r[d].whole && BYTE(theirs, b) != BYTE(r[d].twin, b) &&
		   (BYTE(home, b) == BYTE(r[d].twin, b) || owner[b] <= d + 1) ->
			owner[b] = d + 1;
			merged = PUT(merged, b, BYTE(theirs, b))
		:: else
		fi
	fi
}

inline owners_end()
{
	if
	:: !OUTSTANDING(0) && !OUTSTANDING(1) -> owner[0] = 0; owner[1] = 0
	:: else
	fi
}

/* fetch_merge(), track_merged() */
inline fetch_from(d)
{
	if
	:: r[d].ahead ->
		theirs = (r[d].snapped -> r[d].shadow : r[d].mem);
		plain = r[d].seen == HOME;
		assert(plain || r[d].whole || r[d].seen == TWIN);
		merged = home;
		merge_byte(d, 0);
		merge_byte(d, 1);
		r[d].seen = NOTHING;	/* replica_merge_begin() */
		home_becomes(merged);
		r[d].ahead = false;
		r[d].whole = false;
		if
		:: r[d].snapped && !WRITTEN(d) -> r[d].present = false
		:: !(r[d].snapped && !WRITTEN(d)) && home == theirs -> r[d].seen = HOME
		:: !(r[d].snapped && !WRITTEN(d)) && home != theirs && WRITTEN(d) -> r[d].seen = TWIN; r[d].twin = theirs
		:: else
		fi;
		r[d].snapped = false;
		r[d].cut = (WRITTEN(d) -> r[d].cut : PAGE);
		tidy(d)
	:: else
	fi
}

inline fetch()
{
	fetch_from(0);
	fetch_from(1);
	owners_end();
	theirs = 0;
	merged = 0;
	plain = false
}

/* replica_zeroed() */
inline zero(d)
{
	r[d].mem = ALL(ZERO);
	r[d].removed = false;
	if
	:: WRITTEN(d) || r[d].ahead
	:: else -> forget(d); r[d].zeros = true
	fi
}

/* replica_scrub(): what nobody holds any more shows nothing that was not the file's, or was removed from it. */
inline scrub(d)
{
	if
	:: !HELD(d) ->
		if
		:: r[d].removed && r[d].ahead -> fetch()
		:: else
		fi;
		if
		:: !r[d].zeros && (r[d].ahead -> r[d].snapped : !r[d].present || (r[d].removed && r[d].seen != HOME)) -> zero(d)
		:: else
		fi
	:: else
	fi
}

/* replica_overwritten() */
inline overwritten(d)
{
	if
	:: d == 0 -> h[0].over = false; h[1].over = false
	:: else -> h[2].over = false
	fi
}

/* A hold for writing ended without a release. */
inline note_left(d)
{
	r[d].left = WRITTEN(d) && FAULT != KEEP_LEFT
}

inline drop_hold(c)
{
	h[c].is = false;
	h[c].writes = false;
	h[c].coming = false;
	h[c].over = false;
	h[c].dead = false
}

inline drop_one_dead(c)
{
	if
	:: h[c].dead && h[c].writes ->
		drop_hold(c);
		note_left(DEVICE(c));
		if
		:: !WRITTEN(DEVICE(c)) && FAULT != KEEP_FRESH -> discarded(DEVICE(c))
		:: !WRITTEN(DEVICE(c)) && FAULT == KEEP_FRESH && !r[DEVICE(c)].fresh -> discarded(DEVICE(c))
		:: !WRITTEN(DEVICE(c)) && FAULT == KEEP_FRESH && r[DEVICE(c)].fresh -> r[DEVICE(c)].fresh = false; r[DEVICE(c)].seen = HOME
		:: else
		fi
	:: h[c].dead && !h[c].writes -> drop_hold(c)
	:: else
	fi
}

/* grants_drop_dead() */
inline drop_dead(d)
{
	if
	:: (d == 0 -> h[0].dead || h[1].dead : h[2].dead) ->
		if
		:: d == 0 -> drop_one_dead(0); drop_one_dead(1)
		:: else -> drop_one_dead(2)
		fi;
		scrub(d);
		owners_end();
		/* [7], [13] */
		assert(HELD(d) || ((BIT(BYTE(r[d].mem, 0)) & (public.at[0] | BIT(ZERO))) && (BIT(BYTE(r[d].mem, 1)) & (public.at[1] | BIT(ZERO)))))
	:: else
	fi
}

/* ---- acquires ---- */

mtype = { STEP_NOTHING, STEP_FETCH, STEP_SEND, STEP_PULL, STEP_SECURE, STEP_ZERO };
mtype step = STEP_FETCH;
bool over_too, meets[3];

#define CURRENT(d) (r[d].seen == HOME && r[d].cut == PAGE)

/* track_plan() */
inline plan(d, write)
{
	if
	:: r[d].fresh && r[d].cut == PAGE -> step = (r[1 - d].ahead && ((write) || FAULT != FRESH_ALONE) -> STEP_FETCH : STEP_NOTHING)
	:: else ->
		if
		:: r[1 - d].ahead -> step = STEP_FETCH
		:: !r[1 - d].ahead && r[d].ahead ->
			step = (!CURRENT(d) || (r[d].snapped && !WRITTEN(d)) -> STEP_FETCH : ((write) && !r[d].snapped -> STEP_SECURE : STEP_NOTHING))
		:: else ->
			step = (r[d].present && CURRENT(d) -> STEP_NOTHING : (HELD(d) -> STEP_PULL : STEP_SEND))
		fi
	fi
}

/* track_plan_overwrite() */
inline plan_overwrite(d)
{
	if
	:: r[1 - d].ahead && FAULT != MEET_BEFORE -> step = STEP_FETCH
	:: else ->
		if
		:: WRITTEN(d) && r[d].cut == PAGE && (r[d].fresh || r[d].zeros || (FAULT == OLD_BASE && r[d].present)) -> step = STEP_NOTHING
		:: else ->
			if
			:: r[d].ahead && !r[d].snapped && !WRITTEN(d) && CURRENT(d) -> step = STEP_SECURE
			:: !r[d].ahead && r[d].present && CURRENT(d) -> step = STEP_NOTHING
			:: !(r[d].ahead && !r[d].snapped && !WRITTEN(d) && CURRENT(d)) && !(!r[d].ahead && r[d].present && CURRENT(d)) ->
				if
				:: HELD(d) || r[d].ahead -> plan(d, true)
				:: else -> step = STEP_ZERO
				fi
			fi
		fi
	fi
}

/* A byte that was brought is nobody's; one that was stored as it was before races with whoever writes it. */
inline pull_byte(d, b)
{
	if
	:: b < kept && BYTE(r[d].mem, b) != BYTE(theirs, b)
	:: else ->
		claim[d].at[b] = NONE;
		r[d].mem = PUT(r[d].mem, b, BYTE(home, b))
	fi
}

/* DEV_PULL, track_pulled(), replica_overwritten() */
inline pull(d)
{
	assert(!WRITTEN(d) || !r[d].present || r[d].fresh || r[d].seen != NOTHING);
	theirs = (r[d].fresh || r[d].seen != TWIN -> home : r[d].twin);
	kept = (WRITTEN(d) && r[d].present -> r[d].cut : 0);
	pull_byte(d, 0);
	pull_byte(d, 1);
	theirs = 0;
	kept = 0;
	r[d].present = true;
	r[d].seen = HOME;
	r[d].cut = PAGE;
	r[d].zeros = false;
	r[d].removed = false;
	r[d].armed = !r[d].fresh;
	r[d].hash = home;
	r[d].fresh = false;
	tidy(d);
	if
	:: d == 0 -> overwrites[0] = false; overwrites[1] = false
	:: else -> overwrites[2] = false
	fi;
	if
	:: FAULT != PULL_WHOLE -> overwritten(d)
	:: else
	fi
}

/* Until nothing is left to do. */
inline bring(d, write, over)
{
	step = STEP_FETCH;
	do
	:: step == STEP_FETCH ->
		if
		:: over -> plan_overwrite(d)
		:: else -> plan(d, write)
		fi;
		if
		:: step == STEP_FETCH -> assert(r[0].ahead || r[1].ahead); fetch()
		:: step == STEP_SECURE && FAULT == LOSE_RELEASE
		:: step == STEP_SECURE && room && FAULT != LOSE_RELEASE -> r[d].snapped = true; r[d].shadow = r[d].mem
		:: step == STEP_SECURE && !room && FAULT != LOSE_RELEASE -> fetch(); step = STEP_FETCH
		:: step == STEP_SEND ->
			forget(d);
			r[d].mem = home;
			r[d].present = true;
			r[d].seen = HOME;
			r[d].armed = write;
			r[d].hash = home;
			tidy(d)
		:: step == STEP_PULL -> pull(d)
		:: step == STEP_ZERO && FAULT != LEAVE_STALE -> zero(d)
		:: step == STEP_ZERO && FAULT == LEAVE_STALE -> forget(d); r[d].zeros = true
		:: else
		fi
	:: else -> break
	od;
	/* is_to_arm() */
	if
	:: write && !over && !r[d].armed && !WRITTEN(d) && step != STEP_SEND && step != STEP_PULL && !r[d].fresh ->
		r[d].armed = true;
		r[d].hash = r[d].mem
	:: else
	fi;
	step = STEP_FETCH
}

/* track_overwriting() */
inline become_fresh(d)
{
	if
	:: WRITTEN(d) && r[d].zeros ->
		r[d].zeros = false;
		r[d].present = true;
		r[d].fresh = r[d].cut > 0;
		r[d].seen = NOTHING;
		r[d].armed = false;
		tidy(d)
	:: else
	fi
}

/* The page is fetched, planned, brought, and the hold is coming. */
inline acquire(c, d, write, overwriting)
{
	drop_dead(d);
	if
	:: !WRITTEN(d) -> rival[d].at[0] = 0; rival[d].at[1] = 0
	:: else
	fi;
	bring(d, write, overwriting);
	before[d].at[0] = rival[d].at[0];
	before[d].at[1] = rival[d].at[1];
	finds(d, 0, overwriting);
	finds(d, 1, overwriting);
	meets[c] = write && r[d].fresh;
	h[c].is = true;
	h[c].writes = write;
	h[c].coming = true;
	if
	:: FAULT == FRESH_AT_ONCE && overwriting -> become_fresh(d)
	:: else
	fi
}

/* The acquire has succeeded. */
inline settle(c, d, overwriting)
{
	if
	:: overwriting -> become_fresh(d)
	:: else
	fi;
	h[c].coming = false;
	h[c].over = overwriting || (meets[c] && r[d].fresh && FAULT != NO_PARTNER);
	overwrites[c] = overwriting || (h[c].writes && r[d].fresh);
	if
	:: overwriting ->
		claim[d].at[0] = (claim[d].at[0] == STORED -> STORED : WHOLE);
		claim[d].at[1] = (r[d].cut < PAGE -> MAY : (claim[d].at[1] == STORED -> STORED : WHOLE))
	:: else
	fi;
	meets[c] = false
}

/* ---- releases ---- */

mtype found = NONE; /* NONE: equal; STORED: changed; WHOLE: not asked for */
bool shared, secured;

#define OTHERS_OVERWRITE(c) ((c) == 2 -> false : overwrites[1 - (c)])

inline release(c, d)
{
	if
	:: h[c].writes ->
		if
		:: h[c].over && FAULT != COMPARE_WHOLE -> found = WHOLE
		:: !(h[c].over && FAULT != COMPARE_WHOLE) && r[d].present && !(r[d].armed && r[d].mem == r[d].hash) &&
		   (!r[d].fresh || FAULT == COMPARE_WHOLE) -> found = STORED
		:: else -> found = NONE
		fi;
		spec_release(c, d, 0, OTHERS_OVERWRITE(c));
		spec_release(c, d, 1, OTHERS_OVERWRITE(c));
		if
		:: overwrites[c] && d == 0 -> overwrites[0] = false; overwrites[1] = false
		:: else -> overwrites[c] = false
		fi;
		drop_hold(c);
		shared = found != NONE && WRITTEN(d);
		secured = shared && room;
		/* replica_release() */
		if
		:: found == WHOLE ->
			r[d].fresh = false;
			r[d].armed = false;
			r[d].whole = true;
			r[d].seen = HOME
		:: found == STORED && FAULT == COMPARE_WHOLE && r[d].fresh -> r[d].fresh = false; r[d].seen = HOME
		:: found == NONE && (r[d].fresh || r[d].left) && !WRITTEN(d) -> discarded(d)
		:: else
		fi;
		if
		:: found == NONE && !WRITTEN(d) && !r[d].left ->
			r[d].snapped = false;
			r[d].present = r[d].present && (r[d].cut == PAGE || r[d].ahead)
		:: found != NONE ->
			r[d].ahead = true;
			r[d].snapped = WRITTEN(d) && secured;
			r[d].shadow = r[d].mem;
			/* DEV_FIND_CHANGED arms anew. */
			r[d].hash = (found == STORED -> r[d].mem : r[d].hash);
			r[d].armed = r[d].armed && !WRITTEN(d)
		:: else
		fi;
		r[d].left = r[d].left && WRITTEN(d) && found == NONE;
		tidy(d);
		if
		:: found == WHOLE && FAULT != WHOLE_TWICE -> overwritten(d)
		:: else
		fi;
		if
		:: shared && !secured -> fetch()
		:: else
		fi;
		found = NONE;
		shared = false;
		secured = false
	:: else -> drop_hold(c)
	fi;
	scrub(d);
	owners_end()
}

/* ---- processes ---- */

byte deaths, cuts;
bool spent[6];		/* [2 * client + byte] */
byte stores[3];

#define IS_LEFT(c, b) (!spent[2 * (c) + (b)] && stores[c] < OF3(STORES, c))

inline store(c, d, b)
{
	spent[2 * c + b] = true;
	stores[c]++;
	claim[d].at[b] = (r[d].cut <= b -> MAY : STORED);
	comes_after(d, b);
	r[d].mem = PUT(r[d].mem, b, OF_CLIENT + c)
}

/* It says nothing that a comparison with the bytes from before would notice. */
inline store_initial(c, d, b)
{
	claim[d].at[b] = (r[d].cut <= b || claim[d].at[b] == MAY -> MAY : WHOLE);
	comes_after(d, b);
	r[d].mem = PUT(r[d].mem, b, INITIAL)
}

#define MAY_STORE(c) (h[c].writes && !h[c].coming && !h[c].dead)

proctype client(byte c)
{
	byte n;
	bool write, overwriting, ready;

end:
	do
	:: atomic {
		n < OF3(CLIENTS, c) && !h[c].is ->
		n++;
		write = true;
		if
		:: overwriting = true
		:: READ -> overwriting = false
		:: READ -> overwriting = false; write = false
		fi;
		/* Of what is ready nothing was done but that it is held. */
		ready = FAIL && r[DEVICE(c)].present && CURRENT(DEVICE(c)) && !r[DEVICE(c)].ahead;
		d_step { acquire(c, DEVICE(c), write, overwriting) }
	   };
	   atomic {
		if
		:: d_step { true -> settle(c, DEVICE(c), overwriting) }
		:: d_step {
			FAIL ->
			drop_hold(c);
			meets[c] = false;
			spec_undo(DEVICE(c), (c < 2 && h[1 - c].writes && !h[1 - c].dead));
			if
			:: write && !ready -> note_left(DEVICE(c))
			:: else
			fi;
			if
			:: write && !WRITTEN(DEVICE(c)) ->
				if
				:: !ready || r[DEVICE(c)].left || r[DEVICE(c)].cut < PAGE || r[DEVICE(c)].fresh -> discarded(DEVICE(c))
				:: else
				fi;
				r[DEVICE(c)].left = false
			:: else
			fi;
			scrub(DEVICE(c));
			owners_end()
		   }
		fi;
		write = false;
		overwriting = false;
		ready = false
	   }
	:: d_step { MAY_STORE(c) && IS_LEFT(c, 0) -> store(c, DEVICE(c), 0) }
	:: d_step { MAY_STORE(c) && IS_LEFT(c, 1) -> store(c, DEVICE(c), 1) }
	:: d_step { MAY_STORE(c) && overwrites[c] && BYTE(r[DEVICE(c)].mem, 0) != INITIAL -> store_initial(c, DEVICE(c), 0) }
	:: d_step { MAY_STORE(c) && overwrites[c] && BYTE(r[DEVICE(c)].mem, 1) != INITIAL -> store_initial(c, DEVICE(c), 1) }
	:: d_step { h[c].is && !h[c].coming && !h[c].dead -> release(c, DEVICE(c)) }
	/* it dies; somebody notices later */
	:: d_step {
		h[c].is && !h[c].coming && !h[c].dead && deaths < DEATHS ->
		deaths++;
		h[c].dead = true;
		overwrites[c] = false;
		if
		:: h[c].writes ->
			spec_death(DEVICE(c), 0, (c < 2 && h[1 - c].writes && !h[1 - c].dead), OTHERS_OVERWRITE(c));
			spec_death(DEVICE(c), 1, (c < 2 && h[1 - c].writes && !h[1 - c].dead), OTHERS_OVERWRITE(c))
		:: else
		fi
	   }
	:: d_step { h[c].dead -> drop_dead(DEVICE(c)) }
	od
}

/* replica_cut(), replica_removed(); chunk_scrub() */
inline cut_off(d)
{
	claim[d].at[1] = NONE;
	r[d].cut = (WRITTEN(d) -> 1 : r[d].cut);
	r[d].removed = r[d].present;
	scrub(d)
}

/* exact_write() */
inline cpu_write(b, v)
{
	fetch();
	home_becomes(PUT(home, b, v));
	owner[b] = 0;
	now_is(b, v)
}

proctype cpu()
{
	byte writes[2];

end:
	do
	:: d_step { writes[0] < OF2(CPU, 0) -> cpu_write(0, CPU_FIRST + writes[0]); writes[0]++ }
	:: d_step { writes[1] < OF2(CPU, 1) -> cpu_write(1, CPU_FIRST + writes[1]); writes[1]++ }
	/* A read; or a sync, or the flusher. */
	:: d_step {
		true ->
		fetch();
		DECIDE(0, BYTE(home, 0));
		DECIDE(1, BYTE(home, 1))
	   }
	/* truncate_page() */
	:: d_step {
		cuts < CUT ->
		cuts++;
		cpu_write(1, ZERO);
		cut_off(0);
		cut_off(1)
	   }
	od
}

/* What the daemon does with device 0's page for others. */
proctype others()
{
end:
	do
	/* A client that is new to the chunk is shown the page. */
	:: d_step {
		EVICT || DEATHS || CUT ->
		drop_dead(0);
		if
		:: (HELD(0) || r[0].ahead) && !(WRITTEN(0) && r[0].zeros) -> bring(0, false, false)
		:: else
		fi;
		if
		:: !HELD(0) && !r[0].zeros -> plan(0, false)
		:: else
		fi;
		if
		:: !HELD(0) && !r[0].zeros && (r[0].ahead -> r[0].snapped : !r[0].present || step != STEP_NOTHING) -> zero(0)
		:: else
		fi;
		step = STEP_FETCH;
		finds(0, 0, true);
		finds(0, 1, true)
	   }
	:: d_step { TRIM && r[0].present && WRITTEN(0) && r[0].seen == TWIN && !r[0].ahead -> pull(0) }
	:: d_step {
		EVICT && r[0].mem != ALL(FOREIGN) && !h[0].dead && !h[1].dead && !HELD(0) ->
		fetch();
		forget(0);
		r[0].mem = ALL(FOREIGN)
	   }
	od
}

init {
	atomic {
		file.at[0] = BIT(INITIAL);
		file.at[1] = BIT(INITIAL);
		public.at[0] = BIT(INITIAL);
		public.at[1] = BIT(INITIAL);
		if
		:: room = true
		:: NO_ROOM -> room = false
		fi;
		if
		:: OF3(CLIENTS, 0) > 0 -> run client(0)
		:: else
		fi;
		if
		:: OF3(CLIENTS, 1) > 0 -> run client(1)
		:: else
		fi;
		if
		:: OF3(CLIENTS, 2) > 0 -> run client(2)
		:: else
		fi;
		run cpu();
		run others()
	}
}
