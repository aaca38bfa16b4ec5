"""Exceptions: OSError with errno, the file's name and what the library says; and signals."""

import errno
import os
import signal
import subprocess
import threading
import time

import pytest

import gaiafs
import gaiafs._mapping as inside


def test_names_and_devices_that_are_none(mount, tmp_path):
    path = mount.file("f", bytes(4096))
    with pytest.raises(FileNotFoundError):
        gaiafs.memmap(mount.path / "none")
    (tmp_path / "elsewhere").write_bytes(b"1234")
    for call in (gaiafs.memmap, gaiafs.devices, gaiafs.status, gaiafs.residency):
        with pytest.raises(OSError) as e:
            call(tmp_path / "elsewhere")
        assert e.value.errno == errno.ENOTTY and e.value.filename == str(tmp_path / "elsewhere")
        assert "not on a gaiafs mount" in e.value.strerror
    with pytest.raises(IsADirectoryError):
        gaiafs.memmap(mount.path, mode="r+")
    for device in (2, -1, "sim2", "", None):
        with pytest.raises(ValueError, match=r"no device .*; it has: 0 \(sim0\), 1 \(sim1\)"):
            gaiafs.memmap(path, device=device)
    with pytest.raises(OSError) as e:
        gaiafs.memmap(path, device="cuda:1000")
    assert e.value.errno == errno.ENODEV
    # Nothing was made, or made empty.
    with pytest.raises(ValueError):
        gaiafs.memmap(path, mode="w+", shape=5, device=7)
    assert path.stat().st_size == 4096


def test_writing_through_a_mapping_for_reading(mount):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path) as m:
        for access in ({"write": True}, {"overwrite": True}):
            with pytest.raises(PermissionError) as e, m.acquire(slice(8, 16), **access):
                pass
            assert e.value.filename == str(path)
            assert f"gaia_acquire: bytes 8 to 15 of {path} on sim0: Permission denied: the mapping is for reading only" in e.value.strerror
        m.close()  # nothing is held


def test_no_room_is_said_in_numbers(start):
    mount = start("--device", "sim:8M")
    path = mount.path / "f"
    path.touch()
    os.truncate(path, 20 << 20)
    with gaiafs.memmap(path) as m:
        with m.acquire(slice(0, 1 << 20)) as a:
            with pytest.raises(OSError) as e, m.acquire():
                pass
            assert e.value.errno == errno.ENOMEM
            assert "it needs 20 MiB of device memory; sim0 has 8 MiB, of which" in e.value.strerror
            assert a[0] == 0
        with m.acquire(slice(0, 1 << 20)):
            pass


def test_the_daemon_is_gone(start):
    mount = start("--device", "sim:8M", "--supervisor", "unmount")
    path = mount.file("f", bytes(4096))
    m = gaiafs.memmap(path, mode="r+")
    held = m.acquire(write=True)
    a = held.__enter__()
    a[0] = 1
    mount.daemon.kill()
    mount.daemon.wait()
    with pytest.raises(OSError) as e:
        held.release()
    assert e.value.errno == errno.ENOTCONN and "the daemon has ended" in e.value.strerror
    with pytest.raises(gaiafs.ReleasedError):
        a[0] = 2
    m.close()


def test_streams_are_what_libraries_call_so():
    class Torch:
        cuda_stream = 5

    class CuPy:
        ptr = 6

    class Numba:
        class handle:
            value = None  # the default stream, by ctypes

    class CudaCore:
        def __cuda_stream__(self):
            return (0, 7)

    assert [inside._stream_of(s) for s in (None, 0, 9, Torch(), CuPy(), Numba(), CudaCore())] == [None, 0, 9, 5, 6, 0, 7]
    with pytest.raises(TypeError):
        inside._stream_of("stream")


def test_on_a_simulated_device_streams_act_at_once(mount):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, mode="r+") as m:
        with m.acquire(write=True, stream=7) as a:
            a[0] = 1
        m.check_stream()
        assert path.read_bytes()[0] == 1


class Library:
    """libgaiaclient, but for what a test puts in its place."""

    def __init__(self, **instead):
        self.__dict__.update(instead)

    def __getattr__(self, name):
        return getattr(inside._lib.lib, name)


def fails_with(*numbers):
    """A call that fails with these errors first."""
    left = list(numbers)

    def call(address, length, *prot):
        if left:
            inside.ffi.errno = left.pop(0)
            return -1
        return (inside._lib.lib.gaia_acquire if prot else inside._lib.lib.gaia_release)(address, length, *prot)

    return call


def test_a_signal_is_handled_and_the_acquire_goes_on(mount, monkeypatch):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path) as m:
        monkeypatch.setattr(inside, "lib", Library(gaia_acquire=fails_with(errno.EINTR, errno.EINTR)))
        with m.acquire() as a:
            assert a[0] == 0


def test_an_exception_of_a_signals_handler_comes_out_with_nothing_acquired(mount, monkeypatch):
    path = mount.file("f", bytes(4096))

    def interrupted(*_):
        signal.raise_signal(signal.SIGUSR1)
        inside.ffi.errno = errno.EINTR
        return -1

    def handler(*_):
        raise KeyError("a signal")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with gaiafs.memmap(path) as m:
            monkeypatch.setattr(inside, "lib", Library(gaia_acquire=interrupted))
            with pytest.raises(KeyError, match="a signal"), m.acquire():
                pass
            m.close()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_release_without_room_for_it_can_be_repeated(mount, monkeypatch):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, mode="r+") as m:
        held = m.acquire(write=True)
        a = held.__enter__()
        monkeypatch.setattr(inside, "lib", Library(gaia_release=fails_with(errno.ENOBUFS)))
        with pytest.raises(OSError):
            held.release()
        assert held.held
        a[0] = 1
        held.release()
        assert path.read_bytes()[0] == 1


def test_a_release_that_fails_otherwise_has_released(mount, monkeypatch):
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, mode="r+") as m:
        held = m.acquire(write=True)
        a = held.__enter__()
        inside.lib.gaia_release(m._at(0), 4096)
        monkeypatch.setattr(inside, "lib", Library(gaia_release=fails_with(errno.EIO)))
        with pytest.raises(OSError):
            held.release()
        with pytest.raises(gaiafs.ReleasedError):
            a[0] = 1
        held.release()


def test_while_a_call_waits_other_threads_run(start):
    mount = start("--device", "sim:8M")
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path) as m:
        ended = threading.Event()

        def acquire():
            with m.acquire():
                ended.set()

        # A stopped daemon answers nothing. If the call kept the GIL nobody here could let it go on.
        again = subprocess.Popen(["sh", "-c", "read x; kill -CONT $0", str(mount.daemon.pid)], stdin=subprocess.PIPE)
        later = subprocess.Popen(["sh", "-c", "sleep 60; kill -CONT $0", str(mount.daemon.pid)], start_new_session=True)
        os.kill(mount.daemon.pid, signal.SIGSTOP)
        thread = threading.Thread(target=acquire)
        thread.start()
        for _ in range(20):
            time.sleep(0.01)
            assert not ended.is_set()
        again.communicate(b"\n")
        thread.join(60)
        assert ended.is_set()
        os.killpg(later.pid, signal.SIGKILL)
        later.wait()
