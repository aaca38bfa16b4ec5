#!/usr/bin/env python3
"""
scripts/bench watch: what it costs to be watched.

A mount whose metrics are scraped each second, and that `gaia top` shows, beside the same mount unwatched: requests of 4 KiB with O_DIRECT, one
after the other, each of which the daemon sees, to pages that are in home. Beside that a second mount which is not watched either: so much two
that are the same differ.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
# pylint: disable=wrong-import-position
from command import parser_of
from pairs import OURS, PEER, PairsBench, main
from rounds import Progress, TimeLimit, run_rounds, turn
from systems import MIB, Gaiafs, run

PAGE = 4096
FILE = "data"
SECOND = "second"  # neither is watched
WORKS = (("reads of 4 KiB", 0), ("half of them writes", 50))


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
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
                client.connect(self.metrics)
                client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                got = b""
                while (part := client.recv(1 << 16)):
                    got += part
                self.scrapes += got.rstrip().endswith(b"# EOF")

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
        if not self.works:
            raise RuntimeError("--only %s: there is no such work" % self.args.only)
        progress = Progress()
        rounds, self.left_by_time = run_rounds(self.works, self.args.rounds, TimeLimit(self.args.seconds), progress)
        progress.end()
        if not self.args.smoke and not self.mounted(OURS)[0].watched.scrapes:
            raise RuntimeError("no metrics were scraped")
        return rounds

    def both(self, rnd, row, noise, writes):
        times = {}
        for who in turn([PEER, OURS, SECOND], rnd):
            mount, _ = self.mounted(who)
            times[who] = mount.read(self.length // PAGE, self.count, writes)
        row.add({PEER: times[PEER], OURS: times[OURS]})
        noise.add({PEER: times[PEER], OURS: times[SECOND]})


def arguments(given=None):
    return parser_of(Bench.name).parse_args(given)


if __name__ == "__main__":
    sys.exit(main(Bench(arguments())))
