/*
 * programs.c - real programs on a mounted tree, and device clients in their midst.
 *
 * The programs know nothing of gaiafs. What they leave is compared with the same
 * work on a plain directory, or checked by the programs themselves, and then with what
 * lies in the backing directory when the mount has ended.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "child.h"
#include "gaia/client.h"
#include "shell.h"
#include "tree.h"
#include "ways.h"

#define MIB (1024 * 1024)
#define RW (PROT_READ | PROT_WRITE)

static void need(const char *const *programs)
{
	const char *missing = shell_lacks(programs);

	if (missing)
		WAY_SKIP("%s: not installed; scripts/setup does that", missing);
}

#define NEED(...) need((const char *const[]){ __VA_ARGS__, NULL })

/* A tree with something of everything, src below the plain directory. */
static void make_source(void)
{
	shell_ok(plain_dir,
		 "set -e; umask 022; mkdir -p src/deep/er src/empty\n"
		 "seq 1 30000 > src/numbers; head -c 3000001 /dev/urandom > src/random\n"
		 "ln src/numbers src/deep/hard; ln -s ../numbers src/deep/soft\n"
		 "ln -s nowhere src/dangling; mkfifo src/fifo; : > src/nothing\n"
		 "truncate -s 5M src/sparse\n"
		 "printf x | dd of=src/sparse bs=1 seek=3000000 conv=notrunc status=none\n"
		 "for i in $(seq 150); do echo file $i > src/deep/er/f$i; done\n"
		 "chmod 0600 src/random; chmod 2711 src/empty; chmod 0400 src/nothing\n"
		 "touch -d '2001-02-03 04:05:06.789012345' src/deep/er/f7 src/random src/empty\n"
		 "printf '#!/bin/sh\\necho ran\\n' > src/script; chmod 755 src/script\n");
}

static void same_trees(const char *a, const char *b)
{
	char *x = tree_print_path(a), *y = tree_print_path(b), *line = tree_difference(x, y);

	cr_assert_null(line, "%s and %s differ: %s", a, b, line);
	free(x);
	free(y);
}

/* Modification times are not in tree_print(): directories' differ unless a program sets them. */
static void same_times(const char *a, const char *b)
{
#define FIND "find . -printf '%%p %%T@\\n' | sort"
	struct shell_result x = shell_run(a, 60, FIND), y = shell_run(b, 60, FIND);
	char *line = tree_difference(x.out, y.out);

	cr_assert_null(line, "%s and %s differ in times: %s", a, b, line);
	shell_free(&x);
	shell_free(&y);
}

static const char *below(const char *dir, const char *name)
{
	static char buf[4][PATH_MAX + 64];
	static unsigned turn;
	char *out = buf[turn++ % 4];

	snprintf(out, sizeof(buf[0]), "%s/%s", dir, name);
	return out;
}

EACH_WAY(programs, cp_keeps_everything)
{
	make_source();
	shell_ok(mnt.path, "cp -a '%s/src' . && cp -a src again && cmp src/random again/random",
		 plain_dir);
	same_trees(below(plain_dir, "src"), mnt_file(&mnt, "src"));
	same_times(below(plain_dir, "src"), mnt_file(&mnt, "src"));
	same_trees(mnt_file(&mnt, "src"), mnt_file(&mnt, "again"));
	same_times(mnt_file(&mnt, "src"), mnt_file(&mnt, "again"));
	shell_ok(mnt.path, "test \"$(src/script)\" = ran && test \"$(src/deep/er/../../script)\" = ran");
	shell_ok(mnt.path, "rm -r again && test ! -e again && mv src moved && diff -r moved/deep '%s'",
		 below(plain_dir, "src/deep"));
	way_unmount();
	same_trees(below(plain_dir, "src"), below(mnt.backing, "moved"));
	same_times(below(plain_dir, "src"), below(mnt.backing, "moved"));
}

EACH_WAY(programs, tar_packs_and_unpacks)
{
	NEED("tar");
	make_source();
	shell_ok(mnt.path, "tar --format=posix -C '%s' -cf - src | tar -xpf -", plain_dir);
	same_trees(below(plain_dir, "src"), mnt_file(&mnt, "src"));
	same_times(below(plain_dir, "src"), mnt_file(&mnt, "src"));
	shell_ok(mnt.path, "tar --format=posix -cSf all.tar src && tar --compare -f all.tar && rm -r src && "
			   "tar -xpf all.tar && tar -C '%s' --compare -f all.tar", plain_dir);
	way_unmount();
	same_trees(below(plain_dir, "src"), below(mnt.backing, "src"));
	same_times(below(plain_dir, "src"), below(mnt.backing, "src"));
}

#define GIT "git -c user.name=tester -c user.email=tester@example.org -c gc.auto=0"

EACH_WAY(programs, git_keeps_a_history)
{
	NEED("git");
	setenv("GIT_CONFIG_NOSYSTEM", "1", 1);
	setenv("HOME", plain_dir, 1);
	shell_ok(mnt.path, GIT " init -q repo");
	for (int i = 0; i < 5; i++) {
		shell_ok(mnt_file(&mnt, "repo"),
			 "mkdir -p d%d && seq %d 20000 > numbers && "
			 "for i in $(seq 40); do echo $i %d > d%d/f$i; done && "
			 "head -c 300000 /dev/urandom > blob%d && "
			 GIT " add -A && " GIT " commit -q -m 'step %d'", i, i, i, i, i, i);
	}
	shell_ok(mnt_file(&mnt, "repo"),
		 "test -z \"$(git status --porcelain)\" && git fsck --strict && git gc -q && "
		 "git fsck --strict && git checkout -q HEAD~3 && test ! -e d4 && git checkout -q - && "
		 "test -e d4 && git clone -q . ../clone && git -C ../clone fsck --strict && "
		 "test \"$(git rev-parse HEAD)\" = \"$(git -C ../clone rev-parse HEAD)\" && "
		 "git -C ../clone diff --quiet HEAD && test \"$(git rev-list HEAD | wc -l)\" = 5");
	way_unmount();
	shell_ok(below(mnt.backing, "repo"), "git fsck --strict && test -z \"$(git status --porcelain)\"");
	shell_ok(below(mnt.backing, "clone"), "git fsck --strict && git diff --quiet HEAD");
}

EACH_WAY(programs, sqlite_in_both_journal_modes)
{
	static const char *const mode[] = { "wal", "delete", "truncate", "persist" };

	NEED("sqlite3");
	for (int i = 0; i < 4; i++) {
		/* Two writers at once, then a crash of one in a transaction. */
		shell_ok(mnt.path,
			 "set -e; db=db%d; run() { sqlite3 -cmd '.timeout 60000' $db \"$@\"; }\n"
			 "run 'pragma journal_mode=%s; create table t(who, n);' > /dev/null\n"
			 "for who in a b; do (for i in $(seq 15); do\n"
			 "  run \"insert into t values('$who', $i); insert into t values('$who', -$i)\"\n"
			 "done) & done; wait\n"
			 "test \"$(run 'select count(*), sum(n) from t')\" = '60|0'\n"
			 "printf 'begin immediate;\\ninsert into t values(1, 1);\\n.shell kill -9 $PPID\\n' |\n"
			 "  sqlite3 $db && exit 1 || true\n",
			 i, mode[i]);
		shell_ok(mnt.path, "test \"$(sqlite3 db%d 'select count(*) from t')\" = 60 && "
				   "test \"$(sqlite3 db%d 'pragma integrity_check')\" = ok", i, i);
	}
	way_unmount();
	for (int i = 0; i < 4; i++)
		shell_ok(mnt.backing, "test \"$(sqlite3 db%d 'pragma integrity_check')\" = ok && "
				      "test \"$(sqlite3 db%d 'select count(*) from t')\" = 60", i, i);
}

EACH_WAY(programs, make_compiles_and_the_program_runs)
{
	NEED("make", "cc");
	shell_ok(mnt.path,
		 "set -e; mkdir p; cd p\n"
		 "for i in $(seq 12); do echo \"int f$i(void) { return $i; }\" > f$i.c; done\n"
		 "(for i in $(seq 12); do echo \"int f$i(void);\"; done; echo '#include <stdio.h>'\n"
		 " echo 'int main(void) { printf(\"%%d\", 0'; for i in $(seq 12); do echo \"+ f$i()\"; done\n"
		 " echo '); return 0; }') > main.c\n"
		 "tab=$(printf '\\t'); cat > Makefile << END\n"
		 "prog: \\$(patsubst %%.c,%%.o,\\$(wildcard *.c))\n"
		 "${tab}cc -o \\$@ \\$^\n"
		 "%%.o: %%.c\n"
		 "${tab}cc -c -o \\$@ \\$<\n"
		 "END\n"
		 "make -j2 -s; test \"$(./prog)\" = 78\n"
		 "make -q; sleep 0.01; echo 'int f3(void) { return 103; }' > f3.c; ! make -q\n"
		 "make -s; test \"$(./prog)\" = 178; make -q\n"
		 "ar rc lib.a f*.o; cc -o prog2 main.o lib.a; cmp prog prog2 || test \"$(./prog2)\" = 178\n");
	way_unmount();
	shell_ok(below(mnt.backing, "p"), "test \"$(./prog)\" = 178 && make -q");
}

EACH_WAY(programs, rsync_finds_nothing_left_to_do)
{
	NEED("rsync");
	make_source();
	shell_ok(mnt.path, "rsync -aHS '%s/src/' copy/", plain_dir);
	shell_ok(mnt.path, "test -z \"$(rsync -aHn -c -i '%s/src/' copy/)\"", plain_dir);
	shell_ok(plain_dir, "set -e; echo more >> src/numbers; rm src/deep/er/f1*; mkdir src/new\n"
			    "printf y | dd of=src/random bs=1 seek=1000000 conv=notrunc status=none\n"
			    "mv src/deep/er src/new/er\n");
	shell_ok(mnt.path, "rsync -aHS --delete --inplace --no-whole-file '%s/src/' copy/", plain_dir);
	shell_ok(mnt.path, "test -z \"$(rsync -aHn -c -i --delete '%s/src/' copy/)\"", plain_dir);
	same_trees(below(plain_dir, "src"), mnt_file(&mnt, "copy"));
	way_unmount();
	same_trees(below(plain_dir, "src"), below(mnt.backing, "copy"));
}

/* Each block says where it belongs. Longer runs, by more engines, are in tests/long. */
EACH_WAY_BARE(programs, fio_verifies_what_it_wrote)
{
	static const char *const engine[] = { "psync", "mmap", "libaio" };
	static const char *const args[] = { "--home", "8M", "--device", "none", NULL };

	NEED("fio");
	way_start(args);
	for (int i = 0; i < 3; i++)
		shell_ok(mnt.path,
			 "fio --name=%s --ioengine=%s --rw=randwrite --size=6m --numjobs=2 --bsrange=4k-64k "
			 "--iodepth=8 --fsync=50 --fallocate=none --randseed=7 --verify=crc32c --verify_fatal=1 "
			 "--verify_state_save=0", engine[i], engine[i]);
	way_unmount();
	for (int i = 0; i < 3; i++)
		shell_ok(mnt.backing,
			 "fio --name=%s --ioengine=psync --rw=randwrite --size=6m --numjobs=2 --bsrange=4k-64k "
			 "--randseed=7 --verify=crc32c --verify_fatal=1 --verify_only --verify_state_save=0", engine[i]);
}

/* ---- everything at once ---- */

#define BLOBS 3
#define BLOB (3 * MIB + 12345)
#define ROUNDS 6

/* Bytes 0, 3, 6... are the device's, 1, 4, 7... those of write(2), 2, 5, 8... of a mapping. */
static int device_part(void *arg)
{
	for (int round = 1; round <= ROUNDS; round++) {
		for (int k = 0; k < BLOBS; k++) {
			char name[16];
			unsigned char *p;
			int fd;

			snprintf(name, sizeof(name), "blob%d", k);
			fd = openat(both_root[ON_MOUNT], name, O_RDWR);
			p = gaia_mmap(BLOB, RW, fd, 0, 0);
			CHILD_CHECK(p != MAP_FAILED);
			CHILD_CHECK(gaia_acquire(p, BLOB, RW) == 0);
			for (int i = 0; i < BLOB; i += 3)
				p[i] += k + 1;
			CHILD_CHECK(gaia_release(p, BLOB) == 0);
			CHILD_CHECK(gaia_munmap(p, BLOB) == 0);
			close(fd);
		}
	}
	return 0;
}

static int write_part(void *arg)
{
	unsigned char page[4096];

	for (int round = 1; round <= ROUNDS; round++) {
		for (int k = 0; k < BLOBS; k++) {
			char name[16];
			int fd;

			snprintf(name, sizeof(name), "blob%d", k);
			fd = openat(both_root[ON_MOUNT], name, O_RDWR);
			/* A byte here and there: a whole page would write the others' bytes too. */
			for (int i = 1; i < BLOB; i += 3 * 1001) {
				CHILD_CHECK(pread(fd, page, 1, i) == 1);
				page[0] += k + 1;
				CHILD_CHECK(pwrite(fd, page, 1, i) == 1);
			}
			CHILD_CHECK(round % 2 || fsync(fd) == 0);
			close(fd);
		}
	}
	return 0;
}

static int map_part(void *arg)
{
	for (int round = 1; round <= ROUNDS; round++) {
		for (int k = 0; k < BLOBS; k++) {
			char name[16];
			unsigned char *p;
			int fd;

			snprintf(name, sizeof(name), "blob%d", k);
			fd = openat(both_root[ON_MOUNT], name, O_RDWR);
			p = mmap(NULL, BLOB, RW, MAP_SHARED, fd, 0);
			CHILD_CHECK(p != MAP_FAILED);
			close(fd);
			for (int i = 2; i < BLOB; i += 3 * 101)
				p[i] += k + 1;
			munmap(p, BLOB);
		}
	}
	return 0;
}

/* What byte i of blob k is in the end. */
static unsigned char expected(int k, int i)
{
	int step = i % 3 == 0 ? 3 : i % 3 == 1 ? 3 * 1001 : 3 * 101;

	return (i - i % 3) % step == 0 ? ROUNDS * (k + 1) : 0;
}

static void check_blobs(int root)
{
	static unsigned char bytes[BLOB];

	for (int k = 0; k < BLOBS; k++) {
		char name[16];
		int fd;

		snprintf(name, sizeof(name), "blob%d", k);
		fd = openat(root, name, O_RDONLY);
		cr_assert_eq(read(fd, bytes, BLOB), BLOB);
		close(fd);
		for (int i = 0; i < BLOB; i++)
			cr_assert_eq(bytes[i], expected(k, i), "byte %d of %s is %d, not %d", i,
				     name, bytes[i], expected(k, i));
	}
}

static int programs_part(void *arg)
{
	struct shell_result r;

	setenv("GIT_CONFIG_NOSYSTEM", "1", 1);
	setenv("HOME", plain_dir, 1);
	r = shell_run(mnt.path, 150,
		      "set -e; for round in 1 2 3; do\n"
		      "  cp -a '%s/src' src$round; tar -cf $round.tar src$round; tar --compare -f $round.tar\n"
		      "  diff -r '%s/src/deep' src$round/deep\n"
		      "  " GIT " init -q repo$round; cp -r src$round/deep repo$round/\n"
		      "  cd repo$round; " GIT " add -A; " GIT " commit -q -m x; git fsck --strict; cd ..\n"
		      "  cat blob* > all$round; test $(stat -c %%s all$round) = %d\n"
		      "  rm -r src$round $round.tar\n"
		      "done", plain_dir, plain_dir, BLOBS * BLOB);
	if (r.status)
		fprintf(stderr, "%s%s", r.out, r.err);
	return r.status;
}

EACH_WAY_BARE(programs, devices_and_programs_in_one_tree)
{
	static const char *const args[] = { "--home", "16M", "--device", "sim:8M",
					    "--writeback-age", "0.05", NULL };
	static int (*const parts[])(void *) = { device_part, write_part, map_part, programs_part };
	pid_t pid[4];
	char name[16];
	char *before, *line;
	int fd;

	NEED("tar", "git");
	way_start(args);
	make_source();
	for (int k = 0; k < BLOBS; k++) {
		snprintf(name, sizeof(name), "blob%d", k);
		fd = openat(both_root[ON_MOUNT], name, O_CREAT | O_RDWR, 0644);
		cr_assert_eq(ftruncate(fd, BLOB), 0);
		close(fd);
	}
	for (int i = 0; i < 4; i++)
		pid[i] = child_start(parts[i], NULL);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(child_wait(pid[i]), 0, "part %d", i);
	check_blobs(both_root[ON_MOUNT]);
	before = tree_print_path(mnt.path);
	way_unmount();
	check_blobs(mnt.backing_fd);
	line = tree_print_beneath(mnt.backing_fd);
	cr_assert_null(tree_difference(before, line), "%s", tree_difference(before, line));
	free(before);
	free(line);
}
