#!/usr/bin/env bash
# below.sh BUILD SOURCE FS - gaiafs over another file system than the one that the tests usually have: an empty one
# on a loop device. What a mount shows of it is compared with a plain directory on it, call by call, and the litmus
# files are played, in each of the kernel's caching ways. LONG_SECONDS as in long.sh. Status 77: skipped, the last line
# says why.
set -euo pipefail
build=$1 source=$2 fs=$3

skip() {
	echo "$fs: $*"
	exit 77
}
if [ -z "${4:-}" ]; then
	[ "$(id -u)" -eq 0 ] || skip "needs root, to mount it"
	command -v "mkfs.$fs" > /dev/null || skip "mkfs.$fs is not installed; scripts/test --long does that"
	exec unshare --mount --propagation private "$0" "$build" "$source" "$fs" inside
fi
# shellcheck source=scripts/lib.sh
. "$source/scripts/lib.sh"
let_go_of_mounts

dir=$(mktemp -d "${TMPDIR:-/tmp}/gaiafs-below.XXXXXX")
clean_up() {
	umount -l "$dir/fs" 2> /dev/null || true
	rm -rf --one-file-system "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

mkdir "$dir/fs"
truncate -s 1G "$dir/image"
"mkfs.$fs" -q "$dir/image" > "$dir/log" 2>&1 || skip "mkfs.$fs does not make one here: $(tail -n 1 "$dir/log")"
mount -o loop "$dir/image" "$dir/fs" 2> "$dir/log" || skip "cannot be mounted here: $(tail -n 1 "$dir/log")"
chmod 755 "$dir" "$dir/fs"

export TMPDIR=$dir/fs
for way in auto writeback writethrough; do
	"$build/tests/mount/differ/differ" --cpu-cache "$way" --seed 1 --programs $((${LONG_SECONDS:-10} * 8))
	"$build/tests/litmus/litmus-runner" --cpu-cache "$way" --repeat 2 "$source"/tests/litmus/*.litmus
done
