#!/usr/bin/env python3
"""gpu.py FILE.safetensors [N] - a model's tensors on GPU N (0), for CuPy and for PyTorch, without a copy.

FILE is on a gaiafs mount that has the GPU (gaiafs --device cuda). The tensors are acquired for reading: do not store to what is made of
them, the memory is shared with all who have loaded the file. Then the GPU adds up the file's bytes, in the order of a stream.

The tests run this with stand-ins for CuPy and PyTorch, on a CUDA driver that is played; scripts/gpu-check runs it on a GPU, with
the real ones.
"""

import sys

import numpy as np

import gaiafs


def with_cupy(path, n):
    import cupy

    tensors = gaiafs.safetensors.load_file(path, f"cuda:{n}", bits=True)
    with cupy.cuda.Device(n):
        for name, one in tensors.items():
            a = cupy.asarray(one)  # by __cuda_array_interface__; it keeps `one`
            print(f"CuPy: {name}: {a.shape} {a.dtype} on cuda:{a.device.id}")
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream, gaiafs.memmap(path, device=f"cuda:{n}") as m:
            with m.acquire(stream=stream) as a:
                total = cupy.asarray(a).sum(dtype="uint64")
            # The range is released when the stream has come to that; until now nothing was waited for.
            stream.synchronize()
            m.check_stream()
    return int(total)


def with_pytorch(path, n):
    import torch

    if not torch.cuda.is_available():
        raise ImportError("it finds no GPU")
    tensors = gaiafs.safetensors.load_file(path, f"cuda:{n}", framework="pt", bits=True)
    for name, one in tensors.items():
        print(f"PyTorch: {name}: {tuple(one.shape)} {one.dtype} on {one.device}")
    stream = torch.cuda.Stream(n)
    with torch.cuda.stream(stream), gaiafs.memmap(path, device=f"cuda:{n}") as m:
        with m.acquire(stream=stream) as a:
            # By DLPack: torch.as_tensor() refuses what is not acquired for writing.
            total = torch.from_dlpack(a).sum(dtype=torch.int64)
        stream.synchronize()
        m.check_stream()
    return int(total)


def main():
    path, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    try:
        gaiafs.memmap(path, device=f"cuda:{n}").close()
    except OSError as e:
        print(f"no GPU here that gaiafs can use: {e}")
        return 1
    want = int(np.fromfile(path, "u1").sum(dtype="u8"))
    for name, example in (("CuPy", with_cupy), ("PyTorch", with_pytorch)):
        try:
            total = example(path, n)
        except ImportError as e:
            print(f"{name} cannot be used: {e}")
            continue
        print(f"{name}: the file's bytes add up to {total} on the GPU, and to {want} here")
        if total != want:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
