"""
Sandboxes and canaries that the escape tests share.

Each test of a case says by a mark which lock it is about, or why there is none, and is held to it:
tests/kit/lock_policy.py has the marks, tests/kit/locks.py the names.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kit.attack import serves
from kit.box import Box
from kit.drivers import DRIVERS, BorrowedDriver
from kit.sessions import Wire


class Shared:
    """Sandboxes by their locks, each started once for all tests of a file: a start takes a third of a second."""

    def __init__(self) -> None:
        self._boxes: dict[frozenset[str] | None, Box] = {}
        self._stack = ExitStack()

    def get(self, locks: frozenset[str] | None) -> Box:
        if locks not in self._boxes:
            self._boxes[locks] = self._stack.enter_context(Box(locks=locks))
        return self._boxes[locks]

    def close(self) -> None:
        """End them all; who asks again gets new ones."""
        self._boxes.clear()
        self._stack.close()


_SHARED = Shared()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """
    Nothing of ours is there while tests of other files count processes and descriptors, and no attack
    on a sandbox with a lock alone is felt there.
    """
    if nextitem is None or nextitem.path != item.path:
        _SHARED.close()


@pytest.fixture
def box() -> Iterator[Box]:
    """The product as it is: every lock. It serves as before when the test is over."""
    made = _SHARED.get(None)
    yield made
    assert serves(made)


@pytest.fixture
def only() -> Callable[..., Box]:
    """`only("landlock")`: a sandbox with that lock alone; `only()` with none that can be left out."""
    return lambda *locks: _SHARED.get(frozenset(locks))


@pytest.fixture(scope="module")
def two() -> Iterator[Box]:
    """The product, with two workers that may both be a session's or a sandbox's."""
    with Box(pool_size=2, spares=0, max_sessions=2) as made:
        yield made


@pytest.fixture
def wire(two: Box) -> Iterator[Wire]:
    """Connections to a server before `two`, which serves as before when the test is over."""
    with Wire(two) as made:
        yield made
    assert serves(two)


@pytest.fixture(scope="module", params=DRIVERS)
def held(request: pytest.FixtureRequest) -> Iterator[Box]:
    """The product, with each driver in turn that this machine can have."""
    with Box(cgroup=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def held_with(held: Box) -> Iterator[Callable[..., Box]]:
    """`held_with("mounts")`: the driver of `held`, that lock, and no other that can be left out."""
    made: dict[frozenset[str], Box] = {}
    with ExitStack() as stack:
        def get(*locks: str) -> Box:
            wanted = frozenset(locks)
            if wanted not in made:
                made[wanted] = stack.enter_context(Box(locks=wanted, driver=BorrowedDriver(held.engine.driver)))
            return made[wanted]
        yield get


@pytest.fixture
def held_alone(held_with: Callable[..., Box]) -> Box:
    """The driver of `held`, and no other lock that can be left out."""
    return held_with()


@pytest.fixture(scope="module")
def unlimited() -> Iterator[Box]:
    """Every lock, and a driver that limits nothing: the control of whatever a driver holds."""
    with Box(lacks={"limits"}) as made:
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of the host that everybody may look into. Not below /tmp, which is the job's own."""
    made = Path(tempfile.mkdtemp(dir="/var/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def secret() -> Iterator[tuple[Path, str]]:
    """
    A canary: a file of the host that everybody may read, and the random text in it.

    Not below /tmp: with Landlock alone that is a folder of the job's, whoever's it really is.
    """
    text = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        path = Path(folder) / "secret"
        path.write_text(text)
        path.chmod(0o644)
        yield path, text
