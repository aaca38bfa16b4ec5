"""The package itself: types, style, versions, and that a wheel works where nothing else is."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import gaiafs

HERE = Path(__file__).parents[1]


def tool(*command, **keywords):
    done = subprocess.run([sys.executable, "-m", *command], cwd=HERE, capture_output=True, text=True, timeout=300, **keywords)
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_are_right(tmp_path):
    tool("mypy", "--cache-dir", str(tmp_path))


def test_style_is_the_same_everywhere():
    for places in ([], ["--config", "pyproject.toml", "../examples/python"]):
        tool("ruff", "check", "--no-cache", *places)
        tool("ruff", "format", "--no-cache", "--check", *places)


def test_versions_are_one():
    """That of the file, and no other is said anywhere: the library beside which these tests run is built from it."""
    assert gaiafs.__version__ == gaiafs.library_version() == (HERE / "gaiafs" / "VERSION").read_text().strip()
    for build in (HERE / "meson.build", HERE.parents[1] / "meson.build"):
        assert re.search(r"\bversion: files\('[a-z/]*gaiafs/VERSION'\)", build.read_text())


def test_every_file_is_installed():
    names = {path.name for path in (HERE / "gaiafs").iterdir() if path.suffix == ".py"}
    assert set(re.findall(r"gaiafs/(\w+\.py)\b", (HERE / "meson.build").read_text())) == names


def test_the_readmes_session_is_true(start):
    mount = start()
    readme = (HERE / "README.md").read_text()
    first, second, model, half, replaceable = re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S)
    assert mount.path.name == "mnt"
    environment = os.environ | {"PYTHONPATH": str(HERE)}
    shell = "import sys, numpy as np; print(int(np.fromfile('mnt/weights', 'float32').sum()))"
    said = [
        subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=mount.path.parent, env=environment, capture_output=True, text=True)
        for code in (first, shell, second, model, half, replaceable)
    ]
    assert [one.returncode for one in said] == [0] * 6, [one.stderr for one in said]
    assert said[1].stdout == "1064960\n" and said[2].stdout.startswith("1064960 "), said
    assert said[1].stdout.strip() in readme
    assert said[3].stdout == "{'b': (1000,), 'w': (1000, 1000)} 1000000\n"
    assert said[5].stdout == "2 128000.0\n"


def test_what_is_public_is_documented():
    for name in gaiafs.__all__:
        value = getattr(gaiafs, name)
        assert value.__doc__, name
        for method in vars(value) if isinstance(value, type) and value is not gaiafs.Array else ():
            member = getattr(value, method)
            short = {"held", "closed", "shape", "dtype", "strides"}
            if not method.startswith("_") and callable(member) and method not in short:
                assert member.__doc__, f"{name}.{method}"


@pytest.mark.filterwarnings("default")
def test_a_wheel_works_in_an_environment_of_its_own(mount, tmp_path):
    tool("pip", "-q", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", str(tmp_path / "wheels"), ".")
    (wheel,) = (tmp_path / "wheels").glob("gaiafs-*-py3-none-any.whl")
    where = tmp_path / "venv"
    venv.create(where)
    tool("pip", "-q", "--python", str(where / "bin/python"), "install", "--no-deps", "--no-index", str(wheel))
    # numpy and cffi are this environment's: nothing is fetched.
    site = next((where / "lib").glob("python*/site-packages"))
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    code = f"""
import gaiafs
assert gaiafs.__file__.startswith({str(site)!r}), gaiafs.__file__
with gaiafs.memmap({str(mount.file("f", b"1234"))!r}) as m, m.acquire() as a:
    print(a.tobytes().decode())
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([where / "bin/python", "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.stdout == "1234\n", done.stderr
