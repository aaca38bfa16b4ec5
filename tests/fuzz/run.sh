#!/usr/bin/env bash
# run.sh HARNESS CORPUS SECONDS - have libFuzzer make up inputs for so long, beginning with those in CORPUS.
#
# FUZZ_SECONDS says how long instead. FUZZ_SEED is what chance begins with (1): what it was is said. An input that ends the
# harness is kept beside it, and the last lines say how to run it again.
set -euo pipefail
harness=$1 corpus=$2 seconds=${FUZZ_SECONDS:-$3} seed=${FUZZ_SEED:-1}
name=$(basename "$harness")
found=$(dirname "$harness")/found

new=$(mktemp -d "${TMPDIR:-/tmp}/gaiafs-fuzz.XXXXXX")
trap 'rm -rf "$new"' EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$found"

# Memory that is kept for the next input is no leak, and what harnesses print is noise.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:handle_sigbus=0}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
status=0
"$harness" -seed="$seed" -max_total_time="$seconds" -timeout=25 -close_fd_mask=3 -print_final_stats=1 \
	-artifact_prefix="$found/$name-" "$new" "$corpus" > "$new.log" 2>&1 || status=$?
if [ $status -eq 0 ]; then
	grep -E 'stat::number_of_executed_units|cov:' "$new.log" | tail -n 2
	rm -f "$new.log"
	echo "$name: $seconds s, FUZZ_SEED=$seed"
	exit 0
fi
tail -n 100 "$new.log"
rm -f "$new.log"
echo "$name: ended with status $status after FUZZ_SEED=$seed"
for input in "$found/$name"-*; do
	[ -f "$input" ] || continue
	echo "again: $harness $input"
	echo "       or, in any other build: tests/fuzz/$name $input"
done
exit 1
