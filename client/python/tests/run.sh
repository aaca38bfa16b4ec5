#!/bin/sh
# run.sh BUILD PYTEST-ARGUMENT... - the tests of the Python package, with the daemon and the library of a build directory.
# With $GAIAFS_PYTHON, or the environment that scripts/setup has made in build-deps/python. Exit status 77: skipped.
set -eu

build=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."

python=${GAIAFS_PYTHON:-../../build-deps/python/bin/python}
if ! "$python" -c 'import cffi, mesonpy, mypy, numpy, pytest, ruff' 2> /dev/null; then
	echo "python: skipped: $python is not there, or lacks packages of client/python/tests/requirements.txt: scripts/setup makes it"
	exit 77
fi

dir=$(mktemp -d "${TMPDIR:-/tmp}/gaiafs-python.XXXXXX")
trap 'rm -rf "$dir"' EXIT
status=0
GAIAFS_BUILD=$build LD_LIBRARY_PATH=$build/client${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 \
	"$python" -X dev -W error -m pytest -q -p no:cacheprovider --basetemp="$dir/tests" "$@" < /dev/null || status=$?
exit "$status"
