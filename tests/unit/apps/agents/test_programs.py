"""Where an agent's program is, and what shows it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from leeward.apps.agents.programs import find
from leeward.errors import RequestRejected
from leeward.spec.folders import outermost


def program(path: Path, text: str = "\x7fELF") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def environ(*folders: Path) -> dict[str, str]:
    return {"PATH": os.pathsep.join((*map(str, folders), "/usr/bin", "/bin"))}


def test_a_binary_behind_links(tmp_path: Path) -> None:
    real = program(tmp_path / "share/versions/2.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/claude").symlink_to(real)
    found = find("claude", environ(tmp_path / "bin"))
    assert found is not None
    assert ((str(real),), (str(real),), (str(real.parent),)) == (found.argv, found.shown, found.folders)


def test_a_package_of_nodes(tmp_path: Path) -> None:
    node = program(tmp_path / "node/bin/node")
    script = program(tmp_path / "lib/node_modules/@x/codex/bin/codex.js", "#!/usr/bin/env node\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/codex").symlink_to("../lib/node_modules/@x/codex/bin/codex.js")
    found = find("codex", environ(tmp_path / "bin", node.parent))
    assert found is not None
    assert (str(node), str(script)) == found.argv
    assert {str(tmp_path / "lib/node_modules"), str(node)} == set(found.shown)
    assert str(node.parent) in found.folders


def test_a_script_of_a_virtual_environment(tmp_path: Path) -> None:
    """Its python is run by the name that it has there: it looks beside that for its packages."""
    base = program(tmp_path / "base/bin/python3.11")
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").write_text(f"home = {base.parent}\nversion = 3.11\n")
    (tmp_path / "env/bin/python").symlink_to(base)
    program(tmp_path / "env/bin/aider", f"#!{tmp_path}/env/bin/python\n")
    found = find("aider", environ(tmp_path / "env/bin"))
    assert found is not None
    assert (f"{tmp_path}/env/bin/python", f"{tmp_path}/env/bin/aider") == found.argv
    assert {f"{tmp_path}/env", f"{tmp_path}/base"} == set(found.shown)


def test_a_program_below_usr_needs_no_extra_folder() -> None:
    found = find("env", {"PATH": "/usr/bin:/bin"})
    assert found is not None
    assert () == found.shown == found.folders


def test_a_missing_program_or_interpreter_is_an_error(tmp_path: Path) -> None:
    assert find("nothing-of-that-name", environ(tmp_path)) is None
    program(tmp_path / "odd", "#!/nowhere/interpreter\n")
    with pytest.raises(RequestRejected, match="isn't there"):
        find("odd", environ(tmp_path))
    program(tmp_path / "loop", f"#!{tmp_path}/loop\n")
    with pytest.raises(RequestRejected, match="too many interpreters"):
        find("loop", environ(tmp_path))


def test_paths_without_those_in_others() -> None:
    assert ("/a", "/ab") == outermost(["/a", "/a/b", "/ab", "/a"])
    assert sys.executable


def test_a_program_that_agents_can_write_chooses_nothing(tmp_path: Path) -> None:
    """It may need /usr, its own folder, and what the definition names; nothing else is shown for it."""
    base = program(tmp_path / "base/bin/python3.11")
    (tmp_path / "p/.venv/bin").mkdir(parents=True)
    (tmp_path / "p/.venv/pyvenv.cfg").write_text(f"home = {base.parent}\n")
    program(tmp_path / "p/.venv/bin/aider", "#!/bin/sh\n")
    path, written = environ(tmp_path / "p/.venv/bin"), [str(tmp_path / "p")]
    assert find("aider", path) is not None
    with pytest.raises(RequestRejected, match="which isn't for an agent to choose"):
        find("aider", path, written)
    assert find("aider", path, written, [str(tmp_path / "base")]) is not None
    (tmp_path / "p/.venv/pyvenv.cfg").write_text("home = /usr/bin\n")
    assert find("aider", path, written) is not None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/tool").symlink_to(tmp_path / "p/tool")  # the user's link, to an agent's, to another file
    (tmp_path / "p/tool").symlink_to(program(tmp_path / "own/tool"))
    with pytest.raises(RequestRejected, match="which isn't for an agent to choose"):
        find("tool", environ(tmp_path / "bin"), written)
