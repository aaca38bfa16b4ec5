"""The options that the benches have in common; scripts/bench --help says what they mean."""

import argparse
import tempfile

import report


def parser_of(kind):
    """Of scripts/bench @kind; the bench may add its own."""
    parser = argparse.ArgumentParser(prog="scripts/bench " + kind, add_help=False)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    # Files of a few MiB, for the bench's own test: its figures mean nothing.
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", default=".", type=report.results_dir)
    parser.add_argument("--dir", default=tempfile.gettempdir())
    parser.add_argument("--build", required=True)
    parser.add_argument("--seconds", type=float, default=0)
    return parser
