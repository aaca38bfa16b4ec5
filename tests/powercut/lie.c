/* lie.c - preloaded into the daemon: syncs that do nothing. powercut.py must find out. */
__attribute__((visibility("default"))) int fsync(int fd);
__attribute__((visibility("default"))) int fdatasync(int fd);

int fsync(int fd)
{
	(void)fd;
	return 0;
}

int fdatasync(int fd)
{
	(void)fd;
	return 0;
}
