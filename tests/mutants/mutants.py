#!/usr/bin/env python3
"""Plant one fault after the other into the C sources, and see whether the tests notice.

    mutants.py check ROOT BUILD                     whether the list fits the sources and the tests of a build
    mutants.py copy ROOT TREE                       make TREE what git knows of ROOT, and what is new there
    mutants.py run TREE BUILD SEED QUICK [NAME...]  plant, build, test; status 1 below the goal. See scripts/mutants
    mutants.py self-test                            whether this program notices what it should

The faults are in the files *.txt beside this one. A record begins with its name in brackets and ends before the next:

    [holds.release_takes_two]
    A release takes two holds of a page away, not one.
    file: daemon/pagecache/holds.c
    tests: holds cache_clients:holds/*
     	case RELEASE:
    -		n = h->n > h->coming;
    +		n = 2 * (h->n > h->coming);
     		break;

that is: what it breaks; the source; the tests that ought to fail, by meson's names, the fastest first, with a filter for
Criterion if need be; and a piece of a patch, whole lines that occur once in the source. A fault that no test could notice, as
it changes nothing that anybody relies on, does not belong here. Lines that begin with # are comments.
"""
import fnmatch
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

GOAL = 95  # percent
LEAST = 60  # records
QUICK = 14  # of them
CRITERION = "--short-filename"  # what only its tests are called with, see test_args in tests/meson.build
PATIENCE_S = 30  # beside five times what the tests take by themselves; what takes longer hangs


class Refused(Exception):
    """What is told in one line."""


# ---- the list ----

class Mutant:
    def __init__(self, name, where):
        self.name, self.where = name, where
        self.why = self.file = ""
        self.tests, self.hunk = [], []

    def text(self, sign):
        """The lines before (-) or after (+)."""
        return "".join(line[1:] + "\n" for line in self.hunk if line[0] in (" ", sign))

    def plant(self, source):
        """The source with the fault, or None: the lines do not occur there once."""
        old, source = "\n" + self.text("-"), "\n" + source
        # Overlapping ones, too.
        if not self.hunk or sum(source.startswith(old, at) for at in range(len(source))) != 1:
            return None
        return source.replace(old, "\n" + self.text("+"))[1:]


def read_list(folder):
    mutants = []
    for path in sorted(pathlib.Path(folder).glob("*.txt")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            where = f"{path.name}:{number}"
            mutant = mutants[-1] if mutants else None
            if line.startswith("#") or not line.strip():
                continue
            if match := re.fullmatch(r"\[([a-z0-9_.]+)\]", line):
                mutants.append(Mutant(match[1], where))
            elif not mutant:
                raise Refused(f"{where}: no record begins before this line")
            elif line[0] in " +-":
                mutant.hunk.append(line)
            elif line.startswith("file: "):
                mutant.file = line[6:].strip()
            elif line.startswith("tests: "):
                mutant.tests = line[7:].split()
            else:
                mutant.why = (mutant.why + " " + line).strip()
    return mutants


def problems(mutants, root):
    found, seen = [], set()
    for m in mutants:
        wrong = None
        path = pathlib.Path(root, m.file)
        if m.name in seen:
            wrong = "there is another of that name"
        elif not m.why or not m.tests or not m.file:
            wrong = "a record says what it breaks, file: and tests:"
        elif not path.is_file():
            wrong = f"there is no {m.file}"
        elif m.text("-") == m.text("+"):
            wrong = "it changes nothing"
        elif m.plant(path.read_text(encoding="utf-8")) is None:
            wrong = f"its lines do not occur once in {m.file}"
        if wrong:
            found.append(f"{m.where}: {m.name}: {wrong}")
        seen.add(m.name)
    if len(mutants) < LEAST:
        found.append(f"there are {len(mutants)} mutants, fewer than {LEAST}")
    return found


# ---- the tests of a build ----

class Build:
    def __init__(self, path):
        self.path = pathlib.Path(path).resolve()
        self.tests = {t["name"]: t for t in self.intro("tests")}
        targets = self.intro("targets")
        self.files = {t["id"]: t["filename"] for t in targets}
        self.daemon = {t["id"] for t in targets if t["name"] == "gaiafs"}
        # What tests on a mount call without saying so.
        self.programs = [t["id"] for t in targets if t["type"] in ("executable", "shared library")
                         and pathlib.Path(t["defined_in"]).parent.name in ("client", "daemon")]

    def intro(self, what):
        return json.loads(pathlib.Path(self.path, "meson-info", f"intro-{what}.json").read_text(encoding="utf-8"))

    def has(self, test):
        return test.partition(":")[0] in self.tests

    def has_cuda(self):
        return "device_cuda" in self.tests

    def make(self, test):
        """Compile what the test needs: None, or what the compiler says."""
        entry = self.tests[test.partition(":")[0]]
        targets = entry["depends"] + (self.programs if self.daemon & set(entry["depends"]) else [])
        wanted = sorted({os.path.relpath(file, self.path) for target in targets for file in self.files[target]})
        ran = subprocess.run(["ninja", "-C", self.path, *wanted], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        return None if ran.returncode == 0 else ran.stdout + ran.stderr

    def run(self, test, limit, to_the_end=True):
        """'passed', 'failed' or 'hung', and its output. Otherwise what Criterion runs ends with its first failure."""
        name, _, pattern = test.partition(":")
        entry = self.tests[name]
        command = entry["cmd"] + (["--filter", pattern] if pattern else [])
        if not to_the_end and CRITERION in command:
            command.append("--fail-fast")
        with tempfile.TemporaryDirectory(prefix="m.", ignore_cleanup_errors=True) as temporary:
            mark = "GAIAFS_TEST_RUN=" + temporary
            env = dict(os.environ, **entry["env"], TMPDIR=temporary, GAIAFS_TEST_RUN=temporary, CRITERION_VERBOSITY_LEVEL="1")
            os.chmod(temporary, 0o755)  # tests act as other users, too
            with tempfile.TemporaryFile() as output:
                child = subprocess.Popen(command, env=env, cwd=entry["workdir"] or self.path, stdin=subprocess.DEVNULL,
                                         stdout=output, stderr=subprocess.STDOUT)
                try:
                    how = "failed" if child.wait(limit) else "passed"
                except subprocess.TimeoutExpired:
                    how = "hung"
                finally:
                    end_all(mark)
                    child.wait()
                    unmount_below(temporary)
                output.seek(0)
                return how, output.read().decode(errors="replace")


def marked(mark):
    for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in environ.read_bytes().split(b"\0"):
                yield int(environ.parent.name)
        except OSError:
            pass


def end_all(mark):
    """Whatever a test has started. What is killed may have started another just before."""
    for _ in range(100):
        left = list(marked(mark))
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


def unmount_below(folder):
    for line in reversed(pathlib.Path("/proc/self/mountinfo").read_text().splitlines()):
        place = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), line.split()[4])
        if place.startswith(folder + "/"):
            quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False}
            if subprocess.run(["umount", "-i", "-l", "--", place], **quiet).returncode:
                subprocess.run(["fusermount3", "-uzq", "--", place], **quiet)


# ---- what is asked for ----

def check(root, build):
    mutants = read_list(pathlib.Path(__file__).parent)
    found = problems(mutants, root)
    b = Build(build)
    for m in mutants:
        known = any(b.has(t) for t in m.tests)
        if not known and (b.has_cuda() or not any("cuda" in t for t in m.tests)):
            found.append(f"{m.where}: {m.name}: there is no test {' or '.join(m.tests)}")
    print("\n".join(found) or f"{len(mutants)} mutants")
    return 1 if found else 0


def copy(root, tree):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, check=False)
    if listed.returncode:
        raise Refused("git cannot list the files: " + listed.stderr.decode().strip())
    wanted = {name for name in listed.stdout.decode().split("\0") if name and os.path.lexists(os.path.join(root, name))}
    for name in wanted:
        source, target = pathlib.Path(root, name), pathlib.Path(tree, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() or source.is_dir():
            target.unlink(missing_ok=True)
            target.symlink_to(os.readlink(source) if source.is_symlink() else source.resolve())
        # What is as it was is not compiled again; what a run that was killed has left planted is undone.
        elif not target.is_file() or target.read_bytes() != source.read_bytes():
            shutil.copyfile(source, target)
        if not target.is_symlink():
            shutil.copymode(source, target)
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.relpath(path, tree) not in wanted:
                os.unlink(path)
    # What scripts/setup has built.
    built, link = pathlib.Path(root, "build-deps").resolve(), pathlib.Path(tree, "build-deps")
    link.unlink(missing_ok=True)
    if built.is_dir():
        link.symlink_to(built)
    return 0


def choose(mutants, build, seed, quick, names):
    for name in names:
        if not fnmatch.filter([m.name for m in mutants], name):
            raise Refused(f"there is no mutant {name}")
    chosen = [m for m in mutants if not names or any(fnmatch.fnmatchcase(m.name, name) for name in names)]
    for m in chosen:
        m.tests = [t for t in m.tests if build.has(t)]
    left_out = [m for m in chosen if not m.tests]
    if left_out and build.has_cuda():
        raise Refused(f"{left_out[0].name}: there are no tests of these names")
    if left_out:
        print(f"mutants: {len(left_out)} left out: they need tests with CUDA, which is not built here (no nvcc)")
    chosen = [m for m in chosen if m.tests]
    if quick and len(chosen) > QUICK:
        chosen = random.Random(seed).sample(chosen, QUICK)
        print(f"mutants: {QUICK} of {len(mutants)}, drawn with --seed {seed}")
    return sorted(chosen, key=lambda m: (m.file, m.name))


def see_it_pass(test, build):
    """The test without a fault; how long it may take with one."""
    said = build.make(test)
    if said:
        raise Refused(f"{said}\n{test} does not compile as it is")
    start = time.monotonic()
    how, output = build.run(test, 1200)
    if how != "passed":
        raise Refused(f"{output}\n{test} {how} with no fault planted: nothing can be said")
    if "Synthesis: Tested: 0 " in output:
        raise Refused(f"{test}: there are no tests of that name")
    return PATIENCE_S + 5 * (time.monotonic() - start)


def try_one(m, test, tree, build, limit):
    """How the test takes the fault."""
    path = pathlib.Path(tree, m.file)
    source = path.read_text(encoding="utf-8")
    path.write_text(m.plant(source), encoding="utf-8")
    try:
        said = build.make(test)
        if said:
            return "does not compile: " + next((line for line in said.splitlines() if "error" in line), said)
        return build.run(test, limit, to_the_end=False)[0]
    finally:
        path.write_text(source, encoding="utf-8")


def run(tree, build_dir, seed, quick, names):
    mutants = read_list(pathlib.Path(tree, "tests", "mutants"))
    found = problems(mutants, tree)
    if found:
        raise Refused("\n".join(found))
    build = Build(build_dir)
    chosen = choose(mutants, build, seed, quick, names)
    left, wrong, limits, nth = chosen, [], {}, 0
    # First all with their first tests, which are the fastest, then what is left with the second.
    while any(len(m.tests) > nth for m in left):
        todo = [m for m in left if len(m.tests) > nth]
        print(f"mutants: {len(todo)} faults for their test number {nth + 1}, each test without any first", flush=True)
        for n, m in enumerate(todo, 1):
            test = m.tests[nth]
            if test not in limits:
                limits[test] = see_it_pass(test, build)
            start = time.monotonic()
            how = try_one(m, test, tree, build, limits[test])
            print(f"{n:3}/{len(todo)} {m.name}: {test} {how} ({time.monotonic() - start:.0f} s)", flush=True)
            if how.startswith("does not"):
                wrong.append(f"{m.where}: {m.name}: {how}")
            if how != "passed":
                left = [other for other in left if other is not m]
        nth += 1
    for m in left:
        print(f"survived: {m.name}: {m.why} ({m.file}; {' '.join(m.tests)})")
    if wrong:
        raise Refused("\n".join(wrong))
    caught = len(chosen) - len(left)
    score = 100 * caught / len(chosen) if chosen else 0
    print(f"mutants: {caught} of {len(chosen)} caught ({score:.0f} %; the goal is {GOAL} %)")
    return 0 if score >= GOAL else 1


def self_test():
    def of(text):
        m = Mutant("a", "here")
        m.hunk = text.split("\n")
        return m

    source = "one\n\ttwo\nthree\n\ttwo\n"
    assert of(" one\n-\ttwo\n+\tfour").plant(source) == "one\n\tfour\nthree\n\ttwo\n"
    assert of("-one\n+four\n \ttwo").plant(source) == "four\n\ttwo\nthree\n\ttwo\n"
    assert of("-\ttwo\n+\tfour").plant(source) is None, "twice"
    assert of("-two\n+four").plant(source) is None, "no whole line"
    assert of("-a\n-a\n+b").plant("a\na\na\n") is None, "twice, overlapping"
    assert of("-three").plant(source) == "one\n\ttwo\n\ttwo\n"
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "a.c").write_text(source)
        pathlib.Path(folder, "a.txt").write_text("# a comment\n[x.y]\nIt\nbreaks.\nfile: a.c\ntests: t u:v/*\n-one\n+two\n\n"
                                                 "[x.y]\nIt breaks.\nfile: a.c\ntests: t\n-three\n+two\n"
                                                 "[z]\nIt breaks.\nfile: a.c\ntests: t\n-four\n"
                                                 "[q]\nIt breaks.\nfile: b.c\ntests: t\n-four\n[p]\n-a\n+a\n")
        mutants = read_list(folder)
        assert mutants[0].why == "It breaks." and mutants[0].tests == ["t", "u:v/*"] and mutants[0].where == "a.txt:2"
        said = problems(mutants, folder)
        assert len(said) == 5 and not [s for s, word in zip(said, ["another", "once in a.c", "no b.c", "says what", "fewer"])
                                       if word not in s], said
    print("ok")
    return 0


def main():
    what, *args = sys.argv[1:] or ["help"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if what == "check" and len(args) == 2:
            return check(*args)
        if what == "copy" and len(args) == 2:
            return copy(*args)
        if what == "run" and len(args) >= 4:
            return run(args[0], args[1], args[2], args[3] == "yes", args[4:])
        if what == "self-test":
            return self_test()
    except Refused as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
