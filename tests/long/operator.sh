#!/usr/bin/env bash
# operator.sh SOURCE - an administrator's hour with gaiafs, every step checked: packages in, a mount by its unit, programs that use it, watched,
# changed while it runs, upgraded under load, its disk filled, unmounted, purged; in a root of its own (overlay.sh), where no systemd runs: the
# unit's commands are carried out one by one. Status 77: skipped, the last line says why.
set -euo pipefail
name=operator
# shellcheck source=tests/long/overlay.sh
. "$(dirname "$0")/overlay.sh"

mnt=$dir/root/mnt
step() { echo "operator: $*"; }
until_true() { # SECONDS COMMAND...: or not
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.1
	done
}
status() { # PATH IN THE REPORT, as Python's
	inside gaia status /mnt --json | python3 -c "import json, sys; print(json.load(sys.stdin)$1)"
}
is() { [ "$(status "$1")" = "$2" ]; }
at_most() { [ "$(status "$1")" -le "$2" ]; }
# One of the unit's commands, as systemd would carry it out for the instance "mnt".
unit() { # SETTING
	local line
	line=$(sed -n "s/^$1=//p" "$dir/root"/usr/lib/systemd/system/gaiafs@.service "$dir/root"/lib/systemd/system/gaiafs@.service 2> /dev/null | head -n 1)
	line=${line//%i/mnt}
	line=${line//%f//mnt}
	inside env MAINPID="$(daemon)" sh -c "${line//\$\$/\$}"
}
daemon() { status '["pid"]' 2> /dev/null || echo 0; }

step "the packages are installed"
install_packages
mkdir -p "$mnt" "$dir/root/srv/below"
mount -t tmpfs -o size=192M tmpfs "$dir/root/srv/below"

step "a mount is configured, and starts by its unit"
cat > "$dir/root/etc/gaiafs/mnt.conf" << 'END'
# What this machine's mount is.
SOURCE=/srv/below
home=64M
device=sim:32M
writeback-age=1
metrics=unix:/run/gaiafs-metrics
END
unit ExecStart > "$dir/log" 2>&1 &
until_true 30 mountpoint -q "$mnt" || failed "it does not mount"
until_true 30 is '["home"]["budget"]' $((64 << 20)) || failed "it does not have the options of its file"
first=$(daemon)

step "programs use it"
head -c 16M /dev/urandom > "$mnt/data"
sum=$(sha256sum < "$mnt/data")
load() { # A program that writes, reads, and checks what it reads, until it is told to end.
	local n=0
	while [ ! -e "$dir/over" ]; do
		n=$((n + 1))
		echo "$n" > "$mnt/one.new" && mv "$mnt/one.new" "$mnt/one" && [ "$(cat "$mnt/one")" = "$n" ] || return 1
		[ "$(sha256sum < "$mnt/data")" = "$sum" ] || return 1
		dd if=/dev/zero of="$mnt/grows" bs=64k count=16 oflag=append conv=notrunc status=none || return 1
		truncate -s 1M "$mnt/grows" || return 1
		echo "$n" > "$dir/rounds"
	done
}
load 2> "$dir/load-says" &
load=$!
gets_on() {
	local n=${1:-$(cat "$dir/rounds" 2> /dev/null || echo 0)}
	until_true 60 eval "[ \"\$(cat '$dir/rounds' 2> /dev/null || echo 0)\" -gt $((n + 1)) ]" || failed "the load does not get on: $(cat "$dir/load-says")"
}
gets_on

step "it is watched"
inside gaia stat /mnt 1 2 > "$dir/log" 2>&1 || failed "gaia stat fails"
[ "$(wc -l < "$dir/log")" -ge 3 ] || failed "gaia stat says too little"
inside gaia top /mnt 1 2 -b > "$dir/log" 2>&1 || failed "gaia top fails"
inside gaia residency /mnt/data > "$dir/log" 2>&1 || failed "gaia residency fails"
inside gaia residency -r /mnt > "$dir/log" 2>&1 || failed "gaia residency -r fails"
inside python3 -c 'import socket
s = socket.socket(socket.AF_UNIX)
s.connect("/run/gaiafs-metrics")
s.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
text = b"".join(iter(lambda: s.recv(65536), b"")).decode()
assert "gaiafs_" in text and text.rstrip().endswith("# EOF"), text[-200:]' 2> "$dir/log" || failed "the metrics are not served"
getfattr --only-values -n system.gaiafs.residency "$mnt/data" > "$dir/log" 2>&1 || failed "its attributes cannot be read"

step "a file stays on the device, and home is made smaller"
inside gaia pin /mnt/data > "$dir/log" 2>&1 || failed "gaia pin fails"
inside gaia set /mnt home=24M > "$dir/log" 2>&1 || failed "gaia set fails"
until_true 60 at_most '["home"]["used"]' $((24 << 20)) || failed "home does not shrink"
gets_on
inside gaia unpin /mnt/data > "$dir/log" 2>&1 || failed "gaia unpin fails"
inside gaia set /mnt device.sim0=16M > "$dir/log" 2>&1 || failed "a device's budget cannot be changed"
until_true 60 at_most '["devices"][0]["used"]' $((16 << 20)) || failed "the device's memory does not shrink"
! inside gaia set /mnt cpu-cache=auto > "$dir/log" 2>&1 || failed "what cannot be changed is changed"
grep -q 'cannot be changed while it is mounted' "$dir/log" || failed "it does not say what cannot be changed"

step "a device is added, has a file, and is taken away"
inside gaia set /mnt device=sim:32M > "$dir/log" 2>&1 || failed "a device cannot be added"
is '["devices"][1]["capacity"]' $((32 << 20)) || failed "the device is not there"
inside gaia warm --device 1 /mnt/data > "$dir/log" 2>&1 || failed "gaia warm fails"
! is '["devices"][1]["used"]' 0 || failed "nothing is on the device"
gets_on
inside gaia pin --device 1 /mnt/data > "$dir/log" 2>&1 || failed "gaia pin fails"
! inside gaia set /mnt device.sim1=off > "$dir/log" 2>&1 || failed "a device goes with the files that are pinned to it"
inside gaia unpin --device 1 /mnt/data > "$dir/log" 2>&1 || failed "gaia unpin fails"
inside gaia set --wait /mnt device.sim1=off > "$dir/log" 2>&1 || failed "a device cannot be taken away"
is '["devices"][1]["used"]' 0 && is '["devices"][1]["capacity"]' 0 || failed "the device is not empty"
gets_on

step "its file is changed, and read again"
sed -i 's/^home=.*/home=48M/' "$dir/root/etc/gaiafs/mnt.conf"
unit ExecReload > "$dir/log" 2>&1 || failed "reload fails"
until_true 10 is '["home"]["budget"]' $((48 << 20)) || failed "reload changes nothing"
echo 'home=much' >> "$dir/root/etc/gaiafs/mnt.conf"
! unit ExecReload > "$dir/log" 2>&1 || failed "reload succeeds with a file that is wrong"
grep -q 'mnt.conf:[0-9]*:' "$dir/log" || failed "reload does not name the line"
sed -i '$d' "$dir/root/etc/gaiafs/mnt.conf"
gets_on

step "the next version is installed, and takes the mount over"
inside sh -c 'dpkg -i /next/*.deb' > "$dir/log" 2>&1 || failed "the next packages cannot be installed"
inside gaiafs --upgrade /mnt > "$dir/log" 2>&1 || failed "the next gaiafs does not take the mount over"
until_true 30 eval '[ "$(daemon)" != 0 ] && [ "$(daemon)" != '"$first"' ]' || failed "the daemon is the same one"
is '["home"]["budget"]' $((48 << 20)) || failed "the next daemon does not have what is set"
is '["devices"][1]["capacity"]' 0 || failed "the device that was taken away is back"
gets_on
kill -0 "$load" 2> /dev/null || failed "a program has seen the upgrade: $(cat "$dir/load-says")"

step "the disk fills up, and nothing is lost without a word"
if dd if=/dev/zero of="$mnt/large" bs=1M count=400 conv=fsync status=none 2> "$dir/log"; then
	failed "more is written than there is room for, and no error"
fi
touch "$dir/over"
wait "$load" || true # it may have seen that, too
rm "$mnt/large" "$mnt/grows"
[ "$(sha256sum < "$mnt/data")" = "$sum" ] || die "what was there before is not the same"
echo last > "$mnt/last"
inside gaia flush /mnt > "$dir/log" 2>&1 || inside gaia flush /mnt > "$dir/log" 2>&1 || failed "with room again it cannot be stored"

step "it is stopped by its unit"
unit ExecStop > "$dir/log" 2>&1 || failed "it cannot be stopped"
until_true 60 eval "! mountpoint -q '$mnt'" || die "it is still mounted"
[ "$(sha256sum < "$dir/root/srv/below/data")" = "$sum" ] && [ "$(cat "$dir/root/srv/below/last")" = last ] || die "the source does not have what was written"

step "the packages are purged"
purge_packages
[ ! -e "$dir/root/usr/bin/gaiafs" ] || die "a purge leaves the daemon"
[ -e "$dir/root/etc/gaiafs/mnt.conf" ] || die "a purge takes the administrator's file"
umount "$dir/root/srv/below"
step "done"
