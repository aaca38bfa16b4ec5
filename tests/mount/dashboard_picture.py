#!/usr/bin/env python3
"""dashboard_picture.py BUILD WORKER DASHBOARD KEPT [OUT] - what the dashboard's panels show of a real run, as a picture.

Mounts, has clients work, and has Prometheus scrape the daemon's metrics. Each expression of the dashboard must be one that Prometheus
answers, and those that a working mount must have values for must have some. Then the panels are drawn as plain plots, as Grafana would arrange
them. The picture KEPT, which documents show, must have the same panels and lines. OUT: where to write it; scripts/pictures renews KEPT so.

Needs what top_picture.py needs, and prometheus(1), in PATH or as scripts/prometheus fetches it. Status 77: skipped, the last line says why.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

import top_picture
from PIL import Image, ImageDraw, PngImagePlugin

SCRAPES = 20  # one a second
UNIT_X, UNIT_Y = 42, 22  # of Grafana's grid, in pixels
LINES = [(115, 191, 105), (242, 204, 12), (87, 148, 242), (255, 120, 80), (184, 119, 217), (120, 220, 220), (230, 130, 180), (200, 200, 200)]
PANEL, GRID, DIM = (34, 37, 43), (58, 62, 70), (165, 168, 175)
# What has no values in a run in which nothing goes wrong, or does not have to.
MAY_BE_EMPTY = {"Device operations: 99 of 100 take no longer", "Storage: 99 of 100 take no longer"}
CAPTION = "Each panel of dashboard.json, from a real run, by scripts/pictures, which draws plots of its own: Grafana's look nicer. Simulated devices."


# ---- the run ----

def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    def __init__(self, directory, target):
        with open(f"{directory}/prometheus.yml", "w", encoding="utf-8") as file:
            json.dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [{"job_name": "gaiafs", "static_configs": [{"targets": [target]}]}]}, file)
        self.address = f"127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data",
                                         f"--web.listen-address={self.address}", "--log.level=error"])

    def scrapes(self):
        """How often it has asked the daemon."""
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/query?query=count_over_time(up[1h])", timeout=60) as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.URLError:
            return 0  # it begins
        return int(found[0]["value"][1]) if found else 0

    def ask(self, expression, start, end):
        """[(labels, [(time, value)])]; an expression that is wrong is an error."""
        query = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": 1})
        try:
            with urllib.request.urlopen(f"http://{self.address}/api/v1/query_range?{query}", timeout=60) as answer:
                found = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            sys.exit(f"dashboard_picture: {expression}: {error.read().decode()}")
        return [(line["metric"], [(float(at), float(value)) for at, value in line["values"]]) for line in found]

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=60)


def lines_of(prometheus, panel, start, end):
    """[(legend, values)] of a panel; nothing if one of its expressions has no line at all: then what it asks for is not served."""
    found = []
    for target in panel["targets"]:
        before = len(found)
        expression = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "4s")
        for labels, values in prometheus.ask(expression, start, end):
            legend = target["legendFormat"]
            for name, value in labels.items():
                legend = legend.replace("{{" + name + "}}", value)
            found.append((legend, [(at, value) for at, value in values if value == value]))
        if len(found) == before:
            return []
    return found


def take(build, program, panels):
    """[lines] of the panels of a run."""
    port = free_port()
    with tempfile.TemporaryDirectory() as directory, top_picture.working(build, program, "--metrics", str(port)):
        prometheus = Prometheus(directory, f"127.0.0.1:{port}")
        try:
            start = time.time()
            turn = 0
            while (scrapes := prometheus.scrapes()) < SCRAPES:
                turn += 1
                # More in the middle, so that there is something to see.
                if not SCRAPES / 5 < scrapes < SCRAPES * 2 / 5:
                    top_picture.change("/mnt/data/weights.bin", turn)
                if scrapes > SCRAPES * 3 / 5:
                    with open("/mnt/data/tiles.bin", "rb", buffering=0) as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                        file.read(2 << 20)
            return [lines_of(prometheus, panel, start + 3, time.time()) for panel in panels]
        finally:
            prometheus.end()


# ---- the picture ----

def said(value, unit):
    """As an axis says it."""
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    scale = 1024 if unit in ("bytes", "Bps") else 1000
    prefix = ["", "K", "M", "G", "T"]
    while value >= scale and len(prefix) > 1:
        value /= scale
        prefix.pop(0)
    return f"{value:.3g} {prefix[0]}{'B' if scale == 1024 else ''}{'/s' if unit in ('Bps', 'ops') else ''}".rstrip()


def legend_places(font, names, width):
    """Where each name goes, as (x, line), and how many lines they take."""
    places, x, line = [], 0, 0
    for name in names:
        its = font.getlength(name) + 14
        if x > 0 and x + its > width:
            x, line = 0, line + 1
        places.append((x, line))
        x += its
    return places, line + 1


def draw_panel(pen, font, panel, lines):
    place, unit = panel["gridPos"], panel["fieldConfig"]["defaults"].get("unit", "")
    left, top = place["x"] * UNIT_X + 4, place["y"] * UNIT_Y + 4
    right, bottom = left + place["w"] * UNIT_X - 8, top + place["h"] * UNIT_Y - 8
    pen.rectangle([left, top, right, bottom], fill=PANEL)
    pen.text((left + 8, top + 4), panel["title"], font=font, fill=top_picture.INK)
    places, rows = legend_places(font, [name for name, _ in lines], right - left - 8)
    legend = 14 * rows
    box = (left + 70, top + 26, right - 10, bottom - legend - 8)
    most = max((value for _, values in lines for _, value in values), default=0)
    times = [at for _, values in lines for at, _ in values]
    for part in (0, 0.5, 1):
        y = box[3] - part * (box[3] - box[1])
        pen.line([box[0], y, box[2], y], fill=GRID)
        pen.text((left + 8, y - 7), said(most * part, unit), font=font, fill=DIM)
    for number, (name, values) in enumerate(lines):
        colour = LINES[number % len(LINES)]
        points = [(box[0] + (at - min(times)) / max(max(times) - min(times), 1) * (box[2] - box[0]), box[3] - (value / most if most else 0) * (box[3] - box[1]))
                  for at, value in values]
        if len(points) > 1:
            pen.line(points, fill=colour, width=2)
        pen.text((left + 8 + places[number][0], bottom - legend - 2 + places[number][1] * 14), name, font=font, fill=colour)


def draw(panels, lines):
    font = top_picture.load_font(11)
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in panels) * UNIT_Y
    image = Image.new("RGB", (24 * UNIT_X, height + 26), top_picture.PAPER)
    pen = ImageDraw.Draw(image)
    for panel, its in zip(panels, lines):
        draw_panel(pen, font, panel, its)
    pen.text((8, height + 6), CAPTION, font=font, fill=top_picture.NOTE)
    return image.quantize(24)


def text_of(panels):
    """What the picture is of."""
    return "\n".join(f"{panel['title']}: " + "; ".join(target["legendFormat"] for target in panel["targets"]) for panel in panels) + "\n\n" + CAPTION


def check_picture(path, panels):
    wrong = []
    with Image.open(path) as image:
        image.load()
        text = image.text.get("Description", "")
        if image.format != "PNG" or len(image.getcolors(256) or []) < 5:
            wrong.append("it is no drawn PNG")
    if os.path.getsize(path) > top_picture.MOST_BYTES:
        wrong.append(f"it has {os.path.getsize(path)} bytes")
    if text != text_of(panels):
        wrong.append(f"it is of other panels:\n{text}\nand not of:\n{text_of(panels)}")
    return wrong


def main():
    build, program, dashboard, kept = (os.path.abspath(path) for path in sys.argv[1:5])
    # What scripts/prometheus has fetched.
    os.environ["PATH"] += os.pathsep + os.path.join(os.path.dirname(dashboard), "../build-deps/prometheus")
    if not shutil.which("prometheus"):
        top_picture.skip("prometheus is not there")
    top_picture.be_apart()
    with open(dashboard, encoding="utf-8") as file:
        panels = json.load(file)["panels"]
    lines = take(build, program, panels)
    wrong = [f"{panel['title']}: no values" for panel, its in zip(panels, lines) if panel["title"] not in MAY_BE_EMPTY and not any(values for _, values in its)]
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Description", text_of(panels))
    with tempfile.TemporaryDirectory() as directory:
        drawn = os.path.join(directory, "dashboard.png")
        draw(panels, lines).save(drawn, optimize=True, pnginfo=notes)
        wrong += [f"the picture drawn: {what}" for what in check_picture(drawn, panels)]
        if len(sys.argv) > 5 and not wrong:
            shutil.copyfile(drawn, sys.argv[5])
        elif len(sys.argv) <= 5:
            wrong += [f"{kept}: {what}; scripts/pictures renews it" for what in check_picture(kept, panels)]
    for what in wrong:
        print(f"dashboard_picture: {what}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
