"""
Fixtures that more than one file of tests has: reactors, servers, sandboxes, people who decide, an agent's home.

Runs in:   pytest, as a plugin of conftest.py. A file that needs one of these in another form defines its own fixture
           of that name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import leeward
from kit import egress, packages, reactors
from kit.agents import AgentHome
from kit.approvals import ServedApprovals
from kit.configured import written
from kit.live_daemon import LiveDaemon
from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.supervisor import Supervisor

if TYPE_CHECKING:
    from kit.sandbox_stand import Stand


@pytest.fixture(params=reactors.ALL)
def reactor(request: pytest.FixtureRequest) -> Iterator[Reactor]:
    """A reactor of each kind."""
    made = reactors.reactor(request.param)
    yield made
    made.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What asks for the daemon of a file with REACTORS runs with each of these reactors."""
    if "daemon" in metafunc.fixturenames and hasattr(metafunc.module, "REACTORS"):
        metafunc.parametrize("daemon", metafunc.module.REACTORS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """
    A daemon for all tests of a file, which says in DAEMON with which options, in CONFIGURATION by which text, in
    REACTORS with which reactors, and in DAEMON_BY what starts it in place of LiveDaemon.
    """
    folder, module = tmp_path_factory.mktemp("daemon"), request.module
    options = [*getattr(module, "DAEMON", ()), *(reactors.OPTIONS[request.param] if hasattr(module, "REACTORS") else ())]
    if hasattr(module, "CONFIGURATION"):
        options += ["--config", str(written(folder / "c.toml", module.CONFIGURATION))]
    with getattr(module, "DAEMON_BY", LiveDaemon)(folder, *options) as made:
        yield made


@pytest.fixture(scope="module")
def client(daemon: LiveDaemon) -> Iterator[leeward.Client]:
    """A client of the file's daemon."""
    with daemon.client() as made:
        yield made


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Servers on this host's loopback: `egress.servers`, or what the file has in SERVERS."""
    with getattr(request.module, "SERVERS", egress.servers)() as made:
        yield made


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """A supervisor for one test."""
    made = Supervisor()
    yield made
    made.close()


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    """A daemon whose sandboxes are processes of the host's, for all tests of a file."""
    from kit.sandbox_stand import Stand  # frameworks' environments, which read this file, lack what a daemon needs

    with Stand() as made:
        yield made


@pytest.fixture(scope="module")
def service(daemon: LiveDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedApprovals]:
    """A service for approvals beside the file's daemon."""
    with ServedApprovals(daemon, tmp_path_factory.mktemp("s")) as made:
        yield made


@pytest.fixture(scope="session")
def shown_packages() -> Iterator[Callable[[Path], Path]]:
    """
    A function that gives an environment of packages as a sandbox can show it: `packages.shown`. What has to be copied
    for that, tens of thousands of files, is copied once for all tests, which only read it.
    """
    with packages.shown_folder() as folder:
        yield functools.cache(lambda some: packages.shown(Path(sys.executable), folder / some.name, some))


@pytest.fixture
def box(daemon: LiveDaemon) -> Iterator[leeward.Sandbox]:
    """A live sandbox of the file's daemon, which has none left afterwards."""
    with leeward.Sandbox(socket=daemon.socket) as made:
        yield made
    daemon.idle()


@pytest.fixture
def all_ended(daemon: LiveDaemon) -> Iterator[None]:
    """The test leaves no sandbox to the file's daemon."""
    yield
    for row in leeward.Sandbox.list(socket=daemon.socket):
        with suppress(leeward.SandboxOver):  # a server may have ended it meanwhile
            leeward.Sandbox.attach(row["sandbox"], socket=daemon.socket).close()


@pytest.fixture
def home(daemon: LiveDaemon, tmp_path: Path) -> Iterator[AgentHome]:
    """A home with an agent that is a shell, for the file's daemon."""
    made = AgentHome(tmp_path / "home", daemon)
    made.define("sh", 'command = ["sh"]\n')
    yield made
    made.gone()
