#!/bin/sh
# examples.sh BUILD [OPTION] - the sort and the search of client/examples/umap, by user-space paging with little memory, by mmap(2), and by
# umap/umap.h: each verifies what it has done, all find the same, and what is wrong is found.
set -eu

examples=$(cd "$1/client/examples" && pwd)
more=${2:---threads=2}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() {
	echo "examples: $*" >&2
	failed=1
}

# well EXAMPLE ARGUMENTS...
well() {
	program=$1
	shift
	if ! PATH=$examples:$PATH "$program" "$more" "$@" > "$dir/said" 2>&1 || ! grep -q '^verified$' "$dir/said"; then
		fail "$program $*: $(cat "$dir/said")"
	fi
}

for sort in umap-sort umap-sort-compat; do
	well $sort --make 8M --budget 1M --page-size 16K "$dir/numbers"
	well $sort --budget 1M --page-size 64K --threads 3 "$dir/numbers" # sorted already
	well $sort --make 8 --budget 64K --page-size 4K "$dir/numbers"
	well $sort --make 1000008 --budget 512K --page-size 4K --threads 1 "$dir/numbers"
done
well umap-sort --by-threads --make 8M --budget 1M --page-size 16K "$dir/numbers"
well umap-sort --mmap --make 8M "$dir/numbers"
! said=$("$examples/umap-sort" /dev/null 2>&1) || fail "it sorts no numbers: $said"

well umap-bfs --make 14 --budget 256K --page-size 16K "$dir/graph"
sum=$(grep -o 'reached.*' "$dir/said")
for how in 'umap-bfs --budget 64K --page-size 4K --threads 4' 'umap-bfs --page-size 2M' 'umap-bfs --mmap' 'umap-bfs --by-threads --budget 64K --page-size 4K' \
	'umap-bfs-compat --budget 256K --page-size 16K'; do
	# shellcheck disable=SC2086 # words
	well $how "$dir/graph"
	[ "$(grep -o 'reached.*' "$dir/said")" = "$sum" ] || fail "$how finds other levels"
done
# One edge, in the middle of the file, leads elsewhere.
printf '\001\000\000\000' | dd of="$dir/graph" bs=4 seek=200000 conv=notrunc 2> /dev/null
! said=$("$examples/umap-bfs" "$dir/graph" 2>&1) || fail "a wrong edge is not found: $said"
exit $failed
