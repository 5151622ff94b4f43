"""Output of a job is passed to the caller's functions while the job runs: jobs, sessions, kernels, by both clients."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import leeward
from kit.live_daemon import PATIENCE, LiveDaemon
from leeward.errors import RequestRejected
from leeward.spec.outcome import Result

#: Goes on only when its first lines have arrived.
CODE = """
import sys
print("first")
print("of stderr", file=sys.stderr)
display("shown")
arrived()
print("second")
display("shown as well")
"""

DAEMON = ("--pool-size", "3")


class Heard:
    """What has arrived; *all_of_it* is called when each stream has its first bytes, and something was shown."""

    def __init__(self, all_of_it: Callable[[], object]) -> None:
        self.out, self.err = bytearray(), bytearray()
        self.results: list[Any] = []
        self._all_of_it = all_of_it

    def options(self) -> dict[str, Any]:
        return {"on_stdout": self._out, "on_stderr": self._err, "on_result": self._result, "display": True}

    def _out(self, data: bytes) -> None:
        self.out += data
        self._look()

    def _err(self, data: bytes) -> None:
        self.err += data
        self._look()

    def _result(self, forms: Any) -> None:
        self.results.append(forms)
        self._look()

    def _look(self) -> None:
        if self.out and self.err and self.results:
            self._all_of_it()

    def check(self, result: Result) -> None:
        assert (b"first\nsecond\n", b"of stderr\n") == (bytes(self.out), bytes(self.err)), result
        assert (bytes(self.out), bytes(self.err)) == (result.stdout, result.stderr)
        assert ["'shown'", "'shown as well'"] == [each["text/plain"] for each in self.results]
        assert self.results == list(result.results)


@pytest.mark.parametrize("way", ["job", "session", "kernel", "branch", "fresh"])
def test_output_arrives_while_the_job_runs(daemon: LiveDaemon, way: str) -> None:
    event = threading.Event()
    heard = Heard(event.set)

    def arrived() -> None:
        assert event.wait(PATIENCE)

    with (daemon.client() as client, client.session() as session, leeward.Sandbox(socket=daemon.socket) as box,
          box.kernel() as kernel):
        ways: dict[str, Any] = {"job": client, "session": session, "kernel": kernel, "branch": kernel.fork(), "fresh": box}
        execute = ways[way].execute
        heard.check(execute(CODE, functions={"arrived": arrived}, **heard.options()))
        assert b"1\n" == execute("print(1)").stdout


@pytest.mark.parametrize("way", ["job", "session", "kernel", "fresh"])
def test_so_it_does_with_asyncio(daemon: LiveDaemon, way: str) -> None:
    async def test() -> None:
        event = asyncio.Event()
        heard = Heard(event.set)

        async def arrived() -> None:
            await asyncio.wait_for(event.wait(), PATIENCE)

        async with (leeward.AsyncClient(daemon.socket) as client, client.session() as session,
                    leeward.AsyncSandbox(socket=daemon.socket) as box, await box.kernel() as kernel):
            ways: dict[str, Any] = {"job": client, "session": session, "kernel": kernel, "fresh": box}
            execute = ways[way].execute
            heard.check(await execute(CODE, functions={"arrived": arrived}, **heard.options()))
            assert b"1\n" == (await execute("print(1)")).stdout

    asyncio.run(test())


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_without_functions_of_the_jobs_all_of_the_output_arrives_once(daemon: LiveDaemon, size: int) -> None:
    pieces: list[bytes] = []
    code = f"import time\nfor _ in range(4): print('x' * {size // 4}, flush=True); time.sleep(0.05)"
    with daemon.client() as client:
        result = client.execute(code, output="8M", on_stdout=pieces.append)

    assert result.ok
    assert b"".join(pieces) == result.stdout
    assert len(pieces) > 1


def test_of_output_that_is_cut_what_the_result_has_arrives(daemon: LiveDaemon) -> None:
    pieces: list[bytes] = []
    with daemon.client() as client, client.session(output=10_000) as session:
        result = session.execute("import time\nfor n in range(100): print(n, 'x' * 1000, flush=True); time.sleep(0.005)",
                                 on_stdout=pieces.append)

    assert result.truncated
    assert b"bytes left out" in result.stdout
    assert b"".join(pieces) == result.stdout


def test_many_results_arrive_in_order_and_large_ones_at_the_end(daemon: LiveDaemon) -> None:
    """And a job can't name the function, nor is it left in a session."""
    results: list[Any] = []
    code = """
for number in range(70):
    display({"text/html": str(number) if number != 40 else "x" * 600_000}, raw=True)
"""
    with daemon.client() as client, client.session() as session:
        result = session.execute(code, display=True, on_result=results.append)
        assert list(result.results) == results
        assert [str(number) for number in range(40)] == [each["text/html"] for each in results[:40]]
        assert b"False False\n" == session.execute(
            "import builtins\nprint('_leeward_shown' in globals(), hasattr(builtins, '_leeward_shown'))",
            display=True, on_result=results.append).stdout
    assert 64 == len(results)


def test_an_exception_of_a_function_is_raised_at_the_end(daemon: LiveDaemon) -> None:
    """The job goes on, and no function is called again; nor is the state of a session lost."""
    called: list[bytes] = []

    def fails(data: bytes) -> None:
        called.append(data)
        raise ZeroDivisionError("mine")

    with daemon.client() as client, client.session() as session:
        with pytest.raises(ZeroDivisionError, match="mine"):
            session.execute("import time\nx = 6\nprint(1)\ntime.sleep(0.2)\nprint(2)\nx = 7", on_stdout=fails)
        assert b"7\n" == session.execute("print(x)").stdout
        with pytest.raises(RequestRejected, match="on_stderr is str, which can't be called"):
            client.execute("1", on_stderr="no")  # type: ignore[arg-type]  # on purpose
    assert 1 == len(called)
