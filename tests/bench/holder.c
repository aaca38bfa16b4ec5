/*
 * holder.c - a device's program that maps a file, and changes all of it when told to.
 *
 *	holder FILE
 *
 * Says "mapped" when the device has all pages of FILE. For each line that it reads it changes a byte
 * of each page, releases them and says "released". Ends at the end of its input.
 */
#include <err.h>
#include <fcntl.h>
#include <gaia/client.h>
#include <stdio.h>
#include <sys/stat.h>

#define PAGE 4096

static void say(const char *what)
{
	puts(what);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int fd = open(argc == 2 ? argv[1] : "", O_RDWR);
	unsigned char *p;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) || !st.st_size)
		errx(2, "usage: holder FILE (not empty, on a gaiafs mount)");
	p = gaia_mmap(st.st_size, PROT_READ | PROT_WRITE, fd, 0, 0);
	if (p == MAP_FAILED)
		err(1, "gaia_mmap");
	if (gaia_acquire(p, st.st_size, PROT_READ) || gaia_release(p, st.st_size))
		err(1, "%s: to the device and back", argv[1]);
	say("mapped");
	while (getchar() == '\n') {
		if (gaia_acquire(p, st.st_size, PROT_READ | PROT_WRITE))
			err(1, "gaia_acquire");
		for (off_t at = 0; at < st.st_size; at += PAGE)
			p[at]++;
		if (gaia_release(p, st.st_size))
			err(1, "gaia_release");
		say("released");
	}
	return gaia_munmap(p, st.st_size) < 0;
}
