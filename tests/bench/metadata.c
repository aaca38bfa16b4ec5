/*
 * metadata.c - how long names take.
 *
 *	metadata DIR COUNT create|create-byte|stat|readdir|open|unlink
 *
 * Does one thing to COUNT files DIR/0, DIR/1, ... and prints the nanoseconds that it took for all
 * of them. They are empty, or of one byte.
 */
#include <dirent.h>
#include <err.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static void create_empty(const char *name)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);

	if (fd < 0 || close(fd))
		err(1, "create %s", name);
}

static void create_byte(const char *name)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);

	if (fd < 0 || write(fd, "x", 1) != 1 || close(fd))
		err(1, "create %s", name);
}

static void stat_file(const char *name)
{
	struct stat st;

	if (stat(name, &st))
		err(1, "stat %s", name);
}

static void open_file(const char *name)
{
	int fd = open(name, O_RDONLY);

	if (fd < 0 || close(fd))
		err(1, "open %s", name);
}

static void unlink_file(const char *name)
{
	if (unlink(name))
		err(1, "unlink %s", name);
}

static const struct {
	const char *name;
	void (*file)(const char *name);
} works[] = {
	{ "create", create_empty },
	{ "create-byte", create_byte },
	{ "stat", stat_file },
	{ "open", open_file },
	{ "unlink", unlink_file },
};

static void read_dir(long count)
{
	DIR *dir = opendir(".");
	struct dirent *d;
	long n = 0;

	if (!dir)
		err(1, "opendir");
	while ((d = readdir(dir)))
		n += d->d_name[0] != '.';
	closedir(dir);
	if (n != count)
		errx(1, "readdir: %ld of %ld files seen", n, count);
}

static void each_file(const char *work, long count)
{
	char name[24];

	for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
		if (strcmp(works[i].name, work))
			continue;
		for (long n = 0; n < count; n++) {
			snprintf(name, sizeof(name), "%ld", n);
			works[i].file(name);
		}
		return;
	}
	errx(2, "%s: unknown work", work);
}

int main(int argc, char **argv)
{
	uint64_t start;

	if (argc != 4) {
		fprintf(stderr, "usage: metadata DIR COUNT create|create-byte|stat|readdir|open|unlink\n");
		return 2;
	}
	if (chdir(argv[1]))
		err(1, "%s", argv[1]);
	start = now_ns();
	if (!strcmp(argv[3], "readdir"))
		read_dir(atol(argv[2]));
	else
		each_file(argv[3], atol(argv[2]));
	printf("%llu\n", (unsigned long long)(now_ns() - start));
	return 0;
}
