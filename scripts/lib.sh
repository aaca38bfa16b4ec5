# What scripts/demo, scripts/test and others share. Sourced.
# shellcheck shell=bash

me=$(basename "$0")

say() { printf '%s: %s\n' "$me" "$*"; }
die() {
	printf '%s: %s\n' "$me" "$*" >&2
	exit 1
}

# quietly WHAT COMMAND...: shows its output only if it fails. A script that sets a trap on EXIT must call forget_output in it.
quiet_output=
forget_output() {
	[ -z "$quiet_output" ] || rm -f "$quiet_output"
	quiet_output=
}
trap forget_output EXIT
exec 4>&1 # past quietly
quietly() {
	local what=$1 start=$SECONDS
	shift
	quiet_output=$(mktemp)
	printf '%s: %s ... ' "$me" "$what"
	if ! "$@" > "$quiet_output" 2>&1 < /dev/null; then
		printf 'failed\n'
		cat "$quiet_output" >&2
		die "$what failed: $* (its output is above)."
	fi
	forget_output
	printf 'done (%d s)\n' $((SECONDS - start))
}

# build [--for 'SUITE...'] DIR OPTIONS...: configure, if needed, and compile: everything, or what the tests of these suites need.
build() {
	local dir reconfigure='' suites='' targets=()
	if [ "$1" = --for ]; then
		suites=$2
		shift 2
	fi
	dir=$1
	shift
	[ ! -f "$dir/build.ninja" ] || reconfigure=--reconfigure
	quietly "configure $dir" meson setup $reconfigure "$dir" "$@"
	if [ -n "$suites" ]; then
		# shellcheck disable=SC2086 # they are words
		suites=$(tests/support/targets.py "$dir" $suites) || die "what $dir needs is not known (the error is above)."
		[ -n "$suites" ] || return 0
		mapfile -t targets <<< "$suites"
	fi
	quietly "compile $dir" ninja -C "$dir" "${targets[@]}"
}

# One line, and the end, where nothing can be mounted.
need_fuse() {
	[ -c /dev/fuse ] ||
		die "there is no /dev/fuse. Load the module (modprobe fuse), or give the container --device /dev/fuse --cap-add SYS_ADMIN."
	: 2> /dev/null <> /dev/fuse ||
		die "/dev/fuse cannot be opened by $(id -un). It should be readable and writable for all (chmod 666 /dev/fuse), or use root."
	if [ "$(id -u)" -eq 0 ]; then
		unshare --mount true 2> /dev/null ||
			die "root may not mount here: a container needs --cap-add SYS_ADMIN (and an AppArmor profile that allows mounting)."
	elif ! command -v fusermount3 > /dev/null; then
		die "fusermount3 is missing: without it only root can mount. Install the package fuse3."
	fi
}

# In a new mount namespace: detach its copies of gaiafs mounts, which would keep the mounts alive when
# they are unmounted outside; but not a copy in which we work.
let_go_of_mounts() {
	local mount
	awk '/ - fuse\.gaiafs / { print $5 }' /proc/self/mountinfo | while read -r mount; do
		mount=$(printf '%b' "${mount//\\/\\0}")
		# One within another has gone with it.
		[[ $PWD/ == "$mount"/* || ${TMPDIR:-/tmp}/ == "$mount"/* ]] || umount -i -l -- "$mount" 2> /dev/null || true
	done
}

# The paths of the FUSE mounts that this process can see, one per line.
fuse_mounts() {
	awk '{ for (i = 7; i <= NF; i++) if ($i == "-") { if ($(i + 1) ~ /^fuse(blk)?(\.|$)/) print $5; break } }' \
		/proc/self/mountinfo | sort
}

# contained PROGRAM ARGUMENT...: as root, run it in namespaces of its own, where what it leaves behind is its for certain, and
# ends with it: it gets --contained as its first argument, and calls settle_in. SIGINT, SIGTERM and SIGHUP end it. Its status.
contained() {
	local run=("$@") child status=0
	local contain=(unshare --mount --propagation private --pid --fork --mount-proc --net --ipc --kill-child=TERM)
	if [ "$(id -u)" -eq 0 ] && "${contain[@]}" true 2> /dev/null; then
		run=("${contain[@]}" "$1" --contained "${@:2}")
	fi
	# With job control: without, background jobs ignore SIGINT, and so would all tests.
	set -m
	"${run[@]}" < /dev/null &
	child=$!
	set +m
	interrupted() {
		trap '' INT TERM HUP
		say "interrupted; cleaning up."
		# unshare lets signals pass it by.
		[ "${run[0]}" != unshare ] || child_of_unshare=$(pgrep -P "$child" || true)
		kill -TERM "${child_of_unshare:-$child}" 2> /dev/null || true
		wait "$child" || true
		exit 130
	}
	trap interrupted INT TERM HUP
	wait "$child" || status=$?
	trap - INT TERM HUP
	return "$status"
}

settle_in() {
	let_go_of_mounts
	mount -t tmpfs -o mode=1777 tmpfs /dev/shm
	# What udev gives /dev/fuse, for the tests that mount as an ordinary user.
	if [ "$(stat -c %a /dev/fuse)" != 666 ] && mknod -m 666 /dev/shm/fuse c 10 229 2> /dev/null; then
		mount --bind /dev/shm/fuse /dev/fuse
		rm /dev/shm/fuse
	fi
}
