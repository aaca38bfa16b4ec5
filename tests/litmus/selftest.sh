#!/usr/bin/env bash
# The runner fails what must fail, and says where: scenarios that are no scenarios (refused/), and
# scenarios whose expectations are wrong (must-fail/). Each file says with `# expect: TEXT` what the
# runner has to print about it; for refused/, after FILE: and on a line of its own.
#
#	selftest.sh RUNNER DIR NAME...	the names: the scenarios that the build knows
set -uo pipefail
runner=$1 dir=$2
shift 2
failed=0

for file in "$dir"/*.litmus; do
	name=$(basename "$file" .litmus)
	case " $* " in
	*" $name "*) ;;
	*)
		echo "$file is not in meson.build: nobody runs it"
		failed=1
		;;
	esac
done

# check FILE STATUS PREFIX
check() {
	local file=$1 status=$2 prefix=$3 out got=0 text
	out=$("$runner" --repeat 1 "$file" 2>&1) || got=$?
	if [ "$got" -ne "$status" ]; then
		echo "$file: exit status $got, not $status"
		failed=1
	fi
	while read -r text; do
		grep -qF -- "$prefix$text" <<< "$out" && continue
		echo "$file: the runner does not say '$prefix$text', but:"
		echo "$out"
		failed=1
	done < <(sed -n 's/^# expect: //p' "$file")
}

n=0
for file in "$dir"/refused/*.litmus; do
	check "$file" 2 "$file:"
	n=$((n + 1))
done
for file in "$dir"/must-fail/*.litmus; do
	check "$file" 1 ""
	n=$((n + 1))
done
# One that fails does not keep the next from running, nor hide in its success.
out=$("$runner" --repeat 1 "$dir/must-fail/wrong-byte.litmus" "$dir/02-cpu-to-device.litmus" 2> /dev/null)
if [ $? -ne 1 ] || ! grep -qx '1 passed, 1 failed' <<< "$out"; then
	echo "a failure and a pass give: $out"
	failed=1
fi
# What takes longer than it may fails: with no time at all, everything. (What counts as a deadlock: stall.sh.)
out=$(LITMUS_SLOW=0 "$runner" --repeat 1 "$dir/02-cpu-to-device.litmus" 2>&1)
if [ $? -ne 1 ] || ! grep -q 'is not done after 0 s: ' <<< "$out"; then
	echo "a deadlock gives: $out"
	failed=1
fi
# The daemon's fault points have the names that --delays uses.
for point in $(sed -n 's/^\t{ "\([a-z_]*\.[a-z_]*\)", [0-9]* },$/\1/p' "$dir/run.c"); do
	grep -rqF "fault_point(\"$point\")" "$dir/../../daemon" && continue
	echo "the daemon has no fault point $point"
	failed=1
done
[ "$n" -gt 30 ] || failed=1
echo "$n files that must fail"
exit $failed
