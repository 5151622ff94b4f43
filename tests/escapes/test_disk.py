"""Output and files: bounded in bytes, number, depth and time; no core of a job. Catalogue cases 59, 60 and 62."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.attack import within, without
from kit.box import Box, control
from kit.running import status
from leeward.spec.limits import MIB, Limits
from leeward.spec.outcome import Limit, Outcome
from leeward.spec.sandbox import Scratch
from leeward.wire.job_frames import MAX_BARE_REPLY, MAX_FILES, MAX_TEXT, MAX_TYPE

Only = Callable[..., Box]


# --- output -------------------------------------------------------------------

#: More than three times what a job may say, and what the daemon may grow by in a test.
FLOOD_MIB = 128 if os.environ.get("LEEWARD_LONG") else 32

FLOODS = {
    "stdout": f"for _ in range({FLOOD_MIB}): os.write(1, b'x' * (1 << 20))",
    "stderr": f"for _ in range({FLOOD_MIB}): os.write(2, b'x' * (1 << 20))",
    "both": f"for _ in range({FLOOD_MIB // 2}): os.write(1, b'x' * (1 << 20)); os.write(2, b'x' * (1 << 20))",
    "lines": f"for _ in range({FLOOD_MIB}): os.write(1, b'x\\n' * (1 << 19))",
}


def peak() -> int:
    """The most that this process, the daemon of its boxes, had since it was asked for `forget`; bytes."""
    return int(status("self")["VmHWM"].split()[0]) << 10


def forget() -> int:
    """From now on `peak` is about what comes; the bytes that it has now."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free and resident could be used without a trace
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


@pytest.mark.no_single_lock("the daemon cuts what it reads")
@pytest.mark.parametrize("kind", FLOODS)
def test_c059_cannot_flood_the_daemon(box: Box, kind: str) -> None:
    """What is much more is cut at the 10 MiB of the limit, and the daemon has grown by less than twice that."""
    code, most = "import os\n" + FLOODS[kind], Limits().output
    with subprocess.Popen([sys.executable, "-c", code + "\nos._exit(0)"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT) as outside:
        assert outside.stdout is not None
        size = 0
        while data := outside.stdout.read1(MIB):
            size += len(data)
    with control():
        assert FLOOD_MIB * MIB == size

    before = forget()
    report = box.report(code)

    assert report.result is not None
    assert report.arena is not None
    report.arena.close()
    assert (Outcome.OUTPUT_LIMIT, Limit.OUTPUT, True) == (
        report.result.outcome, report.result.limit, report.result.truncated)
    assert most == sum(region[1] for region in (report.arena.stdout, report.arena.stderr) if region) + len(
        b"" if report.arena.stdout else report.result.stdout) + len(
        b"" if report.arena.stderr else report.result.stderr)
    assert peak() - before < 2 * most


@pytest.mark.smoke
@pytest.mark.no_single_lock("the daemon cuts what it reads")
def test_c059_one_byte_at_a_time_is_cut_at_the_same_place(box: Box) -> None:
    """100,000 writes of a byte, with a limit of 30,000."""
    flood = "import os\nfor _ in range(100_000): os.write(1, b'x')"

    with control():
        whole = box.run(flood)
        assert (100_000, False) == (len(whole.stdout), whole.truncated)

    cut = box.run(flood, limits={"output": 30_000})
    assert (Outcome.OUTPUT_LIMIT, b"x" * 30_000, True) == (cut.outcome, cut.stdout, cut.truncated)


@pytest.mark.no_single_lock("the daemon cuts what it reads")
@pytest.mark.parametrize("size", [4 * MIB, 64 * MIB])
@pytest.mark.parametrize("code", ["raise ValueError('x' * {})", "raise type('x' * {}, (Exception,), {{}})"],
                         ids=["message", "type"])
def test_c059_cannot_flood_by_its_error(box: Box, code: str, size: int) -> None:
    """An error is cut to what is documented; its traceback on stderr counts as output."""
    with control():  # it has that much to say
        assert len(box.run(code.format(10_000)).stderr) > 10_000
    before = forget()

    got = box.run(code.format(size))

    if size > Limits().output:
        assert (Outcome.OUTPUT_LIMIT, None) == (got.outcome, got.error)
    else:
        assert Outcome.RAISED is got.outcome
        assert got.error is not None
        assert len(got.stderr) > size
        assert (True, True) == (len(got.error.type) <= MAX_TYPE, len(got.error.message) <= MAX_TEXT)
        assert len(got.error.traceback) <= MAX_TEXT
    assert peak() - before < 4 * Limits().output  # with the copy that this test reads


@pytest.mark.no_single_lock("the daemon cuts what it reads")
def test_c059_cannot_flood_by_its_reply(box: Box) -> None:
    """128 MiB on the pipe for its result end the job before they are read."""
    before = forget()
    assert b"x" * (4 * MAX_BARE_REPLY)
    with control():  # this is where it would show
        assert peak() - before >= 3 * MAX_BARE_REPLY

    before = forget()
    got = box.run("import os, signal\nos.write(4, (1 << 27).to_bytes(4, 'big'))\n"
                  "for _ in range(128): os.write(4, b'x' * (1 << 20))\nsignal.pause()")

    assert Outcome.INTERNAL is got.outcome
    assert peak() - before < 2 * MAX_BARE_REPLY


# --- files --------------------------------------------------------------------

FULL = """
said, used = {}, 0
for folder in folders:
    said[folder] = ""
    try:
        with open(folder + "/full", "wb", buffering=0) as file:
            while used < most and (got := file.write(bytes(1 << 20))) == 1 << 20:
                used += got
            while used < most:
                used += file.write(bytes(4096))
    except OSError as error:
        said[folder] = errno.errorcode[error.errno]
for folder in folders:
    os.truncate(folder + "/full", 0)
made, end = 0, ""
try:
    while made < names:
        os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
except OSError as error:
    end = errno.errorcode[error.errno]
tell([said, used, made, end])
"""


@pytest.mark.lock("mounts")
def test_c060_cannot_fill_more_than_its_own_disk(box: Box, only: Only) -> None:
    """64 MiB and 16,384 names in all its writable places together, then ENOSPC; with the mounts alone, too."""
    most, names = Limits().files + 2 * MIB, Scratch(()).inodes + 100
    free = os.statvfs("/dev/shm")  # some containers have less than a job there; else it is faster
    place = "/dev/shm" if free.f_bavail * free.f_frsize > 2 * most else "/var/tmp"
    with control(), tempfile.TemporaryDirectory(dir=place) as host:  # the host has more
        said, used, made, end = without(FULL, folders=[host], most=most, names=names)
        assert ({host: ""}, True, names, "") == (said, most <= used, made, end)

    for sandbox in (box, only("mounts")):
        said, used, made, end = within(sandbox, FULL, folders=["/workspace", "/tmp", "/dev/shm"], most=most,
                                       names=names)
        assert {"ENOSPC"} == set(said.values())
        assert Limits().files - MIB <= used <= Limits().files
        assert Scratch(()).inodes - 20 <= made <= Scratch(()).inodes
        assert "ENOSPC" == end


@pytest.mark.smoke
@pytest.mark.lock("mounts")
def test_c060_cannot_write_anywhere_else(box: Box, only: Only) -> None:
    """Every place where a file can be made is on that one file system."""
    attack = """
def writable(folder):
    name = folder + "/made-by-a-job"
    if attempt(os.mkdir, name):
        return False
    os.rmdir(name)
    return True
with open("/proc/self/mountinfo") as file:
    mounted = {line.split()[4] for line in file}
tell({folder: os.stat(folder).st_dev for folder in places or mounted | others if writable(folder)})
"""
    others = {"/", "/etc", "/home", "/opt", "/root", "/run", "/srv", "/usr/local", "/var", "/var/tmp", "/var/run",
              "/dev"}
    with control():  # the host's own; others aren't tried there
        assert "/var/tmp" in without(attack, places=["/var/tmp"])

    for sandbox in (box, only("mounts")):
        found = within(sandbox, attack, places=[], others=others)

        assert {"/workspace", "/tmp", "/dev/shm", "/var/tmp"} == set(found)  # the last is a link
        assert 1 == len(set(found.values()))


ODD = {
    "more files than its disk has": """
try:
    for number in range(1_000_000): os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
except OSError: pass
""",
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


@pytest.mark.no_single_lock("what is taken along is bounded where it is collected, and by the daemon")
@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("patterns", [("**",), ("wanted", "**/*", "*/*/*")], ids=["all", "some"])
def test_c060_collected_files_are_bounded(box: Box, what: str, patterns: tuple[str, ...]) -> None:
    """
    Whatever files a job leaves, it ends as it ended, with the file that was asked for, in no more time and bytes than
    such a file takes.
    """
    wanted = "import os\nopen('/workspace/0 wanted', 'w').write('x')\nopen('/workspace/wanted', 'w').write('x')\n"
    with control():  # nothing is bounded there
        plain = box.run(wanted, collect=("**",)).files
        assert {"0 wanted": b"x", "wanted": b"x"} == plain

    got = box.run(wanted + ODD[what], collect=patterns, limits={"time": 10.0})

    assert (Outcome.FINISHED, 0) == (got.outcome, got.exit_code), (got, got.error)
    assert len(got.files) <= MAX_FILES
    assert sum(map(len, got.files.values())) <= Limits().files
    assert all("\n" not in name and "\udcff" not in name and name.count("/") < 16 for name in got.files)
    if "no descriptor left" != what:  # then none can be opened
        assert b"x" == got.files["0 wanted" if "**" in patterns else "wanted"]


# --- cores --------------------------------------------------------------------

CRASH = """
import resource, subprocess, tempfile
home = tempfile.mkdtemp()  # it may be the host's /tmp
os.chdir(home)
ends = []
def crash(number):
    kept = b"a tenant's secret" * (1 << 20)
    os.kill(os.getpid(), number)
    os._exit(1)
for number in (signal.SIGSEGV, signal.SIGQUIT, signal.SIGABRT):
    signal.signal(number, signal.SIG_DFL)  # a shell's background job ignores SIGQUIT
    child = os.fork()
    if 0 == child:
        crash(number)
    ends.append(os.WCOREDUMP(os.waitpid(child, 0)[1]))
    other = subprocess.Popen(["/bin/sleep", "1000"])  # execve makes a process dumpable again
    other.send_signal(number)
    ends.append(os.WCOREDUMP(os.waitpid(other.pid, 0)[1]))
with open("/proc/self/limits") as file:
    limit = next(line.split()[4] for line in file if line.startswith("Max core file size"))
left = len(os.listdir("."))
if not left:
    os.rmdir(home)
tell([any(ends), left, limit])
"""


def _crash_outside() -> list[object]:
    """The same crashes with no limit on cores; empty where there may be one, or the host's handler would get them."""
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


@pytest.mark.no_single_lock("the daemon takes cores from itself as well, for good: no box can be had without")
def test_c062_cannot_have_a_core(box: Box, only: Only) -> None:
    """No core and no file, whether the process is dumpable or not; with the limits alone, too."""
    if OUTSIDE:
        with control():
            assert OUTSIDE[0] is True
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
@pytest.mark.no_single_lock("the daemon takes cores from itself as well, for good: no box can be had without")
def test_c062_cannot_have_its_memory_given_to_the_hosts_handler(box: Box, only: Only, folder: Path) -> None:
    """A core_pattern that is a pipe runs its program at any limit but 1, which jobs have; 0 wouldn't keep it away."""
    pattern = Path("/proc/sys/kernel/core_pattern")
    handler, handled = folder / "handler", folder / "handled"
    handler.write_text(HANDLER.format(folder=folder))
    handler.chmod(0o755)
    crash = "import os, resource, signal\nresource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
    before = pattern.read_text()
    try:
        pattern.write_text(f"|{handler} %e")
        subprocess.run([sys.executable, "-c", crash + "os.kill(os.getpid(), signal.SIGSEGV)"], check=False)
        with control():  # the kernel waits for the handler
            assert 1 == len(handled.read_text().splitlines())

        for sandbox in (box, only("rlimits")):
            assert [False, 0] == within(sandbox, CRASH)[:2]
        assert Outcome.SIGNALLED is box.run(crash + "os.kill(os.getpid(), signal.SIGSEGV)").outcome
        assert 1 == len(handled.read_text().splitlines())
    finally:
        pattern.write_text(before)
