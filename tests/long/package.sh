#!/usr/bin/env bash
# package.sh SOURCE - scripts/package's packages are installed, used, upgraded and purged in a root of their own: an overlay over this
# machine's. What they leave behind, and mounts that do not live through an upgrade, fail. Status 77: skipped, the last line says why.
set -euo pipefail
name=package
# shellcheck source=tests/long/overlay.sh
. "$(dirname "$0")/overlay.sh"

python3 -c 'import json, sys
spdx = json.load(open(sys.argv[1]))
names = {p["name"] for p in spdx["packages"]}
assert {"gaiafs", "libgaiaclient0", "python3-gaiafs", "libuv1"} <= names, names
ids = {p["SPDXID"] for p in spdx["packages"]} | {"SPDXRef-DOCUMENT"}
assert all(r["spdxElementId"] in ids and r["relatedSpdxElement"] in ids for r in spdx["relationships"])' "$dir/packages"/*.spdx.json ||
	die "the SPDX document does not name what is there"

# What was made in this root, of ours; not what dpkg and apt keep for themselves.
inventory() {
	(cd "$dir/upper" && find . \( -path ./packages -o -path ./next -o -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache -o -path ./tmp \
		-o -path ./run \) -prune -o -path '*gaia*' ! -type c -print | sort)
}

before=$(inventory)
install_packages

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
purge_packages
left=$(diff <(echo "$before") <(inventory) | sed -n 's/^> //p' | grep -vxE './etc/gaiafs(/mnt.conf)?' || true)
[ -z "$left" ] || die "a purge leaves: $left"
[ -e "$dir/root/etc/gaiafs/mnt.conf" ] || die "a purge takes the administrator's file"
echo "package: installed, used, upgraded under a mount, and purged"
