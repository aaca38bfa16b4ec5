#!/usr/bin/env bash
# libfuse.sh SOURCE_ROOT GAIAFS VERSION - which libfuse gaiafs is built with.
set -euo pipefail
source=$1 gaiafs=$2 version=$3

fail() {
	echo "libfuse: $*" >&2
	exit 1
}

# The binary has the one that was configured.
"$gaiafs" --version | grep -qF "(libfuse $version." || fail "configured with $version, but: $("$gaiafs" --version)"

# Where none can be fetched, setup goes on without, in one line, and leaves nothing behind.
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/scripts" "$dir/bin"
cp "$source/scripts/libfuse" "$source/scripts/lib.sh" "$dir/scripts/"
printf '#!/bin/sh\necho "E: no network today"\nexit 100\n' > "$dir/bin/apt-get"
# As on a system with an old libfuse.
# shellcheck disable=SC2016 # the script's own variables
printf '#!/bin/sh\n[ "$1" = --modversion ] && echo 3.14.0\n' > "$dir/bin/pkg-config"
chmod +x "$dir/bin/apt-get" "$dir/bin/pkg-config"
PATH=$dir/bin:$PATH "$dir/scripts/libfuse" > "$dir/out" 2> "$dir/err" || fail "setup fails: $(cat "$dir/err")"
[ ! -s "$dir/err" ] || fail "errors: $(cat "$dir/err")"
[ "$(wc -l < "$dir/out")" -eq 1 ] || fail "not one line: $(cat "$dir/out")"
grep -q "the system's, 3.14.0, and there will be no passthrough" "$dir/out" || fail "$(cat "$dir/out")"
[ -z "$(ls -A "$dir/build-deps")" ] || fail "left behind: $(ls -A "$dir/build-deps")"
