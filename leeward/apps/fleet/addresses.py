"""
The addresses of a fleet's nodes, as an operator writes them.

Runs in:   a client's process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leeward.apps.fleet.aio_fleet import Member
from leeward.apps.fleet.node_client import NodeClient
from leeward.apps.fleet.placement import Node
from leeward.errors import RequestRejected, brief

#: The scheme of a daemon's socket on this host, the only one that there is now.
UNIX = "unix:"
#: What a table has beside its address.
_KEYS = ("address", "name", "tags", "resources")


@dataclass(frozen=True, slots=True)
class Address:
    """One node: the path of its socket, its name in the fleet, and what requests may ask of it."""

    socket: str
    name: str
    tags: frozenset[str] = frozenset()
    resources: Mapping[str, float] = field(default_factory=dict)


def address_of(given: str | Mapping[str, Any]) -> Address:
    """*given*, an address or a map with one; RequestRejected if it isn't."""
    about: dict[str, Any] = {"address": given} if isinstance(given, str) else dict(given)
    unknown = sorted(set(about) - set(_KEYS))
    if unknown:
        raise RequestRejected(f"a node has no {brief(unknown[0])}; there are {', '.join(_KEYS)}")
    text = about.get("address")
    if not isinstance(text, str) or not text.startswith(UNIX) or not text[len(UNIX):].startswith("/"):
        raise RequestRejected(f"{brief(text)} isn't the address of a node, such as unix:/run/leeward/leeward.sock")
    path = text[len(UNIX):]
    name = about.get("name", path)
    if not isinstance(name, str) or not name or not name.isprintable():
        raise RequestRejected(f"{brief(name)} isn't a name for a node")
    tags, resources = about.get("tags", ()), about.get("resources", {})
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise RequestRejected(f"the tags of {brief(name)} are several texts, such as ['arch:x86_64']")
    if not isinstance(resources, Mapping) or not all(_is_amount(value) for value in resources.values()):
        raise RequestRejected(f"the resources of {brief(name)} are amounts by name, such as {{'gpu': 8}}")
    return Address(path, name, frozenset(tags), {str(key): float(value) for key, value in resources.items()})


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")  # type: ignore[operator]  # a number, by its type


def members_of(given: Iterable[str | Mapping[str, Any]]) -> list[Member]:
    """A member for each address; RequestRejected if two have one name."""
    members: dict[str, Member] = {}
    for address in map(address_of, given):
        if address.name in members:
            raise RequestRejected(f"two nodes are called {brief(address.name)}")
        node = Node(address.name, tags=address.tags, resources=address.resources)
        members[address.name] = Member(node, NodeClient(address.socket))
    return list(members.values())
