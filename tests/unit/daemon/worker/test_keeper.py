"""The files by which a keeper's jobs are told how much they may use."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from leeward.daemon.loop.reactor import Reactor
from leeward.daemon.worker import java_store
from leeward.daemon.worker.keeper import Keeper
from leeward.spec import machine
from leeward.spec.limits import Limits

DEFAULT = Limits()
LESS = Limits(memory=20 << 20, processes=1)


def opened(folder: Path) -> list[int]:
    made = []
    for number, content in enumerate(machine.sizes(DEFAULT)):
        (folder / str(number)).write_bytes(content)
        made.append(os.open(folder / str(number), os.O_WRONLY))
    return made


def shown(folder: Path) -> tuple[bytes, ...]:
    return tuple((folder / str(number)).read_bytes() for number, _ in enumerate(machine.SIZED))


@pytest.fixture
def keeper():
    made = Keeper(MagicMock(spec=Reactor), DEFAULT)
    yield made
    made.close()


def test_the_files_say_the_limits_of_the_job_and_then_the_default_again(tmp_path: Path, keeper: Keeper) -> None:
    """Also where the new text is shorter."""
    fds = opened(tmp_path)
    keeper.ready(list(fds))
    for limits in (LESS, DEFAULT):
        keeper.show(limits)
        assert machine.sizes(limits) == shown(tmp_path)

    for fd in fds:
        os.close(fd)


def test_a_file_that_could_not_be_written_is_written_the_next_time(tmp_path: Path, keeper: Keeper) -> None:
    fds = opened(tmp_path)
    readable = os.open(tmp_path / "0", os.O_RDONLY)
    os.dup2(readable, fds[0])
    os.close(readable)
    keeper.ready(list(fds))
    for _ in range(2):
        with pytest.raises(OSError):
            keeper.show(LESS)

    for fd in fds:
        os.close(fd)


def test_a_keeper_whose_jobs_have_no_such_files_writes_none(keeper: Keeper) -> None:
    keeper.ready([])
    keeper.show(LESS)
    keeper.show(DEFAULT)


def test_a_keeper_at_rest_holds_no_files_for_the_next_job(tmp_path: Path, keeper: Keeper) -> None:
    """It gets none, and isn't told its limits."""
    fds = opened(tmp_path)
    keeper.ready([os.open(tmp_path, os.O_RDONLY), *fds])
    there = len(os.listdir("/proc/self/fd"))
    assert not keeper.rested
    for watched in (False, True):
        keeper.rest(watched=watched)
        assert there - len(fds) == len(os.listdir("/proc/self/fd"))
    assert keeper.rested
    keeper.show(LESS)
    assert machine.sizes(DEFAULT) == shown(tmp_path)
    keeper._close_rest()


def test_the_next_job_trusts_its_own_certificate_alone(tmp_path: Path, keeper: Keeper) -> None:
    """Behind those that all trust, also where the one before was longer."""
    file, javas = tmp_path / "trust", tmp_path / "java"
    trust, java = (os.open(each, os.O_WRONLY | os.O_CREAT) for each in (file, javas))
    listener = os.open(tmp_path, os.O_RDONLY)
    assert keeper.ready([*opened(tmp_path), trust, java, listener], 1, b"all of the host's\n")
    assert [listener] == keeper.listeners
    assert b"all of the host's\n" == file.read_bytes()
    begun = java_store.beginning(b"all of the host's\n")
    for own in (b"of a long one", b"of one"):
        keeper.trust(own)
        assert b"all of the host's\n" + own == file.read_bytes()
        assert begun + java_store.rest(begun, own) == javas.read_bytes()
    keeper.show(LESS)
    assert machine.sizes(LESS) == shown(tmp_path)
    keeper.rest(watched=False)
    with pytest.raises(OSError):
        keeper.trust(b"of nobody")
    keeper._close_rest()


def test_a_keeper_without_the_file_of_certificates_is_not_ready(keeper: Keeper) -> None:
    with pytest.raises(OSError):
        keeper.ready([], 0, b"all")
