"""DLPack: capsules that tell another library of memory.

A consumer says that it is done by a call from anywhere: without the GIL, with an exception under way, when the interpreter has
ended. Python cannot take that, so the call does nothing: what was exported stays until the process ends. (The standard allows that there is
none, but not all consumers look: older CuPy.)

See https://dmlc.github.io/dlpack/. numpy and PyTorch take these, in host memory; no library for GPUs has taken one of a real GPU yet.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

import numpy as np

CPU, CUDA = 1, 2  # DLDeviceType
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLDataTypeCode, by numpy's kind
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, c_char_p, c_void_p]
# The deleter: a function that takes one argument and touches nothing.
_nothing = ctypes.cast(ctypes.CDLL(None).labs, c_void_p).value
# What consumers may still look at, also when the interpreter has ended.
_exported: list[tuple[Any, ...]] = []
_api.Py_IncRef(ctypes.py_object(_exported))


def capsule(
    owner: object,
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: np.dtype[Any],
    device: tuple[int, int],
    readonly: bool,
    max_version: tuple[int, int] | None,
) -> Any:
    """A capsule for an array at `pointer`; strides are in bytes. `owner` stays until the process ends.

    BufferError: DLPack cannot say this: such a dtype, strides that are no multiples of it, or, to consumers that know only versions
    before 1.0, that the memory is for reading only.
    """
    versioned = max_version is not None and max_version[0] >= 1
    if dtype.kind not in _CODES or not dtype.isnative:
        raise BufferError(f"DLPack has no type for {dtype}")
    if any(stride % dtype.itemsize for stride in strides):
        raise BufferError("DLPack cannot describe strides that are no multiples of the item's size")
    if readonly and not versioned:
        raise BufferError("memory that was acquired for reading only can be given to consumers that know DLPack 1.0 only")
    n = len(shape)
    sizes = (c_int64 * n)(*shape)
    steps = (c_int64 * n)(*(stride // dtype.itemsize for stride in strides))
    tensor = _Tensor(
        pointer, device[0], device[1], n, _CODES[dtype.kind], dtype.itemsize * 8, 1,
        ctypes.cast(sizes, POINTER(c_int64)), ctypes.cast(steps, POINTER(c_int64)), 0,
    )  # fmt: skip
    struct: _Managed | _Versioned
    if versioned:
        struct = _Versioned(1, 0, None, _nothing, _READ_ONLY if readonly else 0, tensor)
    else:
        struct = _Managed(tensor, None, _nothing)
    _exported.append((struct, sizes, steps, owner))
    return _new(ctypes.addressof(struct), b"dltensor_versioned" if versioned else b"dltensor", None)
