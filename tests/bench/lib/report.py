"""The table on the terminal, the same as JSON and for a page, and what is said of the goals."""

import argparse
import glob
import json
import math
import os
import platform
import subprocess
import time

from rounds import MET, MISSED, NOISE, SPREAD_FROM, UNMEASURED

# The exit status with --check; 1 is a failure of the run itself, 2 of the command line.
STATUS_MISSED, STATUS_UNMEASURED = 3, 4

LEGEND = ("Goals are met, or missed, if all of ratio ± spread is on that side, and within noise if they "
          "lie in between.\nWithout ± (fewer than %d samples) the spread is not known: met and missed are "
          "the median's alone." % SPREAD_FROM)


def time_text(ns):
    for least, name in (1e9, "s"), (1e6, "ms"), (1e3, "µs"):
        if ns >= least:
            return "%.3g %s" % (ns / least, name) if ns < 1000 * least else "%.0f %s" % (ns / least, name)
    return "%.0f ns" % ns


def size_text(size):
    for least, name in (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"):
        if size >= least:
            return "%.4g %s" % (size / least, name)
    return "%.0f" % size


def value_text(value, unit):
    """Of a row of pairs: a rate, or what it is said to be."""
    if unit == "time":
        return time_text(value)
    if unit == "size":
        return size_text(value)
    if unit == "count":
        return format(value, ",.0f") if value >= 100 or value == int(value) else "%.1f" % value
    if unit == "factor":
        return "%.2f" % value
    return rate_text(value, unit)


def rate_text(rate, unit):
    if unit == "bytes":
        return "%.2f GB/s" % (rate / 1e9) if rate >= 1e9 else "%.0f MB/s" % (rate / 1e6)
    return "%.0f k/s" % (rate / 1e3) if rate >= 1e4 else "%.0f /s" % rate


def ratio_text(ratio):
    if not ratio:
        return "-"
    digits = 2 if ratio[0] >= 0.1 else 3
    text = "%.*f" % (digits, ratio[0])
    return text if ratio[1] is None else "%s ±%.*f" % (text, digits, ratio[1])


def results_dir(path):
    """A directory of the command line: made before anything is measured, as that would be lost."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return path


def gives_up_idle_pages():
    """Whether DAMON runs, which as a rule reclaims unused pages, also of the page cache. None: not known."""
    try:
        for state in glob.glob("/sys/kernel/mm/damon/admin/kdamonds/*/state"):
            with open(state) as file:
                if file.read().strip() == "on":
                    return True
    except OSError:
        return None  # only root may look
    return False


def machine_of(place):
    def first(path, key):
        with open(path) as file:
            for line in file:
                if line.startswith(key):
                    return line.split(":", 1)[1].strip()
        return "?"

    longest, kind = "", "?"
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields, rest = line.split(" - ", 1)
            at = fields.split()[4]
            if os.path.commonpath([at, place]) == at and len(at) >= len(longest):
                longest, kind = at, rest.split()[0]
    return {
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory_gib": round(int(first("/proc/meminfo", "MemTotal").split()[0]) / (1 << 20), 1),
        "kernel": platform.release(),
        "file_system": kind,
        "damon": gives_up_idle_pages(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
    }


def machine_text(facts):
    machine = facts["machine"]
    return ("%(cpu)s, %(cores)d cores, %(memory_gib)s GiB, Linux %(kernel)s, %(file_system)s" % machine +
            (", DAMON at work" if machine["damon"] else "") + "; load before: %.1f" % machine["load_before"][0])


def versions_text(facts):
    return "%(gaiafs)s; peers: the examples of libfuse %(peers_libfuse)s" % facts["versions"]


def line_of(*command):
    """The first line that a program prints; None where it cannot be had."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20,
                              stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[0].strip() if lines and not done.returncode else None


def peers_libfuse(build):
    """The version of the libfuse that the peers are of, as scripts/bench says."""
    try:
        with open(os.path.join(build, "peers", "version")) as file:
            return file.read().strip()
    except OSError:
        return None


def versions(build):
    """What is measured."""
    here = os.path.dirname(os.path.abspath(__file__))
    gaiafs = line_of(os.path.join(build, "daemon", "gaiafs"), "--version")
    return {
        "commit": line_of("git", "-C", here, "describe", "--always", "--dirty"),
        "gaiafs": gaiafs,  # and its libfuse
        "peers_libfuse": peers_libfuse(build),
    }


def verdict_text(row, peers, names):
    """"met", or which goal is not: its ratio or, of several subjects, whose."""
    said = {}
    for _, subject, ratio, verdict in row.judge(peers):
        if verdict != MET:
            what = names[subject] if len(row.subjects) > 1 else ratio and ratio_text(ratio)
            said.setdefault(verdict, []).append(what or "")
    texts = []
    for verdict, whats in said.items():
        whats = ", ".join(dict.fromkeys(filter(None, whats)))
        texts.append("%s: %s" % (verdict, whats) if whats else verdict)
    return "; ".join(texts) or (MET if row.goals else "")


def table(rows, columns, names, peers, subject):
    """Lines. @columns: systems in order, the first of which is the base of all ratios."""
    base, others = columns[0], columns[1:]
    wide = max(len(row.title) for row in rows) + 2
    heads = [names[name] for name in others]
    lines = ["%-*s %10s " % (wide, "", names[base]) + " ".join("%12s" % h for h in heads) +
             (" %12s" % "to best peer" if peers else "") + "  %-26s %s" % ("goal", "")]
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append(section)
        cells = "".join(" %12s" % ratio_text(row.ratio(name, base)) for name in others)
        if peers:
            best = row.best(peers)
            cells += " %12s" % ratio_text(best and row.ratio(subject, best))
        goals = ", ".join(goal.text(names) for goal in row.goals)
        lines.append("  %-*s %10s%s  %-26s %s" % (wide - 2, row.title,
                                                  rate_text(row.median(base), row.unit), cells,
                                                  goals, verdict_text(row, peers, names)))
    return [line.rstrip() for line in lines]


def pairs_table(rows, peer, subject):
    """Lines. Each row has a peer of its own: both values, and how many times the peer's ours is."""
    if not rows:
        return []
    wide = max(len(row.title) for row in rows) + 2
    lines = ["%-*s %10s %10s %14s  %-14s" % (wide, "", "peer", subject, "ratio", "goal")]
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append(section)
        goals = ", ".join(goal.text({peer: ""}).strip() for goal in row.goals)
        lines.append("  %-*s %10s %10s %14s  %-14s %s" % (
            wide - 2, row.title, value_text(row.median(peer), row.unit), value_text(row.median(subject), row.unit),
            ratio_text(row.ratio(subject, peer)), goals,
            "; ".join(judged.verdict for judged in row.judge([]))))
    return [line.rstrip() for line in lines]


def pairs_markdown(rows, peer, subject):
    """The same for a page: what misses its goal in bold, what may in italics."""
    lines = ["| | peer | %s | ratio | goal |" % subject, "| --- | ---: | ---: | ---: | --- |"]
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append("| **%s** | | | | |" % section)
        verdicts = {judged.verdict for judged in row.judge([])}
        mark = "**" if MISSED in verdicts else "*" if NOISE in verdicts else ""
        lines.append("| %s | %s | %s | %s | %s |" % (
            row.title, value_text(row.median(peer), row.unit), value_text(row.median(subject), row.unit),
            mark + ratio_text(row.ratio(subject, peer)).split()[0] + mark,
            ", ".join(goal.text({peer: ""}).strip() for goal in row.goals)))
    return lines


def say_goals(rows, peers, names):
    """[(section, text, verdict)] of every goal."""
    said = []
    for row in rows:
        for goal, subject, ratio, verdict in row.judge(peers):
            text = row.title
            if len(row.subjects) > 1:
                text += ", " + names[subject]
            if ratio:
                text += " (%s; goal: %s)" % (ratio_text(ratio), goal.text(names))
            said.append((row.section, text, verdict))
    return said


def named(said, verdict):
    """All of one verdict in a line; a section of which there is nothing else is named once."""
    texts = []
    for section in dict.fromkeys(section for section, _, _ in said):
        mine = [text for at, text, is_ in said if (at, is_) == (section, verdict)]
        if verdict == UNMEASURED and len(mine) == sum(at == section for at, _, _ in said):
            mine = ["all %d" % len(mine)]
        if mine:
            texts.append("%s: %s" % (section, ", ".join(dict.fromkeys(mine))))
    return "; ".join(texts)


def last_lines(said):
    """What became of the goals; the last line says which were not met."""
    count = {verdict: sum(is_ == verdict for _, _, is_ in said)
             for verdict in (MET, NOISE, MISSED, UNMEASURED)}
    lines = ["goals: " + ", ".join("%d %s" % (n, verdict) for verdict, n in count.items() if n)]
    if count[NOISE]:
        lines.append("goals within noise: " + named(said, NOISE))
    last = []
    if count[MISSED]:
        last.append("goals missed: " + named(said, MISSED))
    if count[UNMEASURED]:
        last.append("goals not measured: " + named(said, UNMEASURED))
    return lines + ([" | ".join(last)] if last else ["goals: all measured, none missed"])


def status(said, check):
    verdicts = {verdict for _, _, verdict in said}
    if not check:
        return 0
    if MISSED in verdicts:
        return STATUS_MISSED
    return STATUS_UNMEASURED if UNMEASURED in verdicts else 0


JSON_UNITS = {"bytes": "bytes/s", "files": "1/s", "time": "ns", "size": "bytes", "count": "1", "factor": "1"}


def write_json(path, facts, rows, peers):
    out = dict(facts, date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), rows=[])
    for row in rows:
        ratios = {name: row.ratio(name, row.base) for name in row.samples if name != row.base}
        out["rows"].append({
            "section": row.section, "title": row.title,
            "unit": JSON_UNITS[row.unit], "base": row.base,
            "samples": row.samples,
            "ratios": {name: dict(zip(("median", "spread"), ratio))
                       for name, ratio in ratios.items() if ratio},
            "goals": [{"least": goal.least or None, "most": goal.most if goal.most < math.inf else None,
                       "against": goal.against, "subject": subject,
                       "ratio": ratio and ratio[0], "spread": ratio and ratio[1],
                       "verdict": verdict}
                      for goal, subject, ratio, verdict in row.judge(peers)],
        })
    with open(path, "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


def markdown(rows, columns, names, peers):
    """The table for a page: without spreads, what misses its goal in bold, what may in italics."""
    base, others = columns[0], columns[1:]
    lines = ["| | %s | %s | goal |" % (names[base], " | ".join(names[name] for name in others)),
             "| --- |" + " ---: |" * len(columns) + " --- |"]
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append("| **%s** |%s" % (section, " |" * (len(columns) + 1)))
        cells = [rate_text(row.median(base), row.unit)]
        judged = {(subject, verdict) for _, subject, _, verdict in row.judge(peers)}
        for name in others:
            mark = "**" if (name, MISSED) in judged else "*" if (name, NOISE) in judged else ""
            cells.append(mark + ratio_text(row.ratio(name, base)).split()[0] + mark)
        goals = ", ".join(goal.text(names) for goal in row.goals)
        lines.append("| %s | %s | %s |" % (row.title, " | ".join(cells), goals))
    return lines
