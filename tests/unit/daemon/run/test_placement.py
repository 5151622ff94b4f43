"""The threshold between a reply and a memory file is decided once: Python, C and the documents have the same."""

from __future__ import annotations

import inspect
import re

import pytest

from kit.features import ROOT
from leeward.daemon.run import output, report
from leeward.daemon.run.output import Output
from leeward.daemon.run.report import INLINE, LARGE_REPLY, PLACEMENTS, SHORT_OUTPUT, inline_bytes
from leeward.daemon.sandboxes import streams
from leeward.daemon.serving import sandbox_calls
from leeward_cli.options import DAEMON

SHIM = ROOT / "leeward" / "_native" / "src"
NAMES = {"INLINE", "SHORT_OUTPUT", "LARGE_REPLY"}


def test_the_default_is_one_number() -> None:
    """Of a job, of a process of a sandbox, of a fetch, and of what counts while a client leaves it unread."""
    drained = inspect.signature(Output).parameters["inline"].default
    by_results = {inline_bytes("auto"), inline_bytes("auto", files=True)}
    assert {INLINE} == {SHORT_OUTPUT, LARGE_REPLY, drained} | by_results
    assert all(vars(module)["INLINE"] is INLINE for module in (sandbox_calls, streams))
    assert output._READ >= INLINE  # all of a short job's by one
    [option] = [option for option in DAEMON if "--results" == option.name]
    assert isinstance(option.kind, tuple)
    assert set(PLACEMENTS) == set(report.RESULTS) == set(option.kind)


def test_no_other_module_decides_the_placement() -> None:
    """No other module has a constant of one of these names."""
    for source in (ROOT / "leeward").rglob("*.py"):
        defined = set(re.findall(r"^_?([A-Z_]+)\b[^=\n]*=(?!=)", source.read_text(), re.MULTILINE)) & NAMES
        assert not defined or "report.py" == source.name, source


def test_the_fast_path_sends_less_than_that_in_its_answer() -> None:
    """
    In C there is room for half of it, so an answer of the fast path is never one that belongs into a memory file. Its
    buffer has that size, and its answers are compared with that bound.
    """
    header = (SHIM / "fast_path.h").read_text()
    found = re.search(r"^#define LW_MOST_OUTPUT \((\d+)u << 10\)$", header, re.MULTILINE)
    assert found is not None
    assert int(found[1]) << 10 == SHORT_OUTPUT // 2
    assert "uint8_t output[LW_MOST_OUTPUT];" in header
    assert "sizes[0] + sizes[1] > LW_MOST_OUTPUT" in (SHIM / "fast_path_job.c").read_text()


@pytest.mark.parametrize(("page", "said"), [
    ("architecture.md", "Up to {kib} KiB of both streams together stay in memory"),
    ("performance.md", "by default results above {kib} KiB go by memory file"),
    ("wire.md", "sends output above {kib} KiB this way"),
    ("wire.md", "binary up to {bytes:,} bytes, else"),
    ("wire.md", "replies above {kib} KiB, that wait for their clients"),
    ("decisions/0013-shared-memory.md", "has its border at {kib} KiB of both streams together"),
    ("decisions/0062-request-heads-are-parsed-by-bytes.md", "reads none of it above {kib} KiB"),
])
def test_the_documents_say_it(page: str, said: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    assert said.format(kib=INLINE >> 10, bytes=INLINE) in text
