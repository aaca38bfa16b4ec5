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
/*
 * From the next screen_show() on, one of @n lines from @first on is marked, at first @at of them, counted from 0; the arrows and the
 * page keys move the mark. @n is 0: none is.
 */
void screen_mark(unsigned first, unsigned n, unsigned at);
/* Which one is, counted from 0. */
unsigned screen_marked(void);

enum screen_key { SCREEN_QUIT, SCREEN_NEXT, SCREEN_OPEN, SCREEN_BACK };
#define SCREEN_WANTS(key) (1u << (key))
/*
 * Answer keys until @until (clock_seconds()). SCREEN_NEXT: it is so late, or the space bar was pressed; SCREEN_QUIT: q was, or a signal
 * asks to end. If @wants has them, SCREEN_OPEN: the Enter key was; and SCREEN_BACK: the left arrow or the backspace key.
 */
enum screen_key screen_wait(double until, unsigned wants);

#endif
