"""New files that take the place of others when they are whole."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator


@contextlib.contextmanager
def beside(path: str) -> Iterator[int]:
    """A descriptor of a new file. When the with block ends it is stored, and takes the name; by an exception it goes."""
    folder, name = os.path.split(path)
    new = os.path.join(folder, f".{name[:200]}.{secrets.token_hex(8)}")
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            yield fd
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise
