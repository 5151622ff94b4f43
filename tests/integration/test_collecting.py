"""What a job's files look like to its client: names in, files out, and what is said of those that stay behind."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon
from leeward import LeftOut, LeftOutReason, Outcome
from leeward.daemon.run.execution import COLLECT_S

DAEMON = ("--pool-size", "2")


def reasons(result: leeward.Result) -> dict[str, LeftOutReason]:
    return {one.name: one.reason for one in result.left_out}


MAKE = """
import os
os.makedirs('out/.h/deep')
for name in ('out/a.txt', 'out/.h/deep/b', '.env', 'p.png', 'q.csv', 'b\\n.png'):
    open(name, 'w').write(name)
os.symlink('p.png', 'l.png')
os.mkfifo('f.png')
os.mkdir('d.png')
"""


@pytest.mark.smoke
def test_folders_braces_dots_and_absolute_names(client: leeward.Client) -> None:
    """All of them in one request, and a reason for all that stays."""
    result = client.execute(MAKE, collect=["*.{png,csv}", "/workspace/out", "./.env", "nix"],
                            files={"/workspace/in/z": "é", "./y": b"y"})

    assert result.ok
    assert {"p.png": b"p.png", "q.csv": b"q.csv", "out/a.txt": b"out/a.txt", "out/.h/deep/b": b"out/.h/deep/b",
            ".env": b".env"} == dict(result.files)
    assert {"b\\n.png": "name", "d.png": "folder", "f.png": "special", "l.png": "link", "nix": "no_match"} == \
        reasons(result)
    everything = client.execute(MAKE, collect=["/workspace"], files={"in/z": "é"})
    assert "é".encode() == everything.files["in/z"]
    assert {*result.files, "in/z"} == set(everything.files)
    assert {"b\\n.png", "f.png", "l.png"} == set(reasons(everything))


def test_hidden_files_are_reported_as_left_out(client: leeward.Client) -> None:
    """A pattern doesn't name them; the pattern with a dot does."""
    result = client.execute(MAKE, collect=["**/*.txt", "*"])

    assert LeftOutReason.HIDDEN is reasons(result)[".env"]
    assert ".env" in client.execute(MAKE, collect=[".*"]).files


@pytest.mark.parametrize("code", ["import time; time.sleep(60)", "while True: pass",
                                  "import threading; threading.Event().wait()",
                                  "import subprocess; subprocess.run(['sleep', '60'])",
                                  "print('x' * 70_000)\nwhile 1: pass",
                                  "import sys\nwhile True: sys.stdout.write('')"])
def test_files_come_back_after_a_time_out(client: leeward.Client, code: str) -> None:
    """Soon, and with the output."""
    program = f"open('made', 'w').write('x' * 100_000); print('before')\n{code}"
    start = time.monotonic()
    result = client.execute(program, timeout=0.5, collect=["*", "not"])

    assert (Outcome.TIMED_OUT, 124, leeward.Limit.TIME) == (result.outcome, result.exit_code, result.limit)
    assert {"made": b"x" * 100_000} == dict(result.files)
    assert (LeftOut("not", LeftOutReason.NO_MATCH),) == result.left_out
    assert result.stdout.startswith(b"before\n")
    assert time.monotonic() - start < PATIENCE
    assert client.execute("print(1)", collect=["*"]).ok


@pytest.mark.parametrize(("code", "outcome"), [
    ("import signal; signal.signal(signal.SIGSTKFLT, signal.SIG_IGN)\nwhile True: pass", Outcome.TIMED_OUT),
    ("import signal; signal.signal(signal.SIGSTKFLT, signal.SIG_DFL)\nwhile True: pass", Outcome.TIMED_OUT),
    ("import signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", Outcome.TIMED_OUT),
    ("import re; re.match('(a*)*b', 'a' * 40)", Outcome.TIMED_OUT),  # in C, which looks at no signal for a while
    ("import os; os._exit(3)", Outcome.FINISHED),
    ("import os; os.kill(os.getpid(), 11)", Outcome.SIGNALLED),
    ("import os\nwhile True: os.write(1, b'x' * 4096)", Outcome.OUTPUT_LIMIT),
])
def test_a_result_says_why_a_dead_job_has_no_files(client: leeward.Client, code: str, outcome: Outcome) -> None:
    """With the daemon's own word for the job's end. No job that times out ends by itself."""
    result = client.execute(f"open('made', 'w').write('x')\n{code}", timeout=0.3, output="1M", collect=["made", "*"])

    assert outcome is result.outcome
    if not result.files:  # re looks for signals now and then, and may have been in time
        assert {"made": LeftOutReason.ENDED, "*": LeftOutReason.ENDED} == reasons(result)


def test_a_job_without_collect_gets_no_more_time(client: leeward.Client) -> None:
    """The control of the half second: it isn't asked, by the signal that asks."""
    code = "import signal; signal.signal(signal.SIGSTKFLT, lambda *_: print('asked'))\nwhile True: pass"
    without, with_some = (client.execute(code, timeout=0.3, collect=patterns) for patterns in ([], ["*"]))

    assert (False, True) == ("asked" in without.text, "asked" in with_some.text)
    assert with_some.duration >= 0.3 + COLLECT_S


def test_a_child_that_inherits_the_handler_isnt_asked(client: leeward.Client) -> None:
    """Whoever sends the signal to a child of the job's ends that child, as if there were no handler."""
    program = """
import os, signal, time
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, b'1')  # a signal that comes earlier is lost: CPython drops those that wait in a new child
    time.sleep(60)
os.read(read, 1)
os.kill(child, signal.SIGSTKFLT)
print(os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
    result = client.execute(program, collect=["*"])

    assert (b"16\n", {}, True) == (result.stdout, dict(result.files), result.ok)


def test_a_session_collects_the_same(client: leeward.Client) -> None:
    """Each of its jobs."""
    with client.session() as session:
        result = session.execute(MAKE, collect=["*.{png,csv}", "out/"])

        assert {"p.png", "q.csv", "out/a.txt", "out/.h/deep/b"} == set(result.files)
        assert "special" == reasons(result)["f.png"]
        assert () == session.execute("1").left_out


def test_an_operator_bounds_the_files(tmp_path: Path) -> None:
    """`max_collected`; the others are named."""
    config = tmp_path / "c.toml"
    config.write_text("max_collected = 3\n")
    config.chmod(0o600)
    with LiveDaemon(tmp_path, "--pool-size", "1", "--config", str(config)) as daemon:
        async def main() -> leeward.Result:
            async with leeward.AsyncClient(str(daemon.socket)) as client:
                return await client.execute("for i in range(5): open(str(i), 'w').close()", collect=["*"])

        result = asyncio.run(main())

    assert {"0", "1", "2"} == set(result.files)
    assert {"3": LeftOutReason.TOO_MANY, "4": LeftOutReason.TOO_MANY} == reasons(result)


def test_large_files_come_with_a_list(client: leeward.Client) -> None:
    """By a memory file; pickled and copied, too."""
    import copy
    import pickle

    result = client.execute("open('a', 'wb').write(bytes(3 << 20))", collect=["a", "b"])

    assert 3 << 20 == len(result.files["a"])
    for other in (copy.copy(result), pickle.loads(pickle.dumps(result))):
        assert (result.left_out, 3 << 20) == (other.left_out, len(other.files["a"]))
