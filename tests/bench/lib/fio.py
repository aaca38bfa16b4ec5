"""One kind of I/O by fio(1), on the same file of several systems, one after another."""

import json
import os
import subprocess
import tempfile

HOT, HOME, RELEASED = "hot", "home", "released"
COLD_IN_MOUNT, COLD = "cold in the mount", "cold everywhere"


def drop_caches(what):
    """The machine's page cache (1), or its names and inodes (2)."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("%d\n" % what)


def may_drop_caches():
    return os.access("/proc/sys/vm/drop_caches", os.W_OK) and os.geteuid() == 0


class Fio:
    """
    @rw, @block, @engine: fio's; @total: bytes by all processes together; @file: whose pages are
    in @state before. @again: the same pages may come more than once. @sync: fdatasync after so
    many writes.
    """

    def __init__(self, file, file_size, rw, block, engine, state, total, processes=1, again=False,
                 sync=0):
        self.file, self.state, self.processes = file, state, processes
        self.direction = "write" if "write" in rw else "read"
        self.sync = sync
        options = {
            "rw": rw, "bs": block, "ioengine": engine,
            "size": file_size // processes, "offset_increment": file_size // processes,
            "io_size": total // processes, "numjobs": processes,
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

    def prepare(self, systems):
        for system in systems:
            make = {HOT: system.make_hot, HOME: system.make_home, RELEASED: system.make_released,
                    COLD_IN_MOUNT: system.make_cold_in_mount, COLD: system.forget_in_mount}
            make[self.state](self.file)
        if self.state == COLD:
            drop_caches(1)

    def job_file(self, systems, seed):
        lines = ["[global]", "randseed=%d" % (seed + 1)]
        lines += ["%s=%s" % item for item in self.options.items()]
        for system in systems:
            lines += ["[%s]" % system.name, "stonewall", "filename=" + system.path(self.file)]
        return "\n".join(lines) + "\n"

    def job_ns(self, job):
        """While fio waited for the kernel; its own work between is not counted."""
        done = job[self.direction]
        ns = done["lat_ns"]["mean"] * done["lat_ns"]["N"]
        if self.sync:
            ns += job["sync"]["lat_ns"]["mean"] * job["sync"]["lat_ns"]["N"]
        return ns

    def rate(self, jobs):
        """Bytes a second by all processes together: no faster than the slowest, nor than the
        cores that they share."""
        ns = max(self.job_ns(job) for job in jobs)
        if len(jobs) > 1:
            cpu_ms = sum((job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] for job in jobs)
            ns = max(ns, cpu_ms * 1e6 / os.cpu_count())
        return sum(job[self.direction]["io_bytes"] for job in jobs) * 1e9 / ns

    def rates(self, systems, seed):
        """{name: bytes a second} of each system."""
        self.prepare(systems)
        with tempfile.NamedTemporaryFile("w", suffix=".fio") as file:
            file.write(self.job_file(systems, seed))
            file.flush()
            done = subprocess.run(["fio", "--output-format=json", file.name], text=True,
                                  capture_output=True, stdin=subprocess.DEVNULL, timeout=300)
        if done.returncode:
            raise RuntimeError("fio: %s" % (done.stderr or done.stdout).strip()[-500:])
        jobs = {}
        for job in json.loads(done.stdout[done.stdout.index("{"):])["jobs"]:
            jobs.setdefault(job["jobname"], []).append(job)
        return {name: self.rate(each) for name, each in jobs.items()}
