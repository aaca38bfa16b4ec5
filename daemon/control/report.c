/*
 * report.c - the state of the mount and of files, as JSON, for people.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "control/internal.h"

static json_t *clients_json(struct control *ctl, uid_t uid)
{
	bool all = quota_is_owner(ctl->quota, uid);
	json_t *list = json_array();
	struct client *c, *next;

	pthread_mutex_lock(&ctl->lock);
	HASH_ITER(hh, ctl->clients, c, next) {
		unsigned maps;

		if (!all && c->uid != uid)
			continue;
		pthread_mutex_lock(&c->lock);
		maps = c->n_maps;
		pthread_mutex_unlock(&c->lock);
		json_array_append_new(list, json_pack("{s:i, s:I, s:i}", "pid", (int)c->pid, "uid",
						      (json_int_t)c->uid, "mappings", (int)maps));
	}
	pthread_mutex_unlock(&ctl->lock);
	return list;
}

/* How many there may be, and how many are there. */
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

/* What the mount says of itself, the cache's part, and the clients. */
static json_t *status_json(struct control *ctl, uid_t uid)
{
	json_t *status = json_object();
	json_t *cache = cache_status_json(ctl->cache);

	tickets_forget_expired(ctl);
	if (ctl->mount)
		json_object_update(status, ctl->mount);
	json_object_update(status, cache);
	json_decref(cache);
	json_object_set_new(status, "clients", clients_json(ctl, uid));
	json_object_set_new(status, "users", users_json(ctl, uid));
	json_object_set_new(status, "limits", limits_json(ctl, uid));
	return status;
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

/* @text in a memfd that nobody can change any more. */
static int sealed_memfd(const char *text)
{
	int fd = memfd_create("gaiafs-report", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int err;

	if (fd < 0)
		return -errno;
	err = write_all(fd, text, strlen(text));
	if (!err && fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE))
		err = -errno;
	if (err) {
		close(fd);
		return err;
	}
	return fd;
}

/* A sealed memfd with the report, or a negative errno. */
static int make_report(struct control *ctl, struct cfile *f, uid_t uid, unsigned what)
{
	json_t *json = what == GAIA_REPORT_STATUS ? status_json(ctl, uid) : cfile_residency_json(f);
	char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
	int fd = text ? sealed_memfd(text) : -ENOMEM;

	json_decref(json);
	free(text);
	if (fd < 0)
		log_warn("control: no report could be made: %s", strerror(-fd));
	return fd;
}

int control_report(struct control *ctl, struct cfile *f, uid_t uid, struct gaia_ioc_report *io)
{
	struct gaia_msg msg = { .kind = GAIA_MSG_REPORT, .count = 1 };
	struct client *c;
	int fd, err;

	if (io->reserved || (io->what != GAIA_REPORT_STATUS && io->what != GAIA_REPORT_RESIDENCY))
		return -EINVAL;
	if (io->what == GAIA_REPORT_RESIDENCY && !f)
		return -ENODEV;
	c = client_find(ctl, &io->key);
	if (!c)
		return -ENOTCONN;
	fd = make_report(ctl, f, uid, io->what);
	if (fd < 0) {
		client_put(c);
		return fd;
	}
	err = client_try_send(c, &msg, &fd, 1, &io->seq);
	close(fd);
	client_put(c);
	return err;
}
