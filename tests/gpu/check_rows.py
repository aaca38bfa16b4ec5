#!/usr/bin/env python3
"""check_rows.py PROGRAM [OPTION...]: runs every section of a played measuring program, and looks at the rows.

Each section runs with --quick to its end. Every line is one JSON object with a section and what it is;
numbers are numbers; it says that it is simulated.

    --fail SECTION:ENTRY    with a driver that fails, at that call: the rows before that are whole, the exit
                            status is not 0, and standard error names the call
    --mount GAIAFS GAIA WAY DEVICE...
                            in a mount of its own, with --cpu-cache WAY: also that each row says so, and
                            what the mount counted; 77 where there can be no mount
    --beside                beside another process: each row says so, and the last one what it cost that one
    --lacks SECTION:NUMBER  only: on a GPU with less memory (GAIAFS_PLAYED_MEMORY), a row of that section says that NUMBER
                            does not fit, and others were measured
    --waits SECTION         only: where cuMemUnmap waits for what runs, the section's row says so"""
import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

program, options = sys.argv[1], sys.argv[2:]
faults = []


def fault(where, what):
    faults.append(f'{where}: {what}')


def run(section, fail=None, arguments=()):
    env = dict(os.environ)
    if fail:
        env['GAIAFS_PLAYED_FAIL'] = fail
    return subprocess.run([program, *options, '--quick', section, *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=60, text=True, env=env)


def check(section, done):
    """The rows, and what is wrong with them noted."""
    rows = []
    if done.stdout and not done.stdout.endswith('\n'):
        fault(section, 'the last line is not whole')
    for line in done.stdout.splitlines():
        try:
            row = json.loads(line, parse_constant=lambda name: fault(section, f'{name} is no number: {line}'))
        except ValueError as err:
            fault(section, f'{err}: {line}')
            continue
        if row.get('section') != section or not row.get('what'):
            fault(section, f'no section or what: {line}')
        if len(line) >= 4096:
            fault(section, f'{len(line)} characters in a row')
        if 'not_run' not in row and len(row) < 4:
            fault(section, f'it says nothing: {line}')
        if row.get('simulated') is not True:
            fault(section, f'it does not say that it is simulated: {line}')
        rows.append(row)
    return rows


KINDS = [*(kind + armed for kind in ('copy in', 'copy from another device') for armed in ('', ', armed')),
         'copy out', 'find changed', 'pull', 'copy within', 'arm', 'zero']
L2 = 1 << 20 # the played GPU's


def check_cached(rows):
    """Rows of the bench that compare with a ceiling say whether their bytes may be in the GPU's cache."""
    for row in rows:
        cached = 'of_ceiling' in row and row['bytes'] <= 2 * L2
        if row.get('in_l2', False) != cached and 'of_ceiling' in row:
            fault(row['section'], f'of a cache of {L2} bytes: {row}')


def check_memory_share(section, rows):
    """What crosses the bus also says what share of the GPU's memory's speed it has, by the bytes of one page each."""
    for row in rows:
        crosses = 'of_ceiling' in row and row['what'].split(',')[0] in ('copy in', 'copy out', 'pull')
        if crosses != ('of_gpu_memory_ceiling' in row):
            fault(section, f'a share of the GPU\'s memory: {row}')
        if not crosses:
            continue
        us = row['us'] if 'us' in row else min(row['kernel_us'], row['engine_us'])
        bytes = row['bytes'] / (2 if row['what'] == 'pull' else 1) if 'us' in row else row['piece_bytes'] * row['pieces']
        if abs(row['of_gpu_memory_ceiling'] * row['gpu_memory_read_ceiling_gb_s'] / (bytes / us / 1e3) - 1) > 0.01:
            fault(section, f'{bytes} bytes in {us} us are another share: {row}')


def check_kinds(rows):
    """Each kind of operation, also armed, with each number of pages, in one run and in many."""
    wanted = {(what, pages, layout) for what in KINDS for pages in (1, 8, 64, 512)
              for layout in ('a run a chunk', 'every other page') if pages > 1 or layout == 'a run a chunk'}
    there = {(row['what'], row['pages'], row['layout']) for row in rows if 'pages' in row}
    if there != wanted:
        fault('kinds', f'missing: {wanted - there}; not known: {there - wanted}')


def check_assumptions(rows):
    """Of each assumption a row; and on the fake driver, which is strict, all of them hold."""
    refused = [row for row in rows if 'not_run' in row and 'cuMemHostRegister' in row['not_run']]
    for name in ('same_address', 'kernels_read_it_there', 'starts', 'program_kernel', 'to_device', 'to_host', 'wrong_pages',
                 'cuMemHostRegister_again'):
        values = [row[name] for row in rows if name in row]
        if values not in ([True], ['0, no error'], [0]) and not (refused and values == []):
            fault('assumptions', f'{name} is {values}: {rows}')
    broken = [row for row in rows if 'free_bytes_with_a_buffer' in row]
    if len(broken) != 1 or not (broken[0]['free_bytes_with_a_buffer'] < broken[0]['free_bytes_with_chunks'] <
                                broken[0]['free_bytes_before'] <= broken[0]['free_bytes_after']):
        fault('assumptions', f'of a context that broke: {rows}')
    left = [row for row in rows if 'left_bytes' in row]
    if not left or left[0]['left_bytes'] > left[0]['free_bytes_before'] - left[0]['taken_bytes'] - left[0]['of_hashes_bytes']:
        fault('assumptions', f'nothing is taken: {left}')


def check_beside(section, rows):
    if not all('of another process' in row.get('beside', '') for row in rows):
        fault(section, f'a row does not say beside what: {rows}')
    last = rows[-1] if rows else {}
    if not (last.get('alone_per_s', 0) > 0 and last.get('kernels_per_s', 0) > 0 and last.get('slowdown', 0) > 0):
        fault(section, f'what did it cost the other process? {last}')


def sections():
    listed = subprocess.run([program, *[o for o in options if o == '--beside'], '--list'], stdout=subprocess.PIPE, text=True, check=True).stdout
    table = [line.split(' ') for line in listed.splitlines()]
    if not table or any(len(entry) != 2 or not entry[1].isdigit() for entry in table):
        sys.exit(f'--list: {listed}')
    return [name for name, _ in table]


def whole(arguments=()):
    all_rows = {}
    for section in sections():
        done = run(section, arguments=arguments)
        rows = all_rows[section] = check(section, done)
        if done.returncode == 77 and done.stderr:
            print(f'{section}: does not apply: {done.stderr.strip()}')
        elif done.returncode or not rows:
            fault(section, f'exit status {done.returncode}, {len(rows)} rows: {done.stderr}')
        else:
            print(f'{section}: {len(rows)} rows, {sum("not_run" in row for row in rows)} of them not run')
        if section == 'kinds':
            check_cached(rows)
            check_kinds(rows)
        if section == 'assumptions':
            check_assumptions(rows)
        if section in ('kinds', 'pieces'):
            check_memory_share(section, rows)
        if '--beside' in options:
            check_beside(section, rows)
    return all_rows


def failing(section, entry, most, arguments=()):
    """Later and later calls fail: before, more and more rows."""
    seen = set()
    for nth in (1, 3, 10, 30, 100, 300, 1000):
        done = run(section, f'{entry}:{nth}', arguments)
        rows = check(section, done)
        seen.add(len(rows))
        if done.returncode == 0 and len(rows) == most:
            break # there are not so many calls
        last = done.stderr.strip()
        if done.returncode in (0, 77) or entry not in last:
            fault(section, f'call {nth} of {entry} fails: exit status {done.returncode}, says {last}')
    if len(seen) < 3:
        fault(section, f'{entry} failed here and there, and rows were always {seen}')


def waiting(section):
    """With a driver whose cuMemUnmap waits for what runs: the row says so."""
    os.environ['GAIAFS_PLAYED_WAITS'] = '1'
    rows = [row for row in check(section, run(section)) if row['what'] == 'cuMemUnmap']
    if not rows or not rows[0].get('waited') or rows[0].get('still_running'):
        fault(section, f'cuMemUnmap waited, and the row is {rows}')


def lacking(section, number):
    """What does not fit the GPU has a row that says so."""
    done = run(section)
    rows = check(section, done)
    whys = [row['not_run'] for row in rows if 'not_run' in row]
    if done.returncode or not any(re.match(rf'{number} .*the GPU has ', why) for why in whys) or len(whys) == len(rows):
        fault(section, f'{number} does not fit: exit status {done.returncode}, {rows}, {done.stderr}')
    if not all(row.get('alive', 0) < int(number) for row in rows):
        fault(section, f'{number} fit: {rows}')


# ---- mounts ----


def end_with_us():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM) # PR_SET_PDEATHSIG


@contextlib.contextmanager
def mounted(gaiafs, gaia, way, devices):
    with tempfile.TemporaryDirectory(prefix='gaiafs-rows.') as top:
        below, mnt = os.path.join(top, 'below'), os.path.join(top, 'mnt')
        os.mkdir(below)
        os.mkdir(mnt)
        command = [gaiafs, '-f', '--cpu-cache', way, '--log-level', 'warn']
        for device in devices:
            command += ['--device', device]
        daemon = subprocess.Popen([*command, below, mnt], preexec_fn=end_with_us)
        try:
            while not os.path.ismount(mnt):
                if daemon.poll() is not None:
                    sys.exit(f'{gaiafs} does not mount')
                time.sleep(0.02)
            yield mnt
        finally:
            subprocess.run([gaia, 'umount', mnt], timeout=30, check=False)
            daemon.terminate()
            daemon.wait(30)


def in_a_mount(gaiafs, gaia, way, devices):
    if not os.path.exists('/dev/fuse') or os.geteuid() != 0:
        sys.exit(77)
    with mounted(gaiafs, gaia, way, devices) as mnt:
        passed = []
        for section, rows in whole([mnt]).items():
            for row in rows:
                if row.get('cpu_cache') not in (way, *(['writethrough', 'writeback'] if way == 'auto' else [])):
                    fault(section, f'the mount is {way}: {row}')
                if not isinstance(row.get('counters'), dict) or 'device' not in row:
                    fault(section, f'no counters or device: {row}')
                if row.get('passed_through'):
                    passed.append(row['what'])
                moved = row.get('counters', {}).get('home_to_device', 0)
                if section == 'stale' and moved * 4096 != row['bytes']:
                    fault(section, f'{moved} pages were copied, of {row["bytes"]} bytes')
                if section == 'changed' and moved != row['pages_changed']:
                    fault(section, f'{moved} pages were copied, of {row["pages_changed"]} that had changed')
                if section in ('changed', 'current', 'streams') and row.get('device') == 'cuda' and not row.get('of_ceiling', 0) > 0:
                    fault(section, f'no share of a ceiling: {row}')
                if section == 'current' and moved:
                    fault(section, f'{moved} pages were copied, and nothing had changed')
            if not os.listdir(mnt) == []:
                fault(section, f'it leaves {os.listdir(mnt)}')
        if way == 'auto' and rows and any('auto' == row['cpu_cache'] for row in rows) and len(passed) != 1:
            fault('all', f'one row is to be of a file that is passed through, not {passed}')


if __name__ == '__main__':
    arguments = []
    if '--fail' in options:
        at = options.index('--fail')
        section, entry = options[at + 1].split(':')
        del options[at:at + 2]
        failing(section, entry, len(check(section, run(section))))
    elif '--mount' in options:
        at = options.index('--mount')
        mount = options[at + 1:]
        del options[at:]
        in_a_mount(*mount[:3], mount[3:])
    elif '--lacks' in options:
        at = options.index('--lacks')
        section, number = options[at + 1].split(':')
        del options[at:at + 2]
        lacking(section, number)
    elif '--waits' in options:
        at = options.index('--waits')
        section = options[at + 1]
        del options[at:at + 2]
        waiting(section)
    else:
        whole()
    if faults:
        sys.exit('\n'.join(faults))
