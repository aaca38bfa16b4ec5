"""PyTorch's tensors in a mount's memory. PyTorch is large: scripts/python --torch installs it, for scripts/test --long."""

import gc
import warnings

import numpy as np
import pytest
from test_interfaces import ARRAYS, Owner, device_array
from test_safetensors import RARE, mappings, raw_file, some_tensors

import gaiafs
from gaiafs import _torch
from gaiafs import safetensors as ours
from gaiafs._format import Tensor

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from safetensors.torch import load_file, save_file
except ImportError:
    torch = None
pytestmark = pytest.mark.skipif(torch is None, reason="PyTorch is not installed: scripts/python --torch does that")


def test_their_files_are_loaded_as_tensors(mount):
    tensors = {name: torch.from_numpy(one) for name, one in some_tensors().items()}
    path = mount.path / "model"
    save_file(tensors, path)
    found = ours.load_file(path, framework="pt")
    assert found.keys() == tensors.keys()
    for name, one in tensors.items():
        assert found[name].dtype == one.dtype and torch.equal(found[name], one), name


@pytest.mark.parametrize("name", RARE)
def test_dtypes_that_numpy_lacks(mount, name):
    path = mount.file("model", raw_file({"w": RARE[name]}))
    wanted = load_file(path)["w"]
    found = ours.load_file(path, framework="pt")["w"]
    assert found.dtype == wanted.dtype and torch.equal(found.float(), wanted.float())
    with ours.safe_open(path, "pt") as f:
        assert torch.equal(f.get_tensor("w").float(), wanted.float())
        assert torch.equal(f.get_slice("w")[1:].float(), wanted[1:].float())
        assert f.get_slice("w")[1:].dtype == wanted.dtype
    assert ours.load_file(path, framework="pt", bits=True)["w"].dtype in (torch.uint8, torch.uint16)


def test_packed_items_come_as_bytes(mount):
    path = mount.file("model", raw_file({"w": ("F4", (2, 2), b"ab")}))
    with pytest.raises(TypeError, match="less than a byte"):
        ours.load_file(path, framework="pt")
    assert bytes(ours.load_file(path, framework="pt", bits=True)["w"].tolist()) == b"ab"


def test_tensors_are_not_copied_and_keep_the_memory(start):
    mount = start("--device", "sim:32M")
    path = mount.path / "model"
    ours.save_file({"w": np.full(100_000, 7, "f4"), "b": np.full(10, 1, "f2")}, path)
    tensors = ours.load_file(path, framework="pt")
    assert tensors["w"].data_ptr() % 4096 == 0
    part = tensors["w"].reshape(100, 1000)[3:].T
    used = gaiafs.devices(path)[0].used
    del tensors
    gc.collect()
    # That device is strict: what is not held cannot be touched.
    assert mappings(mount) == 1 and gaiafs.devices(path)[0].used == used
    assert part.sum() == 7 * 97_000
    with ours.safe_open(path, "pt") as f:
        b = f.get_slice("b")[2:4]
    assert b.tolist() == [1, 1]
    del part, b, f
    gc.collect()
    assert mappings(mount) == 0


def test_a_file_is_made_of_tensors(mount):
    path = mount.path / "model"
    with ours.create(path, {"w": ("BF16", (64, 64))}, framework="pt") as tensors:
        tensors["w"].copy_(torch.full((64, 64), 1.5))
    assert (load_file(path)["w"] == 1.5).all() and load_file(path)["w"].dtype == torch.bfloat16


def test_numpys_tensors_are_taken(mount):
    path = mount.path / "model"
    ours.save_file({"w": np.arange(5000)}, path)
    tensor = torch.from_dlpack(ours.load_file(path)["w"])
    gc.collect()
    assert tensor.sum() == 4999 * 2500
    with gaiafs.memmap(path, "u1", "r+") as m, m.acquire(slice(4096, 4104), write=True) as a:
        torch.from_numpy(a).fill_(1)
    assert tensor[0] == 0x0101010101010101


def test_a_replaceable_is_read_and_replaced(mount):
    with gaiafs.Replaceable(mount.path / "r", "f4", "w+", (100, 100)) as r:
        with r.replace() as a:
            torch.from_numpy(a).copy_(torch.full((100, 100), 3.0))
        with r.read() as a:
            assert torch.from_dlpack(a.view(np.ndarray)).sum() == 30_000


def test_a_model_is_run(mount):
    layer = torch.nn.Linear(64, 32)
    path = mount.path / "model"
    save_file(layer.state_dict(), path)
    other = torch.nn.Linear(64, 32)
    # Not copied into what is there, but put in its place.
    other.load_state_dict(ours.load_file(path, framework="pt"), assign=True)
    x = torch.rand(3, 64)
    with torch.no_grad():
        assert torch.equal(layer(x), other(x))


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_our_capsules_are_taken(array):
    if min(array.strides, default=0) < 0:
        pytest.skip("PyTorch has no strides below zero")
    for readonly in (False, True):
        seen = torch.from_dlpack(Owner(array, readonly))
        gc.collect()
        assert np.array_equal(seen.numpy(), array) and np.shares_memory(seen.numpy(), array)
        assert seen.stride() == tuple(stride // array.itemsize for stride in array.strides)


def test_of_an_array_on_a_gpu_pytorch_lacks_the_gpu_only():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU: scripts/gpu-check has it")
    array = device_array(np.zeros(6, "u2"), readonly=True)
    with pytest.raises(TypeError, match="read only"):
        torch.as_tensor(array)
    with pytest.raises((RuntimeError, AssertionError), match=r"NVIDIA|CUDA"):
        _torch.as_torch(array, Tensor("w", "BF16", (6,), 0, 12), False)
