#!/bin/sh
# mount_helper.sh HELPER - how mount.gaiafs translates mount(8)'s arguments, shown by a gaiafs
# that only prints its own.
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/src" "$dir/mnt"
cat > "$dir/gaiafs" <<'END'
#!/bin/sh
printf '[%s]' "$@"
END
sed "s,'[^']*/gaiafs','$dir/gaiafs'," "$1" > "$dir/mount.gaiafs"
chmod +x "$dir/gaiafs" "$dir/mount.gaiafs"
cd "$dir"
failed=0

# expect STATUS OUTPUT ARGUMENTS...
expect() {
	want="$1 $2"
	shift 2
	status=0
	out=$(./mount.gaiafs "$@" 2> err) || status=$?
	[ "$status $out" = "$want" ] && return
	echo "mount.gaiafs $*: status and output are '$status $out', not '$want'" >&2
	failed=1
}

expect 0 '[--][src][mnt]' src mnt
expect 0 '[-o][rw][--][src][mnt]' src mnt -o rw
expect 0 '[-o][ro,allow_other][--][src][mnt]' src mnt -v -n -o ro,defaults,_netdev,x-a.b=c,nofail,allow_other
expect 0 '[--device][sim:1G][--home][2G][--cpu-cache][writethrough][--transport][dev][-o][rw][--][src][mnt]' \
	src mnt -s -o rw,device=sim:1G,home=2G,cpu-cache=writethrough,transport=dev -t gaiafs
expect 0 '[--device][sim:1G,count=2][--device][none][--][src][mnt]' \
	src mnt -o 'device="sim:1G,count=2",device=none'
expect 0 '[--device-age][0.5][--][src][mnt]' src mnt -o device-age=0.5
expect 0 '[--unmount-timeout][600][--][src][mnt]' src mnt -o unmount-timeout=600
expect 0 '[--][src]' ./src src
expect 0 '' src mnt -f -o rw
expect 1 '' src
expect 1 '' src mnt extra
expect 1 '' src mnt -o 'device="sim:1G,count=2'
grep -q 'not closed' err || failed=1
exit $failed
