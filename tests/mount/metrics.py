#!/usr/bin/env python3
"""metrics.py BUILD DASHBOARD - what --metrics serves: OpenMetrics text that is right, to whom it should, and nothing else.

Status 77: skipped, the last line says why.
"""
import fcntl
import http.client
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time

failed = 0


def check(good, what):
    global failed
    if not good:
        print(f"metrics: {what}", file=sys.stderr)
        failed = 1


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def ask(connection, method="GET", url="/metrics"):
    connection.request(method, url)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.getheader("Content-Type")


SAMPLE = re.compile(r'(?P<name>[a-z_][a-z0-9_]*)(\{(?P<labels>[a-z_]+="(?:[^"\\]|\\.)*"(?:,[a-z_]+="(?:[^"\\]|\\.)*")*)\})? (?P<value>-?[0-9]+(\.[0-9]+)?)')
SUFFIX = {"counter": ["_total"], "gauge": [""], "info": ["_info"], "histogram": ["_bucket", "_count", "_sum"]}


def parse(text):
    """{sample: value} of OpenMetrics text, which is taken at its word: families are whole, and named as their types demand."""
    values, seen, family = {}, set(), {}
    lines = text.split("\n")
    check(lines[-2:] == ["# EOF", ""], "the text does not end with # EOF")
    for line in lines[:-2]:
        meta = re.fullmatch(r"# (TYPE|UNIT|HELP) (gaiafs_[a-z0-9_]+) (.+)", line)
        if meta and meta[1] == "TYPE":
            check(meta[2] not in seen, f"{meta[2]} comes twice")
            check(meta[3] in SUFFIX, f"{meta[2]} is a {meta[3]}")
            seen.add(meta[2])
            family = {"name": meta[2], "type": meta[3]}
        elif meta:
            check(meta[2] == family.get("name"), f"{line}: not of the family {family.get('name')}")
            check(meta[1] != "UNIT" or meta[2].endswith("_" + meta[3]), f"{meta[2]}: its name does not end with its unit {meta[3]}")
            family[meta[1]] = meta[3]
        else:
            sample = SAMPLE.fullmatch(line)
            check(sample, f"no sample: {line}")
            if sample:
                check(sample["name"] in [family["name"] + suffix for suffix in SUFFIX[family["type"]]], f"{line}: not of the family {family['name']}")
                check("HELP" in family, f"{family['name']} has no help")
                check(line.rsplit(" ", 1)[0] not in values, f"{line}: twice")
                values[line.rsplit(" ", 1)[0]] = float(sample["value"])
    return values


def check_conventions(text):
    """By promtool, if it is there. It knows the older text format only: that has no units, and puts a suffix of samples into the family's name."""
    promtool = shutil.which("promtool")
    if not promtool:
        print("promtool is not installed (Debian: prometheus): names are not checked by it")
        return
    plain, types = [], {}
    for line in text.splitlines():
        meta = re.fullmatch(r"# (TYPE|UNIT|HELP) (\S+) (.+)", line)
        if line == "# EOF" or (meta and meta[1] == "UNIT"):
            continue
        if meta:
            kind = types.setdefault(meta[2], meta[3])  # TYPE comes first
            name = meta[2] + {"counter": "_total", "info": "_info"}.get(kind, "")
            line = f"# {meta[1]} {name} {'gauge' if meta[1] == 'TYPE' and kind == 'info' else meta[3]}"
        plain.append(line + "\n")
    done = subprocess.run([promtool, "check", "metrics"], input="".join(plain), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    check(done.returncode == 0 and not done.stdout, f"promtool: {done.stdout}")


def check_histograms(values):
    """Buckets are cumulative and in order; the last is that of all, and the sum fits what is counted."""
    found = {}
    for sample, value in values.items():
        bucket = re.fullmatch(r'(gaiafs_\w+)_bucket\{(.*),le="(.*)"\}', sample)
        if bucket:
            found.setdefault((bucket[1], bucket[2]), []).append((float(bucket[3]), value))
    for (name, labels), buckets in found.items():
        check(buckets == sorted(buckets) and buckets == sorted(buckets, key=lambda one: one[1]), f"{name}{{{labels}}}: buckets are not cumulative")
        check(len(buckets) > 10 and buckets[-1][0] == float("inf"), f"{name}{{{labels}}}: no bucket for all")
        check(values.get(f"{name}_count{{{labels}}}") == buckets[-1][1], f"{name}{{{labels}}}: its count is not that of its last bucket")
        check((values.get(f"{name}_sum{{{labels}}}", -1) > 0) == (buckets[-1][1] > 0), f"{name}{{{labels}}}: its sum")
    return found


def loopback_up():
    """In a network namespace of its own, as scripts/test makes, it is down at first."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        flags = struct.unpack("16sh", fcntl.ioctl(any_socket, get_flags, struct.pack("16sh", b"lo", 0)))[1]
        if not flags & up:
            fcntl.ioctl(any_socket, set_flags, struct.pack("16sh", b"lo", flags | up))


def start(build, *options):
    """Mounts mnt. The daemon's status and messages."""
    done = subprocess.run([f"{build}/daemon/gaiafs", "--device", "sim:16M", *options, "below", "mnt"], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def stop(build):
    subprocess.run([f"{build}/client/gaia", "umount", "mnt"], check=True)


def wait_for(what, condition):
    end = time.monotonic() + 60
    while not condition():
        check(time.monotonic() < end, f"{what}: not within a minute")
        if time.monotonic() >= end:
            return
        time.sleep(0.02)


def served_text(build, dashboard):
    path = os.path.abspath("socket")
    status, messages = start(build, "--metrics", "unix:" + path)
    check(status == 0, f"does not start: {messages}")
    check(os.stat(path).st_mode & 0o777 == 0o600, "others can use the socket")
    connection = UnixConnection(path)
    code, text, kind = ask(connection)
    check(code == 200 and kind.startswith("application/openmetrics-text; version=1.0.0"), f"{code}, {kind}")
    before = parse(text)
    check_conventions(text)
    check(before.get("gaiafs_clients") == 0, "clients")
    check(before.get('gaiafs_device_capacity_bytes{device="sim0",kind="sim"}') == 16 << 20, "the device is not there")
    check(before.get('gaiafs_device_pin_share_bytes{device="sim0",kind="sim"}') == 8 << 20, "what pinned files may have is not there")
    check(before.get('gaiafs_device_capacity_bytes{device="host",kind="host"}', 0) > 0, "the host is not there as a device")
    check('gaiafs_device_cache_bytes{device="sim0",kind="sim"}' in before, "parked pages are not there")
    check('gaiafs_tier_page_seconds{tier="storage"}' in before, "tiers are not there")
    check(any(name.startswith("gaiafs_build_info{version=") for name in before), "no build")
    check("gaiafs_sim_in_seconds_total" in before, "nanoseconds are not seconds")

    # It counts, as gaia status does.
    with open("mnt/file", "wb", buffering=0) as file:
        file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    # A request is counted when its thread has done with it, which may be after its program goes on.
    kinds = (("request", 'request="open"'), ("request", 'request="fsync"'), ("storage", 'call="sync"'))
    counts = [f"gaiafs_{name}_duration_seconds_count{{{kind}}}" for name, kind in kinds]
    after = {}

    def counted():
        after.clear()
        after.update(parse(ask(connection)[1]))
        return all(after.get(one, 0) > before.get(one, -1) for one in counts)
    wait_for(f"all of {counts} count", counted)
    told = json.loads(subprocess.run([f"{build}/client/gaia", "status", "mnt", "--json"], capture_output=True, check=True).stdout)
    for name, value in told["counters"].items():
        if name.startswith("dedup_"):
            check(f"gaiafs_{name}_total" not in after, f"counter {name} tells everybody what others have")
        elif not name.endswith("_ns"):
            check(after.get(f"gaiafs_{name}_total") is not None, f"counter {name} is not served")
    check(after["gaiafs_home_budget_bytes"] == told["home"]["budget"], "home's budget")
    check(set(before) == set(after), "not always the same samples")
    check(len(check_histograms(after)) > 30, "histograms are missing")
    check(all(after[name] >= before[name] for name in after if name.endswith("_total")), "a counter went back")
    for word in (os.path.basename(os.getcwd()), "below", "mnt", "pid", "uid"):
        check(word not in ask(connection)[1], f"the text names {word}")

    # Nothing else is served, and who asks for too much harms nobody.
    check(ask(connection, url="/")[0] == 404, "/")
    check(ask(connection, method="POST")[0] == 405, "POST")
    connection.close()
    check(ask(UnixConnection(path), method="HEAD")[:2] == (200, ""), "HEAD")
    idle = []
    for _ in range(64):
        one = socket.socket(socket.AF_UNIX)
        one.settimeout(5)
        try:
            one.connect(path)
            one.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x: " + b"y" * 20000)
        except OSError:
            pass
        idle.append(one)
    for one in idle:
        one.close()
    wait_for("others are answered after 64 bad requests", lambda: answers(path))

    with open(dashboard, encoding="utf-8") as file:
        wanted = set(re.findall(r"\bgaiafs_[a-z_]+", " ".join(target["expr"] for panel in json.load(file)["panels"] for target in panel["targets"])))
    check(len(wanted) > 10, "the dashboard shows nothing")
    served = {name.split("{")[0] for name in after}
    check(wanted <= served, f"the dashboard shows what is not served: {sorted(wanted - served)}")
    stop(build)
    wait_for("the socket goes with the daemon", lambda: not os.path.exists(path))


def answers(path):
    try:
        return ask(UnixConnection(path))[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
        return True
    except OSError:
        return False


def told_who_may_read(build):
    """A warning, and no less than that, where others than programs of this machine reach the address; and none elsewhere."""
    port = free_port()
    for address, reach, warned in (("0.0.0.0", "127.0.0.2", True), ("[::]", "::1", True), ("127.0.0.1", "127.0.0.1", False), ("127.0.0.3", "127.0.0.3", False),
                                   ("localhost", "127.0.0.1", False), ("[::1]", "::1", False)):
        if address[0] == "[" and not has_ipv6():
            print(f"there is no IPv6 here: {address} is not tried")
            continue
        where = f"{address}:{port}"
        status, messages = start(build, "--log-level", "warn", "--metrics", where)
        check(status == 0, f"{where}: does not start: {messages}")
        lines = [line for line in messages.splitlines() if "--metrics" in line]
        if warned:
            check(len(lines) == 1 and f"--metrics {where}: " in lines[0] and "nothing protects" in lines[0], f"{where}: no warning: {messages!r}")
        else:
            check(lines == [], f"{where}: {messages}")
        check(ask(http.client.HTTPConnection(reach, port, timeout=60))[0] == 200, f"{where}: {reach} is not answered")
        stop(build)
    status, messages = start(build, "--log-level", "debug", "--metrics", "unix:" + os.path.abspath("socket"))
    check(status == 0 and "nothing protects" not in messages and "home: " in messages, f"a socket of its owner's: {messages}")
    stop(build)


def free_port():
    with socket.socket() as one:
        one.bind(("0.0.0.0", 0))
        return one.getsockname()[1]


def addresses(build):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, messages = start(build, "--metrics", str(port))
        check(status != 0 and f"--metrics {port}: Address already in use" in messages, f"a port that is taken: {messages}")
        check(not os.path.ismount("mnt"), "mounted, though it failed")
    status, messages = start(build, "--metrics", str(port))
    check(status == 0 and "nothing protects" not in messages, f"does not start: {messages}")
    check(ask(http.client.HTTPConnection("127.0.0.1", port, timeout=60))[0] == 200, "a port")
    try:
        with socket.create_connection(("127.0.0.2", port), timeout=5):
            check(False, "also listens elsewhere")
    except OSError:
        pass
    stop(build)
    told_who_may_read(build)
    for wrong, why in (("0", "port"), ("70000", "port"), ("unix:relative", "begin with /"), ("nonsense", "port"), (":9", "address"),
                       ("1.2.3.4:x", "port"), ("unix:/" + "x" * 200, "too long")):
        status, messages = start(build, "--metrics", wrong)
        check(status != 0 and len(messages.splitlines()) == 1 and why in messages, f"--metrics {wrong}: {messages}")
    # A socket that nobody listens at is replaced, a file is not, nor one that is in use.
    path = os.path.abspath("socket")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(path)
    check(start(build, "--metrics", "unix:" + path)[0] == 0, "a socket that was left is in the way")
    check(answers(path), "no answer at a replaced socket")
    os.makedirs("mnt2", exist_ok=True)
    os.makedirs("below2", exist_ok=True)
    second = subprocess.run([f"{build}/daemon/gaiafs", "--device", "none", "--metrics", "unix:" + path, "below2", "mnt2"], capture_output=True, text=True, check=False)
    check(second.returncode != 0 and "in use" in second.stderr, f"two at one socket: {second.stderr}")
    check(answers(path), "a second daemon has taken the socket")
    stop(build)
    wait_for("the socket goes with the daemon", lambda: not os.path.exists(path))
    with open(path, "w", encoding="utf-8") as file:
        file.write("precious")
    check(start(build, "--metrics", "unix:" + path)[0] != 0, "a file is in the way, and it starts")
    with open(path, encoding="utf-8") as file:
        check(file.read() == "precious", "a file was taken away")


def main():
    build, dashboard = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
    # What scripts/prometheus has fetched.
    os.environ["PATH"] += os.pathsep + os.path.join(os.path.dirname(dashboard), "../build-deps/prometheus")
    if not os.path.exists("/dev/fuse"):
        print("metrics: there is no /dev/fuse")
        return 77
    directory = tempfile.mkdtemp(prefix="gaiafs-metrics.")
    os.chdir(directory)
    os.mkdir("below")
    os.mkdir("mnt")
    try:
        status, messages = start(build, "--metrics", "unix:" + os.path.abspath("probe"))
        if "built without libmicrohttpd" in messages:
            print("metrics: built without libmicrohttpd")
            return 77
        check(status == 0, messages)
        stop(build)
        loopback_up()
        served_text(build, dashboard)
        addresses(build)
    finally:
        for name in ("mnt", "mnt2"):
            if os.path.ismount(name):
                subprocess.run(["umount", "-l", name], check=False)
        os.chdir("/")
        shutil.rmtree(directory, ignore_errors=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
