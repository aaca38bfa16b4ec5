"""Arrays as PyTorch's tensors, with the dtypes that numpy lacks. On a GPU this has run with a stand-in for PyTorch only."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ._format import Tensor
from ._views import DeviceArray

# What numpy has no dtype for; the others are the same.
_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def _torch() -> Any:
    return importlib.import_module("torch")


def is_known(tensor: Tensor) -> bool:
    """Whether PyTorch has a dtype for it, and numpy has none."""
    return hasattr(_torch(), _DTYPES.get(tensor.dtype, " "))


class _Writable:
    """An array on a GPU, which PyTorch keeps. It knows no memory for reading only, and refuses to take any."""

    def __init__(self, array: DeviceArray) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        interface = self._array.__cuda_array_interface__
        return interface | {"data": (interface["data"][0], False)}


def as_torch(array: Any, tensor: Tensor, bits: bool) -> Any:
    """A tensor in the array's memory, which it keeps. The array has the bits of `tensor`, or a part of it."""
    torch = _torch()
    if isinstance(array, np.ndarray):
        # DLPack says that the memory is for reading, from_numpy() would warn of it. PyTorch does not heed it: a store is SIGSEGV.
        found = torch.from_dlpack(array.view(np.ndarray))
    else:
        found = torch.as_tensor(_Writable(array), device=f"cuda:{array._ordinal}")
    if bits or tensor.dtype not in _DTYPES:
        return found
    return found.view(getattr(torch, _DTYPES[tensor.dtype]))
