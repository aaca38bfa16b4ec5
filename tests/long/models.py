#!/usr/bin/env python3
"""
models.py BUILD SECONDS [PROCESSES] [SEED] - processes load a model, crash (kill -9), load it again and fork, at random.

Half of the processes (64) are models_load.c, the others models_numpy.py, if build-deps/python is there; of these four with PyTorch, if
build-deps/python-torch is. While they run, and when all are gone: no byte was wrong, device memory was never more than one copy of
the files and what is private, nothing is lost: device memory, the daemon's memory, descriptors and threads. Exit status 77: skipped, the
last line says why.
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

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
MIB, CHUNK, PAGE = 1 << 20, 2 << 20, 4096
MODEL, TENSOR = 16 * MIB, MIB
CAPACITY, HOME = 256 * MIB, 8 * MIB
POOLS = 64  # threads by which the daemon's pools may still grow (and stay); what each process left behind would be more
GROWS = 32 * MIB  # the same of its memory
C, NUMPY, TORCH = "C", "numpy", "torch"
TORCHES = 4
PATIENCE = 60  # seconds that only a fault takes


class Failed(Exception):
    pass


class World:
    def __init__(self, build, seconds, processes, seed):
        self.build, self.seconds, self.processes = build, seconds, processes
        self.random = random.Random(seed)
        self.place = tempfile.mkdtemp(prefix="gaiafs-models.")
        self.below, self.root = os.path.join(self.place, "below"), os.path.join(self.place, "mnt")
        self.model, self.slots = os.path.join(self.root, "model"), os.path.join(self.root, "slots")
        self.daemon = None
        self.workers = []
        self.started = self.killed = self.died = 0
        self.most_used = 0
        self.pythons = {NUMPY: self.python("python", "numpy"), TORCH: self.python("python-torch", "torch")}
        self.kinds = [NUMPY if self.pythons[NUMPY] and n % 2 else C for n in range(processes)]
        if self.pythons[TORCH]:
            self.kinds[:TORCHES] = [TORCH] * TORCHES

    def python(self, environment, package):
        """One that has the packages, or None."""
        python = os.path.join(SOURCE, "build-deps", environment, "bin", "python")
        if not os.path.exists(python):
            return None
        done = subprocess.run([python, "-c", "import cffi, " + package], stderr=subprocess.DEVNULL, env=self.environment(), check=False)
        return None if done.returncode else python

    # -- the mount

    def start(self):
        os.mkdir(self.below)
        os.mkdir(self.root)
        with open(os.path.join(self.place, "log"), "wb") as log:
            self.daemon = subprocess.Popen(
                [os.path.join(self.build, "daemon/gaiafs"), "-f", "--device", "sim:%d" % CAPACITY, "--home", str(HOME),
                 "--log-level", "warn", self.below, self.root], stdout=log, stderr=log)
        self.wait_until(lambda: os.path.ismount(self.root) or self.daemon.poll() is not None, "it is mounted")
        if not os.path.ismount(self.root):
            raise Failed("it does not mount: " + self.log())

    def log(self):
        with open(os.path.join(self.place, "log"), errors="replace") as log:
            return log.read()

    def stop(self):
        self.gaia("umount", self.root)
        if self.daemon.wait(PATIENCE):
            raise Failed("the daemon has ended with %d: %s" % (self.daemon.returncode, self.log()))

    def clean_up(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()
        if self.daemon:
            self.daemon.kill()
            self.daemon.wait()
        if os.path.ismount(self.root):
            subprocess.run(["umount", "-l", self.root], check=False)
        shutil.rmtree(self.place, ignore_errors=True)

    def gaia(self, *args):
        done = subprocess.run([os.path.join(self.build, "client/gaia"), *args], capture_output=True, text=True, timeout=PATIENCE,
                              check=False)
        if done.returncode:
            raise Failed("gaia %s: %s" % (" ".join(args), done.stderr.strip()))
        return done.stdout

    def status(self):
        # There may be no room for a report just now.
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return json.loads(self.gaia("status", self.root, "--json"))
            except Failed:
                if time.monotonic() > end or self.daemon.poll() is not None:
                    raise
            time.sleep(0.1)

    def wait_until(self, condition, what, left=lambda: ""):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                raise Failed("%d seconds have passed, and this is not so yet: %s %s" % (PATIENCE, what, left()))
            time.sleep(0.02)

    # -- the files

    def make_files(self):
        if self.pythons[NUMPY]:
            subprocess.run(self.numpy_command(NUMPY, "-") + [str((MODEL - PAGE) // 8)], env=self.environment(), check=True,
                           timeout=PATIENCE)
            return
        with open(self.model, "wb") as file:
            file.write(bytes(PAGE))
            for first in range(0, (MODEL - PAGE) // 8, 1 << 16):
                end = min(first + (1 << 16), (MODEL - PAGE) // 8)
                file.write(b"".join((i * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "little") for i in range(first, end)))
        with open(self.slots, "wb") as file:
            file.truncate(PAGE + 2 * TENSOR)

    def chunks(self):
        """Device memory of one copy of both files, bytes."""
        return sum(-(-os.path.getsize(path) // CHUNK) * CHUNK for path in (self.model, self.slots))

    def private(self):
        """The tensor that is replaced: its bytes from before are kept (secured), and memory that the dead had is renewed."""
        return 2 * (-(-os.path.getsize(self.slots) // CHUNK) * CHUNK)

    # -- the processes

    def environment(self):
        return dict(os.environ, PYTHONPATH=os.path.join(SOURCE, "client", "python"), PYTHONDONTWRITEBYTECODE="1",
                    LD_LIBRARY_PATH=os.path.join(self.build, "client") + ":/usr/local/cuda/lib64")

    def numpy_command(self, kind, seed):
        # Python 3.12 and later warn of fork() with threads, which the library has.
        return [self.pythons[kind], "-W", "error", "-W", "ignore::DeprecationWarning", os.path.join(HERE, "models_numpy.py"),
                self.model, self.slots, seed, str(TENSOR // 8)]

    def spawn(self, kind):
        seed = str(self.random.getrandbits(31))
        if kind == C:
            command = [os.path.join(self.build, "tests/long/models_load"), self.model, self.slots, seed]
        else:
            command = self.numpy_command(kind, seed) + ([TORCH] if kind == TORCH else [])
        with open(os.path.join(self.place, "said.%d" % self.started), "wb") as said:
            worker = subprocess.Popen(command, env=self.environment(), stdout=subprocess.DEVNULL, stderr=said)
        worker.kind, worker.number = kind, self.started
        self.started += 1
        return worker

    def check_ended(self, worker):
        name = os.path.join(self.place, "said.%d" % worker.number)
        if worker.returncode != -signal.SIGKILL:
            with open(name, errors="replace") as said:
                raise Failed("process %d (%s) has ended with %d: %s" % (worker.number, worker.args[-3:], worker.returncode, said.read()))
        os.unlink(name)

    def check_memory(self):
        status = self.status()
        used = status["devices"][0]["used"]
        self.most_used = max(self.most_used, used)
        if used > self.chunks() + self.private():
            raise Failed("the device has %d bytes in use; one copy of the files has %d" % (used, self.chunks()))

    def play(self):
        self.workers = [self.spawn(kind) for kind in self.kinds]
        end, look = time.monotonic() + self.seconds, 0.0
        while time.monotonic() < end:
            for n, worker in enumerate(self.workers):
                if worker.poll() is not None:
                    self.check_ended(worker)
                    self.died += 1
                    self.workers[n] = self.spawn(worker.kind)
            if self.random.random() < 0.3:
                self.random.choice(self.workers).send_signal(signal.SIGKILL)
                self.killed += 1
            if time.monotonic() > look:
                self.check_memory()
                look = time.monotonic() + 0.5
            if self.daemon.poll() is not None:
                raise Failed("the daemon has ended: " + self.log())
            time.sleep(0.05)
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.wait()
            self.check_ended(worker)
        self.workers = []

    # -- what is left

    def can_evict(self, path):
        try:
            self.gaia("evict", path)
        except Failed as failed:
            if "not yet released it" not in str(failed):
                raise
            return False
        return True

    def forget(self):
        """Nothing uses the files, and nothing is cached of them."""
        # Who asks for the status is one.
        self.wait_until(lambda: not any(client["mappings"] for client in self.status()["clients"]), "nobody maps anything",
                        lambda: self.status()["clients"])
        for path in self.model, self.slots:
            # A mapping that is in nobody's list any more may still be ending.
            self.wait_until(lambda path=path: self.can_evict(path), "nobody holds " + path)
        self.wait_until(lambda: self.status()["devices"][0]["used"] == 0, "nothing is in use on the device")

    def threads(self):
        """{name: how many}"""
        names = {}
        for thread in os.listdir("/proc/%d/task" % self.daemon.pid):
            try:
                with open("/proc/%d/task/%s/comm" % (self.daemon.pid, thread)) as comm:
                    name = comm.read().strip()
            except OSError:
                continue
            names[name] = names.get(name, 0) + 1
        return names

    def descriptors(self):
        """{name: how many}; without reports, which are kept for a while."""
        names = {}
        for fd in os.listdir("/proc/%d/fd" % self.daemon.pid):
            try:
                name = os.readlink("/proc/%d/fd/%s" % (self.daemon.pid, fd))
            except OSError:
                continue
            if "gaiafs-report" in name:
                continue
            names[name] = names.get(name, 0) + 1
        return names

    def memory(self):
        """Bytes of the daemon's that are in no file."""
        with open("/proc/%d/status" % self.daemon.pid) as status:
            return int(next(line for line in status if line.startswith("RssAnon:")).split()[1]) << 10

    def sockets(self):
        return sum(name.startswith("socket:") for name in self.descriptors())

    def run(self):
        self.start()
        sockets = self.sockets()
        self.make_files()
        # The daemon's pools of threads grow when they are busy.
        seconds, self.seconds = self.seconds, min(3, self.seconds / 4)
        self.play()
        self.forget()
        # Who has asked for a status has a connection for a moment more.
        self.wait_until(lambda: self.sockets() <= sockets, "all clients' connections have ended")
        fds, threads = self.descriptors(), self.threads()
        # What it allocates for so many is mostly kept for more, which takes a while to settle.
        seconds -= self.seconds
        self.seconds = seconds / 3
        self.play()
        self.forget()
        memory = self.memory()
        self.seconds = seconds - self.seconds
        self.play()
        self.forget()
        self.wait_until(lambda: self.memory() <= memory + GROWS, "the daemon has about the memory that it had",
                        lambda: "(%d bytes): %d" % (memory, self.memory()))
        self.wait_until(lambda: sum(self.descriptors().values()) <= sum(fds.values()), "the daemon has no more descriptors than before",
                        lambda: "(%s): %s" % (fds, self.descriptors()))
        self.wait_until(lambda: sum(self.threads().values()) <= sum(threads.values()) + POOLS, "the daemon has about the threads it had",
                        lambda: "(%s): %s" % (threads, self.threads()))
        print("the daemon has %d descriptors and %d threads; it had %d and %d"
              % tuple(sum(one.values()) for one in (self.descriptors(), self.threads(), fds, threads)))
        print("and %.1f MiB of memory of its own; it had %.1f" % (self.memory() / MIB, memory / MIB))
        # What is on storage is what the last one wrote.
        with open(self.slots, "rb") as file:
            epoch = file.read(8)
            file.seek(PAGE + int.from_bytes(epoch, "little") % 2 * TENSOR)
            if file.read(TENSOR) != epoch * (TENSOR // 8):
                raise Failed("the last array is a mixture")
        for kind, makes in ((NUMPY, "scripts/setup"), (TORCH, "scripts/python --torch")):
            if not self.pythons[kind]:
                print("none of them was with %s, which %s installs" % (kind, makes))
        kinds = ", ".join("%d %s" % (self.kinds.count(kind), kind) for kind in (C, NUMPY, TORCH))
        print("%d processes at a time (%s); %d started, %d of them killed from outside, %d ended by SIGKILL in all; %d arrays"
              % (self.processes, kinds, self.started, self.killed, self.died, int.from_bytes(epoch, "little")))
        print("device memory: %d MiB at most; one copy of the files: %d MiB" % (self.most_used // MIB, self.chunks() // MIB))
        self.stop()


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__.strip())
    if os.geteuid():
        print("models: needs root, to mount it and to look into the daemon")
        return 77
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else random.SystemRandom().getrandbits(31)
    print("seed %d" % seed, flush=True)
    world = World(os.path.abspath(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 64, seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        world.run()
    except Failed as failed:
        print("models: %s" % failed)
        return 1
    finally:
        world.clean_up()
    return 0


if __name__ == "__main__":
    sys.exit(main())
