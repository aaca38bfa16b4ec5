"""One kind of I/O by fio(1), on the same file of several systems, one after another."""

import json
import os
import shlex
import shutil
import subprocess
import tempfile

from systems import Lacking, run, sync_file

HOT, HOME, RELEASED = "hot", "home", "released"
COLD_IN_MOUNT, COLD = "cold in the mount", "cold everywhere"


def drop_caches(what):
    """The machine's page cache (1), or its names and inodes (2)."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("%d\n" % what)


def may_drop_caches():
    return os.access("/proc/sys/vm/drop_caches", os.W_OK) and os.geteuid() == 0


def prepare(systems, file, state):
    for system in systems:
        make = {HOT: system.make_hot, HOME: system.make_home, RELEASED: system.make_released,
                COLD_IN_MOUNT: system.make_cold_in_mount, COLD: system.forget_in_mount}
        make[state](file)
    if state == COLD:
        drop_caches(1)


def read_before(system, file, state):
    """What is to be in memory when a work begins; some kernels give it up within seconds."""
    if state == HOT:
        return [system.path(file)]
    return [os.path.join(system.below, file)] if state in (COLD_IN_MOUNT, HOME) else []


class Fio:
    """
    @ready: a command, of the program ../ready.c; files are added, and it is run before each system's
    turn. @rw, @block, @engine: fio's; @total: bytes; @file: whose pages are in @state before. @again: the same pages may come more than
    once. @sync: fdatasync after so many writes. @loops: all of that so many times, each time opened
    (and mapped) anew.
    """

    def __init__(self, ready, file, file_size, rw, block, engine, state, total, again=False, sync=0,
                 loops=1):
        self.file, self.state = file, state
        self.direction = "write" if "write" in rw else "read"
        self.sync = sync
        self.ready = ready
        options = {
            "rw": rw, "bs": block, "ioengine": engine, "size": file_size, "io_size": total,
            "loops": loops,
            # fio's own dropping of caches and advice to the kernel: neither.
            "invalidate": 0, "fadvise_hint": 0, "fallocate": "none", "allow_file_create": 0,
        }
        if again:
            options["norandommap"] = 1
        if sync:
            options["fdatasync"] = sync
        elif self.direction == "write":
            options["end_fsync"] = 1  # not part of what is measured; the next system starts clean
        self.options = options

    def job_file(self, systems, seed):
        lines = ["[global]", "randseed=%d" % (seed + 1)]
        lines += ["%s=%s" % item for item in self.options.items()]
        for system in systems:
            ready = self.ready + read_before(system, self.file, self.state)
            lines += ["[%s]" % system.name, "stonewall", "filename=" + system.path(self.file),
                      "exec_prerun=" + shlex.join(ready)]
        return "\n".join(lines) + "\n"

    def rate(self, job):
        """Bytes a second while fio waited for the kernel; its own work between is not counted."""
        done = job[self.direction]
        ns = done["lat_ns"]["mean"] * done["lat_ns"]["N"]
        if self.sync:
            ns += job["sync"]["lat_ns"]["mean"] * job["sync"]["lat_ns"]["N"]
        return done["io_bytes"] * 1e9 / ns

    def rates(self, systems, seed):
        """{name: bytes a second} of each system."""
        prepare(systems, self.file, self.state)
        with tempfile.TemporaryDirectory() as place:  # also for what exec_prerun prints
            jobs = os.path.join(place, "jobs.fio")
            with open(jobs, "w") as file:
                file.write(self.job_file(systems, seed))
            done = subprocess.run(["fio", "--output-format=json", jobs], text=True, cwd=place,
                                  capture_output=True, stdin=subprocess.DEVNULL, timeout=300)
            if done.returncode:
                raise RuntimeError("fio: %s" % (done.stderr or done.stdout).strip()[-500:])
            jobs = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
            for job in jobs:
                self.check(job, place)
        return {job["jobname"]: self.rate(job) for job in jobs}

    def check(self, job, place):
        """To fio it is no failure when what it runs before a job fails, and it does not begin then."""
        if job[self.direction]["io_bytes"]:
            return
        with open(os.path.join(place, job["jobname"] + ".prerun.txt")) as file:
            raise RuntimeError("%s: %s" % (shlex.join(self.ready), file.read().strip()))


class Together:
    """As Fio, by several processes at the same time: ../together.c, which is @program."""

    def __init__(self, ready, program, processes, file, rw, block, engine, state, total):
        self.file, self.state, self.total = file, state, total
        self.write = "write" in rw
        self.ready = ready
        self.command = [program, "{file}", str(processes), "write" if self.write else "read",
                        "mapping" if engine == "mmap" else "call",
                        "random" if rw.startswith("rand") else "sequential",
                        str(int(block.rstrip("k")) << 10), str(total)]

    def rates(self, systems, _seed):
        """{name: bytes a second} of each system."""
        prepare(systems, self.file, self.state)
        rates = {}
        for system in systems:
            path = system.path(self.file)
            run(*self.ready, *read_before(system, self.file, self.state))
            ns = int(run(*[part.format(file=path) for part in self.command], timeout=300))
            rates[system.name] = self.total * 1e9 / ns
            if self.write:
                sync_file(path)  # the next system starts clean
        return rates


def best_direct(path, rw, block, depths, **more):
    """Bytes a second at which a file is read past the page cache, at the best of these depths."""
    if not shutil.which("fio"):
        raise Lacking("fio is not installed")
    best = 0
    for depth in depths:
        options = {"rw": rw, "bs": block, "iodepth": depth, "direct": 1, "allow_file_create": 0, "filename": path,
                   "ioengine": "psync" if depth == 1 else "libaio", **more}
        said = run("fio", "--output-format=json", "--name=peer",
                   *["--%s=%s" % item for item in options.items()], timeout=120)
        best = max(best, json.loads(said[said.index("{"):])["jobs"][0]["read"]["bw_bytes"])
    return best
