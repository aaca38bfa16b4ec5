"""The safetensors file format: 8 bytes with the header's length, the header (JSON), and the tensors' bytes, without gaps.

https://huggingface.co/docs/safetensors#format. What the package safetensors refuses is refused, and besides: names that come twice,
fields other than the three of a tensor, and tensors that are written as lists.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

PAGE = 4096
MAX_HEADER = 100_000_000  # bytes; the package's limit
PADDING = "gaiafs.padding."  # names of tensors that are there to fill pages
_METADATA = "__metadata__"
_TOO_LARGE = 1 << 64

# Bits of an item, numpy's dtype or, in brackets, that of the package ml_dtypes.
_DTYPES: dict[str, tuple[int, str]] = {
    "BOOL": (8, "?"),
    "U8": (8, "u1"),
    "I8": (8, "i1"),
    "U16": (16, "<u2"),
    "I16": (16, "<i2"),
    "F16": (16, "<f2"),
    "U32": (32, "<u4"),
    "I32": (32, "<i4"),
    "F32": (32, "<f4"),
    "U64": (64, "<u8"),
    "I64": (64, "<i8"),
    "F64": (64, "<f8"),
    "C64": (64, "<c8"),
    "BF16": (16, "(bfloat16)"),
    "F8_E4M3": (8, "(float8_e4m3fn)"),
    "F8_E5M2": (8, "(float8_e5m2)"),
    "F8_E8M0": (8, "(float8_e8m0fnu)"),
    "F8_E4M3FNUZ": (8, "(float8_e4m3fnuz)"),
    "F8_E5M2FNUZ": (8, "(float8_e5m2fnuz)"),
    # Of these numpy has none: items that are packed.
    "F6_E2M3": (6, ""),
    "F6_E3M2": (6, ""),
    "F4": (4, ""),
}
_NAMES = {np.dtype(of): name for name, (_, of) in _DTYPES.items() if of and of[0] != "("}
_ML_NAMES = {of[1:-1]: name for name, (_, of) in _DTYPES.items() if of.startswith("(")}


class FormatError(ValueError):
    """A file is not one of safetensors, or is damaged."""


@dataclass(frozen=True)
class Tensor:
    """Where a tensor is in a file, and what it is."""

    name: str
    dtype: str  #: as safetensors calls it: "BF16"
    shape: tuple[int, ...]
    start: int  #: bytes, from the beginning of the data
    nbytes: int

    @property
    def item_bytes(self) -> int:
        """Of an item; 1 if items are packed."""
        bits = _DTYPES[self.dtype][0]
        return 1 if bits % 8 else bits // 8


@dataclass(frozen=True)
class Header:
    tensors: dict[str, Tensor]  #: in the order of their bytes
    metadata: dict[str, str] | None
    data: int  #: where in the file the data begins
    size: int  #: of the file


# ---- reading ----


def _refuse(text: str) -> NoReturn:
    raise FormatError(text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        _refuse("the header has a name twice")
    return found


def _integer(text: str) -> int:
    if text[0] == "-" or len(text) > 20:
        _refuse(f"the header has the number {text[:24]}")
    return int(text)


def _number(text: str) -> NoReturn:
    _refuse(f"the header has the number {text[:24]}")


def _parse(raw: bytes) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8")
        parsed = json.loads(text, object_pairs_hook=_pairs, parse_int=_integer, parse_float=_number, parse_constant=_number)
    except FormatError:
        raise
    except (ValueError, RecursionError) as e:
        raise FormatError(f"the header is no JSON: {e}") from None
    if not isinstance(parsed, dict):
        _refuse("the header is no object of JSON")
    return parsed


def _is_text(value: object) -> bool:
    """A string, and not half a character of it (a lone surrogate)."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _TOO_LARGE


def _sizes(value: object) -> bool:
    return isinstance(value, list) and all(_is_size(one) for one in value)


def _tensor(name: str, value: object) -> tuple[Tensor, int]:
    """A tensor, and the bytes that its dtype and shape need."""
    if not _is_text(name):
        _refuse("the name of a tensor is no text")
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse(f"tensor {name!r} must have a dtype, a shape and data_offsets, and nothing else")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        _refuse(f"tensor {name!r} has the unknown dtype {dtype!r}")
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        _refuse(f"tensor {name!r} has a shape or data_offsets that make no sense")
    bits = _DTYPES[dtype][0]
    # Step by step, as the package does: an overflow on the way counts, also where a 0 follows.
    items = 1
    for n in shape:
        items *= n
        if items >= _TOO_LARGE:
            _refuse(f"tensor {name!r} is too large")
    if items * bits % 8:
        _refuse(f"tensor {name!r} does not end with a byte")
    return Tensor(name, dtype, tuple(shape), offsets[0], offsets[1] - offsets[0]), items * bits // 8


def parse(raw: bytes, size: int) -> Header:
    """The header from its JSON, of a file of this size; all of the file's data belongs to exactly one tensor. Raises FormatError."""
    parsed = _parse(raw)
    metadata = parsed.pop(_METADATA, None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(_is_text(key) and _is_text(value) for key, value in metadata.items())
    ):
        _refuse(f"{_METADATA} must have texts, and nothing else")
    found = [_tensor(name, value) for name, value in parsed.items()]
    found.sort(key=lambda one: (one[0].start, one[0].nbytes))
    end = 0
    for tensor, needed in found:
        if tensor.start != end:
            _refuse(f"tensor {tensor.name!r} begins at byte {tensor.start} of the data; the one before ends at {end}")
        if tensor.nbytes != needed:
            _refuse(f"tensor {tensor.name!r} has {tensor.nbytes} bytes; its dtype and shape need {needed}")
        end += needed
    data = 8 + len(raw)
    if data + end != size:
        _refuse(f"the tensors end at byte {data + end}, the file at {size}")
    return Header({tensor.name: tensor for tensor, _ in found}, metadata, data, size)


def read_header(fd: int, path: str) -> Header:
    """The header of an open file. Raises FormatError, with the file's name."""
    size = os.fstat(fd).st_size
    try:
        first = _read(fd, 8, 0)
        if len(first) < 8:
            _refuse("the file has less than 8 bytes")
        length = int.from_bytes(first, "little")
        if length > MAX_HEADER:
            _refuse(f"the header would have {length} bytes")
        if 8 + length > size:
            _refuse(f"the header would end at byte {8 + length}, the file ends at {size}")
        raw = _read(fd, length, 8)
        if len(raw) != length:
            _refuse("the file has become shorter")
        return parse(raw, size)
    except FormatError as e:
        raise FormatError(f"{path}: no safetensors file: {e}") from None


def _read(fd: int, length: int, offset: int) -> bytes:
    pieces = []
    while length and (piece := os.pread(fd, min(length, 1 << 24), offset)):
        pieces.append(piece)
        length -= len(piece)
        offset += len(piece)
    return b"".join(pieces)


# ---- numpy's dtypes ----


def numpy_dtype(tensor: Tensor, bits: bool) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """What numpy calls the dtype, and the shape. With `bits`, a dtype that it lacks becomes unsigned integers (packed ones: bytes)."""
    width, of = _DTYPES[tensor.dtype]
    if of and of[0] != "(":
        return np.dtype(of), tensor.shape
    if of and not bits:
        try:
            import ml_dtypes
        except ImportError:
            pass
        else:
            if (found := getattr(ml_dtypes, of[1:-1], None)) is not None:
                return np.dtype(found), tensor.shape
    if not bits:
        what = "has items of less than a byte" if not of else "needs the package ml_dtypes"
        raise TypeError(f"tensor {tensor.name!r} is of {tensor.dtype}, which in numpy {what}; bits=True gives its bits, as integers")
    if width % 8:
        return np.dtype("u1"), (tensor.nbytes,)
    return np.dtype(f"<u{width // 8}"), tensor.shape


def little_endian(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.isnative and sys.byteorder == "little" else dtype.newbyteorder("<")


def dtype_name(name: str, dtype: np.dtype[Any]) -> str:
    """What safetensors calls a dtype of numpy's or of ml_dtypes'. TypeError: nothing."""
    found = _ML_NAMES.get(dtype.name) or _NAMES.get(little_endian(dtype))
    if found is None:
        raise TypeError(f"tensor {name!r}: safetensors has no {dtype}")
    return found


# ---- writing ----


def is_dtype(name: object) -> bool:
    """Whether safetensors calls a dtype so."""
    return isinstance(name, str) and name in _DTYPES


def lay_out(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] | None, padding: bool
) -> tuple[bytes, list[Tensor]]:
    """The first bytes of a file, which end with a page, and its tensors in the order of their bytes.

    Tensors of whole pages come first, and so begin with a page. The others follow, largest items first, and are aligned as these.
    With padding, tensors of bytes (PADDING) lie between them, so that they begin with a page, too.
    """
    found = []
    for name, dtype, shape in tensors:
        if not _is_text(name) or name == _METADATA or name.startswith(PADDING):
            raise ValueError(f"a tensor cannot be named {name!r}")
        found.append(Tensor(name, dtype, tuple(shape), 0, math.prod(shape) * _DTYPES[dtype][0] // 8))
    found.sort(key=lambda one: (one.nbytes % PAGE != 0, -one.item_bytes if one.nbytes % PAGE else 0, one.name))
    if metadata is not None and not all(_is_text(key) and _is_text(value) for key, value in metadata.items()):
        raise TypeError("metadata must have texts, and nothing else")
    laid: list[Tensor] = []
    at = n = 0
    for one in found:
        if padding and at % PAGE:
            room = -at % PAGE
            laid.append(Tensor(f"{PADDING}{n}", "U8", (room,), at, room))
            at, n = at + room, n + 1
        laid.append(Tensor(one.name, one.dtype, one.shape, at, one.nbytes))
        at += one.nbytes
    header: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    for one in laid:
        header[one.name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": (one.start, one.start + one.nbytes)}
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-(8 + len(raw)) % PAGE)
    if len(raw) > MAX_HEADER:
        raise ValueError(f"the header would have {len(raw)} bytes; safetensors allows {MAX_HEADER}")
    return len(raw).to_bytes(8, "little") + raw, laid
