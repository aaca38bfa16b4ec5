#!/usr/bin/env python3
"""top_picture.py BUILD WORKER KEPT [OUT] - gaia top's screen, from a real run, as a picture.

Mounts, has clients work (worker.c), runs gaia top in a terminal and draws what that shows, once everything is on it. Then the picture
KEPT, which documents show, must be like it: with the same tables. OUT: where to write the picture; scripts/pictures renews KEPT so.

Needs root, pyte and Pillow (build-deps/python, see scripts/python), and the font DejaVu Sans Mono. Status 77: skipped, the last line says why.
"""
import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time

LINES, COLUMNS = 54, 132
MOST_BYTES = 100 << 10
MIB = 1 << 20
READER = 65534
FONT = "DejaVuSansMono.ttf"
PAPER, INK, NOTE = (24, 26, 31), (222, 222, 222), (150, 190, 255)
CAPTION = "gaia top, taken from a real run by scripts/pictures. The devices are simulated, in host memory: their rates are no GPU's."


def skip(why):
    print(f"{os.path.basename(sys.argv[0])}: {why}")
    sys.exit(77)


try:
    import pyte
    from PIL import Image, ImageDraw, ImageFont, PngImagePlugin
except ImportError:
    environment = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build-deps/python/bin/python")
    if "TOP_PICTURE" in os.environ or not os.path.exists(environment):
        skip("pyte or Pillow are not there: scripts/python installs them")
    os.environ["TOP_PICTURE"] = "again"
    os.execv(environment, [environment, "-B", *sys.argv])


# ---- what is to be seen ----

# Of the screen's lines; each must be there at the same time.
WANTED = {
    "the head": r"^gaia top - [0-9:]+, /mnt/data, daemon [0-9]+",
    "a simulated device": r"^sim0 .*[KM] +[0-9.]+[KM]  simulated$",
    "acquires": r"^call acquire ",
    "a client that writes, and what it waits for": r"^[0-9]+ +0 .*(storage|device) [0-9.]+%",
    "a client that reads, with memory of its own": rf"^[0-9]+ +{READER} +16.0M +[0-9.]+M +0 +[1-9][0-9.]*M ",
    "the user": rf"^{READER} +1 ",
    "the file that is written": r"^ +[0-9.]+M +16.0M +[0-9.]+M .* [0-9]+  /mnt/data/weights.bin$",
    "the file that is read": r"^ +[0-9.]+M +16.0M +[0-9.]+M +16.0M .* [0-9]+  /mnt/data/tiles.bin$",
    "what is moved for it": r"^ +[0-9.]+[KM] +[0-9.]+[KM] +[0-9.]+[KM] .*[KM]  /mnt/data/weights.bin$",
}


def missing(display):
    return [what for what, pattern in WANTED.items() if not any(re.search(pattern, line.rstrip()) for line in display)]


def headings(display):
    """The first words of tables, which documents name; that of workers is there only when they have something to do."""
    found = [line.split()[0] for before, line in zip(display, display[1:]) if not before.strip() and line.strip()]
    return [word for word in found if word not in ("WORKERS", CAPTION.split()[0])]


# ---- the run ----

class Screen:
    """gaia top in a terminal."""

    def __init__(self, build):
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("LINES", "COLUMNS")}
        # A terminal that does no more than pyte knows.
        environment.update(TERM="linux", LC_ALL="C.UTF-8")
        self.process = subprocess.Popen([f"{build}/client/gaia", "top", "/mnt/data", "1"], stdin=theirs, stdout=theirs, stderr=theirs,
                                        env=environment, start_new_session=True)
        os.close(theirs)

    def show_until_complete(self):
        """What is missing, in the end. Looks when nothing more comes for a moment: then the screen is a whole one."""
        end, turn = time.monotonic() + 60, 0
        while time.monotonic() < end:
            # This program is one of those that write with the CPU: so there is something to bring to the device.
            turn += 1
            change("/mnt/data/weights.bin", turn)
            if select.select([self.ours], [], [], 0.2)[0]:
                try:
                    self.stream.feed(os.read(self.ours, 65536))
                except OSError:
                    return ["gaia top itself, which has ended: " + "\n".join(self.screen.display).rstrip()]
            elif not missing(self.screen.display):
                return []
        return missing(self.screen.display) + ["\n".join(line.rstrip() for line in self.screen.display)]

    def end(self):
        if self.process.poll() is None:
            os.write(self.ours, b"q")
        status = self.process.wait(timeout=60)
        os.close(self.ours)
        return status


def be_apart():
    """In a mount namespace of our own from now on."""
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        skip("it needs /dev/fuse, and root")
    if os.environ.get("TOP_PICTURE") != "apart":
        os.environ["TOP_PICTURE"] = "apart"
        # Copies of others' mounts would keep these from ending.
        lib = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "lib.sh")
        os.execvp("unshare", ["unshare", "--mount", "bash", "-c", '. "$0"; let_go_of_mounts; exec "$@"', lib, sys.executable, "-B", *sys.argv])


def change(path, turn):
    """Some bytes of every 16th page."""
    with open(path, "r+b", buffering=0) as file:
        for at in range(0, 16 * MIB, 16 * 4096):
            os.pwrite(file.fileno(), bytes([turn % 256]) * 64, at + 1)


def worker(program, file, device, size, uid=None):
    process = subprocess.Popen([program, file, str(device), str(size), "100"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=uid, group=uid,
                               extra_groups=None if uid is None else [])
    if process.stdout.readline() != b"working\n":
        sys.exit("top_picture: a client does not work")
    return process


@contextlib.contextmanager
def working(build, program, *options):
    """/mnt/data is mounted, in a mount namespace of our own, and clients work there."""
    source = tempfile.mkdtemp(prefix="gaiafs-picture.")
    clients = []
    try:
        os.chmod(source, 0o755)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1M,mode=755", "none", "/mnt"], check=True)
        os.mkdir("/mnt/data")
        subprocess.run([f"{build}/daemon/gaiafs", "--device", "sim:64M,count=2,readonly=off", "--home", "256M", "--cpu-cache", "writethrough", "-o", "allow_other",
                        *options, source, "/mnt/data"], check=True, stderr=subprocess.DEVNULL)
        for name in ("weights.bin", "tiles.bin"):
            with open(f"/mnt/data/{name}", "wb") as file:
                file.write(os.urandom(16 * MIB))
        clients = [worker(program, "/mnt/data/weights.bin", 0, 2 * MIB), worker(program, "/mnt/data/tiles.bin", 1, 4 * MIB, READER)]
        yield
    finally:
        for client in clients:
            client.stdin.close()
            client.wait(timeout=60)
        if os.path.ismount("/mnt/data"):
            subprocess.run([f"{build}/client/gaia", "umount", "/mnt/data"], check=False)
        shutil.rmtree(source, ignore_errors=True)


def take(build, program):
    """The screen of a run."""
    with working(build, program):
        screen = Screen(build)
        lacks = screen.show_until_complete()
        if screen.end() != 0:
            lacks.append("a good end")
    if lacks:
        sys.exit("top_picture: the screen never showed " + ", ".join(lacks))
    return screen.screen


# ---- the picture ----

def load_font(size):
    try:
        return ImageFont.truetype(FONT, size)
    except OSError:
        return skip(f"the font {FONT} is not there (the package fonts-dejavu-core)")


def draw(screen):
    font = load_font(13)
    used = max(k for k, line in enumerate(screen.display) if line.strip()) + 1
    width, height, margin = round(font.getlength("M")), 16, 10
    size = (COLUMNS * width + 2 * margin, (used + 2) * height + 2 * margin)
    image = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(image)
    for y in range(used):
        for x in range(COLUMNS):
            cell = screen.buffer[y][x]
            paper, ink = (INK, PAPER) if cell.reverse else (PAPER, INK)
            at = (margin + x * width, margin + y * height)
            if cell.reverse:
                pen.rectangle([at, (at[0] + width - 1, at[1] + height - 1)], fill=paper)
            if cell.data.strip():
                pen.text(at, cell.data, font=font, fill=ink)
    pen.text((margin, margin + (used + 1) * height), CAPTION, font=font, fill=NOTE)
    return image.quantize(16)


def save(image, screen, path):
    """With the screen's text in it, for those who cannot see it, and to be compared."""
    notes = PngImagePlugin.PngInfo()
    notes.add_text("Description", "\n".join(line.rstrip() for line in screen.display).rstrip() + "\n\n" + CAPTION)
    image.save(path, optimize=True, pnginfo=notes)


def check_picture(path, display):
    """What is wrong with it, beside the screen of this run."""
    wrong = []
    with Image.open(path) as image:
        image.load()
        text = image.text.get("Description", "").split("\n")
        colours = len(image.getcolors(256) or [])
        if image.format != "PNG" or colours < 3:
            wrong.append(f"it is no drawn PNG: {image.format}, {colours} colours")
    if os.path.getsize(path) > MOST_BYTES:
        wrong.append(f"it has {os.path.getsize(path)} bytes")
    if CAPTION not in text:
        wrong.append("it does not say that it shows simulated devices")
    if missing(text):
        wrong.append(f"it does not show {', '.join(missing(text))}")
    if headings(text) != headings(list(display)):
        wrong.append(f"its tables are {headings(text)}, and gaia top's {headings(list(display))}")
    return wrong


def main():
    build, program, kept = (os.path.abspath(path) for path in sys.argv[1:4])
    out = os.path.abspath(sys.argv[4]) if len(sys.argv) > 4 else None
    be_apart()
    screen = take(build, program)
    with tempfile.TemporaryDirectory() as directory:
        drawn = os.path.join(directory, "top.png")
        save(draw(screen), screen, drawn)
        wrong = [f"the picture drawn: {what}" for what in check_picture(drawn, screen.display)]
        if out and not wrong:
            shutil.copyfile(drawn, out)
        elif not out:
            wrong += [f"{kept}: {what}; scripts/pictures renews it" for what in check_picture(kept, screen.display)]
    for what in wrong:
        print(f"top_picture: {what}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
