"""The two shapes of the client side by side: a call of one is a call of the other, with the same parameters and text."""

from __future__ import annotations

import inspect
import re
from types import ModuleType
from typing import Any

import pytest

import leeward
from kit.from_file import module_at
from leeward.client.overlay_calls import OverlayCalls

PAIRS = [(getattr(leeward, name), getattr(leeward, f"Async{name}"))
         for name in ("Client", "Files", "Kernel", "Process", "Sandbox", "Session", "WorkdirSandbox")]
#: What only one shape has, with the reason.
ONE_SHAPE = {
    "Client.interrupt": "a thread can't be cancelled, and a task can",
    "Session.__enter__": "`AsyncClient.session` is the context",
    "Session.__exit__": "the same",
    "WorkdirSandbox.put_away": "an attribute in the one, a property in the other",
}
OTHER_PARAMETERS = {"Sandbox.__init__": "an AsyncClient's connection serves many sandboxes, a Link one call at a time",
                    "Sandbox.attach": "the same",
                    "Session.__init__": "programs don't call it: a client opens the session, each over its own connection"}
#: Calls and classes that the shapes describe in texts of their own, with the reason.
OTHER_TEXTS = {
    "Client.session": "one returns the session, the other a context",
    **dict.fromkeys(("Session", *(f"Session.{name}" for name in ("close", "execute", "interrupt", "reset"))),
                    "a connection of its own, or the client's, on which an interrupt is answered"),
    **dict.fromkeys((f"Sandbox.{name}" for name, call in vars(OverlayCalls).items()
                     if inspect.isfunction(call) and not name.startswith("_")), "it is the blocking one's, in a thread"),
    **dict.fromkeys(("WorkdirSandbox", *(f"WorkdirSandbox.{name}" for name in (
        "available_tools", "diff", "exec", "exec_js", "fetch", "list_dir", "read_file", "write_file"))), "the same"),
}
#: How one shape says what the other says in its own way.
NAMES = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return module_at("packaging/blocking_client.py")


def surface(kind: type) -> dict[str, Any]:
    """What a program may use of a class, by the blocking client's name; without the properties' difference."""
    found = {NAMES.get(name, name): inspect.getattr_static(kind, name) for name in dir(kind)
             if not name.startswith("_") or name in {*NAMES, *NAMES.values(), "__init__"}}
    calls = {name: value.fget if isinstance(value, property) else getattr(value, "__func__", value)
             for name, value in found.items()}
    return {name: call for name, call in calls.items() if inspect.isroutine(call)}


def parameters(call: Any) -> list[tuple[str, Any, str]]:
    return [(one.name, one.default, one.kind.name) for one in inspect.signature(call).parameters.values()]


def text(maker: ModuleType, what: Any) -> str:
    """A docstring in the blocking client's words, without line ends and what holds with asyncio alone."""
    kept = [part for part in (inspect.getdoc(what) or "").split("\n\n") if not part.startswith("With asyncio, ")]
    words: str = maker.words("\n\n".join(kept))
    return re.sub(r"\s+", " ", words)


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda kind: kind.__name__)
def test_both_shapes_have_the_same_calls(maker: ModuleType, one: type, other: type) -> None:
    ours, theirs = surface(one), surface(other)
    both = {name: f"{one.__name__}.{name}" for name in ours.keys() & theirs.keys()}

    assert {f"{one.__name__}.{name}" for name in ours.keys() ^ theirs.keys()} == {
        name for name in ONE_SHAPE if name.startswith(f"{one.__name__}.")}
    assert {name for call, name in both.items() if parameters(ours[call]) != parameters(theirs[call])} == {
        name for name in OTHER_PARAMETERS if name.startswith(f"{one.__name__}.")}
    assert {name for call, name in both.items() if text(maker, ours[call]) != text(maker, theirs[call])} == {
        name for name in OTHER_TEXTS if name.startswith(f"{one.__name__}.")}
    assert (text(maker, one) != text(maker, other)) == (one.__name__ in OTHER_TEXTS)
