"""What ends with a connection, and what has ended before."""

from __future__ import annotations

from leeward.daemon.serving.holds import Hold, Holds


def test_what_lives_is_ended_once_and_the_rest_is_not() -> None:
    ended: list[int] = []
    living = {1, 3}
    holds = Holds()
    for number in range(4):
        holds.add(Hold(lambda number=number: number in living, lambda number=number: ended.append(number)))  # type: ignore[misc]
    assert holds
    holds.end()
    holds.end()

    assert [1, 3] == ended
    assert not holds


def test_what_has_ended_takes_no_memory() -> None:
    """However many there were on one connection; those that live stay."""
    holds = Holds()
    holds.add(Hold(lambda: True, lambda: None))
    for _ in range(10_000):
        holds.add(Hold(lambda: False, lambda: None))

    assert len(holds._rows) <= 64
    assert holds


def test_one_that_cannot_be_ended_keeps_no_other_alive() -> None:
    ended: list[str] = []

    def fails() -> None:
        raise OSError("no")

    holds = Holds()
    holds.add(Hold(lambda: True, fails))
    holds.add(Hold(lambda: True, lambda: ended.append("second")))
    try:
        holds.end()
    except OSError:
        ended.append("told")

    assert ["second", "told"] == ended
