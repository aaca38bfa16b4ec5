"""Arrays on a GPU that is played: the library and the daemon on the fake CUDA driver, whose memory the CPU can look at.

What CuPy and PyTorch do with an array tests/played does, so that the package's side of it is run: addresses, streams, lifetimes. Whether
a real GPU and the real CuPy do the same scripts/gpu-check finds out.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import BUILD, run
from test_examples import EXAMPLES, HERE
from test_safetensors import RARE, mappings, raw_file

import gaiafs

PLAYED = BUILD / "tests/gpu"
STAND_INS = HERE / "tests/played"
pytestmark = pytest.mark.skipif(
    not all((PLAYED / name).exists() for name in ("gaiafs-played", "libcuda.so.1")),
    reason="no fake driver is there: it is built where CUDA is, and not with ThreadSanitizer",
)
ENVIRONMENT = {
    "LD_LIBRARY_PATH": f"{PLAYED}:{os.environ.get('LD_LIBRARY_PATH', '')}",
    "PYTHONPATH": f"{STAND_INS}:{HERE}",
}


@pytest.fixture
def gpu(start):
    """A mount with the GPUs 1 and 0, in this order."""
    return start("--device", "cuda:1,32M", "--device", "cuda:0,32M", program="tests/gpu/gaiafs-played")


def on_gpu(code, *args, **keywords):
    """A program's output, in which numpy, gaiafs and what CuPy does are there; no rule of CUDA's was broken."""
    begin = "import gc, os, sys, numpy as np, gaiafs, driver\nfrom gaiafs import safetensors\n"
    end = "\nassert driver.violation() is None, driver.violation()\n"
    lines = code.strip("\n").split("\n")
    indent = len(lines[0]) - len(lines[0].lstrip())
    return run(begin + "\n".join(line[indent:] for line in lines) + end, *args, environment=ENVIRONMENT, **keywords)


def test_a_gpu_is_found_by_the_number_that_it_has_here(gpu):
    path = gpu.file("f", bytes(5000))
    assert [(one.name, one.simulated) for one in gaiafs.devices(path)] == [("cuda1", False), ("cuda0", False)]
    said = on_gpu(
        """
        for device in "cuda:0", "cuda:1", "cuda", 0:
            with gaiafs.memmap(sys.argv[1], device=device) as m, m.acquire() as a:
                print(m.device.index, a, driver.where(a.pointer), a.__dlpack_device__())
        """,
        path,
    )
    array = "<gaiafs.DeviceArray (5000,) uint8 on cuda:{0}> {0} (2, {0})\n"
    assert said == "".join(f"{index} {array.format(n)}" for index, n in ((1, 0), (0, 1), (1, 0), (0, 1)))


def test_bytes_go_to_the_gpu_and_come_back(gpu):
    contents = np.arange(3 << 18, dtype="u4")
    path = gpu.file("f", contents.tobytes())
    on_gpu(
        """
        contents = np.fromfile(sys.argv[1], "u4")
        with gaiafs.memmap(sys.argv[1], "u4", "r+", (768, 1024), device="cuda:0") as m:
            with m.acquire() as a:
                assert (driver.look(a) == contents.reshape(768, 1024)).all() and not driver.look(a).flags.writeable
            with m.acquire(np.s_[100:300, 7], write=True) as a:
                seen = driver.look(a)
                assert (seen == contents.reshape(768, 1024)[100:300, 7]).all() and seen.strides == (4096,)
                seen += 1
            with m.acquire(slice(512, None), overwrite=True) as a:
                driver.look(a)[:] = 5
        """,
        path,
    )
    want = contents.reshape(768, 1024)
    want[100:300, 7] += 1
    want[512:] = 5
    assert np.array_equal(np.fromfile(path, "u4").reshape(768, 1024), want)


def test_a_stream_orders_what_it_acquires_and_releases(gpu):
    path = gpu.file("f", b"a" * 8192)
    said = on_gpu(
        """
        stream, other = driver.Stream(0), driver.Stream(0)
        byte = lambda: os.pread(file, 1, 4096)
        file = os.open(sys.argv[1], os.O_RDONLY)
        with gaiafs.memmap(sys.argv[1], mode="r+", device="cuda:0") as m:
            with m.acquire(write=True):  # so that no memory has to be mapped for the stream
                pass
            stream.hold_up()
            with m.acquire(slice(4096, None), write=True, stream=stream) as a:
                assert a.__cuda_array_interface__["stream"] == stream.handle
                a.__dlpack__(stream=stream.handle, max_version=(1, 0))
                try:
                    a.__dlpack__(stream=other.handle, max_version=(1, 0))
                except BufferError as e:
                    print(e)
                stream.store(a.pointer, ord("b"), 4096)
            # Nothing of this has begun, and nobody has waited for it.
            assert byte() == b"a"
            stream.go_on()
            stream.synchronize()
            assert byte() == b"b"
            m.check_stream()
        os.close(file)
        """,
        path,
    )
    assert said.startswith("the range was acquired on another stream")
    assert path.read_bytes() == b"a" * 4096 + b"b" * 4096


def test_models_are_shared_on_the_gpu_and_stay_while_something_is_left(gpu):
    tensors = {"w": np.arange(1 << 20, dtype="f4").reshape(1024, 1024), "b": np.arange(100, dtype="f2"), "none": np.zeros((0, 3))}
    path = gpu.path / "model"
    gaiafs.safetensors.save_file(tensors, path)
    code = """
        path, other = sys.argv[1:3]
        used = lambda: {one.name: one.used for one in gaiafs.devices(path)}["cuda0"]
        tensors = safetensors.load_file(path, "cuda:0")
        for name, shape, dtype, total in ("w", (1024, 1024), "f4", 549755289600), ("b", (100,), "f2", 4950), ("none", (0, 3), "f8", 0):
            one = tensors[name]
            assert one.shape == shape and one.dtype == dtype, one
            assert driver.look(one).sum(dtype="f8") == total, name
        with safetensors.safe_open(path, "np", "cuda:0") as f:
            assert (driver.look(f.get_slice("w")[3:5])[1] == np.arange(4096, 5120)).all()
        size = used()
        if other:
            assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-W", "error", "-c", other, path, "") == 0
            assert used() == size and size <= os.path.getsize(path) + (4 << 20), (size, used())
        # What a library has made of it by __cuda_array_interface__ keeps it.
        row = driver.look(tensors["w"])[7]
        del tensors, one, f
        gc.collect()
        assert gaiafs.status(path)["clients"][0]["mappings"] and row[0] == 7 * 1024
        del row
        gc.collect()
        assert not [one for one in gaiafs.status(path)["clients"] if one["mappings"]]
        """
    begin = "import gc, os, sys, numpy as np, gaiafs, driver\nfrom gaiafs import safetensors\n"
    one = begin + "tensors = safetensors.load_file(sys.argv[1], 'cuda:0')\nassert driver.look(tensors['w'])[1, 0] == 1024\n"
    on_gpu(code, path, one)
    assert mappings(gpu) == 0


def test_dlpack_gives_the_memory_of_the_gpu(gpu):
    path = gpu.file("f", np.arange(6000, dtype="i2").tobytes())
    said = on_gpu(
        """
        with gaiafs.memmap(sys.argv[1], "i2", "r+", (60, 100), device="cuda:1") as m:
            with m.acquire(np.s_[10:50:2, ::3]) as a:
                seen = driver.take(a.__dlpack__(max_version=(1, 0), stream=1))
                assert (seen == np.arange(6000).reshape(60, 100)[10:50:2, ::3]).all() and not seen.flags.writeable
                try:
                    a.__dlpack__()
                except BufferError as e:
                    print(e)
            with m.acquire(write=True) as a:
                seen = driver.take(a.__dlpack__(max_version=(1, 0), stream=1))
                seen[0, 0] = 77
            assert np.fromfile(sys.argv[1], "i2")[0] == 77
            try:
                a.__dlpack__()
            except gaiafs.ReleasedError:
                print("released")
        # It was exported, so the mapping stays, whoever lets it go.
        del m, a
        gc.collect()
        assert gaiafs.status(sys.argv[1])["clients"][0]["mappings"]
        """,
        path,
    )
    assert said == "memory that was acquired for reading only can be given to consumers that know DLPack 1.0 only\nreleased\n"


def test_after_fork_a_child_has_nothing_and_its_parent_all(gpu):
    path = gpu.file("f", b"a" * 4096)
    said = on_gpu(
        """
        with gaiafs.memmap(sys.argv[1], device="cuda:0") as m, m.acquire() as a:
            child = os.fork()
            if not child:
                for what in lambda: a.pointer, lambda: a.__cuda_array_interface__, lambda: a.__dlpack__(max_version=(1, 0)), m.acquire:
                    try:
                        what()
                        print("no error")
                    except OSError as e:
                        print(e.errno)
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(child, 0)
            assert driver.look(a)[-1] == ord("a")
        """,
        path,
        ignore="DeprecationWarning",
    )
    assert said == "107\n" * 4


def test_an_array_is_replaced_on_the_gpu(gpu):
    on_gpu(
        """
        with gaiafs.Replaceable(sys.argv[1], "f4", "w+", (300, 1000), device="cuda:0") as r:
            for n in range(1, 4):
                with r.replace() as a:
                    driver.look(a)[:] = n
                with r.read() as a:
                    assert (driver.look(a) == n).all() and r.epoch == 2 * n - 1
                r.put(np.full(r.shape, -n))
                with r.read() as a:
                    assert (driver.look(a) == -n).all()
        """,
        gpu.path / "r",
    )


def test_a_model_is_made_on_the_gpu(gpu):
    path = gpu.path / "model"
    on_gpu(
        """
        with safetensors.create(sys.argv[1], {"w": ("F16", (64, 1000)), "x": ("BF16", (5,))}, device="cuda:0", bits=True) as new:
            driver.look(new["w"])[:] = 1.5
            driver.look(new["x"])[:] = 0x3F80
        """,
        path,
    )
    assert path.read_bytes().endswith(np.full(64_000, 1.5, "f2").tobytes() + b"\x80\x3f" * 5)


def test_pytorchs_tensors_are_in_the_memory_of_the_gpu(gpu):
    path = gpu.file("model", raw_file({"w": ("F32", (8,), np.arange(8, dtype="f4").tobytes()), "x": RARE["BF16"]}))
    gaiafs.safetensors.repack(path, path)  # so that tensors are aligned as their items
    on_gpu(
        """
        tensors = safetensors.load_file(sys.argv[1], "cuda:0", framework="pt")
        import torch
        assert tensors["w"].device == "cuda:0" and tensors["w"].numpy().tolist() == list(range(8))
        assert tensors["x"].dtype is torch.bfloat16 and tensors["x"].numpy().tolist() == [[0x3F80, 0x4000], [0x4040, 0x4080]]
        # A tensor keeps what it is in.
        w = tensors.pop("w")
        del tensors
        gc.collect()
        assert w.numpy()[7] == 7
        """,
        path,
    )


def test_the_example_runs(gpu):
    path = gpu.path / "model"
    gaiafs.safetensors.save_file({"w": np.arange(1000, dtype="f4"), "x": np.full((3, 4), 7, "u1")}, path)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", EXAMPLES / "gpu.py", path, "0"],
        env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    total = sum(path.read_bytes())
    added = f"the file's bytes add up to {total} on the GPU, and to {total} here"
    assert done.stdout.splitlines() == [
        "CuPy: w: (1000,) float32 on cuda:0",
        "CuPy: x: (3, 4) uint8 on cuda:0",
        f"CuPy: {added}",
        "PyTorch: w: (1000,) float32 on cuda:0",
        "PyTorch: x: (3, 4) uint8 on cuda:0",
        f"PyTorch: {added}",
    ]
