"""Ranges that are held for as long as anything is left of the arrays in them."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from ._mapping import Acquired, Mapping
from ._views import Array, DeviceArray


class Kept:
    """Holds a part of a mapping, for reading, until it and all arrays that array() gave, and what is made of those, are gone.

    Unlike what Mapping.acquire() gives, also plain numpy arrays in that memory (numpy.asarray(), torch.from_numpy()) keep it.
    """

    def __init__(self, mapping: Mapping, part: np.ndarray[Any, Any]) -> None:
        held = Acquired(mapping, part, mmap.PROT_READ, None)
        held._kept = True
        held.__enter__()
        self._held, self._mapping = held, mapping
        self._at = mapping._address + held._from
        # What numpy finds when it asks for the memory: then its arrays refer to this object.
        self.__array_interface__ = {"version": 3, "shape": (held._to - held._from,), "typestr": "|u1", "data": (self._at, True)}

    def array(self, part: np.ndarray[Any, Any]) -> Any:
        """An array of this part of the mapping, which lies in what is held: Array, or DeviceArray on a GPU. It cannot be stored to."""
        if not self._mapping.device.simulated:
            if part.__array_interface__["data"][0] % (part.itemsize // 2 if part.dtype.kind == "c" else part.itemsize):
                raise ValueError(f"{self._mapping.path}: a tensor is not aligned as its items, which a GPU needs; repack() aligns it")
            return DeviceArray(self._held, part, True, self._mapping._ordinal, None)
        if not part.size:
            return np.empty(part.shape, part.dtype).view(Array)
        start = part.__array_interface__["data"][0] - self._at
        array = np.ndarray(part.shape, part.dtype, np.asarray(self), start, part.strides).view(Array)
        array._hold = self._held
        return array
