# run_sections.sh - running a section, and noting what it says: rows, its status, the log. Sourced by `run`.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # `run` has the variables

# ---- text ----

# Since the machine started, so that nobody sets this clock. Into $now, in ms.
clock() {
	local seconds _
	read -r seconds _ < /proc/uptime
	now=${seconds/./}
	now=$((10#$now * 10))
}
seconds_of() { printf '%d.%02d' $(($1 / 1000)) $(($1 % 1000 / 10)); }

# A JSON string of what fits a note: printable ASCII, not too long.
quoted() {
	local text=${1//[![:print:]]/ }
	text=${text:0:300}
	text=${text//\\/\\\\}
	printf '"%s"' "${text//\"/\\\"}"
}
last_line() {
	local line last=
	while IFS= read -r line || [ -n "$line" ]; do
		[[ $line != *[![:space:]]* ]] || last=$line
	done < <(tail -c 4096 "$1")
	printf '%s' "${last//[![:print:]]/ }"
}

json_token='^[[:space:]]*("([^"\\[:cntrl:]]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null|[]{}:,[])'
json_done='\{(KV(,KV)*)?\}|\[(V(,V)*)?\]'
# is_row TEXT: whether it is a JSON object. Strings become S, or K with the colon behind them; other values V; then
# what is in brackets becomes V, from the inside to the outside.
is_row() {
	local rest=$1 form=
	[[ $rest == "{"*"}" && ${#rest} -lt 4096 ]] || return 1
	while [ -n "$rest" ]; do
		[[ $rest =~ $json_token ]] || return 1
		rest=${rest:${#BASH_REMATCH[0]}}
		case ${BASH_REMATCH[1]} in
		\"*) form+=S ;;
		[][{}:,]) form+=${BASH_REMATCH[1]} ;;
		*) form+=V ;;
		esac
	done
	form=${form//S:/K}
	form=${form//S/V}
	while [[ $form =~ $json_done ]]; do
		form=${form/"${BASH_REMATCH[0]}"/V}
	done
	[ "$form" = V ]
}

# ---- the log, which stays small enough to be taken along ----

log=$out/gpu-check.log
log_most=$((4 << 20))
[ "$(stat -c %s "$log" 2> /dev/null || echo 0)" -lt $((log_most / 2)) ] || : > "$log"
# log_file TITLE FILE: its beginning and its end.
log_file() {
	local size
	size=$(stat -c %s "$log" 2> /dev/null || echo 0)
	{
		printf '\n==== %s\n' "$1"
		if [ "$size" -gt $((log_most - (256 << 10))) ]; then
			echo "(the log is full)"
		elif [ "$(stat -c %s "$2")" -le $((128 << 10)) ]; then
			cat "$2"
		else
			head -c $((32 << 10)) "$2"
			printf '\n(cut: of %d bytes)\n' "$(stat -c %s "$2")"
			tail -c $((96 << 10)) "$2"
		fi
	} >> "$log"
}
say() {
	printf 'gpu-check: %s\n' "$*"
	printf 'gpu-check: %s\n' "$*" >> "$log"
}
# ---- running and noting ----

failed=0
phase=
result=
number=0
most_bytes=$((8 << 20))

# rows: what programs print, line by line, into the phase's file: whole JSON objects only, each with one write(2).
rows() {
	local line n=0 bad=0 size=0
	trap '' INT
	while IFS= read -r line || [ -n "$line" ]; do
		size=$((size + ${#line}))
		if [[ $line != *'"section"'* ]] || ! is_row "$line" || [ $size -gt $most_bytes ]; then
			bad=$((bad + 1))
			[ $bad -gt 20 ] || printf 'not a row: %s\n' "${line:0:300}" >> "$work/bad"
			continue
		fi
		if [ "$simulated" = true ] && [[ ! $line =~ \"simulated\":\ *true ]]; then
			line="${line%\}}, \"simulated\": true}"
		fi
		printf '%s\n' "$line" >> "$result"
		n=$((n + 1))
	done
	echo "$n $bad" > "$work/counts"
}

# state SECTION STATUS MS NOTE; the status is also in $outcome.
state() {
	outcome=$2
	printf '  %-8s %7s s  %-34s %.100s\n' "$2" "$(seconds_of "$3")" "$phase: $1" "$4"
	printf '{"section": "%s", "status": "%s", "seconds": %s, "note": %s%s}\n' "$1" "$2" "$(seconds_of "$3")" \
		"$(quoted "$4")" "$([ "$simulated" = true ] && echo ', "simulated": true')" >> "$result"
	case $2 in
	failed | timeout) failed=1 ;;
	esac
}

# gone PID SECONDS: whether it ends by then.
gone() {
	local until
	clock
	until=$((now + $2 * 1000))
	while kill -0 "$1" 2> /dev/null; do
		clock
		[ "$now" -le $until ] || return 1
		sleep 0.02
	done
}

# What a section left running, by its environment.
sweep() {
	local file pid env
	for file in /proc/[0-9]*/environ; do
		env=()
		mapfile -d '' -t env < "$file"
		pid=${file#/proc/}
		pid=${pid%/environ}
		if [[ " ${env[*]} " == *" GPU_CHECK_TAG=$GPU_CHECK_TAG "* && " ${env[*]} " == *" GPU_CHECK_SECTION=$1 "* ]]; then
			kill -KILL "$pid"
		fi
	done
} 2> /dev/null

# rows_end PID: whether the reader of rows ends: not if nothing has come from it for 2 s, nor after 30 s in all.
rows_end() {
	local size=-1 before until
	clock
	until=$((now + 30000))
	while [ "$now" -lt "$until" ]; do
		before=$size
		size=$(stat -c %s "$result")
		[ "$size" != "$before" ] || return 1
		! gone "$1" 2 || return 0
		clock
	done
	return 1
}

# section NAME LIMIT COMMAND...: runs it for at most LIMIT seconds, and as long as the phase's time lasts; its standard
# output is rows. $hook, if set, prints more of them. $noted, if set, is an exit status that is no failure. Returns 0 if
# it is done.
hook=
noted=
section() {
	local name=$1 limit=$2 cut="" left started pid reader status n bad note verdict
	shift 2
	clock
	started=$now
	left=$(((ends - now) / 1000))
	if [ "$left" -lt 2 ]; then
		state "$name" "not run" 0 "no time is left: $ends_what"
		return 1
	fi
	[ "$left" -ge "$limit" ] || { limit=$left && cut=", which was left: $ends_what"; }
	number=$((number + 1))
	empty "$work/said" "$work/bad" "$work/counts"
	rows < "$work/rows" &
	reader=$!
	GPU_CHECK_SECTION=$number timeout -k 5 "$limit" "$@" < /dev/null > "$work/rows" 2> "$work/said" &
	pid=$!
	wait "$pid" 2> /dev/null
	status=$?
	# Who was started by it, and lives on, still has its standard output.
	left=
	if ! rows_end "$reader"; then
		left=" (it left processes behind)"
		sweep "$number"
		gone "$reader" 5 || kill -KILL "$reader" 2> /dev/null
	fi
	wait "$reader" 2> /dev/null
	read -r n bad < "$work/counts" || bad="an unknown number of"
	if [ -n "$hook" ]; then
		$hook | rows
	fi
	clock
	note=$(last_line "$work/said")
	verdict=failed
	case $status in
	0) verdict="done" ;;
	77) verdict=skipped ;;
	"$noted")
		verdict="done"
		note="this is only noted: $note"
		;;
	124 | 137)
		if [ $((now - started)) -lt $((limit * 1000)) ]; then
			note="killed: $note"
		elif [ -n "$cut" ]; then
			# It may be right, and slow only here.
			verdict="not run"
			note="cut off after $limit s$cut; it said: $note"
		else
			verdict=timeout
			note="not done after $limit s$([ $status -eq 124 ] || echo ", and had to be killed"); it said: $note"
		fi
		;;
	*)
		if [ $status -gt 128 ]; then
			note="signal $((status - 128)): $note"
		else
			note="exit status $status: $note"
		fi
		;;
	esac
	if [ "${bad:-0}" != 0 ]; then
		[ "$verdict" != "done" ] || verdict=failed
		note="$bad lines of its output were no rows: $(last_line "$work/bad"); $note"
	fi
	# What failed may have left something that keeps the GPU busy.
	[ "$verdict" = "done" ] || sweep "$number"
	log_file "$phase: $name: $verdict: $*" "$work/said"
	state "$name" "$verdict" $((now - started)) "$note$left"
	[ "$verdict" = "done" ] || [ "$verdict" = skipped ]
}

not_run() {
	local why=$1 name
	shift
	for name in "$@"; do
		state "$name" "not run" 0 "$why"
	done
}
