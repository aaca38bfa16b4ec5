#!/usr/bin/env bash
# long.sh BUILD SOURCE WAY PROGRAM - a demanding program on a mount of its own, in one of the kernel's
# caching ways. What it leaves must be right on the mount, and in the backing directory afterwards.
#
# Home memory is small, so that pages come and go. LONG_SECONDS is what each part of a test that
# can last for any time takes (10). Status 77: skipped, the last line says why.
set -euo pipefail
build=$1 source=$2 way=$3 program=$4
seconds=${LONG_SECONDS:-10}

# One of stress-ng's programs watches all mounts that it sees, and keeps them busy.
if [ "$program" = stress ] && [ "$(id -u)" -eq 0 ] && [ -z "${5:-}" ]; then
	exec unshare --mount --propagation private "$0" "$@" inside
fi
if [ -n "${5:-}" ]; then
	# shellcheck source=scripts/lib.sh
	. "$source/scripts/lib.sh"
	let_go_of_mounts
fi

dir=$(mktemp -d "${TMPDIR:-/tmp}/gaiafs-long.XXXXXX")
below=$dir/below mnt=$dir/mnt plain=$dir/plain

say() { printf '%s: %s\n' "$program" "$*"; }
die() {
	say "$*" >&2
	exit 1
}
skip() {
	say "$*"
	exit 77
}
need() {
	local name
	for name; do
		command -v "$name" > /dev/null || skip "$name is not installed; scripts/test --long does that"
	done
}

is_mounted() { grep -q " $mnt fuse" /proc/self/mounts; }
clean_up() {
	local pid
	for pid in $(jobs -p); do
		kill -KILL "$pid" 2> /dev/null || true
	done
	if is_mounted; then
		umount -l "$mnt" 2> /dev/null || fusermount3 -uzq "$mnt" || true
	fi
	rm -rf --one-file-system "$dir"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

start() {
	"$build/daemon/gaiafs" --cpu-cache "$way" --home 64M --device sim:64M \
		--log-level warn "$below" "$mnt"
}
stop() {
	local try
	cd /
	# What programs had open is closed a moment after they have ended.
	for try in {1..600}; do
		! "$build/client/gaia" umount "$mnt" 2> "$dir/umount" || break
		grep -q busy "$dir/umount" || break
		sleep 0.1
	done
	! is_mounted || die "still mounted ($try tries): $(cat "$dir/umount")"
}

mkdir "$below" "$mnt" "$plain"
chmod 755 "$dir"

# ---- stress-ng ----

# Without what does not work on files of a directory, what mounts, and what syncs the whole machine.
stress_ng() {
	local skipped=bind-mount,binderfs,dup,eventfd,io,ioprio,procfs status=0
	need stress-ng
	start
	cd "$mnt"
	stress-ng --class filesystem --sequential 2 --exclude "$skipped" --verify \
		--timeout "${seconds}s" --temp-path "$mnt" --no-rand-seed --oomable || status=$?
	# 3 and 4: a stressor found that it cannot run here.
	case $status in
	0 | 3 | 4) ;;
	*) die "stress-ng: status $status" ;;
	esac
	# One of its ways to open a file forgets the name where descriptors run out.
	rm -f "$mnt"/stress-open-*
	[ -z "$(ls -A "$mnt")" ] || die "stress-ng left something: $(ls -A "$mnt")"
	stop
}

# ---- fio ----

# Where it must be aligned, in pages.
fio_engine() {
	local engine=$1 where=$2 blocks=512-128k
	shift 2
	[[ $engine != mmap && "$*" != *--direct=1* ]] || blocks=4k-128k
	cd "$dir" # where fio leaves notes
	fio --name="$engine" --directory="$where" --ioengine="$engine" --size=96m --numjobs=2 \
		--bsrange=$blocks --blockalign=${blocks%-*} --randseed=7 --verify=crc32c --verify_fatal=1 \
		--verify_state_save=0 --output-format=terse --terse-version=3 --group_reporting \
		--fallocate=none "$@" > "$dir/fio" 2>&1 ||
		{
			cat "$dir/fio"
			die "fio $engine $*"
		}
}

fio_verify() {
	local engine rw
	need fio
	start
	for engine in psync pvsync2 mmap libaio io_uring; do
		if [ $engine = io_uring ] && [ "$(cat /proc/sys/kernel/io_uring_disabled 2> /dev/null || echo 0)" != 0 ]; then
			say "io_uring: disabled on this machine"
			continue
		fi
		for rw in write randwrite randrw; do
			say "$engine $rw"
			fio_engine $engine "$mnt" --rw=$rw --iodepth=16 --fsync=200
		done
		# As it lies on storage.
		stop
		fio_engine "$engine" "$below" --rw=randrw --iodepth=16 --verify_only
		rm -f "$below"/*
		start
	done
	for engine in psync libaio; do
		say "$engine, O_DIRECT"
		fio_engine $engine "$mnt" --rw=randrw --iodepth=16 --direct=1
		rm -f "$mnt"/*
	done
	say "writers and verifiers at once, for a while"
	fio_engine psync "$mnt" --rw=randwrite --verify_backlog=64 --time_based --runtime="$seconds"
	stop
}

# ---- dbench ----

dbench_clients() {
	local load
	need dbench
	load=$(dpkg -L dbench | grep '/client.txt' | head -n 1)
	start
	dbench -c "$load" -D "$mnt" -t "$seconds" 1
	dbench -c "$load" -D "$mnt" -t "$((seconds * 3))" 8
	rm -rf "$mnt"/clients
	stop
	[ -z "$(ls -A "$below")" ] || die "dbench left something: $(ls -A "$below")"
}

# ---- git ----

git_clone_and_fsck() {
	need git
	export GIT_CONFIG_NOSYSTEM=1 HOME=$plain GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t GIT_COMMITTER_NAME=t \
		GIT_COMMITTER_EMAIL=t
	git config --global --add safe.directory '*'
	git -C "$source" rev-parse -q --verify HEAD > /dev/null || skip "$source is no git repository"
	start
	git clone -q --no-local "$source" "$mnt/clone"
	git clone -q "$mnt/clone" "$mnt/again"
	cd "$mnt/again"
	git fsck --full --strict
	# A history of its own, and every way to store it.
	for i in $(seq 100); do
		head -c 20000 /dev/urandom > "random$((i % 10))"
		echo "$i" >> README.md
		git add -A
		git commit -q -m "step $i"
	done
	git repack -adfq
	git fsck --full --strict
	git checkout -q HEAD~50
	git checkout -q -
	git push -q origin HEAD:refs/heads/pushed
	git -C "$mnt/clone" fsck --full --strict
	git -C "$mnt/clone" gc -q --prune=now
	[ -z "$(git status --porcelain)" ] || die "git status: not clean"
	[ "$(git rev-parse HEAD)" = "$(git -C "$mnt/clone" rev-parse pushed)" ] || die "not what was pushed"
	stop
	git -C "$below/clone" fsck --full --strict
	git -C "$below/again" fsck --full --strict
	[ -z "$(git -C "$below/again" status --porcelain)" ] || die "git status beneath: not clean"
}

# ---- sqlite ----

# Money moves between accounts, by several at once, some of whom are killed: the sum stays.
sqlite_journals() {
	local mode who pids round
	need sqlite3
	start
	cd "$mnt"
	for mode in wal delete truncate persist; do
		say "$mode"
		run() { sqlite3 -bail -cmd '.timeout 100000' "$mode.db" "$@"; }
		run "pragma journal_mode=$mode; create table account(id integer primary key, money);
		     create table log(who, n);
		     with recursive n(i) as (select 1 union all select i + 1 from n where i < 1000)
		     insert into account select i, 100 from n;" > /dev/null
		for round in 1 2 3; do
			pids=()
			for who in 1 2 3 4; do
				for i in $(seq 60); do
					echo "begin immediate;
					      update account set money = money - $i where id = $((i * who % 1000 + 1));
					      update account set money = money + $i where id = $((i * who * 7 % 1000 + 1));
					      insert into log values($who, $i); commit;"
				done > "$plain/sql$who"
				sqlite3 -bail -cmd '.timeout 100000' "$mode.db" < "$plain/sql$who" > /dev/null 2>&1 &
				pids+=($!)
			done
			# One of them does not live long.
			for _ in $(seq 1000); do
				[ "$(run 'select count(*) from log')" -lt $((round * 50)) ] || break
			done
			kill -KILL "${pids[0]}" 2> /dev/null || true
			wait "${pids[@]}" || true
			[ "$(run 'pragma integrity_check')" = ok ] || die "$mode: not whole"
			[ "$(run 'select sum(money) from account')" = 100000 ] || die "$mode: money was lost"
		done
		run 'vacuum; select count(*) from log' > "$plain/$mode.count"
	done
	stop
	cd "$below"
	for mode in wal delete truncate persist; do
		[ "$(run 'pragma integrity_check')" = ok ] || die "$mode: not whole beneath"
		[ "$(run 'select sum(money) from account')" = 100000 ] || die "$mode: money was lost beneath"
		run 'select count(*) from log' | cmp - "$plain/$mode.count" || die "$mode: not all there beneath"
	done
	cd /
}

# ---- a compiler ----

# gaiafs itself, on the mount and on a plain directory: the same objects, and its unit tests pass.
compile() {
	local where object n=0
	need meson ninja cc
	start
	tar -C "$source" --exclude='./build*' --exclude=./.git -cf "$dir/source.tar" .
	for where in "$plain" "$mnt"; do
		mkdir "$where/src"
		tar -C "$where/src" -xf "$dir/source.tar"
		cd "$where/src"
		CFLAGS="-O1 -ffile-prefix-map=$where=." meson setup -Dman=disabled build > "$dir/log" ||
			{
				cat "$dir/log"
				die "meson failed in $where"
			}
		ninja -C build > "$dir/log" ||
			{
				cat "$dir/log"
				die "ninja failed in $where"
			}
		ninja -C build -n -d explain > "$dir/log" 2>&1
		grep -q 'no work to do' "$dir/log" ||
			{
				cat "$dir/log"
				die "ninja finds something left to do in $where"
			}
	done
	meson test -C build --no-rebuild --suite unit --num-processes 2 > "$dir/log" ||
		{
			cat "$dir/log"
			die "a unit test failed on the mount"
		}
	stop
	# Without the tests', which name their own place, and what nvcc makes, never twice the same.
	cd "$plain/src/build"
	for object in $(find daemon client -name '*.c.o'); do
		cmp "$object" "$below/src/build/$object"
		n=$((n + 1))
	done
	[ "$n" -gt 30 ] || die "only $n objects were made"
	say "$n objects are the same"
	cd /
}

case $program in
stress) stress_ng ;;
fio) fio_verify ;;
dbench) dbench_clients ;;
git) git_clone_and_fsck ;;
sqlite) sqlite_journals ;;
compile) compile ;;
*) die "no such program" ;;
esac
say "all is right ($way, $SECONDS s)"
