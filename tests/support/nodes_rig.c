/*
 * nodes_rig.c - see nodes_rig.h.
 */
#include "nodes_rig.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "shell.h"
#include "tree.h"

struct mnt node[NODES];
int at[NODES] = { -1, -1 };
char top[PATH_MAX], files[PATH_MAX + 16];
int below = -1;

static bool on_engine;
static const char *args[16]; /* must last as long as the nodes */

static char given[NODES][PATH_MAX]; /* "": none */

/* Two clients of an engine that are there, if the environment names any. False: they are not for a test that needs an engine without locks. */
static bool take_clients(bool needs_ours)
{
	const char *clients = getenv("GAIA_ENGINE_CLIENTS");

	if (!clients)
		return true;
	if (needs_ours)
		return false;
	cr_assert_eq(sscanf(clients, "%2047[^:]:%2047s", given[0], given[1]), NODES, "GAIA_ENGINE_CLIENTS: not DIR:DIR");
	return true;
}

bool nodes_start(bool engine, bool passthrough, const char *names_age, const char *engine_option)
{
	int n = 0;

	if (geteuid() != 0 || (engine && !take_clients(*engine_option)))
		return false;
	on_engine = engine;
	args[n++] = "--source";
	args[n++] = names_age ? "shared" : "local";
	args[n++] = "--cpu-cache";
	args[n++] = passthrough ? "auto" : "writethrough";
	args[n++] = "--device";
	args[n++] = "sim:16M";
	if (names_age)
		args[n++] = "--names-age";
	args[n++] = names_age;
	args[n] = NULL;
	tree_make_temp(NULL, top);
	if (engine && **given)
		snprintf(files, sizeof(files), "%s/%s", given[0], strrchr(top, '/') + 1);
	else
		snprintf(files, sizeof(files), "%s/files", top);
	cr_assert_eq(mkdir(files, 0777), 0);
	cr_assert_eq(chmod(files, 0777), 0);
	below = open(files, O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (int i = 0; i < NODES; i++) {
		char client[PATH_MAX + 16];
		struct mnt_options o = { .args = args, .backing = files };

		if (engine && **given) {
			snprintf(client, sizeof(client), "%s%s", given[i], files + strlen(given[0]));
			o.backing = client;
		} else if (engine) {
			snprintf(client, sizeof(client), "%s/client%d", top, i);
			cr_assert_eq(mkdir(client, 0755), 0);
			shell_ok(top, ENGINE_FS " files client%d %s", i, engine_option);
			o.backing = client;
		}
		cr_assert_eq(mnt_start(&node[i], &o), 0, "node %d cannot be mounted", i);
		at[i] = open(node[i].path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	}
	if (!passthrough || !mnt_log_lines(&node[0], "--cpu-cache writethrough"))
		return true;
	fprintf(stderr, "files cannot be passed through here (libfuse 3.17, Linux 6.9, root)\n");
	return false;
}

void nodes_stop(void)
{
	int failed = 0;

	if (!*top)
		return;
	for (int i = 0; i < NODES; i++) {
		if (at[i] >= 0)
			close(at[i]);
		at[i] = -1;
		if (*node[i].dir)
			failed |= mnt_stop(&node[i]);
		if (on_engine && !**given) {
			char client[PATH_MAX + 16];

			snprintf(client, sizeof(client), "%s/client%d", top, i);
			umount2(client, MNT_DETACH);
		}
	}
	close(below);
	shell_ok(NULL, "rm -rf '%s' '%s'", files, top);
	*top = '\0';
	cr_assert_eq(failed, 0, "a node did not end cleanly");
}

int open_at(int n, const char *name, int flags)
{
	int fd = openat(at[n], name, flags | O_CLOEXEC, 0666);

	cr_assert_geq(fd, 0, "node %d: %s: %s", n, name, strerror(errno));
	return fd;
}

/* From open to close. */
void put(int n, const char *name, const char *bytes)
{
	int fd = open_at(n, name, O_CREAT | O_WRONLY | O_TRUNC);

	cr_assert_eq(write(fd, bytes, strlen(bytes)), (ssize_t)strlen(bytes));
	cr_assert_eq(close(fd), 0);
}

void has(int n, const char *name, const char *bytes)
{
	char is[256] = "";
	int fd = open_at(n, name, O_RDONLY);
	ssize_t got = read(fd, is, sizeof(is) - 1);
	struct stat st;

	cr_assert_geq(got, 0, "node %d: %s: %s", n, name, strerror(errno));
	is[got] = '\0';
	cr_assert_str_eq(is, bytes, "node %d: %s", n, name);
	cr_assert_eq(fstatat(at[n], name, &st, 0), 0);
	cr_assert_eq(st.st_size, (off_t)strlen(bytes));
	close(fd);
}

static bool lists(int n, const char *name)
{
	int fd = openat(at[n], ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fdopendir(fd);
	struct dirent *e;
	bool found = false;

	while ((e = readdir(dir)))
		found |= !strcmp(e->d_name, name);
	closedir(dir);
	return found;
}

bool is_there(int n, const char *name)
{
	struct stat st;
	bool is = !fstatat(at[n], name, &st, AT_SYMLINK_NOFOLLOW);

	cr_assert(is || errno == ENOENT, "%s", strerror(errno));
	cr_assert_eq(lists(n, name), is, "node %d: %s: listed, but not there, or the other way", n, name);
	return is;
}

long counter_of(int n, const char *name)
{
	struct shell_result r = shell_run(NULL, 60, "\"$GAIA\" status --json '%s'", node[n].path);
	char key[64];
	const char *found;
	long value;

	snprintf(key, sizeof(key), "\"%s\":", name);
	found = strstr(r.out, key);
	cr_assert_not_null(found, "%s%s", r.out, r.err);
	value = strtol(found + strlen(key), NULL, 10);
	shell_free(&r);
	return value;
}

