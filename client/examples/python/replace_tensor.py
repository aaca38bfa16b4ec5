#!/usr/bin/env python3
"""replace_tensor.py FILE [MIB] [TIMES] - replace an array while seven processes use it: each sees the old one or the new one.

FILE, on a gaiafs mount, is made. The pattern is that of gaiafs.Replaceable: a new array is written beside the one that is in use, then a
number says that it is the newest. On a simulated device only: the readers here are CPUs.
"""

import multiprocessing
import sys

import numpy as np

import gaiafs

READERS = 7


def read(path, n, last, ready, said):
    seen, mixtures = set(), 0
    with gaiafs.Replaceable(path, "uint32", shape=n) as r:
        ready.wait()
        while last not in seen:
            with r.read() as a:
                # All items of an array are its number.
                first = int(a[0])
                mixtures += not bool((a == first).all())
            seen.add(first)
    said.put((len(seen), mixtures))


def main():
    path = sys.argv[1]
    n = int(float(sys.argv[2] if len(sys.argv) > 2 else 64) * (1 << 20)) // 4
    times = int(sys.argv[3]) if len(sys.argv) > 3 else 10
    spawn = multiprocessing.get_context("spawn")
    ready, said = spawn.Barrier(READERS + 1), spawn.Queue()
    with gaiafs.Replaceable(path, "uint32", "w+", n) as r:
        readers = [spawn.Process(target=read, args=(path, n, times, ready, said)) for _ in range(READERS)]
        for one in readers:
            one.start()
        ready.wait()
        for number in range(1, times + 1):
            if number % 2:
                with r.replace() as a:  # on the device
                    a[:] = number
            else:
                r.put(np.full(n, number, "uint32"))  # from host memory
    results = [said.get(timeout=600) for _ in readers]
    for one in readers:
        one.join()
    print(f"{READERS} readers saw {sorted(n for n, _ in results)} of {times + 1} arrays, and {sum(m for _, m in results)} mixtures")
    return 1 if any(m for _, m in results) else 0


if __name__ == "__main__":
    sys.exit(main())
