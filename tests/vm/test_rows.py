"""
The core of the matrix, on kernels that aren't this machine's: guests side by side, and a test for each.

A whole run has one of them, in turn by commit. The rest is `./dev vm`. The long form also makes a guest what Lima makes one.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from kit.beside import TURN
from vm import matrix
from vm.matrix import Ran
from vm.rows import CI, CORE, Row

#: Less than a minute where nothing else runs, and eleven with a seventh of a processor. A guest that hangs is turned off
#: before pytest loses its patience.
GUEST_S = 900
TEST_S = 960
#: Guests at once: each wants a processor.
BESIDE = 2
#: What runs in which, by name.
WANTED: dict[str, tuple[Row, Sequence[str]]] = {row.name: (row, CORE) for row in (
    CI if TURN not in os.environ else CI[int(os.environ[TURN]) % len(CI):][:1])}
if os.environ.get("LEEWARD_LONG"):
    WANTED["lima"] = Row("6.1", systemd=True), (
        "tests/integration/test_installs.py::test_limas_script_makes_a_machine_with_leeward",)


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, tuple[Future[Ran], io.BytesIO]]]:
    """All rows, the slowest first."""
    said = {name: io.BytesIO() for name in WANTED}
    with ThreadPoolExecutor(BESIDE) as threads:
        yield {name: (threads.submit(matrix.run, row, tests, said[name], seconds=GUEST_S, asks=False,
                                     memory=1024 if tests is CORE else 2048), said[name])
               for name, (row, tests) in WANTED.items()}


@pytest.mark.needs("bootable-kernels")
@pytest.mark.timeout(TEST_S)
@pytest.mark.parametrize("name", WANTED)
def test_holds_on(name: str, running: dict[str, tuple[Future[Ran], io.BytesIO]],
                  capfd: pytest.CaptureFixture[str]) -> None:
    """Every test passes there, and each of a driver that is there ran."""
    (row, tests), (future, said) = WANTED[name], running[name]

    ran = future.result()

    text = said.getvalue().decode(errors="replace")
    with capfd.disabled():
        print(f"\n{row.kernel} as {row.way}: {text.strip().splitlines()[-1].strip('= ')}")
    assert 0 == ran.status, text
    assert ran.report is not None, text
    assert ran.report.count("passed") >= len(tests), text
