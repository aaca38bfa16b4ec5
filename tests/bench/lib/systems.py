"""What is measured: a plain directory, libfuse's examples, gaiafs in its ways.

Each system has a directory below of its own with the same files, and a root under which programs
see them. start() and stop() may be called in any state; stop() never raises.
"""

import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import time

MIB = 1 << 20
GIB = 1 << 30


class Missing(Exception):
    """A system cannot be had here; says why."""


class Lacking(Missing):
    """Not to be had on this machine; says what it lacks."""


def run(*command, timeout=60):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError("%s: %s" % (" ".join(command), (done.stderr or done.stdout).strip()))
    return done.stdout


def read_through(path):
    with open(path, "rb", buffering=0) as file:
        room = bytearray(MIB)
        while file.readinto(room):
            pass


def sync_file(path):
    file = os.open(path, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def write_bdi(root, name, value):
    """A limit of a mounted file system, where we may set it."""
    dev = os.stat(root).st_dev
    try:
        with open("/sys/class/bdi/%d:%d/%s" % (os.major(dev), os.minor(dev), name), "w") as file:
            file.write(value)
    except OSError:
        pass


def run_undisturbed():
    """
    Before all other programs on the machine, where we may; so do all that we start. Among each
    other nothing changes. Without it, what is measured on a shared machine is the load of others.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return True
    except OSError:
        return False


def spread(path):
    """
    Directories that are made in this one shall lie apart on the disk: ext4 then goes by their names,
    which should be new ones. Without a journal it does not give an inode again in the minutes after its
    deletion, and would walk past ten thousand of them for each new file beside them.
    """
    get_flags, set_flags, topdir = 0x80086601, 0x40086602, 0x20000  # linux/fs.h
    fd = os.open(path, os.O_RDONLY)
    with contextlib.suppress(OSError):
        flags, = struct.unpack("i", fcntl.ioctl(fd, get_flags, bytes(4)))
        fcntl.ioctl(fd, set_flags, struct.pack("i", flags | topdir))
    os.close(fd)


def is_mounted(root):
    with open("/proc/self/mountinfo") as file:
        return any(line.split()[4] == root for line in file)


def detach(root):
    """Whether or not there is a mount."""
    for command in (["umount", "-l"], ["fusermount3", "-u", "-z"]):
        if not is_mounted(root):
            return
        subprocess.run(command + [root], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)


class System:
    """The plain directory, and what all others share."""

    is_peer = is_gaiafs = False

    def __init__(self, name, place):
        self.name = name
        self.below = os.path.join(place, name)
        self.root = self.below
        os.mkdir(self.below)
        spread(self.below)

    def path(self, name):
        return os.path.join(self.root, name)

    def make_file(self, name, size):
        with open(os.path.join(self.below, name), "wb", buffering=0) as file:
            block = os.urandom(MIB)
            for _ in range(size // MIB):
                file.write(block)
            os.fsync(file.fileno())

    def start(self):
        pass

    def stop(self):
        pass

    # -- where the pages of a file are

    def make_hot(self, name):
        """In the page cache of the root."""
        read_through(self.path(name))

    def make_home(self, name):
        """Not in the kernel's cache of a mount, but in its daemon's memory, or hot below."""
        self.make_hot(name)

    def make_released(self, name):
        """Changed by a device, and nowhere but there; without devices as above."""
        self.make_home(name)

    def make_cold_in_mount(self, name):
        """Only in the page cache of the directory below."""
        self.forget_in_mount(name)
        read_through(os.path.join(self.below, name))

    def forget_in_mount(self, name):
        """Nothing of it is cached above the directory below."""


class Mounted(System):
    def __init__(self, name, place):
        super().__init__(name, place)
        self.root = os.path.join(place, name + ".mnt")
        os.mkdir(self.root)

    def is_mounted(self):
        return is_mounted(self.root)

    def forget_in_kernel(self, name):
        with open(self.path(name), "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def make_home(self, name):
        self.make_hot(name)
        self.forget_in_kernel(name)

    def forget_in_mount(self, name):
        self.forget_in_kernel(name)

    def detach(self):
        detach(self.root)


class Peer(Mounted):
    is_peer = True

    def __init__(self, name, place, command, passes_through=False):
        """
        COMMAND with {below} and {root}; it stays in the foreground. It is missing if it is to pass
        files through to those below, and does not.
        """
        super().__init__(name, place)
        self.command = [part.format(below=self.below, root=self.root) for part in command]
        self.passes_through = passes_through
        self.child = None

    def start(self):
        # A session of its own: ^C is ours to handle.
        self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, text=True,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                      start_new_session=True)
        while not self.is_mounted():
            if self.child.poll() is not None:
                raise Missing("does not run: %s" % self.child.stderr.read().strip())
            time.sleep(0.01)
        if self.passes_through and not self.shows_what_is_below():
            raise Missing("mounts, but the kernel does not pass files of this file system through")
        # gaiafs sets these for itself.
        write_bdi(self.root, "strict_limit", "0")
        write_bdi(self.root, "max_ratio", "100")

    def shows_what_is_below(self):
        """Whether what changes below an open file is seen at once. What is cached is good for a day."""
        below = os.path.join(self.below, "changed-below")
        with open(below, "wb", buffering=0) as file:
            file.write(b"before")
            with open(self.path("changed-below"), "rb") as above:
                above.read()
                os.pwrite(file.fileno(), b"after!", 0)
                seen = os.pread(above.fileno(), 6, 0)
        os.unlink(self.path("changed-below"))
        return seen == b"after!"

    def stop(self):
        self.detach()
        if self.child:
            try:
                self.child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
            self.child.stderr.close()
        self.child = None


class Gaiafs(Mounted):
    is_gaiafs = True

    def __init__(self, name, place, build, options):
        super().__init__(name, place)
        self.daemon = os.path.join(build, "daemon", "gaiafs")
        self.gaia = os.path.join(build, "client", "gaia")
        self.options = options
        self.holders = {}

    def start(self):
        done = subprocess.run([self.daemon, *self.options, self.below, self.root], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, start_new_session=True, timeout=60)
        if done.returncode:
            raise Missing("does not mount: %s" % done.stderr.strip())

    def shown_as(self):
        """The way of caching that it has chosen."""
        return json.loads(run(self.gaia, "status", self.root, "--json"))["cpu_cache"]

    def forget_in_mount(self, name):
        self.forget_in_kernel(name)
        run(self.gaia, "evict", self.path(name))

    def hold(self, name, holder):
        """A device maps a file, until let_go() or stop()."""
        child = subprocess.Popen([holder, self.path(name)], text=True, stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, start_new_session=True)
        self.holders[name] = child
        self.expect(name, "mapped")

    def let_go(self, name):
        child = self.holders.pop(name)
        child.stdin.close()
        child.stdout.close()
        if child.wait(timeout=60):
            raise RuntimeError("the program that maps %s failed" % self.path(name))

    def expect(self, name, word):
        said = self.holders[name].stdout.readline().strip()
        if said != word:
            raise RuntimeError("the program that maps %s has ended" % self.path(name))

    def make_released(self, name):
        self.holders[name].stdin.write("\n")
        self.holders[name].stdin.flush()
        self.expect(name, "released")

    def stop(self):
        for child in self.holders.values():
            child.kill()
            child.wait()
            child.stdin.close()
            child.stdout.close()
        self.holders = {}
        if self.is_mounted():
            try:
                run(self.gaia, "umount", "--everywhere", self.root)
            except (RuntimeError, subprocess.TimeoutExpired):
                subprocess.run([self.gaia, "umount", "--force", self.root], timeout=60)
        self.detach()


def stop_on_signals():
    """Signals end the program the way an exception does: everything is taken down."""
    def stop(number, _frame):
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(number)
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, stop)
