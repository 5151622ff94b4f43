"""
The questions of rules of `ask` to a person: bounds, and a check for each field.

Trust:     none. Questions come from the broker, which reads hostile bytes, and answers from a client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leeward.errors import BadRequest, PeerError
from leeward.wire.fields import text

#: Characters of each text of an ask but its path; of its path; and of an answer's message.
MAX_ASKED, MAX_PATH, MAX_MESSAGE = 512, 8192, 500

#: The protocols of a question; of `egress.policy.PROTOCOLS`.
PROTOCOLS = ("http", "https", "tls", "tcp")

_TEXTS = {"name": MAX_ASKED, "address": MAX_ASKED, "method": 64, "path": MAX_PATH, "rule": MAX_ASKED}


def message(value: object, what: str) -> str:
    """The check of an answer's message."""
    found = text(value, what, MAX_MESSAGE)
    if not found.isprintable():
        raise BadRequest(f"{what} has a character that isn't printable, such as a line's end")
    return found


def check_ask(about: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of *about* that a question has; PeerError if it isn't one. `seconds` is how long it waits at most."""
    found: dict[str, Any] = {}
    for name, most in _TEXTS.items():
        value = about.get(name)
        if not isinstance(value, str) or len(value) > most or not value.isprintable():
            raise PeerError(f"an ask: no {name}")
        found[name] = value
    port, seconds = about.get("port"), about.get("seconds")
    if type(port) is not int or not 1 <= port <= 65535:
        raise PeerError("an ask: no port")
    if type(seconds) is not float or not 0 <= seconds <= 1e6:
        raise PeerError("an ask: no seconds")
    if about.get("protocol") not in PROTOCOLS:
        raise PeerError("an ask: no protocol")
    return {**found, "port": port, "protocol": about["protocol"], "seconds": seconds}
