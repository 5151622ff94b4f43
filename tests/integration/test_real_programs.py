"""What ordinary programs do, and expect to work, inside."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit import features, packages
from kit.box import Box
from kit.programs import PROGRAMS, Program
from leeward.spec.outcome import Outcome


class Boxes:
    """Sandboxes by what the operator allows, each started once."""

    def __init__(self, shown: Callable[[Path], Path]) -> None:
        self._shown = shown
        self._boxes: dict[str, Box] = {}
        self.stack = ExitStack()

    def get(self, where: str) -> Box:
        if where not in self._boxes:
            self._boxes[where] = self.stack.enter_context(Box(**self._settings(where)))
        return self._boxes[where]

    def _settings(self, where: str) -> dict[str, object]:
        both = {"loopback": True, "terminal": True}
        if "packages" == where:
            return {**both, "python_env": str(self._shown(packages.PACKAGES))}
        return {where: True} if where else {}


@pytest.fixture(scope="module")
def boxes(shown_packages: Callable[[Path], Path]) -> Iterator[Boxes]:
    made = Boxes(shown_packages)
    with made.stack:
        yield made


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """The product as it is."""
    with Box() as made:
        yield made


def test_a_named_script_knows_its_file(box: Box) -> None:
    """As after `python job.py`: beside it lie the job's files."""
    got = box.run("from pathlib import Path; print(__file__, (Path(__file__).parent / 'data').read_text())",
                  name="job.py", files={"data": b"42"})

    assert "/workspace/job.py 42\n" == got.stdout_text, got.stderr_text


def test_a_file_of_the_job_is_not_replaced_by_its_script(box: Box) -> None:
    """It was asked for by name."""
    got = box.run("print(open('job.py').read())", name="job.py", files={"job.py": b"data"})

    assert "data\n" == got.stdout_text, got.stderr_text


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(box: Box, method: str) -> None:
    """With a function of the script, which spawn and forkserver find by importing the script again."""
    got = box.run(f"""
        import multiprocessing
        def square(x):
            return x * x
        if __name__ == "__main__":
            with multiprocessing.get_context({method!r}).Pool(2) as pool:
                print(pool.map(square, range(4)))
        """, name="job.py")

    assert (Outcome.FINISHED, "[0, 1, 4, 9]\n") == (got.outcome, got.stdout_text), got.stderr_text


def parallel(affinity: int) -> str:
    """What node says of a limit of one processor, as a regular expression. Before 1.49 libuv read no file."""
    asked = subprocess.run(["node", "-p", "process.versions.uv"], capture_output=True, text=True, check=True)
    libuv = tuple(int(part) for part in asked.stdout.strip().split(".")[:2])
    if libuv < (1, 49) or not Path("/proc/self/cgroup").read_text().startswith("0::"):
        return str(affinity)
    return "1" if libuv >= (1, 51) else f"(1|{affinity})"


@pytest.mark.parametrize("program", [
    pytest.param(program, id=program.name, marks=pytest.mark.needs(*program.needs) if program.needs else ())
    for program in PROGRAMS
])
def test_every_program_works_or_prints_the_reason(boxes: Boxes, program: Program) -> None:
    """Each works, or fails and says why in words that its user understands."""
    box = boxes.get(program.where)
    got = box.run(program.code, limits=program.limits)
    said = got.stdout_text + got.stderr_text
    affinity = 1 if box.engine.driver.affinity_fixed else len(os.sched_getaffinity(0))
    says = program.says.replace("AFFINITY", str(affinity))
    if "PARALLEL" in says:
        says = says.replace("PARALLEL", parallel(affinity))

    assert re.search(says, said, re.MULTILINE), (said, got.error, got.denied)
    assert program.refused == (0 != got.exit_code), (got.outcome, got.exit_code, said)


def test_the_table_has_a_hundred_programs_with_unique_names() -> None:
    """A row is asked for by its name: `-k`. The programs that users ask for first are among them."""
    names = [program.name for program in PROGRAMS]
    asked = {"numpy", "pandas", "matplotlib", "pillow", "gcc", "g++", "clang", "make", "cmake", "java", "kotlin",
             "node", "go", "rust", "git", "pip into a target", "http.server", "a server of asyncio", "nginx", "UDP",
             "Jupyter's kernel", "pty.spawn", "pexpect", "psutil", "tracemalloc", "faulthandler", "shared memory",
             "a pool of processes", "multiprocessing's parts", "a manager with an address", "sqlite WAL", "zoneinfo",
             "TZ", "pandas in time zones", "locale", "a locale that the host lacks"}

    assert asked <= set(names)

    assert len(names) == len(set(names)) >= 100
    assert {name for program in PROGRAMS for name in program.needs} <= set(features.TABLE)
