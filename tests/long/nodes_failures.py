#!/usr/bin/env python3
"""
nodes_failures.py BUILD [WAY...] - two nodes over a volume of GlusterFS, while its server, its clients and gaiafs itself fail.

On each node programs write bytes of pages that all share, by calls and by a simulated device, append and count under locks, and replace
files that the other node reads. Meanwhile the brick (the server's process for the volume) is stopped for a while, stopped for longer than
clients wait for it, killed; a gaiafs is killed, a client is stopped, killed; connections break. After each of these

    - what was closed, synced or unlocked without an error is there, on both nodes and in the brick, and no byte is one that nobody wrote
    - each call has ended, with success or with an error, and all programs go on
    - meanwhile those go on that do not need what failed: on a mount of a local directory, in mapped pages, on the other node
    - gaia status says that it waits

Errors are counted and shown; they are no failure. A program that got one does not know whether it has stored, and both are right then.
Last, what tests/mount has for two nodes is run with delays and drops between them and the brick.

All is in namespaces of its own and ends with this script. WAY: of --cpu-cache (auto writethrough). Exit status 77: skipped, the last line
says why.
"""

import collections
import ctypes
import errno
import fcntl
import glob
import json
import mmap
import os
import random
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
SERVER, VOLUME = "192.0.2.1", "failing"
NODES = 2
PING_TIMEOUT = 12  # seconds that a client waits for a brick that does not answer; it may notice only after twice as many
SHORTER, LONGER = 10, 30  # a brick is stopped for
PATIENCE = 120  # seconds that only a fault takes
PAGE, PAGES, BLOCK = 4096, 4, 16
FLOCK, RECORD = 0, 1
SKIPPED = 77


class Failed(Exception):
    pass


class Stopped(Exception):
    """A call of a program has failed, and is counted; the rest of what it was about is left out."""


def say(text):
    print("nodes_failures: " + text, flush=True)


def skip(why):
    say(why)
    sys.exit(SKIPPED)


def until(condition, what, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Failed("%d seconds have passed, and this is not so yet: %s" % (seconds, what))
        time.sleep(0.05)


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)
    if done.returncode:
        raise Failed("%s: %s" % (" ".join(command), (done.stdout + done.stderr).strip()))
    return done.stdout


# ---- what programs tell the one that watches them, in memory that all share ----

WRITERS = 2 * NODES  # of pages: on each node one by calls and one by a device
RUN, PAUSE, END = range(3)
MOST = 40  # programs


class Told(ctypes.Structure):
    """By one program."""
    _fields_ = [("call", ctypes.c_char * 24), ("since", ctypes.c_double), ("rounds", ctypes.c_uint64), ("paused", ctypes.c_uint64),
                ("longest", ctypes.c_double)]


class Shared(ctypes.Structure):
    """Pairs of numbers: what may be stored (begun), and what surely is (sure). In between is what a call that failed may have left."""
    _fields_ = [
        ("command", ctypes.c_uint64),
        ("told", Told * MOST),
        ("pages_begun", (ctypes.c_uint32 * PAGES) * WRITERS), ("pages_sure", (ctypes.c_uint32 * PAGES) * WRITERS),
        ("count_begun", (ctypes.c_uint32 * NODES) * 2), ("count_sure", (ctypes.c_uint32 * NODES) * 2),
        ("count_highest", ctypes.c_uint32 * 2),
        ("file_begun", ctypes.c_uint32 * NODES), ("file_sure", ctypes.c_uint32 * NODES),
        # What lies between the nodes and the brick does: seconds.
        ("delay", ctypes.c_double), ("held", ctypes.c_double), ("held_share", ctypes.c_double), ("break_after", ctypes.c_double),
        ("broken", ctypes.c_uint64), ("cut", ctypes.c_uint64),
    ]


def make_shared():
    return Shared.from_buffer(mmap.mmap(-1, ctypes.sizeof(Shared)))


# ---- programs ----


class Program:
    """A process that repeats round(). Its files are reached by name each time, since a node may have been mounted anew."""

    def __init__(self, world, slot, name, node):
        self.world, self.slot, self.name, self.node = world, slot, name, node
        self.shared, self.told = world.shared, world.shared.told[slot]
        self.root = world.mounts[node] if node is not None else world.local
        self.pid = None
        self.fds = []
        self.random = None

    def start(self):
        self.pid = os.fork()
        if self.pid:
            return
        status = 1
        try:
            self.random = random.Random("%s %d %f" % (self.name, self.slot, time.time()))
            self.begin()
            while self.shared.command != END:
                if self.shared.command == PAUSE:
                    self.told.paused = 1
                    time.sleep(0.02)
                    continue
                self.told.paused = 0
                try:
                    self.round()
                    self.told.rounds += 1
                except Stopped:
                    time.sleep(0.1)
                self.close_all()
            status = 0
        except Failed as failed:
            self.note("wrong", str(failed))
        finally:
            os._exit(status)

    def begin(self):
        pass

    def round(self):
        raise NotImplementedError

    def note(self, kind, text):
        with open(os.path.join(self.world.place, kind), "a", encoding="utf-8") as notes:
            notes.write("%s: %s\n" % (self.name, text))

    def call(self, what, function, *args):
        """One that may fail, and must end."""
        self.told.since = time.monotonic()
        self.told.call = what.encode()
        try:
            return function(*args)
        except OSError as error:
            self.note("errors", "%s: %s" % (what, errno.errorcode.get(error.errno, error.errno)))
            raise Stopped() from error
        finally:
            self.told.longest = max(self.told.longest, time.monotonic() - self.told.since)
            self.told.call = b""

    def open(self, name, flags):
        fd = self.call("open", os.open, os.path.join(self.root, name), flags | os.O_CLOEXEC, 0o666)
        self.fds.append(fd)
        return fd

    def close(self, fd):
        self.fds.remove(fd)
        self.call("close", os.close, fd)

    def close_all(self):
        while self.fds:
            try:
                self.close(self.fds[-1])
            except Stopped:
                pass

    def lock(self, fd, kind, how):
        if kind == FLOCK:
            self.call("flock", fcntl.flock, fd, how)
        else:
            self.call("F_SETLKW", fcntl.lockf, fd, how)


def check_page(shared, where, page, k, least):
    if len(page) != PAGE:
        raise Failed("%s: page %d has %d bytes" % (where, k, len(page)))
    words = struct.unpack("<%dI" % (PAGE // 4), page)
    for i, word in enumerate(words):
        writer = i * 4 // BLOCK % WRITERS
        if not least[writer] <= word <= shared.pages_begun[writer][k]:
            raise Failed("%s: page %d: writer %d's bytes at %d are %d: %d was stored by then, %d begun" %
                         (where, k, writer, i * 4, word, least[writer], shared.pages_begun[writer][k]))


class PageWriter(Program):
    """Has blocks of its own in each page, and stores a number there, which grows. (As in tests/mount/nodes_devices.c.)"""

    def __init__(self, world, slot, node, device):
        super().__init__(world, slot, "%s of node %d" % ("device" if device else "writer", node), node)
        self.writer = 2 * node + device

    def blocks(self):
        return range(self.writer * BLOCK, PAGE, WRITERS * BLOCK)

    def least(self, k):
        return [self.shared.pages_sure[writer][k] for writer in range(WRITERS)]

    def next_block(self, k):
        self.shared.pages_begun[self.writer][k] += 1
        return struct.pack("<I", self.shared.pages_begun[self.writer][k]) * (BLOCK // 4)

    def stored(self, k):
        self.shared.pages_sure[self.writer][k] = self.shared.pages_begun[self.writer][k]

    def round(self):
        k, sync = self.random.randrange(PAGES), self.random.randrange(2)
        least = self.least(k)
        fd = self.open("pages", os.O_RDWR)
        page = self.call("read", os.pread, fd, PAGE, k * PAGE)
        check_page(self.shared, self.name, page, k, least)
        block = self.next_block(k)
        for at in self.blocks():
            self.call("write", os.pwrite, fd, block, k * PAGE + at)
        if sync:
            self.call("fsync", os.fsync, fd)
        self.close(fd)
        self.stored(k)


class DeviceWriter(PageWriter):
    def begin(self):
        self.p = None
        lib = self.lib = ctypes.CDLL(os.path.join(self.world.build, "client/libgaiaclient.so"), use_errno=True)
        for name, args in {"munmap": 2, "acquire": 3, "release": 2, "sync": 2}.items():
            function = getattr(lib, "gaia_" + name)
            function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int][:args]
        lib.gaia_mmap.restype = ctypes.c_void_p
        lib.gaia_mmap.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_int]

    def gaia(self, what, *args):
        def checked():
            result = getattr(self.lib, "gaia_" + what)(*args)
            if what == "mmap" and result in (None, ctypes.c_void_p(-1).value) or what != "mmap" and result:
                raise OSError(ctypes.get_errno(), what)
            return result
        return self.call("gaia_" + what, checked)

    def map(self):
        if self.p is None:
            fd = self.open("pages", os.O_RDWR)
            self.p = self.gaia("mmap", PAGES * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, fd, 0, 0)
            self.close(fd)

    def round(self):
        try:
            self.map()
            self.act(self.random.randrange(PAGES))
        except Stopped:
            # With a mapping of its own the next round knows nothing of this one.
            if self.p is not None:
                p, self.p = self.p, None
                self.gaia("munmap", p, PAGES * PAGE)
            raise

    def act(self, k):
        least, at = self.least(k), self.p + k * PAGE
        self.gaia("acquire", at, PAGE, mmap.PROT_READ | mmap.PROT_WRITE)
        page = ctypes.string_at(at, PAGE)
        block = self.next_block(k)
        for own in self.blocks():
            ctypes.memmove(at + own, block, BLOCK)
        self.gaia("release", at, PAGE)
        # (Not before: memory of a daemon that is gone is nobody's promise.)
        check_page_of_device(self, page, k, least)
        self.gaia("sync", at, PAGE)
        self.stored(k)


def check_page_of_device(program, page, k, least):
    check_page(program.shared, program.name, page, k, least)


def line_of(node, number):
    """Of 32 bytes, so none is in two pages: the kernel's client of an engine behind FUSE may make two writes of such an append."""
    return b"node %d appends line %11d\n" % (node, number)


class Appender(Program):
    def __init__(self, world, slot, node):
        super().__init__(world, slot, "appender of node %d" % node, node)

    def begin(self):
        self.number = 0
        self.sure = open(os.path.join(self.world.place, "lines%d" % self.node), "a", encoding="ascii", buffering=1)

    def round(self):
        self.number += 1
        fd = self.open("log", os.O_WRONLY | os.O_APPEND)
        self.lock(fd, FLOCK, fcntl.LOCK_EX)
        line = line_of(self.node, self.number)
        if self.call("write", os.write, fd, line) != len(line):
            raise Failed("%s: a line was written in part" % self.name)
        self.call("fsync", os.fsync, fd)
        self.sure.write("%d\n" % self.number)
        self.close(fd)


class Counter(Program):
    """Adds one, under a lock."""

    def __init__(self, world, slot, node, kind):
        super().__init__(world, slot, "counter by %s of node %d" % (("flock", "record lock")[kind], node), node)
        self.kind = kind

    def round(self):
        shared, kind = self.shared, self.kind
        fd = self.open("count%d" % kind, os.O_RDWR)
        self.lock(fd, kind, fcntl.LOCK_EX)
        least = shared.count_highest[kind]
        text = self.call("read", os.pread, fd, 16, 0)
        if len(text) != 12 or int(text) < least:
            raise Failed("%s: it is at %r, and %d was stored before" % (self.name, text, least))
        value = int(text) + 1
        shared.count_begun[kind][self.node] += 1
        self.call("write", os.pwrite, fd, b"%012d" % value, 0)
        self.call("fsync", os.fsync, fd)
        shared.count_sure[kind][self.node] += 1
        shared.count_highest[kind] = max(shared.count_highest[kind], value)
        self.lock(fd, kind, fcntl.LOCK_UN)
        self.close(fd)


def contents_of(node, version):
    return b"node %d, version %08d. " % (node, version) * (1 + version * 37 % 500)


def check_file(where, node, text, least, most):
    version = int(text[16:24]) if text[16:24].isdigit() else -1
    if not least <= version <= most or text != contents_of(node, version):
        raise Failed("%s: node %d's file is %d bytes of version %d (%r...): %d was stored by then, %d begun" %
                     (where, node, len(text), version, text[:30], least, most))


class Replacer(Program):
    """Puts a new file in the place of its own, and reads the other node's."""

    def __init__(self, world, slot, node):
        super().__init__(world, slot, "replacer of node %d" % node, node)

    def read_whole(self, name):
        fd = self.open(name, os.O_RDONLY)
        text = b""
        while True:
            more = self.call("read", os.read, fd, 1 << 16)
            if not more:
                break
            text += more
        self.close(fd)
        return text

    def round(self):
        shared, other = self.shared, 1 - self.node
        shared.file_begun[self.node] += 1
        version = shared.file_begun[self.node]
        fd = self.open("new%d" % self.node, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        text = contents_of(self.node, version)
        if self.call("write", os.write, fd, text) != len(text):
            raise Stopped()
        self.close(fd)
        self.call("rename", os.rename, os.path.join(self.root, "new%d" % self.node), os.path.join(self.root, "file%d" % self.node))
        shared.file_sure[self.node] = version
        least = shared.file_sure[other]
        text = self.read_whole("file%d" % other)
        check_file(self.name, other, text, least, shared.file_begun[other])


class Bystander(Program):
    """Of another user, on a mount of a local directory. Nothing fails for it."""

    def __init__(self, world, slot):
        super().__init__(world, slot, "bystander", None)

    def begin(self):
        os.setgid(65534)
        os.setuid(65534)
        self.number = 0

    def round(self):
        self.number += 1
        text = b"%08d" % self.number * 1000
        fd = self.open("own", os.O_RDWR | os.O_CREAT)
        self.call("write", os.pwrite, fd, text, 0)
        if self.number % 50 == 0:
            self.call("fsync", os.fsync, fd)
        still = self.open("still", os.O_RDONLY)
        if self.call("read", os.pread, fd, len(text), 0) != text or self.call("read", os.read, still, 9) != b"unchanged":
            raise Failed("%s: read something else than was written" % self.name)
        time.sleep(0.01)


class Mapper(Program):
    """Reads pages of a node that it has mapped: no other node changes them."""

    def __init__(self, world, slot, node):
        super().__init__(world, slot, "mapper of node %d" % node, node)

    def begin(self):
        fd = os.open(os.path.join(self.root, "still"), os.O_RDONLY)
        self.map = mmap.mmap(fd, 9, mmap.MAP_PRIVATE, mmap.PROT_READ)
        os.close(fd)

    def round(self):
        if self.map[:9] != b"unchanged":
            raise Failed("%s: mapped pages are something else" % self.name)
        time.sleep(0.02)


# ---- what is between the nodes and the brick ----


class Link(threading.Thread):
    """Of one connection one direction."""

    def __init__(self, shared, source, to):
        super().__init__(daemon=True)
        self.shared, self.source, self.to = shared, source, to
        self.queue = collections.deque()
        self.ready = threading.Condition()

    def run(self):
        threading.Thread(target=self.send, daemon=True).start()
        try:
            while True:
                data = self.source.recv(1 << 17)
                self.put(data)
                if not data:
                    return
        except OSError:
            self.put(b"")

    def put(self, data):
        delay = random.uniform(0.5, 1.5) * self.shared.delay
        if random.random() < self.shared.held_share:
            delay += self.shared.held
        with self.ready:
            self.queue.append((time.monotonic() + delay, data))
            self.ready.notify()

    def send(self):
        try:
            while True:
                with self.ready:
                    while not self.queue:
                        self.ready.wait()
                    due, data = self.queue.popleft()
                time.sleep(max(0, due - time.monotonic()))
                if not data:
                    break
                self.to.sendall(data)
        except OSError:
            pass
        for end in (self.source, self.to):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def break_pair(shared, pair):
    """What has not arrived is lost."""
    for end in pair[1:]:
        try:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    shared.broken += 1


def carry(shared, listeners, brick_port):
    """The process between clients and brick: for each connection to one of @listeners it makes one to the brick, where that is by now."""
    pairs, next_break = [], 0.0
    while True:
        if shared.cut:
            for pair in [pair for pair in pairs if pair[0] is listeners[shared.cut - 1]]:
                pairs.remove(pair)
                break_pair(shared, pair)
            shared.cut = 0
        for listener in select.select(listeners, [], [], 0.05)[0]:
            client = listener.accept()[0]
            try:
                brick = socket.create_connection((SERVER, brick_port()), timeout=5)
            except (OSError, Failed):
                client.close()
                continue
            brick.settimeout(None)
            for end in (client, brick):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Link(shared, client, brick).start()
            Link(shared, brick, client).start()
            pairs.append((listener, client, brick))
        if not shared.break_after:
            next_break = 0.0
        elif not next_break or time.monotonic() > next_break:
            if next_break and pairs:
                break_pair(shared, pairs.pop(random.randrange(len(pairs))))
            next_break = time.monotonic() + random.uniform(0.5, 1.5) * shared.break_after


# ---- the server, the nodes ----


class World:
    def __init__(self, build, place):
        self.build, self.place = build, place
        self.shared = make_shared()
        self.clients = [os.path.join(place, "client%d" % n) for n in range(NODES)]
        self.mounts = [os.path.join(place, "node%d" % n) for n in range(NODES)]
        self.local = os.path.join(place, "local")
        self.brick = os.path.join(place, "brick")
        self.client, self.daemon = [None] * NODES, [None] * NODES
        self.bystanding = None
        self.programs, self.seen_errors = [], 0
        self.netem = False
        self.ports = []
        self.way = None

    def log(self, name):
        return open(os.path.join(self.place, name + ".log"), "ab")

    def start(self, log, *command):
        with self.log(log) as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    # -- GlusterFS

    def start_server(self):
        for at in ("/run", "/var/run", "/var/lib/glusterd", "/var/log/glusterfs"):
            if not os.path.islink(at):
                os.makedirs(at, exist_ok=True)
                run("mount", "-t", "tmpfs", "none", at)
        for at in ("/run/gluster", "/run/gaiafs", self.brick, self.local, os.path.join(self.place, "below"), *self.clients, *self.mounts):
            os.makedirs(at)
        run("ip", "link", "set", "lo", "up")
        run("ip", "address", "add", SERVER + "/32", "dev", "lo")
        self.start("glusterd", "glusterd", "-N", "--log-file=" + os.path.join(self.place, "glusterd.log"))

        def created():
            try:
                self.volume("create", VOLUME, "%s:%s" % (SERVER, self.brick), "force")
                return True
            except Failed:
                return False
        until(created, "the server makes a volume")
        # What gaiafs-nodes(7) says of GlusterFS.
        for option in ("quick-read", "stat-prefetch", "io-cache", "open-behind", "flush-behind"):
            self.volume("set", VOLUME, "performance." + option, "off")
        self.volume("set", VOLUME, "client.strict-locks", "on")
        self.volume("set", VOLUME, "network.ping-timeout", str(PING_TIMEOUT))
        self.volume("start", VOLUME)
        self.start_link()

    def volume(self, *args):
        return run("gluster", "--mode=script", "volume", *args)

    def brick_pid(self):
        for path in glob.glob("/run/gluster/vols/%s/*.pid" % VOLUME):
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
            if text:
                return int(text)
        raise Failed("the brick has no process")

    def brick_port(self):
        with open("/proc/%d/cmdline" % self.brick_pid(), encoding="utf-8") as file:
            words = file.read().split("\0")
        if "--brick-port" not in words:
            raise Failed("the brick has no port")
        return int(words[words.index("--brick-port") + 1])

    def start_brick(self):
        self.volume("start", VOLUME, "force")

    def start_link(self):
        listeners = [socket.create_server((SERVER, 0)) for _ in range(NODES)]
        self.ports = [listener.getsockname()[1] for listener in listeners]
        if not os.fork():
            try:
                carry(self.shared, listeners, self.brick_port)
            finally:
                os._exit(1)
        for listener in listeners:
            listener.close()

    def volfile(self, n):
        """As the server gives it, but with the brick behind our link."""
        lines = []
        for line in run("gluster", "system::", "getspec", VOLUME).splitlines():
            lines.append(line)
            if line.split()[:1] == ["option"] and line.split()[1] == "remote-host":
                lines.append("    option remote-port %d" % self.ports[n])
        path = os.path.join(self.place, "volfile%d" % n)
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        return path

    def start_client(self, n):
        self.client[n] = self.start("client%d" % n, "glusterfs", "-N", "--attribute-timeout=0", "--entry-timeout=0", "--negative-timeout=0",
                                    "--auto-invalidation=on", "--fopen-keep-cache=off",
                                    "--log-file=" + os.path.join(self.place, "glusterfs%d.log" % n),
                                    "--volfile=" + self.volfile(n), self.clients[n])
        until(lambda: os.path.ismount(self.clients[n]) and os.path.isdir(os.path.join(self.clients[n], ".")), "client %d is mounted" % n)
        until(lambda: self.can(os.listdir, self.clients[n]), "client %d is connected" % n)

    @staticmethod
    def can(function, *args):
        try:
            function(*args)
            return True
        except OSError:
            return False

    # -- gaiafs

    def gaia(self, *args):
        return run(os.path.join(self.build, "client/gaia"), *args)

    def status(self, n):
        return json.loads(self.gaia("status", "--json", self.mounts[n]))

    def start_daemon(self, log, *args):
        daemon = self.start(log, os.path.join(self.build, "daemon/gaiafs"), "-f", "--log-level", "warn", *args)

        def serves():
            if daemon.poll() is not None:
                with open(os.path.join(self.place, log + ".log"), encoding="utf-8", errors="replace") as text:
                    raise Failed("gaiafs does not start: " + text.read())
            return subprocess.run([os.path.join(self.build, "client/gaia"), "status", "--json", args[-1]], capture_output=True,
                                  timeout=PATIENCE, check=False).returncode == 0
        until(serves, "gaiafs serves " + args[-1])
        return daemon

    def start_node(self, n):
        self.daemon[n] = self.start_daemon("gaiafs%d" % n, "--source", "shared", "--cpu-cache", self.way, "--device", "sim:8M",
                                           self.clients[n], self.mounts[n])

    def stop_node(self, n):
        until(lambda: subprocess.run([os.path.join(self.build, "client/gaia"), "umount", self.mounts[n]], capture_output=True,
                                     timeout=PATIENCE, check=False).returncode == 0, "node %d is unmounted" % n)
        if self.daemon[n].wait(PATIENCE):
            raise Failed("the gaiafs of node %d has ended with %d" % (n, self.daemon[n].returncode))

    # -- programs

    def make_files(self):
        for name in os.listdir(self.clients[0]):
            if os.path.isfile(os.path.join(self.clients[0], name)):
                os.unlink(os.path.join(self.clients[0], name))
        for name, text in {"pages": bytes(PAGE * PAGES), "log": b"", "count0": b"%012d" % 0, "count1": b"%012d" % 0, "held0": b"",
                           "held1": b"", "still": b"unchanged", "file0": contents_of(0, 0), "file1": contents_of(1, 0)}.items():
            with open(os.path.join(self.clients[0], name), "wb") as file:
                file.write(text)
        ctypes.memset(ctypes.addressof(self.shared), 0, ctypes.sizeof(self.shared))
        for name in ("lines0", "lines1", "errors", "wrong"):
            with open(os.path.join(self.place, name), "wb"):
                pass
        self.seen_errors = 0

    def start_programs(self):
        makers = [lambda slot: Bystander(self, slot)]
        for n in range(NODES):
            makers += [lambda slot, n=n: PageWriter(self, slot, n, 0), lambda slot, n=n: DeviceWriter(self, slot, n, 1),
                       lambda slot, n=n: Appender(self, slot, n), lambda slot, n=n: Counter(self, slot, n, FLOCK),
                       lambda slot, n=n: Counter(self, slot, n, RECORD), lambda slot, n=n: Replacer(self, slot, n),
                       lambda slot, n=n: Mapper(self, slot, n)]
        self.programs = [maker(slot) for slot, maker in enumerate(makers)]
        for program in self.programs:
            program.start()

    def look(self):
        """Fails if a program has read something wrong, or ended."""
        with open(os.path.join(self.place, "wrong"), encoding="utf-8") as wrong:
            text = wrong.read()
        if text:
            raise Failed("WRONG: " + text.strip())
        for program in self.programs:
            if os.waitpid(program.pid, os.WNOHANG)[0]:
                raise Failed("%s has ended" % program.name)

    def busy(self):
        """In which calls programs are."""
        return "; ".join("%s: %s for %.1f s" % (p.name, p.told.call.decode(), time.monotonic() - p.told.since)
                         for p in self.programs if p.told.call) or "none is in a call"

    def rounds(self, programs):
        return {p: p.told.rounds for p in programs}

    def go_on(self, programs, what, more=3):
        """Each of @programs makes rounds."""
        before = self.rounds(programs)
        end = time.monotonic() + PATIENCE
        while True:
            self.look()
            late = [p.name for p in programs if p.told.rounds < before[p] + more]
            if not late:
                return
            if time.monotonic() > end:
                raise Failed("%s: %s do not go on (%s)" % (what, ", ".join(late), self.busy()))
            time.sleep(0.05)

    def command(self, command):
        self.shared.command = command

    def pause(self):
        self.command(PAUSE)
        end = time.monotonic() + PATIENCE
        while not all(p.told.paused for p in self.programs):
            self.look()
            if time.monotonic() > end:
                raise Failed("calls do not end: " + self.busy())
            time.sleep(0.05)

    def resume(self):
        self.command(RUN)
        until(lambda: not any(p.told.paused for p in self.programs), "programs begin again")

    def end_programs(self):
        self.command(END)
        end = time.monotonic() + PATIENCE
        for program in self.programs:
            while True:
                pid, status = os.waitpid(program.pid, os.WNOHANG)
                if pid:
                    break
                if time.monotonic() > end:
                    raise Failed("calls do not end: " + self.busy())
                time.sleep(0.05)
            if status:
                self.programs = []
                self.look()
                raise Failed("%s has ended with status %d" % (program.name, status))
        self.programs = []

    # -- what must hold when nothing is under way

    def check(self):
        for where in (self.brick, *self.mounts):
            self.check_at(where)

    def check_at(self, where):
        shared = self.shared

        def read(name):
            with open(os.path.join(where, name), "rb") as file:
                return file.read()
        pages = read("pages")
        for k in range(PAGES):
            check_page(shared, where, pages[k * PAGE:(k + 1) * PAGE], k, [shared.pages_sure[w][k] for w in range(WRITERS)])
        lines = collections.Counter(read("log").splitlines(True))
        for node in range(NODES):
            with open(os.path.join(self.place, "lines%d" % node), encoding="ascii") as file:
                for number in file:
                    if lines[line_of(node, int(number))] != 1:
                        raise Failed("%s: a line was appended, and is there %d times: %r" %
                                     (where, lines[line_of(node, int(number))], line_of(node, int(number))))
        for line, times in lines.items():
            if times != 1 or line not in (line_of(0, int(line[-12:-1])), line_of(1, int(line[-12:-1]))):
                raise Failed("%s: a line is there %d times: %r" % (where, times, line))
        for kind in (FLOCK, RECORD):
            count, sure, begun = int(read("count%d" % kind)), sum(shared.count_sure[kind]), sum(shared.count_begun[kind])
            if not sure <= count <= begun:
                raise Failed("%s: the count under lock %d is %d: %d steps were stored, %d begun" % (where, kind, count, sure, begun))
        for node in range(NODES):
            check_file(where, node, read("file%d" % node), shared.file_sure[node], shared.file_begun[node])

    def errors(self):
        """Those that are new, of each node by call and kind."""
        with open(os.path.join(self.place, "errors"), encoding="utf-8") as file:
            file.seek(self.seen_errors)
            text = file.read()
            self.seen_errors = file.tell()
        kinds = [collections.Counter() for n in range(NODES)]
        for line in text.splitlines():
            who, what = line.split(": ", 1)
            if who == "bystander":
                raise Failed("bystander, which has nothing to do with the volume: " + what)
            kinds[int(who[-1])][what] += 1
        return kinds

    # -- what happens to them

    def on(self, *kinds, node=None):
        return [p for p in self.programs if isinstance(p, kinds) and node in (None, p.node)]

    def while_stopped(self, seconds):
        """The brick does not answer: what needs none goes on."""
        end = time.monotonic() + seconds
        time.sleep(1)
        self.go_on(self.on(Bystander, Mapper), "while the brick is stopped")
        self.gaia("status", self.local)
        while time.monotonic() < end:
            self.look()
            time.sleep(0.1)

    def brick_stopped(self, seconds):
        pid = self.brick_pid()
        os.kill(pid, signal.SIGSTOP)
        asked = []
        try:
            asked = [self.ask(n) for n in range(NODES)]
            self.while_stopped(seconds)
            for said, process in asked:
                self.says_that_it_waits(said, process)
        finally:
            os.kill(pid, signal.SIGCONT)
            for _, process in asked:
                process.wait(PATIENCE)

    def ask(self, n):
        said = os.path.join(self.place, "status%d" % n)
        with open(said, "wb") as output:
            return said, subprocess.Popen([os.path.join(self.build, "client/gaia"), "status", self.mounts[n]], stdout=subprocess.DEVNULL,
                                          stderr=output)

    def says_that_it_waits(self, said, process):
        def says():
            with open(said, encoding="utf-8") as text:
                return "waiting for source" in text.read()
        until(lambda: says() or process.poll() is not None, "gaia status says something")
        if not says():
            raise Failed("gaia status has ended with %d while the brick is stopped, and did not say that it waits" % process.returncode)

    def brick_killed(self):
        pid = self.brick_pid()
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.while_stopped(3)
        self.start_brick()

    def hold_locks(self, n):
        """A program of node @n, which holds locks of both kinds until it ends. (Not on one file: to GlusterFS the kinds are one.)"""
        ready, told = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                for kind, lock in enumerate((fcntl.flock, fcntl.lockf)):
                    lock(os.open(os.path.join(self.mounts[n], "held%d" % kind), os.O_RDWR), fcntl.LOCK_EX)
                os.write(told, b"x")
                signal.pause()
            finally:
                os._exit(1)
        os.close(told)
        if not select.select([ready], [], [], PATIENCE)[0] or os.read(ready, 1) != b"x":
            raise Failed("a lock is not to be had on node %d" % n)
        os.close(ready)
        return pid

    def locks_are_free(self, n):
        """For node @n."""
        fds = []
        try:
            for kind, lock in enumerate((fcntl.flock, fcntl.lockf)):
                fds.append(os.open(os.path.join(self.mounts[n], "held%d" % kind), os.O_RDWR))
                lock(fds[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            raise Failed("node %d: a lock that somebody has: %s" % (n, error)) from error
        finally:
            for fd in fds:
                os.close(fd)

    def node_dies(self, kill):
        """Node 0, by @kill; and what it held is free for node 1, which goes on."""
        holder = self.hold_locks(0)
        try:
            if self.locks_are_free(1):
                raise Failed("two nodes hold a lock")
            kill()
            until(lambda: self.locks_are_free(1), "the locks of the node that died are free")
        finally:
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)
        self.go_on(self.on(Bystander) + self.on(PageWriter, Appender, Counter, Replacer, Mapper, node=1), "while a node is dead")

    def kill_daemon(self):
        self.daemon[0].kill()
        self.daemon[0].wait()

    def daemon_killed(self):
        self.node_dies(self.kill_daemon)
        self.start_node(0)

    def kill_client(self):
        self.client[0].kill()
        self.client[0].wait()

    def client_killed(self):
        self.node_dies(self.kill_client)
        # (Programs keep both from being unmounted otherwise. The next gaiafs takes the mount of this one away.)
        self.kill_daemon()
        run("umount", "-l", self.clients[0])
        self.start_client(0)
        self.start_node(0)

    def client_stopped(self):
        self.client[0].send_signal(signal.SIGSTOP)
        try:
            # (Locks that programs of node 0 hold are its; so who waits for them waits.)
            self.go_on(self.on(Bystander, Mapper) + self.on(PageWriter, Replacer, node=1), "while the client of node 0 is stopped")
        finally:
            self.client[0].send_signal(signal.SIGCONT)

    def holder_cut_off(self):
        """The connections of node 0, on which a program has locks, break once. The brick gives them away, and the holder is told."""
        ready, told = os.pipe()
        go, tell = os.pipe()
        pid = os.fork()
        if not pid:
            results = []
            try:
                fds = [os.open(os.path.join(self.mounts[0], "held%d" % kind), os.O_RDWR) for kind in (FLOCK, RECORD)]
                fcntl.flock(fds[0], fcntl.LOCK_EX)
                fcntl.lockf(fds[1], fcntl.LOCK_EX)
                os.write(told, b"x")
                os.read(go, 1)
                for fd in fds:
                    try:
                        os.pwrite(fd, b"x", 0)
                        os.fsync(fd)
                        results.append("goes on as if it had it")
                    except OSError as error:
                        results.append("is told " + errno.errorcode.get(error.errno, str(error.errno)))
                os.write(told, ", ".join("%s: %s" % pair for pair in zip(("flock", "record lock"), results)).encode())
            finally:
                os._exit(0)
        os.close(told)

        def hear(what):
            if not select.select([ready], [], [], PATIENCE)[0]:
                raise Failed("the holder of a lock: %s: no answer" % what)
            return os.read(ready, 1 << 10).decode()
        try:
            if hear("locks") != "x":
                raise Failed("a lock is not to be had on node 0")
            self.shared.cut = 1
            until(lambda: not self.shared.cut, "the connections of node 0 are broken")
            self.go_on(self.programs, "after a cut")
            free = self.locks_are_free(1)
            os.write(tell, b"x")
            said = hear("writes")
            say("    the lock of who is cut off is %s node 1 then; the holder: %s" % ("free for" if free else "kept from", said))
            if free and "goes on" in said:
                raise Failed("a program whose lock somebody else has was not told: " + said)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            for fd in (ready, go, tell):
                os.close(fd)

    def connections_break(self):
        self.slow(True)
        self.shared.broken = 0
        self.shared.break_after = 2.0
        end = time.monotonic() + 15
        while time.monotonic() < end:
            self.look()
            time.sleep(0.1)
        self.shared.break_after = 0
        self.slow(False)
        if not self.shared.broken:
            raise Failed("no connection was broken")
        say("    %d connections were broken" % self.shared.broken)

    def slow(self, slow):
        """Delays and drops between nodes and brick."""
        if self.netem:
            run("tc", "qdisc", "replace", "dev", "lo", "root", "netem", *("delay 1ms 500us loss 0.5%" if slow else "delay 0ms").split())
        else:
            # What TCP makes of a packet that is dropped: nothing arrives until it has been sent again, 200 ms later.
            self.shared.delay, self.shared.held, self.shared.held_share = (0.001, 0.2, 0.005) if slow else (0, 0, 0)

    # -- all of it

    def state(self):
        """For when it fails."""
        for n in range(NODES):
            for what, process in (("client", self.client[n]), ("gaiafs", self.daemon[n])):
                if process:
                    yield "node %d: %s: %s" % (n, what, "runs" if process.poll() is None else "has ended with %d" % process.returncode)
        yield self.busy()

    def fails(self, what, function, unharmed=()):
        """@function has it fail. On the nodes @unharmed programs get no errors, but those that meet a file's replacement."""
        start = time.monotonic()
        for program in self.programs:
            program.told.longest = 0
        function()
        self.go_on(self.programs, "after: " + what)
        self.pause()
        self.check()
        longest = max(self.programs, key=lambda p: p.told.longest)
        say("  right: %s (%.0f s; the longest call: %s, %.1f s)" % (what, time.monotonic() - start, longest.name, longest.told.longest))
        for n, errors in enumerate(self.errors()):
            if errors:
                say("    errors on node %d: %s" % (n, ", ".join("%s %d" % item for item in sorted(errors.items()))))
            harm = set(errors) - {"open: ENOENT", "open: ESTALE", "open: EIO"}
            if n in unharmed and harm:
                raise Failed("%s: what has that to do with node %d?" % (what, n))
        self.resume()

    def play(self, way):
        self.way = way
        self.make_files()
        say("--cpu-cache %s" % way)
        for n in range(NODES):
            self.start_node(n)
        status = self.status(0)
        if status["cpu_cache"] != way:
            say("  left out: %s" % status["not_auto"])
            for n in range(NODES):
                self.stop_node(n)
            return
        self.start_programs()
        self.fails("nothing happens", lambda: time.sleep(3), (0, 1))
        self.fails("the brick is stopped for %d s" % SHORTER, lambda: self.brick_stopped(SHORTER), (0, 1))
        self.fails("the brick is stopped for %d s, and clients wait for %d s" % (LONGER, PING_TIMEOUT),
                   lambda: self.brick_stopped(LONGER))
        self.fails("the brick is killed, and started again", self.brick_killed)
        self.fails("the gaiafs of node 0 is killed", self.daemon_killed, (1,))
        self.fails("the client of node 0 is stopped", self.client_stopped, (0, 1))
        self.fails("the client of node 0 is killed", self.client_killed, (1,))
        self.fails("the holder of a lock is cut off from the brick", self.holder_cut_off, (1,))
        self.fails("connections break", self.connections_break)
        self.end_programs()
        for n in range(NODES):
            self.stop_node(n)
        self.check_at(self.brick)

    def pairs(self):
        self.slow(True)
        for suite in ("nodes", "nodes_devices"):
            start = time.monotonic()
            done = subprocess.run([os.path.join(self.build, "tests/mount/mount_" + suite), "-j1", "--filter", "*/*engine"], check=False,
                                  env=dict(os.environ, GAIA_ENGINE_CLIENTS=":".join(self.clients)), timeout=1200)
            if done.returncode:
                raise Failed("%s, with delays and drops: status %d" % (suite, done.returncode))
            say("right: %s, with delays and drops (%.0f s)" % (suite, time.monotonic() - start))
        self.slow(False)

    def main(self, ways):
        os.chmod(self.place, 0o755)
        self.start_server()
        self.netem = not subprocess.run("tc qdisc replace dev lo root netem delay 0ms".split(), capture_output=True, check=False).returncode
        say("delays and drops are netem's" if self.netem else
            "this kernel has no netem: delays are a proxy's, and instead of drops it holds what passes as long as TCP takes to send again")
        for n in range(NODES):
            self.start_client(n)
        with open(os.path.join(self.place, "below", "still"), "wb") as file:
            file.write(b"unchanged")
        os.chmod(os.path.join(self.place, "below"), 0o777)
        self.start_daemon("local", "--device", "none", os.path.join(self.place, "below"), self.local)
        for way in ways:
            self.play(way)
        self.pairs()


def inside(build, place, ways):
    world, start = World(build, place), time.monotonic()
    try:
        run("mount", "-t", "tmpfs", "none", place)
        world.main(ways)
    except (Failed, OSError, subprocess.TimeoutExpired) as failed:
        say("%s: %s" % (type(failed).__name__, failed))
        for line in world.state():
            say(line)
        for path in sorted(glob.glob(os.path.join(place, "gaiafs*.log"))):
            with open(path, encoding="utf-8", errors="replace") as log:
                say("%s: %s" % (os.path.basename(path), log.read()[-2000:]))
        if os.environ.get("NODES_FAILURES_KEEP"):
            shutil.copytree(place, os.environ["NODES_FAILURES_KEEP"], symlinks=True, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("client?", "node?", "local", ".glusterfs"))
        return 1
    say("all is right (%.0f s)" % (time.monotonic() - start))
    return 0


def main():
    if sys.argv[1] == "--inside":
        sys.exit(inside(sys.argv[2], sys.argv[3], sys.argv[4:]))
    build, ways = os.path.abspath(sys.argv[1]), sys.argv[2:] or ["auto", "writethrough"]
    can = subprocess.run([os.path.join(SOURCE, "scripts/demo-nodes"), "--check"], capture_output=True, text=True, check=False)
    if can.returncode:
        skip((can.stdout + can.stderr).strip().splitlines()[-1])
    place = tempfile.mkdtemp(prefix="gaiafs-failures.")
    try:
        done = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private",
                               sys.executable, "-B", os.path.abspath(__file__), "--inside", build, place, *ways], check=False)
    finally:
        os.rmdir(place)
    sys.exit(done.returncode)


main()
