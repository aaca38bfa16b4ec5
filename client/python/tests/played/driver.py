"""What libraries for GPUs do with arrays, on the fake CUDA driver (tests/gpu/played_library.c): its memory is the CPU's, so numpy can look.

Only for processes in which it is libcuda.so.1, see test_gpu.py.
"""

import ctypes

import numpy as np

_driver = ctypes.CDLL("libcuda.so.1")
_driver.played_violation.restype = ctypes.c_char_p
_contexts = {}


def call(name, *args):
    function = ctypes.c_void_p()
    assert _driver.cuGetProcAddress_v2(name.encode(), ctypes.byref(function), 12000, ctypes.c_uint64(0), None) == 0, name
    result = ctypes.CFUNCTYPE(ctypes.c_int, *(type(one) if isinstance(one, ctypes._SimpleCData) else ctypes.c_void_p for one in args))(
        function.value
    )(*args)
    assert result == 0, (name, result, violation())


def violation():
    """The first of CUDA's rules that somebody in this process has broken, or None."""
    return _driver.played_violation()


def enter(n):
    """Make GPU n current, with its primary context, as the runtime API does."""
    if n not in _contexts:
        call("cuInit", ctypes.c_uint(0))
        gpu, context = ctypes.c_int(), ctypes.c_void_p()
        call("cuDeviceGet", ctypes.byref(gpu), ctypes.c_int(n))
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
        _contexts[n] = context
    call("cuCtxSetCurrent", _contexts[n])


def current():
    """The number of the current GPU."""
    gpu = ctypes.c_int()
    call("cuCtxGetDevice", ctypes.byref(gpu))
    return gpu.value


class Stream:
    """One that waits for no other."""

    def __init__(self, n=0):
        enter(n)
        handle = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(1))
        self.handle, self.gate = handle.value, None

    def synchronize(self):
        call("cuStreamSynchronize", ctypes.c_void_p(self.handle))

    def hold_up(self):
        """What is queued behind this waits for go_on()."""
        pinned = ctypes.c_void_p()
        call("cuMemHostAlloc", ctypes.byref(pinned), ctypes.c_size_t(4096), ctypes.c_uint(0))
        self.gate = ctypes.c_uint32.from_address(pinned.value)
        self.gate.value = 0
        call("cuStreamWaitValue32", ctypes.c_void_p(self.handle), ctypes.c_uint64(pinned.value), ctypes.c_uint32(1), ctypes.c_uint(0))

    def go_on(self):
        self.gate.value = 1

    def store(self, at, byte, n):
        """A kernel's work: n bytes at an address of the GPU."""
        call("cuMemsetD8Async", ctypes.c_uint64(at), ctypes.c_ubyte(byte), ctypes.c_size_t(n), ctypes.c_void_p(self.handle))


class _Memory:
    def __init__(self, interface, owner):
        self.__array_interface__ = {key: interface[key] for key in ("shape", "typestr", "data", "strides", "version")}
        self.owner = owner


def where(pointer):
    """The number of the GPU that may read it."""
    gpu = _driver.played_gpu(ctypes.c_void_p(pointer))
    assert gpu >= 0, hex(pointer)
    return gpu


def look(array):
    """As CuPy takes an object by __cuda_array_interface__: waits for the stream that it names, and keeps the object."""
    interface = array.__cuda_array_interface__
    assert interface["version"] == 3
    if interface["stream"] is not None:
        assert interface["stream"] != 0
        call("cuStreamSynchronize", ctypes.c_void_p(interface["stream"]))
    return np.asarray(_Memory(interface, array))


# ---- DLPack, as consumers that are not Python take it ----


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


def take(capsule):
    """The array of a capsule of DLPack 1.0; as it is given back at once, it must stay good without its producer's object."""
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    one = _Versioned.from_address(api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))
    api.PyCapsule_SetName(capsule, b"used_dltensor_versioned")
    t = one.tensor
    assert (one.major, t.device_type, t.lanes, t.byte_offset) == (1, 2, 1, 0) and where(t.data) == t.device_id
    item = t.bits // 8
    interface = {
        "shape": tuple(t.shape[: t.ndim]),
        "typestr": f"{'|' if item == 1 else '<'}{'iuf??cb'[t.code]}{item}",
        "data": (t.data, bool(one.flags & 1)),
        "strides": tuple(n * item for n in t.strides[: t.ndim]),
        "version": 3,
    }
    seen = np.asarray(_Memory(interface, None))
    if one.deleter:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(one.deleter)(ctypes.addressof(one))
    return seen
