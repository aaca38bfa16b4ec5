#!/usr/bin/env python3
"""load_model.py FILE.safetensors [PROCESSES] [DEVICE] - load a model in several processes that share one copy of it.

FILE is on a gaiafs mount. Each process loads all tensors and looks at every page of them; the model stays in the device's memory once,
and the storage is read once. On a simulated device only: the CPU does the looking.
"""

import multiprocessing
import sys
import time

import gaiafs


def load(path, device, ready, go, said):
    ready.wait()  # all have started Python
    go.wait()
    start = time.monotonic()
    tensors = gaiafs.safetensors.load_file(path, device)
    loaded = time.monotonic()
    # A byte of each page: nothing is copied, so it is only now that this process uses the memory.
    total = sum(int(one.reshape(-1).view("u1")[::4096].sum()) for one in tensors.values() if one.size)
    said.put((loaded - start, time.monotonic() - loaded, len(tensors), total))
    ready.wait()  # until all have loaded it, nobody gives it back


def main():
    path = sys.argv[1]
    processes = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    device = sys.argv[3] if len(sys.argv) > 3 else 0
    device = int(device) if isinstance(device, str) and device.isdigit() else device
    # A child of fork() could map files, too; what it has from its parent it could not use.
    spawn = multiprocessing.get_context("spawn")
    ready, go, said = spawn.Barrier(processes + 1), spawn.Event(), spawn.Queue()
    children = [spawn.Process(target=load, args=(path, device, ready, go, said)) for _ in range(processes)]
    for child in children:
        child.start()
    ready.wait()
    go.set()
    results = [said.get(timeout=600) for _ in children]
    used = gaiafs.devices(path)[0].used
    ready.wait()
    for child in children:
        child.join()
    for loading, looking, n, _ in sorted(results):
        print(f"{n} tensors in {loading * 1e3:.1f} ms, and a look at each page of them: {looking * 1e3:.1f} ms")
    assert len({total for *_, total in results}) == 1
    print(f"{processes} processes, {used >> 20} MiB of device memory")


if __name__ == "__main__":
    main()
