"""JavaScript in a work folder: a real Node, confined and bounded like everything else."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator

import pytest

import leeward
from kit.growth import anonymous, least_growth
from kit.javascript_cases import CASES, JS_FILES, SEEN
from kit.live_daemon import LiveDaemon
from kit.waiting import poll_until

pytestmark = pytest.mark.needs("usr-node")

DAEMON = ("--pool-size", "4")


@pytest.fixture(scope="module")
def work(daemon: LiveDaemon) -> Iterator[leeward.WorkdirSandbox]:
    with (tempfile.TemporaryDirectory(prefix="lw-workdir-") as folder,
          leeward.WorkdirSandbox(folder, env_vars={"GIVEN": "yes"}, cpu=5, socket=daemon.socket) as work):
        for name, content in JS_FILES.items():
            work.write_file(name, content)
        yield work


#: Prints /proc/PID/cmdline of each Node that waits for its code.
WAITING = "grep -ls 'warm.cj[s]' /proc/[0-9]*/cmdline; :"


def one_waits(work: leeward.WorkdirSandbox) -> str:
    """The one Node of *work* that waits, once it is there."""
    found: list[str] = []

    def there() -> bool:
        found[:] = work.exec("sh", ["-c", WAITING]).text.split()
        return bool(found)

    poll_until(there, "a Node that waits")
    assert 1 == len(found)
    return found[0].split("/")[2]


@pytest.mark.parametrize("name", CASES)
def test_node_behaves_as_the_table_says(work: leeward.WorkdirSandbox, name: str) -> None:
    """
    By its status, and by what it prints, in a Node that is started for it and in one that has waited. No system call of
    it is refused.
    """
    case = CASES[name]
    if case.args is not None:
        results = [work.exec("node", case.args)]
    else:
        results = [work.exec("node", ["-e", case.code])]
        work.exec_js("")
        one_waits(work)
        results.append(work.exec_js(case.code))

    for got in results:
        assert case.status == got.exit_code, got.stderr_text
        assert re.fullmatch(case.says, got.text), got.text
        assert re.search(case.error, got.stderr_text), got.stderr_text
        assert case.error or not got.stderr_text
        assert not got.denied


@pytest.mark.parametrize("name", SEEN)
def test_a_node_that_waited_is_no_other(work: leeward.WorkdirSandbox, name: str) -> None:
    """Whatever a program can see, and whatever Node writes, is the same to the letter but for the process's number."""
    def seen(got: leeward.Result) -> tuple[object, ...]:
        return got.outcome, got.exit_code, got.stdout, re.sub(rb"\(node:\d+\)", b"(node:N)", got.stderr), got.denied

    work.exec_js("")
    one_waits(work)
    waited, fresh = work.exec_js(SEEN[name]), work.exec("node", ["-e", SEEN[name]])

    assert seen(fresh) == seen(waited)


def test_every_code_has_a_node_of_its_own_that_was_started_before(work: leeward.WorkdirSandbox) -> None:
    """Its times and its limits begin with the code: the process is older, and has used more."""
    work.exec_js("globalThis.left = 1; require('./own').left = 1")
    waits = one_waits(work)
    work.exec("sleep", ["0.5"])  # it boots meanwhile
    got = work.exec_js("const { user, system } = process.cpuUsage(); console.log(JSON.stringify([process.pid,"
                       " process.uptime(), user + system, typeof left, require('./own').left]))")
    pid, uptime, used, *left = json.loads(got.text)

    assert (waits, ["undefined", None]) == (str(pid), left)
    assert 0 < got.duration < uptime
    assert 0 < got.cpu_time < used * 1e-6
    assert waits != one_waits(work)


def test_a_node_that_waits_may_be_ended_or_written_to(work: leeward.WorkdirSandbox) -> None:
    """By another command: the next code gets a Node all the same, and nothing of what was written."""
    killed = "kill -9 {0}; while [ -e /proc/{0} ]; do :; done"
    for line in (killed, "echo words >/proc/{0}/fd/1", killed):
        work.exec_js("")
        work.exec("sh", ["-c", line.format(one_waits(work))])
        assert b"1\n" == work.exec_js("console.log(1)").stdout


def test_a_hundred_codes_in_a_row_leave_memory_flat(daemon: LiveDaemon, work: leeward.WorkdirSandbox) -> None:
    """Of the daemon, with its descriptors; and there is one Node that waits, as before."""
    def memory() -> int:
        one_waits(work)
        return anonymous(daemon.process.pid)

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{daemon.process.pid}/fd"))

    def codes(number: int) -> None:
        for each in range(number):
            assert f"{each}\n" == work.exec_js(f"console.log({each})").text

    codes(10)
    one_waits(work)
    held = descriptors()

    assert least_growth(memory, lambda: codes(40)) < 512 << 10
    poll_until(lambda: descriptors() <= held, "a process that has just begun has one more")


def test_a_small_sandbox_has_none_that_waits(daemon: LiveDaemon) -> None:
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="192M", socket=daemon.socket) as work):
        for _ in range(2):
            assert b"1\n" == work.exec_js("console.log(1)").stdout
            assert "" == work.exec("sh", ["-c", WAITING]).text


def test_an_endless_loop_is_a_timeout(daemon: LiveDaemon) -> None:
    """Of time, or of the processor's time where that is shorter."""
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
def test_code_that_takes_too_much_memory_is_out_of_memory(daemon: LiveDaemon, code: str) -> None:
    """And no abort, nor a core file; the next code runs."""
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="192M", timeout=120, socket=daemon.socket) as work):
        got = work.exec_js(code)
        assert (leeward.Outcome.OUT_OF_MEMORY, leeward.Limit.MEMORY, 137) == (got.outcome, got.limit, got.exit_code)
        assert [] == work.list_dir()
        assert "1\n" == work.exec_js("console.log(1)").text


def test_most_of_the_memory_is_there_for_the_heap(daemon: LiveDaemon) -> None:
    """What is kept and fits is no reason to run out of it."""
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="256M", socket=daemon.socket) as work):
        got = work.exec_js("const kept = []; for (let i = 0; i < 120; i++) kept.push(new Array(1 << 17).fill(1.5));"
                           " console.log(kept.length)")
    assert ("120\n", 0) == (got.text, got.exit_code), got


def test_garbage_is_no_reason_to_run_out_of_memory(daemon: LiveDaemon) -> None:
    """A heap that may be as large as all of the memory is collected before it is."""
    with (tempfile.TemporaryDirectory() as folder,
          leeward.WorkdirSandbox(folder, memory="192M", socket=daemon.socket) as work):
        got = work.exec_js("const kept = []; for (let i = 0; i < 5e5; i++) kept.push({i}); let gone;"
                           " for (let i = 0; i < 2e7; i++) gone = {i}; console.log(kept.length)")
    assert ("500000\n", 0) == (got.text, got.exit_code), got
