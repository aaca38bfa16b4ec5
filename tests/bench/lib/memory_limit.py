"""A limit on the memory of a program and of the page cache that it fills: a control group of its own."""

import contextlib
import os

from systems import Missing


def mounts():
    """(where, type, options) of each control group file system."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields, rest = line.split(" - ", 1)
            kind, _, options = rest.split()[:3]
            if kind in ("cgroup", "cgroup2"):
                yield fields.split()[4], kind, options.split(",")


def own_groups():
    """{controllers: path} as in /proc/self/cgroup; those of version 2 are ""."""
    with open("/proc/self/cgroup") as file:
        return {line.split(":")[1]: line.rstrip("\n").split(":", 2)[2] for line in file}


def parents():
    """Directories in which a group might be made, with the name of the file that has its limit: ours, then those above."""
    groups = own_groups()
    for where, kind, options in mounts():
        if kind == "cgroup2":
            path, name = groups.get("", "/"), "memory.max"
        elif "memory" in options:
            path = next((groups[names] for names in groups if "memory" in names.split(",")), "/")
            name = "memory.limit_in_bytes"
        else:
            continue
        path = path.strip("/")
        while True:
            yield os.path.join(where, path), name
            if not path:
                break
            path = os.path.dirname(path)


class MemoryLimit:
    """Use: with MemoryLimit(bytes) as limit: subprocess.run(..., preexec_fn=limit.join)."""

    made = 0

    def __init__(self, limit):
        """Missing says why there can be none."""
        self.path = None
        why = "there is no control group file system with a memory controller"
        for parent, name in parents():
            MemoryLimit.made += 1
            path = os.path.join(parent, "gaiafs-bench.%d.%d" % (os.getpid(), MemoryLimit.made))
            try:
                os.mkdir(path)
            except OSError as error:
                why = "%s: %s" % (parent, error.strerror)
                continue
            try:
                with open(os.path.join(path, name), "w") as file:
                    file.write(str(limit))
            except OSError as error:
                why = "%s: %s: %s" % (parent, name, error.strerror)
                os.rmdir(path)
                continue
            with contextlib.suppress(OSError):
                with open(os.path.join(path, "memory.swap.max"), "w") as file:
                    file.write("0")
            self.path = path
            return
        raise Missing(why)

    def join(self):
        """In the child, before it runs its program."""
        with open(os.path.join(self.path, "cgroup.procs"), "w") as file:
            file.write(str(os.getpid()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Of version 1: pages that the group has filled stay its own until then.
        with contextlib.suppress(OSError):
            with open(os.path.join(self.path, "memory.force_empty"), "w") as file:
                file.write("0")
        with contextlib.suppress(OSError):
            os.rmdir(self.path)
