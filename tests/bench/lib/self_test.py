#!/usr/bin/env python3
"""What scripts/bench makes of its figures, on figures that are made up: nothing is mounted."""

import collections
import contextlib
import fcntl
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# pylint: disable=wrong-import-position
import apps
import cpu
import device
import instructions
import ksm
import memory
import models
import pairs
import plot
import real_data
import report
import tiers
import umap
from fio import HOT, Fio
from memory_limit import MemoryLimit
from rounds import (BEST_PEER, MET, MISSED, NOISE, UNMEASURED, Goal, Progress, Row, TimeLimit,
                    run_rounds, turn)
from systems import GIB, MIB, Missing, Peer

MADE_UP_MACHINE = {"cpu": "c", "cores": 2, "memory_gib": 4, "kernel": "6", "file_system": "ext4", "damon": False, "load_before": [0.0]}
NATIVE, OURS = cpu.NATIVE, cpu.WAYS[0]
PEERS = cpu.PEERS


def row_of(goals, subjects=(OURS,), base=NATIVE, **samples):
    row = Row("reads", "hot", "bytes", base, goals, list(subjects))
    row.samples = {name.lstrip("_"): rates for name, rates in samples.items()}
    return row


def verdicts(row, peers=()):
    return [judged.verdict for judged in row.judge(peers)]


class Judging(unittest.TestCase):
    def of_native(self, *rates):
        return verdicts(row_of([Goal(0.9, NATIVE)], native=[100] * len(rates), auto=list(rates)))

    def test_is_known_only_if_the_whole_spread_says_the_same(self):
        self.assertEqual(self.of_native(94, 95, 96), [MET])
        self.assertEqual(self.of_native(84, 85, 86), [MISSED])
        self.assertEqual(self.of_native(84, 89, 94), [NOISE])
        self.assertEqual(self.of_native(84, 91, 98), [NOISE])

    def test_is_of_the_median_where_the_spread_is_not_known(self):
        self.assertEqual(self.of_native(91), [MET])
        self.assertEqual(self.of_native(89), [MISSED])
        self.assertEqual(self.of_native(80, 98), [MISSED])
        row = row_of([], native=[100], auto=[91])
        self.assertEqual(row.ratio(OURS, NATIVE), (0.91, None))
        self.assertEqual(report.ratio_text(row.ratio(OURS, NATIVE)), "0.91")

    def test_without_figures_is_not_measured(self):
        goals = [Goal(0.9, NATIVE), Goal(1, BEST_PEER)]
        self.assertEqual(verdicts(row_of(goals), PEERS), [UNMEASURED] * 2)
        self.assertEqual(verdicts(row_of(goals, native=[100] * 3), PEERS), [UNMEASURED] * 2)
        self.assertEqual(verdicts(row_of(goals, native=[100] * 3, auto=[95] * 3), PEERS),
                         [MET, UNMEASURED])

    def test_a_missing_peer_might_have_been_the_best(self):
        goal = [Goal(1, BEST_PEER)]
        one = {"native": [100] * 3, "ll": [50] * 3}
        self.assertEqual(verdicts(row_of(goal, auto=[60] * 3, **one), PEERS), [UNMEASURED])
        self.assertEqual(verdicts(row_of(goal, auto=[40] * 3, **one), PEERS), [MISSED])
        self.assertEqual(verdicts(row_of(goal, auto=[60] * 3, hp=[55] * 3, **one), PEERS), [MET])

    def test_is_of_the_ratios_of_each_round(self):
        # The machine was slower in each round: ratios of medians would say less.
        row = row_of([Goal(0.98, NATIVE)], native=[100, 50, 20], auto=[99, 49.5, 19.8])
        self.assertEqual(verdicts(row), [MET])


class ChangedRows(unittest.TestCase):
    """The goal is what a second mount that is the same allows."""

    @staticmethod
    def verdict(changed, second):
        row = cpu.ChangedRow("section", "title", "bytes")
        for one, other in zip(changed, second):
            row.add({cpu.NATIVE: 1, cpu.WAYS[0]: 1, cpu.CHANGED: one, cpu.SECOND: other})
        return [judged.verdict for judged in row.judge([])]

    def test_as_far_apart_as_two_that_are_the_same(self):
        self.assertEqual(self.verdict([0.96, 0.96, 0.96], [1.0, 0.8, 1.0]), [MET])
        self.assertEqual(self.verdict([0.91, 0.91, 0.91], [0.9, 0.9, 0.9]), [MET])

    def test_further_apart(self):
        self.assertEqual(self.verdict([0.91, 0.91, 0.91], [1.0, 1.0, 1.0]), [MISSED])
        self.assertEqual(self.verdict([0.97, 0.97, 0.97], [1.02, 1.02, 1.02]), [MISSED])
        self.assertEqual(self.verdict([0.9, 1.0, 1.1], [1.0, 1.0, 1.0]), [NOISE])

    def test_not_measured(self):
        self.assertEqual(self.verdict([], []), [UNMEASURED])

    def started(self, *options):
        """(name, build, the daemon's options) of each mount."""
        bench, started = cpu.Bench(cpu.arguments(["--build", "/now", *options])), []

        def system(name, _place, build, options):
            started.append((name, build, " ".join(options)))
            return unittest.mock.Mock()
        with unittest.mock.patch.multiple(cpu, Gaiafs=system, Watched=unittest.mock.Mock()):
            with unittest.mock.patch.multiple(bench, start=lambda _: True, hold_files=lambda _: None, place="/place"):
                bench.start_changed()
        return started

    def test_only_the_third_mount_is_changed(self):
        for options, build, more in ((["--tiers"], "/now", "cache=auto .*--dedup home"), (["--watched"], "/now", "--metrics unix:"),
                                     (["--before", "/then"], "/then", None)):
            (one, changed, second) = self.started(*options)
            self.assertEqual((one[0], changed[0], second[0]), (cpu.WAYS[0], cpu.CHANGED, cpu.SECOND))
            self.assertEqual(one[1:], second[1:])
            self.assertEqual((one[1], changed[1]), (build, "/now"))
            if more:
                self.assertRegex(changed[2], more)
            self.assertEqual(changed[2] == one[2], not more)


class DeviceCounts(unittest.TestCase):
    def bench(self):
        bench = cpu.Bench(cpu.arguments(["--build", "/nowhere", "--quick"]))
        bench.device_counts()
        return bench

    def test_each_count_is_judged_for_each_kind_of_access(self):
        rows = self.bench().rows
        self.assertGreaterEqual(len(rows), 4)
        for row in rows:
            row.samples = {str(n): [100, 101, 102] for n in cpu.DEVICE_COUNTS}
            row.samples["8"] = [90, 91, 92]
            row.samples["160"] = [110, 131, 152]
            self.assertEqual([(judged.subject, judged.verdict) for judged in row.judge([])],
                             [("1", MET), ("8", MISSED), ("32", MET), ("160", MISSED)])
            row.samples["160"] = [60, 110, 160]
            self.assertEqual(verdicts(row)[-1], NOISE)
        self.assertEqual(report.verdict_text(rows[0], [], cpu.NAMES),
                         "missed: 8 devices; within noise: 160 devices")
        said = report.say_goals(rows, [], cpu.NAMES)
        self.assertEqual(len(said), 4 * len(rows))
        self.assertIn("8 devices", report.named(said, MISSED))
        self.assertIn("160 devices", report.named(said, NOISE))


class Turns(unittest.TestCase):
    def test_two_rounds_have_all_in_the_same_place(self):
        for count in range(1, 8):
            for rnd in range(0, 12, 2):
                pair = [turn(list(range(count)), rnd + n) for n in (0, 1)]
                for system in range(count):
                    self.assertEqual(sum(order.index(system) for order in pair), count - 1)
            for rnd in range(1, 12, 2):  # the last of a pair and the first of the next
                pair = [turn(list(range(count)), rnd + n) for n in (0, 1)]
                for system in range(count):
                    self.assertLessEqual(
                        abs(sum(order.index(system) for order in pair) - (count - 1)), 2)

    def test_each_comes_after_each_equally_often(self):
        for count in range(2, 8):
            rounds = count if count % 2 == 0 else 2 * count
            after, places = collections.Counter(), collections.Counter()
            for rnd in range(rounds):
                order = turn(list(range(count)), rnd)
                self.assertEqual(sorted(order), list(range(count)))
                after.update(zip(order, order[1:]))
                places.update(enumerate(order))
            self.assertEqual(set(after.values()), {rounds // count})
            self.assertEqual(len(after), count * (count - 1))
            self.assertEqual(set(places.values()), {rounds // count})


class TimeLimits(unittest.TestCase):
    def run_for(self, seconds, rounds, **works):
        """What was done of works that take so many seconds each, and what run_rounds() says."""
        now, done = [0], []

        def work(name, takes):
            def take(rnd):
                now[0] += takes
                done.append((rnd, name))
            return take
        limit = TimeLimit(seconds, clock=lambda: now[0])
        with contextlib.redirect_stderr(io.StringIO()):
            said = run_rounds([(name, work(name, takes)) for name, takes in works.items()], rounds,
                              limit, Progress())
        return said, done, now[0]

    def test_what_takes_long_once_does_not_keep_the_rest_from_it_if_that_is_guessed(self):
        now = [0]
        for guess, allowed in (None, False), (10, True):
            limit = TimeLimit(100, clock=lambda: now[0], guess=guess)
            limit.took["long"] = 90
            now[0] += 80
            self.assertEqual((limit.allows("short"), limit.allows("long")), (allowed, False))

    def test_without_one_all_rounds_are_done(self):
        said, done, _ = self.run_for(0, 3, a=10, b=20)
        self.assertEqual(said, (3, []))
        self.assertEqual(len(done), 6)

    def test_only_rounds_that_fit_are_begun(self):
        said, done, now = self.run_for(75, 9, a=10, b=20)
        self.assertEqual((said, len(done), now), ((2, []), 4, 60))

    def test_nothing_is_started_that_would_go_over_it(self):
        said, done, now = self.run_for(45, 9, a=10, b=20, c=20)
        self.assertEqual(said, (0, ["c"]))
        self.assertEqual([name for _, name in done], ["a", "b"])
        self.assertLessEqual(now, 45)


class Peers(unittest.TestCase):
    def peers(self, version, user=0, built=("passthrough_ll", "passthrough_hp")):
        """What there is by name, and what is said to be missing."""
        missing = {}
        with tempfile.TemporaryDirectory() as place:
            os.mkdir(os.path.join(place, "peers"))
            for name in built:
                with open(os.path.join(place, "peers", name), "w"):
                    pass
            with open(os.path.join(place, "peers", "version"), "w") as file:
                file.write(version + "\n")
            with unittest.mock.patch.object(os, "geteuid", lambda: user):
                made = {peer.name: peer for peer in cpu.make_peers(place, place, missing)}
            self.assertEqual(report.versions(place)["peers_libfuse"], version)
        return made, missing

    def test_one_caches_and_one_passes_through(self):
        made, missing = self.peers("3.18.3")
        self.assertEqual(list(made), PEERS)
        self.assertEqual([peer.passes_through for peer in made.values()], [False, True])
        self.assertEqual(missing, {})
        self.assertNotIn("--nopassthrough", made[cpu.HP].command)

    def test_without_root_or_a_new_libfuse_both_cache_and_it_is_said(self):
        for version, user, option, why in (("3.18.3", 1000, True, "only root may"),
                                           ("3.14.0", 0, False, "libfuse 3.14.0 cannot")):
            made, missing = self.peers(version, user)
            self.assertEqual([peer.passes_through for peer in made.values()], [False] * 2)
            self.assertEqual("--nopassthrough" in made[cpu.HP].command, option)
            self.assertEqual(missing, {"libfuse hp, passing through": why})

    def test_what_was_not_built_is_missing(self):
        made, missing = self.peers("3.14.0", built=["passthrough_ll"])
        self.assertEqual((list(made), list(missing)), ([cpu.LL], [cpu.HP]))
        self.assertIn("passthrough_hp.log", missing[cpu.HP])

    def test_what_is_cached_is_not_taken_for_passed_through(self):
        with tempfile.TemporaryDirectory() as place:
            peer = Peer("peer", place, [])
            with open(peer.path("changed-below"), "w") as file:  # as it is before
                file.write("before")
            self.assertFalse(peer.shows_what_is_below())
            peer.root = peer.below
            self.assertTrue(peer.shows_what_is_below())


class Jobs(unittest.TestCase):
    def test_one_that_did_not_begin_is_a_failure_and_says_why(self):
        job = {"jobname": NATIVE, "read": {"io_bytes": 0}}
        fio = Fio(["ready", "0"], "data", 4096, "read", "4k", "psync", HOT, 4096)
        with tempfile.TemporaryDirectory() as place:
            with open(os.path.join(place, NATIVE + ".prerun.txt"), "w") as file:
                file.write("ready: /x/data: No such file or directory\n")
            with self.assertRaisesRegex(RuntimeError, "/x/data: No such file"):
                fio.check(job, place)
            job["read"]["io_bytes"] = 4096
            fio.check(job, place)


class WhatIsSaid(unittest.TestCase):
    def said(self, *rows):
        return report.say_goals(rows, PEERS, cpu.NAMES)

    def good(self):
        return row_of([Goal(0.9, NATIVE)], native=[100] * 3, auto=[95] * 3)

    def missed(self):
        return row_of([Goal(0.9, NATIVE)], native=[100] * 3, auto=[85] * 3)

    def noisy(self):
        return row_of([Goal(0.9, NATIVE)], native=[100] * 3, auto=[80, 90, 100])

    def test_met(self):
        said = self.said(self.good(), self.good())
        self.assertEqual(report.last_lines(said),
                         ["goals: 2 met", "goals: all measured, none missed"])
        self.assertEqual(report.status(said, check=True), 0)

    def test_missed_and_not_measured_apart(self):
        cold = row_of([Goal(0.9, NATIVE)])
        cold.title = "cold"
        said = self.said(self.good(), self.missed(), cold)
        self.assertEqual(report.last_lines(said)[-1],
                         "goals missed: reads: hot (0.85 ±0.00; goal: ≥ 0.90 native) | "
                         "goals not measured: reads: cold")
        self.assertEqual(report.status(said, check=True), report.STATUS_MISSED)
        self.assertEqual(report.status(said, check=False), 0)

    def test_not_measured_is_not_met(self):
        said = self.said(row_of([Goal(0.9, NATIVE)]))
        self.assertEqual(report.last_lines(said)[-1], "goals not measured: reads: all 1")
        self.assertEqual(report.status(said, check=True), report.STATUS_UNMEASURED)
        self.assertNotIn(report.STATUS_UNMEASURED, (0, 1, 2, report.STATUS_MISSED))
        self.assertNotIn(report.STATUS_MISSED, (0, 1, 2))

    def test_within_noise_is_named_and_not_missed(self):
        said = self.said(self.good(), self.noisy())
        self.assertEqual(report.last_lines(said)[-2:],
                         ["goals within noise: reads: hot (0.90 ±0.05; goal: ≥ 0.90 native)",
                          "goals: all measured, none missed"])
        self.assertEqual(report.status(said, check=True), 0)

    def test_what_only_leaves_out_is_not_measured(self):
        bench = cpu.Bench(cpu.arguments(["--build", "/nowhere", "--only", "random 4 KiB, mmap"]))
        for add in (bench.reads, bench.writes, bench.shared_with_devices, bench.names,
                    bench.device_counts):
            add()
        self.assertTrue(0 < len(bench.works) < len(bench.rows))
        self.assertEqual({verdict for _, _, verdict in self.said(*bench.rows)}, {UNMEASURED})

    def test_what_only_root_can_do_is_not_measured(self):
        works = {}
        for root in True, False:
            bench = cpu.Bench(cpu.arguments(["--build", "/nowhere"]))
            with unittest.mock.patch.object(cpu, "may_drop_caches", lambda root=root: root):
                bench.reads()
                bench.names()
            works[root] = {name for name, _ in bench.works}
            for row in bench.rows:
                if row.section + ", " + row.title in works[root]:
                    row.samples = {name: [100] * 3 for name in [NATIVE, OURS]}
            cold = [text for _, text, verdict in self.said(*bench.rows)
                    if "cold everywhere" in text and verdict == UNMEASURED]
            self.assertEqual(len(cold), 0 if root else 8)
        self.assertEqual(len(works[True] - works[False]), 8)

    def test_memory_says_the_same(self):
        Args = collections.namedtuple("Args", "quick full")
        bench = memory.Bench(Args(False, True))
        self.assertEqual({verdict for _, _, verdict in bench.say_goals()}, {UNMEASURED})
        for way in cpu.WAYS:
            for work in memory.GOALS:
                bench.files.append({"work": work, "system": way, "daemon": 0})
            bench.names_rows.append({"system": way, "daemon": memory.GOAL_NAME})
        self.assertEqual({verdict for _, _, verdict in bench.say_goals()}, {MET})
        bench.names_rows[0]["daemon"] += 1
        self.assertEqual(report.status(bench.say_goals(), check=True), report.STATUS_MISSED)

    def test_table_page_and_json_agree(self):
        rows = [self.good(), self.missed(), self.noisy()]
        columns = [NATIVE, OURS]
        table = report.table(rows, columns, cpu.NAMES, [], OURS)
        self.assertEqual([line.rsplit("native", 1)[1].strip() for line in table[2:]],
                         ["met", "missed: 0.85 ±0.00", "within noise: 0.90 ±0.05"])
        page = report.markdown(rows, columns, cpu.NAMES, [])
        self.assertEqual([line.split(" | ")[2] for line in page[3:]], ["0.95", "**0.85**", "*0.90*"])
        with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
            report.write_json(file.name, {}, rows + [row_of([Goal(0.9, NATIVE)])], [])
            out = json.load(file)
        self.assertEqual([row["goals"][0]["verdict"] for row in out["rows"]],
                         [MET, MISSED, NOISE, UNMEASURED])


class Plot(unittest.TestCase):
    def test_bar_and_mark_are_as_the_verdict_says(self):
        # The ratio of the medians to the best peer is 1.00, the median of the ratios 2.00.
        row = row_of([Goal(1.5, "ll")], native=[100, 100, 400], auto=[50, 100, 200],
                     ll=[25, 200, 100])
        (judged,) = row.judge([])
        self.assertEqual(judged.ratio[0], 2)
        bar = row.ratio(OURS, NATIVE)[0]
        self.assertAlmostEqual(bar / plot.goal_at(row, []), judged.ratio[0] / 1.5)

    def test_what_was_not_measured_has_no_mark(self):
        self.assertIsNone(plot.goal_at(row_of([Goal(1.5, "ll")], native=[100]), PEERS))


class Pairs(unittest.TestCase):
    """scripts/bench device: each row has a peer of its own."""

    def bench(self, *options):
        return device.Bench(device.arguments(["--build", "/nowhere", *options]))

    def row(self, theirs, ours, least=0.0, most=float("inf"), unit="time"):
        row = self.bench().row("section", "title", unit, least, most)
        for pair in zip(theirs, ours):
            row.add(device.pair(*pair))
        return row

    def test_less_is_better_where_the_goal_says_at_most(self):
        for ours, verdict in (300, MET), (301, MISSED):
            row = self.row([100] * 3, [ours] * 3, most=3)
            self.assertEqual(verdicts(row), [verdict])
            self.assertEqual(report.say_goals([row], [], pairs.NAMES),
                             [("section", "title (%.2f ±0.00; goal: ≤ 3.00 peer)" % (ours / 100), verdict)])

    def test_exactly_is_neither_more_nor_less(self):
        for moved, verdict in (4095, MISSED), (4096, MET), (8192, MISSED):
            self.assertEqual(verdicts(self.row([4096], [moved], 1, 1, "size")), [verdict])
        self.assertEqual(Goal(1, device.PEER, 1).text({}), "= 1.00 peer")

    def test_table_and_page_say_what_was_measured(self):
        rows = [self.row([2e6] * 3, [3e6] * 3, most=1.1), self.row([4096], [4096], 1, 1, "size")]
        table = report.pairs_table(rows, device.PEER, device.OURS)
        self.assertEqual([line.split() for line in table[2:]],
                         ["title 2 ms 3 ms 1.50 ±0.00 ≤ 1.10 missed".split(), "title 4 KiB 4 KiB 1.00 = 1.00 met".split()])
        page = report.pairs_markdown(rows, device.PEER, device.OURS)
        self.assertEqual(page[3:], ["| title | 2 ms | 3 ms | **1.50** | ≤ 1.10 |", "| title | 4 KiB | 4 KiB | 1.00 | = 1.00 |"])

    def test_values_have_their_units(self):
        for value, unit, text in ((750, "time", "750 ns"), (1.5e9, "time", "1.5 s"), (MIB, "size", "1 MiB"),
                                  (2048, "count", "2,048"), (26.17, "count", "26.2"), (1.756, "factor", "1.76"), (2e9, "bytes", "2.00 GB/s")):
            self.assertEqual(report.value_text(value, unit), text)

    def test_bars_of_what_is_met_are_right_of_the_line(self):
        facts = {"rounds": 1, "machine": MADE_UP_MACHINE}
        for row, where in ((self.row([1], [0.5], most=1), "met"), (self.row([1], [2], most=1), "missed"),
                           (self.row([1], [2], least=1), "met"), (self.row([1], [0.5], least=1), "missed")):
            lines = plot.pairs_script("/nowhere", [row], device.OURS, facts)
            at = lines.index("$%s << END" % where)
            left, right = (float(number) for number in lines[at + 1].split()[:2])
            self.assertEqual((left, right), (1, 2) if where == "met" else (0.5, 1))

    def test_nothing_at_all_can_be_a_goal(self):
        facts = {"rounds": 1, "machine": MADE_UP_MACHINE}
        for ours, verdict in (0, MET), (1, MISSED):
            row = self.row([4096], [ours], most=0)
            self.assertEqual(verdicts(row), [verdict])
            lines = plot.pairs_script("/nowhere", [row], device.OURS, facts)
            for name in MET, MISSED:
                self.assertEqual(lines[lines.index("$%s << END" % name) + 1] != "END", name == verdict)

    def added(self, *options):
        bench = self.bench(*options)
        for add in bench.parts():
            add()
        return bench

    def test_all_rows_have_a_work_and_only_leaves_the_others_out(self):
        bench, some = self.added(), self.added("--only", "64 devices")
        self.assertEqual((len(some.works), len(some.large_works), len(some.counts)), (0, 0, 1))
        self.assertEqual(len(some.rows), len(bench.rows))
        for what in ("acquire, write, 8 GiB", "release after read", "4096 pages changed", "XXH3", "latency of 30",
                     "cold everywhere", "25 %", "computing as long", "random 4 KiB", "10000000 steps", "two programs", "passed through",
                     "bytes a page and device, 8 GiB", "instructions; peer: 1 MiB, acquire, read, 8 GiB"):
            self.assertTrue(any(what in row.section + ", " + row.title for row in bench.rows), what)
        self.assertEqual({verdict for _, _, verdict in report.say_goals(bench.rows, [], pairs.NAMES)}, {UNMEASURED})

    def test_what_cannot_be_measured_is_named_and_is_not_met(self):
        bench = self.bench()
        row = bench.row("section", "title", "time", most=1)

        def refuse(_rnd):
            raise device.Lacking("valgrind is not installed")
        bench.work([row], refuse)
        bench.works[0][1](0)
        self.assertEqual(bench.missing, {"section, title": "valgrind is not installed"})
        self.assertEqual(verdicts(row), [UNMEASURED])
        self.assertTrue(bench.measured_all())
        another = bench.row("section", "another", "time", most=1)
        self.assertFalse(bench.measured_all())

        def fail(_rnd):
            raise Missing("does not mount")
        bench.work([another], fail)
        bench.works[1][1](0)
        self.assertFalse(bench.measured_all(), "a fault, not the machine's")

    def test_large_files_are_for_large_machines(self):
        bench = self.bench()
        bench.main = lambda: self.fail("too large")
        with unittest.mock.patch.object(device, "available", lambda: 8 * GIB):
            with self.assertRaisesRegex(Missing, "only 8 GiB of memory"):
                bench.mapping(8 * GIB)

    def test_of_several_counts_the_fewest_is_taken(self):
        with tempfile.TemporaryDirectory() as place:
            for n, (what, total) in enumerate([("acquire read", 120), ("acquire read", 100), ("release read", 7)]):
                with open(os.path.join(place, str(n)), "w") as file:
                    file.write("pid: 1\ndesc: Trigger: Client Request: %s\nevents: Ir\ntotals: %d\n" % (what, total))
            paths = [os.path.join(place, name) for name in os.listdir(place)]
            self.assertEqual(instructions.read_dumps(paths), {"acquire read": 100, "release read": 7})
        with self.assertRaisesRegex(Missing, "callgrind.h"):
            instructions.read_dumps([])


class Apps(unittest.TestCase):
    def bench(self, *options):
        bench = apps.Bench(apps.arguments(["--build", "/nowhere", *options]))
        for add in bench.sssp, bench.collage, bench.stitch:
            add()
        return bench

    def test_goals_are_those_of_neighbours(self):
        goals = {}
        for row in self.bench().rows:
            for goal in row.goals:
                goals[row.section.split(",")[0], row.title] = goal.least
        title = "%s %%, modelled; peer: copying the file"
        self.assertEqual({share: goals["sssp", title % share] for share in ("1", "25", "100")}, {"1": 8, "25": 3, "100": 0.95})
        self.assertEqual(sorted(least for (app, _), least in goals.items() if app == "collage"), [0.9, 3.4, 3.4, 6, 9])
        self.assertEqual([least for (app, _), least in goals.items() if app == "stitch"], [1.31])
        self.assertEqual(len(goals), 9)

    def test_only_leaves_out_works_and_a_program_that_is_not_there_is_named(self):
        bench = self.bench("--only", "stitch", "--smoke")
        self.assertEqual(len(bench.works), 1)
        with contextlib.redirect_stderr(io.StringIO()), tempfile.TemporaryDirectory() as bench.place:
            for _, work in bench.works:
                work(0)
        self.assertIn("was not built", " ".join(bench.missing.values()))
        self.assertFalse(any(row.is_measured() for row in bench.rows))

    def test_the_plot_has_the_papers_numbers_beside_ours(self):
        bench = self.bench()
        for row in bench.rows:
            row.samples = {apps.PEER: [10.0], apps.OURS: [25.0]}
        self.assertEqual(bench.bars(), [("collage, hot", 2.5, 9), ("collage, cold", 2.5, 6), ("stitch, end to end", 2.5, 1.31)])
        bench.speedups = {("gaia", apps.CLUSTERED, 25): [3, 5, 4], ("gaia", apps.CLUSTERED, 1): [9], ("copy", apps.CLUSTERED, 1): [1]}
        self.assertEqual(bench.lines(), [("gaiafs, weights neighbours", [(1, 9), (25, 4)])])
        facts = {"rounds": 1, "machine": MADE_UP_MACHINE}
        text = "\n".join(plot.apps_script("x.png", bench.lines(), bench.bars(), facts, 75, 8))
        for what in "up to 8 times", "as fast at 75", "1.310000", "9.000000":
            self.assertIn(what, text)


class Models(unittest.TestCase):
    def bench(self, *args):
        bench = models.Bench(models.arguments(["--build", "/nowhere", *args]))
        for add in bench.parts():
            add()
        return bench

    def test_all_rows_have_goals_and_a_work(self):
        bench = self.bench()
        self.assertTrue(all(row.goals for row in bench.rows))
        self.assertEqual((len(bench.counts), len(bench.works)), (3, 2))
        self.assertEqual(len(self.bench("--only", "pinned").counts), 1)

    def test_without_the_packages_it_says_what_makes_them(self):
        for python in "/nowhere/python", "/bin/false":
            bench = self.bench()
            bench.python = python
            with bench.stack, self.assertRaisesRegex(Missing, "scripts/setup"):
                bench.new_worker()


class RealData(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place, self.scratch = os.path.join(place.name, "data"), os.path.join(place.name, "scratch")
        os.mkdir(self.place)
        os.mkdir(self.scratch)

    def pages(self):
        """Of each file."""
        pages = []
        for path in real_data.files_of(self.place):
            with open(path, "rb") as file:
                data = file.read()
            pages.append([data[at:at + 4096].ljust(4096, b"\0") for at in range(0, len(data), 4096)])
            self.assertEqual(len(pages[-1]), real_data.pages_of(path))
        return pages

    def test_layers_that_are_frozen_are_the_same_in_all_checkpoints(self):
        real_data.checkpoints(self.place, self.scratch, MIB, 3, packed=False)
        files = self.pages()
        self.assertEqual(len(files), 3)
        shared = set(files[0]) & set(files[1]) & set(files[2])
        self.assertAlmostEqual(len(shared) / len(files[0]), 0.8, delta=0.05)
        self.assertEqual(len(set(sum(files, []))), len(shared) + sum(len(file) - len(shared) for file in files))

    def test_where_the_header_is_longer_no_page_of_a_packed_checkpoint_is_the_same(self):
        real_data.checkpoints(self.place, self.scratch, MIB, 3, packed=True)
        first, longer, third = (set(pages) for pages in self.pages())
        self.assertFalse(first & longer)
        self.assertAlmostEqual(len(first & third) / len(first), 0.8, delta=0.05)

    def test_an_edit_changes_a_byte_and_adds_a_file(self):
        os.makedirs(os.path.join(self.place, "dir"))
        with open(os.path.join(self.place, "dir", "name"), "wb") as file:
            file.write(b"x" * 640)
        commands = real_data.edits(self.scratch, random.Random(1), self.place, ["/dir/name"])
        changed, added = (os.path.join(self.scratch, name) for name in ("changed-0", "added"))
        self.assertEqual(commands, ["cd /dir", "rm name", 'write "%s" name' % changed, "cd /", 'write "%s" added' % added])
        with open(changed, "rb") as file:
            data = file.read()
        self.assertEqual((len(data), data.count(b"x"), os.stat(added).st_size), (640, 639, 10))

    @unittest.skipUnless(shutil.which("mkfs.ext4") and shutil.which("debugfs"), "no e2fsprogs")
    def test_images_differ_where_they_were_edited(self):
        real_data.disk_images(self.place, self.scratch, 4 * MIB, 3)
        files = self.pages()
        for image in files:
            self.assertEqual(len(image), 1024)
        for one, other in (0, 1), (1, 2), (0, 2):
            differ = sum(a != b for a, b in zip(files[one], files[other]))
            self.assertTrue(8 <= differ <= 200, differ)


class Ksm(unittest.TestCase):
    """Its settings are files in a directory of our own: so nothing is merged."""

    SETTINGS = {"run": "0", "pages_shared": "0", "pages_sharing": "0", "ksm_zero_pages": "0", "full_scans": "0", "use_zero_pages": "0",
                "advisor_mode": "none [scan-time]", "sleep_millisecs": "20", "pages_to_scan": "100"}

    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.root, self.data = os.path.join(place.name, "ksm"), os.path.join(place.name, "data")
        for path in self.root, self.data:
            os.mkdir(path)
        for name, value in self.SETTINGS.items():
            ksm.write(self.root, name, value)
        with open(os.path.join(self.data, "file"), "wb") as file:
            file.write(b"x" * 5000)
        self.before = ksm.settings(self.root)

    def check_given_back(self):
        self.assertEqual(ksm.settings(self.root), self.before)
        self.assertEqual(ksm.read(self.root, "run"), "0")

    def test_it_is_not_taken_from_others(self):
        self.assertIsNone(ksm.why_not(self.root))
        self.assertIn("no KSM", ksm.why_not(os.path.join(self.root, "nowhere")))
        with unittest.mock.patch("os.access", return_value=False):
            self.assertIn("only root", ksm.why_not(self.root))
        for name, value in ("run", "1"), ("run", "2"), ("pages_shared", "3"):
            ksm.write(self.root, name, value)
            self.assertIn("used by others", ksm.why_not(self.root))
            with self.assertRaisesRegex(ksm.Refused, "used by others"), ksm.borrowed(self.root):
                self.fail("borrowed")
            self.assertEqual((ksm.read(self.root, name), ksm.settings(self.root)), (value, self.before))
            ksm.write(self.root, name, "0")
        with open(os.path.join(self.root, "run")) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            with self.assertRaisesRegex(ksm.Refused, "another bench"), ksm.borrowed(self.root):
                self.fail("borrowed")

    def test_zeros_are_merged_with_the_kernels_only_where_that_is_counted(self):
        self.assertIn("use_zero_pages", self.before)
        os.unlink(os.path.join(self.root, "ksm_zero_pages"))
        self.assertNotIn("use_zero_pages", ksm.settings(self.root))

    def run_it(self):
        """Started, when KSM runs."""
        child = subprocess.Popen([sys.executable, "-B", ksm.__file__, self.data, self.root], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + 60
        while ksm.read(self.root, "run") != "1" and child.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(ksm.read(self.root, "pages_to_scan"), ksm.CHANGED["pages_to_scan"])
        return child

    @unittest.skipUnless(os.path.isdir(ksm.SETTINGS), "this kernel has no KSM")
    def test_it_is_given_back_whatever_happens(self):
        for end in (lambda child: child.stdin.close(), lambda child: child.terminate(), lambda child: child.send_signal(signal.SIGINT),
                    lambda child: ksm.write(self.root, "full_scans", "no number")):
            with self.run_it() as child:
                end(child)
                self.assertNotEqual(child.wait(60), 0)
                self.assertEqual(child.stdout.read(), "")
            self.check_given_back()
            ksm.write(self.root, "full_scans", "0")

    @unittest.skipUnless(os.path.isdir(ksm.SETTINGS), "this kernel has no KSM")
    def test_what_is_shared_and_zeros_are_merged(self):
        with self.run_it() as child:
            for name, value in ("pages_sharing", "5"), ("ksm_zero_pages", "2"), ("full_scans", "3"):
                ksm.write(self.root, name, value)
            self.assertEqual(child.wait(60), 0)
            self.assertEqual(child.stdout.read().split()[:2], ["2", "7"])
        self.check_given_back()

    def test_the_other_process_gives_it_back_if_this_one_is_killed(self):
        ksm.write(self.root, "run", "1")
        ksm.write(self.root, "sleep_millisecs", "0")
        ksm.restore(self.before, self.root)
        self.check_given_back()


class Tiers(unittest.TestCase):
    def bench(self, *options):
        bench = tiers.Bench(tiers.arguments(["--build", "/nowhere", "--smoke", *options]))
        bench.real_data()
        return bench

    def test_of_real_data_the_goal_is_what_home_has_when_all_was_looked_at(self):
        bench = self.bench()
        self.assertEqual((len(bench.rows), len(bench.data), len(bench.counts)), (20, 8, 0))
        self.assertEqual([row.title.split(": ")[1] for row in bench.rows if row.goals], ["pages a frame, read again"] * 4)
        self.assertEqual(len(self.bench("--only", "packed").data), 2)

    def test_real_data_comes_after_the_first_round_of_what_has_goals(self):
        bench, done = tiers.Bench(tiers.arguments(["--build", "/nowhere", "--rounds", "4"])), []

        def works(name):
            return [(name, lambda rnd: done.append((name, rnd)))]
        for name in ("working_sets", "batches", "equal_pages", "shared_places", "real_data", "nothing_to_gain", "instructions"):
            setattr(bench, name, lambda: None)
        bench.works, bench.counts, bench.data, bench.curves = works("work"), works("count"), works("data"), works("curve")
        self.assertEqual(bench.measure(), 4)
        self.assertEqual(done, [("count", 0), ("work", 0), ("data", 0), ("work", 1), ("work", 2), ("curve", 0), ("work", 3)])

    def test_the_figures_have_the_papers_numbers_beside_what_was_measured(self):
        bench = tiers.Bench(tiers.arguments(["--build", "/nowhere", "--quick"]))
        for add in bench.working_sets, bench.batches, bench.equal_pages:
            add()
        self.assertEqual(bench.figures(), ([], None, [], []))
        at = {key: n + 1 for n, key in enumerate(bench.shown)}
        for key, row in bench.shown.items():
            if key != ("working set", tiers.PAPER, "zipf", 1.0):  # which could not be measured
                row.samples = {tiers.PEER: [100.0], tiers.OURS: [100.0 * at[key]]}
        sets, batches, by_copies, by_updates = bench.figures()
        self.assertEqual([name for name, _ in sets[0][1]], ["zipf,\n0.25", "uniform,\n0.25", "uniform,\n1"])
        self.assertEqual(sets[1], ("PCIe 5", [("%s,\n%g" % (how, share), at["working set", "PCIe 5", how, share])
                                             for how in ("zipf", "uniform") for share in (0.25, 1.0)]))
        self.assertEqual(batches, at["batches",])
        self.assertEqual(by_copies, [(title, [(copies, at[kind, copies, 0]) for copies in (1, 2, 4, 6, 8, 10)])
                                     for title, kind in (("read from storage", "equal reads"), ("time", "equal time"))])
        self.assertEqual([points for _, points in by_updates],
                         [[(share, at["equal time", copies, share]) for share in (0, 16, 32, 64)] for copies in (1, 4)])
        text = "\n".join(plot.tiers_script("x.png", sets, batches, by_copies, by_updates, {"rounds": 1, "machine": MADE_UP_MACHINE}, tiers.PAPERS))
        # The bar that is missing leaves its place empty.
        self.assertIn("$bus0 << END\n0.000000 %f\n2.000000 %f\n3.000000 %f\nEND" % tuple(ratio for _, ratio in sets[0][1]), text)
        for what in "83 to 90 % less", "first 0.17 ", "first 0.1 ", "0.130000", "1.000000 1.050000", "4.000000 0.190000", "off above 32 to 64 %":
            self.assertIn(what, text)
        self.assertEqual(plot.draw_tiers("/nowhere/x.png", [], None, [], [], {}, tiers.PAPERS), [])

    def test_without_ksm_it_says_why(self):
        with unittest.mock.patch.object(ksm, "why_not", lambda: "this kernel has no KSM"):
            with self.assertRaisesRegex(pairs.Lacking, "no KSM"):
                tiers.Bench.merge_by_ksm("/nowhere")

    def test_what_cannot_be_made_is_not_tried_again(self):
        bench, tried = self.bench(), []

        def make(*args):
            tried.append(args)
            raise pairs.Lacking("mkfs.ext4 is not installed")
        with tempfile.TemporaryDirectory() as bench.place:
            for _ in range(2):
                with self.assertRaisesRegex(Missing, "mkfs"):
                    bench.directory("images", make)
        self.assertEqual(len(tried), 1)


class Umap(unittest.TestCase):
    def bench(self, *args, limited=True):
        bench = umap.Bench(umap.arguments(["--build", "/nowhere", *args]))
        bench.limited = limited
        bench.add_rows()
        return bench

    def judged(self, bench):
        """{title: verdicts}, if gaiafs were as fast as five times all others."""
        for row in bench.rows:
            if not row.section.startswith("a gaiafs file"):
                row.samples = {name: [5.0 if name == umap.OURS else 1.0] * 3 for name in umap.COLUMNS}
        titles = {}
        for section, text, verdict in report.say_goals(bench.rows, [], umap.NAMES):
            titles.setdefault((section, text.split(" (")[0]), []).append(verdict)
        return titles

    def test_without_a_limit_nothing_larger_than_memory_is_measured(self):
        for limited, expected in (True, {MET}), (False, {UNMEASURED}):
            judged = self.judged(self.bench(limited=limited))
            self.assertEqual({verdict for (section, _), verdicts in judged.items() for verdict in verdicts
                              if section == umap.LARGE}, expected)
            self.assertEqual({verdict for (section, _), verdicts in judged.items() for verdict in verdicts
                              if section.startswith("in the page cache")}, {MET})

    def test_what_is_not_built_is_missing_and_not_met(self):
        bench = self.bench("--only", "the device host")
        ((_, measure),) = bench.works
        measure(0)
        self.assertIn("gaiafs is not built", "".join(bench.missing.values()))
        self.assertEqual([verdicts for (section, _), verdicts in self.judged(bench).items()
                          if section.startswith("a gaiafs file")], [[UNMEASURED]])

    def test_the_peer_is_at_its_best_page_size(self):
        rates = {4096: 1, 65536: 3, 1 << 20: 2}
        bench = self.bench()
        self.assertEqual(bench.best(umap.LLNL, list(rates), 4096, rates.get), 3)
        self.assertEqual(bench.best(umap.OURS, list(rates), 4096, rates.get), 1)

    def test_there_is_one_peer(self):
        self.assertEqual(umap.arguments(["--build", "b", "--peer", "umap=/src"]).peer, "/src")
        for peer in "umap", "umap=", "vmap=/src":
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
                umap.arguments(["--build", "b", "--peer", peer])

    def test_without_its_source_the_peer_is_missing(self):
        for args in [], ["--peer", "umap=/nowhere"]:
            bench = self.bench(*args)
            bench.build_peer()
            self.assertIsNone(bench.peer)
            self.assertIn(umap.NAMES[umap.LLNL], bench.missing)

    def test_where_there_can_be_no_memory_limit_it_says_why(self):
        with unittest.mock.patch("memory_limit.parents", return_value=iter([("/nowhere", "memory.max")])):
            with self.assertRaisesRegex(Missing, "/nowhere: No such file"):
                MemoryLimit(MIB)
        with unittest.mock.patch("memory_limit.parents", return_value=iter([])):
            with self.assertRaisesRegex(Missing, "no control group"):
                MemoryLimit(MIB)


class CommandLine(unittest.TestCase):
    def run_with(self, *args):
        return subprocess.run([sys.executable, "-B", cpu.__file__, "--build", "/nowhere",
                               "--only", "there is no such work", *args],
                              capture_output=True, text=True, timeout=60)

    def test_out_is_made_before_anything_is_measured(self):
        with tempfile.TemporaryDirectory() as place:
            out = os.path.join(place, "a", "b")
            done = self.run_with("--out", out, "--check", "--dir", place)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("there is no such work", done.stderr)
            self.assertTrue(os.path.isdir(out))
            self.assertEqual(os.listdir(place), ["a"])  # nor is anything left behind
            with open(os.path.join(place, "file"), "w"):
                pass
            self.assertEqual(self.run_with("--out", os.path.join(place, "file")).returncode, 2)

    def test_help_says_what_the_exit_status_means(self):
        root = os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3)
        said = subprocess.run([os.path.join(root, "scripts", "bench"), "--help"],
                              capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertIn("%d if goals were missed" % report.STATUS_MISSED, said)
        self.assertIn("%d if none was" % report.STATUS_UNMEASURED, said)


if __name__ == "__main__":
    unittest.main()
