#!/usr/bin/env python3
"""
scripts/bench umap: files as memory by gaia/umap.h, beside mmap(2) and LLNL's UMap, under a memory limit.

Every figure is a rate, and the ratio of two that were taken in one round, one right after the other.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
# pylint: disable=wrong-import-position
import plot
import report
from command import parser_of
from memory_limit import MemoryLimit
from rounds import UNMEASURED, Goal, Progress, Row, TimeLimit, run_rounds, turn
from systems import GIB, MIB, Gaiafs, Missing, run, run_undisturbed, stop_on_signals

KIB = 1 << 10
LARGE = "larger than memory"
MMAP, READ, OURS, LLNL, NOTED = "mmap", "read", "gaiafs", "umap", "noted"
NAMES = {MMAP: "mmap(2)", READ: "read(2)", OURS: "gaiafs", LLNL: "LLNL UMap", NOTED: "as noted"}
COLUMNS = [MMAP, READ, OURS, LLNL, NOTED]
# What is compared with where there is nothing to measure: a fault of LLNL's UMap takes 30 µs (seen), and pages in memory should be
# read at 10 GB/s.
NOTED_FAULT, NOTED_RESIDENT = 1 / 30e-6, 10e9
HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = {"umap-sort": os.path.join(HERE, "..", "..", "client", "examples", "umap", "sort.c"),
           "umap-bfs": os.path.join(HERE, "..", "..", "client", "examples", "umap", "bfs.c"),
           "umap_works": os.path.join(HERE, "umap_works.c")}
TIMEOUT_S, TIMEOUT_QUICK_S = 1800, 60


class LargeRow(Row):
    """Of a work on more than memory holds: it says nothing where memory has no limit."""

    is_limited = True

    def judge(self, peers):
        judged = super().judge(peers)
        return judged if self.is_limited else [one._replace(verdict=UNMEASURED) for one in judged]


class Sizes:
    def __init__(self, args):
        if args.smoke:
            self.warm, self.sort, self.scale, self.points, self.reading_ms = 4 * MIB, 16 * MIB, 12, 8 * MIB, 20
        elif args.quick:
            self.warm, self.sort, self.scale, self.points, self.reading_ms = 256 * MIB, 256 * MIB, 20, 256 * MIB, 2000
        else:
            self.warm, self.sort, self.scale, self.points, self.reading_ms = GIB, GIB, 23, GIB, 10000
        self.shared = self.warm


class Bench:
    def __init__(self, args):
        self.args = args
        self.sizes = Sizes(args)
        self.machine = None
        self.undisturbed = False
        self.limited = None  # whether there can be memory limits
        self.rows = []
        self.works = []
        self.missing = {}
        self.left_by_time = []
        self.place = None
        self.peer = None  # where programs with LLNL's UMap are
        self.copies = None  # of a file that 8 processes map from gaiafs, in memory

    # -- programs

    def program(self, name, system):
        if system == LLNL:
            return os.path.join(self.peer, name)
        return os.path.join(self.args.build, "tests/bench" if name == "umap_works" else "client/examples", name)

    def build_peer(self):
        """LLNL's UMap, of its source and as it builds itself, and our programs over it."""
        if not self.args.peer:
            self.missing[NAMES[LLNL]] = "--peer umap=DIR says where its source is"
            return
        place = os.path.join(os.path.realpath(self.args.out), "peer-umap")
        source = os.path.realpath(self.args.peer)
        try:
            if not os.path.exists(os.path.join(source, "CMakeLists.txt")):
                raise Missing("%s has no CMakeLists.txt" % source)
            if not shutil.which("cmake"):
                raise Missing("cmake is not installed")
            build, prefix = os.path.join(place, "build"), os.path.join(place, "installed")
            run("cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DENABLE_TESTS=OFF",
                "-DENABLE_LOGGING=OFF", "-DCMAKE_INSTALL_LIBDIR=lib", "-DCMAKE_INSTALL_PREFIX=" + prefix, timeout=300)
            run("cmake", "--build", build, "--parallel", timeout=1200)
            run("cmake", "--install", build, timeout=300)
            for name, path in SOURCES.items():
                run("cc", "-O2", "-w", "-D_GNU_SOURCE", "-DUMAP_H", "-I", os.path.join(prefix, "include"), path,
                    "-L" + os.path.join(prefix, "lib"), "-lumap", "-Wl,-rpath," + os.path.join(prefix, "lib"),
                    "-pthread", "-lm", "-o", os.path.join(place, name), timeout=300)
        except (Missing, RuntimeError, OSError, subprocess.TimeoutExpired) as why:
            self.missing[NAMES[LLNL]] = str(why)
            return
        self.peer = place

    def peer_goals(self, least):
        return [Goal(least, LLNL)]

    # -- rows and works

    def row(self, section, title, unit, goals):
        row = (LargeRow if section == LARGE else Row)(section, title, unit, MMAP, goals, [OURS])
        self.rows.append(row)
        return row

    def work(self, row, function, *args):
        if self.args.only not in row.section + ", " + row.title:
            return

        def run_it(rnd):
            try:
                function(rnd, row, *args)
            except Missing as why:
                self.missing[row.section + ", " + row.title] = str(why)
        self.works.append((row.section + ", " + row.title, run_it))

    def systems(self, *more):
        return [MMAP, OURS, *more] + ([LLNL] if self.peer else [])

    def forget(self, path):
        """Nothing of the file stays in the page cache: what a limited program reads counts as its own."""
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def made(self, name, size):
        path = os.path.join(self.place, name)
        if not os.path.exists(path):
            with open(path, "wb", buffering=0) as file:
                for _ in range(size // MIB):
                    file.write(os.urandom(MIB))
                os.fsync(file.fileno())
        return path

    def ask(self, system, name, words, path, page_size, budget, limit=None):
        """What the program prints. @limit: bytes of memory for it and for the page cache that it fills."""
        command = [self.program(name, system), *words, "--page-size", str(page_size), "--budget", str(budget)]
        if system == MMAP:
            command.append("--mmap")
        elif limit:
            # As LLNL UMap's own programs do; by way of the page cache memory would have what is read twice.
            command.append("--direct")
        with contextlib.ExitStack() as stack:
            join = None
            if limit and self.limited:
                join = stack.enter_context(MemoryLimit(limit)).join
            timeout = TIMEOUT_QUICK_S if self.args.quick else TIMEOUT_S
            try:
                done = subprocess.run(command + [path], capture_output=True, text=True, timeout=timeout,
                                      stdin=subprocess.DEVNULL, preexec_fn=join)
            except subprocess.TimeoutExpired as late:
                raise Missing("%s took more than %d s" % (NAMES[system], timeout)) from late
        if done.returncode:
            text = (done.stderr or done.stdout).strip() or "it ended with %d" % done.returncode
            if system == LLNL:
                raise Missing("LLNL UMap: %s" % text)
            raise RuntimeError("%s, %s: %s" % (name, NAMES[system], text))
        return done.stdout

    @staticmethod
    def limit_for(budget, page_size):
        """The buffer, the program itself, and 16 pages of gaiafs's that are just being read or written; for all the same."""
        return budget + 4 * MIB + 16 * page_size

    def best(self, system, page_sizes, ours, rate):
        """LLNL's at its best page size; ours at one, the default for such work."""
        if system == LLNL:
            return max(rate(size) for size in page_sizes)
        return rate(ours)

    # -- the works

    def warm_files(self):
        section = "in the page cache, no limit"
        fault = self.row(section, "fault, 4 KiB, at random", "files", self.peer_goals(3) if self.peer else [Goal(3, NOTED)])
        self.work(fault, self.simple, "fault", 4 * KIB, {NOTED: NOTED_FAULT})
        bulk = self.row(section, "bulk, pages of 1 MiB, in order", "bytes", [Goal(0.8, READ)])
        self.work(bulk, self.simple, "bulk", MIB, {})
        resident = self.row(section, "resident pages, in order", "bytes", [Goal(1, NOTED)])
        self.work(resident, self.simple, "resident", MIB, {NOTED: NOTED_RESIDENT})

    def simple(self, rnd, row, what, page_size, noted):
        path = self.made("warm", self.sizes.warm)
        rates = dict(noted)
        for system in turn(self.systems(*([READ] if what == "bulk" else [])), rnd):
            word = "read" if system == READ else what
            amount, ns = map(int, self.ask(system, "umap_works", [word], path, page_size, 2 * self.sizes.warm).split())
            rates[system] = amount / ns * 1e9
        row.add(rates)

    @staticmethod
    def seconds(text):
        return float(text.split("seconds ")[1].split()[0])

    def sort(self):
        row = self.row(LARGE, "sort of %s by %s" % (self.text(self.sizes.sort), self.text(self.sizes.sort // 4)),
                       "bytes", [Goal(2.5, MMAP)] + self.peer_goals(1.2))
        self.work(row, self.sorted, self.sizes.sort // 4)

    def sorted(self, rnd, row, budget):
        path = os.path.join(self.place, "numbers")
        rates = {}
        for system in turn(self.systems(), rnd):
            def rate(page_size, system=system):
                said = self.ask(system, "umap-sort", ["--make", str(self.sizes.sort)], path, page_size, budget,
                                self.limit_for(budget, MIB))
                return self.sizes.sort / self.seconds(said)
            rates[system] = self.best(system, [64 * KIB, MIB], MIB, rate)
        row.add(rates)
        os.unlink(path)

    def bfs(self):
        row = self.row(LARGE, "BFS, R-MAT of 2^%d vertices, by a quarter of the graph" % self.sizes.scale,
                       "files", [Goal(1.8, MMAP)])
        self.work(row, self.searched)

    def searched(self, rnd, row):
        path = os.path.join(self.place, "graph")
        if not os.path.exists(path):
            self.ask(MMAP, "umap-bfs", ["--make", str(self.sizes.scale)], path, 64 * KIB, 0)
        budget = os.path.getsize(path) // 4 // MIB * MIB + MIB
        rates, sums = {}, set()
        for system in turn(self.systems(), rnd):
            def rate(page_size, system=system):
                self.forget(path)
                said = self.ask(system, "umap-bfs", [], path, page_size, budget, self.limit_for(budget, 256 * KIB))
                sums.add(said.split("sum ")[1].split()[0])
                return int(said.split(" edges")[0].split()[-1]) / self.seconds(said)
            rates[system] = self.best(system, [64 * KIB, MIB], 64 * KIB, rate)
        if len(sums) != 1:
            raise RuntimeError("BFS: the systems do not find the same levels")
        row.add(rates)

    def points(self):
        size = self.sizes.points
        row = self.row(LARGE, "points by Zipf's law, 4 KiB pages, %s by %s"
                       % (self.text(size), self.text(size // 4)), "files", [Goal(0.95, MMAP)] + self.peer_goals(1))
        self.work(row, self.pointed, size // 4)

    def pointed(self, rnd, row, budget):
        path = self.made("points", self.sizes.points)
        rates = {}
        for system in turn(self.systems(), rnd):
            self.forget(path)
            said = self.ask(system, "umap_works", ["points", "--make", str(self.sizes.reading_ms)], path, 4 * KIB, budget,
                            self.limit_for(budget, 4 * KIB))
            amount, ns = map(int, said.split())
            rates[system] = amount / ns * 1e9
        row.add(rates)

    # -- a file of gaiafs

    def host(self):
        row = self.row("a gaiafs file, 8 processes, the device host", "second to eighth read of %s" % self.text(self.sizes.shared), "bytes",
                       [Goal(1, NOTED)])
        self.work(row, self.shared)

    def shared(self, rnd, row):
        size, rates = self.sizes.shared, {NOTED: NOTED_RESIDENT}
        if not os.path.exists(os.path.join(self.args.build, "daemon", "gaiafs")):
            raise Missing("gaiafs is not built")
        system = Gaiafs("host%d" % rnd, self.place, self.args.build,
                        ["--device", "none", "--cpu-cache", "writeback", "--home", str(2 * size + 64 * MIB)])
        try:
            system.start()
            system.make_file("shared", size)
            path = system.path("shared")
            for how in turn([MMAP, OURS], rnd):
                said = self.ask(how, "umap_works", ["processes"], path, 64 * KIB, 2 * size)
                amount, ns, memory = map(int, said.split())
                rates[how] = amount / ns * 1e9
                if how == OURS:
                    self.check_copies(system, size, memory)
        finally:
            system.stop()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(system.below, "shared"))
        row.add(rates)

    def check_copies(self, system, size, memory):
        """One copy: home's, and of that the processes have their shares."""
        home = json.loads(run(system.gaia, "status", system.root, "--json"))["home"]["used"]
        self.copies = max(home, memory) / size
        # What programs and their libraries take, and home's spare frames.
        if max(home, memory) > size + size // 8 + 32 * MIB:
            raise RuntimeError("8 processes have %d MiB of a file of %d, home %d" % (memory // MIB, size // MIB, home // MIB))

    @staticmethod
    def text(size):
        return "%d %s" % ((size // GIB, "GiB") if size >= GIB else (size // MIB, "MiB"))

    # -- all of it

    def find_limit(self):
        if self.args.smoke:
            self.limited = False
            return
        try:
            with MemoryLimit(GIB):
                self.limited = True
        except Missing as why:
            self.limited = False
            self.missing["the memory limit"] = "%s: what is larger than memory is not, here" % why

    def add_rows(self):
        for add in self.warm_files, self.sort, self.bfs, self.points, self.host:
            add()
        for row in self.rows:
            row.is_limited = self.limited

    def measure(self):
        self.build_peer()
        self.find_limit()
        self.add_rows()
        if not self.works:
            raise RuntimeError("--only %s: there is no such work" % self.args.only)
        progress = Progress()
        rounds, self.left_by_time = run_rounds(self.works, self.args.rounds, TimeLimit(self.args.seconds), progress)
        progress.end()
        return rounds

    def facts(self, rounds):
        return {"bench": "umap", "quick": self.args.quick, "only": self.args.only, "rounds": rounds,
                "versions": report.versions(self.args.build), "machine": self.machine, "undisturbed": self.undisturbed,
                "memory_limit": self.limited, "copies": self.copies, "missing": self.missing, "left_out_by_time": self.left_by_time}

    def report(self, rounds):
        facts, out = self.facts(rounds), self.args.out
        measured = [row for row in self.rows if row.is_measured()]
        columns = [name for name in COLUMNS if any(name in row.samples for row in measured)]
        print(report.machine_text(facts) + "; other programs %s" %
              ("went after" if self.undisturbed else "were not held back"))
        print("%d whole rounds; %s. First the rate of mmap(2), then how many times that the others have "
              "(median ± half the distance of the quartiles)."
              % (rounds, "memory limited by a control group" if self.limited else "memory is NOT limited"))
        print(report.LEGEND)
        if measured:
            print("\n".join(report.table(measured, columns, NAMES, [], OURS)))
        if self.copies:
            print("8 processes with regions of a gaiafs file: it is in memory %.2f times" % self.copies)
        for name, why in self.missing.items():
            print("missing: %s: %s" % (name, why))
        if self.left_by_time:
            print("no time left in round %d for: %s" % (rounds + 1, "; ".join(self.left_by_time)))
        report.write_json(os.path.join(out, "umap.json"), facts, self.rows, [])
        with open(os.path.join(out, "umap.md"), "w") as file:
            file.write("\n".join(report.markdown(measured, columns, NAMES, [])) + "\n" if measured else "")
        title = "files as memory: rate, in times of mmap(2)'s (longer is faster)"
        drawn = plot.draw(os.path.join(out, "umap.png"), measured, [], [name for name in columns if name != NOTED],
                          NAMES, [], facts, title, 4)
        print("written: %s" % ", ".join([os.path.join(out, name) for name in ("umap.json", "umap.md")] + drawn))
        return report.say_goals(self.rows, [], NAMES)


def peer_source(text):
    name, _, path = text.partition("=")
    if name != "umap" or not path:
        raise argparse.ArgumentTypeError("%s: there is no such peer, only umap=DIR" % text)
    return path


def arguments(given=None):
    parser = parser_of("umap")
    parser.add_argument("--peer", type=peer_source)
    return parser.parse_args(given)


def main():
    args = arguments()
    stop_on_signals()
    bench = Bench(args)
    bench.undisturbed = not args.smoke and run_undisturbed()
    try:
        bench.place = tempfile.mkdtemp(prefix="gaiafs-bench.", dir=os.path.realpath(args.dir))
        try:
            bench.machine = report.machine_of(bench.place)
            if bench.machine["file_system"] == "tmpfs" and not args.smoke:
                raise RuntimeError("%s is in memory (tmpfs): use --dir" % args.dir)
            rounds = bench.measure()
        finally:
            shutil.rmtree(bench.place, ignore_errors=True)
        said = bench.report(rounds)
    except KeyboardInterrupt:
        print("\nbench: interrupted; everything is removed.", file=sys.stderr)
        return 130
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        print("\nbench: %s" % error, file=sys.stderr)
        return 1
    print("\n".join(report.last_lines(said)))
    if args.smoke and not all(row.is_measured() for row in bench.rows if not row.section.startswith("a gaiafs file")):
        return 1
    return report.status(said, args.check)


if __name__ == "__main__":
    sys.exit(main())
