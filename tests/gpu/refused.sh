#!/bin/bash
# refused.sh GAIAFS-PLAYED GPU-CEILINGS-PLAYED... - on a GPU that nobody, or nobody else, can use, played by the fake driver
# (FAKE_CUDA, tests/support/fake_cuda.h), the daemon says so in one line, does not mount and ends with 1. What measures says
# so and ends with 77 where it gets no context.
set -u
gaiafs=$1
shift
dir=$(mktemp -d)
trap 'rm -rf --one-file-system "$dir"' EXIT
mkdir "$dir/below" "$dir/mnt"
failed=0
# expect STATUS TEXT COMMAND...
expect() {
	local status expected=$1 text=$2
	shift 2
	timeout -k 10 60 "$@" < /dev/null > "$dir/said" 2> "$dir/error"
	status=$?
	if [ $status -ne "$expected" ] || [ "$(wc -l < "$dir/error")" -ne 1 ] || [ -s "$dir/said" ] || ! grep -q "$text" "$dir/error"; then
		echo "FAKE_CUDA=$FAKE_CUDA $*: exit status $status, and it says:"
		cat "$dir/said" "$dir/error"
		failed=1
	fi
}

for FAKE_CUDA in exclusive prohibited exclusive,taken; do
	export FAKE_CUDA
	for device in cuda cuda:0,16M; do
		expect 1 'compute mode.*nvidia-smi -c DEFAULT' "$gaiafs" -f --device "$device" "$dir/below" "$dir/mnt"
	done
	[ $FAKE_CUDA != exclusive ] || continue
	for program; do
		section=$("$program" --list | { read -r name _ && echo "$name"; })
		expect 77 'cannot be used' "$program" --quick "$section"
	done
done
exit $failed
