/*
 * move.c - mappings at the daemon: made there, and made again at the daemon that has taken the mount over.
 *
 * The address ranges stay, and so does what the program knows. Of the old daemon's memory nothing stays mapped: what is acquired from now on the
 * new daemon hands over.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sides.h"

#define FOR_DETECT (GAIA_FEATURE_DETECT | GAIA_FEATURE_LISTS | GAIA_FEATURE_UNUSED)
#define FOR_SIDES (GAIA_FEATURE_LISTS | GAIA_FEATURE_UNUSED)

/* ---- for the first time ---- */

/* By a descriptor of the file: the daemon accepts the mapping for that file only. */
static int map_ioctl(struct mapping *m, int fd)
{
	struct gaia_ioc_map io = {
		.key = m->conn->key,
		.offset = m->offset,
		.length = m->length,
		.device = m->device,
		.prot = m->prot,
	};
	int err;

	io.flags = m->detect ? GAIA_MAP_DETECTS : 0;
	err = wire_ioctl(fd, GAIA_IOC_MAP, &io);
	m->id = io.map;
	m->release_by = io.release;
	return err;
}

/* With m->conn, inside. @fd: the caller's descriptor. */
static int map_inside(struct mapping *m, int fd, ino_t ino)
{
	int err = file_get(m->conn, fd, ino, &m->file);

	if (err)
		return err;
	/* An older daemon finds out itself. */
	if ((m->conn->features & FOR_DETECT) != FOR_DETECT)
		detect_end(m);
	err = map_ioctl(m, fd);
	if (err)
		file_put(m->file);
	return err;
}

/* With m->conn. It works: then the caller is inside. */
static int map_with(struct mapping *m, int fd, ino_t ino)
{
	int err;

	do {
		err = conn_enter(m->conn, USE_MAP);
		if (err)
			return err;
		err = map_inside(m, fd, ino);
		if (!err)
			return 0;
	} while (conn_leave(m->conn, USE_MAP, err));
	return err;
}

#define TRIES 3

int map_at_daemon(struct mapping *m, int fd)
{
	struct stat st;
	int err = -ENOTCONN;

	if (fstat(fd, &st))
		return wire_error();
	if (!S_ISREG(st.st_mode))
		return -ENODEV;
	for (unsigned tries = 0; tries < TRIES && err == -ENOTCONN;) {
		bool fresh = true;

		err = conn_get(fd, st.st_dev, &m->conn, &fresh);
		/* Other daemons may have taken the mount over meanwhile. */
		tries += fresh;
		if (err)
			continue;
		err = map_with(m, fd, st.st_ino);
		if (!err)
			return 0;
		/*
		 * The daemon does not know the connection: it has ended it, or the connection is to an earlier
		 * daemon: one that has handed the mount over, or whose device number (st_dev) was used again.
		 */
		if (err == -ENOTCONN) {
			pthread_mutex_lock(&gaia_lock);
			conn_kill(m->conn, err);
			pthread_mutex_unlock(&gaia_lock);
		}
		conn_put(m->conn);
	}
	return err;
}

void unmap_at_daemon(struct mapping *m)
{
	struct gaia_ioc_range io = { .key = m->conn->key, .map = m->id };

	(void)wire_ioctl(m->file->fd, GAIA_IOC_UNMAP, &io);
}

void mapping_disconnect(struct mapping *m)
{
	file_put(m->file);
	conn_put(m->conn);
}

/*
 * What is only read of a mapping of the host that can write is home itself (sides.h): for that it needs a second mapping at the daemon. If it
 * cannot have one all of it is replicas, which is correct, too.
 */
void add_side(struct mapping *m, int fd)
{
	struct mapping *reader;
	int err;

	if (m->ops != &host_kind || !(m->prot & PROT_WRITE) || (m->conn->features & FOR_SIDES) != FOR_SIDES)
		return;
	reader = calloc(1, sizeof(*reader));
	if (!reader)
		return;
	reader->ops = m->ops;
	reader->offset = m->offset;
	reader->length = m->length;
	reader->span = m->span;
	reader->start = m->start;
	reader->prot = PROT_READ;
	reader->device = m->device;
	reader->conn = m->conn;
	conn_hold(m->conn);
	err = map_inside(reader, fd, m->file->ino);
	if (err)
		goto put_conn;
	err = sides_make(m, reader);
	if (!err)
		return;
	unmap_at_daemon(reader);
	file_put(reader->file);
put_conn:
	conn_put(reader->conn);
	free(reader);
}

void remove_side(struct mapping *m)
{
	struct mapping *reader = m->sides ? sides_free(m) : NULL;

	if (!reader)
		return;
	unmap_at_daemon(reader);
	mapping_disconnect(reader);
	free(reader);
}

/* ---- again ---- */

/* All that is the old daemon's. Nobody is inside, and so nothing is held. */
static void give_up_memory(struct mapping *m)
{
	unsigned n = (unsigned)(m->span / GAIA_CHUNK);
	int err = m->ops->clear(m, 0, n);

	if (!err && m->sides)
		err = m->ops->clear(m->sides->reader, 0, n);
	detect_moved(m);
	if (err && !m->lost)
		m->lost = err;
}

/* A new socket, and what is said there. */
static int connect_again(struct conn *c, int fd)
{
	uint64_t features = GAIA_FEATURES & ~GAIA_FEATURES_OF_TOOLS, seq;
	struct gaia_client_key key;
	int err = -ESTALE;

	for (unsigned tries = 0; tries < 2 && err == -ESTALE; tries++) {
		/* Under the lock, so that a child finds and closes it. */
		pthread_mutex_lock(&gaia_lock);
		close(c->sock);
		c->sock = wire_socket();
		err = c->sock < 0 ? c->sock : 0;
		pthread_mutex_unlock(&gaia_lock);
		if (!err)
			err = wire_handshake(c->sock, fd, &key, &seq, &features);
	}
	if (err)
		return err;
	/* What is in use may rest on them. (gaia_publish() does not, and no extent is placed any more.) */
	if (c->features & ~(features | GAIA_FEATURE_PUBLISHES | GAIA_FEATURE_EXTENTS))
		return -EPROTO;
	pthread_mutex_lock(&gaia_lock);
	c->key = key;
	c->seq = seq;
	c->features = features;
	c->refused = 0;
	lists_unmap(&c->lists);
	lists_forked(&c->lists);
	pthread_mutex_unlock(&gaia_lock);
	return 0;
}

/* The new daemon has read its configuration anew: what has the number may be another device. */
static int same_device(const struct mapping *m)
{
	struct gaia_ioc_device found;
	const struct kind_ops *ops;
	int err = device_find(m->file->fd, m->device == GAIA_HOST ? -1 : (int)m->device, &found, &ops);

	if (err)
		return err;
	if (ops != m->ops || memcmp(found.uuid, m->device_uuid, sizeof(m->device_uuid)) != 0)
		return -ENODEV;
	return m->strict == (found.flags & GAIA_DEVICE_STRICT && ops->protect) ? 0 : -ENODEV;
}

static int map_again(struct mapping *m)
{
	int err = same_device(m);

	if (!err)
		err = map_ioctl(m, m->file->fd);
	if (err || !m->sides)
		return err;
	err = map_ioctl(m->sides->reader, m->file->fd);
	if (err)
		unmap_at_daemon(m);
	return err;
}

static int move_mapping(struct mapping *m)
{
	int err = map_again(m);

	if (err)
		return err;
	err = mapping_number(m);
	if (!err)
		return 0;
	if (m->sides)
		unmap_at_daemon(m->sides->reader);
	unmap_at_daemon(m);
	return err;
}

/* The lock is not held. */
static int move_all(struct conn *c, struct mapping **all, size_t n)
{
	int err;

	for (size_t k = 0; k < n; k++)
		give_up_memory(all[k]);
	/* Without mappings the next call that needs a connection makes one. */
	err = n ? connect_again(c, all[0]->file->fd) : -ENOTCONN;
	for (size_t k = 0; k < n && !err; k++) {
		if (!all[k]->lost)
			all[k]->lost = move_mapping(all[k]);
		/* The new daemon has ended. */
		if (all[k]->lost == -ENOTCONN)
			err = -ENOTCONN;
	}
	return err;
}

int conn_move(struct conn *c)
{
	struct mapping **all;
	size_t n;
	int err;

	gate_alone(c);
	err = mappings_unnumber(c, &all, &n);
	if (!err) {
		pthread_mutex_unlock(&gaia_lock);
		err = move_all(c, all, n);
		free(all);
		pthread_mutex_lock(&gaia_lock);
	}
	/* The program has unmapped all that it had. */
	if (!err && c->state == CONN_DEAD)
		err = c->error;
	gate_open(c, !err);
	return err ? -ENOTCONN : 0;
}
