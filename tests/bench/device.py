#!/usr/bin/env python3
"""
scripts/bench device: what acquires, releases and copies cost, beside what the hardware takes for the same bytes.

Every figure is the ratio of two that were taken in one round, one right after the other, or a count, which
noise does not touch. Devices are simulated: what is "modelled" is the time of their model, of an H200 on PCIe 5.
"""

import json
import os
import re
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
# pylint: disable=wrong-import-position
import fio
import pairs
from command import parser_of
from instructions import count_instructions
from pairs import KIB, OURS, PEER, PairsBench, Worker, pair, size_text
from rounds import Progress, TimeLimit, run_rounds, turn
from systems import GIB, MIB, Lacking, run

PAGE = 4096

# What is modelled, as --device sim has it; nothing of it is waited for.
BUS, LOCAL = 55 * 10**9, 4300 * 10**9
MODEL = "bandwidth=%d,local=%d,latency=10,submit=3,wait=off" % (BUS, LOCAL)
LATENCY_US = 30
FEW = 3
NOBODY = 65534
GUESS_S = 10  # assumed of what was not measured yet
CORES = os.cpu_count()


def available():
    """Bytes of memory that can be had without harm."""
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


class Sizes:
    def __init__(self, args):
        self.mapped = [MIB, 64 * MIB, GIB, 8 * GIB]
        self.data = 256 * MIB if args.quick else GIB
        self.hashed = GIB
        self.changed = [1, 64, 1024, 4096]
        self.counted = [64 * MIB, GIB, 8 * GIB]
        self.devices = [8, 64]
        self.steps = [10**n for n in range(8)]
        self.window = 16 * MIB
        self.samples = 9 if args.quick else 31
        if args.quick:
            self.steps = self.steps[::2] + [10**7]
        if args.smoke:
            self.mapped = [MIB, 2 * MIB, 4 * MIB, 8 * MIB]
            self.data = self.hashed = 4 * MIB
            self.changed = [1, 16]
            self.counted = [4 * MIB]
            self.devices = [2]
            self.steps = [1, 1000]
            self.window = MIB
            self.samples = 3


class Mount(pairs.Mount):
    """With ../paths.c, which maps files of it; with --tiers also with parked pages, and equal ones looked for."""

    def __init__(self, bench, name, device, home, *options, **more):
        if bench.args.tiers:
            device += ",cache=auto"
            options += ("--dedup", "home")
        super().__init__(bench, name, device, home, *options, **more)
        self.worker = self.new_worker()

    def new_worker(self, user=None):
        program = self.bench.program("paths")
        try:
            worker = Worker([program], user)
        except PermissionError as error:
            raise Lacking("another user may not run %s" % program) from error
        self.bench.stack.callback(worker.stop)
        return worker


class Bench(PairsBench):
    name = "device"
    device = "simulated; modelled: " + MODEL
    mount_class = Mount

    def __init__(self, args):
        super().__init__(args)
        self.sizes = Sizes(args)
        self.large_works = []  # those that need most memory, and time to begin
        self.files = {}  # of the first mount's: size -> number of the mapping
        self.memory = {}  # bandwidths, measured once
        if args.tiers:
            self.device += "; with parked pages and --dedup home"

    def program(self, name):
        return os.path.join(self.args.build, "tests", "bench", name)

    def main(self):
        """The modelled device; what it costs in fact is memory's."""
        room = sum(self.sizes.mapped) + 2 * max(self.sizes.data, self.sizes.hashed) + 64 * MIB
        return self.mounted("main", "%d,strict=off,%s" % (room, MODEL), 2 * GIB)[0]

    def mapping(self, size, name=None):
        """Of a sparse file (or the named one, of data) of the first mount: its number."""
        key = name or size
        if key not in self.files:
            if size > GIB and available() < size + 4 * GIB:
                raise Lacking("only %s of memory are available" % size_text(available() // GIB * GIB))
            mount = self.main()
            path = mount.make(name or "sparse-%d" % size, size, sparse=not name)
            at = mount.worker.map(path)
            start = time.monotonic()
            self.touch(mount, at)
            self.files[key] = at
            if self.large_works and not name:
                self.limit.took[self.large_works[0][0]] = \
                    GUESS_S + (time.monotonic() - start) * self.sizes.mapped[-1] / size
        return self.files[key]

    @staticmethod
    def touch(mount, at):
        """The device gets all of it, also for writing; nothing is left to be done."""
        for prot in "r", "rw":
            mount.worker.ask("acquire", at, prot)
            mount.worker.ask("release", at)

    @staticmethod
    def few(rnd):
        """The turns of a round of what takes a second or so."""
        return range(rnd * FEW, (rnd + 1) * FEW)

    def copy_time(self, size):
        """A memcpy by one thread, as the simulated device has one."""
        return self.main().worker.time("copy", size, 1)

    # -- nothing changed

    def nothing_changed(self):
        section = "nothing changed; peer: an ioctl that the daemon answers"
        last = self.sizes.mapped[-1]
        for size in self.sizes.mapped:
            rows = {}
            for prot, word in ("r", "read"), ("rw", "write"):
                rows[prot] = self.row(section, "acquire, %s, %s" % (word, size_text(size)), "time", most=3)
            rows["release"] = self.row(section, "release after read, %s" % size_text(size), "time", most=3)
            self.work(list(rows.values()), self.same, rows, size, to=self.large_works if size == last else None)
        first = self.sizes.mapped[0]
        rows = {prot: self.row("nothing changed, %s; peer: %s" % (size_text(last), size_text(first)),
                               "acquire, %s" % word, "time", most=1.5)
                for prot, word in (("r", "read"), ("rw", "write"))}
        self.work(list(rows.values()), self.large_and_small, rows, first, last, to=self.large_works)

    def take_turns(self, prot, *sizes):
        """[[(ioctl, acquire, release) of each size] of each turn]."""
        mappings = [self.mapping(size) for size in sizes]
        samples = self.sizes.samples
        if max(sizes) >= GIB:
            samples = max(3, samples // (8 if max(sizes) > GIB or prot == "rw" else 2))
        numbers = self.main().worker.ask("rounds", samples, prot, *mappings)
        threes = list(zip(*[iter(numbers)] * 3))
        return list(zip(*[iter(threes)] * len(sizes)))

    def same(self, _rnd, rows, size):
        for prot in "r", "rw":
            for (asked, acquired, released), in self.take_turns(prot, size):
                rows[prot].add(pair(asked, acquired))
                if prot == "r":
                    rows["release"].add(pair(asked, released))

    def large_and_small(self, _rnd, rows, first, last):
        for prot in "r", "rw":
            for small, large in self.take_turns(prot, first, last):
                rows[prot].add(pair(small[1], large[1]))

    # -- the same in instructions

    def instructions(self):
        whats = ["acquire read", "acquire write", "release read"]
        base = self.sizes.mapped[0]
        section = "nothing changed, instructions; peer: %s" % size_text(base)
        for size in self.sizes.counted:
            self.count_rows(section, whats, size_text(size), (size, 1), (base, 1))
        section = "nothing changed, instructions, %s; peer: 1 device" % size_text(base)
        for devices in self.sizes.devices:
            self.count_rows(section, whats, "%d devices" % devices, (base, devices), (base, 1))

    def count_rows(self, section, whats, text, of, base):
        rows = {what: self.row(section, "%s, %s" % (what.replace(" ", ", "), text), "count", most=1.05)
                for what in whats}

        def measure(_rnd):
            if self.args.quick and of[0] > GIB:
                raise Lacking("--quick leaves it out")
            theirs, ours = self.count_instructions(*base), self.count_instructions(*of)
            for what, row in rows.items():
                row.add(pair(theirs[what], ours[what]))
        self.work(list(rows.values()), measure, to=self.counts)

    def count_instructions(self, size, devices):
        """{what: instructions}, by callgrind."""
        if (size, devices) not in self.memory:
            self.memory[size, devices] = count_instructions(self.place, self.program("counts"), str(size // MIB), str(devices))
        return self.memory[size, devices]

    def metadata(self):
        size = self.sizes.counted[-1]
        row = self.row("metadata; peer: 16 bytes", "bytes a page and device, %s mapped" % size_text(size), "count",
                       most=1)

        def measure(_rnd):
            said = run(self.program("counts"), str(size // MIB), "1", timeout=300)
            row.add(pair(16, float(re.search(r"^bytes (\S+)$", said, re.M).group(1))))
        self.work([row], measure, to=self.counts)

    # -- some pages changed

    def some_changed(self):
        small, large = self.sizes.mapped[1], self.sizes.mapped[-1]
        for k in self.sizes.changed:
            if k > small // PAGE:
                continue
            section = "acquire, %d page%s changed" % (k, "s" * (k != 1))
            counts = {}
            for size in small, large:
                counts[size] = [self.row(section, "bytes moved, %s; peer: 4 KiB a page" % size_text(size), "size",
                                         least=1, most=1),
                                self.row(section, "operations, %s; peer: 2 + k / 4096" % size_text(size), "count",
                                         most=1)]
            row = self.row(section, "time, %s; peer: of %s" % (size_text(large), size_text(small)), "time", most=1.1)
            self.work(counts[small], self.count_changed, counts[small], k, small)
            self.work([row] + counts[large], self.time_changed, row, counts, k, small, large, to=self.large_works)

    def acquire_changed(self, rows, k, size):
        """How long it takes."""
        mount, change = self.main(), {}
        at = self.mapping(size)
        mount.worker.ask("write", at, k)
        with mount.counted(change):
            ns = mount.worker.time("acquire", at, "r")
        mount.worker.ask("release", at)
        rows[0].add(pair(k * PAGE, change["device_bytes_in"] + change["device_bytes_out"]))
        rows[1].add(pair(2 + k // 4096, change["device_operations"]))
        return ns

    def count_changed(self, _rnd, rows, k, size):
        self.acquire_changed(rows, k, size)

    def time_changed(self, rnd, row, counts, k, small, large):
        for n in self.few(rnd):
            times = {size: self.acquire_changed(counts[size], k, size) for size in turn([small, large], n)}
            row.add(pair(times[small], times[large]))

    # -- releases

    def release_unwritten(self):
        size = self.sizes.hashed
        section = "release after write, nothing written, %s" % size_text(size)
        rows = [self.row(section, "rate; peer: XXH3 by all cores", "bytes", least=0.9),
                self.row(section, "modelled rate; peer: the model's local memory", "bytes", least=0.9),
                self.row(section, "operations; peer: 1 a 64 MiB", "count", most=1)]
        self.work(rows, self.release_hashes, rows, size)

    def release_hashes(self, rnd, rows, size):
        mount, change, times = self.main(), {}, {}
        at = self.mapping(size)
        for n in self.few(rnd):
            for who in turn([PEER, OURS], n):
                if who == PEER:
                    times[who] = mount.worker.time("hash", size, CORES)
                    continue
                mount.worker.ask("acquire", at, "rw")
                with mount.counted(change):
                    times[who] = mount.worker.time("release", at)
            rows[0].add({who: size * 1e9 / ns for who, ns in times.items()})
            rows[1].add(pair(LOCAL, size * 1e9 / max(change["sim_ns"], 1)))
            rows[2].add(pair(max(size // (64 * MIB), 1), change["device_operations"]))

    # -- latency

    def latency(self):
        size = self.sizes.data
        section = "latency of %d µs an operation; peer: none" % LATENCY_US
        rows = [self.row(section, "first acquire of %s, hot in home" % size_text(size), "time", most=1.1),
                self.row(section, "release after write of %s" % size_text(size), "time", most=1.1)]
        self.work(rows, self.with_and_without, rows, size)

    def own_mount(self, name, device, size, **more):
        """With one mapped file, "data", of which device and home have all."""
        room = 2 * size + 64 * MIB
        mount, new = self.mounted(name, "%d,strict=off%s" % (room, device), room, **more)
        if new:
            mount.worker.map(mount.make("data", size))
            self.touch(mount, 0)
        return mount

    def with_and_without(self, rnd, rows, size):
        acquired, released = {}, {}
        for n in self.few(rnd):
            for who, device in turn([(PEER, ""), (OURS, ",latency=%d" % LATENCY_US)], n):
                mount = self.own_mount("latency-" + who, device, size)
                mount.evict("data", "device 0")
                acquired[who] = mount.worker.time("acquire", 0, "r")
                mount.worker.ask("release", 0)
                mount.worker.ask("acquire", 0, "rw")
                released[who] = mount.worker.time("release", 0)
            rows[0].add(acquired)
            rows[1].add(released)

    # -- to the device

    def to_device(self):
        size = self.sizes.data
        section = "file to device, %s, the replica is there" % size_text(size)
        hot = [self.row(section, "hot in home; peer: memcpy by one thread", "bytes", least=0.95),
               self.row(section, "hot in home, modelled; peer: the model's bus", "bytes", least=0.95)]
        self.work(hot, self.changed_part, hot, size, 1.0)
        cold = [self.row(section, "cold everywhere; peer: fio, direct, best depth", "bytes", least=0.95)]
        self.work(cold, self.cold_to_device, cold, size)
        section = "acquire of %s, of which some changed; peer: to copy all of it" % size_text(size)
        for part, least in (0.01, 8), (0.25, 3), (1.0, 0.95):
            rows = [self.row(section, "%d %%%s" % (part * 100, text), "bytes", least=least)
                    for text in (", memcpy by one thread", ", modelled")]
            self.work(rows, self.changed_part, rows, size, part)

    def changed_part(self, rnd, rows, size, part):
        """In bytes of all of it a second."""
        mount, change, times = self.main(), {}, {}
        at = self.mapping(size, "data")
        for n in self.few(rnd):
            mount.worker.ask("write", at, max(int(size // PAGE * part), 1))
            for who in turn([PEER, OURS], n):
                if who == PEER:
                    times[who] = self.copy_time(size)
                    continue
                with mount.counted(change):
                    times[who] = mount.worker.time("acquire", at, "r")
                mount.worker.ask("release", at)
            rows[0].add({who: size * 1e9 / ns for who, ns in times.items()})
            rows[1].add(pair(BUS, size * 1e9 / max(change["sim_ns"], 1)))

    def cold_to_device(self, rnd, rows, size):
        mount, rates = self.main(), {}
        at = self.mapping(size, "data")
        mount.worker.ask("write", at, size // PAGE)
        for who in turn([PEER, OURS], rnd):
            mount.forget_but_on_device("data")
            if who == PEER:
                rates[who] = self.best_fio(mount, "read", "1m", [1, 8, 32])
            else:
                rates[who] = size * 1e9 / mount.worker.time("acquire", at, "r")
                mount.worker.ask("release", at)
        rows[0].add(rates)

    @staticmethod
    def best_fio(mount, *args, **more):
        return fio.best_direct(os.path.join(mount.system.below, "data"), *args, **more)

    # -- window by window

    def readahead(self):
        size, window = self.sizes.data, self.sizes.window
        row = self.row("%s through %s, computing as long as a copy takes" % (size_text(window), size_text(size)),
                       "bus of a third of memcpy; peer: the copies alone", "time", most=1.1)
        self.work([row], self.window_by_window, row, size, window)

    def window_by_window(self, rnd, row, size, window):
        if "bandwidth" not in self.memory:
            self.memory["bandwidth"] = int(size * 1e9 / self.copy_time(size) / 3)
        mount = self.own_mount("windows", ",bandwidth=%d" % self.memory["bandwidth"], size)

        def go(compute):
            mount.worker.ask("write", 0, size // PAGE)
            return mount.worker.time("windows", 0, window, compute)
        if "window" not in self.memory:
            self.memory["window"] = go(0) // (size // window)
        times = {who: go(self.memory["window"] if who == OURS else 0) for who in turn([PEER, OURS], rnd)}
        row.add(times)

    # -- CPU programs

    def cpu_reads(self):
        section = "CPU reads of what only the device and the disk have; peer: the disk"
        size = self.sizes.data
        for title, how, block in ("random 4 KiB", "random", 4 * KIB), ("in order, 256 KiB", "order", 256 * KIB):
            rows = [self.row(section, title, "bytes", least=3)]
            self.work(rows, self.read_back, rows[0], size, how, block)

    def read_back(self, rnd, row, size, how, block):
        mount, rates = self.main(), {}
        at = self.mapping(size, "data")
        mount.worker.ask("acquire", at, "r")
        mount.worker.ask("release", at)
        count = min(size // block, 2000)
        for who in turn([PEER, OURS], rnd):
            mount.forget_but_on_device("data")
            if who == PEER:
                rates[who] = self.best_fio(mount, "randread" if how == "random" else "read",
                                           str(block), [1], io_size=count * block)
            else:
                rates[who] = count * block * 1e9 / mount.worker.time("read", at, block, count, how)
        row.add(rates)

    def both_write(self):
        section = "CPU and device write halves of the same 64 KiB, then one release; peer: private buffers, one merge"
        for steps in self.sizes.steps:
            row = self.row(section, "%d step%s" % (steps, "s" * (steps != 1)), "time",
                           most=1.02 if steps >= 10**5 else float("inf"))
            self.work([row], self.halves, row, steps)

    def halves(self, rnd, row, steps):
        mount = self.main()
        at = self.mapping(self.sizes.mapped[0])
        for n in range(self.sizes.samples):
            row.add({who: mount.worker.time("private", steps) if who == PEER else
                          mount.worker.time("halves", at, steps) for who in turn([PEER, OURS], rnd + n)})

    # -- sharing

    def shared(self):
        size = self.sizes.mapped[1]
        section = "device memory of two programs that read %s, to which the device cannot keep them; peer: the file" \
            % size_text(size)
        for title, user in ("who may write the file", None), ("who may not", NOBODY):
            row = self.row(section, title, "size", most=1)
            self.work([row], self.two_readers, row, size, user, to=self.counts)

    def two_readers(self, _rnd, row, size, user):
        if user is not None and os.geteuid():
            raise Lacking("only root can be another user")
        mount, _ = self.mounted("readers-%s" % user, "%d,strict=off,readonly=off" % (4 * size), 2 * size + 8 * MIB,
                                *([] if user is None else ["-o", "allow_other"]))
        path = mount.make("data", size)
        for _ in range(2):
            worker = mount.new_worker(user)
            worker.map(path, "r")
            worker.ask("acquire", 0, "r")
        row.add(pair(size, mount.device_used()))

    # -- files that are passed through

    def passed_through(self):
        size = self.sizes.data
        row = self.row("acquire of %s, passed through, that somebody may write" % size_text(size),
                       "nothing changed; peer: to read and compare it", "time", most=1.1)
        self.work([row], self.compared, row, size)

    def compared(self, rnd, row, size):
        mount = self.own_mount("auto", "", size, way="auto")
        residency = run(mount.system.gaia, "residency", mount.system.path("data"), "--json")
        if not json.loads(residency)["passthrough"]:
            raise Lacking("files are not passed through here (root, Linux 6.9, libfuse 3.17)")
        for n in self.few(rnd):
            times = {}
            for who in turn([PEER, OURS], n):
                if who == PEER:
                    times[who] = mount.worker.time("compare", 0)
                else:
                    times[who] = mount.worker.time("acquire", 0, "r")
                    mount.worker.ask("release", 0)
            row.add(times)

    # -- all of it

    def parts(self):
        """In the order of the table."""
        return [self.nothing_changed, self.instructions, self.some_changed, self.release_unwritten, self.latency,
                self.to_device, self.readahead, self.cpu_reads, self.both_write, self.shared, self.passed_through,
                self.metadata]

    def measure(self):
        """Measures everything; returns the number of whole rounds."""
        limit = self.limit = TimeLimit(self.args.seconds, guess=GUESS_S)
        progress = Progress()
        for add in self.parts():
            add()
        works = self.works + self.large_works
        if not works and not self.counts:
            raise RuntimeError("--only %s: there is no such work" % self.args.only)
        _, left = run_rounds(self.counts, 1, limit, progress)
        rounds, self.left_by_time = run_rounds(works, self.args.rounds if works else 0, limit, progress)
        self.left_by_time = left + self.left_by_time
        progress.end()
        return rounds


def arguments(given=None):
    parser = parser_of(Bench.name)
    parser.add_argument("--tiers", action="store_true")
    return parser.parse_args(given)


if __name__ == "__main__":
    sys.exit(pairs.main(Bench(arguments())))
