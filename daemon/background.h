/*
 * background.h - a daemon that leaves its terminal when the mount is live, not before.
 */
#ifndef GAIA_BACKGROUND_H
#define GAIA_BACKGROUND_H

/*
 * Returns in a child, which is a session of its own; *@parent: where the parent waits for background_tell(), to exit with 0. If the child ends
 * before, the parent exits with 1. Called before any thread is made. A negative errno, in the parent; logs.
 */
int background_go(int *parent);
/* Once. From now on the log goes to syslog. *@parent -1: there is none, and nothing is done. */
void background_tell(int *parent);

#endif
