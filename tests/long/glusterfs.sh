#!/usr/bin/env bash
# glusterfs.sh BUILD SOURCE - two nodes over a volume of GlusterFS: scripts/demo-nodes, which asserts what the nodes see, with the programs of this
# build. Status 77: skipped, the last line says why.
set -euo pipefail
build=$1 source=$2

skip() {
	echo "glusterfs: $*"
	exit 77
}
[ "$(id -u)" -eq 0 ] || skip "needs root, for namespaces and mounts"
for program in glusterd gluster glusterfs ip nsenter; do
	command -v "$program" > /dev/null || skip "$program is not installed (Debian: glusterfs-server, iproute2)"
done
prefix=$(mktemp -d "${TMPDIR:-/tmp}/gaiafs-glusterfs.XXXXXX")
trap 'rm -rf "$prefix"' EXIT
mkdir "$prefix/bin"
ln -s "$build/daemon/gaiafs" "$build/client/gaia" "$prefix/bin/"
"$source/scripts/demo-nodes" "$prefix"
