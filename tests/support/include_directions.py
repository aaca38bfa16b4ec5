#!/usr/bin/env python3
"""Who may include whom.

    include_directions.py ROOT          check the tree; says FILE:LINE for each offence
    include_directions.py --self-test   check that each kind of offence is found

fuse, control -> pagecache -> {consistency, policy, device, store} -> base, each free to use
anything to its right, fuse also control. Those in braces never each other. Client
and daemon share include/gaia/protocol.h only. client/compat stands on the public headers.
"""
import os
import re
import sys
import tempfile

BELOW = {}
BELOW["base"] = {"base"}
for room in ("consistency", "policy", "device", "store"):
    BELOW[room] = {room} | BELOW["base"]
BELOW["pagecache"] = {"pagecache", "consistency", "policy", "device", "store", "base"}
BELOW["control"] = {"control"} | BELOW["pagecache"]
BELOW["fuse"] = {"fuse"} | BELOW["control"]
BELOW["main"] = set(BELOW) | {"main"}  # main.c and options.c

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONCRETE = re.compile(r"\b(?:device|store)_[a-z0-9]+_create\s*\(")
CUDA = re.compile(r"^(cuda|cu(?!rses)|nv)[a-z_]*\.(h|hpp)$")
FUSE = re.compile(r"^(fuse3?/|linux/fuse|fuse(_\w+)?\.h$)")


def room_of(path):
    """The room of a file below daemon/, given relative to the root."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else "main"


def sources(root):
    for top in ("daemon", "client", "include"):
        for where, dirs, files in os.walk(os.path.join(root, top)):
            dirs.sort()
            for name in sorted(files):
                if name.endswith((".c", ".h", ".cu", ".cuh")):
                    yield os.path.relpath(os.path.join(where, name), root)


def resolve(root, path, name):
    """The file that path's #include of name means, relative to the root; None if not ours."""
    places = [os.path.dirname(path), "include"]
    if path.startswith("daemon/"):
        places.append("daemon")
    elif path.startswith("client/"):
        places.append("client")
    for place in places:
        found = os.path.normpath(os.path.join(place, name))
        if os.path.isfile(os.path.join(root, found)):
            return found
    return None


def check_daemon(path, target):
    if target.startswith("include/"):
        if target != "include/gaia/protocol.h":
            return "the daemon shares only gaia/protocol.h with clients"
        return None
    if not target.startswith("daemon/"):
        return "the daemon includes nothing of %s/" % target.split("/")[0]
    room, other = room_of(path), room_of(target)
    if room not in BELOW:
        return "%s/ is not a room that tests/support/include_directions.py knows" % room
    if other not in BELOW[room]:
        return "%s may not include %s" % (room, other)
    if other != room and os.path.basename(target) == "internal.h":
        return "the internals of %s are its own" % other
    if other != room and other == "pagecache" and target != "daemon/pagecache/cache.h":
        return "of pagecache others include cache.h only"
    return None


def check_client(path, target):
    if target.startswith("client/examples/") != path.startswith("client/examples/"):
        if target.startswith("client/"):
            return "examples stand alone"
    if path.startswith("client/examples/") and target == "include/gaia/protocol.h":
        return "examples use the public headers only"
    if target.startswith("include/umap/"):
        if not path.startswith(("client/compat/", "client/examples/")):
            return "only client/compat/ and examples know the interface of LLNL's UMap"
        return None
    if path.startswith("client/compat/") and not target.startswith("client/compat/") and target != "include/gaia/umap.h":
        return "client/compat/ stands on gaia/umap.h alone"
    if not target.startswith(("client/", "include/gaia/")):
        return "client and daemon share only gaia/protocol.h"
    return None


def check_include(path, name, target):
    cuda_file = re.match(r"^(daemon/device|client)/([a-z]+/)*[a-z_]*cuda", path)
    if CUDA.match(os.path.basename(name)) and target is None:
        if not cuda_file and path != "include/gaia/cuda.h":
            return "only the CUDA files include CUDA's headers"
    if FUSE.match(name) and not path.startswith("daemon/fuse/") and room_of(path) != "main":
        return "only fuse/ knows libfuse"
    if target is None:
        return None
    if path.startswith("daemon/"):
        return check_daemon(path, target)
    if path.startswith("client/"):
        return check_client(path, target)
    if not target.startswith("include/"):
        return "public headers include only each other"
    return None


def offences(root):
    for path in sources(root):
        inner = path.startswith("daemon/") and room_of(path) not in ("main", "device", "store")
        with open(os.path.join(root, path), encoding="utf-8") as f:
            for number, line in enumerate(f, 1):
                m = INCLUDE.match(line)
                if m:
                    target = resolve(root, path, m[2])
                    if m[1] == '"' and target is None:
                        what = 'no such file of ours; write <%s>, or mend the name' % m[2]
                    else:
                        what = check_include(path, m[2], target)
                    if what:
                        yield "%s:%d: includes %s: %s" % (path, number, m[2], what)
                elif inner and CONCRETE.search(line):
                    yield "%s:%d: only main.c and options.c name concrete devices and stores" % (
                        path, number)


def self_test():
    good = {
        "include/gaia/protocol.h": "",
        "include/gaia/client.h": "",
        "include/gaia/umap.h": "",
        "include/umap/umap.h": "#include <gaia/umap.h>\n",
        "client/compat/own.h": "",
        "client/compat/e.c": '#include "own.h"\n#include <umap/umap.h>\n#include <gaia/umap.h>\n',
        "daemon/base/log.h": "",
        "daemon/base/internal.h": "",
        "daemon/device/device.h": '#include "gaia/protocol.h"\n#include "base/log.h"\n',
        "daemon/store/store.h": "int store_dir_create(void);\n",
        "daemon/store/dir.c": '#include "store.h"\nint store_dir_create(void) { return 0; }\n',
        "daemon/consistency/merge.h": "#include <stdint.h>\n",
        "daemon/policy/policy.h": "#include <stdint.h>\n",
        "daemon/pagecache/cache.h": '#include "device/device.h"\n#include "store/store.h"\n'
                                     '#include "policy/policy.h"\n',
        "daemon/control/control.h": '#include "pagecache/cache.h"\n',
        "daemon/fuse/fuse.c": '#include <fuse_lowlevel.h>\n#include "control/control.h"\n',
        "daemon/main.c": '#include "store/store.h"\nint main(void) { store_dir_create(); }\n',
        "client/internal.h": '#include "gaia/client.h"\n#include "gaia/protocol.h"\n',
        "client/cuda.c": "#include <cuda_runtime_api.h>\n",
        "client/examples/e.c": "#include <gaia/client.h>\n#include <umap/umap.h>\n",
    }
    bad = {
        "daemon/base/a.c": '#include "store/store.h"\n',
        "daemon/device/a.c": '#include "store/store.h"\n',
        "daemon/store/a.c": '#include "consistency/merge.h"\n',
        "daemon/consistency/a.c": '#include "pagecache/cache.h"\n',
        "daemon/policy/a.c": '#include "consistency/merge.h"\n',
        "daemon/pagecache/a.c": '#include "../control/control.h"\n',
        "daemon/pagecache/b.c": '#include "base/internal.h"\n',
        "daemon/pagecache/c.c": "int x;\nvoid f(void) { store_dir_create(); }\n",
        "daemon/pagecache/d.c": "#include <fuse_lowlevel.h>\n",
        "daemon/control/a.c": '#include "gaia/client.h"\n',
        "daemon/fuse/a.c": '#include "client/internal.h"\n',
        "daemon/fuse/b.c": '#  include "../../client/internal.h"\n',
        "daemon/fuse/c.c": "#include <cuda.h>\n",
        "daemon/attic/a.c": '#include "base/log.h"\n',
        "client/a.c": '#include "../daemon/base/log.h"\n',
        "client/b.c": "#include <cuda_runtime.h>\n",
        "client/c.c": "#include <umap/umap.h>\n",
        "client/compat/a.c": '#include "../internal.h"\n',
        "client/compat/b.c": "#include <gaia/client.h>\n",
        "client/examples/a.c": "#include <gaia/protocol.h>\n",
        "client/examples/b.c": '#include "../internal.h"\n',
    }
    with tempfile.TemporaryDirectory() as root:
        def put(files):
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as f:
                    f.write(text)

        put(good)
        found = list(offences(root))
        put(bad)
        missed = set(bad) - {o.split(":")[0] for o in offences(root)}
    for o in found:
        print("wrongly found: " + o)
    for path in sorted(missed):
        print("not found: %s: %s" % (path, bad[path].strip()))
    return bool(found or missed)


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    found = list(offences(sys.argv[1]))
    for o in found:
        print(o)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
