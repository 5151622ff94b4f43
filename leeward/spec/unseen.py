"""Characters that a person doesn't see in a text."""

from __future__ import annotations

import re
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


#: Blanks in succession behind which a person doesn't expect the rest of a line.
LONG_BLANK = 60

_BLANKS = re.compile(rf"[ \t]{{{LONG_BLANK},}}|\t{{{LONG_BLANK // 4},}}")

_WORD, _LATIN = re.compile(r"\w+"), re.compile("[A-Za-z]")

#: Greek letters that look like Latin ones.
_GREEK = frozenset(
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7\u03b1\u03bd\u03bf\u03c1\u03c5\u03b9")

_OTHERS = ("CYRILLIC ", "ARMENIAN ", "CHEROKEE ", "LISU ", "COPTIC ")


def _is_foreign(letter: str) -> bool:
    """Whether a letter that isn't Latin may be taken for a Latin one; or a form of one that looks like the plain one."""
    return letter > "\x7f" and (letter in _GREEK or unicodedata.name(letter, "").startswith(_OTHERS)
                                or unicodedata.decomposition(letter).startswith(("<font>", "<wide>")))


def mixed_words(text: str) -> set[str]:
    """The words of *text* in which Latin letters and letters of another alphabet that look like them are mixed."""
    foreign = frozenset() if text.isascii() else frozenset(filter(_is_foreign, set(text)))
    return {word for word in (_WORD.findall(text) if foreign else ())
            if not word.isascii() and not foreign.isdisjoint(word) and _LATIN.search(word)}


def blanked_lines(text: str) -> int:
    """How many times a line of *text* goes on behind LONG_BLANK blanks, or as many tabs as are as wide."""
    return sum(text[found.end():found.end() + 1] not in ("", "\n", "\r") for found in _BLANKS.finditer(text))


def longest_line(text: str) -> int:
    """The characters of the longest line of *text*."""
    return max(map(len, text.split("\n")))
