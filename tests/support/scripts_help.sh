#!/bin/sh
# scripts_help.sh ROOT - each script for users says how it is used, and does nothing, if it is asked for --help; and fails with
# the same words, on standard error, if it does not know an option.
set -eu

cd "$1"
failed=0
fail() {
	echo "scripts_help: $*" >&2
	failed=1
}

err=$(mktemp)
trap 'rm -f "$err"' EXIT
for script in demo test setup bench litmus mutants torture gpu-check umap-programs policy-sim pictures; do
	said=$("scripts/$script" --help 2> "$err") || fail "scripts/$script --help fails"
	case $said in
	"usage: scripts/$script "*) ;;
	*) fail "scripts/$script --help does not begin with its usage: $said" ;;
	esac
	[ ! -s "$err" ] || fail "scripts/$script --help complains: $(cat "$err")"
	[ "$script" != torture ] || continue # passes its options on
	! said=$("scripts/$script" --no-such-option 2> "$err") || fail "scripts/$script takes any option"
	[ -z "$said" ] && [ -s "$err" ] || fail "scripts/$script --no-such-option: what is wrong is not told on standard error"
done
exit $failed
