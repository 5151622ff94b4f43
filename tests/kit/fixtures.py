"""
Fixtures that more than one file of tests has: reactors, servers, sandboxes, people who decide, an agent's home.

Runs in:   pytest, as a plugin of conftest.py. A file that needs one of these in another form defines its own fixture
           of that name.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leeward
from kit import egress, packages, reactors
from kit.agents import AgentHome
from kit.approvals import ServedApprovals
from kit.live_daemon import LiveDaemon
from leeward.daemon.loop.reactor import Reactor


@pytest.fixture(params=reactors.ALL)
def reactor(request: pytest.FixtureRequest) -> Iterator[Reactor]:
    """A reactor of each kind."""
    made = reactors.reactor(request.param)
    yield made
    made.close()


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveDaemon]:
    """A daemon for all tests of a file, with the options that the file has in DAEMON."""
    with LiveDaemon(tmp_path_factory.mktemp("daemon"), *getattr(request.module, "DAEMON", ())) as made:
        yield made


@pytest.fixture(scope="module")
def client(daemon: LiveDaemon) -> Iterator[leeward.Client]:
    """A client of the file's daemon."""
    with daemon.client() as made:
        yield made


@pytest.fixture(scope="module")
def host() -> Iterator[egress.Servers]:
    """Servers on this host's loopback."""
    with egress.servers() as made:
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
def home(daemon: LiveDaemon, tmp_path: Path) -> Iterator[AgentHome]:
    """A home with an agent that is a shell, for the file's daemon."""
    made = AgentHome(tmp_path / "home", daemon)
    made.define("sh", 'command = ["sh"]\n')
    yield made
    made.gone()
