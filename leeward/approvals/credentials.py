"""
Who calls: the operator, who decides, or a process of a sandbox, which asks.

Runs in:   the operator's program that decides; pure.
Trust:     a listener makes the credential from the connection itself, and puts it into the ASGI scope under SCOPE_KEY.
           No byte of a request takes part in that choice. A scope without an entry belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: Where a listener leaves it in the scope of ASGI.
SCOPE_KEY = "leeward.credential"


@dataclass(frozen=True, slots=True)
class Operator:
    """
    A person, or a program of the same user on the host.

    Attributes:
        by: which way the call came, as decisions record it.
    """

    by: Literal["cli", "page"]


@dataclass(frozen=True, slots=True)
class AskingSandbox:
    """
    Any process of one sandbox: they share a bridge, and aren't told apart.

    Attributes:
        sandbox: its id, as the daemon gives it.
    """

    sandbox: str


Credential = Operator | AskingSandbox


def credential_of(scope: Mapping[str, Any]) -> Credential | None:
    """
    Who calls; None where no listener has said.
    """
    found = scope.get(SCOPE_KEY)
    return found if isinstance(found, (Operator, AskingSandbox)) else None
