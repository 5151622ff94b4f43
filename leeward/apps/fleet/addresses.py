"""
The addresses of a fleet's nodes, and the file in which they are written.

Runs in:   a client's process.
Files:     fleet.toml in $XDG_CONFIG_HOME/leeward, else in /etc/leeward. It has `nodes`, a list of addresses or tables, or
           the address of a cluster of Ray's. With tokens in it, it is its owner's and group's alone.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leeward.base.user_folders import user_folder
from leeward.errors import BadRequest, RequestRejected, brief
from leeward.spec.paths import RemoteHost
from leeward.spec.writers import trusted_content

#: The environment variable with the nodes: addresses with spaces between them, or that of a cluster.
VARIABLE = "LEEWARD_FLEET"
FILE, SYSTEM_FILE = "fleet.toml", "/etc/leeward/fleet.toml"
#: Bytes of the file, at most.
_MOST_BYTES = 1 << 20

#: The schemes of a daemon's socket on this host, and of `leeward serve leeward`; and the addresses of clusters of Ray's.
UNIX, FAR, AUTO, RAY = "unix:", ("https://", "http://"), "auto", "ray://"
#: What a table has.
_KEYS = ("address", "name", "tags", "resources", "token")

#: Where a fleet's nodes are.
Nodes = str | Iterable[str | Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Address:
    """One node: its socket's path or a RemoteHost, its name in the fleet, and what requests may ask of it."""

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
    path = _socket_of(about.get("address"), about.get("token"))
    name = about.get("name", path)
    if not isinstance(name, str) or not name or not name.isprintable():
        raise RequestRejected(f"{brief(name)} isn't a name for a node")
    tags, resources = about.get("tags", ()), about.get("resources", {})
    if isinstance(tags, str) or not isinstance(tags, Iterable) or not all(isinstance(tag, str) for tag in tags):
        raise RequestRejected(f"the tags of {brief(name)} are several texts, such as ['arch:x86_64']")
    if not isinstance(resources, Mapping) or not all(map(_is_amount, resources.values())):
        raise RequestRejected(f"the resources of {brief(name)} are amounts by name, such as {{'gpu': 8}}")
    return Address(path, name, frozenset(tags), {str(key): float(value) for key, value in resources.items()})


def _socket_of(text: object, token: object) -> str:
    if isinstance(text, str) and text.startswith(f"{UNIX}/") and token is None:
        return text[len(UNIX):]
    if not isinstance(text, str) or not text.startswith(FAR) or not isinstance(token, str | None):
        raise RequestRejected(f"{brief(text)} isn't the address of a node, such as unix:/run/leeward/leeward.sock, or "
                              "https://NAME with a token")
    try:
        return RemoteHost(text, token)
    except BadRequest as error:
        raise RequestRejected(f"{brief(text)}: {error}") from None


def _is_amount(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < float("inf")  # type: ignore[operator]  # a number, by its type


def addresses_of(given: Iterable[str | Mapping[str, Any]]) -> list[Address]:
    """An Address for each; RequestRejected if two have one name."""
    found: dict[str, Address] = {}
    for address in map(address_of, given):
        if address.name in found:
            raise RequestRejected(f"two nodes are called {brief(address.name)}")
        found[address.name] = address
    return list(found.values())


def is_cluster(text: str) -> bool:
    return text == AUTO or text.startswith(RAY)


def configured(environ: Mapping[str, str]) -> str | list[str | Mapping[str, Any]]:
    """The nodes of LEEWARD_FLEET, else of the user's file, else of the system's; BadRequest if there are none."""
    named = environ.get(VARIABLE, "").split()
    if named:
        return named[0] if is_cluster(named[0]) else [*named]
    own = user_folder(environ, "CONFIG", "leeward", FILE)
    for path in (own, SYSTEM_FILE):
        try:
            return nodes_in(path)
        except FileNotFoundError:
            continue
    raise BadRequest(f"no nodes are named: write them into {own} or {VARIABLE}, or name them; docs/fleet.md")


def nodes_in(path: str) -> str | list[str | Mapping[str, Any]]:
    """The nodes in the file *path*. BadRequest if another user can write to it, or its content is wrong; OSError."""
    try:
        nodes = tomllib.loads(trusted_content(path, _MOST_BYTES, os.geteuid()).decode()).get("nodes")
        is_private = not os.stat(path).st_mode & 0o007
    except BadRequest as error:
        raise BadRequest(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        raise BadRequest(f"{path}: it isn't TOML") from None
    if isinstance(nodes, str) and is_cluster(nodes):
        return nodes
    if not isinstance(nodes, list) or not nodes or not all(isinstance(each, (str, dict)) for each in nodes):
        raise BadRequest(f"{path}: nodes is a list of addresses or tables, {AUTO!r} or {RAY}HOST:PORT")
    if not is_private and any(isinstance(each, dict) and "token" in each for each in nodes):
        raise BadRequest(f"{path}: everybody can read the tokens in it: chmod 640")
    return nodes
