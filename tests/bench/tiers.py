#!/usr/bin/env python3
"""
scripts/bench tiers: pages that left home and are parked on a device, beside the same mount without (--device ...,cache=).

The device is simulated: its bus has the rates and waits of a model, and they are waited for. Reads are of 4 KiB, with O_DIRECT.
Whether a device is asked depends on what storage takes; so where a gain is looked for storage is modelled, too: a file system (engine-fs)
over the directory, whose reads take so much longer.
And equal pages kept once (--dedup home), beside the same with parked pages alone, as the paper compares them; and of files in which pages are
equal as they are in practice, beside what the kernel's KSM finds of the same in the memory of a program.
What is read from storage is counted, which noise does not touch; times are ratios of two that were taken in one round.
"""

import contextlib
import functools
import json
import math
import mmap
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
# pylint: disable=wrong-import-position
import ksm
import plot
import real_data
from command import parser_of
from instructions import count_instructions
from pairs import OURS, PEER, PairsBench, Worker, main
from rounds import SPREAD_FROM, Progress, TimeLimit, run_rounds, turn
from systems import MIB, Gaiafs, Lacking, Missing, detach, run

HERE = os.path.dirname(os.path.abspath(__file__))

PAGE = 4096
# The paper's (ICCS'11), and PCIe 5: bytes a second each way, and microseconds.
BUSES = {"3.2 GB/s, 15 µs": "bandwidth=3200000000,latency=15", "PCIe 5": "bandwidth=55000000000,latency=10,submit=3"}
PAPER = "3.2 GB/s, 15 µs"
STORAGE_US = 100  # a read of 4 KiB from an SSD of a server
FILE = "data"
# So many times as many reads as there are pages, at random, before anything is counted: a page is parked when it leaves home for the second time.
WARM_PASSES = 10
PATIENCE = 50    # passes in which the device is to have what was parked
# What the papers (ICCS'11) reach, beside which ours is drawn: the share of I/O cost that is left with GRAM, and of what a page costs in a batch;
# of DEDU times of GRAM's by how often each block is there, and from which percentages of updates on it is off.
PAPERS = {"most": 0.17, "least": 0.10, "batch": 0.13, "copies": [(1, 1.05), (4, 0.19)], "off": (32, 64)}


class Sizes:
    def __init__(self, args):
        if args.smoke:
            self.home, self.device, self.reads = 8 * MIB, 8 * MIB, 500
        elif args.quick:
            self.home, self.device, self.reads = 16 * MIB, 16 * MIB, 20000
        else:
            self.home, self.device, self.reads = 256 * MIB, 256 * MIB, 200000
        self.counted_mib = 4 if args.smoke else 128
        self.shares = [1.0] if args.smoke else [0.25, 1.0] if args.quick else [0.25, 0.5, 1.0]
        # Of real data.
        self.image, self.sources, self.checkpoint = (4 * MIB, 3, 4 * MIB) if args.smoke else (16 * MIB, 24, 16 * MIB) if args.quick else \
            (128 * MIB, 80, 64 * MIB)


class CountedMount:
    """@system: a Gaiafs."""

    system = None

    def status(self):
        return json.loads(run(self.system.gaia, "status", self.system.root, "--json"))

    def processor_ns(self):
        """Processor time of the daemon until now."""
        return time.clock_gettime_ns(ksm.clock_of(self.status()["pid"]))

    @contextlib.contextmanager
    def counted(self, changes):
        """What the counters have risen by meanwhile is put into @changes."""
        before = self.status()["counters"]
        yield
        changes.update({name: value - before[name] for name, value in self.status()["counters"].items()})


class FileMount(CountedMount):
    """One gaiafs with one file of @pages. @copies: of so many pages each that are equal; else as the file comes."""

    def __init__(self, bench, name, bus, pages, home, cache, copies=None, dedup="off", modelled=False):
        self.bench, self.pages = bench, pages
        device = "sim:%d,%s,strict=off" % (bench.sizes.device, bus)
        if cache:
            device += ",cache=%d" % bench.sizes.device
        options = ["--device", device, "--cpu-cache", "writeback", "--home", str(home), "--dedup", dedup]
        self.system = Gaiafs(name, bench.place, bench.args.build, options + (["--source", "exclusive"] if modelled else []))
        if modelled:
            self.model_storage(name)
        bench.stack.callback(self.system.stop)
        self.system.start()
        if copies:
            # The modelled file system has not looked there yet.
            self.make_copies(copies, os.path.join(bench.place, name + ".real") if modelled else self.system.below)
        else:
            self.system.make_file(FILE, (pages * PAGE + MIB - 1) // MIB * MIB)
        self.seed = 0
        self.forget_below()

    def model_storage(self, name):
        real = os.path.join(self.bench.place, name + ".real")
        os.mkdir(real)
        self.bench.stack.callback(detach, self.system.below)
        try:
            run(self.bench.program("engine-fs"), real, self.system.below, "slow=%d" % STORAGE_US)
        except RuntimeError as error:
            raise Missing(str(error)) from error

    def make_copies(self, copies, below):
        """The paper's generator: each block so many times, all over the file."""
        differ = self.pages // copies
        with open(os.path.join(below, FILE), "wb") as file:
            for page in range(self.pages):
                file.write((page % differ + 1).to_bytes(8, "little") * (PAGE // 8))
            os.fsync(file.fileno())

    def forget_below(self):
        """Storage is to be read, not what the kernel has of the directory below."""
        with open(os.path.join(self.system.below, FILE), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, how, count, pages=None, updates=0):
        """Nanoseconds. @updates: percent of the requests are writes."""
        self.seed += 1
        return int(run(self.bench.program("page_requests"), self.system.path(FILE), str(pages or self.pages), str(count), how,
                       str(self.seed), str(updates), timeout=900))

    def check_costs(self):
        """The device is used only if that is expected to be faster."""
        cost = {tier["tier"]: tier["page_ns"] for tier in self.status()["tiers"]}
        if cost["storage"] <= cost["parked on devices"]:
            raise Missing("storage gives a page within %.0f µs, the device within %.0f"
                          % (cost["storage"] / 1e3, cost["parked on devices"] / 1e3))

    def places(self):
        """Bytes of the device that have parked pages: less than these have, if equal ones share."""
        residency = json.loads(run(self.system.gaia, "residency", self.system.path(FILE), "--json"))
        return residency["victim_bytes"] - self.status()["dedup"].get("parked_saved_bytes", 0)

    def evict(self, where):
        run(self.system.gaia, "evict", self.system.path(FILE), "--from", where)


class TreeMount(CountedMount):
    """A gaiafs over the files in @below, which stay as they are."""

    def __init__(self, bench, name, below, home, dedup):
        self.system = Gaiafs(name, bench.place, bench.args.build, ["--cpu-cache", "writeback", "--home", str(home), "--dedup", dedup])
        os.rmdir(self.system.below)
        self.system.below = below
        bench.stack.callback(self.system.stop)
        self.system.start()
        self.paths = real_data.files_of(self.system.root)

    def read(self, again=False):
        """All of it in order, past the kernel's cache. @again: each file leaves home before; what others have of it stays."""
        with mmap.mmap(-1, MIB) as room:
            for path in self.paths:
                if again:
                    run(self.system.gaia, "evict", path, "--from", "home")
                file = os.open(path, os.O_RDONLY | os.O_DIRECT)
                try:
                    while os.readv(file, [room]):
                        pass
                finally:
                    os.close(file)

    def pages_a_frame(self):
        """Of all files, which are home."""
        pages, status = sum(map(real_data.pages_of, self.paths)), self.status()
        used, saved = status["home"]["used"] // PAGE, status["dedup"]["saved_bytes"] // PAGE
        if used + saved < pages:
            raise Missing("only %d of %d pages are home" % (used + saved, pages))
        return pages / used


class Bench(PairsBench):
    name = "tiers"
    device = "simulated, by its model: " + "; ".join(BUSES.values())
    names = {PEER: "without", OURS: "with"}
    mount_class = FileMount
    order = "First without parked pages, then with them"

    def __init__(self, args):
        super().__init__(args)
        self.sizes = Sizes(args)
        self.counted_rows = []
        self.data = []  # works that are done once, when the others have been done once
        self.curves = []  # works whose rows have no goal: for the plot, done once, when the others have spreads
        self.shown = {}  # of the plot: rows, by what they show
        self.made = {}  # directories of real data, or why there is none

    def program(self, name):
        return os.path.join(self.args.build, "tests", "bench", name)

    # -- what does not fit home

    def working_sets(self):
        for bus, options in BUSES.items():
            for share in self.sizes.shares:
                for how in "zipf", "uniform":
                    section = "reads of 4 KiB, home and %g of the device, bus of %s; peer: no cache on the device; storage: %d µs, modelled" % (
                        share, bus, STORAGE_US)
                    rows = [self.row(section, "%s: pages read from storage" % how, "count", most=0.17),
                            self.row(section, "%s: time" % how, "time")]
                    self.shown["working set", bus, how, share] = rows[0]
                    self.work(rows, self.working_set, rows, how, share, options, bus)

    def working_set(self, rnd, rows, how, share, options, bus):
        pages = int(self.sizes.home + share * self.sizes.device) // PAGE
        stored, times = {}, {}
        for who in turn([PEER, OURS], rnd):
            name = "%s-%s-%d" % (self.names[who], share, list(BUSES).index(bus))
            mount, new = self.mounted(name, options, pages, self.sizes.home, who == OURS, modelled=True)
            if new:
                mount.read("uniform", WARM_PASSES * pages)
            if who == OURS:
                mount.check_costs()
            changes = {}
            with mount.counted(changes):
                times[who] = mount.read(how, self.sizes.reads)
            stored[who] = changes["storage_reads"]
        if stored[PEER]:
            rows[0].add(stored)
        rows[1].add(times)

    # -- batches

    def batches(self):
        section = "copying pages to the device, modelled, bus of %s; peer: from there, one by one" % PAPER
        rows = [self.row(section, "a page, in batches", "time", most=1 / 8)]
        self.shown["batches",] = rows[0]
        self.work(rows, self.batched, rows)

    def batched(self, rnd, rows):
        pages = self.sizes.home // PAGE // 2
        mount, new = self.mounted("batches", BUSES[PAPER] + ",wait=off", pages, self.sizes.home, True)
        # Slabs are made when pages first want to go there.
        for _ in range(PATIENCE if new else 0):
            mount.read("scan", pages)
            mount.evict("home")
            if json.loads(run(mount.system.gaia, "residency", mount.system.path(FILE), "--json"))["victim_bytes"] >= pages * PAGE:
                break
        mount.evict("device-cache")
        mount.read("scan", pages)
        mount.evict("home")
        mount.read("scan", pages)
        out, back = {}, {}
        with mount.counted(out):
            mount.evict("home")
        mount.forget_below()
        with mount.counted(back):
            mount.read("uniform", min(self.sizes.reads, pages // 4))
        if not out["victim_parked"] or not back["victim_hits"]:
            raise Missing("%d pages were parked, and %d read from there: storage is too fast here" % (out["victim_parked"], back["victim_hits"]))
        rows[0].add({PEER: back["sim_ns"] / back["victim_hits"], OURS: out["sim_ns"] / out["victim_parked"]})

    # -- equal pages

    def equal_pages(self):
        section = "uniform reads, 1.5 x home and device, bus of %s; peer: parked pages alone; storage: %d µs, modelled" % (PAPER, STORAGE_US)
        judged = {(1, 0): 1.02, (4, 0): math.inf, (10, 0): math.inf, (1, 64): 1.02, (4, 64): 1.02}
        more = [] if self.args.smoke else [(2, 0), (6, 0), (8, 0), (1, 16), (1, 32), (4, 16), (4, 32)]
        for (copies, updates), most in [*judged.items(), *((kind, math.inf) for kind in more)]:
            title = "each page %s, %d %% updates" % ("once" if copies == 1 else "%d times" % copies, updates)
            rows = [self.row(section, title + ": pages read from storage", "count", most=0.19 if copies == 4 and not updates else math.inf),
                    self.row(section, title + ": time", "time", most=most)]
            self.shown["equal reads", copies, updates], self.shown["equal time", copies, updates] = rows
            self.work(rows, self.equal, rows, copies, updates, to=self.curves if (copies, updates) in more else None)

    def equal(self, rnd, rows, copies, updates):
        pages = int(1.5 * (self.sizes.home + self.sizes.device)) // PAGE
        stored, times = {}, {}
        for who in turn([PEER, OURS], rnd):
            mount, new = self.mounted("%s-%d-%d-equal" % (self.names[who], copies, updates), BUSES[PAPER], pages, self.sizes.home, True, copies,
                                      "home" if who == OURS else "off", modelled=True)
            if new:
                mount.read("uniform", 4 * pages)
            mount.check_costs()
            changes = {}
            with mount.counted(changes):
                times[who] = mount.read("uniform", self.sizes.reads, updates=updates)
            stored[who] = changes["storage_reads"]
        if stored[PEER]:
            rows[0].add(stored)
        rows[1].add(times)

    # -- real data

    def real_data(self):
        sizes, copies = self.sizes, 3 if self.args.smoke else 6
        data = [("images", "%d disk images of one origin" % copies, functools.partial(real_data.disk_images, size=sizes.image, copies=copies)),
                ("trees", "2 build trees", functools.partial(real_data.build_trees, count=sizes.sources)),
                ("checkpoints", "4 checkpoints", functools.partial(real_data.checkpoints, size=sizes.checkpoint, count=4, packed=False)),
                ("packed", "4 checkpoints, packed", functools.partial(real_data.checkpoints, size=sizes.checkpoint, count=4, packed=True))]
        for name, title, make in data:
            row = self.row("real data, read again in order, home for half of it; peer: equal pages are not looked for",
                           title + ": pages read from storage", "count")
            self.work([row], self.read_again, row, name, make, to=self.data)
        for name, title, make in data:
            section = "real data, read in order, all of it home; peer: KSM, of the same in a program's memory"
            rows = {what: self.row(section, "%s: %s" % (title, text), unit, least)
                    for what, text, unit, least in (("once", "pages a frame, read once", "factor", 0),
                                                    ("again", "pages a frame, read again", "factor", 0.9),
                                                    ("estimate", "pages a frame, by gaia dedup --estimate", "factor", 0),
                                                    ("time", "a page, to find equal ones", "time", 0))}
            self.work(list(rows.values()), self.beside_ksm, rows, name, make, to=self.data)

    def directory(self, name, make):
        if name not in self.made:
            path, scratch = os.path.join(self.place, name), os.path.join(self.place, name + ".scratch")
            os.mkdir(path)
            os.mkdir(scratch)
            try:
                make(path, scratch)
                # Pages of files that others may write are not shared.
                for file in real_data.files_of(path):
                    os.chmod(file, 0o644)
                self.made[name] = path
            except Missing as why:
                self.made[name] = why
        if isinstance(self.made[name], Missing):
            raise self.made[name]
        return self.made[name]

    @contextlib.contextmanager
    def tree_mount(self, name, *args):
        mount = TreeMount(self, name, *args)
        try:
            yield mount
        finally:
            mount.system.stop()

    def read_again(self, _rnd, row, name, make):
        below = self.directory(name, make)
        home = max(sum(map(real_data.pages_of, real_data.files_of(below))) * PAGE // 2, 8 * MIB)
        stored = {}
        for who, dedup in (PEER, "off"), (OURS, "home"):
            changes = {}
            with self.tree_mount("%s-half-%s" % (name, dedup), below, home, dedup) as mount:
                mount.read()
                with mount.counted(changes):
                    mount.read()
            stored[who] = changes["storage_reads"]
        if not stored[PEER]:
            raise Missing("it all fits home")
        row.add(stored)

    def beside_ksm(self, _rnd, rows, name, make):
        below = self.directory(name, make)
        pages = sum(map(real_data.pages_of, real_data.files_of(below)))
        ours, took = {}, {}
        for dedup in "off", "home":
            with self.tree_mount("%s-whole-%s" % (name, dedup), below, pages * PAGE + 64 * MIB, dedup) as mount:
                mount.read()
                ours["once"] = mount.pages_a_frame()
                took[dedup] = -mount.processor_ns()
                mount.read(again=True)
                took[dedup] += mount.processor_ns()
                ours["again"] = mount.pages_a_frame()
        estimate = json.loads(run(mount.system.gaia, "dedup", "--estimate", below, "--json"))
        ours["estimate"] = estimate["memory_bytes"] / estimate["home_bytes"]
        ours["time"] = (took["home"] - took["off"]) / pages
        try:
            merged = self.merge_by_ksm(below)
        except Lacking as why:
            raise Lacking("%s (gaiafs: %.2f, %.2f pages a frame)" % (why, ours["once"], ours["again"])) from why
        factor = pages / (pages - merged.merged)
        theirs = {"once": factor, "again": factor, "estimate": factor, "time": merged.ksmd_ns / pages}
        for what, row in rows.items():
            if theirs[what]:
                row.add({PEER: theirs[what], OURS: ours[what]})

    @staticmethod
    def merge_by_ksm(directory):
        """By a process of its own, which undoes everything should this one be killed; and the other way round."""
        why = ksm.why_not()
        if why:
            raise Lacking(why)
        before = ksm.settings()
        worker = Worker([sys.executable, "-B", os.path.join(HERE, "lib", "ksm.py"), directory])
        try:
            merged = ksm.Merged(*worker.listen())
        finally:
            worker.stop()
            # Else it has done so.
            if worker.child.returncode < 0:
                ksm.restore(before)
        if merged.others:
            raise Lacking("other programs have memory that KSM merges, too: %d pages" % merged.others)
        return merged

    # -- equal pages in one place of the device

    def shared_places(self):
        section = "uniform reads, different pages for 1.5 x home, the same device, bus of %s; peer: parked pages alone; storage: %d µs, modelled" % (
            PAPER, STORAGE_US)
        for copies in [4] if self.args.smoke else [4, 10]:
            title = "each page %d times: " % copies
            rows = [self.row(section, title + "bytes of the device that have pages", "count"),
                    self.row(section, title + "bytes copied to the device", "count"),
                    self.row(section, title + "pages read from storage", "count")]
            self.work(rows, self.shared, rows, copies)

    def shared(self, rnd, rows, copies):
        home = min(self.sizes.home, 16 * MIB)
        pages = int(1.5 * home) // PAGE * copies
        measured = [{}, {}, {}]
        for who in turn([PEER, OURS], rnd):
            mount, new = self.mounted("%s-%d-shared" % (self.names[who], copies), BUSES[PAPER], pages, home, True, copies,
                                      "home" if who == OURS else "off", modelled=True)
            if new:
                mount.read("uniform", 4 * pages)
            mount.check_costs()
            changes = {}
            with mount.counted(changes):
                mount.read("uniform", self.sizes.reads)
            for values, value in zip(measured, (mount.places(), changes["device_bytes_in"], changes["storage_reads"])):
                values[who] = value
        for row, values in zip(rows, measured):
            if values[PEER]:
                row.add(values)

    # -- where there is nothing to gain

    def nothing_to_gain(self):
        section = "nothing to gain, bus of %s; peer: no cache on the device" % PAPER
        for title, how, share in ("uniform, all fits home", "uniform", 0.5), ("one scan", "scan", 2):
            rows = [self.row(section, title, "time", most=1.01)]
            self.work(rows, self.useless, rows, how, share)

    def useless(self, rnd, rows, how, share):
        pages = int(self.sizes.home * share) // PAGE
        times = {}
        for who in turn([PEER, OURS], rnd):
            mount, new = self.mounted("%s-%s-useless" % (self.names[who], how), BUSES[PAPER], pages, self.sizes.home, who == OURS)
            if new and how != "scan":
                mount.read(how, WARM_PASSES * pages)
            if how == "scan":  # of what nobody remembers
                mount.system.stop()
                mount.system.start()
            times[who] = mount.read(how, pages if how == "scan" else self.sizes.reads)
        rows[0].add(times)

    def instructions(self):
        section = "nothing to gain: instructions of the page cache alone, %d MiB that fit home, over a store in memory; peer: no cache on the " \
                  "device, and equal pages are not looked for" % self.sizes.counted_mib
        rows = {what: self.row(section, title, "count", most=most)
                for what, title, most in (("read hot", "4 KiB read, home has them", 1.01), ("acquire read", "acquire to read", 1.01),
                                          ("release read", "release after reading", 1.01), ("acquire write", "acquire to write", 1.01),
                                          ("release write", "release after writing", 1.01),
                                          ("read cold", "4 KiB read, from the store", 1.01), ("write hot", "4 KiB written", 1.01))}
        self.counted_rows = list(rows.values())
        self.work(self.counted_rows, self.counted, rows, to=self.counts)

    def counted(self, _rnd, rows):
        counts = {who: count_instructions(self.place, self.program("counts"), str(self.sizes.counted_mib), how)
                  for who, how in ((PEER, "alone"), (OURS, "both"))}
        for what, row in rows.items():
            row.add({who: count[what] for who, count in counts.items()})

    # -- all of it

    def measure(self):
        for add in (self.working_sets, self.batches, self.equal_pages, self.shared_places, self.real_data, self.nothing_to_gain,
                    self.instructions):
            add()
        if not self.works and not self.counts and not self.data and not self.curves:
            raise RuntimeError("--only %s: there is no such work" % self.args.only)
        progress, limit = Progress(), TimeLimit(self.args.seconds)
        most = self.args.rounds if self.works else 0
        rounds = 0
        for works, times in ((self.counts, 1), (self.works, min(most, 1)), (self.data, 1), (self.works, min(most, SPREAD_FROM) - 1), (self.curves, 1),
                             (self.works, most - SPREAD_FROM)):
            done, left = run_rounds(works, max(times, 0), limit, progress, rounds if works is self.works else 0)
            self.left_by_time += left
            rounds += done if works is self.works else 0
        progress.end()
        return rounds

    def curve(self, kind, along, wanted):
        """[(x, times)] of what was measured: @along: which part of the key is x; @wanted: whether a key belongs to it."""
        return sorted((key[along], row.ratio(OURS, PEER)[0]) for key, row in self.shown.items()
                      if key[0] == kind and wanted(*key[1:]) and row.is_measured())

    def figures(self):
        """What draw_tiers() draws."""
        working_sets = []
        for bus in BUSES:
            bars = [("%s,\n%g" % (how, share), self.curve("working set", 3, lambda *key, of=(bus, how, share): key == of))
                    for how in ("zipf", "uniform") for share in self.sizes.shares]
            bars = [(name, points[0][1]) for name, points in bars if points]
            working_sets += [(bus, bars)] if bars else []
        batches = [ratio for _, ratio in self.curve("batches", 0, lambda: True)]
        by_copies = [("read from storage", self.curve("equal reads", 1, lambda _, updates: not updates)),
                     ("time", self.curve("equal time", 1, lambda _, updates: not updates))]
        by_updates = [(title, self.curve("equal time", 2, lambda times, _, of=copies: times == of))
                      for copies, title in ((1, "each page once"), (4, "each page 4 times"))]
        return working_sets, batches[0] if batches else None, [line for line in by_copies if line[1]], [line for line in by_updates if line[1]]

    def draw(self, path, measured, facts):
        base, suffix = os.path.splitext(path)
        return plot.draw_pairs(path, [row for row in measured if row.goals], OURS, facts) + \
            plot.draw_tiers(base + "-papers" + suffix, *self.figures(), facts, PAPERS)

    def measured_all(self):
        """Where the model's device is slower than the disk here there is nothing to measure."""
        return any(row.is_measured() for row in self.rows if row not in self.counted_rows)


def arguments(given=None):
    return parser_of("tiers").parse_args(given)


if __name__ == "__main__":
    sys.exit(main(Bench(arguments())))
