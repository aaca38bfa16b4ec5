#!/usr/bin/env python3
"""top.py BUILD WORKER - gaia top: what it says as text, to whom, and that its screen is one.

Status 77: skipped, the last line says why.
"""
import fcntl
import json
import mmap
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

failed = 0
OTHER = 65534
EVIL = "evil\x1b]0;title\x07\n\x9bname"
MIB = 1 << 20


def check(good, what):
    global failed
    if not good:
        print(f"top: {what}", file=sys.stderr)
        failed = 1


def gaia(build, *args, uid=None):
    done = subprocess.run([f"{build}/client/gaia", *args], capture_output=True, text=True, errors="surrogateescape", check=False,
                          stdin=subprocess.DEVNULL, timeout=60, user=uid, group=uid, extra_groups=None if uid is None else [])
    return done.returncode, done.stdout, done.stderr


def number(text, scale=1024):
    """What 12.3M and the like mean."""
    return float(text.rstrip("KMGTPE")) * scale ** " KMGTPE".index(text[-1] if text[-1].isalpha() else " ")


def rows(text, heading):
    """The lines of a table, as lists of words."""
    lines = text.split("\n")
    at = [k for k, line in enumerate(lines) if line.split()[:1] == [heading]]
    if not at:
        return []
    return [line.split() for line in lines[at[0] + 1:lines.index("", at[0])]]


def reads(path, pages):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 4096)
    for k in range(pages):
        os.preadv(fd, [buffer], k % 256 * 4096)
    os.close(fd)


def read_requests(text):
    """Of one round: its row, and how many."""
    seconds = float(re.search(r"in the last ([0-9.]+) s", text)[1])
    told = [row for row in rows(text, "TIME") if row[:2] == ["request", "read"]]
    return (told[0], number(told[0][2], 1000) * seconds) if told else (None, 0)


def rounds_of(top):
    """The text of each round, when the next one has begun."""
    text = ""
    for line in top.stdout:
        if line.startswith("gaia top") and text:
            yield text + "\n"
            text = ""
        text += line
    yield text + "\n"


def as_text(build):
    """It tells of the interval, not of what was before; files and others' rows are told to those who may know."""
    reads("mnt/file", 500)
    # What the kernel forgets, as others may drop its caches, the daemon drops.
    known = os.open("mnt/file", os.O_PATH)
    top = subprocess.Popen([f"{build}/client/gaia", "top", "mnt", "0.5", "100", "-b"], stdout=subprocess.PIPE, text=True)
    rounds, total, told = rounds_of(top), 0, None
    # When it has told of one round it knows where the next one begins.
    total += read_requests(next(rounds))[1]
    reads("mnt/file", 1000)
    for text in rounds:
        row, number_of = read_requests(text)
        total += number_of
        told = row or told
        if row and total >= 900:
            break
    top.terminate()
    top.communicate(timeout=60)
    os.close(known)
    # Rates and seconds are rounded.
    check(900 <= total <= 1100, f"not 1000 reads but {total}")
    check(told and all(re.fullmatch(r"[0-9.]+(ns|us|ms|s)", part) for part in told[3:6]), f"no times: {told}")
    check("found   home  100.0%" in text, "what was found in home")
    check([row[0] for row in rows(text, "DEVICE")] == ["sim0", "host"], "devices")
    files = rows(text, "HOME")
    check(files and files[0][-1].endswith("mnt/file") and number(files[0][0]) == MIB, f"files: {files}")
    check(any(line.endswith(r"/evil\033]0;title\007\012\302\233name") for line in text.split("\n")) and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", text),
          f"a name sends commands to the terminal: {text!r}")

    status, text, message = gaia(build, "top", "mnt", "0.1", "2", "-b", uid=OTHER)
    check(status == 0 and len(re.findall("^gaia top", text, re.M)) == 2, f"another user: {status}, {message}")
    check("mnt/file" not in text and not rows(text, "HOME"), "another user is told of files")
    check([row[0] for row in rows(text + "\n", "USER")] in ([], [str(OTHER)]), "another user is told of users")
    check(not message, f"another user: {message}")


def make(name, size):
    with open(f"mnt/{name}", "wb") as file:
        file.write(os.urandom(size))


class Worker:
    """A client (worker.c) on the first device."""

    def __init__(self, program, file, uid=None):
        self.process = subprocess.Popen([program, file, "0", str(MIB), "20"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=uid, group=uid,
                                        extra_groups=None if uid is None else [])
        check(self.process.stdout.readline() == "working\n", "a client does not work")

    def pid(self):
        return str(self.process.pid)

    def end(self):
        self.process.stdin.close()
        check(self.process.wait(timeout=60) == 0, "a client failed")


CLIENT = ["pid", "user", "mapped", "devices", "host", "private", "pinned", "calls", "in", "out"]
FILE = ["home", "devices", "pinned", "private", "parked", "dirty", "maps", "path"]
MOVING = ["in", "out", "rel", "read", "write", "path"]


def row_of(text, heading, columns, last):
    """The row of the table as {column: word}, where the first column, or else the last, is @last."""
    for row in rows(text + "\n", heading):
        if row[0] == last or row[-1].endswith(last):
            return dict(zip(columns, row)), " ".join(row[len(columns):])
    return {}, ""


def of_clients(build, program):
    """What each client and each file has and moves, to whom it concerns."""
    make("worked", 4 * MIB)
    make("readable", MIB)
    owner, other = Worker(program, "mnt/worked"), Worker(program, "mnt/readable", OTHER)
    top = subprocess.Popen([f"{build}/client/gaia", "top", "mnt", "0.3", "200", "-b"], stdout=subprocess.PIPE, text=True)
    buffer, seen = b"x" * 4096, set()
    fd = os.open("mnt/worked", os.O_RDWR)
    for text in rounds_of(top):
        mine, waits = row_of(text, "CLIENT", CLIENT, owner.pid())
        theirs, _ = row_of(text, "CLIENT", CLIENT, other.pid())
        user, _ = row_of(text, "USER", ["user", "clients"] + CLIENT[2:7] + ["maps", "in", "out"], str(OTHER))
        file, _ = row_of(text, "HOME", FILE, "mnt/worked")
        readable, _ = row_of(text, "HOME", FILE, "mnt/readable")
        moving, _ = row_of(text, "IN/s", MOVING, "mnt/worked")
        for what, holds in (("its row", mine and mine["user"] == "0" and number(mine["mapped"]) == 4 * MIB and number(mine["private"]) == 0),
                            ("what it has on the device", mine and number(mine["devices"]) == 4 * MIB and number(mine["host"]) == 0),
                            ("what it has acquired", mine and number(mine["pinned"]) == MIB),
                            ("its calls", mine and number(mine["calls"], 1000) > 0),
                            ("what came to the device", mine and number(mine["in"]) > 0),
                            ("what was fetched for it", mine and number(mine["out"]) > 0),
                            ("what it waits for", re.search(r"(device|storage|pages|kernel|clients) [0-9.]+%", waits)),
                            ("a reader's own copy", theirs and theirs["user"] == str(OTHER) and number(theirs["private"]) == number(theirs["devices"]) == 2 * MIB),
                            ("its user", user and user["clients"] == "1" and number(user["pinned"]) == MIB and user["maps"] == "1"),
                            ("the file", file and number(file["devices"]) == 4 * MIB and number(file["pinned"]) > 0 and number(file["private"]) == 0),
                            ("a reader's file", readable and number(readable["private"]) == 2 * MIB),
                            ("what is moved for the file", moving and all(number(moving[k]) > 0 for k in ("in", "out", "rel", "write")))):
            if holds:
                seen.add(what)
        if len(seen) == 12:
            break
        last = text
        for k in range(1024):
            os.pwrite(fd, buffer, k * 4096 + 1)
    else:
        check(False, f"never shown together or at all; only {sorted(seen)}:\n{last}")
    os.close(fd)
    top.terminate()
    top.communicate(timeout=60)
    status, text, message = gaia(build, "top", "mnt", "0.3", "2", "-b", uid=OTHER)
    clients = {row[0]: row for row in rows(text + "\n", "CLIENT")}
    check(status == 0 and other.pid() in clients and owner.pid() not in clients, f"clients that another user is told of: {clients} {message}")
    check("mnt/worked" not in text and "mnt/readable" not in text, "files that another user is told of")
    status, text, _ = gaia(build, "status", "mnt", "--json")
    told = {row["pid"]: row for row in json.loads(text)["clients"]}[owner.process.pid]
    check(told["released_bytes"] > 0 and told["to_storage_bytes"] > 0, f"totals: {told}")
    owner.end()
    other.end()


def refusals(build):
    for args, wanted, words in ((["top", "mnt"], 1, "-b"), (["top", "mnt", "x", "-b"], 2, "interval"), (["top", "mnt", "1", "0", "-b"], 2, "interval"),
                                (["top", "/", "-b"], 1, "not on a gaiafs mount"), (["top"], 1, "-b"), (["stat", "mnt", "-b"], 2, "")):
        status, text, message = gaia(build, *args)
        check(status == wanted and words in message and len(message.splitlines()) == 1 and not text, f"{args}: {status}: {text}{message}")


class Terminal:
    """gaia top in a terminal of its own."""

    def __init__(self, build, *args, term="xterm"):
        self.seen = b""
        self.ours, theirs = pty.openpty()
        self.resize(14, 80, quietly=True)
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        environment = dict(os.environ, TERM=term, LC_ALL="C.UTF-8")
        for name in ("LINES", "COLUMNS"):
            environment.pop(name, None)
        self.process = subprocess.Popen([f"{build}/client/gaia", "top", "mnt", *args], stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
                                        start_new_session=True)

    def resize(self, lines, columns, quietly=False):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        if not quietly:
            self.process.send_signal(signal.SIGWINCH)

    def read_until(self, wanted, what):
        """What comes until a pattern is in it."""
        end, got = time.monotonic() + 60, b""
        while not re.search(wanted, got):
            ready = select.select([self.ours], [], [], max(0, end - time.monotonic()))[0]
            if not ready:
                check(False, f"{what}: not within a minute: {got[-2000:]}")
                break
            try:
                part = os.read(self.ours, 65536)
            except OSError:
                part = b""
            if not part:
                check(False, f"{what}: it has ended: {got[-2000:]}")
                break
            got += part
        self.seen += got
        return got

    def press_until(self, key, wanted, what):
        """Again and again, as it may not listen yet."""
        for _ in range(600):
            os.write(self.ours, key)
            if select.select([self.ours], [], [], 0.1)[0]:
                break
        self.read_until(wanted, what)

    def end(self, key, what):
        if key:
            os.write(self.ours, key)
        # What it still writes must not fill the terminal.
        end = time.monotonic() + 60
        while self.process.poll() is None and time.monotonic() < end:
            if select.select([self.ours], [], [], 0.05)[0]:
                self.seen += os.read(self.ours, 65536)
        check(self.process.poll() == 0, f"{what}: status {self.process.poll()}")
        check(termios.tcgetattr(self.theirs) == self.before, f"{what}: the terminal is not as it was")
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


def on_screen(build):
    screen = Terminal(build, "0.2")
    screen.read_until(rb"(?s)gaia top - .*DEVICE.*TIME TAKEN", "a screen")
    # More than 14 lines: what is below comes with the arrows; and again all of it, larger, when the terminal is.
    os.write(screen.ours, b"\x1b[6~" * 3)
    screen.read_until(rb"FILE", "the files, a page further")
    screen.resize(50, 132)
    screen.read_until(rb"gaia top - ", "a larger screen")
    check(b"\x07" not in screen.seen and b"\x1b]0;" not in screen.seen, "a name sends commands to the terminal")
    screen.end(b"q", "q")

    screen = Terminal(build, "1000")
    screen.press_until(b" ", rb"gaia top - ", "the space bar")
    screen.process.send_signal(signal.SIGTERM)
    screen.end(b"", "SIGTERM")
    screen = Terminal(build, "0.1", "3")
    screen.end(b"", "a count")
    screen = Terminal(build, term="nonsense")
    screen.read_until(rb"does not know the terminal 'nonsense' \(TERM\); -b", "an unknown terminal")
    screen.process.wait(timeout=60)
    check(screen.process.returncode == 1, "an unknown terminal")
    screen.resize(5, 3, quietly=True)
    os.close(screen.ours)
    os.close(screen.theirs)
    tiny = Terminal(build, "0.1", "5")
    tiny.resize(2, 5)
    tiny.end(b"", "a tiny screen")


def main():
    build, worker = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    if not os.path.exists("/dev/fuse"):
        print("top: there is no /dev/fuse")
        return 77
    directory = tempfile.mkdtemp(prefix="gaiafs-top.")
    os.chmod(directory, 0o755)
    os.chdir(directory)
    os.mkdir("below")
    os.mkdir("mnt")
    try:
        subprocess.run([f"{build}/daemon/gaiafs", "--device", "sim:16M,readonly=off", "--cpu-cache", "writethrough", "-o", "allow_other", "below", "mnt"], check=True)
        for name, size in (("file", MIB), (EVIL, 4096)):
            make(name, size)
        reads("mnt/file", 256)
        as_text(build)
        of_clients(build, worker)
        refusals(build)
        _, _, message = gaia(build, "top", "mnt")
        if "built without ncurses" in message:
            print("top: built without ncurses: its screen was not tried")
            return failed or 77
        on_screen(build)
        subprocess.run([f"{build}/client/gaia", "umount", "mnt"], check=True)
    finally:
        if os.path.ismount("mnt"):
            subprocess.run(["umount", "-l", "mnt"], check=False)
        os.chdir("/")
        shutil.rmtree(directory, ignore_errors=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
