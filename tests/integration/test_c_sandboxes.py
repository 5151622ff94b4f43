"""
libleeward's live sandboxes: what leeward.h promises of them, over a real daemon.

The promises themselves are in tests/native/sandbox_checks.c, which runs plain, under valgrind, and with the library
under ASan and UBSan. Hostile daemons are those of tests/fuzz.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import c_client, reactors
from kit.c_client import CLIENT, SOURCES
from kit.features import ROOT
from kit.live_daemon import LiveDaemon

pytestmark = [pytest.mark.needs("compiler"), pytest.mark.needs("user-namespaces")]

CHECKS = ROOT / "tests" / "native" / "sandbox_checks.c"
LANGUAGE = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="module", params=reactors.WAYS)
def daemon(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LiveDaemon]:
    with LiveDaemon(tmp_path_factory.mktemp("c-sandboxes"), "--pool-size", "2",
                    *reactors.OPTIONS[request.param]) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def any_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """
    Where the transport is tried by another test already.
    """
    with LiveDaemon(tmp_path_factory.mktemp("any"), "--pool-size", "2") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def plain(c_build: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    The checks, with the static library.
    """
    made = tmp_path_factory.mktemp("plain") / "checks"
    subprocess.run(["gcc", *LANGUAGE, "-g", f"-I{c_build}", "-o", made, CHECKS, c_build / "libleeward.a"], check=True)
    return made


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    The checks, with the library's sources, under ASan and UBSan.
    """
    c_client.require("sanitizers")
    made = tmp_path_factory.mktemp("sanitized") / "checks"
    subprocess.run(["gcc", *LANGUAGE, *c_client.SANITIZERS.split(), '-DLEEWARD_LIBRARY_VERSION="test"', f"-I{CLIENT}",
                    "-o", made, CHECKS, *SOURCES], check=True)
    return made


def checked(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    assert (0, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("what", ["good", "nonsense"])
def test_every_promise_holds(daemon: LiveDaemon, plain: Path, what: str) -> None:
    """
    Programs, streams, terminals, Python, files; and arguments of none.
    """
    checked(plain, what, daemon.socket)


@pytest.mark.parametrize("what", ["good", "nonsense"])
def test_every_promise_holds_without_a_fault(any_daemon: LiveDaemon, sanitized: Path, what: str) -> None:
    """
    The same under ASan and UBSan.
    """
    checked(sanitized, what, any_daemon.socket)


@pytest.mark.needs("valgrind")
@pytest.mark.parametrize("what", ["good", "nonsense"])
def test_valgrind_finds_nothing(any_daemon: LiveDaemon, plain: Path, what: str) -> None:
    """
    No byte is lost, none is read unset.
    """
    checked("valgrind", "--quiet", "--leak-check=full", "--show-leak-kinds=all", "--errors-for-leak-kinds=all",
            "--error-exitcode=9", "--track-fds=no", plain, what, any_daemon.socket)
