"""Arrays in files of a gaiafs mount, in the memory of a device, shared with every program that uses the files.

    import gaiafs

    with gaiafs.memmap("mnt/weights", "float16", "r+", shape=(4096, 4096)) as m:
        with m.acquire(slice(0, 1024), write=True) as a:    # sees what anybody wrote before
            a *= 2
                                                            # released: everybody sees it

gaiafs.safetensors loads models, gaiafs.Replaceable is an array that is replaced while others use it.

On a simulated device `a` is a numpy array; on a GPU it has `__cuda_array_interface__` and DLPack. **Nothing of this has run on
a GPU.** What may be relied on says gaiaclient(3), or gaia/client.h. All calls may be made by several threads, and give up the GIL
while they wait. Errors are OSError, with errno, the file's name, and a sentence of the library that says what to do. A child of
fork() has none of its parent's mappings: there they, and arrays in them, raise OSError (ENOTCONN); it may map files itself.
"""

from pathlib import Path

from . import safetensors
from ._devices import Device, devices, residency, status
from ._lib import lib as _library
from ._lib import string as _string
from ._mapping import Acquired, Mapping, memmap
from ._replaceable import Replaceable
from ._views import Array, DeviceArray, ReleasedError

__all__ = [
    "Acquired",
    "Array",
    "Device",
    "DeviceArray",
    "Mapping",
    "ReleasedError",
    "Replaceable",
    "devices",
    "library_version",
    "memmap",
    "residency",
    "safetensors",
    "status",
]

__version__ = (Path(__file__).parent / "VERSION").read_text().strip()


def library_version() -> str:
    """The version of libgaiaclient that is in use, as "0.1.0"."""
    return _string(_library.gaia_version())
