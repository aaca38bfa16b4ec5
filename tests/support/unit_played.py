#!/usr/bin/env python3
"""unit_played.py BUILD - carry out the systemd unit's commands as systemd does, with what it says.

The lines are split and expanded by systemd's rules, the daemon reports to a NOTIFY_SOCKET of ours, and KillMode=process
means that a signal reaches it alone. Directories have blanks in their names.
"""

import contextlib
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60
SKIPPED = 77


class Unit:
    """One instance of the unit: gaiafs over `point`, with the variables of its configuration file."""

    all = []

    def __init__(self, build, directory, point, **variables):
        self.bin = f"{directory}/bin"
        self.point = point
        self.variables = variables
        self.lines = open(f"{build}/mount-helpers/gaiafs@.service", encoding="utf-8").read()
        # Anew, and so that lines of several writers are behind each other.
        self.name_of_log = f"{directory}/log"
        open(self.name_of_log, "w", encoding="utf-8").close()
        self.log = open(self.name_of_log, "a", encoding="utf-8")
        self.daemon = None
        Unit.all.append(self)

    def setting(self, name):
        """Without the "-" that has systemd go on as if the command had succeeded."""
        return re.search(rf"^{name}=-?(.*)$", self.lines, re.M).group(1)

    def configure(self):
        """Its configuration file, which may be missing."""
        if self.variables:
            with open(f"{self.bin}/unit.conf", "w", encoding="utf-8") as file:
                file.writelines(f"{name}={value}\n" for name, value in self.variables.items())

    def words(self, name):
        """systemd.service(5), "Command lines": $$ is $, also within quotes; other variables are not in ours."""
        words = []
        for word in shlex.split(self.setting(name)):
            word = re.sub("^/.*/bin/(gaiafs|gaia)$", rf"{self.bin}/\1", word).replace("%f", self.point)
            word = word.replace("/etc/gaiafs/%i.conf", f"{self.bin}/unit.conf")
            word = re.sub("/[^ ]*/bin/(gaia|gaiafs) ", rf"'{self.bin}'/\1 ", word).replace("%n", "gaiafs@played.service")
            words.append(word.replace("$$", "$"))
        return words

    def start(self):
        """Until it says that it is ready."""
        self.configure()
        name = f"{self.bin}/notify"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.bind(name)
            ready.settimeout(0.1)
            self.daemon = subprocess.Popen(self.words("ExecStart"), stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL,
                                           env=dict(os.environ, NOTIFY_SOCKET=name))
            said = b""
            until = time.monotonic() + PATIENCE_S
            while b"READY=1" not in said:
                with contextlib.suppress(TimeoutError):
                    said += ready.recv(4096)
                if b"READY=1" not in said:
                    expect(self.daemon.poll() is None, f"ExecStart ends before it is ready: {self.says()}")
                    expect(time.monotonic() < until, f"ExecStart is not ready: {self.says()}")

    def stop(self):
        """ExecStop's exit status, and what it says. MAINPID is in its environment if there is a main process."""
        environment = {name: value for name, value in os.environ.items() if name != "MAINPID"}
        if self.daemon:
            environment["MAINPID"] = str(self.daemon.pid)
        result = subprocess.run(self.words("ExecStop"), env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                check=False, timeout=PATIENCE_S)
        return result.returncode, result.stdout + result.stderr

    def reload(self):
        """ExecReload's exit status, and what it says."""
        self.configure()
        result = subprocess.run(self.words("ExecReload"), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                                timeout=PATIENCE_S)
        return result.returncode, result.stdout + result.stderr

    def stops(self):
        """Whether ExecStop succeeds. On a slow machine it says how much is left meanwhile."""
        status, said = self.stop()
        return status == 0 and "not stored" not in said

    def ended(self):
        """The daemon's exit status."""
        status = self.daemon.wait(PATIENCE_S)
        self.daemon = None
        return status

    def says(self):
        with open(self.name_of_log, encoding="utf-8") as log:
            return log.read()

    def kill(self):
        """Whatever it is at."""
        if self.daemon and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()


def expect(good, what):
    if not good:
        sys.exit(f"unit_played: {what}")


def byte_at(path, offset):
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(1)


def blanks_in_source(build, directory):
    """SOURCE is one word. Stopped, everything is stored and the mount is gone; after a crash the next start replaces it."""
    source, point = f"{directory}/my own  data", f"{directory}/mount point"
    os.mkdir(source)
    os.mkdir(point)
    unit = Unit(build, directory, point, SOURCE=source, OPTIONS="--device none --writeback-age 3600 -o 'noatime,ro'")
    unit.start()
    expect("noatime" in mounts()[point] and "ro" in mounts()[point], "OPTIONS are not split as words in quotes")
    unit.variables["home"] = "16M"
    expect(unit.reload() == (0, ""), "ExecReload fails")
    status = subprocess.run([f"{unit.bin}/gaia", "status", point], stdout=subprocess.PIPE, text=True, check=True).stdout
    expect(re.search(r"budget +16 MiB", status), f"ExecReload does not read the file again: {status}")
    unit.variables["home"] = "1"
    status, said = unit.reload()
    expect(status != 0 and "unit.conf:3: --home 1: not a size" in said, f"ExecReload does not say what is wrong: {said}")
    del unit.variables["home"]
    expect(unit.stops() and unit.ended() == 0, "ExecStop fails, though there is nothing to store")
    unit.variables["OPTIONS"] = "--device none --writeback-age 3600"
    unit.start()
    with open(f"{point}/file", "w", encoding="utf-8") as file:
        file.write("text")
        os.fsync(file.fileno())
    unit.daemon.send_signal(signal.SIGKILL)
    expect(unit.ended() == -signal.SIGKILL, "the daemon has not died")
    # Nobody is there to be stopped: systemd carries out ExecStop all the same, and the mount stays for the next.
    expect(unit.stop() == (0, ""), "ExecStop without a main process does something")
    expect(point in mounts(), "after a crash the mount does not stay for the next start")
    unit.start()
    expect(open(f"{point}/file", encoding="utf-8").read() == "text", "the next start does not replace the dead mount")
    with open(f"{point}/last", "w", encoding="utf-8") as file:
        file.write("last")
    expect(unit.stops(), "ExecStop fails, though everything can be stored")
    expect(point not in mounts(), "ExecStop leaves the mount")
    expect(open(f"{source}/last", encoding="utf-8").read() == "last", "ExecStop returns before everything is stored")
    expect(unit.ended() == 0, "the daemon fails after ExecStop")


def over_itself(build, directory):
    """Without a configuration file."""
    point = f"{directory}/itself"
    os.mkdir(point)
    unit = Unit(build, directory, point)
    unit.start()
    expect(point in mounts(), "without SOURCE it is not mounted over itself")
    expect(unit.stops() and unit.ended() == 0, "ExecStop fails, though there is nothing to store")


def full_source(build, directory, timeout):
    """A unit whose source has no room for what a device has changed. ExecStop has named the file and failed."""
    small, point = f"{directory}/small disk", f"{directory}/full mount"
    for path in small, point:
        os.makedirs(path, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4M", "none", small], check=True)
    with open(f"{small}/ballast", "wb") as file:
        file.write(bytes(2 << 20))
    unit = Unit(build, directory, point, SOURCE=small,
                OPTIONS=f"--device sim:8M --cpu-cache writethrough --writeback-age 3600 --unmount-timeout {timeout}")
    unit.start()
    with open(f"{point}/file", "wb") as file:
        file.truncate(4 << 20)
    subprocess.run([f"{build}/client/examples/increment", f"{point}/file"], check=True, stdout=subprocess.DEVNULL)
    status, said = unit.stop()
    expect(status != 0, "ExecStop does not fail where something cannot be stored")
    expect(re.search(rf"^gaia: {re.escape(point)}/file: .* not stored: No space left on device$", said, re.M),
           f"ExecStop does not name the file: {said}")
    expect(point in mounts() and byte_at(f"{point}/file", 3 << 20) == b"\1", "after ExecStop has failed the data cannot be read")
    # systemd goes on with this.
    unit.daemon.send_signal(signal.SIGTERM)
    return unit, small


def given_up(build, directory):
    unit, small = full_source(build, directory, "0.5")
    expect(unit.ended() == 1, "the daemon has lost something, and its exit status is not 1")
    expect("/full mount/file: some of what was written could not be stored and is lost" in unit.says(),
           f"the log does not name the file: {unit.says()}")
    expect(unit.point not in mounts(), "the mount is still there")
    subprocess.run(["umount", small], check=True)


def room_is_made(build, directory):
    unit, small = full_source(build, directory, "3600")
    until = time.monotonic() + PATIENCE_S
    while "tried again for 3600 s" not in unit.says():
        expect(unit.daemon.poll() is None, "the daemon does not try for --unmount-timeout")
        expect(time.monotonic() < until, f"the daemon does not say that it tries: {unit.says()}")
        select.select([], [], [], 0.01)
    os.unlink(f"{small}/ballast")
    expect(unit.ended() == 0, "the daemon fails, though everything could be stored in the end")
    expect(byte_at(f"{small}/file", 3 << 20) == b"\1", "the daemon ends before everything is stored")
    expect("is lost" not in unit.says(), "the log calls lost what is not")
    subprocess.run(["umount", small], check=True)


def mounts():
    """The gaiafs mounts here: {place: its options}."""
    found = {}
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        for line in table:
            fields = line.split()
            if " - fuse.gaiafs " in line:
                found[re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), fields[4])] = fields[5].split(",")
    return found


def main(build):
    if os.geteuid() != 0:
        print("skipped: a small file system needs root")
        sys.exit(SKIPPED)
    # What is mounted here is seen by nobody else; and copies of others' mounts would keep these from ending.
    if len(sys.argv) < 3:
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv, "inside"])
    for point in mounts():
        if not f"{os.getcwd()}/".startswith(f"{point}/"):
            subprocess.run(["umount", "-i", "-l", "--", point], stderr=subprocess.DEVNULL, check=False)
    with tempfile.TemporaryDirectory() as directory:
        directory = os.path.realpath(directory)
        os.mkdir(f"{directory}/bin")
        os.symlink(f"{build}/daemon/gaiafs", f"{directory}/bin/gaiafs")
        os.symlink(f"{build}/client/gaia", f"{directory}/bin/gaia")
        try:
            over_itself(build, directory)
            blanks_in_source(build, directory)
            given_up(build, directory)
            room_is_made(build, directory)
        finally:
            for unit in Unit.all:
                unit.kill()
            for point in mounts():
                if point.startswith(f"{directory}/"):
                    subprocess.run(["umount", "-i", "-l", "-f", "--", point], check=False)
            subprocess.run(["umount", "-l", f"{directory}/small disk"], stderr=subprocess.DEVNULL, check=False)


main(sys.argv[1])
