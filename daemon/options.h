/*
 * options.h - the options of gaiafs: from its command line, from configuration files, and from orders to a live mount.
 */
#ifndef GAIA_OPTIONS_H
#define GAIA_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"
#include "base/quota.h"
#include "device/device.h"
#include "fuse/fs.h"

struct device_choice {
	enum { CHOICE_SIM, CHOICE_CUDA } kind;
	struct sim_config sim;
	struct cuda_config cuda;
	uint64_t cache; /* bytes for pages that left home, or CACHE_DEVICE_AUTO; 0: none */
};

/* What can be changed while the mount is live. */
struct settings {
	uint64_t home_bytes; /* 0: --home was not given, see choose_home() */
	unsigned each_user[QUOTA_COUNT]; /* 0: the default */
	unsigned device_percent; /* how much of each device a user may have pinned; 0: the default */
	unsigned pin_share, pin_user_percent; /* how much of each device files may have that are pinned: in all, by one user */
	uint64_t writeback_age_ms;
	uint64_t device_age_ms; /* 0: writeback_age_ms */
	uint64_t unmount_timeout_ms;
	enum log_level log_level;
};

struct options {
	struct settings set;
	const char *source;
	const char *mountpoint;	   /* the source itself, if one directory was given */
	char *mount_options;	   /* all of -o, comma separated; "" for none */
	struct device_choice *device; /* one for each device to be made */
	unsigned n_devices;
	bool no_device;	     /* --device none */
	bool choose_devices; /* no --device was given: see start_devices() */
	struct fs_pin *pins; /* those of --pin; their paths are the arguments', or in texts */
	unsigned n_pins;
	const char *metrics; /* where they are served; NULL: nowhere */
	enum fs_cpu_cache cpu_cache;
	bool trusts_source; /* --source was given */
	bool shared; /* --source shared */
	bool names_aged; /* --names-age was given */
	uint64_t names_age_ms;
	bool huge_pages;
	enum cache_dedup dedup;
	char *words; /* of `gaia set`, for the daemon before this one, each with its NUL; NULL: none */
	size_t words_length;
	unsigned gpus_before; /* that the daemon before this one has */
	int devices_before; /* that its options gave it; -1: it did not say */
	bool direct; /* read the source directly, if possible */
	bool foreground;
	bool upgrade; /* @mountpoint's daemon is to hand it over to this program */
	bool force;   /* even if programs lose something by that */
	bool leave;   /* the service manager does not hear of that */
	bool left;    /* this daemon was left so: it ends, unless somebody adopts it in time */
	bool adopt;   /* if a process of this unit serves @mountpoint already, tell the service manager, and end */
	uint64_t wait_ms; /* so long programs are waited for by that; @waits: as was said */
	bool waits;
	bool take_over; /* from the daemon that has started this one (upgrade.h); @source and @mountpoint may be out of date */
	bool supervised;
	bool unmounts_dead; /* the supervisor takes the mount away when the daemon has died */
	char *config; /* --config: absolute; NULL: not given */
	bool config_may_lack; /* and it may be missing */
	bool config_found;    /* it was not */

	/* For options.c and config.c. */
	char *cwd;	/* where relative paths of configuration files begin; NULL: not known */
	char **given;	/* for each row of the table what was given, a line each; NULL: nothing */
	char **texts;	/* what values of configuration files lie in */
	size_t n_texts;
	const char *config_source; /* the directory that one names; NULL: none */
	char why[512];	/* why something was refused */
};

enum options_result {
	OPTIONS_RUN,
	OPTIONS_DONE,	/* help or the version was asked for and printed */
	OPTIONS_WRONG,	/* one line in the log says what is wrong */
};

/* The simulated device if no more is given than its name. */
#define OPTIONS_USUAL_SIM { .capacity = 256ull << 20 }
#define OPTIONS_USUAL_CUDA { .no_extents = true } /* until a GPU has been tried with them */

/* Of one device: a larger size is a typing error. */
#define OPTIONS_SIM_MAX (4ull << 40)

/* One line in the log if something is wrong. Fills *@out in each case; free it by options_free(). */
enum options_result options_parse(int argc, char **argv, struct options *out);
/*
 * The same command line once more, for a mount that it has made as @was: its configuration file may have changed. False: out->why says
 * what is wrong, and nothing is logged. Only out->set, and options_stay(), are for use. One thread at a time.
 */
bool options_parse_again(int argc, char **argv, const struct options *was, struct options *out);
void options_free(struct options *o);

/* An option with a value or (NULL) without, of a configuration file or on the command line. 0, or -EINVAL, and o->why says why. */
int options_take(struct options *o, const char *name, const char *value);
/*
 * What --device has, of a device that is added to the @o->n_devices that there are, of which kind and CUDA's number are looked at. 0, or -EINVAL, and
 * o->why says why.
 */
int options_add_device(struct options *o, const char *text);
/* What --source is, all other options being known, must fit them. 0, or -EINVAL, and o->why says why not. */
int options_fit_source(struct options *o);
/* "NAME=VALUE": change @o->set. 0, or o->why says why not: -EINVAL; -ENOTSUP: not while the mount is live. */
int options_change(struct options *o, const char *word);
/* The next option from row *@at on that is given differently in the two and cannot be changed, and what to do instead; NULL: none. */
const char *options_stay(const struct options *was, const struct options *now, size_t *at, const char **instead);

/* config.c: take what is in the file. 0, or -EINVAL, and o->why begins with the name of the file and the number of the line. */
int config_read(struct options *o, const char *path, bool may_lack);

#endif
