"""Another interpreter runs `inside` by its sources alone; and says why it doesn't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgpack
import pytest

from kit.images import other_pythons
from leeward.wire import job_frames as wire

#: Starts the image's interpreter, whose /workspace is the second argument; the first is the job, and the others are frames.
CHILD = """
import os, sys
from leeward.inside import image_python, main
image_python.pack(sys.modules, b"")
for name, (source, package) in image_python._packed.items():
    image_python._packed[name] = source.replace(b"/workspace", sys.argv[2].encode()), package
job, reply = os.pipe(), os.pipe()
for frame in sys.argv[3:]:
    os.write(job[1], bytes.fromhex(frame))
if not (pid := os.fork()):
    os.close(job[1])
    image_python.start(bytes.fromhex(sys.argv[1]), (job[0], reply[1], -1))
os.close(reply[1]), os.close(job[1])
got = os.read(reply[0], 65536)
while len(sys.argv) > 3 and (more := os.read(reply[0], 65536)):  # a session ends by itself
    got += more
os.kill(pid, 9), os.wait()
print("reply", got.hex())
"""


def ran(path: Path, body: bytes, *frames: bytes) -> tuple[str, bytes]:
    """What the job in *body* prints, and the reply, by the interpreter in the folder *path*."""
    words = [each.hex() for each in frames]
    got = subprocess.run([sys.executable, "-c", CHILD, body.hex(), str(path), *words], capture_output=True, text=True,
                         env={"PATH": str(path)}, check=False, timeout=60)
    out, _, reply = got.stdout.rpartition("reply ")
    return out + got.stderr, bytes.fromhex(reply)


@pytest.fixture(params=[os.path.realpath(sys.executable), *other_pythons()])
def path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with a Python, which has no environment of its own."""
    (tmp_path / "python3").symlink_to(request.param)
    return tmp_path


def test_another_interpreter_runs_a_job(path: Path) -> None:
    """Which sees nothing of leeward's, nor its msgpack."""
    said, reply = ran(path, wire.CODE + b"import sys; print(__name__, sys.argv, sorted(name for name in sys.modules"
                                        b" if name.split('.')[0] in ('leeward', 'msgpack', 'cffi')), [x for x in"
                                        b" sys.meta_path if getattr(x, '__name__', '') == 'Sources'], sys.path[0])")

    assert f"__main__ ['-c'] [] [] {path}\n" == said
    assert wire.NOTHING_FRAME == reply


def test_its_errors_are_as_everywhere(path: Path) -> None:
    """No frame of leeward's is in a traceback."""
    said, reply = ran(path, wire.CODE + b"def f():\n    1 / 0\nf()")

    assert said.startswith("Traceback (most recent call last):\n  File \"<string>\", line 3, in <module>\n    f()\n")
    assert said.endswith("\nZeroDivisionError: division by zero\n")
    assert "ZeroDivisionError" == msgpack.unpackb(reply[4:])["error"][0]


def test_a_session_keeps_what_it_has(path: Path) -> None:
    """Code alone, code that shows a value, and an error, after which it goes on."""
    def frame(kind: bytes, code: bytes) -> bytes:
        body = wire.SESSION + kind + code
        return wire.HEADER.pack(len(body)) + body

    said, replies = ran(path, wire.SESSION, frame(wire.CODE, b"x = 20"), frame(wire.SHOWN, b"x + 1"),
                        frame(wire.CODE, b"y"), frame(wire.CODE, b"print(x)"))

    found = []
    while replies:
        size = wire.HEADER.unpack(replies[:wire.HEADER.size])[0]
        found.append(msgpack.unpackb(replies[wire.HEADER.size:wire.HEADER.size + size]))
        replies = replies[wire.HEADER.size + size:]
    assert [(0, None), (0, "21"), (1, None), (0, None)] == [(each["exit"], each.get("value")) for each in found]
    assert "NameError" == found[2]["error"][0]
    assert said.endswith("20\n") or "20\n" in said


def test_without_one_the_process_says_so(tmp_path: Path) -> None:
    assert ("leeward: the image has no python3, which runs code and kernels; run() starts programs\n", b"") == ran(
        tmp_path, wire.CODE)
    (tmp_path / "python3").write_text("#!/nonexistent\n")
    (tmp_path / "python3").chmod(0o755)

    assert (f"leeward: {tmp_path}/python3: No such file or directory\n", b"") == ran(tmp_path, wire.CODE)


def test_one_that_is_too_old_says_so(tmp_path: Path) -> None:
    """Its version is told by what it runs first."""
    (tmp_path / "python3").write_text("#!/bin/sh\ncode=\"import sys; sys.version_info = (3, 8, 2)\n$2\"\nshift 2\n"
                                      f"exec {os.path.realpath(sys.executable)} -c \"$code\" \"$@\"\n")
    (tmp_path / "python3").chmod(0o755)

    assert ("leeward: the image's Python is 3.8, and code needs 3.9 or newer; run() starts it\n", b"") == ran(
        tmp_path, wire.CODE)
