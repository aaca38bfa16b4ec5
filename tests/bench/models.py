#!/usr/bin/env python3
"""
scripts/bench models: models that many processes use, beside the package safetensors, read(2) and fio(1).

Figures are ratios of two that were taken in one round, one right after the other, or counts. The device is simulated: it is host
memory, and to bring something to it costs a copy.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
# pylint: disable=wrong-import-position
import fio
import pairs
from command import parser_of
from pairs import OURS, PEER, PairsBench, Worker, pair, size_text
from rounds import Progress, TimeLimit, run_rounds, turn
from systems import GIB, MIB, Lacking, run

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
PYTHON = os.path.join(SOURCE, "build-deps", "python", "bin", "python")
PROCESSES, READERS, TIMES = 8, 7, 5
SECOND_NS = 100 * 10**6  # noted: what the second process may take
ROUNDING = 1.01  # the header, and memory that is taken in units of 2 MiB


class Sizes:
    def __init__(self, args):
        self.model, self.tensor = 2 * GIB, 64 * MIB
        if args.smoke:
            self.model, self.tensor = 16 * MIB, MIB
        self.home = max(self.model // 4, 64 * MIB)


class Bench(PairsBench):
    name = "models"

    def __init__(self, args):
        super().__init__(args)
        self.sizes = Sizes(args)
        self.theirs = "safetensors"  # what it is called, and whether by PyTorch
        self.python = os.environ.get("GAIAFS_PYTHON", PYTHON)
        self.workers = []
        self.loaded = None  # bytes of the model's tensors

    # -- processes

    def new_worker(self):
        environment = dict(os.environ, PYTHONPATH=os.path.join(SOURCE, "client", "python"), PYTHONDONTWRITEBYTECODE="1",
                           LD_LIBRARY_PATH=os.path.join(os.path.abspath(self.args.build), "client"))
        try:
            worker = Worker([self.python, os.path.join(HERE, "lib", "models_worker.py")], env=environment)
        except OSError as error:
            raise Lacking("%s is not there: scripts/setup makes it" % self.python) from error
        self.stack.callback(worker.stop)
        try:
            has_torch, = worker.listen()
        except RuntimeError as error:
            raise Lacking("%s lacks packages of client/python/tests/requirements.txt: scripts/setup makes it (%s)"
                          % (self.python, str(error).splitlines()[-1])) from error
        self.theirs = "safetensors.torch, cloned" if has_torch else "safetensors.numpy, which copies"
        return worker

    def some_workers(self, n):
        """So many that have loaded nothing."""
        while len(self.workers) < n:
            self.workers.append(self.new_worker())
        for worker in self.workers:
            worker.ask("drop")
        return self.workers[:n]

    @staticmethod
    def all_ask(workers, *words):
        """The same of all, at the same time: their answers."""
        for worker in workers:
            worker.tell(*words)
        return [worker.listen() for worker in workers]

    # -- the mount, and the model

    def mount(self):
        sizes = self.sizes
        # By default pinned files have less of a device than this model.
        return self.mounted("models", str(sizes.model + 4 * sizes.tensor + 64 * MIB), sizes.home, "--pin-share", "100", way="auto")[0]

    def model(self, below=False):
        """Its name; it is made when it is needed first."""
        system = self.mount().system
        if self.loaded is None:
            self.loaded, = self.some_workers(1)[0].ask("make", os.path.join(system.below, "model"), self.sizes.model)
        return os.path.join(system.below if below else system.root, "model")

    def forget(self):
        """The model is on storage only."""
        mount = self.mount()
        self.model()
        self.some_workers(0)
        mount.system.forget_in_mount("model")
        mount.forget_but_on_device("model")

    def disk_reads(self):
        """Bytes that the daemon and the processes have had read from disks; 0 where that is not told."""
        total = 0
        for pid in [self.mount().status()["pid"]] + [worker.child.pid for worker in self.workers]:
            try:
                with open("/proc/%d/io" % pid) as file:
                    total += next(int(line.split()[1]) for line in file if line.startswith("read_bytes:"))
            except OSError:
                return 0
        return total

    # -- one copy

    def one_copy(self):
        section = "%d processes load one file of %s, cold" % (PROCESSES, size_text(self.sizes.model))
        rows = [self.row(section, "read from storage; peer: the file", "size", most=ROUNDING),
                self.row(section, "device memory; peer: the file", "size", most=ROUNDING),
                self.row(section, "home memory; peer: --home", "size", most=1)]
        self.work(rows, self.count_copies, rows, to=self.counts)

    def count_copies(self, _rnd, rows):
        mount, change = self.mount(), {}
        workers = self.some_workers(PROCESSES)
        self.forget()
        before, size = self.disk_reads(), os.path.getsize(self.model(below=True))
        with mount.counted(change):
            self.all_ask(workers, "load", self.model())
        status = mount.status()
        # What is read from the page cache of the directory below counts, too.
        rows[0].add(pair(size, max(self.disk_reads() - before, change["storage_reads"] * 4096)))
        rows[1].add(pair(size, status["devices"][0]["used"]))
        rows[2].add(pair(self.sizes.home, status["home"]["used"]))

    # -- the second process

    def second(self):
        section = "until a second process has all tensors of %s, and has touched each page" % size_text(self.sizes.model)
        rows = [self.row(section, "time; peer: 100 ms", "time", most=1),
                self.row(section, "time; peer: safetensors, a copy of each tensor, hot", "time", most=1 / 20)]
        self.work(rows, self.load_again, rows)

    def load_again(self, rnd, rows):
        first, other = self.some_workers(2)
        first.ask("load", self.model())
        times = {}
        for who in turn([PEER, OURS], rnd):
            if who == OURS:
                times[who] = other.time("load", self.model())
                other.ask("drop")
            else:
                with open(self.model(below=True), "rb") as file:
                    while file.read(MIB):
                        pass
                times[who] = other.time("theirs", self.model(below=True))
        rows[0].add(pair(SECOND_NS, times[OURS]))
        rows[1].add(times)

    # -- cold

    def cold(self):
        section = "cold load of %s, one process" % size_text(self.sizes.model)
        rows = [self.row(section, "rate; peer: fio, direct, best depth", "bytes", least=0.95),
                self.row(section, "rate; peer: the faster of safetensors and read(2)", "bytes", least=1)]
        self.work(rows, self.load_cold, rows)

    def load_cold(self, rnd, rows):
        worker, = self.some_workers(1)
        rates = {}
        for who in turn([OURS, "theirs", "read", "fio"], rnd):
            self.forget()
            if who == "fio":
                rates[who] = fio.best_direct(self.model(below=True), "read", "1m", [1, 8, 32])
                continue
            order, below = ("load", False) if who == OURS else (who, True)
            rates[who] = self.loaded * 1e9 / worker.time(order, self.model(below))
        self.some_workers(0)
        rows[0].add(pair(rates["fio"], rates[OURS]))
        rows[1].add(pair(max(rates["theirs"], rates["read"]), rates[OURS]))

    # -- pinned

    def pinned(self):
        section = "restart of all %d processes, the file is pinned" % PROCESSES
        rows = [self.row(section, "read from storage; peer: the file", "size", most=0),
                self.row(section, "moved to the device; peer: the file", "size", most=0)]
        self.work(rows, self.restart, rows, to=self.counts)

    def restart(self, _rnd, rows):
        mount, change = self.mount(), {}
        self.all_ask(self.some_workers(PROCESSES), "load", self.model())
        run(mount.system.gaia, "pin", self.model(), "--device", "0")
        try:
            for worker in self.workers:
                worker.stop()
            self.workers = []
            workers = self.some_workers(PROCESSES)
            with mount.counted(change):
                self.all_ask(workers, "load", self.model())
            rows[0].add(pair(self.loaded, change["storage_reads"] * 4096))
            rows[1].add(pair(self.loaded, change["device_bytes_in"]))
        finally:
            self.some_workers(0)
            run(mount.system.gaia, "unpin", self.model())

    # -- updates

    def replaced(self):
        section = "a tensor of %s replaced under %d readers, from host memory" % (size_text(self.sizes.tensor), READERS)
        rows = [self.row(section, "bytes moved to and from the device; peer: the tensor", "size", most=1),
                self.row(section, "mixtures seen; peer: arrays read", "count", most=0)]
        self.work(rows, self.replace, rows, to=self.counts)

    def replace(self, _rnd, rows):
        mount, size = self.mount(), self.sizes.tensor
        path = mount.system.path("tensor")
        writer, *readers = self.some_workers(1 + READERS)
        writer.ask("slots", path, size)
        self.all_ask(readers, "watch", path, size, 0)
        reads = mixtures = 0
        for value in range(1, TIMES + 1):
            change = {}
            with mount.counted(change):
                for reader in readers:
                    reader.tell("watch", path, size, value)
                writer.ask("put", path, size, value)
                for reader in readers:
                    some, mixed = reader.listen()
                    reads, mixtures = reads + some, mixtures + mixed
            rows[0].add(pair(size, change["device_bytes_in"] + change["device_bytes_out"]))
        rows[1].add(pair(reads, mixtures))

    # -- all of it

    def parts(self):
        """In the order of the table."""
        return [self.one_copy, self.second, self.cold, self.pinned, self.replaced]

    def measure(self):
        """Measures everything; returns the number of whole rounds."""
        self.limit = TimeLimit(self.args.seconds)
        progress = Progress()
        for add in self.parts():
            add()
        if not self.works and not self.counts:
            raise RuntimeError("--only %s: there is no such work" % self.args.only)
        _, left = run_rounds(self.counts, 1, self.limit, progress)
        rounds, self.left_by_time = run_rounds(self.works, self.args.rounds if self.works else 0, self.limit, progress)
        self.left_by_time = left + self.left_by_time
        progress.end()
        return rounds

    def facts(self, rounds):
        return dict(super().facts(rounds), peers=self.theirs)


def arguments(given=None):
    return parser_of(Bench.name).parse_args(given)


if __name__ == "__main__":
    sys.exit(pairs.main(Bench(arguments())))
