"""
The spellings of a byte of printable ASCII in texts: as it is, percent-encoded, quoted-printable, escaped in JSON, and
as a reference of HTML.

Runs in:   the broker; pure.
Source:    RFC 3986 §2.1, the URL Standard (a space as "+"); RFC 2045 §6.7; RFC 8259 §7 and ECMAScript's \\xHH; the HTML
           Standard, "named character references" and "numeric character reference".

    =    %3D %3d    =3D    \\u003d \\x3d \\=    &#61; &#061 &#x3D; &equals;

Letters of a spelling may be small or capital. Up to _ZEROS zeros may stand before the digits of a reference of HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.entities import html5

_ZEROS = 8

_NAMES = {name.encode(): ord(text) for name, text in html5.items() if len(text) == 1 and "!" <= text <= "~"}
_NAMES_OF: dict[int, list[bytes]] = {}
for _name, _byte in _NAMES.items():
    _NAMES_OF.setdefault(_byte, []).append(_name)

#: Bytes of a spelling, at most.
LONGEST = max(len(b"&#x7d;") + _ZEROS, 1 + max(map(len, _NAMES)))

#: What may stand between two bytes of a value whose text was broken into lines: also quoted-printable, and in JSON.
BREAK = rb"=?\r?\n|(?:\\r)?\\n"
_BREAKS = re.compile(BREAK)

#: The bytes with which spellings and breaks begin that are longer than a byte.
LEADS = frozenset(b"%\\&=\r")

_HEX = rb"[0-9A-Fa-f]"
_ESCAPE = re.compile(rb"%%(%(hex)s{2})|=(%(hex)s{2})|\\u00(%(hex)s{2})|\\x(%(hex)s{2})|\\([!-/:-@\[-`{-~])"
                     rb"|&#0{0,%(zeros)d}([1-9][0-9]{1,2})(;?)|&#[xX]0{0,%(zeros)d}([1-7]%(hex)s)(;?)"
                     rb"|&([A-Za-z]{2,%(name)d};?)"
                     % {b"hex": _HEX, b"zeros": _ZEROS, b"name": LONGEST})

#: At the end of a piece: a spelling or a break that further bytes could complete, or make longer.
UNFINISHED = re.compile(rb"(?:%%%(hex)s?|=(?:%(hex)s|\r)?|\r|\\(?:u(?:0(?:0%(hex)s?)?)?|x%(hex)s?|r\\?)?"
                        rb"|&(?:#(?:0{0,%(zeros)d}[0-9]{0,3}|[xX]0{0,%(zeros)d}%(hex)s{0,2})|[A-Za-z]{0,%(name)d})?)\Z"
                        % {b"hex": _HEX, b"zeros": _ZEROS, b"name": LONGEST})


def readings(data: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield each byte that may be meant by what stands in *data* at *at*, and the length of its spelling."""
    byte = data[at]
    yield byte, 1
    if byte == 0x2b:
        yield 0x20, 1
    found = _ESCAPE.match(data, at) if byte in LEADS else None
    if found is None:
        return
    group = found.lastindex or 0
    if group <= 4:
        yield int(found[group], 16), found.end() - at
    elif group == 5:
        yield found[5][0], 2
    elif group in (7, 9):
        meant = int(found[6]) if group == 7 else int(found[8], 16)
        if meant < 0x7f:
            yield meant, found.end(group - 1) - at
            if found[group]:
                yield meant, found.end() - at
    else:
        yield from _named(found[10], found.end() - at)


def _named(text: bytes, length: int) -> Iterator[tuple[int, int]]:
    """Yield the readings of a reference by name. Some names need no semicolon, so another text may follow at once."""
    for end in range(2, len(text) + 1):
        if (meant := _NAMES.get(text[:end])) is not None:
            yield meant, length - len(text) + end


def break_at(data: bytes, at: int) -> int:
    """Return the length of the line break in *data* at *at*; 0 if there is none."""
    found = _BREAKS.match(data, at)
    return 0 if found is None else found.end() - at


def names_of(byte: int) -> list[bytes]:
    """Return the names that HTML has for *byte*, each with its semicolon if it needs one."""
    return _NAMES_OF.get(byte, [])


def pattern_of(byte: int) -> bytes:
    """Return a pattern of `re` that matches each spelling of *byte*."""
    digits = b"".join(b"[%c%c]" % (each, each - 32) if each >= 0x61 else b"%c" % each for each in b"%02x" % byte)
    letter = re.escape(b"%c" % byte)
    zeros = b"0{0,%d}" % _ZEROS
    spellings = [letter, b"%" + digits, b"=" + digits, rb"\\u00" + digits, rb"\\x" + digits,
                 b"&#" + zeros + b"%d;?" % byte, b"&#[xX]" + zeros + digits + b";?"]
    if not chr(byte).isalnum() and byte != 0x20:
        spellings.append(rb"\\" + letter)
    if byte == 0x20:
        spellings.append(rb"\+")
    spellings += [b"&" + re.escape(name) for name in names_of(byte)]
    return b"|".join(spellings)
