"""
A process of scripts/bench models: does what its standard input says, a line each, and answers with a line of numbers.

  make PATH SIZE       make a file of safetensors of so many bytes or a little less, of tensors of 64 MiB at most: its size
  load PATH            gaiafs.safetensors.load_file(), and touch each page; nanoseconds. The tensors stay until drop
  theirs PATH          the same by the package safetensors, which has a copy of each tensor then
  read PATH            the same by read(2) into one array
  drop                 let go of what load has loaded
  slots PATH SIZE      make a gaiafs.Replaceable of zeros
  put PATH SIZE VALUE  replace it by an array of this value, from host memory
  watch PATH SIZE VALUE  read it until it has this value: how often it was read, and how many were mixtures
"""

import sys
import time

import numpy as np

import gaiafs

try:
    import torch
    from safetensors.torch import load_file as load_theirs
except ImportError:
    torch = None
    from safetensors.numpy import load_file as load_theirs

PAGE, LARGEST = 4096, 64 << 20
kept = []


def touch(arrays):
    """A byte of each page."""
    return sum(int(one.reshape(-1).view(np.uint8)[::PAGE].sum()) for one in arrays if one.size)


def make(path, size):
    size = int(size)
    n = max(min(LARGEST, size // 8) // PAGE * PAGE, PAGE)
    numbers = np.random.default_rng(1).integers(0, 256, n, np.uint8)
    tensors = {f"layer{i}": numbers.view(np.float16).reshape(-1, 64) for i in range(size // n)}
    gaiafs.safetensors.save_file(tensors, path)
    return [sum(one.nbytes for one in tensors.values())]


def timed(function):
    def call(*args):
        start = time.monotonic_ns()
        function(*args)
        return [time.monotonic_ns() - start]

    return call


@timed
def load(path):
    kept.append(gaiafs.safetensors.load_file(path))
    touch(kept[-1].values())


@timed
def theirs(path):
    tensors = load_theirs(path)
    if torch:
        # What load_file() gives is mapped; a device's memory needs a copy.
        copies = [one.clone() for one in tensors.values()]
        touch(one.view(torch.uint8).numpy() for one in copies)
    else:
        touch(tensors.values())


@timed
def read(path):
    with open(path, "rb", buffering=0) as file:
        size = file.seek(0, 2)
        file.seek(0)
        whole = np.empty(size, np.uint8)
        left = memoryview(whole)
        while left:
            left = left[file.readinto(left[: 1 << 30]) :]
    touch([whole])


def drop():
    kept.clear()
    return [0]


def opened(path, size, mode="r"):
    return gaiafs.Replaceable(path, np.uint64, mode, int(size) // 8)


def slots(path, size):
    opened(path, size, "w+").close()
    return [0]


def put(path, size, value):
    with opened(path, size, "r+") as r:
        r.put(np.full(r.shape, int(value), r.dtype))
    return [0]


def watch(path, size, value):
    reads = mixtures = 0
    with opened(path, size) as r:
        seen = None
        while seen != int(value):
            with r.read() as a:
                seen = int(a[0])
                mixtures += not bool((a == seen).all())
            reads += 1
    return [reads, mixtures]


def main():
    orders = {"make": make, "load": load, "theirs": theirs, "read": read, "drop": drop, "slots": slots, "put": put, "watch": watch}
    print(0 if torch is None else 1, flush=True)  # it has begun
    for line in sys.stdin:
        order, *words = line.split()
        print(*orders[order](*words), flush=True)


if __name__ == "__main__":
    main()
