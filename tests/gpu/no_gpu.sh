#!/bin/sh
# no_gpu.sh BUILD - on a machine without a GPU whatever needs one starts, says so in one line, and
# exits with 77.
set -u
if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then
	echo "this machine has a GPU"
	exit 77
fi
build=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo hello > "$dir/file"
"$build/client/examples/cuda-stitch" --make 1x1 "$dir/images"
failed=0
for command in "client/examples/cuda-histogram $dir/file" "client/examples/cuda-two_writers $dir/file $dir/out" \
	"client/examples/cuda-stencil $dir/grid" "client/examples/cuda-sssp --make grid:20x20 $dir/roads" \
	"client/examples/cuda-stitch $dir/images $dir/picture" "client/examples/cuda-stitch-cufft $dir/images $dir/picture" \
	"tests/gpu/gpu-random cuda" \
	"tests/gpu/gpu-ceilings copies" "tests/gpu/gpu-ceilings chunks" "tests/gpu/gpu-bench kinds" \
	"tests/gpu/gpu-bench --beside kinds" "tests/gpu/gpu-stalls kernel" "tests/gpu/gpu-stalls other"; do
	[ -x "$build/${command%% *}" ] || continue
	# shellcheck disable=SC2086 # words
	"$build"/$command < /dev/null > "$dir/said" 2> "$dir/error"
	status=$?
	if [ $status -ne 77 ] || [ "$(wc -l < "$dir/error")" -ne 1 ] || ! grep -q 'no CUDA d' "$dir/error"; then
		echo "$command: exit status $status, and it says:"
		cat "$dir/error"
		failed=1
	fi
done
exit $failed
