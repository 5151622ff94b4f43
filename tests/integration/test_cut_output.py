"""Output beyond its limit, where a program has state or files to lose: it goes on, and the middle is left out."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import leeward
from kit.live_daemon import LiveDaemon
from leeward.spec.outcome import Limit, Outcome, Result

LIMIT, FEW = 100_000, 1_000


@pytest.fixture(scope="module")
def live_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "4") as made:
        yield made


@pytest.fixture(scope="module")
def box(live_daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=live_daemon.socket) as made:
        yield made


def is_cut(result: Result, written: int) -> None:
    """*result* went on, and has all of *written* bytes of stdout but what it says."""
    note = b"\n[%d bytes left out]\n" % result.stdout_omitted
    assert (True, Limit.OUTPUT, 0) == (result.truncated, result.limit, result.stderr_omitted)
    assert 1 == result.stdout.count(note)
    assert written == len(result.stdout) - len(note) + result.stdout_omitted
    assert len(result.stdout) - len(note) <= LIMIT


def test_a_kernel_keeps_its_variables(box: leeward.Sandbox) -> None:
    with box.kernel() as kernel:
        kernel.execute("x = 40")
        got = kernel.execute("print('y' * 30_000_000)\nx += 2\nx", output=LIMIT)
        is_cut(got, 30_000_001)

        assert (Outcome.FINISHED, "42", "42") == (got.outcome, got.value, kernel.execute("x").value)


def test_a_session_keeps_its_variables(live_daemon: LiveDaemon) -> None:
    with leeward.Client(live_daemon.socket) as client, client.session(output=LIMIT) as session:
        session.execute("x = 42")
        is_cut(session.execute("print('y' * 3_000_000)"), 3_000_001)
        raised = session.execute("print('y' * 3_000_000)\n1 / 0")
        whole = session.execute("print('y' * 3_000_000)", output=4_000_000)

        assert (Outcome.RAISED, True) == (raised.outcome, "ZeroDivisionError" in raised.stderr_text)
        assert (3_000_001, False, None) == (len(whole.stdout), whole.truncated, whole.limit)
        assert b"42\n" == session.execute("print(x)").stdout
        assert Outcome.OUTPUT_LIMIT is session.execute("print('y' * 3_000_000)", overflow="end").outcome
        with pytest.raises(leeward.SessionOver, match="output limit"):
            session.execute("print(x)")


@pytest.mark.parametrize("stream", ["result", "as it comes", "started"])
def test_a_program_goes_on(box: leeward.Sandbox, stream: str) -> None:
    """With its output in the result, told as it comes, or read in chunks."""
    line, said = "yes | head -c 3000000; echo last; echo why >&2; touch done", list[bytes]()
    if "result" == stream:
        got = box.shell(line, output=LIMIT)
    elif "as it comes" == stream:
        got = box.shell(line, output=LIMIT, on_stdout=said.append)
        assert got.stdout == b"".join(said)
    else:
        got = box.start(line, output=LIMIT).result()
    is_cut(got, 3_000_005)

    assert (0, b"why\n", True) == (got.exit_code, got.stderr, got.stdout.endswith(b"y\nlast\n"))
    assert box.files.exists("done")
    box.files.remove("done")


def test_code_in_a_fresh_interpreter_of_a_sandbox_goes_on(box: leeward.Sandbox) -> None:
    is_cut(box.execute("print('y' * 3_000_000)", output=LIMIT), 3_000_001)


def test_a_fresh_job_is_ended_unless_it_asks(live_daemon: LiveDaemon) -> None:
    with leeward.Client(live_daemon.socket) as client:
        ended = client.execute("print('y' * 3_000_000)", output=LIMIT)
        is_cut(client.execute("print('y' * 3_000_000)", output=LIMIT, overflow="cut"), 3_000_001)
        with pytest.raises(leeward.RequestRejected, match="overflow must be cut or end"):
            client.execute("1", overflow="stop")

    assert (Outcome.OUTPUT_LIMIT, 153, LIMIT, 0) == (
        ended.outcome, ended.exit_code, len(ended.stdout), ended.stdout_omitted)


@pytest.mark.parametrize("code", ["while True: print('spam' * 100)", "while True: print('x')"])
def test_endless_output_ends_at_its_time_limit(live_daemon: LiveDaemon, box: leeward.Sandbox, code: str) -> None:
    """The daemon serves others meanwhile, and doesn't grow. A busy machine, too, writes a few bytes in that time."""
    with leeward.Client(live_daemon.socket) as client, client.session(output=FEW) as session:
        session.execute("x = 42")
        for got in (session.execute(code, timeout=1.0), box.run(["python3", "-c", code], timeout=1.0, output=FEW)):
            assert (Outcome.TIMED_OUT, Limit.TIME, True) == (got.outcome, got.limit, got.truncated)
            assert got.duration < 30
        assert b"42\n" == session.execute("print(x)").stdout
        flooding = box.start(["python3", "-c", code], timeout=60.0, output=FEW)
        began = time.monotonic()
        for _ in range(20):
            assert client.execute("1").ok
        spent = time.monotonic() - began
        flooding.kill()

    assert spent < 20


# --- what a program has written before its time limit -----------------------------------

#: Programs that write a line, and then wait for longer than their time limit.
WAITING: dict[str, list[str]] = {
    "python": ["python3", "wait.py"],
    "a shell": ["sh", "-c", "python3 wait.py"],
    "a shell that has a child": ["sh", "-c", "python3 wait.py; true"],
    "subprocess": ["python3", "-c", "import subprocess; subprocess.run(['python3', 'wait.py'])"],
    "a pipeline": ["sh", "-c", "python3 wait.py | cat"],
}
WAIT = "import time\nprint('epoch 1')\ntime.sleep(1000)\n"


@pytest.mark.parametrize("what", WAITING)
def test_what_was_printed_before_the_time_limit_is_in_the_result(box: leeward.Sandbox, what: str) -> None:
    box.files.write("wait.py", WAIT)
    got = box.run(WAITING[what], timeout=2.0)

    assert (Outcome.TIMED_OUT, b"epoch 1\n") == (got.outcome, got.stdout)


def test_code_whose_child_waits_has_the_childs_output(box: leeward.Sandbox) -> None:
    box.files.write("wait.py", WAIT)
    got = box.execute("import subprocess; subprocess.run(['python3', 'wait.py'])", timeout=2.0)

    assert (Outcome.TIMED_OUT, b"epoch 1\n") == (got.outcome, got.stdout)


def test_a_request_can_unset_it(box: leeward.Sandbox, tmp_path: Path) -> None:
    """As outside, where Python collects output for a pipe."""
    script = tmp_path / "wait.py"
    script.write_text(WAIT)
    with pytest.raises(subprocess.TimeoutExpired) as outside:
        subprocess.run([sys.executable, script], capture_output=True, timeout=2.0, env={})
    box.files.write("wait.py", WAIT)

    assert not outside.value.stdout
    assert b"" == box.run(["python3", "wait.py"], timeout=2.0, env={"PYTHONUNBUFFERED": ""}).stdout


def test_a_pipes_last_bytes_are_in_the_result(box: leeward.Sandbox) -> None:
    """A pipe's full content, of a program that is killed."""
    got = box.shell("head -c 65536 /dev/zero | tr '\\0' x; echo; exec sleep 1000", timeout=1.0)

    assert (Outcome.TIMED_OUT, 65537) == (got.outcome, len(got.stdout))


def test_text_of_chunks_has_whole_characters(box: leeward.Sandbox) -> None:
    process = box.start(["python3", "-c", "print('€' * 400_000)"])

    assert "€" * 400_000 + "\n" == "".join(chunk.text for chunk in process)
