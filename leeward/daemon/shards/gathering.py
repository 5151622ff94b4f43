"""
Counters of the shards, which the daemon asks for, and which come later.

Runs in:   the daemon, on the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from leeward.daemon.shards.messages import ShardCounts
from leeward.loop.reactor import Reactor, Timer

#: Seconds that the shards have for an answer.
ANSWER_S = 0.5

#: Takes the counters of the shards that have answered, by their numbers.
Gathered = Callable[[dict[int, ShardCounts]], None]


class Gathering:
    """All questions that aren't answered yet."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._asks: dict[int, _Question] = {}
        self._last = 0

    def ask(self, shards: Mapping[int, Callable[[int], object]], done: Gathered) -> Callable[[], None]:
        """
        Ask *shards*, by functions that send the question with its number, and call *done* later with those that answer
        in time. Returns the function that cancels this.
        """
        self._last += 1
        number = self._last
        asked = self._asks[number] = _Question(set(shards), partial(self._finish, number, done))
        asked.timer = self._reactor.after(ANSWER_S, asked.finish)
        for send in shards.values():
            send(number)
        self._reactor.soon(asked.look)
        return partial(self._forget, number)

    def answered(self, shard: int, counts: ShardCounts) -> None:
        """*shard* has answered."""
        asked = self._asks.get(counts.number)
        if asked is not None:
            asked.answered(shard, counts)

    def lost(self, shard: int) -> None:
        """*shard* has ended, and answers nothing any more."""
        for asked in list(self._asks.values()):
            asked.lost(shard)

    def _finish(self, number: int, done: Gathered, found: dict[int, ShardCounts]) -> None:
        self._forget(number)
        done(found)

    def _forget(self, number: int) -> None:
        asked = self._asks.pop(number, None)
        if asked is not None:
            asked.close()


class _Question:
    """One question."""

    def __init__(self, missing: set[int], done: Gathered) -> None:
        self._missing, self._done = missing, done
        self._found: dict[int, ShardCounts] = {}
        self.timer: Timer | None = None

    def answered(self, shard: int, counts: ShardCounts) -> None:
        self._found[shard] = counts
        self.lost(shard)

    def lost(self, shard: int) -> None:
        if shard in self._missing:
            self._missing.discard(shard)
            self.look()

    def look(self) -> None:
        if not self._missing:
            self.finish()

    def finish(self) -> None:
        done, self._done = self._done, _nothing
        done(self._found)

    def close(self) -> None:
        self._done = _nothing
        if self.timer is not None:
            self.timer.cancel()


def _nothing(_found: dict[int, ShardCounts]) -> None:
    return
