"""What the README and the page on use tell a reader to type works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.features import ROOT

README, USING = ((ROOT / page).read_text() for page in ("README.md", "docs/using.md"))


@pytest.fixture
def reader(open_folder, tmp_path):
    """Somebody with a shell, in a folder of his own, on a socket of his own."""
    (tmp_path / "job.py").write_text("import sys; print(sys.argv[1:])")
    environment = {**os.environ, "LEEWARD_SOCKET": str(open_folder / "readme" / "leeward.sock"),
                   "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def run(*command: str) -> str:
        got = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
                             stdin=subprocess.DEVNULL, timeout=30)
        assert 0 == got.returncode, got.stderr
        return got.stdout

    yield run
    subprocess.run([Path(sys.executable).parent / "leeward", "daemon", "stop"], env=environment, check=False,
                   capture_output=True)


def test_the_commands_work_in_their_order(reader):
    block = re.search(r"((?:^    leeward .*\n|^    echo .*\n){5,})", USING, re.MULTILINE)[1]

    printed = [reader("sh", "-c", line.strip()) for line in block.splitlines()]

    assert {"hello\n", "['first', 'second']\n", "42\n", "Pong!\n"} <= set(printed)


def test_the_first_commands_print_what_the_readme_shows(reader):
    console = re.search(r"```console\n(.*?)```", README, re.DOTALL)[1]
    shown = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    reader("leeward", "daemon", "start")

    printed = [(line, re.sub(r"after 1\.\d+ s", "after 1 s", reader("sh", "-c", f"{{ {line}; }} 2>&1; true")))
               for line, _ in shown]

    assert shown == printed
    assert len(shown) == 3


def test_the_client_s_example_works(reader):
    reader("leeward", "daemon", "start")

    printed = reader(sys.executable, "-c", re.search(r"```python\n(.*?)```", README, re.DOTALL)[1])

    assert re.fullmatch(r"finished 7\n \d\.\d+ \d+ \{\}\n", printed)
