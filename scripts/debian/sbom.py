#!/usr/bin/env python3
"""sbom.py - what is in the packages, and what they were built with and need, as SPDX 2.3 (JSON), to standard output.

    sbom.py --version V --commit C --libfuse system|DIR --buildinfo FILE -- PACKAGE.deb...

What they need comes from the packages themselves; what they were built with from dpkg's .buildinfo.
"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys


def field(deb, name):
    return subprocess.run(["dpkg-deb", "--field", deb, name], check=True, capture_output=True, text=True).stdout.strip()


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def spdx_id(*parts):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(parts))


def package(name, version, **more):
    return {"SPDXID": spdx_id(name, version), "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
            "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
            "filesAnalyzed": False, **more}


def built_with(buildinfo):
    """[(name, version)] of a .buildinfo file."""
    with open(buildinfo, encoding="utf-8") as file:
        text = file.read()
    listed = re.search(r"^Installed-Build-Depends:\n((?: .*\n)+)", text, re.M)
    return re.findall(r"^ ([^ ]+) \(= ([^)]+)\)", listed.group(1), re.M) if listed else []


def dependencies(deb):
    """Names of what one of is needed: the first of alternatives."""
    names = (part.split("|")[0].split("(")[0].strip().split(":")[0] for part in field(deb, "Depends").split(","))
    return sorted({name for name in names if name})


def main():
    parser = argparse.ArgumentParser()
    for name in ("version", "commit", "libfuse", "buildinfo"):
        parser.add_argument("--" + name, required=True)
    parser.add_argument("packages", nargs="+")
    args = parser.parse_args()

    source = package("gaiafs-source", args.version, licenseDeclared="MIT", sourceInfo=f"git commit {args.commit}")
    packages, relations = {source["SPDXID"]: source}, []

    def relate(one, kind, other):
        relations.append({"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other})

    def known(entry):
        packages.setdefault(entry["SPDXID"], entry)
        return entry["SPDXID"]

    debs = {field(deb, "Package"): deb for deb in args.packages}
    for name, deb in debs.items():
        entry = package(name, field(deb, "Version"), licenseDeclared="MIT", packageFileName=os.path.basename(deb),
                        checksums=[{"algorithm": "SHA256", "checksumValue": sha256(deb)}])
        relate("SPDXRef-DOCUMENT", "DESCRIBES", known(entry))
        relate(entry["SPDXID"], "GENERATED_FROM", source["SPDXID"])
        for needed in dependencies(deb):
            if needed not in debs:
                relate(entry["SPDXID"], "DEPENDS_ON", known(package(needed, "any")))
            else:
                relate(entry["SPDXID"], "DEPENDS_ON", spdx_id(needed, field(debs[needed], "Version")))
        if name == "gaiafs" and args.libfuse != "system":
            with open(os.path.join(args.libfuse, "version"), encoding="utf-8") as file:
                relate(entry["SPDXID"], "STATIC_LINK", known(package("libfuse", file.read().strip(), licenseDeclared="LGPL-2.1-only")))
    for name, version in built_with(args.buildinfo):
        relate(known(package(name, version)), "BUILD_TOOL_OF", source["SPDXID"])
    json.dump({"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"gaiafs {args.version}",
               "documentNamespace": f"urn:gaiafs:{args.version}:{args.commit}",
               "creationInfo": {"created": subprocess.run(["git", "show", "-s", "--format=%cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", args.commit],
                                                          check=True, capture_output=True, text=True, env={**os.environ, "TZ": "UTC"}).stdout.strip(),
                                "creators": ["Tool: scripts/package"]},
               "packages": list(packages.values()), "relationships": relations}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
