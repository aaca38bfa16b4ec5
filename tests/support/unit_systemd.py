#!/usr/bin/env python3
"""unit_systemd.py BUILD - the systemd unit under systemd itself, which is process 1 of a container.

The container has name spaces of its own for processes, mounts and control groups, and no units but ours and the targets that
these need. What it mounts goes with it; it cannot change the machine's settings (/proc/sys is read-only there).

This program is run three times: on the machine, where it makes the container and looks at what is left; as "init", which prepares
the container and becomes systemd; and as "scenario", a service that starts and stops units, and then ends systemd.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60
SKIPPED = 77
# What a unit gets that says nothing of it. Ours say more.
DEFAULT_STOP_S = 2
TARGETS = ["basic", "exit", "final", "local-fs", "local-fs-pre", "paths", "shutdown", "slices", "sockets", "sysinit", "timers",
           "umount"]


class Failed(Exception):
    pass


def expect(good, what):
    if not good:
        raise Failed(what)


def wait_for(what, condition, patience=PATIENCE_S):
    until = time.monotonic() + patience
    while not condition():
        expect(time.monotonic() < until, f"in {patience} s this has not come about: {what}")
        time.sleep(0.02)


def text_of(path):
    with contextlib.suppress(FileNotFoundError):
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    return ""


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


# ---- init ----


def mount(*args):
    subprocess.run(["mount", *args], check=True)


def own_groups():
    """Below the group that we are in, in the one hierarchy that systemd needs."""
    second = not os.path.isdir("/sys/fs/cgroup/systemd")
    subprocess.run(["umount", "-l", "/sys/fs/cgroup"], check=True)
    if second:
        mount("-t", "cgroup2", "none", "/sys/fs/cgroup")
        return
    mount("-t", "tmpfs", "none", "/sys/fs/cgroup")
    os.mkdir("/sys/fs/cgroup/systemd")
    mount("-t", "cgroup", "-o", "none,name=systemd", "none", "/sys/fs/cgroup/systemd")


def write_units(build, directory):
    """Ours as it is installed, but for its paths, and with its log in a file; and what starts it."""
    units = f"{directory}/units"
    for name in [f"{target}.target" for target in TARGETS] + ["systemd-exit.service"]:
        shutil.copy(f"/lib/systemd/system/{name}", units)
    ours = text_of(f"{build}/mount-helpers/gaiafs@.service")
    ours = re.sub(r"/\S*/bin/(gaia|gaiafs)\b", rf"{directory}/bin/\1", ours).replace("/etc/gaiafs/", f"{directory}/conf/")
    write(f"{units}/gaiafs@.service", ours)
    os.mkdir(f"{units}/gaiafs@.service.d")
    write(f"{units}/gaiafs@.service.d/log.conf", f"[Service]\nStandardOutput=append:{directory}/log\n")
    write(f"{units}/scenario.service",
          f"[Service]\nExecStart={sys.executable} -B {__file__} {build} scenario {directory}\nStandardOutput=append:{directory}/said\n")
    write(f"{units}/scenario.target", "[Unit]\nWants=scenario.service\nRequires=basic.target\n")


def init(build, directory):
    mount("--make-rprivate", "/")
    # Copies of mounts of others would keep these from ending.
    for line in text_of("/proc/self/mountinfo").splitlines():
        if " - fuse.gaiafs " in line:
            subprocess.run(["umount", "-i", "-l", "--", line.split()[4]], stderr=subprocess.DEVNULL, check=False)
    mount("--bind", "/proc/sys", "/proc/sys")
    mount("-o", "remount,bind,ro", "/proc/sys")
    mount("-t", "tmpfs", "none", "/run")
    mount("-t", "tmpfs", "none", "/etc/systemd")
    write("/etc/systemd/system.conf", f"[Manager]\nDefaultTimeoutStopSec={DEFAULT_STOP_S}s\n")
    own_groups()
    write_units(build, directory)
    # Only these: the machine's are not read.
    environment = dict(os.environ, container="gaiafs-test", SYSTEMD_UNIT_PATH=f"{directory}/units", SYSTEMD_LOG_TARGET="console")
    os.execve("/lib/systemd/systemd", ["systemd", "--system", "--unit=scenario.target", "--show-status=no"], environment)


# ---- the scenario, in the container ----


class Unit:
    """One instance."""

    def __init__(self, directory, name, **variables):
        self.point = f"{directory}/{name}"
        self.log = f"{directory}/log"
        os.mkdir(self.point)
        instance = subprocess.run(["systemd-escape", "--path", self.point], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        self.name = f"gaiafs@{instance}.service"
        self.conf = f"{directory}/conf/{instance}.conf"
        write(self.conf, "".join(f"{name}={value}\n" for name, value in variables.items()))

    def control(self, verb):
        return subprocess.run(["systemctl", verb, self.name], stdin=subprocess.DEVNULL, check=False).returncode

    def shows(self, what):
        return subprocess.run(["systemctl", "show", "--value", "-p", what, self.name], stdout=subprocess.PIPE, text=True,
                              check=True).stdout.strip()

    def is_mounted(self):
        return f" {self.point} " in text_of("/proc/self/mountinfo")

    def starts(self):
        expect(self.control("start") == 0, f"systemctl start {self.name} fails: {text_of(self.log)}")
        expect(self.shows("ActiveState") == "active" and self.is_mounted(), "systemctl start returns before it is mounted")


def read_again(directory):
    """systemctl reload changes what it can, and fails with a file that is wrong."""
    unit = Unit(directory, "reload", device="none", home="16M")
    unit.starts()
    write(f"{unit.conf}", "device=none\nhome=24M\n")
    expect(unit.control("reload") == 0, f"systemctl reload fails: {text_of(unit.log)}")
    expect("read again" in text_of(unit.log), "systemctl reload does not read the file again")
    write(f"{unit.conf}", "device=none\nhome=x\n")
    expect(unit.control("reload") != 0 and ".conf:2: --home x: not a size" in text_of(unit.log),
           f"systemctl reload succeeds with a file that is wrong: {text_of(unit.log)}")
    expect(unit.shows("ActiveState") == "active" and unit.is_mounted(), "a reload that fails has an effect")
    expect(unit.control("stop") == 0, "it cannot be stopped after a reload")


def after_a_crash(directory):
    """It is started again, and replaces the dead mount. Stopped, everything has been stored."""
    source = f"{directory}/my own data"
    os.mkdir(source)
    unit = Unit(directory, "crash", SOURCE=source, OPTIONS="--device none --writeback-age 3600")
    unit.starts()
    with open(f"{unit.point}/file", "w", encoding="utf-8") as file:
        file.write("text")
        os.fsync(file.fileno())
    os.kill(int(unit.shows("MainPID")), 9)
    wait_for("systemd starts it again after a crash", lambda: unit.shows("NRestarts") == "1" and unit.shows("ActiveState") == "active")
    expect(text_of(f"{unit.point}/file") == "text", "the mount of after a crash does not serve")
    write(f"{unit.point}/last", "last")
    expect(unit.control("stop") == 0 and unit.shows("ActiveState") == "inactive" and unit.shows("Result") == "success",
           "it cannot be stopped, though everything can be stored")
    expect(not unit.is_mounted() and text_of(f"{source}/last") == "last", "it is stopped before everything is stored")


def upgraded(directory, build):
    """Another daemon is the main process then; nothing else has changed."""
    source = f"{directory}/upgraded data"
    os.mkdir(source)
    unit = Unit(directory, "upgraded", SOURCE=source, OPTIONS="--device none --writeback-age 3600")
    unit.starts()

    def upgrade():
        return subprocess.run([f"{build}/daemon/gaiafs", "--upgrade", unit.point], check=False).returncode

    with open(f"{unit.point}/file", "w+", encoding="utf-8") as file:
        for n in range(3):
            before = unit.shows("MainPID")
            file.write(f"{n}")
            file.flush()
            expect(upgrade() == 0, f"gaiafs --upgrade fails: {text_of(unit.log)}")
            wait_for("systemd knows the new daemon", lambda: unit.shows("MainPID") not in ("0", before))
            expect(unit.shows("ActiveState") == "active" and unit.shows("NRestarts") == "0", "after an upgrade it is not active")
            wait_for("the old daemon ends", lambda: not os.path.exists(f"/proc/{before}"))
            file.seek(0)
            expect(file.read() == "012"[:n + 1], "what was open before is not the same file any more")
    os.kill(int(unit.shows("MainPID")), 9)
    wait_for("systemd starts it again after a crash", lambda: unit.shows("NRestarts") == "1" and unit.shows("ActiveState") == "active")
    expect(upgrade() == 0, f"gaiafs --upgrade fails after a crash: {text_of(unit.log)}")
    expect(unit.control("stop") == 0 and unit.shows("Result") == "success" and not unit.is_mounted(), "it cannot be stopped after an upgrade")
    expect(text_of(f"{source}/file") == "012", "something is lost")


def restarted(directory, build):
    """systemctl restart hands the mount over: programs notice nothing, and options are as the file has them now."""
    source = f"{directory}/restarted data"
    os.mkdir(source)
    unit = Unit(directory, "restarted", SOURCE=source, device="sim:8M", home="16M")
    unit.starts()

    def status(path=unit.point):
        return subprocess.run([f"{build}/client/gaia", "status", path], stdout=subprocess.PIPE, text=True, check=True).stdout

    with open(f"{unit.point}/file", "w+", encoding="utf-8") as file:
        for n in range(3):
            before = unit.shows("MainPID")
            file.write(f"{n}")
            file.flush()
            write(unit.conf, f"SOURCE={source}\ndevice=sim:8M\nhome={24 + n}M\n")
            expect(unit.control("restart") == 0, f"systemctl restart fails: {text_of(unit.log)}")
            expect(unit.shows("MainPID") not in ("0", before), "after a restart the main process is the one of before")
            expect(unit.shows("ActiveState") == "active" and unit.shows("NRestarts") == "0", "after a restart it is not active")
            expect(re.search(rf"budget +{24 + n} MiB", status()), f"a restart does not read the file again: {status()}")
            wait_for("the old daemon ends", lambda: not os.path.exists(f"/proc/{before}"))
            file.seek(0)
            expect(file.read() == "012"[:n + 1], "what was open before is not the same file any more")
    # systemd watches it: after a crash it starts another.
    os.kill(int(unit.shows("MainPID")), 9)
    wait_for("systemd starts it again after a crash", lambda: unit.shows("NRestarts") == "1" and unit.shows("ActiveState") == "active")
    expect(text_of(f"{unit.point}/file") == "012", "something is lost")
    expect(unit.control("reset-failed") == 0, "its count of starts cannot be reset")
    # What keeps it from being upgraded does not keep it from being restarted.
    subprocess.run([f"{build}/client/gaia", "pin", f"{unit.point}/file"], check=True)
    expect(unit.control("restart") == 0 and unit.shows("ActiveState") == "active", f"systemctl restart fails: {text_of(unit.log)}")
    expect("1 file is pinned to a device" in text_of(unit.log), "it is handed over, and loses its pins")
    expect(text_of(f"{unit.point}/file") == "012", "something is lost")
    # What another mount takes is one. Another command is for the next start.
    os.mkdir(f"{directory}/elsewhere")
    write(f"{directory}/elsewhere/other", "other")
    write(unit.conf, f"SOURCE={directory}/elsewhere\n")
    expect(unit.control("reset-failed") == 0 and unit.control("restart") == 0, f"systemctl restart fails: {text_of(unit.log)}")
    expect(text_of(f"{unit.point}/other") == "other" and "that takes another mount" in text_of(unit.log), "after a restart it has the source of before")
    drop_in = f"{directory}/units/gaiafs@.service.d/command.conf"
    write(drop_in, "[Service]\nExecStart=\n" + re.search("^ExecStart=.*", text_of(f"{directory}/units/gaiafs@.service"), re.M)[0]
          .replace("--foreground", "--foreground --home 32M") + "\n")
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    expect(unit.control("restart") == 0 and "the unit's command is another now" in text_of(unit.log), "that a restart keeps the old command is not said")
    expect(text_of(f"{unit.point}/other") == "other", "after a restart with another command it does not serve")
    os.unlink(drop_in)
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    write(unit.conf, f"SOURCE={source}\n")
    expect(unit.control("stop") == 0 and unit.control("start") == 0, "it cannot be stopped and started")
    # A process of another unit is not this one's. It ends with it.
    other = Unit(directory, "other", SOURCE=source)
    os.rmdir(other.point)
    os.symlink(unit.point, other.point)
    expect(other.control("start") != 0 and "already mounted" in text_of(other.log), "a unit takes another's mount")
    expect(unit.control("stop") == 0 and unit.shows("Result") == "success" and not unit.is_mounted(), "it cannot be stopped after restarts")
    expect(text_of(f"{source}/file") == "012", "something is lost")


def without_its_device(directory):
    """It fails, says why, and is not tried again and again."""
    unit = Unit(directory, "device", OPTIONS="--device cuda:99")
    expect(unit.control("start") != 0, "it can be started without its device")
    expect(unit.shows("ActiveState") == "failed" and unit.shows("NRestarts") == "0", "it is started again, though it cannot start")
    expect("device cuda99" in text_of(unit.log) and not unit.is_mounted(), f"the log does not name the device: {text_of(unit.log)}")


def full(directory, build, name, small, timeout):
    """A unit with changes of a device for which its source has no room."""
    unit = Unit(directory, name, SOURCE=small,
                OPTIONS=f"--device sim:8M --cpu-cache writethrough --writeback-age 3600 --unmount-timeout {timeout}")
    unit.starts()
    with open(f"{unit.point}/file", "wb") as file:
        file.truncate(4 << 20)
    subprocess.run([f"{build}/client/examples/increment", f"{unit.point}/file"], check=True, stdout=subprocess.DEVNULL)
    return unit


def stopped_with_losses(directory, build):
    small = f"{directory}/another small disk"
    os.mkdir(small)
    mount("-t", "tmpfs", "-o", "size=2M", "none", small)
    write(f"{small}/ballast", " " * (1 << 20))
    unit = full(directory, build, "losses", small, "0.5")
    unit.control("stop")
    expect(unit.shows("ActiveState") == "failed" and unit.shows("Result") != "success", "the unit has not failed, and something is lost")
    expect(re.search(rf"^gaia: {re.escape(unit.point)}/file: .* not stored: No space left on device$", text_of(unit.log), re.M),
           f"the log does not name what could not be stored: {text_of(unit.log)}")
    expect("/losses/file: some of what was written could not be stored and is lost" in text_of(unit.log),
           f"the log does not name what is lost: {text_of(unit.log)}")
    expect(not unit.is_mounted(), "it is stopped, and still mounted")


def scenario(build, directory):
    verdict = "the scenario does not come to its end"
    try:
        read_again(directory)
        after_a_crash(directory)
        upgraded(directory, build)
        restarted(directory, build)
        without_its_device(directory)
        stopped_with_losses(directory, build)
        # For the end of all: see main().
        full(directory, build, "end", f"{directory}/small disk", "3600")
        verdict = "done"
    except Failed as failure:
        verdict = str(failure)
    finally:
        # Whole or not at all: somebody looks for it.
        write(f"{directory}/verdict.new", verdict)
        os.rename(f"{directory}/verdict.new", f"{directory}/verdict")
        subprocess.run(["systemctl", "exit", "--no-block"], check=False)


# ---- on the machine ----


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


class Group:
    """A control group for the container."""

    def __init__(self):
        top = "/sys/fs/cgroup/systemd" if os.path.isdir("/sys/fs/cgroup/systemd") else "/sys/fs/cgroup"
        self.path = f"{top}/gaiafs-unit-{os.getpid()}"
        try:
            os.mkdir(self.path)
        except OSError as error:
            skip(f"no control group can be made: {error}")

    def join(self):
        write(f"{self.path}/cgroup.procs", "0")

    def is_gone(self):
        """What dies may take a moment to leave it."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        return not os.path.exists(self.path)


def container(build, directory, group):
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--cgroup", "--uts", "--ipc",
               sys.executable, "-B", __file__, build, "init", directory]
    with open(f"{directory}/said", "a", encoding="utf-8") as said:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=group.join)


def watch(directory, process):
    """Make room when the container ends, and its last unit has been trying to store for longer than units that say nothing of it may."""

    def at_its_end():
        return "tried again for 3600 s" in text_of(f"{directory}/log") or process.poll() is not None

    wait_for("the scenario ends", lambda: os.path.exists(f"{directory}/verdict") or process.poll() is not None, 3 * PATIENCE_S)
    verdict = text_of(f"{directory}/verdict")
    if not verdict:
        skip(f"systemd does not run here as process 1 of a container: {text_of(f'{directory}/said')[-500:]!r}")
    expect(verdict == "done", verdict)
    wait_for("the last unit is stopped, and tries", at_its_end)
    time.sleep(2 * DEFAULT_STOP_S)
    expect(process.poll() is None, "systemd ends while the daemon is still trying to store")
    os.unlink(f"{directory}/small disk/ballast")
    process.wait(PATIENCE_S)
    with open(f"{directory}/small disk/file", "rb") as file:
        file.seek(3 << 20)
        expect(file.read(1) == b"\1", "systemd ends before everything is stored")
    expect("/end/file: some of what was written" not in text_of(f"{directory}/log"), "at the end something is lost")


def main(build):
    if os.geteuid() != 0:
        skip("a container needs root")
    for program in "/lib/systemd/systemd", shutil.which("systemctl"), shutil.which("unshare"):
        if not program or not os.path.exists(program):
            skip("systemd or unshare is not installed")
    # So that a test that is ended ends its container.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("unit_systemd: ended"))
    group = Group()
    with tempfile.TemporaryDirectory() as directory:
        directory = os.path.realpath(directory)
        for name in "bin", "conf", "units", "small disk":
            os.mkdir(f"{directory}/{name}")
        for program in "daemon/gaiafs", "client/gaia":
            os.symlink(f"{build}/{program}", f"{directory}/bin/{os.path.basename(program)}")
        mount("-t", "tmpfs", "-o", "size=4M", "none", f"{directory}/small disk")
        write(f"{directory}/small disk/ballast", " " * (2 << 20))
        process = container(build, directory, group)
        try:
            watch(directory, process)
        except (Failed, subprocess.TimeoutExpired) as failure:
            sys.exit(f"unit_systemd: {failure}\n{text_of(f'{directory}/log')}\n{text_of(f'{directory}/said')}")
        finally:
            process.kill()
            process.wait()
            subprocess.run(["umount", f"{directory}/small disk"], check=False)
            wait_for("the control group can be removed", group.is_gone)


if len(sys.argv) > 2:
    {"init": init, "scenario": scenario}[sys.argv[2]](sys.argv[1], sys.argv[3])
else:
    main(sys.argv[1])
