#!/usr/bin/env python3
"""first_session.py README BUILD - play the README's first session, and compare what it prints. And it is a front page: not long.

In the session, each line that begins with "$ " is a command for one shell, and the lines after it
are what the command prints. PATH is set to the build under test, whatever the session sets.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile


LINES_MOST = 150  # of a front page


def session(readme):
    """[(command, output)] of the section "A first session"."""
    text = open(readme, encoding="utf-8").read()
    section = re.search(r"^## A first session\n(.*?)^## ", text, re.S | re.M).group(1)
    lines = [line[4:] for line in section.split("\n") if line.startswith("    ")]
    steps = []
    for line in lines:
        if line.startswith("$ "):
            steps.append((line[2:], []))
        else:
            steps[-1][1].append(line)
    return [(command, "\n".join(output)) for command, output in steps]


def play(steps, build, directory):
    """What each of the commands printed, to standard output and error."""
    script = [f"PATH={build}/daemon:{build}/client:{build}/client/examples:$PATH"]
    for i, (command, _) in enumerate(steps):
        if not command.startswith("PATH="):
            script.append(f"{{ {command}\n}} > out.{i} 2>&1")
    environment = dict(os.environ, LD_LIBRARY_PATH=f"{build}/client")
    try:
        subprocess.run(["sh", "-c", "\n".join(script)], cwd=directory, env=environment, timeout=60,
                       stdin=subprocess.DEVNULL, check=False)
    finally:
        if os.path.ismount(f"{directory}/mnt"):
            subprocess.run([f"{build}/client/gaia", "umount", "--force", f"{directory}/mnt"], check=False)
    results = []
    for i, (command, _) in enumerate(steps):
        name = f"{directory}/out.{i}"
        results.append(open(name, encoding="utf-8").read().rstrip("\n") if os.path.exists(name)
                       else None if not command.startswith("PATH=") else "")
    return results


def main():
    readme, build = sys.argv[1], os.path.abspath(sys.argv[2])
    steps = session(readme)
    lines = len(open(readme, encoding="utf-8").read().splitlines())
    directory = tempfile.mkdtemp(prefix="first-session.")
    try:
        results = play(steps, build, directory)
    finally:
        shutil.rmtree(directory)
    # At its start gaiafs says what stands in for a GPU, and if a way of caching cannot be had.
    said = next((got or "" for (command, _), got in zip(steps, results) if command.startswith("gaiafs ")), "")
    if ": --cpu-cache writeback" in said:
        print("skipped: auto, the way of caching that the session shows, cannot be had here")
        return 77
    if "GPU" in said and "simulated" not in said:
        print("skipped: there is a GPU, and the session shows a simulated device")
        return 77
    wrong = 0
    for (command, expected), got in zip(steps, results):
        if got != expected:
            wrong += 1
            print(f"$ {command}\nREADME:\n{expected}\nhere:\n{got}")
    print(f"{len(steps)} commands, {wrong} printed something else; the README has {lines} lines")
    return 1 if wrong or len(steps) < 10 or lines > LINES_MOST else 0


if __name__ == "__main__":
    sys.exit(main())
