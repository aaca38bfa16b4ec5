"""What benches share whose rows each have a peer of their own: gaiafs with a simulated device beside it, and their main()."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import plot
import report
from rounds import Goal, Row
from systems import GIB, MIB, Gaiafs, Lacking, Missing, run, run_undisturbed, stop_on_signals

KIB = 1 << 10
PEER, OURS = "peer", "gaiafs"
NAMES = {PEER: "peer", OURS: "gaiafs"}


def size_text(size):
    for unit, name in (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"):
        if size >= unit and size % unit == 0:
            return "%d %s" % (size // unit, name)
    return "%d bytes" % size


class Worker:
    """A program that does what it is told: a line for each order, and a line of numbers for each answer."""

    def __init__(self, command, user=None, env=None):
        """@user: a user's number, for root only. @env: the environment; None: ours."""
        self.command = command
        self.said = tempfile.TemporaryFile("w+")
        try:
            self.child = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          stderr=self.said, start_new_session=True, user=user,
                                          group=user, extra_groups=None if user is None else [], env=env)
        except OSError:
            self.said.close()
            raise
        self.told = ""
        self.mapped = 0

    def ask(self, *words):
        """The numbers that it answers."""
        self.tell(*words)
        return self.listen()

    def tell(self, *words):
        """Without waiting for the answer."""
        self.told = " ".join(map(str, words))
        with contextlib.suppress(OSError):
            self.child.stdin.write(self.told + "\n")
            self.child.stdin.flush()

    def listen(self):
        """The next answer's numbers."""
        try:
            answer = self.child.stdout.readline()
        except OSError:
            answer = ""
        if not answer.endswith("\n"):
            self.said.seek(0)
            raise RuntimeError("%s: %s: %s" % (os.path.basename(self.command[-1]), self.told, self.said.read().strip()))
        return [int(number) for number in answer.split()]

    def time(self, *words):
        return self.ask(*words)[0]

    def map(self, path, prot="rw"):
        self.ask("map", path, prot)
        self.mapped += 1
        return self.mapped - 1

    def stop(self):
        for stream in self.child.stdin, self.child.stdout:
            with contextlib.suppress(OSError):
                stream.close()
        try:
            self.child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.said.close()


class Mount:
    """A mounted gaiafs with a simulated device, and programs that map files of it."""

    def __init__(self, bench, name, device, home, *options, way="writeback"):
        self.bench = bench
        options = ["--device", "sim:" + device, "--cpu-cache", way, "--home", str(home), *options]
        self.system = Gaiafs(name, bench.place, bench.args.build, options)
        bench.stack.callback(self.system.stop)
        self.system.start()
        self.home = home

    def make(self, name, size, sparse=False):
        """A file: its path."""
        if sparse:
            with open(os.path.join(self.system.below, name), "wb") as file:
                file.truncate(size)
        else:
            self.system.make_file(name, size)
        return self.system.path(name)

    def status(self):
        return json.loads(run(self.system.gaia, "status", self.system.root, "--json"))

    def counters(self):
        return self.status()["counters"]

    def device_used(self):
        return self.status()["devices"][0]["used"]

    @contextlib.contextmanager
    def counted(self, changes):
        """What the counters have risen by meanwhile is put into @changes."""
        before = self.counters()
        yield
        changes.update({name: value - before[name] for name, value in self.counters().items()})

    def evict(self, name, where):
        run(self.system.gaia, "evict", self.system.path(name), "--from", *where.split())

    def forget_but_on_device(self, name):
        """Neither the kernel has anything of it, of the mount or of the file below, nor home."""
        self.system.forget_in_kernel(name)
        self.evict(name, "home")
        with open(os.path.join(self.system.below, name), "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pair(theirs, ours):
    return {PEER: theirs, OURS: ours}


class PairsBench:
    """@name: the bench's; derived classes have parts(), which adds rows and works, and measure()."""

    name = None
    device = "simulated"
    mount_class = Mount
    names = NAMES
    order = "First the peer, then gaiafs"

    def __init__(self, args):
        self.args = args
        self.machine = None
        self.undisturbed = False
        self.rows = []
        self.counts = []  # works of which one round says all
        self.works = []
        self.limit = None
        self.missing = {}
        self.excused = []  # rows that cannot be measured on this machine
        self.left_by_time = []
        self.stack = contextlib.ExitStack()
        self.place = None
        self.mounts = {}

    # -- rows and works

    def row(self, section, title, unit, least=0.0, most=float("inf")):
        """A line of the table, and its goal, for which gaiafs is compared with its peer."""
        goals = [Goal(least, PEER, most)] if least > 0 or most < float("inf") else []
        row = Row(section, title, unit, PEER, goals, [OURS])
        self.rows.append(row)
        return row

    def work(self, rows, function, *args, to=None):
        """What measures these rows; not what --only leaves out. @to: a list of works."""
        if not any(self.args.only in row.section + ", " + row.title for row in rows):
            return

        def run_it(rnd):
            try:
                function(rnd, *args)
            except Missing as why:
                self.missing[rows[0].section + ", " + rows[0].title] = str(why)
                if isinstance(why, Lacking):
                    self.excused += rows
        (self.works if to is None else to).append((rows[0].section + ", " + rows[0].title, run_it))

    # -- what is mounted, as soon as it is needed

    def mounted(self, name, *args, **more):
        """A Mount by its name, and whether it is new. What could not be mounted is not tried again."""
        new = name not in self.mounts
        if new:
            try:
                self.mounts[name] = self.mount_class(self, name, *args, **more)
            except Missing as why:
                self.mounts[name] = why
        if isinstance(self.mounts[name], Missing):
            raise self.mounts[name]
        return self.mounts[name], new

    # -- all of it

    def measured_all(self):
        """Except what this machine lacks something for."""
        return all(row.is_measured() or row in self.excused for row in self.rows)

    def facts(self, rounds):
        args = self.args
        return {"bench": self.name, "quick": args.quick, "only": args.only, "rounds": rounds,
                "device": self.device, "versions": report.versions(args.build),
                "machine": self.machine, "undisturbed": self.undisturbed, "missing": self.missing,
                "left_out_by_time": self.left_by_time}

    def report(self, rounds):
        """Prints and writes the results; returns what they say of the goals."""
        facts, out = self.facts(rounds), self.args.out
        measured = [row for row in self.rows if row.is_measured()]
        print(report.machine_text(facts) + "; other programs %s" %
              ("went after" if self.undisturbed else "were not held back"))
        print("%s; the device is %s" % (facts["versions"]["gaiafs"], self.device))
        print("%d whole rounds. %s, then how many times the peer's that is "
              "(median ± half the distance of the quartiles)." % (rounds, self.order))
        print(report.LEGEND)
        print("\n".join(report.pairs_table(measured, PEER, OURS)))
        for name, why in self.missing.items():
            print("not measured here: %s: %s" % (name, why))
        if self.left_by_time:
            print("no time left in round %d for: %s" % (rounds + 1, "; ".join(self.left_by_time)))
        report.write_json(os.path.join(out, self.name + ".json"), facts, self.rows, [])
        with open(os.path.join(out, self.name + ".md"), "w") as file:
            file.write("\n".join(report.pairs_markdown(measured, PEER, OURS)) + "\n")
        drawn = self.draw(os.path.join(out, self.name + ".png"), measured, facts)
        print("written: %s" % ", ".join([os.path.join(out, name) for name in (self.name + ".json", self.name + ".md")] + drawn))
        return report.say_goals(self.rows, [], self.names)

    def draw(self, path, measured, facts):
        """The files that it makes: @path, and maybe others."""
        return plot.draw_pairs(path, measured, OURS, facts)


def main(bench):
    """Run it, and say what it found: the exit status."""
    args = bench.args
    stop_on_signals()
    bench.undisturbed = not args.smoke and run_undisturbed()
    try:
        with bench.stack:
            bench.place = tempfile.mkdtemp(prefix="gaiafs-bench.", dir=os.path.realpath(args.dir))
            bench.stack.callback(shutil.rmtree, bench.place, ignore_errors=True)
            os.chmod(bench.place, 0o755)  # for NOBODY
            bench.machine = report.machine_of(bench.place)
            rounds = bench.measure()
        said = bench.report(rounds)
    except KeyboardInterrupt:
        print("\nbench: interrupted; everything is unmounted and removed.", file=sys.stderr)
        return 130
    except (RuntimeError, OSError, subprocess.SubprocessError, Missing) as error:
        print("\nbench: %s" % error, file=sys.stderr)
        return 1
    print("\n".join(report.last_lines(said)))
    if args.smoke and not bench.measured_all():
        return 1
    # This machine lacks something for all of it: the test of this bench is skipped, not passed.
    if args.smoke and not any(row.is_measured() for row in bench.rows):
        return 77
    return report.status(said, args.check)
