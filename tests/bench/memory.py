#!/usr/bin/env python3
"""
scripts/bench memory: what a file takes that was read or written once, and what a known name takes.

Everything is counted after it has settled: what is let go of within seconds does not count.
"""

import argparse
import contextlib
import ctypes
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
# pylint: disable=wrong-import-position
import report
from cpu import NAMES, NATIVE, WAYS, make_peers
from fio import drop_caches
from rounds import MET, MISSED, UNMEASURED, TimeLimit
from systems import MIB, Gaiafs, Missing, System, read_through, run, stop_on_signals

LIBC = ctypes.CDLL(None, use_errno=True)
SYS_CACHESTAT = 451
MS_NOSUID, MS_NODEV, MS_REMOUNT = 2, 4, 32

# Of the kernel's slabs: those that names and inodes are made of, by who has them.
SLABS = ["dentry", "fuse_inode", "ext4_inode_cache", "xfs_inode", "btrfs_inode",
         "shmem_inode_cache", "filp"]

READ, WRITTEN, MAPPED = "read once", "written once, synced", "read once, a device maps it"
KNOWN = "names"
# At most so much of a file's size, or so many bytes a name, in the daemon.
GOALS = {READ: 0.05, WRITTEN: 0.1}
GOAL_NAME = 512


class CacheRange(ctypes.Structure):
    _fields_ = [("off", ctypes.c_uint64), ("len", ctypes.c_uint64)]


class CacheStat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted",
                                                     "recently_evicted")]


def cached(path):
    """Bytes of a file in the kernel's page cache."""
    stat = CacheStat()
    with open(path, "rb") as file:
        if LIBC.syscall(SYS_CACHESTAT, file.fileno(), ctypes.byref(CacheRange(0, 0)),
                        ctypes.byref(stat), 0):
            raise OSError(ctypes.get_errno(), "cachestat %s" % path)
    return stat.cache * os.sysconf("SC_PAGE_SIZE")


def forget_names(root):
    """The kernel drops the unused names of this one mounted file system."""
    if LIBC.mount(None, os.fsencode(root), None, MS_REMOUNT | MS_NOSUID | MS_NODEV, b""):
        raise OSError(ctypes.get_errno(), "remount %s" % root)


def slabs():
    """{name: (objects, bytes)} of the whole machine."""
    out = {}
    with open("/proc/slabinfo") as file:
        for line in file:
            fields = line.split()
            if fields[0] in SLABS:
                out[fields[0]] = int(fields[1]), int(fields[1]) * int(fields[3])
    return out


def settled(daemon, still=4, seconds=30):
    """
    The daemon's bytes when they have not changed by more than 64 KiB for @still seconds: gaiafs keeps
    spare memory for half of that.
    """
    last, same = daemon.bytes(), 0
    for _ in range(seconds if daemon.pids else 0):
        time.sleep(1)
        now = daemon.bytes()
        same = same + 1 if abs(now - last) < 64 << 10 else 0
        if same == still:
            break
        last = now
    return last


class Daemon:
    """The memory of the processes that serve a mount; nothing for the plain directory."""

    def __init__(self, system):
        self.system = system
        self.pids = self.find(system)

    @staticmethod
    def find(system):
        if system.is_peer:
            return [system.child.pid]
        if not system.is_gaiafs:
            return []
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                with open("/proc/%s/cmdline" % pid, "rb") as file:
                    words = file.read().split(b"\0")
                if os.fsencode(system.root) in words and b"gaiafs" in words[0]:
                    found.append(int(pid))
        return found

    def bytes(self):
        """Private memory of the processes. (Devices' memory is shared: a simulated one's, too.)"""
        total = 0
        for pid in self.pids:
            with open("/proc/%d/smaps_rollup" % pid) as file:
                for line in file:
                    if line.startswith("Pss_Anon:"):
                        total += int(line.split()[1]) << 10
        return total

    def home(self):
        if not self.system.is_gaiafs:
            return 0
        status = json.loads(run(self.system.gaia, "status", self.system.root, "--json"))
        return status["home"]["used"]


class Bench:
    def __init__(self, args):
        self.args = args
        self.size = 256 * MIB if args.quick else 1024 * MIB
        self.names = 1000000 if args.full else 15000 if args.quick else 50000
        self.place = None
        self.stack = contextlib.ExitStack()
        self.missing = {}
        self.left_by_time = []
        self.files = []
        self.names_rows = []
        self.are_made = False  # the names

    def systems(self):
        """Those that have goals come first: the others may be left out."""
        for way in WAYS:
            yield Gaiafs(way, self.place, self.args.build,
                         ["--device", "sim:%dM" % (self.size // MIB * 2), "--cpu-cache", way])
        yield System(NATIVE, self.place)
        yield from make_peers(self.args.build, self.place, self.missing)

    # -- a file

    def write_through(self, path):
        with open(path, "wb", buffering=0) as file:
            block = os.urandom(MIB)
            for _ in range(self.size // MIB):
                file.write(block)
            os.fsync(file.fileno())

    def prepare(self, system, work):
        """Nothing of the file in memory, but what a device has of it."""
        name = work.split(",")[0].replace(" ", "-")
        if work != WRITTEN:
            system.make_file(name, self.size)
        if work == MAPPED:
            system.hold(name, os.path.join(self.args.build, "holder"))
            system.forget_in_kernel(name)
        with open(os.path.join(system.below, name), "ab") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return name

    def file(self, system, work):
        daemon = Daemon(system)
        before = settled(daemon, still=1)
        name = self.prepare(system, work)
        if work == WRITTEN:
            self.write_through(system.path(name))
        else:
            read_through(system.path(name))
        # Open: when others drop all unused inodes, this one stays.
        with open(system.path(name), "rb"):
            held = settled(daemon) - before
            mount = cached(system.path(name)) if system.root != system.below else 0
            row = {"work": work, "system": system.name, "mount": mount, "daemon": max(held, 0),
                   "home": daemon.home(), "below": cached(os.path.join(system.below, name))}
        row["total"] = row["mount"] + row["daemon"] + row["below"]
        self.files.append(row)
        self.drop(system, name)

    @staticmethod
    def drop(system, name):
        if system.is_gaiafs and name in system.holders:
            system.let_go(name)
        os.unlink(system.path(name))

    # -- names

    def metadata(self, path, what):
        return os.path.join(self.args.build, "metadata"), path, str(self.names), what

    def made_names(self):
        """
        A directory that the kernel knows nothing of, the same for all systems, one after another: to
        create the files beside those that were just deleted takes long, see spread().
        """
        path = os.path.join(self.place, "names")
        if not self.are_made:
            os.mkdir(path)
            run(*self.metadata(path, "create"), timeout=600)
            self.are_made = True
        os.sync()
        drop_caches(2)
        return path

    def known(self, system, _work):
        """Names that the kernel knows, and so the daemon; and after the kernel has dropped them."""
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if system.is_peer and descriptors <= self.names:
            self.missing["%s, %s" % (NAMES[system.name], KNOWN)] = \
                "it keeps a descriptor for each, and may have %d" % descriptors
            return
        daemon = Daemon(system)
        below = os.path.join(system.below, "names")
        os.rename(self.made_names(), below)
        before, slabs_before = settled(daemon, still=1), slabs()
        for _ in range(5):
            run(*self.metadata(system.path("names"), "stat"), timeout=600)
            known, slabs_known = settled(daemon), slabs()
            if system.root == system.below or self.all_known(slabs_before, slabs_known):
                break
        else:
            self.missing["%s, %s" % (NAMES[system.name], KNOWN)] = \
                "others drop this machine's caches all the time"
            return
        row = {"system": system.name, "daemon": (known - before) / self.names,
               "kernel": {name: max(slabs_known[name][1] - slabs_before[name][1], 0) / self.names
                          for name in slabs_known}}
        if system.root != system.below:
            forget_names(system.root)
            row["forgotten"] = (settled(daemon) - before) / self.names
        self.names_rows.append(row)
        os.rename(below, os.path.join(self.place, "names"))

    def all_known(self, before, after):
        name = "fuse_inode"
        return after[name][0] - before.get(name, (0,))[0] >= 0.99 * self.names

    # -- all of it

    def measure(self):
        # libfuse's examples keep a descriptor for each name that is known.
        with open("/proc/sys/fs/nr_open") as file, contextlib.suppress(OSError, ValueError):
            most = min(2 * self.names, int(file.read()))
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        limit = TimeLimit(self.args.seconds)
        for system in self.systems():
            works = [(READ, self.file), (WRITTEN, self.file), (KNOWN, self.known)]
            if system.is_gaiafs:
                works.append((MAPPED, self.file))
            for work, measure in works:
                if self.args.only not in work:
                    continue
                if limit.allows(work):
                    limit.time(work, self.alone, system, work, measure)
                else:
                    self.left_by_time.append("%s, %s" % (NAMES[system.name], work))
        self.say("")

    def alone(self, system, work, measure):
        """One at a time, and mounted anew, so that what changes is its own."""
        self.say("%s: %s" % (NAMES[system.name], work))
        with contextlib.ExitStack() as stack:
            stack.callback(system.stop)
            try:
                system.start()
            except Missing as why:
                self.missing[system.name] = str(why)
                return
            try:
                measure(system, work)
            except RuntimeError as why:
                if not system.is_peer:
                    raise
                self.missing["%s, %s" % (NAMES[system.name], work)] = str(why).rsplit(": ", 1)[-1]

    @staticmethod
    def say(text):
        if sys.stderr.isatty():
            print("\r\033[K" + text, end="", file=sys.stderr, flush=True)

    # -- what is said of it

    def file_lines(self):
        """[[cell, ...], ...] with the head."""
        rows = [["", "kernel, of the mount", "daemon", "of it home", "page cache below", "all"]]
        for work in (READ, WRITTEN, MAPPED):
            for row in self.files:
                if row["work"] == work:
                    rows.append(["%s: %s" % (work, NAMES[row["system"]])] +
                                ["%.2f" % (row[key] / self.size)
                                 for key in ("mount", "daemon", "home", "below", "total")])
        return rows

    def name_lines(self):
        rows = [["", "daemon", "after the kernel dropped it", "kernel's slabs"]]
        for row in self.names_rows:
            forgotten = "%.0f" % row["forgotten"] if "forgotten" in row else ""
            kernel = ", ".join("%s %.0f" % item for item in sorted(row["kernel"].items())
                               if item[1] >= 10)
            rows.append([NAMES[row["system"]],
                         "%.0f" % row["daemon"] if row["system"] != NATIVE else "", forgotten,
                         kernel])
        return rows

    def say_goals(self):
        """As report.say_goals(). Bytes are counted once, so there is no noise that is known."""
        held = {(row["work"], row["system"]): (row["daemon"] / self.size, "%.3f of its size")
                for row in self.files}
        held.update({(KNOWN, row["system"]): (row["daemon"], "%.0f bytes each")
                     for row in self.names_rows})
        said = []
        for work, most in [*GOALS.items(), (KNOWN, GOAL_NAME)]:
            for way in WAYS:
                if (work, way) not in held:
                    said.append((work, way, UNMEASURED))
                    continue
                value, words = held[work, way]
                said.append((work, "%s (%s in the daemon; goal: ≤ %g)" % (way, words % value, most),
                             MET if value <= most else MISSED))
        return said

    def report(self, machine):
        out = self.args.out
        for rows in self.files, self.names_rows:
            rows.sort(key=lambda row: list(NAMES).index(row["system"]))
        facts = {"bench": "memory", "quick": self.args.quick, "only": self.args.only,
                 "versions": report.versions(self.args.build), "machine": machine,
                 "file_mib": self.size // MIB, "names": self.names, "missing": self.missing,
                 "left_out_by_time": self.left_by_time,
                 "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                 "files": self.files, "bytes_a_name": self.names_rows}
        with open(os.path.join(out, "memory.json"), "w") as file:
            json.dump(facts, file, indent=1)
            file.write("\n")
        parts = []
        if self.files:
            parts.append(("A file of %d MiB: what is in memory, in times of its size."
                          % facts["file_mib"], self.file_lines()))
        if self.names_rows:
            parts.append(("%s names: bytes each." % format(self.names, ","), self.name_lines()))
        print(report.machine_text(facts))
        print(report.versions_text(facts))
        with open(os.path.join(out, "memory.md"), "w") as file:
            for title, rows in parts:
                wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
                print(title)
                for row in rows:
                    print("  " + "  ".join(cell.ljust(n) for cell, n in zip(row, wide)).rstrip())
                lines = ["| %s |" % " | ".join(row) for row in rows]
                lines.insert(1, "| --- |" + " ---: |" * (len(wide) - 1))
                file.write("\n".join([title, ""] + lines) + "\n\n")
        for name, why in self.missing.items():
            print("missing: %s: %s" % (name, why))
        if self.left_by_time:
            print("no time left for: " + "; ".join(self.left_by_time))
        print("written: %s, %s" % (os.path.join(out, "memory.json"),
                                   os.path.join(out, "memory.md")))


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench memory", add_help=False)
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true")
    sizes.add_argument("--full", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int)  # bytes are counted once
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--out", default=".", type=report.results_dir)
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--build", required=True)
    return parser.parse_args()


def main():
    args = arguments()
    stop_on_signals()
    if os.geteuid() != 0:
        sys.exit("bench memory: only root may read the kernel's counts; run it as root.")
    bench = Bench(args)
    try:
        with bench.stack:
            bench.place = tempfile.mkdtemp(prefix="gaiafs-bench.", dir=os.path.realpath(args.dir))
            bench.stack.callback(shutil.rmtree, bench.place, ignore_errors=True)
            machine = report.machine_of(bench.place)
            bench.measure()
        bench.report(machine)
    except KeyboardInterrupt:
        print("\nbench: interrupted; everything is unmounted and removed.", file=sys.stderr)
        return 130
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print("\nbench: %s" % error, file=sys.stderr)
        return 1
    said = bench.say_goals()
    print("\n".join(report.last_lines(said)))
    return report.status(said, args.check)


if __name__ == "__main__":
    sys.exit(main())
