#!/bin/sh
# needed.sh BINARY... - no binary needs CUDA's libraries to start, since they are only on machines with a GPU.
set -eu
for binary; do
	needed=$(readelf -d "$binary" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
	[ -n "$needed" ] || { echo "$binary: nothing is NEEDED, not even libc" && exit 1; }
	if printf '%s\n' "$needed" | grep -E '^lib(cuda|cudart|nvidia)'; then
		echo "$binary needs it to start"
		exit 1
	fi
done
