/* screen.c - see screen.h. */
#include "screen.h"

#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "rates.h"
#include "tool.h"

#ifdef GAIA_CURSES
#include <curses.h>

static char *shown;	/* the text */
static unsigned top_line; /* of it, at the top */
static struct {
	unsigned first, n, at; /* lines of it; @at from the first */
} marks;
static volatile sig_atomic_t ends;

static void end_it(int signal)
{
	(void)signal;
	ends = 1;
}

/* ncurses' own handlers would end the process without a word to the daemon; that of SIGWINCH stays. */
static void catch_ends(void)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	/* Of a daemon that does not answer a second signal is not waited for. */
	struct sigaction action = { .sa_handler = end_it, .sa_flags = SA_RESETHAND };

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		sigaction(signals[i], &action, NULL);
}

bool screen_begin(void)
{
	setlocale(LC_CTYPE, "");
	if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO)) {
		fail("top: standard input and output are not a terminal; -b prints without one");
		return false;
	}
	/* Not initscr(), which exits. */
	if (!newterm(NULL, stdout, stdin)) {
		fail("top: ncurses does not know the terminal '%s' (TERM); -b prints without one", getenv("TERM") ? getenv("TERM") : "");
		return false;
	}
	catch_ends();
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	curs_set(0);
	return true;
}

void screen_end(void)
{
	endwin();
	free(shown);
	shown = NULL;
}

/* How many bytes of the line fit into @columns. */
static size_t fitting(const char *line, size_t len, int columns)
{
	mbstate_t state = { 0 };
	size_t at = 0;
	wchar_t c;

	while (at < len && columns > 0) {
		size_t n = mbrtowc(&c, line + at, len - at, &state);
		int width;

		if (n == 0 || n > len - at) { /* not of this locale */
			n = 1;
			memset(&state, 0, sizeof(state));
			width = 4; /* ncurses may show it as ~\ and so on */
		} else {
			width = wcwidth(c) < 0 ? 2 : wcwidth(c);
		}
		columns -= width;
		if (columns < 0)
			break;
		at += n;
	}
	return at;
}

static unsigned count_lines(const char *text)
{
	unsigned n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static void draw(void)
{
	unsigned lines = count_lines(shown), height = LINES > 0 ? (unsigned)LINES : 1, last = lines > height ? lines - height : 0, k = 0, marked = marks.first + marks.at;
	const char *line = shown;

	top_line = top_line < last ? top_line : last;
	if (marks.n > 0 && top_line + height <= marked)
		top_line = marked - height + 1;
	if (marks.n > 0 && top_line > marked)
		top_line = marks.at == 0 ? 0 : marked; /* with what is above */
	erase();
	for (const char *end; (end = strchr(line, '\n')) && k < top_line + height; line = end + 1, k++) {
		bool heading = k > 0 && line > shown + 1 && line[-2] == '\n'; /* after an empty line */

		if (k < top_line)
			continue;
		/* The last column of the last line stays empty, or the terminal might scroll. */
		attrset(heading || k == 0 || (marks.n > 0 && k == marked) ? A_REVERSE : A_NORMAL);
		mvaddnstr((int)(k - top_line), 0, line, (int)fitting(line, (size_t)(end - line), COLS - 1));
	}
	attrset(A_NORMAL);
	refresh();
}

void screen_show(const char *text)
{
	free(shown);
	shown = strdup(text);
	if (shown)
		draw();
}

void screen_mark(unsigned first, unsigned n, unsigned at)
{
	if (!n != !marks.n)
		top_line = 0;
	marks.first = first;
	marks.n = n;
	marks.at = at < n ? at : 0;
}

unsigned screen_marked(void)
{
	return marks.at;
}

static unsigned moved_by(unsigned at, int lines)
{
	return lines < 0 && at < (unsigned)-lines ? 0 : at + (unsigned)lines;
}

static void move_by(int lines)
{
	if (marks.n > 0) {
		marks.at = moved_by(marks.at, lines);
		marks.at = marks.at < marks.n ? marks.at : marks.n - 1;
	} else {
		top_line = moved_by(top_line, lines);
	}
	if (shown)
		draw();
}

enum screen_key screen_wait(double until, unsigned wants)
{
	double left;

	while (!ends && (left = until - clock_seconds()) > 0) {
		timeout(left < 1 ? (int)(left * 1000) + 1 : 1000);
		switch (getch()) {
		case 'q':
		case 'Q':
			return SCREEN_QUIT;
		case ' ':
			return SCREEN_NEXT;
		case '\n':
		case '\r':
		case KEY_ENTER:
			if (wants & SCREEN_WANTS(SCREEN_OPEN))
				return SCREEN_OPEN;
			break;
		case KEY_LEFT:
		case KEY_BACKSPACE:
		case '\b':
		case 0x7f:
			if (wants & SCREEN_WANTS(SCREEN_BACK))
				return SCREEN_BACK;
			break;
		case KEY_DOWN:
			move_by(1);
			break;
		case KEY_UP:
			move_by(-1);
			break;
		case KEY_NPAGE:
			move_by(LINES - 1);
			break;
		case KEY_PPAGE:
			move_by(1 - LINES);
			break;
		case KEY_HOME:
			move_by(-(int)(marks.n > 0 ? marks.at : top_line));
			break;
		case KEY_RESIZE:
			move_by(0);
			break;
		}
	}
	return ends ? SCREEN_QUIT : SCREEN_NEXT;
}

#else

bool screen_begin(void)
{
	fail("top: this gaia was built without ncurses; -b prints without it");
	return false;
}

void screen_end(void)
{
}

void screen_show(const char *text)
{
}

void screen_mark(unsigned first, unsigned n, unsigned at)
{
}

unsigned screen_marked(void)
{
	return 0;
}

enum screen_key screen_wait(double until, unsigned wants)
{
	return SCREEN_QUIT;
}

#endif
