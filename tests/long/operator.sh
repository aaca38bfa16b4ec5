#!/usr/bin/env bash
# operator.sh SOURCE - an administrator's hour with gaiafs, every step checked: packages in, a mount by its unit, programs that use it, watched,
# changed while it runs, upgraded under load, killed, its disk filled, stopped, purged; in a root of its own (overlay.sh), with a systemd of its own
# (systemd.sh). Status 77: skipped, the last line says why.
#
# Nothing makes the packages' daemon lose a device: for one step $GAIAFS_FAULTY, a build with fault points, stands in its place. Without it the step is left out.
set -euo pipefail
name=operator
# shellcheck source=tests/long/overlay.sh
. "$(dirname "$0")/overlay.sh"
# shellcheck source=tests/long/systemd.sh
. "$(dirname "$0")/systemd.sh"

unit=gaiafs@mnt
step() { echo "operator: $*"; }
status() { # PATH IN THE REPORT, as Python's
	inside gaia status /mnt --json | python3 -c "import json, sys; print(json.load(sys.stdin)$1)"
}
is() { [ "$(status "$1")" = "$2" ]; }
at_most() { [ "$(status "$1")" -le "$2" ]; }
daemon() { status '["pid"]' 2> /dev/null || echo none; }

property() { inside systemctl show -P "$1" $unit; }
has() { [ "$(property "$1")" = "$2" ]; } # PROPERTY VALUE
unit_failed() {
	inside journalctl -q --no-pager -o short-precise > "$dir/log" 2>&1 || true
	inside systemctl --no-pager status $unit >> "$dir/log" 2>&1 || true
	failed "$@"
}
# What the unit has said since mark_journal.
mark_journal() {
	inside journalctl -q --sync
	cursor=$(inside journalctl -q -n 1 --show-cursor | sed -n 's/^-- cursor: //p')
}
journal_says() {
	inside journalctl -q --sync
	inside journalctl -q -u $unit -o cat --after-cursor "$cursor" > "$dir/journal"
	grep -qE -e "$1" "$dir/journal"
}
is_main_process() { # The unit's main process is the daemon, and not number $1, which has ended.
	local main
	main=$(property MainPID)
	[ "$main" != "$1" ] && [ "$main" = "$(daemon)" ] && ! inside kill -0 "$1" 2> /dev/null
}
follows() { # NUMBER WHAT: after $2 the unit runs, with another main process than number $1 (or "none").
	until_true 60 is_main_process "$1" || unit_failed "$2: the unit's main process is $(property MainPID), and the daemon is $(daemon); before it was $1"
	inside systemctl -q is-active $unit || unit_failed "$2: the unit is not active"
	has SubState running || unit_failed "$2: the unit does not run"
}

step "a system starts, and the packages are installed"
below=$dir/root/srv/below
mkdir -p "$dir/root/mnt" "$below"
mount -t tmpfs -o size=192M tmpfs "$below"
boot_systemd
mnt=$root/mnt
beneath=$(ls -A "$dir/root/mnt") # the mount is in systemd's namespace only
install_packages

step "a mount is configured, and starts by its unit"
cat > "$root/etc/gaiafs/mnt.conf" << 'END'
# What this machine's mount is.
SOURCE=/srv/below
home=64M
device=sim:32M
cpu-cache=writeback
writeback-age=1
metrics=unix:/run/gaiafs-metrics
END
inside systemctl start $unit > "$dir/log" 2>&1 || unit_failed "it does not start"
# It is mounted when systemctl comes back, not some time later.
inside mountpoint -q /mnt || unit_failed "it does not mount"
is '["home"]["budget"]' $((64 << 20)) || failed "it does not have the options of its file"
follows none "start"

step "programs use it"
inside dd if=/dev/urandom of=/mnt/data bs=1M count=16 status=none
sum=$(sha256sum < "$mnt/data")
# A program that writes, reads, and checks what it reads, until it is told to end: in /run/load it says how often it has.
load() {
	local n=0
	while [ ! -e /run/load/over ]; do
		n=$((n + 1))
		echo $n > /mnt/one.new && mv /mnt/one.new /mnt/one && [ "$(cat /mnt/one)" = $n ] || return 1
		[ "$(sha256sum < /mnt/data)" = "$1" ] || return 1
		dd if=/dev/zero of=/mnt/grows bs=64k count=16 oflag=append conv=notrunc status=none || return 1
		truncate -s 1M /mnt/grows || return 1
		echo $n > /run/load/new && mv /run/load/new /run/load/rounds
	done
}
start_load() {
	rm -rf "$root/run/load"
	mkdir "$root/run/load"
	limit=3000 inside bash -c "$(declare -f load); load '$sum'" 2> "$dir/load-says" &
	load=$!
}
rounds() { cat "$root/run/load/rounds" 2> /dev/null || echo 0; }
more_rounds() { [ "$(rounds)" -gt "$1" ]; }
gets_on() { # Nothing that has happened so far is an error for it, or keeps it waiting.
	until_true 60 more_rounds $(($(rounds) + 1)) || failed "the load does not get on: $(cat "$dir/load-says")"
}
end_load() {
	touch "$root/run/load/over"
	wait "$load"
}
start_load
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
inside getfattr --only-values -n system.gaiafs.residency /mnt/data > "$dir/log" 2>&1 || failed "its attributes cannot be read"

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
is '["devices"][1]["used"]' 0 || failed "the device is not empty"
is '["devices"][1]["capacity"]' 0 || failed "the device has memory"
gets_on

step "its file is changed, and read again"
sed -i 's/^home=.*/home=48M/' "$root/etc/gaiafs/mnt.conf"
first=$(daemon)
inside systemctl reload $unit > "$dir/log" 2>&1 || unit_failed "reload fails"
is '["home"]["budget"]' $((48 << 20)) || unit_failed "reload changes nothing"
echo 'home=much' >> "$root/etc/gaiafs/mnt.conf"
mark_journal
! inside systemctl reload $unit > "$dir/log" 2>&1 || unit_failed "reload succeeds with a file that is wrong"
until_true 10 journal_says 'mnt.conf:[0-9]+:' || unit_failed "reload does not name the line"
sed -i '$d' "$root/etc/gaiafs/mnt.conf"
[ "$(property ActiveState) $(property MainPID)" = "active $first" ] || unit_failed "a reload that fails is not without consequences"
gets_on

step "the next version is installed, and takes the mount over"
inside sh -c 'dpkg -i /next/*.deb' > "$dir/log" 2>&1 || failed "the next packages cannot be installed"
has MainPID "$first" || unit_failed "installing the next version does something to the mount"
inside gaiafs --upgrade /mnt > "$dir/log" 2>&1 || failed "the next gaiafs does not take the mount over"
follows "$first" "upgrade"
has NRestarts 0 || unit_failed "to systemd an upgrade is a crash"
is '["home"]["budget"]' $((48 << 20)) || failed "the next daemon does not have what is set"
is '["devices"][1]["capacity"]' 0 || failed "the device that was taken away is back"
gets_on
kill -0 "$load" 2> /dev/null || failed "a program has seen the upgrade: $(cat "$dir/load-says")"
inside systemctl reload $unit > "$dir/log" 2>&1 || unit_failed "reload fails after an upgrade"

step "the unit is restarted under load, and programs do not notice"
before=$(daemon)
inside systemctl restart $unit > "$dir/log" 2>&1 || unit_failed "restart fails"
follows "$before" "restart"
has NRestarts 0 || unit_failed "to systemd a restart is a crash"
gets_on
kill -0 "$load" 2> /dev/null || failed "a program has seen the restart: $(cat "$dir/load-says")"
end_load || failed "a program fails: $(cat "$dir/load-says")"

lose_a_device() {
	local conf=$root/run/systemd/system/$unit.service.d/faulty.conf n
	# shellcheck disable=SC2016 # the inner shell's
	inside sh -c 'cc -o /run/one /usr/share/doc/libgaiaclient-dev/examples/increment.c $(pkg-config --cflags --libs gaiaclient)' > "$dir/log" 2>&1 ||
		failed "an example cannot be compiled"
	inside systemctl stop $unit > "$dir/log" 2>&1 || unit_failed "stop fails"
	mv "$root/usr/bin/gaiafs" "$root/usr/bin/gaiafs.packaged"
	cp "$GAIAFS_FAULTY" "$root/usr/bin/gaiafs"
	mkdir -p "$(dirname "$conf")"
	# Of what programs release on it. (After the restart, too; there is one release then.)
	printf '[Service]\nEnvironment=GAIAFS_FAULTS=device.find_changed=errno:ENODEV,after=6,count=1\n' > "$conf"
	inside systemctl daemon-reload
	echo device-age=600 >> "$root/etc/gaiafs/mnt.conf"
	inside systemctl start $unit > "$dir/log" 2>&1 || unit_failed "a build with fault points does not start"
	mark_journal
	start_load
	truncate -s 4M "$mnt/safe" "$mnt/busy"
	inside gaia warm --device 0 /mnt/data > "$dir/log" 2>&1 || failed "gaia warm fails"
	inside /run/one /mnt/safe > "$dir/log" 2>&1 || failed "an example fails"
	inside gaia flush /mnt > "$dir/log" 2>&1 || failed "gaia flush fails"
	! is '["devices"][0]["used"]' 0 || failed "nothing is on the device"
	gets_on
	n=0
	while inside /run/one /mnt/busy > "$dir/log" 2>&1; do
		n=$((n + 1))
		[ $n -lt 20 ] || failed "the device is not lost"
	done
	grep -qE 'No such device|Input/output error' "$dir/log" || failed "the device's program fails in another way"
	! inside /run/one /mnt/safe 2> "$dir/log" || failed "a device that is gone can be used"
	grep -q 'No such device' "$dir/log" || failed "a program is not told that the device is gone"
	is '["devices"][0]["gone"]' True || failed "gaia status does not say that the device is gone"
	inside gaia top -b /mnt 0.1 1 > "$dir/log" 2>&1 || failed "gaia top fails"
	grep -q '^sim0 .* gone$' "$dir/log" || failed "gaia top does not say that the device is gone"
	until_true 10 journal_says '^gaiafs: device sim0 is gone; ' || unit_failed "the log does not say that the device is gone"
	[ "$(grep -c 'is gone' "$dir/journal")" = 1 ] || unit_failed "the log says it more than once"

	# Whoever had nothing there that was not stored goes on; other bytes are an error, and not what they were before.
	gets_on
	gets_on
	[ "$(sha256sum < "$mnt/data")" = "$sum" ] || die "what was on the device and is stored is not the same"
	cmp -n $((4 << 20)) "$mnt/safe" <(tr '\0' '\1' < /dev/zero) > "$dir/log" 2>&1 || failed "what a device had changed and was stored is not the same"
	[ $n -gt 0 ] || die "the device is lost before anything was released on it"
	! inside cat /mnt/busy > /dev/null 2> "$dir/log" || failed "what only the device had is lost, and can be read"
	grep -q 'Input/output error' "$dir/log" || failed "what is lost cannot be read for another reason"
	inside dd if=/dev/urandom of=/mnt/busy bs=4M count=1 conv=notrunc status=none 2> "$dir/log" || failed "what is lost cannot be written over"
	inside gaia flush /mnt > "$dir/log" 2>&1 || inside gaia flush /mnt > "$dir/log" 2>&1 || failed "what was written over what was lost cannot be stored"

	# Another one in its place, and then this one.
	inside gaia set /mnt device=sim:32M > "$dir/log" 2>&1 || failed "a device cannot be added in the place of one that is gone"
	inside gaia warm --device 1 /mnt/data > "$dir/log" 2>&1 || failed "gaia warm fails on it"
	! is '["devices"][1]["used"]' 0 || failed "nothing is on it"
	gets_on
	before=$(daemon)
	inside systemctl restart $unit > "$dir/log" 2>&1 || unit_failed "restart fails"
	follows "$before" "restart after a device was lost"
	is '["devices"][0]["gone"]' False || failed "the device is not back"
	inside /run/one /mnt/safe > "$dir/log" 2>&1 || failed "the device that is back cannot be used"
	inside gaia flush /mnt > "$dir/log" 2>&1 || failed "gaia flush fails"
	cmp -n $((4 << 20)) "$mnt/safe" <(tr '\0' '\2' < /dev/zero) > "$dir/log" 2>&1 || failed "the device that is back changes what it should not"
	gets_on
	kill -0 "$load" 2> /dev/null || failed "a program has seen that a device was lost: $(cat "$dir/load-says")"
	end_load || failed "a program fails: $(cat "$dir/load-says")"

	inside systemctl stop $unit > "$dir/log" 2>&1 || unit_failed "stop fails after a device was lost"
	mv "$root/usr/bin/gaiafs.packaged" "$root/usr/bin/gaiafs"
	rm "$conf"
	sed -i '/^device-age=/d' "$root/etc/gaiafs/mnt.conf"
	inside systemctl daemon-reload
	inside systemctl start $unit > "$dir/log" 2>&1 || unit_failed "it does not start again"
}
if [ -n "${GAIAFS_FAULTY:-}" ]; then
	step "a device is lost under load, and put back"
	lose_a_device
else
	step "no device is lost: \$GAIAFS_FAULTY is not set"
fi

step "the daemon is killed, and comes back"
inside gaia flush /mnt > "$dir/log" 2>&1 || failed "gaia flush fails"
mkdir -p "$root/run/systemd/system/$unit.service.d"
printf '[Service]\nRestartSec=10s\n' > "$root/run/systemd/system/$unit.service.d/slow.conf" # time to look at what is there meanwhile
inside systemctl daemon-reload
killed=$(daemon)
inside kill -KILL "$killed"
until_true 30 has SubState auto-restart || unit_failed "systemd is not about to start it again"
# The mount stays, so that nobody writes beneath it. (Where the next daemon replaces it there is a moment without.)
! inside sh -c 'echo meanwhile > /mnt/meanwhile' 2> "$dir/log" || failed "a program writes while there is no daemon"
[ "$(ls -A "$dir/root/mnt")" = "$beneath" ] || die "while the daemon was gone, somebody wrote beneath the mount: $(ls -A "$dir/root/mnt")"
has SubState auto-restart || unit_failed "this took longer than systemd waits"
follows "$killed" "kill"
has NRestarts 1 || unit_failed "it was started again and again"
[ "$(sha256sum < "$mnt/data")" = "$sum" ] || die "what was stored before the daemon was killed is not the same"
[ "$(inside grep -c ' /mnt fuse' /proc/self/mounts)" = 1 ] || failed "the mount of the daemon that was killed is still there"

step "the disk fills up, and nothing is lost without a word"
start_load
gets_on
if inside dd if=/dev/zero of=/mnt/large bs=1M count=400 conv=fsync status=none 2> "$dir/log"; then
	failed "more is written than there is room for, and no error"
fi
end_load || true # it may have seen that, too
rm "$mnt/large" "$mnt/grows"
[ "$(sha256sum < "$mnt/data")" = "$sum" ] || die "what was there before is not the same"
echo last > "$mnt/last"
inside gaia flush /mnt > "$dir/log" 2>&1 || inside gaia flush /mnt > "$dir/log" 2>&1 || failed "with room again it cannot be stored"

# Another program takes all room, and then a file is written.
fill() { # FILE
	! inside dd if=/dev/zero of=/srv/below/filler bs=64k status=none 2> /dev/null || die "the disk does not fill up"
	inside dd if=/dev/urandom of="/mnt/$1" bs=1M count=4 status=none 2> /dev/null || true # close(2) may fail
	[ "$(status '["dirty_bytes"]')" -gt 0 ] || failed "all of a file is stored where there is no room"
	filled=$(sha256sum < "$mnt/$1")
}
unmounted() { ! inside mountpoint -q /mnt; }

step "it is stopped with a full disk, and then there is room"
fill late
mark_journal
inside systemctl stop $unit > "$dir/log" 2>&1 &
stop=$!
until_true 30 has SubState stop-sigterm || unit_failed "the unit does not go on to tell the daemon to end"
until_true 10 journal_says '^gaia: /mnt/late: .*not stored' || unit_failed "what cannot be stored is not named"
[ "$(sha256sum < "$mnt/late")" = "$filled" ] || unit_failed "while the daemon tries, what it cannot store cannot be read"
rm "$below/filler"
wait $stop || unit_failed "systemctl stop fails"
unmounted || unit_failed "it is still mounted"
[ "$(property ActiveState) $(property Result)" = "inactive success" ] || unit_failed "all is stored, and the unit says that it has failed"
[ "$(sha256sum < "$below/late")" = "$filled" ] || unit_failed "what could not be stored at first is lost"
rm "$below/late"

step "it is stopped with a full disk, and it stays full"
inside systemctl reset-failed
echo unmount-timeout=2 >> "$root/etc/gaiafs/mnt.conf"
inside systemctl start $unit > "$dir/log" 2>&1 || unit_failed "it does not start again"
fill lost
mark_journal
inside systemctl stop $unit > "$dir/log" 2>&1 || true
unmounted || unit_failed "it is still mounted"
has ActiveState failed || unit_failed "the unit does not fail, and data is lost"
has ExecMainStatus 1 || unit_failed "the daemon does not say that data is lost"
until_true 10 journal_says '^gaiafs: /mnt/lost: .*is lost' || unit_failed "what is lost is not named"
rm -f "$below/filler" "$below/lost"
inside systemctl reset-failed

step "the system ends, and starts again"
sed -i 's/^writeback-age=.*/device-age=600/; /^unmount-timeout=/d' "$root/etc/gaiafs/mnt.conf"
inside systemctl enable --now $unit > "$dir/log" 2>&1 || unit_failed "it cannot be enabled"
[ "$(cat "$mnt/last")" = last ] || unit_failed "what was stored is not there again"
# shellcheck disable=SC2016 # the inner shell's
inside sh -c 'cc -o /run/one /usr/share/doc/libgaiaclient-dev/examples/increment.c $(pkg-config --cflags --libs gaiaclient)' > "$dir/log" 2>&1 ||
	failed "an example cannot be compiled"
truncate -s 8M "$mnt/device"
inside /run/one /mnt/device > "$dir/log" 2>&1 || failed "an example fails"
is '["only_on_devices_bytes"]' $((8 << 20)) || failed "it is not true that only a device has what has been changed there"
shut_down
[ "$(sha256sum < "$below/device")" = "$(head -c 8M /dev/zero | tr '\0' '\1' | sha256sum)" ] || die "when the system ends, data is lost"
boot_systemd
mnt=$root/mnt
follows none "boot"
inside mountpoint -q /mnt || unit_failed "it is enabled, and not mounted after the system has started"

step "it is stopped"
echo more > "$mnt/more"
inside systemctl disable --now $unit > "$dir/log" 2>&1 || unit_failed "it cannot be stopped"
unmounted || unit_failed "it is still mounted"
[ "$(property ActiveState) $(property Result)" = "inactive success" ] || unit_failed "it is stopped, and the unit does not say so"
[ -z "$(inside systemctl --failed --no-legend --plain)" ] || unit_failed "units have failed"
[ "$(sha256sum < "$below/data")" = "$sum" ] || die "the source does not have what was written first"
[ "$(cat "$below/last" "$below/more")" = $'last\nmore' ] || die "the source does not have what was written last"
no_processes() { ! inside pgrep -l 'gaia' > "$dir/log"; }
until_true 10 no_processes || failed "processes are left"

step "the packages are purged"
purge_packages
[ ! -e "$root/usr/bin/gaiafs" ] || die "a purge leaves the daemon"
[ -e "$root/etc/gaiafs/mnt.conf" ] || die "a purge takes the administrator's file"
! inside systemctl start $unit > "$dir/log" 2>&1 || failed "a unit is left that can be started"
step "done"
