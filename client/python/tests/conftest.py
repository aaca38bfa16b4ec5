"""Mounts for tests. $GAIAFS_BUILD is a build directory; LD_LIBRARY_PATH must name its `client`."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("GAIAFS_BUILD", Path(__file__).parents[3] / "build"))
SECONDS = 60  # that only a hang takes


@dataclass
class Mount:
    path: Path
    below: Path
    daemon: subprocess.Popen[bytes]

    def file(self, name: str, contents: bytes) -> Path:
        (self.path / name).write_bytes(contents)
        return self.path / name


def _is_live(path: Path) -> bool:
    return os.path.ismount(path)


def _start(where: Path, *args: str, program: str = "daemon/gaiafs") -> Mount:
    below, path = where / "below", where / "mnt"
    below.mkdir()
    path.mkdir()
    with open(where / "log", "wb") as log:
        daemon = subprocess.Popen([BUILD / program, "-f", *args, below, path], stdout=log, stderr=log)
    end = time.monotonic() + SECONDS
    while not _is_live(path) and daemon.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    assert _is_live(path), (where / "log").read_text()
    return Mount(path, below, daemon)


def _stop(mount: Mount) -> None:
    gc.collect()  # arrays that a test's exceptions refer to keep their mappings
    try:
        if mount.daemon.poll() is None:
            subprocess.run([BUILD / "client/gaia", "umount", mount.path], check=True, timeout=SECONDS)
            assert mount.daemon.wait(SECONDS) == 0
    finally:
        mount.daemon.kill()
        mount.daemon.wait()
        if os.path.ismount(mount.path):
            subprocess.run(["umount", "-l", mount.path], check=False)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    mount = _start(tmp_path_factory.mktemp("shared"), "--device", "sim:32M", "--device", "sim:16M")
    yield mount
    _stop(mount)


@pytest.fixture
def mount(shared: Mount, request: pytest.FixtureRequest, tmp_path: Path) -> Mount:
    """A folder of the test's own on a mount with the devices sim0 and sim1."""
    folder = shared.path / f"{tmp_path.name}"
    folder.mkdir()
    return Mount(folder, shared.below / folder.name, shared.daemon)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Mount]]:
    """Mounts of the test's own, with these options."""
    mounts: list[Mount] = []

    def begin(*args: str, **keywords: str) -> Mount:
        where = tmp_path / f"own{len(mounts)}"
        where.mkdir()
        mounts.append(_start(where, *args, **keywords))
        return mounts[-1]

    yield begin
    for mount in mounts:
        _stop(mount)


def run(code: str, *args: object, ignore: str = "", environment: dict[str, str] | None = None) -> str:
    """What a program prints that must end well. environment: what is different there."""
    command = [sys.executable, "-X", "dev", "-W", "error"]
    if ignore:
        command += ["-W", f"ignore::{ignore}"]
    command += ["-c", textwrap.dedent(code), *map(str, args)]
    done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert done.stderr == ""
    return done.stdout


# ---- what scripts/test counts: a line of TAP for each test ----

_outcomes: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _outcomes[report.nodeid] = f"not ok - {report.nodeid}"
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "skipped"
        _outcomes[report.nodeid] = f"ok - {report.nodeid} # SKIP {reason.removeprefix('Skipped: ')}"
    elif report.when == "call":
        _outcomes.setdefault(report.nodeid, f"ok - {report.nodeid}")


def pytest_sessionfinish() -> None:
    if path := os.environ.get("GAIAFS_TAP"):
        lines = list(_outcomes.values())
        Path(path).write_text("\n".join(["TAP version 13", f"1..{len(lines)}", *lines]) + "\n")
