#!/usr/bin/env python3
"""options_are_told.py GAIAFS PAGE HELPER HELPER_PAGE GAIA GAIA_PAGE - manual pages and mount.gaiafs say of options what command lines say.

GAIAFS prints its help; PAGE is the source of gaiafs(8), HELPER is mount.gaiafs, which passes on options with values, and HELPER_PAGE
its manual page. All are made from one table (daemon/option_table.h). So each has every option with the same form and the same text;
and the pages' own prose names no option, key or choice that does not exist. GAIA and its page have the same commands and options.
"""

import re
import subprocess
import sys

# Options of mount(8) and mount.fuse3(8).
OTHERS = {"fsname", "comment"}


def read(path):
    """The text of a file."""
    with open(path, encoding="utf-8") as f:
        return f.read()


def plain(text):
    """Without scdoc's marks; blanks and capitals make no difference."""
    return " ".join(re.sub(r"[\\*_]", "", text).lower().split())


def of_help(text):
    """[(name, or letter if there is none; value, or ""; heading; text)]"""
    found = []
    for heading, more in re.findall(r"^  (-\S+(?:, --\S+)?(?: \S+)?)((?: {2,}|\n).*(?:\n {20,}.*)*)", text, re.M):
        *_, name, value = re.fullmatch(r"(?:-(\w)(?:, )?)?(?:--([\w-]+))?(?: (.*))?", heading).groups(default="")
        found.append((name or heading[1], value, heading, plain(more)))
    return found


def help_of(program):
    return subprocess.run([program, "--help"], check=True, capture_output=True, text=True, timeout=60).stdout


def of_gaia(usage, page):
    """What is only in one of gaia's usage, the synopsis of its page, and the headings there."""
    synopsis = page[page.index("# SYNOPSIS"):page.index("# DESCRIPTION")]
    headings = "\n".join(re.findall(r"^\*.*", page[page.index("# COMMANDS"):page.index("# COUNTERS")], re.M))
    places = {
        "its help": re.findall(r"gaia ([a-z]+)", usage) + re.findall(r"--[a-z]+", usage),
        "the synopsis": re.findall(r"\*gaia ([a-z]+)", synopsis) + re.findall(r"--[a-z]+", synopsis),
        "the headings": re.findall(r"^\*([a-z]+)", headings, re.M) + re.findall(r"--[a-z]+", headings),
    }
    return [f"gaia {word}: not in {place}" for word in sorted(set().union(*places.values()))
            for place, words in places.items() if word not in words]


def main():
    program, page, helper, helper_page, gaia, gaia_page = sys.argv[1:]
    shown = help_of(program)
    options = of_help(shown)
    names = {name for name, *_ in options}
    at_mount = {name for name, value, *_ in options if value and len(name) > 1}
    page, helper_page = read(page), read(helper_page)
    handed_on = set(re.search(r"^\t((?:[\w-]+=\*[ |]*)+)\)$", read(helper), re.M)
                    .group(1).replace("=*", "").replace("|", " ").split())
    wrong = of_gaia(help_of(gaia), read(gaia_page))
    for name, value, heading, text in options:
        if plain(f"{heading} {text}") not in plain(page):
            wrong.append(f"{heading}: gaiafs(8) does not have it with the text of the help")
        if name in at_mount and plain(f"{name}={value} {text}") not in plain(helper_page):
            wrong.append(f"{heading}: mount.gaiafs(8) does not have it with the text of the help")
    # An option that is accepted and has no effect any more is not in the help.
    for name in sorted((handed_on ^ at_mount) - {"transport"}):
        wrong.append(f"{name}=: only in {'mount.gaiafs' if name in handed_on else 'the help'}")
    for name in sorted(set(re.findall(r"\*--([a-z][\w-]+)", page + helper_page)) - names):
        wrong.append(f"--{name}: only in a manual page")
    for key, choice in sorted(set(re.findall(r"\*([a-z][\w-]*)=(\w*)", page + helper_page))):
        choices = {c for form in re.findall(rf"(?<![\w-]){key}=([\w|]+)", shown) for c in form.split("|")}
        if key not in names | OTHERS and (not choices or choice and choice not in choices):
            wrong.append(f"{key}={choice}: only in a manual page")
    print("\n".join(wrong) or f"{len(options)} rows of options, {len(at_mount)} with values for mount(8)")
    return 1 if wrong or len(options) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
