"""The table on the terminal, and the same as JSON."""

import argparse
import json
import os
import platform
import time


def rate_text(rate, unit):
    if unit == "bytes":
        return "%.2f GB/s" % (rate / 1e9) if rate >= 1e9 else "%.0f MB/s" % (rate / 1e6)
    return "%.0f k/s" % (rate / 1e3) if rate >= 1e4 else "%.0f /s" % rate


def ratio_text(ratio):
    if not ratio:
        return "-"
    return ("%.2f ±%.2f" if ratio[0] >= 0.1 else "%.3f ±%.3f") % ratio


def results_dir(path):
    """Of the command line: made before anything is measured that it would be too late for."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return path


def machine(place):
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
        "load_before": os.getloadavg()[0],
    }


def verdict_text(row, peers):
    said = []
    for _, subject, ratio, met in row.judge(peers):
        if not ratio:
            said.append("no peer")
        elif not met:
            said.append("%.2f" % ratio[0])
    if not row.goals:
        return ""
    return "missed: " + ", ".join(said) if any(t != "no peer" for t in said) else \
        "no peer" if said else "met"


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
                                                  goals, verdict_text(row, peers)))
    return [line.rstrip() for line in lines]


def missed(rows, peers):
    """One short text for each goal that is not met."""
    texts = []
    for row in rows:
        for goal, subject, ratio, met in row.judge(peers):
            if not met:
                texts.append("%s, %s (%.2f, not %.2f)" % (row.section, row.title, ratio[0],
                                                          goal.least))
    return texts


def write_json(path, facts, rows, peers):
    out = dict(facts, date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), rows=[])
    for row in rows:
        out["rows"].append({
            "section": row.section, "title": row.title,
            "unit": "bytes/s" if row.unit == "bytes" else "1/s", "base": row.base,
            "samples": row.samples,
            "ratios": {name: dict(zip(("median", "spread"), row.ratio(name, row.base)))
                       for name in row.samples if name != row.base},
            "goals": [{"least": goal.least, "against": goal.against, "subject": subject,
                       "ratio": ratio and ratio[0], "spread": ratio and ratio[1],
                       "met": met if ratio else None}
                      for goal, subject, ratio, met in row.judge(peers)],
        })
    with open(path, "w") as file:
        json.dump(out, file, indent=1)
        file.write("\n")


def write_markdown(path, rows, columns, names, peers):
    """The table for a page: without spreads, what misses its goal in bold."""
    base, others = columns[0], columns[1:]
    lines = ["| | %s | %s | goal |" % (names[base], " | ".join(names[name] for name in others)),
             "| --- |" + " ---: |" * len(columns) + " --- |"]
    section = None
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append("| **%s** |%s" % (section, " |" * (len(columns) + 1)))
        cells = [rate_text(row.median(base), row.unit)]
        missed = {subject for _, subject, _, met in row.judge(peers) if not met}
        for name in others:
            text = ratio_text(row.ratio(name, base)).split()[0]
            cells.append("**%s**" % text if name in missed else text)
        goals = ", ".join(goal.text(names) for goal in row.goals)
        lines.append("| %s | %s | %s |" % (row.title, " | ".join(cells), goals))
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
