"""
Which sandbox of the user's a word of the command line means: an id, the beginning of one, the name that `--name` gave, or
an agent's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from leeward.client.sandbox import Sandbox
from leeward.errors import BadRequest, DaemonError
from leeward.spec.paths import client_socket
from leeward.wire.sandbox_ids import ID_ALPHABET, ID_LENGTH

#: The keys of the metadata that name a sandbox: of `--name`, and of `leeward agent start`.
NAME, _AGENTS = "name", ("instance", "agent")
#: Sandboxes that a message names, at most.
_SHOWN = 10


def is_id(text: str) -> bool:
    return len(text) == ID_LENGTH and not text.strip(ID_ALPHABET)


def sandbox_id(text: str, socket: str | None) -> str:
    """The id of the sandbox that *text* means; BadRequest if it is none of the user's, or several."""
    if is_id(text) or not text:
        return text  # the daemon says whether there is one
    rows = Sandbox.list(socket=socket)
    for fits in (_is_named, _begins):
        found = [row for row in rows if fits(row, text)]
        if len(found) == 1:
            return str(found[0]["sandbox"])
        if found:
            raise BadRequest(f"{text!a:.60} fits several sandboxes: {', '.join(map(_shown, found[:_SHOWN]))}")
    raise BadRequest(f"no sandbox of yours has the name {text!a:.60}, or an id that begins so; `leeward sandbox list`"
                     " shows them; a command stands behind --")


def asked_id(text: str, socket: str | None) -> str:
    """As `sandbox_id` for what may also be a job's number, or have ended: *text* itself unless it means a sandbox."""
    if text and not text.isdecimal() and not is_id(text):
        with contextlib.suppress(BadRequest, DaemonError):
            return sandbox_id(text, str(client_socket(socket)))  # no daemon is started for this
    return text


def names(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What completes a command line: ids, and the names of `--name`."""
    for row in rows:
        yield row["sandbox"]
        if name := row["metadata"].get(NAME):
            yield str(name)


def _is_named(row: Mapping[str, Any], text: str) -> bool:
    return any(row["metadata"].get(key) == text for key in (NAME, *_AGENTS))


def _begins(row: Mapping[str, Any], text: str) -> bool:
    return bool(row["sandbox"].startswith(text))


def _shown(row: Mapping[str, Any]) -> str:
    name = row["metadata"].get(NAME) or row["metadata"].get(_AGENTS[0])
    return f"{row['sandbox'][:8]}" + (f" ({name!a:.40})" if name else "")
