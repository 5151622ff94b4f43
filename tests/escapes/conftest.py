"""
Sandboxes and canaries that the escape tests share.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from box import Box
from drivers import BorrowedDriver, UnlimitedDriver

#: Every cgroup driver; each is tested where this machine can have it.
DRIVERS = [
    pytest.param("v2", marks=pytest.mark.needs("cgroup-v2-controllers")),
    pytest.param("v1", marks=pytest.mark.needs("cgroup-v1-controllers", "root")),
    pytest.param("none"),
]


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """
    The product as it is: every lock.
    """
    with Box() as made:
        yield made


@pytest.fixture(scope="module")
def only() -> Iterator[Callable[..., Box]]:
    """
    `only("landlock")`: a sandbox with that lock alone; `only()` with none that can be left out.
    """
    boxes: dict[frozenset[str], Box] = {}
    with ExitStack() as stack:
        def make(*locks: str) -> Box:
            key = frozenset(locks)
            if key not in boxes:
                boxes[key] = stack.enter_context(Box(locks=key))
            return boxes[key]
        yield make


@pytest.fixture(scope="module", params=DRIVERS)
def held(request: pytest.FixtureRequest) -> Iterator[Box]:
    """
    The product, with each driver in turn that this machine can have.
    """
    with Box(cgroup=request.param) as made:
        yield made


@pytest.fixture(scope="module")
def held_alone(held: Box) -> Iterator[Box]:
    """
    The driver of `held`, and no other lock that can be left out.
    """
    with Box(locks=(), driver=BorrowedDriver(held.engine.driver)) as made:
        yield made


@pytest.fixture(scope="module")
def unlimited() -> Iterator[Box]:
    """
    Every lock, and a driver that limits nothing: the control of whatever a driver holds.
    """
    with Box(driver=UnlimitedDriver()) as made:
        yield made


@pytest.fixture
def folder() -> Iterator[Path]:
    """
    A folder of the host that everybody may look into. Not below /tmp, which is the job's own.
    """
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
