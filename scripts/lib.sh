# What scripts/demo and scripts/test share. Sourced.
# shellcheck shell=bash

me=$(basename "$0")

say() { printf '%s: %s\n' "$me" "$*"; }
die() {
	printf '%s: %s\n' "$me" "$*" >&2
	exit 1
}

# quietly WHAT COMMAND...: its output only if it fails. Whoever sets a trap on EXIT calls forget_output.
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

# build DIR OPTIONS...: configure, if needed, and compile.
build() {
	local dir=$1 reconfigure=
	shift
	[ ! -f "$dir/build.ninja" ] || reconfigure=--reconfigure
	quietly "configure $dir" meson setup $reconfigure "$dir" "$@"
	quietly "compile $dir" ninja -C "$dir"
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

# In a new mount namespace: let go of its copies of gaiafs mounts, which would keep them from ending when
# they are unmounted outside; but not of one that we work on.
let_go_of_mounts() {
	local mount
	awk '/ - fuse\.gaiafs / { print $5 }' /proc/self/mountinfo | while read -r mount; do
		mount=$(printf '%b' "${mount//\\/\\0}")
		[[ $PWD/ == "$mount"/* || ${TMPDIR:-/tmp}/ == "$mount"/* ]] || umount -i -l -- "$mount"
	done
}

# The FUSE mounts that this process can see, one path a line.
fuse_mounts() {
	awk '{ for (i = 7; i <= NF; i++) if ($i == "-") { if ($(i + 1) ~ /^fuse(blk)?(\.|$)/) print $5; break } }' \
		/proc/self/mountinfo | sort
}
