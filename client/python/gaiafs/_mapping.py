"""Files, mapped on a device, and ranges of them that a program works on."""

from __future__ import annotations

import contextlib
import errno
import mmap
import operator
import os
import threading
import warnings
import weakref
from types import EllipsisType, TracebackType
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from . import _lib
from ._devices import Device, Path, cuda_ordinal, find_device
from ._lib import WILLNEED, check_not_forked, error, ffi, lib
from ._views import Array, DeviceArray, ReleasedError

_PAGE = 4096

#: What selects a part of an array: an integer, a slice, `...`, or a tuple of these.
Range: TypeAlias = SupportsIndex | slice | EllipsisType | tuple[Any, ...] | None


def _unmap(address: Any, length: int, path: str, made_in: int, complain: bool) -> None:
    if made_in != _lib.generation:
        return  # a child of fork() never had it
    before = ffi.errno
    if lib.gaia_munmap(address, length) < 0 and complain:
        raise error(path)
    ffi.errno = before


class _Region:
    """What gaia_mmap() has mapped; unmapped when nobody refers to it any more. Arrays in it refer to it by their bases."""

    def __init__(self, fd: int, path: str, length: int, prot: int, offset: int, device: Device) -> None:
        address = lib.gaia_mmap(length, prot, fd, offset, device.index)
        if address == ffi.cast("void *", -1):
            raise error(path)
        self.address, self.length, self.path, self.generation = address, length, path, _lib.generation
        self.__array_interface__ = {
            "version": 3,
            "shape": (length,),
            "typestr": "|u1",
            "data": (int(ffi.cast("uintptr_t", address)), False),
        }
        self._unmap = weakref.finalize(self, _unmap, address, length, path, self.generation, False)
        self._unmap.atexit = False  # it goes with the process

    def unmap(self) -> None:
        """Now, and say whether it worked. Nothing may use it any more."""
        try:
            _unmap(self.address, self.length, self.path, self.generation, True)
        except OSError as e:
            if e.errno != errno.EBUSY:
                self._unmap.detach()
            raise
        self._unmap.detach()


def _stream_of(stream: Any) -> int | None:
    """The cudaStream_t of what libraries call a stream; None: none was given."""
    if stream is None or isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)  # cuda.core; returns a version and the handle
    if protocol is not None:
        return int(protocol()[1])
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch; CuPy; Numba
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0)
    raise TypeError(f"stream must be an integer or a stream of PyTorch, CuPy or Numba, not {type(stream).__name__}")


def _bounds(part: np.ndarray[Any, Any], start: int) -> tuple[int, int]:
    """From which byte to which a part of an array lies, counted from the address `start`; nothing is touched."""
    first = part.__array_interface__["data"][0] - start
    if not part.size:
        return first, first
    low = high = 0
    for n, stride in zip(part.shape, part.strides, strict=True):
        low += min(0, (n - 1) * stride)
        high += max(0, (n - 1) * stride)
    return first + low, first + high + part.itemsize


class Acquired:
    """A range while it is acquired: the context manager that Mapping.acquire() returns. It is good for one with block."""

    def __init__(self, mapping: Mapping, part: np.ndarray[Any, Any], prot: int, stream: int | None) -> None:
        self._mapping, self._part, self._prot, self._stream = mapping, part, prot, stream
        self._from, self._to = _bounds(self._part, mapping._address)
        if prot == mmap.PROT_WRITE and self._to - self._from != self._part.nbytes:
            raise ValueError("overwrite=True takes a range without gaps: what lies in the gaps would be overwritten, too")
        self._entered = self._held = False
        self._kept = False  # arrays may be used for any time: it is released when the last has gone

    @property
    def held(self) -> bool:
        """Whether it is acquired, and not released yet."""
        return self._held

    def _has(self, address: int) -> bool:
        """Whether the address is one of its mapping's."""
        return 0 <= address - self._mapping._address <= self._mapping._lead + self._mapping.nbytes

    def check(self) -> None:
        """Raise ReleasedError if the range is not held (any more), and OSError in a child of fork()."""
        check_not_forked(self._mapping._generation, self._mapping.path)
        if not self._held:
            raise ReleasedError(f"{self._mapping.path}: this array's range has been released; acquire it again")

    def __enter__(self) -> Any:
        """Acquire, and return the array: Array on a simulated device, DeviceArray on a GPU.

        It waits until the device sees all that was written before, by anybody; with a stream, it waits for nothing. Signals are handled
        meanwhile (an exception of theirs comes out, with nothing acquired).

        OSError: ENOMEM, no room on the device beside what is acquired, or for this user; EACCES, write or overwrite on a mapping of
        mode "r"; ENOTCONN, the daemon has ended, or this is a child of fork(); EIO and others, storage or the device has failed.
        """
        if self._entered:
            raise RuntimeError("each acquire() is good for one with block")
        self._mapping._hold()
        try:
            self._call(lib.gaia_acquire, lib.gaia_acquire_on, self._prot)
        except BaseException:
            self._mapping._unhold()
            raise
        self._entered = self._held = True
        return self._mapping._array(self, self._part, self._prot & mmap.PROT_WRITE == 0, self._stream)

    def release(self) -> None:
        """Publish what was stored, and give the range back; nothing if that has been done. Leaving the with block does it.

        OSError: EIO, ENOSPC and others: the range is released, and what could not be stored is kept and tried again, by
        Mapping.sync() for instance. ENOBUFS: what this user holds is cut into too many ranges; it is still acquired: release
        others and call again.
        """
        check_not_forked(self._mapping._generation, self._mapping.path)
        with self._mapping._lock:
            if not self._held:
                return
            self._held = False
        try:
            self._call(lib.gaia_release, lib.gaia_release_on)
        except OSError as e:
            if e.errno == errno.ENOBUFS:
                self._held = True
            else:
                self._mapping._unhold()
            raise
        self._mapping._unhold()

    def _call(self, now: Any, on_stream: Any, *prot: int) -> None:
        address = self._mapping._at(self._from)
        length = self._to - self._from
        while True:
            if self._stream is None:
                result = now(address, length, *prot)
            else:
                result = on_stream(address, length, *prot, ffi.cast("void *", self._stream))
            if result == 0:
                return
            e = error(self._mapping.path)
            # Between two tries Python handles the signal.
            if e.errno != errno.EINTR:
                raise e

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        if not getattr(self, "_held", False) or self._mapping._generation != _lib.generation:
            return
        if self._kept:
            with contextlib.suppress(OSError):  # nothing was written, and nobody is there to be told
                self.release()
        else:
            warnings.warn(f"{self._mapping.path}: a range was acquired and never released", ResourceWarning, source=self, stacklevel=2)
            self.release()


class Mapping:
    """An array in a file of a mount, on one device. Made by memmap(); close it, or use it in a with block.

    Threads may share it, and acquire ranges that overlap: acquires count. Pickled, it is mapped anew where it is unpickled.
    """

    def __init__(self, path: str, region: _Region, lead: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: Any, mode: str,
                 offset: int, device: Device, ordinal: int) -> None:  # fmt: skip
        self.path = path  #: as given to memmap()
        self.dtype = dtype
        self.shape = shape
        self.mode = mode
        self.offset = offset  #: of the array in the file, bytes
        self.device = device
        self._region: _Region | None = region
        self._generation = region.generation
        self._order, self._ordinal = order, ordinal
        self._lock = threading.Lock()
        self._holds = 0
        self._lead = lead
        self._address: int = int(ffi.cast("uintptr_t", region.address))
        self._template: np.ndarray[Any, Any] | None = None
        self._set_template()

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return int(np.prod(self.shape, dtype=np.uint64)) * self.dtype.itemsize

    @property
    def closed(self) -> bool:
        return self._region is None

    # ---- for Acquired ----

    def _set_template(self) -> None:
        # Never dereferenced: it says where things are. What it and its views are of says whether anybody still refers to the region.
        memory = np.asarray(self._region)
        self._memory = weakref.ref(memory)
        self._template = np.ndarray(self.shape, self.dtype, memory, self._lead, None, self._order)

    def _open(self) -> np.ndarray[Any, Any]:
        check_not_forked(self._generation, self.path)
        if self._template is None:
            raise ValueError(f"{self.path}: the mapping is closed")
        return self._template

    def _select(self, selected: Range, template: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """What a range selects of the array, or of a part of it (`template`)."""
        parts = selected if isinstance(selected, tuple) else (slice(None) if selected is None else selected,)
        for part in parts:
            # Anything else makes numpy copy, which would touch what is not acquired.
            if not (part is ... or isinstance(part, slice)) and (isinstance(part, bool) or not hasattr(part, "__index__") or np.ndim(part)):
                raise TypeError(f"a range is made of integers, slices and ..., not {type(part).__name__}")
        index = tuple(part if part is ... or isinstance(part, slice) else operator.index(part) for part in parts)
        # With an ellipsis, also single items are arrays.
        whole = self._open() if template is None else template
        part = whole[index if any(one is ... for one in index) else (*index, ...)]
        assert isinstance(part, np.ndarray)
        return part

    def _at(self, byte: int) -> Any:
        return ffi.cast("void *", self._address + byte)

    def _hold(self) -> None:
        self._open()
        with self._lock:
            self._open()
            self._holds += 1

    def _unhold(self) -> None:
        with self._lock:
            self._holds -= 1

    def _array(self, hold: Acquired, part: np.ndarray[Any, Any], readonly: bool, stream: int | None) -> Any:
        if not self.device.simulated:
            return DeviceArray(hold, part, readonly, self._ordinal, stream)
        array = part.view(Array)
        array._hold = hold
        if readonly:
            array.flags.writeable = False
        return array

    # ---- the calls ----

    def acquire(self, range: Range = None, *, write: bool = False, overwrite: bool = False, stream: Any = None) -> Acquired:
        """A context manager that acquires a range on entering, gives its array, and releases it on leaving, also by an exception.

        range: what indexes the array: an integer, a slice, `...`, or a tuple of these; nothing means all of it. A range with gaps
            (a[:, 0:10]) is acquired from its first byte to its last. Pages of 4096 bytes are acquired whole.
        write: the device will also store to it.
        overwrite: every byte of the range will be stored to: nothing is copied to the device. Bytes that are not stored are
            undefined, and are published all the same. The range must have no gaps.
        stream: acquire and release in the order of this CUDA stream, without waiting: an integer (cudaStream_t), or a stream
            of PyTorch, CuPy, Numba or cuda.core. Errors that occur then are told by check_stream(). Simulated devices act at once.

        The file's last page may reach beyond its end: what is stored there is dropped. On leaving, everything stored so far is published,
        by with blocks that end in an exception, too.

        TypeError, IndexError: the range is no such thing, or is not in the array. ValueError: the mapping is closed, overwrite with gaps.
        Errors of entering and leaving: see Acquired.
        """
        prot = mmap.PROT_WRITE if overwrite else mmap.PROT_READ | (mmap.PROT_WRITE if write else 0)
        return Acquired(self, self._select(range), prot, _stream_of(stream))

    def _acquire(self, part: np.ndarray[Any, Any], overwrite: bool = False) -> Acquired:
        """Of a part that the caller has made of _select()'s."""
        return Acquired(self, part, mmap.PROT_WRITE if overwrite else mmap.PROT_READ, None)

    def _range_call(self, call: Any, selected: Range, *arguments: Any) -> None:
        part = self._select(selected)
        low, high = _bounds(part, self._address)
        self._hold()
        try:
            if call(self._at(low), high - low, *arguments) < 0:
                raise error(self.path)
        finally:
            self._unhold()

    def sync(self, range: Range = None) -> None:
        """Return when everything written to the range by CPUs, and everything released by any device, is on stable storage.

        OSError: EIO, ENOSPC, EDQUOT...: it is not; the data stays cached and is tried again.
        """
        self._range_call(lib.gaia_sync, range)

    def publish(self, range: Range = None) -> None:
        """As sync(), but without waiting for the disk: the file below the mount has it, where other nodes see it, too. A power cut may
        lose it.

        OSError: as of sync().
        """
        self._range_call(lib.gaia_publish, range)

    def prefetch(self, range: Range = None) -> None:
        """Have the range copied to the device in the background, as far as there is free room. Returns at once.

        It changes nothing that is seen, and errors of the copy are not reported.
        """
        self._range_call(lib.gaia_advise, range, WILLNEED)

    def check_stream(self) -> None:
        """Raise the first error of acquires and releases with stream=, if there was one since this was asked last.

        Synchronize with the stream first: such errors occur when it has come to them. OSError: the error, and which bytes it concerns.
        """
        self._hold()
        try:
            e = lib.gaia_stream_error(self._at(0))
            if e < 0:
                raise error(self.path)
            if e > 0:
                ffi.errno = e
                raise error(self.path)
        finally:
            self._unhold()

    def close(self) -> None:
        """End the mapping. Arrays of released ranges that other libraries still have keep its addresses until they go.

        BufferError: a range of it is still acquired. OSError (EBUSY): a stream of its context is being captured.
        """
        if self._generation != _lib.generation:
            self._region = self._template = None  # a child of fork() has nothing to end, and the lock may be taken for ever
            return
        with self._lock:
            if self._region is None:
                return
            if self._holds:
                raise BufferError(f"{self.path}: {self._holds} ranges are still acquired; leave their with blocks first")
            self._template = None
            try:
                # Otherwise the last array that refers to it unmaps it.
                if self._memory() is None:
                    self._region.unmap()
            except OSError as e:
                if e.errno == errno.EBUSY:
                    self._set_template()
                    raise
                self._region = None
                raise
            self._region = None

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<gaiafs.Mapping {self.path!r} {self.shape} {self.dtype} on {self.device.name}{state}>"

    def __reduce__(self) -> Any:
        mode = "r+" if self.mode == "w+" else self.mode
        return memmap, (self.path, self.dtype, mode, self.shape, self.offset, self.device.name, self._order)


_MODES = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w+": os.O_RDWR | os.O_CREAT,
}


def _shape_of(shape: SupportsIndex | tuple[SupportsIndex, ...] | None, dtype: np.dtype[Any], left: int, path: str) -> tuple[int, ...]:
    """The shape, or that of all of a file's `left` bytes."""
    if shape is not None:
        return tuple(operator.index(n) for n in (shape if isinstance(shape, tuple | list) else (shape,)))
    if left < 0 or left % dtype.itemsize:
        raise ValueError(
            f"{path}: the {left} bytes from the offset on are no multiple of the {dtype.itemsize} bytes of a {dtype}; give a shape"
        )
    return (left // dtype.itemsize,)


def memmap(
    path: Path,
    dtype: DTypeLike = np.uint8,
    mode: str = "r",
    shape: SupportsIndex | tuple[SupportsIndex, ...] | None = None,
    offset: int = 0,
    device: int | str | Device = 0,
    order: str = "C",
) -> Mapping:
    """Map an array in a file of a gaiafs mount on a device. Nothing is copied until a range is acquired.

    path: the file, below the mount point.
    dtype: of the array's items; none with Python objects.
    mode: "r", to read; "r+", also to write; "w+", to make the file (or make it empty) as long as the array needs.
    shape: an integer, or a tuple; by default one dimension, to the end of the file.
    offset: of the array in the file, in bytes; any.
    device: its number or name (gaiafs.devices() has both), a Device, or "cuda:N" for the GPU that is number N in this process.
    order: "C" or "F", the order of the array's items in the file.

    A mapping never makes a file longer (but for "w+").

    ValueError: the array would reach beyond the file's end, has no items, or the mount has no such device.
    OSError: ENOTTY, the file is not on a gaiafs mount; EACCES, ENOENT... as of open(2); ENODEV, no regular file, or a GPU that this
    process cannot use; EMFILE, ENFILE, a limit of the mount (gaiafs --user-limit); ENOTCONN, the daemon has ended.
    """
    name = os.fspath(path)
    of = np.dtype(dtype)
    if mode not in _MODES:
        raise ValueError(f'mode must be one of "r", "r+" and "w+", not {mode!r}')
    if order not in ("C", "F"):
        raise ValueError(f'order must be "C" or "F", not {order!r}')
    if of.hasobject or not of.itemsize:
        raise ValueError(f"a file cannot have items of {of}")
    if offset < 0:
        raise ValueError("the offset is negative")
    if mode == "w+" and shape is None:
        raise ValueError('mode "w+" needs a shape')
    fd = os.open(name, _MODES[mode] | os.O_CLOEXEC, 0o666)
    try:
        return map_opened(fd, name, of, mode, shape, offset, device, order)
    finally:
        os.close(fd)


def map_opened(
    fd: int,
    name: str,
    dtype: np.dtype[Any],
    mode: str,
    shape: SupportsIndex | tuple[SupportsIndex, ...] | None,
    offset: int,
    device: int | str | Device,
    order: str = "C",
) -> Mapping:
    """As memmap(), of a file that is open as the mode needs; the caller closes it."""
    on = find_device(fd, name, device)
    dims = _shape_of(shape, dtype, os.fstat(fd).st_size - offset, name)
    nbytes = int(np.prod(dims, dtype=object)) * dtype.itemsize
    if nbytes <= 0 or min(dims, default=1) < 0:
        raise ValueError(f"{name}: an array of shape {dims} has no items")
    if mode == "w+":
        os.ftruncate(fd, 0)
        os.ftruncate(fd, offset + nbytes)
    size = os.fstat(fd).st_size
    if offset + nbytes > size:
        raise ValueError(f"{name}: the array ends at byte {offset + nbytes}, the file at {size}: os.truncate() makes it longer")
    lead = offset % _PAGE
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if mode != "r" else 0)
    region = _Region(fd, name, lead + nbytes, prot, offset - lead, on)
    ordinal = -1 if on.simulated else cuda_ordinal(fd, on)
    return Mapping(name, region, lead, dtype, dims, order, mode, offset, on, ordinal)
