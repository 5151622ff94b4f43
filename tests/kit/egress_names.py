"""
The names of the tests' own resolver, in the broker's process. All names of tests resolve to addresses of this host.

The point `broker.entry` puts this resolver in the place of the product's: egress.py.
"""

from __future__ import annotations

import asyncio
import itertools
from ipaddress import ip_address

from leeward.spec.hosts import Address

HERE = "127.0.0.1"

#: The addresses of names of example.org that don't resolve to HERE; each query gets the next answer.
ANSWERS = {
    "private.example.org": [["10.1.2.3"]],
    "metadata.example.org": [["169.254.169.254", "fd00:ec2::254"]],
    "mixed.example.org": [["10.1.2.3", HERE]],
    "rebinds.example.org": [[HERE], ["127.0.0.2"]],
}

#: Names that other people's tests ask for.
OF_OTHERS = ("pypi.org", "www.github.com")

_asked = {name: itertools.cycle(answers) for name, answers in ANSWERS.items()}


async def lookup(name: str) -> list[Address]:
    """Return the addresses of *name*."""
    if name == "slow.example.org":
        await asyncio.Event().wait()  # for ever
    if not name.endswith((".example.org", *OF_OTHERS)) or name == "missing.example.org":
        raise OSError(-2, "no such name")
    return [ip_address(text) for text in (next(_asked[name]) if name in _asked else [HERE])]
