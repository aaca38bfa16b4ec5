#!/usr/bin/env bash
# package.sh SOURCE - scripts/package's packages are installed, used, upgraded and purged in a root of their own: an overlay over this
# machine's. What they leave behind, and mounts that do not live through an upgrade, fail. Status 77: skipped, the last line says why.
set -euo pipefail
source=$1

skip() {
	echo "package: $*"
	exit 77
}
die() {
	echo "package: $*" >&2
	exit 1
}
if [ -z "${2:-}" ]; then
	[ "$(id -u)" -eq 0 ] || skip "needs root, to install packages in a root of its own"
	for tool in dpkg-buildpackage dh lintian; do
		command -v $tool > /dev/null || skip "$tool is not installed; scripts/package does that"
	done
	exec unshare --mount --propagation private "$0" "$source" inside
fi

dir=$(mktemp -d /dev/shm/gaiafs-package.XXXXXX) # an overlay's upper directory cannot be on one
clean_up() {
	umount -l "$dir/root/mnt" 2> /dev/null || true
	umount -l "$dir/root/proc" "$dir/root/dev" "$dir/root" 2> /dev/null || true
	rm -rf --one-file-system "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP
mkdir "$dir/upper" "$dir/work" "$dir/root" "$dir/packages"

git -C "$source" rev-parse -q --verify HEAD > /dev/null || skip "$source is no git repository"
"$source/scripts/package" --no-setup --out "$dir/packages" --revision 1 > "$dir/log" 2>&1 || {
	cat "$dir/log" >&2
	die "scripts/package failed"
}
# A next version of them, of the same contents.
mkdir "$dir/next"
for deb in "$dir/packages"/*.deb; do
	[[ $deb != *dbgsym* ]] || continue
	dpkg-deb -R "$deb" "$dir/one"
	sed -i -E 's/^Version: (.*)\+1$/Version: \1+2/; s/(\(>?= [^)]*)\+1\)/\1+2)/g' "$dir/one/DEBIAN/control"
	dpkg-deb --root-owner-group -b "$dir/one" "$dir/next/$(basename "$deb")" > /dev/null
	rm -r "$dir/one"
done
rm "$dir/packages"/*dbgsym*
python3 -c 'import json, sys
spdx = json.load(open(sys.argv[1]))
names = {p["name"] for p in spdx["packages"]}
assert {"gaiafs", "libgaiaclient0", "python3-gaiafs", "libuv1"} <= names, names
ids = {p["SPDXID"] for p in spdx["packages"]} | {"SPDXRef-DOCUMENT"}
assert all(r["spdxElementId"] in ids and r["relatedSpdxElement"] in ids for r in spdx["relationships"])' "$dir/packages"/*.spdx.json ||
	die "the SPDX document does not name what is there"

mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$dir/root" 2> "$dir/log" ||
	skip "no overlay over / here: $(cat "$dir/log")"
mount --bind /dev "$dir/root/dev"
mount -t proc proc "$dir/root/proc"
mkdir "$dir/root/packages" "$dir/root/next"
cp "$dir/packages"/*.deb "$dir/root/packages/"
cp "$dir/next"/*.deb "$dir/root/next/"
inside() { chroot "$dir/root" env DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
# What was made in this root, of ours; not what dpkg and apt keep for themselves.
inventory() {
	(cd "$dir/upper" && find . \( -path ./packages -o -path ./next -o -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache -o -path ./tmp \
		-o -path ./run \) -prune -o -path '*gaia*' ! -type c -print | sort)
}

if inside dpkg-query -W gaiafs 2> /dev/null | grep -q .; then
	inside dpkg --purge gaiafs libgaiaclient0 libgaiaumap0 libgaiaclient-dev python3-gaiafs > "$dir/log" 2>&1 || true
fi
before=$(inventory)
# By apt, which also brings what they need.
inside sh -c 'apt-get -q -y install --no-install-recommends /packages/*.deb' > "$dir/log" 2>&1 || {
	cat "$dir/log" >&2
	die "apt cannot install them"
}

# Used: a mount, by the helper, and the tool.
inside sh -c 'mkdir -p /mnt /srv/below && echo hello > /srv/below/file && mount -t gaiafs -o device=sim:16M /srv/below /mnt' || die "it does not mount"
[ "$(cat "$dir/root/mnt/file")" = hello ] || die "the mount does not show the file"
inside gaia status /mnt --json > "$dir/log" || die "gaia status fails"
inside python3 -c 'import gaiafs; print(gaiafs.devices("/mnt"))' > "$dir/log" 2>&1 || die "the Python package does not work: $(cat "$dir/log")"

# Upgraded, with the mount in use, and what an administrator has written.
echo 'OPTIONS=--home 64M' > "$dir/root/etc/gaiafs/mnt.conf"
exec 7< "$dir/root/mnt/file"
inside sh -c 'dpkg -i /next/*.deb' > "$dir/log" 2>&1 || {
	cat "$dir/log" >&2
	die "the upgrade failed"
}
[ "$(cat <&7)" = hello ] || die "a file that was open does not live through an upgrade"
echo more >> "$dir/root/mnt/file" || die "the mount does not live through an upgrade"
exec 7<&-
inside umount /mnt || die "it does not unmount"
[ "$(cat "$dir/root/srv/below/file")" = $'hello\nmore' ] || die "what was written during the upgrade is not there"
[ "$(cat "$dir/root/etc/gaiafs/mnt.conf")" = 'OPTIONS=--home 64M' ] || die "an upgrade has changed the administrator's file"

# Purged: nothing stays but what the administrator has written.
inside dpkg --purge python3-gaiafs gaiafs libgaiaclient-dev libgaiaumap0 libgaiaclient0 > "$dir/log" 2>&1 || {
	cat "$dir/log" >&2
	die "the purge failed"
}
left=$(diff <(echo "$before") <(inventory) | sed -n 's/^> //p' | grep -vxE './etc/gaiafs(/mnt.conf)?' || true)
[ -z "$left" ] || die "a purge leaves: $left"
[ -e "$dir/root/etc/gaiafs/mnt.conf" ] || die "a purge takes the administrator's file"
echo "package: installed, used, upgraded under a mount, and purged"
