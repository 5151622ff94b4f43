"""What bench/counts.py makes of perf's lines."""

from __future__ import annotations

from bench.counts import count

SCRIPT = """
   swapper     0 PERF_RECORD_FORK(20:20):(10:10)
    python    10 raw_syscalls:sys_enter: NR 435 (1, 2, 3, 4, 5, 6)
    python    20 PERF_RECORD_FORK(30:30):(20:20)
    python    30      page-faults:
    python    30 raw_syscalls:sys_enter: NR 1 (3, 0, 0, 0, 0, 0)
    python    30 raw_syscalls:sys_enter: NR 999 (3, 0, 0, 0, 0, 0)
    python    30      page-faults:
    python    30      page-faults:
    python    99      page-faults:
    python    99 PERF_RECORD_FORK(31:31):(99:99)
    python    31      page-faults:
    python    10      page-faults:
"""


def test_every_event_belongs_to_its_process_and_the_call_before() -> None:
    found = count(SCRIPT.splitlines(), {10: "keeper"}, {1: "write", 435: "clone3"})

    assert {"runner": 3, "keeper": 1} == found.faults
    assert {("keeper", "clone3"): 1, ("runner", "write"): 1, ("runner", "999"): 1} == found.calls
    assert {"clone/0": 1, "999/2": 2} == found.after


def test_threads_are_their_process() -> None:
    assert {} == count(["x 10 PERF_RECORD_FORK(10:11):(10:10)"], {10: "daemon"}, {}).faults


def test_events_that_perf_had_no_room_for_are_noticed() -> None:
    assert not count(SCRIPT.splitlines(), {10: "keeper"}, {}).lost
    assert count([*SCRIPT.splitlines(), "   python  0 PERF_RECORD_LOST lost 17"], {10: "keeper"}, {}).lost
