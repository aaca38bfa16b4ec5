/*
 * settings.c - gaia set and gaia reload: change options of a mount that is live.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../wire.h"
#include "tool.h"

/* Each line of the daemon's, on standard error. */
static void show_lines(const char *path, const char *text)
{
	for (const char *line = text; *line; line += strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n'))
		(void)fail("%s: %.*s", path, (int)strcspn(line, "\n"), line);
}

static int send_settings(const char *path, struct gaia_ioc_set *io)
{
	struct gaia_ioc_connect hello = { .version = 0 };
	int fd = open_ours(path, 0), err;

	if (fd < 0)
		return fail_on(path, fd);
	err = wire_ioctl(fd, GAIA_IOC_CONNECT, &hello);
	if (!err && !(hello.features & GAIA_FEATURE_SETTINGS)) {
		close(fd);
		return fail("%s: the mount's daemon is older than this command; mount it anew with a gaiafs of this version (" GAIA_VERSION ")", path);
	}
	if (!err)
		err = wire_ioctl_once(fd, GAIA_IOC_SET, io);
	close(fd);
	if (err == -EPERM)
		return fail("%s: only root, and the user whose daemon it is, may change options", path);
	if (err)
		return fail_on(path, err);
	io->text[sizeof(io->text) - 1] = '\0';
	show_lines(path, io->text);
	if (io->error && !*io->text)
		return fail_on(path, -(int)io->error);
	return io->error ? EXIT_FAILED : EXIT_OK;
}

int set_command(const struct args *a)
{
	struct gaia_ioc_set io = { .length = 0 };

	if (a->n_paths < 2)
		return usage("set: an option is missing: NAME=VALUE");
	for (size_t i = 1; i < a->n_paths; i++) {
		size_t size = strlen(a->paths[i]) + 1;

		if (!strchr(a->paths[i], '='))
			return usage("set: '%s' is not of the form NAME=VALUE", a->paths[i]);
		if (size > sizeof(io.text) - io.length)
			return usage("set: these are too many options at once");
		memcpy(io.text + io.length, a->paths[i], size);
		io.length += (uint32_t)size;
	}
	return send_settings(a->path, &io);
}

int reload_command(const struct args *a)
{
	struct gaia_ioc_set io = { .length = 0 };

	return send_settings(a->path, &io);
}
