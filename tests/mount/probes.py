#!/usr/bin/env python3
"""probes.py BUILD HEADER SCRIPT... - each probe of the daemon fires when what it tells of happens, with arguments that fit; and SCRIPTs show it.

By bpftrace, and, where that cannot trace, by gdb. The probes are those that HEADER (probe.h) lists. Status 77: skipped, the last line says why.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

failed = 0
PAGE = 4096
CHUNK_PAGES = 512
PAGES = 700  # of a file; two chunks
PATIENCE_S = 60
HELLO = 'BEGIN { printf("traces\\n"); exit(); }'


def check(good, what):
    global failed
    if not good:
        print(f"probes: {what}", file=sys.stderr)
        failed = 1


def skip(why):
    print(f"probes: {why}")
    sys.exit(77)


def listed(header):
    """{probe: how many arguments}"""
    with open(header, encoding="utf-8") as file:
        return {name: arguments.count(",") + 1 for name, arguments in re.findall(r"^ \*\t(\w+)\(([^)]*)\)", file.read(), re.M)}


def signed(number):
    return (number & 0xffffffff) - ((number & 0x80000000) << 1)


class Tracer:
    """What it says, of one daemon's probes, as it comes: (name, file, other arguments, of 32 bits)."""

    def __init__(self, command, directory):
        self.path = f"{directory}/traced"
        self.errors = f"{directory}/errors"
        with open(self.path, "wb") as out, open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, start_new_session=True)

    def said(self):
        with open(self.path, encoding="utf-8", errors="replace") as file:
            found = re.findall(r"^P (\w+)((?: -?\d+)+) \.$", file.read(), re.M)
        events = []
        for name, rest in found:
            key, *others = (int(one) for one in rest.split())
            events.append((name, key, [signed(one) for one in others]))
        return events

    def lives(self):
        return self.process.poll() is None

    def why(self):
        with open(self.errors, encoding="utf-8", errors="replace") as file:
            return file.read()[-500:]


def by_bpftrace(probes, program, pid, directory):
    text = "".join(f'usdt:{program}:gaiafs:{name} {{ printf("P {name}{" %ld" * n} .\\n", {", ".join(f"arg{k}" for k in range(n))}); }}\n'
                   for name, n in probes.items())
    return Tracer(["bpftrace", "-B", "line", "-p", str(pid), "-e", text], directory)


def by_gdb(probes, _program, pid, directory):
    """It goes when the daemon does: ended before, it would leave its breakpoints behind."""
    lines = ["set pagination off", "set confirm off", "set breakpoint pending off", "handle all nostop noprint pass", "handle SIGTRAP stop"]
    for name, n in probes.items():
        arguments = ", ".join(f"(long)$_probe_arg{k}" for k in range(n))
        lines += [f"break -probe-stap gaiafs:{name}", "commands", "silent", f'printf "P {name}{" %ld" * n} .\\n", {arguments}', "continue", "end"]
    with open(f"{directory}/commands", "w", encoding="utf-8") as file:
        file.write("\n".join(lines + ["continue", ""]))
    return Tracer(["gdb", "-q", "-nx", "-batch", "-p", str(pid), "-x", f"{directory}/commands"], directory)


def tracers():
    """Those that work here."""
    if shutil.which("bpftrace"):
        done = subprocess.run(["timeout", "30", "bpftrace", "-e", HELLO], capture_output=True, text=True, check=False)
        if "traces" in done.stdout:
            yield "bpftrace", by_bpftrace
        else:
            print(f"bpftrace cannot trace here: {done.stderr.strip()[-200:]}")
    else:
        print("bpftrace is not installed")
    if shutil.which("gdb"):
        yield "gdb", by_gdb
    else:
        print("gdb is not installed")


class Mount:
    def __init__(self, build):
        # A copy: breakpoints of the kernel are in the file, and so in all that run it; valgrind would end at one.
        self.build, self.gaiafs = build, os.path.abspath("gaiafs")
        if not os.path.exists(self.gaiafs):
            shutil.copy(f"{build}/daemon/gaiafs", self.gaiafs)
        # All ages are long: nothing moves but by order.
        self.daemon = subprocess.Popen([self.gaiafs, "-f", "--device", "sim:16M", "--home", "32M", "--cpu-cache", "writeback", "--writeback-age", "3600",
                                        "--device-age", "3600", "--supervisor", "off", "below", "mnt"], stderr=subprocess.DEVNULL)
        while self.daemon.poll() is None and not os.path.ismount("mnt"):
            time.sleep(0.02)

    def gaia(self, *args):
        subprocess.run([f"{self.build}/client/gaia", *args], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE_S)

    def move(self, name):
        """Each probe's thing happens to all of the file: to the device, changed there, home, to storage, and out."""
        subprocess.run([f"{self.build}/client/examples/increment", f"mnt/{name}"], check=True, timeout=PATIENCE_S)
        self.gaia("evict", "--from", "device", "0", f"mnt/{name}")
        self.gaia("flush", f"mnt/{name}")
        self.gaia("evict", f"mnt/{name}")

    def end(self):
        if os.path.ismount("mnt"):
            self.gaia("umount", "mnt")
        self.daemon.wait(timeout=PATIENCE_S)


def make(name):
    with open(f"below/{name}", "wb") as file:
        file.write(b"b" * (PAGES * PAGE))


def wait_for(tracer, condition):
    """False: the tracer has ended, or it takes too long."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if not tracer.lives() or time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def of(events, name):
    return [arguments for event, _key, arguments in events if event == name]


def covers(runs):
    """Whether these (first page, pages) are the file's pages, each once."""
    return sorted(page for first, n in runs for page in range(first, first + n)) == list(range(PAGES))


def check_moved(events):
    """What one move() of one file makes."""
    device, writes, error, ranges = 0, 1, 0, 1
    check([PAGES, ranges, device, writes] in [one[1:] for one in of(events, "acquire__begin") if one[0] == 0], f"acquire: {of(events, 'acquire__begin')}")
    check(of(events, "acquire__end") == [[device, error]], f"acquire's end: {of(events, 'acquire__end')}")
    check(of(events, "release__begin") == [[0, PAGES, ranges, device]], f"release: {of(events, 'release__begin')}")
    check(of(events, "release__end") == [[device, error, True]], f"release's end: {of(events, 'release__end')}")
    fills = of(events, "fill")
    check(covers([one[:2] for one in fills]) and all(read == n and err == 0 for _first, n, read, err in fills), f"fill: {fills}")
    fetches = [one for one in of(events, "fetch") if one[0]]
    check(sum(one[0] for one in fetches) == PAGES and all(one[1:] == [device, error] for one in fetches), f"fetch: {fetches}")
    check(sorted(of(events, "evict")) == [[0, device, error], [1, device, error]], f"evict: {of(events, 'evict')}")
    written = of(events, "writeback")
    check(covers([one[:2] for one in written]) and all(one[2] == error for one in written), f"writeback: {written}")
    left = of(events, "evict__home")
    check([sum(n for chunk, n in left if chunk == k) for k in (0, 1)] == [CHUNK_PAGES, PAGES - CHUNK_PAGES], f"eviction from home: {left}")
    kinds = [name for name, _key, _arguments in events]
    ends = [kinds.index(name) for name in ("acquire__begin", "fill", "acquire__end", "release__begin", "release__end", "fetch", "evict", "writeback", "evict__home")
            if name in kinds]
    check(len(ends) == 9 and ends == sorted(ends), f"not in the order in which it happened: {kinds}")


def fire(build, header, name, start, directory):
    """False: this tracer cannot do it here."""
    probes = listed(header)
    make("warm")
    make("file")
    mount = Mount(build)
    tracer = start(probes, mount.gaiafs, mount.daemon.pid, directory)
    try:
        # Until all are there: a tracer takes its time, and one after the other.
        end = time.monotonic() + PATIENCE_S
        while tracer.lives() and time.monotonic() < end and {event[0] for event in tracer.said()} != set(probes):
            mount.move("warm")
        silent = set(probes) - {event[0] for event in tracer.said()}
        if name == "bpftrace" and silent == set(probes) and not tracer.lives():
            print(f"bpftrace cannot trace processes here: {tracer.why()[-200:]}")
            return False
        check(not silent, f"{name}: these do not fire: {sorted(silent)}: {tracer.why()}")
        if silent:
            return True
        others = {event[1] for event in tracer.said()}
        mount.move("file")
        events = []

        def all_is_said():
            events[:] = [event for event in tracer.said() if event[1] not in others]
            return sum(one[1] for one in of(events, "evict__home")) >= PAGES
        check(wait_for(tracer, all_is_said), f"{name}: says too little: {events}")
        check(len(others) == 1 and len({event[1] for event in events}) == 1, f"{name}: files are not told apart: {others}, {events}")
        check_moved(events)
        print(f"{name}: {len(events)} events of {len(probes)} probes")
        return True
    finally:
        if name == "bpftrace" and tracer.lives():
            tracer.process.send_signal(signal.SIGINT)
            tracer.process.wait(timeout=PATIENCE_S)
        mount.end()
        if tracer.lives():
            tracer.process.wait(timeout=PATIENCE_S)


# What scripts/trace/NAME says when everything has happened: of acquires and releases on device 0, and of pages that moved.
SAYS = {"latency.bt": [r"^@acquire_us\[0\]:", r"^@release_us\[0\]:", r"^@acquire_pages:"],
        "movement.bt": [r"^@by_file\[filled, \d+\]: [1-9]", r"^@by_file\[fetched, \d+\]: [1-9]", r"^@by_file\[written, \d+\]: [1-9]",
                        r"^ +[1-9]\d* +[1-9]\d* +[1-9]\d* +[1-9]\d* +[1-9]\d*$"]}


def scripts_show(build, scripts, directory):
    for path in scripts:
        name = os.path.basename(path)
        make("script")
        mount = Mount(build)
        with open(path, encoding="utf-8") as file, open(f"{directory}/{name}", "w", encoding="utf-8") as copy:
            copy.write(file.read().replace("/usr/bin/gaiafs", mount.gaiafs))
        out = f"{directory}/{name}.said"
        with open(out, "wb") as said:
            tracer = subprocess.Popen(["bpftrace", "-B", "line", f"{directory}/{name}"], stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT)
        end = time.monotonic() + 5
        while tracer.poll() is None and time.monotonic() < end:
            mount.move("script")
        tracer.send_signal(signal.SIGINT)
        tracer.wait(timeout=PATIENCE_S)
        mount.end()
        with open(out, encoding="utf-8", errors="replace") as file:
            text = file.read()
        for wanted in SAYS[name]:
            check(re.search(wanted, text, re.M), f"{name}: no line {wanted} in {text[-2000:]}")


def work(build, header, scripts, directory):
    notes = subprocess.run(["readelf", "-nW", f"{build}/daemon/gaiafs"], capture_output=True, text=True, check=False)
    if "Provider: gaiafs" not in notes.stdout:
        skip("built without probes (-Dprobes)" if notes.returncode == 0 else "readelf is not installed")
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        skip("tracing needs root, and /dev/fuse")
    os.mkdir("below")
    os.mkdir("mnt")
    found = list(tracers())
    if not found:
        skip("neither bpftrace nor gdb can trace here")
    works = [name for name, start in found if fire(build, header, name, start, directory)]
    if not works:
        skip("neither bpftrace nor gdb can trace here")
    if "bpftrace" in works:
        scripts_show(build, scripts, directory)


def main():
    build, header, *scripts = (os.path.abspath(path) for path in sys.argv[1:])
    if "GAIAFS_PROBES_INSIDE" not in os.environ:
        # Tracers need tracefs, which containers may not have mounted: here it is, for nobody else. Copies of others' mounts would keep these from ending.
        lib = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lib.sh")
        done = subprocess.run(["unshare", "-m", "--propagation", "private", "bash", "-c", '. "$0"; let_go_of_mounts; '
                               "for fs in tracefs=tracing debugfs=debug; do at=/sys/kernel/${fs#*=}; "
                               "[ -n \"$(ls -A $at 2> /dev/null)\" ] || mount -t ${fs%=*} none $at 2> /dev/null; done; exec \"$@\"", lib, sys.executable, "-B", *sys.argv],
                              env={**os.environ, "GAIAFS_PROBES_INSIDE": "1"}, check=False)
        return done.returncode
    directory = tempfile.mkdtemp(prefix="gaiafs-probes.")
    os.chdir(directory)
    try:
        work(build, header, scripts, directory)
    finally:
        if os.path.ismount("mnt"):
            subprocess.run(["umount", "-l", "mnt"], check=False)
        os.chdir("/")
        shutil.rmtree(directory, ignore_errors=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
