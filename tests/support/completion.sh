#!/bin/bash
# completion.sh BUILD COMPLETION SHELL - what bash or zsh completes of gaiafs and gaia: COMPLETION is the directory of both.
set -euo pipefail
export PATH=$1/daemon:$1/client:$PATH
dir=$2
shell=$3
command -v "$shell" > /dev/null || {
	echo "completion: there is no $shell here"
	exit 77
}
failed=0

expect() { # WHAT HAVE WANTED...: all of WANTED are words of HAVE
	local what=$1 have=$2 word
	shift 2
	for word; do
		grep -qxF -- "$word" <<< "$have" || {
			echo "completion: $what: no $word in: $(tr '\n' ' ' <<< "$have")" >&2
			failed=1
		}
	done
}
refuse() { # WHAT HAVE: nothing there
	[ -z "$2" ] || {
		echo "completion: $1: $2" >&2
		failed=1
	}
}

bash_completes() { # WORDS...: what bash makes of the last
	bash -c '. "$0/gaiafs"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_$1"; printf "%s\n" "${COMPREPLY[@]}"' "$dir" "$@"
}
zsh_completes() {
	zsh -fc 'dir=$1; shift; compadd() { shift; print -rl -- ${(M)@:#$PREFIX*} }; _files() { print files }
		run() { . $dir/_gaiafs; }; words=("$@") CURRENT=$# PREFIX=$words[-1] service=$1; run' zsh "$dir" "$@"
}

expect "values" "$("${shell}_completes" gaiafs --cpu-cache '')" auto writeback writethrough
expect "values that begin so" "$("${shell}_completes" gaiafs --log-level w)" warn
refuse "values that begin so" "$("${shell}_completes" gaiafs --log-level w | grep -vx warn || true)"
expect "options" "$("${shell}_completes" gaiafs --)" --home --device --foreground --version
expect "commands" "$("${shell}_completes" gaia '')" status residency flush evict set reload umount
expect "options of a command" "$("${shell}_completes" gaia evict --)" --from --range
expect "options of one letter" "$("${shell}_completes" gaia top -)" -b
refuse "options of a command" "$("${shell}_completes" gaia evict -- | grep -x -- --force || true)"
exit $failed
