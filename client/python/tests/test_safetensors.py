"""gaiafs.safetensors, with the package safetensors as the judge."""

import ctypes
import dataclasses
import errno
import gc
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import BUILD, run

import gaiafs
import gaiafs._mapping as inside
from gaiafs import safetensors as ours

theirs = pytest.importorskip("safetensors")
theirs_np = pytest.importorskip("safetensors.numpy")

DTYPES = ["?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]


def some_tensors(seed=1):
    """Of each dtype and some shapes: whole pages, parts of pages, none, one."""
    numbers = np.random.default_rng(seed)
    tensors = {}
    for dtype in DTYPES:
        for shape in ((3, 7), (4096,), (64, 64, 2), (0, 7), ()):
            tensors[f"{dtype}.{'x'.join(map(str, shape))}"] = np.array(numbers.random(shape) * 100, dtype)
    return tensors


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].shape == array.shape and found[name].dtype == array.dtype, name
        assert np.array_equal(found[name], array), name


def mappings(mount):
    return sum(client["mappings"] for client in gaiafs.status(mount.path)["clients"])


# ---- loading ----


def test_their_files_are_loaded(mount):
    tensors = some_tensors()
    path = mount.path / "model"
    theirs_np.save_file(tensors, path, {"a": "ü"})
    assert_same(ours.load_file(path), tensors)
    with ours.safe_open(path) as f, theirs.safe_open(path, "np") as real:
        assert f.keys() == sorted(real.keys()) and f.metadata() == real.metadata() == {"a": "ü"}
        assert set(f.offset_keys()) == set(tensors)
        for name, array in tensors.items():
            assert np.array_equal(f.get_tensor(name), array)
            assert f.get_slice(name).get_shape() == real.get_slice(name).get_shape() == list(array.shape)
            assert f.get_slice(name).get_dtype() == real.get_slice(name).get_dtype()


@pytest.mark.parametrize("padding", [False, True])
def test_they_load_ours(mount, tmp_path, padding):
    tensors = some_tensors()
    for path in (mount.path / "model", tmp_path / "elsewhere"):
        ours.save_file(tensors, path, {"a": "ü"}, padding=padding)
        found = theirs_np.load_file(path)
        assert any(name.startswith("gaiafs.padding.") for name in found) == padding
        assert_same({name: one for name, one in found.items() if not name.startswith("gaiafs.padding.")}, tensors)
        with theirs.safe_open(path, "np") as f:
            assert f.metadata() == {"a": "ü"}
    assert_same(ours.load_file(mount.path / "model"), tensors)
    with ours.safe_open(mount.path / "model") as f:
        assert f.keys() == sorted(tensors) and set(f.offset_keys()) == set(tensors)


def test_nothing_is_copied_and_a_second_load_brings_nothing(mount):
    path = mount.path / "model"
    ours.save_file({"w": np.arange(1 << 20, dtype="u4")}, path)
    first = ours.load_file(path)
    before = gaiafs.status(mount.path)["counters"]
    used = gaiafs.devices(mount.path)[0].used
    second = ours.load_file(path)
    after = gaiafs.status(mount.path)["counters"]
    assert np.array_equal(first["w"], second["w"])
    for name in ("storage_reads", "home_to_device", "device_to_home"):
        assert before[name] == after[name], name
    assert gaiafs.devices(mount.path)[0].used == used


def test_a_pinned_model_is_there_when_all_start_again(start):
    mount = start("--device", "sim:32M")
    path = mount.path / "model"
    ours.save_file({"w": np.arange(1 << 20, dtype="u4")}, path)
    subprocess.run([BUILD / "client/gaia", "pin", path], check=True, capture_output=True)
    load = "import sys; from gaiafs import safetensors; print(int(safetensors.load_file(sys.argv[1])['w'].sum()))"
    run(load, path)
    before = gaiafs.status(mount.path)["counters"]
    subprocess.run([BUILD / "client/gaia", "evict", path, "--from", "home"], check=True)
    assert run(load, path) == f"{sum(range(1 << 20))}\n"
    after = gaiafs.status(mount.path)["counters"]
    for name in ("storage_reads", "home_to_device", "device_bytes_in"):
        assert before[name] == after[name], name
    subprocess.run([BUILD / "client/gaia", "unpin", path], check=True, capture_output=True)


def test_what_is_loaded_cannot_be_stored_to(mount):
    path = mount.path / "model"
    ours.save_file({"w": np.zeros(5000)}, path)
    tensors = ours.load_file(path)
    for one in (tensors["w"], np.asarray(tensors["w"]), tensors["w"][7:]):
        with pytest.raises(ValueError, match="read-only"):
            one[0] = 1


def test_slices_bring_their_pages_only(start):
    mount = start("--device", "sim:8M")
    path = mount.path / "model"
    array = np.arange(1 << 20, dtype="u4").reshape(1024, 1024)
    # More than the device has.
    ours.save_file({"w": array, "x": array, "y": array}, path)
    with pytest.raises(OSError) as e:
        ours.load_file(path)
    assert e.value.errno == errno.ENOMEM and e.value.filename == str(path)
    with ours.safe_open(path) as f:
        assert np.array_equal(f.get_tensor("x"), array)
        part = f.get_slice("y")
        for index in (np.s_[3:5], np.s_[7], np.s_[-1, 5], np.s_[..., 0:3], np.s_[10:2:-3], np.s_[4:4]):
            assert np.array_equal(part[index], array[index]), index
        before = gaiafs.status(mount.path)["counters"]["home_to_device"]
        assert part[512:513].shape == (1, 1024)
        assert gaiafs.status(mount.path)["counters"]["home_to_device"] - before <= 2
        for wrong in ([1, 2], "x", None):
            with pytest.raises(TypeError):
                part[wrong] if wrong is not None else part["y"]


def test_names_that_are_not_there(mount):
    path = mount.path / "model"
    ours.save_file({"w": np.zeros(3)}, path)
    with ours.safe_open(path) as f:
        for call in (f.get_tensor, f.get_slice):
            with pytest.raises(KeyError, match="no tensor 'x'"):
                call("x")
    for call in (f.keys, f.metadata, f.offset_keys, lambda: f.get_tensor("w")):
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(FileNotFoundError):
        ours.load_file(mount.path / "none")
    with pytest.raises(ValueError, match="framework"):
        ours.safe_open(path, "jax")


# ---- lifetime ----


def test_whatever_is_left_of_a_tensor_keeps_the_memory(start):
    mount = start("--device", "sim:32M")
    path = mount.path / "model"
    ours.save_file({name: np.full(5000, n, "i8") for n, name in enumerate("abc")}, path)
    tensors = ours.load_file(path)
    plain = np.asarray(tensors["b"])[10:]
    view = memoryview(tensors["c"][1:])
    capsule = np.from_dlpack(tensors["a"])
    del tensors
    gc.collect()
    # That device is strict: what is not held cannot be touched.
    assert mappings(mount) == 1 and type(plain) is np.ndarray and plain.sum() == 4990
    assert view[0] == 2 and capsule[7] == 0
    del plain
    gc.collect()
    assert mappings(mount) == 1 and view[0] == 2
    del view, capsule
    gc.collect()
    assert mappings(mount) == 0
    with ours.safe_open(path) as f:
        a, b = f.get_tensor("a"), f.get_slice("b")[5:6]
    assert mappings(mount) == 1 and a[0] == 0 and b[0] == 1
    del a, b, f
    gc.collect()
    assert mappings(mount) == 0


def test_arrays_for_a_gpu(mount, monkeypatch):
    """A GPU is played by the simulated device, which is said to be none."""
    real = inside.find_device
    monkeypatch.setattr(inside, "find_device", lambda *args: dataclasses.replace(real(*args), simulated=False))
    path, crooked = mount.path / "model", mount.path / "crooked"
    tensors = {"w": np.arange(5000, dtype="f4"), "b": np.arange(6, dtype="f2").reshape(2, 3), "none": np.zeros(0)}
    ours.save_file(tensors, path)
    before = mappings(mount)
    found = ours.load_file(path)
    for name, one in tensors.items():
        said = found[name].__cuda_array_interface__
        assert (said["shape"], said["typestr"], said["data"][1]) == (one.shape, one.dtype.str, True)
    with ours.safe_open(path) as f:
        assert f.get_slice("b")[1:, ::2].__cuda_array_interface__["strides"] == (6, 4)
    # The memory is the host's after all.
    view = memoryview((ctypes.c_char * tensors["w"].nbytes).from_address(found["w"].pointer))
    assert bytes(view) == tensors["w"].tobytes()
    assert mappings(mount) == before + 1
    del found
    gc.collect()
    assert mappings(mount) == before
    crooked.write_bytes(raw_file({"a": ("U8", (1,), b"a"), "w": ("F32", (2,), bytes(8))}))
    with pytest.raises(ValueError, match=r"not aligned.*repack\(\) aligns it"):
        ours.load_file(crooked)
    ours.repack(crooked, crooked)
    assert ours.load_file(crooked)["w"].pointer % 4 == 0


def test_a_replaced_file_stays_for_who_has_loaded_it(mount):
    path = mount.path / "model"
    ours.save_file({"w": np.full(5000, 1)}, path)
    old = ours.load_file(path)
    ours.save_file({"w": np.full(5000, 2)}, path)
    new = ours.load_file(path)
    assert (old["w"] == 1).all() and (new["w"] == 2).all()
    assert [name for name in os.listdir(mount.path) if name != "model"] == []


def test_a_child_of_fork_gets_exceptions(mount):
    path = mount.path / "model"
    ours.save_file({"w": np.full(5000, 1)}, path)
    code = """
        import errno, os, sys
        from gaiafs import safetensors

        tensors = safetensors.load_file(sys.argv[1])
        f = safetensors.safe_open(sys.argv[1])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for call in (lambda: tensors["w"][0], lambda: f.get_tensor("w")):
                    try:
                        call()
                    except OSError as e:
                        assert e.errno == errno.ENOTCONN
                    else:
                        raise AssertionError
                assert safetensors.load_file(sys.argv[1])["w"][0] == 1
                del tensors, f
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        print(int(tensors["w"].sum()))
    """
    assert run(code, path, ignore="DeprecationWarning") == "5000\n"


def test_at_exit_with_tensors_in_use(mount):
    path = mount.path / "model"
    ours.save_file({"w": np.full(5000, 1)}, path)
    code = """
        import sys
        from gaiafs import safetensors
        import numpy as np

        tensors = safetensors.load_file(sys.argv[1])
        sys.modules["keep"] = [tensors, np.asarray(tensors["w"]), np.from_dlpack(tensors["w"])]
        print("done")
    """
    assert run(code, path) == "done\n"


def test_when_the_daemon_is_gone_tensors_can_go(start):
    mount = start("--device", "sim:8M", "--supervisor", "unmount")
    path = mount.path / "model"
    ours.save_file({"w": np.full(5000, 1)}, path)
    tensors = ours.load_file(path)
    mount.daemon.kill()
    mount.daemon.wait()
    del tensors
    gc.collect()


# ---- layout ----


def offsets(path):
    with open(path, "rb") as f:
        header = gaiafs._format.read_header(f.fileno(), str(path))
    return {name: (header.data + one.start, one.nbytes, one.item_bytes) for name, one in header.tensors.items()}


@pytest.mark.parametrize("padding", [False, True])
def test_repack_aligns(mount, padding):
    tensors = some_tensors()
    source, target = mount.path / "source", mount.path / "target"
    theirs_np.save_file(tensors, source, {"a": "b"})
    ours.repack(source, target, padding=padding)
    assert_same(ours.load_file(target), tensors)
    for name, (at, nbytes, item) in offsets(target).items():
        if not name.startswith("gaiafs.padding."):
            assert at % (4096 if padding or nbytes % 4096 == 0 else item) == 0, name
    assert any(at % 4096 for at, *_ in offsets(source).values())
    with theirs.safe_open(target, "np") as f:
        assert f.metadata() == {"a": "b"}
    # Padding does not add up, and a file can be repacked where it is.
    ours.repack(target, target)
    assert set(theirs_np.load_file(target)) == set(tensors)
    assert sorted(os.listdir(mount.path)) == ["source", "target"]


@pytest.mark.parametrize("way", ["auto", "writeback"])
def test_a_file_is_made_on_the_device(start, way):
    mount = start("--device", "sim:32M", "--cpu-cache", way)
    path, w = mount.path / "model", np.arange(200_000, dtype="f4").reshape(200, 1000)
    layout = {"w": ("F32", w.shape), "b": (np.float16, (3,)), "rare": ("BF16", (2, 2)), "none": ("U8", (0, 4)), "scalar": ("i8", ())}
    before = gaiafs.status(mount.path)["counters"]
    with ours.create(path, layout, {"a": "b"}, bits=True) as tensors:
        assert not path.exists()
        tensors["w"][:] = w
        tensors["b"][:] = [1, 2, 3]
        tensors["rare"][:] = 0x3F80
        tensors["scalar"][...] = 7
    after = gaiafs.status(mount.path)["counters"]
    # Not the tensors' whole pages, unless a program that has the file open may write past the cache.
    assert way == "auto" or after["home_to_device"] - before["home_to_device"] <= 1
    for name in ("w", "b", "rare", "scalar"):
        with pytest.raises(gaiafs.ReleasedError):
            tensors[name].sum()
    found = dict(theirs.deserialize(path.read_bytes()))
    assert found["rare"]["dtype"] == "BF16" and bytes(found["rare"]["data"]) == b"\x80\x3f" * 4
    assert ours.load_file(path, bits=True)["scalar"] == 7 and found["none"]["shape"] == [0, 4]
    assert np.array_equal(ours.load_file(path, bits=True)["w"], w)
    with theirs.safe_open(path, "np") as f:
        assert f.metadata() == {"a": "b"} and f.get_tensor("b").tolist() == [1, 2, 3]
    # Also on storage.
    assert (mount.below / "model").read_bytes() == path.read_bytes()


def test_a_file_that_is_not_finished_is_not_there(mount):
    path = mount.path / "model"
    ours.save_file({"w": np.ones(3)}, path)
    with pytest.raises(ZeroDivisionError), ours.create(path, {"w": ("F32", (3,))}) as tensors:
        tensors["w"][:] = 2
        raise ZeroDivisionError
    assert ours.load_file(path)["w"].tolist() == [1, 1, 1] and os.listdir(mount.path) == ["model"]
    for layout, error in (
        ({"w": ("c16", (3,))}, TypeError),
        ({"w": ("F4", (3, 2))}, TypeError),
        ({"__metadata__": ("U8", ())}, ValueError),
    ):
        with pytest.raises(error), ours.create(path, layout):
            pass
    assert os.listdir(mount.path) == ["model"]


def test_empty_files(mount):
    path = mount.path / "model"
    for tensors in ({}, {"none": np.zeros((0, 3), "f4")}):
        ours.save_file(tensors, path)
        assert_same(ours.load_file(path), tensors)
        assert_same(theirs_np.load_file(path), tensors)


def test_arrays_of_any_kind_are_saved(mount):
    path, raw = mount.path / "model", mount.file("raw", bytes(range(256)))
    plain = np.arange(24, dtype="i4").reshape(4, 6)
    with gaiafs.memmap(raw) as m, m.acquire() as a:
        tensors = {
            "big": plain.astype(">i4"),
            "columns": np.asfortranarray(plain),
            "part": plain[::2, ::-1],
            "list": [1, 2],
            "held": a,
            "complex": np.ones(3, "c8"),
        }
        ours.save_file(tensors, path)
    found = ours.load_file(path)
    assert np.array_equal(found["big"], plain) and np.array_equal(found["columns"], plain) and found["list"].tolist() == [1, 2]
    assert np.array_equal(found["part"], plain[::2, ::-1]) and found["held"].tolist() == list(range(256)) and found["complex"][2] == 1
    with pytest.raises(gaiafs.ReleasedError):
        ours.save_file({"w": a}, path)
    for wrong in (np.array(["text"]), np.array([None]), np.zeros(3, "c16"), np.zeros(2, "u1,u1")):
        with pytest.raises(TypeError, match="safetensors has no"):
            ours.save_file({"w": wrong}, path)
    for wrong in ("__metadata__", "gaiafs.padding.0", "\ud800", 1):
        with pytest.raises(ValueError, match="cannot be named"):
            ours.save_file({wrong: plain}, path)
    for wrong in ({"a": 1}, {1: "a"}):
        with pytest.raises(TypeError, match="texts"):
            ours.save_file({}, path, wrong)
    # The old file is there still, and nothing else.
    assert ours.load_file(path).keys() == tensors.keys() and sorted(os.listdir(mount.path)) == ["model", "raw"]


# ---- dtypes that numpy lacks ----


def raw_file(tensors):
    """A file of {name: (dtype, shape, bytes)}."""
    at, parts = 0, []
    for name, (dtype, shape, data) in tensors.items():
        parts.append(f'"{name}":{{"dtype":"{dtype}","shape":{list(shape)},"data_offsets":[{at},{at + len(data)}]}}')
        at += len(data)
    header = ("{" + ",".join(parts) + "}").encode()
    return len(header).to_bytes(8, "little") + header + b"".join(data for *_, data in tensors.values())


RARE = {
    "BF16": ("BF16", (2, 2), b"\x80\x3f\x00\x40\x40\x40\x80\x40"),  # 1, 2, 3, 4
    "F8_E4M3": ("F8_E4M3", (3,), b"\x38\x40\x44"),  # 1, 2, 3
    "F8_E5M2": ("F8_E5M2", (2,), b"\x3c\x40"),  # 1, 2
    "F8_E8M0": ("F8_E8M0", (2,), b"\x7f\x80"),  # 1, 2
}


@pytest.mark.parametrize("name", RARE)
def test_without_ml_dtypes_there_is_an_answer(mount, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    path = mount.file("model", raw_file({"w": RARE[name], "other": ("F32", (1,), bytes(4))}))
    with pytest.raises(TypeError, match=rf"'w' is of {name}, which in numpy needs the package ml_dtypes; bits=True"):
        ours.load_file(path)
    dtype, shape, data = RARE[name]
    found = ours.load_file(path, bits=True)
    assert found["w"].shape == shape and found["w"].tobytes() == data and found["other"].dtype == np.float32
    assert found["w"].dtype == ("u2" if dtype == "BF16" else "u1")
    with ours.safe_open(path) as f:
        assert f.get_tensor("other")[0] == 0 and f.keys() == ["other", "w"]
        for call in (f.get_tensor, f.get_slice):
            with pytest.raises(TypeError, match="ml_dtypes"):
                call("w")


@pytest.mark.parametrize("name", RARE)
def test_with_ml_dtypes_its_dtypes_come_and_are_saved(mount, name):
    pytest.importorskip("ml_dtypes")
    path, again = mount.file("model", raw_file({"w": RARE[name]})), mount.path / "again"
    found = ours.load_file(path)["w"]
    assert found.astype(float).ravel().tolist() == [1.0, 2.0, 3.0, 4.0][: found.size]
    ours.save_file({"w": found}, again)
    ((_, saved),) = theirs.deserialize(again.read_bytes())
    assert (saved["dtype"], tuple(saved["shape"]), bytes(saved["data"])) == RARE[name]
    ours.repack(path, again)
    assert np.array_equal(ours.load_file(again)["w"], found)


def test_packed_items_come_as_bytes(mount):
    path = mount.file("model", raw_file({"w": ("F4", (2, 3), b"abc")}))
    with pytest.raises(TypeError, match="less than a byte"):
        ours.load_file(path)
    assert ours.load_file(path, bits=True)["w"].tobytes() == b"abc"
