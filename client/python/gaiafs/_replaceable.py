"""An array that is replaced while others use it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import operator
import os
import struct
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _lib
from ._beside import beside
from ._devices import Device, Path
from ._mapping import Mapping, map_opened

_PAGE = 4096
_EPOCH = struct.Struct("<Q")
_WRITER, _SLOTS = 0, (1, 2)  # which byte of the file is locked for what


def _lock(fd: int, kind: int, byte: int) -> None:
    """An open file description's lock (fcntl(2), F_OFD_SETLKW): it goes with the description, so also with a killed process."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, struct.pack("@hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))


class _ReadLock:
    """Locks a slot for reading for as long as any thread of this process reads it."""

    def __init__(self, fd: int, byte: int) -> None:
        self._fd, self._byte, self._mutex, self._readers = fd, byte, threading.Lock(), 0
        self._generation = _lib.generation

    def __enter__(self) -> None:
        with self._mutex:
            if not self._readers:
                _lock(self._fd, fcntl.F_RDLCK, self._byte)
            self._readers += 1

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._generation != _lib.generation:
            return  # a child of fork(): the lock is its parent's, and the mutex may be taken for ever
        with self._mutex:
            self._readers -= 1
            if not self._readers:
                _lock(self._fd, fcntl.F_UNLCK, self._byte)


_opened: weakref.WeakSet[Replaceable] = weakref.WeakSet()


def _forked() -> None:
    # Else a child would go on holding its parent's locks when that has died.
    for one in list(_opened):
        one._close_descriptors()
        while one._writers:
            os.close(one._writers.pop())


os.register_at_fork(after_in_child=_forked)


class Replaceable:
    """An array in a file of its own that can be replaced while readers use it: each sees the old one or the new one, never a mixture.

        with gaiafs.Replaceable("mnt/embedding", "float16", shape=(50000, 1024), mode="w+") as r:
            r.put(array)                       # from host memory; or, on the device:
            with r.replace() as a:
                a[:] = ...
        with gaiafs.Replaceable("mnt/embedding", "float16", shape=(50000, 1024)) as r:
            with r.read() as a:                # the newest
                ...

    The file has two slots, and a number, the epoch: the slot epoch % 2 is the array. A new one is written beside, into the other slot; then
    the epoch says that it is the array. Who reads a slot locks it, so that the one after the next waits for readers of this one.
    These are locks of fcntl(2) (F_OFD_SETLKW): a process that dies has none. A device's readers get the bytes of one array moved, at most.

    The file has twice the array's size and a page; all readers of a device share what they read. Any number of processes and threads may
    read and replace, on different devices; those who replace wait for each other. Objects may be shared by threads.
    """

    def __init__(
        self,
        path: Path,
        dtype: DTypeLike = np.uint8,
        mode: str = "r",
        shape: SupportsIndex | tuple[SupportsIndex, ...] = (),
        device: int | str | Device = 0,
    ) -> None:
        """Open a file, for reading ("r") or also for replacing ("r+"); or make it ("w+"), with zeros as the first array.

        dtype, shape and device are as of gaiafs.memmap(), and the same for all who use the file. "w+" takes the place of a file that is
        in use only by its name: who has opened that keeps it.

        ValueError: the file is not of this size. OSError: see gaiafs.memmap(); EEXIST, EPERM... as of open(2) and rename(2).
        """
        self.path = os.fspath(path)
        self.dtype = np.dtype(dtype)
        self.shape = tuple(operator.index(n) for n in (shape if isinstance(shape, tuple | list) else (shape,)))
        self.mode = mode
        if mode not in ("r", "r+", "w+"):
            raise ValueError(f'mode must be one of "r", "r+" and "w+", not {mode!r}')
        self.nbytes = int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize
        if self.nbytes <= 0 or min(self.shape, default=1) < 0 or self.dtype.hasobject:
            raise ValueError(f"{self.path}: an array of shape {self.shape} of {self.dtype} has no items for a file")
        self._slot_bytes = -(-self.nbytes // _PAGE) * _PAGE
        size = _PAGE + 2 * self._slot_bytes
        self._fds: list[int] = []
        self._writers: set[int] = set()  # descriptors that have locks for replacing
        self._generation = _lib.generation
        flags = (os.O_RDONLY if mode == "r" else os.O_RDWR) | os.O_CLOEXEC
        try:
            if mode == "w+":
                with beside(self.path) as new:
                    os.ftruncate(new, size)
            fd = self._open(self.path, flags)
            if os.fstat(fd).st_size != size:
                raise ValueError(f"{self.path}: it has {os.fstat(fd).st_size} bytes; for two such arrays it would have {size}")
            self._map: Mapping | None = map_opened(fd, self.path, np.dtype("u1"), "r" if mode == "r" else "r+", None, 0, device)
            self.device = self._map.device
            # Of the same file, should another have its name by now.
            self._read_locks = [_ReadLock(self._open(f"/proc/self/fd/{fd}", flags), byte) for byte in _SLOTS]
        except BaseException:
            self._close_descriptors()
            raise
        self._flags = flags
        _opened.add(self)

    def _open(self, path: str, flags: int) -> int:
        self._fds.append(os.open(path, flags))
        return self._fds[-1]

    def _close_descriptors(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _mapping(self) -> Mapping:
        _lib.check_not_forked(self._generation, self.path)
        if self._map is None:
            raise ValueError(f"{self.path}: it is closed")
        return self._map

    # ---- slots and epochs ----

    @property
    def epoch(self) -> int:
        """How often the array has been replaced."""
        self._mapping()
        # By read(2), also for arrays on a GPU: a number that CPUs write costs no acquire. read() asks twice, so half of one does no harm.
        (epoch,) = _EPOCH.unpack(os.pread(self._fds[0], _EPOCH.size, 0))
        return int(epoch)

    def _at(self, epoch: int) -> int:
        """Where in the file that slot is."""
        return _PAGE + epoch % 2 * self._slot_bytes

    def _slot(self, epoch: int) -> np.ndarray[Any, Any]:
        at = self._at(epoch)
        part = self._mapping()._select(slice(at, at + self.nbytes))
        return np.ndarray(self.shape, self.dtype, part)

    @contextlib.contextmanager
    def read(self) -> Iterator[Any]:
        """A context manager: the newest array, for reading, as of gaiafs.Mapping.acquire(). It stays as it is until the with block ends.

        Until then the array can be replaced once; who replaces it again waits: do not do that within the with block. OSError: see
        gaiafs.Acquired.
        """
        mapping = self._mapping()
        while True:
            epoch = self.epoch
            with self._read_locks[epoch % 2]:
                # It may have been replaced twice before the lock was there.
                if self.epoch != epoch:
                    continue
                with mapping._acquire(self._slot(epoch)) as array:
                    yield array
                return

    @contextlib.contextmanager
    def _replacing(self) -> Iterator[tuple[int, int]]:
        """The next epoch, and a descriptor; the slot is locked, and is the array when the with block ends without an exception."""
        mapping = self._mapping()
        if self.mode == "r":
            raise OSError(errno.EBADF, 'it is open for reading only: mode "r"', self.path)
        mapping._hold()  # so that it cannot be closed meanwhile
        try:
            fd = os.open(f"/proc/self/fd/{self._fds[0]}", self._flags)
            self._writers.add(fd)
            try:
                _lock(fd, fcntl.F_WRLCK, _WRITER)
                epoch = self.epoch + 1
                _lock(fd, fcntl.F_WRLCK, _SLOTS[epoch % 2])
                yield epoch, fd
                # By now all of the array has been released, or written.
                os.pwrite(fd, _EPOCH.pack(epoch), 0)
            finally:
                if fd in self._writers:  # not in a child of fork()
                    self._writers.remove(fd)
                    os.close(fd)
        finally:
            if self._generation == _lib.generation:
                mapping._unhold()

    @contextlib.contextmanager
    def replace(self) -> Iterator[Any]:
        """A context manager: an array on the device, every byte of which is to be stored to. It becomes the array at the with block's end.

        After an exception the old one stays. Waits for others who replace, and for readers of the array before the last one. What is in
        it at first is undefined. OSError: see gaiafs.Acquired; EBADF, the mode is "r".
        """
        with self._replacing() as (epoch, _), self._mapping()._acquire(self._slot(epoch), overwrite=True) as array:
            yield array

    def put(self, array: ArrayLike) -> None:
        """Replace the array by one in host memory, of the same shape. Errors and waits are those of replace(), and write(2)'s."""
        plain = np.ascontiguousarray(array, self.dtype)
        if plain.shape != self.shape:
            raise ValueError(f"{self.path}: the array has the shape {plain.shape}, not {self.shape}")
        left = memoryview(plain.reshape(-1).view("u1").data)
        with self._replacing() as (epoch, fd):
            at = self._at(epoch)
            while left:
                n = os.pwrite(fd, left[: 1 << 30], at)
                left, at = left[n:], at + n

    # ---- the end ----

    def close(self) -> None:
        """End it. BufferError: somebody still reads or replaces, by this object."""
        if self._map is not None and self._generation == _lib.generation:
            self._map.close()
        self._map = None
        self._close_descriptors()

    def __enter__(self) -> Replaceable:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_fds"):
            self._close_descriptors()

    def __repr__(self) -> str:
        return f"<gaiafs.Replaceable {self.path!r} {self.shape} {self.dtype}{' (closed)' if self._map is None else ''}>"
