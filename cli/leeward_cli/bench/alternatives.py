"""
The alternatives: other ways to run code, if they are installed. If one isn't, the report says why it isn't measured.

None of them is a dependency; libraries run in this process, as in any program that uses them. `pip install
'leeward[peers]'` and Debian's `bubblewrap` install those that a package index has; docker needs its daemon, and an
image with Python, which isn't fetched.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from leeward_cli.bench.floors import CODE, Spawn, Subject, interpreter, printed_by, printing

_PATIENCE_S = 10.0


class Missing(Exception):
    """An alternative can't be measured here; the text says why."""


def readable() -> list[str]:
    folders = ["/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/dev", sys.base_prefix]
    return sorted({folder for folder in folders if os.path.isdir(folder)})


@contextlib.contextmanager
def pool() -> Iterator[Subject]:
    # By fork, which is the fastest method, and the default on Linux up to Python 3.13.
    with multiprocessing.get_context("fork").Pool(2) as made:
        yield printing("multiprocessing.Pool.apply", lambda: made.apply(printed_by, (CODE,)).encode())


@contextlib.contextmanager
def plain_python() -> Iterator[Subject]:
    yield Spawn("python3 -c", [interpreter(), "-c", CODE])


@contextlib.contextmanager
def bubblewrap() -> Iterator[Spawn]:
    program = shutil.which("bwrap")
    if program is None:
        raise Missing("no bwrap on the PATH")
    places = [argument for folder in ("/lib", "/lib64", "/bin") if os.path.islink(folder)
              for argument in ("--symlink", os.readlink(folder), folder)]
    if not sys.base_prefix.startswith("/usr"):
        places += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    # Every namespace that bwrap supports, as for a job of leeward, and no files but Python's.
    spawn = Spawn("bwrap + python3 -I -S -c", [
        program, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", *places,
        "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", interpreter(), "-I", "-S", "-c", CODE])
    _answers(spawn)
    yield spawn


@contextlib.contextmanager
def docker() -> Iterator[Subject]:
    program = shutil.which("docker")
    if program is None:
        raise Missing("no docker on the PATH")
    try:
        said = subprocess.run([program, "images", "--format", "{{.Repository}}:{{.Tag}}"], capture_output=True,
                              text=True, check=False, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise Missing("docker's daemon doesn't answer") from None
    if said.returncode:
        raise Missing("docker's daemon doesn't answer")
    images = [line for line in said.stdout.split() if line.split("/")[-1].startswith("python:")]
    if not images:
        raise Missing("docker has no image named python")
    spawn = Spawn("docker run + python3 -I -S -c", [
        program, "run", "--rm", "--network=none", images[0], "python3", "-I", "-S", "-c", CODE], os.environ)
    _answers(spawn)
    yield spawn


@contextlib.contextmanager
def sandlock() -> Iterator[Subject]:
    """Landlock, a filter and a supervisor around a Python that is started for the call."""
    box = _module("sandlock").Sandbox(fs_readable=readable(), fs_writable=["/tmp"])
    made = printing("sandlock + python3 -I -S -c", lambda: box.run([interpreter(), "-I", "-S", "-c", CODE]).stdout)
    _answers(made)
    yield made


@contextlib.contextmanager
def monty() -> Iterator[Subject]:
    """An interpreter of a part of Python, in a pool of processes; a new session for each call."""
    with _module("pydantic_monty").Monty() as pool:
        def printed() -> bytes:
            with pool.checkout() as session:
                return _fed(session)

        made = printing("monty, new session", printed)
        _answers(made)
        yield made


@contextlib.contextmanager
def monty_session() -> Iterator[Subject]:
    """As `monty`, with one session for all calls."""
    with _module("pydantic_monty").Monty() as pool, pool.checkout() as session:
        made = printing("monty, one session", lambda: _fed(session))
        _answers(made)
        yield made


def _fed(session: Any) -> bytes:
    printed: list[str] = []
    session.feed_run(CODE, print_callback=lambda stream, text: printed.append(text))
    return "".join(printed).encode()


#: The alternatives: a function that opens each, and the numbers of successive calls with gaps and without. The pool is
#: first, since it forks, and the libraries start threads.
ALL: dict[str, tuple[Callable[[], contextlib.AbstractContextManager[Subject]], tuple[int, int]]] = {
    "multiprocessing.Pool.apply": (pool, (10, 10)),
    "python3 -c": (plain_python, (2, 2)),
    "bwrap": (bubblewrap, (2, 2)),
    "docker": (docker, (1, 1)),
    "sandlock": (sandlock, (2, 2)),
    "pydantic-monty": (monty, (10, 10)),
}


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"not installed: {error}") from None


def _answers(subject: Subject) -> None:
    """Call an installed alternative once; Missing, with its own reason, if that fails."""
    try:
        subject.call()
    except Exception as error:  # other people's code, whatever it raises
        raise Missing(f"it doesn't work here: {error}") from None


def opened(stack: contextlib.ExitStack, name: str, missing: dict[str, str]) -> tuple[Subject, tuple[int, int]] | None:
    """Open the alternative *name* until *stack* closes. None, and the reason is in *missing*, if it can't be measured."""
    how, calls = ALL[name]
    try:
        return stack.enter_context(how()), calls
    except Missing as why:
        missing[name] = str(why)
        return None
