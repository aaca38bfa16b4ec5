"""How long things may be used, and what happens after that: an exception, not a crash."""

import copy
import gc
import pickle
import warnings
import weakref

import numpy as np
import pytest
from conftest import run

import gaiafs

USES = {
    "item": lambda a: a[0],
    "slice": lambda a: a[1:3],
    "store": lambda a: a.__setitem__(0, 1),
    "operator": lambda a: a + 1,
    "reflected": lambda a: 1 - a,
    "in place": lambda a: a.__iadd__(1),
    "compare": lambda a: a == 0,
    "out": lambda a: np.add(np.zeros(a.shape, a.dtype), 1, out=a),
    "where": lambda a: np.add(1, 2, out=np.zeros(a.nbytes), where=a.view("?")),
    "sum": lambda a: a.sum(),
    "at": lambda a: np.add.at(a, [0], 1),
    "mean": np.mean,
    "sort": lambda a: a.sort(),
    "copy": lambda a: a.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "list": lambda a: a.tolist(),
    "iterate": list,
    "bytes": lambda a: a.tobytes(),
    "cast": lambda a: a.astype(float),
    "fill": lambda a: a.fill(1),
    "print": str,
    "repr": repr,
    "concatenate": lambda a: np.concatenate([np.zeros(2, a.dtype), a]),
    "function": lambda a: np.array_equal(a, a),
    "copyto": lambda a: np.copyto(a, 1),
    "flat": lambda a: list(a.flat),
    "interface": lambda a: a.__array_interface__,
    "ctypes": lambda a: a.ctypes,
    "memory": lambda a: a.data,
    "dlpack": np.from_dlpack,
    "contains": lambda a: 0 in a,
    "truth": lambda a: bool(a[:1]),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_an_array_can_be_used_until_its_release_and_then_raises(mount, use):
    path = mount.file("f", bytes(64))
    with gaiafs.memmap(path, "u4", "r+") as m:
        with m.acquire(write=True) as a:
            use(a)
            derived = [a, a[2:], a.reshape(4, 4)[1], a.view("u2"), a.T, np.reshape(a, (2, 8))[0]]
            for part in derived:
                use(part)
        for part in derived:
            with pytest.raises(gaiafs.ReleasedError, match="has been released"):
                use(part)


def test_reductions_raise_too(mount):
    # In a process of its own: numpy 2.4 leaks a reference to the array when this raises, and so the mapping.
    code = """
        import sys
        import gaiafs
        import numpy as np

        with gaiafs.memmap(sys.argv[1]) as m:
            with m.acquire() as a:
                print(np.add.reduce(a))
            try:
                np.add.reduce(a)
            except gaiafs.ReleasedError:
                print("raised")
    """
    assert run(code, mount.file("f", b"\1\2")) == "3\nraised\n"


def test_copies_and_results_outlive_the_release(mount):
    path = mount.file("f", bytes(range(64)))
    with gaiafs.memmap(path) as m:
        with m.acquire() as a:
            kept = [
                a.copy(),
                a + 0,
                np.array(a),
                a.astype(int),
                a[[1, 2]],
                np.concatenate([a, a]),
                pickle.loads(pickle.dumps(a)),
                np.sort(a),
            ]
        for one in kept:
            assert one.sum() > 0 and one[1] in (1, 2)


def test_a_range_is_released_once(mount):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, mode="r+") as m:
        held = m.acquire(write=True)
        assert not held.held
        with held as a:
            assert held.held
            a[0] = 1
            held.release()
            assert not held.held and path.read_bytes()[0] == 1
            with pytest.raises(gaiafs.ReleasedError):
                a[0] = 2
        with pytest.raises(RuntimeError, match="one with block"):
            held.__enter__()


def test_a_mapping_cannot_be_closed_while_a_range_is_acquired(mount):
    path = mount.file("f", bytes(4096))
    m = gaiafs.memmap(path, mode="r+")
    late = m.acquire()
    with m.acquire(write=True) as a:
        with pytest.raises(BufferError, match="still acquired"):
            m.close()
        a[0] = 1
    m.close()
    m.close()
    assert m.closed and path.read_bytes()[0] == 1 and "closed" in repr(m)
    for call in (m.acquire, m.sync, m.prefetch, m.check_stream, late.__enter__):
        with pytest.raises(ValueError, match="closed"):
            call()


def mappings(mount):
    return sum(client["mappings"] for client in gaiafs.status(mount.path)["clients"])


def test_what_is_left_of_an_array_keeps_the_mapping(start):
    mount = start("--device", "sim:8M,strict=off")
    path = mount.file("f", b"x" * 4096)
    with gaiafs.memmap(path) as m, m.acquire() as a:
        plain = np.asarray(a)[5:]
    del a
    assert type(plain) is np.ndarray and m.closed
    # That device lets released pages be touched: they are still mapped.
    assert plain[0] == ord("x") and mappings(mount) == 1
    del plain
    assert mappings(mount) == 0


def test_a_mapping_that_nobody_refers_to_is_unmapped(start):
    mount = start("--device", "sim:8M")
    path = mount.file("f", b"x" * 4096)
    m = gaiafs.memmap(path)
    assert mappings(mount) == 1
    gone = weakref.ref(m)
    del m
    gc.collect()
    assert gone() is None and mappings(mount) == 0


def test_a_range_that_is_forgotten_is_released_with_a_warning(mount):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, mode="r+") as m:
        a = m.acquire(write=True).__enter__()
        gc.collect()
        a[0] = 5  # the array keeps it
        with pytest.warns(ResourceWarning, match="never released"):
            del a
            gc.collect()
        assert path.read_bytes()[0] == 5


FORK = """
import errno, os, sys
import gaiafs

path = sys.argv[1]
m = gaiafs.memmap(path, "u1", "r+")
held = m.acquire(write=True)
a = held.__enter__()
part = a[10:]


def fails(call):
    try:
        call()
    except OSError as e:
        assert e.errno == errno.ENOTCONN and e.filename == path and "child of fork()" in e.strerror, e
    else:
        raise AssertionError(call)


child = os.fork()
if child == 0:
    status = 1
    try:
        for call in (m.acquire, m.sync, m.prefetch, m.check_stream, held.release, lambda: a[0], lambda: part + 1, lambda: a.fill(1)):
            fails(call)
        m.close()
        with gaiafs.memmap(path, "u1", "r+") as own, own.acquire(slice(0, 1), write=True) as mine:
            mine[0] = 3
        del a, part, held, m
        status = 0
    finally:
        sys.stdout.flush()
        os._exit(status)
assert os.waitpid(child, 0)[1] == 0
part[0] = 4
held.release()
with m.acquire() as a:
    assert a[0] == 3 and a[10] == 4
m.close()
print("done")
"""


def test_a_child_of_fork_gets_exceptions_and_can_map_files_itself(mount):
    # Python 3.12 and later warn of threads, which the library has.
    assert run(FORK, mount.file("f", bytes(4096)), ignore="DeprecationWarning") == "done\n"


def test_a_mapping_is_pickled_by_name(mount):
    path = mount.file("f", bytes(range(64)))
    code = """
        import pickle, sys
        with pickle.loads(bytes.fromhex(sys.argv[1])) as m, m.acquire(1) as a:
            print(m.device.name, m.mode, a.tolist())
    """
    with gaiafs.memmap(path, "u1", "r", (2, 4), 8, "sim1") as m:
        assert run(code, pickle.dumps(m).hex()) == "sim1 r [12, 13, 14, 15]\n"


def test_at_exit_with_everything_in_use(mount):
    code = """
        import sys
        import gaiafs
        import numpy as np

        m = gaiafs.memmap(sys.argv[1], "u1", "r+")
        held = m.acquire(write=True)
        a = held.__enter__()
        sys.modules["keep"] = [np.asarray(a), np.from_dlpack(a)]
        held.release()
        print("done")
    """
    assert run(code, mount.file("f", bytes(4096))) == "done\n"


def test_nothing_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run("import gaiafs")
