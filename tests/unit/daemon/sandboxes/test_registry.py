"""Who has which sandbox, and what is remembered of those that are over."""

from __future__ import annotations

import random

import pytest

from leeward.daemon.sandboxes.registry import (
    ENDED,
    ENDED_OF_ONE,
    LIMITS,
    MOST_OF_ONE,
    SAID,
    Reason,
    Registry,
    RegistryEntry,
)
from leeward.errors import Busy, SandboxOver
from leeward.wire import sandbox_fields


def registry(seed: int = 1) -> Registry[str]:
    return Registry(random.Random(seed).randbytes)


def add(made: Registry[str], user: int = 1000, *, idle: float = 10.0, lifetime: float = 100.0) -> RegistryEntry[str]:
    return made.add(user, "it", idle=idle, lifetime=lifetime, now=0.0)


def reason(made: Registry[str], name: str, user: int = 1000) -> str:
    with pytest.raises(SandboxOver) as caught:
        made.get(name, user)
    return caught.value.reason


def test_ids_are_of_the_alphabet_and_never_alike() -> None:
    """As the wire has them."""
    made = registry()
    names = [add(made).name for _ in range(500)]

    assert 500 == len(set(names))
    for name in names:
        assert name == sandbox_fields.sandbox(name, "sandbox")


def test_ids_have_110_bits_of_the_systems_randomness() -> None:
    """Every letter of the alphabet at every place but the daemon's."""
    made: Registry[str] = Registry()
    names = [add(made).name for _ in range(1000)]

    assert all(32 == len({name[place] for name in names}) for place in range(4, 26))


def test_only_its_user_finds_a_sandbox() -> None:
    """To a stranger, root included, it is as one that never was: the same answer to the letter."""
    made = registry()
    entry = add(made, 1000)
    assert entry is made.get(entry.name, 1000)
    never = entry.name[:-1] + ("a" if entry.name[-1] != "a" else "b")

    for user in (0, 1001):
        said = []
        for name in (entry.name, never):
            with pytest.raises(SandboxOver) as caught:
                made.get(name, user)
            said.append((caught.value.message.replace(name, "X"), caught.value.reason, caught.value.when))
        assert said[0] == said[1]
    made.end(entry.name, Reason.KILLED, 5.0)
    assert ("killed", "unknown") == (reason(made, entry.name), reason(made, entry.name, 1001))


def test_an_end_is_remembered_with_its_time() -> None:
    """And its limit, where it was one."""
    made = registry()
    for why in (Reason.LIFETIME, Reason.MEMORY, Reason.IDLE):
        entry = add(made)
        made.end(entry.name, why, 5.0, "a detail")
        with pytest.raises(SandboxOver, match="a detail") as caught:
            made.get(entry.name, 1000)
        assert (str(why), 5.0, LIMITS.get(why)) == (caught.value.reason, caught.value.when, caught.value.limit)
    assert set(SAID) == set(Reason)


def test_the_memory_of_ends_is_bounded() -> None:
    """A user who ends many forgets his own, and nobody else's until all are many."""
    made = registry()
    kept = add(made, 7)
    made.end(kept.name, Reason.IDLE, 1.0)
    mine = [add(made) for _ in range(ENDED_OF_ONE + 1)]
    for entry in mine:
        made.end(entry.name, Reason.KILLED, 1.0)

    assert ENDED_OF_ONE + 1 == len(made._ended)
    assert ("unknown", "killed", "idle") == (
        reason(made, mine[0].name), reason(made, mine[1].name), reason(made, kept.name, 7))
    for user in range(2000, 2000 + ENDED):
        made.end(add(made, user).name, Reason.KILLED, 1.0)
    assert ENDED == len(made._ended)
    assert "unknown" == reason(made, kept.name, 7)
    assert 0 == len(made)


def test_a_user_has_only_so_many() -> None:
    """By his quota, or the bound for all; others aren't hit by that."""
    made = registry()
    entry = add(made)
    made.admit(1000, 2)
    with pytest.raises(Busy, match="user 1000 has 1 sandboxes"):
        made.admit(1000, 1)
    made.admit(1001, 1)
    made.end(entry.name, Reason.KILLED, 1.0)
    made.admit(1000, 1)
    for _ in range(MOST_OF_ONE):
        add(made)
    with pytest.raises(Busy):
        made.admit(1000)


def test_the_next_due_sandbox_is_found() -> None:
    """Idle only while nothing waits for it; at the end of its lifetime in any case."""
    entry = add(registry(), idle=10.0, lifetime=100.0)

    assert (None, Reason.IDLE) == (entry.due(9.9), entry.due(10.0))
    assert 10.0 == entry.next_look()
    entry.calls = 1
    assert (None, Reason.LIFETIME) == (entry.due(99.9), entry.due(100.0))
    assert 100.0 == entry.next_look()


def test_a_sandbox_of_a_daemon_that_has_gone() -> None:
    """Is told from one that never was."""
    old, new = registry(1), registry(2)

    assert "restart" == reason(new, add(old).name)
    later: Registry[str] = Registry(random.Random(3).randbytes, since=7.0)
    with pytest.raises(SandboxOver) as caught:
        later.get(add(old).name, 1000)
    assert ("restart", 7.0) == (caught.value.reason, caught.value.when)
