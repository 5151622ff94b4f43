"""Errors in settings, definitions and projects, in one form."""

from __future__ import annotations

from leeward.errors import BadRequest, LeewardError


class SettingsError(BadRequest):
    """Settings that can't be used: file and key ("network.allow[2]"), what is wrong, and what to write instead."""

    def __init__(self, file: str, key: str, reason: str, cure: str = "") -> None:
        self.file, self.key, self.reason, self.cure = file, key, reason, cure
        place = filter(None, (printable(file), printable(key), reason))
        super().__init__(": ".join(place) + (f"; {cure}" if cure else ""))


class HookFailed(LeewardError):
    """A hook failed. One of the set-up's means that there is no agent."""


def printable(text: str) -> str:
    """*text* as one line of visible characters. Other characters and the backslash are escaped as in a Python literal."""
    return "".join(letter if _seen(letter) else ascii(letter)[1:-1] for letter in text)


def _seen(letter: str) -> bool:
    if letter < "\x7f":
        return letter >= " " and letter != "\\"
    from leeward.spec.unseen import is_seen  # most texts are ASCII

    return is_seen(letter)
