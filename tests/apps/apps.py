#!/usr/bin/env python3
"""
apps.py BUILD APP [--short] - one of the applications of client/examples (sssp, collage, stitch), on small files, in each of the kernel's ways
of caching.

The applications compare all that they compute with a reference of the CPU's, byte by byte, and end with 1 if a byte differs. So a
test has them work beside other programs, under kill -9, on devices that are too small, and looks at how they end and at what they
say moved. --short: fewer repetitions, for builds that are slow.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

WAYS = ["auto", "writeback", "writethrough"]
BUILD, APP = "", ""
PAGE = 4096
SKIPPED = 77
HANG_S = 100
MODEL = "bandwidth=55000000000,local=4300000000000,latency=10,submit=3,wait=off"


class App:
    """How to call one of them. @made: the file that updates change. @out: what it writes, if anything. @pause_ms: between
    updates; a round has to fit between two of them sometimes."""

    def __init__(self, make, run, made, out, rounds, pause_ms):
        self.make, self.run, self.made, self.out, self.rounds, self.pause_ms = make, run, made, out, rounds, pause_ms
        self.kills = 8


APPS = {
    "sssp": App(["--make", "rmat:10", "--rounds", "0", "input"], ["input"], "input.weights", None, 100, 10),
    "collage": App(["--make", "2000", "input"], ["--scene", "128x96", "input", "out"], "input", "out", 12, 30),
    "stitch": App(["--make", "3x3", "--side", "128", "input"], ["input", "out"], "input", "out", 12, 30),
}


def program(name=None):
    return os.path.join(BUILD, "client", "examples", name or APP)


def started(directory, *options, app=None):
    return subprocess.Popen([program(app), *options], cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def kill(child):
    child.send_signal(signal.SIGKILL)
    child.communicate()


class Mount:
    """A directory `mnt` of its own under gaiafs, and one `plain` that no gaiafs knows."""

    daemon = os.path.join("daemon", "gaiafs")

    def __init__(self, way, device, *options):
        self.way = way
        self.place = tempfile.mkdtemp(prefix="apps.")
        self.below, self.mnt, self.plain = (os.path.join(self.place, name) for name in ("below", "mnt", "plain"))
        for path in self.below, self.mnt, self.plain:
            os.mkdir(path)
        done = subprocess.run([os.path.join(BUILD, self.daemon), "--cpu-cache", way, "--device", device, *options, self.below,
                               self.mnt], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              timeout=HANG_S, check=False)
        if done.returncode:
            shutil.rmtree(self.place)
            raise RuntimeError(done.stderr)

    def gaia(self, *words):
        return subprocess.run([os.path.join(BUILD, "client", "gaia"), *words], check=True, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=HANG_S).stdout

    def mappings(self):
        """Of all clients together. (Who asks is one, without.)"""
        return sum(client["mappings"] for client in json.loads(self.gaia("status", self.mnt, "--json"))["clients"])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            self.gaia("umount", self.mnt)
        except subprocess.SubprocessError as error:
            print("cannot unmount: %s" % error.stderr)
            subprocess.run([os.path.join(BUILD, "client", "gaia"), "umount", "--force", self.mnt], check=False)
            if not kind:
                raise
        finally:
            shutil.rmtree(self.place, ignore_errors=True)


class Applications(unittest.TestCase):
    def setUp(self):
        self.app = APPS[APP]

    # -- what tests share

    def done(self, child, what=""):
        """Wait for it; it has succeeded: its lines, as JSON."""
        try:
            out, err = child.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            kill(child)
            self.fail("%s hangs" % (what or child.args))
        self.assertEqual(child.returncode, 0, "%s: %s%s" % (what or child.args, out, err))
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def run_in(self, directory, *options):
        return self.done(started(directory, "--json", *options, *self.app.run))

    def make(self, directory, changed=1):
        self.done(started(directory, "--changed", str(changed), *self.app.make))

    def bytes_of(self, directory):
        with open(os.path.join(directory, self.app.out), "rb") as file:
            return file.read()

    def epoch(self, directory):
        with open(os.path.join(directory, self.app.made), "rb") as file:
            file.seek(8)
            return int.from_bytes(file.read(8), "little")

    def each_way(self, device, *options, ways=None):
        """Mounts with the application's files in them."""
        for way in ways or WAYS:
            with self.subTest(way=way), Mount(way, device, *options) as mount:
                self.make(mount.mnt)
                yield mount

    def owners(self, devices):
        """Options for so many owners that share the work and, where that can be, the CPU beside them."""
        return [] if APP == "sssp" else ["--devices", str(devices)] + (["--cpu"] if APP == "collage" else [])

    # -- tests

    def test_what_moves_is_what_changed_and_all_ways_of_moving_it_give_the_same(self):
        options = ["--rounds", "3", "--changed", "1"]
        for mount in self.each_way("sim:64M," + MODEL):
            first_said = rounds = None
            for mode in "gaia", "copy", "mmap", "strict":
                if mode != "gaia":
                    self.make(mount.plain)
                child = started(mount.mnt if mode == "gaia" else mount.plain, "--json", "--mode", mode, *options, *self.app.run)
                if mode == "strict":
                    child.wait(HANG_S)
                    if child.returncode == SKIPPED:
                        print("no strict coherence here: %s" % child.communicate()[1].strip())
                        continue
                said = self.done(child, mode)[-1]
                self.assertEqual(said["checked"], 4, mode)
                if mode == "mmap":
                    self.assertEqual(said["bytes_in"] + said["operations"], 0)
                if mode == "gaia":
                    rounds = said
                    self.assertGreater(said["model_ns"], 0)
                elif mode == "copy":
                    self.assertGreaterEqual(said["bytes_in"], 3 * os.path.getsize(os.path.join(mount.plain, self.app.made)) - 3 * PAGE)
                    self.assertLess(rounds["bytes_in"], said["bytes_in"])
                same = said["sum"] if not self.app.out else self.bytes_of(mount.mnt if mode == "gaia" else mount.plain)
                first_said = first_said or same
                self.assertEqual(same, first_said, mode)
            if APP == "sssp":
                # Neighbours: so many weights lie in so many pages; and the page with the epoch.
                weights = os.path.getsize(os.path.join(mount.mnt, self.app.made)) - PAGE
                self.assertLessEqual(rounds["bytes_in"], 3 * (weights // 100 + 3 * PAGE))

    def test_beside_a_program_that_updates_all_the_time(self):
        for mount in self.each_way("sim:64M,count=2"):
            updater = started(mount.mnt, "--update", "--pause", str(self.app.pause_ms), "input")
            try:
                said = self.run_in(mount.mnt, "--no-updates", "--rounds", str(self.app.rounds), *self.owners(2))[-1]
                # It goes on; how often it came to it meanwhile depends on the machine.
                end = time.monotonic() + HANG_S
                while self.epoch(mount.mnt) <= 4:
                    self.assertLess(time.monotonic(), end, "it does not update")
                    time.sleep(0.01)
            finally:
                kill(updater)
            self.assertEqual(said["checked"], self.app.rounds + 1)

    def test_programs_on_one_device_and_on_two_disturb_each_other_as_little(self):
        for mount in self.each_way("sim:64M,count=2"):
            updater = started(mount.mnt, "--update", "--pause", str(2 * self.app.pause_ms), "input")
            try:
                children = []
                for number, device in enumerate("010"):
                    words = [word if word != "out" else "out%d" % number for word in self.app.run]
                    children.append(started(mount.mnt, "--json", "--no-updates", "--rounds", str(max(self.app.rounds // 8, 1)), "--device",
                                            device, *words))
                for child in children:
                    self.done(child)
            finally:
                kill(updater)

    def test_the_program_that_updates_may_be_killed_at_any_time(self):
        for mount in self.each_way("sim:64M"):
            self.make(mount.mnt, changed=20)
            worker = started(mount.mnt, "--no-updates", "--rounds", "1000000000", *self.app.run)
            for _ in range(self.app.kills):
                updater = started(mount.mnt, "--update", "--pause", "0", "input")
                time.sleep(0.005 + random.random() * 0.03)
                kill(updater)
                # The next one ends an update that was cut off; then the worker sees all of it.
                self.done(started(mount.mnt, "--update", "--updates", "1", "--pause", "50", "input"))
            self.assertEqual(self.epoch(mount.mnt) % 2, 0)
            ended = worker.poll()
            kill(worker) if ended is None else self.done(worker)
            self.assertIsNone(ended)

    def test_the_device_program_may_be_killed_at_any_time(self):
        for mount in self.each_way("sim:64M"):
            whole = None
            if self.app.out:
                self.run_in(mount.mnt, *(["--no-cpu"] if APP == "stitch" else []))
                whole = self.bytes_of(mount.mnt)
            for _ in range(self.app.kills):
                worker = started(mount.mnt, "--no-updates", "--rounds", "1000", "--check", "none",
                                 *(["--no-cpu"] if APP == "stitch" else []), *self.app.run)
                time.sleep(random.random() * 0.1)
                kill(worker)
                if whole:
                    self.assertIn(self.bytes_of(mount.mnt), (b"", bytes(len(whole)), whole), "what was not released is to be seen")
            self.run_in(mount.mnt)
            deadline = time.monotonic() + HANG_S
            while mount.mappings() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.assertEqual(mount.mappings(), 0, "what the killed had is kept")

    def test_a_device_that_is_smaller_than_the_files(self):
        make = {"sssp": ["--make", "rmat:14", "--rounds", "0", "input"], "collage": self.app.make,
                "stitch": ["--make", "8x10", "--side", "256", "input"]}[APP]
        device = {"sssp": "sim:4M", "collage": "sim:12M", "stitch": "sim:8M"}[APP]
        window = {"sssp": ["--window", "1M"], "collage": [], "stitch": ["--window", "1M"]}[APP]
        with Mount("writeback", device + "," + MODEL) as mount:
            self.done(started(mount.mnt, *make))
            if APP == "collage":
                self.done(started(mount.mnt, "--make", "4000", "input"))
            if window:
                child = started(mount.mnt, "--rounds", "1", *self.app.run)
                _, err = child.communicate(timeout=HANG_S)
                self.assertEqual(child.returncode, 1)
                self.assertIn("device memory", err)
            said = self.run_in(mount.mnt, "--rounds", "1", *window)[-1]
            self.assertEqual(said["checked"], 2)
            if APP == "collage":
                self.assertGreater(said["windows"], 1)

    def test_what_is_wrong_is_found(self):
        """A byte of the input that no update has changed."""
        with Mount("writeback", "sim:64M") as mount:
            self.make(mount.mnt)
            size = os.path.getsize(os.path.join(mount.mnt, self.app.made))
            changer = subprocess.Popen([sys.executable, "-c", """
import mmap, random, sys
with open(sys.argv[1], "r+b") as file:
    data = mmap.mmap(file.fileno(), 0)
    passed = False
    while True:
        for at in range(8192 + random.randrange(64), len(data), 64):
            data[at] ^= 1
        if not passed:
            print("passed", flush=True)
            passed = True
""", os.path.join(mount.mnt, self.app.made)], stdout=subprocess.PIPE)
            try:
                self.assertEqual(changer.stdout.readline(), b"passed\n")
                child = started(mount.mnt, "--no-updates", "--rounds", "400", *self.app.run)
                _, err = child.communicate(timeout=HANG_S)
            finally:
                kill(changer)
            self.assertGreater(size, 8192)
            self.assertEqual(child.returncode, 1)
            self.assertIn("WRONG", err)

    def test_own_fourier_transforms_find_the_same_places(self):
        if APP != "stitch":
            self.skipTest("only stitch has them")
        # Of lengths that are powers of 2, and that have other factors.
        for side in "128", "136", "184", "240":
            with self.subTest(side=side), tempfile.TemporaryDirectory() as place:
                self.done(started(place, "--make", "3x2", "--side", side, "input"))
                for owners in [], ["--no-cpu"]:
                    said = self.done(started(place, "--json", "--mode", "mmap", "--own-transform", *owners, *self.app.run))
                    self.assertEqual(said[-1]["checked"], 1)

    def test_how_it_is_called(self):
        with tempfile.TemporaryDirectory() as place:
            child = started(place, "--help")
            usage, err = child.communicate(timeout=HANG_S)
            self.assertEqual((child.returncode, err), (0, ""))
            self.assertTrue(usage.startswith("usage: %s " % APP))
            for option in "--no-such-option", "--mode=none", "--changed=101", "--check=some":
                child = started(place, option, *self.app.run)
                out, err = child.communicate(timeout=HANG_S)
                self.assertEqual((child.returncode, out), (2, ""), option)
                self.assertTrue(err)
            child = started(place, *self.app.run)
            self.assertIn("input", child.communicate(timeout=HANG_S)[1])
            self.assertEqual(child.returncode, 1)
            self.make(place)
            child = started(place, *self.app.run)
            self.assertIn("not on a gaiafs mount", child.communicate(timeout=HANG_S)[1])
            self.assertEqual(child.returncode, 1)
            if "--png" in usage:
                picture = os.path.join(place, "picture.png")
                made = ["--make", "grid:40x30"] if APP == "sssp" else []
                self.done(started(place, "--mode", "mmap", "--rounds", "1", "--png", picture, *made, *self.app.run))
                with open(picture, "rb") as file:
                    self.assertEqual(file.read(8), b"\x89PNG\r\n\x1a\n")


if __name__ == "__main__":
    BUILD, APP = os.path.abspath(sys.argv[1]), sys.argv[2]
    if "--short" in sys.argv:
        sys.argv.remove("--short")
        APPS[APP].kills = 3
        APPS[APP].pause_ms *= 5
        APPS[APP].rounds = 100 if APP == "sssp" else 6
    unittest.main(argv=[sys.argv[0], "--failfast"] + sys.argv[3:])
