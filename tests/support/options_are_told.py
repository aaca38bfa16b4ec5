#!/usr/bin/env python3
"""options_are_told.py GAIAFS PAGE HELPER HELPER_PAGE - manual pages and mount.gaiafs say of options what the command line's table says.

GAIAFS prints its help, which is made from its table of options; PAGE is the source of gaiafs(8); HELPER is mount.gaiafs, which passes
on options with values, and HELPER_PAGE its manual page. Each must have the options of the others, with the same choices and keys; and
where the help says a default, as a last word in parentheses, gaiafs(8) must say it, too.
"""

import re
import subprocess
import sys

# What is given as a choice, and as KEY=: the words of a value that are not placeholders.
WORDS = re.compile(r"[a-z][\w-]*(?==)|(?<![\w-])(?:[a-z]+(?=[|\]])|(?<=\|)[a-z]+)")


def read(path):
    """The text of a file."""
    with open(path, encoding="utf-8") as f:
        return f.read()


def of_help(text):
    """name -> (whether it takes a value, choices and keys, defaults); several forms of an option count together."""
    found = {}
    for name, value, more in re.findall(r"^  (?:-\w, )?--([\w-]+)((?: \S+)?)(.*(?:\n {20,}.*)*)", text, re.M):
        # What is said of keys counts as well: "local=SIZE (a second ...)".
        keys = set(WORDS.findall(value + (more if "KEY=" in value or "WHAT=" in value else "")))
        before = found.get(name, (False, set(), set()))
        found[name] = (before[0] or bool(value), before[1] | keys, before[2] | set(re.findall(r"\((\w+)\)", more)))
    return found


def of_page(text, form):
    """name -> (its paragraphs, the choices and keys of its heading); @form is how a heading begins."""
    found = {}
    for name, value, more in re.findall(form + r"([^\n]*)((?:\n(?:\t.*)?)*)", text, re.M):
        before = found.get(name, ("", set()))
        found[name] = (before[0] + more, before[1] | set(WORDS.findall(re.sub(r"_[^_]*_|\*", "", value))))
    return found


def main():
    program, page, helper, helper_page = sys.argv[1:]
    shown = subprocess.run([program, "--help"], check=True, capture_output=True, text=True, timeout=60).stdout
    options = of_help(shown)
    told = of_page(read(page), r"^(?:\*-\w\*, )?\*--([\w-]+)")
    at_mount = of_page(read(helper_page), r"^\*([\w-]+)(?==)")
    handed_on = set(re.search(r"^\t((?:[\w-]+=\*[ |]*)+)\)$", read(helper), re.M)
                    .group(1).replace("=*", "").replace("|", " ").split())
    with_values = {name for name, o in options.items() if o[0]}
    wrong = []
    for name in sorted(set(told) ^ set(options)):
        wrong.append(f"--{name}: only in {'gaiafs(8)' if name in told else 'the help'}")
    for name in sorted(set(told) & set(options)):
        _, words, defaults = options[name]
        paragraphs, words_told = told[name]
        known = words_told | set(re.findall(r"\*([a-z_]+)=?\*", paragraphs))
        for word in sorted((words - known) | (words_told - words)):
            wrong.append(f"--{name}: '{word}' only in {'gaiafs(8)' if word in words_told else 'the help'}")
        for default in sorted(defaults):
            if not re.search(rf"(?<!\w){default}(?!\w)", paragraphs):
                wrong.append(f"--{name}: gaiafs(8) does not say the default, {default}")
    # An option that is accepted and has no effect any more is not in the help.
    for name in sorted((handed_on ^ with_values) - {"transport"}):
        wrong.append(f"{name}=: only in {'mount.gaiafs' if name in handed_on else 'the help'}")
    for name in sorted(set(at_mount) ^ with_values):
        wrong.append(f"{name}=: only in {'mount.gaiafs(8)' if name in at_mount else 'the help'}")
    for name in sorted(set(at_mount) & with_values):
        for word in sorted(at_mount[name][1] - {name} - options[name][1]):
            wrong.append(f"{name}=: '{word}' only in mount.gaiafs(8)")
    print("\n".join(wrong) or f"{len(options)} options, {sum(len(o[1]) for o in options.values())} choices and keys, "
                              f"{sum(len(o[2]) for o in options.values())} defaults")
    return 1 if wrong or len(options) < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
