#!/usr/bin/env python3
"""
scripts/bench watch: what it costs to be watched.

A mount whose metrics are scraped each second, and that `gaia top` shows, beside the same mount unwatched: requests of 4 KiB with O_DIRECT, one
after the other, each of which the daemon sees, to pages that are in home. Beside that a second mount which is not watched either: so much two
that are the same differ. Time is noisy, so instructions are counted, too: of the daemon alone, for a request, a scrape and a look of `gaia top`.
"""

import contextlib
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
# pylint: disable=wrong-import-position
from command import parser_of
from pairs import OURS, PEER, PairsBench, main
from rounds import Progress, TimeLimit, run_rounds, turn
from systems import MIB, Gaiafs, Lacking, Missing, run

PAGE = 4096
FILE = "data"
SECOND = "second"  # neither is watched
WORKS = (("reads of 4 KiB", 0), ("half of them writes", 50))


def scrape(metrics):
    """Whether it is all there."""
    got = b""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(metrics)
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        while part := client.recv(1 << 16):
            got += part
    return got.rstrip().endswith(b"# EOF")


class Watched:
    """Somebody who looks at a mount all the time."""

    def __init__(self, system, metrics):
        self.metrics, self.ends, self.scrapes = metrics, threading.Event(), 0
        self.top = subprocess.Popen([system.gaia, "top", system.root, "1", "-b"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    start_new_session=True)
        self.thread = threading.Thread(target=self.scrape, daemon=True)
        self.thread.start()

    def scrape(self):
        while not self.ends.wait(1):
            self.scrapes += scrape(self.metrics)

    def stop(self):
        self.ends.set()
        self.thread.join()
        if self.top.poll() is not None:
            raise RuntimeError("gaia top has ended by itself: %d" % self.top.returncode)
        self.top.kill()
        self.top.wait()


class Mount:
    def __init__(self, bench, who):
        self.program = os.path.join(bench.args.build, "tests", "bench", "page_requests")
        metrics = os.path.join(bench.place, "metrics")
        self.system = Gaiafs(who, bench.place, bench.args.build, ["--cpu-cache", "writeback", "--device", "sim:%d" % (64 * MIB)] +
                             (["--metrics", "unix:" + metrics] if who == OURS else []))
        bench.stack.callback(self.system.stop)
        self.system.start()
        self.system.make_file(FILE, bench.length)
        self.watched, self.seed = None, 0
        if who == OURS:
            self.watched = Watched(self.system, metrics)
            bench.stack.callback(self.watched.stop)

    def read(self, pages, count, writes):
        """Nanoseconds."""
        self.seed += 1
        return int(run(self.program, self.system.path(FILE), str(pages), str(count), "uniform", str(self.seed), str(writes), timeout=300))


class Counted(Gaiafs):
    """A daemon whose instructions callgrind counts."""

    def __init__(self, name, place, build, options):
        self.out = os.path.join(place, "callgrind.out")
        self.metrics = os.path.join(place, "counted-metrics")
        super().__init__(name, place, build, ["--supervisor", "off", "--metrics", "unix:" + self.metrics, *options])
        self.process = None

    def start(self):
        if not shutil.which("valgrind"):
            raise Lacking("valgrind is not installed")
        # (Not a pipe: nobody reads meanwhile.)
        with open(self.out + ".said", "w", encoding="utf-8") as said:
            self.process = subprocess.Popen(["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=" + self.out, self.daemon, "-f", *self.options,
                                             self.below, self.root], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                                            start_new_session=True)
        until = time.monotonic() + 60
        while not os.path.ismount(self.root):
            if self.process.poll() is not None or time.monotonic() > until:
                with open(self.out + ".said", encoding="utf-8") as said:
                    raise Missing("does not mount under valgrind: %s" % said.read().strip())
            time.sleep(0.05)

    def instructions(self):
        """All of them; it is unmounted for that."""
        self.stop()
        self.process.wait(60)
        with open(self.out, encoding="utf-8") as file:
            return int(re.search(r"^(?:totals|summary): (\d+)", file.read(), re.M).group(1))


class Bench(PairsBench):
    name = "watch"
    device = "simulated; nothing is on it"
    names = {PEER: "unwatched", OURS: "watched"}
    order = "First unwatched, then watched"

    def __init__(self, args):
        super().__init__(args)
        self.length = MIB if args.smoke else 32 * MIB
        # As long as several scrapes.
        self.count = 200 if args.smoke else 150000
        self.counted = (500, 2) if args.smoke else (20000, 40)
        self.rates = []  # requests a second, unwatched
        self.times_counted = 0

    def mount_class(self, _bench, name):
        mount = Mount(self, name)
        mount.read(self.length // PAGE, 3 * self.length // PAGE, 0)
        return mount

    def measure(self):
        section = "requests of 4 KiB to home, O_DIRECT; peer: unwatched"
        for title, writes in WORKS:
            row = self.row(section, title + ": time, metrics scraped each second, and gaia top", "time", most=1.02)
            noise = self.row(section, title + ": time, unwatched, too", "time")
            self.work([row, noise], self.both, row, noise, writes)
        counted = self.row("instructions of the daemon, by callgrind, at the rate above; peer: unwatched",
                           "a second of reads of 4 KiB: metrics scraped once, gaia top has looked once", "count", most=1.02)
        counts = []
        self.work([counted], self.count_them, counted, to=counts)
        if not self.works and not counts:
            raise RuntimeError("--only %s: there is no such work" % self.args.only)
        progress = Progress()
        rounds, self.left_by_time = run_rounds(self.works, self.args.rounds, TimeLimit(self.args.seconds), progress)
        run_rounds(counts, 1, TimeLimit(self.args.seconds), progress)
        progress.end()
        if self.works and not self.args.smoke and not self.mounted(OURS)[0].watched.scrapes:
            raise RuntimeError("no metrics were scraped")
        return rounds

    def both(self, rnd, row, noise, writes):
        times = {}
        for who in turn([PEER, OURS, SECOND], rnd):
            mount, _ = self.mounted(who)
            times[who] = mount.read(self.length // PAGE, self.count, writes)
        if not writes:
            self.rates.append(self.count * 1e9 / times[PEER])
        row.add({PEER: times[PEER], OURS: times[OURS]})
        noise.add({PEER: times[PEER], OURS: times[SECOND]})

    def instructions(self, reads, scrapes, looks):
        self.times_counted += 1
        system = Counted("counted-%d" % self.times_counted, self.place, self.args.build, ["--cpu-cache", "writeback"])
        try:
            system.start()
            system.make_file(FILE, MIB)
            program = os.path.join(self.args.build, "tests", "bench", "page_requests")
            # Once each, for what the first takes.
            run(program, system.path(FILE), str(MIB // PAGE), str(2 * MIB // PAGE + reads), "uniform", "1", "0", timeout=300)
            for _ in range(1 + scrapes):
                if not scrape(system.metrics):
                    raise RuntimeError("what was scraped is not whole")
            run(system.gaia, "top", system.root, "0.1", str(2 + looks), "-b", timeout=300)
            return system.instructions()
        finally:
            system.stop()
            if system.process:
                system.process.kill()
                system.process.wait()

    def count_them(self, _rnd, row):
        reads, times = self.counted
        none = self.instructions(0, 0, 0)
        one = (self.instructions(reads, 0, 0) - none) / reads
        watched = (self.instructions(0, times, 0) - none + self.instructions(0, 0, times) - none) / times
        rate = statistics.median(self.rates) if self.rates else 50000
        row.add({PEER: one * rate, OURS: one * rate + watched})


def arguments(given=None):
    return parser_of(Bench.name).parse_args(given)


if __name__ == "__main__":
    sys.exit(main(Bench(arguments())))
