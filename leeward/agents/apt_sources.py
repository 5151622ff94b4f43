"""
The hosts and folders in apt's lists of sources.

Runs in:   the caller's program, which reads /etc/apt or the user's folder in its place. In the sandbox apt reads the
           same lists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from leeward.errors import Unsupported

#: Bytes of one list of sources, at most.
_MOST = 1 << 20
_LINE = re.compile(r"deb(?:-src)?\s+(?:\[[^]]*\]\s+)?(\S+)")


@dataclass(frozen=True, slots=True)
class AptSources:
    """
    The sources of packages.

    Attributes:
        etc: a folder with the layout of /etc/apt.
        hosts: names, each with its port.
        folders: of the host, with packages (`file:`).
    """

    etc: str
    hosts: tuple[str, ...]
    folders: tuple[str, ...]


def apt_sources(etc: str) -> AptSources:
    """
    Read the lists of sources below *etc*, a folder with the layout of /etc/apt.

    Raises:
        Unsupported: there are no sources, or none that a sandbox can reach.
    """
    hosts, folders, other = dict[str, None](), dict[str, None](), dict[str, None]()
    for uri in _uris(etc):
        found = urlsplit(uri)
        if found.scheme in ("http", "https") and found.hostname:
            hosts[f"{found.hostname}:{found.port or (80 if found.scheme == 'http' else 443)}"] = None
        elif found.scheme in ("file", "copy") and found.path.startswith("/"):
            folders[os.path.realpath(found.path)] = None
        else:
            other[uri] = None
    if not hosts and not folders:
        why = f"sources that can't be reached from a sandbox: {', '.join(other)}"[:200] if other else f"none in {etc}"
        raise Unsupported("sources of packages", have=why, need="one of http, https or file",
                          cure="look at /etc/apt/sources.list.d")
    return AptSources(etc, tuple(hosts), tuple(folders))


def _uris(etc: str) -> Iterator[str]:
    parts = os.path.join(etc, "sources.list.d")
    names = sorted(os.listdir(parts)) if os.path.isdir(parts) else []
    for path in (os.path.join(etc, "sources.list"), *(os.path.join(parts, name) for name in names)):
        if not path.endswith((".list", ".sources")):
            continue
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(_MOST)
        except OSError:
            continue
        yield from _of_stanzas(text) if path.endswith(".sources") else _of_lines(text)


def _of_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        found = _LINE.match(line.strip())
        if found:
            yield found[1]


def _of_stanzas(text: str) -> Iterator[str]:
    """The URIs of enabled stanzas in the format deb822, where a value continues in lines that begin with a blank."""
    for stanza in re.split(r"\n\s*\n", text):
        fields, name = dict[str, str](), ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace() and name:
                fields[name] += f" {line.strip()}"
            elif ":" in line:
                name, _, value = line.partition(":")
                name = name.strip().lower()
                fields[name] = value.strip()
        if fields.get("enabled", "yes").lower() not in ("no", "false", "without", "off", "disable"):
            yield from fields.get("uris", "").split()
