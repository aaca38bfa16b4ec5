/*
 * quota.h - how much each user may take of what all share.
 *
 * A mount of root's is open to every local user. What one of them can use up is counted here, by
 * uid. Each has a limit of its own, and all users together leave a reserve to the owners of the mount: root, and
 * the user whose daemon it is. Their own limit is what there is.
 *
 * Who counts something takes it before it exists and gives it back when it is gone, with the uid it was taken
 * with. Thread-safe; a leaf: nothing is called with its lock held.
 *
 * One who owns many uids (subordinate ids of a user namespace) is as many users here: the reserve
 * keeps such a one from the owners, not from other users.
 */
#ifndef GAIA_BASE_QUOTA_H
#define GAIA_BASE_QUOTA_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/*
 * Name, and how many there may be: of all, of all users but the owners, of one user. At most 65,535 mappings of
 * one file may exist (CACHE_MAX_MAPPINGS): fewer than that for all users together, so that there
 * is room for the owners in every file. Directories: see quota_cap(). Pins are acquires to come (GAIA_PROT_PIN). What a mapping
 * holds beyond 64 spans of pages is counted in blocks of so many (pagecache/grant.c), some 5 KiB each. waiting_kib: of
 * requests of the kernel that wait for their turn (fuse/hand.c). Reports: those that can
 * still be read (control/report.c). Removed files: which have no name, and are in use; by who took the name.
 */
#define QUOTAS(X)                              \
	X(clients, 4096, 3584, 1024)           \
	X(tickets, 16384, 14336, 64)           \
	X(mappings, 1048576, 57344, 16384)     \
	X(pins, 1048576, 917504, 65536)        \
	X(span_blocks, 65536, 57344, 8192)     \
	X(reports, 256, 224, 16)               \
	X(removed_files, 1048576, 458752, 131072) \
	X(directories, 1048576, 917504, 458752) \
	X(waiting_kib, 262144, 229376, 65536)

enum quota_of {
#define X(name, all, users, each) QUOTA_##name,
	QUOTAS(X)
#undef X
	QUOTA_COUNT
};

struct quota;

/* What the others may not have is for root and @owner. */
struct quota *quota_create(uid_t owner);
/* Everything has been given back. */
void quota_destroy(struct quota *q);

/*
 * Before anything is taken. So many there can be at most (descriptors, say): lowers all three limits in
 * proportion.
 */
void quota_cap(struct quota *q, enum quota_of what, unsigned all);
/* What each user may have, at most what all users may have: which it then is. */
void quota_set_each(struct quota *q, enum quota_of what, unsigned each);

bool quota_is_owner(const struct quota *q, uid_t uid);

/*
 * 0; -EMFILE: the user has as many as each may have; -ENFILE: all together have as many as there may be. As
 * open(2) tells its caller's own limit from everybody's. Says so in the log, once a minute at most.
 */
int quota_take(struct quota *q, enum quota_of what, uid_t uid);
/* What quota_take() would return, without a word. */
int quota_look(struct quota *q, enum quota_of what, uid_t uid);
void quota_give(struct quota *q, enum quota_of what, uid_t uid);
/* The same of @n at once, all or none. */
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
/* Those who have something, by uid; to be freed. NULL if nobody has. */
struct quota_user *quota_users(struct quota *q, size_t *n);

/* Whether it is for --user-limit to set what each user may have. */
bool quota_is_option(enum quota_of what);
/* Of --user-limit: "clients" and the like; QUOTA_COUNT: it knows none of that name. */
enum quota_of quota_named(const char *name, size_t len);

#endif
