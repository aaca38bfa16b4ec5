"""What programs see in each other's memory."""

import mmap
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gaiafs


def test_a_release_is_seen_by_read_and_by_mappings_and_before_it_nothing_is(mount):
    path = mount.file("f", bytes(8192))
    with open(path, "r+b") as f, mmap.mmap(f.fileno(), 8192) as cpu, gaiafs.memmap(path, "uint16", "r+", (64, 64)) as m:
        with m.acquire(write=True) as a:
            assert a.shape == (64, 64) and a.dtype == np.uint16
            a[:] = np.arange(4096).reshape(64, 64)
            assert cpu[:] == bytes(8192)
        assert np.frombuffer(path.read_bytes(), np.uint16).tolist() == list(range(4096))
        assert cpu[2:4] == b"\1\0"


def test_an_acquire_sees_what_others_wrote(mount):
    path = mount.file("f", bytes(8192))
    with gaiafs.memmap(path) as m, open(path, "r+b") as f, mmap.mmap(f.fileno(), 8192) as cpu:
        os.pwrite(f.fileno(), b"abc", 4095)
        cpu[0:2] = b"xy"
        with m.acquire() as a:
            assert a[[0, 1, 4095, 4097]].tobytes() == b"xyac"
        os.pwrite(f.fileno(), b"z", 0)
        with m.acquire(slice(0, 1)) as a:
            assert a.tobytes() == b"z"


def test_two_devices_share_one_file(mount):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, "f8", "r+", device="sim0") as zero, gaiafs.memmap(path, "f8", "r+", device=1) as one:
        assert (zero.device.name, one.device.name) == ("sim0", "sim1")
        with zero.acquire(slice(0, 256), write=True) as a, one.acquire(slice(256, None), write=True) as b:
            a += 1
            b += 2
        with zero.acquire() as a:
            assert a.tolist() == [1.0] * 256 + [2.0] * 256


def test_on_leaving_by_an_exception_a_range_is_released(mount):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, mode="r+") as m:
        with pytest.raises(ZeroDivisionError), m.acquire(write=True) as a:
            a[0] = 7
            raise ZeroDivisionError
        assert path.read_bytes()[0] == 7
        m.close()


ITEMS = [
    ((), np.s_[...]),
    ((64,), np.s_[5]),
    ((64,), np.s_[-1]),
    ((64,), np.s_[10:20]),
    ((64,), np.s_[::-1]),
    ((64,), np.s_[40:5:-7]),
    ((64,), np.s_[5:5]),
    ((8, 8), np.s_[3]),
    ((8, 8), np.s_[3, 4]),
    ((8, 8), np.s_[:, 2:4]),
    ((8, 8), np.s_[..., -1]),
    ((8, 8), np.s_[::2, ::-3]),
    ((2, 4, 8), np.s_[1, ..., 3]),
    ((2, 4, 8), None),
]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("shape", "selected"), ITEMS)
def test_ranges_are_those_of_numpy(mount, shape, selected, order):
    n = int(np.prod(shape))
    plain = np.arange(n, dtype="<i4").reshape(shape, order=order)
    path = mount.file("f", bytes(12) + np.arange(n, dtype="<i4").tobytes())
    index = np.s_[:] if selected is None else selected
    with gaiafs.memmap(path, "<i4", "r+", shape, 12, order=order) as m:
        with m.acquire(selected) as a:
            want = plain[index] if selected is not ... else plain
            assert a.tolist() == want.tolist()
        with m.acquire(selected, write=True) as a:
            a += 1000
    plain[index if selected is not ... else ...] += 1000
    assert path.read_bytes()[12:] == plain.tobytes(order=order)


@pytest.mark.parametrize("selected", [np.s_[::-1], np.s_[::-3, ::5], np.s_[::5, ::-3], np.s_[3:, ::-1], np.s_[-1]])
def test_of_many_pages_those_of_the_range_are_acquired(mount, selected):
    # A strict device lets nothing else be touched.
    plain = np.arange(5 * 4096, dtype="u1").reshape(5, 4096)
    path = mount.file("f", plain.tobytes())
    with gaiafs.memmap(path, mode="r+", shape=(5, 4096)) as m, m.acquire(selected, write=True) as a:
        assert np.array_equal(a, plain[selected])
        a[...] = 7
    plain[selected] = 7
    assert path.read_bytes() == plain.tobytes()


def test_numpy_integers_and_pairs_of_slices_are_ranges_and_others_are_not(mount):
    path = mount.file("f", bytes(64))
    with gaiafs.memmap(path, shape=(8, 8)) as m:
        with m.acquire((np.int64(1), slice(0, 2))) as a:
            assert a.shape == (2,)
        for wrong in ([1, 2], True, np.array([1]), "x", 1.0, (0, None)):
            with pytest.raises(TypeError):
                m.acquire(wrong)
        for outside in (8, -9, (0, 0, 0)):
            with pytest.raises(IndexError):
                m.acquire(outside)


def test_structured_and_big_endian_items(mount):
    dtype = np.dtype([("key", ">u4"), ("value", "S4")])
    items = np.array([(1, b"one"), (2, b"two")], dtype)
    path = mount.file("f", items.tobytes())
    with gaiafs.memmap(path, dtype, "r+") as m, m.acquire(write=True) as a:
        assert a.tolist() == items.tolist()
        a["key"][1] = 7
    assert path.read_bytes()[8:12] == b"\0\0\0\7"


def test_overwriting_publishes_all_of_the_range_and_nothing_else(mount):
    path = mount.file("f", b"x" * 16384)
    with gaiafs.memmap(path, mode="r+", shape=(2, 8192)) as m:
        with m.acquire(0, overwrite=True) as a:
            a[:] = ord("y")
        assert path.read_bytes() == b"y" * 8192 + b"x" * 8192
        with pytest.raises(ValueError, match="gaps"):
            m.acquire(np.s_[:, 0:10], overwrite=True)


def test_what_is_acquired_for_reading_cannot_be_stored_to(mount):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, mode="r+") as m, m.acquire() as a:
        with pytest.raises(ValueError, match="read-only"):
            a[0] = 1


def test_acquires_of_one_range_count(mount):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, mode="r+") as m:
        with m.acquire(write=True) as a:
            with m.acquire(slice(0, 10)) as b:
                assert b[0] == 0
            a[0] = 1
        assert path.read_bytes()[0] == 1


def test_modes(mount):
    path = mount.path / "new"
    with gaiafs.memmap(path, "u4", "w+", (3, 5), offset=2) as m:
        assert path.stat().st_size == 62 and m.nbytes == 60 and len(m) == 3
        with m.acquire(overwrite=True) as a:
            a[:] = 1
    with gaiafs.memmap(path, "u1", "w+", 5) as m:
        assert path.read_bytes() == bytes(5)
    with pytest.raises(ValueError, match="ends at byte 6"):
        gaiafs.memmap(path, shape=6)
    with pytest.raises(ValueError, match="no multiple"):
        gaiafs.memmap(path, "u2")
    for wrong in (
        {"mode": "w"},
        {"mode": "w+"},
        {"order": "A"},
        {"dtype": object},
        {"offset": -1},
        {"shape": 0},
        {"shape": -1},
        {"offset": 5},
    ):
        with pytest.raises(ValueError):
            gaiafs.memmap(path, **wrong)
    assert path.read_bytes() == bytes(5)


def test_sync_and_prefetch(mount):
    path = mount.file("f", bytes(1 << 20))
    with gaiafs.memmap(path, mode="r+") as m:
        with m.acquire(slice(0, 10), write=True) as a:
            a[:] = 3
        m.sync(slice(0, 10))
        m.prefetch()
        assert (mount.below / "f").read_bytes()[:11] == b"\3" * 10 + b"\0"
        with m.acquire(slice(0, 10), write=True) as a:
            a[:] = 4
        m.publish(slice(0, 10))
        assert (mount.below / "f").read_bytes()[:11] == b"\4" * 10 + b"\0"


def test_threads_work_on_slices_of_one_array(mount):
    n, threads, rounds = 1 << 16, 8, 20
    path = mount.file("f", bytes(4 * n))
    with gaiafs.memmap(path, "i4", "r+") as m:
        # Neighbours share pages.
        borders = np.linspace(0, n, threads + 1, dtype=int)
        borders[1:-1] += 3

        def work(k):
            for _ in range(rounds):
                with m.acquire(slice(borders[k], borders[k + 1]), write=True) as a:
                    a += k + 1

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    want = np.repeat(np.arange(1, threads + 1) * rounds, np.diff(borders))
    assert np.array_equal(np.frombuffer(path.read_bytes(), "i4"), want)
