"""The devices of a mount, and reports of its daemon."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

from ._lib import error, ffi, lib, string

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Device:
    """A memory that a mount can put pages of files in. `used` is as of the call that made the object."""

    index: int  #: its number in the mount
    name: str  #: unique in the mount: "sim0"
    kind: str  #: "sim" or "cuda"
    uuid: str  #: of a GPU: 32 hexadecimal digits; else zeros
    capacity: int  #: bytes that gaiafs may use
    used: int  #: bytes of them in use
    simulated: bool  #: host memory plays the part of a device; the CPU can use its addresses


class _Opened:
    """A descriptor for the time of a with block."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)

    def __enter__(self) -> int:
        self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def devices_of(fd: int, path: str) -> list[Device]:
    """As devices(), of the mount that a descriptor is on."""
    n = lib.gaia_devices(fd, ffi.NULL, 0)
    if n < 0:
        raise error(path)
    infos = ffi.new("struct gaia_device_info[]", max(n, 1))
    n = min(n, lib.gaia_devices(fd, infos, n))
    if n < 0:
        raise error(path)
    return [
        Device(
            index,
            string(infos[index].name),
            string(infos[index].kind),
            bytes(infos[index].uuid).hex(),
            infos[index].capacity,
            infos[index].used,
            infos[index].simulated != 0,
        )
        for index in range(n)
    ]


def devices(path: Path) -> list[Device]:
    """The devices of the mount that `path`, a file or directory, is on; their order is that of their numbers.

    OSError: ENOTTY, it is not on a gaiafs mount; ENOTCONN, the mount's daemon has ended.
    """
    opened = _Opened(path)
    with opened as fd:
        return devices_of(fd, opened.path)


def find_device(fd: int, path: str, device: int | str | Device) -> Device:
    """The device that a caller means. Raises ValueError if the mount has no such device."""
    known = devices_of(fd, path)
    if isinstance(device, Device):
        device = device.name
    if isinstance(device, str) and (device == "cuda" or device.startswith("cuda:")):
        # As PyTorch and CuPy count: the number that the GPU has in this process. No device of a mount is named so.
        index: int = lib.gaia_device_of_cuda(fd, int(device.partition(":")[2] or 0))
        if index < 0:
            raise error(path)
        return known[index]
    for one in known:
        if device in (one.index, one.name):
            return one
    names = ", ".join(f"{one.index} ({one.name})" for one in known) or "none"
    raise ValueError(f"{path}: the mount has no device {device!r}; it has: {names}")


def cuda_ordinal(fd: int, device: Device) -> int:
    """The number that the GPU has in this process, or -1."""
    return next((n for n in range(64) if lib.gaia_device_of_cuda(fd, n) == device.index), -1)


def _report(path: Path, ask: Any) -> dict[str, Any]:
    opened = _Opened(path)
    with opened as fd:
        text = ask(fd)
        if text == ffi.NULL:
            raise error(opened.path)
    try:
        report: dict[str, Any] = json.loads(ffi.string(text))
    finally:
        lib.free(text)
    return report


def status(mount: Path) -> dict[str, Any]:
    """The state of a mount, as `gaia status --json` prints it: options, devices with bytes used, clients, counters.

    `mount` is any file or directory on it. What other users do is shown to root only. See gaia(1) for the names.

    OSError: ENOTTY, not on a gaiafs mount; ENOTCONN, the daemon has ended; EAGAIN, no room for a report just now.
    """
    return _report(mount, lib.gaia_status)


def residency(path: Path) -> dict[str, Any]:
    """How much of a file each memory has, as `gaia residency --json` prints it (pages are of 4096 bytes).

    OSError: as of status(); ENODEV, not a regular file.
    """
    return _report(path, lib.gaia_residency)
