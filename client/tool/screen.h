/*
 * screen.h - text on a terminal, by ncurses: for gaia top.
 *
 * One thread. From screen_begin() to screen_end() nothing else may be written to the terminal.
 */
#ifndef GAIA_TOOL_SCREEN_H
#define GAIA_TOOL_SCREEN_H

#include <stdbool.h>

/* False: there is none, or this tool was built without ncurses; that has been said. */
bool screen_begin(void);
void screen_end(void);
/* Show @text instead of what was shown. Lines that are too long are cut; the arrows and the page keys move what is too high. */
void screen_show(const char *text);
/* Answer keys until @until (clock_seconds()), or until the space bar is pressed. False: q was, or a signal asks to end. */
bool screen_wait(double until);

#endif
