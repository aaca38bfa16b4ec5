"""The programs in client/examples/python, on the simulated device."""

import os
import py_compile
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gaiafs

HERE = Path(__file__).parents[1]
EXAMPLES = HERE.parent / "examples" / "python"


def example(name, *args, status=0):
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", EXAMPLES / name, *map(str, args)],
        env=os.environ | {"PYTHONPATH": str(HERE)}, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert done.stderr == "" or ("(PyTorch)" in done.stdout and is_of_the_tracker(done.stderr)), done.stderr
    return done.stdout


def is_of_the_tracker(said):
    """PyTorch does not wait for threads of its queues. If the interpreter ends while one ends, Python's tracker of semaphores does not
    hear that one is gone, and complains."""
    files = re.findall(r'^ *File "(.*?)"', said, re.M)
    return files and all(name.endswith(("/multiprocessing/resource_tracker.py", "<string>")) for name in files)


def test_all_are_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"load_model.py", "replace_tensor.py", "data_loader.py", "gpu.py"}


def test_a_model_in_eight_processes_is_there_once(start):
    mount = start("--device", "sim:64M")
    path, model = mount.path / "model", np.arange(5 << 20, dtype="u4")
    gaiafs.safetensors.save_file({"w": model[: 3 << 20], "x": model}, path)
    before = gaiafs.status(mount.path)["counters"]["storage_reads"]
    said = example("load_model.py", path)
    assert len(re.findall("^2 tensors in ", said, re.M)) == 8
    # 32 MiB, and the page of the header.
    assert said.endswith("8 processes, 34 MiB of device memory\n")
    assert gaiafs.status(mount.path)["counters"]["storage_reads"] - before <= path.stat().st_size // 4096 + 1


def test_a_tensor_is_replaced_under_readers(mount):
    said = example("replace_tensor.py", mount.path / "r", 0.5, 6)
    assert re.fullmatch(r"7 readers saw \[.*\] of 7 arrays, and 0 mixtures\n", said)


def test_batches_by_workers(mount):
    for _ in range(2):
        said = example("data_loader.py", mount.path / "samples", 2)
        assert re.fullmatch(r"64 batches of 64 samples by 2 workers \((PyTorch|without PyTorch)\), spread=127.5\n", said)


def test_the_one_for_gpus_says_that_there_is_none(mount, tmp_path):
    py_compile.compile(str(EXAMPLES / "gpu.py"), str(tmp_path / "compiled"), doraise=True)
    path = mount.path / "model"
    gaiafs.safetensors.save_file({"w": np.zeros(3)}, path)
    if any(not one.simulated for one in gaiafs.devices(path)):
        pytest.skip("there is a GPU: scripts/gpu-check has it")
    assert example("gpu.py", path, status=1).startswith("no GPU here that gaiafs can use: ")
