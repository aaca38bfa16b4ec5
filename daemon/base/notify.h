/*
 * notify.h - telling the service manager (systemd) how the daemon is, as sd_notify(3) does.
 */
#ifndef GAIA_BASE_NOTIFY_H
#define GAIA_BASE_NOTIFY_H

/* @state: lines such as "READY=1". Goes to the socket that $NOTIFY_SOCKET names; without that nothing happens. Never waits. */
void notify_manager(const char *state);

#endif
