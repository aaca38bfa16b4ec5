#!/usr/bin/env python3
"""probes.py GAIAFS HEADER SCRIPT... - the daemon has the probes that HEADER (probe.h) lists, with as many arguments; each SCRIPT uses only these.

If bpftrace is there it compiles the scripts, too. It attaches nothing, which would take rights that tests do not have.
"""

import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def of_binary(path):
    """{name: number of arguments}"""
    notes = subprocess.run(["readelf", "-nW", path], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = re.findall(r"Provider: gaiafs\s+Name: (\w+)\s+Location:.*\s+Arguments:(.*)", notes)
    return {name: len(arguments.split()) for name, arguments in found}


def of_header(path):
    with open(path, encoding="utf-8") as header:
        listed = re.findall(r"^ \*\t(\w+)\(([^)]*)\)", header.read(), re.M)
    return {name: arguments.count(",") + 1 for name, arguments in listed}


def of_script(text):
    """{name: one more than the highest argument that is used}"""
    used = {}
    for name, body in re.findall(r"^usdt:/usr/bin/gaiafs:gaiafs:(\w+)\n(.*?)^}", text, re.M | re.S):
        used[name] = max([int(n) + 1 for n in re.findall(r"\barg(\d)", body)], default=0)
    return used


def main():
    program, header, *scripts = sys.argv[1:]
    if not shutil.which("readelf"):
        skip("readelf is not installed")
    probes = of_binary(program)
    if not probes:
        skip("built without probes (-Dprobes)")
    wrong = [] if probes == of_header(header) else [f"the daemon has {probes}, and probe.h says {of_header(header)}"]
    for path in scripts:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        used = of_script(text)
        wrong += [f"{path}: {name}: no such probe, or not so many arguments" for name, most in used.items() if most > probes.get(name, -1)]
        if not used:
            wrong.append(f"{path}: uses no probe")
        if shutil.which("bpftrace"):
            with tempfile.NamedTemporaryFile("w", suffix=".bt", encoding="utf-8") as copy:
                copy.write(text.replace("/usr/bin/gaiafs", program))
                copy.flush()
                result = subprocess.run(["bpftrace", "-d", copy.name], capture_output=True, text=True, check=False)
            said = [line for line in (result.stdout + result.stderr).splitlines() if ".bt:" in line]
            if result.returncode or said:
                wrong.append(f"{path}: bpftrace: {said or result.stderr[-500:]}")
    print("\n".join(wrong) or f"{len(probes)} probes, {len(scripts)} scripts")
    return 1 if wrong else 0


sys.exit(main())
