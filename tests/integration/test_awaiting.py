"""asyncio in kernels: one loop for all cells, and in branches a loop of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import leeward
from kit import reactors
from kit.live_daemon import PATIENCE, LiveDaemon
from kit.waiting import poll_until
from leeward.spec.outcome import Outcome

DAEMON, REACTORS = ("--pool-size", "3"), reactors.WAYS
SLOW = "import asyncio\nasync def slow(value, seconds=0.01):\n    await asyncio.sleep(seconds)\n    return value\n"


@pytest.fixture
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    with leeward.Sandbox(socket=daemon.socket) as made:
        yield made


def value(kernel: leeward.Kernel, code: str) -> str | None:
    got = kernel.execute(code, display=True)
    assert got.ok, got.stderr_text
    return got.value


def test_as_in_a_notebook(box: leeward.Sandbox) -> None:
    with box.kernel() as kernel:
        value(kernel, SLOW)
        assert "1" == value(kernel, "task = asyncio.create_task(slow(1))\nawait task")
        assert "2" == value(kernel, "await asyncio.ensure_future(slow(2))")
        assert "3" == value(kernel, "await asyncio.get_running_loop().run_in_executor(None, lambda: 3)")
        assert "4" == value(kernel, "asyncio.run(slow(4))")
        value(kernel, "loop = asyncio.get_running_loop()\nlives_on = asyncio.create_task(slow(5))")
        assert "5" == value(kernel, "await lives_on")
        assert "True" == value(kernel, "await slow(0)\nasyncio.get_running_loop() is loop")
        assert "'out'" == value(kernel, "child = await asyncio.create_subprocess_exec('echo', 'out', stdout=-1)\n"
                                        "(await child.communicate())[0].decode().strip()")


def test_tasks_go_on_between_two_cells(box: leeward.Sandbox) -> None:
    """What they print, and an exception that nobody takes, belong to the next cell."""
    with box.kernel() as kernel:
        value(kernel, SLOW + """
import os
async def write():
    while not os.path.exists("go"):
        await slow(0)
    print("said")
    with open("written", "w"):
        pass
    1 / 0
await slow(0)
tasks = {asyncio.create_task(write())}
next(iter(tasks)).add_done_callback(tasks.discard)
""")
        box.files.write("go", b"")
        poll_until(lambda: box.files.exists("written"), "the task doesn't go on")
        got = kernel.execute("import gc\nlen(tasks), (gc.collect(), None)[1]")
        assert (True, "said\n", "(0, None)") == (got.ok, got.stdout_text, got.value)
        assert "Task exception was never retrieved" in got.stderr_text
        assert "ZeroDivisionError" in got.stderr_text
        assert "leeward" not in got.stderr_text


def test_an_interrupt_ends_the_cell_and_its_tasks_live(box: leeward.Sandbox) -> None:
    with box.kernel() as kernel:
        value(kernel, SLOW + "ticks = 0\nasync def tick():\n    global ticks\n    while True:\n        ticks += 1\n"
                             "        await asyncio.sleep(0)\nticking = asyncio.create_task(tick())")
        got: list[leeward.Result] = []
        waits = threading.Thread(target=lambda: got.append(kernel.execute("open('waits', 'w')\nawait slow(0, 1000)")))
        waits.start()
        poll_until(lambda: box.files.exists("waits"), "the cell never ran")
        assert kernel.interrupt()
        waits.join(PATIENCE)
        assert got[0].error is not None
        assert ("KeyboardInterrupt", False) == (got[0].error.type, "leeward" in got[0].error.traceback)
        assert "await slow(0, 1000)" in got[0].error.traceback
        late = kernel.execute("await slow(0, 1000)", timeout=0.3)
        assert Outcome.TIMED_OUT is late.outcome
        assert "(False, True)" == value(kernel, "before = ticks\nawait slow(0)\nticking.done(), ticks > before")


def test_a_task_that_keeps_the_loop_ends_at_the_time_limit_and_the_state_stays(box: leeward.Sandbox) -> None:
    with box.kernel() as kernel:
        value(kernel, SLOW + "x = 7\nasync def keep():\n    while True: pass")

        late = kernel.execute("kept = asyncio.create_task(keep())\nawait slow(0)", timeout=0.3)

        assert Outcome.TIMED_OUT is late.outcome
        assert "7" == value(kernel, "x")


def test_a_branch_has_the_tasks_and_a_loop_of_its_own(box: leeward.Sandbox) -> None:
    """Neither wakes the other."""
    with box.kernel() as kernel:
        value(kernel, SLOW + "task = asyncio.create_task(slow('mine', 0.1))\nawait asyncio.to_thread(int)")
        with kernel.fork() as branch, branch.fork() as twig:
            for one in (twig, branch, kernel):
                assert "'mine'" == value(one, "await task")
                assert "3" == value(one, "await asyncio.to_thread(lambda: 3)")
                assert "4" == value(one, "again = asyncio.create_task(slow(4))\nawait again")


def test_a_session_that_displays_has_the_same_loop(daemon: LiveDaemon) -> None:
    """A job without `display` is as `python3` runs it, and the tasks of the others go on meanwhile, where it is over."""
    with daemon.client() as client, client.session() as session:
        assert session.execute(SLOW + "async def main(): print(await slow(1))\nasyncio.run(main())").ok
        assert session.execute("task = asyncio.create_task(slow(2))", display=True).ok
        refused = session.execute("asyncio.get_running_loop()")
        assert refused.error is not None
        assert "RuntimeError" == refused.error.type
        assert "2" == session.execute("await task", display=True).value
        assert "5" == client.execute(f"{SLOW}task = asyncio.create_task(slow(5))\nawait task", display=True).value


def test_functions_of_the_clients_wait_in_a_cell_that_doesnt_await(box: leeward.Sandbox) -> None:
    with box.kernel() as kernel:
        value(kernel, "import asyncio")
        assert "7" == kernel.execute("seven()", functions={"seven": lambda: 7}).value
        assert "7" == kernel.execute("await seven()", functions={"seven": lambda: 7}).value
