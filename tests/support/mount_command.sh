#!/bin/bash
# mount_command.sh BUILD - mount(8), umount(8) and fstab(5) with gaiafs. They look for helpers in /sbin
# only, so the build's helpers are mounted over it in a mount namespace of the test's own.
set -euo pipefail

skip() {
	echo "skipped: $*"
	exit 77
}

build=$1
if [ -z "${2:-}" ]; then
	[ "$(id -u)" -eq 0 ] || skip "only root can lay the build's helpers over /sbin"
	exec unshare --mount --propagation private "$0" "$build" inside
fi
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
let_go_of_mounts

dir=$(mktemp -d)
clean_up() {
	umount -i -l "$dir/mnt" 2> /dev/null || true
	umount -l "$dir/over" /usr/sbin 2> /dev/null || true
	rm -rf --one-file-system "$dir"
}
trap clean_up EXIT
fail() {
	echo "mount_command: $*" >&2
	exit 1
}

cd "$dir"
mkdir over bin src mnt
mount -t tmpfs tmpfs over
mkdir over/upper over/work
mount -t overlay overlay -o lowerdir=/usr/sbin,upperdir=over/upper,workdir=over/work /usr/sbin 2> /dev/null ||
	skip "this kernel cannot lay an overlay over /usr/sbin"
ln -s "$build/daemon/gaiafs" "$build/client/gaia" bin/
for helper in mount.gaiafs umount.fuse.gaiafs; do
	sed "s,'[^']*/bin/,'$dir/bin/," "$build/mount-helpers/$helper" > "/usr/sbin/$helper"
	chmod +x "/usr/sbin/$helper"
done
ln -s mount.gaiafs /usr/sbin/mount.fuse.gaiafs

# How many gaiafs mounts stand on mnt.
mounts() {
	awk -v dir="$dir" '$5 == dir "/mnt" && / - fuse.gaiafs / && index($0, " " dir "/src ")' /proc/self/mountinfo | wc -l
}
# Wait for the end of a process that may not be ours. If process 1 is no init it stays a zombie, which tail --pid takes for alive.
ended() {
	python3 - "$1" <<- 'END'
	import contextlib, os, select, sys
	with contextlib.suppress(ProcessLookupError):
	    select.select([os.pidfd_open(int(sys.argv[1]))], [], [])
	END
}
daemon() { bin/gaia status --json mnt | sed -n 's/^  "pid": \([0-9]*\),$/\1/p'; }

# mount -t, and a umount that waits until everything is stored and the daemon is gone.
mount -t gaiafs -o device=sim:8M,home=16M,noatime src mnt || fail "mount -t gaiafs failed"
[ "$(mounts)" -eq 1 ] || fail "mount -t gaiafs src mnt is not to be seen in mountinfo"
grep -q " $dir/mnt .*noatime" /proc/self/mountinfo || fail "the option noatime was lost"
bin/gaia status --json mnt | grep '"capacity": 8388608' > /dev/null || fail "the option device=sim:8M was lost"
head -c 5000000 /dev/urandom > want
cp want mnt/file
pid=$(daemon)
[ -d "/proc/$pid" ] || fail "there is no daemon"
umount mnt || fail "umount failed"
! grep -qs '^State:.[^ZX]' "/proc/$pid/status" || fail "umount returned before the daemon had ended"
cmp want src/file || fail "umount returned before everything was stored"
[ "$(mounts)" -eq 0 ] || fail "still mounted after umount"

# The options that mount(8) removes, and those that libfuse does not know.
mount -t gaiafs -o device=none,suid,dev,strictatime,lazytime,noacl src mnt || fail "mount -o suid,dev,strictatime,lazytime,noacl failed"
rights() { findmnt -no VFS-OPTIONS -T "$1" | tail -n 1 | tr , '\n' | grep -xE 'nosuid|nodev' || true; }
[ "$(rights mnt)" = "$(rights "$dir")" ] || fail "mount -o suid,dev: the mount is $(rights mnt)"

# A remount, by the type that mount(8) sees and by fstab's: what the kernel decides changes, and other options are named.
writable() { : 2> /dev/null >> mnt/file; }
exec 5>> mnt/file
! mount -o remount,ro mnt 2> err || fail "remount,ro succeeded while a file is open for writing"
exec 5>&-
mount -o remount,ro mnt 2> err || fail "remount,ro failed: $(cat err)"
! writable || fail "remount,ro: it can be written"
# The examples say why a file cannot be used.
! "$build/client/examples/increment" mnt/file 2> err || fail "increment has changed a file of a read-only mount"
grep -q 'mnt/file: Read-only' err || fail "increment does not say that the mount is read-only: $(cat err)"
! setpriv --reuid=65534 --clear-groups "$build/client/examples/increment" "$dir/mnt/file" 2> err || fail "increment has changed another's file"
grep -q 'mnt/file: Permission denied' err || fail "increment does not say that it may not: $(cat err)"
mount -o remount,rw,nosuid mnt || fail "remount,rw failed"
writable || fail "remount,rw: it cannot be written"
grep -q " $dir/mnt [^-]*nosuid" /proc/self/mountinfo || fail "remount,nosuid has no effect"
echo "$dir/src $dir/mnt gaiafs device=none,home=16M 0 0" > fstab
mount -T fstab -o remount,ro "$dir/mnt" 2> err || fail "a remount by fstab failed: $(cat err)"
! writable || fail "a remount by fstab: it can be written"
grep -q 'stay as they are: device home' err || fail "a remount does not say what it does not change: $(cat err)"
[ "$(mounts)" -eq 1 ] || fail "a remount has mounted it once more"
umount mnt || fail "umount after a remount failed"
mount -t gaiafs -o device=none,noatime src mnt
mount -o remount,ro mnt || fail "remount,ro of a noatime mount failed"
grep -q " $dir/mnt [^-]*noatime" /proc/self/mountinfo || fail "a remount took noatime away"
umount mnt

# umount(8) names what cannot be stored, and leaves the mount; --discard gives it up.
mkdir small
mount -t tmpfs -o size=1M tmpfs small
mount -t gaiafs -o device=sim:8M,cpu-cache=writethrough,writeback-age=3600,unmount-timeout=3600 small mnt || fail "mount of a small source failed"
truncate -s 4M mnt/file
"$build/client/examples/increment" mnt/file || fail "increment failed"
pid=$(daemon)
! umount mnt 2> said || fail "umount says nothing of what it cannot store"
grep -q "^gaia: $dir/mnt/file: .* not stored: No space left on device" said || fail "umount does not name the file: $(cat said)"
[ "$(od -An -N1 -tu1 -j 3000000 mnt/file)" -eq 1 ] || fail "the mount does not show what could not be stored"
bin/gaia umount --discard mnt 2> said || fail "gaia umount --discard failed"
grep -q "^gaia: $dir/mnt/file: " said || fail "gaia umount --discard does not name the file: $(cat said)"
[ ! -e "/proc/$pid/exe" ] || fail "the daemon goes on"
umount small

# A line of fstab, and mount -a, which knows what is mounted already.
echo "$dir/src $dir/mnt gaiafs device=\"sim:8M,count=2\",home=16M,transport=dev,nofail,x-systemd.requires=x 0 0" > fstab
mount -T fstab "$dir/mnt" 2> err || fail "mounting by fstab failed: $(cat err)"
grep -q 'transport dev: .* no effect' err || fail "transport=dev: no word of its having no effect: $(cat err)"
[ "$(bin/gaia status --json mnt | grep -c '"kind": "sim"')" -eq 2 ] || fail "device=\"sim:8M,count=2\" did not make two devices"
mount -a -T fstab || fail "mount -a failed"
[ "$(mounts)" -eq 1 ] || fail "mount -a mounted it again"

# If it is busy it is not unmounted, and that is said; lazily it is.
exec 5< mnt/file
! umount mnt 2> err || fail "umount of a busy mount succeeded"
grep -q busy err || fail "umount of a busy mount does not say that it is busy: $(cat err)"
pid=$(daemon)
umount -l mnt || fail "umount -l failed"
[ "$(mounts)" -eq 0 ] || fail "still mounted after umount -l"
exec 5<&-
ended "$pid"

# A device that is named and does not exist is an error, and no other device replaces it.
! mount -t gaiafs -o device=cuda:1000 src mnt 2> err || fail "a device that is not there was taken"
grep -q 'cuda' err || fail "a device that is not there: the reason does not name it: $(cat err)"
echo "$dir/src $dir/mnt gaiafs device=cuda:1000 0 0" > fstab
! mount -T fstab "$dir/mnt" 2> err || fail "fstab: a device that is not there was taken"
[ "$(mounts)" -eq 0 ] || fail "a device that is not there: mounted all the same"

# What cannot be mounted fails with a reason.
! mount -t gaiafs missing mnt 2> err || fail "mounting a missing directory succeeded"
[ -s err ] || fail "mounting a missing directory fails without a word"
! mount -t gaiafs -o home=lots src mnt 2> err || fail "home=lots was taken"
grep -q lots err || fail "home=lots: the reason does not name it: $(cat err)"
! mount -t gaiafs -o transport=uring src mnt 2> err || fail "transport=uring was taken"
grep -q 'transport uring' err || fail "transport=uring: the reason does not name it: $(cat err)"
