#!/usr/bin/env python3
"""options_are_told.py GAIAFS PAGE HELPER - manual page and mount.gaiafs have the options of the command line.

GAIAFS prints its help, which is made from its table of options; PAGE is the source of gaiafs(8); HELPER is
mount.gaiafs, which passes on options with values. Each must have the options of the others.
"""

import re
import subprocess
import sys


def main():
    program, page, helper = sys.argv[1:]
    shown = subprocess.run([program, "--help"], check=True, capture_output=True, text=True, timeout=60).stdout
    options = dict(re.findall(r"^  (?:-\w, )?--([\w-]+)( \S+)?", shown, re.M))
    text = open(page, encoding="utf-8").read()
    told = set(re.findall(r"^(?:\*-\w\*, )?\*--([\w-]+)", text, re.M))
    handed_on = set(re.search(r"^\t((?:[\w-]+=\*[ |]*)+)\)$", open(helper, encoding="utf-8").read(), re.M)
                    .group(1).replace("=*", "").replace("|", " ").split())
    with_values = {name for name, value in options.items() if value}
    wrong = []
    for name in sorted(told ^ set(options)):
        wrong.append(f"--{name}: only in {'gaiafs(8)' if name in told else 'the help'}")
    # An option that is accepted and has no effect any more is not in the help.
    for name in sorted((handed_on ^ with_values) - {"transport"}):
        wrong.append(f"{name}=: only in {'mount.gaiafs' if name in handed_on else 'the help'}")
    print("\n".join(wrong) or f"{len(options)} options")
    return 1 if wrong or len(options) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
