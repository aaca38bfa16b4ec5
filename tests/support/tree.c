/*
 * tree.c - see tree.h.
 */
#include "tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static void fail(const char *what, const char *path)
{
	fprintf(stderr, "tree: %s %s: %s\n", what, path, strerror(errno));
	abort();
}

/* FNV-1a: any hash will do that needs no library. */
static uint64_t hash_bytes(uint64_t h, const void *data, size_t n)
{
	const unsigned char *p = data;

	while (n--)
		h = (h ^ *p++) * 0x100000001b3ull;
	return h;
}

static uint64_t hash_file(int at, const char *name, const char *path)
{
	static char buf[1 << 16];
	uint64_t h = 0xcbf29ce484222325ull;
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0 && errno == EACCES)
		return 0;
	if (fd < 0)
		fail("open", path);
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		h = hash_bytes(h, buf, n);
	if (n < 0)
		fail("read", path);
	close(fd);
	return h;
}

static bool beneath;

/* The order of attributes does not matter: add up their hashes. */
static uint64_t hash_xattrs(int at, const char *name, const char *path)
{
	static char names[1 << 16], value[1 << 16];
	uint64_t sum = 0;
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	ssize_t len, n;

	if (fd < 0 && errno == EACCES)
		return 0;
	if (fd < 0)
		fail("open", path);
	len = flistxattr(fd, names, sizeof(names));
	if (len < 0 && errno != ENOTSUP)
		fail("list attributes of", path);
	for (char *p = names; p < names + len; p += strlen(p) + 1) {
		if (beneath && strncmp(p, "trusted.gaiafs.", 15) == 0)
			continue;
		n = fgetxattr(fd, p, value, sizeof(value));
		if (n < 0)
			fail("read an attribute of", path);
		sum += hash_bytes(hash_bytes(1, p, strlen(p)), value, n);
	}
	close(fd);
	return sum;
}

static void print_dir(FILE *out, int at, const char *prefix);

static void print_one(FILE *out, int at, const char *name, const char *path)
{
	char target[PATH_MAX] = "";
	struct stat st;
	int fd;

	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW))
		fail("stat", path);
	fprintf(out, "%s mode=%o uid=%d gid=%d links=%lu", path, st.st_mode, st.st_uid, st.st_gid,
		(unsigned long)st.st_nlink);
	switch (st.st_mode & S_IFMT) {
	case S_IFREG:
		fprintf(out, " size=%ld xattrs=%lx hash=%lx\n", (long)st.st_size,
			hash_xattrs(at, name, path), hash_file(at, name, path));
		break;
	case S_IFLNK:
		if (readlinkat(at, name, target, sizeof(target) - 1) < 0)
			fail("readlink", path);
		fprintf(out, " -> %s\n", target);
		break;
	case S_IFDIR:
		fprintf(out, " xattrs=%lx\n", hash_xattrs(at, name, path));
		fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0 && errno == EACCES)
			break;
		if (fd < 0)
			fail("open", path);
		print_dir(out, fd, path);
		break;
	default:
		fprintf(out, " rdev=%lx\n", (unsigned long)st.st_rdev);
	}
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Consumes @at. */
static void print_dir(FILE *out, int at, const char *prefix)
{
	DIR *d = fdopendir(at);
	char **names = NULL, *path;
	struct dirent *e;
	size_t n = 0;

	if (!d)
		fail("read", prefix);
	while ((e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (!strcmp(e->d_name, "lost+found"))
			continue;
		names = realloc(names, (n + 1) * sizeof(*names));
		names[n++] = strdup(e->d_name);
	}
	if (n)
		qsort(names, n, sizeof(*names), by_name);
	for (size_t i = 0; i < n; i++) {
		if (asprintf(&path, "%s/%s", prefix, names[i]) < 0)
			abort();
		print_one(out, dirfd(d), names[i], path);
		free(path);
		free(names[i]);
	}
	free(names);
	closedir(d);
}

char *tree_print(int dirfd)
{
	char *text;
	size_t len;
	FILE *out = open_memstream(&text, &len);
	int fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		fail("open", ".");
	print_dir(out, fd, ".");
	fclose(out);
	return text;
}

char *tree_print_beneath(int dirfd)
{
	char *text;

	beneath = true;
	text = tree_print(dirfd);
	beneath = false;
	return text;
}

char *tree_print_path(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char *text;

	if (fd < 0)
		fail("open", path);
	text = tree_print(fd);
	close(fd);
	return text;
}

void tree_make_temp(const char *parent, char path[PATH_MAX])
{
	const char *tmp = getenv("TMPDIR");

	if (!parent)
		parent = tmp && *tmp ? tmp : "/tmp";
	snprintf(path, PATH_MAX, "%s/gaia-test-XXXXXX", parent);
	if (!mkdtemp(path) || chmod(path, 0755))
		fail("make", path);
}

char *tree_difference(const char *a, const char *b)
{
	char *line;
	size_t i = 0, start = 0;

	if (!strcmp(a, b))
		return NULL;
	for (; a[i] && a[i] == b[i]; i++) {
		if (a[i] == '\n')
			start = i + 1;
	}
	if (asprintf(&line, "\"%.*s\" against \"%.*s\"", (int)strcspn(a + start, "\n"), a + start,
		     (int)strcspn(b + start, "\n"), b + start) < 0)
		abort();
	return line;
}
