#!/usr/bin/env python3
"""
scripts/bench cpu: what legacy programs pay for working under a gaiafs mount.

Every figure is the ratio of two rates that were taken in one round, one right after the other.

With --watched, --tiers or --before: what one change costs. The same works on three mounts, of which two are the same and the third differs
by that: its metrics are scraped each second while `gaia top` shows it; it has parked and equal pages; or it is this version, and they are an
earlier one. How far the two are apart is how far it may be.
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
from rounds import BEST_PEER, Goal, Judged, Progress, Row, TimeLimit, run_rounds, turn
from systems import GIB, MIB, Gaiafs, Missing, Peer, System, run, run_undisturbed, stop_on_signals
from watch import Watched

# The first is the default; the goals are for it.
WAYS = ["auto", "writeback", "writethrough"]
DEVICE_COUNTS = [0, 1, 8, 32, 160]
# Times in a round: of many ratios of few samples, some are off by more than their spread by chance.
DEVICE_COUNT_SAMPLES = 3
FILES = 10000
NAMES_MIB = 96  # what the kernel and a daemon may need for them
EMPTY_FILES, BYTE_FILES = "empty", "byte"  # directories; new ones in each round

NATIVE, LL, HP = "native", "ll", "hp"
PEERS = [LL, HP]
NAMES = {NATIVE: "native", LL: "libfuse ll", HP: "libfuse hp"}
NAMES.update({way: way for way in WAYS})
CHANGED, SECOND = "changed", "second"
NAMES[SECOND] = WAYS[0] + ", again"
NAMES.update({str(count): "%d device%s" % (count, "s" * (count != 1)) for count in DEVICE_COUNTS})
# What devices map: for the first time (with auto such a file is still in passthrough), and again, the last one
# to write it.
MAPPED, AGAIN, RELEASED_FILE = "mapped", "mapped-again", "released"

PATTERNS = [("sequential 256 KiB", "", "256k"), ("random 4 KiB", "rand", "4k")]
CALLS = [("read(2)", "write(2)", "psync"), ("mmap", "mmap", "mmap")]


def passing_options(libfuse):
    """
    The second example's options, whether it passes files through then, and if not, why.
    """
    if tuple(map(int, libfuse.split(".")[:2])) < (3, 17):
        return [], "libfuse %s cannot" % libfuse
    if os.geteuid() != 0:
        return ["--nopassthrough"], "only root may"
    return ["--nosplice"], None


def make_peers(build, place, missing):
    """
    libfuse's examples, each at the settings that were fastest for it. What there is not is named in @missing.

    The first caches, and gathers writes. The second passes reads and writes through, as gaiafs does with
    auto: in no row was its caching better than both that and the first. Passing through, it is up to 1.8
    times as fast with names if it does not splice, for it would splice nothing but requests, and libfuse
    3.18 makes a pipe for each of them where it may not have large ones (the first has no option against
    that). Caching, it is faster if it does. Cloned descriptors, and more threads or only one, changed
    nothing for either; FUSE over io_uring is left off, as kernels have it.
    """
    at = os.path.join(build, "peers")
    options, why_not = passing_options(report.peers_libfuse(build) or "0.0")
    commands = {
        LL: [os.path.join(at, "passthrough_ll"), "-f", "-o",
             "source={below},cache=always,timeout=86400,writeback,fsname=passthrough_ll", "{root}"],
        HP: [os.path.join(at, "passthrough_hp"), "--foreground", *options, "{below}", "{root}"],
    }
    for name, command in commands.items():
        if not os.path.exists(command[0]):
            missing[name] = "could not be built, see %s.log" % command[0]
            continue
        if name == HP and why_not:
            missing[NAMES[HP] + ", passing through"] = why_not
        yield Peer(name, place, command, passes_through=name == HP and not why_not)


class ChangedRow(Row):
    """A row whose goal is what was measured: changed it is not slower than unchanged by more than two that are unchanged differ."""

    def __init__(self, section, title, unit):
        super().__init__(section, title, unit, NATIVE)

    @property
    def goals(self):
        second = self.ratio(SECOND, WAYS[0])
        return [Goal(min(1, second[0] - (second[1] or 0)) if second else 1, WAYS[0])]

    @goals.setter
    def goals(self, _):
        pass

    def judge(self, peers):
        ratio = self.ratio(CHANGED, WAYS[0])
        return [Judged(goal, CHANGED, ratio, goal.verdict(ratio)) for goal in self.goals]


class Bench:
    def __init__(self, args):
        self.args = args
        # What the third mount differs by; None: there are peers instead.
        self.change = "watched" if args.watched else "parked and equal pages" if args.tiers else "now" if args.before else None
        NAMES[CHANGED] = "%s, %s" % (WAYS[0], self.change)
        NAMES[WAYS[0]] = WAYS[0] + ", before" if args.before else WAYS[0]
        self.subject = CHANGED if self.change else WAYS[0]
        self.machine = None
        self.undisturbed = False
        self.size = 64 * MIB if args.quick else 256 * MIB
        self.systems = []  # the columns of the table
        self.counted = []  # gaiafs with different numbers of devices
        self.rows = []  # also those that are not measured
        self.works = []
        self.missing = {}
        self.left_by_quick = []
        self.left_by_time = []
        self.stack = contextlib.ExitStack()
        self.place = None

    # -- the systems

    def start(self, system, files=("data", MAPPED, AGAIN, RELEASED_FILE, "target")):
        """Whether it started; if not it is named as missing."""
        self.stack.callback(system.stop)
        for name in files:
            system.make_file(name, self.size)
        try:
            system.start()
        except Missing as why:
            self.missing[system.name] = str(why)
            return False
        return True

    def start_all(self):
        args = self.args
        native = System(NATIVE, self.place)
        self.start(native)
        self.systems.append(native)
        if self.change:
            self.start_changed()
            return
        for peer in make_peers(args.build, self.place, self.missing):
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
            if self.start(system, ["data"]):
                self.counted.append(system)

    def start_changed(self):
        args, metrics = self.args, os.path.join(self.place, "metrics")
        for name in WAYS[0], CHANGED, SECOND:
            changed = name == CHANGED
            options = ["--device", "sim:%dM%s" % (self.size // MIB * 4, ",cache=auto" if changed and args.tiers else ""), "--cpu-cache", WAYS[0]]
            if changed and args.watched:
                options += ["--metrics", "unix:" + metrics]
            if changed and args.tiers:
                options += ["--dedup", "home"]
            system = Gaiafs(name, self.place, args.build if changed or not args.before else args.before, options)
            if not self.start(system):
                raise RuntimeError(self.missing[name])
            self.systems.append(system)
            self.hold_files(system)
            if changed and args.watched:
                self.stack.callback(Watched(system, metrics).stop)

    def hold_files(self, system):
        if system.shown_as() != (WAYS[0] if self.change else system.name):
            self.missing[system.name] = "it is %s here, see its log" % system.shown_as()
        holder = self.program("holder")
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

    # -- the works

    def add(self, row, systems, fio, times=1):
        """
        A line of the table, and the systems measured for it, so many times a round. What --only leaves
        out, or cannot be done here (@fio is None), has a line too: its goals are not measured.
        """
        self.rows.append(row)
        name = row.section + ", " + row.title

        def work(rnd):
            for n in range(rnd * times, (rnd + 1) * times):
                row.add(fio.rates(turn(systems, n), n))
        if fio and self.args.only in name:
            self.works.append((name, work))

    def add_native(self, section, title, fio, goals=()):
        """A row in times of the native rate, with goals for the first way: all but the counts of devices."""
        self.add(self.row(section, title, "bytes", goals), self.systems, fio)

    def row(self, section, title, unit, goals):
        return ChangedRow(section, title, unit) if self.change else Row(section, title, unit, NATIVE, goals, [WAYS[0]])

    def reads(self):
        section = "read a file that no device maps"
        states = [(HOT, 0.98), (COLD_IN_MOUNT, 0.95), (COLD, 0.98)]
        if not may_drop_caches():
            self.missing[COLD] = "only root may drop the machine's page cache"
        for state, least in states:
            for pattern, prefix, block in PATTERNS:
                for call, _, engine in CALLS:
                    for processes in (1, 4):
                        title = self.title(pattern, call, state, processes)
                        if self.args.quick and (engine == "mmap" and (state == COLD or
                                                                      processes > 1) or
                                                state != HOT and processes > 1):
                            self.left_by_quick.append(section + ", " + title)
                            continue
                        possible = state != COLD or may_drop_caches()
                        self.add_native(section, title, possible and
                                        self.read("data", prefix, block, engine, state, processes),
                                        [Goal(least, NATIVE)])

    @staticmethod
    def title(pattern, call, state, processes):
        title = "%s, %s, %s" % (pattern, call, state)
        return title + (", %d processes" % processes if processes > 1 else "")

    def read(self, file, prefix, block, engine, state, processes=1):
        rw = prefix + "read"
        total = self.size
        loops = 1
        if state == HOT:
            # Some tenths of a second: fio takes as long to begin and end a job.
            total = GIB // 2 if prefix else 2 * GIB
            if processes > 1:
                total *= 2
            elif engine == "mmap":
                total, loops = self.size, total // self.size
        elif prefix and state in (COLD_IN_MOUNT, HOME, RELEASED):
            total //= 8
        elif prefix and state == COLD:
            total //= 32
        if processes > 1:
            return self.together(processes, file, rw, block, engine, state, total)
        return self.fio(file, rw, block, engine, state, total,
                        again=total > self.size and bool(prefix), loops=loops)

    def program(self, name):
        return os.path.join(self.args.build, name)

    def ready(self, rw, state, total):
        """The command that has memory for it at hand: once for the kernel's cache, once for a daemon's."""
        takes_some = "write" in rw or state != HOT
        mib = 2 * min(total, self.size) // MIB + 32
        return [self.program("ready"), str(mib if takes_some else 0)]

    def fio(self, file, rw, block, engine, state, total, **options):
        return Fio(self.ready(rw, state, total), file, self.size, rw, block, engine, state, total,
                   **options)

    def together(self, processes, file, rw, block, engine, state, total):
        return Together(self.ready(rw, state, total), self.program("together"), processes, file, rw,
                        block, engine, state, total)

    def writes(self):
        section = "write a file that no device maps"
        goals = [Goal(0.90, NATIVE), Goal(1.00, BEST_PEER)]
        for pattern, prefix, block in PATTERNS:
            rw = prefix + "write"
            for _, call, engine in CALLS:
                for processes in (1, 4):
                    title = "%s, %s" % (pattern, call)
                    title += ", %d processes" % processes if processes > 1 else ""
                    if self.args.quick and processes > 1 and engine == "mmap":
                        self.left_by_quick.append(section + ", " + title)
                        continue
                    total = self.size // (2 if prefix else 1)
                    work = self.fio("target", rw, block, engine, HOT, total)
                    if processes > 1:
                        work = self.together(processes, "target", rw, block, engine, HOT,
                                             total * processes)
                    self.add_native(section, title, work, goals)
            every = 1 if prefix else 32
            total = self.size // (64 if prefix else 1)
            title = "%s, fdatasync after %s" % (pattern, "each" if prefix else "8 MiB")
            self.add_native(section, title, self.fio("target", rw, block, "psync", HOT, total,
                                                     sync=every), goals)

    def shared_with_devices(self):
        kinds = [(MAPPED, "a file that a device maps for the first time"),
                 (AGAIN, "a file that a device maps, and has before")]
        for name, what in kinds:
            for pattern, prefix, block in PATTERNS:
                for call, _, engine in CALLS:
                    self.add_native("read " + what, "%s, %s, hot" % (pattern, call),
                                    self.read(name, prefix, block, engine, HOT),
                                    [Goal(0.95, NATIVE)])
        for pattern, prefix, block in PATTERNS:
            self.add_native("read " + kinds[1][1], "%s, read(2), from home" % pattern,
                            self.read(AGAIN, prefix, block, "psync", HOME), [Goal(1.50, LL)])
        section = "read a file that a device wrote: released, not fetched yet"
        for pattern, prefix, block in PATTERNS:
            self.add_native(section, "%s, read(2)" % pattern,
                            self.read(RELEASED_FILE, prefix, block, "psync", RELEASED))
        for name, what in kinds:
            for pattern, prefix, block in PATTERNS:
                self.add_native("write " + what, "%s, write(2)" % pattern,
                                self.fio(name, prefix + "write", block, "psync", HOT,
                                         self.size // (2 if prefix else 1)))

    def names(self):
        """
        One after another, each on all systems, in new directories: see spread(). Only one directory's
        names are known at a time, for peers may have no more descriptors. Files of 1 byte are unlinked
        before they are stored: to free blocks takes as long as the disk does.
        """
        section = "%s files" % format(FILES, ",")
        goals = [Goal(1.20, BEST_PEER)]
        # gaiafs knows without asking that nothing of an empty file is cached.
        works = [("create, empty", EMPTY_FILES, "create", goals, 0),
                 ("stat, empty", EMPTY_FILES, "stat", goals, 0),
                 ("open and close", EMPTY_FILES, "open", (), 0),
                 ("readdir", EMPTY_FILES, "readdir", goals, 0),
                 ("create, 1 byte", BYTE_FILES, "create-byte", goals, 2),
                 ("stat, 1 byte", BYTE_FILES, "stat", goals, 0),
                 ("unlink, 1 byte", BYTE_FILES, "unlink", goals, 0),
                 ("stat, empty, not in memory", EMPTY_FILES, "stat", goals, 2),
                 ("unlink, empty", EMPTY_FILES, "unlink", goals, 0)]
        measured = []
        for title, place, what, goals, drop in works:
            row = self.row(section, title, "files", goals)
            self.rows.append(row)
            if not drop or may_drop_caches():
                measured.append((row, place, what, drop))
            else:
                self.missing[title] = "only root may drop the machine's caches"

        def work(rnd):
            dirs = {(system, place): tempfile.mkdtemp(dir=system.root)
                    for system in self.systems for place in (EMPTY_FILES, BYTE_FILES)}
            for row, place, what, drop in measured:
                if drop:
                    drop_caches(drop)
                row.add({system.name: self.name_rate(dirs[system, place], what)
                         for system in turn(self.systems, rnd)})
        if self.args.only in section:
            self.works.append((section, work))

    def name_rate(self, path, what):
        run(self.program("ready"), str(NAMES_MIB))
        return FILES * 1e9 / int(run(self.program("metadata"), path, str(FILES), what))

    def device_counts(self):
        base, *others = [str(count) for count in DEVICE_COUNTS]
        # No slope, up or down: what is faster with more devices was not measured well.
        goals = [Goal(0.97, base, most=1.03)]
        works = [("read random 4 KiB, hot", self.read("data", "rand", "4k", "psync", HOT)),
                 ("read random 4 KiB, cold in the mount",
                  self.read("data", "rand", "4k", "psync", COLD_IN_MOUNT)),
                 ("read sequential 256 KiB, cold in the mount",
                  self.read("data", "", "256k", "psync", COLD_IN_MOUNT)),
                 ("write random 4 KiB, fdatasync after 64",
                  self.fio("data", "randwrite", "4k", "psync", HOT, self.size // 32, sync=64))]
        for title, fio in works:
            self.add(Row("devices configured, simulated", title, "bytes", base, goals, others),
                     self.counted, fio, 1 if self.args.quick else DEVICE_COUNT_SAMPLES)

    # -- all of it

    def measure(self):
        """Measures everything; returns the number of whole rounds."""
        limit = TimeLimit(self.args.seconds)
        progress = Progress()
        self.reads()
        self.writes()
        self.shared_with_devices()
        if not self.change:
            self.device_counts()
        self.names()  # last: what comes after may take as long, for all that is known
        if not self.works:
            raise RuntimeError("--only %s: there is no such work" % self.args.only)
        self.works.insert(0, ("begin", self.begin_round))
        progress.say("files and mounts")
        self.start_all()
        rounds, self.left_by_time = run_rounds(self.works, self.args.rounds, limit, progress)
        progress.end()
        return rounds

    def facts(self, rounds):
        args = self.args
        return {"bench": "cpu", "quick": args.quick, "only": args.only, "rounds": rounds,
                "file_mib": self.size // MIB, "versions": report.versions(args.build),
                "machine": self.machine, "undisturbed": self.undisturbed, "missing": self.missing,
                "left_out_by_quick": self.left_by_quick, "left_out_by_time": self.left_by_time,
                "change": self.change, "before": self.before(), "goals_are_of": self.subject}

    def before(self):
        """The earlier version, or None. Its commit is known if the build is in its checkout."""
        build = self.args.before
        return build and {"gaiafs": report.line_of(os.path.join(build, "daemon", "gaiafs"), "--version"),
                          "commit": report.line_of("git", "-C", build, "describe", "--always", "--dirty")}

    def print_head(self, facts):
        print(report.machine_text(facts) + "; other programs %s" %
              ("went after" if self.undisturbed else "were not held back"))
        print(report.versions_text(facts))
        if facts["before"]:
            print("before: %(gaiafs)s, commit %(commit)s" % facts["before"])
        print("%d whole rounds, files of %d MiB. First the native rate, then how many times that rate "
              "(median ± half the distance of the quartiles)." % (facts["rounds"], facts["file_mib"]))
        print(report.LEGEND)

    def print_left_out(self, rounds):
        for name, why in self.missing.items():
            print("missing: %s: %s" % (NAMES.get(name, name), why))
        if self.left_by_quick:
            print("--quick leaves out %d works and their goals: left_out_by_quick in cpu.json"
                  % len(self.left_by_quick))
        if self.left_by_time:
            print("no time left in round %d for: %s" % (rounds + 1, "; ".join(self.left_by_time)))

    def report(self, rounds):
        """Prints and writes the results; returns what they say of the goals."""
        out = self.args.out
        columns = [system.name for system in self.systems]
        counts_columns = [system.name for system in self.counted]
        facts = self.facts(rounds)
        measured = [row for row in self.rows if row.is_measured()]
        ours = [row for row in measured if row.base == NATIVE]
        counts = [row for row in measured if row.base != NATIVE]
        pages = []
        self.print_head(facts)
        for rows, names, peers in (ours, columns, PEERS), (counts, counts_columns, []):
            if rows:
                print("\n".join(report.table(rows, names, NAMES, peers, self.subject)))
                pages.append("\n".join(report.markdown(rows, names, NAMES, peers)) + "\n")
        self.print_left_out(rounds)
        report.write_json(os.path.join(out, "cpu.json"), facts, self.rows, PEERS)
        with open(os.path.join(out, "cpu.md"), "w") as file:
            file.write("\n".join(pages))
        drawn = plot.draw(os.path.join(out, "cpu.png"), ours, counts, columns, NAMES, PEERS, facts)
        print("written: %s" % ", ".join([os.path.join(out, name)
                                         for name in ("cpu.json", "cpu.md")] + drawn))
        return report.say_goals(self.rows, PEERS, NAMES)


def arguments(given=None):
    parser = argparse.ArgumentParser(prog="scripts/bench cpu", add_help=False)
    parser.add_argument("--quick", action="store_true")
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--watched", action="store_true")
    change.add_argument("--tiers", action="store_true")
    change.add_argument("--before")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", default=".", type=report.results_dir)
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--build", required=True)
    parser.add_argument("--seconds", type=float, default=0)
    return parser.parse_args(given)


def main():
    args = arguments()
    stop_on_signals()
    bench = Bench(args)
    bench.undisturbed = run_undisturbed()
    try:
        with bench.stack:
            bench.place = tempfile.mkdtemp(prefix="gaiafs-bench.", dir=os.path.realpath(args.dir))
            bench.stack.callback(shutil.rmtree, bench.place, ignore_errors=True)
            bench.machine = report.machine_of(bench.place)
            rounds = bench.measure()
        said = bench.report(rounds)
    except KeyboardInterrupt:
        print("\nbench: interrupted; everything is unmounted and removed.", file=sys.stderr)
        return 130
    except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
        print("\nbench: %s" % error, file=sys.stderr)
        return 1
    print("\n".join(report.last_lines(said)))
    return report.status(said, args.check)


if __name__ == "__main__":
    sys.exit(main())
