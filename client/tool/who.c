/*
 * who.c - for whom a mount works, and what takes its memory: the tables of gaia top that name clients, users and files.
 *
 * The daemon's names of what they use are those of daemon/base/uses.h, which gaia(1) explains.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rates.h"
#include "tool.h"
#include "top.h"

#define ROWS 10u /* of each table but that of the files which take the memory */

/* A row of the daemon's, the same one earlier (NULL: it was not there), and what its place in the table goes by. */
struct row {
	const json_t *now, *before;
	double weight, then; /* and, where that is equal, by this */
};

/* A number that rises, a second. Of what has come meanwhile nothing is known. */
static double row_rate(const struct round *r, const struct row *row, const char *key)
{
	double rate = row->before ? rate_at(row->before, row->now, key, r->seconds) : 0;

	/* It has gone and come again. */
	return rate < 0 ? number_at(row->now, key) / r->seconds : rate;
}

static double row_rates(const struct round *r, const struct row *row, const char *const *keys)
{
	double sum = 0;

	for (; *keys; keys++)
		sum += row_rate(r, row, *keys);
	return sum;
}

static int by_pid(const void *a, const void *b)
{
	double x = number_at(*(const json_t *const *)a, "pid"), y = number_at(*(const json_t *const *)b, "pid");

	return (x > y) - (x < y);
}

/* All clients but this command, each with what it was before; to be freed. NULL: there is no memory. */
static struct row *rows_of_clients(const struct round *r, size_t *n)
{
	const json_t *clients = json_object_get(r->after, "clients"), *old = json_object_get(r->before, "clients"), *one;
	struct row *rows = calloc(json_array_size(clients) + 1, sizeof(*rows));
	const json_t **before = calloc(json_array_size(old) + 1, sizeof(*before)), **found;
	size_t k;

	*n = 0;
	json_array_foreach(old, k, one)
		if (before)
			before[k] = one;
	if (before)
		qsort(before, json_array_size(old), sizeof(*before), by_pid);
	json_array_foreach(clients, k, one) {
		if (!rows || !before || number_at(one, "pid") == getpid())
			continue;
		found = bsearch(&one, before, json_array_size(old), sizeof(*before), by_pid);
		rows[(*n)++] = (struct row){ .now = one, .before = found ? *found : NULL };
	}
	free(before);
	return rows;
}

/* The row of the list which has the same number there. */
static const json_t *same_row(const json_t *list, const json_t *row, const char *key)
{
	const json_t *one;
	size_t k;

	json_array_foreach(list, k, one)
		if (number_at(one, key) == number_at(row, key))
			return one;
	return NULL;
}

static int heaviest_first(const void *a, const void *b)
{
	const struct row *x = a, *y = b;

	return x->weight == y->weight ? (x->then < y->then) - (x->then > y->then) : x->weight < y->weight ? 1 : -1;
}

static void put_bytes(FILE *out, const json_t *row, const char *key)
{
	put_scaled(out, number_at(row, key), 1024);
}

static void put_more(FILE *out, size_t n, const char *what)
{
	if (n > ROWS)
		fprintf(out, "(and %zu more %s)\n", n - ROWS, what);
}

/* ---- clients and users ---- */

struct waited {
	const char *what;
	double part, now;
};

static int longest_first(const void *a, const void *b)
{
	const struct waited *x = a, *y = b;

	return (x->part < y->part) - (x->part > y->part);
}

#define WAITS_SHOWN 16u
#define NAME_MOST 32u /* the daemon's are shorter */

struct waits {
	struct waited at[WAITS_SHOWN];
	size_t n;
};

/* What the client's calls waited for: parts of the time, of a thread; and how many wait at the moment. */
static void add_waits(struct waits *all, const struct round *r, const struct row *client)
{
	size_t k, i;
	const json_t *one;

	json_array_foreach(json_object_get(client->now, "waits"), k, one) {
		const char *what = string_at(one, "for");
		const json_t *before = client->before ? row_named(json_object_get(client->before, "waits"), "for", what) : one;
		double ns = number_at(one, "ns") - number_at(before, "ns");

		for (i = 0; i < all->n && strcmp(all->at[i].what, what) != 0; i++)
			;
		if (i == WAITS_SHOWN || strlen(what) > NAME_MOST)
			continue;
		if (i == all->n)
			all->at[all->n++] = (struct waited){ .what = what };
		all->at[i].part += ns > 0 ? ns / r->seconds / 1e9 : 0;
		all->at[i].now += number_at(one, "now");
	}
}

/* Returns how many wait at the moment. */
static double put_waits(FILE *out, struct waits *all)
{
	double now = 0;
	bool first = true;

	qsort(all->at, all->n, sizeof(*all->at), longest_first);
	for (const struct waited *w = all->at; w < all->at + all->n; w++) {
		if (w->part < 0.001 && w->now <= 0)
			continue;
		fputs(first ? "  " : ", ", out);
		first = false;
		put_safely(out, w->what);
		fprintf(out, " %.1f%%", w->part * 100);
		if (w->now > 0)
			fprintf(out, " (%.0f now)", w->now);
		now += w->now;
	}
	return now;
}

double put_all_waits(FILE *out, const struct round *r)
{
	struct waits all = { 0 };
	size_t n;
	struct row *list = rows_of_clients(r, &n);

	for (size_t k = 0; k < n; k++)
		add_waits(&all, r, &list[k]);
	free(list);
	return put_waits(out, &all);
}

size_t count_clients(const struct round *r)
{
	size_t n;

	free(rows_of_clients(r, &n));
	return n;
}

void put_clients(FILE *out, const struct round *r)
{
	static const char *const calls[] = { "acquires", "releases", NULL };
	size_t n, k;
	struct row *list = rows_of_clients(r, &n);
	struct waits waits;

	for (k = 0; k < n; k++) {
		list[k].weight = row_rates(r, &list[k], calls);
		list[k].then = number_at(list[k].now, "mapped_bytes");
	}
	if (n > 0) {
		qsort(list, n, sizeof(*list), heaviest_first);
		fprintf(out, "\n%-7s %7s %7s %7s %7s %7s %7s %7s %7s %7s  %s\n", "CLIENT", "USER", "MAPPED", "DEVICES", "HOST", "PRIVATE", "PINNED",
			"CALLS/s", "IN/s", "OUT/s", "WAITS FOR");
	}
	for (k = 0; k < n && k < ROWS; k++) {
		const json_t *row = list[k].now;

		fprintf(out, "%-7.0f %7.0f", number_at(row, "pid"), number_at(row, "uid"));
		put_bytes(out, row, "mapped_bytes");
		put_bytes(out, row, "device_bytes");
		put_bytes(out, row, "host_bytes");
		put_bytes(out, row, "private_bytes");
		put_bytes(out, row, "pinned_bytes");
		put_scaled(out, row_rates(r, &list[k], calls), 1000);
		put_scaled(out, row_rate(r, &list[k], "to_device_bytes"), 1024);
		put_scaled(out, row_rate(r, &list[k], "from_device_bytes"), 1024);
		waits.n = 0;
		add_waits(&waits, r, &list[k]);
		put_waits(out, &waits);
		fputc('\n', out);
	}
	put_more(out, n, "clients");
	free(list);
}

/* The sum of the user's clients, of @n rows; with @moved of bytes that were moved, a second. */
static double sum_of_clients(const struct round *r, const struct row *row, size_t n, double uid, const char *key, bool moved)
{
	double sum = 0;

	for (; n > 0; n--, row++)
		if (number_at(row->now, "uid") == uid)
			sum += moved ? row_rate(r, row, key) : number_at(row->now, key);
	return sum;
}

void put_users(FILE *out, const struct round *r)
{
	static const char *const amounts[] = { "mapped_bytes", "device_bytes", "host_bytes", "private_bytes", "pinned_bytes" };
	const json_t *users = json_object_get(r->after, "users"), *user;
	size_t n, k;
	struct row *list = rows_of_clients(r, &n);

	if (json_array_size(users) > 0)
		fprintf(out, "\n%-7s %7s %7s %7s %7s %7s %7s %7s %7s %7s\n", "USER", "CLIENTS", "MAPPED", "DEVICES", "HOST", "PRIVATE", "PINNED",
			"MAPS", "IN/s", "OUT/s");
	json_array_foreach(users, k, user) {
		double uid = number_at(user, "uid");

		if (k == ROWS)
			break;
		fprintf(out, "%-7.0f %7.0f", uid, number_at(user, "clients"));
		for (size_t i = 0; i < sizeof(amounts) / sizeof(amounts[0]); i++)
			put_scaled(out, sum_of_clients(r, list, n, uid, amounts[i], false), 1024);
		fprintf(out, " %7.0f", number_at(user, "mappings"));
		put_scaled(out, sum_of_clients(r, list, n, uid, "to_device_bytes", true), 1024);
		put_scaled(out, sum_of_clients(r, list, n, uid, "from_device_bytes", true), 1024);
		fputc('\n', out);
	}
	put_more(out, json_array_size(users), "users");
	free(list);
}

/* ---- files ---- */

static void put_path(FILE *out, const json_t *file)
{
	put_safely(out, string_at(file, "path"));
	fputc('\n', out);
}

void put_files(FILE *out, const struct round *r)
{
	const json_t *files = json_object_get(r->use, "files"), *file;
	size_t k;

	if (json_array_size(files) == 0)
		return;
	fprintf(out, "\n%7s %7s %7s %7s %7s %7s %5s  %s\n", "HOME", "DEVICES", "PINNED", "PRIVATE", "PARKED", "DIRTY", "MAPS", "FILE");
	json_array_foreach(files, k, file) {
		put_bytes(out, file, "home_bytes");
		put_bytes(out, file, "device_bytes");
		put_bytes(out, file, "pinned_bytes");
		put_bytes(out, file, "private_bytes");
		put_bytes(out, file, "parked_bytes");
		put_bytes(out, file, "dirty_bytes");
		fprintf(out, "%5.0f  ", number_at(file, "mappings"));
		put_path(out, file);
	}
}

void put_moving_files(FILE *out, const struct round *r)
{
	static const char *const keys[] = { "to_device_bytes", "from_device_bytes", "released_bytes", "from_storage_bytes", "to_storage_bytes", NULL };
	const json_t *files = json_object_get(r->use, "files"), *file;
	struct row *list = calloc(json_array_size(files) + 1, sizeof(*list));
	size_t n = 0, k;

	json_array_foreach(files, k, file) {
		if (!list)
			break;
		list[n] = (struct row){ .now = file, .before = same_row(json_object_get(r->use_before, "files"), file, "id") };
		list[n].weight = row_rates(r, &list[n], keys);
		n += list[n].weight > 0;
	}
	if (n > 0) {
		qsort(list, n, sizeof(*list), heaviest_first);
		fprintf(out, "\n%7s %7s %7s %7s %7s  %s\n", "IN/s", "OUT/s", "REL/s", "READ/s", "WRITE/s", "FILE");
	}
	for (k = 0; k < n && k < ROWS; k++) {
		for (size_t i = 0; keys[i]; i++)
			put_scaled(out, row_rate(r, &list[k], keys[i]), 1024);
		fputs("  ", out);
		put_path(out, list[k].now);
	}
	put_more(out, n, "files");
	free(list);
}
