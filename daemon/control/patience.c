/* patience.c - how long clients are waited for that do not give up memory: by what their user's clients did before. */
#include <stdlib.h>

#include "base/fault.h"
#include "base/util.h"
#include "control/internal.h"

/* How often this user's clients were mute, less one for each MUTE_FORGET_NS since the last time. control.lock is held. */
static unsigned mute_times(const struct mute_user *m, uint64_t now)
{
	uint64_t forgotten = (now - m->since_ns) / MUTE_FORGET_NS;

	return forgotten < m->times ? m->times - (unsigned)forgotten : 0;
}

uint64_t patience_with(struct control *ctl, uid_t uid)
{
	uint64_t timeout = REVOKE_TIMEOUT_NS;
	struct mute_user *m;

	pthread_mutex_lock(&ctl->lock);
	HASH_FIND(hh, ctl->mute_users, &uid, sizeof(uid), m);
	for (unsigned n = m ? mute_times(m, now_ns()) : 0; n > 0; n--)
		timeout = MAX(timeout / MUTE_DIVISOR, MUTE_LEAST_NS);
	pthread_mutex_unlock(&ctl->lock);
	/* Longer in tests that need what somebody else does meanwhile, however slow the machine is. */
	return (fault_point("revoke.patience") ? 12 : 1) * timeout;
}

void note_mute(struct control *ctl, uid_t uid, uint64_t asked_ns)
{
	struct mute_user *m, *tmp, *his = NULL;
	uint64_t now = now_ns();

	if (quota_is_owner(ctl->quota, uid))
		return;
	pthread_mutex_lock(&ctl->lock);
	HASH_ITER(hh, ctl->mute_users, m, tmp) {
		if (m->uid == uid) {
			his = m;
		} else if (!mute_times(m, now)) {
			HASH_DEL(ctl->mute_users, m);
			free(m);
		}
	}
	if (!his) {
		his = xcalloc(1, sizeof(*his));
		his->uid = uid;
		HASH_ADD(hh, ctl->mute_users, uid, sizeof(his->uid), his);
	}
	if (his->since_ns < asked_ns) {
		his->times = MIN(mute_times(his, now) + 1, MUTE_TIMES_MOST);
		his->since_ns = now;
	}
	pthread_mutex_unlock(&ctl->lock);
}

void mute_forget(struct control *ctl)
{
	struct mute_user *m, *tmp;

	HASH_ITER(hh, ctl->mute_users, m, tmp) {
		HASH_DEL(ctl->mute_users, m);
		free(m);
	}
}
