# systemd.sh - sourced after overlay.sh: a systemd of its own in overlay.sh's root, as in a container.
#
# boot_systemd starts it, in a new cgroup and in new namespaces: of processes, mounts, cgroups, the host's name and IPC; not of the network, which
# apt needs. It has a /proc, /sys (read-only), /dev, /run and /tmp of its own, and mounts that are made there are in no other namespace. Nothing of
# what the distribution and this machine's administrator have it start is left: it starts the journal, and what has been enabled in this root since.
#
# While it runs, `inside COMMAND...` runs a command there, for $limit seconds (600) at the most, and $root is its root as seen from here. shut_down
# has it end in order, and it can be booted again. At the script's end, however that comes, its first process is killed; with that the kernel kills
# all others of its namespace, and its mounts go with them.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # what the caller uses; overlay.sh's variables

systemd= # the process that waits for systemd: unshare
cgroup=  # systemd's, in a mount of ours: some machines' own is read-only, or among those of version 1

is_running() { grep -qx "$systemd" <<< "$(jobs -rp)"; }
has_become() { [ -s "$dir/init" ] || ! is_running; }
has_booted() { inside systemctl -q is-active multi-user.target 2> /dev/null || ! is_running; }
has_ended() { ! is_running; }

# What systemd would start in this root, and should not, is taken away from it.
prepare_systemd() {
	local etc=$dir/root/etc usr
	rm -rf "$etc"/systemd/{system,system-generators,journald.conf.d} "$etc"/{fstab,crypttab,machine-id}
	for usr in "$dir/root"/{,usr/,usr/local/}lib/systemd; do
		rm -rf "$usr"/system/*.{wants,requires} "$usr"/system-generators
	done
	mkdir -p "$etc"/systemd/{system/sysinit.target.wants,journald.conf.d}
	ln -s /lib/systemd/system/systemd-journald.service "$etc/systemd/system/sysinit.target.wants/"
	ln -s /dev/null "$etc/systemd/system/systemd-journald-audit.socket" # the kernel's, of the whole machine
	printf '[Journal]\nStorage=volatile\n' > "$etc/systemd/journald.conf.d/test.conf"
	tr -d - < /proc/sys/kernel/random/uuid > "$etc/machine-id" # without one it is a first boot, which enables units
}

# Run in the new namespaces. $1: the root; $2: where the number goes that this process, which becomes systemd, has outside.
become_systemd() {
	local device pid
	exec 3> "$2"
	read -r pid _ < /proc/self/stat # /proc is still that of outside
	cd "$1" || return
	umount -l proc dev
	mount -t proc proc proc
	mount --bind proc/sys proc/sys
	mount -o remount,bind,ro proc/sys # no setting of the whole machine's
	mount -t sysfs -o ro sysfs sys
	mount -t fusectl fusectl sys/fs/fuse/connections
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	mount -t tmpfs -o mode=755 tmpfs run
	mount -t tmpfs -o mode=1777 tmpfs tmp
	mount -t tmpfs -o mode=755 tmpfs dev
	for device in null zero full random urandom tty fuse; do
		: > dev/$device
		mount --bind /dev/$device dev/$device # others may make none
	done
	mkdir dev/shm dev/pts
	mount -t tmpfs -o mode=1777 tmpfs dev/shm
	mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
	ln -s pts/ptmx dev/ptmx
	ln -s /proc/self/fd dev/fd
	pivot_root . . # the old root lies on the new one now
	umount -l .
	cd /
	echo "$pid" >&3
	exec 3>&-
	exec env -i container=gaiafs-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=multi-user.target --show-status=no
}

boot_systemd() {
	local init
	[ -x "$dir/root/lib/systemd/systemd" ] || skip "systemd is not installed"
	if [ ! -d "$dir/cgroups" ]; then
		mkdir "$dir/cgroups"
		mount -t cgroup2 cgroup2 "$dir/cgroups" 2> "$dir/log" || skip "no cgroups of version 2 here: $(cat "$dir/log")"
		prepare_systemd
	fi
	cgroup=$(mktemp -d "$dir/cgroups/gaiafs-$name.XXXXXX" 2> "$dir/log") || skip "no cgroup can be made here: $(cat "$dir/log")"

	# Its cgroup namespace comes last: the root of one is where its first process is then. It ends with this script, also if that is killed.
	rm -f "$dir/init"
	# shellcheck disable=SC2016 # the inner shell's
	setpriv --pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child --uts --ipc bash -euc '
		echo 0 > "$1/cgroup.procs"
		exec unshare --cgroup bash -euc "$0" systemd "${@:2}"' "$(declare -f become_systemd); become_systemd \"\$@\"" \
		"$cgroup" "$dir/root" "$dir/init" < /dev/null > "$dir/console" 2>&1 &
	systemd=$!
	until_true 30 has_become || die "there is no end to making a root for systemd"
	[ -s "$dir/init" ] || skip "no root can be made for systemd here: $(tail -n 1 "$dir/console")"
	init=$(cat "$dir/init") root=/proc/$init/root
	eval 'inside() {
		timeout "${limit:-600}" nsenter -a -t '"$init"' -- env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
	}'
	if ! until_true 60 has_booted || ! is_running; then
		inside journalctl --no-pager > "$dir/log" 2>&1 || true
		cat "$dir/console" >> "$dir/log"
		failed "systemd does not start"
	fi
}

shut_down() {
	inside systemctl exit > "$dir/log" 2>&1 || true # it may end before it has answered
	until_true 120 has_ended || failed "systemd does not end"
	end_systemd
}

end_systemd() {
	if [ -n "$systemd" ]; then
		# A child of unshare, which waits for it: the number cannot be another's yet.
		! is_running || [ ! -s "$dir/init" ] || kill -KILL "$(cat "$dir/init")" 2> /dev/null || true
		until_true 10 has_ended || kill -KILL "$systemd" 2> /dev/null || true # and what has become of its child (--kill-child)
		wait "$systemd" 2> /dev/null || true
		systemd=
	fi
	if [ -n "$cgroup" ]; then
		until_true 30 remove_cgroups || echo "$name: $cgroup cannot be removed" >&2
		cgroup=
	fi
}
remove_cgroups() {
	find "$cgroup" -depth -type d -exec rmdir {} + 2> /dev/null
	[ ! -e "$cgroup" ]
}
trap 'end_systemd; umount -l "$dir/cgroups" 2> /dev/null || true; clean_up' EXIT
