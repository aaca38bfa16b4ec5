#!/usr/bin/env python3
"""powercut.py - cuts the power of a disk with gaiafs over it, and looks at what is left.

A file system lies on a disk that remembers every write and every flush (disk.c), gaiafs lies over it, and programs
store there, and note what they were promised (work.c). Then the disk is made again as it could be if the power had
gone at some moment: everything that was written before the last flush; of what came after it some, in no order, and
some of that torn between sectors. The file system is mounted as after a power cut, and each sector of each file
must be of a version that was stored there before the cut, and not older than what was promised to survive.

    powercut.py --build DIR [--fs ext4|xfs] [--way WAY] [--cuts N] [--steps N] [--seed N] [--lie]

--lie: the daemon's syncs do nothing; then something must be found.

Exit status: 0 all was right (with --lie: something was found), 1 it was not, 77 skipped (the last line says why).
"""
import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time

SECTOR = 512
BLOCK = 4096
EMPTY = bytes(BLOCK)
REPLACED_SECTORS = 96  # MOST in work.c
SIZE = {"ext4": 64 << 20, "xfs": 320 << 20}
HEADER = struct.Struct("=IIQ")  # struct record in disk.c


def skip(why):
    print(f"powercut: {why}")
    sys.exit(77)


def run(*command, **more):
    """Run it to its end; what it says is shown if it fails."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"powercut: {' '.join(command)}: status {done.returncode}\n{done.stdout}")


def is_mounted(path):
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        return any(line.split()[1] == path for line in mounts)


class Disk:
    """What has certainly reached the disk, by blocks, and what was written since the last flush."""

    def __init__(self, size):
        self.size = size
        self.block = {}
        self.pending = []

    def put(self, offset, data):
        for at in range(offset - offset % BLOCK, offset + len(data), BLOCK):
            start, end = max(offset, at), min(offset + len(data), at + BLOCK)
            if end - start == BLOCK:
                self.block[at // BLOCK] = bytes(data[start - offset:end - offset])
                continue
            block = bytearray(self.block.get(at // BLOCK, bytes(BLOCK)))
            block[start - at:end - at] = data[start - offset:end - offset]
            self.block[at // BLOCK] = bytes(block)

    def told(self, kind, offset, data):
        if kind == "F":
            for at, what in self.pending:
                self.put(at, what)
            self.pending = []
        else:
            self.pending.append((offset, data))

    def after_cut(self, rng, path):
        """Make the image at `path`. The power goes now: some of what is pending has arrived."""
        mine = Disk(self.size)
        mine.block = dict(self.block)
        for offset, data in self.pending:
            fate = rng.random()
            if fate < 0.45:
                mine.put(offset, data)
            elif fate < 0.6:
                for at in range(0, len(data), SECTOR):
                    if rng.random() < 0.5:
                        mine.put(offset + at, data[at:at + SECTOR])
        with open(path, "wb") as image:
            image.truncate(self.size)
            for number, block in mine.block.items():
                if block != EMPTY:
                    os.pwrite(image.fileno(), block, number * BLOCK)


class Files:
    """Of each sector of each file the versions that it may have: those stored since, and including, the last that was promised."""

    def __init__(self):
        self.may = {}  # name -> sector -> [(version, whether it is zeros)], oldest first
        self.promised = {}

    def note(self, line):
        what, name, *numbers = line.split()
        version, first, count = (int(number) for number in (numbers + [0, 0])[:3])
        sectors = self.may.setdefault(name, {})
        if what == "I":
            for sector in range(first, first + count):
                sectors.setdefault(sector, [(0, True)]).append((version, False))
        elif what == "T":
            for sector in sectors:
                if sector >= first:
                    sectors[sector].append((version, True))
        elif what == "D":
            self.promised[name] = version
            for versions in sectors.values():
                while len(versions) > 1 and versions[1][0] <= version:
                    del versions[0]
        else:
            sys.exit(f"powercut: a note that nobody makes: {line}")

    def faults(self, root):
        """What is wrong below `root`, as texts; and how many sectors were looked at."""
        found, looked = [], 0
        for name, sectors in sorted(self.may.items()):
            try:
                with open(os.path.join(root, name), "rb") as file:
                    data = file.read()
            except FileNotFoundError:
                data = None
            if data is None:
                if self.promised.get(name):
                    found.append(f"{name} is gone; version {self.promised[name]} of it was promised to survive")
                continue
            if name[0] == "r" and len(data) != REPLACED_SECTORS * SECTOR:
                found.append(f"{name} has {len(data)} bytes; it was only ever replaced by files of {REPLACED_SECTORS * SECTOR}")
                continue
            key = int(name[1:]) << 40
            seen = set()
            for sector, versions in sectors.items():
                have = data[sector * SECTOR:(sector + 1) * SECTOR]
                looked += 1
                version = struct.unpack_from("=Q", have)[0] if len(have) == SECTOR else 0
                seen.add(version)
                if version == 0:
                    good = not have.strip(b"\0") and any(zeros for _, zeros in versions)
                else:
                    good = (version, False) in versions and have == struct.pack("=QQ", version, key | sector) * 32
                if not good:
                    found.append(f"{name}, sector {sector}: version {version}{'' if have.count(have[:16]) == 32 else ' in part'}; "
                                 f"it may be one of {versions}")
            if name[0] == "r" and len(seen) > 1:
                found.append(f"{name} is of several versions, {sorted(seen)}; it was only ever replaced as a whole")
        return found, looked


def read_log(path):
    """[(kind, offset, data)], in order."""
    with open(path, "rb") as log:
        raw = log.read()
    at, records = 0, []
    while at + HEADER.size <= len(raw):
        kind, length, offset = HEADER.unpack_from(raw, at)
        at += HEADER.size
        kind = chr(kind)
        if kind in "WN":
            data = raw[at:at + length]
            at += length
        else:
            data = bytes(length)
        records.append((kind, offset, data))
    return records


class Rig:
    """Where everything is mounted; it takes it all away again."""

    def __init__(self, args):
        self.args = args
        self.dir = tempfile.mkdtemp(prefix="gaiafs-powercut.")
        for name in ("disk", "below", "mnt", "after"):
            os.mkdir(self.path(name))

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def program(self, *names):
        return os.path.join(self.args.build, *names)

    def mount_image(self, image, where):
        run("mount", "-o", "loop", image, where)

    def umount(self, where):
        for _ in range(600):
            done = subprocess.run(["umount", where], capture_output=True, check=False)
            if done.returncode == 0 or not is_mounted(where):
                return
            time.sleep(0.05)
        sys.exit(f"powercut: {where} stays mounted: {done.stderr.decode()}")

    def start(self):
        size = str(SIZE[self.args.fs])
        run(self.program("tests", "powercut", "powercut-disk"), self.path("log"), size, self.path("disk"))
        mkfs = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q"]}[self.args.fs]
        run(*mkfs, self.path("disk", "disk"))
        self.mount_image(self.path("disk", "disk"), self.path("below"))
        daemon = [self.program("daemon", "gaiafs"), "--cpu-cache", self.args.way, "--home", "64M", "--device", "sim:64M",
                  "--log-level", "warn", self.path("below"), self.path("mnt")]
        lie = {"LD_PRELOAD": self.program("tests", "powercut", "libpowercut-lie.so")} if self.args.lie else {}
        run(*daemon, env={**os.environ, **lie})

    def work(self):
        run(self.program("tests", "powercut", "powercut-work"), self.path("mnt"), self.path("disk", "marks"),
            str(self.args.seed), str(self.args.steps))

    def stop(self):
        self.umount(self.path("mnt"))
        for _ in range(600):  # the daemon has its source until it has ended
            if subprocess.run(["umount", self.path("below")], capture_output=True, check=False).returncode == 0:
                break
            time.sleep(0.05)
        self.umount(self.path("disk"))

    def end(self):
        for name in ("mnt", "after", "below", "disk"):
            if is_mounted(self.path(name)):
                subprocess.run(["umount", "-l", self.path(name)], check=False)
        shutil.rmtree(self.dir, ignore_errors=True)


def choose(rng, records, first, wanted):
    """Where to cut: half of them just after something was promised, where most can be lost, others anywhere; and the end."""
    promises = [at + 1 for at in range(first, len(records)) if records[at][0] == "N" and records[at][2][:1] == b"D"]
    cuts = set(rng.sample(promises, min(wanted // 2, len(promises)))) | {len(records)}
    anywhere = range(first + 1, len(records) + 1)
    while len(cuts) < min(wanted, len(anywhere)):
        cuts.add(rng.choice(anywhere))
    return sorted(cuts)


def cut_all(rig, records, rng):
    """Cut, and look. Returns (cuts, sectors looked at, what was found)."""
    args = rig.args
    first = next(at for at, record in enumerate(records) if record[0] == "N")
    disk, files, done = Disk(SIZE[args.fs]), Files(), 0
    cuts, looked, found = choose(rng, records, first, args.cuts), 0, []
    for cut in cuts:
        for kind, offset, data in records[done:cut]:
            if kind == "N":
                files.note(data.decode())
            else:
                disk.told(kind, offset, data)
        done = cut
        disk.after_cut(rng, rig.path("image"))
        rig.mount_image(rig.path("image"), rig.path("after"))
        faults, n = files.faults(rig.path("after"))
        rig.umount(rig.path("after"))
        looked += n
        found += [f"cut after record {cut} of {len(records)}: {fault}" for fault in faults]
        if found and args.lie:
            break
    return len(cuts), looked, found


def main():
    parser = argparse.ArgumentParser(description="Cuts the power of a disk with gaiafs over it, and looks at what is left.")
    parser.add_argument("--build", required=True, type=os.path.abspath, help="the build")
    parser.add_argument("--fs", choices=sorted(SIZE), default="ext4", help="the file system on the disk (ext4)")
    parser.add_argument("--way", default="auto", help="--cpu-cache of the daemon (auto)")
    parser.add_argument("--cuts", type=int, default=200, help="how many cuts (200)")
    parser.add_argument("--steps", type=int, default=400, help="how many steps each of the working threads takes (400)")
    parser.add_argument("--seed", type=int, default=None, help="of everything that is drawn")
    parser.add_argument("--lie", action="store_true", help="the daemon's syncs do nothing; then something must be found")
    args = parser.parse_args()
    if os.geteuid() != 0:
        skip("needs root, to mount file systems")
    if not os.path.exists("/dev/fuse") or not os.path.exists("/dev/loop-control"):
        skip("needs /dev/fuse and loop devices")
    if not shutil.which("mkfs." + args.fs):
        skip(f"mkfs.{args.fs} is not installed; scripts/test --long does that")
    if "GAIAFS_POWERCUT_INSIDE" not in os.environ:
        # Copies of others' mounts would keep these from ending.
        lib = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lib.sh")
        os.execvpe("unshare", ["unshare", "--mount", "--propagation", "private", "bash", "-c", '. "$0"; let_go_of_mounts; exec "$@"', lib,
                               sys.executable, "-B", *sys.argv],
                   {**os.environ, "GAIAFS_POWERCUT_INSIDE": "1"})
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(1, 1 << 30)
    print(f"powercut: --fs {args.fs} --way {args.way} --steps {args.steps} --seed {args.seed}", flush=True)
    rig = Rig(args)
    try:
        rig.start()
        rig.work()
        rig.stop()
        records = read_log(rig.path("log"))
        cuts, looked, found = cut_all(rig, records, random.Random(args.seed))
    finally:
        rig.end()
    for fault in found[:20]:
        print(f"powercut: {fault}")
    flushes = sum(record[0] == "F" for record in records)
    print(f"powercut: {cuts} cuts in {len(records)} records with {flushes} flushes, {looked} sectors looked at, {len(found)} faults")
    if args.lie:
        print("powercut: the daemon did not sync, and that " + ("was found" if found else "was NOT found"))
    return (not found) if args.lie else bool(found)


if __name__ == "__main__":
    sys.exit(main())
