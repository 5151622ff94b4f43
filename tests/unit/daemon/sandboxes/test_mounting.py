"""The order of steps by which folders come into a sandbox, with an opener and a porter that only note what they are asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from leeward.daemon.sandboxes.mounting import Mounting, Mounts
from leeward.errors import LeewardError
from leeward.spec.folders import Folder


class Asked:
    """What an opener or a porter was asked."""

    def __init__(self, answered: Callable[..., None], order: Mapping[str, Any] | None = None) -> None:
        self.answered, self.orders, self.cancelled = answered, [] if order is None else [order], False

    def give(self, order: Mapping[str, Any], fds: Sequence[int]) -> None:
        assert fds
        self.orders.append(order)

    def cancel(self) -> None:
        self.cancelled = True


class Place:
    def __init__(self, owner: tuple[int, int]) -> None:
        self.owner, self.porters, self.fails = owner, list[Asked](), False

    def carry(self, order: Mapping[str, Any] | None, _fds: Sequence[int], answered: Callable[..., None],
              _seconds: float, *, apart: bool = False) -> Asked:
        assert apart
        if self.fails:
            raise LeewardError("no porter")
        self.porters.append(Asked(answered, order))
        return self.porters[-1]


class Opener:
    def __init__(self) -> None:
        self.maps: list[Asked] = []

    def map(self, _trees: Sequence[int], _user: tuple[int, int], _host: tuple[int, int],
            mapped: Callable[..., None]) -> Asked:
        self.maps.append(Asked(mapped))
        return self.maps[-1]

    def show_host(self, paths: Sequence[str], _trees: Sequence[int], _host: tuple[int, int],
                  shown: Callable[..., None]) -> Asked:
        self.shown = paths
        self.maps.append(Asked(shown))
        return self.maps[-1]


class Case:
    """One mounting of one folder; *ours* if the sandbox's processes are the daemon's user on the host."""

    def __init__(self, *, ours: bool = False, fails: bool = False, host: bool = False) -> None:
        self.opener, self.place = Opener(), Place((os.geteuid(), os.getegid()) if ours else (12345, 12345))
        self.place.fails = fails
        self.done: list[LeewardError | None] = []
        self.tree = os.open("/", os.O_PATH | os.O_CLOEXEC)
        self.mounts = Mounts((Folder("/a", "/a"),), [self.tree], (0, 0), [(1, 2)], 0, [])
        if host:
            self.mounts.hides, self.mounts.cwd = (), "/a"
        self.mounting = Mounting(self.opener, self.place, self.mounts, (), self.done.append)

    @property
    def closed(self) -> bool:
        try:
            os.fstat(self.tree)
        except OSError:
            return True
        return False


def test_the_porter_begins_while_owners_are_mapped_and_has_its_order_afterwards() -> None:
    case = Case()
    (mapping,), (porter,) = case.opener.maps, case.place.porters
    assert not porter.orders

    mapping.answered([], [])
    assert ["mount"] == [order["order"] for order in porter.orders]
    assert not case.done

    porter.answered({"ok": True}, [])
    assert [None] == case.done
    assert case.closed
    assert not porter.cancelled
    assert not mapping.cancelled


def test_roots_own_folders_are_mounted_before_the_clients() -> None:
    """Of a view of the host; what everybody may read there, and secrets in /etc, aren't among them."""
    case = Case(host=True)
    (showing,), (porter,) = case.opener.maps, case.place.porters
    assert "/root" in case.opener.shown
    assert {"/etc", "/boot", "/usr", "/tmp", "/proc"}.isdisjoint(case.opener.shown)

    tree = os.open("/", os.O_PATH | os.O_CLOEXEC)
    showing.answered([tree], [("/root",)])
    order, = porter.orders
    assert ["/root", "/a"] == [row["target"] for row in order["mounts"]]
    assert "/a" == order["cwd"]
    assert [tree, case.tree] == case.mounts.trees

    porter.answered({"ok": True}, [])
    assert [None] == case.done
    assert case.closed
    assert not case.mounts.trees


def test_without_owners_to_map_the_porter_begins_with_its_order() -> None:
    case = Case(ours=True)
    assert not case.opener.maps
    assert ["mount"] == [order["order"] for order in case.place.porters[0].orders]


def test_owners_that_can_not_be_mapped_end_the_porter() -> None:
    case = Case()
    case.opener.maps[0].answered(LeewardError("no map"), [])
    assert ["no map"] == list(map(str, case.done))
    assert case.closed
    assert case.place.porters[0].cancelled
    assert not case.place.porters[0].orders


def test_a_porter_that_ends_too_early_ends_the_mapping() -> None:
    case = Case()
    case.place.porters[0].answered(LeewardError("it has ended"), [])
    assert ["the folders can't be mounted: it has ended"] == list(map(str, case.done))
    assert case.closed
    assert case.opener.maps[0].cancelled


def test_a_porter_that_can_not_begin_ends_the_mapping() -> None:
    case = Case(fails=True)
    assert ["no porter"] == list(map(str, case.done))
    assert case.closed
    assert case.opener.maps[0].cancelled


@pytest.mark.parametrize("mapped", [False, True])
def test_a_sandbox_that_is_over_ends_both(mapped: bool) -> None:
    case = Case()
    if mapped:
        case.opener.maps[0].answered([], [])
    case.mounting.cancel()
    assert case.place.porters[0].cancelled
    assert case.opener.maps[0].cancelled is not mapped
    assert case.closed
    assert not case.done
