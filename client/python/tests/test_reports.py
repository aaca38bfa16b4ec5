"""Devices and reports."""

import errno

import pytest

import gaiafs


def test_devices(mount):
    zero, one = gaiafs.devices(mount.path)
    assert (zero.index, zero.name, zero.kind, zero.capacity, zero.simulated) == (0, "sim0", "sim", 32 << 20, True)
    assert (one.index, one.name, one.capacity) == (1, "sim1", 16 << 20)
    assert len(zero.uuid) == 32
    path = mount.file("f", bytes(4096))
    with gaiafs.memmap(path, device=one) as m:
        assert m.device.index == 1
        with m.acquire():
            assert gaiafs.devices(path)[1].used >= 2 << 20


def test_a_mount_without_devices(start):
    mount = start("--device", "none")
    assert gaiafs.devices(mount.path) == []
    with pytest.raises(ValueError, match="it has: none"):
        gaiafs.memmap(mount.file("f", b"1"))


def test_status_and_residency(mount):
    path = mount.file("f", bytes(3 * 4096))
    assert [device["name"] for device in gaiafs.status(path)["devices"]] == ["sim0", "sim1"]
    with gaiafs.memmap(path, mode="r+", device=1) as m, m.acquire(slice(0, 4097)):
        (chunk,) = gaiafs.residency(path)["chunks"]
        assert [(one["name"], one["present"]) for one in chunk["devices"]] == [("sim1", 2)]
    with pytest.raises(OSError) as e:
        gaiafs.residency(mount.path)
    assert e.value.errno == errno.ENODEV and e.value.filename == str(mount.path)


def test_the_library_has_a_version():
    assert len(gaiafs.library_version().split(".")) == 3
