"""The loop of a kernel, in this process: what cells find there."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from leeward.inside import awaiting, imports, program, showing
from leeward.inside.showing import Showing


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(imports, "_acts", {})
    monkeypatch.setattr(imports, "offers", {})
    for name, value in (("_asyncio", None), ("_loop", None), ("_hooked", False)):
        monkeypatch.setattr(awaiting, name, value)
    for name in ("_get_running_loop", "_set_running_loop"):
        monkeypatch.setattr(asyncio.events, name, getattr(asyncio.events, name))
    monkeypatch.setattr(showing, "_current", None)
    yield
    if awaiting._loop is not None:
        awaiting._loop.close()
    asyncio.set_event_loop(None)


class Cells:
    """The cells of one kernel."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"asyncio": asyncio}

    def __call__(self, code: str, *, goes_on: bool = True) -> str | None:
        made = Showing(goes_on=goes_on)
        made.run(code.encode(), "<cell>", self.names)
        return made.end().value

    def between(self) -> None:
        """As while no cell runs, for as long as the loop has something to do at once."""
        read, write = os.pipe()
        os.write(write, b".")
        try:
            awaiting.turn_until_readable(read)
        finally:
            os.close(read)
            os.close(write)


@pytest.fixture
def cells() -> Cells:
    return Cells()


SLOW = "async def slow(value):\n    await asyncio.sleep(0)\n    return value\n"


@pytest.mark.parametrize("code", [
    "task = asyncio.create_task(slow(7))\nawait task", "await asyncio.ensure_future(slow(7))",
    "await asyncio.get_running_loop().create_task(slow(7))", "(await asyncio.gather(slow(7), slow(8)))[0]",
    "await asyncio.get_running_loop().run_in_executor(None, lambda: 7)", "await asyncio.to_thread(lambda: 7)",
    "future = asyncio.Future()\nfuture.set_result(7)\nawait future",
    "asyncio.current_task().set_name('7')\nawait slow(0)\nint(asyncio.current_task().get_name())",
])
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_cell_with_an_await_is_one_task(cells: Cells, code: str, goes_on: bool) -> None:
    cells(SLOW)

    assert "7" == cells(code, goes_on=goes_on)


@pytest.mark.parametrize("code", [
    "asyncio.run(slow(7))", "asyncio.get_event_loop().run_until_complete(slow(7))",
    "runner.run(slow(7))", "fresh.run_until_complete(slow(7))",
])
def test_a_cell_without_may_run_loops(cells: Cells, code: str) -> None:
    """A notebook refuses it. Before and after, and in the next cell, the loop is the kernel's."""
    cells(SLOW + "loop = asyncio.get_running_loop()\nfresh = asyncio.new_event_loop()\nrunner = asyncio.Runner()")

    assert "7" == cells(code)
    assert "(True, 7, True)" == cells(f"asyncio.get_running_loop() is loop, {code}, asyncio.get_running_loop() is loop")
    assert "True" == cells("await slow(0)\nasyncio.get_running_loop() is loop")
    cells("fresh.close()\nrunner.close()")


def test_a_loop_that_turns_is_not_hidden(cells: Cells) -> None:
    cells(SLOW)

    cells("inner = slow(7)\nasync def twice():\n    asyncio.run(inner)")

    for code in ("await twice()", "asyncio.run(twice())"):
        with pytest.raises(RuntimeError, match="running event loop"):
            cells(code)
    cells("inner.close()")


@pytest.mark.parametrize("make", ["asyncio.create_task", "asyncio.ensure_future", "asyncio.get_event_loop().create_task"])
def test_tasks_live_on(cells: Cells, make: str) -> None:
    """Made in a cell without `await`: into the next cell, or while none runs."""
    cells(f"{SLOW}task = {make}(slow(7))")
    assert "False" == cells("task.done()")
    assert "7" == cells("await task")

    cells(f"task = {make}(slow(8))")
    for _ in range(3):
        cells.between()
    assert "8" == cells("task.result()")


def test_a_job_after_which_nothing_follows_has_no_running_loop(cells: Cells) -> None:
    """Its task would never run."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        cells("asyncio.get_running_loop()", goes_on=False)


def test_asyncio_is_not_imported_for_code_without_it() -> None:
    """And the loop is there as soon as it is."""
    program = """
import sys
from leeward.inside.showing import Showing
for code, there in (b"2 + 2", False), (b"import asyncio\\nassert asyncio.get_running_loop()", True):
    Showing(goes_on=True).run(code, "<cell>", {})
    assert there == ("asyncio" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (0, "") == (done.returncode, done.stderr)


def test_without_descriptors_a_cell_has_no_loop(cells: Cells, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(24, "none left")

    monkeypatch.setattr(asyncio, "SelectorEventLoop", full)

    assert "4" == cells("2 + 2")


def test_another_thread_has_no_loop(cells: Cells) -> None:
    got = cells("import threading\nfound = []\n"
                "one = threading.Thread(target=lambda: found.append(asyncio._get_running_loop()))\n"
                "one.start()\none.join()\nfound")

    assert "[None]" == got


def test_a_closed_loop_has_a_successor(cells: Cells) -> None:
    cells(SLOW + "asyncio.get_running_loop().close()")
    cells.between()

    assert "7" == cells("await slow(7)")


@pytest.fixture
def interrupts() -> Iterator[program.Interrupts]:
    made = program.Interrupts()
    before = signal.signal(signal.SIGINT, made), signal.signal(signal.SIGURG, awaiting.nudged)
    made.on = True
    yield made
    signal.signal(signal.SIGINT, before[0])
    signal.signal(signal.SIGURG, before[1])


def test_an_interrupt_cancels_the_cell_alone(cells: Cells, interrupts: program.Interrupts) -> None:
    cells(SLOW + "import os, signal\n"
          "async def interrupt():\n    os.kill(os.getpid(), signal.SIGINT)\n    await asyncio.sleep(0)\n    return 7")

    with pytest.raises(KeyboardInterrupt):
        cells("task = asyncio.create_task(interrupt())\nawait asyncio.sleep(100)")

    assert "7" == cells("await task")


def test_an_interrupt_is_raised_where_the_cell_computes(cells: Cells, interrupts: program.Interrupts) -> None:
    cells(SLOW + "import os, signal")

    assert "7" == cells("await slow(0)\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n"
                        "except KeyboardInterrupt:\n    got = 7\nawait slow(got)")


def test_a_task_that_keeps_the_loop_is_interrupted_by_the_nudge(cells: Cells, interrupts: program.Interrupts) -> None:
    cells("import os, signal\nother = 7\nasync def keep():\n    os.kill(os.getpid(), signal.SIGINT)\n"
          "    for _ in range(2): os.kill(os.getpid(), signal.SIGURG)\n    while True: pass\n"
          "async def wait(): await asyncio.sleep(100)")

    with pytest.raises(KeyboardInterrupt):
        cells("waits = asyncio.create_task(wait())\nkeeps = asyncio.create_task(keep())\nawait asyncio.sleep(100)")

    assert "(False, True)" == cells("waits.done(), keeps.done()")
    cells("waits.cancel()\nawait asyncio.wait([waits])\nkeeps.exception()")


def test_a_nudge_that_comes_with_the_interrupt_hits_no_other_task(cells: Cells, interrupts: program.Interrupts) -> None:
    """As where the process had no processor meanwhile."""
    cells("import os, signal\nasync def tick():\n    for number in (signal.SIGINT, signal.SIGURG):\n"
          "        os.kill(os.getpid(), number)\n    await asyncio.sleep(0)\n    return 7")

    with pytest.raises(KeyboardInterrupt):
        cells("task = asyncio.create_task(tick())\nawait asyncio.sleep(100)")

    assert "7" == cells("await task")


def test_a_cancellation_of_its_own_is_no_interrupt(cells: Cells) -> None:
    with pytest.raises(asyncio.CancelledError):
        cells("asyncio.current_task().cancel()\nawait asyncio.sleep(0)")


def test_a_branch_has_descriptors_of_its_own(cells: Cells) -> None:
    """Tasks and readers go on in both; neither wakes the other."""
    cells(SLOW + "import os\nread, write = os.pipe()\nseen = []\nloop = asyncio.get_running_loop()\n"
          "loop.add_reader(read, lambda: seen.append(os.read(read, 1)))\n"
          "task = asyncio.create_task(slow(7))\nawait loop.run_in_executor(None, int)")
    child = os.fork()
    if not child:
        try:
            awaiting.separate()
            good = "7" == cells("await task") and "0" == cells("await loop.run_in_executor(None, int)")
            cells("loop.remove_reader(read)")
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert "7" == cells("await task")
    assert "[b'.']" == cells("os.write(write, b'.')\nwhile not seen: await slow(0)\nloop.remove_reader(read)\nseen")


def test_what_leaves_the_interpreter_ends_the_turning(cells: Cells) -> None:
    cells("import sys\nasync def leave(): sys.exit(3)\ntask = asyncio.create_task(leave())")

    with pytest.raises(SystemExit):
        cells.between()

    cells.between()
    cells("task.exception()")
