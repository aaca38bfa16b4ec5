#!/usr/bin/env python3
"""page.py DIR - one page, DIR/report.md with plots, of what tests/gpu/run left in DIR.

What did not work comes first: what failed, took too long, is missing because the run was killed, or was not run.
Then ours as shares of the machine's ceilings, and all rows. A file that ends in the middle of a line is read as far as
it goes. Simulated results are called that wherever they are shown."""

import glob
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench", "lib"))
from plot import COLOURS, block, quote  # noqa: E402

PHASES = ["ceilings", "bench", "stalls", "right", "mount", "busy", "litmus", "history", "sanitizer", "ncu"]
# What a curve may be drawn over, the most telling first.
SIZES = ["bytes", "pages", "piece_bytes", "chunks", "alive", "pieces", "runs"]
SHARES_SHOWN, PANELS_SHOWN, CURVES_SHOWN = 160, 16, 10


class Section:
    def __init__(self, name):
        self.name, self.rows = name, []
        self.status = None  # None: the run ended before it was known
        self.note, self.seconds = "", None

    @property
    def simulated(self):
        return any(row.get("simulated") for row in self.rows)


class Phase:
    """A file of results. What is wrong with the file itself is in @faults."""

    def __init__(self, path):
        self.name = os.path.basename(path)[:-len(".jsonl")]
        self.head, self.start, self.ended = {}, {}, False
        self.faults, self.extra = [], []  # @extra: rows of no section that was planned
        self.sections = {}
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        lines = text.splitlines()
        waiting = []
        for nth, line in enumerate(lines):
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("no object")
            except ValueError:
                if nth == len(lines) - 1:
                    self.faults.append("its last line is cut off in the middle")
                else:
                    self.faults.append("line %d is broken" % (nth + 1))
                continue
            waiting = self.take(row, waiting)
        if not self.head:
            self.faults.append("it has no plan: what is missing is not known")
        elif not self.ended:
            self.faults.append("it has no end: the run was ended before")
        unfinished = next((s for s in self.sections.values() if s.status is None), None)
        (unfinished.rows if unfinished else self.extra).extend(waiting)

    def take(self, row, waiting):
        """Rows come before the status of their section: those for which that is not there yet."""
        if "plan" in row:
            self.head = row
            self.sections = {name: Section(name) for name in row["plan"]}
        elif "phase" in row:
            self.start = row if row.get("start") else self.start
            self.ended = self.ended or bool(row.get("end"))
        elif "status" in row:
            section = self.sections.setdefault(row.get("section"), Section(row.get("section")))
            section.status, section.note = row["status"], row.get("note", "")
            section.seconds = row.get("seconds")
            section.rows += waiting
            return []
        else:
            return waiting + [row]
        return waiting

    @property
    def simulated(self):
        return bool(self.head.get("simulated")) or any(s.simulated for s in self.sections.values())


def load(directory):
    phases = []
    for name in PHASES:
        path = os.path.join(directory, name + ".jsonl")
        if os.path.exists(path):
            phases.append(Phase(path))
    return phases


# ---- text ----

def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def number(v):
    if isinstance(v, bool):
        return "yes" if v else "no"
    if isinstance(v, dict):
        return ", ".join("%s %s" % (key, number(value)) for key, value in v.items() if value) or "-"
    if isinstance(v, list):
        return ", ".join(number(one) for one in v)
    if not isinstance(v, (int, float)):
        return cell(v)
    if float(v).is_integer():
        return "{:,}".format(int(v)) if abs(v) < 1e15 else "%g" % v
    return "%.3g" % v if abs(v) < 1000 else "{:,.0f}".format(v)


def size(v):
    """Powers of two by their names."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if v >= unit and v % unit == 0:
            return "%d %s" % (v // unit, name)
    return number(v)


def value(row, key):
    v = row[key]
    if isinstance(v, (int, float)) and key.endswith("bytes"):
        return size(v)
    text = number(v)
    if key == "of_ceiling" and isinstance(v, (int, float)):
        text = "**%.2f**" % v
    low, high = row.get(key + "_p10"), row.get(key + "_p90")
    if low is not None and high is not None:
        text += " (%s to %s)" % (number(low), number(high))
    return text


def amount(row, key):
    """With its unit: "4 KiB", "3 pages", "4 KiB a piece"."""
    if key.endswith("bytes"):
        return value(row, key) + (" a " + key[:-len("_bytes")] if key != "bytes" else "")
    return value(row, key) + " " + key.replace("_", " ")


def labels(row):
    """What is said of a row in words, before what was measured."""
    out = []
    for key, v in row.items():
        if key + "_p10" in row:
            break
        if isinstance(v, str) and key not in ("section", "what", "cpu_cache", "device", "beside"):
            out.append(v)
    return out


def columns(row):
    return tuple(key for key in row if key not in ("section", "what", "simulated", "not_run") and
                 not key.endswith(("_p10", "_p90")))


def tables(rows, simulated):
    """Rows one after the other that have the same columns make one table."""
    out, now = [], None
    for row in rows:
        if "not_run" in row:
            continue
        keys = columns(row)
        if keys != now:
            now = keys
            heads = ["what" + (" (SIMULATED)" if simulated else "")] + [key.replace("_", " ") for key in keys]
            out += ["", "| " + " | ".join(cell(head) for head in heads) + " |",
                    "| --- |" + " ---: |" * len(keys)]
        out.append("| " + " | ".join([cell(row.get("what", ""))] + [value(row, key) for key in keys]) + " |")
    return out


def troubles(phases):
    """What did not work, the worst first."""
    failed, late, missing, left, files, rows = [], [], [], [], [], []
    for phase in phases:
        files += ["**%s.jsonl**: %s" % (phase.name, fault) for fault in phase.faults]
        gone = [s.name for s in phase.sections.values() if s.status is None]
        if gone:
            missing.append("**%s**: missing, since the run was ended before: %s" % (phase.name, ", ".join(gone)))
        whys = {}
        for s in phase.sections.values():
            line = "**%s: %s**: %s" % (phase.name, s.name, cell(s.note))
            if s.status == "timeout":
                late.append(line.replace("**: ", "** took too long: ", 1))
            elif s.status in ("not run", "skipped"):
                whys.setdefault((s.status, s.note), []).append(s.name)
            elif s.status not in ("done", None):
                failed.append(line.replace("**: ", "** %s: " % s.status, 1))
            rows += ["%s: %s: %s: %s" % (phase.name, s.name, cell(row.get("what", "")), cell(row["not_run"]))
                     for row in s.rows if "not_run" in row]
        left += ["**%s**, %s: %s (%s)" % (phase.name, status, ", ".join(names), cell(note))
                 for (status, note), names in whys.items()]
    return failed + late + files + missing + left, rows


def stalls(phases):
    """Of the calls that were looked at, which wait, and which assumption that decides."""
    out, seen, simulated = [], 0, False
    for phase in phases:
        for s in phase.sections.values():
            for row in s.rows:
                if "decides" not in row or "waited" not in row:
                    continue
                seen += 1
                simulated = simulated or bool(row.get("simulated"))
                if row["waited"]:
                    out.append("- %s%s waited while %s: %s" % (
                        cell(row.get("what", "")), " (SIMULATED)" if row.get("simulated") else "",
                        cell(row.get("while", "something ran")), cell(row["decides"])))
    if not seen:
        return []
    return ["## Calls that wait for what runs" + (" (SIMULATED)" if simulated else ""), ""] + (out or ["None of %d." % seen]) + [""]


def beside(phases):
    """What another process's kernels cost us, by the rows that both runs have, and what we cost it."""
    def times(section):
        """By what is said of a row, and as the first, second ... of which that is said."""
        out, seen = {}, {}
        for row in section.rows:
            said = (row["what"], *labels(row), *(amount(row, key) for key in SIZES if numeric(row, key)))
            seen[said] = seen.get(said, 0) + 1
            out.update(((name, seen[said], *said), us) for name, us in row.items()
                       if (name == "us" or name.endswith("_us")) and numeric(row, name) and us > 0)
        return out

    busy = next((p for p in phases if p.name == "busy"), None)
    alone = {"%s/%s" % (p.name, s.name): times(s) for p in phases for s in p.sections.values()}
    out = []
    for s in busy.sections.values() if busy else []:
        slowdown = next((row["slowdown"] for row in s.rows if numeric(row, "slowdown")), None)
        longer = sorted(us / alone[s.name][key] for key, us in times(s).items() if key in alone.get(s.name, {}))
        if slowdown is None and not longer:
            continue
        out.append("| %s | %s | %s | %s |" % (
            cell(s.name), len(longer), "%s (%s to %s)" % (number(longer[len(longer) // 2]), number(longer[0]),
                                                         number(longer[-1])) if longer else "not measured alone",
            number(slowdown) if slowdown is not None else "-"))
    if not out:
        return []
    return ["## Beside another process's kernels" + (" (SIMULATED)" if busy.simulated else ""), "",
            "| section | times | ours takes so many times as long: the median (all) | its kernels are slower by |",
            "| --- |" + " ---: |" * 3] + out + [""]


def facts(phases):
    head = next((p.head for p in phases if p.head), {})
    gpu = next((p.start["gpu"] for p in phases if p.start.get("gpu")), None)
    out = []
    if head:
        out += ["gaiafs %s, %s; %s, %s processors, %.0f GiB, Linux %s%s" % (
            head.get("gaiafs", "?"), head.get("date", "?"), head.get("cpu", "?"), head.get("processors", "?"),
            head.get("memory_kib", 0) / (1 << 20), head.get("kernel", "?"),
            "" if head.get("fuse", True) else ", no /dev/fuse"), ""]
    if gpu:
        out += ["GPU%s: " % (" (SIMULATED)" if any(p.simulated for p in phases) else "") +
                ", ".join("%s %s" % (key.replace("_", " "), number(v)) for key, v in gpu.items()
                          if key not in ("section", "what", "simulated")), ""]
    return out


# ---- plots ----

def gnuplot(lines):
    """None, or why there is no plot."""
    with tempfile.NamedTemporaryFile("w", suffix=".gnuplot") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        try:
            done = subprocess.run(["gnuplot", file.name], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return "gnuplot: %s" % (getattr(error, "strerror", None) or error)
    return "gnuplot: " + done.stderr.strip() if done.returncode else None


def mark(text, simulated):
    return "SIMULATED, says nothing of a GPU: " + text if simulated else text


def numeric(row, key):
    return isinstance(row.get(key), (int, float)) and not isinstance(row.get(key), bool)


def shares(phases):
    """(label, share, simulated) of each row that has a ceiling."""
    out = []
    for phase in phases:
        for s in phase.sections.values():
            for row in s.rows:
                if numeric(row, "of_ceiling"):
                    over = labels(row) + [amount(row, key) for key in SIZES if numeric(row, key)]
                    label = "%s, %s" % (row.get("what", ""), ", ".join(over)) if over else row.get("what", "")
                    out.append(("%s: %s: %s" % (phase.name, s.name, label), row["of_ceiling"],
                                bool(row.get("simulated"))))
    return out


def shares_script(path, bars):
    simulated = any(bar[2] for bar in bars)
    most = max(1.1, min(2, max(bar[1] for bar in bars) * 1.05))
    out = ['set terminal pngcairo size 1200,%d noenhanced font "sans,9"' % (120 + 17 * len(bars)),
           "set output " + quote(path), "set lmargin %d" % min(76, 2 + max(len(bar[0]) for bar in bars)), "set rmargin 4",
           "set title " + quote(mark("shares of the machine's ceilings (longer is better)", simulated)),
           "set style fill solid", "set border 3", "set grid xtics", "set xrange [0:%f]" % most,
           "set yrange [%f:0.5]" % (-len(bars) + 0.5), "set arrow from 1,graph 0 to 1,graph 1 nohead lw 2",
           "set ytics (%s) scale 0" % ", ".join("%s %d" % (quote(bar[0][:95].replace("%", "percent")), -n) for n, bar in enumerate(bars))]
    out += block("bars", [(min(bar[1], most), -n) for n, bar in enumerate(bars)])
    out += ['set label "%.1f" at %f,%d right font ",7" front offset -0.3,0' % (bar[1], most, -n)
            for n, bar in enumerate(bars) if bar[1] > most]
    return out + ["plot $bars using ($1/2):2:($1/2):(0.4) with boxxyerror lc rgb %s notitle" % quote(COLOURS[1])]


def panels(phases):
    """(title, of what, in what, {curve: [(x, y)]}, simulated) of each section with rows of several sizes."""
    out = []
    for phase in phases:
        for s in phase.sections.values():
            for key in SIZES:
                curves, unit = {}, "gb_s" if any(numeric(row, "gb_s") for row in s.rows) else "us"
                for row in s.rows:
                    if numeric(row, key) and numeric(row, unit) and row[key] > 0 and row[unit] > 0:
                        # (How many runs there are follows from the layout, where that is said.)
                        rest = labels(row)
                        rest += [amount(row, other) for other in SIZES if other != key and numeric(row, other) and
                                 not (key == "bytes" and other == "pages") and not (rest and other == "runs")]
                        curves.setdefault(", ".join([str(row.get("what", ""))] + rest), []).append((row[key], row[unit]))
                curves = {name: sorted(points) for name, points in curves.items()
                          if len({x for x, _ in points}) >= 3}
                if curves:
                    out.append(("%s: %s" % (phase.name, s.name), key, unit, curves, s.simulated))
                    break
    return out


def ticks(curves):
    """Where a curve has points; not all of many."""
    at = sorted({x for points in curves.values() for x, _ in points})
    return at[::1 + len(at) // 12]


def panels_script(path, shown):
    rows = (len(shown) + 1) // 2
    out = ['set terminal pngcairo size 1400,%d noenhanced font "sans,9"' % (60 + 380 * rows),
           "set output " + quote(path), "set multiplot layout %d,2 title %s" % (
               rows, quote(mark("by size", any(panel[4] for panel in shown)))),
           "set logscale xy", "set grid", "set border 3", "set key left top font ',7'"]
    names = {"gb_s": "GB/s (up is better)", "us": "µs (down is better)"}
    for nth, (title, key, unit, curves, simulated) in enumerate(shown):
        plots = []
        for n, (name, points) in enumerate(list(curves.items())[:CURVES_SHOWN]):
            data = "p%dc%d" % (nth, n)
            out += block(data, points)
            plots.append("$%s with linespoints pt 7 ps 0.5 lc rgb %s dt %d title %s" % (
                data, quote(COLOURS[n % len(COLOURS)]), 1 + n // len(COLOURS), quote(name[:60])))
        out += ["set title " + quote(mark(title, simulated)), "set xlabel " + quote(key.replace("_", " ")),
                "set xtics (%s) rotate by -30" % ", ".join(
                    "%s %f" % (quote(size(x) if key.endswith("bytes") else number(x)), x) for x in ticks(curves)),
                "set ylabel " + quote(names[unit]), "plot " + ", ".join(plots)]
    return out + ["unset multiplot"]


def plots(phases, directory):
    """Lines for the page."""
    out = []
    wanted = [("report-sizes.png", "by size", panels(phases), PANELS_SHOWN, panels_script)]
    for phase in reversed(phases):
        # (What the machine does is no share of ours.)
        if phase.name != "ceilings":
            wanted.insert(0, ("report-shares-%s.png" % phase.name, "shares of the ceilings: " + phase.name, shares([phase]),
                              SHARES_SHOWN, shares_script))
    for old in glob.glob(os.path.join(glob.escape(directory), "report-*.png")):
        os.unlink(old)
    for name, what, all_of_it, most, script in wanted:
        path = os.path.join(directory, name)
        if not all_of_it:
            continue
        why = gnuplot(script(path, all_of_it[:most]))
        if why:
            out += ["(No plot of %s: %s)" % (what, why), ""]
            continue
        out += ["![%s](%s)" % (what, name), ""]
        if len(all_of_it) > most:
            out += ["(The plot shows the first %d of %d; all are in the tables.)" % (most, len(all_of_it)), ""]
    return out


# ---- the page ----

def page(directory):
    phases = load(directory)
    simulated = [phase.simulated for phase in phases]
    kind = ""
    if any(simulated):
        kinds = sorted({str(p.head.get("rehearsal")) for p in phases if p.simulated})
        kind = "%s (a rehearsal: %s): " % ("SIMULATED" if all(simulated) else "PARTLY SIMULATED", ", ".join(kinds))
    out = ["# %sgaiafs on a GPU" % kind, ""]
    if any(simulated):
        out += ["**No GPU made the numbers of %s: they show that the programs run to their end, and nothing else.**" %
                ", ".join(phase.name for phase in phases if phase.simulated), ""]
    out += facts(phases)
    out += ["## What did not work, or is missing", ""]
    if not phases:
        out.append("- There is no result file (PHASE.jsonl) here: nothing ran.")
    bad, rows = troubles(phases)
    for name in ("diagnosis.txt", "gpu-check.log"):
        path = os.path.join(directory, name)
        if not os.path.exists(path):
            out.append("- %s is missing" % name)
        elif name == "diagnosis.txt":
            with open(path, encoding="utf-8", errors="replace") as file:
                ends = [line.strip() for line in file if line.startswith("ended: ")]
            out.append("- " + (ends[-1] if ends else "the run did not come to its end: %s has no last line" % name))
    out += ["- " + line for line in bad]
    if phases and not bad:
        out.append("- Nothing: all sections that were planned were done.")
    if rows:
        out += ["", "Rows that could not be measured:", ""] + ["- " + line for line in rows]
    if phases:
        out += ["", "| phase | sections | done | failed | too long | not run | skipped | missing | seconds |",
                "| --- |" + " ---: |" * 8]
    for phase in phases:
        counts = [sum(s.status == status for s in phase.sections.values())
                  for status in ("done", "failed", "timeout", "not run", "skipped", None)]
        seconds = sum(s.seconds or 0 for s in phase.sections.values())
        out.append("| %s%s | %d | %s | %.0f |" % (phase.name, " (SIMULATED)" if phase.simulated else "",
                                                 len(phase.sections), " | ".join(map(str, counts)), seconds))
    out += [""] + stalls(phases) + beside(phases)
    out += ["## Shares of the ceilings%s" % (" (SIMULATED)" if any(simulated) else ""), ""] if shares(phases) else []
    out += plots(phases, directory)
    for phase in phases:
        out += ["## %s%s" % (phase.name, " (SIMULATED)" if phase.simulated else ""), ""]
        for s in phase.sections.values():
            measured = [row for row in s.rows if "not_run" not in row]
            if not measured:
                continue
            state = "" if s.status == "done" else " — %s" % (s.status or "cut off: the run was ended here")
            out += ["### %s: %s%s%s" % (phase.name, s.name, " (SIMULATED)" if s.simulated else "", state)]
            out += tables(measured, s.simulated) + [""]
        if phase.extra:
            out += ["### %s: other rows%s" % (phase.name, " (SIMULATED)" if phase.simulated else "")]
            out += tables(phase.extra, phase.simulated) + [""]
    return "\n".join(out).rstrip() + "\n"


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: page.py DIR")
    directory = sys.argv[1]
    if not os.path.isdir(directory):
        sys.exit("page.py: %s is no directory" % directory)
    text = page(directory)
    path = os.path.join(directory, "report.md")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(path + ".new", path)
    print(path)


if __name__ == "__main__":
    main()
