#!/bin/sh
# run.sh [--torch | --asan] BUILD PYTEST-ARGUMENT... - the tests of the Python package, with the daemon and the library of a build
# directory, and with $GAIAFS_PYTHON, or the environment that scripts/setup has made in build-deps/python. What pytest says goes to
# standard error, and a line of TAP for each test to standard output. Exit status 77: skipped.
# --torch: with PyTorch, in build-deps/python-torch.
# --asan: the library was built with AddressSanitizer. Python was not: so leaks are not looked for.
set -eu

how=
case $1 in
--torch | --asan)
	how=$1
	shift
	;;
esac
build=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."

environment=python
makes=scripts/setup
libraries=$build/client
need="cffi, mesonpy, mypy, numpy, pytest, ruff"
if [ "$how" = --torch ]; then
	environment='python-torch'
	makes="scripts/python --torch"
	libraries=$libraries:/usr/local/cuda/lib64
	need="$need, torch"
fi
python=${GAIAFS_PYTHON:-../../build-deps/$environment/bin/python}
export LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
if ! "$python" -c "import $need" 2> /dev/null; then
	echo "python: skipped: $python is not there, or lacks packages of client/python/tests/requirements.txt: $makes makes it"
	exit 77
fi

dir=$(mktemp -d "${TMPDIR:-/tmp}/gaiafs-python.XXXXXX")
trap 'rm -rf "$dir"' EXIT
if [ "$how" = --asan ]; then
	LD_PRELOAD=$(ldd "$build/client/libgaiaclient.so.0" | awk '$1 ~ /^lib(asan|ubsan)/ { printf "%s ", $3 }')
	export LD_PRELOAD ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
fi
status=0
GAIAFS_BUILD=$build GAIAFS_TAP=$dir/tap PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 \
	"$python" -X dev -W error -m pytest -q -p no:cacheprovider --basetemp="$dir/tests" "$@" < /dev/null >&2 || status=$?
[ ! -f "$dir/tap" ] || cat "$dir/tap"
exit "$status"
