"""Rounds in which everything is measured once, what they say together, and the goals."""

import collections
import math
import statistics
import sys
import time

MET, MISSED, NOISE, UNMEASURED = "met", "missed", "within noise", "not measured"
BEST_PEER = "best peer"
SPREAD_FROM = 3  # so many samples have a spread

# subject: a system's name; ratio: (median, spread) or None; verdict: one of those above.
Judged = collections.namedtuple("Judged", "goal subject ratio verdict")


class Goal:
    """
    The subject's rate is to be at least @least times that of @against, a system's name or BEST_PEER,
    and at most @most times.
    """

    def __init__(self, least, against, most=math.inf):
        self.least, self.against, self.most = least, against, most

    def text(self, names):
        if self.least == self.most:
            return "= %.2f %s" % (self.least, names.get(self.against, self.against))
        if self.most < math.inf and self.least:
            return "no slope: %.2f to %.2f" % (self.least, self.most)
        if self.most < math.inf:
            return "≤ %.2f %s" % (self.most, names.get(self.against, self.against))
        return "≥ %.2f %s" % (self.least, names.get(self.against, self.against))

    def verdict(self, ratio):
        """Known only if the whole of median ± spread says the same."""
        if not ratio:
            return UNMEASURED
        median, spread = ratio
        low, high = max(median - (spread or 0), 0), median + (spread or 0)
        if low >= self.least and high <= self.most:
            return MET
        return MISSED if high < self.least or low > self.most else NOISE


class Row:
    """A line of the table: one work, measured on several systems."""

    def __init__(self, section, title, unit, base, goals=(), subjects=()):
        self.section, self.title, self.unit, self.base = section, title, unit, base
        self.goals, self.subjects = goals, subjects
        self.samples = {}  # system's name: a rate for each time that all were measured

    def add(self, rates):
        for name, rate in rates.items():
            self.samples.setdefault(name, []).append(rate)

    def is_measured(self):
        return self.base in self.samples

    def median(self, name):
        return statistics.median(self.samples[name])

    def ratio(self, name, against):
        """
        (median, half the distance of the quartiles) of the samples' ratios, the latter None of fewer
        than SPREAD_FROM; None without both systems.
        """
        if name not in self.samples or against not in self.samples:
            return None
        ratios = [a / b for a, b in zip(self.samples[name], self.samples[against])]
        if len(ratios) < SPREAD_FROM:
            return statistics.median(ratios), None
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return middle, (high - low) / 2

    def best(self, names):
        there = [name for name in names if name in self.samples]
        return max(there, key=self.median) if there else None

    def judge(self, peers):
        """Every goal for every subject. @peers: all that there should be."""
        judged = []
        for subject in self.subjects:
            for goal in self.goals:
                against = self.best(peers) if goal.against == BEST_PEER else goal.against
                ratio = self.ratio(subject, against)
                verdict = goal.verdict(ratio)
                # Who is missing might have been better than the best.
                if goal.against == BEST_PEER and verdict != MISSED and \
                        any(name not in self.samples for name in peers):
                    verdict = UNMEASURED
                judged.append(Judged(goal, subject, ratio, verdict))
        return judged


def turn(systems, rnd):
    """
    The order in a round. Each odd one is that before it reversed, so that two have every system in
    the same place on average; and the pairs are rows of a Williams square: in as many rounds
    as there are systems, or twice as many, each comes right after each other equally often.
    """
    zigzag = [(n + 1) // 2 * (1 if n % 2 else -1) for n in range(len(systems))]  # 0, 1, -1, 2, ...
    order = [systems[(at + rnd // 2) % len(systems)] for at in zigzag]
    return order[::-1] if rnd % 2 else order


class Progress:
    """One line on the terminal that is written over; nothing where there is no terminal."""

    def __init__(self):
        self.shown = sys.stderr.isatty()
        self.start = time.monotonic()

    def say(self, text):
        if self.shown:
            line = "bench: %4d s  %s" % (time.monotonic() - self.start, text)
            sys.stderr.write("\r\033[K" + line[:110])
            sys.stderr.flush()

    def end(self):
        if self.shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class TimeLimit:
    """
    @seconds from now, 0 for none. What is about to start is thought to take as long as it took at
    most so far or, if it is the first time, @guess seconds (None: as long as anything did).
    """

    def __init__(self, seconds, clock=time.monotonic, guess=None):
        self.clock = clock
        self.guess = guess
        self.end = clock() + seconds if seconds else math.inf
        self.took = {}

    def allows(self, what):
        guess = max(self.took.values(), default=0) if self.guess is None else self.guess
        expected = self.took.get(what, guess)
        return self.clock() + expected <= self.end

    def time(self, what, work, *args):
        start = self.clock()
        work(*args)
        self.took[what] = max(self.took.get(what, 0), self.clock() - start)


def run_rounds(works, most, limit, progress, before=0):
    """
    Each of @works is a function (round -> None) with a title. At most @most rounds, after @before others, and of those after
    the first only what is expected to fit whole into @limit; should it not, what was measured stays.
    Returns how many are whole, and the titles of the works that the last one lacks.
    """
    for done in range(most):
        if before + done and not limit.allows("round"):
            return done, []
        start = limit.clock()
        for n, (title, work) in enumerate(works):
            if not limit.allows(title):
                return done, [title for title, _ in works[n:]]
            progress.say("round %d of %d, %d of %d: %s" % (before + done + 1, before + most, n + 1, len(works), title))
            limit.time(title, work, before + done)
        limit.took["round"] = limit.clock() - start
    return most, []
