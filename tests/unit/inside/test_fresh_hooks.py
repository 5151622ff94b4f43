"""Which of os.register_at_fork's hooks a job's process runs, and when."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from leeward.inside import reseeding

#: Modules of the standard library whose hooks aren't run, by what they do.
LOCKS = {"threading", "logging", "concurrent.futures.thread"}  # renewed; nobody holds them where there is one thread
NOBODYS = {"asyncio.events"}  # forgets a running loop and signals' wakeup: no loop runs while the zygote imports
RANDOM = {name for name, _ in reseeding.SOURCES}


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that registers hooks; each says its name to `said`."""
    (tmp_path / "hooking.py").write_text("""
import os
said = []
os.register_at_fork(before=lambda: said.append("before 1"), after_in_parent=lambda: said.append("parent 1"))
os.register_at_fork(before=lambda: said.append("before 2"), after_in_child=lambda: said.append("child 2"))
os.register_at_fork(after_in_child=lambda: said.append("child 3"))
""")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(reseeding, "_registered", [])


def test_fork_hooks_of_a_library_run_as_by_fork(library: None) -> None:
    register = os.register_at_fork
    with reseeding.recorded():
        import hooking  # type: ignore[import-not-found]  # the fixture's
    reseeding.run_hooks()

    assert ["before 2", "before 1", "child 2", "child 3"] == hooking.said
    assert os.register_at_fork is register


def test_a_jobs_own_forks_run_them_too(tmp_path: Path, library: None) -> None:
    """In an interpreter of its own: a registration is for good."""
    program = f"""
import os, sys
sys.path.insert(0, {str(tmp_path)!r})
from leeward.inside import reseeding
with reseeding.recorded():
    import hooking
pid = os.fork()
if 0 == pid:
    os._exit(["before 2", "before 1", "child 2", "child 3"] != hooking.said)
print(os.waitpid(pid, 0)[1], hooking.said)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert ("0 ['before 2', 'before 1', 'parent 1']\n", "") == (done.stdout, done.stderr)


def test_a_hook_that_is_none_is_refused(library: None) -> None:
    with reseeding.recorded(), pytest.raises(TypeError):
        os.register_at_fork(before=3)  # type: ignore[call-overload]  # that is the point


@pytest.mark.thorough
def test_the_standard_librarys_are_known() -> None:
    """A version of Python with one more has to be looked at before it is served."""
    library = Path(sysconfig.get_path("stdlib"))
    found = {".".join(path.relative_to(library).with_suffix("").parts).removesuffix(".__init__")
             for path in library.rglob("*.py")
             if not {"test", "site-packages", "dist-packages", "idlelib"} & set(path.parts)
             and re.search(r"os\.register_at_fork\(", path.read_text(errors="replace"))}

    assert found <= LOCKS | NOBODYS | RANDOM
    assert {"threading", "random"} <= found
