"""What the README and the page on use tell a reader to type works as it stands."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from kit.features import ROOT
from kit.live_daemon import LiveDaemon
from kit.served import Served, client_python

README, USING = ((ROOT / page).read_text() for page in ("README.md", "docs/using.md"))


@pytest.fixture
def reader(open_folder, tmp_path):
    """Somebody with a shell, in a folder of his own, on a socket of his own."""
    (tmp_path / "job.py").write_text("import sys; print(sys.argv[1:])")
    (tmp_path / "program.py").write_text("print('by itself')")
    (tmp_path / "jobs.jsonl").write_text('"print(6 * 7)"\n')
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
    """But for the daemon's end, which comes last."""
    lines = re.findall(r"^    ((?:leeward|echo) .*)$", USING, re.MULTILINE)
    lines.sort(key="leeward daemon stop".__eq__)

    printed = [reader("sh", "-c", line) for line in lines]

    assert {"hello\n", "['first', 'second']\n", "42\n", "Pong!\n", "by itself\n"} <= set(printed)
    assert "finished" in printed[-3]


def test_the_first_commands_print_what_the_readme_shows(reader):
    console = re.search(r"```console\n(.*?)```", README, re.DOTALL)[1]
    shown = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)
    reader("leeward", "daemon", "start")

    printed = [(line, re.sub(r"after 1\.\d+ s", "after 1 s", reader("sh", "-c", f"{{ {line}; }} 2>&1; true")))
               for line, _ in shown]

    assert shown == printed
    assert len(shown) == 3


@pytest.mark.needs("client-e2b", "extra-serve")
def test_a_program_of_e2b_s_own_client_works_as_it_is(tmp_path):
    line, shown = re.search(r"```console\n\$ python -c '(import e2b.*)'\n(.*?)```", README, re.DOTALL).groups()
    with LiveDaemon(tmp_path, "--pool-size", "1") as daemon, Served(daemon.socket, tmp_path, "e2b") as served:
        env = {**os.environ, "E2B_API_URL": served.url, "E2B_SANDBOX_URL": served.url, "E2B_API_KEY": served.token}
        done = subprocess.run([client_python("e2b"), "-W", "ignore", "-c", line], env=env, capture_output=True, text=True,
                              check=False, timeout=60)

    assert shown.strip() == done.stdout.strip(), done.stderr


def test_the_recording_is_of_the_same_commands():
    """And the picture is made of it: what it shows is what ran, of which only the seconds differ."""
    recorder = runpy.run_path(str(ROOT / "docs/record_terminal.py"))
    text = recorder["cast_of"]("first-commands").read_text()
    shown = "".join(data for _, _, data in map(json.loads, text.splitlines()[1:])).replace("\r\n", "\n")
    picture = (ROOT / "docs/first-commands.svg").read_text()

    assert re.search(r"```console\n(.*?)```", README, re.DOTALL)[1] == re.sub(r"after 1\.\d+ s", "after 1 s", shown)
    assert recorder["svg"](text) == picture
    assert len(picture) < 200_000
    assert re.search(r"!\[[^]]+\]\(docs/first-commands\.svg\)", README)


def test_the_recording_of_the_search_is_of_the_example():
    recorder = runpy.run_path(str(ROOT / "docs/record_terminal.py"))
    text = recorder["cast_of"]("tree-search").read_text()
    shown = "".join(data for _, _, data in map(json.loads, text.splitlines()[1:])).replace("\r\n", "\n")
    example = (ROOT / "examples/tree_search.py").read_text()

    assert example[example.index("PROGRAM"):] in shown
    assert "$ python examples/tree_search.py\nopen after looking at 16 states: ([0, 0, 0, 0], " in shown
    assert recorder["svg"](text) == (ROOT / "docs/tree-search.svg").read_text()
    assert "(tree-search.svg)" in (ROOT / "docs/snapshots.md").read_text()


def test_the_client_s_example_works(reader):
    reader("leeward", "daemon", "start")

    printed = reader(sys.executable, "-c", re.search(r"```python\n(.*?)```", README, re.DOTALL)[1])

    assert re.fullmatch(r"finished 7\n \d\.\d+ \d+ \{\}\n", printed)
