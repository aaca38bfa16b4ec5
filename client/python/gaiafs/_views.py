"""What a program sees of an acquired range: an array that knows whether it may still be used."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _dlpack

if TYPE_CHECKING:
    from ._mapping import Acquired


class ReleasedError(ValueError):
    """An array was used after its range had been released."""


def _holds_of(values: Iterable[Any]) -> Iterable[Acquired]:
    for value in values:
        if isinstance(value, Array):
            if value._hold is not None:
                yield value._hold
        elif isinstance(value, list | tuple):
            yield from _holds_of(value)


def _plain(value: Any) -> Any:
    """The same memory, as numpy's own class; checked before."""
    return value.view(np.ndarray) if isinstance(value, Array) else value


class Array(np.ndarray[Any, Any]):
    """A numpy array in the memory of a simulated device: shape and dtype as chosen by Mapping.acquire().

    It, and what is made of it and shares its memory (slices, reshapes), raises ReleasedError when its contents are used after the
    release, and OSError (ENOTCONN) in a child of fork(). Copies and results are arrays like any other. Use that numpy does not tell
    cannot be known: numpy.asarray(a), memoryview(a), pointers. After the release that is SIGSEGV on a strict device.
    """

    _hold: Acquired | None = None

    def __array_finalize__(self, obj: Any) -> None:
        # What has other memory, as copies and results have, needs no hold.
        hold = getattr(obj, "_hold", None)
        self._hold = hold if hold is not None and hold._has(super().__array_interface__["data"][0]) else None

    def _check(self) -> None:
        if self._hold is not None:
            self._hold.check()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.get("out", ())
        for hold in _holds_of((*inputs, *out, kwargs.get("where"))):
            hold.check()
        if out:
            kwargs["out"] = tuple(_plain(one) for one in out)
        if "where" in kwargs:
            kwargs["where"] = _plain(kwargs["where"])
        result = getattr(ufunc, method)(*(_plain(one) for one in inputs), **kwargs)
        if not out or result is NotImplemented:
            return result
        return out[0] if len(out) == 1 else tuple(mine if mine is not None else new for mine, new in zip(out, result, strict=True))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        for hold in _holds_of((*args, *kwargs.values())):
            hold.check()
        return super().__array_function__(func, types, args, kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._check()
        return np.array(self.view(np.ndarray)).__reduce_ex__(protocol)

    def __reduce__(self) -> Any:
        self._check()
        return np.array(self.view(np.ndarray)).__reduce__()


def _checked(name: str) -> Callable[..., Any]:
    method = getattr(np.ndarray, name)

    @functools.wraps(method)
    def call(self: Array, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return method(self, *args, **kwargs)

    return call


def _checked_property(name: str) -> property:
    def get(self: Array) -> Any:
        self._check()
        return getattr(super(Array, self), name)

    return property(get)


# The methods of numpy's arrays that use contents, or hand out the memory. (Operators come as ufuncs.)
for _name in """
    __getitem__ __setitem__ __iter__ __contains__ __bool__ __int__ __float__ __complex__ __index__ __copy__ __deepcopy__
    __array__ __repr__ __str__ __format__ __dlpack__ all any argmax argmin argpartition argsort astype byteswap choose clip compress
    conj conjugate copy cumprod cumsum dot dump dumps fill flatten getfield item max mean min nonzero partition prod put
    ravel repeat round searchsorted setfield sort std sum take tobytes tofile tolist trace var
""".split():
    setattr(Array, _name, _checked(_name))
for _name in ("__array_interface__", "__array_struct__", "ctypes", "data", "flat"):
    setattr(Array, _name, _checked_property(_name))


class DeviceArray:
    """An acquired range in the memory of a GPU, for libraries that work there; the CPU cannot touch it.

    It has `__cuda_array_interface__` (version 3: cupy.asarray(a), numba; torch.as_tensor(a), if it was acquired for writing) and DLPack
    (torch.from_dlpack(a)).
    Either raises ReleasedError after the release. What another library has made of it before keeps the mapping alive (by DLPack: until
    the process ends), but does not know of the release: do not use it any more. All this has run on a played GPU only.
    """

    def __init__(self, hold: Acquired, template: np.ndarray[Any, Any], readonly: bool, ordinal: int, stream: int | None) -> None:
        # The template has the GPU's addresses. It is never dereferenced.
        self._hold, self._template, self._readonly, self._ordinal, self._stream = hold, template, readonly, ordinal, stream

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._template.shape
        return shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes."""
        return self._template.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self._template.dtype
        return dtype

    @property
    def nbytes(self) -> int:
        return self._template.nbytes

    @property
    def pointer(self) -> int:
        """The address of the first item on the GPU."""
        self._hold.check()
        address: int = self._template.__array_interface__["data"][0]
        return address

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, self._readonly),
            "strides": None if self._template.flags.c_contiguous else self.strides,
            # 1 is the legacy default stream: 0 may not be said.
            "stream": 1 if self._stream == 0 else self._stream,
            "version": 3,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_dlpack.CUDA, self._ordinal)

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None, dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:  # fmt: skip
        """BufferError: a copy, another device, or a stream is asked for that does not wait for the acquire's."""
        pointer = self.pointer
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("only the memory itself can be exported")
        # What was acquired without a stream is there, for all streams.
        if self._stream is not None and stream != -1 and (stream or 0) not in (self._stream, 1 if self._stream == 0 else self._stream):
            raise BufferError("the range was acquired on another stream: use that one, or synchronize and pass stream=-1")
        return _dlpack.capsule(
            self, pointer, self.shape, self.strides, self.dtype, self.__dlpack_device__(), self._readonly, max_version
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<gaiafs.DeviceArray {self.shape} {self.dtype} on cuda:{self._ordinal}>"
