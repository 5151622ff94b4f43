"""The reactors: the reference in Python, which only tests have, and the shim's two ways to the kernel."""

from __future__ import annotations

import pytest

from kit.reference_reactor import ReferenceReactor
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.loop.reactor import Reactor

REFERENCE, EPOLL, URING = "reference", "epoll", "uring"

#: The shim's two ways.
WAYS = (EPOLL, pytest.param(URING, marks=pytest.mark.needs("uring-transport")))
#: All of them, for pytest.mark.parametrize and fixtures' params.
ALL = (REFERENCE, *WAYS)


def reactor(name: str) -> Reactor:
    """Return the reactor of this name."""
    return ReferenceReactor() if REFERENCE == name else native(name)


def native(name: str) -> NativeReactor:
    return NativeReactor({EPOLL: "socket", URING: "uring"}[name])


#: The options by which `leeward daemon run` takes each reactor of the shim, with the fast path. In place of the
#: reference it takes the one over epoll without the fast path, so that Python handles every job.
OPTIONS = {REFERENCE: ("--io=socket", "--no-fast-path"), EPOLL: ("--io=socket",), URING: ("--io=uring",)}
