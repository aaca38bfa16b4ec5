#!/bin/sh
# unit.sh BUILD - systemd-analyze accepts the systemd unit; and the command that it starts.
set -eu

build=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fail() {
	echo "unit: $*" >&2
	exit 1
}

unit=$build/mount-helpers/gaiafs@.service
says() { grep -qxF "$1" "$unit" || fail "no line \"$1\""; }
says 'Type=notify'
says 'Restart=on-abnormal'
says 'After=%i.mount'
grep -q '^ExecStart=/.*/gaiafs --foreground --adopt --config -/etc/gaiafs/%i.conf -- %f$' "$unit" || fail "ExecStart does not read the configuration file"
grep -q '^ExecReload=/.*/gaia reload -- %f$' "$unit" || fail "ExecReload does not read it again"

if ! command -v systemd-analyze > /dev/null; then
	echo "skipped: systemd-analyze is not installed"
	exit 77
fi
mkdir "$dir/bin" "$dir/units"
ln -s "$build/daemon/gaiafs" "$build/client/gaia" "$dir/bin/"
sed "s,=/[^ ]*/bin/,=$dir/bin/," "$unit" > "$dir/units/gaiafs@.service"
for instance in srv-data 'mnt-my\x20data'; do
	# It also looks at other units, which are not ours.
	SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --man=no "$dir/units/gaiafs@$instance.service" > "$dir/out" 2>&1 ||
		fail "systemd-analyze verify: $(cat "$dir/out")"
	! grep -F "$dir/units" "$dir/out" >&2 || fail "systemd-analyze verify complains"
	! grep 'gaiafs@' "$dir/out" >&2 || fail "systemd-analyze verify complains"
done
