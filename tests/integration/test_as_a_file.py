"""Code behaves as the same text in a file that `python3` runs, whichever way it is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit import live_daemon
from kit.live_daemon import LiveDaemon
from kit.scripts import PROGRAMS

#: Standard output, standard error, and the exit code.
Ended = tuple[bytes, bytes, int | None]
Run = Callable[[bytes], Ended]

WAYS = ("execute", "session", "kernel", "box", "code", "file", "stdin")

_NAME = re.compile(rb"<string>|<stdin>|<job \d+>|[\w/.-]*prog\.py|/tmp/\.leeward-main-[0-9a-f]+\.py")
_ADDRESS = re.compile(rb"0x[0-9a-f]{6,}")
_SECONDS = re.compile(rb"(Ran \d+ tests? in )[\d.]+s")

#: Ways by which the code has no file. That of `--file` is laid beside the job under its name.
_NO_FILE = tuple(way for way in WAYS if "file" != way)

_LASTING = ("session", "kernel")

#: The programs that may end otherwise: in which ways, and why.
DIFFERENCES: dict[str, tuple[tuple[str, ...], str]] = {
    "argv0": (("execute", "session", "kernel", "box", "code"), "-c, as of `python3 -c`: there is no file"),
    "file": (_NO_FILE, "no __file__, as with `python3 -c`"),
    "main names": (_NO_FILE, "no __file__ and __cached__, as with `python3 -c`"),
    "doctest": (_NO_FILE, "it names the module's __file__"),
    "exec compile": (("execute", "box", "code"), "the job's code and that of `exec` are both called <string>"),
    "bom traceback": (WAYS, "C prints the mark as a part of the line, `traceback` doesn't"),
    "bad utf8": (WAYS, "the compiler has another text where it reads bytes than where it reads a file"),
    "unknown encoding": (WAYS, "as bad utf8"),
    "null byte": (WAYS, "as bad utf8"),
    "import error": (("code", "file", "stdin"), "the command adds a line on how to have the module"),
    "flags": (WAYS, "no .pyc files are written"),
    "atexit": (_LASTING, "the process lives on"),
    "nondaemon thread": (_LASTING, "the job doesn't wait for threads; they run on"),
    "output is lost": (_LASTING, "the interpreter hasn't ended, and flushes again"),
    "stream cannot be flushed": (_LASTING, "the interpreter hasn't ended"),
    "signal": (_LASTING, "an interrupt hits the running job alone"),
    "asyncio no loop": (("kernel",), "a kernel's code is in its loop"),
    "await outside": (("kernel",), "as in a notebook"),
}


def _plain(ended: Ended) -> Ended:
    out, err, code = ended
    return _NAME.sub(b"FILE", out), _ADDRESS.sub(b"0x", _SECONDS.sub(rb"\1", _NAME.sub(b"FILE", err))), code


def _result(result: leeward.Result) -> Ended:
    return result.stdout, result.stderr, result.exit_code


@pytest.fixture(scope="module")
def as_a_file(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    file = tmp_path_factory.mktemp("files") / "prog.py"
    ends: dict[str, Ended] = {}
    for name, source in PROGRAMS.items():
        file.write_bytes(source)
        done = subprocess.run([sys.executable, str(file)], cwd=file.parent, stdin=subprocess.DEVNULL, capture_output=True,
                              check=False, env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"})
        ends[name] = _plain((done.stdout, done.stderr, done.returncode & 0xFF))
    return ends

DAEMON = ("--pool-size", "3")


@pytest.fixture
def run(request: pytest.FixtureRequest, daemon: LiveDaemon, tmp_path: Path) -> Iterator[Run]:
    file = tmp_path / "prog.py"

    def session(source: bytes) -> Ended:
        with client.session() as made:
            return _result(made.execute(source))

    def kernel(source: bytes) -> Ended:
        with box.kernel() as made:
            return _result(made.execute(source))

    def command(*argv: str, **options: bytes) -> Ended:
        done = live_daemon.run(daemon.socket, "exec", *argv, **options)
        return done.stdout, done.stderr, done.returncode

    def from_file(source: bytes) -> Ended:
        file.write_bytes(source)
        return command("--file", str(file))

    with daemon.client() as client, leeward.Sandbox(socket=daemon.socket) as box:
        ways: dict[str, Run] = {
            "execute": lambda source: _result(client.execute(source)), "session": session, "kernel": kernel,
            "box": lambda source: _result(box.execute(source)), "code": lambda source: command(os.fsdecode(source)),
            "file": from_file, "stdin": lambda source: command("-", input=source)}
        yield ways[request.param]


LOOKS = b"""
import os, __main__, multiprocessing as m
print(hasattr(__main__, '__file__'), '__file__' in globals(), os.listdir('/workspace'), __main__, type(__main__).__name__)
"""


def test_code_has_a_file_for_children_alone(daemon: LiveDaemon) -> None:
    """If it tells whether it is the main module: without that a child would run all of it again."""
    plain = b"print(m.get_context('spawn').Pool(1).map(abs, [-1]))"
    with daemon.client() as client:
        assert (b"False False [] <module '__main__'> module\n[1]\n", b"", 0) == _result(client.execute(LOOKS + plain))
        out = client.execute(LOOKS + b"if __name__ == '__main__':\n __file__ = 'mine'\n print(__main__.__file__)").stdout
        assert re.fullmatch(rb"True False \[\] <module '__main__' from '/tmp/\.leeward-main-\w+\.py'> module\nmine\n", out)
        with client.session() as made:
            assert b"0\n" == made.execute(b"x = 1\n" + PROGRAMS["spawn"]).stdout.splitlines(keepends=True)[-1]
            assert b"in a child __mp_main__\n0\n" == made.execute(PROGRAMS["forkserver"]).stdout


@pytest.mark.thorough
@pytest.mark.parametrize(("run", "way"), [(way, way) for way in WAYS], indirect=["run"], ids=WAYS)
def test_as_python3_runs_the_file(run: Run, way: str, as_a_file: dict[str, Ended]) -> None:
    """But for DIFFERENCES, each of which is there."""
    differ: dict[str, tuple[Ended, Ended]] = {}
    for name, source in PROGRAMS.items():
        if "code" == way and b"\0" in source:
            continue  # an argument can't have it
        got = _plain(run(source))
        if as_a_file[name] != got:
            differ[name] = as_a_file[name], got

    known = {name for name, (ways, _) in DIFFERENCES.items() if way in ways}
    assert {} == {name: ends for name, ends in differ.items() if name not in known}
    if (3, 11) == sys.version_info[:2]:  # others print some of them as ours
        assert known - {"null byte"} <= differ.keys()
