/*
 * overwrite_oracle.pml - what programs may rely on in overwrite.pml, as asserts. Numbers in brackets are those of the contract's promises.
 *
 * A byte's value says who wrote it. Of each byte is known what the file may have now; of each device, what its memory has that was not
 * released, and whether that must be published. Unlike in oracle.pml it is known how races end: a release wins over CPU programs, and an
 * overwriter's over all that was written since its acquire. Only of releases by two devices at the same time either may win; and not if what
 * one of them stored came after an acquire that saw the other.
 *
 * Left open, as the daemon's README says: what an overwriter stores as it was, in a page that was current, once others' bytes were brought.
 */

/* What a device's memory has and did not release: it may get lost; it belongs to an overwriter; a client stored it. */
mtype = { NONE, MAY, WHOLE, STORED };
typedef claims { mtype at[2] = NONE };
claims claim[2];
bool overwrites[3];	/* from the end of its acquire until all was published, or others' bytes were brought */
typedef values { byte at[2] };
values file;		/* what byte b may be now: more than one value where it is not known yet how a race ends */
values rival[2];	/* what another device released while this one may have been writing */
values before[2];	/* of these, what was released before the device's last acquire */
values public;		/* what ever was the file's */

#define DECIDE(b, v) assert(file.at[b] & BIT(v)); file.at[b] = BIT(v)

inline now_is(b, v)
{
	file.at[b] = BIT(v);
	public.at[b] = public.at[b] | BIT(v);
	rival[0].at[b] = 0;
	rival[1].at[b] = 0;
	before[0].at[b] = 0;
	before[1].at[b] = 0
}

/* [3], [5], [6], [15]: a release publishes a byte, or may. */
inline published(d, b, must)
{
	file.at[b] = BIT(BYTE(r[d].mem, b)) | rival[d].at[b] | (must -> 0 : file.at[b]);
	public.at[b] = public.at[b] | BIT(BYTE(r[d].mem, b));
	rival[1 - d].at[b] = rival[1 - d].at[b] | BIT(BYTE(r[d].mem, b));
	before[1 - d].at[b] = before[1 - d].at[b] & ~BIT(BYTE(r[d].mem, b))
}

/* [4]: what the device stores does not race with what its last acquire saw. */
inline comes_after(d, b)
{
	rival[d].at[b] = rival[d].at[b] & ~before[d].at[b];
	before[d].at[b] = 0
}

/* Client @c releases what it held for writing; @others of its device are overwriting the page as well. */
inline spec_release(c, d, b, others)
{
	if
	:: claim[d].at[b] == NONE
	:: claim[d].at[b] == STORED || (claim[d].at[b] == WHOLE && overwrites[c]) -> published(d, b, true)
	:: else -> published(d, b, false)
	fi;
	claim[d].at[b] = (overwrites[c] || !(others) -> NONE : (claim[d].at[b] == STORED -> WHOLE : claim[d].at[b]))
}

/* [7]: it dies: what it stored is nobody's, unless another client goes on writing the page. */
inline spec_death(d, b, written, others)
{
	claim[d].at[b] = (!(written) || claim[d].at[b] == NONE -> NONE : ((others) && claim[d].at[b] != MAY -> WHOLE : MAY))
}

/* Its acquire has failed: what dead ones stored is nobody's any more. */
inline spec_undo(d, written)
{
	claim[d].at[0] = ((written) -> claim[d].at[0] : NONE);
	claim[d].at[1] = ((written) -> claim[d].at[1] : NONE)
}

/* [13]: what a client finds that acquires the page, or is shown it. */
inline finds(d, b, zeros)
{
	if
	:: claim[d].at[b] != NONE
	:: claim[d].at[b] == NONE && zeros -> assert(BYTE(r[d].mem, b) == ZERO || (file.at[b] & BIT(BYTE(r[d].mem, b))))
	:: else -> DECIDE(b, BYTE(r[d].mem, b))
	fi
}
