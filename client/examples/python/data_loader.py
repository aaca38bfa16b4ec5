#!/usr/bin/env python3
"""data_loader.py FILE [WORKERS] - batches of a large array, by workers, over gaiafs.memmap(); by PyTorch's DataLoader if it is there.

FILE, on a gaiafs mount, is made if it is not there: 4096 samples of 256 numbers. Workers share the array's memory on the device, and
bring the batch after the next in the background. On a simulated device only: the workers are CPUs.
"""

import multiprocessing
import os
import sys

import numpy as np

import gaiafs

SAMPLES, NUMBERS, BATCH = 4096, 256, 64

try:
    from torch.utils.data import DataLoader
except ImportError:
    DataLoader = None


class Batches:
    """A data set whose items are whole batches: an acquire costs some microseconds, so one for each sample would be too many."""

    def __init__(self, path):
        self.path = path
        self._mapping, self._pid = None, None

    def mapping(self):
        # In each worker anew, whether it was forked or spawned: what a parent has mapped is not there in a child of fork().
        if self._pid != os.getpid():
            self._mapping, self._pid = gaiafs.memmap(self.path, "float32", shape=(SAMPLES, NUMBERS)), os.getpid()
        return self._mapping

    def __getstate__(self):
        return self.__dict__ | {"_mapping": None, "_pid": None}

    def __len__(self):
        return SAMPLES // BATCH

    def __getitem__(self, i):
        m = self.mapping()
        if i + 2 < len(self):
            m.prefetch(slice((i + 2) * BATCH, (i + 3) * BATCH))
        with m.acquire(slice(i * BATCH, (i + 1) * BATCH)) as a:
            # The result is a copy: it may be used after the release.
            return (a - a.mean(axis=1, keepdims=True)).astype("float32")


def work(batches, numbers, said):
    for i in iter(numbers.get, None):
        said.put((i, batches[i]))


def load(batches, workers):
    """(number, batch) of all batches; what DataLoader does, in short."""
    spawn = multiprocessing.get_context("spawn")
    numbers, said = spawn.Queue(), spawn.Queue()
    children = [spawn.Process(target=work, args=(batches, numbers, said)) for _ in range(workers)]
    for child in children:
        child.start()
    for i in range(len(batches)):
        numbers.put(i)
    for _ in children:
        numbers.put(None)
    for _ in range(len(batches)):
        yield said.get(timeout=600)
    for child in children:
        child.join()


def main():
    path = sys.argv[1]
    workers = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    if not os.path.exists(path):
        with gaiafs.memmap(path, "float32", "w+", shape=(SAMPLES, NUMBERS)) as m, m.acquire(overwrite=True) as a:
            a[:] = np.arange(SAMPLES * NUMBERS).reshape(SAMPLES, NUMBERS)
    batches = Batches(path)
    if DataLoader:
        loader = enumerate(DataLoader(batches, batch_size=None, num_workers=workers, multiprocessing_context="spawn"))
    else:
        loader = load(batches, workers)
    numbers, spread = set(), 0.0
    for i, batch in loader:
        numbers.add(i)
        spread = max(spread, float(abs(batch).max()))
    how = "PyTorch" if DataLoader else "without PyTorch"
    print(f"{len(numbers)} batches of {BATCH} samples by {workers} workers ({how}), {spread=:.1f}")


if __name__ == "__main__":
    main()
