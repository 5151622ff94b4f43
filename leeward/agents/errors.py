"""
What is wrong with settings, definitions and projects, in one form.

Runs in:   anywhere; pure.
"""

from __future__ import annotations

from leeward.errors import BadRequest


class SettingsError(BadRequest):
    """
    Settings or a definition that can't be used.

    Args:
        file: their path; "" where there is none.
        key: as in "network.allow[2]"; "" for the whole file.
        reason: what is wrong.
        cure: what to write instead; may be empty.
    """

    def __init__(self, file: str, key: str, reason: str, cure: str = "") -> None:
        self.file, self.key, self.reason, self.cure = file, key, reason, cure
        place = filter(None, (printable(file), printable(key), reason))
        super().__init__(": ".join(place) + (f"; {cure}" if cure else ""))


def printable(text: str) -> str:
    """
    *text* in one line of characters that are seen: others are escaped as in a literal of Python's.
    """
    return "".join(letter if letter.isprintable() and letter != "\\" else ascii(letter)[1:-1] for letter in text)
