"""Functions of the client's, called by jobs: every way to run code, over every transport."""

from __future__ import annotations

import asyncio
import os
import runpy
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import leeward
from kit import reactors
from kit.box import Box
from kit.features import ROOT
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.sessions import Wire
from leeward.spec.outcome import Limit, Outcome, Result
from leeward.wire import function_frames

DAEMON, REACTORS = ("--pool-size", "3"), reactors.WAYS


class Odd(Exception):
    """None of Python's own."""


def echo(*args: Any, **named: Any) -> Any:
    return [list(args), named]


def fail(kind: str) -> None:
    raise {"odd": Odd, "value": ValueError, "key": KeyError}[kind](f"by {kind}")


FUNCTIONS: dict[str, Callable[..., Any]] = {"echo": echo, "fail": fail, "strange": object}

ALL = """\
import asyncio, threading
print(echo(1, 'é', b'\\0', n={'a': [None, True, 0.5]}))
for kind in 'value', 'key', 'odd':
    try:
        fail(kind)
    except Exception as error:
        print(type(error).__name__, isinstance(error, RuntimeError), error.args)
for call in (strange, lambda: echo(object()), lambda: echo({1: 2}), lambda: echo(2**64)):
    try:
        call()
    except TypeError as error:
        print('TypeError')
async def main():
    print([got[0] for got in await asyncio.gather(*(echo(number) for number in range(40)))])
    print(echo.wait('here')[0], await asyncio.wait_for(echo(7), 30))
    try:
        await fail('value')
    except ValueError as error:
        print(error)
asyncio.run(main())
got = []
threads = [threading.Thread(target=lambda number=number: got.append(echo(number)[0][0])) for number in range(24)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(got) == list(range(24)))
print(len(echo(b'x' * 400_000)[0][0]))
"""

SAID = f"""\
[[1, 'é', b'\\x00'], {{'n': {{'a': [None, True, 0.5]}}}}]
ValueError False ('by value',)
KeyError False ('by key',)
Odd True ('by odd',)
TypeError
TypeError
TypeError
TypeError
{[[number] for number in range(40)]}
['here'] [[7], {{}}]
by value
True
400000
"""


def check(got: Result) -> None:
    assert (Outcome.FINISHED, SAID, "") == (got.outcome, got.stdout_text, got.stderr_text), (got.error, got.stdout_text)


@pytest.mark.smoke
def test_every_way_to_run_code_calls_functions(daemon: LiveDaemon) -> None:
    """By threads, by asyncio, one after the other; and what they raise comes with its type's name and its text."""
    with daemon.client() as client, leeward.Sandbox(socket=daemon.socket) as box, client.session() as session:
        kernel = box.kernel()
        for execute in (client.execute, session.execute, box.execute, kernel.execute):
            check(execute(ALL, functions=FUNCTIONS))
        assert "[[1], {}]" == kernel.execute("await echo(1)", functions=FUNCTIONS).value
    daemon.idle()


def test_every_way_to_run_code_awaits_functions(daemon: LiveDaemon) -> None:
    """Coroutine functions run in the caller's loop, others in threads."""
    async def later(*args: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return echo(*args, **named)

    async def run() -> None:
        given = {**FUNCTIONS, "echo": later}
        async with leeward.AsyncClient(daemon.socket) as client, leeward.AsyncSandbox(socket=daemon.socket) as box:
            async with client.session() as session:
                kernel = await box.kernel()
                for execute in (client.execute, session.execute, box.execute, kernel.execute):
                    check(await execute(ALL, functions=given))
            both = await asyncio.gather(*(client.execute(f"print(f({number}))", functions={"f": lambda n: n + 1})
                                          for number in range(6)))
            assert [b"1\n", b"2\n", b"3\n", b"4\n", b"5\n", b"6\n"] == [got.stdout for got in both]

    asyncio.run(run())
    daemon.idle()


def test_functions_are_of_one_job_alone(daemon: LiveDaemon) -> None:
    """Their names go with it, and one that was kept can't be called any more; what the job has put there itself stays."""
    with daemon.client() as client, client.session() as session:
        session.execute("kept = f; g = 7", functions={"f": echo, "g": echo})
        got = session.execute("print(g, 'f' in globals())\nkept()")
        assert (b"7 False\n", "RuntimeError") == (got.stdout, got.error and got.error.type)
        assert "is over" in got.stderr_text
        assert b"[[2], {}]\n" == session.execute("print(f(2))", functions={"f": echo}).stdout
    daemon.idle()


def test_a_traceback_ends_at_the_call(daemon: LiveDaemon) -> None:
    """What is below is nobody's concern."""
    with daemon.client() as client:
        got = client.execute("def g():\n    fail('value')\ng()", functions=FUNCTIONS)
    assert got.error is not None
    assert got.stderr_text.endswith("    fail('value')\nValueError: by value\n")
    assert "leeward" not in got.stderr_text


def test_a_call_waits_for_so_long(daemon: LiveDaemon) -> None:
    """Then it raises, and a late answer is dropped; other calls are answered meanwhile."""
    done = threading.Event()
    with daemon.client() as client:
        got = client.execute("try:\n    slow()\nexcept TimeoutError as error:\n    print(error)\nprint(echo(1))",
                             functions={"slow": lambda: done.wait(PATIENCE), "echo": echo}, call_timeout=0.1)
        done.set()
        assert b"no answer within 0.1 s\n[[1], {}]\n" == got.stdout
        assert b"2\n" == client.execute("print(2)").stdout
    daemon.idle()


def test_the_time_limit_runs_on_or_stands_still(daemon: LiveDaemon) -> None:
    """As told; what the job does by itself counts in either case."""
    def slow() -> None:
        time.sleep(0.5)  # time itself is tested: a function that takes longer than the job's limit

    with daemon.client() as client, client.session() as session:
        for execute in (client.execute, session.execute):
            got = execute("slow()", functions={"slow": slow}, timeout=0.3)
            assert (Outcome.TIMED_OUT, Limit.TIME) == (got.outcome, got.limit)
            got = execute("slow()\nslow()\nprint(1)", functions={"slow": slow}, timeout=0.9, stop_clock=True)
            assert (Outcome.FINISHED, b"1\n") == (got.outcome, got.stdout), got
            assert got.duration > 0.95
    with daemon.client() as client:
        got = client.execute("slow()\nwhile True: pass", functions={"slow": slow}, timeout=0.3, stop_clock=True)
        assert (Outcome.TIMED_OUT, Limit.TIME) == (got.outcome, got.limit)
        assert 0.75 < got.duration < 20
    daemon.idle()


def test_an_interrupt_ends_a_call(daemon: LiveDaemon) -> None:
    """And the session goes on, with other calls."""
    called, answer = threading.Event(), threading.Event()

    def slow() -> None:
        called.set()
        answer.wait(PATIENCE)

    with daemon.client() as client, client.session() as session:
        got: list[Result] = []
        thread = threading.Thread(target=lambda: got.append(session.execute("x = 1\nslow()", functions={"slow": slow})))
        thread.start()
        assert called.wait(PATIENCE)
        session.interrupt()
        thread.join(PATIENCE)
        assert got[0].error is not None
        assert "KeyboardInterrupt" == got[0].error.type
        answer.set()
        assert b"[[1], {}]\n" == session.execute("print(echo(x))", functions=FUNCTIONS).stdout
    daemon.idle()


#: The bytes of a call, written by hand: the job pipe is 3, and the reply pipe 4.
BY_HAND = """\
import os, select, signal, struct
def call(number, place=0, body=b'\\x92\\x90\\x80'):
    os.write(4, struct.pack('>IBIB', 6 + len(body), 3, number, place) + body)
"""


def test_a_job_that_has_called_is_not_run_again(daemon: LiveDaemon) -> None:
    """Answers that nobody has read stand in the pipe when it ends, as the code of one that never started would."""
    calls: list[float] = []
    kill = BY_HAND + "call(1)\nselect.select([3], [], [])\nos.kill(os.getpid(), signal.SIGKILL)"
    with daemon.client() as client, leeward.Sandbox(socket=daemon.socket) as box:
        for execute in (client.execute, box.execute):
            calls.clear()
            got = execute(kill, functions={"f": lambda: calls.append(0.0)})
            assert (Outcome.SIGNALLED, 1) == (got.outcome, len(calls))
    daemon.idle()


def test_answers_that_come_behind_the_end_of_a_job_are_not_the_next_ones(daemon: LiveDaemon) -> None:
    """Of a session: what stands in the pipe then is read over."""
    with daemon.client() as client, client.session() as session:
        got = session.execute(BY_HAND + "call(1)\nselect.select([3], [], [])", functions={"f": lambda: b"x" * 200_000})
        assert Outcome.FINISHED is got.outcome
        assert b"3\n" == session.execute("print(3)").stdout
        assert b"[[4], {}]\n" == session.execute("print(echo(4))", functions=FUNCTIONS).stdout
        assert b"5\n" == session.execute("print(5)").stdout
    daemon.idle()


def test_a_child_of_the_job_cannot_call(daemon: LiveDaemon) -> None:
    """It has no thread that would carry its calls."""
    code = ("import os\nprint(echo(1), flush=True)\nif not os.fork():\n    try:\n        echo(2)\n"
            "    except RuntimeError as error:\n        print(error, flush=True)\n    os._exit(0)\nos.wait()")
    with daemon.client() as client:
        got = client.execute(code, functions=FUNCTIONS)
    assert b"[[1], {}]\na client's function can only be called in the job's own process\n" == got.stdout


def test_files_come_back_from_a_late_job_that_calls(daemon: LiveDaemon) -> None:
    """The reply goes by the pipe of the calls."""
    answer = threading.Event()
    with daemon.client() as client:
        got = client.execute("open('a', 'w').write('x')\nslow()", functions={"slow": lambda: answer.wait(PATIENCE)},
                             collect=["a"], timeout=0.5)
        answer.set()
    assert (Outcome.TIMED_OUT, {"a": b"x"}) == (got.outcome, dict(got.files))


def test_a_client_that_goes_takes_its_job_along(daemon: LiveDaemon) -> None:
    """In the middle of a call."""
    reached, answer = threading.Event(), threading.Event()

    def slow() -> None:
        reached.set()
        answer.wait(PATIENCE)

    async def part() -> None:
        async with leeward.AsyncClient(daemon.socket) as client:
            task = asyncio.create_task(client.execute("slow()", functions={"slow": slow}))
            assert await asyncio.to_thread(reached.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            answer.set()
            assert b"1\n" == (await client.execute("print(1)")).stdout

    asyncio.run(part())
    daemon.idle()
    reached.clear()
    answer.clear()
    child = os.fork()
    if not child:
        try:
            leeward.Client(daemon.socket).execute("f()", functions={"f": lambda: os._exit(0)})
        finally:
            os._exit(1)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    daemon.idle()


def test_a_daemon_that_parts_takes_the_answers_to_calls() -> None:
    """The job is to be answered; so its connection is read until it is, and closed then."""
    with Box(pool_size=1, spares=0) as box, Wire(box) as wire:
        peer = wire.peer()
        job = peer.send("execute", code=b"print(f())", functions={"names": ["f"]})
        assert [[1, "f", function_frames.pack_arguments((), {})]] == peer.ask("function_take", target=job)["calls"]
        wire.server.part()
        assert peer.ask("function_answer", target=job, call=1, value=function_frames.pack(7))["taken"]
        assert b"7\n" == peer.wait(job)["ok"]["stdout"]
        wire.until(lambda: not wire.server.connections)


def test_the_example_runs(daemon: LiveDaemon, monkeypatch: pytest.MonkeyPatch,
                          capsys: pytest.CaptureFixture[str]) -> None:
    """Which docs/functions.md shows."""
    monkeypatch.setenv("LEEWARD_SOCKET", str(daemon.socket))
    runpy.run_path(str(ROOT / "examples/functions.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert said.startswith("refused: no notes about 'root'\ndone\n")
    assert "seccomp: A filter for system calls.\n" in said


@pytest.mark.parametrize(("options", "why"), [
    ({"functions": {"a b": echo}}, "name"), ({"functions": {"__f": echo}}, "name"),
    ({"functions": {"class": echo}}, "name"), ({"functions": {"f": 1}}, "can't be called"),
    ({"functions": [echo]}, "dict"), ({"functions": {f"f{n}": echo for n in range(65)}}, "64"),
    ({"functions": {"f": echo}, "call_timeout": 0}, "wait"), ({"functions": {"f": echo}, "call_timeout": 1e9}, "wait"),
    ({"stop_clock": True}, "give functions"), ({"call_timeout": 1}, "give functions")])
def test_an_unsuitable_function_is_refused(daemon: LiveDaemon, options: dict[str, Any], why: str) -> None:
    """Before any code runs."""
    with daemon.client() as client, pytest.raises(leeward.RequestRejected, match=why):
        client.execute("1", **options)


def test_a_module_gets_no_functions_and_a_blocking_client_no_coroutine(daemon: LiveDaemon) -> None:
    """There is no code in which their names would be, and no loop."""
    async def coroutine() -> None:
        return

    with daemon.client() as client:
        with pytest.raises(leeward.RequestRejected, match="module"):
            client.execute(module="json", functions=FUNCTIONS)
        with pytest.raises(leeward.RequestRejected, match="AsyncClient"):
            client.execute("1", functions={"f": coroutine})
