/*
 * protocol.h - what libgaiaclient and the gaiafs daemon say to each other.
 *
 * Not for applications: they use client.h. All integers are in the machine's
 * byte order, since both ends run on one machine; all structs have fixed widths,
 * no implicit padding, and a size that is asserted below. Unused fields are zero,
 * and the daemon refuses (EINVAL) those that are not, except in CONNECT.
 *
 * Two channels:
 *  - ioctls on a descriptor of the file. (CONNECT, DEVICES, and REPORT of the mount's state work on
 *    any descriptor on the mount.) The descriptor proves the right to the file.
 *  - one SOCK_SEQPACKET Unix socket for each client, made by CONNECT, HELLO and WELCOME. It carries
 *    the descriptors of chunks to the client, and is the client's lease: when it
 *    ends, the client's mappings, pins and unreleased writes are gone.
 *
 * Messages of the daemon carry a sequence number, rising by one. The reply to an
 * ioctl that needs messages names the last of them (`seq`): the caller must have
 * handled it before it uses what the reply promises. The message may be older than the ioctl: another
 * thread's ioctl may have caused it.
 *
 * Versions. The protocol's version is major.minor. Ends of different majors do not talk: CONNECT
 * fails with EPROTO, and the daemon logs both versions. Within a major no struct, number or meaning
 * changes; a minor adds messages, fields where zeros were, and feature bits (GAIA_FEATURE_*). A new
 * feature is used only if both ends have its bit; so an end of an older minor, which has fewer bits,
 * is served as its version says. An end ignores bits that it does not know.
 * 1.0 had no minor and no features: both read as zero.
 *
 * No ioctl fails with ENOBUFS, nor does the setxattr(2) by which a release is asked for: libraries of
 * version 1 may repeat the call for as long as they get it. If a user's mappings hold too many separate
 * ranges, ACQUIRE and releases fail with ENOSR, and have changed nothing; the library reports ENOBUFS.
 *
 * CONNECT and MAP fail with EMFILE if the caller's user has reached the limit of clients or mappings
 * for one user, with ENFILE if all users together have reached theirs. A CONNECT counts as a client
 * until its ticket ends; when a user has no room left, another CONNECT ends the oldest of the user's.
 */
#ifndef GAIA_PROTOCOL_H
#define GAIA_PROTOCOL_H

#include <assert.h>
#include <linux/ioctl.h>
#include <stdint.h>

#ifdef __cplusplus
#define GAIA_STATIC_ASSERT static_assert
extern "C" {
#else
#define GAIA_STATIC_ASSERT _Static_assert
#endif

#define GAIA_PROTOCOL_VERSION 1u	/* the major */
#define GAIA_PROTOCOL_MINOR 12u

/*
 * Since 1.1.
 * SPANS: a GRANT says for each descriptor which part of it to map, and how (struct gaia_span).
 * ANSWERS: the client answers each GRANT by GRANTED. What it could not map fails the acquire that
 * needed it, and nothing else. Without ANSWERS a client that cannot map a chunk has to end the connection.
 * TIMES: the answer to a RELEASE (ioctl) says whether the file has changed (gaia_ioc_range.changed). The
 * daemon asks for releases by ioctl where the kernel keeps a file's times and takes none from the
 * daemon. So the client, who may write the file, moves them:
 * fallocate(fd, FALLOC_FL_KEEP_SIZE, GAIA_TOUCH_OFFSET, 1). Linux (6.1 and later) sets the modification
 * and change times before it asks the daemon, which does nothing and answers EFBIG. futimens(2) would
 * not do: only the file's owner may call it.
 *
 * Since 1.2.
 * ADVICE: ADVISE takes GAIA_ADVISE_NORMAL, RANDOM and SEQUENTIAL. (Daemons without it refuse them, EINVAL, and read nothing ahead.)
 *
 * Since 1.3.
 * LISTS: ACQUIREV and RELEASEV, for lists of ranges (struct gaia_ioc_list).
 *
 * Since 1.4.
 * UNUSED: RELEASE and RELEASEV take GAIA_PROT_UNUSED. (Daemons without it refuse that, EINVAL.)
 * OVERWRITE: ACQUIRE and ACQUIREV take GAIA_PROT_WRITE alone, to overwrite. (Daemons without it refuse that, EINVAL.)
 *
 * Since 1.5.
 * DETECT: MAP takes GAIA_MAP_DETECTS, and RELEASEV of such a mapping GAIA_PROT_TOLD. (Daemons without it refuse both, EINVAL.)
 *
 * Since 1.6.
 * PINS: PLACE (struct gaia_ioc_place), and GAIA_REPORT_PINS. (Daemons without it refuse both, ENOTTY and EINVAL.)
 *
 * Since 1.7.
 * HOST: MAP, DEVICES and EVICT take GAIA_HOST for a device's number. (Daemons without it know no such device: ENODEV; DEVICES: no descriptions.)
 *
 * Since 1.8.
 * SETTINGS: SET (struct gaia_ioc_set). (Daemons without it: ENOTTY.)
 *
 * Since 1.9.
 * MOVES: the client goes along when another daemon takes the mount over (MOVE, below). UPGRADE says how long clients are waited for.
 *
 * Since 1.10.
 * LEAVES: UPGRADE may have GAIA_UPGRADE_LEAVE.
 *
 * Since 1.11.
 * PUBLISHES: SYNC may have GAIA_SYNC_PUBLISH. (Daemons without it: EINVAL.)
 *
 * Since 1.12.
 * EXTENTS: a span of a GRANT may be GAIA_EXTENT bytes long. Its descriptor is of the memory of as many neighbouring chunks, the first of
 * which it names, with an index that is a multiple of GAIA_EXTENT_CHUNKS. It is mapped as a whole; so the client's mapping has addresses for
 * all of each extent of the file that its range touches. Chunks of an extent are revoked together: a REVOKE of any of them takes
 * back all, and each is named by one.
 */
#define GAIA_FEATURE_SPANS 1ull
#define GAIA_FEATURE_ANSWERS 2ull
#define GAIA_FEATURE_TIMES 4ull
#define GAIA_FEATURE_ADVICE 8ull
#define GAIA_FEATURE_LISTS 16ull
#define GAIA_FEATURE_UNUSED 32ull
#define GAIA_FEATURE_OVERWRITE 64ull
#define GAIA_FEATURE_DETECT 128ull
#define GAIA_FEATURE_PINS 256ull
#define GAIA_FEATURE_HOST 512ull
#define GAIA_FEATURE_SETTINGS 1024ull
#define GAIA_FEATURE_MOVES 2048ull
#define GAIA_FEATURE_LEAVES 4096ull
#define GAIA_FEATURE_PUBLISHES 8192ull
#define GAIA_FEATURE_EXTENTS 16384ull
/* All of this version. */
#define GAIA_FEATURES                                                                                         \
	(GAIA_FEATURE_SPANS | GAIA_FEATURE_ANSWERS | GAIA_FEATURE_TIMES | GAIA_FEATURE_ADVICE | GAIA_FEATURE_LISTS | \
	 GAIA_FEATURE_UNUSED | GAIA_FEATURE_OVERWRITE | GAIA_FEATURE_DETECT | GAIA_FEATURE_PINS | GAIA_FEATURE_HOST | \
	 GAIA_FEATURE_SETTINGS | GAIA_FEATURE_MOVES | GAIA_FEATURE_LEAVES | GAIA_FEATURE_PUBLISHES | \
	 GAIA_FEATURE_EXTENTS)
/* Of these, what only tools ask for, not what a client's connection uses. */
#define GAIA_FEATURES_OF_TOOLS (GAIA_FEATURE_SETTINGS | GAIA_FEATURE_LEAVES)

#define GAIA_TOUCH_OFFSET (INT64_MAX - 1)

#define GAIA_PAGE 4096u			/* unit of versions and of merging, bytes */
#define GAIA_CHUNK (2u << 20)		/* unit of device memory and of mapping, bytes */
#define GAIA_CHUNK_PAGES (GAIA_CHUNK / GAIA_PAGE)
#define GAIA_EXTENT_CHUNKS 8u
#define GAIA_EXTENT (GAIA_EXTENT_CHUNKS * GAIA_CHUNK) /* bytes of an extent, where device memory comes in such */

/* gaia_ioc_range.prot and gaia_ioc_map.prot; the values of PROT_READ and PROT_WRITE */
#define GAIA_PROT_READ 1u
#define GAIA_PROT_WRITE 2u
/*
 * Flags of an ACQUIRE, with the above. PIN: only make room for the range and hand its chunks over;
 * their contents are undefined. They stay pinned until the mapping ends, or until an ACQUIRE with
 * PINNED has succeeded, one for each PIN. An ACQUIRE with PINNED needs no room and no chunks, and brings
 * no chunk that the PIN did not bring. PINNED alone, without a prot, gives a PIN up. PIN and PINNED name the same range.
 * EAGAIN: more than 4096 PINs of a mapping or 65,536 of a user; EINVAL: a PINNED without a PIN.
 */
#define GAIA_PROT_PIN 4u
#define GAIA_PROT_PINNED 8u
/*
 * With UNUSED, the prot of a RELEASE or RELEASEV of what was acquired and has not been used: the holds are taken away as ever, but pages that
 * are held for writing otherwise as well are not published. So nothing is published of what somebody is working on.
 */
#define GAIA_PROT_UNUSED 16u
/*
 * The prot of a RELEASEV, maybe with UNUSED, whose list is followed by the ranges that the client has found changed since they were acquired
 * (gaia_ioc_list.told). Pages of the list that no such range touches are not published. The daemon takes the client's word only for pages
 * that this mapping alone has held for writing, and whose memory nobody else has changed, since it acquired them; of others it finds out itself.
 */
#define GAIA_PROT_TOLD 32u

/* Names a client in an ioctl. WELCOME gives it. Known to the client only. */
struct gaia_client_key {
	uint64_t id;
	uint64_t secret;
};

/*
 * In: the client's version and features; out: the daemon's. The features that both have are used.
 * Fields that the client does not know are zero, and the daemon ignores what it does not know: so any
 * minor can connect to any other.
 */
struct gaia_ioc_connect {
	uint32_t version;	/* the major; another in: EPROTO. In 0 only asks: no socket, no ticket */
	uint32_t devices;	/* out: number of devices of the mount */
	char socket[48];	/* out: abstract socket name, without the leading NUL, NUL-terminated */
	uint64_t features;	/* GAIA_FEATURE_* */
	uint32_t minor;
	uint32_t reserved;
	uint8_t ticket[16];	/* out: for one HELLO, within GAIA_TICKET_S */
};
/*
 * Seconds for which a ticket is good, and at least for which, unless the ticket is used, the socket's name is the daemon's. The socket is where the caller
 * can reach it: for a caller in another network namespace it is made there, for this ticket alone and for its user; EHOSTUNREACH: it cannot be.
 * Whoever has connected later than that after asking may have reached somebody else, and asks again.
 */
#define GAIA_TICKET_S 10

struct gaia_ioc_device {
	char name[32];		/* NUL-terminated */
	char kind[16];		/* "sim", "cuda" */
	uint8_t uuid[16];
	uint64_t capacity;	/* bytes: the budget */
	uint64_t used;		/* bytes */
	uint32_t simulated;	/* 0 or 1 */
	uint32_t flags;		/* GAIA_DEVICE_*; unknown ones are ignored */
};
/* The client gives the program access to held pages only, and write access only to pages held for writing. */
#define GAIA_DEVICE_STRICT 1u

/*
 * With HOST: the number of the host as a device, for programs on the CPU. It is not one of the devices that are counted; DEVICES with it as
 * the first describes it alone. Its kind is "host", and its chunks are memfds, as those of "sim".
 */
#define GAIA_HOST 0xfffffffdu

#define GAIA_DEVICES_AT_ONCE 64
struct gaia_ioc_devices {
	uint32_t first;		/* in: index of the first wanted, or GAIA_HOST */
	uint32_t total;		/* out: devices of the mount */
	uint32_t count;		/* out: filled in below */
	uint32_t reserved;
	struct gaia_ioc_device device[GAIA_DEVICES_AT_ONCE];
};

struct gaia_ioc_map {
	struct gaia_client_key key;
	uint64_t offset;	/* of the file; multiple of GAIA_PAGE */
	uint64_t length;	/* bytes, > 0; offset + length <= INT64_MAX */
	uint32_t device;	/* index, or GAIA_HOST */
	uint32_t prot;		/* GAIA_PROT_READ, maybe | GAIA_PROT_WRITE */
	uint64_t map;		/* out: names the mapping in ioctls on the same file */
	uint32_t release;	/* out: how the mapping's releases are asked for, GAIA_RELEASE_BY_* */
	uint32_t flags;		/* GAIA_MAP_* */
};
/*
 * With DETECT, of a mapping for writing. The client finds out itself which pages change while it holds them for writing, and says so when it
 * releases them (GAIA_PROT_TOLD): so the device need not remember what they were. Pages that it releases without having said so may count
 * as changed though they are not: then the file's times move, and no byte changes. Of the host it tells which pages were stored to, and the daemon
 * compares these.
 */
#define GAIA_MAP_DETECTS 1u

/*
 * A release invalidates pages that the kernel caches. Where the kernel writes through, it unlocks the page
 * between taking a write(2)'s bytes and sending them: a page that is dropped just then is read again
 * without them, and stays so. But write(2) holds the inode's lock all the time, and so does setxattr(2),
 * also while the daemon works on it. So there a mapping that can write is not released by an ioctl: the
 * gaia_ioc_range is the value of this attribute, set on any descriptor of the file. EALREADY means that the
 * release has been carried out (0 would make the kernel announce a changed attribute); any other error is the release's. EOPNOTSUPP: the
 * mapping's releases are asked for in the other way.
 */
#define GAIA_RELEASE_BY_IOCTL 0u
#define GAIA_RELEASE_BY_XATTR 1u
#define GAIA_XATTR_RELEASE "system.gaiafs.release"

/* ACQUIRE, RELEASE (see GAIA_RELEASE_BY_XATTR), SYNC, ADVISE, UNMAP (which takes only key and map). */
struct gaia_ioc_range {
	struct gaia_client_key key;
	uint64_t map;
	uint64_t offset;	/* of the file, bytes; no alignment asked */
	uint64_t length;	/* bytes */
	uint32_t prot;		/* ACQUIRE: GAIA_PROT_READ, _WRITE (alone: with OVERWRITE), or both; and a flag, or PINNED alone; RELEASE: 0 or GAIA_PROT_UNUSED; SYNC: 0 or GAIA_SYNC_PUBLISH; else 0 */
	union {
		uint32_t advice;	/* ADVISE: GAIA_ADVISE_*; else 0 */
		/*
		 * Out, ACQUIRE, with ANSWERS: 0, unless the daemon gave up waiting for answers to GRANTs: the
		 * first of these is message seq + 1 - unanswered. If the client could not map what that one or
		 * a later one brought, the acquire failed after all, and the connection ends.
		 */
		uint32_t unanswered;
		uint32_t changed; /* out, RELEASE, with TIMES: 1 if something was published, else 0 */
	};
	uint64_t seq;		/* out, ACQUIRE: handle messages up to this first; 0: none */
};

/* With PUBLISHES: store it where others see it, other nodes, too, without waiting for the disk. */
#define GAIA_SYNC_PUBLISH 1u

/* NORMAL, RANDOM, SEQUENTIAL: since 1.2, with ADVICE. EAGAIN: too many ranges of the mapping have advice of their own. */
#define GAIA_ADVISE_NORMAL 0u
#define GAIA_ADVISE_RANDOM 1u
#define GAIA_ADVISE_SEQUENTIAL 2u
#define GAIA_ADVISE_WILLNEED 3u	/* since 1.2 it is only noted: the daemon copies in the background */
#define GAIA_ADVISE_DONTNEED 4u

/*
 * With LISTS. An ioctl carries less than 16 KiB, and so lists lie in memory that client and daemon share: a memfd of GAIA_LISTS_BYTES,
 * of a size that neither can change. LISTS has the daemon make it, once for each client, and send its descriptor in a message
 * (MSG_LISTS; sent again if it is asked for again, a few times; EAGAIN as REPORT). It is the daemon that makes it: so the daemon reads and closes no
 * descriptor of a client's, which could be of anything. EMFILE, ENFILE: this user's, or all, clients have too many such memories; EMFILE: it was sent too often.
 *
 * The client writes an array of struct gaia_list_range there, and names its place. The daemon copies the array before it looks at it;
 * it must stay until the ioctl has returned. A page that k ranges touch gets, or loses, k holds. Sorted ranges cost less.
 * EINVAL: the array does not lie in that memory, a range does not lie in the mapping. ENOSR (the library reports ENOBUFS) and nothing has
 * changed: as ACQUIRE and RELEASE; or this user's lists that are under way have too many ranges. E2BIG: this one alone has, and nothing has
 * changed.
 */
#define GAIA_LISTS_BYTES (64u << 20)
#define GAIA_LIST_MOST (1u << 20) /* ranges */
struct gaia_ioc_lists {
	struct gaia_client_key key;
	uint64_t seq;		/* out: of the message that brings the descriptor */
};

/* One range of a list. */
struct gaia_list_range {
	uint64_t offset;	/* of the file, bytes; no alignment asked */
	uint64_t length;	/* bytes; 0: nothing */
};

/* ACQUIREV, RELEASEV: as ACQUIRE and RELEASE of all ranges of the list, at once. There are no PINs of lists. */
struct gaia_ioc_list {
	struct gaia_client_key key;
	uint64_t map;
	uint64_t offset;	/* of the first range in the memory for lists, bytes; a multiple of 8 */
	uint32_t count;		/* ranges */
	uint32_t prot;		/* ACQUIREV; RELEASEV: GAIA_PROT_UNUSED, GAIA_PROT_TOLD */
	union {
		uint32_t unanswered;	/* out, ACQUIREV: as in gaia_ioc_range */
		uint32_t changed;	/* out, RELEASEV: the same */
	};
	uint32_t told;		/* RELEASEV with GAIA_PROT_TOLD: so many ranges follow those of the list; each lies in what the list covers, else EINVAL. Else 0 */
	uint64_t seq;		/* out, ACQUIREV: the same */
};
/* As GAIA_XATTR_RELEASE, where that is used: its value is a gaia_ioc_list. */
#define GAIA_XATTR_RELEASEV "system.gaiafs.releasev"

/*
 * FLUSH: store the file's dirty home pages, and, with GAIA_FLUSH_DEVICES (EINVAL from older daemons), what devices have released.
 * EVICT: drop a memory's copy of a range, as pressure would; EBUSY when it is pinned. Both on a descriptor of the file.
 */
#define GAIA_FLUSH_DEVICES 1u
#define GAIA_FROM_HOME 0xffffffffu
#define GAIA_FROM_DEVICE_CACHE 0xfffffffeu /* pages that left home, on any device (gaiafs --device ...,cache=); ENODEV from older daemons */
struct gaia_ioc_file {
	uint64_t offset;
	uint64_t length;	/* 0: to the end of the file */
	uint32_t from;		/* EVICT: GAIA_FROM_HOME, GAIA_FROM_DEVICE_CACHE, a device's index or GAIA_HOST; FLUSH: 0 or GAIA_FLUSH_DEVICES */
	uint32_t reserved;
};

/*
 * PLACE, with PINS: where a file's contents are to be. On a descriptor of the file that allows reading; needs no client.
 *
 * PIN: the file, as long as it is now, has memory on the device from now on, and nothing but UNPIN and the file's end takes it. EPERM: this user may pin nothing;
 * ENOSPC: all pinned files together would have more than the device's share for them, EDQUOT: those of the user more than a user's;
 * ENOMEM: what programs hold there leaves no room. Then nothing has changed. The pin is the user's, and stays when the caller ends. It
 * brings no contents: that is FILL, which needs room for nothing then.
 * FILL: bring the range there, of a file that is pinned, or to a device with room. WARM: the same beside all that is in use, else
 * ENOMEM; with GAIA_FROM_HOME into free home memory, and `bytes` may be less than asked. EOPNOTSUPP: home has nothing of the file, since the kernel
 * serves it itself. A signal ends both: EINTR.
 * UNPIN: the user's pin ends; for root and the daemon's user, all pins of the file on the device. ENOENT: there is none.
 * LOOK: only answers.
 */
#define GAIA_PLACE_LOOK 0u
#define GAIA_PLACE_PIN 1u
#define GAIA_PLACE_UNPIN 2u
#define GAIA_PLACE_FILL 3u
#define GAIA_PLACE_WARM 4u
#define GAIA_PLACE_MINE 4u  /* in, UNPIN: only the caller's own pin, also if the caller might end others' */
#define GAIA_PLACE_FRESH 1u /* out, PIN: the user had not pinned the file there before */
/*
 * Out: the kernel serves the file itself, as long as programs have it open that opened it so. What a device has of it is good only for as
 * long as home has it, too; after PIN, FILL or WARM to a device the next open that nobody has beside ends that.
 */
#define GAIA_PLACE_PASSED 2u
struct gaia_ioc_place {
	uint64_t offset;	/* FILL, WARM; else 0 */
	uint64_t length;	/* the same; bytes, not 0 */
	uint32_t device;	/* index; WARM, LOOK: also GAIA_FROM_HOME */
	uint32_t what;		/* GAIA_PLACE_* */
	uint32_t flags;		/* in: 0, or GAIA_PLACE_MINE; out: GAIA_PLACE_FRESH, GAIA_PLACE_PASSED */
	uint32_t reserved;
	uint64_t bytes;		/* out: FILL, WARM: brought, or there already; else: of the device's memory that are pinned for the file, by anybody */
	uint64_t room;		/* out: bytes that WARM finds free or in no use */
};

/*
 * SET, with SETTINGS: change options of the daemon, or have it read its configuration file again, on any descriptor on the mount. EPERM: the
 * caller is neither root, with root's powers where the daemon runs, nor the daemon's user. Otherwise the ioctl succeeds, and `error` says
 * what came of it: 0; EINVAL; EOPNOTSUPP: not while it is mounted; EBUSY: the file is being read already. All of it is done or nothing.
 */
struct gaia_ioc_set {
	uint32_t length;	/* in: bytes of `text`; 0: read the file */
	uint32_t error;		/* out: 0 or an errno; in: 0 */
	char text[4088];	/* in: words "NAME=VALUE", each with a NUL; out: lines for the user, NUL-terminated */
};

/*
 * Ask for a text (JSON), which comes as a sealed memfd in a message MSG_REPORT. EAGAIN: the client's socket has
 * no room for it just now, or others are sending; the daemon does not wait. read(2) the memfd at once: after a
 * minute, or when the user has asked for many more, the daemon truncates it to nothing (a mapping of it would get SIGBUS).
 */
#define GAIA_REPORT_STATUS 1u		/* of the mount */
#define GAIA_REPORT_RESIDENCY 2u	/* of the descriptor's file */
/*
 * Store and sync everything that the daemon has of the mount's files, released by devices or written by CPUs, and list the
 * files for which that failed: {"files": [{"path", "bytes", "error"}]}. Slow. EPERM: the caller is neither root nor the daemon's user.
 */
#define GAIA_REPORT_SYNC 3u
/*
 * Not a text, but a memfd of GAIA_END_BYTES with a struct gaia_end, which the daemon keeps up to date until its last moment.
 * Whoever unmounts maps it (PROT_READ, MAP_SHARED) and reads it until the daemon's process has ended, and once more then.
 * EPERM: as for SYNC.
 */
#define GAIA_REPORT_END 4u
#define GAIA_END_BYTES 65536u
/* With PINS. The files that are pinned to devices: for root and the daemon's user all, for others their own. */
#define GAIA_REPORT_PINS 5u
struct gaia_end {
	uint64_t unstored;	/* bytes that storage lacks; up to half a second old when nothing is being stored */
	uint32_t ending;	/* 1: the daemon has begun to end, and stores what is left */
	uint32_t length;	/* of `text`, set last. 0: the daemon has not ended, or was killed */
	char text[];		/* JSON like SYNC's, NUL-terminated: what is lost */
};
/*
 * Accesses to the mount's files since the last call, which begins to record them; it ends when nobody calls for five seconds. Not
 * JSON: lines, which gaia(1) describes ("TRACES"). EPERM: as for SYNC. EBUSY: another process is taking them.
 */
#define GAIA_REPORT_TRACE 6u
/* Which files take the memory, and what is moved for each: as the others JSON. Looks at each chunk that is cached. EPERM: as for SYNC. (Older daemons: EINVAL.) */
#define GAIA_REPORT_USE 7u
struct gaia_ioc_report {
	struct gaia_client_key key;
	uint32_t what;
	uint32_t reserved;
	uint64_t seq;		/* out: of the message that carries it */
};

#define GAIA_IOC_MAGIC 'g'
#define GAIA_IOC_CONNECT _IOWR(GAIA_IOC_MAGIC, 1, struct gaia_ioc_connect)
#define GAIA_IOC_DEVICES _IOWR(GAIA_IOC_MAGIC, 2, struct gaia_ioc_devices)
#define GAIA_IOC_MAP _IOWR(GAIA_IOC_MAGIC, 3, struct gaia_ioc_map)
#define GAIA_IOC_UNMAP _IOWR(GAIA_IOC_MAGIC, 4, struct gaia_ioc_range)
#define GAIA_IOC_ACQUIRE _IOWR(GAIA_IOC_MAGIC, 5, struct gaia_ioc_range)
#define GAIA_IOC_RELEASE _IOWR(GAIA_IOC_MAGIC, 6, struct gaia_ioc_range)
#define GAIA_IOC_SYNC _IOWR(GAIA_IOC_MAGIC, 7, struct gaia_ioc_range)
#define GAIA_IOC_ADVISE _IOWR(GAIA_IOC_MAGIC, 8, struct gaia_ioc_range)
/* EPERM: the descriptor does not allow writing, and the caller is neither root nor the daemon's user. */
#define GAIA_IOC_FLUSH _IOWR(GAIA_IOC_MAGIC, 9, struct gaia_ioc_file)
#define GAIA_IOC_EVICT _IOWR(GAIA_IOC_MAGIC, 10, struct gaia_ioc_file)
#define GAIA_IOC_REPORT _IOWR(GAIA_IOC_MAGIC, 11, struct gaia_ioc_report)
#define GAIA_IOC_LISTS _IOWR(GAIA_IOC_MAGIC, 13, struct gaia_ioc_lists)
#define GAIA_IOC_ACQUIREV _IOWR(GAIA_IOC_MAGIC, 14, struct gaia_ioc_list)
#define GAIA_IOC_RELEASEV _IOWR(GAIA_IOC_MAGIC, 15, struct gaia_ioc_list)
#define GAIA_IOC_PLACE _IOWR(GAIA_IOC_MAGIC, 16, struct gaia_ioc_place)
#define GAIA_IOC_SET _IOWR(GAIA_IOC_MAGIC, 17, struct gaia_ioc_set)

enum gaia_msg_kind {
	GAIA_MSG_HELLO = 1,	/* client: ticket. Anything else first: disconnected */
	GAIA_MSG_WELCOME = 2,	/* daemon: key */
	GAIA_MSG_GRANT = 3,	/* daemon: chunks of a mapping; one descriptor for each, in order */
	GAIA_MSG_REVOKE = 4,	/* daemon: unmap these chunks of a mapping and say so */
	GAIA_MSG_REVOKED = 5,	/* client: the answer; repeats the seq of the REVOKE */
	GAIA_MSG_REPORT = 6,	/* daemon: one descriptor, a memfd with what was asked for */
	GAIA_MSG_GRANTED = 7,	/* client, with ANSWERS: the answer to a GRANT; repeats its seq and map */
	GAIA_MSG_LISTS = 9,	/* daemon, with LISTS: one descriptor, the client's memory for lists; not answered */
	GAIA_MSG_UPGRADE = 10,	/* in place of HELLO: ticket, count 1: even if clients lose by it. See below */
	GAIA_MSG_UPGRADED = 11,	/* daemon: the answer */
	GAIA_MSG_MOVE = 12,	/* daemon, with MOVES: the mount may go to another daemon soon. Answered by READY; see below */
	GAIA_MSG_READY = 13,	/* client: the answer; repeats the seq of the MOVE */
	GAIA_MSG_STAY = 14,	/* daemon: it does not, for now; not answered */
	GAIA_MSG_MOVED = 15,	/* daemon: it has gone; not answered */
};

#define GAIA_MSG_CHUNKS 64

/*
 * Every message is one packet of exactly this struct, in both directions; with SPANS a GRANT has
 * `count` structs gaia_span behind it. A client answers in the order in which it was asked.
 *
 * GRANTED with `error` 0: all of the GRANT's chunks are mapped. Otherwise `error` is an errno, none of them is mapped, and
 * their descriptors are closed. The ACQUIRE that caused the GRANT fails with that error (with EIO for errors that an acquire
 * does not return), having acquired nothing, and the chunks are handed over again when they are next needed. The daemon still
 * revokes them before it uses their memory for anything else. It waits a second for the answer, and not at all while the client
 * owes an earlier one. Then ACQUIRE succeeds, as without ANSWERS, and says so (gaia_ioc_range.unanswered); if the answer turns
 * out to be an error, the connection ends.
 */
/*
 * UPGRADE asks the daemon to hand the mount over to the program that the sender runs (gaiafs --upgrade). Only an owner of the mount
 * may: root, or the user whose daemon it is. The daemon answers with UPGRADED, and nothing else follows: `error` 0 when the new daemon
 * serves, else an errno, and the mount is as before. chunk[] has a text then, with a NUL, that says why. A daemon that does not know the
 * message disconnects. `map`, if the daemon has MOVES: so many milliseconds it waits until its clients are ready. `count` has GAIA_UPGRADE_*.
 */
#define GAIA_UPGRADE_FORCE 1u /* also if mappings of devices end by it */
#define GAIA_UPGRADE_LEAVE 2u /* the service manager is not told that the new daemon is the unit's main process now */
#define GAIA_UPGRADE_ADOPT 4u /* nothing is upgraded: the service manager is going to be told of a daemon that was left so. EBUSY: it was not */
/*
 * MOVE tells a client that maps something that the mount may go to another daemon (UPGRADE). The client answers at once. READY without an
 * error: until it hears more it asks for no MAP, and for acquires only as far as it must to come to its releases. READY with an error: it
 * cannot come along. Then follow, with the daemon's other messages before and between, STAY, after which all is as before and another MOVE may
 * come; or MOVED; or the end of the connection, which means what it always means. MOVED comes only to a client that was READY and holds nothing by
 * any mapping, nor has announced anything (PIN), and it is the last message: another daemon serves the mount. The client gives up all memory that it
 * maps, becomes a client of the other (CONNECT works on the descriptors that it has), and maps its files again. Ioctls with the old key fail
 * with ENOTCONN from the moment when the other daemon serves, which may be before MOVED arrives; they have done nothing.
 */
struct gaia_msg {
	uint32_t kind;		/* enum gaia_msg_kind */
	uint32_t version;	/* GAIA_PROTOCOL_VERSION */
	uint64_t seq;		/* of the daemon's messages; REVOKED, GRANTED, READY: the one answered */
	struct gaia_client_key key;	/* WELCOME */
	uint8_t ticket[16];	/* HELLO, UPGRADE */
	uint64_t map;		/* GRANT, GRANTED, REVOKE, REVOKED; UPGRADE: milliseconds */
	union {
		uint32_t prot;	/* GRANT: how the descriptors may be mapped */
		uint32_t error;	/* GRANTED, UPGRADED, READY: 0 or an errno */
	};
	uint32_t count;		/* GRANT, REVOKE: chunks below; REPORT, LISTS: 1 */
	uint64_t chunk[GAIA_MSG_CHUNKS]; /* index in the file: offset / GAIA_CHUNK */
};

/*
 * Which part of a GRANT's nth descriptor to map at its nth chunk. Until a feature bit says otherwise the offset is 0, the length
 * GAIA_CHUNK (with EXTENTS: or GAIA_EXTENT), and no flag is set; a client refuses anything else (GRANTED with EPROTO). Flags are of two kinds: a client
 * refuses an unknown flag of GAIA_SPAN_MUST, and ignores any other unknown one.
 */
struct gaia_span {
	uint64_t offset;	/* in the descriptor, bytes */
	uint64_t length;	/* bytes */
	uint32_t flags;
	uint32_t reserved;	/* 0; ignored */
};
#define GAIA_SPAN_MUST 0x0000ffffu

GAIA_STATIC_ASSERT(sizeof(struct gaia_client_key) == 16, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_connect) == 88, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_device) == 88, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_devices) == 16 + 64 * 88, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_map) == 56, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_range) == 56, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_lists) == 24, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_list) == 56, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_list_range) == 16, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_file) == 24, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_place) == 48, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_set) == 4096, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_ioc_report) == 32, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_end) == 16, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_msg) == 64 + 8 * GAIA_MSG_CHUNKS, "layout");
GAIA_STATIC_ASSERT(sizeof(struct gaia_span) == 24, "layout");

#ifdef __cplusplus
}
#endif
#endif
