"""
Directories of files in which pages are equal as they are in practice, for scripts/bench tiers: images of disks, build trees, checkpoints.

What is made is the same each time, but for what this machine's /usr and compiler give.
"""

import concurrent.futures
import glob
import json
import os
import random
import re
import shutil
import stat
import subprocess

from systems import Lacking, run

PAGE = 4096
SOURCE = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), *[os.pardir] * 3))


def files_of(directory):
    """All files below, in an order that is always the same."""
    return sorted(os.path.join(at, name) for at, _, names in os.walk(directory) for name in names)


def pages_of(path):
    return (os.stat(path).st_size + PAGE - 1) // PAGE


def program(name):
    path = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not path:
        raise Lacking("%s is not installed" % name)
    return path


# ---- images of disks ----

ROOT = ["/usr/bin", "/usr/lib", "/usr/share"]
PLAIN = re.compile(r"[A-Za-z0-9._+/-]+")  # names that debugfs(8) takes as they are


def some_files(root, size):
    """The first files below by name that, with their directories, take so many bytes of a disk at most; none that would be an eighth of these."""
    found, directories = [], set()
    for at, names, files in os.walk(root):
        names.sort()
        for path in (os.path.join(at, name) for name in sorted(files)):
            status = os.lstat(path)
            takes = status.st_size + -status.st_size % PAGE
            within = {at[:n] for n, letter in enumerate(at + "/") if letter == "/"} - directories
            if not stat.S_ISREG(status.st_mode) or not PLAIN.fullmatch(path) or takes > size // 8 or not os.access(path, os.R_OK):
                continue
            takes += PAGE * len(within)
            if takes > size:
                return found
            size -= takes
            directories |= within
            found.append(path)
    return found


def edits(scratch, rng, tree, files):
    """Commands for debugfs(8): some files are written anew with one byte changed, as editors do, and one is added that nobody else has."""
    commands = []
    for n, path in enumerate(rng.sample(files, max(len(files) // 50, 1))):
        with open(tree + path, "rb") as file:
            data = bytearray(file.read())
        if data:
            data[rng.randrange(len(data))] ^= 1
        changed = os.path.join(scratch, "changed-%d" % n)
        with open(changed, "wb") as file:
            file.write(data)
        commands += ["cd %s" % os.path.dirname(path), "rm %s" % os.path.basename(path), 'write "%s" %s' % (changed, os.path.basename(path))]
    added = os.path.join(scratch, "added")
    with open(added, "wb") as file:
        file.write(rng.randbytes(sum(os.stat(tree + path).st_size for path in files) // 64))
    return commands + ["cd /", 'write "%s" added' % added]


def disk_images(directory, scratch, size, copies):
    """
    So many copies of a file system of this machine's programs, libraries and data, each of which is edited in place. @size: bytes of each,
    three quarters of which are files. It has no journal, which would be zeros, and a quarter of a file system as small.
    """
    mkfs, debugfs = program("mkfs.ext4"), program("debugfs")
    tree, first = os.path.join(scratch, "tree"), os.path.join(directory, "image-0")
    files = [path for root in ROOT for path in some_files(root, size // 4)]
    if not files:
        raise Lacking("there are no files in %s" % ", ".join(ROOT))
    for path in files:
        os.makedirs(os.path.dirname(tree + path), exist_ok=True)
        shutil.copyfile(path, tree + path)
    run(mkfs, "-q", "-F", "-b", str(PAGE), "-O", "^has_journal", "-m", "0", "-d", tree, first, "%dk" % (size >> 10), timeout=300)
    for copy in range(1, copies):
        shutil.copyfile(first, os.path.join(directory, "image-%d" % copy))
    for copy in range(copies):
        commands = os.path.join(scratch, "commands")
        with open(commands, "w") as file:
            file.write("\n".join(edits(scratch, random.Random("image %d" % copy), tree, files)) + "\n")
        done = subprocess.run([debugfs, "-w", "-f", commands, os.path.join(directory, "image-%d" % copy)], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, timeout=300)
        said = done.stderr.splitlines()[1:]  # first it says which version it is
        if done.returncode or said:
            raise RuntimeError("debugfs: %s" % (" ".join(said) or "exit status %d" % done.returncode))


# ---- build trees ----

FLAGS = ["-std=gnu17", "-O1", "-g3", "-w", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Idaemon", "-Iinclude"]


def build_tree(directory, scratch, name, sources, edited):
    """Objects of the daemon's sources, built where they lie, with debug information, and what linking makes of them."""
    here, out = os.path.join(scratch, name), os.path.join(directory, name)
    os.makedirs(out)
    for part in "daemon", "include":
        shutil.copytree(os.path.join(SOURCE, part), os.path.join(here, part), ignore=lambda _, names: [
            one for one in names if "." in one and not one.endswith((".c", ".h"))])
    for n, path in enumerate(edited):
        with open(os.path.join(here, path), "r+") as file:
            text = file.read()
            file.seek(0)
            file.write("/* Edited. */\n" + text + "\nint edited_%d(int n)\n{\n\treturn n * %d;\n}\n" % (n, n + 2))
    objects = [os.path.join(out, os.path.basename(path)[:-1] + "o") for path in sources]

    def build(*args):
        done = subprocess.run([program("cc"), *args], cwd=here, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300)
        if done.returncode:
            raise RuntimeError("cc %s: %s" % (args[-1], done.stderr.strip()))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda path, made: build(*FLAGS, "-c", "-o", made, path), sources, objects))
    build("-nostdlib", "-r", "-o", os.path.join(out, "all.o"), *objects)


def build_trees(directory, scratch, count):
    """Two checkouts, of which one has edits in every tenth file, built at paths of different lengths. @count: of the daemon's sources, so many."""
    program("cc")
    sources = [os.path.relpath(path, SOURCE) for room in ("consistency", "policy", "pagecache")
               for path in sorted(glob.glob(os.path.join(SOURCE, "daemon", room, "*.c")))][:count]
    build_tree(directory, scratch, "main", sources, [])
    build_tree(directory, scratch, "topic-branch", sources, sources[4::10])


# ---- checkpoints ----

LAYERS = 40
FROZEN = 0.8


def checkpoint(path, tensors, note, alignment):
    """A file of safetensors. What comes before the tensors is a multiple of @alignment."""
    at, header = 0, {"__metadata__": {"note": note}}
    for n, tensor in enumerate(tensors):
        header["layer%d.weight" % n] = {"dtype": "U8", "shape": [len(tensor)], "data_offsets": [at, at + len(tensor)]}
        at += len(tensor)
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-(8 + len(raw)) % alignment)
    with open(path, "wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.writelines(tensors)


def checkpoints(directory, _scratch, size, count, packed):
    """
    So many checkpoints of one model, of whose layers four of five are frozen: the same in all. @packed: as the package safetensors writes them,
    so tensors begin anywhere, and every second file has a longer header; else as gaiafs.safetensors does: tensors of whole pages begin with a page.
    """
    rng = random.Random("frozen")
    lengths = [size // LAYERS // PAGE * PAGE + n % 8 * (1000 if packed else PAGE) for n in range(LAYERS)]
    frozen = [rng.randbytes(length) for length in lengths[:int(LAYERS * FROZEN)]]
    for k in range(count):
        rng = random.Random("checkpoint %d" % k)
        trained = [rng.randbytes(length) for length in lengths[len(frozen):]]
        note = "step %d" % (1000 * (k + 1)) + (", after warming up again" if packed and k % 2 else "")
        checkpoint(os.path.join(directory, "checkpoint-%d.safetensors" % k), frozen + trained, note, 8 if packed else PAGE)
