"""
Hosts as rules, URLs, queries and client hellos name them, in the one form in which they are compared.

Trust:     none. A text becomes a `Host`, or InvalidHost with the reason.
Why:       2130706433, 0x7f000001, 0177.0.0.1, 127.1 and ::ffff:127.0.0.1 are one address for programs that read them,
           and Example.ORG. is example.org. So texts must be brought into one form before they are compared.
Source:    URL Standard, "host parsing" (the number forms); RFC 1035, RFC 5890 (names); RFC 4291 (addresses).
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from leeward.base.dataclass import dataclass

Address = IPv4Address | IPv6Address

#: Characters of a host as it is given, of a name, and of one of its labels, at most.
MAX_GIVEN, MAX_NAME, MAX_LABEL = 512, 253, 63

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")

#: IDNA of 2003 maps them to other letters, IDNA of 2008 keeps them, so which name is meant depends on who reads it.
_DEVIATIONS = "\u00df\u1e9e\u03c2\u200c\u200d"


class InvalidHost(ValueError):
    """Raised for a text that names no host. The message gives the reason, without the text."""


@dataclass(frozen=True, slots=True)
class Host:
    name: str  # in lower case, as A-labels, without a final dot; "" if an address is named
    address: Address | None = None  # the address; None if a name is given

    @property
    def text(self) -> str:
        """The host as records, rules and Host fields show it; an IPv6 address without brackets."""
        return self.name or str(self.address)


def parse_host(text: str) -> Host:
    """
    The host that *text* names: a name, an IPv4 address in any number form, or an IPv6 address, also in brackets.

    Raises InvalidHost if it names none, or programs would read it in different ways.
    """
    if len(text) > MAX_GIVEN:
        raise InvalidHost(f"more than {MAX_GIVEN} characters")
    if text.startswith("["):
        if not text.endswith("]"):
            raise InvalidHost("a bracket is not closed")
        return Host("", _v6(text[1:-1]))
    if ":" in text:
        return Host("", _v6(text))
    name = _ascii(text).lower().removesuffix(".")
    if not name:
        raise InvalidHost("empty")
    if _is_number(name.rpartition(".")[2]):
        return Host("", _v4(name))
    return Host(_checked(name))


def unmapped(address: Address) -> Address:
    """*address*, or the IPv4 address of an IPv4-mapped one (::ffff:a.b.c.d): the kernel treats both alike."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_below(name: str, parent: str) -> bool:
    """Whether *name* is a sub-domain of *parent*, and not *parent* itself."""
    return len(name) > len(parent) + 1 and name.endswith("." + parent)


def parse_port(text: str) -> int:
    """The port that *text* gives by its digits; InvalidHost if it isn't a number from 1 to 65535."""
    # int takes digits of other scripts, signs and underscores.
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise InvalidHost("a port is a number from 1 to 65535")
    return int(text)


def split_port(text: str) -> tuple[str, int]:
    """Host and port of `host[:port]` or `[address][:port]`, 0 without one; InvalidHost if that is ambiguous."""
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket:
            raise InvalidHost("a bracket is not closed")
        if rest and not rest.startswith(":"):
            raise InvalidHost("only a port may follow the closing bracket")
        return host + bracket, parse_port(rest[1:]) if rest else 0
    host, colon, port = text.partition(":")
    if ":" in port:
        raise InvalidHost("an IPv6 address must be in brackets here")
    return host, parse_port(port) if colon else 0


def _ascii(text: str) -> str:
    if text.isascii():
        return text
    if any(letter in _DEVIATIONS for letter in text):
        raise InvalidHost("a letter that versions of IDNA read differently; write the name as it is asked for, xn--...")
    try:
        return text.encode("idna").decode("ascii")
    except UnicodeError:
        raise InvalidHost("not a valid name by IDNA") from None


def _checked(name: str) -> str:
    if len(name) > MAX_NAME:
        raise InvalidHost(f"a name of more than {MAX_NAME} characters")
    for label in name.split("."):
        if not label:
            raise InvalidHost("two dots in succession, or a dot at the start")
        if len(label) > MAX_LABEL:
            raise InvalidHost(f"a label of more than {MAX_LABEL} characters")
        if not _LABEL.fullmatch(label):
            raise InvalidHost("a label has other characters than letters, digits, inner hyphens and underscores")
    return name


def _is_number(label: str) -> bool:
    """Whether programs would read a host with this last label as an address."""
    return label.isdecimal() or (label.startswith("0x") and all(digit in "0123456789abcdef" for digit in label[2:]))


def _v4(text: str) -> IPv4Address:
    parts = text.split(".")
    if len(parts) > 4:
        raise InvalidHost("the last label is a number, but there are more than four parts")
    numbers = [_number(part) for part in parts]
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= 256 ** (5 - len(parts)):
        raise InvalidHost("an IPv4 address with a number that is too large")
    value = numbers[-1]
    for place, number in enumerate(numbers[:-1]):
        value += number << (8 * (3 - place))
    return IPv4Address(value)


def _number(part: str) -> int:
    base, digits = (16, part[2:] or "0") if part.startswith("0x") else (8, part) if part[:1] == "0" else (10, part)
    allowed = "0123456789abcdef"[:base]
    # Of more than 32 characters it is one number too large or another; int would take its time for thousands.
    if not digits or len(digits) > 32 or not all(digit in allowed for digit in digits):
        raise InvalidHost("the last label is a number, but this is not an IPv4 address")
    return int(digits, base)


def _v6(text: str) -> Address:
    if "%" in text:
        raise InvalidHost("an IPv6 address with a zone")
    try:
        return unmapped(IPv6Address(text))
    except AddressValueError:
        raise InvalidHost("not an IPv6 address") from None
