/* upgrade.c - who asks for an upgrade, and what the asker is told. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control/internal.h"

void control_on_upgrade(struct control *ctl, control_upgrade *fn, void *arg)
{
	ctl->upgrade = fn;
	ctl->upgrade_arg = arg;
}

void control_answer_upgrade(int answer, int err, const char *text)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_UPGRADED, .version = GAIA_PROTOCOL_VERSION, .error = (uint32_t)-err };

	snprintf((char *)msg.chunk, sizeof(msg.chunk), "%s", text);
	if (send(answer, &msg, sizeof(msg), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_debug("control: who asked for an upgrade is gone: %s", strerror(errno));
	close(answer);
}

/* As many as one line has room for. */
#define NAMED 3

/* Add the client, which is the @n-th, to @who. */
static void name_client(const struct client *c, unsigned n, char *who, size_t size)
{
	size_t length = strlen(who);
	const char *comma = n > 1 ? ", " : "";

	if (n > NAMED + 1)
		return;
	if (n > NAMED)
		snprintf(who + length, size - length, " and others");
	else if (c->pid > 0)
		snprintf(who + length, size - length, "%sprocess %d of user %u", comma, (int)c->pid, (unsigned)c->uid);
	else /* of a PID namespace that is not below the daemon's */
		snprintf(who + length, size - length, "%sa container's process of user %u", comma, (unsigned)c->uid);
}

unsigned control_mapped(struct control *ctl, char *who, size_t size)
{
	struct client *c, *next;
	unsigned n = 0;

	who[0] = '\0';
	pthread_mutex_lock(&ctl->lock);
	HASH_ITER(hh, ctl->clients, c, next) {
		pthread_mutex_lock(&c->lock);
		if (c->n_maps > 0)
			name_client(c, ++n, who, size);
		pthread_mutex_unlock(&c->lock);
	}
	pthread_mutex_unlock(&ctl->lock);
	return n;
}

bool upgrade_asked(struct client *c, const struct gaia_msg *msg)
{
	struct gaia_msg want = { .kind = GAIA_MSG_UPGRADE, .version = GAIA_PROTOCOL_VERSION, .count = msg->count == 1 };
	struct control *ctl = c->ctl;
	int answer;

	memcpy(want.ticket, msg->ticket, sizeof(want.ticket));
	if (c->counted || memcmp(&want, msg, sizeof(want)) != 0 || !ticket_redeem(ctl, msg->ticket, c->peer_uid, &c->uid, &c->features))
		return false;
	c->counted = true;
	answer = fcntl(c->fd, F_DUPFD_CLOEXEC, 0);
	if (answer < 0)
		return false;
	if (!ctl->upgrade) {
		control_answer_upgrade(answer, -EOPNOTSUPP, "it cannot be");
		return true;
	}
	/* The user who has opened the mount, and the one who runs the program that is to serve it. */
	if (!quota_is_owner(ctl->quota, c->uid) || !quota_is_owner(ctl->quota, c->peer_uid)) {
		if (log_may(&ctl->pace))
			log_warn("control: process %d of user %u asked for an upgrade, and was refused", (int)c->pid, (unsigned)c->peer_uid);
		control_answer_upgrade(answer, -EPERM, "only root and the user who mounted it may");
		return true;
	}
	ctl->upgrade(ctl->upgrade_arg, c->pid, msg->count, answer);
	return true;
}
