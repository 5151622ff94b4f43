"""
Rules of egress: what an entry of `allow`, `deny` or `ask` names.

Trust:     none. A text becomes an EgressRule, or PolicyError with the place, the reason and what to write instead.

A rule is `[METHODS ][SCHEME://]HOST[:PORT][/PATH]`: `docs.example.org`, `*.example.org:8443`, `10.1.0.0/16:5432`,
`[2001:db8::1]:443`, `GET,HEAD https://api.example.org/v1/*`, `*`. `*.example.org` is each sub-domain and not
example.org itself; `*` is every name and every public address. A path goes with a scheme, and may end in `*`. Without a
port a rule of `allow` and `ask` is for the policy's `ports`, or for its scheme's, and one of `deny` for every port.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any
from unicodedata import normalize

from leeward.base.dataclass import dataclass
from leeward.errors import BadRequest, brief
from leeward.spec.hosts import Address, Host, InvalidHost, is_below, parse_host, parse_port

Network = IPv4Network | IPv6Network

#: The ranges in which the names of a sandbox have their addresses. No rule can name an address in them.
NAMES_V4 = IPv4Network("198.18.0.0/15")
NAMES_V6 = IPv6Network("fd6c:6565:7761:7264::/64")  # fd, and "leeward"

#: Characters of a rule, at most.
MAX_RULE = 1024

#: The methods and schemes that a rule can name.
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "PROPPATCH", "MKCOL", "COPY",
           "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH")
SCHEMES = {"http": 80, "https": 443}

#: Signs with a meaning in a path.
_SIGNS = frozenset(("/", "\\", ".", "%", ";", "?", "#", *map(chr, range(0x21))))

_PATH = re.compile(r"/[!$&-;=@-Z_a-z~%]*")


class PolicyError(BadRequest):
    """An invalid policy or rule: its key, as in "egress.build.allow[2]", what is wrong, and what to write instead."""

    def __init__(self, place: str, reason: str, cure: str = "") -> None:
        self.place, self.reason, self.cure = place, reason, cure
        super().__init__(": ".join(filter(None, (place, reason))) + (f"; {cure}" if cure else ""))


@dataclass(frozen=True, slots=True)
class EgressRule:
    """One entry of `allow`, `deny` or `ask`."""

    text: str  # the rule in its one form, as records name it; `parse_rule` reads it back
    kind: str  # what the host part is: "any", "name", "below" (the sub-domains of a name) or "network"
    name: str = ""  # the host's name, for the kinds "name" and "below"
    network: Network | None = None  # the network, for the kind "network"; a single address is a network of one address
    port: int = 0  # 0 if the rule gives none
    scheme: str = ""  # "http", "https" or "" for any
    methods: tuple[str, ...] = ()  # the allowed methods; () for any
    path: str = ""  # the path itself, or the beginning of paths and "*"; "" for any

    def names_host(self, name: str, address: Address | None) -> bool:
        """Whether the rule is about a host: by the host's *name*, or by its *address* if it has no name."""
        if self.kind == "network":
            network = self.network
            return (address is not None and network is not None and network.version == address.version
                    and address in network)
        if self.kind == "any":
            return True
        return bool(name) and (name == self.name if self.kind == "name" else is_below(name, self.name))

    @property
    def is_whole(self) -> bool:
        """Whether the rule is about every request to its hosts and ports, so that no request needs to be seen."""
        return not (self.methods or self.path or self.scheme)


def parse_rule(text: str, place: str = "") -> EgressRule:
    """Make a rule from its text; PolicyError says what is wrong and what to write."""
    def wrong(reason: str, cure: str = "") -> PolicyError:
        return PolicyError(place, f"{brief(text, 80)}: {reason}", cure)

    if not isinstance(text, str):
        raise PolicyError(place, f"a rule is a text, not {brief(text, 60)}")
    if len(text) > MAX_RULE:
        raise PolicyError(place, f"a rule has at most {MAX_RULE} characters, this one has {len(text)}")
    rest = text.strip(" ")
    methods: tuple[str, ...] = ()
    if " " in rest:
        first, _, rest = rest.partition(" ")
        methods = tuple(sorted(set(first.upper().split(","))))
        unknown = [method for method in methods if method not in METHODS]
        if unknown:
            raise wrong(f"{brief(unknown[0])} is not a known method", f"these are known: {', '.join(METHODS)}")
        rest = rest.lstrip(" ")
    scheme, sign, after = rest.partition("://")
    if sign:
        scheme, rest = scheme.lower(), after
        if scheme not in SCHEMES:
            raise wrong(f"{brief(scheme)} is not a scheme of rules", 'write "http://", "https://" or none')
    else:
        scheme = ""
    path = ""
    if scheme:
        rest, slash, path = rest.partition("/")
        path = _path(slash + path, wrong) if slash else ""
    if "@" in rest:
        raise wrong("a rule can't name a user", "leave out everything up to the @")
    try:
        kind, name, network, port = _host(rest)
    except InvalidHost as error:
        raise wrong(str(error), 'a host is "example.org", "*.example.org", "10.1.0.0/16", "[2001:db8::1]" or "*",'
                                ' with ":PORT" or without') from None
    if network is not None and any(network.version == own.version and network.subnet_of(own)  # type: ignore[arg-type]
                                   for own in (NAMES_V4, NAMES_V6)):
        raise wrong("that range is reserved for the addresses of names in sandboxes", "name the host instead")
    return EgressRule(_text(kind, name, network, port, scheme, methods, path), kind, name, network, port, scheme,
                      methods,
                path)


def _host(text: str) -> tuple[str, str, Network | None, int]:
    port = 0
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise InvalidHost("after an address in brackets stands \":PORT\" or nothing")
        if ":" not in host:
            raise InvalidHost("in brackets stands an IPv6 address")
        port = parse_port(rest[1:]) if rest else 0
    elif text.count(":") > 1:
        host = text
    else:
        host, colon, digits = text.partition(":")
        port = parse_port(digits) if colon else 0
    if "/" in host:
        return "network", "", _network(host), port
    if host == "*":
        return "any", "", None, port
    kind = "below" if host.startswith("*.") else "name"
    found: Host = parse_host(host[2:] if kind == "below" else host)
    if found.address is None:
        return kind, found.name, None, port
    if kind == "below":
        raise InvalidHost("an address has no sub-domains")
    return "network", "", ip_network(str(found.address)), port


def _network(text: str) -> Network:
    address, _, bits = text.partition("/")
    found = parse_host(address).address
    if found is None:
        raise InvalidHost("a slash goes with an address, as in 10.1.0.0/16, or with a scheme")
    if found.version == 4 and ":" in address:
        raise InvalidHost("a range of IPv4 addresses is written as one")
    if not (bits.isascii() and bits.isdecimal() and len(bits) <= 3 and int(bits) <= found.max_prefixlen):
        raise InvalidHost(f"after the slash stands a number of bits, 0 to {found.max_prefixlen}")
    try:
        return ip_network(f"{found}/{int(bits)}")
    except ValueError:
        raise InvalidHost("the range has an address with bits after its prefix") from None


def _path(path: str, wrong: Any) -> str:
    if "?" in path or "#" in path:
        raise wrong("a rule's path can't have a query or a fragment", "rules match paths only")
    if "*" in path[:-1]:
        raise wrong('a "*" may stand only at the end of a path')
    if compared_path(path) != path:
        raise wrong("a path that servers read in different ways", 'write it without "..", "//" and needless escapes')
    return str(path)


def compared_path(target: str) -> str | None:
    """
    The path of a request's target in the form that rules are compared with: without its query, needless escapes undone.

    None if servers could read another path in it: dot segments, an empty segment, an escaped slash or percent sign, a
    backslash, escapes that aren't UTF-8 in its only form, letters that some servers take for one of these signs, and
    the like.
    """
    path = target.partition("?")[0]
    if not _PATH.fullmatch(path):
        return None
    parts = path.split("%")
    unescaped, high = [parts[0]], bytearray(parts[0], "ascii")
    for part in parts[1:]:
        try:
            code = int(part[:2], 16) if len(part) >= 2 and part[:2].isalnum() else -1
        except ValueError:
            code = -1
        if code < 0x20 or code in b"/\\%;?#" or code == 0x7f:
            return None
        high += bytes((code,)) + part[2:].encode()
        letter = chr(code)
        kept = letter if code < 0x7f and (letter.isalnum() or letter in "-._~") else "%" + part[:2].upper()
        unescaped.append(kept + part[2:])
    path = "".join(unescaped)
    if not (high.isascii() or _has_one_form(bytes(high))):
        return None
    # ";" begins parameters, which some servers take off a segment before they look at its dots.
    if "//" in path or any(segment.partition(";")[0] in (".", "..") for segment in path.split("/")):
        return None
    return path


def _has_one_form(path: bytes) -> bool:
    """Whether a path is UTF-8 without overlong forms and without letters that have a compatibility form with ASCII signs."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return False
    return not any(set(normalize("NFKC", letter)) & _SIGNS for letter in text if not letter.isascii())


def _text(kind: str, name: str, network: Network | None, port: int, scheme: str, methods: tuple[str, ...],
          path: str) -> str:
    if network is not None:
        host = str(network.network_address if network.prefixlen == network.max_prefixlen else network)
        if network.version == 6 and (port or scheme):
            host = f"[{host}]"
    else:
        host = {"any": "*", "name": name, "below": f"*.{name}"}[kind]
    method = ",".join(methods) + " " if methods else ""
    return f"{method}{scheme}{'://' if scheme else ''}{host}{f':{port}' if port else ''}{path}"
