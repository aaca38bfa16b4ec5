/*
 * source_kind.c - what kind of file system is below, and who else may change it.
 */
#include "fuse/internal.h"

#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

/* Those that <linux/magic.h> does not have are from the sources of the file systems. */
static const struct {
	unsigned long magic;
	const char *name;
	enum source_kind kind;
} kinds[] = {
	/* Files have a length of 0 and other bytes at each read, and writes have effects: caching them would be wrong. */
	{ PROC_SUPER_MAGIC, "proc", SOURCE_MADE_UP },
	{ SYSFS_MAGIC, "sysfs", SOURCE_MADE_UP },
	{ CGROUP_SUPER_MAGIC, "cgroup", SOURCE_MADE_UP },
	{ CGROUP2_SUPER_MAGIC, "cgroup2", SOURCE_MADE_UP },
	{ DEBUGFS_MAGIC, "debugfs", SOURCE_MADE_UP },
	{ TRACEFS_MAGIC, "tracefs", SOURCE_MADE_UP },
	{ SECURITYFS_MAGIC, "securityfs", SOURCE_MADE_UP },
	{ SELINUX_MAGIC, "selinuxfs", SOURCE_MADE_UP },
	{ DEVPTS_SUPER_MAGIC, "devpts", SOURCE_MADE_UP },
	{ BPF_FS_MAGIC, "bpf", SOURCE_MADE_UP },
	{ EFIVARFS_MAGIC, "efivarfs", SOURCE_MADE_UP },
	{ PSTOREFS_MAGIC, "pstore", SOURCE_MADE_UP },
	{ BINFMTFS_MAGIC, "binfmt_misc", SOURCE_MADE_UP },
	{ NSFS_MAGIC, "nsfs", SOURCE_MADE_UP },
	{ 0x62656570, "configfs", SOURCE_MADE_UP },
	{ 0x65735543, "fusectl", SOURCE_MADE_UP },
	{ NFS_SUPER_MAGIC, "NFS", SOURCE_SHARED },
	{ SMB_SUPER_MAGIC, "SMB", SOURCE_SHARED },
	{ SMB2_SUPER_MAGIC, "SMB", SOURCE_SHARED },
	{ CIFS_SUPER_MAGIC, "SMB", SOURCE_SHARED },
	{ CEPH_SUPER_MAGIC, "CephFS", SOURCE_SHARED },
	{ AFS_SUPER_MAGIC, "AFS", SOURCE_SHARED },
	{ AFS_FS_MAGIC, "AFS", SOURCE_SHARED },
	{ CODA_SUPER_MAGIC, "Coda", SOURCE_SHARED },
	{ V9FS_MAGIC, "9p", SOURCE_SHARED },
	{ OCFS2_SUPER_MAGIC, "OCFS2", SOURCE_SHARED },
	{ 0x01161970, "GFS2", SOURCE_SHARED },
	{ 0x0BD00BD0, "Lustre", SOURCE_SHARED },
	{ 0x47504653, "GPFS", SOURCE_SHARED },
	{ 0x19830326, "BeeGFS", SOURCE_SHARED },
	{ 0x20030528, "OrangeFS", SOURCE_SHARED },
	{ 0x786F4256, "vboxsf", SOURCE_SHARED },
};

/* Of file systems behind FUSE only these are known to be this machine's own. */
static const char *const local_types[] = { "fuseblk", "fuse.gaiafs", "fuse.fuse-overlayfs", "fuse.squashfuse" };

static enum source_kind kind_of_fuse(int fd, char type[SOURCE_TYPE_SIZE])
{
	struct stat st;

	if (fstat(fd, &st) || mount_type(st.st_dev, type))
		snprintf(type, SOURCE_TYPE_SIZE, "fuse");
	for (size_t i = 0; i < ARRAY_LEN(local_types); i++)
		if (!strcmp(type, local_types[i]))
			return SOURCE_LOCAL;
	return SOURCE_SHARED;
}

enum source_kind source_kind(int fd, char type[SOURCE_TYPE_SIZE])
{
	struct statfs st;

	if (fstatfs(fd, &st))
		return SOURCE_LOCAL;
	if ((unsigned long)st.f_type == FUSE_SUPER_MAGIC)
		return kind_of_fuse(fd, type);
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		if ((unsigned long)st.f_type != kinds[i].magic)
			continue;
		snprintf(type, SOURCE_TYPE_SIZE, "%s", kinds[i].name);
		return kinds[i].kind;
	}
	return SOURCE_LOCAL;
}
