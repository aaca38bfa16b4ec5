/*
 * libfuse.h - libfuse's low-level interface, and everything that depends on its version.
 *
 * 3.14 (Debian 12, Ubuntu 24.04) is enough for everything but passthrough. meson.build prefers the newer one
 * that scripts/libfuse builds, if it is there.
 */
#ifndef GAIA_FUSE_LIBFUSE_H
#define GAIA_FUSE_LIBFUSE_H

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

/* fuse_passthrough_open() and _close(), fuse_file_info.backing_id, FUSE_CAP_PASSTHROUGH. */
#define GAIA_HAVE_PASSTHROUGH (FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17))

#if GAIA_HAVE_PASSTHROUGH
#define CAP_PASSTHROUGH FUSE_CAP_PASSTHROUGH
#else
#define CAP_PASSTHROUGH 0
#endif

/* A libfuse that does not know this feature cannot be asked for it: then serve.c promises it to the kernel. */
#ifndef FUSE_CAP_HANDLE_KILLPRIV_V2
#define FUSE_CAP_HANDLE_KILLPRIV_V2 0
#endif

#endif
