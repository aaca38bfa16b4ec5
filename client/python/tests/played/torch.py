"""In PyTorch's place, for the examples and for gaiafs._torch: what they use of it, on the fake driver. As strict as PyTorch 2.15 is."""

import contextlib
import sys
import types

import driver


class _Dtype(str):
    __slots__ = ()


int64, bfloat16 = _Dtype("int64"), _Dtype("bfloat16")


class Tensor:
    def __init__(self, array, dtype):
        self._array, self.dtype = array, dtype
        self.shape = array.shape
        self.device = f"cuda:{driver.where(self.data_ptr())}"

    def data_ptr(self):
        return self._array.__array_interface__["data"][0]

    def view(self, dtype):
        assert self._array.dtype.itemsize == 2 and dtype is bfloat16
        return Tensor(self._array, dtype)

    def numpy(self):
        return self._array

    def sum(self, dtype):
        # Carried out at once, so what is queued before it must have been.
        _current[-1].synchronize()
        return int(self._array.sum(dtype=str(dtype)))


def as_tensor(array, device):
    if array.__cuda_array_interface__["data"][1]:
        raise TypeError("the read only flag is not supported, should always be False")
    seen = driver.look(array)
    tensor = Tensor(seen, _Dtype(seen.dtype.name))
    assert tensor.device == device, "this would be copied"
    return tensor


class _Stream(driver.Stream):
    @property
    def cuda_stream(self):
        return self.handle


_current = []


@contextlib.contextmanager
def _stream(stream):
    _current.append(stream)
    yield
    _current.pop()


def from_dlpack(array):
    kind, n = array.__dlpack_device__()
    assert kind == 2
    stream = _current[-1].cuda_stream if _current else 1
    capsule = array.__dlpack__(max_version=(1, 0), stream=stream)
    seen = driver.take(capsule)
    tensor = Tensor(seen, _Dtype(seen.dtype.name))
    assert tensor.device == f"cuda:{n}"
    return tensor


cuda = types.ModuleType("torch.cuda")
cuda.Stream, cuda.stream, cuda.is_available = _Stream, _stream, lambda: True
sys.modules["torch.cuda"] = cuda
