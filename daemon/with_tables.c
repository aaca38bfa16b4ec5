/*
 * with_tables.c - a man page, or mount.gaiafs, with what base/counters.h, base/latency.h, base/uses.h and option_table.h say in the places
 * that it names.
 *
 * with_tables < FILE.in > FILE. These stand for text, all but the last two as whole lines:
 *
 *	@COUNTERS@	all counters, with their texts
 *	@LATENCIES@	all kinds of what is timed, with their texts
 *	@CLIENT_AMOUNTS@, @FILE_AMOUNTS@, @MOVED@, @WAITS@	columns of clients' and files' rows, with their texts
 *	@OPTION NAME@	the next row of the option of that name (of the letter, if it has no name), as gaiafs(8) shows it; the lines
 *			after it go on with its paragraph. A page that has one must have all
 *	@MOUNT_OPTIONS@	all rows of options with values, as mount.gaiafs(8) shows them
 *	@CHANGES@	the names of options that can be changed while the mount is live: "*home*, *writeback-age*"
 *	@OPTIONS@	the names of options with values, as a pattern of the shell: "device=* | home=*"
 */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counters.h"
#include "base/latency.h"
#include "base/uses.h"
#include "option_table.h"

static const char *const counters[][2] = {
#define X(name, text) { #name, text },
	COUNTERS(X)
#undef X
};

static const struct option_row {
	const char *name;
	char letter;
	const char *value, *help, *stays;
} rows[] = {
#define X(name, letter, value, help, parse, stays) { name, letter, value, help, stays },
	OPTIONS(X)
#undef X
};

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

static bool used[N_ROWS]; /* shown by @OPTION NAME@ */

/* How scdoc marks a character of a form: words in capitals are underlined, what is meant as it is is bold. 0: neither. */
static char mark_of(char c)
{
	return isupper((unsigned char)c) ? '_' : strchr("[]|. ", c) ? 0 : '*';
}

static void put_form(const char *form, const char *end)
{
	char mark, now = 0;

	for (const char *c = form; c < end; c++) {
		mark = mark_of(*c);
		/* A blank between bold words is bold, too. */
		if (*c == ' ' && c + 1 < end && mark_of(c[1]) == now)
			mark = now;
		if (mark != now && now)
			putchar(now);
		if (mark != now && mark)
			putchar(mark);
		now = mark;
		printf("%s%c", *c == '_' ? "\\" : "", mark == '_' ? tolower((unsigned char)*c) : *c);
	}
	if (now)
		putchar(now);
}

/* A row's help, as a sentence. */
static void put_sentence(const char *help)
{
	const char *end = help, *last;

	putchar('\t');
	for (const char *word = help; *word; word = *end ? end + 1 : end) {
		end = last = word + strcspn(word, " \n");
		if (*word == '(')
			putchar(*word++);
		while (last > word && strchr(",;:.)", last[-1]))
			last--;
		if (*word == '-' || memchr(word, '=', (size_t)(last - word)))
			put_form(word, last);
		else
			for (const char *c = word; c < last; c++)
				printf("%s%c", strchr("_*\\", *c) ? "\\" : "", c == help ? toupper((unsigned char)*c) : *c);
		printf("%.*s%s", (int)(end - last), last, *end ? " " : "");
	}
	puts(end[-1] == '.' ? "" : ".");
}

/* A heading, and the row's help. @dashes: as on the command line. */
static void put_row(const struct option_row *row, bool dashes)
{
	char form[256];

	if (dashes && row->letter)
		printf("*-%c*%s", row->letter, row->name ? ", " : "");
	snprintf(form, sizeof(form), "%s%s%s%s", dashes && row->name ? "--" : "", row->name ? row->name : "",
		 !row->value ? "" : dashes ? " " : "=", row->value ? row->value : "");
	put_form(form, form + strlen(form));
	putchar('\n');
	put_sentence(row->help);
}

static bool is_named(const struct option_row *row, const char *name)
{
	return row->name ? !strcmp(row->name, name) : row->letter == *name && !name[1];
}

/* The next row of the option. */
static void put_option(const char *name)
{
	for (size_t i = 0; i < N_ROWS; i++) {
		if (used[i] || !is_named(&rows[i], name))
			continue;
		used[i] = true;
		put_row(&rows[i], true);
		return;
	}
	fprintf(stderr, "with_tables: @OPTION %s@: there is no such option, or not so many rows of it\n", name);
	exit(1);
}

static void put_counters(void)
{
	for (unsigned i = 0; i < CTR_COUNT; i++)
		printf("*%s*\n\t%s\n\n", counters[i][0], counters[i][1]);
}

static void put_latencies(void)
{
	static const char *const kinds[][3] = {
#define X(of, name, text) { #of, #name, text },
		LATENCIES(X)
#undef X
	};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		char word[64];

		snprintf(word, sizeof(word), "%s %s", kinds[i][0], kinds[i][1]);
		printf("*%s*\n\t", word);
		for (const char *c = kinds[i][2]; *c; c++)
			printf("%s%c", *c == '_' ? "\\" : "", *c);
		puts("\n");
	}
}

/* Of base/uses.h. */
static const struct {
	const char *line, *name, *text;
} columns[] = {
#define X(name, text) { "@CLIENT_AMOUNTS@\n", #name, text },
	CLIENT_AMOUNTS(X)
#undef X
#define X(name, text) { "@FILE_AMOUNTS@\n", #name, text },
	FILE_AMOUNTS(X)
#undef X
#define X(name, text) { "@MOVED@\n", #name, text },
	MOVED(X)
#undef X
#define X(name, text) { "@WAITS@\n", #name, text },
	WAITS(X)
#undef X
};

/* False: the line is none of theirs. */
static bool put_columns(const char *line)
{
	bool any = false;

	for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
		if (strcmp(line, columns[i].line) != 0)
			continue;
		printf("*%s*\n\t%s\n\n", columns[i].name, columns[i].text);
		any = true;
	}
	return any;
}

static void put_mount_options(void)
{
	for (size_t i = 0; i < N_ROWS; i++) {
		if (!rows[i].name || !rows[i].value || !*rows[i].help)
			continue;
		put_row(&rows[i], false);
		putchar('\n');
	}
}

static void put_pattern(void)
{
	const char *last = "";

	for (size_t i = 0; i < N_ROWS; i++) {
		if (!rows[i].name || !rows[i].value || !strcmp(rows[i].name, last) || (rows[i].stays && !*rows[i].stays))
			continue;
		printf("%s%s=*", *last ? " | " : "", rows[i].name);
		last = rows[i].name;
	}
}

static void put_changes(void)
{
	const char *between = "";

	for (size_t i = 0; i < N_ROWS; i++) {
		if (rows[i].stays || !rows[i].name)
			continue;
		printf("%s*%s*", between, rows[i].name);
		between = ", ";
	}
}

int main(void)
{
	bool shows_options = false;
	char line[4096], name[64], *at;

	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "@COUNTERS@\n")) {
			put_counters();
		} else if (!strcmp(line, "@LATENCIES@\n")) {
			put_latencies();
		} else if (put_columns(line)) {
			continue;
		} else if (!strcmp(line, "@MOUNT_OPTIONS@\n")) {
			put_mount_options();
		} else if (sscanf(line, "@OPTION %63[a-z-]@", name) == 1) {
			put_option(name);
			shows_options = true;
		} else if ((at = strstr(line, "@CHANGES@"))) {
			printf("%.*s", (int)(at - line), line);
			put_changes();
			fputs(at + strlen("@CHANGES@"), stdout);
		} else if ((at = strstr(line, "@OPTIONS@"))) {
			printf("%.*s", (int)(at - line), line);
			put_pattern();
			fputs(at + strlen("@OPTIONS@"), stdout);
		} else {
			fputs(line, stdout);
		}
	}
	for (size_t i = 0; i < N_ROWS && shows_options; i++) {
		if (used[i] || !*rows[i].help)
			continue;
		fprintf(stderr, "with_tables: a row of @OPTION %s@ is not shown\n", rows[i].name ? rows[i].name : (char[]){ rows[i].letter, 0 });
		return 1;
	}
	return ferror(stdin) || fflush(stdout) ? 1 : 0;
}
