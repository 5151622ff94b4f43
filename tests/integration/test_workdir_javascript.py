"""
JavaScript in a work folder: a real Node, confined and bounded like everything else.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator

import pytest

import leeward
from kit.javascript_cases import CASES, JS_FILES
from kit.live_daemon import LiveDaemon

pytestmark = pytest.mark.needs("usr-node")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), "--pool-size", "4") as made:
        yield made


@pytest.fixture(scope="module")
def work(daemon: LiveDaemon) -> Iterator[leeward.WorkdirSandbox]:
    with (tempfile.TemporaryDirectory(prefix="lw-workdir-") as folder,
          leeward.WorkdirSandbox(folder, env_vars={"GIVEN": "yes"}, cpu=5, socket=daemon.socket) as work):
        for name, content in JS_FILES.items():
            work.write_file(name, content)
        yield work


@pytest.mark.parametrize("name", CASES)
def test_node_does_what_the_table_says(work: leeward.WorkdirSandbox, name: str) -> None:
    """
    By its status, and by what it prints. No system call of it is refused.
    """
    case = CASES[name]
    got = work.exec_js(case.code) if case.args is None else work.exec("node", case.args)

    assert case.status == got.exit_code, got.stderr_text
    assert re.fullmatch(case.says, got.text), got.text
    assert re.search(case.error, got.stderr_text), got.stderr_text
    assert case.error or not got.stderr_text
    assert not got.denied


def test_an_endless_loop_is_a_timeout(daemon: LiveDaemon) -> None:
    """
    Of time, or of the processor's time where that is shorter.
    """
    for limits, limit in (({"timeout": 0.5}, leeward.Limit.TIME), ({"cpu": 0.5}, leeward.Limit.CPU)):
        with (tempfile.TemporaryDirectory() as folder,
              leeward.WorkdirSandbox(folder, socket=daemon.socket, **limits) as work):  # type: ignore[arg-type]
            with pytest.raises(leeward.Timeout) as caught:
                work.exec_js("console.log('begun'); for (;;);")
            assert limit is caught.value.limit


@pytest.mark.parametrize("code", [
    "const a = []; for (;;) a.push(new Array(1e4).fill(1.5))",  # the heap, bit by bit
    "const a = []; for (;;) a.push(Buffer.alloc(1e6, 1))",      # beside the heap
    "new Array(9e7).fill(1.5)",                                 # the heap, at once
    "let s = 'x'.repeat(1 << 20); const a = []; for (;;) a.push([...s])",
])
def test_too_much_memory_is_out_of_memory(daemon: LiveDaemon, code: str) -> None:
    """
    And no abort, nor a core file; the next code runs.
    """
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="192M", timeout=120, socket=daemon.socket) as work):
        got = work.exec_js(code)
        assert (leeward.Outcome.OUT_OF_MEMORY, leeward.Limit.MEMORY, 137) == (got.outcome, got.limit, got.exit_code)
        assert [] == work.list_dir()
        assert "1\n" == work.exec_js("console.log(1)").text


def test_most_of_the_memory_is_there_for_the_heap(daemon: LiveDaemon) -> None:
    """
    What is kept and fits is no reason to run out of it.
    """
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="256M", socket=daemon.socket) as work):
        got = work.exec_js("const kept = []; for (let i = 0; i < 120; i++) kept.push(new Array(1 << 17).fill(1.5));"
                           " console.log(kept.length)")
    assert ("120\n", 0) == (got.text, got.exit_code), got


def test_garbage_is_no_reason_to_run_out_of_memory(daemon: LiveDaemon) -> None:
    """
    A heap that may be as large as all of the memory is collected before it is.
    """
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="192M", socket=daemon.socket) as work):
        got = work.exec_js("const kept = []; for (let i = 0; i < 5e5; i++) kept.push({i}); let gone;"
                           " for (let i = 0; i < 2e7; i++) gone = {i}; console.log(kept.length)")
    assert ("500000\n", 0) == (got.text, got.exit_code), got
