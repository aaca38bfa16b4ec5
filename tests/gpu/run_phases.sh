# run_phases.sh - what each phase of `run` does: a function phase_NAME each. Sourced by `run`.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154,SC2317 # `run` has the variables, and calls phases and hooks by name

# For what prints no rows.
to_stderr() { printf '%s\n' '"$@" >&2'; }
words=(bash -c "$(to_stderr)" words)

by_program() {
	local section
	local -a options=()
	[ "$phase$rehearse" != benchsim ] || options=(--device sim)
	for section in ${names[$phase]}; do
		section "$section" "${limits[gpu-$phase/$section]}" "$bin/gpu-$phase$played" "${options[@]}" "${quick[@]}" "$section"
	done
}

# On the played driver in every rehearsal: a simulated device has no kernels of another process.
phase_busy() {
	local section program
	for section in ${names[busy]}; do
		program=gpu-${section%%/*}
		section "$section" "${limits[$program --beside/${section#*/}]}" "$bin/$program$played" "${quick[@]}" --beside "${section#*/}"
	done
}

# How many tests Criterion says it ran.
criterion_counts() {
	local line
	line=$(last_line "$work/said")
	[[ $line =~ Tested:.*[^0-9]([0-9]+).*Passing:.*[^0-9]([0-9]+).*Failing:.*[^0-9]([0-9]+).*Crashing:.*[^0-9]([0-9]+) ]] || return
	printf '{"section": "%s", "what": "tests", "ran": %d, "passed": %d, "failed": %d, "crashed": %d}\n' "$1" \
		"${BASH_REMATCH[@]:1:4}"
}

phase_right() {
	section random 25 "${words[@]}" "$bin/gpu-random" "$random_on" "$([ -n "$rehearse" ] && echo 2 || echo 10)" 1
	# (The test harness of the next starts itself again, which our own loader stands in the way of.)
	if [ -z "$direct" ]; then
		not_run "${GPU_CHECK_OWN_GLIBC:+asked for our own C library: }they need the machine's, of $need or newer, which is ${have:-unknown}" \
			contract contract-peer
		return
	fi
	hook="criterion_counts contract" section contract "$([ "$gpus" -gt 1 ] && echo 50 || echo 70)" "${words[@]}" "$bin/contract_device" --jobs=1 --color=never --filter "$suites/*"
	if [ "$gpus" -gt 1 ]; then
		hook="criterion_counts contract-peer" section contract-peer 30 "${words[@]}" "$bin/contract_device_peer" --jobs=1 \
			--color=never --filter "$suites/*"
	else
		not_run "there is one GPU" contract-peer
	fi
}

daemon=
mounted() {
	local line
	while read -r line; do
		[[ $line != *" $work/mnt "*" fuse.gaiafs "* ]] || return 0
	done < /proc/self/mountinfo
	return 1
}
unmount_it() {
	mounted || [ -n "$daemon" ] || return 0
	timeout -k 5 30 "$bin/gaia" umount "$work/mnt" > "$work/umount" 2>&1 < /dev/null ||
		timeout -k 5 20 "$bin/gaia" umount --force "$work/mnt" >> "$work/umount" 2>&1 < /dev/null
	# (A rehearsal is to show what hangs, not how busy the machine is.)
	if [ -n "$daemon" ] && ! gone "$daemon" "$([ -n "$rehearse" ] && echo 60 || echo 10)"; then
		sweep mount
		gone "$daemon" 5
	fi
	wait "$daemon" 2> /dev/null
	daemon=
	cat "$work/umount" >> "$work/daemon"
	log_file "$phase: the daemon ($1)" "$work/daemon"
	: > "$work/daemon"
	mounted || return 0
	why="$work/mnt cannot be unmounted: $(last_line "$work/umount")"
	return 1
}
# mount_it WAY DEVICE...: or $why not.
mount_it() {
	local way=$1 device until program=gaiafs
	local -a args=()
	shift
	for device in "$@"; do
		args+=(--device "$device")
	done
	[ "$rehearse" != fake ] || program=gaiafs-played
	unmount_it "left over" || return 1
	rm -rf "$work/below"
	mkdir "$work/below"
	GPU_CHECK_SECTION=mount "$bin/$program" -f --cpu-cache "$way" "${args[@]}" "$work/below" "$work/mnt" \
		< /dev/null > "$work/daemon" 2>&1 &
	daemon=$!
	clock
	until=$((now + 60000))
	[ "$until" -lt "$ends" ] || until=$ends
	until mounted; do
		clock
		if ! kill -0 "$daemon" 2> /dev/null || [ "$now" -gt "$until" ]; then
			why="cannot mount: $(last_line "$work/daemon")"
			unmount_it "$way, not mounted"
			return 1
		fi
		sleep 0.05
	done
}

# on_mount GROUP WAY DEVICES SECTION...: those sections in a mount of theirs, GROUP before their names.
on_mount() {
	local group=$1 way=$2 section
	local -a devices
	IFS=' ' read -r -a devices <<< "$3"
	shift 3
	for section in "$@"; do
		clock
		if [ $((ends - now)) -gt 2000 ] && ! mounted && ! mount_it "$way" "${devices[@]}"; then
			# Without the rights to mount this tells nothing of gaiafs; else it does.
			[ "$(id -u)" -ne 0 ] || failed=1
			not_run "$why" "$group/$section"
			continue
		fi
		section "$group/$section" "${limits[gpu-mount/$section]}" "$bin/gpu-mount$played" "${quick[@]}" "$section" "$work/mnt" ||
			unmount_it "$group"
	done
}

# has_library EXAMPLE WHAT FILE DIRECTORY: whether that example can start; if not, it is noted why.
has_library() {
	if [ ! -e "$bin/cuda-$1" ]; then
		not_run "the bundle was built without $2" "example-$1"
		return 1
	fi
	[ -z "$4" ] || return 0
	not_run "no $3 on this machine" "example-$1"
	return 1
}

# PROGRAM WHAT FILE ARGUMENT...: has it make the file first.
# shellcheck disable=SC2016 # for the shell that does it
made=(bash -c '"$1" --make "$2" "$3" >&2 && exec "$1" "${@:3}" >&2' made)

# Which of the machine's Pythons has what the package needs, and CuPy or PyTorch. In a rehearsal with what stands for these, any.
find_python() {
	local python seen=:
	for python in "${VIRTUAL_ENV:+$VIRTUAL_ENV/bin/python3}" "${CONDA_PREFIX:+$CONDA_PREFIX/bin/python3}" "$(type -P python3)" \
		/opt/*/bin/python3 /usr/bin/python3; do
		[[ -x $python && $seen != *":$python:"* ]] || continue
		seen+=$python:
		timeout -k 5 60 env "${python_env[@]}" "$python" -B -c 'import cffi, numpy
try:
    from torch.cuda import is_available
except ImportError:
    from cupy import is_available
assert is_available()' < /dev/null > /dev/null 2>&1 || continue
		printf '%s' "$python"
		return
	done
	return 1
}

run_python() {
	local python folder=$here/python
	local -a python_env
	if [ -z "$direct" ]; then
		not_run "the machine's Python has a C library that is too old for ours" example-python
		return
	fi
	# Of our libraries only that one: Python and PyTorch have theirs.
	mkdir -p "$work/client"
	ln -sf "$here"/lib/libgaiaclient.so.0 "$work/client/"
	python_env=("LD_LIBRARY_PATH=$work/client${driver_dir:+:$driver_dir}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "PYTHONPATH=$folder")
	[ -z "$rehearse" ] ||
		python_env=("LD_LIBRARY_PATH=$work/client:$folder/played" "PYTHONPATH=$folder:$folder/played")
	if ! python=$(find_python); then
		not_run "no Python here has numpy, cffi, and PyTorch or CuPy with a GPU" example-python
		return
	fi
	# shellcheck disable=SC2016 # for the shell that does it
	section example-python 60 env "${python_env[@]}" bash -c '"$1" -B "$2/make_model.py" "$3" >&2 && exec "$1" -B "$2/gpu.py" "$3" >&2' \
		python "$python" "$folder" "$work/mnt/model.safetensors"
}

run_examples() {
	if [ -n "$rehearse" ]; then
		not_run "the examples have kernels, which need a GPU" "${examples[@]}"
		if [ "$rehearse" != fake ] || [ ! -d "$here/python/played" ]; then
			not_run "it needs a GPU" example-python
		elif mounted || mount_it auto "${devices[@]}"; then
			run_python
		else
			not_run "$why" example-python
		fi
		return
	fi
	if ! mounted && ! mount_it auto "${devices[@]}"; then
		not_run "$why" "${examples[@]}" example-python
		return
	fi
	seq 1 300000 > "$work/below/numbers"
	section example-histogram 30 "${words[@]}" "$bin/cuda-histogram" "$work/mnt/numbers"
	section example-two_writers 30 "${words[@]}" "$bin/cuda-two_writers" "$work/mnt/numbers" "$work/mnt/NUMBERS"
	section example-stencil 30 "${words[@]}" "$bin/cuda-stencil" "$work/mnt/grid"
	section example-sssp 30 "${words[@]}" "$bin/cuda-sssp" --make grid:300x200 --rounds 20 "$work/mnt/roads"
	section example-stitch 30 "${made[@]}" "$bin/cuda-stitch" 6x4 "$work/mnt/images" "$work/mnt/picture" --rounds 5 \
		--devices "$((gpus < 2 ? 1 : 2))"
	if has_library stitch-cufft cuFFT "${library[cufft]}" "${library_dir[cufft]}"; then
		section example-stitch-cufft 30 "${made[@]}" "$bin/cuda-stitch-cufft" 6x4 "$work/mnt/images" "$work/mnt/picture" --rounds 5
	fi
	if [ ! -e "$bin/cuda-collage" ]; then
		not_run "the bundle was built without libpng" example-collage
	else
		section example-collage 30 "${made[@]}" "$bin/cuda-collage" 5000 "$work/mnt/tiles" "$work/mnt/collage" --rounds 5 --cpu
	fi
	if has_library sgemm cuBLAS "${library[cublas]}" "${library_dir[cublas]}"; then
		section example-sgemm 30 "${words[@]}" "$bin/cuda-sgemm" "$work/mnt"
	fi
	# The last: Python and PyTorch may take long to start.
	run_python
}

phase_mount() {
	local -a devices small=()
	local section all_end=$ends weight rest=24 what small_on
	if [ ! -c /dev/fuse ]; then
		# shellcheck disable=SC2086 # words
		not_run "there is no /dev/fuse" ${names[mount]}
		return
	fi
	for section in ${names[mount]}; do
		[[ $section != small-auto/* ]] || small+=("${section#small-auto/}")
	done
	# (The devices of a rehearsal are smaller: so is what --quick does with them.)
	case $rehearse in
	sim)
		devices=("sim:256M,count=2")
		small_on=sim:16M
		;;
	fake)
		devices=(cuda:0 cuda:1)
		small_on=cuda:0,16M
		;;
	*)
		devices=(cuda:0)
		small_on=cuda:0,256M
		[ "$gpus" -lt 2 ] || devices+=(cuda:1)
		;;
	esac
	# What one leaves of its share, all that follow share. "small-": that way, with a device smaller than the file.
	for what in auto:8 examples:4 small-auto:2 writeback:4 small-writeback:2 writethrough:2 small-writethrough:2; do
		weight=${what#*:}
		what=${what%:*}
		clock
		ends=$((now + (all_end - now) * weight / rest))
		ends_what="$what has a share of the phase's $budget s"
		rest=$((rest - weight))
		case $what in
		examples)
			run_examples
			unmount_it auto
			;;
		small-*)
			on_mount "$what" "${what#small-}" "$small_on" "${small[@]}"
			unmount_it "$what"
			;;
		auto) on_mount auto auto "${devices[*]}" "${mount_sections[@]}" ;;
		writeback)
			# Of the mounts one has extents, which are off for GPUs by default.
			on_mount writeback writeback "${devices[*]/%/,extents=on}" "${mount_sections[@]}"
			unmount_it writeback
			;;
		*)
			on_mount "$what" "$what" "${devices[*]}" "${mount_sections[@]}"
			unmount_it "$what"
			;;
		esac
		[ -z "$daemon" ] || [ "$what" = auto ] || say "$why"
	done
}

phase_litmus() {
	local file passed=0 wrong=0
	if [ ! -c /dev/fuse ]; then
		not_run "there is no /dev/fuse" "${litmus[@]}"
	else
		for file in "${litmus[@]}"; do
			section "$file" 60 "${words[@]}" "$bin/litmus-runner" --repeat "$([ -n "$rehearse" ] && echo 1 || echo 2)" \
				"$here/litmus/$file.litmus"
			case $outcome in
			done) passed=$((passed + 1)) ;;
			failed | timeout) wrong=$((wrong + 1)) ;;
			esac
		done
	fi
	printf '{"section": "litmus", "what": "files", "of": %d, "ran": %d, "passed": %d, "failed": %d, "simulated": %s}\n' \
		"${#litmus[@]}" $((passed + wrong)) "$passed" "$wrong" "$simulated" >> "$result"
	say "litmus: $((passed + wrong)) of ${#litmus[@]} files ran, $passed passed"
}

phase_history() {
	if [ ! -c /dev/fuse ]; then
		not_run "there is no /dev/fuse" history
	else
		section history 75 "${words[@]}" "$bin/history" --seconds "$([ -n "$rehearse" ] && echo 3 || echo 40)" --seed 1
	fi
}

# find_tool NAME DIRECTORY...
find_tool() {
	local name=$1 dir
	shift
	type -P "$name" && return
	for dir in "$@"; do
		[ -x "$dir/$name" ] && printf '%s' "$dir/$name" && return
	done
}

# The last summary that the tool gives.
sanitizer_counts() {
	local line n=
	while IFS= read -r line; do
		[[ ! $line =~ SUMMARY:\ ([0-9]+)\ (error|hazard) ]] || n=${BASH_REMATCH[1]}
	done < "$work/said"
	[ -z "$n" ] || printf '{"section": "%s", "what": "errors", "n": %d}\n' "$1" "$n"
}

phase_sanitizer() {
	local tool check
	local noted=
	tool=$(find_tool compute-sanitizer "${CUDA_HOME:-/usr/local/cuda}/bin" /usr/local/cuda*/bin /usr/local/cuda*/compute-sanitizer \
		"$here/sanitizer")
	if [ -z "$tool" ]; then
		not_run "no compute-sanitizer on this machine or in the bundle" memcheck racecheck initcheck
		return
	fi
	for check in memcheck racecheck initcheck; do
		if [ -n "$rehearse" ]; then
			# Without a driver it ends what it looks at.
			section "$check" 10 "${words[@]}" "$tool" --tool "$check" --version
			continue
		fi
		# It does not see what another process, or another GPU, wrote: that looks uninitialised.
		noted=
		[ "$check" != initcheck ] || noted=86
		hook="sanitizer_counts $check" section "$check" 50 "${words[@]}" "$tool" --tool "$check" --target-processes all \
			--error-exitcode 86 "$bin/gpu-random" "$random_on" 5 1
	done
}

# Of Nsight Compute's table, a row a launch: ID, kernel, metric, unit, value are what its heading says.
ncu_rows() {
	local line at id=-1 name=-1 metric=-1 unit=-1 value=-1 launch="" row=""
	local -a cells
	[ -r "$work/ncu.csv" ] || return
	while IFS= read -r line; do
		[[ $line == \"*\" ]] || continue
		line=${line#\"}
		line=${line%\"}
		cells=()
		while [[ $line == *'","'* ]]; do
			cells+=("${line%%'","'*}")
			line=${line#*'","'}
		done
		cells+=("$line")
		if [ "$name" -lt 0 ]; then
			for at in "${!cells[@]}"; do
				case ${cells[at]} in
				ID) id=$at ;;
				"Kernel Name") name=$at ;;
				"Metric Name") metric=$at ;;
				"Metric Unit") unit=$at ;;
				"Metric Value") value=$at ;;
				esac
			done
			continue
		fi
		at=${cells[value]//,/}
		[[ $at =~ ^-?(0|[1-9][0-9]*)(\.[0-9]+)?$ ]] || continue
		if [ "$launch" != "${cells[id]}" ]; then
			[ -z "$row" ] || printf '%s}\n' "$row"
			launch=${cells[id]}
			row="{\"section\": \"$1\", \"what\": $(quoted "${cells[name]}")"
		fi
		row+=", $(quoted "${cells[metric]}${cells[unit]:+ (${cells[unit]})}"): $at"
	done < "$work/ncu.csv"
	[ -z "$row" ] || printf '%s}\n' "$row"
}

phase_ncu() {
	local tool section
	tool=$(find_tool ncu "${CUDA_HOME:-/usr/local/cuda}/bin" /usr/local/cuda*/bin /opt/nvidia/nsight-compute/*)
	if [ -z "$tool" ]; then
		# shellcheck disable=SC2086 # words
		not_run "no ncu (Nsight Compute) on this machine" ${names[ncu]}
		return
	fi
	# Of the daemon's kernel only; the first launches are the calibration's. The name that it prints has the template's
	# arguments: which kind of operation it is.
	for section in ${names[ncu]}; do
		rm -f "$work/ncu.csv"
		# (The program's own rows are left out: it is slower by what ncu does.)
		hook="ncu_rows $section" section "$section" 30 "${words[@]}" "$tool" --csv --log-file "$work/ncu.csv" \
			--target-processes all --kernel-name-base function --kernel-name 'regex:^work$' --launch-count 400 --metrics \
			launch__grid_size,gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed \
			"$bin/gpu-bench$played" --quick "$section"
		[ ! -e "$work/ncu.csv" ] || log_file "ncu: $section" "$work/ncu.csv"
	done
}
