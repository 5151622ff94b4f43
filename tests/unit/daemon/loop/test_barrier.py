"""The barrier: an exception ends its owner, is counted and told, and ends nothing else."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import leeward
from leeward.daemon.loop import barrier as barrier_module
from leeward.daemon.loop.barrier import COSTS, Barrier, in_any_case, name_of, owner_of, trace_of
from leeward.daemon.loop.reactor import _FAILURES, READ, Reactor

pytestmark = pytest.mark.faults("they are what this is about")

SOURCES = sorted(Path(leeward.__path__[0]).rglob("*.py"))


class Owner:
    """One whose callbacks fail."""

    costs = "job"

    def __init__(self, *, mends: bool = True) -> None:
        self.ended: list[Exception] = []
        self.calls = 0
        self._mends = mends

    def fails(self, *_: object) -> None:
        self.calls += 1
        raise ZeroDivisionError(f"call {self.calls}")

    def broken(self, error: Exception) -> None:
        self.ended.append(error)
        if not self._mends:
            raise RuntimeError("and it can't be ended")


@pytest.fixture
def told(reactor: Reactor) -> list[tuple[str, str, int]]:
    rows: list[tuple[str, str, int]] = []
    reactor.barrier.report = lambda cost, name, error, trace, times: rows.append((cost, name, times))
    return rows


# --- an owner ------------------------------------------------------------------


def test_the_owner_is_whose_bound_method_it_is() -> None:
    owner = Owner()

    assert owner is owner_of(partial(partial(owner.fails, 1), 2))
    assert owner_of(len) is not owner
    assert owner_of(test_the_owner_is_whose_bound_method_it_is) is None
    assert "Owner.fails" == name_of(partial(owner.fails, 1))
    assert "trace_of" == name_of(trace_of)


def test_a_failure_costs_its_owner_and_is_logged_at_intervals() -> None:
    """With where it came from, and how many there were since the last time."""
    now = [100.0]
    barrier, owner = Barrier(lambda: now[0]), Owner()
    rows: list[tuple[str, str, str, int]] = []
    costs: list[str] = []
    barrier.report = lambda cost, name, error, trace, times: rows.append((cost, name, trace[-1].split()[1], times))
    barrier.count = costs.append
    for seconds in (0.0, 1.0, 1.0, barrier_module.TELL_S):
        now[0] += seconds
        try:
            owner.fails()
        except ZeroDivisionError as error:
            barrier.caught(owner.fails, error)

    assert [("job", "Owner.fails", "fails", 1), ("job", "Owner.fails", "fails", 3)] == rows
    assert 4 == barrier.faults == len(owner.ended)
    assert ["job"] * 4 == costs


def test_a_failing_end_is_logged_too() -> None:
    barrier, owner = Barrier(), Owner(mends=False)
    names: list[str] = []
    barrier.report = lambda cost, name, error, trace, times: names.append(name)
    barrier.caught(owner.fails, ZeroDivisionError())

    assert ["Owner.fails", "Owner.broken"] == names
    assert 2 == barrier.faults


def test_a_failing_log_does_not_end_the_loop() -> None:
    barrier, owner = Barrier(), Owner()
    barrier.report = owner.fails
    barrier.count = owner.fails
    barrier.caught(owner.fails, ZeroDivisionError())

    assert 1 == barrier.faults == len(owner.ended)


def test_every_step_is_taken() -> None:
    """By both ways; the errors come afterwards, or are told."""
    owner, taken = Owner(), []
    in_any_case(partial(taken.append, 0))
    with pytest.raises(ZeroDivisionError):
        in_any_case(owner.fails, partial(taken.append, 1))
    with pytest.raises(ExceptionGroup) as raised:
        in_any_case(owner.fails, owner.fails, partial(taken.append, 2))
    barrier = Barrier()
    barrier.steps(owner.fails, partial(taken.append, 3), owner.fails)

    assert [0, 1, 2, 3] == taken
    assert 2 == barrier.faults == len(raised.value.exceptions)
    assert "fails" == trace_of(raised.value)[-1].split()[1]


# --- the loop ------------------------------------------------------------------


def test_callbacks_behind_a_failed_one_are_called(reactor: Reactor, told: list[tuple[str, str, int]]) -> None:
    """In one turn: of descriptors, of timers, and of deferred calls."""
    owner, got = Owner(), []
    pipes = [os.pipe() for _ in range(3)]
    for number, (read, write) in enumerate(pipes):
        reactor.watch(read, READ, owner.fails if number < 2 else lambda _: got.append("ready"))
        os.write(write, b"x")
    for call in (owner.fails, partial(got.append, "timer")):
        reactor.after(0.0, call)
    for call in (owner.fails, partial(got.append, "soon")):
        reactor.soon(call)
    reactor.turn(0)

    assert {"ready", "timer", "soon"} == set(got)
    assert 4 == owner.calls == len(owner.ended) == reactor.barrier.faults
    assert [("job", "Owner.fails", 1)] == told
    for read, write in pipes:
        reactor.forget(read)
        os.close(read)
        os.close(write)


@pytest.mark.parametrize("mends", [True, False])
def test_a_descriptor_whose_callback_always_fails_is_not_spun_on(reactor: Reactor, mends: bool) -> None:
    """It stays ready: nobody reads it. After some failures in a row it rests, and is looked at again."""
    owner = Owner(mends=mends)
    read, write = os.pipe()
    os.write(write, b"x")
    reactor.watch(read, READ, owner.fails)
    for _ in range(50):
        reactor.turn(0)
    assert _FAILURES == owner.calls
    reactor.change(read, READ)  # while it rests
    reactor.run(lambda: 2 * _FAILURES == owner.calls)

    for _ in range(50):
        reactor.turn(0)
    assert 2 * _FAILURES == owner.calls
    assert reactor.watches(read)
    reactor.forget(read)
    assert not reactor.watches(read)
    reactor.watch(read, READ, owner.fails)  # anew, by the same number
    reactor.turn(0)
    assert 2 * _FAILURES + 1 == owner.calls
    reactor.forget(read)
    os.close(read)
    os.close(write)


def test_a_client_that_meets_a_failure_is_closed(reactor: Reactor) -> None:
    """The connection is closed, and the listener accepts the next one."""
    owner, met = Owner(), []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"\0leeward-test-%d" % os.getpid())
        listener.listen()
        listener.setblocking(False)

        def meet(sock: socket.socket) -> None:
            if not met:
                met.append(None)
                owner.fails()
            met.append(sock)
        reactor.accept(listener, meet, owner.fails)
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            first.connect(listener.getsockname())
            reactor.run(lambda: bool(reactor.barrier.faults))
            assert b"" == first.recv(1)
            second.connect(listener.getsockname())
            reactor.run(lambda: len(met) > 1)
        reactor.forget(listener.fileno())
        met[1].close()


class Receiver(Owner):
    """A connection that can't bear what comes."""

    costs = "connection"
    received = failed = room = sent = job_started = ran = Owner.fails


def test_a_connection_ends_by_its_own_failure(reactor: Reactor, told: list[tuple[str, str, int]]) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    receiver = Receiver()
    stream = reactor.stream(ours, receiver)
    theirs.send(b"x")
    reactor.run(lambda: bool(receiver.ended))

    assert ["connection"] == [cost for cost, _, _ in told]
    stream.close()
    ours.close()
    theirs.close()


def test_a_keyboard_interrupt_is_not_caught(reactor: Reactor) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt
    reactor.soon(interrupt)

    with pytest.raises(KeyboardInterrupt):
        reactor.turn(0)


# --- the sources ---------------------------------------------------------------

#: Where a callback stands among the arguments.
REGISTERS = {"watch": (2,), "_watch": (2,), "at": (1,), "after": (1,), "soon": (0,), "accept": (1, 2), "_has_ended": (0,)}
#: Parameters by which one comes to the loop, whose callers are looked at as well.
ON_ITS_WAY = {"daemon/loop/reactor.py": {"callback", "call"}, "daemon/run/execution.py": {"callback"},
             "daemon/worker/arming.py": {"missed"}}


def registered(tree: ast.Module) -> Iterator[tuple[int, ast.expr]]:
    """The callbacks that a module gives to a reactor, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REGISTERS \
                and ("reactor" in ast.unparse(node.func.value) or "self" == ast.unparse(node.func.value)):
            for at in REGISTERS[node.func.attr]:
                if at < len(node.args):
                    yield node.lineno, node.args[at]


def owned(callback: ast.expr, functions: set[str]) -> bool:
    """Is it a bound method, a partial of one, or a function of the module's or another's top level?"""
    if isinstance(callback, ast.Call) and "partial" == ast.unparse(callback.func):
        return owned(callback.args[0], functions)
    if isinstance(callback, ast.IfExp):
        return owned(callback.body, functions) and owned(callback.orelse, functions)
    if isinstance(callback, ast.Name):
        return callback.id in functions
    return isinstance(callback, ast.Attribute)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(leeward.__path__[0])))
def test_every_callback_has_an_owner(path: Path) -> None:
    """No lambda and no nested function is given to the loop: nobody could be ended by its exception."""
    tree = ast.parse(path.read_text())
    names = {alias.asname or alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
             for alias in node.names} | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    names |= ON_ITS_WAY.get(str(path.relative_to(leeward.__path__[0])), set())
    assert not [line for line, callback in registered(tree) if not owned(callback, names)]


@pytest.mark.parametrize("source", [
    "self._reactor.soon(lambda: None)",
    "reactor.after(1.0, partial(lambda: None))",
    "def f():\n def g(): ...\n reactor.at(1, g)",
    "reactor.watch(1, 2, lambda _: None)",
    "self.reactor.accept(sock, self._meet, lambda error: None)",
])
def test_a_callback_without_an_owner_is_found(source: str) -> None:
    """The control of the test above."""
    tree = ast.parse(source)

    assert any(not owned(callback, set()) for _, callback in registered(tree))


@pytest.mark.thorough
def test_costs_are_words_of_the_metrics() -> None:
    """Every class that says what it costs says one of them, and can be ended."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names = {target.id: each.value for each in node.body if isinstance(each, ast.Assign)
                         for target in each.targets if isinstance(target, ast.Name)}
                if "costs" in names:
                    value = names["costs"]
                    assert isinstance(value, ast.Constant)
                    found.add(value.value)
                    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)} | {
                        each.attr for each in ast.walk(node)  # or the method of what it belongs to
                        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)}
                    assert "broken" in methods, node.name
    assert set(COSTS) - {"nothing"} == found
