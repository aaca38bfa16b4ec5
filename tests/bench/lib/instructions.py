"""
instructions.py - what a program takes of the processor, by valgrind's callgrind: noise does not touch it.
"""

import glob
import os
import re
import shutil
import tempfile

from systems import Lacking, run


def count_instructions(place, *command):
    """{what: instructions} of the works for which the program has made dumps. @place: a directory for a while."""
    if not shutil.which("valgrind"):
        raise Lacking("valgrind is not installed")
    with tempfile.TemporaryDirectory(dir=place) as dumps:
        run("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=%s" % os.path.join(dumps, "out"),
            *command, timeout=900)
        return read_dumps(glob.glob(os.path.join(dumps, "out*")))


def read_dumps(paths):
    """The fewest of each: more is what else happened in the process."""
    counts = {}
    for path in paths:
        with open(path) as file:
            text = file.read()
        what = re.search(r"^desc: Trigger: Client Request: (.*)$", text, re.M)
        total = re.search(r"^totals: (\d+)$", text, re.M)
        if what and total:
            counts.setdefault(what.group(1), []).append(int(total.group(1)))
    if not counts:
        raise Lacking("there was no valgrind/callgrind.h when the bench was built")
    return {what: min(numbers) for what, numbers in counts.items()}
