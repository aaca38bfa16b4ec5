/*
 * options.h - the command line of gaiafs.
 */
#ifndef GAIA_OPTIONS_H
#define GAIA_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/quota.h"
#include "device/device.h"
#include "fuse/fs.h"

struct device_choice {
	enum { CHOICE_SIM, CHOICE_CUDA } kind;
	struct sim_config sim;
	struct cuda_config cuda;
	uint64_t cache; /* bytes for pages that left home, or CACHE_DEVICE_AUTO; 0: none */
};

struct options {
	const char *source;
	const char *mountpoint;	   /* the source itself, if one directory was given */
	char *mount_options;	   /* all of -o, comma separated; "" for none */
	struct device_choice *device; /* one for each device to be made */
	unsigned n_devices;
	bool no_device;	     /* --device none */
	bool choose_devices; /* no --device was given: see start_devices() */
	uint64_t home_bytes; /* 0: --home was not given, see choose_home() */
	unsigned each_user[QUOTA_COUNT]; /* 0: the default */
	unsigned device_percent; /* how much of each device a user may have pinned; 0: the default */
	unsigned pin_share, pin_user_percent; /* how much of each device files may have that are pinned: in all, by one user */
	struct fs_pin *pins; /* those of --pin; their paths are the arguments' */
	unsigned n_pins;
	uint64_t writeback_age_ms;
	uint64_t device_age_ms; /* 0: writeback_age_ms */
	uint64_t unmount_timeout_ms;
	const char *metrics; /* where they are served; NULL: nowhere */
	enum fs_cpu_cache cpu_cache;
	bool trusts_source; /* --source was given */
	enum cache_dedup dedup;
	bool direct; /* read the source directly, if possible */
	bool foreground;
	bool upgrade; /* @mountpoint's daemon is to hand it over to this program */
	bool force;   /* even if programs lose something by that */
	bool take_over; /* from the daemon that has started this one (upgrade.h); @source and @mountpoint may be out of date */
	bool supervised;
	bool unmounts_dead; /* the supervisor takes the mount away when the daemon has died */
};

enum options_result {
	OPTIONS_RUN,
	OPTIONS_DONE,	/* help or the version was asked for and printed */
	OPTIONS_WRONG,	/* one line in the log says what is wrong */
};

/* The simulated device if no more is given than its name. */
#define OPTIONS_USUAL_SIM { .capacity = 256ull << 20 }

/* Of one device: a larger size is a typing error. */
#define OPTIONS_SIM_MAX (4ull << 40)

/* Also sets the level of the log. Fills *@out in each case; free it by options_free(). */
enum options_result options_parse(int argc, char **argv, struct options *out);
void options_free(struct options *o);

#endif
