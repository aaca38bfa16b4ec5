"""DLPack and the array interfaces. Without a GPU: DLPack in host memory, with numpy as the consumer; the rest by what it says."""

import ctypes
import gc
import weakref

import numpy as np
import pytest
from conftest import run

import gaiafs
from gaiafs import _dlpack


class Owner:
    """Exports an array by our capsules, as numpy's from_dlpack() wants it."""

    def __init__(self, array, readonly=False, most=(9, 9)):
        self.array, self.readonly, self.most = array, readonly, most

    def __dlpack_device__(self):
        return (_dlpack.CPU, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        a = self.array
        version = min(max_version, self.most) if max_version else None
        pointer = a.__array_interface__["data"][0]
        return _dlpack.capsule(self, pointer, a.shape, a.strides, a.dtype, (_dlpack.CPU, 0), self.readonly, version)


ARRAYS = {
    "one dimension": np.arange(10),
    "none": np.array(7.5),
    "strides": np.arange(64, dtype="i2").reshape(8, 8)[::2, ::-3],
    "columns": np.asfortranarray(np.arange(12, dtype="f4").reshape(3, 4)),
    "complex": np.arange(3, dtype="c8"),
    "bool": np.array([True, False]),
    "half": np.arange(3, dtype="f2"),
    "unsigned": np.arange(3, dtype="u8"),
}


@pytest.mark.parametrize("most", [(0, 8), (9, 9)], ids=["before 1.0", "1.0"])
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_capsules_describe_arrays(array, most):
    seen = np.from_dlpack(Owner(array, most=most))
    assert seen.dtype == array.dtype and seen.strides == array.strides and np.array_equal(seen, array)
    assert np.shares_memory(seen, array)


def test_what_was_exported_stays():
    for most in ((0, 8), (9, 9)):
        owner = Owner(np.arange(10), most=most)
        alive = weakref.ref(owner)
        seen = np.from_dlpack(owner)[3:]
        del owner
        gc.collect()
        assert alive() is not None and seen[0] == 3
        seen = None
        gc.collect()
        assert alive() is not None


@pytest.mark.parametrize("version", [None, (1, 0)], ids=["before 1.0", "1.0"])
def test_a_consumer_need_not_ask_whether_there_is_a_deleter(version):
    array = np.arange(3)
    capsule = Owner(array).__dlpack__(max_version=version)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    struct = (_dlpack._Versioned if version else _dlpack._Managed).from_address(
        pointer(capsule, b"dltensor_versioned" if version else b"dltensor")
    )
    # Without the GIL, as ctypes calls.
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(struct.deleter)(ctypes.addressof(struct))
    assert struct.tensor.data == array.ctypes.data and struct.tensor.shape[0] == 3


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.1.0", reason="this numpy does not know DLPack 1.0")
def test_memory_for_reading_only_stays_so():
    seen = np.from_dlpack(Owner(np.arange(10), readonly=True))
    assert not seen.flags.writeable
    with pytest.raises(BufferError, match="reading only"):
        Owner(np.arange(10), readonly=True).__dlpack__()


def test_what_dlpack_cannot_say_is_refused():
    for array in (np.zeros(3, "S2"), np.zeros(3, ">i4"), np.zeros(3, "i4,i4"), np.zeros(3, "u1,<u4")["f1"]):
        with pytest.raises(BufferError):
            Owner(array).__dlpack__()


def test_consumers_come_and_go_when_python_cannot_be_called():
    code = """
        import gaiafs
        import numpy as np
        from gaiafs import _dlpack

        class Owner:
            a = np.arange(10)
            def __dlpack_device__(self):
                return (1, 0)
            def __dlpack__(self, **kwargs):
                return _dlpack.capsule(self, self.a.__array_interface__["data"][0], (10,), (8,), self.a.dtype, (1, 0), False, None)

        def raises():
            capsule, seen = Owner().__dlpack__(), np.from_dlpack(Owner())
            raise KeyError(int(seen[1]))

        try:
            raises()
        except KeyError as e:
            print(e)
        # Freed when the interpreter ends.
        seen = [np.from_dlpack(Owner())]
        seen.append(seen)
        np.testing.kept = seen
    """
    assert run(code) == "1\n"


def test_numpys_arrays_have_interfaces_while_they_are_held(mount):
    path = mount.file("f", bytes(range(64)))
    with gaiafs.memmap(path, mode="r+") as m, m.acquire(slice(8, None), write=True) as a:
        assert np.from_dlpack(a)[0] == 8
        assert a.__array_interface__["data"][0] == m._address + 8
        assert bytes(memoryview(a)[:2]) == b"\x08\x09"


class Hold:
    held = True

    def check(self):
        if not self.held:
            raise gaiafs.ReleasedError


def device_array(template, readonly=False, stream=None):
    return gaiafs.DeviceArray(Hold(), template, readonly, 3, stream)


def test_cuda_array_interface():
    template = np.zeros((4, 6), "f2")
    a = device_array(template, readonly=True)
    address = template.__array_interface__["data"][0]
    want = {"shape": (4, 6), "typestr": "<f2", "data": (address, True), "strides": None, "stream": None, "version": 3}
    assert a.__cuda_array_interface__ == want
    part = device_array(template[1:, ::2], stream=0)
    assert part.__cuda_array_interface__ == want | {
        "shape": (3, 3),
        "data": (address + 12, False),
        "strides": (12, 4),
        "stream": 1,
    }
    assert (part.shape, part.strides, part.dtype, part.nbytes) == ((3, 3), (12, 4), np.dtype("f2"), 18)
    assert repr(part) == "<gaiafs.DeviceArray (3, 3) float16 on cuda:3>"
    a._hold.held = False
    with pytest.raises(gaiafs.ReleasedError):
        a.__cuda_array_interface__  # noqa: B018
    with pytest.raises(gaiafs.ReleasedError):
        a.__dlpack__()


def test_dlpack_of_a_gpu():
    a = device_array(np.zeros((4, 6), "f2"))
    assert a.__dlpack_device__() == (2, 3)
    for keywords in ({}, {"stream": 1}, {"stream": -1}, {"stream": 77}, {"max_version": (1, 1)}, {"dl_device": (2, 3), "copy": False}):
        assert "dltensor" in repr(a.__dlpack__(**keywords))
    for keywords in ({"copy": True}, {"dl_device": (1, 0)}):
        with pytest.raises(BufferError, match="memory itself"):
            a.__dlpack__(**keywords)
    # Acquired in the order of a stream: it is there for that stream only.
    a = device_array(np.zeros(4), stream=77)
    for stream in (77, -1):
        a.__dlpack__(stream=stream)
    for stream in (None, 1, 2, 78):
        with pytest.raises(BufferError, match="another stream"):
            a.__dlpack__(stream=stream)
    a = device_array(np.zeros(4), stream=0)
    for stream in (None, 1, -1):
        a.__dlpack__(stream=stream)
