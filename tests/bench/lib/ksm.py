#!/usr/bin/env python3
"""
What the kernel's own search for equal pages (KSM) makes of files in the memory of a program, for scripts/bench tiers.

  ksm.py DIRECTORY [SETTINGS]

reads all files below DIRECTORY into private memory, each from a new page on, has KSM look at that until all that is equal must be merged, and
answers with a line of numbers, as Merged has them. (SETTINGS: where KSM's are, for tests.)

There is one KSM for the whole machine. It is borrowed only while nobody uses it, and given back as it was: at the end, after an error or a
signal, and when the program that asked has ended, that is, standard input has. Should this program be killed, restore() by the other does it.
"""

import collections
import contextlib
import fcntl
import mmap
import os
import select
import signal
import sys
import time

from real_data import PAGE, files_of, pages_of
from systems import stop_on_signals

SETTINGS = "/sys/kernel/mm/ksm"
# Changed in this order, and put back in reverse: an advisor sets the others itself. The other settings stay as they are.
CHANGED = {"advisor_mode": "none", "use_zero_pages": "1", "sleep_millisecs": "0", "pages_to_scan": "4096"}
MERGED_AFTER = 2  # scans: one in which pages are seen for the first time, and one in which they are merged if they have not changed
SCANS = 3
PATIENCE = 300  # seconds
# @merged: pages that take no memory, as others have the same bytes; @ksmd_ns: what finding them took of processors, 0 if that is not to be seen here;
# @others: pages of other programs that were looked at, too.
Merged = collections.namedtuple("Merged", "pages merged ksmd_ns others")


class Refused(Exception):
    """Says why."""


def read(root, name):
    """A setting or a figure; of several that there may be, the one in brackets. None: this kernel has none of that name."""
    try:
        with open(os.path.join(root, name)) as file:
            text = file.read().strip()
    except FileNotFoundError:
        return None
    return next((word[1:-1] for word in text.split() if word.startswith("[")), text)


def number(root, name):
    return int(read(root, name) or 0)


def write(root, name, value):
    with open(os.path.join(root, name), "w") as file:
        file.write(value)


def why_not(root=SETTINGS):
    """Why KSM cannot be borrowed; None: it can."""
    if read(root, "run") is None:
        return "this kernel has no KSM"
    if not all(os.access(os.path.join(root, name), os.W_OK) for name in ("run", *CHANGED) if read(root, name) is not None):
        return "only root can have KSM run"
    if read(root, "run") != "0" or number(root, "pages_shared"):
        return "KSM is used by others (%s/run is %s)" % (root, read(root, "run"))
    return None


def settings(root=SETTINGS):
    """Those that are changed. (Older kernels do not count the pages of zeros that they merge with their own.)"""
    there = {name: read(root, name) for name in CHANGED if name != "use_zero_pages" or read(root, "ksm_zero_pages")}
    return {name: value for name, value in there.items() if value is not None}


def restore(before, root=SETTINGS):
    """As settings() were, and it does not run. Nothing was merged then: so nothing stays merged."""
    if settings(root) == before and read(root, "run") == "0" and not number(root, "pages_shared"):
        return
    write(root, "run", "2")
    for name in reversed(before):
        if read(root, name) != before[name]:
            write(root, name, before[name])
    write(root, "run", "0")


@contextlib.contextmanager
def borrowed(root=SETTINGS):
    """KSM is set to look at pages as fast as it can, but does not run yet."""
    with open(os.path.join(root, "run")) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused("another bench uses KSM") from error
        why = why_not(root)
        if why:
            raise Refused(why)
        before = settings(root)
        try:
            for name in before:
                write(root, name, CHANGED[name])
            yield
        finally:
            try:
                for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(each, signal.SIG_IGN)
            finally:
                restore(before, root)


def filled_memory(directory):
    """The files' bytes, and zeros after each up to the next page, in single pages that KSM may merge."""
    pages = sum(pages_of(path) for path in files_of(directory))
    memory = mmap.mmap(-1, pages * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    at = 0
    for path in files_of(directory):
        with memoryview(memory) as all_of_it, all_of_it[at:at + os.stat(path).st_size] as place, open(path, "rb", buffering=0) as file:
            got = 0
            while got < len(place):
                with place[got:] as rest:
                    n = file.readinto(rest)
                if not n:
                    raise OSError("%s: it has become shorter" % path)
                got += n
        at += pages_of(path) * PAGE
    memory.madvise(mmap.MADV_MERGEABLE)
    return memory


def clock_of(pid):
    """Processor time of a process, for time.clock_gettime_ns(), as clock_getcpuclockid(3) makes it."""
    return ~pid << 3 | 2


def clock_of_ksmd():
    """None: it is not to be seen here."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open("/proc/%s/comm" % pid) as comm, open("/proc/%s/cmdline" % pid) as line:
                if comm.read().strip() == "ksmd" and not line.read():  # threads of the kernel have none
                    return clock_of(int(pid))
    return None


def pages_of_others():
    """Of programs that have memory which KSM has looked at, beside this one."""
    pages = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/%s/ksm_stat" % pid) as file:
            if int(pid) != os.getpid():
                pages += sum(int(line.split()[1]) for line in file if line.startswith("ksm_rmap_items"))
    return pages


def wait_for_scans(root, scans):
    end = time.monotonic() + PATIENCE
    while number(root, "full_scans") < scans:
        if time.monotonic() > end:
            raise Refused("KSM has not looked at all pages within %d s" % PATIENCE)
        if select.select([0], [], [], 0.001)[0]:
            raise Refused("standard input has ended")


def merge(directory, root):
    # (What is not there any more need not be given pages of its own again in the end.)
    with borrowed(root), contextlib.closing(filled_memory(directory)) as memory:
        scans, zeros, clock = number(root, "full_scans"), number(root, "ksm_zero_pages"), clock_of_ksmd()
        began = time.clock_gettime_ns(clock) if clock else 0
        write(root, "run", "1")
        wait_for_scans(root, scans + MERGED_AFTER)
        took = time.clock_gettime_ns(clock) - began if clock else 0
        wait_for_scans(root, scans + SCANS)
        write(root, "run", "0")
        merged = number(root, "pages_sharing") + number(root, "ksm_zero_pages") - zeros
        return Merged(len(memory) // PAGE, merged, took, pages_of_others())


def main(directory, root=SETTINGS):
    stop_on_signals()
    try:
        print(*merge(directory, root), flush=True)
    except (Refused, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
