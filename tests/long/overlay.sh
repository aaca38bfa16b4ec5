# overlay.sh - sourced by scripts that install scripts/package's packages in a root of their own: an overlay over this machine's.
#
# The caller has set `name` (for messages), and $1 is the source and $2 "inside", or empty: then it starts itself again in a mount namespace. Afterwards
# $dir is a directory of the script's own, with packages/ (these), next/ (a next version of them, of the same contents) and root/ (the root, with both of them,
# where nothing is installed yet). `inside COMMAND...` runs a command there. Status 77: skipped, the last line says why.
# shellcheck shell=bash

skip() {
	echo "$name: $*"
	exit 77
}
die() {
	echo "$name: $*" >&2
	exit 1
}
# What went wrong, after all that a command has said.
failed() {
	cat "$dir/log" >&2
	die "$@"
}
until_true() { # SECONDS COMMAND...: or not
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.1
	done
}
if [ -z "${2:-}" ]; then
	[ "$(id -u)" -eq 0 ] || skip "needs root, to install packages in a root of its own"
	for tool in dpkg-buildpackage dh lintian; do
		command -v $tool > /dev/null || skip "$tool is not installed; scripts/package does that"
	done
	exec unshare --mount --propagation private "$0" "$1" inside
fi

dir=$(mktemp -d "/dev/shm/gaiafs-$name.XXXXXX") # an overlay's upper directory cannot be on one
clean_up() {
	umount -l "$dir/root/mnt" 2> /dev/null || true
	umount -l "$dir/root/srv/below" 2> /dev/null || true
	umount -l "$dir/root/proc" "$dir/root/dev" "$dir/root" 2> /dev/null || true
	rm -rf --one-file-system "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP
mkdir "$dir/upper" "$dir/work" "$dir/root" "$dir/packages"

git -C "$1" rev-parse -q --verify HEAD > /dev/null || skip "$1 is no git repository"
"$1/scripts/package" --no-setup --out "$dir/packages" --revision 1 > "$dir/log" 2>&1 || failed "scripts/package failed"
mkdir "$dir/next"
for deb in "$dir/packages"/*.deb; do
	[[ $deb != *dbgsym* ]] || continue
	dpkg-deb -R "$deb" "$dir/one"
	sed -i -E 's/^Version: (.*)\+1$/Version: \1+2/; s/(\(>?= [^)]*)\+1\)/\1+2)/g' "$dir/one/DEBIAN/control"
	dpkg-deb --root-owner-group -b "$dir/one" "$dir/next/$(basename "$deb")" > /dev/null
	rm -r "$dir/one"
done
rm -f "$dir/packages"/*dbgsym*

mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$dir/root" 2> "$dir/log" ||
	skip "no overlay over / here: $(cat "$dir/log")"
mount --bind /dev "$dir/root/dev"
mount -t proc proc "$dir/root/proc"
mkdir "$dir/root/packages" "$dir/root/next"
cp "$dir/packages"/*.deb "$dir/root/packages/"
cp "$dir/next"/*.deb "$dir/root/next/"
inside() { chroot "$dir/root" env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
if inside dpkg-query -W gaiafs 2> /dev/null | grep -q .; then
	inside dpkg --purge gaiafs libgaiaclient0 libgaiaumap0 libgaiaclient-dev python3-gaiafs > "$dir/log" 2>&1 || true
fi
# By apt, which also brings what they need.
install_packages() {
	inside sh -c 'apt-get -q -y install --no-install-recommends /packages/*.deb' > "$dir/log" 2>&1 || failed "apt cannot install them"
}
purge_packages() {
	inside dpkg --purge python3-gaiafs gaiafs libgaiaclient-dev libgaiaumap0 libgaiaclient0 > "$dir/log" 2>&1 || failed "the purge failed"
}
