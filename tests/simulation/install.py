"""The product's modules see the simulated kernel, for as long as one run takes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from leeward.daemon.loop import native
from leeward.daemon.run import calling_job, execution, lease, output, reply, report, runner
from leeward.daemon.sandboxes import streams
from leeward.daemon.serving import connection, flight, inbox, operations, peers, rounds, server
from leeward.daemon.worker import arming, keeper, orphans, worker

from .host import Host
from .kernel import Channel, Kernel, Memory
from .loop import SHIM
from .modules import Fcntl, Os, Select, Signal

#: Shorter than the product's, so that a run has some of them: of an answer that isn't read, and of half a frame.
UNREAD_S, FRAME_S = 3.0, 2.0


class Log:
    """The daemon's log: a bug that it caught is one all the same."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def exception(self, what: str, **_: object) -> None:
        self._kernel.violate(f"{what}: {traceback.format_exc()}")

    def error(self, what: str, **fields: object) -> None:
        self._kernel.violate(f"{what}: {fields}")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _pairs(host: Host) -> Callable[[], tuple[Channel, Channel]]:
    """Where a descriptor is missing now and then."""
    pair = Channel.pairs(host.kernel)

    def made() -> tuple[Channel, Channel]:
        if host.fails("no descriptor"):
            raise OSError(errno.EMFILE, "too many open files")
        return pair()
    return made


def _no_maps(host: Host) -> Callable[..., None]:
    def write(*_: object) -> None:
        if host.fails("id maps"):
            raise OSError(errno.EPERM, "no")
    return write


@contextlib.contextmanager
def installed(host: Host) -> Iterator[None]:
    """The product's modules see the simulated kernel."""
    kernel = host.kernel
    os_, signal_, select_ = Os(kernel), Signal(kernel), Select(kernel)
    pairs = type("Channel", (), {"pair": staticmethod(_pairs(host))})
    places: list[tuple[Any, dict[str, Any]]] = [
        (execution, {"os": os_, "unread": kernel.unread}), (calling_job, {"os": os_}),
        (reply, {"os": os_}),
        (lease, {"os": os_, "select": select_, "signal": signal_, "unread": kernel.unread}),
        (output, {"os": os_, "fcntl": Fcntl(), "unread": kernel.unread, "widen": lambda *_: None,
                  "memory_file": lambda _: kernel.open(Memory())}),
        (runner, {"os": os_, "select": select_, "signal": signal_, "job_of": lambda pid: pid + 1,
                  "is_runnable": lambda pid: kernel.dice.random() < 0.5}),
        (report, {"os": os_}),
        (streams, {"os": os_, "fcntl": Fcntl(), "memory_file": lambda _: kernel.open(Memory())}),
        (keeper, {"os": os_, "signal": signal_, "Channel": pairs, "write_id_maps": _no_maps(host),
                  "reap": lambda _: None}),
        (arming, {"os": os_, "Channel": pairs, "_numbers": itertools.count(1)}),
        (orphans, {"reap_orphans": lambda: True}),
        (worker, {"reap": lambda _: None}),
        (native, {"native": SHIM}),
        (connection, {"log": Log(kernel), "OUTPUT": 150_000, "STEP": 2, "UNREAD_S": UNREAD_S, "FRAME_S": FRAME_S}),
        (rounds, {"OWNERS_TURN": 3, "GUESTS_TURN": 2, "RATE": 200}),
        (inbox, {"INPUT": 400_000, "FRAME_S": FRAME_S}),
        (flight, {"log": Log(kernel)}),
        (operations, {"log": Log(kernel)}),
        (server, {"log": Log(kernel)}),
        (peers, {"log": Log(kernel)}),
    ]
    before = [(module, {name: getattr(module, name) for name in names}) for module, names in places]
    try:
        _set(places)
        yield
    finally:
        _set(before)


def _set(places: list[tuple[Any, dict[str, Any]]]) -> None:
    for module, names in places:
        for name, value in names.items():
            setattr(module, name, value)
