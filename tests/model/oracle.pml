/*
 * oracle.pml - what programs may rely on, as asserts.
 *
 * Numbers in brackets are those of the contract's promises ("What a program may rely on").
 *
 * Each write of a byte has a value of its own, so a byte says which write it shows; a set of writes is a
 * bit each. An owner (0: the CPU processes, all of them; d + 1: the client of device d) has a view of each byte:
 *
 *	knows		the writes that happened before what it does now, as far as they are the last ones
 *	over		those that it knows to be overwritten, or to have lost a race that somebody saw decided
 *	unreleased	its own that nobody else may see
 *
 * "Before" is in real time between calls: a CPU's write is before an acquire that is called after it returned, and a
 * release is before whatever begins after it has returned. What is seen must be public, or the
 * viewer's own, and not over. Writes that neither view has over may both be seen: they race.
 */
typedef view {
	byte knows[2], over[2], unreleased[2], released[2]
};
view view_of[3];
byte public[2];		/* may be seen by all */
byte issued[2];		/* all there are (kept for CUT only) */
byte synced_over[2];	/* a sync that returned promises that storage has none of these */

/* [12]: acquires of client or thread c that have returned, less its releases; and whether its program may store until the last of them. */
typedef program {
	unsigned holds : 2;
	bool writes;
};
program has[2];
#if THREADS
#define HAS_ANY(c) (has[0].holds + has[1].holds > 0)
#define MAY_STORE(c) (has[c].holds > 0 && (has[0].writes || has[1].writes))
#else
#define HAS_ANY(c) (has[c].holds > 0)
#define MAY_STORE(c) (has[c].writes)
#endif

inline hold_begins(c, write)
{
	has[c].holds++;
	has[c].writes = has[c].writes || (write)
}

/* Threads: the strongest access of all stays until the last hold is gone. */
inline hold_ends(c)
{
	has[c].holds--;
	if
	:: !HAS_ANY(c) ->
		has[0].writes = (THREADS -> false : has[0].writes);
		has[1].writes = (THREADS -> false : has[1].writes);
		has[c].writes = false
	:: else
	fi
}

#define BIT(n) (1 << (n))

/* What was not released and @owner may see. */
#if SHARED
#define UNRELEASED(owner, b) ((owner) == 0 -> 0 : (view_of[1].unreleased[b] | view_of[2].unreleased[b]))
#else
#define UNRELEASED(owner, b) (view_of[owner].unreleased[b])
#endif

inline oracle_start()
{
	view_of[0].knows[0] = BIT(INITIAL);
	view_of[0].knows[1] = BIT(INITIAL);
	public[0] = BIT(INITIAL);
	public[1] = BIT(INITIAL)
}

/* @owner writes byte @b. */
inline wrote(owner, b, v)
{
	view_of[owner].over[b] = (view_of[owner].over[b] | view_of[owner].knows[b]) & ~BIT(v);
	view_of[owner].knows[b] = BIT(v);
	if
	:: owner == 0 -> public[b] = public[b] | BIT(v)
	:: else -> view_of[owner].unreleased[b] = view_of[owner].unreleased[b] | BIT(v)
	fi;
	issued[b] = issued[b] | (CUT -> BIT(v) : 0)
}

/* [2] to [7], [9]: @owner reads @v in byte @b. An owner that saw a race decided must not see it decided otherwise later. */
inline sees(owner, b, v)
{
	assert((public[b] | UNRELEASED(owner, b)) & BIT(v));
	assert(!(view_of[owner].over[b] & BIT(v)));
	view_of[owner].over[b] = view_of[owner].over[b] | (view_of[owner].knows[b] & ~BIT(v));
	view_of[owner].knows[b] = BIT(v)
}

/* [2], [4]: gaia_acquire() is called: it promises what has happened until now. */
inline learns(owner, b)
{
	view_of[owner].over[b] = view_of[owner].over[b] | view_of[0].over[b];
	view_of[owner].knows[b] = (view_of[owner].knows[b] | view_of[0].knows[b]) & ~view_of[owner].over[b]
}

/* A release begins to publish; of clients that share a replica, what the other has stored as well. */
inline publishes(owner, b)
{
	public[b] = public[b] | UNRELEASED(owner, b);
	view_of[owner].released[b] = view_of[owner].unreleased[b];
	view_of[owner].unreleased[b] = 0
}

inline forgets(owner, b)
{
	view_of[owner].knows[b] = 0;
	view_of[owner].over[b] = 0;
	view_of[owner].released[b] = 0;
	view_of[owner].unreleased[b] = 0
}

/* [3], [4]: gaia_release() has returned. What the client only saw is not its to promise. It is forgotten with the last hold. */
inline teaches(owner, b)
{
	if
	:: view_of[owner].released[b] != 0 ->
		view_of[0].over[b] = view_of[0].over[b] | view_of[owner].over[b];
		view_of[0].knows[b] = (view_of[0].knows[b] | view_of[owner].released[b]) & ~view_of[0].over[b]
	:: else
	fi;
	if
	:: has[owner - 1].holds == 0 -> forgets(owner, b)
	:: else -> view_of[owner].released[b] = 0
	fi
}

/*
 * [7], [8]: the store has @v. Checked with each byte that is stored, and when a sync returns, so it holds
 * whenever the daemon is killed: a crash needs no step of its own.
 */
inline stored(b, v)
{
	assert(public[b] & BIT(v));
	assert(!(synced_over[b] & BIT(v)))
}

/* [9]: a truncate has returned which began when the writes in @before were there; @b was beyond the end. */
inline cut_off(b, before)
{
	view_of[0].over[b] = (view_of[0].over[b] | before | BIT(INITIAL)) & ~BIT(ZERO);
	view_of[0].knows[b] = (view_of[0].knows[b] & ~view_of[0].over[b]) | BIT(ZERO)
}

/* [9]: what a client wrote beyond the end is dropped when it releases: zero again. */
inline drops(owner, b)
{
	view_of[owner].knows[b] = (view_of[owner].knows[b] & ~view_of[owner].unreleased[b]) | BIT(ZERO);
	view_of[owner].over[b] = (view_of[owner].over[b] | view_of[owner].unreleased[b]) & ~BIT(ZERO);
	view_of[owner].unreleased[b] = 0
}
