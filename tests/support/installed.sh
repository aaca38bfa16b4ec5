#!/bin/sh
# installed.sh BUILD EXAMPLE.c UMAP.c - what `meson install` puts in place: all of it, usable from C and C++ by
# pkg-config, and the library exports what its headers declare and nothing else.
set -eu

build=$1
example=$2
umap_program=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() {
	echo "installed: $*" >&2
	failed=1
}

meson install -C "$build" --no-rebuild --quiet --destdir "$dir/root" > "$dir/log" 2>&1 || {
	cat "$dir/log" >&2
	exit 1
}
find "$dir/root" ! -type d | sed "s,^$dir/root,," | sort > "$dir/list"
for file in bin/gaiafs bin/gaia sbin/mount.gaiafs sbin/mount.fuse.gaiafs sbin/umount.fuse.gaiafs include/gaia/client.h include/gaia/cuda.h include/gaia/umap.h \
	/libgaiaclient.so /libgaiaclient.so.0 pkgconfig/gaiaclient.pc gaiafs@.service /libgaiaumap.so.0 pkgconfig/gaiaumap.pc \
	include/gaiafs/umap/umap.h include/gaiafs/umap/store/Store.hpp include/gaiafs/umap/store/SparseStore.h; do
	grep -q "/$file\$" "$dir/list" || grep -q "$file\$" "$dir/list" || fail "$file is missing"
done
if command -v scdoc > /dev/null; then
	for page in gaiafs.8 gaiafs-limits.7 gaiafs-nodes.7 mount.gaiafs.8 umount.fuse.gaiafs.8 gaia.1 gaiaclient.3 gaia_mmap.3 gaia_acquire_on.3 gaia_umap.3 gaia_uunmap.3; do
		grep -q "/$page\$" "$dir/list" || fail "man page $page is missing"
	done
fi
! grep -E 'protocol\.h|/tests?/|histogram|fuse\.h' "$dir/list" >&2 || fail "these should not be installed"

lib=$dir/root$(grep '/libgaiaclient\.so\.0$' "$dir/list")
pc=$dir/root$(dirname "$(grep 'gaiaclient\.pc$' "$dir/list")")
headers=$dir/root$(dirname "$(grep '/gaia/client\.h$' "$dir/list")")

readelf -d "$lib" | grep -q 'SONAME.*\[libgaiaclient\.so\.0\]' || fail "the SONAME is not libgaiaclient.so.0"
nm -D --defined-only "$lib" | awk '$2 ~ /[TDBRVWi]/ { print $3 }' | sort > "$dir/versioned"
! grep -v '@@GAIA_[0-9.]*$' "$dir/versioned" >&2 || fail "these have no symbol version (client/libgaiaclient.map)"
sed 's/@.*//' "$dir/versioned" > "$dir/exported"
cat "$headers"/*.h | grep -v '^ \*' | grep -oE '\bgaia_[a-z_]+\(' | tr -d '(' | sort -u > "$dir/declared"
diff "$dir/declared" "$dir/exported" >&2 || fail "declared (<) and exported (>) functions differ"
for binary in "$lib" "$dir/root$(grep 'bin/gaiafs$' "$dir/list")" "$dir/root$(grep 'bin/gaia$' "$dir/list")"; do
	! readelf -d "$binary" | grep 'NEEDED.*libcuda' >&2 || fail "$binary needs libcuda at start"
done
! nm -D --undefined-only "$lib" | grep -wE 'exit|abort|_exit|printf|puts|fprintf|perror' >&2 ||
	[ -n "${SANITIZED:-}" ] || fail "the library prints, exits or aborts"

# As a user compiles. SANITIZED is what the library itself was built with.
export PKG_CONFIG_LIBDIR="$pc" PKG_CONFIG_SYSROOT_DIR="$dir/root"
flags=$(pkg-config --cflags --libs gaiaclient) || fail "pkg-config does not know gaiaclient"
# shellcheck disable=SC2086 # flags are words
${CC:-cc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror ${SANITIZED:-} "$example" -o "$dir/example" $flags ||
	fail "$example does not build against the installed library"
# The example of gaia_umap(3), which is a program.
sed -n '/^# EXAMPLE/,$p' "$(dirname "$example")/../man/gaia_umap.3.scd" | sed -n '/^```$/,/^```$/p' | grep -v '^```$' > "$dir/umap.c"
# shellcheck disable=SC2086
${CC:-cc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Wno-unused-parameter -Werror ${SANITIZED:-} "$dir/umap.c" -o "$dir/umap" $flags ||
	fail "the example of gaia_umap(3) does not build against the installed library"
printf abc > "$dir/abc"
[ "$(LD_LIBRARY_PATH=$(dirname "$lib") "$dir/umap" "$dir/abc")" = 294 ] || fail "the example of gaia_umap(3) does not add up bytes"
flags=$(pkg-config --cflags --libs gaiaumap) || fail "pkg-config does not know gaiaumap"
# shellcheck disable=SC2086
${CC:-cc} -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror ${SANITIZED:-} "$umap_program" -o "$dir/umap_program" $flags ||
	fail "$umap_program does not build against the installed library"
include=$(pkg-config --cflags gaiaumap)
cat > "$dir/t.cc" << 'END'
#include <gaia/client.h>
#include <gaia/cuda.h>
#include <gaia/umap.h>
#include <umap/store/SparseStore.h>
int main() { return gaia_umap_stats(nullptr, nullptr) == 0 || gaia_devices(-1, nullptr, 0) == 0 || gaia_release_on(nullptr, 1, nullptr) == 0; }
END
for standard in c++11 c++20; do
	# shellcheck disable=SC2086
	${CXX:-c++} -std=$standard -Wall -Wextra -Wpedantic -Werror -fsyntax-only $include "$dir/t.cc" ||
		fail "the headers are not good $standard"
done
exit $failed
