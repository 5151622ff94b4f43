"""Each program of docs/cookbook.md prints what stands below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.features import ROOT
from kit.installing import index, prints
from kit.live_daemon import LiveDaemon, environment
from kit.skip_policy import require
from kit.wheels import wheel

PAGE = (ROOT / "docs/cookbook.md").read_text()
RECIPES = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", PAGE, re.MULTILINE))

DAEMON = ("--pool-size", "2")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A mirror of packages on this machine, with one."""
    folder = tmp_path_factory.mktemp("index")
    with index([wheel(folder, "six", "1.17.0", {"six.py": "PY3 = True\n"})], folder) as url:
        yield url


@pytest.mark.timeout(360)
@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_prints_what_the_page_shows(daemon: LiveDaemon, url: str, tmp_path: Path, title: str) -> None:
    code, shown = (re.search(rf"^```{kind}\n(.*?)^```", RECIPES[title], re.MULTILINE | re.DOTALL)
                   for kind in ("python", "text"))
    assert code is not None
    assert shown is not None
    python = sys.executable
    if "langchain" in code[1]:
        require("framework-langchain")
        python = str(ROOT / ".venv-framework-langchain/bin/python")
    done = subprocess.run([python, "-c", code[1]], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=300, check=False,
                          env=environment(daemon.socket, PIP_INDEX_URL=url,
                                          PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}"))

    assert 0 == done.returncode, done.stderr
    assert prints(shown[1], done.stdout), done.stdout


def test_there_are_twenty_of_ten_to_thirty_lines() -> None:
    assert 20 == len(RECIPES) == PAGE.count("```python")
    assert all(5 <= text.count("\n") <= 45 for text in RECIPES.values())
