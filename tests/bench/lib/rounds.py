"""Rounds in which everything is measured once, what they say together, and the goals."""

import statistics
import sys
import time


class Goal:
    """The subject's rate is to be at least @least times that of @against.

    @against: a system's name, or "best peer". @noise: a slope within the spread is none.
    """

    def __init__(self, least, against, noise=False):
        self.least, self.against, self.noise = least, against, noise

    def text(self, names):
        if self.noise:
            return "no slope"
        return "≥ %.2f %s" % (self.least, names.get(self.against, self.against))


class Row:
    """A line of the table: one work, measured on several systems."""

    def __init__(self, section, title, unit, base, goals=(), subjects=()):
        self.section, self.title, self.unit, self.base = section, title, unit, base
        self.goals, self.subjects = goals, subjects
        self.samples = {}  # system's name: a rate for each round

    def add(self, rates):
        for name, rate in rates.items():
            self.samples.setdefault(name, []).append(rate)

    def median(self, name):
        return statistics.median(self.samples[name])

    def ratio(self, name, against):
        """(median, half the distance of the quartiles) of the rounds' ratios; None without both."""
        if name not in self.samples or against not in self.samples:
            return None
        ratios = [a / b for a, b in zip(self.samples[name], self.samples[against])]
        if len(ratios) == 1:
            return ratios[0], 0.0
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return middle, (high - low) / 2

    def best(self, names):
        there = [name for name in names if name in self.samples]
        return max(there, key=self.median) if there else None

    def judge(self, peers):
        """[(goal, subject, (median, spread) or None, met)]; None: nobody to compare with."""
        verdicts = []
        for subject in self.subjects:
            for goal in self.goals:
                against = self.best(peers) if goal.against == "best peer" else goal.against
                ratio = self.ratio(subject, against)
                met = ratio is None or ratio[0] >= goal.least
                if goal.noise and ratio:
                    met = met or sum(ratio) >= 1
                verdicts.append((goal, subject, ratio, met))
        return verdicts


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


def run_rounds(works, most, seconds, progress):
    """
    Each of @works is a function (round -> None) with a title. At most @most rounds; where @seconds is
    given, as many as fit into them from @progress.start, and at least one. Returns how many there were.
    """
    start = time.monotonic()
    for done in range(most):
        now = time.monotonic()
        if seconds and done and now + (now - start) / done > progress.start + seconds:
            return done
        of = "" if seconds else " of %d" % most
        for n, (title, work) in enumerate(works):
            progress.say("round %d%s, %d of %d: %s" % (done + 1, of, n + 1, len(works), title))
            work(done)
    return most
