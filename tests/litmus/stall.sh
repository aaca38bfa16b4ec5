#!/bin/bash
# stall.sh RUNNER DIR [faults] - what waits for a disk has not deadlocked, nor what is on a machine that stops, and what waits for
# nothing has: a scenario on a file system that is frozen for longer than a repetition may take, one that is stopped for as long, and
# one with a daemon that sleeps. Status 77: skipped.
set -euo pipefail
runner=$1 dir=$2 faults=${3:-}

skip() {
	echo "skipped: $*"
	exit 77
}
fail() {
	echo "stall: $*"
	exit 1
}

if [ "${4:-}" != inside ]; then
	[ "$(id -u)" -eq 0 ] || skip "only root can freeze a file system"
	exec unshare --mount --propagation private "$0" "$runner" "$dir" "$faults" inside
fi
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
let_go_of_mounts

own=$(mktemp -d)
clean_up() {
	fsfreeze --unfreeze "$own/small" 2> /dev/null || true
	umount -l "$own/small" "$own/disk" 2> /dev/null || true
	rm -rf --one-file-system "$own"
}
trap clean_up EXIT
mkdir "$own/small" "$own/disk"
{ mount -t tmpfs -o size=80M none "$own/disk" && truncate -s 64M "$own/disk/image" &&
	mkfs.ext4 -q -m 0 "$own/disk/image" && mount -o loop "$own/disk/image" "$own/small"; } > "$own/log" 2>&1 ||
	skip "a small file system cannot be made here: $(tail -n 1 "$own/log")"

# In some repetition, whatever it is at: making a file, storing it, syncing it.
for repeat in 100 1000 10000; do
	TMPDIR=$own/small "$runner" --seconds 2 --repeat $repeat "$dir/33-fsync-races-release.litmus" > "$own/out" 2>&1 &
	pid=$!
	until grep -q " $own/small/.* fuse.gaiafs " /proc/self/mounts || ! kill -0 "$pid" 2> /dev/null; do
		sleep 0.02
	done
	sleep 0.3
	fsfreeze --freeze "$own/small"
	! kill -0 "$pid" 2> /dev/null || break
	fsfreeze --unfreeze "$own/small"
	wait "$pid" || fail "$(cat "$own/out")"
	pid=
done
[ -n "$pid" ] || fail "it was done each time before its file system could be frozen"
sleep 5
fsfreeze --unfreeze "$own/small"
wait "$pid" || fail "a disk that does not answer for a while is called a deadlock: $(cat "$own/out")"

# The machine stops while a scenario is in the middle of something: nobody runs for longer than a repetition may take at most.
"$runner" --seconds 1 --repeat 400 "$dir/33-fsync-races-release.litmus" > "$own/out" 2>&1 &
pid=$!
until daemon=$(pgrep -P "$pid" -x gaiafs); do
	kill -0 "$pid" 2> /dev/null || fail "$(cat "$own/out")"
	sleep 0.02
done
sleep 0.3
kill -STOP "$daemon"
sleep 0.3
kill -STOP "$pid"
sleep 14
kill -CONT "$pid"
sleep 0.5
kill -CONT "$daemon"
wait "$pid" || fail "a machine that stops for a while is called a deadlock: $(cat "$own/out")"

if [ "$faults" = faults ]; then
	! GAIAFS_FAULTS='release.before_publish=delay:99000000us' "$runner" --seconds 2 "$dir/03-stale-kernel-page-written-back.litmus" \
		> "$own/out" 2>&1 || fail "a daemon that does nothing is waited for"
	grep -q 'is not done after [0-9]* s: deadlock' "$own/out" || fail "a deadlock gives: $(cat "$own/out")"
fi
