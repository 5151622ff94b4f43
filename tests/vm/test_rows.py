"""
The core of the matrix, on kernels that aren't this machine's: guests side by side, and a test for each.

A whole run has one of them, in turn by commit. The rest is `./dev vm`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
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
ROWS = CI if TURN not in os.environ else CI[int(os.environ[TURN]) % len(CI):][:1]


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, tuple[Future[Ran], io.BytesIO]]]:
    """All rows, the slowest first."""
    said = {row.name: io.BytesIO() for row in ROWS}
    with ThreadPoolExecutor(BESIDE) as threads:
        yield {row.name: (threads.submit(matrix.run, row, CORE, said[row.name], seconds=GUEST_S, asks=False,
                                         memory=1024), said[row.name]) for row in ROWS}


@pytest.mark.needs("bootable-kernels")
@pytest.mark.timeout(TEST_S)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_holds_on(row: Row, running: dict[str, tuple[Future[Ran], io.BytesIO]],
                  capfd: pytest.CaptureFixture[str]) -> None:
    """Every test of the core passes there, and each of a driver that is there ran."""
    future, said = running[row.name]

    ran = future.result()

    text = said.getvalue().decode(errors="replace")
    with capfd.disabled():
        print(f"\n{row.kernel} as {row.way}: {text.strip().splitlines()[-1].strip('= ')}")
    assert 0 == ran.status, text
    assert ran.report is not None, text
    assert ran.report.count("passed") >= len(CORE), text
