#!/usr/bin/env python3
"""Count tests, one by one, from meson's test logs.

    results.py LABEL=TESTLOG.json...

Prints a line for each test that was skipped (with its reason; one line for many with the same), then for each that failed, with
the end of what its suite printed, then the line 'N passed, N failed[, N skipped]'. Status 1 if one failed or none passed. A suite of Criterion is
counted by its tests (it must have run with CRITERION_VERBOSITY_LEVEL=1); a program that
writes TAP by its lines; any other is one test. A skip without a reason is a failure.
"""
import collections
import json
import re
import sys

CRITERION = re.compile(r"^\[(PASS|FAIL|SKIP)\] ([^:\s]+::[^:\s]+): ?(.*)$", re.M)
SYNTHESIS = re.compile(r"^\[====\] Synthesis: Tested: (\d+) \| Passing: (\d+) \| Failing: (\d+)", re.M)
TAP = re.compile(r"^(not )?ok\b(?: \d+)?(?: -)? ?([^#\n]*)(?:# *(SKIP|TODO)\b *(.*))?$", re.M)

MANY = 20
TOLD = 100  # lines of the output of a suite in which something failed
TOLD_IN_ALL = 400


def of_criterion(text):
    for word, name, rest in CRITERION.findall(text):
        yield word, name, rest if word == "SKIP" else ""


def of_tap(text):
    for bad, name, directive, reason in TAP.findall(text):
        word = "SKIP" if directive == "SKIP" else "FAIL" if bad else "PASS"
        yield word, name.strip(), reason.strip()


def of_run(run):
    """The (word, name, reason) of every test that one entry of the log stands for."""
    out, err = run.get("stdout") or "", run.get("stderr") or ""
    text = out + "\n" + err
    found = []
    if SYNTHESIS.search(text) or CRITERION.search(text):
        found = list(of_criterion(text))
    elif re.match(r"TAP version|1\.\.\d", out):
        found = list(of_tap(out))
    suite = run["name"].split(" / ")[-1]
    found = [(word, "%s: %s" % (suite, name), reason) for word, name, reason in found]

    result = run["result"]
    failed = any(word == "FAIL" for word, _, _ in found)
    if result == "SKIP" and not found:
        lines = [line for line in text.splitlines() if line.strip()]
        found = [("SKIP", suite, lines[-1].strip() if lines else "")]
    elif result in ("OK", "EXPECTEDFAIL") and not found:
        found = [("PASS", suite, "")]
    elif result not in ("OK", "EXPECTEDFAIL", "SKIP") and not failed:
        found.append(("FAIL", "%s: %s" % (suite, result.lower()), ""))
    return [("FAIL", name, "skipped without saying why") if word == "SKIP" and not reason
            else (word, name, reason) for word, name, reason in found]


def last_words(run):
    """The end of what a run printed, without what went well; of both streams, since either may have the reason."""
    lines = []
    for stream in ("stdout", "stderr"):
        said = [line for line in (run.get(stream) or "").splitlines()
                if line.strip() and not re.match(r"^\[(PASS|SKIP)\]|^(ok|# SKIP)\b", line)]
        lines += said[-(TOLD // 2):]
    return lines


def main():
    count = {"PASS": 0, "FAIL": 0, "SKIP": 0}
    failures = []
    skipped = collections.defaultdict(list)
    if len(sys.argv) < 2:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    for argument in sys.argv[1:]:
        label, _, path = argument.partition("=")
        with open(path, encoding="utf-8") as log:
            for line in log:
                run = json.loads(line)
                failed = []
                for word, name, reason in of_run(run):
                    count[word] += 1
                    if word == "SKIP":
                        skipped[label, reason].append(name)
                    elif word == "FAIL":
                        failed.append("FAIL  %s  %s%s" % (label, name, reason and ": " + reason))
                if failed:
                    failures.append((failed, last_words(run)))
    for (label, reason), names in skipped.items():
        if len(names) > MANY:
            names = ["%d tests" % len(names)]
        for name in names:
            print("SKIP  %s  %s: %s" % (label, name, reason))
    left = TOLD_IN_ALL
    for failed, words in failures:
        print("\n".join(failed))
        told = words[-left:] if left else []
        if len(told) < len(words):
            print("      (%d lines are not shown here)" % (len(words) - len(told)))
        for line in told:
            print("      " + line[:400])
        left -= len(told)
    print("%d passed, %d failed" % (count["PASS"], count["FAIL"]), end="")
    print(", %d skipped" % count["SKIP"] if count["SKIP"] else "")
    return count["FAIL"] > 0 or count["PASS"] == 0


if __name__ == "__main__":
    sys.exit(main())
