#!/usr/bin/env python3
"""
scripts/bench apps: the applications of client/examples, beside other ways to bring data to a device.

The device is simulated. What is modelled is the time of its model, of a GPU on PCIe 5, for what moves and for each round trip: it
says nothing of computing. Peers that copy by themselves have the same model, in client/examples/shared/moved.h. What is not
modelled is time on this machine, where processors play the device.
"""

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
from command import parser_of
from pairs import OURS, PEER, PairsBench, main, pair
from rounds import Progress, TimeLimit, run_rounds, turn
from systems import MIB, Gaiafs, Lacking, Missing, run

PAGE = 4096
MODEL = "bandwidth=%d,local=%d,latency=10,submit=3,wait=off,strict=off" % (55 * 10**9, 4300 * 10**9)
SKIPPED = 77
SHARES = [0.1, 1, 5, 25, 50, 75, 100]  # percent of the weights that an update changes
GOALS = {1: 8, 25: 3, 100: 0.95}
CLUSTERED, UNIFORM = "neighbours", "anywhere"
ROUNDS = 3  # of the application, for one figure
# What the paper (GAIA, ATC'19) says: sssp beats copying below so many percent, by up to so many times; how many times as fast as
# unified memory the collage is, hot and cold, and the stitching, end to end.
PAPER_EVEN, PAPER_BEST, PAPER_HOT, PAPER_COLD, PAPER_STITCH = 75, 8, 9, 6, 1.31


class Sizes:
    def __init__(self, args):
        if args.smoke:
            self.graph, self.tiles, self.scene, self.images, self.side = "rmat:10", 2000, "128x96", "3x3", 128
        elif args.quick:
            self.graph, self.tiles, self.scene, self.images, self.side = "rmat:18", 60000, "512x384", "8x6", 256
        else:
            self.graph, self.tiles, self.scene, self.images, self.side = "rmat:22", 1000000, "512x384", "16x12", 512
        self.candidates = self.tiles // 64  # with these about a quarter of the tiles are wanted
        self.shares = [1, 25] if args.smoke else SHARES


class Bench(PairsBench):
    name = "apps"
    device = "simulated, modelled: " + MODEL

    def __init__(self, args):
        super().__init__(args)
        self.sizes = Sizes(args)
        self.speedups = {}  # for the plot: (system, which weights, share): [times of copying, of each round]
        self.pictures = []
        self.in_home = set()  # the collages' parts whose files home has

    # -- files and programs

    def program(self, name):
        path = os.path.join(self.args.build, "client", "examples", name)
        if not os.path.exists(path):
            raise Lacking("%s was not built%s" % (name, ": it needs libpng" if name == "collage" else ""))
        return path

    def ask(self, directory, name, *words):
        """The lines that it prints: {what: {...}}."""
        done = subprocess.run([self.program(name), "--json", *map(str, words)], cwd=directory, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=3600)
        if done.returncode == SKIPPED:
            raise Lacking(done.stderr.strip())
        if done.returncode:
            raise RuntimeError("%s: %s" % (" ".join(map(str, done.args)), done.stderr.strip()))
        return {line["what"]: line for line in map(json.loads, done.stdout.splitlines())}

    def mounted(self, name, device_bytes, make):
        """A mount of its own for an application, with the files that @make (a command) makes, beneath it and beside it."""
        if name not in self.mounts:
            system = Gaiafs(name, self.place, self.args.build, [
                "--device", "sim:%d,%s" % (max(device_bytes // (2 * MIB) * 2 * MIB, 4 * MIB), MODEL), "--cpu-cache", "writeback",
                "--home", str(max(2 * device_bytes, 64 * MIB))])
            plain = os.path.join(self.place, name + ".plain")
            os.mkdir(plain)
            self.stack.callback(system.stop)
            for directory in system.below, plain:
                self.ask(directory, make[0], *make[1:])
            system.start()
            self.mounts[name] = system, plain
        return self.mounts[name]

    @staticmethod
    def forget(path):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    # -- sssp

    def sssp_directories(self):
        scale = int(self.sizes.graph.split(":")[1])
        system, plain = self.mounted("sssp", (1 << scale) * (32 * 12 + 8) + 32 * MIB,
                                     ["sssp", "--make", self.sizes.graph, "--rounds", 0, "input"])
        return {"gaia": system.root, "copy": plain, "strict": plain}

    def sssp(self):
        for which in CLUSTERED, UNIFORM:
            for share in self.sizes.shares:
                section = "sssp, %s, updates change weights %s" % (self.sizes.graph, which)
                rows = [self.row(section, "%g %%, modelled; peer: copying the file" % share, "bytes",
                                 GOALS.get(share, 0) if which == CLUSTERED else 0),
                        self.row(section, "%g %%, bytes moved; peer: copying" % share, "size"),
                        self.row(section, "%g %%, modelled; peer: strict coherence by pages (emulation)" % share, "bytes")]
                self.work(rows, self.shortest_paths, rows, which, share)

    def shortest_paths(self, rnd, rows, which, share):
        """Rates: bytes of the whole file in each round."""
        said, rates = {}, {}
        directories = self.sssp_directories()
        options = ["--rounds", ROUNDS, "--changed", share, "--check", "last"] + (["--uniform"] if which == UNIFORM else [])
        for mode in turn(["copy", "strict", "gaia"], rnd):
            try:
                said[mode] = self.ask(directories[mode], "sssp", "--mode", mode, *options, "input")["rounds"]
            except Lacking as why:
                self.missing["sssp, strict coherence"] = str(why)
                self.excused.append(rows[2])
                continue
            rates[mode] = said[mode]["file"] * ROUNDS * 1e9 / max(said[mode]["model_ns"], 1)
            self.speedups.setdefault((mode, which, share), [])
        rows[0].add(pair(rates["copy"], rates["gaia"]))
        rows[1].add(pair(said["copy"]["bytes_in"], max(said["gaia"]["bytes_in"], 1)))
        if "strict" in rates:
            rows[2].add(pair(rates["strict"], rates["gaia"]))
        for mode, rate in rates.items():
            self.speedups[mode, which, share].append(rate / rates["copy"])

    # -- collage

    def collage_directories(self, part=1):
        """@part: of TILES, how much the device holds beside OUT."""
        wide, high = map(int, self.sizes.scene.split("x"))
        out = wide * high * 12
        return self.mounted("collage-%d" % (1 / part), int(self.sizes.tiles * PAGE * part * 4 / 3) + 2 * out + 16 * MIB,
                            ["collage", "--make", self.sizes.tiles, "input"])

    def collage(self):
        section = "collage, %d tiles of a page, of which about a quarter is wanted" % self.sizes.tiles
        hot = [self.row(section, "hot, modelled; peer: reading the file whole", "bytes", 3.4),
               self.row(section, "hot, modelled; peer: page by page (emulation)", "bytes", 9),
               self.row(section, "bytes moved; peer: reading the file whole", "size")]
        self.work(hot, self.collage_hot, hot, 1)
        small = [self.row(section, "hot, by a device a third as large, modelled; peer: reading the file whole", "bytes", 3.4)]
        self.work(small, self.collage_hot, small, 1 / 3)
        cold = [self.row(section, "cold, to bring the pages; peer: fio, direct, just so many, depth 32", "bytes", 0.9),
                self.row(section, "cold, all of it; peer: page by page (emulation)", "bytes", 6)]
        self.work(cold, self.collage_cold, cold)

    def options_of_collage(self):
        return ["--scene", self.sizes.scene, "--candidates", self.sizes.candidates, "--check", "none"]

    def collage_hot(self, rnd, rows, part):
        """The file is in host memory, and nothing of it on the device."""
        system, plain = self.collage_directories(part)
        said, rates = {}, {}
        if part not in self.in_home:
            # The files were made below: this brings to host memory what all the following need.
            self.ask(system.root, "collage", "--mode", "gaia", *self.options_of_collage(), "input", "out")
            self.in_home.add(part)
        for mode in turn(["copy", "gaia"] + (["strict"] if len(rows) > 1 else []), rnd):
            if mode == "gaia":
                run(system.gaia, "evict", system.path("input"), "--from", "device", "0")
            try:
                lines = self.ask(system.root if mode == "gaia" else plain, "collage", "--mode", mode, *self.options_of_collage(),
                                 "input", "out")
            except Lacking as why:
                if mode != "strict":
                    raise
                self.missing["collage, strict coherence"] = str(why)
                self.excused.append(rows[1])
                continue
            said[mode] = lines["first"]
            rates[mode] = self.sizes.tiles * PAGE * 1e9 / max(said[mode]["model_ns"], 1)
        rows[0].add(pair(rates["copy"], rates["gaia"]))
        if len(rows) > 1:
            rows[2].add(pair(said["copy"]["bytes_in"], said["gaia"]["bytes_in"]))
            if "strict" in rates:
                rows[1].add(pair(rates["strict"], rates["gaia"]))

    def collage_cold(self, rnd, rows):
        """Neither device nor host memory have anything of the file."""
        if not shutil.which("fio"):
            raise Lacking("fio is not installed")
        system, plain = self.collage_directories()
        below, rates, whole = os.path.join(system.below, "input"), {}, {}
        for mode in turn(["gaia", "strict", "fio"], rnd):
            if mode == "gaia":
                system.forget_in_mount("input")
            self.forget(below)
            self.forget(os.path.join(plain, "input"))
            if mode == "fio":
                continue
            try:
                said = self.ask(system.root if mode == "gaia" else plain, "collage", "--mode", mode, *self.options_of_collage(),
                                "input", "out")["rounds"]
            except Lacking as why:
                if mode == "gaia":
                    raise
                self.missing["collage, strict coherence"] = str(why)
                self.excused.append(rows[1])
                continue
            whole[mode] = said["wanted"] * PAGE * 1e9 / said["ns"]
            if mode == "gaia":
                rates[OURS], wanted = said["wanted"] * PAGE * 1e9 / max(said["acquire_ns"], 1), said["wanted"]
        said = run("fio", "--output-format=json", "--name=peer", "--rw=randread", "--bs=4k", "--iodepth=32", "--ioengine=libaio",
                   "--direct=1", "--allow_file_create=0", "--filename=" + below, "--io_size=%d" % (wanted * PAGE), timeout=600)
        rates[PEER] = json.loads(said[said.index("{"):])["jobs"][0]["read"]["bw_bytes"]
        rows[0].add(rates)
        if "strict" in whole:
            rows[1].add(pair(whole["strict"], whole["gaia"]))

    # -- stitch

    def stitch(self):
        section = "stitch, %s images of %d pixels each way, by a device and the CPU" % (self.sizes.images, self.sizes.side)
        rows = [self.row(section, "end to end, on this machine; peer: strict coherence by pages (emulation)", "bytes", 1.31),
                self.row(section, "modelled; peer: strict coherence by pages (emulation)", "bytes"),
                self.row(section, "modelled; peer: copying the files", "bytes"),
                self.row(section, "operations; peer: strict coherence by pages (emulation)", "count")]
        self.work(rows, self.stitched, rows)

    def stitched(self, rnd, rows):
        columns, images = map(int, self.sizes.images.split("x"))
        size = columns * images * self.sizes.side**2
        system, plain = self.mounted("stitch", 4 * size + 32 * MIB,
                                     ["stitch", "--make", self.sizes.images, "--side", self.sizes.side, "--changed", 100, "input"])
        said, wall, model = {}, {}, {}
        for mode in turn(["strict", "copy", "gaia"], rnd):
            try:
                lines = self.ask(system.root if mode == "gaia" else plain, "stitch", "--mode", mode, "--rounds", ROUNDS, "--changed",
                                 100, "--check", "last", "input", "out")
            except Lacking as why:
                if mode != "strict":
                    raise
                self.missing["stitch, strict coherence"] = str(why)
                self.excused += [rows[0], rows[1], rows[3]]
                continue
            said[mode] = lines["rounds"]
            wall[mode] = size * (ROUNDS + 1) * 1e9 / said[mode]["ns"]
            model[mode] = size * ROUNDS * 1e9 / max(said[mode]["model_ns"], 1)
        rows[2].add(pair(model["copy"], model["gaia"]))
        if "strict" in wall:
            rows[0].add(pair(wall["strict"], wall["gaia"]))
            rows[1].add(pair(model["strict"], model["gaia"]))
            rows[3].add(pair(said["strict"]["operations"], said["gaia"]["operations"]))

    # -- pictures of what they make

    def draw_examples(self):
        commands = {"sssp": ["--make", "grid:480x320", "--rounds", 2, "input"],
                    "collage": ["--scene", "512x384", "--shrink", 2, "input", "out"],
                    "stitch": ["input", "out"]}
        for name, words in commands.items():
            picture = os.path.join(os.path.abspath(self.args.out), "apps-%s.png" % name)
            with contextlib.suppress(Missing):
                with tempfile.TemporaryDirectory(dir=self.place) as place:
                    if name != "sssp":
                        self.ask(place, name, "--make", *([20000] if name == "collage" else ["4x3"]), "input")
                    self.ask(place, name, "--mode", "mmap", "--png", picture, *words)
                    self.pictures.append(picture)

    # -- all of it

    def measure(self):
        limit = TimeLimit(self.args.seconds, guess=10)
        progress = Progress()
        for add in self.sssp, self.collage, self.stitch:
            add()
        if not self.works:
            raise RuntimeError("--only %s: there is no such work" % self.args.only)
        rounds, self.left_by_time = run_rounds(self.works, self.args.rounds, limit, progress)
        progress.end()
        if not self.args.only:
            self.draw_examples()
        return rounds

    def lines(self):
        """Of the plot: [(title, [(percent, times of copying)])]."""
        names = {"gaia": "gaiafs", "strict": "strict coherence by pages (emulation)"}
        lines = []
        for mode in "gaia", "strict":
            for which in CLUSTERED, UNIFORM:
                points = [(share, sorted(times)[len(times) // 2]) for (is_mode, is_which, share), times in self.speedups.items()
                          if (is_mode, is_which) == (mode, which) and times]
                if points:
                    lines.append(("%s, weights %s" % (names[mode], which), sorted(points)))
        return lines

    def bars(self):
        """[(title, ours, the paper's)]."""
        wanted = {"hot, modelled; peer: page by page (emulation)": ("collage, hot", PAPER_HOT),
                  "cold, all of it; peer: page by page (emulation)": ("collage, cold", PAPER_COLD),
                  "end to end, on this machine; peer: strict coherence by pages (emulation)": ("stitch, end to end", PAPER_STITCH)}
        return [(wanted[row.title][0], row.ratio(OURS, PEER)[0], wanted[row.title][1]) for row in self.rows
                if row.title in wanted and row.is_measured()]

    def draw(self, path, measured, facts):
        return plot.draw_apps(path, self.lines(), self.bars(), facts, PAPER_EVEN, PAPER_BEST) + self.pictures


def arguments(given=None):
    return parser_of("apps").parse_args(given)


if __name__ == "__main__":
    sys.exit(main(Bench(arguments())))
