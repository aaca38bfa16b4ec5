/*
 * main.c - gaiafs, the daemon: puts the rooms together, and takes them apart in order.
 *
 * Only this file and options.c name concrete devices and stores. The main thread runs
 * the libuv loop (signals, clients' sockets); fuse/'s threads serve requests.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <uv.h>

#include "background.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/notify.h"
#include "base/quota.h"
#include "base/util.h"
#include "control/control.h"
#include "device/device.h"
#include "device/huge.h"
#include "ending.h"
#include "fuse/fs.h"
#include "hardware.h"
#include "live.h"
#include "metrics.h"
#include "options.h"
#include "pagecache/cache.h"
#include "store/store.h"
#include "upgrade.h"

#define DEFAULT_HOME_MAX (4ull << 30)
#define LEAST_WAITING (128ull << 20) /* bytes: the memory of waiting requests is limited as if home had at least this much */

struct daemon {
	struct options options;
	bool faults;	 /* fault points are armed, for tests */
	char **argv;
	int parent;	 /* the pipe on which the parent waits for a byte; -1 */

	/* Made by start_*() in this order, NULL before. */
	struct store *store;
	const char *storage_io; /* how the store reads */
	struct devices devices;
	struct quota *quota;
	uint64_t home_bytes;
	uint64_t chosen_home;	/* 0: --home was given */
	struct memory_limit memory; /* what it was chosen from */
	struct fs *fs;
	struct cache *cache;
	struct control *control;
	struct metrics *metrics; /* NULL: not asked for */
	json_t *mount; /* what reports say of the mount; belongs to control */
	struct ending end;
	struct live live;

	uv_loop_t loop;
	uv_async_t news; /* wakes the loop: ready or ended has been set */
	uv_signal_t signal[3];
	uv_timer_t alone; /* of one that was left, and not adopted yet (options.left) */
	unsigned n_signals;
	uv_work_t ending_work, reload_work, upgrade_work;
	struct upgrade upgrade;
	int upgrade_error; /* of the last one */
	bool reloading, reload_again; /* SIGHUP has come; and once more meanwhile */
	bool told;   /* the parent and the service manager were told that the mount is live */
	bool ending;
	bool upgrading; /* the mount is being handed over: its end waits for that */
	bool end_wanted; /* meanwhile */
	bool handed; /* the mount is another daemon's */
	bool signalled; /* a signal has told the daemon to end; another one tells it not to wait */
	atomic_bool ready, ended;
};

static const int end_signals[] = { SIGTERM, SIGINT, SIGHUP };

/* Started by the daemon that has the mount, where that one is: in the background, if it is. */
static void be_heir(const struct daemon *d)
{
	fcntl(UPGRADE_FD, F_SETFD, FD_CLOEXEC);
	close_range(UPGRADE_FD + 1, ~0u, 0); /* whatever libraries have let us inherit */
	if (!d->options.foreground) {
		log_to_syslog();
		/* It was started where the first daemon was. */
		if (chdir("/"))
			log_debug("it stays where it was started");
	}
}

static void on_alone(uv_timer_t *timer);

static void tell_ready(struct daemon *d)
{
	d->told = true;
	background_tell(&d->parent);
	notify_manager("READY=1\nSTATUS=mounted");
	if (d->options.left)
		uv_timer_start(&d->alone, on_alone, fault_point("upgrade.alone") ? 3000 : UPGRADE_ADOPT_MS, 0);
	fs_pin(d->fs, d->options.pins, d->options.n_pins);
}

/* ---- putting together ---- */

/* Each file that the kernel knows takes a descriptor. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;
	unsigned long most = 0;
	FILE *file = fopen("/proc/sys/fs/nr_open", "re");

	if (file) {
		if (fscanf(file, "%lu", &most) != 1)
			most = 0;
		fclose(file);
	}
	limit.rlim_cur = limit.rlim_max = most;
	if (most && !setrlimit(RLIMIT_NOFILE, &limit))
		return;
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		log_debug("RLIMIT_NOFILE: %s", strerror(errno));
}

static int take_faults(struct daemon *d)
{
#ifdef GAIA_FAULTS
	const char *text = getenv("GAIAFS_FAULTS");

	if (!text)
		return 0;
	d->faults = true;
	if (!fault_parse(text))
		return 0;
	log_error("GAIAFS_FAULTS=%s: not of the form name=errno:EIO,after=3,count=1;name=delay:9us",
		  text);
	return -EINVAL;
#else
	return 0;
#endif
}

static int start_store(struct daemon *d)
{
	struct store *faulty;
	int err = store_dir_create(d->options.direct, d->options.shared, &d->store);

	if (!err)
		d->storage_io = store_dir_how(d->store);
	if (!err && d->faults) {
		err = store_faulty_create(d->store, &faulty);
		if (!err)
			d->store = faulty;
	}
	if (err)
		log_error("store: %s", strerror(-err));
	return err;
}

/*
 * Before Linux 6.16 FUSE writes back temporary copies of pages, and neither an invalidation nor
 * sync_file_range(2) waits for them. For acquires the library has another way; for releases there is
 * none.
 */
static void warn_of_old_kernel(const struct daemon *d)
{
	int major = 0, minor = 0;
	struct utsname u;

	if (!d->devices.n || uname(&u) || sscanf(u.release, "%d.%d", &major, &minor) != 2)
		return;
	if (major < 6 || (major == 6 && minor < 16))
		log_warn("Linux %s is older than 6.16: a device's release of a page that a CPU program stores to through "
			 "a mapping at that moment may be undone; see gaiafs-limits(7)",
			 u.release);
}

static void describe(const struct daemon *d)
{
	log_debug("gaiafs " GAIA_VERSION " (libfuse %s), process %d: %s on %s, --cpu-cache %s, storage: %s", fs_libfuse(), (int)getpid(),
		  fs_source(d->fs), fs_mountpoint(d->fs), fs_cpu_cache(d->fs), d->storage_io);
	log_debug("home: %llu MiB; dirty for %llu ms is stored", (unsigned long long)d->home_bytes >> 20,
		  (unsigned long long)d->options.set.writeback_age_ms);
	for (unsigned i = 0; i < d->devices.n; i++)
		log_debug("device %u: %s, %llu MiB", i, d->devices.at[i]->name, (unsigned long long)d->devices.at[i]->capacity >> 20);
	for (unsigned i = 0; i < QUOTA_COUNT; i++)
		log_debug("each user may have %u %s, all together %u", quota_use(d->quota, i).each, quota_name(i),
			  quota_use(d->quota, i).users);
}

static void on_ready(void *arg)
{
	struct daemon *d = arg;

	describe(d);
	/* No report can be asked for before. */
	json_object_set_new(d->mount, "cpu_cache", json_string(fs_cpu_cache(d->fs)));
	if (fs_not_auto(d->fs))
		json_object_set_new(d->mount, "not_auto", json_string(fs_not_auto(d->fs)));
	json_object_set_new(d->mount, "source_mode", json_string(d->options.shared ? "shared" : "local"));
	json_object_set_new(d->mount, "storage_io", json_string(d->storage_io));
	d->ready = true;
	uv_async_send(&d->news);
}

static void on_ended(void *arg)
{
	struct daemon *d = arg;

	d->ended = true;
	uv_async_send(&d->news);
}

static int on_set(void *arg, const char *words, size_t length, char *said, size_t size)
{
	struct daemon *d = arg;

	return length > 0 ? live_set(&d->live, words, length, said, size) : live_reload(&d->live, said, size);
}

static bool is_source(const char *wanted, const char *path)
{
	char *real = realpath(wanted, NULL);
	bool is = real && !strcmp(real, path);

	free(real);
	return is;
}

static int start_fs(struct daemon *d)
{
	const struct fs_config config = {
		.source = d->options.source,
		.mountpoint = d->options.mountpoint,
		.options = d->options.mount_options,
		.cpu_cache = d->options.cpu_cache,
		.trusts_source = d->options.trusts_source,
		.shared = d->options.shared,
		.names_age_s = (double)d->options.names_age_ms / 1000,
		.quota = d->quota,
		.supervised = d->options.supervised,
		.unmounts_dead = d->options.unmounts_dead,
		.background = !d->options.foreground,
		.predecessor = d->options.take_over ? UPGRADE_FD : -1,
		.ready = on_ready,
		.ended = on_ended,
		.set = on_set,
		.arg = d,
	};
	int err;

	err = fs_create(&config, &d->fs); /* logs */
	if (err)
		return err;
	if (d->options.left && !is_source(d->options.source, fs_source(d->fs))) {
		log_error("%s: the source is %s now, and not %s: that takes another mount", fs_mountpoint(d->fs), d->options.source, fs_source(d->fs));
		return -EINVAL;
	}
	/* Those that fs_create() derives from the number of descriptors may be lower than what is asked for. */
	for (unsigned i = 0; i < QUOTA_COUNT; i++)
		d->live.usual_each[i] = quota_use(d->quota, i).each;
	live_set_user_limits(&d->live, &d->options.set);
	return 0;
}

/* Home's size if --home was not given. In a container the daemon may have only a part of the machine's memory. */
static uint64_t choose_home(struct daemon *d)
{
	memory_limit("", &d->memory);
	return MAX(CACHE_HOME_MIN, MIN(d->memory.bytes / 4, DEFAULT_HOME_MAX));
}

static void announce_home(const struct daemon *d)
{
	uint64_t home = d->chosen_home;

	if (!home)
		return;
	/* Worth a line only if a limit makes it less than usual. */
	log_at(d->memory.from[0] && home < DEFAULT_HOME_MAX ? LOG_LEVEL_INFO : LOG_LEVEL_DEBUG,
	       "home memory: %llu MiB, a quarter of %s%s (%llu MiB)%s", (unsigned long long)home >> 20,
	       d->memory.from[0] ? "the limit in " : "the machine's memory", d->memory.from,
	       (unsigned long long)d->memory.bytes >> 20,
	       home == DEFAULT_HOME_MAX ? ", 4 GiB at most" :
	       home == CACHE_HOME_MIN	? ", 8 MiB at least" :
					  "");
}

/* Tables are made for so much: all of the machine's memory, or what was asked for. */
static uint64_t most_of_home(uint64_t home)
{
	long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);

	return MIN(MAX(home, pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0), CACHE_HOME_MAX);
}

/*
 * What the daemon before this one was told by `gaia set`. Of devices only if the options give as many as they gave that one: else they mean others now.
 * A device that cannot be added, with which those after it would have other numbers, is an error, after a line in the log.
 */
static int take_settings(struct daemon *d)
{
	bool same = d->options.devices_before < 0 || (unsigned)d->options.devices_before == d->devices.n;
	const char *words = d->options.words;
	char said[512];
	int err;

	for (size_t at = 0; at < d->options.words_length; at += strlen(words + at) + 1) {
		if (live_is_of_devices(words + at) && !same) {
			log_at(LOG_LEVEL_WARN, "`gaia set %s` is over: the options name %u devices now, not %d", words + at, d->devices.n, d->options.devices_before);
			continue;
		}
		err = live_set(&d->live, words + at, strlen(words + at) + 1, said, sizeof(said));
		if (!err)
			continue;
		log_at(LOG_LEVEL_WARN, "`gaia set %s` is lost: %.*s", words + at, (int)strcspn(said, "\n"), said);
		if (live_adds(words + at))
			return err;
	}
	return 0;
}

static int start_cache(struct daemon *d)
{
	struct cache_config config = {
		.devices = d->devices.at,
		.n_devices = d->devices.n,
		.writeback_age_ms = d->options.set.writeback_age_ms,
		.device_age_ms = d->options.set.device_age_ms,
		.device_percent = d->options.set.device_percent,
		.files_percent = d->options.set.pin_share,
		.files_user_percent = d->options.set.pin_user_percent,
		.device_cache = d->devices.cache,
		.dedup = d->options.dedup,
		.unstored = &d->end.shared->unstored,
		.host = fs_cache_host(),
		.host_arg = d->fs,
	};
	int err;

	d->live.usual_home = choose_home(d);
	d->live.host_most = devices_host_most();
	d->chosen_home = d->options.set.home_bytes ? 0 : d->live.usual_home;
	d->home_bytes = config.home_bytes = d->options.set.home_bytes ? d->options.set.home_bytes : d->live.usual_home;
	config.home_most = most_of_home(d->home_bytes);
	config.local_bytes = live_host_bytes(&d->live, d->home_bytes);
	err = devices_start_host(&d->devices, live_host_bytes(&d->live, config.home_most)); /* logs */
	if (err)
		return err;
	config.local = d->devices.local;
	err = cache_create(&config, &d->cache);
	if (err)
		log_error("the page cache cannot start: %s", strerror(-err));
	else
		live_begin(&d->live, d->cache);
	if (!err)
		err = take_settings(d);
	if (!err)
		err = devices_keep_gpus(d->cache, d->options.gpus_before); /* logs */
	/* Waiting requests take memory besides home. There must be room for a few of the largest of each user. */
	quota_cap(d->quota, QUOTA_waiting_kib,
		  config.home_bytes < LEAST_WAITING ? LEAST_WAITING / 2048 : (unsigned)MIN(config.home_bytes / 2048, UINT_MAX));
	/* So do lists of ranges. */
	quota_cap(d->quota, QUOTA_listed_kib, (unsigned)MIN(config.home_bytes / 2048, UINT_MAX));
	return err;
}

static control_upgrade on_upgrade;

static int start_control(struct daemon *d)
{
	int err = control_create(&d->loop, d->cache, d->quota, &d->control);

	if (err) {
		log_error("the clients' socket cannot be made: %s", strerror(-err));
		return err;
	}
	d->mount = json_pack("{s:s, s:i, s:s, s:s}", "version", GAIA_VERSION, "pid", (int)getpid(),
			     "source", fs_source(d->fs), "mountpoint", fs_mountpoint(d->fs));
	/* NULL: a path that is not UTF-8. */
	if (!d->mount)
		d->mount = json_pack("{s:s, s:i}", "version", GAIA_VERSION, "pid", (int)getpid());
	control_set_mount_info(d->control, d->mount);
	control_set_end(d->control, d->end.fd);
	control_on_upgrade(d->control, on_upgrade, d);
	return 0;
}

/* ---- ending ---- */

/*
 * Runs on another thread: while the kernel is asked for the data that it still has, the loop and fuse's
 * threads must go on working.
 */
static void end_work(uv_work_t *work)
{
	struct daemon *d = container_of(work, struct daemon, ending_work);

	/* As long as it is mounted, programs can read what cannot be stored. */
	fs_push(d->fs);
	(void)ending_store(&d->end, d->cache);
	log_debug("ending: %s is unmounted", fs_mountpoint(d->fs));
	fs_unmount(d->fs); /* logs */
	log_debug("ending: waiting for calls that are under way");
	fs_quiesce(d->fs);
	(void)ending_store(&d->end, d->cache);
}

static void end_done(uv_work_t *work, int status)
{
	struct daemon *d = container_of(work, struct daemon, ending_work);

	uv_stop(&d->loop);
}

static void begin_end(struct daemon *d)
{
	if (d->upgrading) {
		d->end_wanted = true;
		upgrade_cancel(&d->upgrade);
	}
	if (d->ending || d->upgrading || d->handed)
		return;
	d->ending = true;
	notify_manager("STOPPING=1\nSTATUS=storing what is left");
	ending_begin(&d->end);
	if (uv_queue_work(&d->loop, &d->ending_work, end_work, end_done))
		bug("uv_queue_work");
}

/* ---- handing the mount over ---- */

static void start_metrics(struct daemon *d)
{
	if (d->options.metrics && metrics_start(d->options.metrics, d->cache, d->quota, &d->metrics)) /* logs */
		log_warn("--metrics %s: nothing is served there", d->options.metrics);
}

/* Runs on another thread, as end_work(). */
static void upgrade_work(uv_work_t *work)
{
	struct daemon *d = container_of(work, struct daemon, upgrade_work);
	int err = upgrade_prepare(&d->upgrade);

	if (!err) {
		/* The new daemon serves them at the same place. */
		metrics_stop(d->metrics);
		d->metrics = NULL;
		err = upgrade_commit(&d->upgrade);
		if (err)
			start_metrics(d);
	}
	if (err)
		upgrade_give_up(&d->upgrade);
	d->upgrade_error = err;
}

static void handed_over(struct daemon *d)
{
	char state[64];

	log_info("%s: process %d has it now", fs_mountpoint(d->fs), (int)d->upgrade.heir);
	snprintf(state, sizeof(state), "MAINPID=%d", (int)d->upgrade.heir);
	if (!d->upgrade.leave)
		notify_manager(state);
	if (d->signalled && d->upgrade.heir && !d->upgrade.leave)
		kill(d->upgrade.heir, SIGTERM);
	d->handed = true;
	uv_stop(&d->loop);
}

static void upgrade_done(uv_work_t *work, int status)
{
	struct daemon *d = container_of(work, struct daemon, upgrade_work);

	d->upgrading = false;
	if (!d->upgrade_error)
		handed_over(d);
	else if (d->end_wanted)
		begin_end(d);
	upgrade_answer(&d->upgrade, d->upgrade_error);
	(void)fault_point("upgrade.answered");
}

/* No unit's stop would end it. */
static void on_alone(uv_timer_t *timer)
{
	struct daemon *d = container_of(timer, struct daemon, alone);

	log_error("%s: it was restarted, and no unit has started again: ending", fs_mountpoint(d->fs));
	begin_end(d);
}

static void adopted(struct daemon *d, int answer)
{
	bool left = d->options.left && d->ready && !d->ending && !d->upgrading;

	if (left) {
		uv_timer_stop(&d->alone);
		d->options.left = false;
	}
	control_answer_upgrade(answer, left ? 0 : -EBUSY, left ? "" : "it was not left");
}

static void on_upgrade(void *arg, pid_t pid, unsigned how, uint64_t wait_ms, int answer)
{
	struct daemon *d = arg;
	int err;

	if (how & GAIA_UPGRADE_ADOPT) {
		adopted(d, answer);
		return;
	}
	if (!d->ready || d->ending || d->upgrading) {
		control_answer_upgrade(answer, -EBUSY, d->upgrading ? "it is being upgraded" : "it is starting, or ending");
		return;
	}
	d->upgrade = (struct upgrade){ .argv = d->argv, .n_option_pins = d->options.n_pins, .n_option_devices = d->devices.n,
				       .live = &d->live, .cwd = d->options.cwd, .fs = d->fs, .cache = d->cache,
				       .control = d->control, .force = how & GAIA_UPGRADE_FORCE, .leave = how & GAIA_UPGRADE_LEAVE, .wait_ns = wait_ms * 1000000 };
	err = upgrade_begin(&d->upgrade, pid, answer);
	if (err) {
		log_warn("%s: is not handed over: %s", fs_mountpoint(d->fs), d->upgrade.why);
		upgrade_answer(&d->upgrade, err);
		return;
	}
	d->upgrading = true;
	if (uv_queue_work(&d->loop, &d->upgrade_work, upgrade_work, upgrade_done))
		bug("uv_queue_work");
}

static void on_news(uv_async_t *async)
{
	struct daemon *d = container_of(async, struct daemon, news);

	if (d->ready && !d->told)
		tell_ready(d);
	if (d->ended)
		begin_end(d);
}

/*
 * Whether the daemon ends on signal @number. SIGHUP means that the terminal is gone: in the background there is
 * none, and under nohup(1) it must not matter. With a configuration file it means that this is to be read again.
 */
static bool ends_on(const struct daemon *d, int number)
{
	struct sigaction now;

	if (number != SIGHUP)
		return true;
	return d->options.foreground && !d->options.config && !sigaction(SIGHUP, NULL, &now) && now.sa_handler != SIG_IGN;
}

static void on_signal(uv_signal_t *handle, int number)
{
	struct daemon *d = handle->data;

	log_info("%s: %s", strsignal(number), d->signalled ? "what cannot be stored is given up" : "ending");
	if (d->signalled)
		ending_give_up(&d->end);
	d->signalled = true;
	/* A manager that was not told of the heir means this process. */
	if (d->handed && d->upgrade.heir && !d->upgrade.leave)
		kill(d->upgrade.heir, SIGTERM);
	begin_end(d);
}

/* On another thread: the file may be where it takes long to read. */
static void reload_work(uv_work_t *work)
{
	struct daemon *d = container_of(work, struct daemon, reload_work);
	char said[4096];

	(void)live_reload(&d->live, said, sizeof(said)); /* logs */
}

static void on_reload(uv_signal_t *handle, int number);

static void reload_done(uv_work_t *work, int status)
{
	struct daemon *d = container_of(work, struct daemon, reload_work);

	d->reloading = false;
	if (d->reload_again && !d->ending)
		on_reload(&d->signal[0], SIGHUP);
}

static void on_reload(uv_signal_t *handle, int number)
{
	struct daemon *d = handle->data;

	d->reload_again = d->reloading;
	if (d->reloading)
		return;
	d->reloading = true;
	if (uv_queue_work(&d->loop, &d->reload_work, reload_work, reload_done))
		bug("uv_queue_work");
}

static void start_loop(struct daemon *d)
{
	if (uv_loop_init(&d->loop) || uv_async_init(&d->loop, &d->news, on_news) || uv_timer_init(&d->loop, &d->alone))
		bug("libuv does not start");
	for (size_t i = 0; i < ARRAY_LEN(end_signals); i++) {
		uv_signal_t *handle = &d->signal[d->n_signals];
		bool reloads = end_signals[i] == SIGHUP && d->options.config;

		if (!reloads && !ends_on(d, end_signals[i])) {
			signal(end_signals[i], SIG_IGN);
			continue;
		}
		handle->data = d;
		if (uv_signal_init(&d->loop, handle) || uv_signal_start(handle, reloads ? on_reload : on_signal, end_signals[i]))
			bug("libuv does not take signals");
		d->n_signals++;
	}
}

static void stop_loop(struct daemon *d)
{
	for (unsigned i = 0; i < d->n_signals; i++)
		uv_close((uv_handle_t *)&d->signal[i], NULL);
	uv_close((uv_handle_t *)&d->news, NULL);
	uv_close((uv_handle_t *)&d->alone, NULL);
	uv_run(&d->loop, UV_RUN_DEFAULT);
	if (uv_loop_close(&d->loop))
		bug("libuv's loop has handles left");
}

static int start(struct daemon *d)
{
	int err;

	raise_descriptor_limit();
	d->live.faults = d->faults;
	d->live.quota = d->quota = quota_create(geteuid());
	err = ending_init(&d->end, d->options.set.unmount_timeout_ms);
	if (err)
		return err;
	err = start_fs(d); /* first, since most mistakes are about the directories */
	if (!err)
		err = start_store(d);
	if (!err)
		err = devices_start(&d->devices, &d->options, d->faults); /* logs */
	if (!err)
		err = start_cache(d);
	if (!err)
		err = start_control(d);
	if (!err && d->options.metrics && !d->options.take_over)
		err = metrics_start(d->options.metrics, d->cache, d->quota, &d->metrics); /* logs */
	if (err)
		return err;
	err = fs_start(d->fs, d->cache, d->store, d->control); /* logs */
	if (!err && d->options.take_over)
		start_metrics(d);
	if (!err) {
		announce_home(d);
		devices_announce(&d->devices);
		warn_of_old_kernel(d);
	}
	return err;
}

/* In the order in which data travels: clients, requests, cache, store. 0 if everything was stored. */
static int stop(struct daemon *d)
{
	int err = 0;

	/* Signals still come while the loop runs for what ends here. */
	d->ending = true;
	metrics_stop(d->metrics);
	live_end(&d->live);
	if (d->control)
		control_destroy(d->control);
	if (d->fs)
		fs_stop(d->fs);
	log_debug("ending: storing what is left");
	/* What was handed over is stored, and may have changed since. */
	if (d->cache && !d->handed)
		err = ending_last(&d->end, d->cache); /* logs */
	log_debug("ending: %s", err ? "not everything is stored" : "everything is stored");
	if (d->cache)
		cache_destroy(d->cache);
	else
		devices_destroy(&d->devices);
	huge_end();
	if (d->fs)
		fs_destroy(d->fs);
	if (d->store)
		d->store->ops->destroy(d->store);
	if (d->quota)
		quota_destroy(d->quota);
	ending_destroy(&d->end);
	log_end();
	return err;
}

int main(int argc, char **argv)
{
	struct daemon d = { .argv = argv, .parent = -1 };
	enum options_result parsed;
	int err = 0;

	log_to_journal();
	parsed = options_parse(argc, argv, &d.options);
	if (parsed == OPTIONS_RUN)
		log_set_level(d.options.set.log_level);
	if (parsed == OPTIONS_RUN && d.options.upgrade) {
		err = upgrade_ask(d.options.mountpoint, (d.options.force ? GAIA_UPGRADE_FORCE : 0) | (d.options.leave ? GAIA_UPGRADE_LEAVE : 0),
				  d.options.wait_ms); /* logs */
	} else if (parsed == OPTIONS_RUN && d.options.adopt && !d.options.take_over && upgrade_adopt(d.options.mountpoint, argv)) {
		/* Done. */
	} else if (parsed == OPTIONS_RUN) {
		quick_clock_start();
		d.live = (struct live){ .argc = argc, .argv = argv, .options = &d.options, .end = &d.end };
		live_init(&d.live);
		err = take_faults(&d);
		if (d.options.take_over)
			be_heir(&d);
		else if (!err && !d.options.foreground)
			err = background_go(&d.parent); /* logs */
		if (!err) {
			signal(SIGPIPE, SIG_IGN);
			start_loop(&d);
			err = start(&d);
			if (!err) {
				uv_run(&d.loop, UV_RUN_DEFAULT);
				err = d.ready ? 0 : -EIO;
			}
			if (stop(&d))
				err = -EIO;
			stop_loop(&d);
		}
		live_destroy(&d.live);
	}
	options_free(&d.options);
	return err || parsed == OPTIONS_WRONG;
}
