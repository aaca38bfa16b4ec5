"""models_numpy.py MODEL SLOTS SEED ITEMS [torch] - as models_load.c, in Python: by gaiafs.safetensors, gaiafs.Replaceable and numpy.

models_numpy.py MODEL SLOTS - ITEMS MODEL_ITEMS - make the two files.

torch: tensors are PyTorch's; then a child leaves its parent's alone, as nothing says of a tensor that it is not there.
"""

import os
import random
import signal
import sys
import warnings

import numpy as np

import gaiafs
from gaiafs import safetensors

framework = "np"
if sys.argv[5:] == ["torch"]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch

    torch.set_num_threads(1)
    framework = "pt"
WORD = np.uint64(0x9E3779B97F4A7C15)
model, slots, seed, items = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])


def words(first, end):
    return np.arange(first, end, dtype="u8") * WORD


def make():
    safetensors.save_file({"w": words(0, int(sys.argv[5]))}, model)
    gaiafs.Replaceable(slots, "u8", "w+", items).close()


def die_now():
    os.kill(os.getpid(), signal.SIGKILL)


def check(array, first):
    found = words(first, first + len(array))
    if framework == "pt":
        assert torch.equal(array, torch.from_numpy(found)), f"words from {first} on"
    else:
        assert np.array_equal(array, found), f"words from {first} on: {np.flatnonzero(array != found)[:4]} differ"


def load_file():
    return safetensors.load_file(model, framework=framework)


def is_gone(tensors):
    if framework == "pt":
        return True  # PyTorch cannot say so, and to look is SIGSEGV
    try:
        tensors["w"][0]
    except OSError:
        return True
    return False


def forked(tensors):
    """In a child: its parent's tensors are not there, and its own are."""
    status = 1
    try:
        if is_gone(tensors):
            check(load_file()["w"], 0)
            if random.random() < 0.5:
                die_now()
            status = 0
    finally:
        os._exit(status)


def load(kept):
    if random.random() < 0.5:
        tensors = load_file()
        check(tensors["w"], 0)
    else:
        with safetensors.safe_open(model, framework) as f:
            n = f.get_slice("w").get_shape()[0]
            first = random.randrange(n)
            end = random.randrange(first, n) + 1
            part = f.get_slice("w")[first:end]
            check(part, first)
            tensors = {"w": f.get_tensor("w"), "part": part}
    if random.random() < 0.1:
        child = os.fork()
        if child == 0:
            forked(tensors)
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL), status
    if random.random() < 0.03:
        die_now()
    # Whatever is left keeps the memory.
    kept.append((np.asarray(tensors["w"]) if framework == "np" else tensors["w"])[random.randrange(1000) :])
    if len(kept) > 3:
        kept.pop(random.randrange(len(kept)))


def read():
    with gaiafs.Replaceable(slots, "u8", shape=items) as r, r.read() as a:
        assert (a == a[0]).all(), "a mixture"
        assert a[0] <= r.epoch <= a[0] + 1
        if random.random() < 0.03:
            die_now()


def replace():
    with gaiafs.Replaceable(slots, "u8", "r+", items) as r:
        with r._replacing() as (epoch, fd):
            array = np.full(items, epoch, "u8")
            if random.random() < 0.5:
                with r._mapping()._acquire(r._slot(epoch), overwrite=True) as a:
                    a[: items // 2] = epoch
                    if random.random() < 0.1:
                        die_now()
                    a[:] = array
            else:
                os.pwrite(fd, array[: items // 2].tobytes(), r._at(epoch))
                if random.random() < 0.1:
                    die_now()
                os.pwrite(fd, array.tobytes(), r._at(epoch))
            if random.random() < 0.05:
                die_now()


def main():
    random.seed(int(seed))
    kept = []
    while True:
        random.choices((replace, read, lambda: load(kept)), (1, 3, 4))[0]()


if __name__ == "__main__":
    make() if seed == "-" else main()
