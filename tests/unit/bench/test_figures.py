"""The table of figures to reach: what counts as met, and how samples are told apart."""

from __future__ import annotations

import pytest

from bench import figures as table
from bench.figures import processes
from bench.figures.row import FigureSettings, Row, in_turn, missing, quotient, times


@pytest.mark.parametrize(("value", "target", "at_most", "met"), [
    (1.4, 1.5, True, True),
    (1.5, 1.5, True, True),
    (1.6, 1.5, True, False),
    (0.6, 0.6, False, True),
    (0.5, 0.6, False, False),
    (None, 1.5, True, None),
    (3.0, None, True, None),
])
def test_a_figure_meets_its_target(value, target, at_most, met):
    assert met is Row("x", value, "x", target, at_most).met


def test_the_text_says_value_target_and_verdict():
    rows = [Row("good", 1.25, "x", 1.5, measured=[times("us", [[0.001, 0.002], [0.003]], 0.005)], note="a remark"),
            Row("bad", 0.3, "x", 0.6, at_most=False, floor=0.7), Row("held", 0.3, "x", 0.6, at_most=False, floor=0.5),
            missing("absent", 2, "no bwrap on the PATH")]
    found = {"leeward": "1", "date": "today", "noise": {"steal": 0.01, "others": 0.2, "noisy": True},
             "machine": {"kernel": "6", "arch": "x86_64", "processors": 2, "python": "3.11", "root": True},
             "figures": [{"group": "g", **row.as_object()} for row in rows]}

    said = table.text(found)

    assert "good: 1.25 x, wanted at most 1.5: met" in said
    assert "bad: 0.3 x, wanted at least 0.6: NOT MET, with a floor of 0.7, 0.43 x of it" in said
    assert "held: 0.3 x, wanted at least 0.6: bound by a floor of 0.5, 0.60 x of it" in said
    assert "absent: -, wanted at most 2: not measured" in said
    assert "not measured: no bwrap on the PATH" in said
    assert "p50 2 ms  p90 3 ms  p99 3 ms  n 3" in said
    assert "The machine was noisy" in said


def test_subjects_take_turns():
    called: list[str] = []

    class Subject:
        def __init__(self, name: str) -> None:
            self.name = name

        def call(self) -> None:
            called.append(self.name)

    found = in_turn([Subject("a"), Subject("b")], rounds=2, calls=2, gap_s=0)

    assert ["a"] * 3 + ["b"] * 3 == called[:6]  # before anything counts
    assert ["b", "b", "a", "a", "a", "a", "b", "b"] == called[6:]
    assert {"a": [2, 2], "b": [2, 2]} == {name: [len(row) for row in rows] for name, rows in found.items()}


def test_a_quotient_is_of_rounds():
    assert 2.0 == quotient([2.0, 20.0, 200.0], [1.0, 10.0, 100.0])


def test_long_turns_have_fewer_rounds_and_one_at_least():
    assert [1, 10, 20] == [FigureSettings(None, rounds).some(10) for rounds in (1, 40, 80)]


#: What perf script prints of two forks and three samples, a stranger's among them.
SCRIPT = """\
python3.11   20 PERF_RECORD_FORK(30:30):(20:20)
python3.11   30 PERF_RECORD_FORK(31:31):(30:30)
python3.11   31 cpu-clock:
\tffffffff81 clear_page ([kernel.kallsyms])
\tffffffff82 exc_page_fault ([kernel.kallsyms])
\tffffffff83 asm_exc_page_fault ([kernel.kallsyms])
\t    55d0 _PyEval ([unknown])

python3.11   20 cpu-clock:
\tffffffff84 copy_page_range ([kernel.kallsyms])
\tffffffff85 __do_sys_clone3 ([kernel.kallsyms])
\tffffffff86 do_syscall_64 ([kernel.kallsyms])

vim   99 cpu-clock:
\tffffffff84 schedule ([kernel.kallsyms])

python   7 cpu-clock:
\t    55d1 _PyEval ([unknown])

"""


def test_samples_belong_to_a_process_and_a_step():
    counted = processes.count(SCRIPT, {7: "daemon", 10: "zygote", 20: "keeper"})

    assert {"runner: page faults": 1, "keeper: clone3(2)": 1, "daemon: its own code": 1} == counted


def test_own_memory_is_read():
    import os

    proportional, private = processes.rollup(os.getpid())

    assert 0 < private <= proportional
