/*
 * other_fs.c - a file system behind FUSE of which gaiafs knows nothing: a directory with one empty file, "file".
 *
 *	other-fs DIR
 *
 * returns when it is mounted; umount(8) ends it. Users other than root see nothing of it.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define FUSE_USE_VERSION 314
#include <fuse.h>

static int other_getattr(const char *path, struct stat *st, struct fuse_file_info *fi)
{
	(void)fi;
	if (!strcmp(path, "/"))
		st->st_mode = S_IFDIR | 0755;
	else if (!strcmp(path, "/file"))
		st->st_mode = S_IFREG | 0644;
	else
		return -ENOENT;
	st->st_nlink = 1;
	return 0;
}

int main(int argc, char **argv)
{
	static const struct fuse_operations ops = { .getattr = other_getattr };
	char *args[] = { argv[0], (char *)"-o", (char *)"subtype=other,fsname=other", argc == 2 ? argv[1] : (char *)"", NULL };

	return fuse_main(4, args, &ops, NULL);
}
