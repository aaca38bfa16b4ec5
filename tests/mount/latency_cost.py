#!/usr/bin/env python3
"""latency_cost.py BUILD SOURCE_DIR - what the histograms cost a read of 4 KiB from home: at most a hundredth of the daemon's instructions.

By callgrind, from where the compiler says that each instruction comes from: latency.h, clock.h and request_ends(), in serve_request(), so one of the
two readings of the clock is in it, and the other, which receive.c needs anyway, is not. Instructions of the kernel's are not counted.
Status 77: skipped, the last line says why.
"""
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

MOST_PERCENT = 1.0
MIB = 1 << 20
PAGES = 256
# So many reads, so often: the run that takes the fewest counts, for a daemon polls while it waits, and more so on a machine that is busy. What that
# adds to the few reads must be nothing beside what the many take.
FEW, MANY = (1000, 3), (41000, 2)
HEADERS = ("base/latency.h", "base/clock.h")


def skip(why):
    print(f"latency_cost: {why}")
    sys.exit(77)


def of_lines(path):
    """{(file, function, line): instructions} of callgrind's output, what it includes of others' left out. A file is that of the line, if it was inlined."""
    names, costs = {}, collections.Counter()
    file = function = None
    line, skip_next = 0, False
    with open(path, encoding="utf-8") as out:
        for text in out:
            name = re.match(r"(c?)(f[lien]|ob)=\((\d+)\)(?: (.*))?$", text)
            cost = re.match(r"(\+\d+|-\d+|\*|\d+) (\d+)$", text)
            if name:
                kind = {"fn": "function", "ob": "object"}.get(name[2], "file")
                names.setdefault((kind, name[3]), name[4])
                if not name[1] and kind == "file":
                    file = names[kind, name[3]]
                elif not name[1] and kind == "function":
                    function = names[kind, name[3]]
            elif text.startswith("calls="):
                skip_next = True
            elif cost:
                line = line if cost[1] == "*" else line + int(cost[1]) if cost[1][0] in "+-" else int(cost[1])
                if not skip_next:
                    costs[file, function, line] += int(cost[2])
                skip_next = False
    return costs


def lines_of(path, function):
    """The numbers of the lines of a function."""
    with open(path, encoding="utf-8") as source:
        text = source.read()
    found = re.search(rf"^static [^\n]*\b{function}\([^\n]*\)\n\{{.*?^\}}", text, re.M | re.S)
    first = text.count("\n", 0, found.start()) + 1
    return range(first, first + found[0].count("\n") + 1)


def counted(build, reads):
    """What the daemon does for so many reads, from its start to its end."""
    out = os.path.abspath(f"out.{reads}")
    with open("said", "w", encoding="utf-8") as said:
        process = subprocess.Popen(["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=" + out, f"{build}/daemon/gaiafs", "-f", "--device", "sim:16M",
                                    "--home", "32M", "--supervisor", "off", "--cpu-cache", "writeback", "below", "mnt"],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
    end = time.monotonic() + 120
    while not os.path.ismount("mnt"):
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            with open("said", encoding="utf-8") as said:
                sys.exit(f"latency_cost: does not mount under valgrind: {said.read()}")
        time.sleep(0.05)
    # O_DIRECT: each is a request.
    subprocess.run([f"{build}/tests/bench/page_requests", "mnt/file", str(PAGES), str(reads), "uniform", "1", "0"], check=True, stdout=subprocess.DEVNULL,
                   timeout=300)
    subprocess.run([f"{build}/client/gaia", "umount", "mnt"], check=True, timeout=120)
    process.wait(timeout=120)
    return of_lines(out)


def work(build, source):
    serve = os.path.join(source, "daemon/fuse/serve.c")
    with open("below/file", "wb") as file:
        file.write(b"b" * MIB)
    few, many = (min((counted(build, reads) for _ in range(times)), key=lambda costs: sum(costs.values())) for reads, times in (FEW, MANY))
    each = {at: (many[at] - few[at]) / (MANY[0] - FEW[0]) for at in many}
    ends = lines_of(serve, "request_ends")
    parts = collections.Counter()
    for (file, function, line), n in each.items():
        if function == "serve_request":
            parts.update({name: n for name in HEADERS if file.endswith("daemon/" + name)})
            if file.endswith("daemon/fuse/serve.c") and line in ends:
                parts["request_ends()"] += n
    if not parts["base/latency.h"]:
        skip("built without debug information, or otherwise: nothing is known to be of latency.h")
    total, histograms = sum(each.values()), sum(parts.values())
    percent = 100 * histograms / total
    told = ", ".join(f"{name} {n:.1f}" for name, n in sorted(parts.items()))
    print(f"latency_cost: {histograms:.1f} of {total:.0f} instructions of a read of 4 KiB from home, {percent:.2f} %: {told}")
    if percent > MOST_PERCENT:
        print(f"latency_cost: that is more than {MOST_PERCENT:g} %", file=sys.stderr)
        return 1
    return 0


def main():
    build, source = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    if not shutil.which("valgrind"):
        skip("valgrind is not installed")
    if not os.path.exists("/dev/fuse"):
        skip("there is no /dev/fuse")
    directory = tempfile.mkdtemp(prefix="gaiafs-latency-cost.")
    os.chdir(directory)
    os.mkdir("below")
    os.mkdir("mnt")
    try:
        return work(build, source)
    finally:
        if os.path.ismount("mnt"):
            subprocess.run(["umount", "-l", "mnt"], check=False)
        os.chdir("/")
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
