/*
 * other_fs.c - a file system behind FUSE of which gaiafs knows nothing: a directory with one empty file, "file".
 *
 *	other-fs DIR [mute]
 *
 * returns when it is mounted; umount(8) ends it. Users other than root see nothing of it. With mute it says that it is gaiafs, and whoever
 * opens the directory is never answered; umount -f ends that.
 */
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FUSE_USE_VERSION 314
#include <fuse.h>
#include <fuse_lowlevel.h>

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

static int never_opened(const char *path, struct fuse_file_info *fi)
{
	(void)path;
	(void)fi;
	while (!fuse_session_exited(fuse_get_session(fuse_get_context()->fuse)))
		usleep(10000);
	return -EIO;
}

int main(int argc, char **argv)
{
	static const struct fuse_operations ops = { .getattr = other_getattr }, mute = { .getattr = other_getattr, .opendir = never_opened };
	bool is_mute = argc == 3 && !strcmp(argv[2], "mute");
	char *args[] = { argv[0], (char *)"-o", (char *)(is_mute ? "subtype=gaiafs,fsname=other" : "subtype=other,fsname=other"),
			 argc == 2 || is_mute ? argv[1] : (char *)"", NULL };

	return fuse_main(4, args, is_mute ? &mute : &ops, NULL);
}
