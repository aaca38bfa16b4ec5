/*
 * quota.h - limits to what each user may take of what all users share.
 *
 * A mount of root's is open to every local user. Things that a user could use up are counted here, by uid.
 * Each user has a limit, and all users together leave a reserve to the owners of the mount: root, and the
 * user whose daemon it is. The owners have no limit but the total.
 *
 * The caller takes a thing before it exists and gives it back when it is gone, with the same uid.
 * Thread-safe; a leaf: nothing is called with its lock held.
 *
 * A user who owns many uids (subordinate ids of a user namespace) counts as many users: against such a
 * user the reserve protects the owners, but not other users.
 */
#ifndef GAIA_BASE_QUOTA_H
#define GAIA_BASE_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Name, and the limits: of all, of all users but the owners, of one user. mappings: at most 65,535 mappings of one file
 * may exist (CACHE_MAX_MAPPINGS). All users together may have fewer, so that there is room for the owners in every file.
 * directories: see quota_cap(). pins: announced acquires (GAIA_PROT_PIN). Spans of pages that a mapping holds beyond 64
 * are counted in blocks (pagecache/grant.c), some 5 KiB each. waiting_kib: requests of the kernel that wait for their turn
 * (fuse/hand.c). namespaces: sockets in other network namespaces (control/netns.c), a descriptor each. reports: those that can still be read (control/report.c). removed_files: files without a name that are in
 * use, counted for the user who removed the name. shared_files: open files of a shared source (fuse/shared.c), a descriptor each, and
 * lock_owners: who has record locks in them, one more each; lock_waits: calls that wait for a lock, a thread each. lists: clients that have memory for lists of ranges (control/list.c), a descriptor
 * each; listed_kib: what lists that are under way take of the daemon's memory.
 */
#define QUOTAS(X)                              \
	X(clients, 4096, 3584, 1024)           \
	X(tickets, 16384, 14336, 64)           \
	X(namespaces, 1024, 896, 16)           \
	X(mappings, 1048576, 57344, 16384)     \
	X(pins, 1048576, 917504, 65536)        \
	X(span_blocks, 65536, 57344, 8192)     \
	X(reports, 256, 224, 16)               \
	X(lists, 4096, 3584, 1024)             \
	X(listed_kib, 393216, 262144, 98304)   \
	X(removed_files, 1048576, 458752, 131072) \
	X(directories, 1048576, 917504, 458752) \
	X(shared_files, 1048576, 917504, 229376) \
	X(lock_owners, 1048576, 917504, 131072) \
	X(lock_waits, 256, 224, 64)            \
	X(waiting_kib, 262144, 229376, 65536)

enum quota_of {
#define X(name, all, users, each) QUOTA_##name,
	QUOTAS(X)
#undef X
	QUOTA_COUNT
};

struct quota;

/* The part that users may not have is for root and @owner. */
struct quota *quota_create(uid_t owner);
/* Call it when everything has been given back. */
void quota_destroy(struct quota *q);

/*
 * Lower all three limits in proportion, since there can be only @all of them (descriptors, say). Call it before anything
 * is taken.
 */
void quota_cap(struct quota *q, enum quota_of what, unsigned all);
/* Set the limit of each user; it does not exceed that of all users together. */
void quota_set_each(struct quota *q, enum quota_of what, unsigned each);

bool quota_is_owner(const struct quota *q, uid_t uid);

/*
 * 0; -EMFILE: the user has reached the limit of one user; -ENFILE: all users together have reached theirs. (open(2)
 * uses these two errnos in the same way.) Logs it, at most once a minute.
 */
int quota_take(struct quota *q, enum quota_of what, uid_t uid);
/* What quota_take() would return; takes and logs nothing. */
int quota_look(struct quota *q, enum quota_of what, uid_t uid);
void quota_give(struct quota *q, enum quota_of what, uid_t uid);
/* As quota_take(), for @n at once: all or none. */
int quota_take_many(struct quota *q, enum quota_of what, uid_t uid, unsigned n);
void quota_give_many(struct quota *q, enum quota_of what, uid_t uid, unsigned n);

/* ---- looking at it ---- */

const char *quota_name(enum quota_of what);

struct quota_use {
	unsigned used, all, users, each;
};
struct quota_use quota_use(struct quota *q, enum quota_of what);

struct quota_user {
	uid_t uid;
	unsigned used[QUOTA_COUNT];
};
/* The users who have something, sorted by uid; to be freed by the caller. NULL if nobody has. */
struct quota_user *quota_users(struct quota *q, size_t *n);

/* Whether --user-limit can set it. */
bool quota_is_option(enum quota_of what);
/* By its name in --user-limit ("clients", ...); QUOTA_COUNT: there is none of that name. */
enum quota_of quota_named(const char *name, size_t len);

#endif
