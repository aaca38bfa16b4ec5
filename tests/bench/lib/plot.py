"""The plot, by gnuplot: a bar for each system, a mark where the goal is."""

import math
import subprocess
import tempfile

from report import machine_text

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLOURS = ["#999999", "#56b4e9", "#d55e00", "#e69f00", "#009e73"]
PAIRS_SHOWN = 1000  # of a row with a peer of its own: times the goal
SHOWN = 1.6  # times native; what is longer has its number written on it
TITLE = "legacy programs: rate, in times of the native directory's (longer is faster)"


def quote(text):
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def goal_at(row, peers):
    """
    The highest of a row's goals in times of native: where the bar that the goal is of would have to
    end. The verdict's ratio is to another system in the same round, so the mark is put
    where bar and mark are to each other as that ratio and its goal.
    """
    at = [row.ratio(subject, row.base)[0] * goal.least / ratio[0]
          for goal, subject, ratio, _ in row.judge(peers) if ratio]
    return max(at, default=None)


def bars(rows, systems, names, peers, shown):
    """gnuplot's commands for the large panel; the first row is on top."""
    commands, labels, data = [], [], {name: [] for name in systems}
    goals = []
    y, section = 0.0, None
    height = 0.8 / len(systems)
    for row in rows:
        if row.section != section:
            section = row.section
            y -= 1.3
            commands.append('set label %s at graph 0, first %f left font ",11" offset -50,0'
                            % (quote(section), y + 0.15))
        y -= 1
        labels.append("%s %f" % (quote(row.title), y))
        for n, name in enumerate(systems):
            ratio = row.ratio(name, row.base)
            if not ratio:
                continue
            at = y + 0.4 - height * (n + 0.5)
            spread = ratio[1] or 0
            low, high = max(ratio[0] - spread, 0), min(ratio[0] + spread, shown)
            data[name].append((min(ratio[0], shown), at, low, high, height * 0.45))
            if ratio[0] > shown:
                commands.append('set label "%.1f" at %f,%f right font ",7" front offset -0.3,0'
                                % (ratio[0], shown, at))
        goal = goal_at(row, peers)
        if goal:
            goals.append((min(goal, shown), y - 0.45, 0, 0.9))
    commands += ["set yrange [%f:0]" % (y - 0.8), "set xrange [0:%f]" % shown,
                 "set ytics (%s) scale 0" % ", ".join(labels)]
    return commands, data, goals


def block(name, lines):
    return ["$%s << END" % name] + [" ".join("%f" % v for v in line) for line in lines] + ["END"]


def script(path, rows, counts, systems, names, peers, facts, title=TITLE, shown=SHOWN):
    commands, data, goals = bars(rows, systems, names, peers, shown)
    sections = len({row.section for row in rows})
    large = 90 + 30 * len(rows) + 30 * sections
    small = 330 if counts else 0
    out = ['set terminal pngcairo size 1200,%d noenhanced font "sans,10"' % (large + small),
           "set output " + quote(path)]
    for name in systems:
        out += block(name, data[name])
    out += block("goals", goals)
    out += ["set multiplot", "set size 1,%f" % (large / (large + small)),
            "set origin 0,%f" % (small / (large + small)), "set lmargin 52", "set rmargin 4",
            "set title " + quote("%s\nmedians of %d whole rounds, ± half the distance of "
                                 "the quartiles\n%s" % (title, facts["rounds"], machine_text(facts))),
            "set key bottom center outside horizontal",
            "set grid xtics", "set xtics %g" % (shown / 8), "set style fill solid", "set border 3"] + commands
    plots = []
    for n, name in enumerate(systems):
        if data[name]:
            plots.append("$%s using ($1/2):2:($1/2):5 with boxxyerror lc rgb %s title %s"
                         % (name, quote(COLOURS[n % len(COLOURS)]), quote(names[name])))
            plots.append("$%s using 1:2:3:4 with xerrorbars pt 0 lw 0.8 lc rgb '#333333' notitle"
                         % name)
    plots.append("$goals using 1:2:3:4 with vectors nohead lw 2.5 lc rgb 'black' title 'goal'")
    out += ["plot " + ", ".join(plots), "unset label", "unset ytics"]
    if counts:
        out += device_counts(counts, small / (large + small))
    return out


def device_counts(counts, share):
    out = ["set size 1,%f" % share, "set origin 0,0", "set title 'gaiafs by the number of devices "
           "configured (simulated): rate, in times of that without devices'",
           "set yrange [0:*]", "set ytics 0.2", "set xlabel 'devices'", "set lmargin 10",
           "set key bottom left inside vertical", "unset xrange", "set autoscale x",
           "set grid xtics ytics"]
    plots = []
    for n, row in enumerate(counts):
        names = sorted(row.samples, key=int)
        lines = []
        for at, name in enumerate(names):
            ratio = row.ratio(name, row.base)
            lines.append((at + 0.04 * n, ratio[0], ratio[1] or 0))
        out += block("count%d" % n, lines)
        plots.append("$count%d using 1:2:3 with yerrorlines lw 1.5 pt 7 ps 0.6 lc rgb %s title %s"
                     % (n, quote(COLOURS[n + 1]), quote(row.title)))
    out.append("set xtics (%s)" % ", ".join('"%s" %d' % (name, at)
                                            for at, name in enumerate(names)))
    out.append("set xrange [-0.2:%f]" % (len(names) - 0.6))
    out.append("plot " + ", ".join(plots))
    return out


def pairs_script(path, rows, subject, facts):
    """A bar for each row: how many times its goal it is, on the better side to the right; the line is the goal."""
    labels, bars = [], {True: [], False: []}
    y, section, out = 0.0, None, []
    for row in rows:
        if row.section != section:
            section = row.section
            y -= 1.3
            out.append('set label %s at graph 0, first %f left font ",9" offset -62,0' % (quote(section), y + 0.1))
        y -= 1
        labels.append("%s %f" % (quote(row.title.replace("%", "%%")), y))  # a format, to gnuplot
        (judged,) = row.judge([])
        # Of what is to be at most so much, less is better; nothing at all is as good as is shown.
        ratio, goal = max(judged.ratio[0], 1e-9), judged.goal
        if goal.most == 0:
            times = 0 if judged.ratio[0] else PAIRS_SHOWN
        else:
            times = goal.most / ratio if goal.most < math.inf else ratio / goal.least
        times = min(max(times, 1 / PAIRS_SHOWN), PAIRS_SHOWN)
        bars[times >= 1].append((min(times, 1), max(times, 1), y - 0.35, y + 0.35))
    head = ['set terminal pngcairo size 1200,%d noenhanced font "sans,9"' % (110 + 22 * (len(labels) + -y * 0.3)),
            "set output " + quote(path), "set lmargin 64", "set rmargin 4",
            "set title " + quote("%s beside its peers, in times of the goal (right of the line: met), simulated device\n"
                                 "%d whole rounds, %s" % (subject, facts["rounds"], machine_text(facts))),
            "set logscale x", "set xrange [%f:%f]" % (1 / PAIRS_SHOWN, PAIRS_SHOWN), "set grid xtics",
            "set yrange [%f:0]" % (y - 0.8), "set ytics (%s) scale 0" % ", ".join(labels), "set style fill solid",
            "set key bottom center outside horizontal", "set border 3"]
    plots = []
    for met, colour, title in (True, COLOURS[4], "met"), (False, COLOURS[2], "missed"):
        head += block("met" if met else "missed", bars[met])
        if bars[met]:
            plots.append("$%s using 1:3:1:2:3:4 with boxxyerror lc rgb %s title %s"
                         % ("met" if met else "missed", quote(colour), quote(title)))
    return head + out + ["set arrow from 1, graph 0 to 1, graph 1 nohead lw 2 front", "plot " + ", ".join(plots)]


def draw_pairs(path, rows, subject, facts):
    """As draw(), of rows that have a peer each. Those without a goal are not shown."""
    rows = [row for row in rows if row.goals]
    return run_gnuplot(path, pairs_script(path, rows, subject, facts)) if rows else []


def apps_script(path, lines, bars, facts, even, best):
    """Two panels: how many times as fast as copying, over how much has changed; and how many times as fast as strict coherence."""
    out = ['set terminal pngcairo size 1100,520 noenhanced font "sans,10"', "set output " + quote(path),
           "set multiplot layout 1,2 title " + quote("applications on a simulated device, modelled as on PCIe 5\n%d whole rounds, %s"
                                                     % (facts["rounds"], machine_text(facts)))]
    if lines:
        out += ["set title 'sssp: transfers, in times of copying the whole file'", "set logscale xy", "set grid xtics ytics",
                "set xlabel 'weights that an update changes, %'", "set xrange [0.08:130]", "set yrange [0.01:*]",
                "set key below vertical maxrows 4", "set border 3", "set xtics (0.1, 1, 5, 25, 75)",
                "set arrow from 0.08,1 to 130,1 nohead lw 1.5 lc rgb 'black'",
                "set arrow from %g, graph 0 to %g, graph 1 nohead dt 2 lc rgb '#777777'" % (even, even),
                "set arrow from 0.08,%g to 130,%g nohead dt 2 lc rgb '#777777'" % (best, best),
                "set label 'GAIA, in the paper: up to %g times' at 0.09,%g left offset 0,0.6 tc rgb '#777777' font ',8'" % (best, best),
                "set label 'and as fast at %g %%' at %g, graph 0.95 right offset -0.5,0 tc rgb '#777777' font ',8'" % (even, even)]
        plots = []
        for n, (title, points) in enumerate(lines):
            out += block("line%d" % n, points)
            plots.append("$line%d using 1:2 with linespoints lw 1.8 pt 7 ps 0.7 lc rgb %s title %s"
                         % (n, quote(COLOURS[(2, 3, 1, 0)[n % 4]]), quote(title)))
            plots.append("$line%d using 1:2:(sprintf('%%.3g', $2)) with labels font ',7' offset 0,0.7 notitle" % n)
        out += ["plot " + ", ".join(plots), "unset arrow", "unset label", "unset logscale", "unset xlabel"]
    if bars:
        out += block("ours", [(at, ours) for at, (_, ours, _) in enumerate(bars)])
        out += block("paper", [(at, paper) for at, (_, _, paper) in enumerate(bars)])
        out += ["set title " + quote("in times of strict coherence by pages:\nhere an emulation, in the paper unified memory"),
                "set logscale y", "set yrange [0.5:*]", "set xrange [-0.6:%f]" % (len(bars) - 0.4), "set border 3",
                "set xtics (%s) scale 0" % ", ".join("%s %d" % (quote(title), at) for at, (title, _, _) in enumerate(bars)),
                "unset grid", "set grid ytics", "set boxwidth 0.35", "set style fill solid", "set key top right inside",
                "plot $ours using ($1-0.19):2 with boxes lc rgb '%s' title 'gaiafs', " % COLOURS[2] +
                "$ours using ($1-0.19):2:(sprintf('%.3g', $2)) with labels offset 0,0.7 notitle, "
                "$paper using ($1+0.19):2 with boxes lc rgb '#bbbbbb' title 'GAIA, in the paper', "
                "$paper using ($1+0.19):2:(sprintf('%.3g', $2)) with labels offset 0,0.7 notitle"]
    return out


def draw_apps(path, lines, bars, facts, even, best):
    """[path], or []. @even, @best: what the paper says of sssp, percent and times."""
    return run_gnuplot(path, apps_script(path, lines, bars, facts, even, best)) if lines or bars else []


def tiers_script(path, working_sets, batches, by_copies, by_updates, facts, paper):
    """
    Three panels, as the figures of the papers of GRAM and DEDU (ICCS'11), whose numbers are drawn in: what is read from storage beside
    no cache on the device, equal pages by how often each is there, and by how many requests write.
    @paper: of GRAM the most and the least that is read, and what a page costs in a batch; of DEDU (copies, times) and at which percent it is off.
    """
    grey = "tc rgb '#777777' font ',8'"

    def level(y):
        return "set arrow from graph 0, first %g to graph 1, first %g nohead dt 2 lc rgb '#777777'" % (y, y)

    panels = [bool(working_sets or batches), bool(by_copies), bool(by_updates)]
    out = ['set terminal pngcairo size %d,560 noenhanced font "sans,10"' % (90 + 470 * sum(panels)), "set output " + quote(path),
           "set multiplot layout 1,%d title %s" % (sum(panels), quote("simulated device, and modelled storage\n%d whole rounds; what has no goal once; %s"
                                                                     % (facts["rounds"], machine_text(facts)))),
           "set border 3", "set grid ytics", "set ytics nomirror", "set key top right inside", "set style fill solid", "set bmargin 5"]
    if panels[0]:
        # In the order of who has most of them.
        names = list(dict.fromkeys(name for _, bars in sorted(working_sets, key=lambda bus: -len(bus[1])) for name, _ in bars))
        plots = []
        for n, (title, bars) in enumerate(working_sets):
            out += block("bus%d" % n, [(names.index(name) + 0.3 * n, ratio) for name, ratio in bars])
            plots += ["$bus%d using 1:2 with boxes lc rgb '%s' title %s" % (n, COLOURS[(2, 3)[n % 2]], quote("gaiafs, bus of " + title)),
                      "$bus%d using 1:2:(sprintf('%%.2g', $2)) with labels font ',7' offset 0,0.6 notitle" % n]
        if batches:
            out += block("batch", [(len(names), batches)]) + block("paper", [(len(names) + 0.3, paper["batch"])])
            for name, colour, title in ("batch", COLOURS[4], "gaiafs, a page of a batch, in times of one alone"), ("paper", "#bbbbbb", "GRAM, in the paper"):
                plots += ["$%s using 1:2 with boxes lc rgb '%s' title '%s'" % (name, colour, title.replace("'", "''")),
                          "$%s using 1:2:(sprintf('%%.2g', $2)) with labels font ',7' offset 0,0.6 notitle" % name]
            names = names + ["batches\nof 256"]
        top = max([0.28, batches or 0] + [ratio for _, bars in working_sets for _, ratio in bars])
        out += ["set title " + quote("working set of home and 0.25 ... 1 of the device:\nread from storage, in times of no cache on the device"),
                "set boxwidth 0.28", "set yrange [0:%g]" % (1.1 * top), "set xrange [-0.4:%g]" % (len(names) - 0.3),
                "set xtics nomirror (%s) scale 0" % ", ".join("%s %g" % (quote(name), at + 0.15) for at, name in enumerate(names)),
                level(paper["most"]), level(paper["least"]),
                "set label 'GRAM, in the paper: %.0f to %.0f %% less' at graph 0.02, first %g left offset 0,0.6 %s"
                % (100 - 100 * paper["most"], 100 - 100 * paper["least"], paper["most"], grey),
                "plot " + ", ".join(plots), "unset arrow", "unset label"]
    points = "$line%d using 1:2 with linespoints lw 1.8 pt 7 ps 0.7 lc rgb '%s' title %s, " \
             "$line%d using 1:2:(sprintf('%%.2f', $2)) with labels font ',8' tc rgb '%s' offset 1.2,%g notitle"
    lines = 0
    for is_there, titles, curves, marks in (
            (panels[1], ("equal pages, no updates:\nin times of parked pages alone", "how often each page is there"), by_copies, "set xtics nomirror 1"),
            (panels[2], ("updates: time,\nin times of parked pages alone", "requests that write, %"), by_updates, "set xtics nomirror (0, 16, 32, 64)")):
        if not is_there:
            continue
        plots = []
        for n, (title, curve) in enumerate(curves):
            out += block("line%d" % lines, curve)
            colour = COLOURS[(2, 4)[n % 2]]
            plots.append(points % (lines, colour, quote("gaiafs, " + title), lines, colour, 0.8 if (n == 0) == (curves is by_updates) else -0.8))
            lines += 1
        at = [x for _, curve in curves for x, _ in curve]
        margin = 0.08 * (max(at) - min(at)) or 1
        out += ["set title " + quote(titles[0]), "set xlabel " + quote(titles[1]), "set yrange [-0.1:%g]" % (0.3 + max([1.2] + [y for _, curve in curves for _, y in curve])),
                "set xrange [%g:%g]" % (min(at) - margin, max(at) + margin), "unset xtics", marks, level(1)]
        if curves is by_copies:
            out += block("dedu", paper["copies"])
            plots += ["$dedu using 1:2 with points pt 5 ps 1.3 lc rgb '#777777' title 'DEDU, in the paper: times'",
                      "$dedu using 1:2:(sprintf('%%.2f', $2)) with labels left offset 1,0.5 %s notitle" % grey]
        else:
            out += ["set arrow from %g, graph 0 to %g, graph 1 nohead dt 2 lc rgb '#777777'" % (share, share) for share in paper["off"]]
            out += ["set label 'DEDU, in the paper: off above %d to %d %%' at graph 0.02, graph 0.08 left %s" % (*paper["off"], grey)]
        out += ["plot " + ", ".join(plots), "unset arrow", "unset label"]
    return out


def draw_tiers(path, working_sets, batches, by_copies, by_updates, facts, paper):
    """[path], or []."""
    if not (working_sets or batches or by_copies or by_updates):
        return []
    return run_gnuplot(path, tiers_script(path, working_sets, batches, by_copies, by_updates, facts, paper))


def draw(path, rows, counts, columns, names, peers, facts, *more):
    """[path], or [] and, if there is something to draw, a line that says why. @more: the title and SHOWN of another bench."""
    if not rows or not columns[1:]:
        return []
    return run_gnuplot(path, script(path, rows, counts, columns[1:], names, peers, facts, *more))


def run_gnuplot(path, lines):
    with tempfile.NamedTemporaryFile("w", suffix=".gnuplot") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        try:
            done = subprocess.run(["gnuplot", file.name], capture_output=True, text=True,
                                  timeout=60)
        except OSError as error:
            print("no plot: gnuplot: %s" % error.strerror)
            return []
    if done.returncode:
        print("no plot: gnuplot: %s" % done.stderr.strip())
        return []
    return [path]
