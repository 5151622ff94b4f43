"""
Addresses that a name must not lead to, and the URLs that name hosts. Pure.

Stands if: a name server answers with an address of its owner's choice: 127.0.0.1, a cloud's metadata service.
Leaves:    public addresses of the host's own network, which can't be told from others.
Source:    IANA's registries of special-purpose addresses for IPv4 and IPv6; RFC 6890.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network

from leeward.spec.egress_rules import SCHEMES, Network
from leeward.spec.hosts import Address, Host, InvalidHost, parse_host, split_port, unmapped


@dataclass(frozen=True, slots=True)
class Range:
    """A range of special-purpose addresses, which are refused unless a policy opens it."""

    network: Network
    what: str  # the purpose of the range, for messages


#: Every range that is refused. If an address is in several, the smallest counts.
RANGES: tuple[Range, ...] = tuple(Range(ip_network(text), what) for text, what in (
    ("0.0.0.0/8", "this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by carriers (CGNAT)"),
    ("100.100.100.200/32", "metadata"),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("169.254.169.254/32", "metadata"),
    ("169.254.170.2/32", "metadata"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.31.196.0/24", "AS112"),
    ("192.52.193.0/24", "AMT"),
    ("192.88.99.0/24", "6to4 relays"),
    ("192.168.0.0/16", "private"),
    ("192.175.48.0/24", "AS112"),
    ("198.18.0.0/15", "benchmark"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("255.255.255.255/32", "broadcast"),
    ("::/96", "IPv4-compatible"),
    ("::/128", "unspecified"),
    ("::1/128", "loopback"),
    ("::ffff:0:0/96", "IPv4-mapped"),
    ("::ffff:0:0:0/96", "IPv4-translated"),
    ("64:ff9b::/96", "NAT64"),
    ("64:ff9b:1::/48", "NAT64"),
    ("100::/64", "discard"),
    ("100:0:0:1::/64", "dummy"),
    ("2001::/23", "protocol assignments"),
    ("2001::/32", "Teredo"),
    ("2001:2::/48", "benchmark"),
    ("2001:10::/28", "ORCHID"),
    ("2001:20::/28", "ORCHID"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("2620:4f:8000::/48", "AS112"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "private"),
    ("fd00:ec2::254/128", "metadata"),
    ("fd20:ce::254/128", "metadata"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
))

#: The only range of IPv6 from which public addresses are given out; RFC 4291, IANA's registry.
_GLOBAL = IPv6Network("2000::/3")
_RESERVED = IPv6Network("::/0")


@lru_cache(4096)
def range_of(address: Address) -> Range | None:
    """Return the smallest range of refused addresses that contains *address*; None if the address is public."""
    address = unmapped(address)
    found = [each for each in RANGES if each.network.version == address.version and address in each.network]
    if found:
        return max(found, key=lambda each: each.network.prefixlen)
    if address.version == 6 and address not in _GLOBAL:
        return Range(_RESERVED, "reserved")
    return None


def opened(by: Network, within: Range) -> bool:
    """Whether *by* lies inside the refused range: 0.0.0.0/0 opens none, 169.254.0.0/16 not the metadata service in it."""
    network = within.network
    if isinstance(by, IPv4Network):
        return isinstance(network, IPv4Network) and by.subnet_of(network)
    return isinstance(network, IPv6Network) and by.subnet_of(network) and network is not _RESERVED


@dataclass(frozen=True, slots=True)
class Url:
    scheme: str  # in lower case
    host: Host  # in the form in which hosts are compared
    port: int  # the scheme's own where the URL gives none
    target: str  # path and query, as they are sent; at least "/"
    user: bool = False  # whether the URL has user information

    @property
    def authority(self) -> str:
        return authority(self.host, self.port, self.scheme)

    @property
    def text(self) -> str:
        """The URL in its one form, without user information and fragment."""
        return f"{self.scheme}://{self.authority}{self.target}"


def authority(host: Host, port: int, scheme: str) -> str:
    """Host and port, in the form of a Host field."""
    text = host.text if host.name or ":" not in host.text else f"[{host.text}]"
    return text if port == SCHEMES.get(scheme) else f"{text}:{port}"


#: Characters of a URL, at most.
MAX_URL = 16384


def parse_url(text: str) -> Url:
    """Parse a URL with a host; InvalidHost for any other one, and for what programs interpret differently."""
    if len(text) > MAX_URL:
        raise InvalidHost(f"a URL of more than {MAX_URL} characters")
    if any(not "!" <= letter <= "~" for letter in text if letter.isascii()) or "\\" in text:
        raise InvalidHost("a space, a control character or a backslash in the URL")
    scheme, sign, rest = text.partition("://")
    if not sign or not (scheme.isascii() and scheme[:1].isalpha() and scheme.replace("+", "").replace("-", "")
                        .replace(".", "").isalnum()):
        raise InvalidHost("no scheme and host, as in https://example.org/")
    scheme = scheme.lower()
    rest = rest.partition("#")[0]
    end = min((place for place in (rest.find("/"), rest.find("?")) if place >= 0), default=len(rest))
    named, target = rest[:end], rest[end:]
    if not target.isascii():
        raise InvalidHost("a path or query with other characters than ASCII; escape them")
    user, at, place = named.rpartition("@")
    if "@" in user:
        raise InvalidHost("two @ before the host")
    host, port = split_port(place)
    if not port and scheme not in SCHEMES:
        raise InvalidHost(f"the scheme {scheme!r:.20} has no port of its own here; give one")
    return Url(scheme, parse_host(host), port or SCHEMES[scheme], target if target.startswith("/") else "/" + target,
               bool(at))
