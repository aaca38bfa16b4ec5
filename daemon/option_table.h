/*
 * option_table.h - all options of gaiafs, each said once.
 *
 * The command line and its help are made from this table (options.c), and so are the options in the man pages gaiafs(8) and
 * mount.gaiafs(8), and what mount.gaiafs passes on (with_tables.c). Rows with the same name are one option.
 */
#ifndef GAIA_OPTION_TABLE_H
#define GAIA_OPTION_TABLE_H

/* In seconds; part of the texts. */
#define OPTIONS_AGE_S 5
#define OPTIONS_NAMES_AGE_S 1
#define OPTIONS_UNMOUNT_TIMEOUT_S 60
/* Percent. */
#define OPTIONS_PIN_SHARE 50
#define OPTIONS_WAIT_S 10

#define OPTIONS_TEXT_OF(x) #x
#define OPTIONS_TEXT(x) OPTIONS_TEXT_OF(x)

/*
 * X(name, letter, value, help, parse, stays):
 *
 * name     of the long option; NULL: it has none
 * letter   of the short option; 0: it has none
 * value    its form and unit: words in capitals stand for something, all else is meant as it is. NULL: it takes no value
 * help     lines of text, not a sentence; the default in parentheses. "": the option is accepted, and shown nowhere
 * parse    a function of options.c; NULL: help, version and config, of which only the command line knows
 * stays    NULL: it can be changed while the mount is live (change.c); else what to do instead. Of an option's rows the first counts
 */
#define OPTIONS(X)                                                                                                     \
	X("device", 0, "sim[:SIZE][,KEY=VALUE]...",                                                                     \
	  "a simulated device (256M); keys: count=N,\n"                                                                 \
	  "bandwidth=SIZE (a second, each way), local=SIZE (a\n"                                                        \
	  "second, of its own memory), latency=MICROSECONDS,\n"                                                         \
	  "submit=MICROSECONDS, wait=on|off (off: their time is\n"                                                      \
	  "only counted; on),\n"                                                                                        \
	  "peers=on|off (copies from other devices; on),\n"                                                             \
	  "readonly=on|off (off: cannot share read-only, as a\n"                                                        \
	  "GPU cannot; on), strict=on|off (touching what is not\n"                                                      \
	  "acquired is a SIGSEGV; on), extents=on|off (memory of\n"                                                     \
	  "long files by 16M; on), cache=SIZE|auto (of its\n"                                                           \
	  "memory, while programs leave it, for pages that left\n"                                                      \
	  "--home; auto: what is free; none)",                                                                                 \
	  parse_device, "mount anew, or gaia set adds it or takes it away")                                                                                                 \
	X("device", 0, "cuda[:INDEX[,SIZE][,KEY=VALUE]...]",                                                            \
	  "a GPU (0), with 80 % of its free memory; keys:\n"                                                            \
	  "cache, extents (off): as for a simulated device",                                                                  \
	  parse_device, "mount anew")                                                                                                 \
	X("device", 0, "none",                                                                                          \
	  "no device; without --device: every GPU that works,\n"                                                        \
	  "and if there is none, a simulated device",                                                                   \
	  parse_device, "mount anew")                                                                                                 \
	X("home", 0, "SIZE",                                                                                            \
	  "host memory for file contents (a quarter of the\n"                                                           \
	  "machine's or, if less, the cgroup's; 4G at most)",                                                           \
	  parse_home, NULL)                                                                                                   \
	X("cpu-cache", 0, "auto|writeback|writethrough",                                                                \
	  "how the kernel caches for CPU programs (auto: it\n"                                                          \
	  "bypasses the daemon for files that no device maps)",                                                         \
	  parse_cpu_cache, "mount anew")                                                                                              \
	X("storage-io", 0, "direct|buffered",                                                                           \
	  "how cached files are read: straight from the disk, or\n"                                                     \
	  "always by way of the kernel's memory (direct)",                                                              \
	  parse_storage_io, "mount anew")                                                                                             \
	X("source", 0, "local|exclusive|shared",                                                                        \
	  "on a network or FUSE file system, which is refused\n"                                                        \
	  "otherwise: no other machine can change it, none does\n"                                                      \
	  "while it is mounted here, or several do, each by a\n"                                                        \
	  "gaiafs of its own",                                                                                          \
	  parse_source, "mount anew")                                                                                                 \
	X("names-age", 0, "SECONDS",                                                                                    \
	  "with --source shared: how long a directory may be\n"                                                         \
	  "known by what it was, before it is asked for again (" OPTIONS_TEXT(OPTIONS_NAMES_AGE_S) ")",                                                     \
	  parse_names_age, "mount anew")                                                                                              \
	X("huge-pages", 0, "on|off",                                                                                    \
	  "make memory of simulated devices and of the host that\n"                                                    \
	  "programs map huge pages (on)",                                                            \
	  parse_huge_pages, "mount anew")                                                                               \
	X("dedup", 0, "off|home|all-users",                                                                            \
	  "keep equal pages of --home once: of files of the same\n"                                                    \
	  "owner, or of all files: then users can find out what\n"                                                     \
	  "others have read (off)",                                                                                     \
	  parse_dedup, "mount anew")                                                                                                  \
	X("writeback-age", 0, "SECONDS",                                                                                \
	  "store data that has been dirty for so long (" OPTIONS_TEXT(OPTIONS_AGE_S) ")",                               \
	  parse_writeback_age, NULL)                                                                                          \
	X("device-age", 0, "SECONDS",                                                                                   \
	  "fetch and store what a device released so long ago\n"                                                        \
	  "(as --writeback-age)",                                                                                       \
	  parse_device_age, NULL)                                                                                             \
	X("unmount-timeout", 0, "SECONDS",                                                                              \
	  "when the mount ends: try for so long to store data that\n"                                                   \
	  "cannot be stored (" OPTIONS_TEXT(OPTIONS_UNMOUNT_TIMEOUT_S) ")",                                             \
	  parse_unmount_timeout, NULL)                                                                                        \
	X("user-limit", 0, "WHAT=N[,WHAT=N]...",                                                                        \
	  "how many each user other than root may have: clients\n"                                                      \
	  "(1024), mappings (16384), open directories and\n"                                                            \
	  "removed_files in use (by ulimit -n);\n"                                                                      \
	  "device=PERCENT of each device's memory (75);\n"                                                               \
	  "pinned=PERCENT of it for files that the user pins (0)",                                                      \
	  parse_user_limits, NULL)                                                                                            \
	X("pin", 0, "DEVICE:PATH",                                                                                      \
	  "pin a file of the mount, or all files in a directory,\n"                                                     \
	  "to a device when the mount has begun (gaia pin); may\n"                                                      \
	  "be given several times",                                                                                     \
	  parse_pin, "use `gaia pin` and `gaia unpin`, or mount anew")                                                                                                    \
	X("pin-share", 0, "PERCENT",                                                                                    \
	  "how much of each device pinned files may have (" OPTIONS_TEXT(OPTIONS_PIN_SHARE) ")",                        \
	  parse_pin_share, NULL)                                                                                            \
	X("supervisor", 0, "on|off|unmount",                                                                            \
	  "a second process: when this one is killed it ends the\n"                                                     \
	  "connection, so that nobody hangs (on), and also takes\n"                                                     \
	  "the mount away (unmount)",                                                                                   \
	  parse_supervisor, "mount anew")                                                                                             \
	X("metrics", 0, "unix:PATH|[ADDRESS:]PORT",                                                                     \
	  "serve counters over HTTP for Prometheus, at a socket\n"                                                      \
	  "of which the path is given, or at a port (of 127.0.0.1)",                                                    \
	  parse_metrics, "mount anew")                                                                                                \
	X("log-level", 0, "error|warn|info|debug", "what is logged (info)", parse_log_level, NULL)                            \
	/* Has no effect. For tables of mounts and scripts that name it. */                                             \
	X("transport", 0, "", "", ignore_transport, "it has no effect")                                                                     \
	X("config", 'c', "FILE",                                                                                        \
	  "read options from a file, here and whenever SIGHUP or\n"                                                     \
	  "`gaia reload` asks for it",                                                                                  \
	  NULL, "mount anew")                                                                                           \
	X("foreground", 'f', NULL, "stay in the foreground, and log to standard error", stay_in_foreground, "start gaiafs anew")             \
	X(NULL, 'o', "OPTION[,OPTION]...", "mount options: ro, allow_other, noatime, ...", add_mount_options, "use `mount -o remount`, or mount anew")           \
	X("upgrade", 0, NULL,                                                                                           \
	  "this program takes the mount DIR over from the daemon\n"                                                     \
	  "that serves it, with that one's options; programs that\n"                                                    \
	  "use the mount only wait for a moment",                                                                       \
	  upgrade, "give it to gaiafs")                                                                                 \
	X("force", 0, NULL, "with --upgrade: even if mappings of devices end by it", force, "give it to gaiafs --upgrade") \
	X("wait", 0, "SECONDS",                                                                                         \
	  "with --upgrade: how long to wait until programs hold\n"                                                      \
	  "nothing on devices (" OPTIONS_TEXT(OPTIONS_WAIT_S) ")",                                                      \
	  wait_for_programs, "give it to gaiafs --upgrade")                                                             \
	X("leave", 0, NULL,                                                                                             \
	  "with --upgrade: the service manager does not hear of the\n"                                                 \
	  "new daemon, before gaiafs --adopt tells it",                                                                 \
	  leave, "give it to gaiafs --upgrade")                                                                         \
	X("adopt", 0, NULL,                                                                                             \
	  "if a daemon of the same unit serves MOUNTPOINT already,\n"                                                  \
	  "tell the service manager so, and end; else mount it",                                                        \
	  adopt, "give it to gaiafs")                                                                                   \
	/* Given by a daemon to the one that takes over from it. */                                                     \
	X("take-over", 0, NULL, "", take_over, "")                                                                      \
	X("take-over-set", 0, "", "", take_setting, "")                                                                 \
	X("take-over-devices", 0, "", "", take_devices, "")                                                                \
	X("take-over-left", 0, NULL, "", take_left, "")                                                                 \
	X("take-over-gpus", 0, "", "", take_gpus, "")                                                                      \
	X("help", 'h', NULL, "print the options", NULL, "")                                                                        \
	X("version", 'V', NULL, "print the version", NULL, "")

#endif
