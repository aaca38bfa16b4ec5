#include "own_mounts.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

bool own_mounts(const char *keep)
{
	char line[PATH_MAX + 512], where[PATH_MAX];
	FILE *table;

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return false;
	table = fopen("/proc/self/mountinfo", "re");
	if (!table)
		return false;
	while (fgets(line, sizeof(line), table))
		if (strstr(line, " - fuse.gaiafs ") &&
		    sscanf(line, "%*s %*s %*s %*s %4095s", where) == 1 &&
		    (!keep || strcmp(where, keep) != 0))
			umount2(where, MNT_DETACH | UMOUNT_NOFOLLOW);
	fclose(table);
	return true;
}
