/*
 * mounts.c - see mounts.h.
 */
#include "mounts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Replace each \ooo by the byte that it stands for, in place. */
static void unescape(char *s)
{
	char *to = s;

	while (*s) {
		unsigned byte;

		if (s[0] == '\\' && sscanf(s + 1, "%3o", &byte) == 1) {
			*to++ = byte;
			s += 4;
		} else {
			*to++ = *s++;
		}
	}
	*to = '\0';
}

void free_entry(struct mount_entry *e)
{
	free(e->point);
	free(e->type);
	free(e->source);
}

static bool parse_entry(const char *line, struct mount_entry *out)
{
	const char *tail = strstr(line, " - "), *owner = strrchr(line, ' ');

	*out = (struct mount_entry){ 0 };
	if (!tail ||
	    sscanf(line, "%u %*d %u:%u %*s %ms", &out->id, &out->major, &out->minor, &out->point) != 4 ||
	    sscanf(tail, " - %ms %ms", &out->type, &out->source) != 2) {
		free_entry(out);
		return false;
	}
	unescape(out->point);
	owner = owner ? strstr(owner, ",user_id=") : NULL;
	if (owner)
		sscanf(owner, ",user_id=%u", &out->owner);
	return true;
}

/* The next one of the table; false: there is none any more. */
static bool next_entry(FILE *table, struct mount_entry *out)
{
	char *line = NULL;
	size_t size = 0;
	bool found = false;

	while (!found && getline(&line, &size, table) > 0)
		found = parse_entry(line, out);
	free(line);
	return found;
}

bool find_mount(const char *table, bool (*matches)(const struct mount_entry *e, const void *arg), const void *arg, struct mount_entry *out)
{
	FILE *file = fopen(table, "re");
	bool found = false;
	struct mount_entry e;

	if (!file)
		return false;
	while (next_entry(file, &e)) {
		if (!matches(&e, arg)) {
			free_entry(&e);
			continue;
		}
		if (found)
			free_entry(out);
		*out = e;
		found = true;
	}
	fclose(file);
	return found;
}

/* ---- all of gaiafs ---- */

struct list {
	struct mount_entry *at;
	size_t n, room;
};

static void drop(struct list *l, size_t k)
{
	free_entry(&l->at[k]);
	l->n--;
	memmove(&l->at[k], &l->at[k + 1], (l->n - k) * sizeof(*l->at));
}

/* False: no memory, and @e has been freed. */
static bool add(struct list *l, struct mount_entry e)
{
	if (l->n == l->room) {
		struct mount_entry *more = realloc(l->at, (2 * l->room + 16) * sizeof(*more));

		if (!more) {
			free_entry(&e);
			return false;
		}
		l->at = more;
		l->room = 2 * l->room + 16;
	}
	l->at[l->n++] = e;
	return true;
}

static void read_table(struct list *l, FILE *table)
{
	struct mount_entry e;

	while (next_entry(table, &e)) {
		for (size_t k = 0; k < l->n; k++)
			if (!strcmp(l->at[k].point, e.point))
				drop(l, k--);
		if (strcmp(e.type, GAIAFS_TYPE) != 0)
			free_entry(&e);
		else if (!add(l, e))
			break;
	}
}

static bool is_first(const struct list *l, size_t k)
{
	for (size_t i = 0; i < k; i++)
		if (l->at[i].major == l->at[k].major && l->at[i].minor == l->at[k].minor)
			return false;
	return true;
}

bool is_others(const struct mount_entry *e)
{
	return e->owner != 0 && e->owner != geteuid();
}

static int trusted_first(const void *a, const void *b)
{
	const struct mount_entry *x = a, *y = b;

	return is_others(x) != is_others(y) ? is_others(x) - is_others(y) : (x->id > y->id) - (x->id < y->id);
}

struct mount_entry *gaiafs_mounts(size_t *n)
{
	FILE *table = fopen("/proc/self/mountinfo", "re");
	struct list l = { 0 };

	if (table) {
		read_table(&l, table);
		fclose(table);
	}
	for (size_t k = l.n; k > 0; k--)
		if (!is_first(&l, k - 1))
			drop(&l, k - 1);
	if (l.n > 0)
		qsort(l.at, l.n, sizeof(*l.at), trusted_first);
	*n = l.n;
	return l.at;
}
