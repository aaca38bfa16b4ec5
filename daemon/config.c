/*
 * config.c - configuration files: an option a line, as on the command line without its dashes.
 *
 *	# a comment
 *	SOURCE=/srv/my data
 *	home=8G
 *	device = sim:1G,count=2
 *	foreground
 *
 * A line that ends with a backslash goes on in the next. Values may be in double or single quotes. SOURCE is the directory to mount. OPTIONS
 * is a part of a command line, in words that may be quoted: it is how files of the systemd unit were written first.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "options.h"

#define MOST (1u << 20) /* bytes of a file */

static int wrong(struct options *o, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int wrong(struct options *o, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(o->why, sizeof(o->why), fmt, ap);
	va_end(ap);
	return -EINVAL;
}

/* The text of the file, or NULL, and errno. It is waited for nothing: a FIFO is refused. */
static char *read_text(const char *path)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY), err;
	size_t size = 0;
	struct stat st;
	char *text;
	ssize_t n;

	if (fd < 0)
		return NULL;
	text = xmalloc(MOST + 1);
	err = fstat(fd, &st) ? errno : S_ISREG(st.st_mode) ? 0 : S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
	/* It says what is mounted for everybody, and names files that root makes. */
	if (!err && geteuid() == 0 && (st.st_uid != 0 || st.st_mode & (S_IWGRP | S_IWOTH)))
		err = EPERM;
	while (!err) {
		n = read(fd, text + size, MOST + 1 - size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			err = n < 0 ? errno : 0;
			break;
		}
		size += (size_t)n;
		err = size > MOST ? EFBIG : 0;
	}
	close(fd);
	if (!err && memchr(text, '\0', size))
		err = EINVAL;
	if (!err) {
		text[size] = '\0';
		return text;
	}
	free(text);
	errno = err;
	return NULL;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

/* Cut blanks from both ends. */
static char *trim(char *text)
{
	char *end;

	while (is_blank(*text))
		text++;
	end = text + strlen(text);
	while (end > text && is_blank(end[-1]))
		end--;
	*end = '\0';
	return text;
}

/* The next word of *@rest, which may have quoted parts, or NULL: there is none, or (@rest is NULL then) a quote is not closed. */
static char *next_word(char **rest)
{
	char *from = *rest, *to, *word, quote = 0;

	while (is_blank(*from))
		from++;
	if (!*from)
		return NULL;
	for (word = to = from; *from && (quote || !is_blank(*from)); from++) {
		if (quote ? *from == quote : *from == '"' || *from == '\'')
			quote = quote ? 0 : *from;
		else if (*from == '\\' && quote != '\'' && from[1])
			*to++ = *++from;
		else
			*to++ = *from;
	}
	*rest = quote ? NULL : *from ? from + 1 : from;
	*to = '\0';
	return quote ? NULL : word;
}

/* "--home 8G --device=none -o ro -f" */
static int take_words(struct options *o, char *text)
{
	char *word, *value, letter[2];
	bool takes;

	while ((word = next_word(&text))) {
		if (word[0] != '-' || !word[1])
			return wrong(o, "OPTIONS: %s: not an option", word);
		if (word[1] == '-') {
			word += 2;
			value = strchr(word, '=');
			if (value)
				*value++ = '\0';
		} else {
			value = word[2] ? word + 2 : NULL;
			snprintf(letter, sizeof(letter), "%c", word[1]);
			word = !strcmp(letter, "f") ? "foreground" : letter;
		}
		takes = strcmp(word, "foreground") != 0;
		if (!value && takes)
			value = next_word(&text);
		if (!text)
			break;
		if (options_take(o, word, value))
			return -EINVAL;
	}
	return text ? 0 : wrong(o, "OPTIONS: a quote is not closed");
}

static char *unquoted(char *value)
{
	size_t n = strlen(value);

	if (n < 2 || (*value != '"' && *value != '\'') || value[n - 1] != *value || memchr(value + 1, *value, n - 2))
		return value;
	value[n - 1] = '\0';
	return value + 1;
}

static int take_line(struct options *o, char *line)
{
	char *name = line, *value = strchr(line, '=');

	if (value)
		*value++ = '\0';
	name = trim(name);
	value = value ? unquoted(trim(value)) : NULL;
	if (!strcmp(name, "OPTIONS") && value)
		return take_words(o, value);
	if (!strcmp(name, "SOURCE") && value && *value) {
		o->config_source = value;
		return 0;
	}
	if (!strcmp(name, "SOURCE") || !strcmp(name, "OPTIONS"))
		return wrong(o, "%s: a value is missing", name);
	if (*name == '-')
		return wrong(o, "%s: options are written without dashes here", name);
	return options_take(o, name, value);
}

/* The next line of *@rest, or NULL. *@n lines have been read; those that end with a backslash are one with the next. */
static char *next_line(char **rest, unsigned *n)
{
	char *line = *rest, *end;

	if (!line)
		return NULL;
	for (end = line;; end++) {
		end += strcspn(end, "\n");
		++*n;
		if (*end && end > line && end[-1] == '\\')
			end[-1] = *end = ' ';
		else
			break;
	}
	*rest = *end ? end + 1 : NULL;
	*end = '\0';
	return trim(line);
}

int config_read(struct options *o, const char *path, bool may_lack)
{
	unsigned n = 0, first = 1;
	char *text = read_text(path), *rest = text, *line;
	char why[sizeof(o->why)];

	if (!text && errno == ENOENT && may_lack)
		return 0;
	if (!text)
		return wrong(o, "%s: cannot be read: %s", path, errno == EINVAL ? "not a text file" : errno == EPERM ? "others than root may write it (chown root, chmod go-w)" : strerror(errno));
	o->config_found = true;
	/* Values point into it. */
	o->texts = xrealloc(o->texts, (o->n_texts + 1) * sizeof(*o->texts));
	o->texts[o->n_texts++] = text;
	while ((line = next_line(&rest, &n))) {
		if (*line && *line != '#' && *line != ';' && take_line(o, line)) {
			memcpy(why, o->why, sizeof(why));
			return wrong(o, "%s:%u: %s", path, first, why);
		}
		first = n + 1;
	}
	return 0;
}
