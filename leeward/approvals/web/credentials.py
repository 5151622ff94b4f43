"""
The caller of a route: the operator, who decides, or a process of a sandbox, which makes requests.

Runs in:   the operator's program that decides; pure.
Trust:     a listener makes the credential from the connection, not from any byte of a request, and puts it into the
           ASGI scope under SCOPE_KEY. A scope without a credential has no rights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

#: The key of the credential in the scope of ASGI.
SCOPE_KEY = "leeward.credential"


@dataclass(frozen=True, slots=True)
class Operator:
    """
    A person, or a program of the same user on the host.

    Attributes:
        by: "cli" for the operator's socket, "page" for TCP; decisions record it.
    """

    by: Literal["cli", "page"]


@dataclass(frozen=True, slots=True)
class AskingSandbox:
    """
    A process of a sandbox. The processes of one sandbox share a bridge, so they can't be distinguished.

    Attributes:
        sandbox: its id, as the daemon gives it.
    """

    sandbox: str


Credential = Operator | AskingSandbox


def credential_of(scope: Mapping[str, Any]) -> Credential | None:
    """The credential in *scope*; None if there is none."""
    found = scope.get(SCOPE_KEY)
    return found if isinstance(found, (Operator, AskingSandbox)) else None
