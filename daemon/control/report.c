/*
 * report.c - the state of the mount and of files, as JSON.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/trace.h"
#include "base/util.h"
#include "control/internal.h"

#define POOLS_LISTED 64u

/* What a client's calls waited for; what they did not is left out. */
static json_t *waits_json(struct client *c)
{
	json_t *list = json_array();

	for (enum wait_for k = 0; k < WAIT_COUNT; k++) {
		unsigned now;
		uint64_t ns = uses_waited_ns(&c->uses, k, &now);

		if (ns > 0 || now > 0)
			json_array_append_new(list, json_pack("{s:s, s:i, s:I}", "for", wait_names[k], "now", (int)now, "ns", (json_int_t)ns));
	}
	return list;
}

/* Looks at each of the client's mappings, which takes its lock for as long. */
static json_t *client_json(struct client *c)
{
	uint64_t amounts[CLIENT_AMOUNT_COUNT] = { 0 };
	unsigned maps;
	json_t *row;

	pthread_mutex_lock(&c->lock);
	maps = c->n_maps;
	for (struct map *map = c->maps; map; map = map->hh.next) {
		amounts[CLIENT_mapped_bytes] += map->end - map->start;
		cache_mapping_amounts(map->m, amounts);
	}
	pthread_mutex_unlock(&c->lock);
	row = json_pack("{s:i, s:I, s:i}", "pid", (int)c->pid, "uid", (json_int_t)c->uid, "mappings", (int)maps);
	for (unsigned k = 0; k < CLIENT_AMOUNT_COUNT; k++)
		json_object_set_new(row, client_amount_names[k], json_integer((json_int_t)amounts[k]));
	json_object_set_new(row, "acquires", json_integer((json_int_t)atomic_load(&c->acquires)));
	json_object_set_new(row, "releases", json_integer((json_int_t)atomic_load(&c->releases)));
	for (enum moved k = 0; k < MOVED_COUNT; k++)
		json_object_set_new(row, moved_names[k], json_integer((json_int_t)moved_get(&c->uses.moved, k)));
	json_object_set_new(row, "waits", waits_json(c));
	return row;
}

/* Those that @uid may see, referenced; to be freed. */
static struct client **clients_get(struct control *ctl, uid_t uid, unsigned *n)
{
	bool all = quota_is_owner(ctl->quota, uid);
	struct client **list, *c, *next;

	*n = 0;
	pthread_mutex_lock(&ctl->lock);
	list = xmalloc((HASH_COUNT(ctl->clients) + 1) * sizeof(*list));
	HASH_ITER(hh, ctl->clients, c, next) {
		if (!all && c->uid != uid)
			continue;
		client_get(c);
		list[(*n)++] = c;
	}
	pthread_mutex_unlock(&ctl->lock);
	return list;
}

static json_t *clients_json(struct control *ctl, uid_t uid)
{
	json_t *list = json_array();
	struct client **clients;
	unsigned n;

	/* Each call of any client needs control->lock for a moment: so it is not held while mappings are looked at. */
	clients = clients_get(ctl, uid, &n);
	for (unsigned k = 0; k < n; k++) {
		json_array_append_new(list, client_json(clients[k]));
		client_put(clients[k]);
	}
	free(clients);
	return list;
}

/* How many of each may exist, and how many exist. */
static json_t *limits_json(struct control *ctl, uid_t uid)
{
	bool all = quota_is_owner(ctl->quota, uid);
	json_t *list = json_array();

	for (unsigned i = 0; i < QUOTA_COUNT; i++) {
		struct quota_use use = quota_use(ctl->quota, i);
		json_t *row = json_pack("{s:s, s:I, s:I, s:I}", "of", quota_name(i),
					"each_user", (json_int_t)use.each,
					"users", (json_int_t)use.users, "all", (json_int_t)use.all);

		if (all)
			json_object_set_new(row, "present", json_integer(use.used));
		json_array_append_new(list, row);
	}
	return list;
}

static json_t *users_json(struct control *ctl, uid_t uid)
{
	bool all = quota_is_owner(ctl->quota, uid);
	json_t *list = json_array();
	struct quota_user *user;
	size_t n;

	user = quota_users(ctl->quota, &n);
	for (size_t k = 0; k < n; k++) {
		json_t *row;

		if (!all && user[k].uid != uid)
			continue;
		row = json_pack("{s:I}", "uid", (json_int_t)user[k].uid);
		for (unsigned i = 0; i < QUOTA_COUNT; i++)
			json_object_set_new(row, quota_name(i), json_integer(user[k].used[i]));
		json_array_append_new(list, row);
	}
	free(user);
	return list;
}

/* Races show where others write; and what is saved because pages are equal, what others have. */
static void hide_from_users(json_t *cache)
{
	json_t *counters = json_object_get(cache, "counters");
	const char *name;
	json_t *value;
	void *next;

	json_object_set_new(cache, "races", json_array());
	json_object_del(cache, "dedup");
	json_object_foreach_safe(counters, next, name, value)
		if (!strncmp(name, "dedup_", 6))
			json_object_del(counters, name);
}

/* Workers that have something to do. How much others ask for is the owners' to know. */
static json_t *workers_json(struct control *ctl, uid_t uid)
{
	struct pool_use use[POOLS_LISTED];
	unsigned n = quota_is_owner(ctl->quota, uid) ? pools_look(use, POOLS_LISTED) : 0;
	json_t *list = json_array();

	for (unsigned i = 0; i < n; i++)
		if (use[i].busy || use[i].waiting)
			json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:i}", "workers", use[i].name, "busy", (int)use[i].busy, "waiting",
							      (int)use[i].waiting, "threads", (int)use[i].threads));
	return list;
}

/* What the mount reports of itself, the cache's part, and the clients. */
static json_t *status_json(struct control *ctl, uid_t uid)
{
	json_t *status = json_object();
	json_t *cache = cache_status_json(ctl->cache);

	tickets_forget_expired(ctl);
	if (ctl->mount)
		json_object_update(status, ctl->mount);
	if (!quota_is_owner(ctl->quota, uid))
		hide_from_users(cache);
	json_object_update(status, cache);
	json_decref(cache);
	json_object_set_new(status, "clients", clients_json(ctl, uid));
	json_object_set_new(status, "users", users_json(ctl, uid));
	json_object_set_new(status, "limits", limits_json(ctl, uid));
	json_object_set_new(status, "workers", workers_json(ctl, uid));
	return status;
}

static json_t *sync_json(struct control *ctl)
{
	json_t *files = json_array();

	(void)cache_sync_all(ctl->cache, files);
	return json_pack("{s:o}", "files", files);
}

static int write_all(int fd, const char *text, size_t len)
{
	while (len) {
		ssize_t n = write(fd, text, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		text += n;
		len -= n;
	}
	return 0;
}

/*
 * ---- reports that were sent ----
 *
 * A report takes the daemon's memory until the client closes it, and the client may not even have received it. So its
 * descriptor is kept, and the report is emptied after a long time, or when its user asks for many more.
 */
#define REPORT_LIFE_NS 60000000000ull	/* reading it takes milliseconds */
#define REPORT_READ_NS 1000000000ull	/* then others may have an owner's place */
#define REPORT_BYTES (16u << 20)	/* of one user's reports together; a single one may be longer */

struct report {
	TAILQ_ENTRY(report) link; /* control.lock */
	uid_t uid;
	int fd;
	size_t size;
	uint64_t expires_ns;
};

/* control->lock is held. */
static void report_forget(struct control *ctl, struct report *r)
{
	TAILQ_REMOVE(&ctl->reports, r, link);
	if (ftruncate(r->fd, 0))
		log_warn("control: a report could not be emptied: %s", strerror(errno));
	close(r->fd);
	quota_give(ctl->quota, QUOTA_reports, r->uid);
	free(r);
}

void reports_forget(struct control *ctl)
{
	struct report *r;

	while ((r = TAILQ_FIRST(&ctl->reports)))
		report_forget(ctl, r);
}

/*
 * Forget the oldest report of @uid's; with @others: of all users', but an owner's that has just been sent only if an owner calls: owners, who
 * may fill all places (gaia top does), would keep users from theirs. Where it is the users' own share that is full no owner's helps.
 * False: there is none. control->lock is held.
 */
static bool forget_oldest(struct control *ctl, uid_t uid, bool others)
{
	struct quota_use use = quota_use(ctl->quota, QUOTA_reports);
	bool owner = quota_is_owner(ctl->quota, uid), owners_help = use.used >= use.all;
	uint64_t read = now_ns() + REPORT_LIFE_NS - (fault_point("report.is_read") ? 0 : REPORT_READ_NS); /* what expires before */
	struct report *r;

	TAILQ_FOREACH(r, &ctl->reports, link)
		if (r->uid == uid || (others && (owner || (owners_help && r->expires_ns < read) || !quota_is_owner(ctl->quota, r->uid))))
			break;
	if (r)
		report_forget(ctl, r);
	return r != NULL;
}

/* control->lock is held. */
static size_t bytes_of(const struct control *ctl, uid_t uid)
{
	const struct report *r;
	size_t sum = 0;

	TAILQ_FOREACH(r, &ctl->reports, link)
		sum += r->uid == uid ? r->size : 0;
	return sum;
}

/* Called before a report of @size is sent: makes room for it, at the cost of older ones, and counts it. */
static int report_room(struct control *ctl, uid_t uid, size_t size)
{
	struct report *r;
	int err;

	pthread_mutex_lock(&ctl->lock);
	while ((r = TAILQ_FIRST(&ctl->reports)) && r->expires_ns <= now_ns())
		report_forget(ctl, r);
	while (bytes_of(ctl, uid) + size > REPORT_BYTES && forget_oldest(ctl, uid, false))
		;
	while ((err = quota_look(ctl->quota, QUOTA_reports, uid)) && forget_oldest(ctl, uid, err == -ENFILE))
		;
	err = quota_take(ctl->quota, QUOTA_reports, uid);
	pthread_mutex_unlock(&ctl->lock);
	return err;
}

static void report_sent(struct control *ctl, uid_t uid, int fd, size_t size)
{
	struct report *r = xmalloc(sizeof(*r));

	*r = (struct report){ .uid = uid, .fd = fd, .size = size, .expires_ns = now_ns() + REPORT_LIFE_NS };
	pthread_mutex_lock(&ctl->lock);
	TAILQ_INSERT_TAIL(&ctl->reports, r, link);
	pthread_mutex_unlock(&ctl->lock);
}

/* @text in a memfd that cannot be changed any more, except by truncating it. */
static int sealed_memfd(const char *text)
{
	int fd = memfd_create("gaiafs-report", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int err;

	if (fd < 0)
		return -errno;
	err = write_all(fd, text, strlen(text));
	if (!err && fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_GROW | F_SEAL_WRITE))
		err = -errno;
	if (err) {
		close(fd);
		return err;
	}
	return fd;
}

/* The report's text, to be freed, or NULL. */
static char *report_text(struct control *ctl, struct cfile *f, uid_t uid, unsigned what)
{
	json_t *json = what == GAIA_REPORT_STATUS ? status_json(ctl, uid) :
		       what == GAIA_REPORT_SYNC	  ? sync_json(ctl) :
		       what == GAIA_REPORT_USE	  ? cache_use_json(ctl->cache) :
		       what == GAIA_REPORT_PINS	  ? cache_pins_json(ctl->cache, uid, quota_is_owner(ctl->quota, uid)) :
						    cfile_residency_json(f);
	char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;

	json_decref(json);
	return text;
}

/* A sealed memfd with the report, or a negative errno. */
static int make_report(struct control *ctl, struct cfile *f, const struct client *c, uid_t uid, unsigned what)
{
	char *text = NULL;
	int fd = 0;

	if (what == GAIA_REPORT_TRACE)
		fd = trace_take(c->pid, &text);
	else
		text = report_text(ctl, f, uid, what);
	if (!fd)
		fd = text ? sealed_memfd(text) : -ENOMEM;
	free(text);
	if (fd < 0 && fd != -EBUSY)
		log_warn("control: no report could be made: %s", strerror(-fd));
	return fd;
}

int control_report(struct control *ctl, struct cfile *f, uid_t uid, struct gaia_ioc_report *io)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_REPORT, .count = 1 };
	struct client *c;
	struct stat st;
	int fd, err;

	if (io->reserved || io->what < GAIA_REPORT_STATUS || io->what > GAIA_REPORT_USE)
		return -EINVAL;
	if ((io->what == GAIA_REPORT_SYNC || io->what == GAIA_REPORT_END || io->what == GAIA_REPORT_TRACE || io->what == GAIA_REPORT_USE) &&
	    !quota_is_owner(ctl->quota, uid))
		return -EPERM;
	if (io->what == GAIA_REPORT_RESIDENCY && !f)
		return -ENODEV;
	c = client_find(ctl, &io->key);
	if (!c)
		return -ENOTCONN;
	if (io->what == GAIA_REPORT_END) {
		err = ctl->end < 0 ? -EOPNOTSUPP : client_try_send(c, &msg, &ctl->end, 1, &io->seq);
		client_put(c);
		return err;
	}
	fd = make_report(ctl, f, c, uid, io->what);
	if (fd < 0) {
		client_put(c);
		return fd;
	}
	err = fstat(fd, &st) ? -errno : report_room(ctl, uid, (size_t)st.st_size);
	if (err)
		goto close_fd;
	err = client_try_send(c, &msg, &fd, 1, &io->seq);
	if (err) {
		quota_give(ctl->quota, QUOTA_reports, uid);
		goto close_fd;
	}
	report_sent(ctl, uid, fd, (size_t)st.st_size);
	client_put(c);
	return 0;

close_fd:
	close(fd);
	client_put(c);
	return err;
}
