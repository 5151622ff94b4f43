"""Sizes as text: 64M, 1G, 512MiB, 1.5G, 268435456. The CLI's fast path imports this."""

from __future__ import annotations

from leeward.errors import brief

#: Bytes of each unit, in capitals. As for docker and systemd, a bare letter is a power of 1024.
UNITS = {
    "": 1, "B": 1,
    "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}


def parse_size(text: str) -> int:
    digits = text.rstrip("BKMGTibkmgt ")
    unit = text[len(digits):].strip().upper()
    whole, point, fraction = digits.partition(".")
    # isdecimal accepts the digits of other scripts, as do int and float; isascii doesn't.
    plain = whole.isdecimal() and fraction.isdecimal() == bool(point) and digits.isascii()
    if unit not in UNITS or not plain or len(digits) > 20:
        raise ValueError(f"{brief(text)} is not a size; examples are 64M, 1.5G, 512MiB, 268435456")
    return int(float(digits) * UNITS[unit]) if fraction else int(whole) * UNITS[unit]


def size_text(size: int) -> str:
    """Return *size* bytes as text, in the largest unit that leaves a whole number: 256MiB."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)
