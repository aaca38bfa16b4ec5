/*
 * nodes_oracle.pml - what programs of two nodes may rely on, as asserts (WHAT HOLDS BETWEEN NODES in gaiafs-nodes(7)).
 *
 * A byte's value says who wrote it; each writer stores each byte once. A set of values is a bit each. A store is after all that its
 * writer knew of when it opened the file, got its lock or acquired, and after all that was done on its node by then; it is before all
 * that others do when they have opened, locked or acquired once it was published: closed, unlocked, or synced after a release. A store
 * that is before another one is over as soon as that is published: it must not be seen after that, by whatever put or page. Of stores
 * of which neither is before the other any may win.
 */
#define BIT(n) (1 << (n))

byte public[2];		/* may be relied on by all */
byte over[2];

/* What was done on a node is before all that follows there, published or not. */
typedef node_values {
	byte done[2], over[2];
};
node_values here[2];

/* Of a program, or a device's client: what it knows of; what it must not see; what it has not published, and what is over with that. */
#define PARTY byte knows[2], bad[2], mine[2], past[2]

/* An open, a lock that is granted, an acquire. */
inline begins(n)
{
	knows[0] = public[0] | here[n].done[0];
	knows[1] = public[1] | here[n].done[1];
	bad[0] = over[0] | here[n].over[0];
	bad[1] = over[1] | here[n].over[1]
}

inline begins_read(n)
{
	bad[0] = bad[0] | here[n].over[0];
	bad[1] = bad[1] | here[n].over[1]
}

inline sees(b, value)
{
	assert(!(BIT(value) & bad[b]))
}

/* It is not asked before it begins again. */
inline forgets()
{
	knows[0] = 0;
	knows[1] = 0;
	bad[0] = 0;
	bad[1] = 0
}

/* By a device: on its node it is seen once it is released. */
inline stores(b, value)
{
	mine[b] = mine[b] | BIT(value);
	past[b] = past[b] | knows[b]
}

inline now_here(n)
{
	here[n].done[0] = here[n].done[0] | mine[0];
	here[n].done[1] = here[n].done[1] | mine[1];
	here[n].over[0] = here[n].over[0] | past[0];
	here[n].over[1] = here[n].over[1] | past[1]
}

/* By a CPU program. */
inline stored(n, b, value)
{
	mine[b] = mine[b] | BIT(value);
	past[b] = past[b] | knows[b] | here[n].done[b];
	now_here(n)
}

/* What a device stored, and did not release, where the file has ended since. */
inline withdraw(b)
{
	mine[b] = 0;
	past[b] = 0
}

inline publish()
{
	public[0] = public[0] | mine[0];
	public[1] = public[1] | mine[1];
	over[0] = over[0] | past[0];
	over[1] = over[1] | past[1];
	mine[0] = 0;
	mine[1] = 0;
	past[0] = 0;
	past[1] = 0
}
