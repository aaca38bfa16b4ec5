#!/usr/bin/env python3
"""
played.py BUILD APP - one of the applications' CUDA programs where there is no GPU (played/cuda_runtime.h): CPU threads run its kernels, and
the driver, here and in the daemon, is a fake one with two GPUs.

It says nothing of speed, nor of what nvcc makes of the kernels. But the program's own words for CUDA are carried out, and it compares
all that it computes with the CPU's reference, byte by byte.
"""

import os
import sys
import tempfile
import unittest

import apps

OPTIONS = {"sssp": [], "collage": ["--scene", "128x96"], "stitch": []}
MAKE = {"sssp": ["--make", "grid:40x30", "--rounds", "0", "--mode", "copy", "input"], "collage": ["--make", "500", "input"],
        "stitch": ["--make", "3x2", "--side", "128", "input"]}
ROUNDS = {"sssp": 3, "collage": 3, "stitch": 1}
FILES = {"sssp": ["input"], "collage": ["input", "out"], "stitch": ["input", "out"]}


class Mount(apps.Mount):
    daemon = os.path.join("tests", "gpu", "gaiafs-played")


class Played(unittest.TestCase):
    def ended(self, child):
        """What it says, and its exit status."""
        try:
            out, err = child.communicate(timeout=apps.HANG_S)
        except apps.subprocess.TimeoutExpired:
            apps.kill(child)
            self.fail("%s hangs" % child.args)
        return out, err, child.returncode

    def run_in(self, directory, *options):
        out, err, status = self.ended(apps.started(directory, "--json", *options, *OPTIONS[apps.APP], *FILES[apps.APP]))
        self.assertEqual((status, err), (0, ""), out)
        return {line["what"]: line for line in map(apps.json.loads, out.splitlines())}

    def make(self, directory):
        self.assertEqual(self.ended(apps.started(directory, "--changed", "20", *MAKE[apps.APP]))[1:], ("", 0))

    def check(self, directory, *options):
        rounds = ROUNDS[apps.APP]
        said = self.run_in(directory, "--rounds", str(rounds), "--changed", "20", *options)
        self.assertEqual((said["rounds"]["rounds"], said["rounds"]["checked"]), (rounds, rounds + 1))
        return said

    def alone_or_not(self):
        """Options for the device alone, and beside the CPU."""
        return {"sssp": [[]], "collage": [[], ["--cpu"]], "stitch": [["--no-cpu"], []]}[apps.APP]

    def test_kernels_see_what_the_cpu_writes_and_the_cpu_what_they_write(self):
        for way in apps.WAYS:
            with self.subTest(way=way), Mount(way, "cuda:0,64M") as mount:
                self.make(mount.mnt)
                for options in self.alone_or_not():
                    said = self.check(mount.mnt, *options)
                    self.assertGreater(said["rounds"]["bytes_in"], 0)

    def test_two_gpus_and_the_cpu_write_the_same_pages(self):
        if apps.APP == "sssp":
            self.skipTest("sssp has one device")
        with Mount("auto", "cuda:0,64M", "--device", "cuda:1,64M") as mount:
            self.make(mount.mnt)
            for options in self.alone_or_not():
                self.check(mount.mnt, "--devices", "2", *options)

    def test_windows_on_a_gpu_with_little_memory(self):
        with Mount("auto", "cuda:0,8M") as mount:
            self.make(mount.mnt)
            self.check(mount.mnt, "--window", "64K" if apps.APP != "collage" else "2M")

    def test_who_copies_needs_no_mount(self):
        with tempfile.TemporaryDirectory() as place:
            self.make(place)
            for options in self.alone_or_not():
                said = self.check(place, "--mode", "copy", *options)
                self.assertGreater(said["rounds"]["operations"], 0)

    def test_says_what_it_cannot_do(self):
        with tempfile.TemporaryDirectory() as place:
            self.make(place)
            for mode, status in ("mmap", apps.SKIPPED), ("gaia", 1):
                _, err, ended = self.ended(apps.started(place, "--mode", mode, *FILES[apps.APP]))
                self.assertEqual((ended, err.count("\n")), (status, 1), err)


if __name__ == "__main__":
    apps.BUILD, apps.APP = os.path.abspath(sys.argv[1]), sys.argv[2]
    apps.program = lambda name=None: os.path.join(apps.BUILD, "tests", "apps", "played-" + (name or apps.APP))
    unittest.main(argv=[sys.argv[0], "--failfast", *sys.argv[3:]])
