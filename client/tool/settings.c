/*
 * settings.c - gaia set and gaia reload: change options of a mount that is live.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../wire.h"
#include "rates.h"
#include "tool.h"

#define LOOK_US 100000
#define SAY_AFTER 10 /* looks */

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

/* ---- gaia set --wait ---- */

/* Whether @word is "device.NAME=off" of this one. */
static bool takes_away(const char *word, const json_t *device)
{
	char by_name[80], by_number[80];

	snprintf(by_name, sizeof(by_name), "device.%s=off", json_string_value(json_object_get(device, "name")));
	snprintf(by_number, sizeof(by_number), "device.%.0f=off", number_at(device, "index"));
	return !strcmp(word, by_name) || !strcmp(word, by_number);
}

/* How much there still is on devices that were taken away, in bytes. Says why one will not be empty. */
static int look(const struct args *a, double *left, double *held)
{
	json_t *status, *device;
	int err = fetch_json(a->path, GAIA_REPORT_STATUS, &status), exit_status = EXIT_OK;
	const char *name;
	double here;
	size_t k;

	*left = *held = 0;
	if (err)
		return report_failed(a->path, err);
	json_array_foreach(json_object_get(status, "devices"), k, device)
		for (size_t i = 1; i < a->n_paths && !exit_status; i++) {
			if (!takes_away(a->paths[i], device))
				continue;
			name = json_string_value(json_object_get(device, "name"));
			here = number_at(device, "used") + number_at(device, "cache_bytes");
			*left += here;
			*held += number_at(device, "pinned");
			if (number_at(device, "capacity") > 0)
				exit_status = fail("%s: somebody has given device %s a size again", a->path, name);
			else if (here > 0 && json_is_true(json_object_get(device, "gone")))
				exit_status = fail("%s: device %s has failed: what was only there is lost, and nothing of it can be given back", a->path, name);
			break;
		}
	json_decref(status);
	return exit_status;
}

static int wait_until_empty(const struct args *a)
{
	bool terminal = isatty(STDERR_FILENO);
	double left, held;
	int status;

	for (unsigned looks = 0; !(status = look(a, &left, &held)) && (left > 0 || held > 0); looks++) {
		if (looks == SAY_AFTER || (terminal && looks > SAY_AFTER))
			say_progress(terminal, "%s: %.0f MiB are still there, and programs hold %.0f of them", a->path, left / (1 << 20), held / (1 << 20));
		usleep(LOOK_US);
	}
	end_progress();
	return status;
}

int set_command(const struct args *a)
{
	struct gaia_ioc_set io = { .length = 0 };
	int status;

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
	status = send_settings(a->path, &io);
	return status || !a->wait ? status : wait_until_empty(a);
}

int reload_command(const struct args *a)
{
	struct gaia_ioc_set io = { .length = 0 };

	return send_settings(a->path, &io);
}
