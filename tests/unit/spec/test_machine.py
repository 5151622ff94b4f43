"""How large a machine seems to a job."""

from __future__ import annotations

import pytest

from leeward.spec import machine
from leeward.spec.limits import Limits
from leeward.spec.machine import Machine


@pytest.mark.parametrize(("cpu", "there", "fixed", "told"), [
    (100, 8, False, 1), (1, 8, False, 1), (101, 8, False, 2), (250, 8, False, 3), (1000, 4, False, 4),
    (250, 8, True, 2), (99, 8, True, 1), (400, 2, True, 2), (100, 1, False, 1),
])
def test_a_job_sees_the_processors_of_its_limit(cpu: int, there: int, fixed: bool, told: int) -> None:
    assert told == machine.processors(Machine(there), Limits(cpu=cpu), fixed=fixed)


@pytest.mark.parametrize("text", ["", "\n", "processor : 0", "\0\n\n\n\n:"])
def test_a_strange_cpuinfo_is_no_error(text: str) -> None:
    machine.proc(Machine(4, text), Limits(), 3)


def test_what_programs_read_beside_the_size_is_zero() -> None:
    """vmstat(8) and psutil look for these names, and psutil for a file system with a device."""
    texts = {text.target: text.content.decode() for text in machine.proc(Machine(), Limits(), 1)}

    counts = dict(line.split() for line in texts["/proc/vmstat"].splitlines())
    assert {"pswpin", "pswpout", "pgpgin", "pgpgout"} < set(counts)
    assert {"0"} == set(counts.values())
    assert {"nodev\ttmpfs", "\text4"} < set(texts["/proc/filesystems"].splitlines())


def test_a_thousand_processors_fit_into_the_plan() -> None:
    """The plan of a worker is one message; what is cut off is whole processors."""
    block = "processor\t: {}\nmodel name\t: one of a thousand\nflags\t\t: " + "x " * 800 + "\n"
    host = Machine(1024, "\n".join(block.format(number) for number in range(1024)))  # 1.6 MB

    texts = {text.target: text.content for text in machine.proc(host, Limits(), 1024)}

    assert 40_000 < len(texts["/proc/cpuinfo"]) <= 48 << 10
    assert texts["/proc/cpuinfo"].endswith(b"\nmodel name\t: one of a thousand\n\n")
    assert 1 == texts["/proc/cpuinfo"].count(b"flags")
    assert sum(map(len, texts.values())) < 100_000
