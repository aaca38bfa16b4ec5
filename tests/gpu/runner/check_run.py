#!/usr/bin/env python3
"""check_run.py WHAT BUILD [ARGUMENT] - tests of tests/gpu/run, in bundles made of links into BUILD (stage.sh):

tools     compute-sanitizer and ncu, played, on a GPU that is played: what they say becomes rows
sections  what fails, hangs, crashes or prints nonsense is noted, and the next section runs
contact   no GPU: one line, 77, and the diagnosis; a driver that hangs; how it is called
room      where there is no room to work, or none for results: one line that says so, and the diagnosis if it can be
driver    ARGUMENT, a driver that only LD_LIBRARY_PATH names, or that is in a usual place only, is found
rehearse  every phase on ARGUMENT (sim, fake) to its end, each section done
killed    run is killed at random moments: what it left is valid, and nothing else is left. With ARGUMENT, a number:
          the programs themselves run, not the stub, in any phases, and are killed when at most so many sections are done
report    the page of complete, cut off and empty results
bundle    scripts/gpu-check makes one of BUILD; unpacked in an empty folder it needs a driver and nothing else
"""
import contextlib
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
PLAYED = ["gpu-ceilings", "gpu-bench", "gpu-stalls", "gpu-mount"]
FIRST = ["ceilings", "bench", "stalls", "right", "mount"]
SECOND = ["busy", "litmus", "history", "sanitizer", "ncu"]
TAG = "GPU_RUN_TEST"


class Scene:
    """A bundle, a TMPDIR of its own, and what was started here, by its environment."""

    def __init__(self, build, stubs=()):
        self.dir = tempfile.mkdtemp(prefix="gpu-run-test.")
        self.bundle, self.out, self.tmp = (os.path.join(self.dir, name) for name in ("bundle", "out", "tmp"))
        os.mkdir(self.tmp)
        subprocess.run([os.path.join(HERE, "stage.sh"), build, self.bundle] + (["stub"] if stubs else []) +
                       [name + "-played" for name in stubs if name in PLAYED] + list(stubs), check=True)
        self.id = uuid.uuid4().hex
        self.env = dict(os.environ, TMPDIR=self.tmp, **{TAG: self.id})
        for name in ("GPU_CHECK_TAG", "LD_LIBRARY_PATH"):
            self.env.pop(name, None)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Whatever went wrong: leave nothing behind.
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        for point in self.mounts():
            subprocess.run(["umount", "-l", point], check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, *args, **env):
        return subprocess.Popen([os.path.join(self.bundle, "run"), "--out", self.out, *args], env=dict(self.env, **env),
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)

    def run(self, *args, **env):
        """Its exit status and what it said."""
        process = self.start(*args, **env)
        said, wrong = process.communicate(timeout=280)
        return process.returncode, said, wrong

    def processes(self):
        mark = ("%s=%s" % (TAG, self.id)).encode()
        out = []
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as file:
                    if mark in file.read().split(b"\0"):
                        out.append(int(path.split("/")[2]))
            except OSError:
                pass
        return out

    def mounts(self):
        with open("/proc/self/mountinfo") as file:
            return [line.split()[4] for line in file if line.split()[4].startswith(self.dir)]

    def is_clean(self):
        """What is left, as soon as nothing runs any more."""
        give_up = time.monotonic() + 120
        while self.processes() and time.monotonic() < give_up:
            time.sleep(0.05)
        left = ["process %d" % pid for pid in self.processes()] + ["mount %s" % m for m in self.mounts()]
        return left + ["file %s" % name for name in os.listdir(self.tmp)]

    def rows(self, phase):
        """All rows of a phase: every line must be one."""
        with open(os.path.join(self.out, phase + ".jsonl")) as file:
            text = file.read()
        assert text.endswith("\n"), "%s.jsonl ends in the middle of a line: %s" % (phase, text[-200:])
        rows = [json.loads(line, parse_constant=lambda name: sys.exit("%s is no number" % name))
                for line in text.splitlines()]
        assert all(isinstance(row, dict) for row in rows)
        assert rows[0]["phase"] == phase and isinstance(rows[0]["plan"], list), rows[0]
        return rows

    def status(self, phase):
        return {row["section"]: row for row in self.rows(phase) if "status" in row}

    def files(self):
        return sorted(os.listdir(self.out))


def page_of(directory):
    done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "..", "page.py"), directory], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(directory, "report.md"), encoding="utf-8") as file:
        return file.read()


def expect(is_so, what):
    if not is_so:
        sys.exit("check_run: " + what)


def sections(build):
    with Scene(build, PLAYED + ["litmus-runner"]) as scene:
        code, said, wrong = scene.run("--rehearse", "sim", "bench", "stalls")
        expect(code == 1, "sections failed, and run's status is %d: %s%s" % (code, said, wrong))
        expect(not wrong, "run says on standard error: " + wrong)
        status = scene.status("bench")
        expect({name: row["status"] for name, row in status.items()} ==
               {"kinds": "done", "fails": "failed", "hangs": "timeout", "deaf": "timeout", "crashes": "failed",
                "trash": "failed", "leaves": "done", "last": "done"}, "the sections are %s" % status)
        expect("this is why" in status["fails"]["note"], "why a section failed: %s" % status["fails"])
        expect("killed" in status["deaf"]["note"], "what hears no SIGTERM: %s" % status["deaf"])
        expect("signal 11" in status["crashes"]["note"], "a crash: %s" % status["crashes"])
        expect("3 lines" in status["trash"]["note"], "what is no row: %s" % status["trash"])
        rows = scene.rows("bench")
        expect(all(row.get("simulated") for row in rows if "section" in row), "a row does not say that it is simulated")
        expect([row["section"] for row in rows if row.get("what") == "before it hangs"] == ["hangs"],
               "the row that came before it hung is missing")
        expect(rows[-1].get("end") and scene.rows("stalls")[-1].get("end"), "a phase has no end")
        expect(len(scene.rows("stalls")) == 8, "stalls: %s" % scene.rows("stalls"))
        expect(scene.files() == ["bench.jsonl", "diagnosis.txt", "gpu-check.log", "stalls.jsonl"],
               "files: %s" % scene.files())
        with open(os.path.join(scene.out, "gpu-check.log")) as file:
            expect("first words" in file.read(), "what a section said is not in the log")
        for one, expected in (("hangs 1", 1), ("crashes 5", 1), ("trash 5", 1), ("last 5", 0)):
            code, said, _ = scene.run("--rehearse", "fake", "bench", STUB_BENCH=one)
            expect(code == expected, "%s alone: status %d: %s" % (one, code, said))
        # What the phase has no time for is not run, which is no failure.
        code, said, _ = scene.run("--rehearse", "sim", "litmus")
        status = [row["status"] for row in scene.status("litmus").values()]
        expect(code == 0 and set(status) == {"done", "not run"} and status == sorted(status),
               "litmus files that take long: status %d, %s" % (code, scene.status("litmus")))
        notes = [row["note"] for row in scene.status("litmus").values() if row["status"] == "not run"]
        expect("cut off" in notes[0] and all("no time is left" in note for note in notes[1:]), "litmus: %s" % notes)
        summary = [row for row in scene.rows("litmus") if row.get("what") == "files"][0]
        expect(summary["ran"] == summary["passed"] == 1 < summary["of"], "litmus: %s" % summary)
        left = scene.is_clean()
        expect(not left, "left behind: %s" % left)


def tools(build):
    with Scene(build, PLAYED + ["gpu-random", "compute-sanitizer", "ncu"]) as scene:
        path = os.path.join(scene.bundle, "bin") + ":" + os.environ["PATH"]
        code, said, wrong = scene.run("sanitizer", "ncu", PATH=path, STUB_BENCH="kinds 20")
        expect(code == 1 and not wrong, "racecheck found errors, and the status is %d: %s%s" % (code, said, wrong))
        for phase in ("sanitizer", "ncu"):
            expect(not any(row.get("simulated") for row in scene.rows(phase)), "this is no rehearsal: %s" % scene.rows(phase))
            expect(scene.rows(phase)[1]["held"] is True, "no context is held: %s" % scene.rows(phase)[1])
        status = {name: row["status"] for name, row in scene.status("sanitizer").items()}
        expect(status == {"memcheck": "done", "racecheck": "failed", "initcheck": "done"}, "sanitizer: %s" % status)
        note = scene.status("sanitizer")["initcheck"]["note"]
        expect("only noted" in note and "5 errors" in note, "initcheck: %s" % note)
        rows = [(row["section"], row["n"]) for row in scene.rows("sanitizer") if row.get("what") == "errors"]
        expect(rows == [("memcheck", 0), ("racecheck", 2), ("initcheck", 5)], "sanitizer: %s" % rows)
        rows = [row for row in scene.rows("ncu") if "what" in row]
        name = "void work<(dev_kind)%d>(const page_item *, unsigned int)"
        expect(rows == [{"section": "kinds", "what": name % 3, "gpu__time_duration.sum (ns)": 1234.5, "launch__grid_size": 16},
                        {"section": "kinds", "what": name % 0, "launch__grid_size": 1}], "ncu: %s" % rows)
        page = page_of(scene.out)
        expect("racecheck** failed" in page and "SIMULATED" not in page, "the page: %s" % page)
        # A GPU that takes one process: what can be asked of it is, and why all else is not run is said; no context is held.
        code, said, wrong = scene.run("ceilings", "bench", "right", "mount", "ncu", STUB_MODE="Exclusive_Process", STUB_MILD="yes")
        expect(code == 0 and not wrong, "exclusive process: %d, %s%s" % (code, said, wrong))
        for phase in ("ceilings", "bench", "right", "mount", "ncu"):
            rows = scene.status(phase).values()
            expect(rows and all(row["status"] == "done" if phase == "ceilings" else
                                row["status"] == "not run" and "nvidia-smi -c 0" in row["note"] for row in rows),
                   "exclusive process: %s: %s" % (phase, rows))
            expect(scene.rows(phase)[1]["held"] is False, "exclusive process: a context is held: %s" % scene.rows(phase)[1])
        left = scene.is_clean()
        expect(not left, "left behind: %s" % left)


def contact(build):
    with Scene(build, PLAYED) as scene:
        # The stub is everywhere, so that a GPU of this machine is not used.
        code, said, wrong = scene.run(STUB_GPUS="none")
        expect(code == 77 and not wrong and said.count("\n") == 1 and "the stub has no GPU" in said,
               "no GPU: status %d, %r, %r" % (code, said, wrong))
        expect(scene.files() == ["diagnosis.txt", "gpu-check.log"], "no GPU: files %s" % scene.files())
        with open(os.path.join(scene.out, "diagnosis.txt")) as file:
            text = file.read()
        for word in ("/dev/nvidia", "nvidia-smi", "/proc/driver/nvidia/version", "LD_LIBRARY_PATH", "MPS", "/dev/fuse",
                     "transparent_hugepage", "nr_hugepages", "max locked memory", "MemTotal", "Linux",
                     "the loader's whole cache", "== toolkits", "== file system of " + scene.tmp, "the stub has no GPU", "ended: no GPU"):
            expect(word in text, "the diagnosis lacks %r" % word)
        expect(not scene.is_clean(), "left behind: %s" % scene.is_clean())
        code, said, _ = scene.run(STUB_GPUS="hangs", GPU_CHECK_PATIENCE="1")
        expect(code == 1 and said.count("\n") == 1 and "does not answer" in said, "it hangs: %d, %r" % (code, said))
        with open(os.path.join(scene.out, "diagnosis.txt")) as file:
            text = file.read()
        expect(text.count("does not answer within") == 2 and "no other place is tried" in text,
               "other places were tried after one that hangs: %s" % text[-400:])
        expect(not scene.is_clean(), "left behind: %s" % scene.is_clean())
        # $OUT is where results go, where that is a directory and nothing else is said.
        other = os.path.join(scene.dir, "other")
        os.mkdir(other)
        subprocess.run([os.path.join(scene.bundle, "run")], env=dict(scene.env, STUB_GPUS="none", OUT=other), check=False,
                       stdout=subprocess.DEVNULL, timeout=120)
        expect("diagnosis.txt" in os.listdir(other), "$OUT: %s" % os.listdir(other))
        expect(not scene.is_clean(), "left behind: %s" % scene.is_clean())
        # cuBLAS and cuFFT of the bundle's versions, where pip and conda put them; and nowhere.
        for name in "cublas", "cufft":
            with open(os.path.join(scene.bundle, name), "w") as file:
                file.write("lib%s.so.99\n" % name)
        for variable, below in (("VIRTUAL_ENV", "lib/python3.9/site-packages/nvidia/%s/lib"), ("CONDA_PREFIX", "lib"),
                                ("VIRTUAL_ENV", "lib/python3.12/site-packages/nvidia/cu13/lib"),
                                ("HOME", ".local/lib/python3.11/site-packages/nvidia/cu12/lib"), ("CUDA_HOME", "lib64"),
                                ("PATH", "lib/python3.13/site-packages/nvidia/cu13/lib"), ("HOME", "elsewhere")):
            root = os.path.join(scene.dir, "root")
            places = {name: os.path.join(root, below.replace("%s", name)) for name in ("cublas", "cufft")}
            for name, place in places.items():
                os.makedirs(place, exist_ok=True)
                with open(os.path.join(place, "lib%s.so.99" % name), "w"):
                    pass
            os.makedirs(os.path.join(root, "bin"))
            os.symlink(sys.executable, os.path.join(root, "bin", "python3"))
            scene.run(STUB_GPUS="none", **{variable: root + "/bin:" + os.environ["PATH"] if variable == "PATH" else root})
            with open(os.path.join(scene.out, "diagnosis.txt")) as file:
                text = file.read()
                for name, place in places.items():
                    says = "lib%s.so.99: %s" % (name, "nowhere" if below == "elsewhere" else place)
                    expect(says + "\n" in text, "%s: not %r" % (name, says))
            shutil.rmtree(root)
        for args in (["nonsense"], ["--rehearse"], ["--rehearse", "gpu"], ["--nonsense"], FIRST + ["litmus"]):
            code, said, wrong = scene.run(*args)
            expect(code == 2 and wrong and not said, "run %s: status %d, %r" % (args, code, said))
        code, said, _ = scene.run("--help")
        expect(code == 0 and "usage" in said, "--help: status %d" % code)


def room(build):
    with Scene(build, PLAYED) as scene:
        places = ["/proc/nonsense", os.path.join(scene.dir, "nonsense")]
        full = os.path.join(scene.dir, "full")
        os.mkdir(full)
        has_full = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", full], check=False,
                                  capture_output=True).returncode == 0

        def left():
            return [what for what in scene.is_clean() if what != "mount " + full]

        for place in places + [full] * has_full:
            code, said, wrong = scene.run(STUB_GPUS="none", TMPDIR=place)
            expect(code == 1 and not said and wrong.count("\n") == 1 and place in wrong and "TMPDIR" in wrong,
                   "no work directory in %s: %d, %r, %r" % (place, code, said, wrong))
            expect(scene.files() == ["diagnosis.txt"], "no work directory: files %s" % scene.files())
            with open(os.path.join(scene.out, "diagnosis.txt")) as file:
                text = file.read()
            expect("/proc/driver/nvidia/version" in text and "max locked memory" in text and
                   text.splitlines()[-1].startswith("ended: no work directory in " + place), "the diagnosis: %s" % text[-400:])
            expect(not left() and os.listdir(full) == [], "left behind: %s, %s" % (left(), os.listdir(full)))
            shutil.rmtree(scene.out)
        if has_full:
            with open(os.path.join(full, "all of it"), "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
        for place in ["/proc/nonsense", os.path.join(scene.bundle, "version", "below a file")] + [full] * has_full:
            scene.out = place
            code, said, wrong = scene.run(STUB_GPUS="none")
            expect(code == 1 and not said and wrong.count("\n") == 1 and place in wrong and "no results can be written" in wrong,
                   "no results in %s: %d, %r, %r" % (place, code, said, wrong))
            expect(not left(), "left behind: %s" % left())


def driver(build, stub):
    if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg"):
        print("this machine has a GPU, which run would find and test for minutes")
        sys.exit(77)
    with Scene(build) as scene:
        code, said, wrong = scene.run()
        expect(code == 77 and said.count("\n") == 1 and "no libcuda.so.1 with cuInit is found" in said,
               "without: %d, %r, %r" % (code, said, wrong))
        path = os.path.dirname(os.path.abspath(stub))

        def found(how, **env):
            code, said, wrong = scene.run(**env)
            expect(code == 77 and said.count("\n") == 1 and "803" in said and not wrong,
                   "the driver is not found %s: %d, %r, %r" % (how, code, said, wrong))
            with open(os.path.join(scene.out, "diagnosis.txt")) as file:
                text = file.read()
            expect("803" in text and path in text, "%s: the diagnosis does not tell of the driver: %s" % (how, text))
            expect(not scene.is_clean(), "left behind: %s" % scene.is_clean())

        # Also by the loader and the C library of the bundle.
        os.symlink("/lib64/ld-linux-x86-64.so.2", os.path.join(scene.bundle, "glibc", "ld.so"))
        for own in ({}, {"GPU_CHECK_OWN_GLIBC": "yes"}):
            found("by LD_LIBRARY_PATH, %s" % own, LD_LIBRARY_PATH="/nonsense:" + path, **own)
        # Where containers have it, and neither LD_LIBRARY_PATH nor the loader looks.
        diagnose = os.path.join(scene.bundle, "diagnose")
        with open(diagnose) as file:
            text = file.read()
        place = "/usr/local/nvidia/lib64"
        expect(text.count(place + " ") == 1, "%s is none of the usual places" % place)
        with open(diagnose, "w") as file:
            file.write(text.replace(place, path))
        for own in ({}, {"GPU_CHECK_OWN_GLIBC": "yes"}):
            found("in a usual place, %s" % own, **own)


def rehearse(build, on):
    if not os.path.exists("/dev/fuse"):
        print("skipped: there is no /dev/fuse")
        sys.exit(77)
    with Scene(build) as scene:
        scene.env["VIRTUAL_ENV"] = os.path.join(HERE, "..", "..", "..", "build-deps", "python")
        has_python = os.path.exists(scene.env["VIRTUAL_ENV"])
        for phases in ([], ["--second"]):
            code, said, wrong = scene.run("--rehearse", on, *phases)
            print(said)
            expect(code == 0 and not wrong, "rehearsal on %s: status %d: %s" % (on, code, wrong))
            expect("SIMULATED" in said.splitlines()[0], "it does not say that it is a rehearsal")
            left = scene.is_clean()
            expect(not left, "left behind: %s" % left)
        expect(len(scene.files()) == len(FIRST + SECOND) + 2, "files: %s" % scene.files())
        for phase in FIRST + SECOND:
            rows = scene.rows(phase)
            expect(rows[0]["simulated"] and rows[0]["rehearsal"] == on, "the label of %s: %s" % (phase, rows[0]))
            expect(rows[-1].get("end"), "%s has no end" % phase)
            status = scene.status(phase)
            expect(rows[0]["plan"] and set(status) == set(rows[0]["plan"]), "%s: plan and sections differ" % phase)
            for row in rows:
                expect("section" not in row or row.get("simulated") is True, "not called simulated: %s" % row)
            # With a driver, CuPy and PyTorch that are played.
            python = status.get("example-python")
            expect(not python or python["status"] == ("done" if on == "fake" and has_python else "not run"), "Python: %s" % python)
            for name, row in status.items():
                # What a rehearsal has no use for, or time: it says so. All else must be done.
                may_be_missing = name.startswith("example-") or phase in ("litmus", "sanitizer", "ncu")
                fine = row["status"] in ("done", "skipped") or (may_be_missing and row["status"] == "not run" and row["note"])
                expect(fine, "%s: %s" % (phase, row))
        for name in scene.status("busy"):
            beside = [row for row in scene.rows("busy") if "what" in row and row["section"] == name.split("/")[1]]
            expect(beside and all("of another process" in row["beside"] for row in beside), "%s: %s" % (name, beside))
            expect(beside[-1].get("slowdown", 0) > 0, "%s does not say what it cost the other process" % name)
        expect({"bench/" + name for name in scene.status("bench")} <= set(scene.status("busy")),
               "not all of the bench is done again: %s" % list(scene.status("busy")))
        measured = [row for phase in FIRST for row in scene.rows(phase) if "what" in row and "not_run" not in row]
        expect(len(measured) > 20, "there are %d rows" % len(measured))
        expect(any(row["status"] == "done" for row in scene.status("litmus").values()), "no litmus file ran")
        summary = [row for row in scene.rows("litmus") if row.get("what") == "files"]
        expect(len(summary) == 1 and summary[0]["of"] == len(scene.rows("litmus")[0]["plan"]), "litmus: %s" % summary)
        for way in ("auto", "writeback", "writethrough"):
            for group in (way, "small-" + way):
                expect(any(name.startswith(group + "/") and row["status"] == "done"
                           for name, row in scene.status("mount").items()), "no section of " + group)
        churn = [row for row in scene.rows("mount") if row.get("section") == "evict"]
        expect(len(churn) == 6 and {"writeback", "writethrough"} <= {row["cpu_cache"] for row in churn} and
               all(row["bytes"] > row["device_bytes"] for row in churn), "eviction: %s" % churn)
        page = page_of(scene.out)
        expect(page.startswith("# SIMULATED"), "the page does not begin with SIMULATED")


def check_killed(scene, phases):
    """What is left in OUT is whole; returns how many sections are missing by it."""
    missing, page = 0, ""
    expect(set(scene.files()) <= {p + ".jsonl" for p in phases} | {"diagnosis.txt", "gpu-check.log"},
           "files: %s" % scene.files())
    files = scene.files()
    if files:
        page = page_of(scene.out)
    for name in files:
        if not name.endswith(".jsonl"):
            continue
        # From the first phase's start on, the plans of all are there.
        expect(len(scene.rows(name[:-len(".jsonl")])) == 1 or all(p + ".jsonl" in files for p in phases),
               "%s has begun, and there are %s" % (name, files))
        rows = scene.rows(name[:-len(".jsonl")])
        plan, known = rows[0]["plan"], [row["section"] for row in rows if "status" in row]
        expect(plan and known == plan[:len(known)], "%s: planned %s, known %s" % (name, plan, known))
        expect(not rows[-1].get("end") or known == plan, "%s: ended, but only %s of %s" % (name, known, plan))
        missing += len(plan) - len(known)
        gone = plan[len(known):]
        expect(not gone or "**%s**: missing" % name[:-len(".jsonl")] in page and gone[-1] in page,
               "the page does not name what is missing of %s: %s" % (name, page))
    return missing


def sections_known(scene):
    n = 0
    for path in glob.glob(os.path.join(scene.out, "*.jsonl")):
        with open(path) as file:
            n += file.read().count('"status"')
    return n


def killed(build, sections_most=None):
    if not os.path.exists("/dev/fuse"):
        print("skipped: there is no /dev/fuse")
        sys.exit(77)
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print("seed %d (SEED=%d repeats it)" % (seed, seed), flush=True)
    chance = random.Random(seed)
    phases = ["ceilings", "bench", "mount", "history"]
    env = {} if sections_most else {"STUB_MILD": "yes"}
    with Scene(build, () if sections_most else PLAYED) as scene:
        whole = 1
        if not sections_most:
            start = time.monotonic()
            code, said, wrong = scene.run("--rehearse", "sim", *phases, **env)
            whole = time.monotonic() - start
            expect(code == 0 and not wrong and check_killed(scene, phases) == 0, "whole: %d, %s%s" % (code, said, wrong))
        for nth in range(int(os.environ.get("KILLS", 10))):
            shutil.rmtree(scene.out, ignore_errors=True)
            os.mkdir(scene.out)
            known = 0
            if sections_most:
                phases = chance.sample(FIRST + ["busy", "litmus", "history"], 5)
                known = chance.randint(1, int(sections_most))
            process = scene.start("--rehearse", "sim", *phases, **env)
            while sections_most and process.poll() is None and sections_known(scene) < known:
                time.sleep(0.01)
            moment = chance.uniform(0, whole)
            time.sleep(moment)
            mounts = len(scene.mounts())
            group = nth % 2 == 1
            # Its sections may be over sooner; what it left is looked at all the same.
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if group else os.kill)(process.pid, signal.SIGKILL)
            process.communicate(timeout=120)
            left = scene.is_clean()
            expect(not left, "killed after %.2f s, left behind: %s" % (moment, left))
            files = " ".join(scene.files())
            missing = check_killed(scene, phases)
            rows = sum("what" in row for name in files.split() if name.endswith(".jsonl") for row in scene.rows(name[:-len(".jsonl")]))
            print("killed%s %.2f s after %d sections, with %d mounts: %d sections are missing of %s, and there are %d rows" %
                  (" with its group" if group else "", moment, known, mounts, missing, files, rows), flush=True)


def report(build):
    with tempfile.TemporaryDirectory() as directory:
        page = page_of(directory)
        expect("no result file" in page and "diagnosis.txt is missing" in page, "of nothing: %s" % page)
        row = {"section": "kinds", "what": "in | out", "us": 1.5, "us_p10": 1, "us_p90": 2, "n": 3, "gb_s": 2.5, "ceiling_gb_s": 10,
               "of_ceiling": 0.25, "counters": {"a": 1, "b": 0}}
        lines = [json.dumps(one) for one in (
            {"phase": "bench", "plan": ["kinds", "batches", "busy", "more"], "gaiafs": "v1", "date": "today", "simulated": False,
             "rehearsal": None, "kernel": "6.1", "cpu": "one", "processors": 4, "memory_kib": 1 << 20, "fuse": True},
            {"phase": "bench", "start": True, "gpus": 1, "gpu": {"section": "machine", "what": "GPU 0", "name": "Some GPU"}},
            *(dict(row, bytes=bytes) for bytes in (4096, 65536, 1 << 20)),
            {"section": "kinds", "what": "peer", "not_run": "there is one GPU"},
            {"section": "kinds", "status": "done", "seconds": 1.5, "note": ""},
            {"section": "batches", "status": "timeout", "seconds": 9, "note": "not done after 9 s"},
            {"section": "busy", "what": "cuMemUnmap", "while": "a kernel runs", "waited": True, "us": 5, "decides": "rule 7"},
            {"section": "busy", "what": "cuMemMap", "while": "a kernel runs", "waited": False, "us": 5, "decides": "rule 8"},
            dict(row, section="busy", bytes=1))]

        def put(text, name="bench"):
            with open(os.path.join(directory, name + ".jsonl"), "w", encoding="utf-8") as file:
                file.write(text)

        put("\n".join(lines + [json.dumps(dict(row, section="busy", bytes=2))])[:-20])
        page = page_of(directory)
        wrong, rest = page.split("## Shares of the ceilings")
        for text in ("took too long: not done after 9 s", "cut off in the middle", "**bench**: missing", "busy, more",
                     "bench: kinds: peer: there is one GPU"):
            expect(text in wrong, "%r is not said first: %s" % (text, page))
        expect("SIMULATED" not in page and "Some GPU" in page, "real results: %s" % page)
        expect("in \\| out | 4 KiB | 1.5 (1 to 2) | 3 | 2.5 | 10 | **0.25** | a 1" in rest or
               "in \\| out | 1.5 (1 to 2) | 3 | 2.5 | 10 | **0.25** | a 1 | 4 KiB" in rest, "the table: %s" % page)
        expect("- cuMemUnmap waited while a kernel runs: rule 7\n" in page and "- cuMemMap" not in page, "what waits: %s" % page)
        expect("bench: busy — cut off" in rest, "what was under way: %s" % page)
        if shutil.which("gnuplot"):
            for name in ("report-shares-bench.png", "report-sizes.png"):
                with open(os.path.join(directory, name), "rb") as file:
                    expect(file.read(8) == b"\x89PNG\r\n\x1a\n", "%s is no picture" % name)
        expect(("No plot" in page) == (not shutil.which("gnuplot")), "plots: %s" % page)
        done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "..", "page.py"), directory], capture_output=True,
                              env=dict(os.environ, PATH="/nonsense"), check=False)
        with open(os.path.join(directory, "report.md"), encoding="utf-8") as file:
            expect(done.returncode == 0 and "No plot" in file.read(), "without gnuplot: %s" % done.stderr)
        expect(not os.path.exists(os.path.join(directory, "report-shares-bench.png")), "a plot of other results stayed")

        # What is slower beside another process, and by how much.
        # (Some rows differ only in what is neither words nor a size.)
        def again(times, alive):
            return [*({"section": "again", "what": "shared", "chunks": 64, "alive": n, "create_us": us * times} for n, us in alive),
                    *({"section": "again", "what": "registered", "bytes": 1, "huge_pages": huge, "us": us * times}
                      for huge, us in ((False, 40), (True, 10))),
                    {"section": "again", "status": "done", "seconds": 1, "note": ""}]

        put("\n".join(json.dumps(one) for one in (
            {"phase": "ceilings", "plan": ["again"], "simulated": False}, *again(1, [(0, 10), (1000, 90)]),
            {"phase": "ceilings", "end": True})) + "\n", "ceilings")
        put("\n".join(json.dumps(one) for one in (
            {"phase": "busy", "plan": ["bench/kinds", "ceilings/again"], "simulated": False},
            *(dict(row, bytes=bytes, us=us, beside="another's") for bytes, us in ((4096, 3), (65536, 4.5), (1 << 21, 7))),
            {"section": "kinds", "what": "the other process's kernels", "slowdown": 1.25},
            {"section": "bench/kinds", "status": "done", "seconds": 1, "note": ""},
            *({**one, "section": "ceilings/again"} if "status" in one else one for one in again(2, [(0, 10)])),
            {"phase": "busy", "end": True})) + "\n", "busy")
        page = page_of(directory)
        expect("| ceilings/again | 3 | 2 (2 to 2) | - |" in page, "rows that are nearly alike: %s" % page)
        expect("| bench/kinds | 2 | 3 (2 to 3) | 1.25 |" in page, "beside another process: %s" % page)
        for name in ("busy", "ceilings"):
            os.unlink(os.path.join(directory, name + ".jsonl"))

        # A rehearsal beside it is called so, and so are its rows.
        put(json.dumps({"phase": "stalls", "plan": ["waits"], "simulated": True, "rehearsal": "sim"}) + "\n" +
            json.dumps(dict(row, section="waits", simulated=True)) + "\nnonsense\n" +
            json.dumps({"section": "waits", "status": "done", "seconds": 1, "note": "", "simulated": True}) + "\n" +
            json.dumps({"phase": "stalls", "end": True}) + "\n", "stalls")
        page = page_of(directory)
        expect(page.startswith("# PARTLY SIMULATED") and "### stalls: waits (SIMULATED)" in page and
               "### bench: kinds\n" in page, "some simulated: %s" % page)
        expect("**stalls.jsonl**: line 3 is broken" in page, "a broken line: %s" % page)
        put("", "stalls")
        expect("**stalls.jsonl**: it has no plan" in page_of(directory), "an empty file")
        for cut in range(0, 400, 7):
            put("\n".join(lines)[:cut])
            page_of(directory) if cut % 49 == 0 else None
    # What a run leaves makes a page, too.
    with Scene(build, PLAYED) as scene:
        scene.run("--rehearse", "sim", "ceilings", STUB_MILD="yes")
        page = page_of(scene.out)
        expect("# SIMULATED" in page and "ended: all that could run passed" in page and
               "all sections that were planned were done" in page, "of a run: %s" % page)


def libraries_of(program, path):
    """What the loader finds for it, by name, with the libraries in @path; None: nothing."""
    said = subprocess.run(["ldd", program], env=dict(os.environ, LD_LIBRARY_PATH=path), capture_output=True, text=True,
                          check=True, timeout=60).stdout
    found = {}
    for line in said.splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if arrow:
            found[name] = None if rest == "not found" else rest.rpartition(" (")[0]
    return found


# Those that lie beside the loader in the bundle, where the machine's are too old.
OF_THE_C_LIBRARY = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libresolv.so.2"}


def bundle(build):
    if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/dxg"):
        print("this machine has a GPU, which run would find and test for minutes")
        sys.exit(77)
    make = os.path.join(HERE, "..", "..", "..", "scripts", "gpu-check")
    with tempfile.TemporaryDirectory(prefix="gpu-run-test.") as directory:
        def made(built, name):
            return subprocess.run([make, "--built", built, "--bundle", name], cwd=directory, capture_output=True, text=True,
                                  check=False, timeout=150)

        # Of a build that lacks a program there is none.
        os.mkdir(os.path.join(directory, "lacking"))
        with open(os.path.join(directory, "lacking", "build.ninja"), "w"):
            pass
        done = made("lacking", "none.tar.gz")
        expect(done.returncode == 1 and "gaiafs" in done.stderr and os.listdir(directory) == ["lacking"],
               "of a build without programs: status %d, %s" % (done.returncode, done.stderr))

        done = made(build, "bundle.tar.gz")
        expect(done.returncode == 0, "no bundle: %s%s" % (done.stdout, done.stderr))
        file = os.path.join(directory, "bundle.tar.gz")
        print("%.1f MiB" % (os.stat(file).st_size / (1 << 20)))
        expect(os.stat(file).st_size < 60 << 20, "the bundle has %d bytes" % os.stat(file).st_size)
        place = os.path.join(directory, "an empty folder")
        os.mkdir(place)
        subprocess.run(["tar", "-xzf", file], cwd=place, check=True)
        expect(os.listdir(place) == ["gpu-check"], "it unpacks to %s" % os.listdir(place))
        unpacked = os.path.join(place, "gpu-check")
        with open(os.path.join(unpacked, "glibc", "needed")) as needed:
            expect(needed.read().startswith("2."), "which C library it needs is not known")

        lib = os.path.join(unpacked, "lib")
        for program in glob.glob(os.path.join(unpacked, "bin", "*")):
            for name, found in libraries_of(program, lib).items():
                fine = name.startswith(("libcublas", "libcufft")) or (found and (name in OF_THE_C_LIBRARY or found.startswith(lib + "/")))
                expect(fine, "%s needs %s, which is not in the bundle: %s" % (program, name, found))
        expect(all(os.path.exists(os.path.join(unpacked, "python", name)) for name in ("gaiafs/__init__.py", "gpu.py", "make_model.py")),
               "the Python package is not in the bundle")
        for name in OF_THE_C_LIBRARY - {"libresolv.so.2"}:
            expect(os.path.exists(os.path.join(unpacked, "glibc", name)), "glibc/%s is not in the bundle" % name)

        # Nothing but a shell's programs; then also with the C library that it brings along.
        bare = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR": directory}
        for own in ({}, {"GPU_CHECK_OWN_GLIBC": "yes"}):
            def run(out, *args):
                return subprocess.run([os.path.join(unpacked, "run"), "--out", out, *args], env=dict(bare, **own), cwd="/",
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=150)

            out = os.path.join(directory, "out" + "".join(own))
            done = run(out)
            expect(done.returncode == 77 and done.stdout.count("\n") == 1 and not done.stderr and "no CUDA driver" in done.stdout,
                   "without a GPU: status %d, %r, %r" % (done.returncode, done.stdout, done.stderr))
            expect(sorted(os.listdir(out)) == ["diagnosis.txt", "gpu-check.log"], "files: %s" % os.listdir(out))
            done = run(out, "--rehearse", "fake", "stalls")
            expect(done.returncode == 0 and not done.stderr, "a rehearsal %s: status %d, %s%s" %
                   (own, done.returncode, done.stdout, done.stderr))
            with open(os.path.join(out, "stalls.jsonl")) as rows:
                expect(json.loads(rows.readlines()[-1])["end"], "the rehearsal's rows have no end")
        expect(sorted(os.listdir(directory)) == ["an empty folder", "bundle.tar.gz", "lacking", "out", "outGPU_CHECK_OWN_GLIBC"],
               "left behind: %s" % os.listdir(directory))


if __name__ == "__main__":
    {"sections": sections, "tools": tools, "contact": contact, "room": room, "driver": driver, "rehearse": rehearse,
     "killed": killed, "report": report, "bundle": bundle}[sys.argv[1]](*sys.argv[2:])
