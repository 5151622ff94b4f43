"""
A loop whose callbacks raise on demand: each by its name, before or after its body, once or always.

    layer = Layer()
    reactor = layer.reactor("epoll")
    ...                                        # everything that calls back by this reactor is noted in layer.seen
    with layer.raising("Worker._on_message", AFTER, times=1):
        ...

Runs in:   the tests. It wraps what is registered where it is registered (watch, at, soon, accept, stream, and the
reports of the fast path), so the product has no switch for it. The barrier sees the same owner and name as without it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from kit import reactors
from kit.reference_reactor import ReferenceReactor
from leeward.daemon.loop.barrier import name_of, owner_of
from leeward.daemon.loop.native import NativeReactor
from leeward.daemon.loop.reactor import Reactor

BEFORE, AFTER = "before", "after"
ALWAYS = 1 << 30


class Fault(Exception):
    """The exception that the layer raises. No code of the product expects it."""


class Wrapped:
    """A callback that may raise. To the barrier it looks like the callback that it wraps."""

    def __init__(self, layer: Layer, callback: Callable[..., Any]) -> None:
        self._layer, self._callback = layer, callback
        self.__self__ = owner_of(callback)
        self._name = name_of(callback)
        self.__name__ = self._name.rpartition(".")[2]

    def __call__(self, *args: Any) -> Any:
        when = self._layer.turn_of(self._name)
        if BEFORE == when:
            raise Fault(f"{when} {self._name}")
        result = self._callback(*args)
        if AFTER == when:
            raise Fault(f"{when} {self._name}")
        return result


class _Speaker:
    """A wrapper of an object whose methods are called back: a stream's receiver, or the execution of a short job."""

    def __init__(self, layer: Layer, inner: Any, *methods: str) -> None:
        self.__dict__["_inner"] = inner
        for method in methods:
            self.__dict__[method] = Wrapped(layer, getattr(inner, method))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)


class Layer:
    """
    Attributes:
        seen: how often each callback was called.
        raised: how often the wanted one has raised.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.raised = 0
        self._wanted, self._when, self._left = "", "", 0

    def turn_of(self, name: str) -> str:
        self.seen[name] += 1
        if name != self._wanted or not self._left:
            return ""
        self._left -= 1
        self.raised += 1
        return self._when

    @contextlib.contextmanager
    def raising(self, name: str, when: str, times: int) -> Iterator[None]:
        self._wanted, self._when, self._left, self.raised = name, when, times, 0
        try:
            yield
        finally:
            self._wanted = ""

    def reactor(self, which: str) -> Reactor:
        """Return one of reactors.ALL, with this layer in it."""
        if reactors.REFERENCE == which:
            reference: Reactor = _layered(ReferenceReactor, self)()
            return reference
        made: NativeReactor = _layered(NativeReactor, self)({reactors.EPOLL: "socket", reactors.URING: "uring"}[which])
        fast_path: Any = made.fast_path
        expect = fast_path.expect
        fast_path.expect = lambda runner, job: expect(runner, _Speaker(self, job, "completed", "handed_over"))
        return made


def _layered(kind: type[Any], layer: Layer) -> Any:
    class Layered(kind):  # type: ignore[misc]  # either reactor
        def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
            super().watch(fd, events, Wrapped(layer, callback))

        def at(self, when: float, call: Callable[[], None]) -> Any:  # by which `after` goes, too
            return super().at(when, Wrapped(layer, call))

        def soon(self, call: Callable[[], None]) -> None:
            super().soon(Wrapped(layer, call))

        def accept(self, listener: Any, met: Callable[..., None], failed: Callable[..., None]) -> None:
            super().accept(listener, Wrapped(layer, met), Wrapped(layer, failed))

        def stream(self, sock: Any, receiver: Any) -> Any:
            return super().stream(sock, _Speaker(layer, receiver, "received", "failed", "room", "sent", "job_started",
                                                   "ran", "refused"))

    return Layered
