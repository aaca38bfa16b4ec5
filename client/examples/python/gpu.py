#!/usr/bin/env python3
"""gpu.py FILE.safetensors [N] - a model's tensors on GPU N (0), for CuPy and for PyTorch, without a copy.

NOT RUN: nobody has tried this on a GPU yet. FILE is on a gaiafs mount that has the GPU (gaiafs --device cuda). The tensors are acquired
for reading: do not store to what is made of them, the memory is shared with all who have loaded the file.
"""

import sys

import gaiafs


def main():
    path, n = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
    try:
        tensors = gaiafs.safetensors.load_file(path, f"cuda:{n}", bits=True)
    except OSError as e:
        print(f"no GPU here that gaiafs can use: {e}")
        return 1
    try:
        import cupy
    except ImportError:
        print("CuPy is not installed")
    else:
        with cupy.cuda.Device(n):
            for name, one in tensors.items():
                a = cupy.asarray(one)  # by __cuda_array_interface__; it keeps `one`
                print(f"{name}: {a.shape} {a.dtype}, largest: {a.max()}")
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed")
    else:
        for name, one in tensors.items():
            t = torch.as_tensor(one, device=f"cuda:{n}")
            assert t.data_ptr() == one.pointer
            print(f"{name}: {tuple(t.shape)} {t.dtype} on {t.device}")
    # In the order of a stream, without waiting for it: work of a stream on a range that it acquires and releases.
    if "torch" in sys.modules:
        stream = torch.cuda.Stream(n)
        with torch.cuda.stream(stream), gaiafs.memmap(path, device=f"cuda:{n}") as m:
            with m.acquire(slice(0, 1 << 20), stream=stream) as a:
                total = torch.as_tensor(a, device=f"cuda:{n}").sum(dtype=torch.int64)
            stream.synchronize()
            m.check_stream()
            print(f"sum of the first MiB: {int(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
