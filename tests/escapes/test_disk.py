"""
Output and files: bounded in bytes, number, depth and time; no core of a job. Catalogue cases 59, 60 and 62.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attack import serves, within, without
from box import Box
from leeward.outcome import Limit, Outcome
from leeward.spec.limits import MIB, Limits
from leeward.spec.sandbox import Scratch
from leeward.wire.job import MAX_BARE_REPLY, MAX_FILES, MAX_TEXT, MAX_TYPE

Only = Callable[..., Box]


@pytest.fixture(autouse=True)
def _still_serves(box: Box) -> Iterator[None]:
    yield
    assert serves(box)


# --- output -------------------------------------------------------------------

FLOODS = {
    "stdout": "for _ in range(128): os.write(1, b'x' * (1 << 20))",
    "stderr": "for _ in range(128): os.write(2, b'x' * (1 << 20))",
    "both": "for _ in range(64): os.write(1, b'x' * (1 << 20)); os.write(2, b'x' * (1 << 20))",
    "lines": "for _ in range(128): os.write(1, b'x\\n' * (1 << 19))",
}


def resident() -> int:
    """
    The most that this process, the daemon of its boxes, ever had; bytes.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize("kind", FLOODS)
def test_c059_cannot_flood_the_daemon(box: Box, kind: str) -> None:
    """
    128 MiB are cut at the 10 of the limit, and the daemon has grown by less than twice that.
    """
    code, most = "import os\n" + FLOODS[kind], Limits().output
    with subprocess.Popen([sys.executable, "-c", code + "\nos._exit(0)"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as outside:
        assert outside.stdout is not None
        size = 0
        while data := outside.stdout.read1(MIB):
            size += len(data)
    assert 128 * MIB == size  # control

    before = resident()
    report = box.report(code)

    assert report.result is not None
    assert report.arena is not None
    report.arena.close()
    assert (Outcome.OUTPUT_LIMIT, Limit.OUTPUT, True) == (
        report.result.outcome, report.result.limit, report.result.truncated)
    assert most == sum(region[1] for region in (report.arena.stdout, report.arena.stderr) if region) + len(
        b"" if report.arena.stdout else report.result.stdout) + len(
        b"" if report.arena.stderr else report.result.stderr)
    assert resident() - before < 2 * most


def test_c059_one_byte_at_a_time_is_cut_at_the_same_place(box: Box) -> None:
    """
    300,000 writes of a byte, with a limit of 100,000.
    """
    flood = "import os\nfor _ in range(300_000): os.write(1, b'x')"

    whole = box.run(flood)
    assert (300_000, False) == (len(whole.stdout), whole.truncated)  # control

    cut = box.run(flood, limits={"output": 100_000})
    assert (Outcome.OUTPUT_LIMIT, b"x" * 100_000, True) == (cut.outcome, cut.stdout, cut.truncated)


@pytest.mark.parametrize("size", [4 * MIB, 64 * MIB])
@pytest.mark.parametrize("code", ["raise ValueError('x' * {})", "raise type('x' * {}, (Exception,), {{}})"],
                         ids=["message", "type"])
def test_c059_cannot_flood_by_its_error(box: Box, code: str, size: int) -> None:
    """
    An error is cut to what is documented; its traceback on stderr counts as output.
    """
    before = resident()

    got = box.run(code.format(size))

    if size > Limits().output:
        assert (Outcome.OUTPUT_LIMIT, None) == (got.outcome, got.error)
    else:
        assert Outcome.RAISED is got.outcome
        assert got.error is not None
        assert len(got.stderr) > size  # control: it had that much to say
        assert (True, True) == (len(got.error.type) <= MAX_TYPE, len(got.error.message) <= MAX_TEXT)
        assert len(got.error.traceback) <= MAX_TEXT
    assert resident() - before < 4 * Limits().output  # with the copy that this test reads


def test_c059_cannot_flood_by_its_reply(box: Box) -> None:
    """
    128 MiB on the pipe for its result end the job before they are read.
    """
    before = resident()

    got = box.run("import os, signal\nos.write(4, (1 << 27).to_bytes(4, 'big'))\n"
                  "for _ in range(128): os.write(4, b'x' * (1 << 20))\nsignal.pause()")

    assert Outcome.INTERNAL is got.outcome
    assert resident() - before < 2 * MAX_BARE_REPLY


# --- files --------------------------------------------------------------------

FULL = """
def space():
    free = os.statvfs("/workspace")
    return [(free.f_blocks - free.f_bfree) * free.f_frsize, free.f_files - free.f_ffree]
said = {}
for folder in ("/workspace", "/tmp", "/dev/shm"):
    try:
        with open(folder + "/full", "wb", buffering=0) as file:
            while file.write(bytes(1 << 20)) == 1 << 20:
                pass
            said[folder] = "short"
            while file.write(bytes(4096)):
                pass
    except OSError as error:
        said[folder] = errno.errorcode[error.errno]
used = space()[0]
for folder in ("/workspace", "/tmp", "/dev/shm"):
    os.truncate(folder + "/full", 0)
made = 0
try:
    while made < 1_000_000:
        os.close(os.open(f"/tmp/{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    tell([said, used, made, errno.errorcode[error.errno]])
"""


def test_c060_cannot_fill_more_than_its_own_disk(box: Box, only: Only) -> None:
    """
    64 MiB and 16,384 names in all its writable places together, then ENOSPC; with the mounts alone, too.
    """
    free = os.statvfs("/dev/shm")
    assert free.f_bavail * free.f_frsize > 64 * MIB or free.f_ffree > Scratch(()).inodes  # control: the host has more

    for sandbox in (box, only("mounts")):
        said, used, made, end = within(sandbox, FULL)
        assert {"ENOSPC"} == set(said.values())
        assert Limits().files - MIB <= used <= Limits().files
        assert Scratch(()).inodes - 20 <= made <= Scratch(()).inodes
        assert "ENOSPC" == end


def test_c060_cannot_write_anywhere_else(box: Box) -> None:
    """
    Every place where a file can be made is on that one file system.
    """
    attack = """
def writable(folder):
    name = folder + "/made-by-a-job"
    if attempt(os.mkdir, name):
        return False
    os.rmdir(name)
    return True
with open("/proc/self/mountinfo") as file:
    places = {line.split()[4] for line in file}
places |= {"/", "/etc", "/home", "/opt", "/root", "/run", "/srv", "/usr/local", "/var", "/var/tmp", "/var/run", "/dev"}
devices = {folder: os.stat(folder).st_dev for folder in places if writable(folder)}
tell(devices)
"""
    found = within(box, attack)

    assert {"/workspace", "/tmp", "/dev/shm", "/var/tmp"} == set(found)  # the last is a link
    assert 1 == len(set(found.values()))


ODD = {
    "a million files": ("""
try:
    for number in range(1_000_000): os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
except OSError: pass
""", MAX_FILES),
    "a pebibyte of holes": "os.truncate(os.open('holes', os.O_CREAT | os.O_WRONLY), 1 << 50)",
    "more holes than disk": "os.truncate(os.open('holes', os.O_CREAT | os.O_WRONLY), 200 << 20)",
    "many files of holes": "for n in range(1000): open(str(n), 'w').close(); os.truncate(str(n), 1 << 25)",
    "a thousand folders": "for _ in range(1000): os.mkdir('d'); os.chdir('d')\nopen('deep', 'w').close()",
    "a thousand folders full of files": """
for _ in range(900): os.mkdir('d'); os.chdir('d')
for n in range(3000): os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY))
""",
    "names that are no text": "open(b'\\xff\\xfe\\x80', 'w').close(); open('line\\nfeed', 'w').close()",
    "names of 255 bytes": "for n in range(20): open(chr(97 + n) * 255, 'w').close()",
    "a fifo, a link, a locked folder": """
os.mkfifo('fifo'); os.symlink('/etc/passwd', 'link'); os.symlink('.', 'loop'); os.mkdir('locked'); os.chmod('locked', 0)
import socket
socket.socket(socket.AF_UNIX).bind('socket')
""",
    "no descriptor left": "kept = [os.dup(1) for _ in range(240)]\nwhile True:\n    try: kept.append(os.dup(1))\n"
                          "    except OSError: break",
    "a low recursion limit": "import sys\nsys.setrecursionlimit(60)\nos.makedirs('/'.join('d' * 14))",
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("patterns", [("**",), ("wanted", "**/*", "*/*/*")], ids=["all", "some"])
def test_c060_what_comes_back_is_bounded(box: Box, what: str, patterns: tuple[str, ...]) -> None:
    """
    Whatever it leaves, a job ends as it ended, with the file that is wanted, in no more time and bytes than
    such a file takes.
    """
    code = ODD[what] if isinstance(ODD[what], str) else ODD[what][0]
    got = box.run("import os\nopen('/workspace/0 wanted', 'w').write('x')\nopen('/workspace/wanted', 'w').write('x')\n"
                  + code, collect=patterns, limits={"time": 10.0})

    assert (Outcome.FINISHED, 0) == (got.outcome, got.exit_code), (got, got.error)
    assert len(got.files) <= MAX_FILES
    assert sum(map(len, got.files.values())) <= Limits().files
    assert all("\n" not in name and "\udcff" not in name and name.count("/") < 16 for name in got.files)
    if "no descriptor left" != what:  # then none can be opened
        assert b"x" == got.files["0 wanted" if "**" in patterns else "wanted"]


# --- cores --------------------------------------------------------------------

CRASH = """
import resource, subprocess, tempfile
os.chdir(tempfile.mkdtemp())
ends = []
def crash(number):
    kept = b"a tenant's secret" * (1 << 20)
    os.kill(os.getpid(), number)
    os._exit(1)
for number in (signal.SIGSEGV, signal.SIGQUIT, signal.SIGABRT):
    child = os.fork()
    if 0 == child:
        crash(number)
    ends.append(os.WCOREDUMP(os.waitpid(child, 0)[1]))
    other = subprocess.Popen(["/bin/sleep", "1000"])  # execve makes a process dumpable again
    other.send_signal(number)
    ends.append(os.WCOREDUMP(os.waitpid(other.pid, 0)[1]))
with open("/proc/self/limits") as file:
    limit = next(line.split()[4] for line in file if line.startswith("Max core file size"))
tell([any(ends), len(os.listdir(".")), limit])
"""


def _crash_outside() -> list[object]:
    """
    The same crashes with no limit on cores; empty where there may be one, or the host's handler would get them.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    if most in (0, 1) or "core" != Path("/proc/sys/kernel/core_pattern").read_text().strip():
        return []
    with tempfile.TemporaryDirectory() as folder:
        raised = f"resource.setrlimit(resource.RLIMIT_CORE, ({most}, {most}))\n"
        found = without("import resource\n" + raised + f"os.environ['TMPDIR'] = {folder!r}\n" + CRASH)
    assert isinstance(found, list)
    return found


#: Now, while the modules of the tests are read: the first engine of this process takes its cores for good.
OUTSIDE = _crash_outside()


def test_c062_cannot_have_a_core(box: Box, only: Only) -> None:
    """
    No core and no file, whether the process is dumpable or not; with the limits alone, too.
    """
    if OUTSIDE:
        assert OUTSIDE[0] is True  # control
        assert OUTSIDE[1]

    for sandbox in (box, only("rlimits")):
        dumped, files, most = within(sandbox, CRASH)
        assert (False, 0) == (dumped, files)
        assert most in ("0", "1")  # 0 where the user's own hard limit is


HANDLER = """#!/bin/sh
head -c 64 > {folder}/last
echo "$1" >> {folder}/handled
"""


@pytest.mark.needs("may-set-core-pattern")
def test_c062_cannot_have_its_memory_given_to_the_hosts_handler(box: Box, folder: Path) -> None:
    """
    A core_pattern that is a pipe runs its program at any limit but 1, which jobs have; 0 wouldn't keep it away.
    """
    pattern = Path("/proc/sys/kernel/core_pattern")
    handler, handled = folder / "handler", folder / "handled"
    handler.write_text(HANDLER.format(folder=folder))
    handler.chmod(0o755)
    crash = "import os, resource, signal\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    before = pattern.read_text()
    try:
        pattern.write_text(f"|{handler} %e")
        subprocess.run([sys.executable, "-c", crash + "os.kill(os.getpid(), signal.SIGSEGV)"], check=False)
        assert 1 == len(handled.read_text().splitlines())  # control; the kernel waits for the handler

        assert [False, 0] == within(box, CRASH)[:2]
        assert Outcome.SIGNALLED is box.run(crash + "os.kill(os.getpid(), signal.SIGSEGV)").outcome
        assert 1 == len(handled.read_text().splitlines())
    finally:
        pattern.write_text(before)
