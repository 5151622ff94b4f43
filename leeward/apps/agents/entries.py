"""
Network entries: the hosts that an agent may reach, as settings and definitions name them.

Grammar:   HOST[:PORT[,PORT...]], where HOST is a name, "*.NAME", an IPv4 address or range, or an IPv6 address or range
           in brackets. Case and blanks around the parts don't count. Without a port the entry is for 80 and 443, where
           the broker admits only HTTP and TLS; with a port it is for any protocol.
Not rules: unlike rules (`spec/egress_rules.py`), entries have no methods, schemes and paths, and none may allow nearly
           everything, for which there is `--unrestricted-network`.
"""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network

from leeward.apps.agents.errors import SettingsError
from leeward.spec.domains import shared_below
from leeward.spec.egress_rules import EgressRule, PolicyError, parse_rule
from leeward.spec.hosts import InvalidHost, parse_port

#: Characters of an entry, and ports of one, at most.
MAX_ENTRY, MAX_ENTRY_PORTS = 512, 8

#: Bits of a range's prefix at least: a wider one is nearly everything.
LEAST_BITS_V4, LEAST_BITS_V6 = 8, 16

_FORM = 'write "example.org", "*.example.org", "10.0.0.5:22" or "10.0.0.0/8:5432"'
_ALL = "--unrestricted-network is for everything"


def parse_entry(entry: object, file: str = "", key: str = "") -> tuple[EgressRule, ...]:
    """
    The rules of an entry, one for each port or one without; SettingsError at *key* of *file* says what to write
    instead.

    Raises Unsupported if the entry has a "*", and the list of public suffixes isn't installed.
    """
    def wrong(reason: str, cure: str = _FORM) -> SettingsError:
        return SettingsError(file, key, f"{entry!a:.120}: {reason}", cure)

    if not isinstance(entry, str):
        raise SettingsError(file, key, f"an entry is a text, not {entry!a:.60}", _FORM)
    if len(entry) > MAX_ENTRY:
        raise SettingsError(file, key, f"an entry has at most {MAX_ENTRY} characters, this one has {len(entry)}")
    if "://" in entry:
        raise wrong("an entry is a host, and no URL", "leave out the scheme and the path")
    try:
        host, ports = _split(entry)
    except InvalidHost as error:
        raise wrong(str(error)) from None
    if host == "*":
        raise wrong("this is every host", _ALL)
    if "*" in host.removeprefix("*."):
        raise wrong('a "*" stands for whole labels, as the first one, followed by a dot')
    try:
        rules = tuple(parse_rule(f"{host}:{port}" if port else host) for port in ports)
    except PolicyError as error:
        # Not the error's general cure, whose examples are rules that aren't valid as entries.
        raise wrong(error.reason.partition(": ")[2] or error.reason,
                    error.cure if error.cure and "\"*\"" not in error.cure else _FORM) from None
    _check_width(rules[0], wrong)
    return tuple(dict.fromkeys(rules))


def _split(entry: str) -> tuple[str, tuple[int, ...]]:
    """The host and the ports of an entry; (0,) without ports."""
    text = entry.strip(" \t")
    if not text:
        raise InvalidHost("empty")
    if text.startswith("["):
        inner, bracket, rest = text[1:].partition("]")
        rest = rest.strip(" \t")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidHost("after an address in brackets stands a port or nothing")
        host, colon, digits = f"[{inner.strip(' ')}]", ":" if rest else "", rest[1:]
    else:
        host, colon, digits = (part.strip(" \t") for part in text.partition(":"))
    if not host or host.startswith("/"):
        raise InvalidHost("no host before the port" if colon else "no address before the slash")
    if any(letter.isspace() for letter in host):
        raise InvalidHost("a blank within the host")
    if not colon:
        return host, (0,)
    if not digits.strip(" \t"):
        raise InvalidHost("no port after the colon")
    if ":" in digits:
        raise InvalidHost("ports are separated by commas, and an IPv6 address stands in brackets")
    if digits.rstrip(" \t").endswith(","):
        raise InvalidHost("no port after the comma")
    ports = tuple(dict.fromkeys(parse_port(port.strip(" \t")) for port in digits.split(",")))
    if len(ports) > MAX_ENTRY_PORTS:
        raise InvalidHost(f"{MAX_ENTRY_PORTS} ports at most")
    return host, ports


def _check_width(rule: EgressRule, wrong: Callable[[str, str], SettingsError]) -> None:
    if rule.network is not None:
        least = LEAST_BITS_V4 if isinstance(rule.network, IPv4Network) else LEAST_BITS_V6
        if rule.network.prefixlen < least:
            raise wrong(f"a range of fewer than {least} bits is nearly every address", _ALL)
    if rule.kind != "below":
        return
    from leeward.spec.domains import registrable  # only for an entry with a "*"

    if registrable(rule.name) is None:
        raise wrong(f"{rule.name} is a public suffix: anybody can register a name below it",
                    "name the hosts themselves")
    if reason := shared_below(rule.name):
        raise wrong(f"{reason}, so the entry would allow hosts of anybody", "name the hosts themselves")
