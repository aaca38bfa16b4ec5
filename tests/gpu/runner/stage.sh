#!/usr/bin/env bash
# stage.sh BUILD TO [stub PROGRAM...] - a bundle as scripts/gpu-check makes it, in directory TO, but of links into a
# build; for tests of `run`. The named programs are played by the stub.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
to=$2
shift 2
mkdir -p "$to/bin" "$to/lib" "$to/glibc" "$to/litmus"
echo 2.0 > "$to/glibc/needed"
echo "under test" > "$to/version"
cp "$here"/../{run,run_sections.sh,run_phases.sh,keeper,diagnose} "$to/"
cp "$here"/../../litmus/*.litmus "$to/litmus/"
root=$here/../../..
mkdir -p "$to/python/gaiafs"
cp "$root"/client/python/gaiafs/*.py "$root"/client/python/gaiafs/VERSION "$to/python/gaiafs/"
cp "$root/client/examples/python/gpu.py" "$here/../make_model.py" "$to/python/"
ln -sf "$(realpath "$build/client/libgaiaclient.so.0")" "$to/lib/libgaiaclient.so.0"
# A rehearsal's driver, CuPy and PyTorch.
if [ -e "$build/tests/gpu/libcuda.so.1" ]; then
	mkdir -p "$to/python/played"
	cp "$root"/client/python/tests/played/*.py "$to/python/played/"
	ln -sf "$(realpath "$build/tests/gpu/libcuda.so.1")" "$to/python/played/"
fi
for program in daemon/gaiafs client/gaia tests/gpu/gpu-{ceilings,bench,stalls,mount}{,-played} tests/gpu/gpu-random \
	tests/gpu/gaiafs-played tests/contract/contract_device{,_peer} tests/litmus/litmus-runner tests/history/history \
	client/examples/cuda-{histogram,two_writers,stencil,sssp,stitch,stitch-cufft,collage,sgemm}; do
	[ ! -x "$build/$program" ] || ln -sf "$(realpath "$build/$program")" "$to/bin/${program##*/}"
done
[ "${1:-}" = stub ] || exit 0
shift
for program; do
	ln -sf "$here/stub" "$to/bin/$program"
done
