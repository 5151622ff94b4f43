"""Every example of docs/sandboxes.md, docs/workdir.md and others works as it stands, and prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.features import ROOT
from kit.live_daemon import LiveDaemon, environment
from leeward.daemon.sandboxes.registry import Reason

PAGE = (ROOT / "docs/sandboxes.md").read_text()
PAGES = "".join([PAGE, *((ROOT / f"docs/{name}.md").read_text() for name in ("snapshots", "workdir", "shell"))])
EXAMPLES = re.findall(r"```(python|sh)\n(.*?)```\n\n```text\n(.*?)```", PAGES, re.DOTALL)


def test_every_block_of_code_is_an_example() -> None:
    """None is left out of the test below."""
    assert len(EXAMPLES) == len(re.findall(r"```(?:python|sh)\n", PAGES))
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize(("language", "code", "printed"), EXAMPLES)
def test_every_example_prints_the_output_on_the_page(daemon: LiveDaemon, tmp_path: Path, language: str, code: str,
                                                     printed: str) -> None:
    """In a program of its own."""
    argv = [sys.executable, "-c", code] if "python" == language else ["sh", "-e", "-c", code]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(argv, env=environment(daemon.socket, PATH=path), capture_output=True, text=True, timeout=60,
                          check=False, stdin=subprocess.DEVNULL, cwd=tmp_path)

    assert (0, printed) == (done.returncode, done.stdout), done.stderr
    daemon.idle()


def test_every_reason_of_an_end_is_reported() -> None:
    """In the table."""
    rows = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)

    assert set(Reason) == {Reason(name) for row in rows for name in re.findall(r"`(\w+)`", row)}
