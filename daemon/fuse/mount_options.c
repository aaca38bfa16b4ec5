/*
 * mount_options.c - the words of -o, as mount(8) and fstab(5) write them.
 *
 * libfuse refuses words that it does not know. So words about access times and about the daemon itself are taken out
 * here, and words that have no effect on any FUSE file system are dropped. The value of max_read is noted, because
 * libfuse accepts it only if op_init() asks for the same.
 */
#include "fuse/internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Whether @word is one of mount(8)'s that asks for what the mount does anyway, or that does not apply to it. */
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

/* -ENOENT: the word is for libfuse. */
static int take_word(const char *word, struct mount_options *o)
{
	if (!strcmp(word, "ro") || !strcmp(word, "rw")) {
		o->readonly = word[1] == 'o';
		return -ENOENT; /* libfuse's as well */
	}
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

/* Length up to a comma or the end; as in libfuse, "\," does not end a word. */
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
