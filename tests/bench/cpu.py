#!/usr/bin/env python3
"""
scripts/bench cpu: what legacy programs pay for working under a gaiafs mount.

Every figure is the ratio of two rates that were taken in one round, one right after the other.
"""

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
# pylint: disable=wrong-import-position
import plot
import report
from fio import (COLD, COLD_IN_MOUNT, HOME, HOT, RELEASED, Fio, Together, drop_caches,
                 may_drop_caches)
from rounds import Goal, Progress, Row, run_rounds
from systems import MIB, Gaiafs, Missing, Peer, System, run, run_undisturbed, stop_on_signals

# The first is the default, of which the goals are.
WAYS = ["auto", "writeback", "writethrough"]
DEVICE_COUNTS = [0, 1, 8, 32, 160]
FILES = 10000

NATIVE, LL, HP = "native", "ll", "hp"
NAMES = {NATIVE: "native", LL: "libfuse ll", HP: "libfuse hp"}
NAMES.update({way: way for way in WAYS})
# What devices map: for the first time (with auto such a file is still in passthrough), and again, the last one
# to write it.
MAPPED, AGAIN, RELEASED_FILE = "mapped", "mapped-again", "released"

PATTERNS = [("sequential 256 KiB", "", "256k"), ("random 4 KiB", "rand", "4k")]
CALLS = [("read(2)", "write(2)", "psync"), ("mmap", "mmap", "mmap")]


def peer_commands(build):
    """Each at the settings that were fastest for it: cloned descriptors changed nothing for the
    first, and not to splice made the other slower."""
    return {
        LL: [os.path.join(build, "peers", "passthrough_ll"), "-f", "-o",
             "source={below},cache=always,timeout=86400,writeback,fsname=passthrough_ll", "{root}"],
        HP: [os.path.join(build, "peers", "passthrough_hp"), "--foreground", "{below}", "{root}"],
    }


class Bench:
    def __init__(self, args):
        self.args = args
        self.machine = None
        self.undisturbed = False
        self.size = 64 * MIB if args.quick else 256 * MIB
        self.systems = []  # the columns of the table
        self.counted = []  # gaiafs with different numbers of devices
        self.rows = []
        self.works = []
        self.missing = {}
        self.stack = contextlib.ExitStack()
        self.place = None

    # -- the systems

    def start(self, system):
        """Whether it is there; if not it is named as missing."""
        self.stack.callback(system.stop)
        for name in "data", MAPPED, AGAIN, RELEASED_FILE, "target":
            if system not in self.counted or name == "data":
                system.make_file(name, self.size)
        try:
            system.start()
        except Missing as why:
            self.missing[system.name] = str(why)
            return False
        return True

    def start_all(self):
        args = self.args
        self.stack.callback(lambda: shutil.rmtree(self.place, ignore_errors=True))
        native = System(NATIVE, self.place)
        self.start(native)
        self.systems = [native]
        for name, command in peer_commands(args.build).items():
            if not os.path.exists(command[0]):
                self.missing[name] = "could not be built, see %s.log" % command[0]
                continue
            peer = Peer(name, self.place, command)
            if self.start(peer):
                self.systems.append(peer)
        device = "sim:%dM" % (self.size // MIB * 4)
        for way in WAYS:
            system = Gaiafs(way, self.place, args.build,
                            ["--device", device, "--cpu-cache", way])
            if self.start(system):
                self.systems.append(system)
                self.hold_files(system)
        for count in DEVICE_COUNTS:
            device = "sim:16M,count=%d" % count if count else "none"
            system = Gaiafs(str(count), self.place, args.build, ["--device", device])
            self.counted.append(system)
            self.start(system)
        for system in self.systems:
            os.mkdir(system.path("names"))

    def hold_files(self, system):
        if system.shown_as() != system.name:
            self.missing[system.name] = "it is %s here, see its log" % system.shown_as()
        holder = os.path.join(self.args.build, "holder")
        for name in MAPPED, AGAIN, RELEASED_FILE:
            system.hold(name, holder)
            if name != MAPPED:
                system.let_go(name)
                system.hold(name, holder)

    def begin_round(self, _rnd):
        """
        How fast cached pages are read depends on the folios that they lie in: one at a time, or
        many. Those of a file that was written, or read at random, are others than after reading
        ahead, and stay for as long as they are cached: so all are read anew.
        """
        if may_drop_caches():
            os.sync()
            drop_caches(1)

    def turn(self, systems, rnd):
        """Another one goes first in each round."""
        at = rnd % len(systems)
        return systems[at:] + systems[:at]

    # -- the works

    def add(self, section, title, fio, goals=()):
        row = Row(section, title, "bytes", NATIVE, goals, [WAYS[0]])
        if self.args.only and self.args.only not in section + ", " + title:
            return
        self.rows.append(row)

        self.works.append((section + ", " + title, lambda rnd: row.add(
            fio.rates(self.turn(self.systems, rnd), rnd))))

    def reads(self):
        section = "read a file that no device maps"
        states = [(HOT, 0.98), (COLD_IN_MOUNT, 0.95)]
        if may_drop_caches():
            states.append((COLD, 0.98))
        else:
            self.missing["cold everywhere"] = "only root may drop the machine's page cache"
        for state, least in states:
            for pattern, prefix, block in PATTERNS:
                for call, _, engine in CALLS:
                    for processes in (1, 4):
                        if self.args.quick and (engine == "mmap" and (state == COLD or
                                                                      processes > 1) or
                                                state != HOT and processes > 1):
                            continue
                        self.add(section, self.title(pattern, call, state, processes),
                                 self.read("data", prefix, block, engine, state, processes),
                                 [Goal(least, NATIVE)])

    @staticmethod
    def title(pattern, call, state, processes):
        title = "%s, %s, %s" % (pattern, call, state)
        return title + (", %d processes" % processes if processes > 1 else "")

    def read(self, file, prefix, block, engine, state, processes=1):
        rw = prefix + "read"
        total = self.size
        if state == HOT and engine == "psync":
            total *= 2 if prefix else 8
        elif prefix and state in (COLD_IN_MOUNT, HOME, RELEASED):
            total //= 4
        elif prefix and state == COLD:
            total //= 16
        if processes > 1:
            if state == HOT:
                total *= 8  # or they were at it for milliseconds
            return self.together(processes, file, rw, block, engine, state, total)
        return Fio(file, self.size, rw, block, engine, state, total,
                   again=state == HOT and bool(prefix))

    def together(self, processes, *work):
        return Together(os.path.join(self.args.build, "together"), processes, *work)

    def writes(self):
        section = "write a file that no device maps"
        goals = [Goal(0.90, NATIVE), Goal(1.00, "best peer")]
        for pattern, prefix, block in PATTERNS:
            rw = prefix + "write"
            for _, call, engine in CALLS:
                for processes in (1, 4):
                    if self.args.quick and processes > 1 and engine == "mmap":
                        continue
                    title = "%s, %s" % (pattern, call)
                    title += ", %d processes" % processes if processes > 1 else ""
                    total = self.size // (2 if prefix else 1)
                    work = Fio("target", self.size, rw, block, engine, HOT, total)
                    if processes > 1:
                        work = self.together(processes, "target", rw, block, engine, HOT,
                                             total * processes)
                    self.add(section, title, work, goals)
            every = 1 if prefix else 32
            total = self.size // (256 if prefix else 2)
            self.add(section, "%s, fdatasync after %s" % (pattern, "each" if prefix else "8 MiB"),
                     Fio("target", self.size, rw, block, "psync", HOT, total, sync=every), goals)

    def shared_with_devices(self):
        kinds = [(MAPPED, "a file that a device maps for the first time"),
                 (AGAIN, "a file that a device maps, and has before")]
        for name, what in kinds:
            for pattern, prefix, block in PATTERNS:
                for call, _, engine in CALLS:
                    self.add("read " + what, "%s, %s, hot" % (pattern, call),
                             self.read(name, prefix, block, engine, HOT), [Goal(0.95, NATIVE)])
        for pattern, prefix, block in PATTERNS:
            self.add("read " + kinds[1][1], "%s, read(2), from home" % pattern,
                     self.read(AGAIN, prefix, block, "psync", HOME), [Goal(1.50, LL)])
        section = "read a file that a device wrote: released, not fetched yet"
        for pattern, prefix, block in PATTERNS:
            self.add(section, "%s, read(2)" % pattern,
                     self.read(RELEASED_FILE, prefix, block, "psync", RELEASED))
        for name, what in kinds:
            for pattern, prefix, block in PATTERNS:
                self.add("write " + what, "%s, write(2)" % pattern,
                         Fio(name, self.size, prefix + "write", block, "psync", HOT,
                             self.size // (2 if prefix else 1)))

    def names(self):
        section = "%s empty files" % format(FILES, ",")
        goals = [Goal(1.20, "best peer")]
        works = [("create", "create", goals, 0), ("stat", "stat", goals, 0),
                 ("open and close", "open", (), 0)]
        if may_drop_caches():
            works.append(("stat, names not in memory", "stat", goals, 2))
        works += [("readdir", "readdir", goals, 0), ("unlink", "unlink", goals, 0)]
        rows = [Row(section, title, "files", NATIVE, goals, [WAYS[0]])
                for title, _, goals, _ in works]
        if self.args.only and self.args.only not in section:
            return
        self.rows += rows

        def work(rnd):
            for row, (_, what, _, drop) in zip(rows, works):
                if drop:
                    drop_caches(drop)
                row.add({system.name: self.name_rate(system, what)
                         for system in self.turn(self.systems, rnd)})
        self.works.append((section, work))

    def name_rate(self, system, what):
        program = os.path.join(self.args.build, "metadata")
        return FILES * 1e9 / int(run(program, system.path("names"), str(FILES), what))

    def device_counts(self):
        base, most = str(DEVICE_COUNTS[0]), str(DEVICE_COUNTS[-1])
        section = "devices configured, simulated"
        goals = [Goal(0.97, base, noise=True)]
        works = [("read random 4 KiB, hot", self.read("data", "rand", "4k", "psync", HOT)),
                 ("read random 4 KiB, cold in the mount",
                  self.read("data", "rand", "4k", "psync", COLD_IN_MOUNT)),
                 ("read sequential 256 KiB, cold in the mount",
                  self.read("data", "", "256k", "psync", COLD_IN_MOUNT)),
                 ("write random 4 KiB, fdatasync after 64",
                  Fio("data", self.size, "randwrite", "4k", "psync", HOT, self.size // 32,
                      sync=64))]
        for title, fio in works:
            if self.args.only and self.args.only not in section + ", " + title:
                continue
            row = Row(section, title, "bytes", base, goals, [most])
            self.rows.append(row)
            self.works.append((section + ", " + title, lambda rnd, fio=fio, row=row: row.add(
                fio.rates(self.turn(self.counted, rnd), rnd))))

    # -- all of it

    def measure(self):
        progress = Progress()
        progress.say("files and mounts")
        self.start_all()
        self.reads()
        self.writes()
        self.shared_with_devices()
        self.names()
        self.device_counts()
        if not self.works:
            sys.exit("bench: --only %s: there is no such work" % self.args.only)
        self.works.insert(0, ("begin", self.begin_round))
        rounds = run_rounds(self.works, self.args.rounds, self.args.seconds, progress)
        progress.end()
        return rounds

    def report(self, rounds):
        args = self.args
        peers = [system.name for system in self.systems if system.is_peer]
        columns = [system.name for system in self.systems]
        facts = {"bench": "cpu", "quick": args.quick, "rounds": rounds,
                 "file_mib": self.size // MIB, "machine": self.machine, "missing": self.missing,
                 "goals_are_of": WAYS[0]}
        ours = [row for row in self.rows if row.base == NATIVE]
        counts = [row for row in self.rows if row.base != NATIVE]
        print("%(cpu)s, %(cores)d cores, %(memory_gib)s GiB, Linux %(kernel)s, %(file_system)s; "
              "load before: %(load_before).1f" % self.machine)
        print("%d rounds, files of %d MiB. First the native rate, then how many times that rate "
              "(median ± half the distance of the quartiles)." % (rounds, self.size // MIB))
        if ours:
            print("\n".join(report.table(ours, columns, NAMES, peers, WAYS[0])))
        if counts:
            names = {str(n): "%d devices" % n for n in DEVICE_COUNTS}
            print("\n".join(report.table(counts, [str(n) for n in DEVICE_COUNTS], names, [], None)))
        for name, why in self.missing.items():
            print("missing: %s: %s" % (NAMES.get(name, name), why))
        report.write_json(os.path.join(args.out, "cpu.json"), facts, self.rows, peers)
        report.write_markdown(os.path.join(args.out, "cpu.md"), ours, columns, NAMES, peers)
        drawn = plot.draw(os.path.join(args.out, "cpu.png"), ours, counts, columns, NAMES, peers,
                          facts)
        print("written: %s" % ", ".join([os.path.join(args.out, name)
                                         for name in ("cpu.json", "cpu.md")] + drawn))
        return report.missed(self.rows, peers)


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench cpu", add_help=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", default=".", type=report.results_dir)
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--build", required=True)
    parser.add_argument("--seconds", type=float, default=0)
    return parser.parse_args()


def main():
    args = arguments()
    stop_on_signals()
    bench = Bench(args)
    bench.undisturbed = run_undisturbed()
    try:
        with bench.stack:
            bench.place = tempfile.mkdtemp(prefix="gaiafs-bench.", dir=os.path.realpath(args.dir))
            bench.machine = report.machine(bench.place)
            rounds = bench.measure()
        missed = bench.report(rounds)
    except KeyboardInterrupt:
        print("\nbench: interrupted; everything is unmounted and removed.", file=sys.stderr)
        return 130
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print("\nbench: %s" % error, file=sys.stderr)
        return 1
    if missed:
        print("goals missed: " + "; ".join(missed))
    else:
        print("goals: all met")
    return 1 if args.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
