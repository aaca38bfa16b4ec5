#!/bin/sh
# abi.sh LIBRARY [--update] - whether programs that were built against libgaiaclient before still work with this one:
# its functions, their symbol versions and parameters, and the layout of public structs, beside the description in
# libgaiaclient.abi (of abigail-tools). --update writes that anew: for what was added, in a new node of
# client/libgaiaclient.map. What was removed or changed there needs another soversion.
set -eu

library=$1
here=$(dirname "$0")
stored=$here/libgaiaclient.abi
include=$here/../../include/gaia

skip() {
	echo "abi: skipped: $*"
	exit 77
}

command -v abidw > /dev/null && command -v abidiff > /dev/null ||
	skip "there is no abidiff: install the package abigail-tools"
[ "$(uname -m)" = x86_64 ] || skip "the description is one of x86_64"

describe() {
	abidw --headers-dir "$include" --exported-interfaces-only --no-corpus-path --no-comp-dir-path --no-show-locs \
		--no-elf-needed --no-parameter-names --type-id-style hash --out-file "$1" "$library"
}

if [ "${2:-}" = --update ]; then
	describe "$stored"
	exit 0
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
describe "$dir/now.abi"
status=0
abidiff --no-show-locs --no-added-syms "$stored" "$dir/now.abi" || status=$?
if [ $((status & 3)) -ne 0 ]; then
	echo "abi: abidiff does not work (status $status)" >&2
	exit 1
elif [ $status -ne 0 ]; then
	echo "abi: programs that use libgaiaclient would break (above): keep what there was, or change the soversion" >&2
	exit 1
fi
if ! abidiff --no-show-locs "$stored" "$dir/now.abi"; then
	echo "abi: libgaiaclient has more than is described (above). If it is in a node of its own: $0 $library --update" >&2
	exit 1
fi
# A library without debug information would have no functions to compare.
grep -q "function-decl name='gaia_acquire'" "$dir/now.abi" || {
	echo "abi: $library has no debug information" >&2
	exit 1
}
