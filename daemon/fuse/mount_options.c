/*
 * mount_options.c - what -o says, as mount(8) and fstab(5) write it.
 *
 * libfuse refuses words that it does not know, and takes one that the kernel then does not agree with (max_read). So
 * what concerns access times and the daemon itself is taken out here, and what has no effect on any FUSE file system
 * is left out.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Of mount(8); the daemon's file system does all of them, or has no such thing. */
static bool has_no_effect(const char *word)
{
	static const char *const words[] = {
		"defaults", "norelatime", "nostrictatime", "lazytime", "nolazytime", "acl", "noacl", "iversion", "noiversion",
	};

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (!strcmp(word, words[i]))
			return true;
	return !*word;
}

static int parse_max_read(const char *word, unsigned *out)
{
	const char *digits = word + strlen("max_read=");
	unsigned long n;
	char *end;

	errno = 0;
	n = strtoul(digits, &end, 10);
	if (*digits < '0' || *digits > '9' || *end || errno || n > INT_MAX) {
		log_error("-o %s: not a number of bytes", word);
		return -EINVAL;
	}
	*out = (unsigned)n;
	return 0;
}

/* -ENOENT: it is libfuse's. */
static int take_word(const char *word, struct mount_options *o)
{
	if (!strcmp(word, "noatime"))
		o->noatime = true;
	else if (!strcmp(word, "atime") || !strcmp(word, "relatime") || !strcmp(word, "strictatime"))
		o->noatime = false;
	else if (!strcmp(word, "nodiratime") || !strcmp(word, "diratime"))
		o->nodiratime = *word == 'n';
	else if (!strncmp(word, "max_read=", 9))
		return parse_max_read(word, &o->max_read);
	else if (!has_no_effect(word))
		return -ENOENT;
	return 0;
}

/* Up to a comma or the end; "\," is no end, as in libfuse. */
static size_t word_length(const char *text)
{
	size_t n = 0;

	while (text[n] && text[n] != ',')
		n += text[n] == '\\' && text[n + 1] ? 2 : 1;
	return n;
}

int mount_options_parse(const char *text, struct mount_options *out)
{
	struct mount_options o = { .rest = xcalloc(1, strlen(text) + 2) };
	char *to = o.rest;
	int err = 0;

	while (*text && !err) {
		size_t n = word_length(text);
		char *word = xcalloc(1, n + 1);

		memcpy(word, text, n);
		err = take_word(word, &o);
		if (err == -ENOENT) {
			memcpy(to, text, n);
			to[n] = ',';
			to += n + 1;
			err = 0;
		}
		free(word);
		text += n + (text[n] == ',');
	}
	if (to > o.rest)
		to[-1] = '\0'; /* the last comma */
	if (err)
		free(o.rest);
	else
		*out = o;
	return err;
}
