"""
Finds the values of secrets in a stream of bytes, in every spelling and wherever the stream is cut, and replaces them.

    =    %3D %3d    =3D    \\u003d \\x3d \\=    &#61; &#061 &#x3D; &equals;

A byte of printable ASCII may stand as it is, percent-encoded, quoted-printable, escaped in JSON, and as a reference of
HTML. Letters of a spelling may be small or capital. Up to _ZEROS zeros may stand before a reference's digits.

Theory of operation. A value is a row of places, each with the bytes that fit there. Each byte of a value may have any
spelling, and one break may stand between two. `Masks.next` finds the first bytes of a value at the speed of `re`. From
there each byte is read once, for all matches that are under way; a match is the place that comes next, negative if a
break came last, and where it began. What overlaps is one match.
Bound:     a match under way has at most LONGEST bytes for each place and a break, so that much is held back;
           and there are at most twice as many matches under way as places.
Leaves:    spellings of spellings (`%2525`), and all other ones. docs/egress.md lists them.
Source:    RFC 3986 §2.1, the URL Standard (a space as "+"); RFC 2045 §6.7; RFC 8259 §7 and ECMAScript's \\xHH; the HTML
           Standard, "named character references" and "numeric character reference".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
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


#: Places of a value that `Masks.next` looks for. Fewer would be found by chance.
_PROBED = 8

#: Bytes at the end of a piece in which `Masks.next` can't look for all of these, and in which it can look for nothing.
_TAIL, _LAST = _PROBED * (LONGEST + 4), 3

#: Bytes from which on a position is more than the byte itself.
_RICH = LEADS | frozenset(b"\n+")

_SWAPPED = bytes.maketrans(b"+/", b"-_")

Row = list[frozenset[int]]


class Masks:
    """
    What is looked for, which takes some milliseconds to make: values of eight bytes or more, whose first is no space.

    `places` has the bytes that fit, of one value after the other, from 1 on; `ends` the place after the last one of
    each; `first` the places that come next, by each byte with which a value begins.
    """

    def __init__(self, values: Sequence[bytes], *, fold: bool = False) -> None:
        self._lengths = [len(value) for value in values]
        self.places: Row = [frozenset()]
        self.ends: list[int] = []
        self.first: dict[int, list[int]] = {}
        rows: list[Row] = []
        for value in values:
            rows.append([_both(byte) if fold else frozenset((byte,)) for byte in value])
            rows += ([frozenset((byte, _SWAPPED[byte])) for byte in _core(value, shift)] for shift in range(3))
        for row in rows:
            for byte in row[0]:
                self.first.setdefault(byte, []).append(len(self.places) + 1)
            self.places += [*row, frozenset()]
            self.ends.append(len(self.places) - 1)
        self._near = re.compile(_near(rows))
        self._probe = re.compile(b"|".join(map(_probe, rows)) or b"(?!)")

    def instead(self, placeholders: Sequence[bytes]) -> dict[int, bytes]:
        """Return what is put in the place of a match, by the place where it ends. In base64 these are as many letters."""
        puts = []
        for length, placeholder in zip(self._lengths, placeholders, strict=True):
            shown = placeholder[:length].ljust(length, b"-")
            puts += [placeholder, *(_core(shown, shift) for shift in range(3))]
        return dict(zip(self.ends, puts, strict=True))

    def next(self, data: bytes, at: int) -> int:
        """Return a place from *at* on before which no value begins in *data*."""
        tail, last = len(data) - _TAIL, len(data) - _LAST
        for found in self._near.finditer(data, at):
            at = found.start()
            if at >= tail or self._probe.match(data, at):
                return min(at, max(last, 0))
        return max(at, last)

    def whole(self, data: bytes, instead: Mapping[int, bytes]) -> bytes:
        """Return *data*, which is complete by itself, with all values replaced."""
        stream = MaskedStream(self, instead)
        return stream.feed(data) + stream.end()


class MaskedStream:
    """One stream in which values are replaced as `Masks.instead` says."""

    def __init__(self, masks: Masks, instead: Mapping[int, bytes]) -> None:
        self._masks, self._instead = masks, instead
        self._data = b""                              # what isn't given back yet
        self._at = 0                                  # how much of it was read
        self._live: dict[int, dict[int, int]] = {}    # by where they go on: the matches under way
        self._found: list[tuple[int, int, bytes]] = []  # matches: begin, minus the end, what is put there
        self._covered = 0                             # up to here all is replaced already

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the stream. Returns the output that is certain by now, and holds back the rest."""
        self._data += data
        self._read(final=False)
        return self._settled(min((begin for live in self._live.values() for begin in live.values()), default=self._at))

    def end(self) -> bytes:
        self._read(final=True)
        self._live.clear()
        return self._settled(len(self._data))

    def _read(self, *, final: bool) -> None:
        data, at, live, first, places = self._data, self._at, self._live, self._masks.first, self._masks.places
        while at < len(data):
            if not live:
                at = max(at, self._masks.next(data, at))
                if at >= len(data):
                    break
            byte = data[at]
            if byte in _RICH:
                if not final and byte in LEADS and UNFINISHED.match(data, at):
                    break
                self._step(at)
            else:
                for place, begin in live.pop(at, {}).items():
                    if byte in places[abs(place)]:
                        self._keep(abs(place) + 1, begin, at + 1)
                for place in first.get(byte, ()):
                    self._keep(place, at, at + 1)
            at += 1
        self._at = at

    def _step(self, at: int) -> None:
        """Read what stands at *at*, for the matches that go on there and those that begin there."""
        masks, data = self._masks, self._data
        here = self._live.pop(at, {})
        for byte, length in readings(data, at):
            for place, begin in here.items():
                if byte in masks.places[abs(place)]:
                    self._keep(abs(place) + 1, begin, at + length)
            for place in masks.first.get(byte, ()):
                self._keep(place, at, at + length)
        length = break_at(data, at) if here else 0
        for place, begin in here.items():
            if length and place > 0:
                self._keep(-place, begin, at + length)

    def _keep(self, place: int, begin: int, end: int) -> None:
        to = self._instead.get(place)
        if to is not None:
            self._found.append((begin, -end, to))
        else:
            live = self._live.setdefault(end, {})
            live[place] = min(begin, live.get(place, begin))

    def _settled(self, limit: int) -> bytes:
        """Return the output before *limit*, before which no match begins that is under way."""
        said, data, covered = [], self._data, self._covered
        self._found.sort()
        later = []
        for begin, end, to in self._found:
            if begin >= limit:
                later.append((begin - limit, end + limit, to))
                continue
            if begin >= covered:
                said += [data[covered:begin], to]
            covered = max(covered, -end)
        if covered < limit:
            said.append(data[covered:limit])
        self._found, self._data, self._covered = later, data[limit:], max(covered, limit) - limit
        self._live = {at - limit: {place: begin - limit for place, begin in live.items()}
                      for at, live in self._live.items()}
        self._at -= limit
        return b"".join(said)


def _both(byte: int) -> frozenset[int]:
    letter = bytes((byte,))
    return frozenset(letter.lower() + letter.upper())


def _core(value: bytes, shift: int) -> bytes:
    """The letters of base64 for *value* behind *shift* bytes in its group of three, but those that depend on neighbours."""
    return base64.b64encode(bytes(shift) + value)[(shift * 8 + 5) // 6:(shift + len(value)) * 8 // 6]


def _near(rows: list[Row]) -> bytes:
    """A quick pattern for where a value may begin. Each branch begins with a byte, for which `re` looks first."""
    longer = _any_of(LEADS | {0x0a})
    second: dict[int, set[bytes]] = {}
    for row in rows:
        for byte in row[0]:
            second.setdefault(byte, set()).add(_any_of(row[1]) + b"(?:" + _any_of(row[2]) + b"|" + longer + b")")
    digits = _any_of({digit for byte in second for digit in b"%x%X" % (byte >> 4, byte >> 4)})
    names = _any_of({name[0] for byte in second for name in names_of(byte)} | set(b"#"))
    spelled = {0x25: digits, 0x3d: digits, 0x5c: _any_of(second.keys() | set(b"ux")), 0x26: names}
    if not rows:
        return b"(?!)"
    return b"|".join(
        re.escape(b"%c" % byte) + b"(?=" + b"|".join(
            [*sorted(second.get(byte, ())), *([longer] if byte in second else []), *filter(None, [spelled.get(byte)])]) + b")"
        for byte in sorted(second.keys() | spelled.keys()))


def _any_of(each: set[int] | frozenset[int]) -> bytes:
    both = each | {0x2b} if 0x20 in each else each
    return b"[" + b"".join(re.escape(b"%c" % byte) for byte in sorted(both)) + b"]"


def _probe(row: Row) -> bytes:
    between = b"(?:" + BREAK + b")?"
    return between.join(b"(?:" + b"|".join(map(pattern_of, sorted(each))) + b")" for each in row[:_PROBED])
