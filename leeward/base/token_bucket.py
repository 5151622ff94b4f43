"""
A rate with a burst: tokens that are taken, and come back with time.

Runs in:   anywhere; pure, the caller has the clock.
"""

from __future__ import annotations


class TokenBucket:
    """
    Has *most* tokens at *now*, seconds of a monotonic clock, and gets *rate* a second, up to *most*. A clock that goes
    back gives nothing. Both figures may be changed; what is left is cut down to a smaller *most* by the next call.
    """

    __slots__ = ("_at", "_left", "most", "rate")

    def __init__(self, most: float, rate: float, now: float = 0.0) -> None:
        self.most, self.rate = most, rate
        self._left, self._at = most, now

    def left(self, now: float) -> float:
        gone, self._at = max(0.0, now - self._at), max(now, self._at)
        self._left = min(self.most, self._left + gone * self.rate)
        return self._left

    def take(self, now: float, tokens: float = 1.0) -> bool:
        """Take *tokens*; False, and nothing is taken, if there are fewer."""
        if self.left(now) < tokens:
            return False
        self._left -= tokens
        return True

    def wait(self, now: float) -> float:
        """The seconds until there is a token."""
        return max(0.0, 1 - self.left(now)) / self.rate
