"""Files of safetensors whose tensors stay on a device: one copy for all processes that load them, and no copy to load them again.

    from gaiafs import safetensors

    tensors = safetensors.load_file("mnt/model.safetensors")            # {"name": array}
    with safetensors.safe_open("mnt/model.safetensors") as f:           # only what is asked for
        rows = f.get_slice("embedding")[0:1000]

Arrays are as of gaiafs.Mapping.acquire(): numpy's on a simulated device; on a GPU DeviceArray, for CuPy and PyTorch; with framework="pt"
they are PyTorch's tensors. They are for reading, and their memory stays on the device until the last of them, and all views of them, are
gone. (PyTorch does not know of memory for reading only: storing to its tensors is SIGSEGV on a simulated device, and on a GPU changes
what others have loaded.)

Who changes such a file changes it for all who have loaded it, at any moment: see gaiafs.Replaceable for tensors that are replaced while
they are used. save_file(), create() and repack() make a new file, which takes the old one's name: who has loaded the old one keeps that.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from . import _mapping
from ._beside import beside
from ._devices import Device, Path
from ._format import PADDING, FormatError, Header, Tensor, dtype_name, is_dtype, lay_out, little_endian, numpy_dtype, read_header
from ._kept import Kept
from ._mapping import Range
from ._torch import as_torch, is_known
from ._views import Array

__all__ = ["FormatError", "Slice", "create", "load_file", "repack", "safe_open", "save_file"]

_PIECE = 8 << 20  # bytes that are copied at a time
_FRAMEWORKS = {"np": False, "numpy": False, "pt": True, "torch": True, "pytorch": True}  # whether it is PyTorch


class _File:
    """A mapped file, its header, and as what its tensors are wanted."""

    def __init__(self, fd: int, path: str, mode: str, device: int | str | Device, framework: str, bits: bool) -> None:
        if framework not in _FRAMEWORKS:
            raise ValueError(f"framework must be one of {', '.join(_FRAMEWORKS)}, not {framework!r}")
        self.is_torch, self.bits = _FRAMEWORKS[framework], bits
        self.path = path
        # What the kernel would read ahead of the header comes to the device by another way.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        self.header: Header = read_header(fd, path)
        # From the file's beginning, so that pages of the mapping are pages of the file.
        self.mapping = _mapping.map_opened(fd, path, np.dtype("u1"), mode, None, 0, device)

    @property
    def tensors(self) -> Iterator[Tensor]:
        return (one for one in self.header.tensors.values() if not (one.name.startswith(PADDING) and one.dtype == "U8"))

    def part(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Where the tensor is; nothing is touched."""
        dtype, shape = numpy_dtype(tensor, self.bits or (self.is_torch and is_known(tensor)))
        at = self.header.data + tensor.start
        part = self.mapping._select(slice(at, at + tensor.nbytes))
        return np.ndarray(shape, dtype, part)

    def data(self) -> np.ndarray[Any, Any]:
        """Where all tensors are."""
        return self.mapping._select(slice(self.header.data, self.header.size))

    def present(self, array: Any, tensor: Tensor) -> Any:
        """The array of a tensor, or of a part of it, as the caller wants it."""
        return as_torch(array, tensor, self.bits) if self.is_torch else array


def _opened(path: Path, device: int | str | Device, framework: str, bits: bool) -> _File:
    name = os.fspath(path)
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _File(fd, name, "r", device, framework, bits)
    finally:
        os.close(fd)


def load_file(filename: Path, device: int | str | Device = 0, *, framework: str = "np", bits: bool = False) -> dict[str, Any]:
    """All tensors of a file on a mount, by name; all of them are brought to the device, and nothing is copied from there.

    device: as of gaiafs.memmap(): number, name, or "cuda:0".
    framework: "np", or "pt" for PyTorch's tensors.
    bits: what numpy has no dtype for (BF16, F8_E4M3...) comes as unsigned integers of the same size, packed items (F4) as bytes in one
        dimension. Without it the package ml_dtypes must be there, for its dtypes. PyTorch has its own, but none for packed items.

    FormatError (a ValueError): it is no such file. TypeError: numpy lacks a dtype, and see bits. OSError: see gaiafs.memmap() and
    Acquired: ENOMEM, the file does not fit the device beside what is held there. ValueError: on a GPU, a tensor is not aligned as its
    items; repack() aligns it.
    """
    file = _opened(filename, device, framework, bits)
    parts = [(one, file.part(one)) for one in file.tensors]
    kept = Kept(file.mapping, file.data())
    return {one.name: file.present(kept.array(part), one) for one, part in parts}


class Slice:
    """A tensor of which parts are asked for; made by safe_open.get_slice()."""

    def __init__(self, file: _File, tensor: Tensor, part: np.ndarray[Any, Any]) -> None:
        self._file, self._tensor, self._part = file, tensor, part

    def get_shape(self) -> list[int]:
        """As in the file."""
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        """As safetensors calls it: "BF16"."""
        return self._tensor.dtype

    def __getitem__(self, index: Range) -> Any:
        """The array of a part; only its pages are brought to the device. index: as of gaiafs.Mapping.acquire()."""
        mapping = self._file.mapping
        part = mapping._select(index, self._part)
        return self._file.present(Kept(mapping, part).array(part), self._tensor)


class safe_open:
    """A file on a mount of which some tensors are wanted, as safetensors.safe_open() has it. Use it in a with block.

    framework: "np" or "pt". device and bits: see load_file().

    What it gave stays good after the with block. Errors are those of load_file(), each when it is due.
    """

    def __init__(self, filename: Path, framework: str = "np", device: int | str | Device = 0, *, bits: bool = False) -> None:
        self._opened: _File | None = _opened(filename, device, framework, bits)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._opened = None

    def _file(self) -> _File:
        if self._opened is None:
            raise ValueError("the file is closed")
        return self._opened

    def _tensor(self, name: str) -> Tensor:
        found = self._file().header.tensors.get(name)
        if found is None:
            raise KeyError(f"{self._file().path} has no tensor {name!r}")
        return found

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(one.name for one in self._file().tensors)

    def offset_keys(self) -> list[str]:
        """The names in the order in which the tensors lie in the file."""
        return [one.name for one in self._file().tensors]

    def metadata(self) -> dict[str, str] | None:
        """The texts that the file has beside the tensors."""
        found = self._file().header.metadata
        return None if found is None else dict(found)

    def get_tensor(self, name: str) -> Any:
        """The array of a tensor; it is brought to the device. KeyError: there is none of this name."""
        file = self._file()
        tensor = self._tensor(name)
        part = file.part(tensor)
        return file.present(Kept(file.mapping, part).array(part), tensor)

    def get_slice(self, name: str) -> Slice:
        """A tensor whose parts can be had: f.get_slice("name")[0:10]. KeyError: there is none of this name."""
        file, tensor = self._file(), self._tensor(name)
        return Slice(file, tensor, file.part(tensor))


# ---- writing ----


def _write(fd: int, data: Any) -> None:
    left = memoryview(data).cast("B")
    while left:
        left = left[os.write(fd, left[: 1 << 30]) :]


def _write_file(path: str, first: bytes, laid: list[Tensor], bytes_of: Callable[[int, Tensor], None]) -> None:
    with beside(path) as fd:
        _write(fd, first)
        for one in laid:
            if one.name.startswith(PADDING):
                _write(fd, bytes(one.nbytes))
            else:
                bytes_of(fd, one)


def save_file(
    tensors: Mapping[str, Any], filename: Path, metadata: Mapping[str, str] | None = None, *, padding: bool = False
) -> None:  # fmt: skip
    """Make a file of arrays in host memory (or acquired on a simulated device), laid out as repack() does.

    The file may be on a mount, or anywhere. It appears under its name when it is whole and on storage, and takes the place of one that
    was there; an interrupted call leaves nothing.

    ValueError, TypeError: a name or dtype that such a file cannot have. OSError: as of open(2), write(2), fsync(2), rename(2).
    """
    arrays = {name: np.asanyarray(one) for name, one in tensors.items()}
    names = {name: dtype_name(name, one.dtype) for name, one in arrays.items()}
    first, laid = lay_out([(name, names[name], one.shape) for name, one in arrays.items()], metadata, padding)

    def bytes_of(fd: int, one: Tensor) -> None:
        array = arrays[one.name]
        if isinstance(array, Array):
            array._check()
        if one.nbytes:
            little = np.ascontiguousarray(array.view(np.ndarray), little_endian(array.dtype))
            _write(fd, little.reshape(-1).view("u1").data)

    _write_file(os.fspath(filename), first, laid, bytes_of)


@contextlib.contextmanager
def create(
    filename: Path,
    tensors: Mapping[str, tuple[str | DTypeLike, tuple[int, ...]]],
    metadata: Mapping[str, str] | None = None,
    *,
    device: int | str | Device = 0,
    framework: str = "np",
    bits: bool = False,
    padding: bool = False,
) -> Iterator[dict[str, Any]]:
    """A context manager that makes a file on a mount whose tensors are stored to on the device: what is loaded later is there already.

        with safetensors.create("mnt/model.safetensors", {"w": ("F16", (4096, 4096))}) as tensors:
            tensors["w"][:] = ...

    tensors: dtype (safetensors' name or numpy's) and shape of each. device, framework and bits are as of load_file(), metadata and
        padding as of save_file().

    Every byte of the tensors is to be stored to; others are undefined. All is released when the with block ends; then the file is brought
    to storage, and appears under its name. After an exception there is none. The arrays raise ReleasedError then. (On a mount with
    --cpu-cache auto the new file's zeros are brought to the device first, with writeback and writethrough nothing is.)

    ValueError, TypeError, OSError: as of load_file() and save_file().
    """
    path = os.fspath(filename)
    named = {name: str(dtype) if is_dtype(dtype) else dtype_name(name, np.dtype(dtype)) for name, (dtype, _) in tensors.items()}
    first, laid = lay_out([(name, named[name], shape) for name, (_, shape) in tensors.items()], metadata, padding)
    with beside(path) as fd:
        _write(fd, first)
        os.ftruncate(fd, len(first) + sum(one.nbytes for one in laid))
        file = _File(fd, path, "r+", device, framework, bits)
        parts = [(one, file.part(one)) for one in file.tensors]
        held = file.mapping._acquire(file.data(), overwrite=True)
        with held:
            yield {one.name: file.present(file.mapping._array(held, part, False, None), one) for one, part in parts}


def repack(source: Path, target: Path, *, padding: bool = False) -> None:
    """Copy a file of safetensors so that its tensors begin with pages (4096 bytes), as far as the format allows.

    Then to change a tensor, or to bring it to a device, concerns no pages of others. The format allows no gaps. So tensors of whole pages
    come first, each beginning with a page, and the few others (biases, norms) share pages at the file's end, aligned as their items.

    padding: all tensors begin with pages: the room between them is that of tensors named "gaiafs.padding.N", which this module does not
        show, and other readers of the file do. (A loader that wants no other names than its own will not take such a file.)

    Both may be anywhere; target may be source. The target appears when it is whole, see save_file(). Metadata and names stay.

    FormatError: the source is no such file. OSError: as of save_file().
    """
    name = os.fspath(source)
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        header = read_header(fd, name)
        shown = [one for one in header.tensors.values() if not (one.name.startswith(PADDING) and one.dtype == "U8")]
        first, laid = lay_out([(one.name, one.dtype, one.shape) for one in shown], header.metadata, padding)

        def bytes_of(to: int, one: Tensor) -> None:
            at, end = header.data + header.tensors[one.name].start, header.data + header.tensors[one.name].start + one.nbytes
            while at < end:
                piece = os.pread(fd, min(_PIECE, end - at), at)
                if not piece:
                    raise FormatError(f"{name}: the file has become shorter")
                _write(to, piece)
                at += len(piece)

        _write_file(os.fspath(target), first, laid, bytes_of)
    finally:
        os.close(fd)
