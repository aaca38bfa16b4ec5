#!/usr/bin/env bash
# glusterfs.sh BUILD SOURCE - two nodes over a volume of GlusterFS: scripts/demo-nodes, which asserts what the nodes see, with the programs of this
# build; and on one node, over two clients of the volume, what tests/mount and tests/history have for nodes with an engine. Status 77: skipped, the last line says why.
set -euo pipefail
build=$1 source=$2

skip() {
	echo "glusterfs: $*"
	exit 77
}
why=$("$source/scripts/demo-nodes" --check 2>&1) || skip "${why##*$'\n'}"
prefix=$(mktemp -d "${TMPDIR:-/tmp}/gaiafs-glusterfs.XXXXXX")
trap 'rm -rf "$prefix"' EXIT
mkdir "$prefix/bin"
ln -s "$build/daemon/gaiafs" "$build/client/gaia" "$prefix/bin/"
GAIA_DEMO_ALSO="for suite in nodes nodes_devices; do '$build'/tests/mount/mount_\$suite -j1 --filter '*/*engine' || exit; done
	'$build/tests/history/history-nodes' --seconds 60" \
	"$source/scripts/demo-nodes" "$prefix"
