/*
 * notify.h - telling the service manager (systemd) the daemon's state, as sd_notify(3) does.
 */
#ifndef GAIA_BASE_NOTIFY_H
#define GAIA_BASE_NOTIFY_H

/*
 * Send @state, lines such as "READY=1", to the socket that $NOTIFY_SOCKET names; without that variable do
 * nothing. Never waits.
 */
void notify_manager(const char *state);

/* The same for a process that is about to end, which the manager should still know when it reads this: waits for that, seconds at most. */
void notify_manager_last(const char *state);

#endif
