"""Headers that are damaged, or made to harm: what the package safetensors refuses is refused, and what is taken is what it finds."""

import contextlib
import json
import os
import random

import pytest

from gaiafs import _format

theirs = pytest.importorskip("safetensors")


def file_of(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else header.encode("utf-8", "surrogatepass")
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def ours_finds(raw):
    """[(name, dtype, shape, bytes)], sorted; None: it is refused."""
    with open(os.memfd_create("model"), "w+b", buffering=0) as f:
        f.write(raw)
        try:
            header = _format.read_header(f.fileno(), "its name")
        except _format.FormatError as e:
            assert str(e).startswith("its name: ") and len(str(e)) < 1000
            return None
    return sorted(
        (one.name, one.dtype, list(one.shape), raw[header.data + one.start : header.data + one.start + one.nbytes])
        for one in header.tensors.values()
    )


def theirs_finds(raw):
    try:
        found = theirs.deserialize(raw)
    except Exception:
        return None
    return sorted((name, one["dtype"], list(one["shape"]), bytes(one["data"])) for name, one in found)


def info(dtype='"U8"', shape="[2]", offsets="[0,2]"):
    return f'{{"dtype":{dtype},"shape":{shape},"data_offsets":{offsets}}}'


def one_tensor(**keywords):
    return f'{{"w":{info(**keywords)}}}'


BAD = {
    "nothing": b"",
    "seven bytes": b"1234567",
    "no header": bytes(8),
    "a header beyond the end": file_of(one_tensor(), b"ab", length=10**6),
    "a very long header": (1 << 63).to_bytes(8, "little") + b"{}",
    "the longest header": b"\xff" * 8 + b"{}",
    "a header longer than allowed": file_of("{}" + " " * 10, length=100_000_001),
    "no UTF-8": file_of(b'{"\xff":1}'),
    "half a character": file_of('{"\\ud800":' + info() + "}", b"ab"),
    "half a character in a text": file_of('{"__metadata__":{"a":"\\udc00"},"w":' + info() + "}", b"ab"),
    "a surrogate in UTF-8": file_of('{"\ud800":' + info() + "}", b"ab"),
    "a control character": file_of('{"\n":' + info() + "}", b"ab"),
    "a byte order mark": file_of("\ufeff" + one_tensor(), b"ab"),
    "no JSON": file_of("{]", b"ab"),
    "a list": file_of("[]"),
    "a number": file_of("1"),
    "null": file_of("null"),
    "two objects": file_of("{}{}"),
    "something behind": file_of("{}\0"),
    "single quotes": file_of("{'w':1}"),
    "a comma too many": file_of('{"w":' + info() + ",}", b"ab"),
    "nested too deeply": file_of("[" * 100_000),
    "objects nested too deeply": file_of('{"a":' * 100_000),
    "texts nested": file_of('{"__metadata__":{"a":{"b":"c"}}}'),
    "numbers as texts": file_of('{"__metadata__":{"a":1}}'),
    "a list of texts": file_of('{"__metadata__":["a"]}'),
    "a text for texts": file_of('{"__metadata__":"a"}'),
    "a tensor that is null": file_of('{"w":null}'),
    "a tensor that is a text": file_of('{"w":"U8"}'),
    "no dtype": file_of('{"w":{"shape":[2],"data_offsets":[0,2]}}', b"ab"),
    "no shape": file_of('{"w":{"dtype":"U8","data_offsets":[0,2]}}', b"ab"),
    "no offsets": file_of('{"w":{"dtype":"U8","shape":[2]}}', b"ab"),
    "an unknown dtype": file_of(one_tensor(dtype='"u8"'), b"ab"),
    "a dtype that is a number": file_of(one_tensor(dtype="8"), b"ab"),
    "a dtype that is a list": file_of(one_tensor(dtype='["U8"]'), b"ab"),
    "a negative size": file_of(one_tensor(shape="[-2]"), b"ab"),
    "minus zero": file_of(one_tensor(shape="[-0]", offsets="[0,0]")),
    "a fraction": file_of(one_tensor(shape="[2.0]"), b"ab"),
    "an exponent": file_of(one_tensor(shape="[2e0]"), b"ab"),
    "not a number": file_of(one_tensor(shape="[NaN]"), b"ab"),
    "infinite": file_of(one_tensor(shape="[Infinity]"), b"ab"),
    "true": file_of(one_tensor(shape="[true,2]"), b"ab"),
    "a text for a number": file_of(one_tensor(shape='["2"]'), b"ab"),
    "a shape that is a number": file_of(one_tensor(shape="2"), b"ab"),
    "a shape that is null": file_of(one_tensor(shape="null"), b"ab"),
    "a leading zero": file_of(one_tensor(shape="[02]"), b"ab"),
    "a size of 2^64": file_of(one_tensor(shape=f"[{1 << 64},0]", offsets="[0,0]")),
    "a very long number": file_of(one_tensor(shape=f"[{'9' * 10000}]"), b"ab"),
    "an overflow": file_of(one_tensor(shape=f"[{1 << 63},{1 << 63}]", offsets="[0,0]")),
    "an overflow to the right number": file_of(one_tensor(shape=f"[{(1 << 63) + 1},2]"), b"ab"),
    "an overflow before a zero": file_of(one_tensor(shape=f"[{1 << 63},2,0]", offsets="[0,0]")),
    "an overflow of bits": file_of(one_tensor(dtype='"U64"', shape=f"[{1 << 61}]", offsets="[0,0]")),
    "one offset": file_of(one_tensor(offsets="[2]"), b"ab"),
    "three offsets": file_of(one_tensor(offsets="[0,2,4]"), b"ab"),
    "offsets the wrong way": file_of(one_tensor(shape="[0]", offsets="[2,0]"), b"ab"),
    "too few bytes": file_of(one_tensor(), b"a"),
    "too many bytes": file_of(one_tensor(), b"abc"),
    "fewer bytes than items": file_of(one_tensor(shape="[3]"), b"ab"),
    "more bytes than items": file_of(one_tensor(shape="[1]"), b"ab"),
    "a gap at first": file_of(one_tensor(offsets="[1,3]"), b"abc"),
    "a gap that is not there": file_of(one_tensor(offsets="[1,3]"), b"ab"),
    "a gap between": file_of('{"v":' + info() + ',"w":' + info(offsets="[3,5]") + "}", b"abcde"),
    "an overlap": file_of('{"v":' + info() + ',"w":' + info(offsets="[1,3]") + "}", b"abc"),
    "the same bytes twice": file_of('{"v":' + info() + ',"w":' + info() + "}", b"ab"),
    "an offset of 2^64": file_of(one_tensor(offsets=f"[0,{(1 << 64) + 2}]"), b"ab"),
    "half a byte": file_of(one_tensor(dtype='"F4"', shape="[3]", offsets="[0,1]"), b"a"),
}
# The package takes these, the documentation of the format does not, or says nothing.
STRICTER = {
    "a name twice": file_of('{"w":' + info() + ',"w":' + info() + "}", b"ab"),
    "metadata twice": file_of('{"__metadata__":{"a":"b"},"__metadata__":{"a":"b"}}'),
    "a text twice": file_of('{"__metadata__":{"a":"b","a":"b"}}'),
    "a tensor as a list": file_of('{"w":["U8",[2],[0,2]]}', b"ab"),
    "another field": file_of('{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2],"more":1}}', b"ab"),
}
GOOD = {
    "one tensor": file_of(one_tensor(), b"ab"),
    "no tensors": file_of("{}"),
    "no texts": file_of('{"__metadata__":null}'),
    "white space around": file_of(" \n\t\r" + one_tensor() + "  ", b"ab"),
    "any order": file_of('{"w":' + info(offsets="[2,4]") + ',"v":' + info() + "}", b"abcd"),
    "an empty tensor between": file_of('{"v":' + info() + ',"w":' + info(shape="[0]", offsets="[2,2]") + "}", b"ab"),
    "a zero before a large number": file_of(one_tensor(shape=f"[0,{(1 << 64) - 1},{(1 << 64) - 1}]", offsets="[0,0]")),
    "a scalar": file_of(one_tensor(shape="[]", offsets="[0,1]"), b"a"),
    "an empty name": file_of('{"":' + info() + "}", b"ab"),
    "escapes": file_of('{"\\u00e9\\ud83d\\ude00\\n":' + info() + "}", b"ab"),
    "packed": file_of(one_tensor(dtype='"F4"', shape="[2,2]"), b"ab"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_they_refuse_is_refused(name):
    assert theirs_finds(BAD[name]) is None
    assert ours_finds(BAD[name]) is None


@pytest.mark.parametrize("name", STRICTER)
def test_what_is_not_in_the_format_is_refused(name):
    assert ours_finds(STRICTER[name]) is None


@pytest.mark.parametrize("name", GOOD)
def test_what_they_find_is_found(name):
    found = theirs_finds(GOOD[name])
    assert found is not None and ours_finds(GOOD[name]) == found


def test_their_dtypes_are_known():
    known = 0
    for dtype, (bits, _) in _format._DTYPES.items():
        raw = file_of(one_tensor(dtype=f'"{dtype}"', shape="[8]", offsets=f"[0,{bits}]"), bytes(bits))
        found = theirs_finds(raw)
        assert ours_finds(raw) is not None
        # An older package does not know all.
        if found is not None:
            known += 1
            assert ours_finds(raw) == found
    assert known >= 15


# ---- made up ----

PIECES = [
    *("0", "1", "2", "-0", "-1", "2.0", "1e3", "18446744073709551615", "18446744073709551616", "null", "true", "NaN"),
    *('""', '"U8"', '"F4"', '"BF16"', '"\\ud800"', '"\\u0000"', '"\x01"', '"dtype"', '"w"', '"__metadata__"'),
    *("[]", "[0]", "[2]", "[0,0]", "{}", '{"a":"b"}', ",", ":", "[", "]", "{", "}", " ", "\t", "\0"),
]


def valid(numbers):
    """A file as it should be: its header's text, and its data."""
    at, header = 0, {}
    if numbers.random() < 0.3:
        header["__metadata__"] = {"k": "v"}
    names = [f"t{n}" for n in range(numbers.randrange(4))]
    for name in names:
        shape = [numbers.choice((0, 1, 2, 3)) for _ in range(numbers.randrange(3))]
        dtype, item = numbers.choice((("U8", 1), ("F16", 2), ("BF16", 2), ("F32", 4), ("I64", 8), ("F8_E4M3", 1)))
        nbytes = item
        for n in shape:
            nbytes *= n
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    return json.dumps(header, separators=(",", ":")), numbers.randbytes(at)


def damage(numbers, text):
    """One small change somewhere."""
    at = numbers.randrange(len(text) + 1)
    end = min(len(text), at + numbers.choice((0, 1, 1, 2, 4)))
    kind = numbers.randrange(5)
    if kind == 0:
        return text[:at] + numbers.choice(PIECES) + text[end:]
    if kind == 1:
        return text[:at] + text[end:]
    if kind == 2:
        # A number is another, or a value is.
        digits = [n for n, c in enumerate(text) if c.isdigit()]
        at = numbers.choice(digits) if digits else at
        return text[:at] + numbers.choice(PIECES[:12]) + text[at + 1 :]
    if kind == 3:
        start = numbers.randrange(len(text) + 1)
        return text[:at] + text[start : start + numbers.randrange(40)] + text[at:]
    return text[:at] + chr(numbers.choice((0, 9, 34, 92, 127, 233, 0x10FFFF))) + text[end:]


@pytest.mark.parametrize("seed", range(4))
def test_made_up_headers(seed):
    numbers = random.Random(seed)
    both = 0
    for _ in range(10_000):
        text, data = valid(numbers)
        for _ in range(numbers.choice((0, 1, 1, 2, 5))):
            text = damage(numbers, text)
        raw = file_of(text, data)
        if numbers.random() < 0.1:
            at = numbers.randrange(len(raw))
            raw = raw[:at] + bytes([numbers.randrange(256)]) + raw[at + 1 :]
        if numbers.random() < 0.05:
            raw = raw[: numbers.randrange(len(raw) + 1)]
        found = ours_finds(raw)
        if found is not None:
            assert theirs_finds(raw) == found, raw
            both += 1
    assert both > 1000


def test_a_long_header_is_not_read(tmp_path):
    path = tmp_path / "f"
    with open(path, "w+b") as f:
        f.write((100_000_001).to_bytes(8, "little"))
        f.truncate(100_000_009)
        with pytest.raises(_format.FormatError, match="would have 100000001 bytes"):
            _format.read_header(f.fileno(), str(path))


def test_a_file_that_becomes_shorter_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(GOOD["one tensor"])
    real = _format.os.pread

    def cut(fd, length, offset):
        if offset:
            path.write_bytes(GOOD["one tensor"][:12])
        return real(fd, length, offset)

    monkeypatch.setattr(_format.os, "pread", cut)
    with open(path, "rb") as f, contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(_format.FormatError, match="shorter"))
        _format.read_header(f.fileno(), str(path))
