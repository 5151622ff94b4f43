"""
Examples of SKILL.md and of using.md, sessions.md, agents.md, data-science.md, limits.md and egress.md in docs work as they
stand.

docs/sandboxes.md, docs/workdir.md and docs/shell.md say what theirs print: test_sandbox_docs.py. The commands of
README.md and docs/using.md are typed in their order by test_readme.py, those of docs/environments.md by
test_env_command.py. That every other one can be typed is in unit/test_documented_commands.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import packages
from kit.features import ROOT
from kit.installing import blocks
from kit.live_daemon import LiveDaemon, command, environment

PATIENCE_S = 120
USING, SESSIONS, AGENTS, SCIENCE, LIMITS, EGRESS = (
    (ROOT / f"docs/{page}.md").read_text() for page in ("using", "sessions", "agents", "data-science", "limits", "egress"))
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
INDENTED = re.compile(r"^    (\S.*)$", re.MULTILINE)

#: What the blocks of docs/using.md print, one after the other.
PRINTED = ("", "42\n\n42\n", "modified app.py\n",
           r"(?s).*app\.py:2:# TODO: more\n.*\[ 1, 4, 9 \]\n\n", "100 34650\n",
           r"timed_out time [\d.e-]+ [\d.e-]+ [\d.e-]+\n")

DAEMON = ("--pool-size", "2")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that holds `project`, which the examples name."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "app.py").write_text("name = 'old'\n# TODO: more\n")
    (tmp_path / "project" / "test_app.py").write_text(
        "import unittest\nclass Test(unittest.TestCase):\n    def test(self): import app; self.assertTrue(app.name)\n")
    return tmp_path


def ran(daemon: LiveDaemon, argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(argv, env=environment(daemon.socket, PATH=path), cwd=folder, capture_output=True, text=True,
                          check=False, timeout=PATIENCE_S, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("number", [
    pytest.param(number, marks=pytest.mark.needs("usr-node") if "exec_js" in block else ())
    for number, block in enumerate(PYTHON.findall(USING))])
def test_a_block_of_the_page_on_use(daemon: LiveDaemon, project: Path, number: int) -> None:
    """With `import leeward` before those that don't repeat it."""
    done = ran(daemon, [sys.executable, "-c", "import leeward\n" + PYTHON.findall(USING)[number]], project)

    assert 0 == done.returncode, done.stderr
    assert re.fullmatch(PRINTED[number], done.stdout), done.stdout
    assert ("new" if number == 2 else "old") in (project / "project" / "app.py").read_text()


def test_no_block_of_the_page_on_use_is_left_out() -> None:
    assert len(PRINTED) == len(PYTHON.findall(USING)) == USING.count("```python")


def test_the_blocks_of_the_page_on_sessions(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Each shows its session's last result, for there is nothing else that it prints."""
    blocks = PYTHON.findall(SESSIONS)
    assert blocks
    for block in blocks:
        shown = re.sub(r"^    (session\.execute\(.*print.*\))$", r"    print(\1.text)", block, flags=re.MULTILINE)
        done = ran(daemon, [sys.executable, "-c", "import leeward\n" + shown], tmp_path)
        assert (0, "7\n\n") == (done.returncode, done.stdout), done.stderr


def test_the_commands_of_the_page_for_agents(daemon: LiveDaemon) -> None:
    """A first call, and the whole harness, as the page has them. The lines for other programs are in test_mcp.py."""
    lines = [line.partition("  #")[0].strip() for line in INDENTED.findall(AGENTS.partition("## A server of tools")[0])]
    assert ["leeward exec 'print(1)'", "python examples/harness.py"] == lines
    first, harness = (ran(daemon, ["sh", "-c", line.replace("leeward", " ".join(command()), 1).replace(
        "python examples", f"{sys.executable} examples", 1)], ROOT) for line in lines)

    assert (0, "1\n") == (first.returncode, first.stdout), first.stderr
    assert 0 == harness.returncode, harness.stderr
    assert "done after 8 calls" in harness.stdout


def test_what_a_model_is_told_to_type_prints_what_is_below(daemon: LiveDaemon, tmp_path: Path) -> None:
    """SKILL.md, in one shell."""
    rows = blocks(ROOT / "SKILL.md")
    assert 8 < len(rows)
    done = ran(daemon, ["sh", "-c", "\n".join(line for line, _ in rows)], tmp_path)

    assert (0, "".join(shown for _, shown in rows)) == (done.returncode, done.stdout), done.stderr


def test_a_policys_decisions_are_those_of_the_page(daemon: LiveDaemon, tmp_path: Path) -> None:
    """With the policy that is above them, but for its secret, whose value this host lacks."""
    config = re.search(r"```toml\n(\[egress\.build\]\n.*?)```", EGRESS, re.DOTALL)
    asked = re.search(r"^    \$ (leeward egress test .*)\n((?:    (?:allow|deny) .*\n)+)", EGRESS, re.MULTILINE)
    assert config is not None
    assert asked is not None
    (tmp_path / "c.toml").write_text(re.sub(r"^secrets .*\n", "", config[1], flags=re.MULTILINE))
    (tmp_path / "c.toml").chmod(0o600)
    done = ran(daemon, ["sh", "-c", asked[1].replace("egress test", "egress test --config c.toml")], tmp_path)

    assert textwrap.dedent(asked[2]) == done.stdout, done.stderr


def test_commands_that_the_questions_name_can_be_typed(daemon: LiveDaemon, tmp_path: Path) -> None:
    """Each `leeward ...` of the page on missing features that needs no file and no root."""
    named = {line for line in re.findall(r"`leeward ([a-z -]+)`", LIMITS) if line.split()[0] in ("explain", "daemon")}
    assert {"explain network", "explain loopback", "explain ptrace", "daemon run --print-config"} <= named
    for words in sorted(named):
        done = ran(daemon, command(*words.split()), tmp_path)
        assert (0, True) == (done.returncode, bool(done.stdout)), (words, done.stderr)


def test_half_a_line_is_lost_as_the_questions_say(daemon: LiveDaemon) -> None:
    """It is lost without either of the two cures."""
    assert 'PYTHONUNBUFFERED=1` in its `env`' in LIMITS
    with daemon.client() as client:
        half = {name: client.execute(f"import os; print('half', end=''{more}); os._exit(0)", env=env).text
                for name, more, env in (("none", "", {}), ("flush", ", flush=True", {}),
                                        ("variable", "", {"PYTHONUNBUFFERED": "1"}))}

    assert {"none": "", "flush": "half", "variable": "half"} == half


@pytest.mark.needs("preload-packages")
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_on_data_science(shown_packages: Callable[[Path], Path], tmp_path: Path) -> None:
    """Its configuration, with an environment of here, and each command with what the page says of it."""
    first, *rest = INDENTED.findall(SCIENCE)
    config = "\n".join([first, rest[0]])
    assert {"python_env", "preload"} == set(tomllib.loads(config))
    lines = [line for line in rest if line.startswith("leeward exec ")]
    assert 3 == len(lines)
    file = tmp_path / "data.toml"
    file.write_text(config.replace("/srv/data", str(shown_packages(packages.PRELOAD))))
    file.chmod(0o600)
    with LiveDaemon(tmp_path, "--pool-size", "1", "--config", str(file)) as daemon:
        pyplot, pandas, arrow = (
            ran(daemon, ["sh", "-c", line.replace("leeward", " ".join(command()), 1)], tmp_path) for line in lines)

    assert (0, 0) == (pyplot.returncode, pandas.returncode), pyplot.stderr + pandas.stderr
    assert float(pyplot.stdout) < float(pandas.stdout)  # the one is there already, the other isn't
    assert 1 == arrow.returncode
    assert "Failed to launch worker thread" in arrow.stderr
