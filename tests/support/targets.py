#!/usr/bin/env python3
"""targets.py BUILD SUITE...: what ninja must build for the tests of these suites, one file per line."""
import json
import os
import subprocess
import sys


def introspect(build, what):
    said = subprocess.run(["meson", "introspect", build, what], check=True, stdout=subprocess.PIPE)
    return json.loads(said.stdout)


def main(build, *suites):
    files = {target["id"]: target["filename"] for target in introspect(build, "--targets")}
    needed = {target for test in introspect(build, "--tests") for target in test["depends"]
              if any(suite.rsplit(":", 1)[-1] in suites for suite in test["suite"])}
    for file in sorted(file for target in needed for file in files[target]):
        print(os.path.relpath(file, os.path.realpath(build)))


if __name__ == "__main__":
    main(*sys.argv[1:])
