"""Characters that a person doesn't see in a text."""

from __future__ import annotations

import unicodedata

#: Fillers, joiners and the blank Braille pattern, which are printable by their category.
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")


def is_hidden(letter: str) -> bool:
    """Whether a character is invisible, reorders text, or is a blank other than the space, tab and newlines."""
    if letter < "\x7f":
        return letter < " " and letter not in "\t\n\r"
    return (unicodedata.category(letter) in ("Cc", "Cf", "Co", "Cn", "Zl", "Zp", "Zs")
            or "\ufe00" <= letter <= "\ufe0f" or "\U000e0100" <= letter <= "\U000e01ef" or letter in _UNSEEN)


def is_seen(text: str) -> bool:
    """Whether *text* is one line of visible characters."""
    return text.isprintable() and (text.isascii() or not any(map(is_hidden, text)))
