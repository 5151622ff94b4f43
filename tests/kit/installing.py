"""
leeward as a stranger gets it: an index of wheels on loopback, what installs from it, and a home with nothing in it.

Runs in:   the tests. `./dev test` fetches the wheels that leeward needs, and uv and pipx, into .venv-installers.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kit import features
from kit.loopback import serving_files
from kit.ordinary_user import OrdinaryUser
from kit.packages import environment_for
from vm.newer_python import settle

FOLDER = features.ROOT / ".venv-installers"
#: Seconds for one command of a stranger's; with a processor for itself each takes less than ten.
PATIENCE_S = 100

_MARK = "\x1e"


@dataclass(frozen=True)
class Typed:
    """A line that was typed: what it printed on both outputs, its exit status, and the seconds that it took."""

    line: str
    printed: str
    status: int
    seconds: float


@dataclass(frozen=True)
class Stranger:
    """An ordinary user whose home is new, with uv, pipx and the system's Python in PATH."""

    user: OrdinaryUser
    home: Path
    environment: dict[str, str]

    def types(self, lines: list[str]) -> list[Typed]:
        """Type *lines*, one after the other in one shell, and end the daemon that they have started."""
        now = "$(date +%s%N)"
        parts = [f"begun={now}\n{line}\nprintf '\\n{_MARK}%s %s %s{_MARK}\\n' $? $begun {now}" for line in lines]
        script = "\n".join(["exec 2>&1", *parts])
        try:
            done = self.user.run(["sh", "-c", script], env=self.environment, cwd=self.home,
                                 timeout=PATIENCE_S * max(2, len(lines)))
        finally:
            for leeward in [path for path in self.home.rglob("bin/leeward-python") if path.exists()][:1]:
                self.user.run([leeward, "daemon", "stop"], env=self.environment, cwd=self.home, timeout=PATIENCE_S)
        rows = re.findall(rf"(.*?)\n?{_MARK}(\d+) (\d+) (\d+){_MARK}\n", done.stdout, re.DOTALL)
        assert len(rows) == len(lines), done.stdout
        return [Typed(line, printed, int(status), (int(ended) - int(begun)) / 1e9)
                for line, (printed, status, begun, ended) in zip(lines, rows, strict=True)]


@contextlib.contextmanager
def index(wheels: Iterable[Path], folder: Path) -> Iterator[str]:
    """The URL of an index of *wheels*, which are copied into *folder*: a page for each project."""
    for wheel in wheels:
        project = folder / re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
        project.mkdir(exist_ok=True)
        shutil.copy(wheel, project)
    with serving_files(folder) as port:
        yield f"http://127.0.0.1:{port}/"


def reachable(python: Path, folder: Path) -> Path:
    """The interpreter *python*, or a copy of it with its library below *folder*, if others can't reach it."""
    found = python.resolve()
    if all(parent.stat().st_mode & 0o5 == 0o5 for parent in found.parents):
        return found
    top, library = found.parents[1], f"lib/{found.name}"
    shutil.copytree(top / library, folder / library, symlinks=True,
                    ignore=shutil.ignore_patterns("site-packages", "test", "__pycache__", "idlelib", "*.a"))
    (folder / library / "site-packages").mkdir()
    for shared in (top / "lib").glob("*.so*" if any((top / "lib").glob("ld-linux-*")) else "libpython3.*.so.1.0"):
        shutil.copy(shared, folder / "lib", follow_symlinks=False)
    (folder / "bin").mkdir()
    made, place = folder / "bin" / found.name, f"{top}/lib".encode()
    made.write_bytes(found.read_bytes().replace(place, b"$ORIGIN/../lib".ljust(len(place), b"\0")))  # where it looks for that
    made.chmod(0o755)
    if any((folder / "lib").glob("ld-linux-*")):  # it has a C library of its own
        settle(made)
    return made


def tools(folder: Path) -> Path:
    """A folder of programs, uv and pipx among them, that every user can run."""
    python = features.system_python()
    assert python is not None
    made = environment_for(python, folder, FOLDER)
    for name in ("uv", "uvx"):
        shutil.copy(FOLDER / "bin" / name, made / "bin" / name)
    (made / "bin/pipx").write_text(f"#!/bin/sh\nexec {shlex.quote(str(made / 'bin/python'))} -m pipx \"$@\"\n")
    (made / "bin/pipx").chmod(0o755)
    (made / "programs").mkdir()  # without its Python, which isn't the stranger's
    for name in ("uv", "uvx", "pipx"):
        (made / "programs" / name).symlink_to(made / "bin" / name)
    return made / "programs"


def blocks(page: Path) -> list[tuple[str, str]]:
    """The lines that *page* shows after a prompt, each with what it prints there."""
    console = "".join(re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL))
    return re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", console, re.MULTILINE)


def prints(shown: str, printed: str) -> bool:
    """Whether *printed* is what a page shows; a line of `...` in it is any number of lines, `...` in a line any text."""
    pattern = re.escape(shown.strip()).replace(r"\.\.\.", "(?s:.*)")
    return re.fullmatch(pattern, printed.strip()) is not None
