"""libgaiaclient, by cffi: its functions, its errors, and what becomes of them in a child of fork()."""

from __future__ import annotations

import errno
import os
from typing import Any

from cffi import FFI

ffi: Any = FFI()
ffi.cdef(
    """
    struct gaia_device_info {
        char name[32];
        char kind[16];
        unsigned char uuid[16];
        uint64_t capacity;
        uint64_t used;
        int simulated;
    };
    int gaia_devices(int fd, struct gaia_device_info *out, int max);
    int gaia_device_of_cuda(int fd, int ordinal);
    void *gaia_mmap(size_t length, int prot, int fd, int64_t offset, int device);
    int gaia_munmap(void *addr, size_t length);
    int gaia_acquire(void *addr, size_t length, int prot);
    int gaia_release(void *addr, size_t length);
    int gaia_acquire_on(void *addr, size_t length, int prot, void *stream);
    int gaia_release_on(void *addr, size_t length, void *stream);
    int gaia_stream_error(const void *ptr);
    int gaia_sync(void *addr, size_t length);
    int gaia_publish(void *addr, size_t length);
    int gaia_advise(void *addr, size_t length, int advice);
    const char *gaia_version(void);
    const char *gaia_last_error_text(void);
    char *gaia_status(int fd);
    char *gaia_residency(int fd);
    void free(void *);
    """
)

WILLNEED = 3  # GAIA_WILLNEED


def _load() -> Any:
    try:
        library = ffi.dlopen("libgaiaclient.so.0", ffi.RTLD_NOW)
    except OSError as e:
        raise ImportError(
            f"gaiafs needs libgaiaclient.so.0, which comes with gaiafs: install that, or let LD_LIBRARY_PATH name the"
            f" folder `client` of the directory that it was built in ({e})"
        ) from e
    try:
        library.gaia_last_error_text  # noqa: B018
    except AttributeError:
        raise ImportError("libgaiaclient.so.0 is older than this package: install the gaiafs that it came with") from None
    return library


# Each call gives up the GIL. errno is the calling thread's: ffi.errno.
lib: Any = _load()


def string(text: Any) -> str:
    """Of a NUL-terminated one of C's."""
    raw: bytes = ffi.string(text)
    return raw.decode(errors="replace")


def error(path: str | None) -> OSError:
    """The exception for a call of the library that has just failed in this thread."""
    number = ffi.errno
    return OSError(number, string(lib.gaia_last_error_text()), path)


# ---- fork ----

generation = 0  # of this process, counted from the one that imported the package


def _forked() -> None:
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)


def check_not_forked(made_in: int, path: str) -> None:
    """Raise unless what was made in that generation belongs to this process."""
    if made_in != generation:
        text = "a child of fork() has none of its parent's mappings: call gaiafs.memmap() in the child"
        raise OSError(errno.ENOTCONN, text, path)
