"""gaiafs.Replaceable: readers see the old array or the new one, never a mixture, whoever dies."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import run

import gaiafs
import gaiafs._replaceable as inside

ITEMS = 40_000  # some pages, and a part of one


def make(mount, device=0):
    return gaiafs.Replaceable(mount.path / "r", "u4", "w+", ITEMS, device)


def is_whole(a):
    return bool((a == a[0]).all())


def test_the_newest_is_read(mount):
    with make(mount) as w, gaiafs.Replaceable(mount.path / "r", "u4", shape=ITEMS) as r:
        with r.read() as a:
            assert r.epoch == 0 and a.shape == (ITEMS,) and not a.any()
        with w.replace() as a:
            a[:] = 1
            with r.read() as b:
                assert not b.any()
        with r.read() as a:
            assert r.epoch == 1 and (a == 1).all()
        w.put(np.full(ITEMS, 2))
        with r.read() as a, pytest.raises(ValueError, match="read-only"):
            assert (a == 2).all()
            a[0] = 1
        assert "Replaceable" in repr(r)


def test_what_is_not_finished_is_not_seen(mount):
    with make(mount) as r:
        r.put(np.full(ITEMS, 1))
        with pytest.raises(ZeroDivisionError), r.replace() as a:
            a[:] = 2
            raise ZeroDivisionError
        with r.read() as a:
            assert (a == 1).all() and r.epoch == 1
        with pytest.raises(ValueError, match="shape"):
            r.put(np.zeros(3))
        r.put(np.full(ITEMS, 3))
        with r.read() as a:
            assert (a == 3).all()


def test_who_replaces_twice_waits_for_a_reader_and_readers_wait_for_nobody(mount):
    with make(mount) as w, gaiafs.Replaceable(mount.path / "r", "u4", shape=ITEMS) as r:
        done = threading.Event()

        def twice():
            w.put(np.full(ITEMS, 2))
            done.set()

        with r.read() as a:
            with r.read() as b:
                assert not b.any()
            w.put(np.full(ITEMS, 1))
            thread = threading.Thread(target=twice)
            thread.start()
            with r.read() as b, r.read() as c:
                assert (b == 1).all() and (c == 1).all()
            # It would have been done.
            assert not done.wait(0.2)
            assert not a.any()
        thread.join(60)
        assert done.is_set()
        with r.read() as a:
            assert (a == 2).all()


def test_a_slot_that_is_not_the_newest_when_it_is_locked_is_not_read(mount, monkeypatch):
    real, once = inside._ReadLock.__enter__, []

    def late(lock):
        if not once:
            once.append(True)
            r.put(np.full(ITEMS, 1))
            # Somebody has begun to store to the slot that is about to be read, and has failed.
            with pytest.raises(ZeroDivisionError), r.replace() as a:
                a[: ITEMS // 2] = 2
                raise ZeroDivisionError
        real(lock)

    monkeypatch.setattr(inside._ReadLock, "__enter__", late)
    with make(mount) as r, r.read() as a:
        assert (a == 1).all()


def test_threads_and_devices(mount):
    n, times = 4, 30
    with make(mount) as one, gaiafs.Replaceable(mount.path / "r", "u4", "r+", ITEMS, "sim1") as two:
        stop = threading.Event()

        def read(r):
            while not stop.is_set():
                with r.read() as a:
                    assert is_whole(a)

        def replace(r, k):
            for i in range(times):
                if i % 2:
                    with r.replace() as a:
                        a[:] = k * times + i
                else:
                    r.put(np.full(ITEMS, k * times + i))

        with ThreadPoolExecutor(2 * n) as pool:
            readers = [pool.submit(read, (one, two)[k % 2]) for k in range(n)]
            writers = [pool.submit(replace, (one, two)[k % 2], k) for k in range(n)]
            for each in writers:
                each.result(120)
            stop.set()
            for each in readers:
                each.result(60)
        assert one.epoch == n * times


READ = """
    import sys
    import gaiafs

    path, items, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    seen = set()
    with gaiafs.Replaceable(path, "u4", shape=items) as r:
        print("ready", flush=True)
        while last not in seen:
            with r.read() as a:
                assert (a == a[0]).all(), "a mixture"
                seen.add(int(a[0]))
    print(len(seen))
"""


def started(code, *args):
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(code), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("way", ["auto", "writeback", "writethrough"])
def test_seven_readers_see_no_mixture(start, way):
    times = 40
    with make(start("--device", "sim:32M", "--cpu-cache", way)) as r:
        readers = [started(READ, r.path, ITEMS, times) for _ in range(7)]
        for one in readers:
            assert one.stdout.readline() == "ready\n"
        for number in range(1, times + 1):
            if number % 2:
                with r.replace() as a:
                    a[:] = number
            else:
                r.put(np.full(ITEMS, number))
        for one in readers:
            out, _ = one.communicate(timeout=60)
            assert one.returncode == 0 and int(out) >= 1


def test_who_is_killed_holds_nobody_up(mount):
    code = """
        import sys, time
        import gaiafs

        with gaiafs.Replaceable(sys.argv[1], "u4", "r+", int(sys.argv[2])) as r:
            with r.read() if sys.argv[3] == "read" else r.replace() as a:
                if sys.argv[3] != "read":
                    a[: len(a) // 2] = 99
                print("ready", flush=True)
                time.sleep(600)
    """
    with make(mount) as r:
        r.put(np.full(ITEMS, 1))
        for how in ("read", "replace", "read", "replace"):
            child = started(code, r.path, ITEMS, how)
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGKILL)
            child.communicate()
            before = r.epoch
            with r.read() as a:
                assert is_whole(a) and a[0] == before
            for _ in range(2):
                r.put(np.full(ITEMS, r.epoch + 1))
                with r.read() as a:
                    assert (a == r.epoch).all()


def test_a_child_of_fork_has_none_and_holds_no_locks(mount):
    code = """
        import errno, os, signal, sys, time
        import numpy as np
        import gaiafs

        path, items = sys.argv[1], int(sys.argv[2])
        pipe, end = os.pipe()
        reader = os.fork()
        if reader == 0:
            r = gaiafs.Replaceable(path, "u4", "r+", items)
            reading, replacing = r.read(), r.replace()
            a, b = reading.__enter__(), replacing.__enter__()
            if os.fork() == 0:
                # The grandchild, which outlives it.
                try:
                    r.epoch
                except OSError as e:
                    assert e.errno == errno.ENOTCONN
                    os.write(end, str(os.getpid()).encode())
                time.sleep(600)
            time.sleep(600)
        grandchild = int(os.read(pipe, 20))
        os.kill(reader, signal.SIGKILL)
        os.waitpid(reader, 0)
        # It must not wait for ever should the lock be there still.
        signal.signal(signal.SIGALRM, lambda *_: sys.exit("it waits"))
        signal.alarm(20)
        try:
            with gaiafs.Replaceable(path, "u4", "r+", items) as w:
                for number in (1, 2):
                    w.put(np.full(items, number))
        finally:
            os.kill(grandchild, signal.SIGKILL)
        print("done")
    """
    with make(mount):
        pass
    assert run(code, mount.path / "r", ITEMS, ignore="DeprecationWarning") == "done\n"


def test_a_child_of_fork_leaves_its_parents_blocks(mount):
    code = """
        import errno, os, sys
        import numpy as np
        import gaiafs

        path, items = sys.argv[1], int(sys.argv[2])
        r = gaiafs.Replaceable(path, "u4", "r+", items)
        for how in (r.read, r.replace):
            before = os.getpid()
            child = None
            try:
                with how() as a:
                    child = os.fork()
                    if child:
                        assert os.waitpid(child, 0)[1] == 0
                        if how == r.replace:
                            a[:] = 1
            except OSError as e:
                assert os.getpid() != before and e.errno == errno.ENOTCONN, e
                # The parent's locks are not its own.
                with gaiafs.Replaceable(path, "u4", shape=items) as own, own.read() as b:
                    os._exit(int(b.any()))
            assert os.getpid() == before
        with r.read() as a:
            print(r.epoch, int(a.sum()))
    """
    with make(mount):
        pass
    assert run(code, mount.path / "r", ITEMS, ignore="DeprecationWarning") == f"1 {ITEMS}\n"


def test_it_cannot_be_closed_while_somebody_replaces_it(mount):
    with make(mount) as r, gaiafs.Replaceable(mount.path / "r", "u4", "r+", ITEMS) as other:
        with r.read() as a:
            other.put(np.full(ITEMS, 1))
            thread = threading.Thread(target=other.put, args=(np.full(ITEMS, 2),))
            thread.start()
            while not other._writers:
                time.sleep(0.01)
            with pytest.raises(BufferError):
                other.close()
            assert not a.any()
        thread.join(60)
        with r.read() as a:
            assert (a == 2).all()


def test_what_is_wrong_is_said(mount):
    path = mount.path / "r"
    with make(mount) as r, gaiafs.Replaceable(path, "u4", shape=ITEMS) as reader:
        for call in (lambda: reader.put(np.zeros(ITEMS)), lambda: reader.replace().__enter__()):
            with pytest.raises(OSError) as e:
                call()
            assert e.value.errno == errno.EBADF and e.value.filename == str(path)
        with pytest.raises(ValueError, match="two such arrays"):
            gaiafs.Replaceable(path, "u4", shape=ITEMS * 2)
        for wrong in ({"mode": "w"}, {"shape": 0}, {"shape": -1}, {"dtype": object}):
            with pytest.raises(ValueError):
                gaiafs.Replaceable(path, **wrong)
        with r.read(), pytest.raises(BufferError):
            r.close()
    for call in (lambda: r.epoch, lambda: r.read().__enter__(), lambda: r.put(0)):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(FileNotFoundError):
        gaiafs.Replaceable(mount.path / "none", shape=3)
    (mount.path / "plain").write_bytes(bytes(4096 * 3))
    assert os.listdir("/proc/self/fd")  # the loop below counts
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(ValueError):
            gaiafs.Replaceable(mount.path / "plain", shape=3, device="none")
    assert len(os.listdir("/proc/self/fd")) == before
    assert sorted(os.listdir(mount.path)) == ["plain", "r"]


def test_a_new_file_takes_the_name_only(mount):
    with make(mount) as old, make(mount) as new:
        old.put(np.full(ITEMS, 1))
        with new.read() as a, old.read() as b:
            assert not a.any() and (b == 1).all()
